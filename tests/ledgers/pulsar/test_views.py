"""Views of Pulsar topics: they read everything, and the broker keeps and acknowledges nothing because of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from uuid import UUID

import pytest

from formats.entries import Position
from formats.pulsar.commands import CommandType
from offloader.errors import (
    FencedError,
    InvalidCallError,
    NotFoundError,
    OffloaderError,
    SourceMismatchError,
    StoreUnavailableError,
    UnsupportedError,
)
from offloader.ledgers.base import KnownLedger, KnownLedgers
from offloader.ledgers.pulsar.discovery import matching_topics
from offloader.ledgers.pulsar.source import STORE_PROPERTY
from offloader.ledgers.pulsar.topics import stream_of_topic
from offloader.ledgers.pulsar.views import PulsarTopics, TopicView
from tests.ledgers.pulsar_bench import NAME, TOPIC, PulsarBench, entries_of
from tests.support.waiting import eventually

P = "persistent://public/default/"
STREAM = stream_of_topic(TOPIC)


@pytest.fixture
def bench() -> Iterator[PulsarBench]:
    """A closed ledger of ten entries, and an open one of five."""
    made = PulsarBench(TOPIC, f"{P}clicks-partition-0", f"{P}clicks-partition-1", f"{P}__change_events")
    made.broker.is_prompt = True
    made.fill(10)
    made.topic.roll()
    made.fill(5)
    yield made
    made.close()


@pytest.fixture
def topics(bench: PulsarBench) -> Iterator[PulsarTopics]:
    with closing(PulsarTopics(replace(bench.settings, topics=("public/default",)))) as made:
        yield made


@pytest.fixture
def view(topics: PulsarTopics) -> TopicView:
    return topics.view_stream(STREAM)


def read_all(view: TopicView) -> list[tuple[Position, bytes]]:
    found: list[tuple[Position, bytes]] = []
    at = Position(0, 0)
    while (batch := view.read(at, 200)) is not None:
        found += entries_of(batch)
        at = batch.last.next()
    return found


@pytest.mark.slow
def test_view_reads_every_entry_without_subscribing_or_acknowledging(bench: PulsarBench, view: TopicView) -> None:
    assert [(info.ledger_id, info.closed, info.entries) for info in view.ledgers()] == [(1, True, 10), (2, False, 5)]
    assert read_all(view) == bench.stored()
    assert read_all(view) == bench.stored()
    assert bench.broker.of(CommandType.ACK) == []
    assert {each.durable for each in bench.broker.of(CommandType.SUBSCRIBE)} == {False}
    assert bench.topic.subscription_properties(NAME) is None


@pytest.mark.slow
def test_view_lists_entries_appended_after_it_was_opened(bench: PulsarBench, view: TopicView) -> None:
    assert len(read_all(view)) == 15
    bench.fill(3)
    assert read_all(view) == bench.stored()


@pytest.mark.slow
def test_view_lists_undelivered_entries_after_reading_past_them(bench: PulsarBench, view: TopicView) -> None:
    at = bench.topic.append_marker()
    bench.fill(2)
    assert read_all(view) == bench.stored()
    assert [info.undelivered for info in view.ledgers()] == [(), ((at.entry_id, at.entry_id),)]


@pytest.mark.slow
def test_failed_read_makes_the_view_list_the_ledgers_again(bench: PulsarBench, view: TopicView) -> None:
    view.ledgers()
    bench.topic.expire(2)
    bench.admin.is_up = False
    with pytest.raises(StoreUnavailableError):
        view.read(Position(1, 0), 100)
    bench.admin.is_up = True
    assert read_all(view) == bench.stored()


@pytest.mark.parametrize("change", [lambda view: view.release(Position(1, 0)), lambda view: view.delete(1)])
def test_view_neither_acknowledges_nor_deletes(view: TopicView, change: object) -> None:
    assert callable(change)
    with pytest.raises(UnsupportedError):
        change(view)
    with pytest.raises(UnsupportedError):
        view.subscribe(None)


@pytest.mark.slow
def test_view_for_an_owner_is_refused_while_the_subscription_has_a_consumer(
    bench: PulsarBench, topics: PulsarTopics
) -> None:
    topics.view_stream(STREAM, may_delete=True)
    source = bench.open()
    with pytest.raises(FencedError, match=f"{TOPIC}: a process is connected to its subscription {NAME}") as caught:
        topics.view_stream(STREAM, may_delete=True)
    assert "--take-over" in caught.value.hint
    assert read_all(topics.view_stream(STREAM)) == bench.stored()
    with closing(PulsarTopics(bench.settings, take_over=True)) as forced:
        assert read_all(forced.view_stream(STREAM, may_delete=True)) == bench.stored()
    assert source.active
    source.close()
    eventually(lambda: bench.topic.active(NAME) is None)
    topics.view_stream(STREAM, may_delete=True)


def test_streams_are_those_of_the_selected_topics(bench: PulsarBench, topics: PulsarTopics) -> None:
    parts = [f"public/default/persistent/clicks-partition-{number}" for number in (0, 1)]
    assert topics.streams() == [*parts, STREAM]
    chosen = replace(bench.settings, topics=(f"{P}*",), exclude=("public/default/ord*",))
    with closing(PulsarTopics(chosen)) as some:
        assert some.streams() == parts
    bench.admin.is_up = False
    with pytest.raises(StoreUnavailableError):
        topics.streams()


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (f"{P}*", ["a", "b-partition-0", "b-partition-1"]),
        ("public/default", ["a", "b-partition-0", "b-partition-1"]),
        (f"{P}b", ["b-partition-0", "b-partition-1"]),
        ("public/*/b-partition-1", ["b-partition-1"]),
        ("public/default/persistent/a", ["a"]),
        ("public/default/persistent/b*", ["b-partition-0", "b-partition-1"]),
        ("other/default", []),
    ],
)
def test_names_and_patterns_select_topics_by_their_streams(wanted: str, expected: list[str]) -> None:
    streams = [f"public/default/persistent/{name}" for name in ("b-partition-1", "a", "b-partition-0")]
    assert matching_topics(wanted, ["orders", *streams]) == [f"public/default/persistent/{name}" for name in expected]


@pytest.mark.parametrize(("stream", "kind"), [("orders", NotFoundError), ("a//b", InvalidCallError)])
def test_stream_of_no_topic_is_refused(topics: PulsarTopics, stream: str, kind: type[OffloaderError]) -> None:
    with pytest.raises(kind):
        topics.view_stream(stream)


@pytest.mark.slow
def test_ledgers_of_another_cluster_are_a_mismatch(bench: PulsarBench, view: TopicView) -> None:
    known = KnownLedgers(newest=Position(2, 4), whole=(1, 2), ledgers={1: KnownLedger(9, 9), 2: KnownLedger()})
    view.require_same(lambda _: known)
    with pytest.raises(SourceMismatchError, match="its newest ledger is 2, and the manifest has entries up to 3:0"):
        view.require_same(lambda _: replace(known, newest=Position(3, 0)))


def test_view_reads_notes_of_the_subscription_and_adds_none(bench: PulsarBench, view: TopicView) -> None:
    assert view.noted_manifests() == []
    bench.topic.subscribe(NAME)
    bench.topic.note(NAME, {STORE_PROPERTY: str(UUID(int=7)), "offloader-manifests": f"{UUID(int=1)}:3"})
    assert view.noted_manifests() == [(UUID(int=1), 3)]
    assert view.noted_store() == UUID(int=7)
    view.note_manifest(UUID(int=2), 1)
    view.note_store(UUID(int=8))
    assert view.noted_manifests() == [(UUID(int=1), 3)]
    assert view.noted_store() == UUID(int=7)
    assert NAME in view.noted_remedy()
