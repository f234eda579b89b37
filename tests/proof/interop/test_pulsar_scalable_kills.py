"""Scalable topics whose broker is killed together with the sidecars, and whose controller is killed.

A producer that loses its connection may send again what the broker has already, and doesn't know of all that was
stored: the store is compared with the bookie, entry by entry, and has everything that was acknowledged.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path

import pytest

from formats.entries import Position
from formats.pulsar.ledger_record import decode_ledger_record
from offloader.errors import NotFoundError
from services.pulsar.broker import ZOOKEEPER, Refused, start_broker
from services.pulsar.build import SCALABLE
from services.pulsar.scalable import running_scalable_client
from services.servers import free_port
from tests.proof.interop.record_scalable_layouts import Admin
from tests.proof.interop.scalable_world import KEYS, NAMESPACE, SETTINGS, Sent, World, added, terminated_at
from tests.support.readback import stored_entries
from tests.support.serving_processes import Serving
from tests.support.waiting import eventually

pytestmark = pytest.mark.java

NAME = "orders"
TOPIC = f"topic://{NAMESPACE}/{NAME}"


def segments_of_broker(world: World) -> dict[str, list[tuple[Position, bytes]]]:
    """Stream of each segment -> its entries, from the bookie."""
    return {row.stream: entries_of_broker(world, row.stream) for row in world.recorded(NAME).segments}


def entries_of_broker(world: World, stream: str) -> list[tuple[Position, bytes]]:
    record = world.broker.record(stream)
    end = terminated_at(record) or Position(2**62, 0)
    return [
        (position, entry)
        for ledger in sorted(decode_ledger_record(record), key=lambda each: each.ledger_id)
        if (last := world.broker.ledger(ledger.ledger_id)["last"]) >= 0
        for number, entry in enumerate(world.broker.hot(ledger.ledger_id, 0, last))
        if (position := Position(ledger.ledger_id, number)) <= end
    ]


def segments_of_store(world: World) -> dict[str, list[tuple[Position, bytes]]]:
    """The same of the store."""
    found = dict[str, list[tuple[Position, bytes]]]()
    for row in world.recorded(NAME).segments:
        found[row.stream] = []
        with suppress(NotFoundError):
            found[row.stream] = stored_entries(world.store(), row.stream)
    return found


def require_whole(world: World, acknowledged: Sent) -> None:
    world.admin.do("PUT", f"namespaces/{NAMESPACE}/unload")  # closes the ledgers

    def are_equal() -> bool:
        with suppress(Refused):  # the broker replaces the empty ledgers of topics that it loads
            return segments_of_store(world) == segments_of_broker(world)
        return False

    eventually(are_equal, within_s=300)
    found = world.of_segments(NAME)
    assert all(set(found[key]) >= set(values) for key, values in acknowledged.items())
    assert world.read(NAME) == found


@pytest.mark.timeout(1800)
def test_acknowledged_messages_are_kept_while_broker_and_sidecars_are_killed(tmp_path: Path) -> None:
    """100,000 messages, three splits, two merges, and 20 kills: of a sidecar, of the broker, or of both together."""
    settings = {**SETTINGS, "brokerServicePort": str(free_port()), "webServicePort": str(free_port())}
    with ExitStack() as stack:
        broker = start_broker(tmp_path / "broker", settings, ZOOKEEPER, release=SCALABLE)
        stack.callback(lambda: world.broker.end())
        client = stack.enter_context(running_scalable_client(tmp_path / "client", broker.service_url))
        world = World.made(tmp_path, broker, client)
        world.admin.do("PUT", f"scalable/{NAMESPACE}/{NAME}?numInitialSegments=2")
        sidecars = deque(stack.enter_context(Serving(world.config)) for _ in range(2))

        def kill(number: int) -> None:
            if number % 3 != 1:
                sidecars.popleft().process.kill()
            if number % 3:
                world.broker.kill()
                world.broker.close()
                world.broker = start_broker(tmp_path / "broker", settings, ZOOKEEPER, release=SCALABLE)
            if len(sidecars) == 1:
                sidecars.append(stack.enter_context(Serving(world.config)))

        sent = world.sent_through_kills(NAME, kill, count=100_000)
        require_whole(world, sent)
    assert sent


@pytest.mark.timeout(900)
def test_killed_controller_of_two_brokers_stops_no_segment(tmp_path: Path) -> None:
    sent = Sent()
    with ExitStack() as stack:
        first = start_broker(tmp_path / "first", SETTINGS, ZOOKEEPER, release=SCALABLE)
        stack.callback(first.end)
        second = start_broker(tmp_path / "second", {**SETTINGS, "joins": first.metadata_url}, release=SCALABLE)
        stack.callback(second.end)
        both = f"{first.service_url},{second.service_url.removeprefix('pulsar://')}"
        client = stack.enter_context(running_scalable_client(tmp_path / "client", both))
        world = World.made(tmp_path, first, client, both)
        controller = Admin(second)  # who changes a topic first
        controller.do("PUT", f"scalable/{NAMESPACE}/{NAME}?numInitialSegments=2")
        controller.do("POST", f"scalable/{NAMESPACE}/{NAME}/split/0")
        stack.enter_context(Serving(world.config))
        added(sent, client.produce(TOPIC, count=2000, keys=KEYS, prefix="before", rate=500))
        assert world.admin.ask("POST", f"scalable/{NAMESPACE}/{NAME}/split/1")[0] == 307
        with ThreadPoolExecutor(1) as producer:
            produced = producer.submit(client.produce, TOPIC, count=4000, keys=KEYS, prefix="during", rate=200)
            eventually(lambda: world.values(TOPIC))
            second.kill()
            second.close()
            with suppress(Refused):  # the segments move when ZooKeeper's session ends, which takes half a minute
                added(sent, produced.result())
        numbers = count()

        def is_sent() -> bool:
            with suppress(Refused):
                added(sent, client.produce(TOPIC, count=500, keys=KEYS, prefix=f"left{next(numbers)}", rate=500))
                return True
            return False

        eventually(is_sent, within_s=180)
        # The broker that is left has all segments now. It doesn't become the controller: 5.0.0-M1 refuses changes, with
        # "This broker is not the leader for topic", also after the other one is back.
        eventually(lambda: sent["k0"][-1] in world.values(TOPIC).get("k0", ()))
        require_whole(world, sent)
