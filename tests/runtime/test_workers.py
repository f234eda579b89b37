"""The worker pool: timers, tasks that never overlap, and a silent end."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
from offloader.runtime.workers import Alarm, SerialTask, Workers
from offloader.store.open import open_store
from offloader.testing.manual_clock import ManualClock
from offloader.write.offloader import LedgerOffloader
from tests.support.readback import stored_entries
from tests.support.waiting import PATIENCE_S, eventually


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(waits_pass=False)


@pytest.fixture
def workers(clock: ManualClock) -> Iterator[Workers]:
    made = Workers(4, clock)
    yield made
    made.close()


def test_timers_run_in_due_order_and_cancelled_ones_do_not_run(clock: ManualClock, workers: Workers) -> None:
    ran: list[str] = []
    workers.call_after(20, lambda: ran.append("twenty"))
    workers.call_after(10, lambda: ran.append("ten"))
    workers.call_after(15, lambda: ran.append("cancelled")).cancel()

    clock.advance(9)
    done = threading.Event()
    workers.submit(done.set)
    assert done.wait(PATIENCE_S)
    assert ran == []
    clock.advance(2)
    eventually(lambda: ran == ["ten"])
    clock.advance(10)
    eventually(lambda: ran == ["ten", "twenty"])


def test_serial_task_never_overlaps_and_runs_after_the_last_request(workers: Workers) -> None:
    wanted = 0
    seen: list[int] = []
    running = 0
    most = 0

    def run() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        seen.append(wanted)
        running -= 1

    task = SerialTask(workers, run)
    for number in range(1, 2001):
        wanted = number
        task.schedule()
    eventually(lambda: bool(seen) and seen[-1] == 2000)
    assert most == 1


def test_task_that_raised_runs_again_when_scheduled(workers: Workers, caplog: pytest.LogCaptureFixture) -> None:
    runs: list[int] = []

    def run() -> None:
        runs.append(1)
        raise ValueError("as a bug would")

    task = SerialTask(workers, run)
    for number in range(1, 4):
        task.schedule()
        eventually(lambda number=number: len(runs) == number and not task._running)  # type: ignore[misc]
    # Said after the task may run again.
    eventually(lambda: caplog.text.count("a worker task failed") == 3)


def test_alarm_that_waits_for_a_worker_is_not_called_after_its_stop(clock: ManualClock) -> None:
    workers, began, go_on, done = Workers(1, clock), threading.Event(), threading.Event(), threading.Event()
    calls: list[str] = []

    def occupy() -> None:
        began.set()
        go_on.wait(PATIENCE_S)

    try:
        alarm = Alarm(workers, lambda: calls.append("alarm"))
        workers.submit(occupy)
        assert began.wait(PATIENCE_S)
        alarm.set(1)
        clock.advance(2)
        eventually(lambda: not workers._due)
        alarm.stop()
        go_on.set()
        workers.submit(done.set)
        assert done.wait(PATIENCE_S)
    finally:
        go_on.set()
        workers.close()
    assert calls == []


@pytest.mark.parametrize("refused", [1, 2])
def test_work_goes_on_once_the_system_has_threads_again(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch, refused: int
) -> None:
    """A limit of processes, of the user's or the container's, counts threads too."""
    start, refusals = threading.Thread.start, [RuntimeError("can't start new thread")] * refused

    def limited(thread: threading.Thread) -> None:
        if refusals and thread.name.startswith("offloader-"):
            raise refusals.pop()
        start(thread)

    workers, ran = Workers(1, clock), list[str]()
    monkeypatch.setattr(threading.Thread, "start", limited)
    try:
        workers.submit(lambda: ran.append("first"))
        workers.call_after(0, lambda: ran.append("timer"))
        clock.advance(2)
        workers.submit(lambda: ran.append("second"))
        eventually(lambda: sorted(ran) == ["first", "second", "timer"])
    finally:
        workers.close()


def test_nothing_runs_after_close(clock: ManualClock) -> None:
    workers = Workers(2, clock)
    ran: list[int] = []
    workers.call_after(5, lambda: ran.append(1))
    workers.close()
    workers.submit(lambda: ran.append(2))
    workers.call_after(0, lambda: ran.append(3))
    clock.advance(10)
    workers.close()
    assert ran == []


LEFT_OPEN = """
import sys
from offloader.managed_ledger import open_managed_ledger
from offloader.store.open import open_store
from offloader.settings import Settings

small = {"offload": {"block_size": 1024, "segment_size_max": "16KiB"}}
topic = open_managed_ledger(
    "orders", ledgers=sys.argv[1] + "/ledgers.db", store=open_store("file://" + sys.argv[1] + "/store"),
    settings=Settings.of(small),
)
for number in range(200):
    topic.append_batch([number.to_bytes(2, "big") * 150] * 10)
"""


@pytest.mark.process
def test_program_ending_without_closing_its_stream_is_silent_and_loses_nothing(tmp_path: Path) -> None:
    program = subprocess.run(
        [sys.executable, "-c", LEFT_OPEN, str(tmp_path)], capture_output=True, text=True, timeout=120, check=False
    )
    assert (program.returncode, program.stderr) == (0, "")

    store = open_store(f"file://{tmp_path}/store")
    database = EmbeddedLedgers(str(tmp_path / "ledgers.db"))
    offloader = LedgerOffloader(store)
    offloader.offload_stream(database.open_stream("orders"), "orders").offload()
    offloader.close()
    database.close()
    assert [payload for _, payload in stored_entries(store, "orders")] == [
        number.to_bytes(2, "big") * 150 for number in range(200) for _ in range(10)
    ]
