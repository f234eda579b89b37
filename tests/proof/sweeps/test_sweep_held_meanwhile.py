"""A hold set between any two requests of a truncation or cleanup: no deletion follows its record."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import TypeVar

import pytest

from formats.keys import record_number
from formats.manifest import Hold, LedgersDeleted, Purged, Release, Retire, StreamDeleted, Truncate, decode_record
from offloader.errors import OffloaderError
from offloader.gc.delete_stream import remove_stream
from offloader.gc.sweep import cleanup_stream
from offloader.manifest.protection import set_hold
from offloader.retention.cycle import RetentionCycle
from offloader.settings import Settings
from offloader.store.base import ObjectStore
from offloader.store.wrappers import Request, StoreWrapper
from tests.gc.cleaning import STREAM, Bench
from tests.support.streams import batch_of

_Answer = TypeVar("_Answer")
SHORTENING = (Truncate, LedgersDeleted, Retire, Release, Purged, StreamDeleted)


class HeldAt(StoreWrapper):
    """Before the ``call``-th request somebody sets a hold."""

    def __init__(self, bench: Bench, call: int) -> None:
        super().__init__(bench.memory)
        self._bench, self._call, self.calls = bench, call, 0

    def around(self, request: Request, call: Callable[[], _Answer]) -> _Answer:
        self.calls += 1
        if self.calls == self._call:
            set_hold(self.inner, STREAM, on=True, reason="a test", clock=self._bench.clock)
        return call()


def clean(bench: Bench, store: ObjectStore) -> None:
    cleanup_stream(store, STREAM, clock=bench.clock, settings=bench.settings)


def retain(bench: Bench, store: ObjectStore) -> None:
    settings = Settings.of({"retention": {"policy": "size", "min_size": 105, "record_interval": "0.01m"}})
    RetentionCycle(store, clock=bench.clock, settings_of=lambda _: settings).run(STREAM)


def delete(bench: Bench, store: ObjectStore) -> None:
    remove_stream(store, STREAM, clock=bench.clock)


@pytest.mark.slow
@pytest.mark.parametrize("act", [clean, retain, delete])
def test_no_deletion_follows_a_hold_set_between_any_two_requests(act: Callable[[Bench, ObjectStore], None]) -> None:
    shortened = set()
    for call in count(1):
        bench = Bench(grace_period="0h")
        bench.truncate(2)
        bench.run()
        bench.truncate(3)
        if act is retain:
            retain(bench, bench.memory)
            bench.writer.add([batch_of(5, 0, 10)], closes=[5])
            bench.clock.advance(60)
            retain(bench, bench.memory)
        before = bench.state.record_id
        store = HeldAt(bench, call)
        with suppress(OffloaderError):
            act(bench, store)
        if store.calls < call:
            break
        keys = [info.key for info in bench.memory.list(f"{STREAM}/manifest/").objects]
        records = [decode_record(bench.memory.get(key)[0]) for key in keys if record_number(key) is not None]
        later = [edit for record in records if record.record_id > before for edit in record.edits]
        held_at = next((at for at, edit in enumerate(later) if isinstance(edit, Hold)), None)
        shortened.add(any(isinstance(edit, SHORTENING) for edit in later[:held_at]))
        if held_at is not None:
            assert not [edit for edit in later[held_at:] if isinstance(edit, SHORTENING)], call
        if act is not delete:
            bench.check()
    assert False in shortened, "some holds came first"
    assert call > 5
