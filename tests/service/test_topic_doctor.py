"""Doctor names topics of which nothing is offloaded any more: terminated ones, and deleted ones with their streams."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from uuid import UUID

import pytest

from offloader.doctor import CheckResult, Outcome
from offloader.ledgers.pulsar.scalable import layout_of_json
from offloader.ledgers.pulsar.source import STORE_PROPERTY
from offloader.ledgers.pulsar.topics import internals_of
from offloader.manifest.store_identity import identify
from offloader.manifest.topic_layouts import record_layout
from offloader.runtime.clock import SystemClock
from offloader.service.topic_doctor import check_topics, kept_ledger
from offloader.settings import Duration
from offloader.store.base import ObjectStore
from offloader.store.memory import MemoryStore
from tests.ledgers.pulsar_bench import NAME, TOPIC, PulsarBench
from tests.support.scalable_topic import FakeScalable
from tests.support.streams import StreamWriter, batch_of

_names = itertools.count()


@pytest.fixture
def bench() -> Iterator[PulsarBench]:
    bench = PulsarBench()
    bench.settings = replace(
        bench.settings, topics=("public/default",), exclude=("public/default/not-*",), connect_timeout=Duration(2.0)
    )
    yield bench
    bench.close()


@pytest.fixture
def store() -> ObjectStore:
    return MemoryStore(f"topic-doctor-{next(_names)}", "", SystemClock())


def found(bench: PulsarBench, store: ObjectStore, *, broker_plugin: bool = True) -> list[CheckResult]:
    return list(check_topics(store, replace(bench.settings, broker_plugin=broker_plugin), SystemClock()))


def stored(store: ObjectStore, *names: str) -> None:
    for name in names:
        StreamWriter(store, name).add([batch_of(1, 0, 1)])


def test_topics_that_are_there_are_not_mentioned(bench: PulsarBench, store: ObjectStore) -> None:
    bench.fill(3)
    bench.topic.roll()
    stored(store, "public/default/persistent/orders")
    assert found(bench, store) == []


def test_terminated_topic_whose_last_ledger_stays_is_named(bench: PulsarBench, store: ObjectStore) -> None:
    bench.fill(3)
    bench.topic.state = "Terminated"
    [finding] = found(bench, store)
    assert (finding.check, finding.outcome) == ("terminated topics", Outcome.WARNING)
    assert f"{TOPIC} (ledger 1)" in finding.what
    assert found(bench, store, broker_plugin=False) == []


@pytest.mark.parametrize(
    ("state", "ledgers", "current", "last", "kept"),
    [
        ("Terminated", [(5, 10, False), (7, 3, False)], 0, "7:2", 7),
        ("Terminated", [(5, 10, True), (7, 0, False)], 3, "7:2", 7),
        ("Terminated", [(5, 10, True), (7, 0, False)], 0, "7:2", 7),
        ("Terminated", [(7, 3, True)], 0, "7:2", None),
        ("Terminated", [(5, 10, True), (7, 0, False)], 0, "5:9", None),
        ("Terminated", [(7, 0, False)], 0, "7:-1", None),
        ("Terminated", [], 0, "-1:-1", None),
        ("LedgerOpened", [(7, 3, False)], 3, "7:2", None),
    ],
)
def test_last_ledger_of_a_terminated_topic_is_kept_unless_it_is_offloaded(
    state: str, ledgers: list[tuple[int, int, bool]], current: int, last: str, kept: int | None
) -> None:
    document = {
        "state": state,
        "currentLedgerEntries": current,
        "lastConfirmedEntry": last,
        "ledgers": [
            {"ledgerId": ledger_id, "entries": entries, "size": 100, "offloaded": done}
            for ledger_id, entries, done in ledgers
        ],
    }
    assert kept_ledger(internals_of(document, TOPIC)) == kept


def test_streams_of_deleted_topics_are_named_with_the_commands(bench: PulsarBench, store: ObjectStore) -> None:
    other = ["a/b/persistent/elsewhere", "public/default/persistent/not-ours", "no-topic"]
    stored(store, "public/default/persistent/gone", "public/default/persistent/orders", *other)
    [finding] = found(bench, store)
    assert finding.check == "deleted topics"
    assert "no topic of public/default/persistent/gone:" in finding.what
    assert "`offloader stream delete public/default/persistent/gone --apply`" in finding.hint
    assert "`offloader cleanup run --apply`" in finding.hint


def test_streams_of_namespaces_that_cannot_be_listed_are_not_mentioned(bench: PulsarBench, store: ObjectStore) -> None:
    stored(store, "public/default/persistent/gone")
    bench.admin.is_up = False
    assert found(bench, store) == []


def test_many_streams_of_deleted_topics_are_one_finding(bench: PulsarBench, store: ObjectStore) -> None:
    stored(store, *(f"public/default/persistent/gone{number}" for number in range(7)))
    [finding] = found(bench, store)
    assert "gone4 and 2 more:" in finding.what


def test_topic_that_was_committed_to_another_store_is_named(bench: PulsarBench, store: ObjectStore) -> None:
    bench.open()
    stored(store, "public/default/persistent/orders")
    identity, noted = identify(store), UUID(int=7)
    bench.topic.note(NAME, {STORE_PROPERTY: str(identity)})
    assert found(bench, store, broker_plugin=False) == []
    bench.topic.note(NAME, {STORE_PROPERTY: str(noted)})
    [finding] = found(bench, store, broker_plugin=False)
    assert (finding.check, finding.outcome) == ("store identity", Outcome.WARNING)
    assert finding.what == f"its identity is {identity}, and {noted} is known to the hot tier of {TOPIC}"


def test_scalable_topic_that_lost_its_subscription_is_named(bench: PulsarBench, store: ObjectStore) -> None:
    name, ledgers = "topic://public/default/scaled", itertools.count(100)
    bench.broker.has_scalable_topics = True
    topic = bench.admin.scalable[name] = FakeScalable(bench.broker, name, first_ledger=ledgers.__next__)
    bench.admin.scalable["topic://public/default/not-this"] = topic
    assert found(bench, store) == []  # it isn't offloaded yet
    record_layout(store, "public/default/topic/scaled", layout_of_json(topic.layout(), name))
    [finding] = found(bench, store)
    assert (finding.check, finding.outcome) == ("scalable topics", Outcome.WARNING)
    assert f"the subscription {NAME} of {name} was removed" in finding.what
    topic.register(NAME)
    assert found(bench, store) == []
    topic.subscriptions.clear()
    bench.settings = replace(bench.settings, scalable_topics="off")
    assert found(bench, store) == []
