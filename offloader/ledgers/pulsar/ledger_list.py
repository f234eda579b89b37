"""A topic's ledgers, and why a broker skipped entries of them: markers, lost, or unexplained.

**A broker skips whole reads.** With ``autoSkipNonRecoverableData`` it passes over all entries that it asked the bookies
for at once (up to ``dispatcherMaxReadBatchSize``, and no more than the reader has permits for) if one of them is lost.
So entries before and after a lost one are skipped that other readers receive. Only a reader that asks for single
entries receives all that exist: ``SkippedEntries`` uses one to tell them apart, and ``LedgerList.were_skipped``
tells the readers where they must ask for single entries, too.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

from formats.entries import Position
from offloader.errors import CorruptError, SourceMismatchError, StoreUnavailableError
from offloader.ledgers.base import AskKnown, LedgerInfo
from offloader.ledgers.pulsar.consumer import Consumer
from offloader.ledgers.pulsar.topics import EntryFate, TopicInternals, contradiction
from offloader.runtime.clock import Clock

#: Longest wait for the first entry of a repeated read.
READ_S_MAX = 15.0


class InconsistentReadError(StoreUnavailableError):
    """A reader skipped entries that another reader received: discard the read and repeat it."""


class NotGiven(NamedTuple):
    """Entries ``first`` to ``last`` of a ledger that no reader receives: ``UNDELIVERED``, ``LOST`` or ``UNKNOWN``."""

    fate: EntryFate
    first: int
    last: int


class SkippedEntries:
    """Classifies the skipped entries of one topic. Thread-safe.

    Queries the broker about each entry of a run. Unless all of them are undelivered, a second reader begins at the
    run's first entry. Entries that it does not receive either are classified by the broker's responses. After a lost
    entry, a broker also skips existing entries; a reader that begins at them receives them.

    Args:
        ask: returns the fate of a single entry.
        asked_max: number of leading entries of a run to query; the others are unknown.
        open_reader: opens a reader of the topic at a position.
    """

    def __init__(
        self,
        topic: str,
        ask: Callable[[Position], EntryFate],
        *,
        asked_max: int,
        open_reader: Callable[[Position], Consumer],
        clock: Clock,
    ) -> None:
        self._topic, self._ask, self._open_reader, self._clock = topic, ask, open_reader, clock
        self._asked_max = asked_max

    def look(self, ledger_id: int, first: int, last: int, following: Position) -> list[NotGiven]:
        """The beginning of a run that no reader receives, in ascending pieces with one fate each.

        Read the rest of the run, if any, from its first entry.

        Args:
            ledger_id, first, last: entries that the broker lists and did not deliver.
            following: the next delivered entry.

        Raises:
            InconsistentReadError: the broker delivers the first of them to a second reader.
            StoreUnavailableError: no response, or the broker stores the first entry but does not deliver it; nothing
                was decided.
        """
        asked = range(first, min(last + 1, first + self._asked_max))
        fates = [self._ask(Position(ledger_id, each)) for each in asked]
        if set(fates) == {EntryFate.UNDELIVERED} and asked[-1] == last:
            return [NotGiven(EntryFate.UNDELIVERED, first, last)]
        came = self._read_again(Position(ledger_id, first), following)
        if fates[0] is EntryFate.READABLE:
            raise StoreUnavailableError(
                f"{self._topic}: the broker stores {ledger_id}:{first}, which is neither a marker nor part of an "
                f"aborted transaction, but skipped it and continued at {following}",
                hint="offloading of the topic waits; check whether the namespace has an entry filter that applies "
                "to readers",
            )
        if came.ledger_id == ledger_id:
            last = min(last, came.entry_id - 1)
        if EntryFate.READABLE in fates:
            last = min(last, first + fates.index(EntryFate.READABLE) - 1)
        return _pieces(first, last, fates)

    def _read_again(self, first: Position, following: Position) -> Position:
        """The first entry after ``first`` that a second reader receives."""
        with closing(self._open_reader(first)) as reader:
            deadline_s = self._clock.monotonic_s() + READ_S_MAX
            came = reader.take(READ_S_MAX)
            while not came and (left_s := deadline_s - self._clock.monotonic_s()) > 0:
                came = reader.take(left_s)
        if not came:
            raise StoreUnavailableError(
                f"{self._topic}: the broker delivered nothing from {first} on to a second reader"
            )
        position = came[0].position
        if not first < position <= following:
            raise InconsistentReadError(
                f"{self._topic}: the broker continued at {following} after {first} was requested, and the second "
                f"time at {position}",
                hint="the read is repeated from there",
            )
        return position


def _pieces(first: int, last: int, fates: Sequence[EntryFate]) -> list[NotGiven]:
    """The pieces of ``first`` to ``last``; entries that weren't queried are unknown."""
    unasked = last + 1 - first - len(fates)
    known = [EntryFate.UNKNOWN if each is EntryFate.DENIED else each for each in fates[: last + 1 - first]]
    found: list[NotGiven] = []
    for fate, run in groupby([*known, *[EntryFate.UNKNOWN] * unasked]):
        count = len(list(run))
        found.append(NotGiven(fate, first, first + count - 1))
        first += count
    return found


#: Cache time of a response, except for the newest entry, which is always queried.
AGE_S_MAX = 10.0
#: Entries that are read one by one after a reader received none. Brokers read 100 at once by default.
SINGLE_ENTRIES = 1000
#: Ranges of a topic in which readers ask for single entries; the oldest are forgotten first.
SKIPPED_MAX = 16
#: Runs of undelivered entries kept per topic and fate; evicts the oldest ledgers' first, which the manifest records by
#: then.
RUNS_MAX = 100_000

_NO_LEDGER = Position(-1, -1)

#: Ledger -> runs of entries, first and last, ascending.
_Runs = dict[int, list[tuple[int, int]]]
#: As ``LedgerInfo`` has them: undelivered, lost and unconfirmed entries.
_KEPT = (EntryFate.UNDELIVERED, EntryFate.LOST, EntryFate.UNKNOWN)


def first_from(infos: Sequence[LedgerInfo], start: Position) -> Position | None:
    """The first listed entry at or after ``start`` that may be delivered, ``None`` if there is none."""
    for info in (each for each in infos if each.ledger_id >= start.ledger_id):
        first = start.entry_id if info.ledger_id == start.ledger_id else 0
        for begin, end in info.not_given:
            if begin <= first <= end:
                first = end + 1
        if first < info.entries:
            return Position(info.ledger_id, first)
    return None


class _Answer(NamedTuple):
    """The broker's response: its ledgers, and the newest readable position."""

    asked_s: float
    doubts: int
    internals: TopicInternals
    readable: Position
    closed_before_ms: int
    #: The last entry of an acknowledged ledger that is no longer listed.
    ended: Position | None = None


class LedgerList:
    """One topic's ledgers. Thread-safe; calls that query the broker wait for each other.

    Args:
        ask: queries the admin interface for the topic's internal statistics.
        ask_last: queries the broker for the newest entry that it delivers.
        look: classifies entries that are listed and were not delivered: ``SkippedEntries.look``.
        ended: the acknowledged position if the broker no longer lists its ledger: ``AckCursor.ended``.
        heard: is told which entry a reader received, and right after which one: ``TopicFacts.heard``.
    """

    def __init__(
        self,
        topic: str,
        *,
        ask: Callable[[], TopicInternals],
        ask_last: Callable[[], Position | None],
        look: Callable[[int, int, int, Position], Sequence[NotGiven]],
        clock: Clock,
        ended: Callable[[TopicInternals], Position | None] = lambda _: None,
        heard: Callable[[Position | None, Position], object] = lambda _before, _position: None,
    ) -> None:
        self.topic, self._ended, self._heard = topic, ended, heard
        self._ask, self._ask_last, self._look, self._clock = ask, ask_last, look, clock
        self._asking = threading.Lock()
        self._lock = threading.Lock()
        self._answer: _Answer | None = None
        self._doubts = 0
        self._delivered = _NO_LEDGER
        self._runs: dict[EntryFate, _Runs] = {fate: {} for fate in _KEPT}
        self._closed_ms: dict[int, int] = {}
        self._gone: set[int] = set()
        #: Between which two entries a reader received nothing, though there may be something.
        self._skipped: deque[tuple[Position, Position]] = deque(maxlen=SKIPPED_MAX)
        #: The last computed list, the response and position it was computed from, and the version of the added runs.
        self._built: tuple[_Answer, tuple[Position, int], list[LedgerInfo]] | None = None
        self._changes = 0

    def infos(self) -> list[LedgerInfo]:
        """All ledgers, ascending, except those whose hot copies were released.

        A ledger counts as open, with the readable part as its length, until its last entry or a later ledger's entry
        was readable: entries that aren't readable yet (an undecided transaction) may become so.

        Raises: as the admin interface and the broker.
        """
        return self._shown(self._current())

    def known(self) -> list[LedgerInfo]:
        """The same from the cache, without a query; empty if a query is needed."""
        with self._lock:
            answer, doubts = self._answer, self._doubts
        return [] if answer is None or answer.doubts != doubts else self._shown(answer)

    def _shown(self, answer: _Answer) -> list[LedgerInfo]:
        with self._lock:
            readable = max(answer.readable, self._delivered)
            key = readable, self._changes
            if self._built is None or self._built[0] is not answer or self._built[1] != key:
                infos = [info for info in self._infos(answer, readable) if info.ledger_id not in self._gone]
                self._built = answer, key, infos
            return list(self._built[2])

    def internals(self) -> TopicInternals:
        """The broker's response itself, as old as ``infos`` may be."""
        return self._current().internals

    def doubt(self) -> None:
        """Invalidate the cached response: the next call queries again."""
        with self._lock:
            self._doubts += 1

    def delivered(self, position: Position) -> None:
        """Note a delivered entry, so that no query is needed for it."""
        self._heard(None, position)
        with self._lock:
            self._delivered = max(self._delivered, position)

    def gave_up(self, ledger_id: int) -> None:
        """Stop listing a ledger: its hot copy may be deleted at any time."""
        with self._lock:
            self._changes += 1
            self._gone.add(ledger_id)
            for runs in self._runs.values():
                runs.pop(ledger_id, None)
            self._closed_ms.pop(ledger_id, None)

    def follow(self, before: Position | None, begin: Position) -> list[LedgerInfo]:
        """Account for the entries between two that a reader received in sequence (``None``: the topic's beginning).

        No reader receives the entries that the broker lists there and did not deliver; ``infos`` give the reason.

        Returns:
            The closed ledgers from ``before`` on that end before ``begin``.

        Raises:
            CorruptError: the broker delivered an entry that it does not list.
            InconsistentReadError: it delivers skipped entries to others; read again from ``first_from`` on, one by one
                where they ``were_skipped``.
            Errors of the queries: retry.
        """
        if before is not None and before.ledger_id == begin.ledger_id and begin.entry_id == before.entry_id + 1:
            self.delivered(begin)
            return []
        self._heard(before, begin)
        self.doubt()
        answer = self._current()
        with self._lock:
            infos = self._infos(answer, max(answer.readable, self._delivered, begin))
            self._require_listed(before, begin, answer, {info.ledger_id: info for info in infos})
            passed = [
                info
                for info in infos
                if info.ledger_id <= begin.ledger_id
                and (before is None or info.ledger_id >= before.ledger_id)
                and info.ledger_id not in self._gone  # all of it is settled: a reader that is behind begins after it
            ]
            runs = [run for info in passed for run in self._unknown(info, before, begin)]
        try:
            self._explain(runs, begin)
        except InconsistentReadError:
            self.skipped(before or _NO_LEDGER, begin)
            raise
        with self._lock:
            self._delivered = max(self._delivered, begin)
            return [self._with_runs(info) for info in passed if info.ledger_id < begin.ledger_id]

    def skipped(self, first: Position, last: Position) -> None:
        """Note that a reader received nothing between two entries, though there may be something."""
        with self._lock:
            self._skipped.append((first, last))

    def were_skipped(self, after: Position) -> bool:
        """Whether entries after ``after`` may be skipped by a reader that doesn't ask for single entries."""
        with self._lock:
            return any(first <= after < last for first, last in self._skipped)

    def _explain(self, runs: Sequence[tuple[int, int, int]], begin: Position) -> None:
        for ledger_id, first, last in runs:
            pieces = self._look(ledger_id, first, last, begin)
            with self._lock:
                for piece in pieces:
                    self._add(self._runs[piece.fate], ledger_id, piece.first, piece.last)
            if pieces[-1].last < last:
                raise InconsistentReadError(
                    f"{self.topic}: the broker stores {ledger_id}:{pieces[-1].last + 1}, but skipped it with the "
                    "entries before it",
                    hint="the read is repeated from there",
                )

    def _current(self) -> _Answer:
        with self._asking:
            with self._lock:
                answer, doubts, now_s = self._answer, self._doubts, self._clock.monotonic_s()
            if answer is not None and answer.doubts == doubts and now_s - answer.asked_s < AGE_S_MAX:
                readable = self._ask_last() or _NO_LEDGER
                listed = answer.internals.ledgers.ledgers
                newest_ledger = listed[-1].ledger_id if listed else _NO_LEDGER.ledger_id
                # A response may be older than its ``readable``: ledgers may have begun between its two queries.
                if readable == answer.readable and readable.ledger_id <= newest_ledger:
                    return answer
                if listed and readable.ledger_id == newest_ledger:
                    self._answer = answer = answer._replace(readable=readable)
                    return answer
            # In this order: entries that the first lists beyond the second's position can't be read now.
            internals = self._ask()
            readable = self._ask_last() or _NO_LEDGER
            if not internals.ledgers.ledgers and readable != _NO_LEDGER:
                internals = self._ask()  # the first entry came in between
            if not internals.ledgers.ledgers and readable != _NO_LEDGER:
                # Nothing was deleted: a topic keeps its newest ledger.
                raise StoreUnavailableError(
                    f"{self.topic}: the admin interface lists no ledger, but the broker has entry {readable}",
                    hint="nothing is decided until a retry returns consistent responses",
                )
            created_ms, now_ms = internals.newest_ledger_created_ms, self._clock.now_ms()
            # All but the newest ledger were closed when the newest was opened, or before.
            closed_ms = now_ms if created_ms is None else min(created_ms, now_ms)
            ended = self._trimmed_end(answer, internals)
            self._answer = answer = _Answer(now_s, doubts, internals, readable, closed_ms, ended)
            return answer

    def _trimmed_end(self, before: _Answer | None, internals: TopicInternals) -> Position | None:
        """The end of a ledger that the broker trimmed as soon as it was closed.

        Its last entry was acknowledged, and no later entry is known.

        Without that, the next entries would follow an unknown number of lost entries."""
        ended = self._ended(internals)
        if ended is None or before is None:
            return None
        if before.ended == ended:
            return ended
        listed = dict(before.internals.stored()).get(ended.ledger_id, 0) - 1
        with self._lock:
            delivered = self._delivered
        heard = max(listed, delivered.entry_id if delivered.ledger_id == ended.ledger_id else -1)
        return ended if listed >= 0 and heard <= ended.entry_id else None

    def _infos(self, answer: _Answer, readable: Position) -> list[LedgerInfo]:
        """Call with the lock held."""
        internals, found = answer.internals, list[LedgerInfo]()
        if answer.ended is not None:
            ledger_id, last = answer.ended
            found.append(
                LedgerInfo(
                    ledger_id=ledger_id,
                    closed=True,
                    entries=last + 1,
                    size_bytes=0,
                    created_ms=0,
                    closed_ms=answer.closed_before_ms,
                    undelivered=((0, last),),  # no longer
                    is_exact=False,
                )
            )
        ledgers = internals.ledgers.ledgers
        for ledger in ledgers:
            ledger_id, entries, size_bytes, _ = ledger
            is_newest = ledger is ledgers[-1]
            if is_newest and internals.open_entries > entries:
                entries, size_bytes = internals.open_entries, internals.open_size_bytes
            known = 0 if ledger_id > readable.ledger_id else entries
            if ledger_id == readable.ledger_id:
                known = readable.entry_id + 1 if is_newest else min(entries, readable.entry_id + 1)
            closed = known >= entries and (not is_newest or internals.is_terminated)
            info = LedgerInfo(
                ledger_id=ledger_id,
                closed=closed,
                entries=known,
                size_bytes=size_bytes * known // entries if entries else 0,
                created_ms=0,
                closed_ms=self._closed_ms.setdefault(ledger_id, answer.closed_before_ms) if closed else None,
            )
            found.append(self._with_runs(info))
        return found

    def _with_runs(self, info: LedgerInfo) -> LedgerInfo:
        undelivered, lost, unconfirmed = (
            tuple(run for run in self._runs[fate].get(info.ledger_id, ()) if run[1] < info.entries) for fate in _KEPT
        )
        if not (undelivered or lost or unconfirmed):
            return info
        return replace(info, undelivered=undelivered, lost=lost, unconfirmed=unconfirmed)

    def _unknown(self, info: LedgerInfo, before: Position | None, begin: Position) -> Iterator[tuple[int, int, int]]:
        """Ledger, first and last entry of each unaccounted run of one ledger between two entries."""
        ledger_id = info.ledger_id
        first = before.entry_id + 1 if before is not None and ledger_id == before.ledger_id else 0
        end = begin.entry_id if ledger_id == begin.ledger_id else info.entries
        known = sorted({run for runs in self._runs.values() for run in runs.get(ledger_id, ())} | {*info.not_given})
        for run_first, run_last in (*known, (end, end)):
            if first < min(run_first, end):
                yield ledger_id, first, min(run_first, end) - 1
            first = max(first, run_last + 1)

    def _require_listed(
        self, before: Position | None, begin: Position, answer: _Answer, listed: dict[int, LedgerInfo]
    ) -> None:
        hint = (
            "the broker's entry ids are inconsistent: unload the topic, so that another broker serves it, then restart"
        )
        confirmed = answer.internals.last_confirmed
        # An earlier ledger may have been deleted since.
        end = listed[begin.ledger_id].entries if begin.ledger_id in listed else 2**63
        beyond = begin.entry_id >= end or begin.ledger_id > max(listed, default=-1)
        if beyond or (confirmed is not None and begin > confirmed):
            raise CorruptError(f"{self.topic}: the broker delivered {begin}, which it does not list", hint=hint)
        own = None if before is None or before.ledger_id == begin.ledger_id else listed.get(before.ledger_id)
        if before is not None and own is not None and own.last_entry_id < before.entry_id:
            raise CorruptError(
                f"{self.topic}: the broker delivered {before} of a ledger that ends at {own.last_entry_id} by its list",
                hint=hint,
            )

    def _add(self, kind: _Runs, ledger_id: int, first: int, last: int) -> None:
        """Add a run, merged with adjacent ones."""
        self._changes += 1
        runs = sorted([*kind.get(ledger_id, ()), (first, last)])
        joined = [runs[0]]
        for run in runs[1:]:
            if run[0] <= joined[-1][1] + 1:
                joined[-1] = (joined[-1][0], max(joined[-1][1], run[1]))
            else:
                joined.append(run)
        kind[ledger_id] = joined
        while len(kind) > 1 and sum(map(len, kind.values())) > RUNS_MAX:
            del kind[min(kind)]


def require_same_ledgers(ledgers: LedgerList, known: AskKnown, ask_newest: Callable[[], Position | None]) -> None:
    """Compares a topic's ledgers with the known ones, again if they contradict each other.

    Args:
        ask_newest: asks the owning broker: ``owners_newest``.

    Raises: as ``ComparedSource.require_same``, and errors of the queries.
    """

    def compare() -> tuple[list[tuple[int, int]], str | None]:
        """The ledgers as listed now, and how they contradict the known ones."""
        stored = ledgers.internals().stored()
        return stored, contradiction(stored, known([ledger_id for ledger_id, _ in stored]))

    if compare()[1] is None:
        return
    ledgers.doubt()
    newest_now = ask_newest()
    stored, why = compare()
    if why is None:
        return
    if newest_now is not None and newest_now.ledger_id > stored[-1][0]:
        raise StoreUnavailableError(
            f"{ledgers.topic}: the admin interface lists ledgers up to {stored[-1][0]}, and the owning broker has "
            f"{newest_now}: the list is older than that",
            hint="nothing is deleted until then; the broker is asked again",
        )
    raise SourceMismatchError(
        f"{ledgers.topic}: its ledgers aren't those recorded in the manifest: {why}; the cluster was created "
        "again, or restored from an older copy. Nothing was deleted",
        hint="restore the cluster's metadata and ledgers; or offload this topic into another store or prefix, "
        "which keeps the existing entries readable, and start again",
    )
