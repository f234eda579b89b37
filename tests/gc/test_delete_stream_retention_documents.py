"""Retention documents of deleted streams and topics are deleted, and those of live ones never."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from uuid import UUID

import pytest

from formats.documents import (
    AwaitedReaders,
    Subscribers,
    awaited_key,
    document_key,
    intent_key,
    retention_prefix,
    topic_key,
)
from formats.entries import Position
from formats.keys import catalog_key
from offloader.errors import NotFoundError, OffloaderError, StoreUnavailableError
from offloader.gc.delete_stream import remove_stream
from offloader.gc.orphans import Garbage, Outcome, Place, Reason
from offloader.gc.reconcile import StoreReconciliation
from offloader.gc.sweep import cleanup_all
from offloader.groups.group_service import open_reader_groups
from offloader.groups.reader_groups import GroupConfig, RetentionType
from offloader.manifest.boundary import listed
from offloader.manifest.log import ManifestLog
from offloader.manifest.protection import TIME_KEY, take_lease
from offloader.retention.subscribers import open_retention
from offloader.retention.truncate import truncate_topic
from offloader.settings import ManifestSettings, Settings
from offloader.store.base import ObjectStore
from offloader.store.memory import MemoryStore
from offloader.testing.faulty_store import Fault, FaultyStore
from offloader.testing.manual_clock import ManualClock
from tests.retention.retained_streams import STREAM, TOPIC, Bench
from tests.support.streams import StreamWriter, batch_of

pytestmark = pytest.mark.slow

PARTITIONS = [f"{TOPIC}-partition-{number}" for number in range(3)]
DAY_S = 24 * 3600.0
GRACELESS = Settings.of({"cleanup": {"grace_period": "0h", "allow_large_delete": True}})
_names = itertools.count()


def lived() -> Bench:
    """A stream and a topic of three partitions with everything that retention and cleanup keep of them."""
    bench = Bench(policy="size", min_size="20KiB", max_size="1000KiB")
    for name, streams in ((STREAM, [STREAM]), (TOPIC, PARTITIONS)):
        for stream in streams:
            bench.writers[stream] = StreamWriter(bench.memory, stream, clock=bench.clock)
            bench.grow(stream, 2)
        bench.subscribe("billing", name)
        for _ in range(6):
            for stream in streams:
                bench.grow(stream)
            bench.run(name)
    for ledger in (4, 5):
        bench.publish("billing", Position(ledger, 0))
        bench.publish("billing", dict.fromkeys(range(3), Position(ledger, 0)), TOPIC)
        bench.run()
        bench.run(TOPIC)
        rounds(bench)
        bench.clock.advance(60)
        rounds(bench)
        for stream in (STREAM, PARTITIONS[0]):
            take_lease(bench.memory, stream, 3600, clock=bench.clock, reader="ana@host")
    return bench


def rounds(bench: Bench, store: ObjectStore | None = None) -> None:
    for report in cleanup_all(store or bench.memory, clock=bench.clock, settings_of=lambda _: GRACELESS):
        assert report.error is None


def kinds(bench: Bench, name: str) -> set[str]:
    """What lies below the ``retention/`` folder of a name: the last or first part of the keys there."""
    rest = [info.key.removeprefix(retention_prefix(name)) for info in listed(bench.memory, retention_prefix(name))]
    return {key.partition("/")[0] if key[:4] in ("dele", "awai") else key.rpartition("/")[2] for key in rest}


def remaining(store: MemoryStore) -> dict[str, int]:
    return {info.key: info.size_bytes for info in listed(store, "") if info.key != TIME_KEY}


def reconcile(store: ObjectStore, clock: ManualClock, *, delete: bool = True) -> tuple[list[Garbage], int]:
    """What was left over, and how many objects of retention are needed."""
    failures: dict[str, OffloaderError] = {}
    run = StoreReconciliation(
        store, clock=clock, settings_of=lambda _: ManifestSettings(), failed=failures.__setitem__, delete=delete
    )
    found = list(run.leftovers())
    # Partitions that may return have no entry.
    assert [error for error in failures.values() if "no catalogue entry" not in str(error)] == []
    return found, run.needed[Place.RETENTION].objects if Place.RETENTION in run.needed else 0


def test_a_stream_and_a_topic_leave_nothing() -> None:
    bench = lived()
    assert kinds(bench, STREAM) == {"subscribers", "records", "decisions", "deleted"}
    assert kinds(bench, TOPIC) == {"subscribers", "records", "decisions", "topic", "truncation.json"}
    assert kinds(bench, PARTITIONS[0]) == {"deleted"}
    for stream in (STREAM, PARTITIONS[0]):
        bench.memory.put(awaited_key(stream, 7), AwaitedReaders(UUID(int=1), 7, ()).encode())
    for stream in (STREAM, *PARTITIONS):
        remove_stream(bench.memory, stream, clock=bench.clock, ignore_leases=True)
    rounds(bench)
    assert "subscribers" in kinds(bench, TOPIC), "its partitions may still be asked for"
    bench.clock.advance(DAY_S + 1)
    rounds(bench)
    assert remaining(bench.memory) == {}
    assert reconcile(bench.memory, bench.clock) == ([], 0)


def test_stalled_deleter_never_takes_registry_of_recreated_stream() -> None:
    """It stalls before each of its requests in turn, until the stream is deleted and created again."""
    protected = 0
    for stalls_at in range(1, 100):
        clock = ManualClock()
        memory = MemoryStore(f"retention-left-{next(_names)}", "", clock)
        made: list[set[str]] = []

        def anew(memory: MemoryStore = memory, clock: ManualClock = clock, made: list[set[str]] = made) -> None:
            for _ in range(2):
                clock.advance(DAY_S + 1)
                with contextlib.suppress(NotFoundError):
                    remove_stream(memory, STREAM, clock=clock, ignore_leases=True)
            made.append(begun(memory, clock))

        class Stalling(FaultyStore):
            def _next(self, verb: str, key: str, at: int = stalls_at, anew: Callable[[], None] = anew) -> Fault | None:
                if len(self.calls) + 1 == at:
                    anew()
                return super()._next(verb, key)

        begun(memory, clock)
        store = Stalling(memory)
        with contextlib.suppress(OffloaderError):
            remove_stream(store, STREAM, clock=clock, ignore_leases=True)
        if not made:
            assert protected > 10
            return
        # Until it has read the entry, it is told to delete the stream that is there then.
        reads = [number for number, call in enumerate(store.calls, 1) if call[1] == catalog_key(STREAM)]
        if stalls_at > reads[1]:
            protected += 1
            assert made[0] <= set(remaining(memory)), stalls_at
            assert open_retention(memory, STREAM, clock=clock).registry().names() == ["billing"]
    raise AssertionError("the deleter never came to an end")


def begun(memory: MemoryStore, clock: ManualClock) -> set[str]:
    """Creates the stream, with a registry and readers that are waited for; the keys of what is kept of it."""
    writer = StreamWriter(memory, STREAM, clock=clock)
    writer.add([batch_of(1, 0, 10)])
    open_retention(memory, STREAM, clock=clock).add("billing")
    incarnation = writer.log.state.incarnation
    memory.put(awaited_key(STREAM, 7), AwaitedReaders(incarnation, 7, ()).encode())
    return {document_key(Subscribers, STREAM, incarnation)}


def test_old_documents_of_dead_incarnations_are_deleted() -> None:
    bench = lived()
    dead = UUID(int=1, version=4)
    late = [document_key(Subscribers, name, dead) for name in (STREAM, TOPIC)]
    before = set(remaining(bench.memory))
    for key in late:
        bench.memory.put(key, b"written late")
    found, needed = reconcile(bench.memory, bench.clock)
    assert {each.key: each.reason for each in found} == dict.fromkeys(late, Reason.YOUNG)
    bench.clock.advance(DAY_S + 1)
    looked, _ = reconcile(bench.memory, bench.clock, delete=False)
    assert {each.key for each in looked if each.outcome is Outcome.DELETABLE} >= set(late)
    found, again = reconcile(bench.memory, bench.clock)
    assert {each.key for each in found if each.place is Place.RETENTION} == set(late)
    assert needed == again
    gone = before - set(remaining(bench.memory))
    assert {key.split("/")[-2] for key in gone} <= {"leases"}


def test_topic_documents_stay_while_a_partition_lives_or_may_return() -> None:
    bench = lived()
    kept = kinds(bench, TOPIC)
    for stream in PARTITIONS[:2]:
        remove_stream(bench.memory, stream, clock=bench.clock, ignore_leases=True)
    bench.clock.advance(DAY_S + 1)
    rounds(bench)
    reconcile(bench.memory, bench.clock)
    assert kinds(bench, TOPIC) == kept
    # The last one's catalogue entry is lost: `manifest rebuild` can bring it back.
    bench.memory.delete([catalog_key(PARTITIONS[2])])
    bench.clock.advance(DAY_S + 1)
    reconcile(bench.memory, bench.clock)
    assert kinds(bench, TOPIC) == kept
    # Nobody knows what the documents are of while the entry is damaged.
    bench.memory.put(topic_key(TOPIC), b"damaged")
    late = document_key(Subscribers, TOPIC, UUID(int=1, version=4))
    bench.memory.put(late, b"x")
    bench.clock.advance(DAY_S + 1)
    found, _ = reconcile(bench.memory, bench.clock)
    documents = {each.key: each.reason for each in found if each.key.startswith(retention_prefix(TOPIC))}
    assert set(documents.values()) == {Reason.DOUBTFUL}
    assert late in documents
    assert kinds(bench, TOPIC) == kept


def test_a_topic_keeps_its_registry_where_a_stream_of_that_name_was_deleted() -> None:
    clock = ManualClock()
    memory = MemoryStore(f"retention-left-{next(_names)}", "", clock)
    ManifestLog(memory, TOPIC, clock=clock).open_epoch()
    open_retention(memory, TOPIC, clock=clock).add("of the stream")
    for _ in range(2):
        remove_stream(memory, TOPIC, clock=clock)
        clock.advance(DAY_S + 1)
    for stream in PARTITIONS:
        StreamWriter(memory, stream, clock=clock).add([batch_of(1, 0, 10)], closes=[1])
    open_retention(memory, TOPIC, clock=clock).add("of the topic")
    truncate_topic(memory, TOPIC, {PARTITIONS[0]: Position(1, 4)}, clock=clock, by="me")
    clock.advance(DAY_S + 1)
    found, needed = reconcile(memory, clock)
    assert (found, needed) == ([], 3)
    assert open_retention(memory, TOPIC, clock=clock).registry().names() == ["of the topic"]
    # And the other way round: its partitions go, and a stream of that name is there again.
    for _ in range(2):
        for stream in PARTITIONS:
            with contextlib.suppress(NotFoundError):
                remove_stream(memory, stream, clock=clock)
        clock.advance(DAY_S + 1)
    ManifestLog(memory, TOPIC, clock=clock).open_epoch()
    open_retention(memory, TOPIC, clock=clock).add("of the second stream")
    reconcile(memory, clock)
    assert open_retention(memory, TOPIC, clock=clock).registry().names() == ["of the second stream"]
    void = {key: size for key, size in remaining(memory).items() if key in (topic_key(TOPIC), intent_key(TOPIC))}
    assert void == {topic_key(TOPIC): 0, intent_key(TOPIC): 0}


def test_reader_group_documents_are_needed_and_unknown_names_foreign() -> None:
    bench = lived()
    groups = open_reader_groups(bench.memory, clock=bench.clock)
    groups.create("dash.boards-1", GroupConfig([STREAM], RetentionType.AUTOMATIC))
    groups.create("gone", GroupConfig([TOPIC], RetentionType.MANUAL))
    groups.delete("gone")
    _, before = reconcile(bench.memory, bench.clock)
    foreign = ["_groups/a/b", f"{STREAM}/retention/notes", f"{TOPIC}/retention/notes", "elsewhere/retention/notes"]
    for key in foreign:
        bench.memory.put(key, b"somebody's notes")
    bench.clock.advance(1000 * DAY_S)
    found, needed = reconcile(bench.memory, bench.clock)
    assert {each.key for each in found if each.reason is Reason.FOREIGN} == set(foreign)
    assert needed == before
    assert {"_groups/dash.boards-1", "_groups/gone", *foreign} <= set(remaining(bench.memory))


def test_concurrently_replaced_topic_entry_stays() -> None:
    bench = lived()
    for _ in range(2):
        for stream in PARTITIONS:
            with contextlib.suppress(NotFoundError):
                remove_stream(bench.memory, stream, clock=bench.clock, ignore_leases=True)
        bench.clock.advance(DAY_S + 1)

    class Racing(FaultyStore):
        def _next(self, verb: str, key: str) -> Fault | None:
            if (verb, key) == ("put", topic_key(TOPIC)) and not raced:
                raced.append(key)
                StreamWriter(bench.memory, PARTITIONS[0], clock=bench.clock).add([batch_of(1, 0, 10)])
                open_retention(bench.memory, TOPIC, clock=bench.clock).add("new")
            return super()._next(verb, key)

    raced: list[str] = []
    found, _ = reconcile(Racing(bench.memory), bench.clock)
    assert raced
    assert [each.outcome for each in found if each.key == topic_key(TOPIC)] == [Outcome.KEPT]
    assert open_retention(bench.memory, TOPIC, clock=bench.clock).registry().names() == ["new"]


def test_store_failure_is_reported() -> None:
    bench = lived()
    for _ in range(2):
        for stream in PARTITIONS:
            with contextlib.suppress(NotFoundError):
                remove_stream(bench.memory, stream, clock=bench.clock, ignore_leases=True)
        bench.clock.advance(DAY_S + 1)
    store = FaultyStore(bench.memory)
    store.set_faults([Fault(call=1, calls=10**6, verb="put", key_part="/retention/")])
    with pytest.raises(AssertionError, match="StoreUnavailableError"):
        reconcile(store, bench.clock)
    assert issubclass(StoreUnavailableError, OffloaderError)


def test_late_documents_of_unknown_names_go_when_old() -> None:
    """A publisher stalled until nothing was left; but not while a partition's manifest may bring the topic back."""
    bench = lived()
    for stream in (STREAM, *PARTITIONS):
        remove_stream(bench.memory, stream, clock=bench.clock, ignore_leases=True)
    bench.clock.advance(DAY_S + 1)
    rounds(bench)
    assert remaining(bench.memory) == {}
    dead = UUID(int=1, version=4)
    late = {document_key(Subscribers, name, dead) for name in (STREAM, TOPIC)}
    late.add(awaited_key(STREAM, 7))
    for key in late:
        bench.memory.put(key, AwaitedReaders(UUID(int=1), 7, ()).encode())
    found, _ = reconcile(bench.memory, bench.clock)
    assert {each.key: each.reason for each in found} == dict.fromkeys(late, Reason.YOUNG)
    bench.clock.advance(DAY_S + 1)
    lost = StreamWriter(bench.memory, PARTITIONS[1], clock=bench.clock)
    bench.memory.delete([catalog_key(PARTITIONS[1])])
    of_topic = document_key(Subscribers, TOPIC, dead)

    found, _ = reconcile(bench.memory, bench.clock)

    assert {each.key for each in found if each.outcome is Outcome.DELETED} == late - {of_topic}
    assert next(each.reason for each in found if each.key == of_topic) is Reason.DOUBTFUL
    bench.memory.delete([info.key for info in listed(bench.memory, f"{lost.stream}/")])
    found, _ = reconcile(bench.memory, bench.clock)
    assert {each.key: each.outcome for each in found} == {of_topic: Outcome.DELETED}
    assert remaining(bench.memory) == {}


def test_deleting_plain_stream_keeps_documents_of_topic_of_that_name() -> None:
    bench = Bench()
    for stream in PARTITIONS:
        bench.grow(stream)
    bench.subscribe("billing", TOPIC)
    before = set(remaining(bench.memory))
    assert topic_key(TOPIC) in before
    bench.grow(TOPIC)
    for _ in range(2):
        remove_stream(bench.memory, TOPIC, clock=bench.clock)
        bench.clock.advance(DAY_S + 1)
    assert before <= set(remaining(bench.memory))
    assert open_retention(bench.memory, TOPIC, clock=bench.clock).registry().names() == ["billing"]


def test_late_topic_document_is_deleted_beside_foreign_objects() -> None:
    clock = ManualClock()
    memory = MemoryStore(f"retention-left-{next(_names)}", "", clock)
    late = document_key(Subscribers, TOPIC, UUID(int=1, version=4))
    foreign = {f"{PARTITIONS[0]}/notes.txt", f"{PARTITIONS[0]}/manifest/notes.txt"}
    for key in (late, *foreign):
        memory.put(key, b"written late")
    clock.advance(DAY_S + 1)
    reconcile(memory, clock)
    assert remaining(memory).keys() == foreign


def test_a_topic_document_stays_while_a_manifest_could_restore_a_partition() -> None:
    clock = ManualClock()
    memory = MemoryStore(f"retention-left-{next(_names)}", "", clock)
    StreamWriter(memory, PARTITIONS[0], clock=clock).add([batch_of(1, 0, 10)])
    late = document_key(Subscribers, TOPIC, UUID(int=1, version=4))
    memory.put(late, b"of the topic")
    memory.delete([catalog_key(PARTITIONS[0])])
    clock.advance(DAY_S + 1)
    reconcile(memory, clock)
    assert late in remaining(memory)
