"""Read a stream from both tiers: recent ledgers from the hot tier, older ones from the object store."""

from __future__ import annotations

from collections.abc import Iterator

from formats.entries import EntryBatch, Position
from offloader.errors import NotFound, Trimmed
from offloader.ledgers.base import LedgerSource
from offloader.manifest.log import load_manifest
from offloader.manifest.state import ManifestState
from offloader.read.cold import ColdTier, SkipMissing, first_at
from offloader.read.fetch import Fetcher

__all__ = ["TieredReader"]


class TieredReader:
    """Both tiers of one stream; the cold one is pinned to one manifest version. Thread-safe.

    Args:
        fetcher: reads the store.
        state: the manifest's view.
        source: the hot tier; ``None``: only the cold one.
        skip_missing: as for ``ColdTier``.

    Attributes:
        cold: the cold tier.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        state: ManifestState,
        source: LedgerSource | None = None,
        skip_missing: SkipMissing | None = None,
    ) -> None:
        self._fetcher = fetcher
        self._state = state
        self._source = source
        self._skip_missing = skip_missing
        self.cold = self._cold_tier(state)

    def first_position(self) -> Position | None:
        """The first readable position; ``None`` when there is no entry."""
        if self.cold.ends is not None:
            return self.cold.ends[0]
        return None if self._source is None else _first_of(self._source, self._state.head)

    def last_position(self) -> Position | None:
        """The last readable position: the committed end, or the hot tier's last entry; ``None``: no entry."""
        hot = None if self._source is None else _last_of(self._source)
        cold = None if self.cold.ends is None else self.cold.ends[1]
        return max((each for each in (hot, cold) if each is not None), default=None)

    def cached(self, first: Position, last: Position) -> list[EntryBatch] | None:
        """A short range of the cold tier through the cache; ``None`` if it isn't short or cold."""
        ends = self.cold.ends
        if ends is None or last > ends[1] or self.prefers_hot:
            return None
        return self.cold.cached(first, last)

    def count(self, first: Position, last: Position) -> int:
        """Number of entries from ``first`` to ``last``; see ``Reader.count``."""
        total, ends = 0, self.cold.ends
        if ends is not None and first <= ends[1]:
            total += self.cold.count(first, min(last, ends[1]))
            first = ends[1].next()
        if self._source is not None and first <= last:
            total += sum(map(len, self._hot(self._source, first, last)))
        return total

    def position_at(self, publish_time_ms: int) -> Position | None:
        """The earliest position published then or later; see ``Reader.position_at``."""
        position = self.cold.position_at(publish_time_ms)
        if position is not None:
            return position
        start = Position(0, 0) if self.cold.ends is None else self.cold.ends[1].next()
        last = None if self._source is None else _last_of(self._source)
        if last is not None and start <= last:
            for batch in self.batches(start, last):
                position = first_at(batch, publish_time_ms)
                if position is not None:
                    return position
        return None

    def batches(self, first: Position, last: Position) -> Iterator[EntryBatch]:
        """Entries from both tiers, one batch per block or hot read."""
        if self._source is not None and self.prefers_hot:
            yield from self._hot_first(self._source, first, last)
            return
        ends = self.cold.ends
        if ends is not None and first <= ends[1]:
            yield from self.cold.batches(first, min(last, ends[1]))
            first = ends[1].next()
        if self._source is not None and first <= last:
            yield from self._hot(self._source, first, last)

    def _hot(self, source: LedgerSource, first: Position, last: Position) -> Iterator[EntryBatch]:
        """Entries after the pinned committed end. Those released by the hot tier since then come from the cold tier."""
        expected = first
        while expected <= last:
            batch = source.read(expected, self._fetcher.settings.batch_bytes)
            if batch is None or batch.first != expected:
                # Either the next ledger or a gap. Entries are released from the hot tier only after the manifest has
                # them, so a manifest loaded after this read decides.
                state = self._newest_or_pinned()
                end = state.committed_end()
                if end is not None and expected <= end:
                    self._require_kept(state, expected)
                    yield from self._cold_tier(state).batches(expected, min(end, last))
                    expected = end.next()
                    continue
            if batch is None:
                return
            part = batch.between(expected, last)
            if len(part):
                yield part
            expected = batch.last.next()

    @property
    def prefers_hot(self) -> bool:
        """Whether entries that both tiers have are read from the hot one."""
        return self._source is not None and self._fetcher.settings.read_priority == "bookkeeper-first"

    def _hot_first(self, source: LedgerSource, first: Position, last: Position) -> Iterator[EntryBatch]:
        """Entries from the hot tier as far as it has them, the rest from the cold tier."""
        expected = first
        while expected <= last:
            batch = source.read(expected, self._fetcher.settings.batch_bytes)
            before = expected.previous()
            if batch is None or not (batch.first == expected or self._state.follows(before, batch.first)):
                # Either the end of a ledger, or one that the hot tier released, possibly just now.
                until = last if batch is None else min(last, Position(batch.ledger_id, batch.first.entry_id - 1))
                yield from self._cold_between(expected, until)
            if batch is None:
                return
            part = batch.between(expected, last)
            if len(part):
                yield part
            expected = batch.last.next()

    def _cold_between(self, first: Position, last: Position) -> Iterator[EntryBatch]:
        """Cold-tier entries of a range that the hot tier doesn't have."""
        cold = self.cold
        if cold.ends is None or last > cold.ends[1]:
            state = self._newest_or_pinned()
            cold = self._cold_tier(state)
            if cold.ends is not None and first <= cold.ends[1]:
                self._require_kept(state, first)
        if cold.ends is not None and first <= min(last, cold.ends[1]):
            yield from cold.batches(first, min(last, cold.ends[1]))

    def _newest_or_pinned(self) -> ManifestState:
        try:
            return load_manifest(self._fetcher.store, self._state.stream)
        except NotFound:
            return self._state  # no segment is offloaded yet

    def _require_kept(self, state: ManifestState, position: Position) -> None:
        begin = state.first_position()
        if begin is None or position < begin:
            raise Trimmed(
                f"stream {self._state.stream}: position {position} was deleted while it was read; the stream begins at "
                f"{begin or 'nothing'} now",
                first_available=begin,
                hint="open the stream anew",
            )

    def _cold_tier(self, state: ManifestState) -> ColdTier:
        return ColdTier(self._fetcher, state, self._skip_missing)


def _first_of(source: LedgerSource, head: Position | None) -> Position | None:
    """The first entry at or after the start position."""
    start = Position(0, 0) if head is None else head
    found = (info for info in source.ledgers() if Position(info.ledger_id, info.last_entry_id) >= start)
    return next((max(start, Position(info.ledger_id, 0)) for info in found if info.entries), None)


def _last_of(source: LedgerSource) -> Position | None:
    filled = [info for info in source.ledgers() if info.entries]
    return Position(filled[-1].ledger_id, filled[-1].last_entry_id) if filled else None
