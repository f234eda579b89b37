"""A topic's ledgers, and why a broker skipped entries of them: markers, lost, or unexplained."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple

from formats.entries import Position
from offloader.errors import Corrupt, StoreUnavailable
from offloader.ledgers.base import LedgerInfo
from offloader.ledgers.pulsar.consumer import Consumer
from offloader.ledgers.pulsar.topics import EntryFate, TopicInternals
from offloader.runtime.clock import Clock

__all__ = ["InconsistentRead", "LedgerList", "NotGiven", "SkippedEntries", "first_from", "newest_of"]

#: Longest wait for the first entry of a repeated read.
READ_S_MAX = 15.0


class InconsistentRead(StoreUnavailable):
    """A reader was not given entries that another one gets: discard what it received and read again."""


class NotGiven(NamedTuple):
    """Entries ``first`` to ``last`` of a ledger that no reader gets: ``UNDELIVERED``, ``LOST`` or ``UNKNOWN``."""

    fate: EntryFate
    first: int
    last: int


class SkippedEntries:
    """Classifies the skipped entries of one topic. Thread-safe.

    Asks the broker about each entry of a run. Unless all of them are undelivered, a second reader begins at the run's
    first entry. Entries that it doesn't get either are classified by the broker's answers. After a lost entry a broker
    also skips entries that it has; a reader that begins at them gets them.

    Args:
        topic: its name, for errors.
        fate_of: queries the broker's admin interface about one entry.
        asked_max: number of leading entries of a run to query; the others are unknown.
        open_reader: opens a reader of the topic at a position.
        clock: of waits.
    """

    def __init__(
        self,
        topic: str,
        *,
        fate_of: Callable[[Position], EntryFate],
        asked_max: int,
        open_reader: Callable[[Position], Consumer],
        clock: Clock,
    ) -> None:
        self._topic, self._fate_of, self._open_reader, self._clock = topic, fate_of, open_reader, clock
        self._asked_max = asked_max

    def look(self, ledger_id: int, first: int, last: int, following: Position) -> list[NotGiven]:
        """The beginning of a run that no reader gets, in pieces of one fate each, ascending.

        Read the rest of the run, if any, from its first entry on.

        Args:
            ledger_id, first, last: entries that the broker lists and didn't deliver.
            following: the next entry that it delivered.

        Raises:
            InconsistentRead: it delivers the first of them to a second reader.
            StoreUnavailable: no response, or it has the first entry and doesn't deliver it: nothing was decided.
        """
        asked = range(first, min(last + 1, first + self._asked_max))
        fates = [self._fate_of(Position(ledger_id, each)) for each in asked]
        if set(fates) == {EntryFate.UNDELIVERED} and asked[-1] == last:
            return [NotGiven(EntryFate.UNDELIVERED, first, last)]
        came = self._read_again(Position(ledger_id, first), following)
        if fates[0] is EntryFate.READABLE:
            raise StoreUnavailable(
                f"{self._topic}: the broker has {ledger_id}:{first}, which is neither a marker nor part of an aborted "
                f"transaction, and goes on at {following} without giving it",
                hint="nothing is given up meanwhile; has the namespace an entry filter that works on readers?",
            )
        if came.ledger_id == ledger_id:
            last = min(last, came.entry_id - 1)
        if EntryFate.READABLE in fates:
            last = min(last, first + fates.index(EntryFate.READABLE) - 1)
        return _pieces(first, last, fates)

    def _read_again(self, first: Position, following: Position) -> Position:
        """The first entry after ``first`` that a second reader gets."""
        reader = self._open_reader(first)
        try:
            deadline_s = self._clock.monotonic_s() + READ_S_MAX
            came = reader.take(READ_S_MAX)
            while not came and (left_s := deadline_s - self._clock.monotonic_s()) > 0:
                came = reader.take(left_s)
        finally:
            reader.close()
        if not came:
            raise StoreUnavailable(f"{self._topic}: the broker gave nothing from {first} on when it was asked again")
        position = came[0].position
        if not first < position <= following:
            raise InconsistentRead(
                f"{self._topic}: the broker went on at {following} after it was asked for {first}, and the second time "
                f"at {position}",
                hint="it is read again from there",
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


#: Cache time of an answer, except for the newest entry, which is always queried.
AGE_S_MAX = 10.0
#: Runs of undelivered entries kept per topic and fate; evicts the oldest ledgers' first, which the manifest has by
#: then.
RUNS_MAX = 100_000

_NO_LEDGER = Position(-1, -1)

#: Ledger -> runs of entries, first and last, ascending.
_Runs = dict[int, list[tuple[int, int]]]


def first_from(infos: Sequence[LedgerInfo], start: Position) -> Position | None:
    """The first listed entry at or after ``start`` that may be delivered, ``None`` if there is none."""
    for info in infos:
        first = start.entry_id if info.ledger_id == start.ledger_id else 0
        if info.ledger_id < start.ledger_id:
            continue
        for begin, end in info.not_given:
            if begin <= first <= end:
                first = end + 1
        if first < info.entries:
            return Position(info.ledger_id, first)
    return None


def newest_of(infos: Sequence[LedgerInfo]) -> Position | None:
    """The newest listed entry."""
    return next((Position(each.ledger_id, each.last_entry_id) for each in reversed(infos) if each.entries), None)


@dataclass(frozen=True, slots=True, eq=False)
class _Answer:
    """The broker's answer: its ledgers, and the newest readable position."""

    asked_s: float
    doubts: int
    internals: TopicInternals
    readable: Position
    closed_before_ms: int


class LedgerList:
    """One topic's ledgers. Thread-safe; calls that query the broker wait for each other.

    Args:
        topic: its name, for errors.
        ask: queries the admin interface for the topic's internal statistics.
        ask_last: queries the broker for the newest entry that it delivers.
        look: classifies entries that are listed and weren't delivered: ``SkippedEntries.look``.
        clock: of ages and times.
    """

    def __init__(
        self,
        topic: str,
        *,
        ask: Callable[[], TopicInternals],
        ask_last: Callable[[], Position | None],
        look: Callable[[int, int, int, Position], Sequence[NotGiven]],
        clock: Clock,
    ) -> None:
        self.topic = topic
        self._ask, self._ask_last, self._look, self._clock = ask, ask_last, look, clock
        self._asking = threading.Lock()
        self._lock = threading.Lock()
        self._answer: _Answer | None = None
        self._doubts = 0
        self._delivered = _NO_LEDGER
        self._runs: dict[EntryFate, _Runs] = {EntryFate.UNDELIVERED: {}, EntryFate.LOST: {}, EntryFate.UNKNOWN: {}}
        self._closed_ms: dict[int, int] = {}
        self._gone: set[int] = set()
        #: The last computed list, its inputs, and the version of what is added to answers.
        self._built: tuple[tuple[_Answer, Position, int], list[LedgerInfo]] | None = None
        self._changes = 0

    def infos(self) -> list[LedgerInfo]:
        """All ledgers, ascending, except those whose hot copies were released.

        A ledger counts as open, with the readable part as its length, until its last entry or a later ledger's was
        readable: entries that aren't readable yet (an undecided transaction) may become so.

        Raises: as the admin interface and the broker.
        """
        return self._shown(self._current())

    def known(self) -> list[LedgerInfo]:
        """The same from the cache, without a query; empty if a query is needed."""
        with self._lock:
            answer = self._answer if self._answer is not None and self._answer.doubts == self._doubts else None
        return [] if answer is None else self._shown(answer)

    def _shown(self, answer: _Answer) -> list[LedgerInfo]:
        with self._lock:
            key = answer, max(answer.readable, self._delivered), self._changes
            if self._built is None or self._built[0] != key:
                infos = [info for info in self._infos(*key[:2]) if info.ledger_id not in self._gone]
                self._built = key, infos
            return list(self._built[1])

    def internals(self) -> TopicInternals:
        """The broker's answer itself, as old as ``infos`` may be."""
        return self._current().internals

    def doubt(self) -> None:
        """Invalidates the cached answer: the next call queries again."""
        with self._lock:
            self._doubts += 1

    def delivered(self, position: Position) -> None:
        """Notes a delivered entry, so that no query is needed for it."""
        with self._lock:
            self._delivered = max(self._delivered, position)

    def gave_up(self, ledger_id: int) -> None:
        """Stops listing a ledger: its hot copy may be deleted at any time."""
        with self._lock:
            self._changes += 1
            self._gone.add(ledger_id)
            for runs in self._runs.values():
                runs.pop(ledger_id, None)
            self._closed_ms.pop(ledger_id, None)

    def follow(self, before: Position | None, begin: Position) -> list[LedgerInfo]:
        """Accounts for the entries between two that a reader got in sequence (``None``: the topic's beginning).

        No reader gets what the broker lists there and didn't deliver; ``infos`` give the reason.

        Returns:
            The closed ledgers from ``before`` on that end before ``begin``.

        Raises:
            Corrupt: the broker delivered an entry that it doesn't list.
            InconsistentRead: it delivers skipped entries to others; read again from ``first_from`` on.
            Errors of the queries: retry.
        """
        if before is not None and before.ledger_id == begin.ledger_id and begin.entry_id == before.entry_id + 1:
            self.delivered(begin)
            return []
        self.doubt()
        answer = self._current()
        with self._lock:
            listed = {
                info.ledger_id: info for info in self._infos(answer, max(answer.readable, self._delivered, begin))
            }
            self._require_listed(before, begin, answer, listed)
            passed = [
                info
                for each, info in listed.items()
                if each <= begin.ledger_id and (before is None or each >= before.ledger_id)
            ]
            runs = [run for info in passed for run in self._unknown(info, before, begin)]
        for ledger_id, first, last in runs:
            pieces = self._look(ledger_id, first, last, begin)
            with self._lock:
                for piece in pieces:
                    self._add(self._runs[piece.fate], ledger_id, piece.first, piece.last)
            if pieces[-1].last < last:
                there = Position(ledger_id, pieces[-1].last + 1)
                raise InconsistentRead(
                    f"{self.topic}: the broker has {there}, and passed over it with the entries before it",
                    hint="it is read again from there",
                )
        with self._lock:
            self._delivered = max(self._delivered, begin)
            return [self._with_runs(info) for info in passed if info.ledger_id < begin.ledger_id]

    def _current(self) -> _Answer:
        with self._asking:
            with self._lock:
                answer, doubts, now_s = self._answer, self._doubts, self._clock.monotonic_s()
            if answer is not None and answer.doubts == doubts and now_s - answer.asked_s < AGE_S_MAX:
                readable = self._ask_last() or _NO_LEDGER
                if readable == answer.readable:
                    return answer
                listed = answer.internals.ledgers.ledgers
                if listed and readable.ledger_id == listed[-1].ledger_id:
                    return self._keep(replace(answer, readable=readable))
            # In this order: what the first lists and the second doesn't reach can't be read now.
            internals = self._ask()
            readable = self._ask_last() or _NO_LEDGER
            created_ms, now_ms = internals.newest_ledger_created_ms, self._clock.now_ms()
            # All but the newest ledger were closed when that was opened, or before.
            closed_ms = now_ms if created_ms is None else min(created_ms, now_ms)
            return self._keep(_Answer(now_s, doubts, internals, readable, closed_ms))

    def _keep(self, answer: _Answer) -> _Answer:
        with self._lock:
            self._answer = answer
        return answer

    def _infos(self, answer: _Answer, readable: Position) -> list[LedgerInfo]:
        """Call with the lock held."""
        internals, found = answer.internals, []
        ledgers = internals.ledgers.ledgers
        for number, ledger in enumerate(ledgers, 1):
            is_newest = number == len(ledgers)
            entries, size_bytes = ledger.entries, ledger.size_bytes
            if is_newest and internals.open_entries > entries:
                entries, size_bytes = internals.open_entries, internals.open_size_bytes
            ledger_id = ledger.ledger_id
            known = entries
            if ledger_id == readable.ledger_id:
                known = readable.entry_id + 1 if is_newest else min(entries, readable.entry_id + 1)
            elif ledger_id > readable.ledger_id:
                known = 0
            closed = known >= entries and (not is_newest or internals.is_terminated)
            if closed:
                self._closed_ms.setdefault(ledger_id, answer.closed_before_ms)
            info = LedgerInfo(
                ledger_id=ledger_id,
                closed=closed,
                entries=known,
                size_bytes=size_bytes * known // entries if entries else 0,
                created_ms=0,
                closed_ms=self._closed_ms[ledger_id] if closed else None,
            )
            found.append(self._with_runs(info))
        return found

    def _with_runs(self, info: LedgerInfo) -> LedgerInfo:
        holes, lost, unconfirmed = (
            tuple(run for run in self._runs[fate].get(info.ledger_id, ()) if run[1] < info.entries)
            for fate in (EntryFate.UNDELIVERED, EntryFate.LOST, EntryFate.UNKNOWN)
        )
        if not (holes or lost or unconfirmed):
            return info
        return replace(info, holes=holes, lost=lost, unconfirmed=unconfirmed)

    def _unknown(self, info: LedgerInfo, before: Position | None, begin: Position) -> Iterator[tuple[int, int, int]]:
        """Ledger, first and last entry of each unaccounted run of one ledger between two entries."""
        ledger_id = info.ledger_id
        first = before.entry_id + 1 if before is not None and ledger_id == before.ledger_id else 0
        end = begin.entry_id if ledger_id == begin.ledger_id else info.entries
        known = sorted(run for runs in self._runs.values() for run in runs.get(ledger_id, ()))
        for run_first, run_last in (*known, (end, end)):
            if first < min(run_first, end):
                yield ledger_id, first, min(run_first, end) - 1
            first = max(first, run_last + 1)

    def _require_listed(
        self, before: Position | None, begin: Position, answer: _Answer, listed: dict[int, LedgerInfo]
    ) -> None:
        hint = "the broker's ids can't be trusted: have the topic moved to another broker (unload), then start again"
        internals = answer.internals
        last = internals.last_confirmed
        confirmed = last is None or begin <= last
        # An earlier ledger may have been deleted since.
        end = listed[begin.ledger_id].entries if begin.ledger_id in listed else 2**63
        beyond = begin.entry_id >= end or begin.ledger_id > max(listed, default=-1)
        if beyond or not confirmed:
            raise Corrupt(f"{self.topic}: the broker gave {begin}, which it doesn't list", hint=hint)
        own = None if before is None or before.ledger_id == begin.ledger_id else listed.get(before.ledger_id)
        if before is not None and own is not None and own.last_entry_id < before.entry_id:
            end = own.last_entry_id
            raise Corrupt(f"{self.topic}: the broker gave {before} of a ledger that it says ends at {end}", hint=hint)

    def _add(self, kind: _Runs, ledger_id: int, first: int, last: int) -> None:
        """Adds a run, merged with adjacent ones."""
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
