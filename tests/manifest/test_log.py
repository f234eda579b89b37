"""The manifest in a store: commits, conflicts, fencing, unknown outcomes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from uuid import UUID

import pytest

from formats.entries import Position
from formats.keys import boundary_key, catalog_key, record_key
from formats.manifest import (
    Assign,
    Boundary,
    Failed,
    Hold,
    LedgerClosed,
    Offloaded,
    OpenEpoch,
    Purged,
    Replace,
    Retire,
    Rewrite,
    Rewritten,
    Truncate,
    decode_record,
    encode_record,
)
from offloader.errors import (
    AccessDeniedError,
    CorruptError,
    FencedError,
    InvalidCallError,
    NotFoundError,
    OffloaderError,
    OutcomeUnknownError,
    StoreUnavailableError,
)
from offloader.manifest.boundary import raise_boundary, read_boundary
from offloader.manifest.log import UNKNOWN_REPEATS_MAX, ManifestLog, list_streams, load_manifest
from offloader.manifest.state import EditRefusedError
from offloader.runtime.clock import SystemClock
from offloader.store.base import OVERWRITE, ObjectStore
from offloader.store.memory import MemoryStore
from offloader.testing.faulty_store import Fault, FaultyStore
from offloader.testing.manual_clock import ManualClock
from tests.support.manifests import segment_edits, summary_of, uuid_of

STREAM = "public/default/persistent/orders"
_names = count()
#: The record is created, its reply is lost, and then the store is out of reach.
LANDED_UNHEARD = (
    Fault(call=1, verb="put", after=True, error=OutcomeUnknownError),
    Fault(call=2, calls=UNKNOWN_REPEATS_MAX, verb="put", error=OutcomeUnknownError),
)


@pytest.fixture
def memory() -> ObjectStore:
    return MemoryStore(f"manifest-log-{next(_names)}", "", SystemClock())


@pytest.fixture
def faulty(memory: ObjectStore) -> FaultyStore:
    return FaultyStore(memory)


@pytest.fixture
def new_log(faulty: FaultyStore) -> Callable[..., ManifestLog]:
    clock = ManualClock()
    return lambda stream=STREAM: ManifestLog(faulty, stream, clock=clock)


def closed(ledger_id: int) -> list[LedgerClosed]:
    return [LedgerClosed(ledger_id, 9)]


def key_of(log: ManifestLog, record_id: int) -> str:
    return record_key(log.stream, log.state.incarnation, record_id)


def test_records_are_numbered_and_read_by_every_client(
    new_log: Callable[..., ManifestLog], memory: ObjectStore
) -> None:
    log = new_log()
    assert log.open_epoch() == 1
    log.commit(closed(1))
    log.commit(closed(2))

    state = load_manifest(memory, STREAM)

    assert state == log.state
    assert (state.record_id, state.epoch, dict(state.closed_ledgers)) == (3, 1, {1: 9, 2: 9})
    assert decode_record(memory.get(key_of(log, 1))[0]).edits == (OpenEpoch(1),)


def test_a_commit_is_one_put_and_one_get(new_log: Callable[..., ManifestLog], faulty: FaultyStore) -> None:
    log = new_log()
    log.open_epoch()
    before = len(faulty.calls)

    log.commit(closed(1))

    assert [verb for verb, _ in faulty.calls[before:]] == ["put", "get"]


def test_loading_an_unknown_stream_fails_and_creates_nothing(memory: ObjectStore) -> None:
    with pytest.raises(NotFoundError, match="offloader ls"):
        load_manifest(memory, STREAM)
    assert memory.list("").objects == ()


def test_a_second_writer_fences_the_first(new_log: Callable[..., ManifestLog], faulty: FaultyStore) -> None:
    first, second = new_log(), new_log()
    first.open_epoch()
    first.commit(closed(1))

    assert second.open_epoch() == 2
    with pytest.raises(FencedError, match="owned by epoch 2"):
        first.commit(closed(2))

    second.commit(closed(3))
    assert load_manifest(faulty, STREAM).closed_ledgers == {1: 9, 3: 9}


def test_concurrent_writers_get_distinct_epochs_and_one_owns_the_stream(
    new_log: Callable[..., ManifestLog], faulty: FaultyStore
) -> None:
    logs = [new_log() for _ in range(8)]
    barrier = threading.Barrier(len(logs))
    epochs: list[int] = []
    survivors: list[int] = []

    def run(log: ManifestLog) -> None:
        barrier.wait()
        epochs.append(log.open_epoch())
        barrier.wait()
        try:
            log.commit(closed(log.epoch or 0))
        except FencedError:
            return
        survivors.append(log.epoch or 0)

    threads = [threading.Thread(target=run, args=(log,)) for log in logs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(epochs) == list(range(1, 9))
    assert survivors == [8]
    assert load_manifest(faulty, STREAM).closed_ledgers == {8: 9}


def test_lost_response_to_own_record_is_recognised(new_log: Callable[..., ManifestLog], faulty: FaultyStore) -> None:
    log = new_log()
    log.open_epoch()
    faulty.set_faults([Fault(call=1, verb="put", after=True, error=OutcomeUnknownError)])

    state = log.commit(closed(1))

    assert state.record_id == 2
    assert load_manifest(faulty, STREAM).closed_ledgers == {1: 9}


def test_record_in_doubt_is_settled_before_another_is_built(
    new_log: Callable[..., ManifestLog], faulty: FaultyStore, memory: ObjectStore
) -> None:
    log = new_log()
    log.open_epoch()
    faulty.set_faults([Fault(call=1, calls=UNKNOWN_REPEATS_MAX + 1, verb="put", error=OutcomeUnknownError)])

    with pytest.raises(OutcomeUnknownError):
        log.commit(closed(1))
    assert load_manifest(memory, STREAM).record_id == 1

    log.commit(closed(2))

    # The doubtful record was settled first, with the same bytes; only then the new one was built on top.
    assert decode_record(memory.get(key_of(log, 2))[0]).edits == tuple(closed(1))
    assert decode_record(memory.get(key_of(log, 3))[0]).edits == tuple(closed(2))


def test_the_same_edits_again_after_an_unknown_outcome_are_committed_once(
    new_log: Callable[..., ManifestLog], faulty: FaultyStore
) -> None:
    log = new_log()
    log.open_epoch()
    edits = [Assign(UUID(int=1), 2, Position(1, 0), None, 5, {})]
    faulty.set_faults(LANDED_UNHEARD)
    with pytest.raises(OutcomeUnknownError):
        log.commit(edits)

    log.commit(edits)

    assert load_manifest(faulty, STREAM).record_id == 2


@pytest.mark.parametrize("follows", [True, False])
def test_record_in_doubt_whose_segment_was_purged_meanwhile_is_committed(
    new_log: Callable[..., ManifestLog], faulty: FaultyStore, memory: ObjectStore, *, follows: bool
) -> None:
    """Its number is kept, and the checkpoint has nothing of it: the later records prove it, each naming the former."""
    owner, edits, uuid = new_log(), segment_edits(0), uuid_of(1 << 32)
    owner.open_epoch()
    faulty.set_faults(LANDED_UNHEARD)
    with pytest.raises(OutcomeUnknownError):
        owner.commit(edits)
    cleanup = ManifestLog(memory, STREAM, clock=ManualClock())
    cleanup.load()
    for edit in (Truncate(Position(1, 10)), Retire((uuid,)), Purged((uuid,), 4)):
        cleanup.commit_as_maintainer([edit])
    cleanup.checkpoint()
    assert uuid not in cleanup.state.segments
    if follows:
        later = record_key(STREAM, owner.state.incarnation, 4)
        # The first read of it is that of the load, the second one that of the proof.
        faulty.set_faults([Fault(call=2, verb="get", key_part=later, error=StoreUnavailableError)])
        with pytest.raises(OutcomeUnknownError, match="record 2 may be committed"):
            owner.commit(edits)
        faulty.set_faults([])
        assert owner.commit(edits) == load_manifest(memory, STREAM)
        assert load_manifest(memory, STREAM).record_id == 5
        return
    third = decode_record(memory.get(key_of(owner, 3))[0])
    memory.put(key_of(owner, 3), encode_record(replace(third, previous_nonce="another")), mode=OVERWRITE)
    with pytest.raises(OffloaderError):
        owner.commit(edits)


def test_record_in_doubt_that_lost_its_number_is_not_trusted(
    new_log: Callable[..., ManifestLog], faulty: FaultyStore
) -> None:
    first, second = new_log(), new_log()
    first.open_epoch()
    faulty.set_faults([Fault(call=1, calls=UNKNOWN_REPEATS_MAX + 1, verb="put", error=OutcomeUnknownError)])
    with pytest.raises(OutcomeUnknownError):
        first.commit(closed(1))

    second.open_epoch()

    with pytest.raises(FencedError):
        first.commit(closed(1))
    assert load_manifest(faulty, STREAM).closed_ledgers == {}


def test_put_landing_after_its_writer_gave_up_is_harmless(
    new_log: Callable[..., ManifestLog], faulty: FaultyStore, memory: ObjectStore
) -> None:
    """The late PUT creates its number first; the next writer finds it and continues after it."""
    first, second = new_log(), new_log()
    first.open_epoch()
    second.load()
    faulty.set_faults(LANDED_UNHEARD)
    with pytest.raises(OutcomeUnknownError):
        first.commit(closed(1))

    assert second.open_epoch() == 2
    assert second.state.closed_ledgers == {1: 9}


@pytest.mark.parametrize("error", [StoreUnavailableError, AccessDeniedError])
def test_record_whose_verification_failed_may_be_committed(
    new_log: Callable[..., ManifestLog], faulty: FaultyStore, error: type[OffloaderError]
) -> None:
    """If the error were "store unavailable", the caller would assume that nothing happened, and commit other edits."""
    log = new_log()
    log.open_epoch()
    faulty.set_faults([Fault(call=1, verb="get", key_part="boundary", error=error)])
    with pytest.raises(OutcomeUnknownError, match="record 2 may be committed"):
        log.commit(closed(1))
    faulty.set_faults([])

    assert log.commit(closed(1)).record_id == 2
    assert load_manifest(faulty, STREAM).closed_ledgers == {1: 9}


def test_a_refused_put_leaves_no_doubt_behind(new_log: Callable[..., ManifestLog], faulty: FaultyStore) -> None:
    log = new_log()
    log.open_epoch()
    for error in (StoreUnavailableError, AccessDeniedError):
        faulty.set_faults([Fault(call=1, verb="put", error=error)])
        with pytest.raises(error):
            log.commit(closed(1))

    log.commit(closed(2))

    assert load_manifest(faulty, STREAM).closed_ledgers == {2: 9}


def test_writer_of_a_deleted_stream_stops(new_log: Callable[..., ManifestLog], memory: ObjectStore) -> None:
    log = new_log()
    log.open_epoch()
    memory.delete([boundary_key(STREAM, log.state.incarnation)])

    with pytest.raises(FencedError, match="was deleted"):
        log.commit(closed(1))


def test_another_incarnation_never_shares_a_key(new_log: Callable[..., ManifestLog], memory: ObjectStore) -> None:
    old = new_log()
    old.open_epoch()
    memory.delete([info.key for info in memory.list("").objects if info.key != key_of(old, 1)])

    new = new_log()
    new.open_epoch()

    assert new.state.incarnation != old.state.incarnation
    assert load_manifest(memory, STREAM).record_id == 1
    with pytest.raises(FencedError):
        old.commit(closed(1))


def test_edits_that_do_not_fit_are_refused_and_nothing_is_written(
    new_log: Callable[..., ManifestLog], memory: ObjectStore
) -> None:
    log = new_log()
    log.open_epoch()

    with pytest.raises(EditRefusedError):
        log.commit([Retire((UUID(int=1),))])

    assert load_manifest(memory, STREAM).record_id == 1


def test_record_times_never_decrease(memory: ObjectStore) -> None:
    clock = ManualClock(now_ms=2_000)
    log = ManifestLog(memory, STREAM, clock=clock)
    log.open_epoch()
    clock.set_now_ms(1_000)
    log.commit(closed(1))

    assert [decode_record(memory.get(key_of(log, number))[0]).time_ms for number in (1, 2)] == [2_000, 2_000]


def test_damaged_record_is_reported(new_log: Callable[..., ManifestLog], memory: ObjectStore) -> None:
    log = new_log()
    log.open_epoch()
    log.commit(closed(1))
    key = key_of(log, 1)
    memory.put(key, memory.get(key)[0].replace(b'"epoch":1', b'"epoch":2'), mode=OVERWRITE)

    with pytest.raises(CorruptError, match=r"record 1: CRC-32C in .*00000000000000000001\.json"):
        load_manifest(memory, STREAM)


def test_commits_need_an_epoch(new_log: Callable[..., ManifestLog]) -> None:
    log = new_log()
    log.load(create=True)
    with pytest.raises(InvalidCallError, match="no epoch is open"):
        log.commit(closed(1))


def test_streams_are_listed_by_catalogue_and_foreign_entries_skipped(
    new_log: Callable[..., ManifestLog], memory: ObjectStore
) -> None:
    for name in ("b", "a/1", "a/ü x"):
        new_log(name).load(create=True)
    memory.put("_catalog/%zz", b"?")

    assert list_streams(memory) == ["a/1", "a/ü x", "b"]
    assert list_streams(memory, prefix="a/") == ["a/1", "a/ü x"]


@pytest.mark.parametrize(("existing", "wanted"), [("a/b", "a"), ("a", "a/b"), ("a", "a/b/c")])
def test_no_name_is_the_beginning_of_another(
    new_log: Callable[..., ManifestLog], memory: ObjectStore, existing: str, wanted: str
) -> None:
    new_log(existing).load(create=True)

    with pytest.raises(InvalidCallError, match="one name begins with the other"):
        new_log(wanted).load(create=True)
    assert list_streams(memory) == [existing]
    new_log("ab").load(create=True)


def test_a_catalogue_entry_that_names_another_stream_is_refused(
    new_log: Callable[..., ManifestLog], memory: ObjectStore
) -> None:
    new_log("a").load(create=True)
    memory.put(catalog_key("b"), memory.get(catalog_key("a"))[0])

    with pytest.raises(CorruptError, match="names stream a"):
        load_manifest(memory, "b")


def test_two_creators_of_a_stream_agree_on_its_incarnation(new_log: Callable[..., ManifestLog]) -> None:
    logs = [new_log() for _ in range(6)]
    barrier = threading.Barrier(len(logs))

    def run(log: ManifestLog) -> None:
        barrier.wait()
        log.load(create=True)

    threads = [threading.Thread(target=run, args=(log,)) for log in logs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len({log.state.incarnation for log in logs}) == 1


def test_a_boundary_is_never_lowered(new_log: Callable[..., ManifestLog], memory: ObjectStore) -> None:
    """A lower one would make numbers count again that were deleted."""
    log = new_log()
    log.open_epoch()
    where = memory, STREAM, log.state.incarnation
    stored = read_boundary(*where)
    raised = raise_boundary(*where, stored, Boundary(first_kept_id=5, checkpoint_id=7, checkpoint_crc32c=0))
    assert raised is not None
    for lower in (Boundary(4, 7, 0), Boundary(5, 6, 0)):
        with pytest.raises(AssertionError, match="never lowered"):
            raise_boundary(*where, raised, lower)
    assert read_boundary(*where) == raised


def test_maintainer_completes_a_partly_created_stream(memory: ObjectStore) -> None:
    """Its first writer died after the catalogue's entry: a record without a boundary would damage the manifest."""
    store = FaultyStore(memory)
    store.set_faults([Fault(call=1, verb="put", key_part="boundary", error=StoreUnavailableError)])
    with pytest.raises(StoreUnavailableError):
        ManifestLog(store, STREAM, clock=ManualClock()).load(create=True)
    log = ManifestLog(memory, STREAM, clock=ManualClock())
    log.load()
    log.commit_as_maintainer([Hold(True, "")])
    assert load_manifest(memory, STREAM).held
    assert ManifestLog(memory, STREAM, clock=ManualClock()).open_epoch() == 1


def test_maintainer_replaces_segments_only_within_a_named_epoch(memory: ObjectStore) -> None:
    owner = ManifestLog(memory, STREAM, clock=ManualClock())
    owner.open_epoch()
    old, new, flying = UUID(int=1), UUID(int=2), UUID(int=3)
    whole = summary_of(Position(1, 0), Position(1, 9))
    owner.commit([Assign(old, 2, whole.begin, whole.end, 1, {}), Offloaded(old, whole, 2)])
    owner.commit([Assign(flying, 2, Position(1, 10), None, 1, {})])
    log = ManifestLog(memory, STREAM, clock=ManualClock())
    log.load()
    promise, replacement = Rewrite(new, 2, whole.begin, whole.end, 3, {}), Replace((old,), (Rewritten(new, whole),), 4)
    for edit in (promise, replacement, Failed(flying, "x")):
        with pytest.raises(InvalidCallError, match="is reserved for the owner of an epoch"):
            log.commit_as_maintainer([edit])
    log.commit_as_maintainer([promise], epoch=1)
    with pytest.raises(InvalidCallError, match="failed is reserved for the owner"):
        log.commit_as_maintainer([Failed(flying, "x")], epoch=1)
    owner.commit([Offloaded(flying, summary_of(Position(1, 10), Position(1, 12)), 5)])
    log.commit_as_maintainer([replacement], epoch=1)
    assert [each.uuid for each in owner.load().offloaded()] == [new, flying]
    owner.open_epoch()
    with pytest.raises(FencedError, match="is owned by epoch 2"):
        log.commit_as_maintainer([Rewrite(UUID(int=4), 2, whole.begin, whole.end, 3, {})], epoch=1)
    assert load_manifest(memory, STREAM).rewrites == ()


def test_maintainer_creates_nothing_for_a_deleted_stream(memory: ObjectStore) -> None:
    log = ManifestLog(memory, STREAM, clock=ManualClock())
    incarnation = log.load(create=True).incarnation
    memory.delete([catalog_key(STREAM), boundary_key(STREAM, incarnation)])
    with pytest.raises(NotFoundError, match="was deleted in the meantime"):
        log.commit_as_maintainer([Hold(True, "")])
    assert not memory.list("").objects


@pytest.mark.parametrize("error", [NotFoundError, StoreUnavailableError, InvalidCallError])
def test_record_stored_despite_an_error_is_found_by_reading(error: type[OffloaderError]) -> None:
    """A gateway answers 404, or a server in conflict with itself 409, and the record is there all the same."""
    memory = MemoryStore(f"looked-up-{next(_names)}", "", ManualClock())
    faulty = FaultyStore(memory)
    log = ManifestLog(faulty, STREAM, clock=ManualClock())
    log.open_epoch()
    faulty.set_faults([Fault(call=1, verb="put", key_part=".json", error=error, after=True)])
    failed = None
    try:
        log.commit([LedgerClosed(1, 9)])
    except OffloaderError as raised:
        failed = raised

    assert failed is None
    assert log.state.closed_ledgers == {1: 9}
    assert load_manifest(memory, STREAM) == log.state


def test_missing_record_after_a_404_to_its_put_stays_in_doubt() -> None:
    memory = MemoryStore(f"looked-up-{next(_names)}", "", ManualClock())
    faulty = FaultyStore(memory)
    log = ManifestLog(faulty, STREAM, clock=ManualClock())
    log.open_epoch()
    faulty.set_faults([Fault(call=1, verb="put", key_part=".json", error=NotFoundError)])

    with pytest.raises(OutcomeUnknownError):
        log.commit([LedgerClosed(1, 9)])

    log.commit([LedgerClosed(1, 9)])
    assert load_manifest(memory, STREAM).record_id == 2
