"""Read the entries of one ledger from segments and fills, in order, for brokers and exports."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from uuid import UUID

from formats.entries import EntryBatch, Position
from formats.manifest import GapFilled
from offloader.errors import OffloaderError
from offloader.manifest.state import ManifestState
from offloader.read.cold import read_fill
from offloader.read.fetch import Cache, Fetcher
from offloader.read.ledger_plan import CHUNK_BYTES, LedgerIncompleteError, LedgerStanding, fill_runs
from offloader.read.reader import Reader
from offloader.settings import Pairs, ReadSettings
from offloader.store.base import ObjectStore

#: Entries of a range up to this size are read through the cache.
CACHED_BYTES_MAX = 2 * CHUNK_BYTES


class LedgerEntries:
    """Reads whole ledgers of one store, including entries that stream readers don't receive. Thread-safe.

    Args:
        settings: the read settings; ``read_priority`` has no effect.
        cache: for fills and short ranges.
        relocate_of: ``read.relocate`` of a stream; default: that of ``settings``.
    """

    def __init__(
        self,
        store: ObjectStore,
        settings: ReadSettings,
        cache: Cache,
        relocate_of: Callable[[str], Pairs] | None = None,
    ) -> None:
        self._store, self._settings, self._cache = store, settings, cache
        self._relocate_of = relocate_of or (lambda _: settings.relocate)

    def batches(
        self,
        state: ManifestState,
        standing: LedgerStanding,
        first: int,
        last: int,
        *,
        on_hits: Callable[[int], object] = lambda _: None,
    ) -> Iterator[EntryBatch]:
        """The entries from ``first`` to ``last``, in order, without a hole.

        Args:
            on_hits: called with the number of blocks and indexes found in memory, for each part of the range.

        Raises:
            LedgerIncompleteError: an entry is missing before the next one; a hole is never skipped.
            OffloaderError: as ``Reader.scan`` and ``read_fill``.
        """
        return _contiguous(state.stream, self._batches(state, standing, first, last, on_hits), first, last)

    def _batches(
        self, state: ManifestState, standing: LedgerStanding, first: int, last: int, on_hits: Callable[[int], object]
    ) -> Iterator[EntryBatch]:
        ledger_id = standing.ledger_id
        filled = [(low, high, fill) for fill in standing.fills for low, high in fill_runs(state, fill)]
        at, decoded = first, dict[UUID, EntryBatch]()
        for low, high, fill in filled:
            if high < at or low > last:
                continue
            if low > at:
                yield from self._cold(state, standing, at, low - 1, on_hits)
            if fill.uuid not in decoded:
                decoded = {fill.uuid: self._fill(state.stream, fill)}
            at = min(high, last) + 1
            yield decoded[fill.uuid].between(Position(ledger_id, max(low, first)), Position(ledger_id, at - 1))
        if at <= last:
            yield from self._cold(state, standing, at, last, on_hits)

    def _fill(self, stream: str, fill: GapFilled) -> EntryBatch:
        """The entries of a fill, through the cache."""
        found: EntryBatch = self._cache.get(
            ("fill", stream, fill.uuid), partial(read_fill, self._store, stream, fill), lambda _: fill.object_bytes
        )
        return found

    def _cold(
        self, state: ManifestState, standing: LedgerStanding, first: int, last: int, on_hits: Callable[[int], object]
    ) -> Iterator[EntryBatch]:
        """Entries in segments."""
        ends = Position(standing.ledger_id, first), Position(standing.ledger_id, last)
        settings = replace(self._settings, relocate=self._relocate_of(state.stream))
        fetcher = Fetcher(self._store, settings, cache=self._cache)
        reader = Reader(fetcher, state)
        about_bytes = standing.payload_bytes * (last - first + 1) // standing.entries
        if about_bytes <= CACHED_BYTES_MAX:
            batches = reader.read(*ends).batches
            on_hits(fetcher.hits)
            yield from batches
            return
        with closing(reader.scan(*ends)) as scanned:
            yield from scanned


def _contiguous(stream: str, batches: Iterator[EntryBatch], first: int, last: int) -> Iterator[EntryBatch]:
    """The batches; raises ``LedgerIncompleteError`` where an entry is missing."""
    expected = first
    for batch in batches:
        ids = batch.entry_ids
        if not len(ids):
            continue
        if int(ids[0]) != expected or int(ids[-1]) - expected != len(ids) - 1:
            raise _hole(stream, batch.ledger_id, expected, int(ids[0]))
        expected = int(ids[-1]) + 1
        yield batch
    if expected != last + 1:
        raise _hole(stream, -1, expected, last + 1)


def _hole(stream: str, ledger_id: int, expected: int, found: int) -> OffloaderError:
    return LedgerIncompleteError(
        f"stream {stream}, ledger {ledger_id}: expected entry {expected}, found {found}",
        hint="run `offloader verify` to find the damaged segment; the entry is not skipped",
    )
