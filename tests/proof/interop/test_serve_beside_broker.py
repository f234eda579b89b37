"""Two whole sidecars beside a real broker: the standby takes over when the active one is killed."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from pathlib import Path

import pulsar
import pytest

from offloader.ledgers.pulsar.admin import AdminClient
from offloader.manifest.log import list_streams, load_manifest
from offloader.store.open import open_store
from services.pulsar.broker import running_broker
from tests.proof.interop.broker_topics import command
from tests.support.readback import stored_entries
from tests.support.serving_processes import Serving
from tests.support.waiting import eventually

pytestmark = pytest.mark.java

NAMESPACE = "public/sidecars"
TOPIC, STREAM = f"persistent://{NAMESPACE}/orders", f"{NAMESPACE}/persistent/orders"
COUNT = 400


def has_consumers(admin: AdminClient, count: int) -> bool:
    found = admin.stats(TOPIC).subscriptions.get("offloader")
    return found is not None and found.consumers == count


def require_documented_names(admin: AdminClient) -> None:
    """What docs/explanation/pulsar-topics.md says is in the broker's lists."""
    found = dict(admin.stats(TOPIC).subscriptions)
    assert found.pop("offloader").is_durable
    assert any(name.startswith("offloader-live-") for name in found)
    for name, each in found.items():
        assert name.startswith(("offloader-live-", "offloader-history-"))
        assert not each.is_durable


def test_second_sidecar_takes_over_when_the_first_is_killed(tmp_path: Path) -> None:
    config, url = tmp_path / "offloader.toml", f"file://{tmp_path}/store"
    with running_broker(tmp_path / "broker", {}) as broker, AdminClient(broker.admin_url) as admin:
        command(broker, "PUT", f"namespaces/{NAMESPACE}")
        config.write_text(
            f'streaming_offload = true\n[serve]\nstore = "{url}"\nmaintenance = false\n'
            f'[pulsar]\nservice_url = "{broker.service_url}"\nadmin_url = "{broker.admin_url}"\n'
            f'topics = ["{NAMESPACE}"]\ndiscovery_interval = "500ms"\n'
            "[offload]\nsegment_age_max = '600ms'\n"
        )
        store = open_store(url)
        client = pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        producer = client.create_producer(TOPIC, batching_enabled=False, block_if_queue_full=True)
        sent: list[bytes] = []

        def send() -> None:
            values = [b"number %d." % number for number in range(len(sent), len(sent) + COUNT)]
            for value in values:
                producer.send_async(value, None)
            producer.flush()
            sent.extend(values)

        def are_stored() -> bool:
            if STREAM not in set(list_streams(store)):
                return False
            entries = [payload for _, payload in stored_entries(store, STREAM)]
            return len(entries) == len(sent) and all(map(bytes.endswith, entries, sent))

        with ExitStack() as stack:
            sidecars = [stack.enter_context(Serving(config)) for _ in range(2)]
            # Both are connected to the same subscription: nobody comes any more for whom the broker chooses anew.
            eventually(lambda: has_consumers(admin, 2))
            send()
            eventually(are_stored)
            require_documented_names(admin)
            state = load_manifest(store, STREAM)
            epoch = state.epoch
            [working] = [each for each in sidecars if state.owner.name.endswith(f"/{each.process.pid}")]
            [waiting] = [each for each in sidecars if each is not working]
            working.signal(signal.SIGKILL)
            working.ended()
            send()
            eventually(are_stored)
            state = load_manifest(store, STREAM)
            assert (state.epoch, state.owner.name.endswith(f"/{waiting.process.pid}")) == (epoch + 1, True)

            send()
            # What was sent last is completed before it ends, or left to the next start and said.
            eventually(are_stored)
            waiting.signal(signal.SIGTERM)
            assert waiting.ended() == 0
        client.close()
    assert are_stored()
