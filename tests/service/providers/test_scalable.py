"""Scalable topics of a fake cluster are offloaded: through splits and merges, restarts, and damaged layouts."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from formats.entries import Position
from formats.pulsar.entry import decode_frame
from formats.topic_layout import HASHES, RangeSegment, TopicLayout
from offloader.errors import NotFoundError, StoreUnavailableError
from offloader.ledgers.pulsar.consumer import Consumer
from offloader.ledgers.pulsar.discovery import Look
from offloader.ledgers.pulsar.source import PulsarCluster, PulsarSource
from offloader.manifest.log import list_streams, load_manifest
from offloader.manifest.topic_layouts import NOTHING_MORE, pruned, read_layout, record_layout
from offloader.read.partitions import open_reader
from offloader.retention.cycle import CycleOutcome, RetentionCycle
from offloader.retention.subscribers import open_retention
from offloader.runtime.clock import SystemClock
from offloader.service.providers.scalable import ScalableTopics
from offloader.service.view_documents import served_segments
from tests.read.test_partitions_segments import layout_of
from tests.support.pulsar_cluster import Cluster, S, fake_cluster, streams_of, whats
from tests.support.scalable_topic import FakeScalable
from tests.support.served import settings_file
from tests.support.waiting import eventually

NAME, PLACE = "topic://t/n/orders", "t/n/topic/orders"
KEYS = (5, 20_000, 40_000, 60_000)
#: Segments end soon, so that everything is committed soon.
SOON = {"offload__segment_age_max": 0.2}

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with fake_cluster() as made:
        yield made


def read(cluster: Cluster, name: str = NAME) -> dict[int, list[str]]:
    """What the store has of a topic: key -> the values, in the order in which they are read."""
    found: dict[int, list[str]] = {}
    try:
        reader = open_reader(cluster.store, name)
    except NotFoundError:
        return found
    with reader:
        for batch in reader.scan():
            for entry in batch.entries():
                value = value_of(entry.payload)
                found.setdefault(int(value.partition(":")[0]), []).append(value)
    return found


def value_of(entry: bytes) -> str:
    return entry[decode_frame(entry).payload_start :].decode()


def has_all(cluster: Cluster, topic: FakeScalable) -> bool:
    return read(cluster, topic.name) == topic.sent


def acknowledged(topic: FakeScalable, number: int) -> Position | None:
    with suppress(KeyError):  # there is no subscription yet
        return topic.segments[number].mark_delete("offloader")
    return None


def send(topic: FakeScalable, count: int = 5) -> None:
    for key in KEYS:
        topic.send(key, count)


def test_splits_and_merges_keep_every_message_and_the_order_of_each_key(cluster: Cluster) -> None:
    topic = cluster.make_scalable("orders")
    send(topic)
    with cluster.serve(offload=SOON) as assembled:
        eventually(lambda: has_all(cluster, topic))
        one, other = topic.split(0)
        send(topic)
        eventually(lambda: has_all(cluster, topic))
        merged = topic.merge(one, other)
        send(topic)
        topic.split(merged)
        send(topic)
        eventually(lambda: has_all(cluster, topic))
        assert len(streams_of(assembled)) == 6
        recorded = read_layout(cluster.store, PLACE)
        assert recorded is not None
        assert recorded.by_id[merged].parents == (one, other)
        assert recorded.by_id[merged].end == topic.newest(merged)
        assert whats(assembled) == ""
    assert sorted(name for name in list_streams(cluster.store) if "orders" in name)[0] == (
        "t/n/segment/orders/0000-7fff-1"
    )


def answer_schemas(cluster: Cluster, **data: str) -> None:
    """The broker has these versions of the topic's schema."""
    rows = [{"version": int(name[1:]), "type": "STRING", "data": text} for name, text in data.items()]
    body = json.dumps({"getSchemaResponses": rows}).encode()
    cluster.admin.answers["/admin/v2/schemas/t/n/orders/schemas"] = (200, body)


def recorded_schemas(cluster: Cluster) -> list[str]:
    recorded = read_layout(cluster.store, PLACE)
    return [] if recorded is None else [each.data for each in recorded.schemas]


def test_schemas_are_recorded_and_outlive_the_broker_s(cluster: Cluster) -> None:
    topic = cluster.make_scalable("orders")
    answer_schemas(cluster, v0="first")
    with cluster.serve(offload=SOON) as assembled:
        eventually(lambda: recorded_schemas(cluster) == ["first"])
        answer_schemas(cluster, v0="first", v1="second")
        topic.split(0)
        eventually(lambda: recorded_schemas(cluster) == ["first", "second"])
        del cluster.admin.answers["/admin/v2/schemas/t/n/orders/schemas"]
        send(topic)
        topic.split(1)
        eventually(lambda: has_all(cluster, topic))
        assert recorded_schemas(cluster) == ["first", "second"]
        assert whats(assembled) == ""


@pytest.mark.parametrize(("answer", "said"), [((403, b""), "status 403"), ((200, b"[]"), "has no schemas")])
def test_topic_whose_schemas_cannot_be_recorded_is_offloaded_and_named(
    cluster: Cluster, answer: tuple[int, bytes], said: str
) -> None:
    topic = cluster.make_scalable("orders")
    cluster.admin.answers["/admin/v2/schemas/t/n/orders/schemas"] = answer
    with cluster.serve(offload=SOON) as assembled:
        send(topic)
        topic.split(0)
        send(topic)
        eventually(lambda: has_all(cluster, topic))
        eventually(lambda: said in whats(assembled))


def test_changes_are_seen_long_before_the_next_survey(cluster: Cluster) -> None:
    first = cluster.make_scalable("orders")
    with cluster.serve(offload=SOON, discovery_interval=3600):
        send(first)
        first.split(first.split(0)[0])
        send(first)
        eventually(lambda: has_all(cluster, first))
        second = cluster.make_scalable("later")
        send(second)
        second.split(second.split(0)[0])
        send(second)
        eventually(lambda: has_all(cluster, second))


def test_history_of_several_ledgers_is_read_from_its_beginning(cluster: Cluster) -> None:
    topic = cluster.make_scalable("orders")
    for _ in range(4):
        send(topic)
        topic.segments[0].roll()
    topic.split(0)
    send(topic)
    with cluster.serve(offload=SOON):
        eventually(lambda: has_all(cluster, topic))


def test_subscription_is_registered_before_the_first_entry_is_read(cluster: Cluster) -> None:
    topic = cluster.make_scalable("orders")
    send(topic)
    with cluster.serve(offload=SOON) as assembled:
        eventually(lambda: has_all(cluster, topic))
        assert topic.subscriptions == {"offloader"}
        topic.subscriptions.clear()
        eventually(lambda: "its subscription offloader was removed" in whats(assembled))
        assert topic.subscriptions == {"offloader"}


def test_restarted_process_continues_after_the_committed_end(cluster: Cluster) -> None:
    topic = cluster.make_scalable("orders")
    rng = random.Random(7)
    active = [0]
    for round_number in range(4):
        send(topic, 2)
        with cluster.serve(offload=SOON, broker_plugin=bool(round_number % 2)):
            send(topic)
            eventually(lambda: has_all(cluster, topic))
            send(topic, 3)
        active.remove(split := rng.choice(active))
        active += topic.split(split)
    with cluster.serve(offload=SOON):
        eventually(lambda: has_all(cluster, topic))


def test_two_processes_share_the_segments(cluster: Cluster) -> None:
    topic = cluster.make_scalable("orders")
    with cluster.serve(offload=SOON), cluster.serve(offload=SOON):
        send(topic)
        topic.split(0)
        send(topic)
        eventually(lambda: has_all(cluster, topic))


def test_pruned_segments_remain_readable_in_their_place(cluster: Cluster) -> None:
    topic = cluster.make_scalable("orders")
    send(topic)
    with cluster.serve(offload=SOON) as assembled:
        eventually(lambda: has_all(cluster, topic))
        topic.split(0)
        send(topic)
        eventually(lambda: has_all(cluster, topic))
        topic.prune(0)
        eventually(lambda: len(streams_of(assembled)) == 2)
        send(topic)
        eventually(lambda: has_all(cluster, topic))
    recorded = read_layout(cluster.store, PLACE)
    assert recorded is not None
    assert [row.parents for row in recorded.segments] == [(), (0,), (0,)]


def test_end_that_the_broker_names_too_early_is_not_recorded(cluster: Cluster) -> None:
    topic = cluster.make_scalable("orders")
    topic.segments[0].named_last = Position(-1, -1)
    with cluster.serve(offload=SOON) as one, cluster.serve(offload=SOON) as other:
        for _ in range(3):
            send(topic)
            topic.segments[0].roll()
        topic.split(0)
        send(topic)
        eventually(lambda: has_all(cluster, topic))
        eventually(lambda: whats(one) == whats(other) == "")
    recorded = read_layout(cluster.store, PLACE)
    assert recorded is not None
    assert recorded.by_id[0].end == topic.newest(0)


def test_segment_without_entries_holds_no_child_back(cluster: Cluster) -> None:
    topic = cluster.make_scalable("orders")
    topic.split(0)
    send(topic)
    with cluster.serve(offload=SOON):
        eventually(lambda: has_all(cluster, topic))
    recorded = read_layout(cluster.store, PLACE)
    assert recorded is not None
    assert recorded.by_id[0].end == NOTHING_MORE


@pytest.mark.parametrize("is_known", [False, True])
def test_segment_without_entries_holds_no_child_back_after_the_broker_s_restart(
    cluster: Cluster, *, is_known: bool
) -> None:
    topic = cluster.make_scalable("orders")
    topic.split(0)
    if is_known:
        with cluster.serve(offload=SOON):
            eventually(lambda: (found := read_layout(cluster.store, PLACE)) and found.by_id[0].end == NOTHING_MORE)
    topic.segments[0].refuses_readers = True
    send(topic)
    with cluster.serve(offload=SOON) as process:
        eventually(lambda: has_all(cluster, topic))
        eventually(lambda: whats(process) == "")
    recorded = read_layout(cluster.store, PLACE)
    assert recorded is not None
    assert recorded.by_id[0].end == NOTHING_MORE


def test_end_of_a_segment_whose_entries_are_all_acknowledged_is_that_in_the_manifest(cluster: Cluster) -> None:
    """A process that has just begun knows no entry, and readers are refused: its subscription tells "nothing more"."""
    topic = cluster.make_scalable("orders")
    send(topic)
    with cluster.serve(offload=SOON, broker_plugin=True):
        eventually(lambda: acknowledged(topic, 0) == topic.newest(0))
    topic.split(0)
    topic.segments[0].refuses_readers, topic.segments[0].named_last = True, Position(-1, -1)
    pulsar = PulsarCluster(cluster.settings())
    source = pulsar.open_topic(topic.segments[0].name)
    try:
        topics = ScalableTopics(pulsar, cluster.store)
        survey = Look({"t/n": frozenset()})
        for _ in range(2):  # the first one records the layout
            topics.look(cluster.settings(), survey, lambda name: source if name == source.topic else None)
    finally:
        pulsar.close()
    recorded = read_layout(cluster.store, PLACE)
    assert recorded is not None
    assert recorded.by_id[0].end == topic.newest(0)


def test_committed_entries_are_acknowledged(cluster: Cluster) -> None:
    topic = cluster.make_scalable("orders")
    send(topic)
    with cluster.serve(offload=SOON, broker_plugin=True):
        eventually(lambda: acknowledged(topic, 0) == topic.newest(0))


def test_hot_copies_of_committed_ledgers_are_released(cluster: Cluster) -> None:
    topic = cluster.make_scalable("orders")
    with cluster.serve(offload=SOON | {"offload__deletion_lag": 0}):
        ends = list[Position]()
        for _ in range(3):
            send(topic)
            eventually(lambda: has_all(cluster, topic))
            ends.append(topic.newest(0))
            topic.segments[0].roll()
        eventually(lambda: acknowledged(topic, 0) == ends[1])
        topic.split(0)
        eventually(lambda: acknowledged(topic, 0) == ends[2])


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        ({"state": "FROZEN"}, "segment 0 has the state 'FROZEN'"),
        ({"parentIds": [0]}, "segments are their own ancestors"),
        ({"parentIds": [9]}, "segment 0 has the parent 9, which is missing"),
        ({"createdAtMs": 1}, "segment 0 isn't the one that is recorded: created_ms is 1"),
    ],
)
def test_damaged_layout_stops_its_topic_only(cluster: Cluster, damage: dict[str, object], text: str) -> None:
    topic, healthy = cluster.make_scalable("orders"), cluster.make_scalable("healthy")
    cluster.make("regular")
    send(topic)
    with cluster.serve(offload=SOON) as assembled:
        eventually(lambda: has_all(cluster, topic))
        topic.split(0)
        row = dict(topic.rows["0"])
        topic.rows["0"] |= {"sealedAtEpoch": 1, **damage}
        eventually(lambda: text in whats(assembled))
        send(healthy)
        eventually(lambda: has_all(cluster, healthy) and cluster.is_offloaded("regular"))
        topic.rows["0"] = row
        send(topic)
        eventually(lambda: has_all(cluster, topic))
        eventually(lambda: whats(assembled) == "")


def test_layout_that_goes_back_is_asked_for_again(cluster: Cluster) -> None:
    topic = cluster.make_scalable("orders")
    send(topic)
    with cluster.serve(offload=SOON) as assembled:
        topic.split(0)
        eventually(lambda: len(streams_of(assembled)) == 3)
        topic.epoch -= 1
        eventually(lambda: "has epoch 0, and epoch 1 is recorded" in whats(assembled))
        topic.epoch += 1
        eventually(lambda: whats(assembled) == "")


def test_deleted_topic_that_is_still_listed_ends(cluster: Cluster) -> None:
    topic = cluster.make_scalable("orders")
    send(topic)
    with cluster.serve(offload=SOON) as assembled:
        eventually(lambda: has_all(cluster, topic))
        topic.layout = dict  # type: ignore[method-assign]
        topic.stats = dict  # type: ignore[method-assign]
        eventually(lambda: streams_of(assembled) == [])
    assert has_all(cluster, topic)


def test_brokers_that_turn_the_feature_off_are_reported(cluster: Cluster) -> None:
    topic = cluster.make_scalable("orders")
    cluster.make("regular")
    send(topic)
    with cluster.serve(offload=SOON) as assembled:
        eventually(lambda: has_all(cluster, topic))
        cluster.broker.has_scalable_topics = False
        cluster.broker.cut()
        eventually(lambda: "don't announce scalable topics any more" in whats(assembled))
        cluster.fill("regular")
        eventually(lambda: cluster.is_offloaded("regular"))
        cluster.broker.has_scalable_topics = True
        cluster.broker.cut()
        eventually(lambda: whats(assembled) == "")


def test_refused_registration_is_reported_and_nothing_is_read(cluster: Cluster) -> None:
    topic = cluster.make_scalable("orders")
    send(topic)
    path = "/admin/v2/scalable/t/n/orders/subscriptions/offloader?type=QUEUE"
    cluster.admin.answers[path] = 403, b""
    with cluster.serve(offload=SOON) as assembled:
        eventually(lambda: "returned status 403" in whats(assembled))
        assert streams_of(assembled) == []
        assert read_layout(cluster.store, PLACE) is None
        del cluster.admin.answers[path]
        eventually(lambda: has_all(cluster, topic))


@pytest.mark.parametrize("more", [{"scalable_topics": "off"}, {"exclude": ("topic://t/n/orders",)}])
def test_topics_that_are_not_selected_are_left_alone(cluster: Cluster, more: dict[str, Any]) -> None:
    topic = cluster.make_scalable("orders")
    cluster.make("regular")
    with cluster.serve(offload=SOON, **more) as assembled:
        eventually(lambda: cluster.is_offloaded("regular"))
        assert streams_of(assembled) == ["t/n/persistent/regular"]
    assert topic.subscriptions == set()


def test_other_brokers_are_not_asked_for_scalable_topics(cluster: Cluster) -> None:
    cluster.make("regular")
    with cluster.serve(offload=SOON):
        eventually(lambda: cluster.is_offloaded("regular"))
    assert not any("/scalable/" in path for _, path in cluster.admin.asked)


def test_end_is_the_last_delivered_entry_though_the_broker_names_none(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child would be read before entries of its parent."""
    topic = cluster.make_scalable("orders")
    send(topic)
    with cluster.serve(offload=SOON):
        eventually(lambda: has_all(cluster, topic))
        monkeypatch.setattr(Consumer, "last_position", lambda _: None)
        topic.split(0)
        eventually(lambda: (found := read_layout(cluster.store, PLACE)) is not None and found.by_id[0].end is not None)
    recorded = read_layout(cluster.store, PLACE)
    assert recorded is not None
    assert recorded.by_id[0].end == topic.newest(0)


def test_policy_truncates_the_oldest_segments_and_leaves_the_rest_in_order(cluster: Cluster) -> None:
    def starts() -> dict[int, Position | None]:
        layout = read_layout(cluster.store, PLACE)
        assert layout is not None
        there = {*list_streams(cluster.store)}
        return {r.id: load_manifest(cluster.store, r.stream).head for r in layout.segments if r.stream in there}

    def cycle() -> None:
        file = settings_file(retention__policy="size", retention__min_size="300B")
        RetentionCycle(cluster.store, clock=SystemClock(), settings_of=file.settings_of).run(PLACE)

    topic = cluster.make_scalable("orders")
    send(topic, 20)
    with cluster.serve(offload=SOON):
        eventually(lambda: has_all(cluster, topic))
        cycle()
        one, other = topic.split(0)
        send(topic, 2)
        merged = topic.merge(one, other)
        send(topic, 2)
        eventually(lambda: has_all(cluster, topic))
        cycle()
    heads = starts()
    assert topic.newest(0) < (heads[0] or Position(0, 0))
    assert heads[merged] is None
    kept = read(cluster)
    assert kept == {key: values[-4:] for key, values in topic.sent.items()}


def test_retention_keeps_the_segments_that_a_broker_with_the_plugin_has(cluster: Cluster) -> None:
    topic = cluster.make_scalable("orders")
    policy = SOON | {"retention__policy": "size", "retention__min_size": "1B"}
    with cluster.serve(offload=policy, broker_plugin=True) as assembled:
        streams = assembled.process.streams

        def cycle() -> CycleOutcome:
            made = RetentionCycle(
                cluster.store, clock=SystemClock(), settings_of=streams.settings_of, source_of=streams.source_of
            )
            return made.run(PLACE)

        send(topic)
        eventually(lambda: has_all(cluster, topic))
        cycle()  # records the cut
        topic.split(0)
        send(topic)
        eventually(lambda: has_all(cluster, topic))
        eventually(lambda: (found := read_layout(cluster.store, PLACE)) is not None and found.by_id[0].end is not None)
        outcome = cycle()
        assert outcome.truncations == {}
        assert outcome.decision is not None
        assert outcome.decision.why.endswith("the broker still lists segment 0, segment 1, segment 2")
        before = topic.newest(0)
        topic.prune(0)
        eventually(lambda: len(streams_of(assembled)) == 2)
        assert cycle().truncations.keys() == {"t/n/segment/orders/0000-ffff-0"}
    assert load_manifest(cluster.store, "t/n/segment/orders/0000-ffff-0").head == before.next()
    assert {key: values[-1:] for key, values in read(cluster).items()} == {
        key: values[-1:] for key, values in topic.sent.items()
    }


def test_subscriptions_of_a_migrated_topic_are_no_problem_and_keep_their_positions(cluster: Cluster) -> None:
    def follows(name: str) -> bool:
        with suppress(NotFoundError):
            return "pulsar:billing" in open_retention(cluster.store, name).registry().subscribers
        return False

    former = cluster.make("one")
    former.subscribe("billing")
    with cluster.serve(offload={"retention__policy": "consumption"}) as assembled:
        eventually(lambda: follows(f"{S}one"))
        root = RangeSegment(
            id=0,
            stream=f"{S}one",
            hash_start=0,
            hash_stop=HASHES,
            parents=(),
            created_epoch=0,
            sealed_epoch=0,
            is_legacy=True,
        )
        record_layout(cluster.store, "t/n/topic/one", TopicLayout(topic="topic://t/n/one", epoch=0, segments=(root,)))
        for _ in range(2):  # the second look at the subscriptions begins after the layout was recorded
            polled = len(cluster.admin.of("GET", "/t/n"))
            eventually(lambda: len(cluster.admin.of("GET", "/t/n")) > polled + 4)  # noqa: B023
        assert "subscriptions" not in whats(assembled)
    assert follows("topic://t/n/one")


def test_segment_whose_end_cannot_be_asked_holds_no_other_end_back(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end_of(number: int) -> Position | None:
        recorded = read_layout(cluster.store, PLACE)
        return None if recorded is None or number not in recorded.by_id else recorded.by_id[number].end

    def sealed_end(source: PulsarSource) -> Position | None:
        if source.topic.endswith("-0"):
            raise StoreUnavailableError("the topic is temporarily unavailable")
        return asked(source)

    asked = PulsarSource.sealed_end
    topic = cluster.make_scalable("orders")
    send(topic)
    with cluster.serve(offload=SOON) as assembled:
        eventually(lambda: has_all(cluster, topic))
        monkeypatch.setattr(PulsarSource, "sealed_end", sealed_end)
        one, _ = topic.split(0)
        send(topic)
        topic.split(one)
        eventually(lambda: end_of(one) == topic.newest(one))
        assert end_of(0) is None
        eventually(lambda: "temporarily unavailable" in whats(assembled))
        monkeypatch.undo()
        eventually(lambda: has_all(cluster, topic))


def test_registered_subscriptions_are_subscribers_of_retention(cluster: Cluster) -> None:
    """A broker tells only whether everything in a segment is acknowledged: it counts as read to its end, or unread."""
    topic = cluster.make_scalable("orders")
    topic.register("billing")
    send(topic)
    offload = SOON | {"retention__policy": "consumption"}

    def cut() -> dict[str, object]:
        found = None
        with suppress(NotFoundError):  # nothing is offloaded yet
            found = open_retention(cluster.store, NAME).registry().subscribers.get("pulsar:billing")
        return {} if found is None or found.cut is None else dict(found.cut.as_json())

    with cluster.serve(offload=offload):
        eventually(lambda: cut() == {"0.0": "1000:0"})
        topic.segments[0].acknowledge("billing", Position(1000, 18))
        one, other = topic.split(0)
        send(topic)
        eventually(lambda: cut().keys() == {"0.0", f"{one}.0", f"{other}.0"})
        assert cut()["0.0"] == "1000:0"
        for number in (0, one):
            topic.segments[number].acknowledge("billing", topic.newest(number))
        read = {"0.0": "1000:20", f"{one}.0": str(topic.newest(one).next()), f"{other}.0": "3000:0"}
        eventually(lambda: cut() == read)
        topic.prune(0)
        topic.segments[other].acknowledge("billing", topic.newest(other))
        eventually(lambda: cut() == read | {f"{other}.0": str(topic.newest(other).next())})
        topic.subscriptions.discard("billing")
        eventually(lambda: not cut())
    assert "pulsar:offloader" not in open_retention(cluster.store, NAME).registry().subscribers


def test_new_segment_of_which_the_broker_told_nothing_yet_is_unread() -> None:
    recorded = layout_of(3)
    assert pruned(recorded, replace(recorded, segments=recorded.segments[2:3])) == {0, 1}
    assert pruned(recorded, replace(recorded, epoch=recorded.epoch - 1, segments=())) == set()


def test_segments_of_a_topic_are_told_from_other_streams_by_their_names() -> None:
    names = ["t/n/segment/orders/0000-7fff-1", "t/n/segment/orders/other", "t/n/segment/more/0000-7fff-2", "t/n/x"]
    assert served_segments(PLACE, names) == {1: names[0]}
