"""Options and columns of the data source, parsed and checked before the first fetch.

The columns of each content have Spark's and Arrow's types; values of messages may have a separate schema.
"""

from __future__ import annotations

import difflib
import enum
import functools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from formats.entries import Position
from formats.pulsar import PAYLOAD_BYTES_LIMIT, PAYLOAD_BYTES_MAX
from offloader.errors import InvalidCallError, UnsupportedError
from offloader.manifest.names import stream_name
from offloader.read.cold import NOT_MOVED
from offloader.runtime.clock import SystemClock
from offloader.settings import LimitSettings, Pairs, StoreSettings
from offloader.spark.where import Bounds
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from offloader.times import is_relative, time_ms_of, time_text

if TYPE_CHECKING:
    from pyspark.sql.types import StructField

#: Reads an option, given its name and its text.
_Parser = Callable[[str, str], Any]

CONTENTS = (
    *("entries", "messages", "segments", "ledgers", "manifest", "anomalies"),
    *("subscribers", "retention", "orphans"),
)
#: Target size of a partition.
SPLIT_BYTES = 64 * 1024 * 1024
#: A third of the shortest useful subscriber timeout for queries with batches of a few seconds.
SUBSCRIBER_RENEW_S = 60
_STREAM_ONLY = (
    "startFrom",
    "maxBytesPerTrigger",
    "maxEntriesPerTrigger",
    "failOnDataLoss",
    "subscriber",
    "subscriberRenewSeconds",
)
_BATCH_ONLY = ("stop", "until", "asOfManifest", "leaseSeconds", "bounds", "failedSegments")


def _text(_: str, text: str) -> str:
    return text.strip()


def _stream(_: str, text: str) -> str:
    return stream_name(text.strip())


def _names(_: str, text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _position(name: str, text: str) -> Position:
    try:
        return Position.parse(text)
    except ValueError as cause:
        raise InvalidCallError(f"option {name}: {cause}") from cause


def _last(name: str, text: str) -> Position:
    """The last position before an exclusive one."""
    return _position(name, text).previous()


def _time(name: str, text: str) -> int:
    return time_ms_of(text, option=f"option {name}", now_ms=SystemClock().now_ms())


def require_fixed_start(given: Mapping[str, str]) -> None:
    """Raises ``InvalidCallError`` if ``since`` counts back from now: a restarted streaming query would omit unread
    entries.
    """
    for name, text in given.items():
        if name.lower() == "since" and is_relative(text):
            raise InvalidCallError(
                f"option since: {text} would be a different time after a restart of the query",
                hint=f"use an absolute time: {time_text(_time(name, text))}",
            )


def _number(name: str, text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise InvalidCallError(f"option {name}: {text!r} is not a positive integer")
    return int(text)


#: A stream's name may have commas and equals signs in it.
_RECORD = re.compile(r"\s*(\S.*?)\s*=\s*(\d+)\s*(?:,|$)")


def _records(name: str, text: str) -> tuple[tuple[str, int], ...]:
    """``7`` -> record 7 of the stream called "", that is, of the only one; ``a=7, b=8`` -> of each stream."""
    if text.strip().isdecimal():
        return (("", _number(name, text)),)
    found, at = [], 0
    while at < len(text):
        match = _RECORD.match(text, at)
        if match is None:
            raise InvalidCallError(
                f"option {name}: {text!r} is neither a record's number nor stream=number, stream=number"
            )
        found.append((match[1], _number(name, match[2])))
        at = match.end()
    return tuple(found)


def _bounds(name: str, text: str) -> Bounds:
    try:
        return Bounds.decode(text)
    except (ValueError, TypeError) as cause:
        raise InvalidCallError(f"option {name}: {text!r} wasn't set by offloader.spark.entries") from cause


def _moves(name: str, text: str) -> Pairs:
    pairs = [tuple(map(str.strip, each.split("=", 1))) for each in text.split(",")]
    if not all(len(pair) == 2 and all(pair) for pair in pairs):
        raise InvalidCallError(f"option {name}: {text!r} isn't old=new, old=new, ...")
    return Pairs((pair[0], pair[1]) for pair in pairs)


def _one_of(name: str, text: str, words: tuple[str, ...]) -> str:
    if text.strip().lower() not in words:
        raise InvalidCallError(f"option {name}: {text!r} is not one of {', '.join(words)}")
    return text.strip().lower()


def _is(wanted: str, *words: str) -> _Parser:
    """Parser of an option with one of ``words``: whether it is the wanted one."""
    return lambda name, text: _one_of(name, text, words) == wanted


_truth, _skips = _is("true", "true", "false"), _is("skip", "error", "skip")


def _option(name: str, read: _Parser) -> dict[str, Any]:
    return {"option": name, "read": read}


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The values of ``.option(...)``; picklable.

    Attributes:
        store: URL of the object store.
        stream: name of a stream or, if there is none, of a topic with partitions or segments; or a pattern with
            ``*`` and ``?``; ``*`` also matches ``/``. A topic may be written ``persistent://tenant/ns/topic``, a
            scalable one ``topic://tenant/ns/topic``.
        content: kind of row.
        columns: of a data frame without a schema; empty = all.
        endpoint_url, region: of an S3 server.
        start_position, end_position: inclusive.
        start_ms, end_ms: publish times, the end excluded; either excludes entries without a publish time.
        split_bytes: target size of a partition.
        as_of_manifest: manifest record to read instead of the newest one: of each stream, or under the name "" of the
            only one.
        bad_messages_are_rows: entries that can't be read as messages become rows with the reason, instead of failing.
        markers: whether markers of Pulsar's servers are messages too.
        message_bytes_max: most bytes of one entry's decompressed payload.
        skip_corrupt, skip_missing: skip damaged blocks, missing objects instead of failing.
        failed_segments: content segments has those that failed too, from each stream's kept records.
        lease_seconds: lease of the query's segments against cleanup, from its planning on; 0: none.
        relocate: moved buckets, old and new.
        start_latest: a new streaming query skips existing entries.
        max_bytes_per_trigger, max_entries_per_trigger: approximate size of a batch of a streaming query; none: all.
        fail_on_data_loss: a streaming query fails when entries were deleted before it read them.
        subscriber: a streaming query's name as a subscriber of its streams; none: it isn't one.
        subscriber_renew_s: interval of its renewals without progress.
        bounds: of ``offloader.spark.entries`` and ``messages``; ``None``: another data frame.
        access_key, secret_key, session_token: only if the user gave them; otherwise workers use their own chain.
    """

    store: str = field(metadata=_option("store", _text))
    stream: str = field(metadata=_option("stream", _stream))
    content: str = field(default="entries", metadata=_option("content", functools.partial(_one_of, words=CONTENTS)))
    columns: tuple[str, ...] = field(default=(), metadata=_option("columns", _names))
    endpoint_url: str | None = field(default=None, metadata=_option("endpointUrl", _text))
    region: str | None = field(default=None, metadata=_option("region", _text))
    start_position: Position | None = field(default=None, metadata=_option("start", _position))
    end_position: Position | None = field(default=None, metadata=_option("stop", _last))
    start_ms: int | None = field(default=None, metadata=_option("since", _time))
    end_ms: int | None = field(default=None, metadata=_option("until", _time))
    split_bytes: int = field(default=SPLIT_BYTES, metadata=_option("splitBytes", _number))
    as_of_manifest: tuple[tuple[str, int], ...] = field(default=(), metadata=_option("asOfManifest", _records))
    bad_messages_are_rows: bool = field(default=False, metadata=_option("onBadMessage", _is("null", "error", "null")))
    markers: bool = field(default=True, metadata=_option("markers", _truth))
    message_bytes_max: int = field(default=PAYLOAD_BYTES_MAX, metadata=_option("messageBytesMax", _number))
    skip_corrupt: bool = field(default=False, metadata=_option("onCorrupt", _skips))
    skip_missing: bool = field(default=False, metadata=_option("onMissing", _skips))
    failed_segments: bool = field(default=False, metadata=_option("failedSegments", _truth))
    lease_seconds: int = field(default=0, metadata=_option("leaseSeconds", _number))
    relocate: Pairs = field(default=NOT_MOVED, metadata=_option("relocate", _moves))
    bounds: Bounds | None = field(default=None, metadata=_option("bounds", _bounds))
    start_latest: bool = field(default=False, metadata=_option("startFrom", _is("latest", "earliest", "latest")))
    max_bytes_per_trigger: int | None = field(default=None, metadata=_option("maxBytesPerTrigger", _number))
    max_entries_per_trigger: int | None = field(default=None, metadata=_option("maxEntriesPerTrigger", _number))
    fail_on_data_loss: bool = field(default=True, metadata=_option("failOnDataLoss", _truth))
    subscriber: str = field(default="", metadata=_option("subscriber", _text))
    subscriber_renew_s: int = field(default=SUBSCRIBER_RENEW_S, metadata=_option("subscriberRenewSeconds", _number))
    access_key: str | None = field(default=None, repr=False, metadata=_option("accessKey", _text))
    secret_key: str | None = field(default=None, repr=False, metadata=_option("secretKey", _text))
    session_token: str | None = field(default=None, repr=False, metadata=_option("sessionToken", _text))

    @classmethod
    def of(cls, given: Mapping[str, str]) -> SourceOptions:
        """Options from Spark's map, whose names are case-insensitive.

        Raises:
            InvalidCallError: unknown names (all of them are named), missing or malformed values.
        """
        names = {name.lower(): (name, attribute, read) for name, (attribute, read) in _OPTIONS.items()}
        unknown = [name for name in given if name.lower() not in names]
        if unknown:
            close = difflib.get_close_matches(unknown[0].lower(), names, n=1)
            hint = f"did you mean {names[close[0]][0]}?" if close else f"options: {', '.join(_OPTIONS)}"
            raise InvalidCallError(f"unknown option {', '.join(sorted(unknown))}", hint=hint)
        chosen = ((*names[name.lower()], text) for name, text in given.items())
        values = {attribute: read(name, text) for name, attribute, read, text in chosen}
        for name in ("store", "stream"):
            if not values.get(name):
                example = "s3://bucket/root" if name == "store" else "public/default/persistent/orders"
                raise InvalidCallError(
                    f"option {name} is missing",
                    hint=f'.option("{name}", "{example}"), or in SQL: FROM offloader WITH ({name} \'{example}\', ...)',
                )
        options = cls(**values)
        if options.start_ms is not None and options.end_ms is not None and options.end_ms < options.start_ms:
            raise InvalidCallError("option until is before since", hint="swap the two")
        start, end = options.start_position, options.end_position
        if start is not None and end is not None and end < start.previous():
            raise InvalidCallError(f"option stop {end.next()} is before start {start}", hint="swap the two")
        if options.message_bytes_max > PAYLOAD_BYTES_LIMIT:
            raise InvalidCallError(
                f"option messageBytesMax is at most {PAYLOAD_BYTES_LIMIT}, not {options.message_bytes_max}"
            )
        if options.store.startswith("memory:"):
            raise UnsupportedError(
                f"{options.store} exists in one process only, so Spark's workers can't read it",
                hint="use a file:// or s3:// store",
            )
        if options.bounds is None:
            return options
        times = [(options.start_ms, options.bounds.start_ms), (options.end_ms, options.bounds.end_ms)]
        starts, ends = ([time for time in each if time is not None] for each in times)
        return replace(options, start_ms=max(starts, default=None), end_ms=min(ends, default=None))

    def require_batch(self) -> None:
        """Raises ``InvalidCallError`` for options of ``readStream`` only."""
        self._refuse(_STREAM_ONLY, "belongs to spark.readStream, not to spark.read")

    def require_stream(self) -> None:
        """Raises ``InvalidCallError`` for options that ``readStream`` doesn't support, and for two start options."""
        self._refuse(_BATCH_ONLY, "belongs to spark.read, not to spark.readStream")
        if self.content not in ("entries", "messages"):
            raise InvalidCallError(
                f"content={self.content} can't be streamed",
                hint="stream entries or messages, read other contents with spark.read",
            )
        if self.start_latest and (self.start_position is not None or self.start_ms is not None):
            raise InvalidCallError("option startFrom=latest contradicts start and since", hint="omit one of them")

    def _refuse(self, names: tuple[str, ...], why: str) -> None:
        defaults = {each.name: each.default for each in fields(self)}
        for name in names:
            attribute = _OPTIONS[name][0]
            if getattr(self, attribute) != defaults[attribute]:
                raise InvalidCallError(f"option {name} {why}", hint="omit it")

    def open_store(
        self,
        *,
        read_only: bool = True,
        create: bool = True,
        settings: StoreSettings | None = None,
        limits: LimitSettings | None = None,
    ) -> ObjectStore:
        """The store; one per Python worker and set of options. ``create``: a missing local directory, to write."""
        return _opened(
            self.store,
            endpoint_url=self.endpoint_url,
            region=self.region,
            access_key=self.access_key,
            secret_key=self.secret_key,
            session_token=self.session_token,
            read_only=read_only,
            create=create,
            settings=settings or StoreSettings(),
            limits=limits,
        )


#: A Python worker's open stores: tasks of one query share one.
_opened = functools.lru_cache(maxsize=4)(open_store)


#: Option -> attribute, and the parser of its text.
_OPTIONS: dict[str, tuple[str, _Parser]] = {
    each.metadata["option"]: (each.name, each.metadata["read"]) for each in fields(SourceOptions)
}

US_PER_MS = 1000


class Needs(enum.IntEnum):
    """Data to fetch for a row; each includes the previous ones."""

    INDEXES = 0
    ENTRY_TABLES = 1
    PAYLOADS = 2


_PROPERTIES = pa.map_(pa.string(), pa.string())
_KEY = pa.struct([("name", pa.string()), ("value", pa.binary()), ("metadata", _PROPERTIES)])
_SPAN = ("ledger_id", "first_entry_id", "last_entry_id", "entries", "payload_bytes")
_SPANS = f"array<struct<{','.join(f'{name}:bigint' for name in _SPAN)}>>"

#: Spark's type -> Arrow's.
_ARROW: dict[str, pa.DataType] = {
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "map<string,string>": _PROPERTIES,
    "array<string>": pa.list_(pa.field("element", pa.string())),
    "array<struct<name:string,value:binary,metadata:map<string,string>>>": pa.list_(pa.field("element", _KEY)),
    _SPANS: pa.list_(pa.field("element", pa.struct([(name, pa.int64()) for name in _SPAN]))),
}

#: Columns of each content, as Spark's DDL. A schema must not declare NOT NULL for others.
_DDL = {
    "entries": """
        stream string NOT NULL, ledger_id bigint NOT NULL, entry_id bigint NOT NULL, publish_time timestamp,
        payload binary NOT NULL""",
    # Names, meanings and order of the values: formats.pulsar.messages.
    "messages": """
        stream string NOT NULL, ledger_id bigint NOT NULL, entry_id bigint NOT NULL, batch_index int NOT NULL,
        publish_time timestamp, key string, key_is_base64 boolean, null_key boolean, ordering_key binary,
        event_time timestamp, producer_name string, sequence_id bigint, schema_version binary,
        properties map<string,string>, value binary, error string, compacted_out boolean, batch_size int,
        replicated_from string, deliver_at timestamp, marker_type int, txn_most_bits bigint, txn_least_bits bigint,
        chunk_uuid string, chunk_id int, chunk_count int, chunk_total_bytes int, compression string,
        uncompressed_bytes bigint, encryption_algorithm string, encryption_parameter binary,
        encryption_keys array<struct<name:string,value:binary,metadata:map<string,string>>>,
        broker_time timestamp, broker_index bigint""",
    "segments": f"""
        stream string NOT NULL, uuid string NOT NULL, status string NOT NULL, format int NOT NULL,
        epoch bigint NOT NULL, first_ledger_id bigint NOT NULL, first_entry_id bigint NOT NULL,
        last_ledger_id bigint, last_entry_id bigint, entries bigint, payload_bytes bigint, data_bytes bigint,
        index_bytes bigint, blocks bigint, compressed boolean, publish_time_min timestamp, publish_time_max timestamp,
        assigned_time timestamp NOT NULL, offloaded_time timestamp, ledgers {_SPANS}, failed_time timestamp,
        reason string""",
    "ledgers": """
        stream string NOT NULL, ledger_id bigint NOT NULL, closed boolean NOT NULL, closed_at_entry_id bigint,
        deleted boolean NOT NULL, hot_released boolean NOT NULL, segments bigint NOT NULL, entries bigint NOT NULL,
        payload_bytes bigint NOT NULL, first_entry_id bigint, last_entry_id bigint""",
    "manifest": """
        stream string NOT NULL, incarnation string NOT NULL, record_id bigint NOT NULL, time timestamp NOT NULL,
        epoch bigint NOT NULL, writer string NOT NULL, edits array<string> NOT NULL, json string NOT NULL""",
    "anomalies": """
        stream string NOT NULL, problem string NOT NULL, damage boolean NOT NULL, segment string, object string,
        start bigint, stop bigint, expected string, found string, message string NOT NULL, advice string""",
    "subscribers": """
        stream string NOT NULL, subscriber string NOT NULL, generation bigint NOT NULL, cut string, start string,
        updated_time timestamp, active_time timestamp, lag_entries bigint NOT NULL, lag_bytes bigint NOT NULL""",
    # A decision, or a cut that it considered; null in a candidate: what the decision has for all of them.
    "retention": """
        stream string NOT NULL, time timestamp NOT NULL, kind string NOT NULL, role string, cut string,
        cut_time timestamp, keeps_bytes bigint, segment_end boolean, rule string, why string, head string, bound string,
        bound_kind string, removed_entries bigint, removed_bytes bigint, overridden array<string>, held boolean,
        fallback boolean""",
    "orphans": """
        stream string NOT NULL, object string NOT NULL, what string NOT NULL, upload_id string,
        objects bigint NOT NULL, bytes bigint NOT NULL, modified_time timestamp, ours boolean NOT NULL,
        reason string NOT NULL, deletable boolean NOT NULL""",
}
_COLUMN = re.compile(r"(\w+) (\S+?)( NOT NULL)?(?:, |$)")
_PARSED = {content: _COLUMN.findall(" ".join(text.split())) for content, text in _DDL.items()}
#: content -> column -> (Spark's type, Arrow's type)
_COLUMNS = {content: {name: (kind, _ARROW[kind]) for name, kind, _ in rows} for content, rows in _PARSED.items()}
_NEVER_NULL = {content: {name for name, _, never in rows if never} for content, rows in _PARSED.items()}


@dataclass(frozen=True, slots=True)
class Projection:
    """The wanted columns, in order, as an Arrow schema as Spark expects it, and the data to fetch; picklable."""

    schema: pa.Schema
    needs: Needs


def is_option(name: str) -> bool:
    """Whether the data source has an option of that name, in upper or lower case."""
    return name.lower() in {option.lower() for option in _OPTIONS}


def column_names(content: str) -> list[str]:
    """The columns of a content, in order."""
    return list(_COLUMNS[content])


def arrow_schema(content: str, names: Iterable[str] = ()) -> pa.Schema:
    """Columns of a content, all of which may be null; ``names``, or all."""
    columns = _COLUMNS[content]
    return pa.schema([(name, columns[name][1]) for name in names or columns])


def ddl(content: str, names: Iterable[str] = ()) -> str:
    """Columns of a content as Spark's DDL: ``names``, or all; ``InvalidCallError`` for an unknown or duplicate one."""
    columns, wanted = _COLUMNS[content], tuple(names)
    unknown = [name for name in wanted if name not in columns]
    if unknown:
        raise InvalidCallError(
            f"option columns: content={content} has no {', '.join(unknown)}", hint=f"columns: {', '.join(columns)}"
        )
    if len(set(wanted)) < len(wanted):
        raise InvalidCallError(f"option columns names a column twice: {','.join(wanted)}", hint="name each column once")
    return ", ".join(f"{name} {columns[name][0]}" for name in wanted or columns)


def projection(fields: Iterable[StructField], content: str) -> Projection:
    """The columns of a schema: Spark passes a Python data source no other projection than the user's schema.

    Raises:
        InvalidCallError: a column that doesn't exist, of another type, or declared ``NOT NULL`` though it may be null.
    """
    columns = _COLUMNS[content]
    wanted = []
    for each in fields:
        if each.name not in columns:
            raise InvalidCallError(
                f"the schema has a column {each.name}, which content={content} doesn't",
                hint=f"columns: {ddl(content)}",
            )
        spark, arrow = columns[each.name]
        found = each.dataType.simpleString().lower()
        if found != spark:
            raise InvalidCallError(
                f"column {each.name} is of type {spark}, but the schema has {found}", hint="cast it after the load"
            )
        if not each.nullable and each.name not in _NEVER_NULL[content]:
            raise InvalidCallError(f"column {each.name} may be null, but the schema has NOT NULL", hint="omit NOT NULL")
        wanted.append(pa.field(each.name, arrow, nullable=each.nullable))
    names = {each.name for each in wanted}
    # Only the entry itself has its number of messages.
    whole = "payload" in names or content == "messages"
    needs = Needs.PAYLOADS if whole else Needs.ENTRY_TABLES if "publish_time" in names else Needs.INDEXES
    return Projection(pa.schema(wanted), needs)


@dataclass(frozen=True, slots=True)
class JsonValues:
    """Values are JSON objects with these fields, as Spark's DDL: ``id BIGINT, name STRING``.

    A field missing in a value is null; one missing in the schema is left out.
    """

    fields: str


@dataclass(frozen=True, slots=True)
class AvroValues:
    """Values are Avro records, without a header.

    Attributes:
        schema: of the columns, as JSON, or a response of Pulsar's admin interface.
        versions: schemas of the values, by Pulsar's number; empty: all with ``schema``.
    """

    schema: str
    versions: tuple[tuple[int, str], ...] = ()


Values = JsonValues | AvroValues
