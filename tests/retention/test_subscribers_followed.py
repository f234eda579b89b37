"""Mirrored subscribers as values; positions of a stream near given ones."""

from __future__ import annotations

from uuid import UUID

from formats.entries import Position
from offloader.ledgers.base import LedgerInfo
from offloader.manifest.state import ManifestState
from offloader.retention.cuts import StreamCut, partition_segment
from offloader.retention.entries import PartitionEntries, StreamEntries
from offloader.retention.subscribers import Followed, Registry, followed


def ledger(ledger_id: int, entries: int, *, closed: bool = True) -> LedgerInfo:
    return LedgerInfo(ledger_id=ledger_id, closed=closed, entries=entries, size_bytes=10 * entries, created_ms=0)


NOTHING_OFFLOADED = ManifestState(stream="hot", incarnation=UUID(int=0))
ENTRIES = PartitionEntries(NOTHING_OFFLOADED, [ledger(3, 5), ledger(7, 0), ledger(9, 4, closed=False)])
OWN = StreamEntries({0: ENTRIES})


def at(ledger_id: int, entry_id: int) -> StreamCut:
    return StreamCut({partition_segment(0): Position(ledger_id, entry_id)})


def test_the_place_at_or_before_a_position_of_others() -> None:
    cases = {
        (1, 5): None,
        (3, 0): (3, 0),
        (3, 4): (3, 4),
        (3, 5): (3, 5),
        (3, 99): (3, 5),
        (5, 0): (3, 5),
        (7, 0): (3, 5),
        (9, 2): (9, 2),
        (9, 4): (9, 4),
        (12, 0): (9, 4),
    }
    for given, wanted in cases.items():
        found = ENTRIES.at_or_before(Position(*given))
        assert found == (None if wanted is None else Position(*wanted)), given
        if found is not None:
            assert ENTRIES.problem(found) == ""
            assert found <= Position(*given)
    assert PartitionEntries(NOTHING_OFFLOADED, []).at_or_before(Position(1, 1)) is None


def follow(registry: Registry, now_ms: int, renew_ms: int | None = None, **wanted: tuple[StreamCut, bool]) -> Registry:
    given = {name: Followed(*each) for name, each in wanted.items()}
    return followed(registry, given, (), OWN, now_ms=now_ms, renew_ms=renew_ms)


def test_moved_subscriber_is_published_and_others_stay() -> None:
    registry = follow(Registry(), 1000, a=(at(3, 1), False), b=(at(3, 5), True))
    assert {name: each.cut for name, each in registry.subscribers.items()} == {"a": at(3, 1), "b": at(3, 5)}
    # The end of a ledger and the beginning of the next one are the same place.
    assert follow(registry, 5000, a=(at(3, 1), False), b=(at(9, 0), True)) == registry
    moved = follow(registry, 5000, a=(at(3, 2), False))
    assert (moved.subscribers["a"].cut, moved.subscribers["a"].updated_ms) == (at(3, 2), 5000)
    assert moved.subscribers["b"] == registry.subscribers["b"]


def test_subscribers_are_renewed_when_their_last_activity_is_old() -> None:
    registry = follow(Registry(), 0, a=(at(3, 1), True), b=(at(3, 1), False))
    later = follow(registry, 10_000, 10_000, a=(at(3, 1), True), b=(at(3, 1), False))
    assert later == registry
    later = follow(registry, 10_001, 10_000, a=(at(3, 1), True), b=(at(3, 1), False))
    assert {name: each.active_ms for name, each in later.subscribers.items()} == {"a": 10_001, "b": 0}


def test_subscriber_that_moves_back_is_registered_under_a_new_generation() -> None:
    registry = follow(Registry(), 0, a=(at(9, 2), True))
    back = follow(registry, 10, a=(at(3, 0), True))
    assert (back.subscribers["a"].cut, back.subscribers["a"].generation) == (at(3, 0), 1)
    assert follow(back, 20, a=(at(9, 3), True)).subscribers["a"].generation == 1


def test_invalid_cut_changes_nothing_and_removed_subscribers_are_forgotten() -> None:
    registry = follow(Registry(), 0, a=(at(3, 2), True), b=(at(3, 2), True))
    assert follow(registry, 5, a=(at(99, 0), True)).subscribers["a"] == registry.subscribers["a"]
    left = followed(registry, {}, ["b", "nobody"], OWN, now_ms=9, renew_ms=None)
    assert left.names() == ["a"]
