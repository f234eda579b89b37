"""Brokers are asked to offload what is committed and not offloaded, not too often, and after an unload again."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from formats.entries import Position
from offloader.errors import AccessDeniedError, StoreUnavailableError
from offloader.ledgers.pulsar.admin import AdminClient
from offloader.ledgers.pulsar.offload_triggers import (
    TOPICS_MAX,
    TRIGGERS_MAX,
    OffloadTarget,
    OffloadTriggers,
    ServedTopic,
    due_offload,
)
from offloader.ledgers.pulsar.topic_facts import SINCE_PROPERTY
from offloader.ledgers.pulsar.topics import TopicInternals, TopicLedger, TopicLedgers
from offloader.testing.manual_clock import ManualClock
from tests.ledgers.pulsar_bench import NAME, TOPIC, PulsarBench
from tests.support.pulsar_topics import FakeTopic


def listed(*ledgers: tuple[int, int, bool]) -> TopicInternals:
    """Ledger, entries, whether it is offloaded; the last one is open."""
    found = tuple(TopicLedger(ledger_id, entries, 100 * entries, done) for ledger_id, entries, done in ledgers)
    return TopicInternals(
        ledgers=TopicLedgers(TOPIC, found),
        open_entries=0,
        open_size_bytes=0,
        last_confirmed=None,
        is_terminated=False,
        cursors={},
    )


FAR = Position(99, 0)


@pytest.mark.parametrize(
    ("internals", "committed", "target"),
    [
        (listed((1, 10, False), (2, 10, False), (3, 0, False)), FAR, OffloadTarget(1, Position(3, 0))),
        (listed((1, 10, True), (2, 10, False), (3, 0, False)), FAR, OffloadTarget(2, Position(3, 0))),
        (listed((1, 10, True), (2, 10, True), (3, 0, False)), FAR, None),
        # Up to what is committed, and nothing behind it.
        (listed((1, 10, False), (2, 10, False), (3, 0, False)), Position(1, 9), OffloadTarget(1, Position(2, 0))),
        (listed((1, 10, False), (2, 10, False), (3, 0, False)), Position(2, 8), OffloadTarget(1, Position(2, 0))),
        (listed((1, 10, False), (2, 10, False), (3, 0, False)), Position(1, 8), None),
        (listed((1, 10, False), (2, 0, False)), None, None),
        # An empty ledger is never offloaded, and the open one is no closed one.
        (listed((1, 0, False), (2, 0, False)), FAR, None),
        (listed((1, 10, False)), FAR, None),
        (listed(), FAR, None),
    ],
)
def test_due_ledgers_are_closed_committed_and_not_offloaded(
    internals: TopicInternals, committed: Position | None, target: OffloadTarget | None
) -> None:
    assert due_offload(internals, committed) == target


@pytest.fixture
def bench() -> Iterator[PulsarBench]:
    bench = PulsarBench()
    yield bench
    bench.close()


class Asking:
    def __init__(self, bench: PulsarBench, *, follows: bool = False) -> None:
        self.bench, self.clock = bench, ManualClock()
        self.admin = AdminClient(bench.admin.url, retries_max=0)
        self.triggers = OffloadTriggers(self.admin, NAME, self.clock, follows=follows)

    def look(self, *topics: ServedTopic) -> int:
        return self.triggers.look(topics or [ServedTopic(TOPIC, FAR)])


@pytest.fixture
def asking(bench: PulsarBench) -> Iterator[Asking]:
    found = Asking(bench)
    with found.admin:
        yield found


def rolled(topic: FakeTopic, bench: PulsarBench, *, ledgers: int = 1) -> None:
    for _ in range(ledgers):
        bench.fill(3, topic)
        topic.roll()


def test_broker_is_asked_until_it_lists_the_ledgers_as_offloaded(bench: PulsarBench, asking: Asking) -> None:
    rolled(bench.topic, bench, ledgers=2)
    assert asking.look(ServedTopic(TOPIC, Position(1, 2))) == 1
    assert bench.topic.offloads == [Position(2, 0)]
    assert asking.look(ServedTopic(TOPIC, Position(1, 2))) == 0
    assert asking.look() == 1
    assert bench.topic.offloads == [Position(2, 0), Position(3, 0)]
    assert asking.look() == 0
    assert asking.triggers.problems() == []


@pytest.mark.slow
def test_broker_that_fails_to_offload_is_a_problem_until_it_does(
    bench: PulsarBench, asking: Asking, caplog: pytest.LogCaptureFixture
) -> None:
    rolled(bench.topic, bench)
    path = "/admin/v2/persistent/public/default/orders/offload"

    def look_for(seconds: int) -> None:
        for _ in range(seconds):
            asking.look()
            asking.clock.advance(1)

    def say(last_error: str, status: str = "ERROR") -> None:
        body = json.dumps({"status": status, "lastError": last_error}).encode()
        bench.admin.answers[path] = 200, body  # requests to offload too: nothing is offloaded

    say("Offload operation already running")
    look_for(200)
    say("", "RUNNING")
    look_for(200)
    assert asking.triggers.problems() == []
    say("java.util.concurrent.CompletionException: offloader.pulsar.PluginError: HTTP 404 not_found no such stream")
    look_for(600)
    [(topic, error)] = asking.triggers.problems()
    assert topic == TOPIC
    assert "does not offload ledger 1, which is committed to the store, and keeps its copy: HTTP 404 " in error.message
    assert asking.triggers.failing() == [TOPIC]
    [line] = [each for each in caplog.records if each.levelno >= logging.ERROR]
    assert line.__dict__["event"] == "broker_offload_failed"
    bench.admin.answers.clear()
    look_for(700)
    assert (asking.triggers.problems(), asking.triggers.failing()) == ([], [])


def test_broker_that_makes_no_progress_is_asked_less_often_and_after_an_unload_at_once(
    bench: PulsarBench, asking: Asking
) -> None:
    rolled(bench.topic, bench)
    asked = []

    def offload(before: Position) -> None:
        asked.append(before)  # and it fails, which nobody is told

    bench.topic.offload = offload  # type: ignore[method-assign]
    for _ in range(600):
        asking.look()
        asking.clock.advance(1)
    assert 5 < len(asked) < 12
    before = len(asked)
    asking.look()
    assert len(asked) == before
    asking.triggers.changed(TOPIC)
    asking.look()
    assert len(asked) == before + 1


@pytest.mark.parametrize(
    ("status", "error"), [(403, AccessDeniedError), (500, StoreUnavailableError), (405, StoreUnavailableError)]
)
def test_refusal_is_a_named_problem_and_is_tried_again(
    bench: PulsarBench, asking: Asking, status: int, error: type[Exception]
) -> None:
    rolled(bench.topic, bench)
    path = "/admin/v2/persistent/public/default/orders/offload"
    bench.admin.answers[path] = status, b"no"
    assert asking.look() == 0
    [(topic, found)] = asking.triggers.problems()
    assert (topic, type(found)) == (TOPIC, error)
    asking.look()
    assert len(bench.admin.of("PUT", "/offload")) == 1
    del bench.admin.answers[path]
    asking.clock.advance(30)
    assert asking.look() == 1
    assert asking.triggers.problems() == []


def test_broker_at_work_already_is_no_problem(bench: PulsarBench, asking: Asking) -> None:
    rolled(bench.topic, bench)
    bench.admin.answers["/admin/v2/persistent/public/default/orders/offload"] = 409, b"still running"
    assert asking.look() == 0
    assert asking.triggers.problems() == []


def test_deleted_topic_is_no_problem(bench: PulsarBench, asking: Asking) -> None:
    bench.admin.remove(TOPIC)
    assert asking.look() == 0
    assert asking.triggers.problems() == []


@pytest.mark.slow
def test_one_poll_asks_about_a_bounded_number_of_topics_and_the_next_goes_on() -> None:
    names = [f"persistent://public/default/topic-{number:03}" for number in range(TOPICS_MAX + 5)]
    bench = PulsarBench(*names)
    asking = Asking(bench)
    served = [ServedTopic(name, FAR) for name in names]
    with asking.admin:
        for name in names[:TRIGGERS_MAX]:
            rolled(bench.topics[name], bench)
        # As many as one poll may start, so it ends with them.
        assert asking.look(*served) == TRIGGERS_MAX
        assert len(bench.admin.of("GET", "/internalStats")) == TRIGGERS_MAX
        assert asking.look(*served) == 0
        assert len(bench.admin.of("GET", "/internalStats")) == TRIGGERS_MAX + TOPICS_MAX
        asked = {path.split("/")[-2] for path in bench.admin.of("GET", "/internalStats")}
        assert asked == {name.rpartition("/")[2] for name in names}
    bench.close()


def test_first_listed_ledger_is_noted_once(bench: PulsarBench) -> None:
    asking = Asking(bench, follows=True)
    rolled(bench.topic, bench, ledgers=2)
    with asking.admin:
        asking.look()  # nobody has subscribed yet
        assert bench.admin.of("PUT", "/properties") == []
        bench.topic.subscribe(NAME)
        bench.topic.note(NAME, {"owner": "audit"})
        asking.look()
        noted = {"owner": "audit", SINCE_PROPERTY: "1"}
        assert asking.admin.stats(TOPIC).subscriptions[NAME].properties == noted
        bench.topic.acknowledge(NAME, Position(1, 2))
        bench.topic.trim()
        # Another process, later.
        Asking.look(asking)
        asking.triggers = OffloadTriggers(asking.admin, NAME, asking.clock, follows=True)
        asking.look()
        assert asking.admin.stats(TOPIC).subscriptions[NAME].properties == noted
        assert len(bench.admin.of("PUT", "/properties")) == 1


def test_topic_created_again_while_it_is_noted_has_its_own_first_ledger(bench: PulsarBench) -> None:
    asking = Asking(bench, follows=True)
    rolled(bench.topic, bench)
    bench.topic.subscribe(NAME)
    note, seen = bench.topic.note, []

    def noted(subscription: str, properties: dict[str, str]) -> None:
        seen.append(properties[SINCE_PROPERTY])
        if len(seen) == 1:
            rolled(bench.topic, bench)
            bench.topic.expire(2)  # the list that was noted is over
        note(subscription, properties)

    bench.topic.note = noted  # type: ignore[method-assign, assignment]
    with asking.admin:
        asking.look()
        assert asking.admin.stats(TOPIC).subscriptions[NAME].properties[SINCE_PROPERTY] == "2"


def test_outage_of_a_broker_with_many_topics_is_one_line(
    bench: PulsarBench, asking: Asking, caplog: pytest.LogCaptureFixture
) -> None:
    topics = [ServedTopic(f"{TOPIC}-{number}", FAR) for number in range(30)]
    bench.admin.add(*(FakeTopic(bench.broker, each.topic) for each in topics))
    bench.admin.is_up = False
    asking.look(*topics)
    asking.look(*topics)
    assert len(asking.triggers.problems()) == 30
    [record] = [each for each in caplog.records if each.name == "offloader.ledgers.pulsar"]
    assert "no offload is requested from the broker" in record.getMessage()
    assert record.getMessage().endswith("(and for 29 more topics)")
    assert record.__dict__["event"] == "retry", "a process tells of the outage itself"
