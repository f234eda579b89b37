"""Requests that a broker with the plugin makes in unread history, for one entry and for a search by time."""

from __future__ import annotations

import math
import time
import urllib.error
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import pytest

from tests.plugin.plugin_world import PluginWorld, eventually_some, path_of, topic_of
from tests.plugin.topic_history import client_of
from tests.support.quick import needs
from tests.support.waiting import eventually

pytestmark = pytest.mark.java

#: Messages are entries of their own, and a ledger has several blocks of 1 MiB.
COUNT, MESSAGE_BYTES, LEDGER_ENTRIES = 160, 100_000, 40
#: Blocks of all ledgers, at most.
BLOCKS = COUNT * MESSAGE_BYTES // 2**20 + COUNT // LEDGER_ENTRIES


class Requests(NamedTuple):
    """To a sidecar for plans, to the store, and to a sidecar for entries."""

    plans: int
    store: int
    entries: int


class Unread(NamedTuple):
    """A topic whose ledgers only the cold tier has.

    Attributes:
        times_ms: when its first and its last message were sent.
    """

    world: PluginWorld
    topic: str
    ledgers: list[int]
    times_ms: tuple[int, int]

    def asked(self) -> Requests:
        counters = self.world.counters()
        return Requests(*(counters.get(each, 0) for each in ("Plans", "PresignedRequests", "EntriesRequests")))

    def asked_since(self, before: Requests) -> Requests:
        return Requests(*(now - then for now, then in zip(self.asked(), before, strict=True)))

    def is_reset(self, path: str) -> bool:
        """Resets a cursor. A broker of 3.0 refuses it while it still makes the cursor's own ledger."""
        try:
            self.world.admin("POST", path)
        except urllib.error.HTTPError as error:
            if error.code != 412:
                raise
            return False
        return True


@pytest.fixture(scope="module")
@needs("java")
def unread(release: str, servers: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Unread]:
    """A read server answers the broker: a sidecar would read the topic's end whenever the broker loads it."""
    folder = tmp_path_factory.mktemp("requests")
    with PluginWorld(
        folder,
        servers["minio"],
        release=release,
        ledger_entries=LEDGER_ENTRIES,
        endpoints=("sidecar", "reader"),
        # With transactions a broker that loads a topic reads what came after the last snapshot of them, when it likes.
        broker_settings={"transactionCoordinatorEnabled": "false"},
    ) as world:
        topic = topic_of("unread")
        client = client_of(world.service_url)
        producer = client.create_producer(topic)
        times_ms = []
        for number in range(COUNT):
            times_ms.append(int(time.time() * 1000))
            producer.send(number.to_bytes(4, "big") * (MESSAGE_BYTES // 4))
        client.close()
        world.await_committed(topic)
        ledgers = world.offload(topic)
        world.forget(topic, ledgers)
        world.kill_sidecar()
        world.start_sidecar("reader")
        world.restart_broker()  # without what the sidecar still had it read
        eventually_some(lambda: world.ledgers(topic))
        yield Unread(world, topic, ledgers, (times_ms[0], times_ms[-1]))


def test_one_entry_and_a_search_by_time_take_few_requests(unread: Unread) -> None:
    """In this order: what the search reads is in the broker's cache then."""
    entry = f"{path_of(unread.topic)}/ledger/{unread.ledgers[1]}/entry"
    before = unread.asked()
    unread.world.admin("GET", f"{entry}/2")
    assert unread.asked_since(before) == Requests(plans=1, store=1, entries=0)
    unread.world.admin("GET", f"{entry}/{LEDGER_ENTRIES - 2}")
    assert unread.asked_since(before) == Requests(plans=1, store=2, entries=0)

    subscription = f"{path_of(unread.topic)}/subscription/search"
    unread.world.admin("PUT", subscription)
    for share in (0.3, 0.7):
        first_ms, last_ms = unread.times_ms
        before = unread.asked()
        eventually(
            partial(unread.is_reset, f"{subscription}/resetcursor/{int(first_ms + share * (last_ms - first_ms))}")
        )
        found = unread.asked_since(before)
        # It looks at the first and at the last entry, too.
        assert found.store <= math.ceil(math.log2(BLOCKS)) + 3
        assert found.plans <= len(unread.ledgers)
        assert found.entries == 0
