"""Reconciliation finds unreferenced objects and deletes only those that are provably its own."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any
from uuid import UUID, uuid4

import pytest

from formats.documents import GLOBAL_HOLD_KEY, Lease, Subscribers, document_key, lease_key
from formats.entries import Position
from formats.keys import boundary_key, data_key, index_key, manifest_prefix, new_segment_uuid, record_key
from formats.manifest import Assign, Failed, Hold, LedgersDeleted, Purged, Retire, Rewrite
from offloader.errors import CorruptError, FencedError, NotFoundError, StoreUnavailableError
from offloader.gc.orphans import Outcome, Place, Reason
from offloader.gc.reconcile import Reconciliation
from offloader.manifest.boundary import LostRecordsError
from offloader.manifest.catalog import create_entry
from offloader.manifest.log import ManifestLog, load_manifest
from offloader.manifest.maintenance import delete_stream
from offloader.manifest.protection import ClockSkewError, lift_global_hold, set_global_hold
from offloader.manifest.rebuild import rebuild_manifest
from offloader.manifest.state import ManifestState
from offloader.settings import Duration, ManifestSettings
from offloader.store.base import OVERWRITE, ByteRange, DeleteFailure, ListPage, ObjectInfo, ObjectStore, UploadInfo
from offloader.store.wrappers import ReadOnlyStore
from offloader.testing.faulty_store import Fault, FaultyStore
from offloader.testing.manual_clock import ManualClock
from tests.gc.left_behind import DAY_S, HOUR_S, STREAM, Bucket, outcomes
from tests.support.streams import StreamWriter, batch_of


def test_only_own_unnamed_old_objects_go_and_dry_run_reports_the_same() -> None:
    bucket = Bucket()
    bucket.offload(3)
    orphans = [*bucket.failed(), *bucket.put_segment(bucket.uuid()), *bucket.put_segment(bucket.uuid(), ledger_id=7)]
    foreign = [
        *bucket.put_segment(uuid4()),
        *bucket.put_segment(new_segment_uuid(uuid4(), 5)),
        f"{STREAM}/notes.txt",
        f"{STREAM}/{bucket.uuid()}.bak",
        f"{STREAM}/{bucket.uuid()}-ledger-07",
        f"{STREAM}/{str(bucket.uuid()).upper()}",
        f"{STREAM}/below/{bucket.uuid()}",
        f"{STREAM}/{'é' * 36}",
        f"{STREAM}/manifest/{uuid4()}/{1:020d}.txt",
        f"{STREAM}/leases/somebody",
    ]
    bucket.put(*foreign)
    bucket.clock.advance(DAY_S + HOUR_S)
    young = bucket.put_segment(bucket.uuid())
    before = {info.key for info in bucket.inner.list("").objects}

    looked = bucket.reconcile(delete=False, store=ReadOnlyStore(bucket.inner))

    expected = dict.fromkeys(orphans, ("UNNAMED", "DELETABLE"))
    expected |= dict.fromkeys(foreign, ("FOREIGN", "KEPT")) | dict.fromkeys(young, ("YOUNG", "KEPT"))
    assert outcomes(looked) == expected
    assert {info.key for info in bucket.inner.list("").objects} == before

    done = bucket.reconcile()

    assert [replace(each, outcome=Outcome.KEPT) for each in done] == [
        replace(each, outcome=Outcome.KEPT) for each in looked
    ]
    assert {each.key for each in done if each.outcome is Outcome.DELETED} == set(orphans)
    assert {info.key for info in bucket.inner.list("").objects} == before - set(orphans)
    bucket.check_readable()
    assert {each.outcome for each in bucket.reconcile()} == {Outcome.KEPT}


def test_referenced_objects_are_counted_by_kind() -> None:
    bucket = Bucket()
    bucket.offload(2)
    bucket.put(document_key(Subscribers, STREAM, bucket.writer.log.state.incarnation))
    lease = UUID(int=5)
    bucket.inner.put(lease_key(STREAM, lease), Lease(lease, STREAM, "r", 60).encode())
    run = Reconciliation(bucket.store, STREAM, clock=bucket.clock)

    assert list(run.leftovers()) == []

    counts = {place: tally.objects for place, tally in run.needed.items()}
    records = 1 + load_manifest(bucket.inner, STREAM).record_id
    assert counts == {Place.SEGMENT: 4, Place.MANIFEST: records, Place.RETENTION: 1, Place.LEASE: 1}
    assert run.needed[Place.SEGMENT].size_bytes == sum(
        info.size_bytes for info in bucket.inner.list("").objects if info.key in bucket.named_keys()
    )


def test_objects_named_in_manifest_stay_in_any_status_and_epoch() -> None:
    bucket = Bucket()
    kept, gone = bucket.offload(2)
    retired, purged = bucket.offload(2)
    assigned = bucket.assign()
    rewritten, given_up = bucket.uuid(), bucket.uuid()
    for uuid in (assigned, rewritten, given_up):
        bucket.put_segment(uuid)
    driver = dict(bucket.inner.driver_metadata)
    bucket.commit(*(Rewrite(u, 2, Position(1, 0), Position(1, 9), 5, driver) for u in (rewritten, given_up)))
    # The next owner; it hasn't looked at what its predecessor assigned.
    later = ManifestLog(bucket.inner, STREAM, clock=bucket.clock)
    later.open_epoch()
    later.commit([LedgersDeleted((1,)), Retire((retired, purged))])
    at = later.state.record_id
    later.commit([Purged((purged,), at), Failed(given_up, "x")])
    bucket.clock.advance(DAY_S)

    deleted = {each.key for each in bucket.reconcile() if each.outcome is Outcome.DELETED}

    assert deleted == {key for uuid in (purged, given_up) for key in (data_key(STREAM, uuid), index_key(STREAM, uuid))}
    for uuid in (kept, gone, retired, assigned, rewritten):
        bucket.inner.head(data_key(STREAM, uuid))
        bucket.inner.head(index_key(STREAM, uuid))
    later.checkpoint()
    assert [each.key for each in bucket.reconcile()] == []


def test_age_is_measured_by_the_earlier_clock_and_skew_stops_deletion() -> None:
    bucket = Bucket()
    orphans = bucket.failed()
    local = ManualClock(bucket.clock.now_ms())
    # The store's clock is a minute ahead: what is a day old there isn't yet here.
    bucket.clock.advance(DAY_S)
    local.advance(DAY_S - 50)
    settings = ManifestSettings()
    run = Reconciliation(bucket.store, STREAM, clock=local, settings=settings, delete=True)
    assert {each.reason for each in run.leftovers()} == {Reason.YOUNG}
    for drift_s in (-3600, 3600, 400 * DAY_S):
        wrong = ManualClock(bucket.clock.now_ms() + 1000 * drift_s)
        run = Reconciliation(bucket.store, STREAM, clock=wrong, settings=settings, delete=True)
        with pytest.raises(ClockSkewError, match="nothing is deleted"):
            list(run.leftovers())
    assert set(orphans) <= bucket.keys()
    bucket.clock.advance(50)
    local.advance(101)
    run = Reconciliation(bucket.store, STREAM, clock=local, settings=settings, delete=True)
    assert {each.outcome for each in run.leftovers()} == {Outcome.DELETED}


@pytest.mark.parametrize("by_prefix", [True, False])
def test_abandoned_uploads_are_aborted(by_prefix: bool) -> None:
    bucket = Bucket()
    (complete,) = bucket.offload()
    late = bucket.assign()
    bucket.commit(Failed(late, "x"))
    foreign, running, v1 = uuid4(), bucket.assign(), bucket.uuid()
    bucket.commit(Assign(v1, 1, Position(0, 0), Position(0, 5), 5, {}), Failed(v1, "x"))
    for uuid in (complete, late, foreign, running):
        bucket.begin_upload(uuid)
    bucket.begin_upload(v1, 0)
    store = bucket.store if by_prefix else ExactUploads(bucket.store)
    young = bucket.reconcile(store=store)
    bucket.clock.advance(DAY_S)
    looked = [each.upload_id for each in bucket.reconcile(delete=False, store=store)]

    done = bucket.reconcile(store=store)

    # Whoever may not write looks by prefix and by key, and tells of each once.
    assert sorted(looked) == sorted(each.upload_id for each in done)
    gone = {data_key(STREAM, complete): "COMPLETE", data_key(STREAM, late): "UNNAMED"}
    gone[data_key(STREAM, v1, 0)] = "UNNAMED"
    found = outcomes(done)
    theirs = found.pop(data_key(STREAM, foreign), None)
    assert theirs == (("FOREIGN", "KEPT") if by_prefix else None)
    assert found == {key: (reason, "DELETED") for key, reason in gone.items()}
    assert {each.reason for each in young} - {Reason.FOREIGN} == {Reason.YOUNG}
    assert {upload.key for upload in bucket.uploads()} == {data_key(STREAM, foreign), data_key(STREAM, running)}
    bucket.check_readable()


class ExactUploads(FaultyStore):
    """A store that finds an upload by its whole key only, as MinIO does."""

    def list_uploads(self, prefix: str) -> list[UploadInfo]:
        return [upload for upload in super().list_uploads(prefix) if upload.key == prefix]


class UnrulyListing(FaultyStore):
    """Pages of any length in any order, keys twice, keys that are gone or come while it is listed."""

    def __init__(self, inner: ObjectStore, seed: int) -> None:
        super().__init__(inner)
        self.random = random.Random(seed)
        self.pages: dict[str, list[list[ObjectInfo]]] = {}
        self.between: Callable[[], None] = lambda: None

    def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> ListPage:
        if not after.isdigit():
            infos = list(super().list(prefix).objects)
            infos += self.random.sample(infos, len(infos) // 3)
            self.random.shuffle(infos)
            cuts = sorted({0, len(infos), *(self.random.randint(0, len(infos)) for _ in range(6))})
            pages = [infos[a:b] for a, b in pairwise(cuts)]
            self.pages[prefix] = [*pages, [], *pages[:1]]
        elif prefix == f"{STREAM}/":
            self.between()
        # A key to begin after is nothing to a store that doesn't sort: it answers from the beginning.
        number = int(after) if after.isdigit() else 0
        following = number + 1 if number + 1 < len(self.pages[prefix]) else None
        return ListPage(tuple(self.pages[prefix][number]), None if following is None else str(following))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_listing_may_be_paged_unordered_repeated_and_change(seed: int) -> None:
    bucket = Bucket()
    bucket.offload(4)
    orphans = [key for _ in range(6) for key in bucket.failed()]
    bucket.clock.advance(DAY_S)
    store = UnrulyListing(bucket.inner, seed)

    def change() -> None:
        bucket.offload()
        left = sorted(bucket.keys() & set(orphans))
        if left:
            bucket.inner.delete([store.random.choice(left)])
        bucket.failed()

    store.between = change
    bucket.reconcile(store=store)

    bucket.check_readable()
    assert bucket.keys() >= bucket.named_keys()
    assert not bucket.keys() & set(orphans)
    bucket.clock.advance(DAY_S)
    bucket.reconcile()
    assert bucket.keys() == bucket.named_keys()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["before", "after", "torn"])
def test_next_run_finishes_after_a_crash_at_any_request_and_loses_nothing(how: str) -> None:
    for call in range(1, 60):
        bucket = Bucket()
        bucket.offload(2)
        bucket.failed()
        bucket.begin_upload(bucket.uuid())
        bucket.assign()
        bucket.clock.advance(DAY_S)
        bucket.store.set_faults([Fault(call=call, after=how == "after", torn=how == "torn")])
        try:
            bucket.reconcile()
        except StoreUnavailableError:
            bucket.check_readable()
        else:
            # The scratch objects of the clock may be left behind without anybody's noticing; the last request may not.
            if call > len(bucket.store.calls):
                return
        bucket.store.set_faults([])
        bucket.reconcile()
        bucket.check_readable()
        assert bucket.keys() == bucket.named_keys()
        assert bucket.uploads() == []
    raise AssertionError("the run never comes to an end")


class Refusing(FaultyStore):
    """Deletes answer 200 and name keys that they kept."""

    def __init__(self, inner: ObjectStore, refusals: dict[str, list[DeleteFailure]]) -> None:
        super().__init__(inner)
        self.refusals = refusals

    def delete(self, keys):  # type: ignore[no-untyped-def]
        failures = [self.refusals[key].pop(0) for key in keys if self.refusals.get(key)]
        kept = {failure.key for failure in failures}
        super().delete([key for key in keys if key not in kept])
        return failures


def test_the_errors_of_single_keys_are_read_retried_and_reported() -> None:
    bucket = Bucket()
    bucket.offload()
    one, two = bucket.failed()
    three, four = bucket.failed()
    bucket.clock.advance(DAY_S)
    slow = [DeleteFailure(one, "SlowDown", retryable=True)] * 2
    always = [DeleteFailure(two, "InternalError", retryable=True)] * 99
    denied = [DeleteFailure(three, "AccessDenied", retryable=False)] * 99
    store = Refusing(bucket.inner, {one: slow, two: always, three: denied})

    found = {each.key: (each.outcome, each.problem) for each in bucket.reconcile(store=store)}

    assert found == {
        one: (Outcome.DELETED, ""),
        two: (Outcome.FAILED, "InternalError"),
        three: (Outcome.FAILED, "AccessDenied"),
        four: (Outcome.DELETED, ""),
    }
    assert bucket.clock.waits_s == [0.5, 1.0, 2.0]
    # Nothing is forgotten: the next run finds what is left.
    assert {each.key for each in bucket.reconcile()} == {two, three}
    assert bucket.keys() == bucket.named_keys()


class Acting(FaultyStore):
    """Somebody else acts just before a request; pages are short."""

    def __init__(self, inner: ObjectStore, at: int, act) -> None:  # type: ignore[no-untyped-def]
        super().__init__(inner)
        self.at, self.act, self.has_acted = at, act, False

    def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> ListPage:
        return super().list(prefix, after=after, limit=min(limit, 3))

    def _next(self, verb: str, key: str) -> Fault | None:
        if len(self.calls) + 1 == self.at:
            self.has_acted = True
            self.act()
        return super()._next(verb, key)


def everywhere(make, act, check) -> None:  # type: ignore[no-untyped-def]
    """Runs a reconciler once for each of its requests, ``act`` just before that one."""
    for at in range(1, 80):
        bucket = make()
        store = Acting(bucket.inner, at, lambda bucket=bucket: act(bucket))
        try:
            bucket.reconcile(store=store, age_hours=0)
        except StoreUnavailableError:
            assert store.has_acted
        if not store.has_acted:
            assert at > 8
            return
        check(bucket)
    raise AssertionError("the run never comes to an end")


@pytest.mark.slow
def test_segment_adopted_by_a_new_owner_is_kept() -> None:
    """Spec of the manifest, section 5: only an owner's ``failed`` makes an assigned uuid sweepable."""

    def make() -> Bucket:
        bucket = Bucket()
        bucket.offload()
        bucket.leftover = bucket.assign()  # type: ignore[attr-defined]
        bucket.failed_keys = bucket.put_segment(bucket.uuid())  # type: ignore[attr-defined]
        # Its objects are complete; its owner never came to say so.
        bucket.says = bucket.complete(bucket.leftover)  # type: ignore[attr-defined]
        return bucket

    def act(bucket: Bucket) -> None:
        later = ManifestLog(bucket.inner, STREAM, clock=bucket.clock)
        later.open_epoch()
        later.commit([bucket.says])  # type: ignore[attr-defined]
        bucket.writer.entries += batch_of(1, bucket.next_entry, 10).entries()

    def check(bucket: Bucket) -> None:
        bucket.check_readable()
        bucket.reconcile(age_hours=0)
        assert bucket.keys() == bucket.named_keys()

    everywhere(make, act, check)


@pytest.mark.slow
def test_segment_written_during_reconciliation_stays() -> None:
    def act(bucket: Bucket) -> None:
        bucket.offload(2)
        bucket.put_segment(bucket.assign())

    def make() -> Bucket:
        bucket = Bucket()
        bucket.offload()
        bucket.put_segment(bucket.uuid())
        return bucket

    def check(bucket: Bucket) -> None:
        bucket.check_readable()
        (assigned,) = load_manifest(bucket.inner, STREAM).assigned()
        assert set(assigned.object_keys(STREAM)) <= bucket.keys()

    everywhere(make, act, check)


@pytest.mark.slow
def test_concurrent_delete_and_recreate_of_stream_loses_nothing() -> None:
    def act(bucket: Bucket) -> None:
        settings = ManifestSettings(orphan_age_min=Duration("0h"))

        def delete(state: ManifestState) -> None:
            bucket.inner.delete(sorted(bucket.keys()))

        delete_stream(bucket.inner, STREAM, clock=bucket.clock, delete_objects=delete, settings=settings)
        bucket.writer = StreamWriter(bucket.inner, STREAM)
        bucket.next_entry = 0
        bucket.offload(2)

    def make() -> Bucket:
        bucket = Bucket()
        bucket.offload()
        bucket.put_segment(bucket.uuid())
        return bucket

    everywhere(make, act, lambda bucket: bucket.check_readable())


def test_stalled_writer_is_fenced_and_its_objects_are_deleted() -> None:
    bucket = Bucket()
    bucket.offload()
    stalled, uuid = bucket.writer, bucket.assign()
    later = ManifestLog(bucket.inner, STREAM, clock=bucket.clock)
    later.open_epoch()
    later.commit([Failed(uuid, "its owner was replaced")])
    later.checkpoint()
    bucket.clock.advance(DAY_S)
    bucket.reconcile()

    bucket.begin_upload(uuid)
    assert load_manifest(bucket.inner, STREAM).epoch == 2
    with pytest.raises(FencedError):
        stalled.log.commit([bucket.complete(uuid)])

    assert {each.reason for each in bucket.reconcile()} == {Reason.YOUNG}
    bucket.clock.advance(DAY_S)
    assert {each.outcome for each in bucket.reconcile()} == {Outcome.DELETED}
    assert bucket.keys() == bucket.named_keys()
    assert bucket.uploads() == []


def test_hold_stops_reconciliation_even_at_the_last_moment() -> None:
    bucket = Bucket()
    bucket.offload()
    orphans = set(bucket.failed())
    bucket.begin_upload(bucket.uuid())
    bucket.commit(Hold(True, "wait"))
    bucket.clock.advance(DAY_S)
    assert {each.reason for each in bucket.reconcile()} == {Reason.HELD}
    bucket.commit(Hold(False, ""))

    class HeldLate(FaultyStore):
        def get(self, key: str, byte_range: ByteRange | None = None, **more: Any) -> tuple[bytes, ObjectInfo]:
            # The entry is read with the manifest, and again just before something is deleted.
            if key.startswith("_catalog/") and len([each for _, each in self.calls if each == key]) == 1:
                bucket.commit(Hold(True, "wait"))
            return super().get(key, byte_range, **more)

    found = bucket.reconcile(store=HeldLate(bucket.inner))
    assert {each.reason for each in found} == {Reason.HELD}
    assert orphans <= bucket.keys()
    assert len(bucket.uploads()) == 1


def test_global_hold_stops_reconciliation() -> None:
    bucket = Bucket()
    bucket.offload()
    bucket.failed()
    bucket.begin_upload(bucket.uuid())
    bucket.clock.advance(DAY_S)
    set_global_hold(bucket.inner, by="me", reason="a test", now_ms=5)
    assert {each.reason for each in bucket.reconcile()} == {Reason.HELD}
    lift_global_hold(bucket.inner)

    class StoppedLate(FaultyStore):
        def get(self, key: str, byte_range: ByteRange | None = None, **more: Any) -> tuple[bytes, ObjectInfo]:
            if key == GLOBAL_HOLD_KEY and [each for _, each in self.calls if each == key]:
                set_global_hold(bucket.inner, by="me", reason="a test", now_ms=5)
            return super().get(key, byte_range, **more)

    assert {each.reason for each in bucket.reconcile(store=StoppedLate(bucket.inner))} == {Reason.HELD}
    lift_global_hold(bucket.inner)
    assert {each.outcome for each in bucket.reconcile()} == {Outcome.DELETED}


def test_ended_leases_are_deleted_a_day_after_their_end() -> None:
    bucket = Bucket()
    bucket.offload()
    held, ended, damaged = UUID(int=1), UUID(int=2), UUID(int=3)
    bucket.inner.put(lease_key(STREAM, ended), Lease(ended, STREAM, "r", 60).encode())
    bucket.inner.put(lease_key(STREAM, held), Lease(held, STREAM, "r", 2 * DAY_S).encode())
    bucket.inner.put(lease_key(STREAM, damaged), b"?")
    bucket.clock.advance(DAY_S)
    assert bucket.reconcile() == []
    bucket.clock.advance(61)
    assert outcomes(bucket.reconcile()) == {lease_key(STREAM, ended): ("ENDED", "DELETED")}
    assert bucket.reconcile() == []


def test_objects_of_deleted_incarnation_go_before_its_manifest() -> None:
    bucket = Bucket()
    bucket.offload()
    old = bucket.writer.log.state.incarnation
    late = bucket.put_segment(bucket.uuid())
    # The deleter crashes after it has let go of the entry; the stream is created again.
    calls = [Fault(call=1, verb="delete", key_part=f"{4:020d}")]
    store = FaultyStore(bucket.inner, calls)
    bucket.commit()
    delete_stream(bucket.inner, STREAM, clock=bucket.clock, delete_objects=lambda _: None)
    bucket.clock.advance(DAY_S)
    with pytest.raises(StoreUnavailableError):
        delete_stream(store, STREAM, clock=bucket.clock, delete_objects=lambda _: None)
    assert store.calls[-1][0] == "delete"
    bucket.writer = StreamWriter(bucket.inner, STREAM)
    bucket.next_entry = 0
    bucket.offload()
    assert bucket.writer.log.state.incarnation != old
    held = bucket.put_segment(new_segment_uuid(old, 99))

    first = outcomes(bucket.reconcile())

    prefix = manifest_prefix(STREAM, old)
    assert {first[key] for key in late} == {("DEAD", "DELETED")}
    assert {first[key] for key in held} == {("YOUNG", "KEPT")}
    # As long as something is left of it, its manifest says whose that is.
    assert first[prefix][1] == "KEPT"
    bucket.clock.advance(DAY_S)
    second = outcomes(bucket.reconcile())
    assert {second[key] for key in held} == {("DEAD", "DELETED")}
    assert second[prefix] == ("DEAD_MANIFEST", "DELETED")
    assert bucket.keys() == bucket.named_keys()
    assert not bucket.inner.list(prefix).objects
    bucket.check_readable()
    assert bucket.reconcile() == []


def test_objects_left_out_by_a_rebuild_stay() -> None:
    bucket = Bucket()
    bucket.offload(2)
    old = bucket.writer.log.state.incarnation
    left = [*bucket.put_segment(bucket.uuid()), document_key(Subscribers, STREAM, old)]
    bucket.put(left[-1])
    key = record_key(STREAM, old, 2)
    bucket.inner.put(key, bucket.inner.get(key)[0][:-1], mode=OVERWRITE)
    bucket.clock.advance(DAY_S)
    with pytest.raises(CorruptError):
        bucket.reconcile()
    rebuild_manifest(bucket.inner, STREAM, head=None, clock=bucket.clock)
    bucket.clock.advance(DAY_S)

    found = outcomes(bucket.reconcile())

    assert {found[key] for key in left} == {("DOUBTFUL", "KEPT")}
    bucket.check_readable()
    assert set(left) <= {info.key for info in bucket.inner.list("").objects}


def test_stream_without_readable_catalogue_entry_is_left_alone() -> None:
    bucket = Bucket()
    bucket.offload()
    bucket.failed()
    before = bucket.keys()
    incarnation = bucket.writer.log.state.incarnation
    bucket.clock.advance(DAY_S)
    bucket.inner.delete([f"_catalog/{STREAM}"])
    with pytest.raises(NotFoundError, match="no catalogue entry"):
        bucket.reconcile()
    bucket.inner.put(f"_catalog/{STREAM}", b"?")
    with pytest.raises(CorruptError):
        bucket.reconcile()
    bucket.inner.put(f"_catalog/{STREAM}", b"")
    # Let go of, and its manifest isn't deleted: nobody knows what that is.
    assert {each.reason for each in bucket.reconcile()} == {Reason.DOUBTFUL}
    assert bucket.keys() == before
    bucket.inner.delete([boundary_key(STREAM, incarnation)])
    assert {each.reason for each in bucket.reconcile()} == {Reason.DOUBTFUL}
    assert bucket.keys() == before


def test_entry_without_records_over_a_segment_is_corrupt_and_deletes_nothing() -> None:
    """Either the creator stopped there, or the whole manifest is lost: the segment proves the loss."""
    bucket = Bucket()
    stream, incarnation = "public/default/persistent/half-made", UUID(int=9)
    create_entry(bucket.inner, stream, lambda: incarnation, 5)
    key = data_key(stream, new_segment_uuid(incarnation, 1))
    bucket.inner.put(key, b"from nowhere")
    bucket.clock.advance(DAY_S)
    run = Reconciliation(bucket.store, stream, clock=bucket.clock, delete=True)
    # A segment without any record: the records were lost, unless nobody ever wrote one. Nothing is deleted on a guess.
    with pytest.raises(LostRecordsError):
        list(run.leftovers())
    bucket.inner.head(key)


def test_store_failure_while_listing_uploads_is_an_error_and_deletes_nothing() -> None:
    bucket = Bucket()
    bucket.offload(2)
    bucket.store.set_faults([Fault(call=1, verb="list_uploads", calls=99)])
    with pytest.raises(StoreUnavailableError):
        bucket.reconcile()
    bucket.check_readable()


def test_reconciling_without_orphans_asks_for_each_object_once() -> None:
    """The price of a run over a stream in order: lists, the manifest once, and what a topic of that name may have."""
    bucket = Bucket()
    bucket.offload(2)
    bucket.writer.log.checkpoint()
    bucket.reconcile(finds_by_prefix=True, now_ms=bucket.clock.now_ms())
    verbs = [verb for verb, _ in bucket.store.calls]
    assert (verbs.count("list_uploads"), verbs.count("list"), verbs.count("put")) == (1, 4, 0)
    assert len(verbs) == 13, bucket.store.calls
