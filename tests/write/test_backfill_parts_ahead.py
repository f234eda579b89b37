"""Parts of a backfilled segment are uploaded while later ones are built: a bounded number, none after the end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from offloader.errors import OffloaderError, StoreUnavailableError
from offloader.manifest.log import load_manifest
from offloader.runtime.clock import SystemClock
from offloader.settings import OffloadSettings, Settings, Size
from offloader.store.base import ObjectStore
from offloader.store.memory import MemoryStore
from offloader.store.rate_limit import Priority, current_priority
from offloader.store.wrappers import Request, StoreWrapper
from offloader.testing.memory_ledgers import MemoryLedgers
from offloader.write.backfill import HISTORY_SHARE, parts_at_once, parts_of_history, segment_memory_bytes
from offloader.write.offloader import LedgerOffloader
from tests.support.readback import stored_entries
from tests.support.waiting import PATIENCE_S, eventually

KIB, MIB = 1024, 1024 * 1024
STREAM = "a/b"
_names = count()


class _Gate(StoreWrapper):
    """Lets parts through one by one, or all; fails the ones that are told to."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.open = threading.Event()
        self.fails_from = 10**9
        self._lock = threading.Lock()
        self.parts = self.waiting = self.waiting_max = 0
        self.after_abort: list[str] = []
        self.priorities: set[Priority] = set()
        self._aborted = False

    def around(self, request: Request, call: Callable[[], Any]) -> Any:
        if request.verb == "abort_upload":
            self._aborted = True
        if request.verb != "upload_part":
            return call()
        with self._lock:
            self.parts += 1
            number = self.parts
            self.waiting += 1
            self.waiting_max = max(self.waiting_max, self.waiting)
            self.priorities.add(current_priority(request.traffic))
        assert self.open.wait(PATIENCE_S)
        with self._lock:
            self.waiting -= 1
        if self._aborted:
            self.after_abort.append(request.key)
        if number >= self.fails_from:
            raise StoreUnavailableError("no more")
        return call()


class Bench:
    def __init__(self, parts: int, segment_mib: float = 1024) -> None:
        sizes = {"block_size": KIB, "segment_size_max": round(segment_mib * 2**20)}
        made = Settings.of({"offload": {**sizes, "parts_in_flight_max": parts}})
        self.settings = replace(made, offload=replace(made.offload, part_size=Size(8 * KIB)))
        self.store = _Gate(MemoryStore(f"ahead-{next(_names)}", "", SystemClock()))
        self.offloader = LedgerOffloader(self.store, self.settings)
        self.ledgers = MemoryLedgers(STREAM, SystemClock())
        self.done = threading.Event()
        self.errors: list[BaseException] = []
        self.thread = threading.Thread(target=self._run)

    def append(self, entries: int) -> None:
        self.ledgers.append([bytes([number % 251]) * 500 for number in range(entries)])
        self.ledgers.close_ledger()

    def _run(self) -> None:
        try:
            self.offloader.offload_ledgers(self.ledgers, STREAM)
        except OffloaderError as error:
            self.errors.append(error)
        self.done.set()


@pytest.fixture
def new_bench() -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(parts: int = 3) -> Bench:
        made.append(Bench(parts))
        return made[-1]

    yield make
    for bench in made:
        bench.store.open.set()
        bench.thread.join(PATIENCE_S)
        bench.offloader.close()


@pytest.mark.slow
def test_limited_number_of_parts_is_uploaded_at_once_and_all_arrive(new_bench: Callable[..., Bench]) -> None:
    bench = new_bench(3)
    bench.append(400)
    bench.thread.start()
    eventually(lambda: bench.store.waiting == 3)
    bench.store.open.set()
    assert bench.done.wait(PATIENCE_S)
    assert bench.errors == []
    assert bench.store.waiting_max == 3
    assert bench.store.priorities == {Priority.BACKFILL}, "also on another thread"
    assert stored_entries(bench.store.inner, STREAM) == bench.ledgers.appended


@pytest.mark.slow
def test_failed_part_ends_the_segment_after_the_other_parts_finished(new_bench: Callable[..., Bench]) -> None:
    """So that nothing arrives for an upload that was aborted."""
    bench = new_bench(3)
    bench.append(400)
    bench.store.fails_from = 2
    bench.thread.start()
    eventually(lambda: bench.store.waiting == 3)
    bench.store.open.set()
    assert bench.done.wait(PATIENCE_S)
    assert [type(error) for error in bench.errors] == [StoreUnavailableError]
    assert bench.store.after_abort == []
    assert bench.store.inner.list_uploads("") == []
    assert load_manifest(bench.store.inner, STREAM).offloaded() == []


def test_closing_the_offloader_ends_waiting_part_uploads(new_bench: Callable[..., Bench]) -> None:
    bench = new_bench(2)
    bench.append(400)
    bench.thread.start()
    eventually(lambda: bench.store.waiting == 2)
    closing = threading.Thread(target=bench.offloader.close)
    closing.start()
    bench.store.open.set()
    closing.join(PATIENCE_S)
    assert not closing.is_alive()
    assert bench.done.wait(PATIENCE_S)


@pytest.mark.parametrize(
    ("segments", "limit_mib", "parts"),
    [(1, 512, 4), (2, 512, 4), (4, 512, 2), (8, 512, 1), (1, 200, 4), (1, 130, 2), (1, 40, 1)],
)
def test_parts_at_once_keep_within_the_share_of_the_memory(segments: int, limit_mib: int, parts: int) -> None:
    settings = OffloadSettings()
    assert parts_at_once(settings, segments, limit_mib * MIB) == parts
    if parts > 1:
        assert segments * segment_memory_bytes(settings, parts) * HISTORY_SHARE <= limit_mib * MIB


@pytest.mark.parametrize(
    ("segment_mib", "segments", "limit_mib", "parts", "part_mib"),
    [
        (1024, 1, 512, 4, 32),
        (1024, 1, 1024, 4, 64),
        (1024, 1, 8192, 4, 64),
        (518, 2, 512, 2, 32),
        (1024, 4, 512, 2, 16),
        (1024, 4, 2048, 2, 64),
        (1024, 1, 200, 4, 16),
        (300, 1, 512, 4, 16),
        (10, 2, 512, 4, 16),
    ],
)
def test_parts_of_a_run_are_as_long_as_its_share_of_the_memory_allows(
    segment_mib: int, segments: int, limit_mib: int, parts: int, part_mib: int
) -> None:
    """Each part is a PUT. A run still has as many under way as a live segment, and parts enough for each of them."""
    settings, limit_bytes = OffloadSettings(), limit_mib * MIB
    found = parts_of_history(settings, segment_mib * MIB, segments, limit_bytes)
    assert found == (parts, part_mib * MIB)
    assert segments * segment_memory_bytes(settings, *found) * HISTORY_SHARE <= limit_bytes


@pytest.mark.slow
def test_segment_of_a_run_is_sent_in_fewer_and_longer_parts() -> None:
    """Parts of 8 KiB by the settings; the budget has room for longer ones, four for the one connection.

    200 KB of entries with a third more in headers of blocks of 1 KiB: 34 parts of 8 KiB, or 9 of 32 KiB.
    """
    bench = Bench(1, segment_mib=0.5)
    with closing(bench.offloader):
        bench.append(400)
        bench.store.open.set()
        bench.offloader.history.backfill(bench.ledgers, STREAM)
    assert bench.store.parts == 9
    assert stored_entries(bench.store.inner, STREAM) == bench.ledgers.appended


@pytest.mark.slow
def test_plan_of_one_segment_leaves_all_parts_to_it(new_bench: Callable[..., Bench]) -> None:
    """A run that may write four segments at once, with one to write."""
    bench = new_bench(3)
    bench.append(400)

    def run() -> None:
        bench.offloader.history.backfill(bench.ledgers, STREAM)
        bench.done.set()

    bench.thread = threading.Thread(target=run)
    bench.thread.start()
    eventually(lambda: bench.store.waiting == 3)
    bench.store.open.set()
    assert bench.done.wait(PATIENCE_S)
    assert bench.store.waiting_max == 3
    assert stored_entries(bench.store.inner, STREAM) == bench.ledgers.appended
