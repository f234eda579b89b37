"""Pulsar's subscriptions as retention subscribers: exactly the data known to be needed stays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from formats.entries import EntryBatch, Position
from offloader.errors import NotFoundError, OffloaderError, StoreUnavailableError
from offloader.ledgers.pulsar.admin import AdminClient
from offloader.retention.cuts import StreamCut, partition_segment
from offloader.retention.subscribers import SUBSCRIBER_NAME_CHARS_MAX, open_retention, require_subscriber_name
from offloader.service.providers.pulsar import PulsarSubscribers, subscriber_name
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from offloader.testing.manual_clock import ManualClock
from tests.support.pulsar_admin import FakeAdmin
from tests.support.pulsar_broker import FakeBroker
from tests.support.pulsar_topics import FakeTopic
from tests.support.streams import StreamWriter

STREAM = "t/n/persistent/x"
TOPIC = "persistent://t/n/x"
MINUTE_MS = 60_000


@dataclass
class Place:
    """A cluster, a store, and what was offloaded from the one into the other."""

    broker: FakeBroker
    fake: FakeAdmin
    store: ObjectStore
    admin: AdminClient
    clock: ManualClock
    topics: dict[str, FakeTopic] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.subscribers = PulsarSubscribers(
            self.admin, "offloader", lambda name: open_retention(self.store, name, clock=self.clock)
        )

    def make(self, name: str = TOPIC, *, ledgers: int = 3, entries: int = 10) -> FakeTopic:
        """A topic whose closed ledgers are offloaded."""
        topic = self.topics[name] = FakeTopic(self.broker, name)
        writer = StreamWriter(self.store, name.removeprefix("persistent://").replace("/n/", "/n/persistent/"))
        for _ in range(ledgers):
            positions = [topic.append(b"entry %d" % number) for number in range(entries)]
            topic.roll()
            batch = EntryBatch.build(positions[0].ledger_id, 0, [b"entry %d" % n for n in range(entries)])
            writer.add([batch], closes=[positions[0].ledger_id])
        self.fake.add(topic)
        return topic

    def tell(self, *, timeout_ms: int | None = None) -> None:
        self.subscribers.tell(TOPIC, timeout_ms=timeout_ms)

    def cuts(self, place: str = STREAM) -> dict[str, dict[int, Position] | None]:
        registry = open_retention(self.store, place, clock=self.clock).registry()
        return {
            name: None if each.cut is None else {s.number: at for s, at in each.cut.offsets.items()}  # type: ignore[misc]
            for name, each in registry.subscribers.items()
        }


@pytest.fixture
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    clock = ManualClock()
    with FakeBroker() as broker, FakeAdmin() as fake, AdminClient(fake.url) as admin:
        yield Place(broker, fake, open_store(f"memory://{request.node.name}", clock=clock), admin, clock)


def test_mark_delete_positions_become_cuts(place: Place) -> None:
    topic = place.make()
    for name in ("billing", "fresh", "offloader", "__compaction", "pulsar.repl.west"):
        topic.subscribe(name)
    topic.subscribe("reader-1", durable=False)
    topic.acknowledge("billing", Position(2, 3))
    topic.acknowledge("offloader", Position(3, 9))

    place.tell()

    assert place.cuts() == {"pulsar:billing": {0: Position(2, 4)}, "pulsar:fresh": {0: Position(1, 0)}}
    topic.acknowledge("billing", Position(2, 9))
    place.tell()
    # The end of a ledger is the beginning of the next one.
    assert place.cuts()["pulsar:billing"] == {0: Position(3, 0)}


def test_acknowledgement_beyond_known_entries_counts_up_to_the_known_end(place: Place) -> None:
    topic = place.make()
    topic.append(b"not offloaded yet")
    topic.subscribe("fast")
    topic.acknowledge("fast", topic.entries[-1][0])
    place.tell()
    assert place.cuts() == {"pulsar:fast": {0: Position(3, 10)}}


def test_reset_subscription_moves_back_in_one_step(place: Place) -> None:
    topic = place.make()
    topic.subscribe("billing")
    topic.acknowledge("billing", Position(3, 5))
    place.tell()
    topic.acknowledge("billing", Position(1, 4))
    place.tell()
    assert place.cuts() == {"pulsar:billing": {0: Position(1, 5)}}
    registry = open_retention(place.store, STREAM).registry()
    assert registry.subscribers["pulsar:billing"].generation == 1


def test_removed_subscription_is_forgotten_after_two_missing_listings(place: Place) -> None:
    topic = place.make()
    retention = open_retention(place.store, STREAM, clock=place.clock)
    retention.add("a person's")
    topic.subscribe("billing")
    topic.subscribe("other")
    place.tell()
    topic.unsubscribe("billing")
    place.tell()
    assert "pulsar:billing" in place.cuts()
    place.tell()
    assert sorted(place.cuts()) == ["a person's", "pulsar:other"]
    topic.subscribe("billing")
    place.tell()
    assert place.cuts()["pulsar:billing"] == {0: Position(1, 0)}


def test_subscription_missing_once_is_kept(place: Place) -> None:
    topic = place.make()
    for _ in range(3):
        topic.subscribe("billing")
        place.tell()
        topic.unsubscribe("billing")
        place.tell()
    assert list(place.cuts()) == ["pulsar:billing"]


def test_failing_broker_requests_change_no_subscriber(place: Place) -> None:
    topic = place.make()
    topic.subscribe("billing")
    place.tell()
    before = place.cuts()
    topic.unsubscribe("billing")
    failures: list[type[OffloaderError]] = []
    for answer in ((500, b"broken"), (404, b"{}")):
        for ending in ("internalStats", "stats"):
            place.fake.answers = {f"/admin/v2/persistent/t/n/x/{ending}": answer}
            for _ in range(3):
                with pytest.raises(OffloaderError) as raised:
                    place.tell()
                failures.append(raised.type)
    assert set(failures) == {StoreUnavailableError, NotFoundError}
    assert place.cuts() == before


def test_briefly_missing_cursor_keeps_its_cut(place: Place) -> None:
    topic = place.make()
    topic.subscribe("billing")
    topic.acknowledge("billing", Position(2, 0))
    place.tell()
    place.fake.answers["/admin/v2/persistent/t/n/x/internalStats"] = (200, b'{"ledgers": [], "cursors": {}}')
    for _ in range(3):
        place.tell()
    assert place.cuts() == {"pulsar:billing": {0: Position(2, 1)}}


def test_partitions_are_one_cut(place: Place) -> None:
    topics = [place.make(f"{TOPIC}-partition-{number}") for number in range(3)]
    for topic in topics[:2]:
        topic.subscribe("billing")
    topics[0].acknowledge("billing", Position(2, 3))
    place.tell()
    # Where it isn't there it has read nothing.
    assert place.cuts() == {"pulsar:billing": {0: Position(2, 4), 1: Position(1, 0), 2: Position(1, 0)}}
    # Who hasn't got the first partition leaves it to who has.
    topics[0].acknowledge("billing", Position(2, 9))
    place.subscribers.tell(TOPIC, timeout_ms=None, is_ours=lambda topic: topic != f"{TOPIC}-partition-0")
    assert place.cuts()["pulsar:billing"] == {0: Position(2, 4), 1: Position(1, 0), 2: Position(1, 0)}
    # One that can't be asked tells nothing of the others.
    for topic in topics[:2]:
        topic.unsubscribe("billing")
    place.fake.answers["/admin/v2/persistent/t/n/x-partition-2/stats"] = (500, b"")
    for _ in range(3):
        with pytest.raises(StoreUnavailableError):
            place.tell()
    assert "pulsar:billing" in place.cuts()


def test_only_connected_subscriptions_are_renewed_without_moving(place: Place) -> None:
    topic = place.make()
    for name in ("connected", "left"):
        topic.subscribe(name)
    path = "/admin/v2/persistent/t/n/x/stats"
    place.fake.answers[path] = (
        200,
        b'{"subscriptions": {"connected": {"isDurable": true, "consumers": [{}]}, "left": {"isDurable": true}}}',
    )
    place.tell(timeout_ms=3 * MINUTE_MS)
    begin_ms = place.clock.now_ms()
    requests = []
    for _ in range(4):
        place.clock.advance(0.9 * 60)
        place.tell(timeout_ms=3 * MINUTE_MS)
        registry = open_retention(place.store, STREAM).registry()
        requests.append({name: each.active_ms - begin_ms for name, each in registry.subscribers.items()})
    assert {each["pulsar:left"] for each in requests} == {requests[0]["pulsar:left"]}
    assert requests[-1]["pulsar:connected"] > requests[0]["pulsar:connected"]


def test_names_stay_apart_and_are_names() -> None:
    odd = ["plain", " blank ", "tab\t", "100%", "100%25", "%09", "x" * 300, "x" * 299 + "y", "a/b", "é", "\ud800"]
    names = [subscriber_name(each) for each in odd]
    assert len(set(names)) == len(odd)
    for name in names:
        require_subscriber_name(name)
        assert len(name) <= SUBSCRIBER_NAME_CHARS_MAX
    assert names[0] == "pulsar:plain"


def test_retention_keeps_what_the_slowest_subscription_needs(place: Place) -> None:
    topic = place.make()
    for name, at in (("slow", Position(1, 9)), ("fast", Position(3, 2))):
        topic.subscribe(name)
        topic.acknowledge(name, at)
    place.tell()
    retention = open_retention(place.store, STREAM, clock=place.clock)
    bounds = retention.registry().bounding(StreamCut())
    assert min(cut.offsets[partition_segment(0)] for cut in bounds.values()) == Position(2, 0)
