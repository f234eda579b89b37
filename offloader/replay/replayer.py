"""A stream sent to a topic again, from where an earlier run got to.

Owns the loop: look what is there, go on behind it, send, and when anything breaks begin with looking again. Must never
send an entry before it knows what the target has, nor go on past one that wasn't stored.

Two ways to know what the target has. Its broker deduplicates: then it remembers the newest sequence id of our name, and
drops what comes twice: nothing is there twice, whatever happens. It doesn't: then the target is read from where the
progress file says, and the first entry after that look goes alone: what an earlier connection still had on its way is
stored before it, and is found behind the look, so that this one entry is all that can be there twice.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from dataclasses import dataclass, replace

from formats.entries import Position
from formats.errors import FormatError
from formats.pulsar.resend import Resent, resent
from offloader.clock import Clock
from offloader.errors import Corrupt, InvalidCall, OffloaderError, StoreUnavailable
from offloader.ledgers.pulsar.client import PulsarClient
from offloader.ledgers.pulsar.producer import Producer, ProducerLimits
from offloader.ledgers.pulsar.refusals import NameTaken
from offloader.read.reader import Reader
from offloader.replay.numbering import number_of, place_of
from offloader.replay.progress import Progress, ProgressFile
from offloader.replay.rate import Rate
from offloader.replay.target import Target

__all__ = ["ReplayLimits", "ReplayResult", "Replayer"]

_log = logging.getLogger("offloader.replay")

#: Between two notes of how far it is.
NOTE_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayLimits:
    """How fast a replay may be, and how patient.

    Attributes:
        messages_per_s, bytes_per_s: at most; 0: any.
        producer: what is on its way.
        retry_s: how long nothing may be stored before it gives up.
        retry_delay_s: between two attempts.
    """

    messages_per_s: float = 0.0
    bytes_per_s: float = 0.0
    producer: ProducerLimits = ProducerLimits()  # noqa: RUF009 - frozen
    retry_s: float = 300.0
    retry_delay_s: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """What a run has done so far.

    Attributes:
        resumed_after: the newest entry that earlier runs had sent; ``None``: there was none.
        sent: the newest entry that is stored in the target by now; ``None``: there is none.
        entries, messages, size_bytes: stored in the target by this run.
        markers: entries left out because they are the brokers' own.
        twice: entries that are known to be in the target twice.
        deduplicates: whether the target's broker is known to drop what comes twice.
        target_forgot: whether the target had deleted what tells where an earlier run got to: what that had sent after
            its last note, a second's worth at most, is sent again.
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
        reader: of the stream.
        first, last: the range, both included.
        client: of the target's cluster.
        wanted: whose progress it is: names, nothing sent.
        lease: name of a producer that sends nothing: while it is connected, no other replay with that lease runs.
        file: where the progress is.
        clock: of waits.
        limits: of speed and patience.
        with_transactions: send what was sent within transactions too; else it ends there.
        on_progress: told now and then how far it is.
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
        self._client, self._clock = client, clock
        self._file, self._lease = file, lease
        self._limits = limits or ReplayLimits()
        self._rate = Rate(self._limits.messages_per_s, self._limits.bytes_per_s, clock)
        self._with_transactions = with_transactions
        self._on_progress = on_progress
        self._target = Target(client, wanted.topic, clock)
        self._stopping = threading.Event()
        self._progress = wanted
        self._noted: Progress | None = None
        self._note_due_s = 0.0
        self._result = ReplayResult()
        #: Sent and not stored, as far as is known: sequence id, messages, bytes.
        self._on_its_way: deque[tuple[int, int, int]] = deque()

    def stop(self) -> None:
        """Ends the run soon; what is stored then is noted."""
        self._stopping.set()

    def run(self) -> ReplayResult:
        """Sends everything up to the end of the range.

        Raises:
            InvalidCall: the progress file is another replay's; an entry can't be sent.
            Corrupt: an entry isn't what Pulsar stores, or is damaged; what is before it is sent.
            OffloaderError: reading or sending failed for good; another run goes on where this one ended.
        """
        known = self._file.require(self._progress)
        is_new = known is None
        # Before anything is sent: a run that is killed at once must leave where to look.
        self._progress = known or replace(self._progress, target=self._target.end())
        self._note()
        patient_until_s = self._clock.monotonic_s() + self._limits.retry_s
        while not self._stopping.is_set():
            before = self._progress.sent
            try:
                self._session(is_new=is_new)
                break
            except OffloaderError as error:
                if self._progress.sent != before:
                    patient_until_s = self._clock.monotonic_s() + self._limits.retry_s
                if not error.retryable or self._clock.monotonic_s() >= patient_until_s:
                    raise
                _log.warning("replay to %s: %s; trying again", self._target.topic, error)
            finally:
                self._note()
            is_new = False
            self._clock.wait(self._stopping, self._limits.retry_delay_s)
        return self._result

    # --- one producer --------------------------------------------------------------------------------------------

    def _session(self, *, is_new: bool) -> None:
        with closing(self._leased()):
            self._produce(is_new=is_new)

    def _leased(self) -> Producer:
        """What keeps other replays of the stream away: a broker lets one producer of a name in. Where they begin makes
        the names of those that send differ, and their ranges may overlap."""
        try:
            return Producer(self._client, self._target.topic, self._lease, clock=self._clock)
        except NameTaken as error:
            raise StoreUnavailable(
                f"another replay of {self._progress.stream} goes to {self._target.topic}: {error.message}",
                hint="wait until it has ended; with --label of its own another one runs beside it",
            ) from error

    def _produce(self, *, is_new: bool) -> None:
        producer = Producer(
            self._client, self._target.topic, self._progress.producer, limits=self._limits.producer, clock=self._clock
        )
        try:
            if producer.last_sequence_id >= 0:
                self._result = replace(self._result, deduplicates=True)
                self._found(producer.last_sequence_id)
            elif not is_new:
                self._settle(producer)
            self._send(producer)
        finally:
            self._take_receipts(producer)
            producer.close()

    def _settle(self, producer: Producer) -> None:
        """Finds out what an earlier connection has stored, also what was on its way when that broke."""
        seen = self._target.look(producer.name, self._progress.target)
        if not seen.is_whole and not self._result.target_forgot:
            self._result = replace(self._result, target_forgot=True)
            _log.warning("replay to %s: the target has deleted what tells where it was", self._target.topic)
        self._found(seen.number)
        with closing(self._entries()) as entries:
            alone = next(entries, None)
        if alone is None:
            return
        # What is still on its way is stored before this one, if it is stored at all.
        self._send_one(producer, *alone)
        producer.flush()
        self._take_receipts(producer)
        late = self._target.look(producer.name, seen.end)
        self._result = replace(self._result, twice=self._result.twice + late.repeated)
        self._found(late.number)

    def _found(self, number: int) -> None:
        """What is in the target already."""
        is_first = self._result.sent is None
        self._count_stored(number)
        # What an earlier connection sent and isn't there never arrived.
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
        except (Corrupt, InvalidCall):
            with suppress(OffloaderError):
                producer.flush()
            raise
        producer.flush()

    def _send_one(self, producer: Producer, position: Position, entry: Resent) -> None:
        number = number_of(position)
        self._on_its_way.append((number, entry.messages, len(entry.entry)))
        producer.send(number, entry.entry, entry.messages)

    def _entries(self) -> Generator[tuple[Position, Resent], None, None]:
        """What is to be sent next, and so on, of the range."""
        sent = self._progress.sent
        first = self._first if sent is None else max(self._first, Position(sent.ledger_id, sent.entry_id + 1))
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

    def _resent(self, position: Position, payload: bytes) -> Resent:
        where = f"entry {position} of stream {self._progress.stream}"
        try:
            entry = resent(payload, self._progress.producer, number_of(position))
        except FormatError as cause:
            raise Corrupt(f"{where} isn't a message of Pulsar's: {cause}", hint="--from goes on behind it") from cause
        if entry.is_of_transaction and not self._with_transactions:
            raise InvalidCall(
                f"{where} was sent within a transaction, and doesn't say whether that was committed",
                hint="--with-transactions sends it, as committed: what our own Pulsar source offloaded was",
            )
        return entry

    # --- how far it is -------------------------------------------------------------------------------------------

    def _take_receipts(self, producer: Producer) -> None:
        newest = producer.newest
        if newest is not None and self._count_stored(newest.sequence_id):
            sent = place_of(newest.sequence_id)
            self._progress = replace(self._progress, sent=sent, target=newest.position or self._progress.target)
            self._result = replace(self._result, sent=sent)

    def _count_stored(self, number: int) -> int:
        """Counts the entries on their way up to a sequence id; how many these are."""
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
        """Writes how far it is, if that is news."""
        self._note_due_s = self._clock.monotonic_s() + NOTE_S
        if self._progress != self._noted:
            self._file.write(self._progress)
            self._noted = self._progress
        self._on_progress(self._result)
