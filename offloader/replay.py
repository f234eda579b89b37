"""Sends a stream's messages to a Pulsar topic; resumes where an earlier run stopped."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Mapping
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

from formats.entries import Position
from formats.errors import FormatError
from formats.pulsar.entry import Resent, decode_frame, resent
from offloader.errors import (
    CorruptError,
    InvalidCallError,
    OffloaderError,
    StoreUnavailableError,
    TrimmedError,
    UnsupportedError,
)
from offloader.ledgers.pulsar.consumer import Consumer
from offloader.ledgers.pulsar.producer import Producer, ProducerLimits
from offloader.ledgers.pulsar.protocol import NameTakenError, PulsarClient
from offloader.read.ranges import is_lost_between
from offloader.read.reader import Reader
from offloader.runtime.clock import Clock
from offloader.runtime.system import sync_name
from offloader.times import time_text

#: 268 million entries of a ledger; brokers close a ledger after 50,000, or after ten minutes if that is later.
_ENTRY_BITS = 28
_LEDGER_BITS = 63 - _ENTRY_BITS
_NAME = "offloader-replay"


def number_of(position: Position) -> int:
    """The sequence id of an entry.

    Raises:
        UnsupportedError: above the protocol's range.
    """
    if not (0 <= position.ledger_id < 1 << _LEDGER_BITS and 0 <= position.entry_id < 1 << _ENTRY_BITS):
        raise UnsupportedError(
            f"position {position} has no sequence id: a ledger's id must be below 2^{_LEDGER_BITS}, an entry's below "
            f"2^{_ENTRY_BITS}",
            hint="read these entries and send them with another producer",
        )
    return position.ledger_id << _ENTRY_BITS | position.entry_id


def place_of(number: int) -> Position | None:
    """The entry of a sequence id; ``None`` for -1."""
    return None if number < 0 else Position(number >> _ENTRY_BITS, number & (1 << _ENTRY_BITS) - 1)


def producer_name(stream: str, incarnation: UUID, topic: str, begin: str, label: str = "") -> str:
    """Name of a replay's producer, stable across restarts.

    Args:
        stream: the replayed stream, and its incarnation.
        begin: the start, as given. A replay with an earlier start needs another name: the broker would drop its
            sequence ids as duplicates.
        label: distinguishes a repeated replay.
    """
    return f"{_NAME}-{_digest(stream, str(incarnation), topic, begin, label)}"


def begin_name(stream: str, topic: str, since: str, label: str = "") -> str:
    """Name of the file of a relative start. Arguments as for ``producer_name``; ``stream`` may be a topic's name."""
    return f"{_NAME}-begin-{_digest(stream, topic, since, label)}"


def lease_name(stream: str, incarnation: UUID, topic: str, label: str = "") -> str:
    """Name of the producer that locks a topic against other replays of the stream: one for all starts. Arguments as for
    ``producer_name``."""
    return f"{_NAME}-lease-{_digest(stream, str(incarnation), topic, label)}"


def _digest(*told: str) -> str:
    return hashlib.sha256("\0".join(told).encode()).hexdigest()[:20]


_Told = TypeVar("_Told")

_VERSION = 1
FILE_BYTES_MAX = 64 * 1024
#: XDG's folder of persistent program state.
_STATE_VARIABLE = "XDG_STATE_HOME"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Last known progress of a replay.

    Attributes:
        producer: its producer's name.
        sent: the newest entry of the stream that is stored in the target; ``None``: none.
        target: an entry of the target; this replay's entries beyond ``sent`` are after it; ``None``: anywhere.
    """

    producer: str
    stream: str
    topic: str
    sent: Position | None = None
    target: Position | None = None


def default_folder() -> Path:
    """The default folder of progress files."""
    return Path(os.environ.get(_STATE_VARIABLE) or Path.home() / ".local" / "state") / "offloader" / "replay"


class ProgressFile:
    """The progress file of one replay. One process writes at a time: the broker admits one producer of a name.

    Args:
        path: the file; the first write creates its folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> Progress | None:
        """The last written progress; ``None``: none.

        Raises:
            CorruptError: the file can't be read, or isn't a progress file.
        """
        hint = "find the last replayed message in the target, remove the file, and start after it (--from)"
        return _read(self.path, _progress_of, "progress of a replay", hint=hint)

    def require(self, wanted: Progress) -> Progress | None:
        """As ``read``, checked to be of the given replay.

        Raises:
            InvalidCallError: the file is another replay's.
        """
        found = self.read()
        if found is not None and found.producer != wanted.producer:
            raise InvalidCallError(
                f"{self.path} belongs to another replay: {found.stream} to {found.topic}",
                hint="give another --progress-file, or the range and label of that replay",
            )
        return found

    def write(self, progress: Progress) -> None:
        """Replaces the file; durable on return."""
        told = {name: None if value is None else str(value) for name, value in asdict(progress).items()}
        _write(self.path, told)


def _progress_of(fields: Mapping[str, Any]) -> Progress:
    names = {name: str(fields[name]) for name in ("producer", "stream", "topic")}
    sent, target = (None if fields[name] is None else Position.parse(fields[name]) for name in ("sent", "target"))
    return Progress(**names, sent=sent, target=target)


def _read(path: Path, parse: Callable[[Mapping[str, Any]], _Told], what: str, *, hint: str) -> _Told | None:
    """The parsed fields of a file; ``None``: there is no file. Raises ``CorruptError`` if it has no valid ``what``."""
    try:
        with path.open("rb") as opened:
            fields = json.loads(opened.read(FILE_BYTES_MAX))
        if fields["version"] != _VERSION:
            raise ValueError(f"version {fields['version']!r}")
        return parse(fields)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as cause:
        raise CorruptError(f"{path} has no valid {what}: {cause}", hint=hint) from cause


def _write(path: Path, told: Mapping[str, object], *, create: bool = False) -> None:
    """Replaces a file; durable on return. ``create``: raises ``FileExistsError`` if there is one."""
    # Only creators may write concurrently; the others share one name, so that kills leave one file.
    beside = path.with_name(f"{path.name}.{os.getpid()}.new" if create else f"{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with beside.open("w", encoding="utf-8") as opened:
            json.dump({"version": _VERSION, **told}, opened)
            opened.flush()
            os.fsync(opened.fileno())
        if create:
            os.link(beside, path)
            beside.unlink()
        else:
            beside.replace(path)
        sync_name(path)
    except OSError as cause:
        with suppress(OSError):
            beside.unlink()
        if create and isinstance(cause, FileExistsError):
            raise
        raise StoreUnavailableError(
            f"{path} can't be written: {cause.strerror}", hint="give another file with --progress-file"
        ) from cause


class RelativeBegin:
    """The resolved time of a relative start such as ``-1h``, in a file from a replay's first run until the replay is
    finished: later runs start there too. With another start, a run would be another replay and send entries twice.

    Args:
        path: of the file.
        name: of the replay: ``begin_name``.
        text: the relative time as given.
    """

    def __init__(self, path: Path, name: str, text: str) -> None:
        self.path, self._name, self._text = path, name, text

    def resolve(self, time_ms: int, *, dry_run: bool = False) -> int:
        """The time of the first run; for the first run ``time_ms``, durable on return.

        Args:
            dry_run: write nothing.

        Raises:
            InvalidCallError: the replay is finished, or the file is another replay's.
            CorruptError: the file can't be read.
            StoreUnavailableError: the file can't be written.
        """
        known = self._read()
        if known is None and not dry_run:
            try:
                self._note(time_ms, is_finished=False, create=True)
            except FileExistsError:  # by a run that started at the same time
                known = self._read()
        if known is None:
            return time_ms
        began_ms, is_finished = known
        if is_finished:
            raise InvalidCallError(
                f"--since {self._text} is the start of a finished replay, which began at {time_text(began_ms)}",
                hint=f"--since {time_text(began_ms)} sends newer messages; --label TEXT starts another replay",
            )
        return began_ms

    def finish(self, time_ms: int) -> None:
        """Records that the whole range was sent. Raises ``StoreUnavailableError`` if the file can't be written."""
        self._note(time_ms, is_finished=True)

    def forget(self) -> None:
        """Removes the file, for an empty range."""
        with suppress(OSError):
            self.path.unlink()

    def _note(self, time_ms: int, *, is_finished: bool, create: bool = False) -> None:
        _write(self.path, {"replay": self._name, "from_ms": time_ms, "finished": is_finished}, create=create)

    def _read(self) -> tuple[int, bool] | None:
        found = _read(
            self.path,
            lambda fields: (str(fields["replay"]), int(fields["from_ms"]), bool(fields["finished"])),
            "start of a replay",
            hint="give --since the absolute time that the first run printed, and remove the file",
        )
        if found is not None and found[0] != self._name:
            raise InvalidCallError(
                f"{self.path} belongs to another replay", hint="give another file with --progress-file"
            )
        return None if found is None else found[1:]


_BURST_S = 1.0


class Rate:
    """Rate limit of one thread.

    Args:
        messages: per second; 0: unlimited.
        size_bytes: per second; 0: unlimited.
    """

    def __init__(self, messages: float, size_bytes: float, clock: Clock) -> None:
        self._limits, self._clock = (messages, size_bytes), clock
        self._due_s = [clock.monotonic_s() - _BURST_S] * 2

    def take(self, messages: int, size_bytes: int, stopping: threading.Event) -> None:
        """Waits until the limit admits this amount, or until ``stopping``."""
        now_s = self._clock.monotonic_s()
        for number, amount in enumerate((messages, size_bytes)):
            if self._limits[number]:
                self._due_s[number] = max(self._due_s[number], now_s - _BURST_S) + amount / self._limits[number]
        wait_s = max(self._due_s) - now_s
        if wait_s > 0:
            self._clock.wait(stopping, wait_s)


_READER = "offloader-replay-looks"
_EARLIEST = Position(-1, -1)
#: Maximum wait for an entry that a broker lists.
SILENCE_S_MAX = 30.0
_TAKE_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetState:
    """State of the target.

    Attributes:
        number: the highest sequence id of the producer's entries; -1: none.
        repeated: number of its entries with a sequence id at or below an earlier one.
        end: the target's newest entry; ``None``: none.
        is_whole: whether all entries from the start of the search still exist; deleted ones may have been the replay's.
    """

    number: int
    repeated: int
    end: Position | None
    is_whole: bool


_log = logging.getLogger("offloader.replay")

#: Interval of progress writes.
NOTE_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayLimits:
    """Rates and timeouts of a replay.

    Attributes:
        messages_per_s, bytes_per_s: maximum rates; 0: unlimited.
        producer: limits of unacknowledged entries.
        retry_s: maximum time without progress.
        retry_delay_s: time between two attempts.
    """

    messages_per_s: float = 0.0
    bytes_per_s: float = 0.0
    producer: ProducerLimits = ProducerLimits()  # noqa: RUF009 - frozen
    retry_s: float = 300.0
    retry_delay_s: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """Result of a run so far.

    Attributes:
        resumed_after: the newest entry that earlier runs sent; ``None``: none.
        sent: the newest entry stored in the target; ``None``: none.
        entries, messages, size_bytes: stored in the target by this run.
        markers: skipped internal entries of the brokers.
        twice: entries known to be in the target twice.
        deduplicates: whether the target's broker is known to drop duplicates.
        target_forgot: whether the target had deleted the entries that prove an earlier run's progress: entries that the
        run sent after its last progress write, at most one second's worth, are sent again.
    """

    resumed_after: Position | None = None
    sent: Position | None = None
    entries: int = 0
    messages: int = 0
    size_bytes: int = 0
    markers: int = 0
    twice: int = 0
    deduplicates: bool = False
    target_forgot: bool = False


class Replayer:
    """Sends one range of one stream to one topic. Use it once.

    Args:
        first, last: the range, inclusive.
        wanted: the replay's names, with nothing sent.
        lease: name of a producer that sends no messages: while it is connected, no other replay with that lease runs.
        with_transactions: also send transactional entries; otherwise the replay fails at the first one.
        on_progress: called periodically with the progress.
    """

    def __init__(
        self,
        reader: Reader,
        first: Position,
        last: Position,
        *,
        client: PulsarClient,
        wanted: Progress,
        lease: str,
        file: ProgressFile,
        clock: Clock,
        limits: ReplayLimits | None = None,
        with_transactions: bool = False,
        on_progress: Callable[[ReplayResult], object] = lambda _: None,
    ) -> None:
        self._reader, self._first, self._last = reader, first, last
        self._client, self._clock, self._topic = client, clock, wanted.topic
        self._file, self._lease = file, lease
        self._limits = limits or ReplayLimits()
        self._rate = Rate(self._limits.messages_per_s, self._limits.bytes_per_s, clock)
        self._with_transactions, self._on_progress = with_transactions, on_progress
        self._stopping = threading.Event()
        self._progress, self._result = wanted, ReplayResult()
        self._noted: Progress | None = None
        self._note_due_s = 0.0
        #: Sent, not confirmed as stored: sequence id, messages, bytes.
        self._on_its_way: deque[tuple[int, int, int]] = deque()

    def stop(self) -> None:
        """Ends the run soon and saves the progress."""
        self._stopping.set()

    def run(self) -> ReplayResult:
        """Sends the entries up to the end of the range.

        Raises:
            InvalidCallError: the progress file is another replay's; an entry can't be sent.
            CorruptError: an entry isn't a Pulsar message, or is damaged; earlier entries are sent.
            TrimmedError: entries after those of an earlier run were deleted.
            OffloaderError: reading or sending failed permanently; another run resumes where this one stopped.
        """
        known = self._file.require(self._progress)
        new = self._progress
        if known is None:
            # Before the first send: after a kill, the next run needs the target's position.
            new = replace(new, target=self._target_end())
            # Another run may have started meanwhile; without recorded progress, it sends after that position.
            known = self._file.require(self._progress)
        is_new = known is None
        self._progress = known or new
        self._note()
        patient_until_s = self._clock.monotonic_s() + self._limits.retry_s
        while not self._stopping.is_set():
            before = self._progress.sent
            try:
                with closing(self._leased()):
                    self._produce(is_new=is_new)
                break
            except OffloaderError as error:
                if self._progress.sent != before:
                    patient_until_s = self._clock.monotonic_s() + self._limits.retry_s
                if not error.retryable or self._clock.monotonic_s() >= patient_until_s:
                    raise
                _log.warning("replay to %s: %s; retrying", self._topic, error)
            finally:
                self._note()
            is_new = False
            self._clock.wait(self._stopping, self._limits.retry_delay_s)
        return self._result

    def _leased(self) -> Producer:
        """A producer that locks the topic: a broker admits one producer of a name. The sending producers' names differ
        by start, and their ranges may overlap."""
        try:
            return Producer(self._client, self._topic, self._lease, clock=self._clock)
        except NameTakenError as error:
            raise StoreUnavailableError(
                f"another replay of {self._progress.stream} to {self._topic} is running: {error.message}",
                hint="wait until it has ended, or give another --label to run both",
            ) from error

    def _produce(self, *, is_new: bool) -> None:
        producer = Producer(
            self._client, self._topic, self._progress.producer, limits=self._limits.producer, clock=self._clock
        )
        try:
            if producer.last_sequence_id >= 0:
                self._result = replace(self._result, deduplicates=True)
                self._found(producer.last_sequence_id)
            else:
                self._settle(producer, is_new=is_new)
            self._send(producer)
        finally:
            self._take_receipts(producer)
            producer.close()

    def _settle(self, producer: Producer, *, is_new: bool) -> None:
        """Finds the entries stored by an earlier connection or run, including those in flight when it broke.

        ``is_new``: no earlier connection is known; another run may have had the lease since the file was read.
        """
        seen = self._look(producer.name, self._progress.target)
        if is_new and seen.number < 0:
            return
        if not seen.is_whole and not self._result.target_forgot:
            self._result = replace(self._result, target_forgot=True)
            _log.warning("replay to %s: the target deleted the entries that prove its progress", self._topic)
        self._found(seen.number)
        with closing(self._entries()) as entries:
            alone = next(entries, None)
        if alone is None:
            return
        # Entries in flight are stored before this one, or never.
        self._send_one(producer, *alone)
        producer.flush()
        self._take_receipts(producer)
        late = self._look(producer.name, seen.end)
        self._result = replace(self._result, twice=self._result.twice + late.repeated)
        self._found(late.number)

    def _found(self, number: int) -> None:
        is_first = self._result.sent is None
        self._count_stored(number)
        # Entries of an earlier connection that the target lacks never arrived.
        self._on_its_way.clear()
        sent = max(filter(None, (place_of(number), self._progress.sent)), default=None)
        self._progress = replace(self._progress, sent=sent)
        resumed = sent if is_first and not self._result.entries else self._result.resumed_after
        self._result = replace(self._result, sent=sent, resumed_after=resumed)

    def _send(self, producer: Producer) -> None:
        try:
            with closing(self._entries()) as entries:
                for position, entry in entries:
                    self._rate.take(entry.messages, len(entry.entry), self._stopping)
                    if self._stopping.is_set():
                        break
                    self._send_one(producer, position, entry)
                    self._take_receipts(producer)
                    if self._clock.monotonic_s() >= self._note_due_s:
                        self._note()
        except (CorruptError, InvalidCallError):
            with suppress(OffloaderError):
                producer.flush()
            raise
        producer.flush()

    def _send_one(self, producer: Producer, position: Position, entry: Resent) -> None:
        number = number_of(position)
        self._on_its_way.append((number, entry.messages, len(entry.entry)))
        producer.send(number, entry.entry, entry.messages)

    def _entries(self) -> Generator[tuple[Position, Resent], None, None]:
        first = self._next()
        if first > self._last:
            return
        with closing(self._reader.scan(first, self._last)) as batches:
            for batch in batches:
                for stored in batch.entries():
                    entry = self._resent(stored.position, bytes(stored.payload))
                    if entry.entry:
                        yield stored.position, entry
                    else:
                        self._result = replace(self._result, markers=self._result.markers + 1)

    def _next(self) -> Position:
        """The first unsent entry. Raises ``TrimmedError`` if the stream deleted unsent entries before it."""
        sent, begin = self._progress.sent, self._reader.first_position
        if sent is None:
            return self._first
        if begin is None or sent >= self._last:
            return max(self._first, sent.next())
        if begin > sent and is_lost_between(self._reader.state, sent, begin):
            raise TrimmedError(
                f"stream {self._progress.stream}: sent up to {sent}, but later entries were deleted: the stream now "
                f"begins at {begin}",
                first_available=begin,
                hint=f"--from {begin} sends the other entries, without the deleted ones",
            )
        return max(self._first, sent.next(), begin)

    def _resent(self, position: Position, payload: bytes) -> Resent:
        where = f"entry {position} of stream {self._progress.stream}"
        try:
            entry = resent(payload, self._progress.producer, number_of(position))
        except FormatError as cause:
            raise CorruptError(
                f"{where} isn't a Pulsar message: {cause}", hint="continue after it with --from"
            ) from cause
        if entry.is_of_transaction and not self._with_transactions:
            raise InvalidCallError(
                f"{where} belongs to a transaction and does not record whether that was committed",
                hint="--with-transactions sends it as committed, as entries of our Pulsar source are",
            )
        return entry

    def _target_end(self) -> Position | None:
        with closing(self._consumer(_EARLIEST)) as reader:
            return reader.last_position()

    def _look(self, producer_name: str, start: Position | None) -> TargetState:
        """A producer's stored entries from ``start``, an entry of the target (``None``: the first), to the target's
        current end. Raises ``StoreUnavailableError`` if it can't be read to its end."""
        with closing(self._consumer(start or _EARLIEST)) as reader:
            end = reader.last_position()
            if end is None or (start is not None and end < start):
                return TargetState(number=-1, repeated=0, end=end, is_whole=start is None)
            number, repeated, first, at, silent_s = -1, 0, None, _EARLIEST, 0.0
            while at < end:
                before_s = self._clock.monotonic_s()
                taken = reader.take(_TAKE_S)
                silent_s = 0.0 if taken else silent_s + max(self._clock.monotonic_s() - before_s, _TAKE_S)
                if silent_s > SILENCE_S_MAX:
                    raise StoreUnavailableError(
                        f"topic {self._topic}: the broker lists entry {end}, but delivers none after {at}",
                        hint="retry; nothing was sent",
                    )
                for delivery in taken:
                    first = first or delivery.position
                    at = delivery.position
                    metadata = decode_frame(delivery.entry).metadata
                    if metadata.producer_name == producer_name:
                        repeated += metadata.sequence_id <= number
                        number = max(number, metadata.sequence_id)
            return TargetState(number=number, repeated=repeated, end=end, is_whole=start is None or first == start)

    def _consumer(self, start: Position) -> Consumer:
        return Consumer(self._client, self._topic, _READER, start=start, clock=self._clock)

    def _take_receipts(self, producer: Producer) -> None:
        newest = producer.newest
        if newest is not None and self._count_stored(newest.sequence_id):
            sent = place_of(newest.sequence_id)
            self._progress = replace(self._progress, sent=sent, target=newest.position or self._progress.target)
            self._result = replace(self._result, sent=sent)

    def _count_stored(self, number: int) -> int:
        """Counts the entries in flight up to a sequence id as stored; returns their number."""
        entries = messages = size_bytes = 0
        while self._on_its_way and self._on_its_way[0][0] <= number:
            _, more_messages, more_bytes = self._on_its_way.popleft()
            entries, messages, size_bytes = entries + 1, messages + more_messages, size_bytes + more_bytes
        self._result = replace(
            self._result,
            entries=self._result.entries + entries,
            messages=self._result.messages + messages,
            size_bytes=self._result.size_bytes + size_bytes,
        )
        return entries

    def _note(self) -> None:
        self._note_due_s = self._clock.monotonic_s() + NOTE_S
        if self._progress != self._noted:
            self._file.write(self._progress)
            self._noted = self._progress
        self._on_progress(self._result)
