"""Reader groups: registration, checkpoints, publishing, and store failures in between."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import pytest

from offloader.errors import StoreUnavailableError
from offloader.groups.group_service import open_reader_groups
from offloader.groups.reader_groups import (
    GroupConfig,
    RetentionType,
)
from offloader.manifest.boundary import listed
from offloader.retention.subscribers import open_retention
from offloader.store.base import ObjectStore
from offloader.store.wrappers import Request, StoreWrapper
from offloader.testing.faulty_store import Fault
from tests.groups.grouped_streams import ONE, Bench

_Answer = TypeVar("_Answer")


class Stalled(StoreWrapper):
    """The store of a process that stalls before one of its calls, and dies at a later one."""

    def __init__(self, inner: ObjectStore, stall_call: int, last_call: int, meanwhile: Callable[[], object]) -> None:
        super().__init__(inner)
        self._stall_call, self._last_call, self._meanwhile = stall_call, last_call, meanwhile
        self.calls = 0

    def around(self, request: Request, call: Callable[[], _Answer]) -> _Answer:
        self.calls += 1
        if self.calls == self._stall_call:
            self._meanwhile()
        if self.calls > self._last_call:
            raise StoreUnavailableError(f"the process died before {request.verb} of {request.key}")
        return call()


@pytest.mark.parametrize("registered_before", [False, True])
@pytest.mark.parametrize("has_registry", [False, True])
@pytest.mark.parametrize("end", ["delete", "update"])
def test_process_that_stalls_while_registering_a_group_and_dies_leaves_no_subscriber(
    end: str, has_registry: bool, registered_before: bool
) -> None:
    config = GroupConfig([ONE], RetentionType.MANUAL)

    def is_left(stall_call: int, last_call: int) -> tuple[bool, int]:
        # Without automatic truncation, no group has registered a subscriber yet.
        bench = Bench(RetentionType.AUTOMATIC if has_registry else RetentionType.NONE)
        others = bench.open()
        assert any(listed(bench.memory, f"{ONE}/retention/")) == has_registry
        bench.store.set_faults([Fault(call=1, verb="put", key_part="one/retention/", calls=1)])
        owing = bench.groups.create("late", config).group
        assert [row.action for row in owing.to_do] == ["add"]

        def meanwhile() -> None:
            if registered_before:
                others.settle("late")
            if end == "delete":
                others.delete("late")
            else:
                others.update("late", 0, GroupConfig([ONE], RetentionType.NONE))
            assert others.settle("late").group.to_do == ()

        store = Stalled(bench.memory, stall_call, last_call, meanwhile)
        with suppress(StoreUnavailableError):
            open_reader_groups(store, clock=bench.clock).settle("late")
        if store.calls < stall_call:
            meanwhile()
        others.settle("late")
        return "late" in open_retention(bench.memory, ONE, clock=bench.clock).registry().subscribers, store.calls

    left, calls = is_left(100, 100)
    assert not left
    assert calls > 4
    pairs = [(stall, last) for stall in range(1, calls + 1) for last in range(stall, calls + 3)]
    assert [pair for pair in pairs if is_left(*pair)[0]] == []
