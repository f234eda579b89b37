"""A topic that is deleted and created again while a process stalls."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import pytest

from offloader.errors import OffloaderError
from offloader.gc.delete_stream import remove_stream
from offloader.gc.sweep import cleanup_stream
from offloader.retention.subscribers import open_retention
from offloader.store.base import ObjectStore
from offloader.store.wrappers import Request, StoreWrapper
from tests.retention.retained_streams import TOPIC, Bench

_Answer = TypeVar("_Answer")
ZERO = f"{TOPIC}-partition-0"


class StalledOnce(StoreWrapper):
    """The store of a process that stalls before one of its calls."""

    def __init__(self, inner: ObjectStore, stall_call: int, meanwhile: Callable[[], object]) -> None:
        super().__init__(inner)
        self._stall_call, self._meanwhile = stall_call, meanwhile
        self.calls = 0

    def around(self, request: Request, call: Callable[[], _Answer]) -> _Answer:
        self.calls += 1
        if self.calls == self._stall_call:
            self._meanwhile()
        return call()


def registering(bench: Bench, store: ObjectStore) -> None:
    open_retention(store, TOPIC, clock=bench.clock).add("late")


def cycling(bench: Bench, store: ObjectStore) -> None:
    bench.cycle(store).run(TOPIC)


@pytest.mark.slow
@pytest.mark.parametrize("act", [registering, cycling])
@pytest.mark.parametrize("had_state", [False, True])
def test_process_that_stalls_while_its_topic_is_recreated_removes_no_subscriber(
    act: Callable[[Bench, ObjectStore], None], had_state: bool
) -> None:
    def is_left(stall_call: int) -> tuple[bool, bool]:
        bench = Bench(policy="consumption")
        bench.grow(ZERO)
        if had_state:
            bench.subscribe("earlier", TOPIC)

        def meanwhile() -> None:
            for _ in range(2):
                with suppress(OffloaderError):
                    remove_stream(bench.memory, ZERO, clock=bench.clock)
                    cleanup_stream(bench.memory, ZERO, clock=bench.clock)
                bench.clock.advance(25 * 3600)
            del bench.writers[ZERO]
            bench.grow(ZERO)
            bench.subscribe("billing", TOPIC)

        store = StalledOnce(bench.memory, stall_call, meanwhile)
        with suppress(OffloaderError):
            act(bench, store)
        if store.calls < stall_call:
            return True, False
        found = open_retention(bench.memory, TOPIC, clock=bench.clock).registry()
        return "billing" in found.subscribers, True

    lost, call, has_stalled = [], 1, True
    while has_stalled:
        is_there, has_stalled = is_left(call)
        lost += [] if is_there else [call]
        call += 1
    assert call > 5
    assert lost == []
