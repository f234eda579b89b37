"""A stream whose later ledgers were offloaded first: older ones are added in front, and the end never moves back."""

from __future__ import annotations

from itertools import count

import pytest

from formats.entries import Position
from offloader.errors import StoreUnavailableError
from offloader.ledgers.base import LedgerInfo
from offloader.manifest.log import load_manifest
from offloader.read.reader import open_stream_reader
from offloader.settings import Settings
from offloader.store.memory import MemoryStore
from offloader.testing.faulty_store import Fault, FaultyStore
from offloader.testing.manual_clock import ManualClock
from offloader.testing.memory_ledgers import MemoryLedgers
from offloader.write.hot_release import releasable_ledgers
from offloader.write.offloader import LedgerOffloader

STREAM = "public/default/persistent/orders"
_names = count()


class _LaterOnly(MemoryLedgers):
    """A hot tier that doesn't list its first ledger yet."""

    shows_all = False

    def ledgers(self) -> list[LedgerInfo]:
        return super().ledgers() if self.shows_all else super().ledgers()[1:]


@pytest.mark.slow
def test_history_in_front_is_offloaded_and_promised_segments_stay() -> None:
    clock = ManualClock()
    store = FaultyStore(MemoryStore(f"front-{next(_names)}", "", clock))
    ledgers = _LaterOnly(STREAM, clock)
    for number in range(3):
        ledgers.append([b"%d" % number * 100] * 10)
        ledgers.close_ledger()
    infos = MemoryLedgers.ledgers(ledgers)
    first, last = Position(infos[0].ledger_id, 0), Position(infos[2].ledger_id, 9)
    later = Position(infos[1].ledger_id, 0)
    offloader = LedgerOffloader(store, Settings.of({"offload": {"on_gap": "block"}}), clock=clock)
    try:
        assert offloader.history.backfill(ledgers, STREAM).committed == last
        assert ledgers.released == last, "of a ledger that nobody lists nothing can be missing"
        ledgers.shows_all = True

        # The older ledger is assigned, and its upload fails for good: a half-done run.
        store.set_faults([Fault(verb="put", key_part=f"{STREAM}/", but="/manifest/", call=1, calls=10**6)])
        result = offloader.history.backfill(ledgers, STREAM)
        assert [type(error) for error in result.errors] == [StoreUnavailableError]
        store.set_faults([])
        assert [segment.begin for segment in load_manifest(store, STREAM).assigned()] == [first]
        _require_later_only(store, ledgers, later, last)

        assert offloader.history.backfill(ledgers, STREAM).committed == last
        with open_stream_reader(store, STREAM) as reader:
            assert (reader.first_position, reader.last_position) == (first, last)
            assert len(reader.read(first, last)) == 30
    finally:
        offloader.close()


def _require_later_only(store: FaultyStore, ledgers: _LaterOnly, later: Position, last: Position) -> None:
    state = load_manifest(store, STREAM)
    assert state.committed_end() == last
    held = releasable_ledgers(state, ledgers.ledgers(), now_ms=10**15, lag_ms=0)
    assert [info.ledger_id for info in held] == [info.ledger_id for info in ledgers.ledgers()[1:]]
    with open_stream_reader(store, STREAM) as reader:
        assert (reader.first_position, reader.last_position) == (later, last)
