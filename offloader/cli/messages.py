"""Pulsar messages in a stream's entries, for ``read --messages``: options, decoding and output."""

from __future__ import annotations

import base64
import codecs
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import typer

from formats.entries import EntryBatch
from formats.pulsar.messages import COLUMNS, ROWS_MAX, BadEntry, MessageDecoder, MessageOptions
from offloader.cli.options import named_file, number_of, option
from offloader.cli.output import base64_text, counted, json_line, utf8_text
from offloader.errors import CorruptError, InvalidCallError, OffloaderError
from offloader.follow import ReadStreams
from offloader.ledgers.pulsar.transport import ADMIN_TOKEN_VARIABLE
from offloader.read.decrypt import Decryptor, WrongKey
from offloader.read.messages import decode_messages
from offloader.read.schemas import ValueSchemas
from offloader.read.values import VersionedDecoder, value_decoder
from offloader.store.base import ObjectStore

_ALL = tuple(COLUMNS)
#: Enough to count the messages of an entry without decompression.
_COUNTED = ("batch_index",)
_REMEDY = "--on-bad-message null prints a line with the problem instead"
#: Keys of a row besides the columns: its partition's number, and its value by the schema.
PARTITION, DECODED = "partition", "decoded"


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaArguments:
    """Options for the schemas of values."""

    schema: Annotated[
        list[str] | None,
        option(
            "--schema",
            "Decode values by this schema: Avro as JSON, the output of `pulsar-admin schemas get`, or "
            "protobuf descriptors. With VERSION, only values of that version. May be repeated.",
            metavar="[VERSION=]FILE",
        ),
    ] = None
    message_type: Annotated[
        str, option("--message-type", "Message type in --schema with protobuf descriptors.", metavar="NAME")
    ] = ""
    admin_url: Annotated[
        str,
        option(
            "--admin-url",
            f"Get the schemas from this Pulsar; sends the token in {ADMIN_TOKEN_VARIABLE}.",
            metavar="URL",
        ),
    ] = ""
    recorded_schemas: Annotated[
        bool,
        typer.Option(
            "--recorded-schemas", help="Decode values by the schemas that serve recorded of a scalable topic."
        ),
    ] = False

    def schemas(self) -> ValueSchemas:
        """The schemas of the options; raises ``InvalidCallError`` for a version that is no number."""
        files: dict[int | None, str | Path] = {}
        for text in self.schema or []:
            name, path = named_file(text)
            version = number_of(name)
            if name and version is None:
                raise InvalidCallError(
                    f"--schema {text:.200}: {name!r:.80} isn't a version number", hint="for example 0=orders.avsc"
                )
            files[version] = path
        return ValueSchemas(
            files=files,
            message_type=self.message_type,
            admin_url=self.admin_url,
            recorded=self.recorded_schemas,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageArguments(SchemaArguments):
    """Options of ``read --messages``."""

    messages: Annotated[
        bool,
        typer.Option("--messages", help="Decode entries as Pulsar messages: one line per message, chunks joined."),
    ] = False
    on_bad_message: Annotated[
        BadEntry,
        typer.Option("--on-bad-message", help="With --messages: fail, or print a line with the problem."),
    ] = BadEntry.ERROR
    private_key: Annotated[
        list[str] | None,
        option(
            "--private-key",
            "With --messages: decrypt with this RSA or EC key (PEM), optionally with its name. May be repeated.",
            metavar="[NAME=]FILE",
        ),
    ] = None

    def require_messages(self) -> None:
        """Raises ``InvalidCallError`` for an option that needs ``--messages``."""
        given = {
            "--schema": self.schema,
            "--admin-url": self.admin_url,
            "--recorded-schemas": self.recorded_schemas,
            "--private-key": self.private_key,
        }
        wrong = [name for name, value in given.items() if value]
        if wrong and not self.messages:
            raise InvalidCallError(f"{wrong[0]} requires --messages", hint="give --messages too")


class MessageReader:
    """Decodes the messages that ``read`` prints, by the options. Use it once.

    Args:
        store: of the streams.
        part: what is read; its streams and numbers grow while new segments are followed.

    Raises:
        NotFoundError, InvalidCallError, UnsupportedError: a schema or a key can't be used.
    """

    def __init__(self, given: MessageArguments, store: ObjectStore, part: ReadStreams) -> None:
        self._streams, self._numbers, self._bad = part.streams, part.numbers, given.on_bad_message
        decoders = given.schemas().decoders(store, part.schemas_of, value_decoder)
        self._values = None if decoders is None else VersionedDecoder(*decoders)
        keys = dict(named_file(text) for text in given.private_key or [])
        self._decrypt = Decryptor(keys) if keys else None
        self._decoders: dict[int, MessageDecoder] = {}

    def count(self, batches: Iterable[tuple[int, EntryBatch]], limit: int) -> int:
        """Number of messages; at most ``limit``, 0: all."""
        found = sum(int(batch.num_rows) for _, batch in self._messages(batches, limit, _COUNTED))
        self._note_incomplete()
        return found

    def print(self, batches: Iterable[tuple[int, EntryBatch]], limit: int, *, as_json: bool) -> None:
        """Prints a line per message; at most ``limit``, 0: all."""
        line_of = message_json if as_json else message_text
        for number, batch in self._messages(batches, limit, _ALL):
            sys.stdout.write("".join([line_of(self._completed(number, row)) + "\n" for row in batch.to_pylist()]))
            sys.stdout.flush()
        self._note_incomplete()

    def _messages(
        self, batches: Iterable[tuple[int, EntryBatch]], limit: int, names: tuple[str, ...]
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        left = limit or sys.maxsize
        for number, entries in batches:
            options = MessageOptions(
                columns=names,
                bad_entries=self._bad,
                rows_max=min(left, ROWS_MAX),
                join_chunks=True,
                decrypt=self._decrypt,
            )
            source = f"stream {self._streams[number]},"
            decoder = self._decoders.setdefault(number, MessageDecoder(options, source=source))
            try:
                for batch in decode_messages(entries, decoder, remedy=_REMEDY):
                    yield number, batch.slice(0, left)
                    left -= batch.num_rows
                    if left <= 0:
                        return
            except CorruptError as error:
                if isinstance(error.__cause__, WrongKey):
                    raise InvalidCallError(
                        error.message, hint=f"check that --private-key is the reader's key; {_REMEDY}"
                    ) from error
                raise

    def _completed(self, number: int, row: dict[str, Any]) -> dict[str, Any]:
        """A row with its partition, and its value decoded by the schema."""
        if self._numbers:
            row[PARTITION] = self._numbers[number]
        is_message = row["marker_type"] is None and not row["compacted_out"] and not row["encryption_keys"]
        if self._values is None or not is_message or (row["value"] is None and row["error"] is not None):
            return row
        try:
            # A message without a value may be a key-value pair that has only the message's key.
            if row["value"] is not None or self._values.is_of_pairs(row["schema_version"]):
                row[DECODED] = plain_value(self._values.decode(row["value"], row["schema_version"], _key_bytes(row)))
        except OffloaderError:  # the schema can't be used, for any value
            raise
        except ValueError as error:
            why = f"the value can't be decoded: {error}"
            if self._bad is BadEntry.ERROR:
                raise InvalidCallError(
                    f"stream {self._streams[number]}, message {_id(row)}: {why}",
                    hint=f"check that --schema is the topic's schema; {_REMEDY}",
                ) from error
            row.update(value=None, error=why)
        return row

    def _note_incomplete(self) -> None:
        incomplete = sum(decoder.incomplete for decoder in self._decoders.values())
        if incomplete:
            sys.stdout.flush()
            print(
                f"note: left out {counted(incomplete, 'message')} with chunks outside this range",
                file=sys.stderr,
            )


def plain_value(value: Any) -> Any:
    """A decoded value for ``json_line``: bytes as base64, times as text, other values unchanged."""
    match value:
        case Mapping():
            return {str(name): plain_value(each) for name, each in value.items()}
        case list() | tuple():
            return [plain_value(each) for each in value]
        case bytes():
            return base64_text(value)
        case datetime() | date() | time():
            return value.isoformat()
        case _:
            return value


#: Maximum characters of a value in a text line.
VALUE_SIGNS_MAX = 200
#: Maximum bytes of that many UTF-8 characters.
_PREVIEW_BYTES = 4 * VALUE_SIGNS_MAX

_Row = Mapping[str, Any]


def message_text(row: _Row) -> str:
    """``id <tab> publish time <tab> key <tab> value``, with a long value cut; a note replaces a special value."""
    key = "-" if row["key"] is None else _one_line(row["key"])
    time = "-" if row["publish_time"] is None else _time(row["publish_time"])
    shown = _preview(json_line(row[DECODED]).encode()) if DECODED in row else _note(row) or _preview(row["value"])
    return "\t".join([_id(row), time, key, shown])


def message_json(row: _Row) -> str:
    """One object: ``id``, ``publish_time``, ``key``, ``value``, ``properties``, and all other known fields.

    Bytes are base64 under a name that ends in ``_base64``; a value that is UTF-8 is text.
    """
    shown: dict[str, object] = {"id": _id(row)} | ({PARTITION: row[PARTITION]} if PARTITION in row else {})
    shown |= {name: _plain_value(row[name]) for name in ("publish_time", "key")}
    shown |= {"value": row[DECODED]} if DECODED in row else _value(row["value"])
    shown["properties"] = dict(row["properties"] or ())
    for name, value in row.items():
        if name not in _SHOWN_ALREADY and value is not None and value is not False:
            shown[f"{name}_base64" if isinstance(value, bytes) else name] = _plain_value(value)
    if row["encryption_keys"]:
        shown["encryption_keys"] = [key["name"] for key in row["encryption_keys"]]
    return json_line(shown)


_SHOWN_ALREADY = frozenset(
    (
        *("ledger_id", "entry_id", "batch_index", "publish_time", "key", "value", "properties", "encryption_keys"),
        *(PARTITION, DECODED),
    )
)


def _key_bytes(row: _Row) -> bytes | None:
    key: str | None = row["key"]
    return None if key is None else base64.b64decode(key) if row["key_is_base64"] else key.encode()


def _id(row: _Row) -> str:
    """``7:12``, and in a batch ``7:12:3``."""
    place = f"{row['ledger_id']}:{row['entry_id']}"
    return place if row["batch_index"] < 0 else f"{place}:{row['batch_index']}"


def _value(value: bytes | None) -> dict[str, object]:
    text = utf8_text(value) if value is not None else None
    return {"value": text} if value is None or text is not None else {"value_base64": base64_text(value)}


def _note(row: _Row) -> str:
    """A note in brackets in place of a special value; else empty."""
    value, note = row["value"], ""
    if row["error"] is not None and value is None:
        note = f"error: {row['error']}"
    elif row["marker_type"] is not None:
        note = f"marker {row['marker_type']}"
    elif value is None:
        note = "compacted out" if row["compacted_out"] else "null"
    elif row["encryption_keys"]:
        note = f"encrypted, {len(value)} bytes"
    elif row["chunk_id"] is not None:
        note = f"chunk {row['chunk_id'] + 1} of {row['chunk_count']} of {row['chunk_uuid']}, {len(value)} bytes"
    return f"({_one_line(note)})" if note else ""


def _preview(value: bytes) -> str:
    head = value[:_PREVIEW_BYTES]
    try:
        # Drops a character that is split at the end.
        text = codecs.getincrementaldecoder("utf-8")().decode(head, final=len(head) == len(value))
    except UnicodeDecodeError:
        shown = "base64:" + base64_text(value[:VALUE_SIGNS_MAX])
        return shown if len(value) <= VALUE_SIGNS_MAX else f"{shown}..."
    whole = len(head) == len(value) and len(text) <= VALUE_SIGNS_MAX
    return _one_line(text[:VALUE_SIGNS_MAX]) + ("" if whole else "...")


def _one_line(text: str) -> str:
    """Line breaks, tabs and other unprintable characters as escapes."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode("ascii") for sign in text)


def _plain_value(value: object) -> object:
    return _time(value) if isinstance(value, datetime) else base64_text(value) if isinstance(value, bytes) else value


def _time(when: datetime) -> str:
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")
