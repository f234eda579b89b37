"""Messages of the Arrow Flight service: documents, batches of entries, and errors."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.flight as fl
from numpy.typing import NDArray

from formats.entries import TIME_UNKNOWN_MS, EntryBatch, Position
from offloader.errors import ErrorKind, InvalidCallError, LimitReachedError, OffloaderError, parsing
from offloader.ledgers.pushed import LedgerEnd
from offloader.ledgers.sqlite.chunks import require_times
from offloader.manifest.names import stream_name
from offloader.service.auth import NotAuthenticated

#: Maximum size of a descriptor, ticket or note.
DOCUMENT_BYTES_MAX = 64 * 1024
#: Maximum number of ledgers closed with one batch.
ENDS_MAX = 1024
#: Maximum length of a producer's name.
PRODUCER_CHARS_MAX = 200
_INT64_MAX = 2**63 - 1
_Value = TypeVar("_Value")
_Number = TypeVar("_Number", bound=float)


class Fields:
    """The fields of one document, each read once."""

    def __init__(self, values: Mapping[str, Any], what: str) -> None:
        self._values, self._what = dict(values), what

    def text(self, name: str, default: str | None = None, *, chars_max: int = 1024) -> str:
        """A text; required without a default."""
        if (value := self._values.pop(name, default)) is None:
            raise InvalidCallError(f"{self._what}: {name} is missing", hint="docs/reference/flight.md has examples")
        if not isinstance(value, str) or len(value) > chars_max or (value and not value.isprintable()):
            raise self._wrong(name, value, f"a text of up to {chars_max} characters")
        return value

    def whole(self, name: str, default: int | None = None) -> int | None:
        """An integer from 0."""
        return self._number(name, default, (int,), 2**63, "a whole number")

    def seconds(self, name: str, default: float | None = None) -> float | None:
        """A number of seconds, 0 or more."""
        return self._number(name, default, (int, float), 1e9, "a number of seconds")

    def position(self, name: str) -> Position | None:
        """A position, ``"7:12"``."""
        return self._made(name, Position.parse, "a position, LEDGER:ENTRY")

    def uuid(self, name: str) -> UUID | None:
        """A uuid as text."""
        return self._made(name, UUID, "a uuid")

    def any(self, name: str) -> object:
        """Any value, ``None`` if absent."""
        return self._values.pop(name, None)

    def end(self) -> None:
        """Raises ``InvalidCallError`` if unknown fields remain."""
        if self._values:
            raise InvalidCallError(
                f"{self._what}: no such field: {ascii(min(self._values))[:80]}",
                hint="docs/reference/flight.md lists them",
            )

    def _number(
        self, name: str, default: _Number | None, kinds: tuple[type[_Number], ...], limit: float, wanted: str
    ) -> _Number | None:
        value: _Number | None = self._values.pop(name, default)
        if value is None or (isinstance(value, kinds) and not isinstance(value, bool) and 0 <= value < limit):
            return value
        raise self._wrong(name, value, wanted)

    def _made(self, name: str, make: Callable[[str], _Value], wanted: str) -> _Value | None:
        value = self._values.pop(name, None)
        try:
            if value is None or isinstance(value, str):
                return None if value is None else make(value)
        except ValueError as error:
            raise self._wrong(name, value, wanted) from error
        raise self._wrong(name, value, wanted)

    def _wrong(self, name: str, value: object, wanted: str) -> InvalidCallError:
        return InvalidCallError(f"{self._what}: {name} = {ascii(value)[:80]} is not {wanted}")


def fields_of(body: bytes, what: str) -> Fields:
    """A JSON document's fields; no bytes are a document without fields. Raises ``InvalidCallError``: too long, or not a
    JSON object."""
    if len(body) > DOCUMENT_BYTES_MAX:
        raise InvalidCallError(f"{what}: {len(body)} bytes exceed the limit of {DOCUMENT_BYTES_MAX}")
    try:
        values = json.loads(body) if body else {}
    except (ValueError, RecursionError) as error:
        raise InvalidCallError(f"{what} is not valid JSON", hint="docs/reference/flight.md has examples") from error
    if not isinstance(values, dict):
        raise InvalidCallError(f"{what} is not a JSON object", hint="docs/reference/flight.md has examples")
    return Fields(values, what)


def encoded(document: Mapping[str, Any]) -> bytes:
    """A document as bytes."""
    return json.dumps(document, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True)
class PutRequest:
    """Descriptor of a DoPut.

    Attributes:
        mode: ``push``: the broker owns the ledgers and assigns positions; ``append``: the sidecar does.
        producer: name of the producer, with which it can reconnect before its last call ends; may be empty.
        source: push: id of the entries' log, created with the log; ``None``: unknown.
        last, crc32: push: the newest entry acknowledged to the producer as durable, and its payload's CRC-32 (zlib's).
    """

    stream: str
    mode: Literal["push", "append"]
    producer: str = ""
    source: UUID | None = None
    last: Position | None = None
    crc32: int | None = None


def put_request(path: list[bytes] | None, command: bytes | None) -> PutRequest:
    """From a descriptor: a path of one element is a stream to push; a command is a document. Raises
    ``InvalidCallError``: neither."""
    if path is not None:
        if len(path) != 1:
            raise InvalidCallError(
                "descriptor: a path must have one element, the stream's name", hint="keep the slashes inside the name"
            )
        return PutRequest(Fields({"stream": path[0].decode(errors="replace")}, "descriptor").text("stream"), "push")
    fields = fields_of(command or b"", "descriptor")
    stream, mode = stream_name(fields.text("stream")), fields.text("mode", "push")
    producer = fields.text("producer", "", chars_max=PRODUCER_CHARS_MAX)
    source, last, crc32 = fields.uuid("source"), fields.position("last"), fields.whole("crc32")
    fields.end()
    if mode not in ("push", "append"):
        raise InvalidCallError(f"descriptor: mode {ascii(mode)[:40]} is neither push nor append")
    if mode == "append" and (source is not None or last is not None or crc32 is not None):
        raise InvalidCallError("descriptor: source, last and crc32 are only valid in mode push")
    if (last is None) != (crc32 is None) or (crc32 is not None and crc32 >= 2**32):
        raise InvalidCallError("descriptor: last (an entry) and crc32 (of its payload) must be given together")
    return PutRequest(stream, "push" if mode == "push" else "append", producer, source, last, crc32)


@dataclass(frozen=True, slots=True)
class GetRequest:
    """Range of a DoGet: all of a stream, or from a position or a time up to one of both.

    Attributes:
        first, last: inclusive; ``None``: the first and the last available.
        since_ms, until_ms: instead of ``first`` and ``last``: from the first entry published then or later, and
            before the first one of then.
        batch_bytes: payload bytes of one batch; ``None``: by the settings.
        columns: columns to send, in this order; empty: all.
    """

    stream: str
    first: Position | None = None
    last: Position | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    batch_bytes: int | None = None
    columns: tuple[str, ...] = ()

    @property
    def schema(self) -> pa.Schema:
        """Schema of the sent batches."""
        return pa.schema([ENTRY_SCHEMA.field(name) for name in self.columns or ENTRY_SCHEMA.names])

    def encode(self) -> bytes:
        """The ticket, as ``get_request`` takes it."""
        values = {
            "stream": self.stream,
            "from": self.first and str(self.first),
            "to": self.last and str(self.last),
            "since_ms": self.since_ms,
            "until_ms": self.until_ms,
            "batch_bytes": self.batch_bytes,
            "columns": list(self.columns) or None,
        }
        return encoded({name: value for name, value in values.items() if value is not None})


def get_request(ticket: bytes) -> GetRequest:
    """From a ticket. Raises ``InvalidCallError``: an invalid one."""
    fields = fields_of(ticket, "ticket")
    request = GetRequest(
        stream_name(fields.text("stream")),
        fields.position("from"),
        fields.position("to"),
        fields.whole("since_ms"),
        fields.whole("until_ms"),
        fields.whole("batch_bytes"),
        _columns(fields.any("columns")),
    )
    fields.end()
    if request.first is not None and request.since_ms is not None:
        raise InvalidCallError("ticket: from and since_ms exclude each other")
    if request.last is not None and request.until_ms is not None:
        raise InvalidCallError("ticket: to and until_ms exclude each other")
    if request.batch_bytes == 0:
        raise InvalidCallError("ticket: batch_bytes must be above 0")
    return request


def _columns(given: object) -> tuple[str, ...]:
    if given is None:
        return ()
    names = given if isinstance(given, list) else []
    if not names or len(set(map(str, names))) < len(names) or not set(map(str, names)) <= set(ENTRY_SCHEMA.names):
        raise InvalidCallError(
            f"ticket: columns = {ascii(given)[:80]} is not a list of distinct columns",
            hint=f"the columns are {', '.join(ENTRY_SCHEMA.names)}; leave the field out for all",
        )
    return tuple(map(str, names))


@dataclass(frozen=True, slots=True)
class BatchNote:
    """A producer's metadata of a batch.

    Attributes:
        ends: push: ledgers that are closed.
        sequence: append: the number of this batch, ascending; a repeated batch is compared and skipped.
    """

    ends: tuple[LedgerEnd, ...] = ()
    sequence: int | None = None


def batch_note(metadata: bytes | None, mode: Literal["push", "append"]) -> BatchNote:
    """From a batch's application metadata. Raises ``InvalidCallError``: an invalid one, or of the other mode."""
    if not metadata:
        return BatchNote()
    fields = fields_of(metadata, "metadata of a batch")
    closed, sequence = (fields.any("closed"), None) if mode == "push" else (None, fields.whole("sequence"))
    fields.end()
    if closed is None:
        return BatchNote(sequence=sequence)
    if not isinstance(closed, dict) or len(closed) > ENDS_MAX:
        raise InvalidCallError(
            f"metadata of a batch: closed is not an object of up to {ENDS_MAX} ledgers", hint='{"closed": {"7": 99}}'
        )
    return BatchNote(tuple(_ledger_end(name, last) for name, last in closed.items()))


def _ledger_end(name: str, last: object) -> LedgerEnd:
    known = name.isascii() and name.isdecimal() and len(name) <= 19 and int(name) <= _INT64_MAX
    if not known or not isinstance(last, int) or isinstance(last, bool) or not -1 <= last <= _INT64_MAX:
        raise InvalidCallError(
            f"metadata of a batch: closed has {ascii(name)[:40]}: {ascii(last)[:40]}",
            hint='ledger and last entry, -1 for an empty one: {"closed": {"7": 99}}',
        )
    return LedgerEnd(int(name), last)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A message to the producer: at the beginning, for each batch, and at changes.

    Attributes:
        batch: number of the batch in this call, from 1; ``None``: a change without a batch.
        entries, repeated: of that batch: accepted now, and duplicates.
        taken: continue after this position; push: it may move back.
        durable: the newest entry that is committed in the cold tier.
        positions: append: the batch's first and last position in each ledger.
        sequence: append: the newest one of this producer that is durable in the hot tier.
        error: the reason why the producer should end this call and start another; empty: none.
    """

    batch: int | None = None
    entries: int = 0
    repeated: int = 0
    taken: Position | None = None
    durable: Position | None = None
    positions: tuple[tuple[Position, Position], ...] = ()
    sequence: int | None = None
    error: str = ""

    def encode(self) -> bytes:
        of_batch = {"batch": self.batch, "entries": self.entries, "repeated": self.repeated}
        more: dict[str, Any] = {
            **(of_batch if self.batch is not None else {}),
            "positions": [[str(first), str(last)] for first, last in self.positions] or None,
            "sequence": self.sequence,
            "error": self.error or None,
        }
        return encoded(
            {
                "taken": None if self.taken is None else str(self.taken),
                "durable": None if self.durable is None else str(self.durable),
                **{name: value for name, value in more.items() if value is not None},
            }
        )


#: Schema of pushed and read entries; times are milliseconds, null if unknown.
ENTRY_SCHEMA: pa.Schema = EntryBatch.build(0, 0, []).to_arrow().schema
_NEEDED = {"push": ("ledger_id", "entry_id", "payload"), "append": ("payload",)}
_KNOWN = {"push": ("ledger_id", "entry_id", "publish_time", "payload"), "append": ("publish_time", "payload")}


def require_columns(schema: pa.Schema, mode: str) -> None:
    """Checks the announced columns of a call.

    Args:
        mode: ``push`` or ``append``.

    Raises:
        InvalidCallError: a column is missing, unknown, duplicate, or of another type.
    """
    with parsing(f"columns of a {mode}: a name isn't UTF-8", hint="docs/reference/flight.md has the columns"):
        names = list(schema.names)
    problems = [f"{name} is missing" for name in _NEEDED[mode] if name not in names]
    problems += [f"{ascii(name)[:80]} is unknown" for name in sorted(set(names) - set(_KNOWN[mode]))]
    problems += [f"{name} is repeated" for name in sorted(set(names)) if names.count(name) > 1]
    problems += [
        f"{name} is {schema.field(name).type}, not {ENTRY_SCHEMA.field(name).type}"
        for name in (set(names) & set(_KNOWN[mode]) if len(names) == len(set(names)) else ())
        if schema.field(name).type != ENTRY_SCHEMA.field(name).type
    ]
    if problems:
        raise InvalidCallError(
            f"columns of a {mode}: {'; '.join(sorted(problems))[:1000]}",
            hint=f"the columns are {', '.join(f'{name} {ENTRY_SCHEMA.field(name).type}' for name in _KNOWN[mode])}",
        )


def pushed_batches(batch: pa.RecordBatch, *, bytes_max: int, entry_bytes_max: int) -> list[EntryBatch]:
    """The entries of a pushed batch, split at ledger boundaries; shares its memory.

    Raises:
        InvalidCallError: damaged, or a null where none is allowed.
        LimitReachedError: the batch or an entry is too large.
    """
    payloads, times = _checked(batch, bytes_max, entry_bytes_max)
    ledger_ids, entry_ids = _whole(batch, "ledger_id"), _whole(batch, "entry_id")
    if not len(batch):
        return []
    cuts = [0, *(np.flatnonzero(np.diff(ledger_ids)) + 1).tolist(), len(batch)]
    return [
        EntryBatch(int(ledger_ids[start]), entry_ids[start:end], payloads.slice(start, end - start), times[start:end])
        for start, end in itertools.pairwise(cuts)
    ]


def sent_payloads(
    batch: pa.RecordBatch, *, bytes_max: int, entry_bytes_max: int
) -> tuple[pa.BinaryArray, NDArray[np.int64] | None]:
    """Payloads and times of an append's batch; no times: now. Raises as ``pushed_batches``."""
    payloads, times = _checked(batch, bytes_max, entry_bytes_max)
    return payloads, times if "publish_time" in batch.schema.names else None


def _checked(batch: pa.RecordBatch, bytes_max: int, entry_bytes_max: int) -> tuple[pa.BinaryArray, NDArray[np.int64]]:
    _require_sound(batch, full=False)
    # Arrow reads offsets to determine a batch's size, and a batch without rows has none.
    if len(batch) and batch.nbytes > bytes_max:
        raise LimitReachedError(
            f"a batch of {batch.nbytes} bytes is above {bytes_max} (flight.batch_size_max)", hint="send smaller batches"
        )
    _require_sound(batch, full=True)
    payloads = batch.column("payload")
    if payloads.null_count:
        raise InvalidCallError("a payload is null", hint="an entry without bytes is an empty value")
    largest = pc.max(pc.binary_length(payloads)).as_py() or 0
    if largest > entry_bytes_max:
        raise LimitReachedError(
            f"an entry of {largest} bytes is above the {entry_bytes_max} that offload.entry_size_max and "
            "offload.offload_buffer_size_max allow",
            hint="no entry of the batch was accepted",
        )
    return payloads, _times(batch)


def _require_sound(batch: pa.RecordBatch, *, full: bool) -> None:
    """Checks the batch's structure; with ``full`` also its values, in time linear to its size."""
    try:
        batch.validate(full=full)
    except pa.ArrowException as error:
        raise InvalidCallError(f"a batch is damaged: {str(error)[:200]}") from error


def _times(batch: pa.RecordBatch) -> NDArray[np.int64]:
    if "publish_time" not in batch.schema.names:
        return np.full(len(batch), TIME_UNKNOWN_MS, dtype=np.int64)
    times = batch.column("publish_time").cast(pa.int64())
    require_times(times.drop_null().to_numpy(zero_copy_only=False), where="a batch")
    return np.asarray(pc.fill_null(times, TIME_UNKNOWN_MS), dtype=np.int64)


def _whole(batch: pa.RecordBatch, name: str) -> NDArray[np.int64]:
    column = batch.column(name)
    if column.null_count:
        raise InvalidCallError(f"a {name} is null")
    return np.asarray(column, dtype=np.int64)


_KINDS: dict[ErrorKind, type[fl.FlightError]] = {
    ErrorKind.DENIED: fl.FlightUnauthorizedError,
    ErrorKind.RETRY_LATER: fl.FlightUnavailableError,
}
_log = logging.getLogger("offloader.service.flight")


def refusal(error: OffloaderError, told: Callable[[str], str] = str) -> fl.FlightError:
    """The error raised to the caller: ``Kind: what, where, why (what to do)``, and the same as JSON in ``extra_info``.

    | error               | gRPC code         | in Python                      |
    | ------------------- | ----------------- | ------------------------------ |
    | unknown caller      | UNAUTHENTICATED   | ``FlightUnauthenticatedError`` |
    | not allowed         | PERMISSION_DENIED | ``FlightUnauthorizedError``    |
    | try again later     | UNAVAILABLE       | ``FlightUnavailableError``     |
    | everything else     | UNKNOWN           | ``FlightServerError``          |

    Only Flight's own errors: for any other, pyarrow sends the caller the whole traceback.
    """
    known = not isinstance(error, NotAuthenticated)
    kind = _KINDS.get(error.kind, fl.FlightServerError) if known else fl.FlightUnauthenticatedError
    facts = {"error": type(error).__name__, "kind": error.kind.name.lower(), "what": error.message, "hint": error.hint}
    facts |= {name: told(facts[name]) for name in ("what", "hint")}
    return kind(told(f"{type(error).__name__}: {error}"), encoded(facts))


@contextlib.contextmanager
def refusing(what: str, told: Callable[[str], str] = str) -> Iterator[None]:
    """Translates errors of a call.

    Args:
        what: the call, for the log.
        told: filters a text of an error for the caller.
    """
    try:
        yield
    except OffloaderError as error:
        _log.info("%s refused: %s", what, error, extra={"event": "flight_refused", "call": what})
        raise refusal(error, told) from error
    except (fl.FlightError, StopIteration, GeneratorExit):
        raise
    except pa.ArrowException as error:
        _log.info("%s broke off: %s", what, error, extra={"event": "flight_broken", "call": what})
        raise fl.FlightServerError(
            f"{what}: {str(error).splitlines()[0][:200] if str(error) else 'broke off'}"
        ) from None
    except Exception as error:
        _log.exception("%s failed", what)
        raise fl.FlightInternalError(f"{what} failed; the log of the process has the cause") from error
