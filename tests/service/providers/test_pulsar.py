"""Topics of a fake cluster served: found, offloaded, taken over, drained; their subscriptions hold data back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from threading import Semaphore
from typing import Any

import pytest

from formats.entries import Position
from formats.pulsar.commands import CommandType
from offloader.errors import FencedError, InvalidCallError, NotFoundError, OffloaderError, StoreUnavailableError
from offloader.ledgers.pulsar.admin import AdminClient
from offloader.ledgers.pulsar.discovery import TopicPatterns, survey
from offloader.ledgers.pulsar.source import PulsarSource
from offloader.manifest.log import ManifestLog, load_manifest
from offloader.retention.cycle import RetentionCycle
from offloader.retention.subscribers import open_retention
from offloader.runtime.clock import SystemClock
from offloader.runtime.workers import Workers
from offloader.service.bootstrap import Assembled
from offloader.service.providers import pulsar
from offloader.service.providers.pulsar import PulsarProvider
from offloader.service.streams import StreamSupervisor
from offloader.write.stream import Mode
from tests.support.presence import there
from tests.support.pulsar_broker import BrokerClient, FakeBroker
from tests.support.pulsar_cluster import Cluster, P, S, fake_cluster, streams_of, whats
from tests.support.waiting import PATIENCE_S, eventually


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with fake_cluster() as made:
        yield made


@pytest.mark.slow
def test_active_owner_takes_its_fenced_stream_back(cluster: Cluster) -> None:
    cluster.make("one")
    with cluster.serve():
        eventually(lambda: cluster.is_offloaded("one"))
        # As by a process that hasn't heard yet that another one was chosen.
        late = ManifestLog(cluster.store, S + "one", clock=SystemClock())
        late.load()
        late.open_epoch()
        cluster.fill("one")
        eventually(lambda: cluster.is_offloaded("one"))
        assert load_manifest(cluster.store, S + "one").epoch > (late.epoch or 0)


@pytest.mark.slow
def test_process_is_ready_when_it_knows_the_topics(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    may_look = threading.Event()

    def waits(*given: Any, **options: Any) -> Any:
        assert may_look.wait(PATIENCE_S)
        return survey(*given, **options)

    monkeypatch.setattr(pulsar, "survey", waits)
    cluster.make("one")
    with cluster.serve() as assembled:
        readiness = assembled.view.readiness()
        assert (readiness.ready, whats(assembled)) == (False, "feed pulsar: the topics weren't listed yet")
        may_look.set()
        eventually(lambda: assembled.view.readiness().ready)
        assert streams_of(assembled) == [f"{S}one"]


@pytest.mark.slow
def test_fenced_stream_is_left_alone_while_the_broker_is_silent(cluster: Cluster) -> None:
    """Behind a broken network neither process learns which one is active: the two would fence each other repeatedly."""
    cluster.make("one")
    # A segment ends only when that is asked for, and nobody takes a stream because its owner says nothing.
    offload = {"offload__segment_age_max": "60m", "offload__takeover_after": 3600}
    with cluster.serve(request_timeout=2, offload=offload) as assembled:
        fill_live(cluster, assembled, "one")
        fall_silent(cluster.broker)
        late = ManifestLog(cluster.store, S + "one", clock=SystemClock())
        late.load()
        late.open_epoch()
        # Asked to commit, it meets the other epoch. It can also say first that the broker doesn't answer.
        with pytest.raises((FencedError, StoreUnavailableError)):
            assembled.process.streams.require(S + "one").offload(cluster.newest("one"), timeout_s=100)
        eventually(lambda: is_fenced(assembled, "one"))
        # At each look it asks the broker for a word.
        asked = len(cluster.broker.of(CommandType.PING))
        eventually(lambda: len(cluster.broker.of(CommandType.PING)) >= asked + 3)
        assert load_manifest(cluster.store, S + "one").epoch == late.epoch
        cluster.broker.is_silent = False
        eventually(lambda: load_manifest(cluster.store, S + "one").epoch != late.epoch)
        offload_now(cluster, assembled, "one")
        assert load_manifest(cluster.store, S + "one").epoch == (late.epoch or 0) + 1


def is_fenced(assembled: Assembled, name: str) -> bool:
    found = assembled.process.streams.get(S + name)
    status = None if found is None else found.status()
    return status is not None and status.error_kind == FencedError.__name__


def offload_now(cluster: Cluster, assembled: Assembled, name: str) -> None:
    """Until everything that is stored is in the cold tier."""

    def is_offloaded() -> bool:
        with suppress(OffloaderError):  # it isn't found yet, or is being started
            assembled.process.streams.require(S + name).offload(cluster.newest(name), timeout_s=100)
        return cluster.is_offloaded(name)

    eventually(is_offloaded)


def fill_live(cluster: Cluster, assembled: Assembled, name: str) -> None:
    """Entries that wait in an open segment of a stream which heard of them as they came: to commit them, and to take
    what comes next, nobody has to be asked."""

    def is_told_live() -> bool:
        found = assembled.process.streams.get(S + name)
        status = None if found is None else found.status()
        end = cluster.newest(name)
        return status is not None and status.mode is Mode.LIVE and status.tail == status.offered == end

    offload_now(cluster, assembled, name)
    # The first that comes after a closed ledger is looked up.
    for _ in range(2):
        cluster.fill(name)
        eventually(is_told_live)


def fall_silent(broker: FakeBroker) -> None:
    """Returns when every client has heard everything that the broker ever said."""
    broker.is_silent = True
    # Who answered the first time had no answer coming any more; who answered the second time has read them all.
    for _ in range(2):
        before = {client: pongs(broker, client) for client in list(broker.clients)}
        for client in before:
            client.send(CommandType.PING)
        eventually(partial(have_answered, broker, before))


def have_answered(broker: FakeBroker, before: dict[BrokerClient, int]) -> bool:
    return all(pongs(broker, client) > count or not broker.has(client) for client, count in before.items())


def pongs(broker: FakeBroker, client: BrokerClient) -> int:
    return sum(each is client and command.type is CommandType.PONG for each, command in list(broker.received))


@pytest.mark.slow
def test_admin_interface_without_responses_ends_no_stream(cluster: Cluster) -> None:
    cluster.make("one")
    with cluster.serve() as assembled:
        eventually(lambda: cluster.is_offloaded("one"))
        cluster.admin.is_up = False
        eventually(lambda: "doesn't answer" in whats(assembled))
        assert assembled.view.readiness().ready
        asked = len(cluster.admin.asked)
        eventually(lambda: len(cluster.admin.asked) > asked + 8)
        cluster.admin.is_up = True
        eventually(lambda: "doesn't answer" not in whats(assembled))
        assert streams_of(assembled) == [f"{S}one"]
        cluster.fill("one", 5)
        eventually(lambda: cluster.is_offloaded("one"))


@pytest.mark.slow
def test_a_process_that_never_saw_a_topic_is_not_ready(cluster: Cluster) -> None:
    cluster.admin.answers["/admin/v2/persistent/t/n"] = (500, b"broken")
    with cluster.serve() as assembled:
        eventually(lambda: "feed pulsar: topics: " in whats(assembled))
        assert not assembled.view.readiness().ready
        cluster.make("one")
        cluster.admin.answers.clear()
        eventually(lambda: assembled.view.readiness().ready)
        eventually(lambda: cluster.is_offloaded("one"))


@pytest.mark.slow
def test_standby_takes_over_when_the_active_process_ends(cluster: Cluster) -> None:
    cluster.make("one", "two")
    with cluster.serve() as first:
        eventually(lambda: cluster.is_offloaded("one") and cluster.is_offloaded("two"))
        with cluster.serve() as second:
            eventually(lambda: streams_of(second) == [f"{S}one", f"{S}two"])
            assert [row["active"] for row in second.view.streams().items] == [False, False]
            epoch = load_manifest(cluster.store, f"{S}one").epoch
            cluster.fill("one")
            eventually(lambda: cluster.is_offloaded("one"))
            first.process.stop()
            cluster.fill("one")
            eventually(lambda: cluster.is_offloaded("one"))
            assert load_manifest(cluster.store, f"{S}one").epoch == epoch + 1
            eventually(lambda: [row["active"] for row in second.view.streams().items] == [True, True])
    assert [position for position, _ in cluster.cold("one")] == [at for at, _, _ in cluster.topics["one"].entries]


@pytest.mark.slow
def test_refused_topic_is_reported_and_retried(cluster: Cluster) -> None:
    cluster.make("a", "b")
    with cluster.serve(topics_max=1) as assembled:
        eventually(lambda: cluster.is_offloaded("a"))
        eventually(lambda: f"stream {S}b: " in whats(assembled))
        assert "pulsar.topics_max" in whats(assembled)
        cluster.admin.remove(f"{P}a")
        eventually(lambda: cluster.is_offloaded("b"))


@pytest.mark.slow
def test_topics_that_wait_for_their_last_segment_delay_no_look_at_others(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = [f"gone-{number}" for number in range(8)]
    cluster.make(*gone)
    with cluster.serve() as assembled:
        eventually(lambda: len(streams_of(assembled)) == len(gone))
        goes_on = threading.Event()
        monkeypatch.setattr(StreamSupervisor, "drain", lambda *_: goes_on.wait())
        for name in gone:
            cluster.admin.remove(P + name)
        cluster.make("new")
        try:
            eventually(lambda: S + "new" in streams_of(assembled))
            looks = len(cluster.admin.of("GET", "/admin/v2/persistent/t/n"))
            eventually(lambda: len(cluster.admin.of("GET", "/admin/v2/persistent/t/n")) > looks + 6)
        finally:
            goes_on.set()
        eventually(lambda: streams_of(assembled) == [S + "new"])


@pytest.mark.slow
def test_problem_that_ends_while_problems_are_listed_is_listed_or_not(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic's problem is over between two looks at it."""
    cluster.make("one")
    with cluster.serve() as assembled:
        eventually(lambda: cluster.is_offloaded("one"))
        looks = iter([StoreUnavailableError("bookie 3 doesn't answer")])
        here = threading.get_ident()  # other threads look too
        problem = property(lambda _: next(looks, None) if threading.get_ident() == here else None)
        monkeypatch.setattr(PulsarSource, "problem", problem)
        (provider,) = assembled.process._feeds
        found = [f"{each.where}: {each.what}" for each in provider.problems()]
        assert found == [f"stream {S}one: bookie 3 doesn't answer"]
        assert provider.problems() == []


def test_namespaces_are_asked_for_until_too_many_fail_in_a_row(cluster: Cluster) -> None:
    names = [f"t/n{number}" for number in range(9)]
    cluster.admin.policies = {name: {} for name in names}
    cluster.admin.answers = {f"/admin/v2/persistent/t/n{number}": (500, b"") for number in (1, 3, 4, 5, 6)}
    with AdminClient(cluster.admin.url) as admin:
        look, error = survey(admin, TopicPatterns.of(["t/n*/x"]))
    assert error is not None
    assert sorted(look.topics) == ["t/n0", "t/n2"]
    assert look.failed == set(names) - set(look.topics)
    assert len(cluster.admin.of("GET", "t/n6")) == 0


def test_conflicting_namespace_policies_are_reported(cluster: Cluster) -> None:
    cluster.make("one")
    cluster.admin.policies["t/n"] = {"message_ttl_in_seconds": 60}
    with cluster.serve() as assembled:
        eventually(lambda: "namespace t/n: message TTL is 60 s" in whats(assembled))
        assert assembled.view.readiness().ready


def test_invalid_topic_setting_is_refused(cluster: Cluster) -> None:
    with pytest.raises(InvalidCallError, match=r"pulsar\.topics: 'orders'"):
        PulsarProvider(cluster.settings("orders"), cluster.store, clock=SystemClock())


QUEUE = {"retention__policy": "consumption"}


@pytest.mark.slow
def test_pulsar_subscriptions_hold_back_retention_and_broker_deletes_the_rest(cluster: Cluster) -> None:
    topic = cluster.make("one")
    for _ in range(2):
        cluster.fill("one")
        topic.roll()
    topic.subscribe("billing")
    topic.acknowledge("billing", Position(2, 4))
    lag = {"offload__deletion_lag": "0.0m"}
    with cluster.serve(offload={**QUEUE, **lag}) as assembled:
        eventually(lambda: len(cluster.cold("one")) == 30)
        subscribers = open_retention(cluster.store, f"{S}one")
        eventually(lambda: (_at(subscribers, "pulsar:billing") or Position(0, 0)) > Position(2, 4))
        cycle = RetentionCycle(
            cluster.store,
            clock=SystemClock(),
            settings_of=assembled.process.streams.settings_of,
            source_of=assembled.process.streams.source_of,
        )
        cycle.run(f"{S}one")
        assert load_manifest(cluster.store, f"{S}one").head == Position(2, 5)
        # Ours gave up what is offloaded and old enough; billing keeps its ledger with the broker.
        eventually(lambda: topic.entries[0][0] == Position(2, 0))
        topic.acknowledge("billing", Position(3, 9))
        eventually(lambda: (_at(subscribers, "pulsar:billing") or Position(0, 0)) > Position(3, 9))
        cycle.run(f"{S}one")
        assert there(load_manifest(cluster.store, f"{S}one").head) > Position(3, 0)
        topic.unsubscribe("billing")
        eventually(lambda: not subscribers.registry().subscribers)


@pytest.mark.slow
def test_failing_subscription_lookup_does_not_block_other_topics(cluster: Cluster) -> None:
    names = [f"topic-{number}" for number in range(9)]
    for name in names:
        cluster.make(name).subscribe("billing")
    broken, *others = names
    cluster.admin.answers[f"/admin/v2/persistent/t/n/{broken}/stats"] = 500, b"a bug"
    with cluster.serve(offload=QUEUE) as assembled:
        eventually(lambda: all(_follows(cluster, name) for name in others))
        eventually(lambda: "feed pulsar: subscriptions: " in whats(assembled))
        assert f"/{broken}/stats returned status 500" in whats(assembled)
        assert not _follows(cluster, broken)
        cluster.admin.answers.clear()
        eventually(lambda: _follows(cluster, broken))
        eventually(lambda: assembled.view.readiness().ready)


def _follows(cluster: Cluster, name: str) -> bool:
    try:
        return "pulsar:billing" in open_retention(cluster.store, S + name).registry().subscribers
    except NotFoundError:
        return False


def _at(retention: Any, name: str) -> Position | None:
    """``None``: it isn't there yet, or hasn't said."""
    found = retention.registry().subscribers.get(name)
    if found is None or found.cut is None:
        return None
    [position] = found.cut.offsets.values()
    assert isinstance(position, Position)
    return position


@pytest.mark.slow
def test_no_subscriber_is_registered_without_a_policy(cluster: Cluster) -> None:
    topic = cluster.make("one")
    topic.subscribe("billing")
    with cluster.serve() as assembled:
        eventually(lambda: cluster.is_offloaded("one"))
        asked = len(cluster.admin.of("GET", "/t/n"))
        eventually(lambda: len(cluster.admin.of("GET", "/t/n")) > asked + 4)
        assert cluster.admin.of("GET", "/stats") == []
        assert whats(assembled) == ""
    assert open_retention(cluster.store, f"{S}one").registry().subscribers == {}


def test_poll_runs_again_soon_after_a_ring_also_in_the_middle_of_one() -> None:
    workers = Workers(2, SystemClock())
    began, may_end = Semaphore(0), Semaphore(0)

    def poll() -> None:
        began.release()
        may_end.acquire()

    try:
        polls = pulsar._Poll(workers, poll, lambda: 3600.0)
        began.acquire()
        for _ in range(3):
            polls.ring()
        may_end.release()
        began.acquire()
        may_end.release()
        eventually(lambda: not polls._task._running)
        polls.ring()
        began.acquire()
        may_end.release()
        eventually(lambda: not polls._task._running)
        assert not began.acquire(blocking=False)
    finally:
        workers.close()
