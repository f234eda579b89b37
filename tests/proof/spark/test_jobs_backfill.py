"""The job ``backfill`` with a real Spark: exactly once after any kill; the command."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from formats.manifest import Assign, Failed, SetMethod
from offloader.errors import (
    ErrorKind,
    ExecutorLostError,
    FencedError,
    InvalidCallError,
)
from offloader.manifest.log import ManifestLog, list_streams, load_manifest
from offloader.runtime.clock import SystemClock
from offloader.settings.layered import SettingsFile
from offloader.spark.jobs import backfill
from offloader.store.base import ObjectStore
from tests.cli.reading_verbs import Offloader
from tests.spark.hot_tier import HotTier, MisbehavingLedgers, edits_of, settings_of
from tests.spark.victim import Victim
from tests.support.readback import stored_entries
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
from tests.spark.jobs.test_backfill import STREAMS, require_whole
from tests.spark.jobs.test_backfill import command as command
from tests.spark.jobs.test_backfill import hot as hot
from tests.spark.jobs.test_backfill import run as run
from tests.spark.jobs.test_backfill import store as store

pytestmark = pytest.mark.java


def test_all_streams_are_backfilled_and_a_second_run_does_nothing(run: Any, hot: HotTier, store: ObjectStore) -> None:
    done = run()
    assert tuple(done) == STREAMS
    require_whole(store, hot, *STREAMS)
    for stream, each in done.items():
        state = load_manifest(store, stream)
        assert each.error is None
        assert each.committed == state.committed_end() == hot.expected[stream][-1][0]
        assert sorted(uuid for uuid, _ in each.offloaded) == sorted(record.uuid for record in state.offloaded())
        assert sum(summary.entries for _, summary in each.offloaded) == len(hot.expected[stream])
        assert state.method == "streaming"
    assert len(done["t/a"].offloaded) >= 5
    records = {stream: load_manifest(store, stream).record_id for stream in STREAMS}
    assert all(each.offloaded == () and each.error is None for each in run().values())
    assert {stream: load_manifest(store, stream).record_id for stream in STREAMS} == records
    hot.append("t/a", 100)
    assert [len(each.offloaded) > 0 for each in run(take_over=True).values()] == [False, True, False]
    require_whole(store, hot, *STREAMS)


@pytest.mark.parametrize("moment", ["die_reading", "die_done"])
def test_killed_task_is_retried_under_another_uuid(
    run: Any, hot: HotTier, store: ObjectStore, tmp_path: Path, moment: str
) -> None:
    (tmp_path / "tasks").mkdir()
    misbehaviour: dict[str, Any] = {moment: [1]}
    open_hot = partial(MisbehavingLedgers, folder=tmp_path / "tasks", **misbehaviour)
    done = run("t/a", open_hot=open_hot)
    assert done["t/a"].error is None
    require_whole(store, hot, "t/a")
    edits = edits_of(store, "t/a")
    (failed,) = [edit for edit in edits if isinstance(edit, Failed)]
    assert "an executor's process ended" in failed.reason
    assigned = [edit for edit in edits if isinstance(edit, Assign)]
    assert len({edit.uuid for edit in assigned}) == len(assigned) == len(done["t/a"].offloaded) + 1
    ranges = Counter((edit.begin, edit.end) for edit in assigned)
    (again,) = [each for each, times in ranges.items() if times == 2]
    assert again == next((edit.begin, edit.end) for edit in assigned if edit.uuid == failed.uuid)


def test_segment_failing_every_attempt_is_an_error_of_its_stream_only(
    run: Any, hot: HotTier, store: ObjectStore, tmp_path: Path
) -> None:
    (tmp_path / "tasks").mkdir()
    open_hot = partial(MisbehavingLedgers, folder=tmp_path / "tasks", die_reading=range(3))
    done = run("other", open_hot=open_hot)
    assert isinstance(done["other"].error, ExecutorLostError)
    assert done["other"].error.exit_code == ErrorKind.RETRY_LATER.value
    assert len(load_manifest(store, "other").offloaded()) == 0
    assert done["other"].committed is None
    again = run(take_over=True)
    assert all(each.error is None for each in again.values())
    require_whole(store, hot, *STREAMS)


@pytest.mark.timeout(600)
def test_run_after_a_killed_driver_adopts_complete_segments(
    run: Any, hot: HotTier, store: ObjectStore, tmp_path: Path
) -> None:
    (tmp_path / "tasks").mkdir()
    plan = json.dumps({"hang_done": [4], "hang_reading": [5]})
    victim = Victim("backfill_streams.py", tmp_path, store.url, hot.url, tmp_path / "tasks", plan)

    def stuck() -> bool:
        """Both tasks wait for ever: one's segment is complete, the other's isn't begun; the rest is committed."""
        if not (tmp_path / "tasks" / "task-5").exists():
            return False
        keys = [info.key for info in store.list("").objects if info.key.endswith("-index")]
        states = [load_manifest(store, stream) for stream in list_streams(store)]
        return len(keys) == 5 and sum(len(state.offloaded()) for state in states) == 4

    try:
        victim.await_that(stuck)
    finally:
        victim.kill()
    before = {stream: load_manifest(store, stream) for stream in list_streams(store)}
    objects = {info.key for info in store.list("").objects if info.key.endswith("-index")}
    left = [(stream, record.uuid) for stream, state in before.items() for record in state.assigned()]
    complete = [each for each in left if f"{each[0]}/{each[1]}-index" in objects]
    assert len(complete) == 1
    assert len(left) >= 2
    refused = run(config=settings_of(takeover_after=3600.0))
    assert isinstance(refused[complete[0][0]].error, FencedError), (
        "its last record is young: nobody knows that it is dead"
    )
    done = run(take_over=True)
    assert all(each.error is None for each in done.values())
    require_whole(store, hot, *STREAMS)
    for stream, state in before.items():
        now = load_manifest(store, stream)
        kept = {record.uuid for record in now.offloaded()}
        assert {record.uuid for record in state.offloaded()} <= kept, "what was committed isn't done again"
        for uuid in (uuid for of, uuid in left if of == stream):
            assert (uuid in kept) == ((stream, uuid) in complete)
            failed = {edit.uuid for edit in edits_of(store, stream) if isinstance(edit, Failed)}
            assert (uuid in failed) == ((stream, uuid) not in complete)


def test_interrupted_run_ends_its_tasks_and_the_next_run_continues(
    run: Any, hot: HotTier, store: ObjectStore, tmp_path: Path
) -> None:
    (tmp_path / "tasks").mkdir()
    open_hot = partial(MisbehavingLedgers, folder=tmp_path / "tasks", hang_reading=range(2, 100))

    def committed() -> int:
        return sum(len(load_manifest(store, stream).offloaded()) for stream in list_streams(store))

    def interrupt() -> None:
        """When both tasks wait for ever, and what came before them is recorded."""
        eventually(lambda: (tmp_path / "tasks" / "task-3").exists() and committed() == 2)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        run("t/*", open_hot=open_hot)
    thread.join()
    before = {stream: load_manifest(store, stream) for stream in ("t/a", "t/b")}
    assert sum(len(state.offloaded()) for state in before.values()) == 2
    assert sum(len(state.assigned()) for state in before.values()) >= 2
    assert all(each.error is None for each in run("t/*", take_over=True).values())
    require_whole(store, hot, "t/a", "t/b")


def test_living_writer_keeps_its_stream_unless_taken_over(run: Any, hot: HotTier, store: ObjectStore) -> None:
    log = ManifestLog(store, "t/a", clock=SystemClock())
    log.open_epoch()
    done = run(config=settings_of(takeover_after=3600.0))
    assert isinstance(done["t/a"].error, FencedError)
    assert "--take-over" in done["t/a"].error.hint
    assert done["t/a"].offloaded == ()
    assert log.load().epoch == log.epoch
    assert [done[each].error for each in ("other", "t/b")] == [None, None]
    require_whole(store, hot, "other", "t/b")
    assert run("t/a", take_over=True)["t/a"].error is None
    require_whole(store, hot, *STREAMS)
    with pytest.raises(FencedError):
        log.commit([SetMethod("streaming")])


def test_ledger_method_backfills_ledgers_singly_and_skips_disabled_streams(
    spark: SparkSession, hot: HotTier, store: ObjectStore
) -> None:
    file = SettingsFile("test", {"": {"offload.method": "ledger"}, "topics.t/b": {"offload.method": "none"}})
    given: Any = {"ledgers": hot.url, "config": file}
    done = backfill(spark, ["t/*"], {"store": store.url}, **given)
    assert [(each.error, bool(each.skipped)) for each in done] == [(None, False), (None, True)]
    closed = [info.ledger_id for info in hot.database.view_stream("t/a").ledgers() if info.closed]
    state = load_manifest(store, "t/a")
    assert [(record.layout, record.v1_ledger_id) for record in state.offloaded()] == [(1, each) for each in closed]
    assert stored_entries(store, "t/a") == [each for each in hot.expected["t/a"] if each[0].ledger_id in closed]
    assert list_streams(store) == ["t/a"]
    (named,) = backfill(spark, ["t/b"], {"store": store.url}, **given)
    assert isinstance(named.error, InvalidCallError)
    assert "its method is none" in named.error.message


def test_the_command_prints_a_line_a_stream_and_ends_as_the_first_error_does(
    command: Offloader, hot: HotTier, store: ObjectStore
) -> None:
    plan = command("spark", "backfill", "t/*", "--dry-run")
    assert plan.code == 0
    assert [line.partition(":")[0] for line in plan.out.splitlines()] == ["t/a", "t/b"]
    assert all("about 1 segments to be offloaded" in line for line in plan.out.splitlines())
    (planned, _) = command("spark", "backfill", "t/*", "--dry-run", "--json").rows
    first, last = (str(hot.expected["t/a"][at][0]) for at in (0, -1))
    assert planned["segments"] == [{"layout": "V2", "first": first, "last": last}]
    log = ManifestLog(store, "t/b", clock=SystemClock())
    log.open_epoch()
    done = command("spark", "backfill", "t/*", "--json")
    assert done.code == ErrorKind.FENCED.value
    a, b = done.rows
    assert (a["stream"], a["entries"], a["objects"], a["error"]) == ("t/a", 600, 2, None)
    assert (b["segments"], b["committed"]) == (0, None)
    assert "is owned by" in b["error"]
    assert "is owned by" in json.loads(done.err)["error"]["message"]
    taken = command("spark", "backfill", "t/*", "--take-over")
    assert taken.code == 0
    lines = taken.out.splitlines()
    assert lines[0] == f"t/a: nothing to offload; committed end {last}"
    assert lines[1].startswith("t/b: 400 entries, ")
    assert "in 2 objects, each checked in" in lines[1]
    require_whole(store, hot, "t/a", "t/b")
