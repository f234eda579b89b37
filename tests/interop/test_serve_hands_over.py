"""Two whole sidecars beside a real broker: the one that can't reach the store leaves its topic to the other, once."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pulsar

from formats.entries import Position
from offloader.ledgers.pulsar.admin import AdminClient
from offloader.manifest.log import list_streams, load_manifest
from offloader.manifest.state import ManifestState
from offloader.store.base import ObjectStore
from services.pulsar.broker import Broker
from services.toxiproxy import FaultyProxy, Toxiproxy
from tests.conftest import Servers
from tests.interop.broker_topics import command
from tests.support.readback import stored_entries
from tests.support.serving_processes import Serving
from tests.support.waiting import eventually

NAMESPACE = "public/unreachable"
TOPIC, STREAM = f"persistent://{NAMESPACE}/orders", f"{NAMESPACE}/persistent/orders"
#: Ledgers of that broker end after 300 entries.
COUNT = 400
HAND_OVER_S = 1


class Topic:
    """What was sent, and what is stored of it."""

    def __init__(self, broker: Broker, admin: AdminClient, store: ObjectStore, producer: pulsar.Producer) -> None:
        self.broker, self.admin, self.store, self._producer = broker, admin, store, producer
        self.sent: list[bytes] = []

    def send(self) -> None:
        values = [b"number %d." % number for number in range(len(self.sent), len(self.sent) + COUNT)]
        for value in values:
            self._producer.send_async(value, None)
        self._producer.flush()
        self.sent.extend(values)

    def is_stored(self) -> bool:
        if STREAM not in set(list_streams(self.store)):
            return False
        return sum(each.summary.entries for each in self.state.offloaded() if each.summary) == len(self.sent)

    @property
    def state(self) -> ManifestState:
        return load_manifest(self.store, STREAM)

    def has_consumers(self, count: int) -> bool:
        found = self.admin.stats(TOPIC).subscriptions.get("offloader")
        return found is not None and found.consumers == count

    def hot(self) -> list[tuple[Position, bytes]]:
        """Every entry as the bookie has it."""
        # Nobody but its writer may read the newest entry of a ledger that isn't closed.
        command(self.broker, "PUT", f"persistent/{TOPIC.removeprefix('persistent://')}/unload")
        found: list[tuple[Position, bytes]] = []
        for ledger in self.admin.ledgers(TOPIC).ledgers:
            last = int(self.broker.ledger(ledger.ledger_id)["last"])
            entries = self.broker.hot(ledger.ledger_id, 0, last) if last >= 0 else []
            found += [(Position(ledger.ledger_id, number), payload) for number, payload in enumerate(entries)]
        return found


def turns(sidecar: Serving) -> int:
    """How often the broker named it."""
    return sum(line.get("message") == f"topic {TOPIC}: it is our turn" for line in list(sidecar.lines))


def config_at(path: Path, broker: Broker, store: str, endpoint_url: str) -> Path:
    """Deadlines so short that a way that is cut is noticed soon."""
    path.write_text(
        f'streaming_offload = true\n[serve]\nstore = "{store}"\nendpoint_url = "{endpoint_url}"\n'
        'region = "us-east-1"\nupkeep = false\nrestart_seconds_max = 1\n'
        "[store]\nconnect_timeout_s = 1\nretries_max = 2\nretry_total_s = 2\nretry_delay_max_s = 0.2\n"
        f'[pulsar]\nservice_url = "{broker.service_url}"\nadmin_url = "{broker.admin_url}"\n'
        f'topics = ["{NAMESPACE}"]\ntopics_seconds = 0.2\nhand_over_seconds = {HAND_OVER_S}\n'
        "retry_seconds_max = 0.2\n"
        "[offload]\nmax_offload_segment_rollover_time_minutes = 0.01\nretry_seconds_max = 0.2\n"
        "takeover_after_seconds = 1\n"
    )
    return path


def test_an_owner_that_cant_reach_the_store_leaves_its_topic_to_the_one_that_waits(
    plain_broker: Broker, tmp_path: Path, servers: Servers, toxiproxy: Toxiproxy, exercises: Any
) -> None:
    exercises("pulsar")
    broker, place = plain_broker, servers.place("minio")
    environ = {"AWS_ACCESS_KEY_ID": place.endpoint.access_key, "AWS_SECRET_ACCESS_KEY": place.endpoint.secret_key}
    with ExitStack() as stack:
        admin = stack.enter_context(AdminClient(broker.admin_url))
        command(broker, "PUT", f"namespaces/{NAMESPACE}")
        store = place.open()
        stack.callback(store.close)
        client = pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        stack.callback(client.close)
        producer = client.create_producer(TOPIC, batching_enabled=False, block_if_queue_full=True)
        topic = Topic(broker, admin, store, producer)
        ways: dict[Serving, FaultyProxy] = {}
        for name in ("a", "b"):
            way = toxiproxy.proxy(f"hands-over-{name}", place.endpoint.url)
            stack.callback(way.remove)
            config = config_at(tmp_path / f"{name}.toml", broker, place.url, way.url)
            ways[stack.enter_context(Serving(config, environ))] = way
        # Both are connected to the same subscription: nobody comes any more for whom the broker chooses anew.
        eventually(lambda: topic.has_consumers(2))
        topic.send()
        eventually(topic.is_stored)
        [first] = [each for each in ways if topic.state.owner.name.endswith(f"/{each.process.pid}")]
        [second] = [each for each in ways if each is not first]

        ways[first].cut_off()
        topic.send()
        first.logged("topic_left")
        eventually(topic.is_stored)
        assert topic.state.owner.name.endswith(f"/{second.process.pid}")

        # Now the broker chooses anew, and may name either of them.
        ways[first].let_through()
        first.logged("topic_wanted")
        eventually(lambda: topic.has_consumers(2))
        topic.send()
        eventually(topic.is_stored)
        second.process.kill()
        second.ended()
        topic.send()
        eventually(topic.is_stored)
        state = topic.state
        assert state.owner.name.endswith(f"/{first.process.pid}")
        # Nobody took the stream without having been named for it.
        assert 2 <= state.epoch <= sum(map(turns, ways)), [each.lines for each in ways]
        stored = stored_entries(store, STREAM)
        assert stored == topic.hot()
        assert all(map(bytes.endswith, (payload for _, payload in stored), topic.sent))
        assert (len(stored), state.gaps) == (4 * COUNT, ())
