"""Ledgers that Pulsar's own offloader offloaded: imported, then read by the broker through the plugin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pulsar
import pytest

from offloader.adopt import adopt
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
