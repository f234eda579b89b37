"""What operators set and ask of a broker: policies of a namespace, quotas, automatic skips, the state of an offload."""

from __future__ import annotations

import contextlib
import time
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pulsar
import pytest

from formats.entries import Position
from formats.manifest import Truncate
from offloader.manifest.log import ManifestLog
from offloader.runtime.clock import SystemClock
from tests.plugin.plugin_world import LEDGER_ENTRIES, POLICIES, PluginWorld, path_of, stream_of, topic_of
from tests.plugin.topic_history import Message, TopicHistory, client_of, plain, receive
from tests.support.quick import needs
from tests.support.waiting import eventually

pytestmark = pytest.mark.java

COUNT = 500
EARLIEST = pulsar.InitialPosition.Earliest
#: Bytes; a fraction of what the test sends.
QUOTA, PIECE = 60_000, 15_000


@pytest.fixture
def client(world: PluginWorld) -> Iterator[pulsar.Client]:
    made = client_of(world.service_url, is_quiet=True)
    yield made
    made.close()


def sent_to(world: PluginWorld, topic: str, folder: Path) -> list[Message]:
    """So many messages, which only the cold tier has when this returns."""
    with TopicHistory(world.broker, topic, folder) as history:
        history.send("rich", COUNT)
    world.await_committed(topic)
    world.forget(topic, world.offload(topic))
    return history.sent


def test_policy_of_a_namespace_may_change_while_its_topics_are_read(
    world: PluginWorld, client: pulsar.Client, tmp_path: Path
) -> None:
    path = f"namespaces/{POLICIES}/offloadPolicies"
    policy = {
        "managedLedgerOffloadDriver": "offloader",
        "managedLedgerOffloadBucket": "not-used",
        "offloadersDirectory": world.settings_of_broker()["offloadersDirectory"],
        "managedLedgerOffloadDeletionLagInMillis": 0,
    }
    with pytest.raises(urllib.error.HTTPError) as refused:
        world.admin("POST", path, {**policy, "managedLedgerOffloadDriver": "of-nobody"})
    assert refused.value.code == 412
    world.admin("POST", path, policy)
    topic = f"persistent://{POLICIES}/changed"
    sent = sent_to(world, topic, tmp_path)
    before = world.bytes_read()
    reader = client.create_reader(topic, pulsar.MessageId.earliest, receiver_queue_size=1)
    found = receive(reader, LEDGER_ENTRIES // 2, and_no_more=False)
    # The broker closes the offloader that the topic reads with, and makes another one.
    world.admin("POST", path, {**policy, "managedLedgerOffloadMaxThreads": 1})
    found += receive(reader, COUNT - len(found))
    assert plain(found) == sent
    assert world.admin("GET", path)["managedLedgerOffloadDriver"] == "offloader"
    world.admin("DELETE", f"namespaces/{POLICIES}/removeOffloadPolicies")
    world.admin("PUT", f"{path_of(topic)}/unload")
    assert plain(receive(client.create_reader(topic, pulsar.MessageId.earliest), COUNT)) == sent
    assert world.bytes_read() > before


def test_what_is_committed_counts_toward_no_backlog_quota(
    world: PluginWorld, client: pulsar.Client, tmp_path: Path
) -> None:
    topic = f"persistent://{POLICIES}/quota"
    quota = {"limitSize": QUOTA, "limitTime": -1, "policy": "producer_exception"}
    client.create_producer(topic).close()
    world.admin("POST", f"namespaces/{POLICIES}/backlogQuota?backlogQuotaType=destination_storage", quota)
    try:
        sent: list[Message] = []
        for _ in range(3 * QUOTA // PIECE):
            with TopicHistory(world.broker, topic, tmp_path) as history:
                history.sent = sent
                history.send("plain", PIECE // 100)
            eventually(lambda: backlog_of(world, topic, "offloader") == 0)
        assert sum(len(message.value) for message in sent) > QUOTA
        assert plain(receive(client.create_reader(topic, pulsar.MessageId.earliest), len(sent))) == sent
        # One that acknowledges nothing trips it at once: the broker does keep this quota.
        client.subscribe(topic, "keeps everything", initial_position=EARLIEST).close()
        eventually(lambda: is_refused(client, topic))
    finally:
        world.admin("DELETE", f"namespaces/{POLICIES}/backlogQuota?backlogQuotaType=destination_storage")
        world.admin("DELETE", f"{path_of(topic)}?force=true")


def backlog_of(world: PluginWorld, topic: str, subscription: str) -> int:
    found = world.admin("GET", f"{path_of(topic)}/stats?getPreciseBacklog=true")["subscriptions"]
    return int(found[subscription]["msgBacklog"]) if subscription in found else -1


def is_refused(client: pulsar.Client, topic: str) -> bool:
    try:
        client.create_producer(topic).close()
    except pulsar.PulsarException:
        return True
    return False


def test_gaps_at_both_ends_and_of_a_whole_ledger_are_filled(
    world: PluginWorld, client: pulsar.Client, tmp_path: Path
) -> None:
    topic = topic_of("gaps")
    missing = world.counters()["MissingEntries"]  # before the sidecar has closed ledgers offloaded
    with TopicHistory(world.broker, topic, tmp_path) as history:
        history.transaction(3, "abort")  # and its marker: four entries
        history.send("plain", LEDGER_ENTRIES - 6)
        history.transaction(1, "abort")  # the last two of the first ledger
        history.transaction(LEDGER_ENTRIES - 1, "abort")  # the second one
        history.send("plain", 30)
    world.await_committed(topic)
    ledgers = world.offload(topic)
    listed = {each["ledgerId"]: each["entries"] for each in world.admin("GET", internals_of(topic))["ledgers"]}
    assert [listed[each] for each in ledgers] == [LEDGER_ENTRIES, LEDGER_ENTRIES, 30]
    # An attempt that an unload left running may have sent the same ones.
    assert world.counters()["MissingEntries"] >= missing + 4 + 2 + LEDGER_ENTRIES
    world.forget(topic, ledgers)
    before = world.bytes_read()
    consumer = client.subscribe(topic, "new", initial_position=EARLIEST)
    assert plain(receive(consumer, len(history.sent))) == history.sent
    assert world.bytes_read() > before


def test_topic_whose_first_ledgers_hold_nothing_for_readers_is_offloaded(
    world: PluginWorld, client: pulsar.Client, tmp_path: Path
) -> None:
    topic = topic_of("nothing-first")
    with TopicHistory(world.broker, topic, tmp_path) as history:
        for _ in range(2):
            history.transaction(LEDGER_ENTRIES - 1, "abort")  # and its marker: a whole ledger
        history.transaction(3, "abort")
        history.send("plain", 30)
    world.await_committed(topic)
    ledgers = world.offload(topic)
    listed = {each["ledgerId"]: each["entries"] for each in world.admin("GET", internals_of(topic))["ledgers"]}
    assert [listed[each] for each in ledgers] == [LEDGER_ENTRIES, LEDGER_ENTRIES, 34]
    world.forget(topic, ledgers)
    before = world.bytes_read()
    consumer = client.subscribe(topic, "new", initial_position=EARLIEST)
    assert plain(receive(consumer, len(history.sent))) == history.sent
    assert world.bytes_read() > before


def internals_of(topic: str) -> str:
    return f"{path_of(topic)}/internalStats"


@pytest.fixture(scope="module")
@needs("java")
def skipping(release: str, servers: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PluginWorld]:
    """A broker that skips ledgers which are gone for good, and asks a read server first."""
    settings = {"autoSkipNonRecoverableData": "true"}
    folder = tmp_path_factory.mktemp("skipping")
    with PluginWorld(
        folder, servers["minio"], release=release, broker_settings=settings, endpoints=("reader", "sidecar")
    ) as made:
        yield made


def test_ledger_that_nobody_knows_stops_consumers_and_one_deleted_on_purpose_is_skipped(
    skipping: PluginWorld, tmp_path: Path
) -> None:
    world, topic = skipping, topic_of("skipped")
    sent = sent_to(world, topic, tmp_path)
    first, second, *_ = world.ledgers(topic)
    # 404: the process that answers has another store.
    world.kill_sidecar()
    root, world.root = world.root, "/of-another-cluster"
    world.start_sidecar("reader")
    world.admin("PUT", f"{path_of(topic)}/unload")
    failures = world.counters()["ReadFailures"] + world.counters()["Plans"]
    with contextlib.closing(client_of(world.service_url, is_quiet=True)) as client:
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        eventually(lambda: world.counters()["ReadFailures"] + world.counters()["Plans"] >= failures + 2)
        with pytest.raises(pulsar.Timeout):
            reader.read_next(1_000)
        world.kill_sidecar("reader")
        world.root = root
        world.start_sidecar("reader")
        assert plain(receive(reader, COUNT)) == sent
        # 410: it was truncated, which nothing but a person with --force does to a ledger that a broker lists.
        log = ManifestLog(world.store, unquote(stream_of(topic)), clock=SystemClock())
        log.load()
        log.commit_as_maintainer([Truncate(Position(second, 0))])
        eventually(lambda: world.ask("GET", plan_of(topic, first), "reader")[0] == 410)
        world.admin("PUT", f"{path_of(topic)}/unload")
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        assert plain(receive(reader, COUNT - LEDGER_ENTRIES)) == sent[LEDGER_ENTRIES:]


def plan_of(topic: str, ledger_id: int) -> str:
    return f"/v1/streams/{stream_of(topic)}/ledgers/{ledger_id}"


def test_state_of_an_offload_is_what_pulsar_admin_shows(world: PluginWorld, tmp_path: Path) -> None:
    topic = topic_of("state")
    with TopicHistory(world.broker, topic, tmp_path) as history:
        history.send("plain", COUNT)
    path = f"{path_of(topic)}/offload"
    assert world.admin("GET", path)["status"] in ("NOT_RUN", "RUNNING", "SUCCESS")
    world.await_committed(topic)
    ledgers = world.offload(topic)
    status = world.admin("GET", path)
    assert (status["status"], status["lastError"]) == ("SUCCESS", "")
    stats = world.admin("GET", f"{path_of(topic)}/stats")
    assert stats["offloadedStorageSize"] > sum(len(message.value) for message in history.sent) // 2
    assert 0 < stats["lastOffloadLedgerId"] <= ledgers[-1]
    assert 0 < time.time() * 1000 - stats["lastOffloadSuccessTimeStamp"] < 600_000
    assert stats["lastOffloadFailureTimeStamp"] == 0
