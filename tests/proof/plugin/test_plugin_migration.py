"""Both ways between Pulsar's own offloader and the plugin: its ledgers imported, and ours exported for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pulsar
import pytest

from offloader.adopt import adopt
from offloader.cli.main import main
from offloader.runtime.clock import SystemClock
from services.pulsar.broker import offload_settings
from services.pulsar.build import find_place
from tests.plugin.plugin_world import PluginWorld, path_of, stream_of, topic_of
from tests.plugin.topic_history import TopicHistory, client_of, plain, receive

pytestmark = pytest.mark.java

COUNT = 600


def test_broker_with_the_plugin_reads_imported_ledgers_and_its_own(servers: Any, tmp_path: Path) -> None:
    topic = topic_of("moved")
    world = PluginWorld(tmp_path / "world", servers["minio"], has_sidecar=False, root="")
    world.broker_settings = {
        **offload_settings(world.endpoint.url, world.bucket),
        "offloadersDirectory": str(find_place(build=True) / "offloaders"),
    }
    with world:
        with TopicHistory(world.broker, topic, tmp_path) as history:
            history.send("rich", COUNT)
            history.transaction(5, "commit")
            history.transaction(3, "abort")
            history.send("batched", COUNT)
            theirs = world.offload(topic)
            world.forget(topic, theirs)
            assert len(theirs) >= 4
            [adopted] = adopt(world.store, clock=SystemClock()).streams
            assert [begin.ledger_id for begin in adopted.adopted] == theirs

            # The same broker, from now on with the plugin.
            world.broker.close()
            world.broker_settings = {}
            world.start_broker()
            world.start_sidecar()
            history.broker = world.broker
            history.send("plain", COUNT)
        world.await_committed(topic)
        ours = [each for each in world.offload(topic) if each not in theirs]
        world.forget(topic, [*theirs, *ours])
        assert ours
        assert world.ask("GET", f"/v1/streams/{stream_of(topic)}/ledgers/{theirs[0]}")[0] == 200
        client = client_of(world.service_url)
        consumer = client.subscribe(topic, "all", initial_position=pulsar.InitialPosition.Earliest)
        assert plain(receive(consumer, len(history.sent))) == history.sent
        client.close()
        assert world.bytes_fetched() > 0
        listed = world.admin("GET", f"{path_of(topic)}/internalStats")["ledgers"]
        assert [each["offloaded"] for each in listed] == [True] * (len(listed) - 1) + [False]


def test_broker_without_the_plugin_reads_exported_ledgers(
    servers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    topic, record = topic_of("back"), tmp_path / "record"
    world = PluginWorld(tmp_path / "world", servers["minio"])
    world.plugin_settings = {"source": "here", "export_bucket": world.bucket, "export_region": "us-east-1"}
    with world:
        with TopicHistory(world.broker, topic, tmp_path) as history:
            history.send("rich", COUNT // 2)
            history.transaction(5, "commit")
            history.transaction(3, "abort")
            history.send("batched", COUNT // 2)
        world.await_committed(topic)
        ledgers = world.offload(topic)
        world.forget(topic, ledgers)
        stream = unquote(stream_of(topic))
        record.write_bytes(world.broker.record(stream))
        world.kill_sidecar()

        for name, value in servers["minio"].environment.items():
            monkeypatch.setenv(name, value)
        place = ["--store", world.store_url, "--endpoint-url", world.endpoint.url, "--region", "us-east-1"]
        call = ["export", "v1", stream, *place, "--dest", f"s3://{world.bucket}", "--broker-record", str(record)]
        found = []
        for _ in range(2):
            capsys.readouterr()
            assert main([*call, "--json"]) == 0
            rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
            assert [each["ledger_id"] for each in rows] == ledgers
            found.append({each["state"] for each in rows})
        assert found == [{"written"}, {"there already"}]

        # The same broker, from now on with Pulsar's own offloader.
        world.broker.close()
        own = str(find_place(build=True) / "offloaders")
        world.broker_settings = {**offload_settings(world.endpoint.url, world.bucket), "offloadersDirectory": own}
        world.start_broker()
        client = client_of(world.service_url)
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        assert plain(receive(reader, len(history.sent))) == history.sent
        client.close()
        assert not any(world.bookie_has(each) for each in ledgers)
        assert world.counters() == {}, "the plugin isn't there any more"
