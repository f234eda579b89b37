"""Options and pushed filters of the data source, parsed and checked before the first fetch."""

from __future__ import annotations

import difflib
import functools
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

from formats.entries import TIME_UNKNOWN_MS, Position
from formats.pulsar.messages import PAYLOAD_BYTES_LIMIT, PAYLOAD_BYTES_MAX
from offloader.errors import InvalidCall, Unsupported
from offloader.read.cold import NOT_MOVED
from offloader.read.reader import time_ms_of
from offloader.settings import LimitSettings, Pairs, StoreSettings
from offloader.store import open_store
from offloader.store.base import ObjectStore

__all__ = ["CONTENTS", "Predicate", "SourceOptions", "block_mask", "matches_value", "microseconds"]

CONTENTS = ("entries", "messages", "segments", "ledgers", "manifest", "anomalies")
#: Target size of a partition.
SPLIT_BYTES = 64 * 1024 * 1024
#: A third of the shortest useful subscriber timeout for queries with batches of a few seconds.
SUBSCRIBER_RENEW_S = 60
_SKIP = ("error", "skip")
_BAD_MESSAGE = ("error", "null")
_TRUTH = ("true", "false")
_STARTS = ("earliest", "latest")
_STREAM_ONLY = (
    "startFrom",
    "maxBytesPerTrigger",
    "maxEntriesPerTrigger",
    "failOnDataLoss",
    "subscriber",
    "subscriberRenewSeconds",
)
_BATCH_ONLY = ("endPosition", "endTime", "asOfManifest", "leaseSeconds", "pruneByFilters")
#: Open stores cached by a Python worker: tasks of one query share one.
STORES_KEPT_MAX = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The values of ``.option(...)``; picklable.

    Attributes:
        store: URL of the object store.
        stream: name, or a pattern with ``*``, ``?``, ``[...]``; ``*`` also matches ``/``.
        content: kind of row.
        columns: of a data frame without a schema; empty = all.
        endpoint_url, region: of an S3 server.
        start_position, end_position: inclusive.
        start_ms, end_ms: publish times, the end excluded; either excludes entries without a publish time.
        split_bytes: target size of a partition.
        as_of_manifest: manifest record to pin instead of the newest one.
        bad_messages_are_rows: entries that can't be read as messages become rows with the reason, instead of failing.
        markers: whether markers of Pulsar's servers are messages too.
        message_bytes_max: most bytes of one entry's decompressed payload.
        skip_corrupt, skip_missing: skip damaged blocks, missing objects instead of failing.
        lease_seconds: lease of the query's segments against cleanup, from its planning on; 0: none.
        relocate: moved buckets, old and new.
        start_latest: a new streaming query skips existing entries.
        max_bytes_per_trigger, max_entries_per_trigger: approximate size of a batch of a streaming query; none: all.
        fail_on_data_loss: a streaming query fails when entries were deleted before it read them.
        subscriber: a streaming query's name as a subscriber of its streams; none: it isn't one.
        subscriber_renew_s: interval of its renewals without progress.
        prune_by_filters: let pushed filters skip blocks. Only for a data frame that is used in one query, once: see
            ``offloader.spark.source.PushingReader``.
        access_key, secret_key, session_token: only if the user gave them; otherwise workers use their own chain.
    """

    store: str
    stream: str
    content: str = "entries"
    columns: tuple[str, ...] = ()
    endpoint_url: str | None = None
    region: str | None = None
    start_position: Position | None = None
    end_position: Position | None = None
    start_ms: int | None = None
    end_ms: int | None = None
    split_bytes: int = SPLIT_BYTES
    as_of_manifest: int | None = None
    bad_messages_are_rows: bool = False
    markers: bool = True
    message_bytes_max: int = PAYLOAD_BYTES_MAX
    skip_corrupt: bool = False
    skip_missing: bool = False
    lease_seconds: int = 0
    relocate: Pairs = NOT_MOVED
    prune_by_filters: bool = False
    start_latest: bool = False
    max_bytes_per_trigger: int | None = None
    max_entries_per_trigger: int | None = None
    fail_on_data_loss: bool = True
    subscriber: str = ""
    subscriber_renew_s: int = SUBSCRIBER_RENEW_S
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, given: Mapping[str, str]) -> SourceOptions:
        """Options from Spark's map, whose names are case-insensitive.

        Raises:
            InvalidCall: unknown names (all of them are named), missing or malformed values.
        """
        names = {name.lower(): (name, attribute, read) for name, (attribute, read) in _OPTIONS.items()}
        unknown = [name for name in given if name.lower() not in names]
        if unknown:
            raise InvalidCall(f"no such option: {', '.join(sorted(unknown))}", hint=_similar(unknown[0]))
        values = {}
        for given_name, text in given.items():
            name, attribute, read = names[given_name.lower()]
            values[attribute] = read(name, text)
        for name in ("store", "stream"):
            if not values.get(name):
                example = "s3://bucket/root" if name == "store" else "public/default/persistent/orders"
                raise InvalidCall(f"option {name} is missing", hint=f'.option("{name}", "{example}")')
        options = cls(**values)
        if options.start_ms is not None and options.end_ms is not None and options.end_ms < options.start_ms:
            raise InvalidCall("option endTime is before startTime", hint="swap the two")
        start, end = options.start_position, options.end_position
        if start is not None and end is not None and end < start:
            raise InvalidCall(f"option endPosition {end} is before startPosition {start}", hint="swap the two")
        if options.message_bytes_max > PAYLOAD_BYTES_LIMIT:
            raise InvalidCall(
                f"option messageBytesMax is at most {PAYLOAD_BYTES_LIMIT}, not {options.message_bytes_max}"
            )
        if options.store.startswith("memory:"):
            raise Unsupported(
                f"{options.store} lives in one process and Spark's workers are others",
                hint="use a file:// or s3:// store",
            )
        return options

    def require_batch(self) -> None:
        """Raises ``InvalidCall`` for options of ``readStream`` only."""
        self._refuse(_STREAM_ONLY, "belongs to spark.readStream, not to spark.read")

    def require_stream(self) -> None:
        """Raises ``InvalidCall`` for options that ``readStream`` doesn't support, and for two start options."""
        self._refuse(_BATCH_ONLY, "belongs to spark.read, not to spark.readStream")
        if self.content not in ("entries", "messages"):
            raise InvalidCall(
                f"content={self.content} can't be streamed",
                hint="stream entries or messages, read others with spark.read",
            )
        if self.start_latest and (self.start_position is not None or self.start_ms is not None):
            raise InvalidCall("option startFrom=latest contradicts startPosition and startTime", hint="leave one out")

    def _refuse(self, names: tuple[str, ...], why: str) -> None:
        defaults = {each.name: each.default for each in fields(self)}
        for name in names:
            attribute = _OPTIONS[name][0]
            if getattr(self, attribute) != defaults[attribute]:
                raise InvalidCall(f"option {name} {why}", hint="leave it out")

    def open_store(
        self,
        *,
        read_only: bool = True,
        settings: StoreSettings | None = None,
        limits: LimitSettings | None = None,
    ) -> ObjectStore:
        """The store; one per Python worker and set of options."""
        keys = self.access_key, self.secret_key, self.session_token
        return _opened(
            self.store, self.endpoint_url, self.region, *keys, read_only, settings or StoreSettings(), limits
        )


@functools.lru_cache(maxsize=STORES_KEPT_MAX)
def _opened(
    url: str,
    endpoint_url: str | None,
    region: str | None,
    access_key: str | None,
    secret_key: str | None,
    session_token: str | None,
    read_only: bool,
    settings: StoreSettings,
    limits: LimitSettings | None,
) -> ObjectStore:
    return open_store(
        url,
        endpoint_url=endpoint_url,
        region=region,
        access_key=access_key,
        secret_key=secret_key,
        session_token=session_token,
        read_only=read_only,
        settings=settings,
        limits=limits,
    )


def _text(_: str, text: str) -> str:
    return text.strip()


def _names(_: str, text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _position(name: str, text: str) -> Position:
    try:
        return Position.parse(text)
    except ValueError as cause:
        raise InvalidCall(f"option {name}: {cause}") from cause


def _time(name: str, text: str) -> int:
    return time_ms_of(text, option=f"option {name}")


def _number(name: str, text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise InvalidCall(f"option {name}: {text!r} is not a whole number above zero")
    return int(text)


def _moves(name: str, text: str) -> Pairs:
    pairs = [tuple(map(str.strip, each.split("=", 1))) for each in text.split(",")]
    if not all(len(pair) == 2 and all(pair) for pair in pairs):
        raise InvalidCall(f"option {name}: {text!r} isn't old=new, old=new, ...")
    return Pairs((pair[0], pair[1]) for pair in pairs)


def _one_of(name: str, text: str, words: tuple[str, ...]) -> str:
    if text.strip().lower() not in words:
        raise InvalidCall(f"option {name}: {text!r} is none of {', '.join(words)}")
    return text.strip().lower()


def _content(name: str, text: str) -> str:
    return _one_of(name, text, CONTENTS)


def _skips(name: str, text: str) -> bool:
    return _one_of(name, text, _SKIP) == "skip"


def _nulls(name: str, text: str) -> bool:
    return _one_of(name, text, _BAD_MESSAGE) == "null"


def _truth(name: str, text: str) -> bool:
    return _one_of(name, text, _TRUTH) == "true"


def _latest(name: str, text: str) -> bool:
    return _one_of(name, text, _STARTS) == "latest"


def _similar(name: str) -> str:
    lowered = {each.lower(): each for each in _OPTIONS}
    close = difflib.get_close_matches(name.lower(), lowered, n=1)
    return f"did you mean {lowered[close[0]]}?" if close else f"options: {', '.join(_OPTIONS)}"


#: Option -> attribute, and the parser of its text.
_OPTIONS: dict[str, tuple[str, Callable[[str, str], Any]]] = {
    "store": ("store", _text),
    "stream": ("stream", _text),
    "content": ("content", _content),
    "columns": ("columns", _names),
    "endpointUrl": ("endpoint_url", _text),
    "region": ("region", _text),
    "startPosition": ("start_position", _position),
    "endPosition": ("end_position", _position),
    "startTime": ("start_ms", _time),
    "endTime": ("end_ms", _time),
    "splitBytes": ("split_bytes", _number),
    "asOfManifest": ("as_of_manifest", _number),
    "onBadMessage": ("bad_messages_are_rows", _nulls),
    "markers": ("markers", _truth),
    "messageBytesMax": ("message_bytes_max", _number),
    "onCorrupt": ("skip_corrupt", _skips),
    "onMissing": ("skip_missing", _skips),
    "leaseSeconds": ("lease_seconds", _number),
    "relocate": ("relocate", _moves),
    "pruneByFilters": ("prune_by_filters", _truth),
    "startFrom": ("start_latest", _latest),
    "maxBytesPerTrigger": ("max_bytes_per_trigger", _number),
    "maxEntriesPerTrigger": ("max_entries_per_trigger", _number),
    "failOnDataLoss": ("fail_on_data_loss", _truth),
    "subscriber": ("subscriber", _text),
    "subscriberRenewSeconds": ("subscriber_renew_s", _number),
    "accessKey": ("access_key", _text),
    "secretKey": ("secret_key", _text),
    "sessionToken": ("session_token", _text),
}


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_INT64_MAX = 2**63 - 1
_US_PER_MS = 1000


@dataclass(frozen=True, slots=True)
class Predicate:
    """One pushed filter on one column; several are combined with AND.

    Attributes:
        column: stream, ledger_id, entry_id or publish_time.
        operation: ``eq``, ``ne``, ``lt``, ``le``, ``gt``, ``ge``, ``in``, ``not_in``, ``not_null``, ``null``,
            ``prefix``.
        values: to compare with: text for stream, numbers for the ids, microseconds since 1970 UTC for the time.
    """

    column: str
    operation: str
    values: tuple[Any, ...] = ()


def microseconds(when: datetime) -> int | None:
    """Microseconds since 1970 UTC; ``None`` for an ambiguous time without a zone."""
    return None if when.tzinfo is None else (when - _EPOCH) // _MICROSECOND


def matches_value(predicates: Iterable[Predicate], column: str, value: str) -> bool:
    """Whether rows with ``value`` in ``column`` may satisfy all predicates on it."""
    return all(_value_matches(p, value) for p in predicates if p.column == column)


def _value_matches(predicate: Predicate, value: str) -> bool:
    if predicate.operation == "prefix":
        return value.startswith(predicate.values[0])
    if predicate.operation == "null":
        return False
    low = np.array([value], dtype=object)
    return bool(_range_matches(predicate, low, low)[0])


def block_mask(predicates: Iterable[Predicate], columns: Mapping[str, NDArray[np.int64]]) -> NDArray[np.bool_]:
    """Mask of the blocks (or other runs of entries) that may hold rows satisfying all predicates.

    Args:
        predicates: those on other columns than the ones below count as satisfiable.
        columns: ``ledger_id``; ``first_entry_id`` and ``last_entry_id`` (-1 unknown); ``publish_time_min_ms`` and
            ``publish_time_max_ms`` (-1 unknown, or no entry has a time). int64, shape (n,).
    """
    mask = np.ones(len(columns["ledger_id"]), dtype=bool)
    for predicate in predicates:
        if predicate.column == "ledger_id":
            mask &= _matches(predicate, columns["ledger_id"], columns["ledger_id"])
        elif predicate.column == "entry_id":
            last = columns["last_entry_id"]
            mask &= _matches(predicate, columns["first_entry_id"], np.where(last == -1, _INT64_MAX, last))
        elif predicate.column == "publish_time":
            mask &= _time_matches(predicate, columns["publish_time_min_ms"], columns["publish_time_max_ms"])
    return mask


def _matches(predicate: Predicate, low: NDArray[Any], high: NDArray[Any]) -> NDArray[np.bool_]:
    """For columns without nulls."""
    if predicate.operation == "null":
        return np.zeros(len(low), dtype=bool)
    return _range_matches(predicate, low, high)


def _time_matches(predicate: Predicate, low_ms: NDArray[np.int64], high_ms: NDArray[np.int64]) -> NDArray[np.bool_]:
    # Comparisons with a null time are never true, so entries without one don't matter. Blocks without a known time
    # aren't excluded.
    unknown = np.asarray((low_ms == TIME_UNKNOWN_MS) | (high_ms == TIME_UNKNOWN_MS), dtype=bool)
    # Object arrays: Python's integers don't overflow in the conversion from ms to microseconds.
    low, high = low_ms.astype(object) * _US_PER_MS, high_ms.astype(object) * _US_PER_MS
    return unknown | _range_matches(predicate, low, high)


def _range_matches(predicate: Predicate, low: NDArray[Any], high: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether a value between ``low`` and ``high``, inclusive, may satisfy the predicate."""
    values = predicate.values
    found: Any
    match predicate.operation:
        case "eq" | "in":
            found = functools.reduce(operator.or_, [(low <= value) & (high >= value) for value in values])
        case "ne" | "not_in":
            found = functools.reduce(operator.and_, [(low != value) | (high != value) for value in values])
        case "lt":
            found = low < values[0]
        case "le":
            found = low <= values[0]
        case "gt":
            found = high > values[0]
        case "ge":
            found = high >= values[0]
        case _:
            found = np.ones(len(low), dtype=bool)
    return np.asarray(found, dtype=bool)
