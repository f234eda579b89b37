"""Sidecars that are killed, refuse, or don't know a topic; objects that are damaged: named, and nothing is skipped."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pulsar
import pytest

from tests.plugin.plugin_world import LEDGER_ENTRIES, TOKEN, PluginWorld, path_of, stream_of, topic_of
from tests.plugin.topic_history import Message, TopicHistory, client_of, plain, receive
from tests.support.quick import needs
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.java

COUNT = 900
#: The shortest that may be set.
URL_LIFETIME = "10s"


@pytest.fixture(scope="module")
@needs("java")
def faulty(release: str, servers: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PluginWorld]:
    """A broker that asks a read server first, and the sidecar when that doesn't answer."""
    folder = tmp_path_factory.mktemp("faulty")
    with PluginWorld(
        folder,
        servers["minio"],
        release=release,
        endpoints=("reader", "sidecar"),
        sidecar_settings=f'[broker]\nurl_lifetime = "{URL_LIFETIME}"',
    ) as made:
        yield made


@pytest.fixture
def client(faulty: PluginWorld) -> Iterator[pulsar.Client]:
    made = client_of(faulty.service_url)
    yield made
    made.close()


def sent_to(world: PluginWorld, topic: str, folder: Path, count: int = COUNT) -> list[Message]:
    with TopicHistory(world.broker, topic, folder) as history:
        history.send("plain", count)
    return history.sent


def make_cold(world: PluginWorld, topic: str) -> None:
    world.await_committed(topic)
    world.forget(topic, world.offload(topic))


def test_offload_that_began_without_a_sidecar_ends_with_one(
    faulty: PluginWorld, client: pulsar.Client, tmp_path: Path
) -> None:
    topic = topic_of("later")
    faulty.kill_sidecar()
    sent = sent_to(faulty, topic, tmp_path)
    last = faulty.ledgers(topic)[-1]
    faulty.ask_to_offload(topic, last)
    # Without one the topic is as usable as any.
    assert plain(receive(client.create_reader(topic, pulsar.MessageId.earliest), COUNT)) == sent
    faulty.start_sidecar()
    eventually(lambda: faulty.try_offload(topic))
    assert plain(receive(client.create_reader(topic, pulsar.MessageId.earliest), COUNT)) == sent


def test_reading_goes_on_when_the_read_server_is_killed(
    faulty: PluginWorld, client: pulsar.Client, tmp_path: Path
) -> None:
    topic = topic_of("failover")
    sent = sent_to(faulty, topic, tmp_path)
    make_cold(faulty, topic)
    with_reader(faulty)
    reader = client.create_reader(topic, pulsar.MessageId.earliest, receiver_queue_size=1)
    found = receive(reader, LEDGER_ENTRIES // 2, and_no_more=False)
    faulty.kill_sidecar("reader")
    found += receive(reader, COUNT - len(found))
    assert plain(found) == sent
    # Both are gone: the reader stands still, and goes on where it was.
    faulty.admin("PUT", f"{path_of(topic)}/unload")
    reader = client.create_reader(topic, pulsar.MessageId.earliest, receiver_queue_size=1)
    found = receive(reader, LEDGER_ENTRIES // 2, and_no_more=False)
    faulty.kill_sidecar()
    faulty.admin("PUT", f"{path_of(topic)}/unload")
    going_on = threading.Thread(target=lambda: found.extend(receive(reader, COUNT - LEDGER_ENTRIES // 2)))
    going_on.start()
    faulty.start_sidecar()
    going_on.join()
    assert plain(found) == sent


def with_reader(world: PluginWorld) -> None:
    if "reader" not in world.sidecars:
        world.start_sidecar("reader")


def test_wrong_token_is_named_and_the_topic_stays_usable(
    faulty: PluginWorld, client: pulsar.Client, tmp_path: Path
) -> None:
    topic = topic_of("refused")
    faulty.token_file.write_text("token-that-somebody-guessed")
    try:
        sent = sent_to(faulty, topic, tmp_path)
        faulty.ask_to_offload(topic, faulty.ledgers(topic)[-1])
        eventually(lambda: "401" in log_of(faulty, topic))
        eventually(lambda: faulty.admin("GET", f"{path_of(topic)}/offload")["status"] == "ERROR")
        assert "401" in faulty.admin("GET", f"{path_of(topic)}/offload")["lastError"]
        assert "token-that-somebody-guessed" not in faulty.broker.log.read_text()
        assert plain(receive(client.create_reader(topic, pulsar.MessageId.earliest), COUNT)) == sent
    finally:
        faulty.token_file.write_text(TOKEN)
    eventually(lambda: faulty.try_offload(topic))
    assert plain(receive(client.create_reader(topic, pulsar.MessageId.earliest), COUNT)) == sent


def log_of(world: PluginWorld, topic: str) -> str:
    """Lines of the broker's log about a topic that name a problem."""
    name = topic.rpartition("/")[2]
    lines = world.broker.log.read_text(errors="replace").splitlines()
    return "\n".join(line for line in lines if name in line and (" WARN " in line or " ERROR " in line))


def test_topic_that_no_sidecar_offloads_is_named_and_stays_usable(
    faulty: PluginWorld, client: pulsar.Client, tmp_path: Path
) -> None:
    topic = "persistent://public/default/unknown"
    sent = sent_to(faulty, topic, tmp_path)
    *closed, last = faulty.ledgers(topic)
    faulty.ask_to_offload(topic, last)
    eventually(lambda: "404" in log_of(faulty, topic))
    faulty.admin("POST", f"{path_of(topic)}/trim")
    assert all(faulty.bookie_has(each) for each in closed)
    assert plain(receive(client.create_reader(topic, pulsar.MessageId.earliest), COUNT)) == sent


def test_damaged_object_is_an_error_until_it_is_whole_again(
    faulty: PluginWorld, client: pulsar.Client, tmp_path: Path
) -> None:
    topic = topic_of("damaged")
    sent = sent_to(faulty, topic, tmp_path)
    make_cold(faulty, topic)
    whole = {key: data for key, data in objects_of(faulty, topic).items() if not key.endswith("-index")}
    put(faulty, {key: data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :]
                 for key, data in whole.items()})  # fmt: skip
    failures = faulty.counters()["CorruptBlocks"]
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found: list[Message] = []
    going_on = threading.Thread(target=lambda: found.extend(plain(receive(reader, COUNT))))
    going_on.start()
    eventually(lambda: faulty.counters()["CorruptBlocks"] > failures)
    put(faulty, whole)
    going_on.join()
    assert found == sent


def test_reading_goes_on_after_the_urls_have_expired(
    faulty: PluginWorld, client: pulsar.Client, tmp_path: Path
) -> None:
    topic = topic_of("expired")
    sent = sent_to(faulty, topic, tmp_path)
    make_cold(faulty, topic)
    with_reader(faulty)
    first = faulty.ledgers(topic)[0]
    reader = client.create_reader(topic, pulsar.MessageId.earliest, receiver_queue_size=1)
    found = receive(reader, LEDGER_ENTRIES // 2, and_no_more=False)
    status, plan = faulty.ask("GET", f"/v1/streams/{stream_of(topic)}/ledgers/{first}", "reader")
    assert status == 200
    [url, *_] = json.loads(plan)["objects"]
    eventually(lambda: status_of(url) == 403)
    faulty.admin("PUT", f"{path_of(topic)}/unload")
    # By URLs again, and not only through the sidecar
    requests = faulty.counters()["PresignedRequests"]
    found += receive(reader, COUNT - len(found))
    assert plain(found) == sent
    assert faulty.counters()["PresignedRequests"] > requests
    assert "X-Amz-Signature" not in faulty.broker.log.read_text(errors="replace")


def status_of(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def s3_of(world: PluginWorld) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=world.endpoint.url,
        region_name="us-east-1",
        aws_access_key_id=world.endpoint.access_key,
        aws_secret_access_key=world.endpoint.secret_key,
    )


def objects_of(world: PluginWorld, topic: str) -> dict[str, bytes]:
    """A topic's segments."""
    s3, name = s3_of(world), topic.rpartition("/")[2]
    keys = [key for key in world.objects() if f"/{name}/" in key and "/manifest/" not in key and "_catalog/" not in key]
    return {key: s3.get_object(Bucket=world.bucket, Key=key)["Body"].read() for key in keys}


def put(world: PluginWorld, objects: dict[str, bytes]) -> None:
    s3 = s3_of(world)
    for key, data in objects.items():
        s3.put_object(Bucket=world.bucket, Key=key, Body=data)
