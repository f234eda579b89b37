"""The interleaving that each rule of the protocol prevents, request by request.

After the counterexamples of the protocol's model: without the rule named, the schedule below ends in loss. A is an
owner, B another one, K checkpoints and deletes old records, R reads, D deletes the stream, C creates it again.
"""

from __future__ import annotations

import contextlib
import os
from itertools import count
from uuid import UUID

import pytest

from formats.entries import Position
from formats.keys import record_key, record_number
from formats.manifest import Assign, Failed, LedgerClosed, LedgersDeleted, OpenEpoch, Truncate, decode_record
from offloader.errors import FencedError, InvalidCallError, NotFoundError, OutcomeUnknownError, StoreUnavailableError
from offloader.manifest.boundary import read_boundary
from offloader.manifest.checkpoint import checkpoint_now
from offloader.manifest.log import UNKNOWN_REPEATS_MAX, ManifestLog, load_manifest
from offloader.manifest.maintenance import delete_stream, expire_records
from offloader.manifest.state import EditRefusedError, ManifestState
from offloader.settings import ManifestSettings
from offloader.store.base import ObjectStore
from offloader.store.memory import MemoryStore
from offloader.testing.manual_clock import ManualClock
from tests.support.manifests import segment_edits, uuid_of
from tests.support.schedule import Fate, Schedule

STREAM = "public/default/persistent/orders"
HOURS_24_S = 24 * 3600.0
#: One request after the other: a schedule has one order.
SETTINGS = ManifestSettings(checkpoint_records=10**5, record_requests_max=1)
_names = count()


class World:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(f"interleavings-{next(_names)}", "", self.clock)
        self.schedule = Schedule(self.store)

    def log(self, store: ObjectStore | None = None) -> ManifestLog:
        return ManifestLog(store or self.store, STREAM, clock=self.clock, settings=SETTINGS)

    def owner(self, *, commits: int = 0) -> ManifestLog:
        """An owner whose requests aren't scheduled; give its log to an actor with ``through``."""
        log = self.log()
        log.open_epoch()
        for number in range(commits):
            log.commit([LedgerClosed(100 + number, 9)])
        return log

    def start_commit(self, name: str, log: ManifestLog, *edits: object) -> None:
        def run(store: ObjectStore) -> ManifestState:
            log.store = store
            return log.commit(edits)  # type: ignore[arg-type]

        self.schedule.start(name, run)

    def checkpoint_and_delete(self) -> None:
        """K, without a pause: folds everything, then deletes the records, which are a day old by then."""
        checkpoint_now(self.store, load_manifest(self.store, STREAM), os.urandom)
        self.clock.advance(HOURS_24_S + 1)
        expire_records(self.store, load_manifest(self.store, STREAM), clock=self.clock, settings=SETTINGS)

    def records(self, log: ManifestLog) -> dict[int, tuple[object, ...]]:
        """Number -> edits of the records that are there."""
        prefix = record_key(STREAM, log.state.incarnation, 0)[:-25]
        found = [(info.key, record_number(info.key)) for info in self.store.list(prefix).objects]
        return {n: decode_record(self.store.get(key)[0]).edits for key, n in found if n is not None}


LATE = LedgerClosed(1, 9)


def test_get_boundary_writer_winning_a_deleted_number_does_not_act() -> None:
    """B loads and pauses; A commits, K folds and deletes; B creates the number again and has won nothing."""
    world = World()
    b = world.owner()
    world.start_commit("B", b, LATE)
    assert world.schedule.pending("B") == ("put", record_key(STREAM, b.state.incarnation, 2))
    a = world.owner(commits=3)
    world.checkpoint_and_delete()
    assert 2 not in world.records(a)

    assert world.schedule.step("B")[0] == "put"

    assert 2 in world.records(a), "the store let it create the number"
    with pytest.raises(FencedError):
        world.schedule.finish("B")
    assert 1 not in load_manifest(world.store, STREAM).closed_ledgers


def test_get_boundary_finds_number_deleted_between_put_and_look() -> None:
    """A's record counts: it was folded. The boundary alone is ambiguous, so A has to load and compare."""
    world = World()
    a = world.owner()
    world.start_commit("A", a, Assign(uuid_of(1), 2, Position(1, 0), None, 5, {}))
    world.schedule.step("A")
    world.checkpoint_and_delete()

    state = world.schedule.finish("A")

    assert [segment.uuid for segment in state.assigned()] == [uuid_of(1)]
    assert state.record_id == 2


@pytest.mark.slow
@pytest.mark.parametrize("stop_before", range(1, 9))
def test_reread_boundary_overtaken_load_starts_over(stop_before: int) -> None:
    """R reads the boundary and pauses; K deletes the tail; R finds no record and would believe an old head."""
    world = World()
    a = world.owner(commits=3)
    world.schedule.start("R", lambda store: load_manifest(store, STREAM))
    for _ in range(stop_before - 1):
        if world.schedule.pending("R") is not None:
            world.schedule.step("R")
    if world.schedule.pending("R") is None:
        pytest.fail("R was over before")
    a.commit([LATE])
    world.checkpoint_and_delete()

    assert world.schedule.finish("R") == a.state


@pytest.mark.slow
@pytest.mark.parametrize("stop_before", range(2, 9))
def test_load_never_folds_a_record_deleted_and_created_again(stop_before: int) -> None:
    """As before, and a stalled writer B puts a record of its own under a number that R is about to read."""
    world = World()
    b = world.owner()
    world.start_commit("B", b, Assign(uuid_of(7), 2, Position(1, 0), None, 5, {}))
    a = world.owner(commits=2)
    world.schedule.start("R", lambda store: load_manifest(store, STREAM))
    for _ in range(stop_before - 1):
        world.schedule.step("R")
    world.checkpoint_and_delete()
    world.schedule.step("B")
    assert 2 in world.records(a)

    state = world.schedule.finish("R")

    assert state == a.state
    assert state.assigned() == []


def test_repeat_identical_late_record_of_a_writer_is_its_own() -> None:
    """A's record is in flight, a read returns 404. If A dropped its edits, the record would land without its object."""
    world = World()
    a = world.owner()
    world.start_commit("A", a, *segment_edits(0))
    for _ in range(UNKNOWN_REPEATS_MAX + 1):
        world.schedule.step("A", Fate.IN_FLIGHT)
    with pytest.raises(OutcomeUnknownError):
        world.schedule.finish("A")
    assert 2 not in world.records(a)
    world.schedule.land()

    # Whatever A wants to do next, it first finds out what became of its record: by the same bytes.
    world.start_commit("A", a, LATE)
    assert world.schedule.step("A") == ("put", record_key(STREAM, a.state.incarnation, 2))
    state = world.schedule.finish("A")

    assert len(state.offloaded()) == 1
    assert state.record_id == 3
    for _ in range(UNKNOWN_REPEATS_MAX):
        world.schedule.land()  # the repeats arrive as well
    assert load_manifest(world.store, STREAM) == state


def test_repeat_identical_no_other_record_is_built_while_one_is_in_doubt() -> None:
    world = World()
    a = world.owner()
    world.start_commit("A", a, *segment_edits(0))
    for _ in range(UNKNOWN_REPEATS_MAX + 1):
        world.schedule.step("A", Fate.IN_FLIGHT)
    with pytest.raises(OutcomeUnknownError):
        world.schedule.finish("A")
    world.start_commit("A", a, LATE)
    world.schedule.finish("A")

    assert world.records(a)[2] == tuple(segment_edits(0))
    assert world.records(a)[3] == (LATE,)


def test_lost_response_is_verified_by_reading() -> None:
    world = World()
    a = world.owner()
    world.start_commit("A", a, LATE)
    world.schedule.step("A", Fate.REPLY_LOST)
    assert world.schedule.finish("A").record_id == 2
    assert sorted(world.records(a)) == [1, 2]


def test_epochs_record_landing_before_the_next_epoch_is_included() -> None:
    """B loads, A's record lands under the number that B wants: B loads again, and has it."""
    world = World()
    a = world.owner()
    world.start_commit("A", a, LATE)
    b = world.log()

    def open_epoch(store: ObjectStore) -> int:
        b.store = store
        return b.open_epoch()

    world.schedule.start("B", open_epoch)
    world.schedule.until("B", "put", ".json")
    world.schedule.step("A")

    assert world.schedule.finish("B") == 2
    assert b.state.closed_ledgers == {1: 9}
    # A still has its look at the boundary to do: its record counts, the next one doesn't.
    assert world.schedule.finish("A").record_id == 2
    a.store = world.store
    with pytest.raises(FencedError):
        a.commit([LedgerClosed(2, 9)])


def test_epochs_record_landing_after_the_next_epoch_changes_nothing() -> None:
    world = World()
    a = world.owner()
    world.start_commit("A", a, LATE)
    world.schedule.step("A", Fate.IN_FLIGHT)
    b = world.owner()
    world.schedule.land()

    with pytest.raises(FencedError):
        world.schedule.finish("A")
    assert load_manifest(world.store, STREAM) == b.state
    assert 1 not in b.state.closed_ledgers


def test_epochs_crash_before_the_record_leaves_nothing() -> None:
    world = World()
    a = world.owner()
    world.start_commit("A", a, LATE)
    world.schedule.step("A", Fate.CRASH)
    assert world.owner().epoch == 2
    assert 1 not in load_manifest(world.store, STREAM).closed_ledgers


def test_losing_a_number_to_a_maintainer_is_retried() -> None:
    world = World()
    a = world.owner()
    other = world.log()
    other.load()
    world.start_commit("A", a, *segment_edits(0))
    other.commit_as_maintainer([LedgersDeleted((4,))])

    assert world.schedule.finish("A").record_id == 3
    state = load_manifest(world.store, STREAM)
    assert (state.epoch, len(state.offloaded()), set(state.deleted_ledgers)) == (1, 1, {4})


def test_owner_whose_edits_no_longer_fit_commits_nothing() -> None:
    """Its requirement is checked again on top of the concurrent record, not only its epoch."""
    world = World()
    a = world.owner()
    a.commit(segment_edits(0))
    other = world.log()
    other.load()
    world.start_commit("A", a, Truncate(Position(1, 2)))
    other.commit_as_maintainer([Truncate(Position(1, 5))])
    with pytest.raises(EditRefusedError, match="can't move back"):
        world.schedule.finish("A")
    assert sorted(world.records(a)) == [1, 2, 3]


def test_only_the_owner_assigns_or_completes_segments() -> None:
    """A cleanup that fails a segment which its owner is just completing would have its objects swept."""
    world = World()
    a = world.owner()
    a.commit(segment_edits(0)[:1])
    other = world.log()
    other.load()
    for edits in ([Failed(uuid_of(1 << 32), "old")], segment_edits(0)[1:], segment_edits(1)[:1], [OpenEpoch(2)]):
        with pytest.raises(InvalidCallError, match="is reserved for the owner of an epoch"):
            other.commit_as_maintainer(edits)
    assert len(a.commit(segment_edits(0)[1:]).offloaded()) == 1


# -- a stream that is deleted and created again


def delete_whole(world: World) -> None:
    for _ in range(2):
        delete_stream(world.store, STREAM, clock=world.clock, delete_objects=lambda _: None, settings=SETTINGS)
        world.clock.advance(HOURS_24_S + 1)


@pytest.mark.parametrize("committed", [False, True])
def test_incarnation_pending_commit_is_fenced_when_the_stream_is_recreated(committed: bool) -> None:
    """A's read of the boundary must not return the new stream's."""
    world = World()
    a = world.owner()
    world.start_commit("A", a, LATE)
    if committed:
        world.schedule.step("A")
    delete_whole(world)
    c = world.owner(commits=2)

    with pytest.raises(FencedError, match="was deleted"):
        world.schedule.finish("A")

    assert load_manifest(world.store, STREAM) == c.state
    assert 1 not in c.state.closed_ledgers


def test_delete_below_boundary_number_of_a_stream_being_deleted_is_worthless() -> None:
    """D deletes the records; A creates one of them again: the boundary, raised before, makes it worthless."""
    world = World()
    a = world.owner(commits=1)
    world.start_commit("A", a, LATE)

    def delete(store: ObjectStore) -> object:
        return delete_stream(store, STREAM, clock=world.clock, delete_objects=lambda _: None, settings=SETTINGS)

    world.schedule.start("D", delete)
    world.schedule.until("D", "delete", record_key(STREAM, a.state.incarnation, 1))
    world.schedule.step("D")
    assert 1 not in world.records(a)
    with pytest.raises(FencedError):
        world.schedule.finish("A")
    world.schedule.finish("D")
    with pytest.raises(NotFoundError):
        world.log().open_epoch()


@pytest.mark.slow
@pytest.mark.parametrize("stop_before", range(2, 30))
def test_incarnation_in_keys_paused_deleter_takes_nothing_of_the_new_stream(stop_before: int) -> None:
    world = World()
    world.owner(commits=1)
    delete_stream(world.store, STREAM, clock=world.clock, delete_objects=lambda _: None, settings=SETTINGS)
    world.clock.advance(HOURS_24_S + 1)

    def delete(store: ObjectStore) -> object:
        return delete_stream(store, STREAM, clock=world.clock, delete_objects=lambda _: None, settings=SETTINGS)

    world.schedule.start("D", delete)
    for _ in range(stop_before - 1):
        if world.schedule.pending("D") is not None:
            world.schedule.step("D")
    if world.schedule.pending("D") is not None:
        with contextlib.suppress(NotFoundError):  # the paused one had let go of the entry already
            delete(world.store)
    try:
        c = world.owner(commits=2)
    except StoreUnavailableError as refused:
        assert "is being removed after a deletion" in refused.message  # noqa: PT017
        world.schedule.finish("D")
        c = world.owner(commits=2)
    with contextlib.suppress(NotFoundError, StoreUnavailableError):  # it is gone, or somebody else deletes: look again
        world.schedule.finish("D")

    assert load_manifest(world.store, STREAM) == c.state
    c.commit([LATE])


def test_overtaken_creator_uses_the_existing_stream() -> None:
    world = World()
    b = world.log()

    def open_epoch(store: ObjectStore) -> int:
        b.store = store
        return b.open_epoch()

    world.schedule.start("B", open_epoch)
    world.schedule.until("B", "put", "_catalog")
    a = world.owner()
    assert world.schedule.finish("B") == 2
    assert b.state.incarnation == a.state.incarnation
    assert isinstance(a.state.incarnation, UUID)


def test_overtaken_creator_does_not_restore_the_boundary() -> None:
    """B sees no boundary and pauses; A makes it, K folds and raises it: a second first boundary would lower it."""
    world = World()
    b = world.log()

    def open_epoch(store: ObjectStore) -> int:
        b.store = store
        return b.open_epoch()

    world.schedule.start("B", open_epoch)
    world.schedule.until("B", "put", "/boundary")
    a = world.owner(commits=3)
    world.checkpoint_and_delete()
    kept = read_boundary(world.store, STREAM, a.state.incarnation)

    world.schedule.step("B")

    assert read_boundary(world.store, STREAM, a.state.incarnation) == kept
    assert world.schedule.finish("B") == 2
