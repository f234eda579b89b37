"""Pushed entries under the offloader: after any failure each is in the cold tier once and in order."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from typing import Any

import pytest

from formats.entries import Position
from offloader.errors import ClosedError, OffloaderError, OutcomeUnknownError, StoreUnavailableError
from offloader.read.reader import load_stream
from offloader.testing.faulty_store import Fault, FaultyStore
from tests.ledgers.pushing_broker import Broker
from tests.support.readback import stored_entries
from tests.support.waiting import eventually
from tests.write.test_machine_pushed_stream import KIB, STREAM, Sidecar
from tests.write.test_machine_pushed_stream import start as start
from tests.write.test_machine_pushed_stream import store as store


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_pushed_entries_arrive_once_under_random_faults(
    seed: int, store: FaultyStore, start: Callable[..., Sidecar]
) -> None:
    chance = random.Random(seed)
    broker = Broker(seed, size_max=chance.choice([10, 300, 2000]))
    memory: dict[str, object] = {"offload_memory_size_max": 64 * KIB} if chance.random() < 0.3 else {}
    sidecar = start(store, **memory)
    for _ in range(chance.randint(8, 20)):
        broker.append(chance.randint(1, 80))
        if chance.random() < 0.4:
            broker.close_ledger()
        if chance.random() < 0.4:
            part = chance.choice([STREAM, "/manifest/", "-index", ""])
            kinds: list[dict[str, Any]] = [
                {},
                {"torn": True, "error": OutcomeUnknownError},
                {"after": True, "error": OutcomeUnknownError},
            ]
            store.set_faults(
                Fault(call=chance.randint(1, 8), key_part=part, calls=chance.randint(1, 5), **chance.choice(kinds))
                for _ in range(2)
            )
        for _ in range(chance.randint(1, 6)):
            with contextlib.suppress(StoreUnavailableError, OutcomeUnknownError, ClosedError):
                sidecar.push(broker, chance.randint(1, 60), within_s=2)
        if chance.random() < 0.3:
            sidecar.stream.request_offload()
        if chance.random() < 0.25:
            sidecar.kill()
            sidecar = started(store, start, memory)
        # What the broker is told is durable stays durable, whoever says it.
        durable = sidecar.source.news().durable
        assert durable is None or durable <= (load_stream(store.inner, STREAM).committed_end() or Position(-1, -1))
    store.set_faults([])
    try:
        sidecar.finish(broker)
    except ClosedError:  # it had lost the stream, or does so now
        sidecar.kill()
        start(store, **memory).finish(broker)
    assert stored_entries(store.inner, STREAM) == broker.entries
    assert load_stream(store.inner, STREAM).gaps == ()


def started(store: FaultyStore, start: Callable[..., Sidecar], memory: dict[str, object]) -> Sidecar:
    """The next process, as soon as the store lets it read the manifest."""
    made: list[Sidecar] = []

    def try_again() -> bool:
        with contextlib.suppress(OffloaderError):
            made.append(start(store, **memory))
        return bool(made)

    eventually(try_again)
    return made[0]
