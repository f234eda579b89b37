"""A stream's subscriber registry in a store: scopes, incarnations, concurrent publishers, lost responses."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from formats.documents import (
    NONCES_KEPT,
    Subscribers,
    document_key,
    incarnation_of_retention_key,
    retention_prefix,
    topic_key,
)
from formats.entries import Position
from formats.keys import catalog_key
from formats.manifest import Truncate
from offloader.errors import (
    CorruptError,
    InvalidCallError,
    NotFoundError,
    OffloaderError,
    OutcomeUnknownError,
    StoreUnavailableError,
    UnsupportedError,
)
from offloader.ledgers.base import LedgerSource
from offloader.manifest.catalog import forget_documents, release_topic
from offloader.manifest.log import ManifestLog
from offloader.manifest.maintenance import delete_stream
from offloader.retention.scope import CONFLICTS_MAX, UNKNOWN_REPEATS_MAX, DocumentStore, find_scope
from offloader.retention.subscribers import Activity, PublishStatus, StreamRetention, open_retention
from offloader.store.base import Body, IfMatch, ObjectInfo, ObjectStore
from offloader.store.memory import MemoryStore
from offloader.testing.faulty_store import Fault, FaultyStore
from offloader.testing.manual_clock import ManualClock
from offloader.testing.memory_ledgers import MemoryLedgers
from tests.support.manifests import segment_edits

STREAM = "public/default/persistent/orders"
DAY_S = 24 * 3600.0
_names = itertools.count()


class Bench:
    """Streams of 10 entries of 10 bytes per segment in a store in memory."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.memory = MemoryStore(f"retention-{next(_names)}", "", self.clock)
        self.store = FaultyStore(self.memory)
        self.sources: dict[str, LedgerSource] = {}

    def stream(self, name: str = STREAM, *, segments: int = 3) -> ManifestLog:
        log = ManifestLog(self.memory, name, clock=self.clock)
        log.open_epoch()
        for number in range(segments):
            log.commit(segment_edits(number))
        return log

    def retention(self, name: str = STREAM, store: ObjectStore | None = None) -> StreamRetention:
        return open_retention(store or self.store, name, source_of=self.sources.get, clock=self.clock)

    def delete(self, name: str = STREAM) -> None:
        """As far as it goes without waiting, then the rest: the stream may be created again."""
        for _ in range(2):
            delete_stream(self.memory, name, clock=self.clock, delete_objects=lambda _: None)
            self.clock.advance(DAY_S + 1)


@pytest.fixture
def bench() -> Bench:
    found = Bench()
    found.stream()
    return found


def test_subscriber_registers_publishes_lags_and_is_removed(bench: Bench) -> None:
    retention = bench.retention()
    assert retention.subscribers() == []
    assert retention.remove("audit")
    retention.add("audit")
    retention.add("search", generation=7, start=Position(1, 10))
    retention.publish("audit", Position(1, 20))
    bench.clock.advance(100)
    retention.publish("search", Position(1, 30), generation=7)
    found = {each.subscriber.name: each for each in retention.subscribers(timeout_ms=60_000)}
    assert [(e.lag_bytes, e.lag_entries) for e in found.values()] == [(100, 10), (0, 0)]
    assert found["audit"].activity is Activity.TIMED_OUT
    assert found["search"].activity is Activity.ACTIVE
    assert found["search"].subscriber.generation == 7
    assert not retention.remove("search", generation=6)
    assert retention.remove("search", generation=7)
    assert retention.remove("audit")
    assert bench.retention().registry().names() == []


def test_truncated_entries_are_no_lag(bench: Bench) -> None:
    retention = bench.retention()
    retention.add("audit")
    retention.publish("audit", Position(1, 5))
    bench.stream(segments=0).commit([Truncate(Position(1, 20))])
    (found,) = retention.subscribers()
    assert (found.lag_bytes, found.lag_entries) == (100, 10)
    retention.publish("audit", Position(1, 12))
    assert retention.subscribers()[0].lag_entries == 10


@pytest.mark.parametrize(
    ("name", "cut", "generation", "kind", "what"),
    [
        ("nobody", Position(1, 5), None, NotFoundError, "nobody isn't registered; registered: audit"),
        ("audit", Position(1, 5), 4, InvalidCallError, "generation 3, not 4"),
        ("audit", Position(1, 31), 3, InvalidCallError, "1:31 is beyond the tail 1:30"),
        ("audit", Position(9, 0), 3, InvalidCallError, "9:0 is beyond the tail 1:30"),
        ("audit", Position(1, 9), 3, InvalidCallError, "isn't at or after 0.0=1:10"),
        ("audit", {3: Position(1, 20)}, 3, InvalidCallError, "no partition 3"),
        ("audit", {}, 3, InvalidCallError, "names no position"),
    ],
)
def test_refusals_are_named_and_change_nothing(
    bench: Bench,
    name: str,
    cut: Position | dict[int, Position],
    generation: int | None,
    kind: type[OffloaderError],
    what: str,
) -> None:
    retention = bench.retention()
    retention.add("audit", generation=3)
    retention.publish("audit", Position(1, 10))
    key = document_key(Subscribers, STREAM, retention.scope().incarnation or UUID(int=0))
    before = bench.memory.get(key)
    with pytest.raises(kind, match=what):
        retention.publish(name, cut, generation=generation)
    assert bench.memory.get(key) == before


def test_unknown_streams_and_single_partitions_are_refused(bench: Bench) -> None:
    with pytest.raises(NotFoundError, match=r"did you mean public/default/persistent/orders\?"):
        bench.retention("public/default/persistent/order")
    bench.stream("topic-partition-3")
    with pytest.raises(InvalidCallError, match="use the topic's name: topic"):
        bench.retention("topic-partition-3")
    retention = bench.retention()
    bench.delete()
    outcome = retention.try_publish("audit", Position(1, 10))
    assert outcome.status is PublishStatus.STREAM_NOT_FOUND
    assert isinstance(retention.refusal(outcome), NotFoundError)


def test_a_publish_reads_the_hot_tier_where_there_is_one(bench: Bench) -> None:
    ledgers = MemoryLedgers("hot", bench.clock)
    ledgers.append([b"x" * 10] * 40)
    bench.sources[STREAM] = ledgers
    retention = bench.retention()
    retention.add("audit")
    retention.publish("audit", Position(1, 35))
    with pytest.raises(InvalidCallError, match="beyond the tail 1:40"):
        retention.publish("audit", Position(1, 41))
    (found,) = retention.subscribers()
    # Its block, which is the rest of an open ledger, counts as not consumed; its entries do.
    assert (found.lag_bytes, found.lag_entries) == (100, 5)


def test_recreated_stream_inherits_no_subscribers(bench: Bench) -> None:
    retention = bench.retention()
    retention.add("audit")
    retention.publish("audit", Position(1, 20))
    old = retention.scope()
    assert old.incarnation is not None
    bench.delete()
    bench.stream(segments=4)
    assert retention.registry().names() == []
    assert retention.try_publish("audit", Position(1, 20)).status is PublishStatus.SUBSCRIBER_NOT_FOUND
    retention.add("other")
    # What the old incarnation left is of no key of the new one.
    keys = [info.key for info in bench.memory.list(retention_prefix(STREAM)).objects]
    assert {incarnation_of_retention_key(key, STREAM) for key in keys} == {
        old.incarnation,
        retention.scope().incarnation,
    }
    forget_documents(bench.memory, STREAM, old.incarnation)
    assert retention.registry().names() == ["other"]
    # Whoever has looked at the old one before counts in the new one.
    retention.publish("other", Position(1, 20))
    assert [each.lag_entries for each in retention.subscribers()] == [20]


class TestTopic:
    """State of a partitioned topic, under its own name."""

    @pytest.fixture
    def topic(self) -> Bench:
        bench = Bench()
        for number in (0, 1, 10):
            bench.stream(f"a/orders-partition-{number}")
        bench.stream("a/orders-partition-x")
        bench.stream("a/orders-partition-01")
        return bench

    def test_topic_cut_has_a_position_per_partition_and_missing_ones_count_nothing(self, topic: Bench) -> None:
        retention = topic.retention("a/orders")
        assert list(retention.scope().partitions) == [0, 1, 10]
        retention.add("audit")
        retention.publish("audit", {0: Position(1, 30), 10: Position(1, 10)})
        (found,) = retention.subscribers()
        assert (found.lag_bytes, found.lag_entries) == (500, 50)
        with pytest.raises(InvalidCallError, match="isn't at or after"):
            retention.publish("audit", {0: Position(1, 30), 1: Position(1, 30)})
        retention.publish("audit", {0: Position(1, 30), 1: Position(1, 30), 10: Position(1, 10)})
        assert retention.subscribers()[0].lag_entries == 20

    def test_a_head_in_one_partition_makes_up_for_no_lag_in_another(self, topic: Bench) -> None:
        retention = topic.retention("a/orders")
        retention.add("audit")
        retention.publish("audit", {0: Position(1, 5), 1: Position(1, 25)})
        topic.stream("a/orders-partition-0", segments=0).commit([Truncate(Position(1, 20))])
        assert retention.subscribers()[0].lag_entries == 10 + 5 + 30

    @pytest.mark.slow
    def test_lag_of_a_topic_covers_many_partitions(self) -> None:
        bench = Bench()
        for number in range(25):
            bench.stream(f"a/wide-partition-{number}", segments=1)
        retention = bench.retention("a/wide")
        retention.add("audit")
        retention.publish("audit", {number: Position(1, number % 11) for number in range(25)})
        (found,) = retention.subscribers()
        assert found.lag_entries == 250 - sum(number % 11 for number in range(25))
        bench.delete("a/wide-partition-7")
        assert len(retention.scope().partitions) == 24

    def test_partitions_can_be_added_and_recreated(self, topic: Bench) -> None:
        retention = topic.retention("a/orders")
        retention.add("audit")
        retention.publish("audit", {0: Position(1, 30), 1: Position(1, 20)})
        first = retention.scope().incarnation
        topic.stream("a/orders-partition-2")
        topic.delete("a/orders-partition-1")
        topic.stream("a/orders-partition-1")
        # Positions of the old partition 1 say nothing about the new one.
        assert retention.registry().subscribers["audit"].cut == retention.cuts().canonical(
            retention.registry().subscribers["audit"].cut or pytest.fail("no cut")
        )
        assert retention.subscribers()[0].lag_entries == 90
        retention.publish("audit", {0: Position(1, 30), 1: Position(1, 10), 2: Position(1, 30)})
        assert retention.subscribers()[0].lag_entries == 50
        assert retention.scope(create=True).incarnation == first

    @pytest.mark.slow
    def test_recreated_topic_inherits_nothing_and_its_old_entry_is_emptied(self, topic: Bench) -> None:
        retention = topic.retention("a/orders")
        retention.add("audit")
        first = retention.scope().incarnation
        assert first is not None
        assert not release_topic(topic.memory, "a/orders")
        for number in (0, 1, 10):
            topic.delete(f"a/orders-partition-{number}")
        with pytest.raises(NotFoundError):
            topic.retention("a/orders")
        topic.stream("a/orders-partition-0")
        again = topic.retention("a/orders")
        assert again.registry().names() == []
        again.add("other")
        assert again.scope().incarnation not in (None, first)
        assert not release_topic(topic.memory, "a/orders")
        topic.delete("a/orders-partition-0")
        assert release_topic(topic.memory, "a/orders")
        assert release_topic(topic.memory, "a/orders")
        left = {info.key: info.size_bytes for info in topic.memory.list("a/orders/retention/").objects}
        assert left == {topic_key("a/orders"): 0}

    def test_concurrent_creators_of_a_topic_entry_agree(self, topic: Bench) -> None:
        places = [find_scope(topic.memory, "a/orders", create=True) for _ in range(2)]
        assert places[0] == places[1]
        topic.store.set_faults([Fault(call=1, verb="put", key_part="/topic", after=True, error=OutcomeUnknownError)])
        other = Bench()
        other.stream("b-partition-0")
        other.store.set_faults([Fault(call=1, verb="put", key_part="/topic", after=True, error=OutcomeUnknownError)])
        with pytest.raises(OutcomeUnknownError):
            find_scope(other.store, "b", create=True)
        assert find_scope(other.store, "b", create=True) == find_scope(other.store, "b")


@pytest.mark.slow
def test_of_many_threads_that_publish_at_once_nothing_is_lost(bench: Bench) -> None:
    count, rounds = 8, 5
    errors: list[BaseException] = []
    barrier = threading.Barrier(count)

    def subscribe(number: int) -> None:
        try:
            retention = bench.retention(store=bench.memory)
            barrier.wait()
            retention.add(f"s{number}")
            for step in range(rounds):
                retention.publish(f"s{number}", Position(1, number + step))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=subscribe, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    registry = bench.retention().registry()
    expected = {f"s{n}": f"0.0=1:{n + rounds - 1}" for n in range(count)}
    assert {name: str(each.cut) for name, each in registry.subscribers.items()} == expected
    retention = bench.retention()
    place = retention.scope()
    assert place.incarnation is not None
    stored = retention.documents.read(
        document_key(Subscribers, STREAM, place.incarnation), Subscribers(name=STREAM, partitions=())
    )
    # Every change is one revision, so none was written over another.
    assert stored.document.version.revision == count * (rounds + 1)


class TestAmbiguousAnswers:
    """The store answers that the outcome of a write is unknown."""

    def faults(self, bench: Bench, *, after: bool, calls: int = 1) -> None:
        bench.store.set_faults(
            [Fault(call=1, verb="put", key_part="/subscribers", after=after, error=OutcomeUnknownError, calls=calls)]
        )

    @pytest.mark.parametrize("after", [False, True])
    def test_unknown_outcome_is_verified_by_reading(self, bench: Bench, after: bool) -> None:
        retention = bench.retention()
        acts: list[Callable[[], object]] = [
            lambda: retention.add("audit"),
            lambda: retention.publish("audit", Position(1, 10)),
        ]
        for act in acts:
            self.faults(bench, after=after)
            act()
        found = bench.retention().registry().subscribers["audit"]
        assert str(found.cut) == "0.0=1:10"
        puts = [key for verb, key in bench.store.calls if verb == "put" and key.endswith("/subscribers")]
        assert len(puts) == (2 if after else 4), "what landed isn't sent again"

    def test_persistent_unknown_outcome_is_reported_and_a_retry_succeeds(self, bench: Bench) -> None:
        retention = bench.retention()
        self.faults(bench, after=False, calls=UNKNOWN_REPEATS_MAX + 1)
        with pytest.raises(OutcomeUnknownError):
            retention.add("audit")
        assert retention.registry().names() == []
        retention.add("audit")
        assert retention.registry().names() == ["audit"]

    @pytest.mark.parametrize("landed", [False, True])
    def test_later_writes_reveal_whether_an_unknown_publish_landed(self, bench: Bench, landed: bool) -> None:
        retention = bench.retention()
        retention.add("audit")
        key = document_key(Subscribers, STREAM, retention.scope().incarnation or UUID(int=0))
        other = bench.retention(store=bench.memory)
        racing = Racing(bench.memory, key, lambda: other.publish("audit", Position(1, 5 if not landed else 20)), landed)
        outcome = bench.retention(store=racing).try_publish("audit", Position(1, 10))
        assert racing.raced
        assert outcome.status is PublishStatus.SUCCESS
        assert str(bench.retention().registry().subscribers["audit"].cut) == f"0.0=1:{20 if landed else 10}"

    @pytest.mark.slow
    def test_outcome_stays_unknown_after_too_many_later_changes(self, bench: Bench) -> None:
        retention = bench.retention()
        retention.add("audit")
        key = document_key(Subscribers, STREAM, retention.scope().incarnation or UUID(int=0))
        other = bench.retention(store=bench.memory)

        def many() -> None:
            for number in range(NONCES_KEPT + 2):
                other.add(f"s{number}")

        racing = Racing(bench.memory, key, many, True)
        with pytest.raises(OutcomeUnknownError, match="look"):
            bench.retention(store=racing).publish("audit", Position(1, 10))

    def test_late_request_changes_nothing(self, bench: Bench) -> None:
        retention = bench.retention()
        retention.add("audit")
        key = document_key(Subscribers, STREAM, retention.scope().incarnation or UUID(int=0))
        body, info = bench.memory.get(key)
        retention.publish("audit", Position(1, 10))
        retention.remove("audit")
        retention.add("audit")
        # The same content again has another ETag, because its nonce is another.
        with pytest.raises(OffloaderError):
            bench.memory.put(key, body, mode=IfMatch(info.etag))

    def test_endless_conflicts_end(self, bench: Bench) -> None:
        retention = bench.retention()
        retention.add("audit")
        documents = DocumentStore(bench.memory, bench.clock)
        key = document_key(Subscribers, STREAM, retention.scope().incarnation or UUID(int=0))
        empty = Subscribers(name=STREAM, partitions=())
        numbers = itertools.count(1)

        def alter(stored: object) -> Subscribers:
            bench.retention(store=bench.memory).add("audit", generation=next(numbers))
            return empty

        with pytest.raises(StoreUnavailableError, match=f"{CONFLICTS_MAX} times"):
            documents.change(key, empty, alter)
        assert retention.registry().names() == ["audit"]


class Racing(FaultyStore):
    """Loses the answer of the first put of ``key``, after others changed it; it landed before them, or never does."""

    def __init__(self, inner: ObjectStore, key: str, others: Callable[[], object], landed: bool) -> None:
        super().__init__(inner)
        self.raced = False
        self._key, self._others, self._landed = key, others, landed

    def put(self, key: str, body: Body, **given: Any) -> ObjectInfo:
        if key != self._key or self.raced:
            return super().put(key, body, **given)
        self.raced = True
        if self._landed:
            super().put(key, body, **given)
        self._others()
        raise OutcomeUnknownError(f"put of {key} broke off")


class TestClocks:
    """The clock by which a subscriber's inactivity is measured."""

    def test_slow_clock_does_not_expire_its_subscriber(self, bench: Bench) -> None:
        slow = ManualClock(bench.clock.now_ms() - 3_600_000)
        retention = open_retention(bench.memory, STREAM, clock=slow)
        retention.add("audit")
        for step in range(4):
            retention.publish("audit", Position(1, step))
            bench.clock.advance(20)
        (found,) = bench.retention().subscribers(timeout_ms=60_000)
        assert found.activity is Activity.ACTIVE

    def test_fast_clock_does_not_keep_its_subscriber_forever(self, bench: Bench) -> None:
        fast = ManualClock(bench.clock.now_ms() + 10**12)
        retention = open_retention(bench.memory, STREAM, clock=fast)
        retention.add("audit")
        retention.publish("audit", Position(1, 10))
        bench.clock.advance(61)
        (found,) = bench.retention().subscribers(timeout_ms=60_000)
        assert found.activity is Activity.TIMED_OUT


def test_damaged_registry_is_reported_and_unregisters_no_subscriber(bench: Bench) -> None:
    retention = bench.retention()
    retention.add("audit")
    key = document_key(Subscribers, STREAM, retention.scope().incarnation or UUID(int=0))
    body = bench.memory.get(key)[0]
    bench.memory.put(key, body.replace(b"audit", b"audio"))
    for act in (retention.registry, lambda: retention.add("x"), lambda: retention.publish("audit", Position(1, 1))):
        with pytest.raises(CorruptError, match="CRC-32C"):
            act()
    bench.memory.put(key, b"")
    with pytest.raises(CorruptError):
        retention.registry()
    from formats.checked_json import sealed

    bench.memory.put(key, sealed({"format": 2}))
    with pytest.raises(UnsupportedError, match="later release"):
        retention.registry()


def test_a_damaged_catalogue_or_topic_entry_is_no_missing_one(bench: Bench) -> None:
    bench.stream("t-partition-0")
    bench.retention("t").add("audit")
    bench.memory.put(topic_key("t"), b"{}")
    with pytest.raises(CorruptError):
        bench.retention("t")
    bench.memory.put(catalog_key("t-partition-0"), b"{}")
    with pytest.raises(CorruptError):
        bench.retention("t")


def test_topic_keeps_its_identity_while_a_lost_partition_entry_can_be_restored() -> None:
    """All entries are lost, and another partition is added before they are brought back."""
    bench = Bench()
    names = [f"orders-partition-{number}" for number in range(3)]
    for name in names[:2]:
        bench.stream(name)
    bench.retention("orders").add("billing")
    bench.retention("orders").publish("billing", {0: Position(1, 20), 1: Position(1, 30)})
    before = find_scope(bench.memory, "orders").incarnation
    entries = {name: bench.memory.get(catalog_key(name))[0] for name in names[:2]}
    bench.memory.delete([catalog_key(name) for name in names[:2]])
    bench.stream(names[2])

    bench.retention("orders").add("search")

    place = find_scope(bench.memory, "orders", create=True)
    assert (place.incarnation, list(place.partitions)) == (before, [2])
    for name, entry in entries.items():
        bench.memory.put(catalog_key(name), entry)
    registry = bench.retention("orders").registry()
    assert registry.names() == ["billing", "search"]
    assert len(find_scope(bench.memory, "orders", create=True).partitions) == 3
    # What was written meanwhile forgot the positions in what was missing: it counts as unread, which deletes nothing.
    assert [each.lag_entries for each in bench.retention("orders").subscribers()] == [90, 90]


def test_subscriber_that_is_removed_before_the_lost_answer_of_its_registration_was_registered() -> None:
    bench = Bench()
    bench.stream()
    bench.retention().add("other")
    other = bench.retention(store=bench.memory)

    class LosingAnswers(FaultyStore):
        """Removes the subscriber after the write whose answer is lost."""

        def around(self, request: Any, call: Callable[[], Any]) -> Any:
            try:
                return super().around(request, call)
            except OutcomeUnknownError:
                assert other.remove("ann")
                raise

    lost = Fault(call=1, verb="put", key_part="subscribers", after=True, error=OutcomeUnknownError)
    added = bench.retention(store=LosingAnswers(bench.memory, [lost])).add("ann")
    assert added.name == "ann"
    assert set(bench.retention().registry().subscribers) == {"other"}
