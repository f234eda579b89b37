"""Reconciliation of every stream of a store, and of the objects below no stream."""

from __future__ import annotations

import contextlib
from uuid import uuid4

import pytest

from formats.documents import GLOBAL_HOLD_KEY, intent_key, lease_key
from formats.keys import boundary_key, data_key, manifest_prefix, new_segment_uuid, record_key, stream_prefix
from formats.topic_layout import TopicLayout, layout_key
from offloader.errors import CorruptError, NotFoundError, OffloaderError
from offloader.gc.orphans import Garbage, Outcome, Place
from offloader.gc.reconcile import StoreReconciliation
from offloader.manifest.boundary import create_boundary, listed
from offloader.manifest.catalog import forget_name, release_entry
from offloader.manifest.log import ManifestLog
from offloader.manifest.maintenance import delete_stream
from offloader.manifest.protection import lift_global_hold, set_global_hold, take_lease
from offloader.manifest.topic_layouts import record_layout
from offloader.settings import Duration, ManifestSettings
from offloader.store.base import OVERWRITE
from offloader.testing.faulty_store import Fault
from tests.gc.left_behind import DAY_S, HOUR_S, STREAM, Bucket, outcomes
from tests.support.golden_bucket import golden_cases
from tests.support.streams import StreamWriter, batch_of

#: Names that a Pulsar broker gave to its objects.
BROKERS_KEYS = [case[role]["key"] for case in golden_cases() for role in ("data", "index")]


class Everything:
    """A bucket, its reconciliation, and what failed."""

    def __init__(self) -> None:
        self.bucket = Bucket()
        self.failures: dict[str, OffloaderError] = {}
        self.needed: dict[Place, int] = {}

    def reconcile(self, *, delete: bool = True, age_hours: float = 24.0) -> list[Garbage]:
        run = StoreReconciliation(
            self.bucket.store,
            clock=self.bucket.clock,
            settings_of=lambda _: ManifestSettings(orphan_age_min=Duration(3600 * age_hours)),
            failed=self.failures.__setitem__,
            delete=delete,
        )
        found = list(run.leftovers())
        self.needed = {place: tally.objects for place, tally in run.needed.items()}
        return found


def test_every_stream_is_reconciled_and_every_other_object_counted() -> None:
    world = Everything()
    bucket = world.bucket
    bucket.offload(2)
    other = StreamWriter(bucket.inner, "public/default/persistent/payments")
    other.add([batch_of(1, 0, 10)])
    orphan = data_key(other.stream, new_segment_uuid(other.log.state.incarnation, 5))
    orphans = [*bucket.failed(), orphan]
    lost = StreamWriter(bucket.inner, "public/default/persistent/lost")
    bucket.inner.delete([f"_catalog/{lost.stream}"])
    gone = StreamWriter(bucket.inner, "public/default/persistent/gone")
    release_entry(bucket.inner, gone.stream, gone.log.state.incarnation)
    unlisted = [info.key for info in listed(bucket.inner, stream_prefix(lost.stream))]
    foreign = [*BROKERS_KEYS, "notes.txt", f"elsewhere/{uuid4()}", "_catalog/%", f"{STREAM}/below/x"]
    bucket.put(orphan, *foreign)
    topic = intent_key("public/default/persistent/topic")
    bucket.put("_probe/5", "_groups/dash%20boards", topic)
    upload = bucket.inner.begin_upload(BROKERS_KEYS[0])
    bucket.inner.begin_upload("_probe/6")
    before = {info.key for info in listed(bucket.inner, "")}
    assert {key for key, (_, outcome) in outcomes(world.reconcile()).items() if outcome == "DELETED"} == set()
    assert world.needed[Place.STORE] == 1
    bucket.clock.advance(DAY_S)

    dry = world.reconcile(delete=False)
    found = world.reconcile()

    expected = dict.fromkeys(orphans, ("UNNAMED", "DELETED"))
    expected |= dict.fromkeys(foreign, ("FOREIGN", "KEPT")) | dict.fromkeys(unlisted, ("UNLISTED", "KEPT"))
    # The entry was let go of, and its manifest isn't deleted: nobody knows what that is.
    expected[manifest_prefix(gone.stream, gone.log.state.incarnation)] = ("DEAD_MANIFEST", "DELETED")
    expected |= dict.fromkeys(("_probe/5", "_probe/6"), ("SCRATCH", "DELETED"))
    by_key = outcomes(found)
    assert by_key == expected
    assert {key: reason for key, (reason, _) in outcomes(dry).items()} == {
        key: reason for key, (reason, _) in by_key.items()
    }
    assert list(world.failures) == [lost.stream]
    left = before - set(orphans) - {key for key in before if key.startswith(f"{gone.stream}/")}
    assert {info.key for info in listed(bucket.inner, "")} == left - {"_probe/5"}
    assert [each.upload_id for each in bucket.inner.list_uploads("")] == [upload]
    assert sum(world.needed.values()) + len(foreign) + len(unlisted) == len(left) - 1
    assert (world.needed[Place.SEGMENT], world.needed[Place.CATALOGUE]) == (6, 3)
    assert Place.STORE not in world.needed
    assert world.needed[Place.RETENTION] == 2


def test_late_record_of_a_deleted_forgotten_stream_is_deleted() -> None:
    world = Everything()
    bucket = world.bucket
    stalled = ManifestLog(bucket.inner, STREAM, clock=bucket.clock)
    incarnation = stalled.load().incarnation
    for _ in range(3):
        with contextlib.suppress(NotFoundError):
            delete_stream(bucket.inner, STREAM, clock=bucket.clock, delete_objects=lambda _: None)
        bucket.clock.advance(DAY_S + HOUR_S)
        forget_name(bucket.inner, STREAM, clock=bucket.clock, now_ms=bucket.clock.now_ms())
    assert [info.key for info in listed(bucket.inner, "") if STREAM in info.key] == []
    bucket.put(record_key(STREAM, incarnation, 2))  # its request was on its way all the time
    lost = StreamWriter(bucket.inner, "public/default/persistent/lost")
    segment = data_key(lost.stream, lost.add([batch_of(1, 0, 10)]))
    bucket.inner.delete([f"_catalog/{lost.stream}", boundary_key(lost.stream, lost.log.state.incarnation)])
    needed = {info.key for info in listed(bucket.inner, stream_prefix(lost.stream))}
    late = manifest_prefix(STREAM, incarnation)

    assert outcomes(world.reconcile())[record_key(STREAM, incarnation, 2)] == ("UNLISTED", "KEPT"), "it is young"
    bucket.clock.advance(DAY_S)
    assert outcomes(world.reconcile(delete=False)).get(late) == ("DEAD_MANIFEST", "DELETABLE")
    set_global_hold(bucket.inner, by="ana", reason="a test", now_ms=5)
    assert outcomes(world.reconcile()).get(late) == ("HELD", "KEPT")
    lift_global_hold(bucket.inner)
    assert outcomes(world.reconcile()).get(late) == ("DEAD_MANIFEST", "DELETED")
    assert [info.key for info in listed(bucket.inner, "") if STREAM in info.key] == []
    assert segment in needed
    assert {info.key for info in listed(bucket.inner, stream_prefix(lost.stream))} == needed, "it can be rebuilt"


def test_boundary_recreated_by_a_stalled_deletion_is_deleted() -> None:
    """The second deleter read the catalogue entry, stalled until the first had finished, and created the boundary."""
    world = Everything()
    bucket = world.bucket
    stalled = ManifestLog(bucket.inner, STREAM, clock=bucket.clock)
    incarnation = stalled.load().incarnation
    for _ in range(3):
        with contextlib.suppress(NotFoundError):
            delete_stream(bucket.inner, STREAM, clock=bucket.clock, delete_objects=lambda _: None)
        bucket.clock.advance(DAY_S + HOUR_S)
        forget_name(bucket.inner, STREAM, clock=bucket.clock, now_ms=bucket.clock.now_ms())
    assert create_boundary(bucket.inner, STREAM, incarnation)
    late = manifest_prefix(STREAM, incarnation)

    assert outcomes(world.reconcile())[boundary_key(STREAM, incarnation)] == ("UNLISTED", "KEPT"), "it is young"
    bucket.clock.advance(DAY_S)
    assert outcomes(world.reconcile()).get(late) == ("DEAD_MANIFEST", "DELETED")
    assert [info.key for info in listed(bucket.inner, "") if STREAM in info.key] == []


@pytest.mark.parametrize("boundary", ["names a record", "damaged"])
def test_boundary_naming_lost_records_stays(boundary: str) -> None:
    world = Everything()
    bucket = world.bucket
    writer = StreamWriter(bucket.inner, "public/default/persistent/lost")
    writer.log.open_epoch()
    writer.log.checkpoint()
    incarnation = writer.log.state.incarnation
    key = boundary_key(writer.stream, incarnation)
    others = [info.key for info in listed(bucket.inner, stream_prefix(writer.stream)) if info.key != key]
    assert others
    bucket.inner.delete([*others, f"_catalog/{writer.stream}"])
    if boundary == "damaged":
        bucket.put(key)
    bucket.clock.advance(DAY_S + HOUR_S)

    assert outcomes(world.reconcile())[key] == ("UNLISTED", "KEPT")


def test_probe_objects_stay_during_a_global_hold() -> None:
    world = Everything()
    world.bucket.put("_probe/5")
    world.bucket.inner.begin_upload("_probe/6")
    world.bucket.clock.advance(DAY_S)
    set_global_hold(world.bucket.inner, by="ana", reason="a test", now_ms=5)
    for _ in range(2):
        assert outcomes(world.reconcile()) == dict.fromkeys(("_probe/5", "_probe/6"), ("HELD", "KEPT"))
    lift_global_hold(world.bucket.inner)
    assert outcomes(world.reconcile()) == dict.fromkeys(("_probe/5", "_probe/6"), ("SCRATCH", "DELETED"))


def test_nothing_of_a_broker_that_shares_the_bucket_is_touched_at_any_age() -> None:
    """Names that a broker gave, at the root and where our own would be; and uploads of it."""
    world = Everything()
    bucket = world.bucket
    bucket.offload()
    orphans = bucket.failed()
    segments = [segment for case in golden_cases("v2") for segment in case["segments"]]
    theirs = [*BROKERS_KEYS, *(segment[role]["key"] for segment in segments for role in ("data", "index"))]
    assert len(theirs) >= 16
    bucket.put(*theirs, *(f"{STREAM}/{key}" for key in theirs))
    for key in (theirs[0], f"{STREAM}/{theirs[2]}"):
        bucket.inner.begin_upload(key)
    before = {info.key: info.etag for info in listed(bucket.inner, "")}
    bucket.clock.advance(1000 * DAY_S)

    found = world.reconcile(age_hours=0)

    ours = {each.key for each in found if each.outcome is not Outcome.KEPT}
    assert ours == set(orphans)
    assert len(found) - len(ours) == 2 * len(theirs) + 2
    after = {info.key: info.etag for info in listed(bucket.inner, "")}
    assert after == {key: etag for key, etag in before.items() if key not in ours}
    assert len(bucket.inner.list_uploads("")) == 2


def test_broken_stream_is_reported_and_others_are_reconciled() -> None:
    world = Everything()
    bucket = world.bucket
    bucket.offload()
    orphans = bucket.failed()
    broken = StreamWriter(bucket.inner, "public/default/persistent/a-broken-one")
    left = data_key(broken.stream, new_segment_uuid(broken.log.state.incarnation, 5))
    bucket.put(left)
    key = f"{manifest_prefix(broken.stream, broken.log.state.incarnation)}{1:020d}.json"
    bucket.inner.put(key, b"{}", mode=OVERWRITE)
    away = StreamWriter(bucket.inner, "public/default/persistent/z-away")
    bucket.clock.advance(DAY_S)
    bucket.store.set_faults([Fault(call=1, verb="list_uploads", key_part=away.stream)])

    found = world.reconcile()

    assert {each.key for each in found if each.outcome is Outcome.DELETED} == set(orphans)
    assert set(world.failures) == {broken.stream, away.stream}
    assert isinstance(world.failures[broken.stream], CorruptError)
    bucket.inner.head(left)


def test_global_hold_is_an_object_of_the_store() -> None:
    world = Everything()
    world.bucket.offload()
    set_global_hold(world.bucket.inner, by="me", reason="a test", now_ms=5)
    assert world.reconcile() == []
    assert world.needed[Place.STORE] == 1
    world.bucket.inner.head(GLOBAL_HOLD_KEY)


def test_leases_on_missing_streams_are_deleted_long_after_their_end() -> None:
    """A reader that dies before it learns that there is nothing to read, or outlives the stream."""
    world = Everything()
    bucket = world.bucket
    bucket.offload()
    never = take_lease(bucket.inner, "public/default/persistent/never", 3600, clock=bucket.clock, reader="ana")
    bucket.put("public/default/persistent/never/leases/notes.txt")
    key = lease_key(never.lease.stream, never.lease.uuid)

    assert outcomes(world.reconcile()) == {"public/default/persistent/never/leases/notes.txt": ("FOREIGN", "KEPT")}
    assert world.needed[Place.LEASE] == 1
    bucket.clock.advance(DAY_S)
    world.reconcile()
    bucket.inner.head(key)
    bucket.clock.advance(HOUR_S + 1)
    assert outcomes(world.reconcile(delete=False))[key] == ("ENDED", "DELETABLE")
    assert outcomes(world.reconcile())[key] == ("ENDED", "DELETED")
    assert key not in {info.key for info in listed(bucket.inner, "")}
    assert Place.LEASE not in world.needed


def test_layouts_of_scalable_topics_are_needed() -> None:
    world = Everything()
    layout = TopicLayout(topic="topic://t/n/orders", epoch=0, segments=())
    record_layout(world.bucket.store, "t/n/topic/orders", layout)
    world.bucket.put("t/n/topic/orders/other.json")
    world.bucket.clock.advance(DAY_S + HOUR_S)
    assert [found.key for found in world.reconcile()] == ["t/n/topic/orders/other.json"]
    assert layout_key("t/n/topic/orders") in {info.key for info in world.bucket.inner.list("").objects}
    assert world.needed[Place.CATALOGUE] == 2  # and the entry of the bucket's stream
