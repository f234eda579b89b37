"""Arrow Flight's calls: DoPut, DoGet, DoAction and listings."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.flight as fl
from numpy.typing import NDArray

from formats.entries import TIME_UNKNOWN_MS, EntryBatch, Position
from offloader.errors import InvalidCall, LimitReached, NotFound
from offloader.ledgers.base import LedgerSource
from offloader.ledgers.pushed import PushedLedgers
from offloader.ledgers.sqlite.chunks import require_times
from offloader.manifest.log import ManifestLog, list_streams
from offloader.read.reader import Reader, load_stream, open_reader
from offloader.retention.truncate import truncate_stream
from offloader.runtime.clock import Clock
from offloader.service.auth import OPERATION_OF_ACTION, Caller
from offloader.service.flight.messages import (
    Answer,
    BatchNote,
    Fields,
    GetRequest,
    batch_note,
    encoded,
    fields_of,
    refusing,
)
from offloader.service.flight.sessions import (
    Answers,
    AppendedLedgers,
    FlightStream,
    ProducerSession,
    ProducerSessions,
    Proof,
)
from offloader.service.queries import ServiceControl
from offloader.settings import FlightSettings, ReadSettings
from offloader.store.base import ObjectStore

#: Longest wait of one ``offload``.
OFFLOAD_WAIT_S_MAX = 3600.0


#: Arguments of each action; the table of operations has the roles.
ACTIONS = {
    "status": 'what streams that come in do: {"stream": NAME}, or all of them',
    "offload": 'close the current segment and wait until it is durable: {"stream", "until", "timeout_s"}',
    "close-ledger": 'close the open ledger of an appended stream: {"stream"}',
    "publish": 'what a subscriber has consumed: {"stream", "subscriber", "at", "generation"}',
    "subscribe": 'register a subscriber: {"stream", "subscriber", "start", "generation"}',
    "truncate": 'let a stream begin at a position: {"stream", "before"}',
}
_MAYBE_EMPTY = partial(Fields.text, default="")
#: Fields of each action, and how each is read.
_FIELDS: Mapping[str, Mapping[str, Callable[[Fields, str], Any]]] = {
    "status": {"stream": _MAYBE_EMPTY},
    "offload": {"stream": Fields.text, "until": _MAYBE_EMPTY, "timeout_s": partial(Fields.seconds, default=60.0)},
    "close-ledger": {"stream": Fields.text},
    "publish": {"stream": Fields.text, "subscriber": Fields.text, "at": Fields.any, "generation": Fields.whole},
    "subscribe": {
        "stream": Fields.text,
        "subscriber": Fields.text,
        "start": Fields.any,
        "generation": partial(Fields.whole, default=0),
    },
    "truncate": {"stream": Fields.text, "before": Fields.position},
}


class Actions:
    """Executes Flight actions. Thread-safe.

    Args:
        control: executes commands for every served stream.
    """

    def __init__(self, store: ObjectStore, seats: ProducerSessions, control: ServiceControl, clock: Clock) -> None:
        self._store, self._seats, self._control, self._clock = store, seats, control, clock
        self._run: dict[str, Callable[..., dict[str, Any]]] = {
            "status": self._status,
            "offload": self._offload,
            "close-ledger": self._close_ledger,
            "publish": self._publish,
            "subscribe": self._subscribe,
            "truncate": self._truncate,
        }

    def run(self, name: str, body: bytes, caller: Caller) -> bytes:
        """Executes an action, if ``caller`` may, and returns a document.

        Raises:
            NotAuthenticated, NotAllowed: the caller may not.
            InvalidCall: no such action, or the action's own error.
        """
        caller.require_known()
        if name not in ACTIONS:
            raise InvalidCall(f"no such action: {ascii(name)[:80]}", hint=f"there are {', '.join(ACTIONS)}")
        operation = OPERATION_OF_ACTION[name]
        # Only the body names the token's subscriber.
        is_bound = operation.is_of_subscriber and bool(caller.subscribers)
        if not is_bound:
            caller.may(operation)
        fields = fields_of(body, f"action {name}")
        given = {field: read(fields, field) for field, read in _FIELDS[name].items()}
        fields.end()
        if is_bound:
            caller.may(operation, subscriber=given["subscriber"])
        return encoded(self._run[name](caller.name, **given))

    def _status(self, _: str, stream: str) -> dict[str, Any]:
        if not stream:
            return {"streams": [_document(each) for each in self._seats.held()]}
        return _document(self._there(stream))

    def _offload(self, by: str, stream: str, until: str, timeout_s: float | None) -> dict[str, Any]:
        timeout_s = min(timeout_s or 0.0, OFFLOAD_WAIT_S_MAX)
        return self._control.offload(stream, until=until, timeout_s=timeout_s, by=by)

    def _close_ledger(self, _: str, stream: str) -> dict[str, Any]:
        source = self._there(stream).source
        if not isinstance(source, AppendedLedgers):
            raise InvalidCall(
                f"stream {stream} is pushed: its ledgers are the broker's",
                hint="say how a ledger ends in a batch's metadata",
            )
        closed = source.close_ledger()
        return {"stream": stream, "closed": None if closed is None else closed.ledger_id}

    def _publish(self, by: str, stream: str, subscriber: str, at: object, generation: int | None) -> dict[str, Any]:
        return self._control.publish(stream, subscriber, at, generation=generation, by=by)

    def _subscribe(
        self, by: str, stream: str, subscriber: str, start: object, generation: int | None
    ) -> dict[str, Any]:
        return self._control.subscribe(stream, subscriber, start=start, generation=generation or 0, by=by)

    def _truncate(self, _: str, stream: str, before: Position | None) -> dict[str, Any]:
        if before is None:
            raise InvalidCall("action truncate: before is missing", hint="the first position that stays")
        found = self._seats.find(stream)
        log = ManifestLog(self._store, stream, clock=self._clock)
        method = "streaming" if found is None else found.settings.offload.method
        # A pushed stream has no hot tier here whose ledgers could be deleted.
        done = truncate_stream(log, before, clock=self._clock, source=self._seats.appended(stream), method=method)
        return {
            "stream": stream,
            "head": str(done.head),
            "moved": done.moves,
            "ledgers": list(done.ledgers),
            "segments": done.segments,
            "entries": done.entries,
        }

    def _there(self, name: str) -> FlightStream:
        found = self._seats.find(name)
        if found is None:
            raise NotFound(f"stream {name} didn't come in through Flight here", hint="the action status lists those")
        return found


def _document(stream: FlightStream) -> dict[str, Any]:
    news, seat, status = stream.source.news(), stream.seat, stream.control.status()
    return {
        "stream": stream.name,
        "mode": stream.mode,
        "producer": None if seat is None else seat.producer,
        "peer": None if seat is None else seat.peer,
        "taken": news.taken and str(news.taken),
        "durable": news.durable and str(news.durable),
        "offloading": "starting" if status is None else status.mode.value,
        "error": "" if status is None else status.error,
    }


#: Schema of pushed and read entries; times are milliseconds, null if unknown.
ENTRY_SCHEMA: pa.Schema = EntryBatch.build(0, 0, []).to_arrow().schema
_NEEDED = {"push": ("ledger_id", "entry_id", "payload"), "append": ("payload",)}
_KNOWN = {"push": ("ledger_id", "entry_id", "publish_time", "payload"), "append": ("publish_time", "payload")}


def require_columns(schema: pa.Schema, mode: str) -> None:
    """Checks the announced columns of a call.

    Args:
        mode: ``push`` or ``append``.

    Raises:
        InvalidCall: a column is missing, unknown, duplicate, or of another type.
    """
    try:
        names = list(schema.names)
    except UnicodeDecodeError as error:
        raise InvalidCall(
            f"columns of a {mode}: a name isn't UTF-8", hint="docs/reference/flight.md has the columns"
        ) from error
    problems = [f"{name} is missing" for name in _NEEDED[mode] if name not in names]
    problems += [f"{ascii(name)[:80]} is unknown" for name in sorted(set(names) - set(_KNOWN[mode]))]
    problems += [f"{name} comes twice" for name in sorted(set(names)) if names.count(name) > 1]
    for name in set(names) & set(_KNOWN[mode]) if len(names) == len(set(names)) else ():
        found, wanted = schema.field(name).type, ENTRY_SCHEMA.field(name).type
        if found != wanted:
            problems.append(f"{name} is {found}, not {wanted}")
    if problems:
        raise InvalidCall(
            f"columns of a {mode}: {'; '.join(sorted(problems))[:1000]}",
            hint=f"the columns are {', '.join(f'{name} {ENTRY_SCHEMA.field(name).type}' for name in _KNOWN[mode])}",
        )


def pushed_batches(batch: pa.RecordBatch, *, bytes_max: int, entry_bytes_max: int) -> list[EntryBatch]:
    """The entries of a pushed batch, split at ledger boundaries; shares its memory.

    Raises:
        InvalidCall: damaged, or a null where none is allowed.
        LimitReached: the batch or an entry is too large.
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
    # Arrow reads offsets to size a batch, and a batch without rows has none.
    if len(batch) and batch.nbytes > bytes_max:
        raise LimitReached(
            f"a batch of {batch.nbytes} bytes is above {bytes_max} (flight.batch_size_max)", hint="send smaller ones"
        )
    _require_sound(batch, full=True)
    payloads = batch.column("payload")
    if payloads.null_count:
        raise InvalidCall("a payload is null", hint="an entry without bytes is an empty value")
    largest = pc.max(pc.binary_length(payloads)).as_py() or 0
    if largest > entry_bytes_max:
        raise LimitReached(
            f"an entry of {largest} bytes is above the {entry_bytes_max} that offload.entry_size_max and "
            "offload.offload_buffer_size_max allow",
            hint="nothing of the batch was taken",
        )
    return payloads, _times(batch)


def _require_sound(batch: pa.RecordBatch, *, full: bool) -> None:
    """Checks the batch's structure; with ``full`` also its values, in time linear to its size."""
    try:
        batch.validate(full=full)
    except pa.ArrowException as error:
        raise InvalidCall(f"a batch is damaged: {str(error)[:200]}") from error


def _times(batch: pa.RecordBatch) -> NDArray[np.int64]:
    if "publish_time" not in batch.schema.names:
        return np.full(len(batch), TIME_UNKNOWN_MS, dtype=np.int64)
    times = batch.column("publish_time").cast(pa.int64())
    require_times(times.drop_null().to_numpy(zero_copy_only=False), where="a batch")
    return np.asarray(pc.fill_null(times, TIME_UNKNOWN_MS), dtype=np.int64)


def _whole(batch: pa.RecordBatch, name: str) -> NDArray[np.int64]:
    column = batch.column(name)
    if column.null_count:
        raise InvalidCall(f"a {name} is null")
    return np.asarray(column, dtype=np.int64)


#: Lease of a DoGet against cleanup; renewed while it reads.
LEASE_S = 3600
#: Rows and bytes that haven't been counted.
_UNKNOWN = -1


class Gets:
    """Reads from one store. Thread-safe.

    Args:
        store: open for writing, for the leases.
        source_of: the hot tier of a stream with local ledgers: its newest entries are read from there.
    """

    def __init__(
        self, store: ObjectStore, settings: ReadSettings, source_of: Callable[[str], LedgerSource | None]
    ) -> None:
        self._store, self._settings, self._source_of = store, settings, source_of

    def entries(self, request: GetRequest) -> fl.FlightDataStream:
        """The entries of a ticket, a batch at a time. Raises ``NotFound``, ``Trimmed``, ``BeyondEnd``, ``InvalidCall``
        and other errors of a reader: at once where possible."""
        source = self._source_of(request.stream)
        reader = open_reader(self._store, request.stream, settings=self._settings, source=source, lease_seconds=LEASE_S)
        try:
            batches = self._scan(reader, request)
        except BaseException:
            reader.close()
            raise
        return fl.GeneratorStream(ENTRY_SCHEMA, _sent(reader, batches))

    def info(self, name: str) -> fl.FlightInfo:
        """One stream's first and last position, entries and bytes in the cold tier. Raises ``NotFound``: no such
        stream."""
        source = self._source_of(name)
        state = load_stream(self._store, name, may_be_absent=source is not None)
        with open_reader(self._store, name, settings=self._settings, source=source, state=state) as reader:
            first, last = reader.first_position, reader.last_position
        known = {"first": first and str(first), "last": last and str(last)}
        return _info(name, state.sums.entries, state.sums.payload_bytes, encoded(known))

    def infos(self, prefix: str) -> Iterator[fl.FlightInfo]:
        """All streams with a name prefix, without reading their manifests."""
        with refusing("ListFlights"):
            for name in list_streams(self._store):
                if name.startswith(prefix):
                    yield _info(name, _UNKNOWN, _UNKNOWN, b"")

    def _scan(self, reader: Reader, request: GetRequest) -> Iterator[EntryBatch]:
        first, last = request.first, request.last
        if request.from_time_ms is not None:
            first = reader.position_at(request.from_time_ms)
            if first is None or (last is not None and first > last):
                return iter(())
        if first is None and last is None and reader.last_position is None:
            return iter(())
        batch_bytes = min(request.batch_bytes or self._settings.batch_bytes, self._settings.batch_bytes)
        return reader.scan(first, last, batch_bytes)


def _sent(reader: Reader, batches: Iterator[EntryBatch]) -> Iterator[pa.RecordBatch]:
    with contextlib.closing(reader), refusing("DoGet"):
        for batch in batches:
            yield batch.to_arrow()


def _info(name: str, entries: int, size_bytes: int, known: bytes) -> fl.FlightInfo:
    endpoint = fl.FlightEndpoint(GetRequest(name).encode(), [])
    descriptor = fl.FlightDescriptor.for_path(name)
    return fl.FlightInfo(ENTRY_SCHEMA, descriptor, [endpoint], entries, size_bytes, app_metadata=known)


def take_batches(
    seat: ProducerSession,
    reader: fl.MetadataRecordBatchReader,
    writer: fl.FlightMetadataWriter,
    settings: FlightSettings,
) -> None:
    """Receives batches until the producer ends the call, or loses its session.

    Raises:
        InvalidCall, LimitReached: an invalid batch; none of it was accepted, all earlier ones were.
        SourceMismatch: the pushed log isn't the stored one; none of the batch was accepted.
        StoreUnavailable: no room for it in time.
        Closed: another producer took over the session. Fenced, Corrupt and others: the stream was stopped.
    """
    stream = seat.stream
    require_columns(reader.schema, stream.mode)
    source = stream.source
    if isinstance(source, AppendedLedgers):
        with contextlib.closing(Answers(writer, source, seat.trouble)) as answers:
            _take_appended(seat, source, reader, answers, settings)
        return
    assert seat.proof is not None, "a seat at a pushed stream has one"
    with contextlib.closing(Answers(writer, seat.proof, seat.trouble)) as answers:
        _take_pushed(seat, source, seat.proof, reader, answers, settings)


def _take_pushed(
    seat: ProducerSession,
    source: PushedLedgers,
    proof: Proof,
    reader: fl.MetadataRecordBatchReader,
    answers: Answers,
    settings: FlightSettings,
) -> None:
    answers.write(Answer())
    for number, (data, note) in enumerate(_batches(seat, reader), 1):
        batches = []
        if data is not None:
            batches = pushed_batches(
                data, bytes_max=settings.batch_bytes_max, entry_bytes_max=seat.stream.entry_bytes_max
            )
            proof.compare(batches)
        pushed = source.push(batches, note.ends, within_s=settings.wait_seconds_max, is_wanted=lambda: seat.is_held)
        seat.require_held()
        answers.write(Answer(batch=number, entries=pushed.taken, repeated=pushed.repeated))


def _take_appended(
    seat: ProducerSession,
    source: AppendedLedgers,
    reader: fl.MetadataRecordBatchReader,
    answers: Answers,
    settings: FlightSettings,
) -> None:
    answers.write(Answer(sequence=source.sequence(seat.producer)))
    for number, (data, note) in enumerate(_batches(seat, reader), 1):
        if data is None:
            continue
        payloads, times_ms = sent_payloads(
            data, bytes_max=settings.batch_bytes_max, entry_bytes_max=seat.stream.entry_bytes_max
        )
        written = source.append(payloads, times_ms, producer=seat.producer, sequence=note.sequence)
        entries = sum(map(len, written))
        answers.write(
            Answer(
                batch=number,
                entries=entries,
                repeated=len(data) - entries,
                positions=tuple((each.first, each.last) for each in written),
                sequence=source.sequence(seat.producer),
            )
        )


def _batches(
    seat: ProducerSession, reader: fl.MetadataRecordBatchReader
) -> Iterator[tuple[pa.RecordBatch | None, BatchNote]]:
    while True:
        try:
            chunk = reader.read_chunk()
        except StopIteration:
            return
        except OSError as error:  # Arrow's error for bytes that are no Arrow message
            raise InvalidCall(f"a batch can't be read: {str(error)[:200]}", hint="send Arrow's own messages") from error
        seat.require_held()
        metadata = None if chunk.app_metadata is None else chunk.app_metadata.to_pybytes()
        yield chunk.data, batch_note(metadata, seat.stream.mode)
