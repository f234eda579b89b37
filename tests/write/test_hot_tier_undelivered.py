"""Entries that a source stores and never delivers are recorded as gaps under any policy.

Lost and unexplained entries are recorded by policy, and their ledgers stay in the hot tier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formats.entries import EntryBatch, Position
from formats.summary import Layout
from offloader.coverage import GapReason
from offloader.errors import CorruptError
from offloader.ledgers.base import ClosedListener, LedgerInfo, Listener, Subscription
from offloader.ledgers.tail_buffer import Listeners
from offloader.manifest.log import load_manifest
from offloader.runtime.clock import SystemClock
from offloader.settings import Duration, OffloadSettings, Settings, Size
from offloader.store.memory import MemoryStore
from offloader.write.hot_tier import proven_gap
from offloader.write.offloader import LedgerOffloader
from tests.support.readback import stored_entries

STREAM = "public/default/persistent/marked"
SETTINGS = Settings(offload=OffloadSettings(on_gap="block", deletion_lag=Duration("0m"), block_size=Size(1024)))
SIZE = 40
_names = count()

#: Ledgers, oldest first; each a list of entries, False: nobody ever gets it.
Layouts = Sequence[Sequence[bool]]


class MarkedLedgers:
    """A ``LedgerSource`` over entries of which some aren't given; the last ledger is open.

    Args:
        fates: fields of ``LedgerInfo`` that name them, in turns.
    """

    def __init__(self, layout: Layouts, *fates: str) -> None:
        self._fates = fates or ("undelivered",)
        self._ledgers = {7 * number: list(entries) for number, entries in enumerate(layout, 1)}
        self._listeners = Listeners(STREAM)
        self.released: Position | None = None
        self.deleted: list[int] = []

    def given(self) -> list[tuple[Position, bytes]]:
        return [
            (Position(ledger_id, entry_id), payload(entry_id))
            for ledger_id, entries in self._ledgers.items()
            for entry_id, is_given in enumerate(entries)
            if is_given
        ]

    def markers(self) -> list[Position]:
        """Between two entries that are given."""
        positions = [position for position, _ in self.given()]
        return [
            Position(ledger_id, entry_id)
            for ledger_id, entries in self._ledgers.items()
            for entry_id, is_given in enumerate(entries)
            if not is_given and positions and positions[0] < Position(ledger_id, entry_id) < positions[-1]
        ]

    def ledgers(self) -> list[LedgerInfo]:
        newest = max((position for position, _ in self.given()), default=Position(-1, -1))
        return [self._info(ledger_id, entries, newest) for ledger_id, entries in self._ledgers.items()]

    def _info(self, ledger_id: int, entries: list[bool], newest: Position) -> LedgerInfo:
        # What is behind the newest entry may be given yet.
        known = len(entries) if ledger_id < newest.ledger_id else newest.entry_id + 1
        known = 0 if ledger_id > newest.ledger_id else known
        is_closed = ledger_id < newest.ledger_id
        runs: dict[str, Any] = {
            fate: tuple((each, each) for each in range(known) if not entries[each] and self.fate_of(each) == fate)
            for fate in self._fates
        }
        return LedgerInfo(
            ledger_id=ledger_id,
            closed=is_closed,
            entries=known,
            size_bytes=SIZE * known,
            created_ms=1,
            closed_ms=1 if is_closed else None,
            **runs,
        )

    def fate_of(self, entry_id: int) -> str:
        return self._fates[entry_id % len(self._fates)]

    def doubtful(self) -> list[int]:
        """Closed ledgers of which something was lost, or may be."""
        return [info.ledger_id for info in self.ledgers() if info.closed and info.not_given != info.undelivered]

    def read(self, start: Position, max_bytes: int) -> EntryBatch | None:
        left = [position for position, _ in self.given() if position >= start]
        run = [each for n, each in enumerate(left) if each == Position(left[0].ledger_id, left[0].entry_id + n)]
        run = run[: max(1, max_bytes // SIZE)]
        return batch(run) if run else None

    def tell(self) -> None:
        """As if everything were appended now."""
        at = Position(0, 0)
        told = self.ledgers()
        while (found := self.read(at, 10**9)) is not None:
            while told and told[0].ledger_id < found.ledger_id:
                self._listeners.tell_closed(told.pop(0))
            self._listeners.tell(found)
            at = Position(found.ledger_id, found.last.entry_id + 1)

    def subscribe(self, listener: Listener | None, closed: ClosedListener | None = None) -> Subscription:
        return self._listeners.add(listener, closed)

    def release(self, position: Position) -> None:
        self.released = position

    def delete(self, ledger_id: int) -> None:
        self.deleted.append(ledger_id)


def new_store() -> MemoryStore:
    return MemoryStore(f"undelivered-{next(_names)}", "", SystemClock())


def payload(entry_id: int) -> bytes:
    return b"%d" % entry_id * SIZE


def batch(run: Sequence[Position]) -> EntryBatch:
    return EntryBatch.build(run[0].ledger_id, run[0].entry_id, [payload(each.entry_id) for each in run])


layouts = st.lists(st.lists(st.booleans(), min_size=1, max_size=6), min_size=1, max_size=4)


REASONS = {"undelivered": GapReason.UNDELIVERED, "lost": GapReason.LOST, "unconfirmed": GapReason.UNCONFIRMED}


def require_whole(store: MemoryStore, source: MarkedLedgers) -> None:
    state = load_manifest(store, STREAM)
    assert stored_entries(store, STREAM) == source.given()
    assert state.committed_end() == source.given()[-1][0]
    recorded = {
        Position(gap.first.ledger_id, entry_id)
        for gap in state.gaps
        for entry_id in range(gap.first.entry_id, gap.last.entry_id + 1)
    }
    assert set(source.markers()) <= recorded
    assert not recorded & {position for position, _ in source.given()}
    for gap in state.gaps:
        for entry_id in range(gap.first.entry_id, gap.last.entry_id + 1):
            assert gap.reason == REASONS[source.fate_of(entry_id)]


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(layout=layouts, segment_bytes=st.sampled_from([60, 10**6]))
@pytest.mark.parametrize("when", ["before", "after"])
def test_streaming_skips_undelivered_entries(layout: Layouts, segment_bytes: int, when: str) -> None:
    source = MarkedLedgers(layout)
    if not source.given():
        return
    # Few bytes a segment: what is there already is a run over history; many: the stream reads it itself.
    sizes = replace(SETTINGS.offload, segment_size_max=Size(segment_bytes))
    store = new_store()
    offloader = LedgerOffloader(store, replace(SETTINGS, offload=sizes))
    if when == "after":
        listing, source.ledgers = source.ledgers, list  # type: ignore[method-assign]
    stream = offloader.offload_stream(source, STREAM)
    if when == "after":
        source.ledgers = listing  # type: ignore[method-assign]
        source.tell()
    stream.offload()
    require_whole(store, source)
    released = offloader.history.hot_release(source, STREAM).look()
    stream.stop()
    offloader.close()
    assert released.errors == []
    assert released.deleted == [info.ledger_id for info in source.ledgers() if info.closed]
    assert source.released == source.given()[-1][0]


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(layout=layouts)
def test_ledger_method_writes_complete_ledgers_as_v1_and_others_in_pieces(layout: Layouts) -> None:
    source = MarkedLedgers(layout)
    store = new_store()
    offloader = LedgerOffloader(store, SETTINGS)
    result = offloader.history.ledgers(source, STREAM)
    offloader.close()
    assert result.errors == []
    closed = [info for info in source.ledgers() if info.closed]
    whole = [info.ledger_id for info in closed if not info.undelivered]
    assert [s.begin.ledger_id for _, s in result.offloaded if s.layout is Layout.V1] == whole
    given = [each for each in source.given() if any(each[0].ledger_id == info.ledger_id for info in closed)]
    if given:
        assert stored_entries(store, STREAM) == given


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(layout=layouts, segment_bytes=st.sampled_from([60, 10**6]))
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("fates", "releases"),
    [(("lost",), False), (("lost",), True), (("unconfirmed",), False), (("undelivered", "lost", "unconfirmed"), False)],
)
def test_lost_entries_are_recorded_by_policy(
    layout: Layouts, segment_bytes: int, when: str, fates: Sequence[str], releases: bool
) -> None:
    source = MarkedLedgers(layout, *fates)
    if not source.given():
        return
    sizes = replace(
        SETTINGS.offload,
        segment_size_max=Size(segment_bytes),
        on_gap="record",
        release_with_gaps=releases,
    )
    store = new_store()
    offloader = LedgerOffloader(store, replace(SETTINGS, offload=sizes))
    listing = source.ledgers
    if when == "after":
        source.ledgers = list  # type: ignore[method-assign]
    stream = offloader.offload_stream(source, STREAM)
    source.ledgers = listing  # type: ignore[method-assign]
    if when == "after":
        source.tell()
    stream.offload()
    require_whole(store, source)
    released = offloader.history.hot_release(source, STREAM).look()
    stream.stop()
    offloader.close()
    kept = [] if releases else source.doubtful()
    assert source.deleted == [info.ledger_id for info in source.ledgers() if info.closed and info.ledger_id not in kept]
    said = [str(error) for error in released.errors]
    assert len(said) == bool(kept)
    assert all(f"ledger {kept[0]} has a gap" in each for each in said)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("fate", "said"), [("lost", "lost by the source: .*restore the hot tier"), ("unconfirmed", "unconfirmed: .*doctor")]
)
def test_lost_entries_stop_a_stream_with_policy_block(when: str, fate: str, said: str) -> None:
    source = MarkedLedgers([[True, True, False, True], [True]], fate)
    store = new_store()
    offloader = LedgerOffloader(store, SETTINGS)
    listing = source.ledgers
    if when == "after":
        source.ledgers = list  # type: ignore[method-assign]
    stream = offloader.offload_stream(source, STREAM)
    source.ledgers = listing  # type: ignore[method-assign]
    if when == "after":
        source.tell()
    with pytest.raises(CorruptError, match=f"entries 7:2 up to 7:2 are missing: {said}"):
        stream.offload()
    released = offloader.history.hot_release(source, STREAM).look()
    offloader.close()
    state = load_manifest(store, STREAM)
    assert stored_entries(store, STREAM) == source.given()[:2]
    assert (state.gaps, released.deleted) == ((), [])


def test_only_entries_reported_as_undelivered_are_a_delivery_gap() -> None:
    info = LedgerInfo(ledger_id=3, closed=True, entries=9, size_bytes=0, created_ms=0, undelivered=((5, 6),))
    assert proven_gap(Position(3, 4), Position(3, 8), [info]) is not None
    assert proven_gap(Position(3, 3), Position(3, 7), [info]) is None
    after = LedgerInfo(ledger_id=4, closed=False, entries=9, size_bytes=0, created_ms=0, undelivered=((0, 1),))
    assert proven_gap(Position(3, 8), Position(4, 2), [replace(info, closed=False), after]) is None
    gap = proven_gap(Position(3, 8), Position(4, 2), [info, after])
    assert gap is not None
    assert (gap.first, gap.last) == (Position(4, 0), Position(4, 1))
    lost = proven_gap(Position(2, 8), Position(4, 2), [after])
    assert lost is not None
    assert (lost.first, lost.last) == (Position(2, 9), Position(4, -1))
    assert lost.reason != GapReason.UNDELIVERED
