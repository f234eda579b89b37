"""Automatic maintenance: schedule, effects of failures and holds, metrics."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from formats.entries import Position
from formats.keys import data_key, index_key, manifest_prefix, new_segment_uuid
from offloader.errors import InvalidCallError, StoreUnavailableError
from offloader.gc.sweep import cleanup_stream
from offloader.maintenance import CLEANUP, FIRST_S_MAX, JOBS_AT_ONCE_MAX, ORPHANS, Maintenance
from offloader.manifest.log import load_manifest
from offloader.manifest.protection import DeletionStoppedError, lift_global_hold, set_global_hold
from offloader.retention.cycle import JITTER, RETRY_S_MIN
from offloader.retention.subscribers import open_retention
from offloader.runtime.workers import Workers
from offloader.settings import Settings, TelemetrySettings
from offloader.store.base import DeleteFailure, ObjectStore, UploadInfo
from offloader.store.memory import MemoryStore
from offloader.telemetry.prometheus import Metrics
from offloader.testing.faulty_store import Fault, FaultyStore
from offloader.testing.manual_clock import ManualClock
from tests.support.metrics import exposed
from tests.support.streams import StreamWriter, batch_of
from tests.support.waiting import eventually

STREAM = "a/b/persistent/orders"
HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
_names = itertools.count()


class Refusing(FaultyStore):
    """Answers deletes of some keys with success of the request and failures of the keys; lists uploads, which only the
    search for orphans asks for, when it may.

    Attributes:
        listing, listing_most: calls at once that list uploads, now and ever.
    """

    refused = ""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.may_list = threading.Event()
        self.may_list.set()
        self.listing = self.listing_most = 0

    def list_uploads(self, prefix: str) -> Sequence[UploadInfo]:
        self.listing += 1
        self.listing_most = max(self.listing, self.listing_most)
        assert self.may_list.wait(120)
        try:
            return super().list_uploads(prefix)
        finally:
            self.listing -= 1

    def delete(self, keys: Any) -> Any:
        kept = [key for key in keys if self.refused and self.refused in key]
        found = super().delete([key for key in keys if key not in kept])
        return [*found, *(DeleteFailure(key, "locked", retryable=False) for key in kept)]


def run_due(upkeep: Maintenance) -> float:
    """Runs cleanup and the search for orphans if due, one after the other; the seconds until the next is due."""
    return min([upkeep._run_due(job) for job in upkeep._jobs if job.period_s], default=FIRST_S_MAX)


class Bench:
    """One stream of four segments whose subscriber has read three; upkeep on a clock that the test moves.

    Args:
        deletes: sets ``cleanup.delete``; False: leaves it as it is by default.
    """

    def __init__(self, clock: ManualClock | None = None, *, deletes: bool = True, **sections: Any) -> None:
        self.clock = clock or ManualClock()
        self.memory = MemoryStore(f"upkeep-{next(_names)}", "", self.clock)
        self.store = Refusing(self.memory)
        self.settings = Settings.of(
            {
                "retention": {"policy": "consumption", "record_interval": "1m"},
                **sections,
                "cleanup": {
                    **({"delete": True} if deletes else {}),
                    **sections.get("cleanup", {"allow_large_delete": True}),
                },
            }
        )
        self.metrics = Metrics(TelemetrySettings(labels="topic"), clock=self.clock)
        self.writer = StreamWriter(self.memory, STREAM, clock=self.clock)
        for ledger in range(1, 5):
            self.writer.add([batch_of(ledger, 0, 10)], closes=[ledger])
        retention = open_retention(self.memory, STREAM, clock=self.clock)
        retention.add("billing")
        retention.publish("billing", Position(4, 0))
        self.settings_by_stream: dict[str, Settings] = {}
        self.upkeep = Maintenance(
            self.store, clock=self.clock, settings_of=self.settings_of, recorder=self.metrics, by="upkeep"
        )

    def settings_of(self, stream: str) -> Settings:
        return self.settings_by_stream.get(stream, self.settings)

    def pass_time(self, seconds: float) -> list[float]:
        """Runs what is due, as the timer would; when something was."""
        end_s, found = self.clock.monotonic_s() + seconds, list[float]()
        while True:
            wait_s = min(run_due(self.upkeep), self.upkeep.retention.run_due())
            if self.clock.monotonic_s() + wait_s > end_s:
                self.clock.advance(end_s - self.clock.monotonic_s())
                return found
            self.clock.advance(wait_s)
            found.append(self.clock.monotonic_s())

    def value(self, name: str, **labels: str) -> float | None:
        of_stream = {"namespace": "a/b", "topic": STREAM} if "owner" not in labels and "job" not in labels else {}
        return self.metrics.registry.get_sample_value(f"offloader_{name}", {**of_stream, **labels})

    def orphan(self, number: int) -> str:
        key = data_key(STREAM, new_segment_uuid(self.writer.log.state.incarnation, number))
        testimony = self.writer.log.testimony()
        assert testimony is not None
        self.memory.put(key, b"five!", metadata=testimony.as_metadata())
        return key

    def records(self) -> list[int]:
        keys = [
            info.key for info in self.memory.list(manifest_prefix(STREAM, self.writer.log.state.incarnation)).objects
        ]
        return [int(Path(key).stem) for key in keys if key.endswith(".json")]

    def before_the_head(self) -> set[str]:
        """Keys of the segments that all have read."""
        segments = load_manifest(self.memory, STREAM).segments.in_order()[:3]
        return {key_of(STREAM, each.uuid) for each in segments for key_of in (data_key, index_key)}

    def segment_keys(self) -> set[str]:
        return {
            info.key for info in self.memory.list(f"{STREAM}/").objects if info.key.count("/") == STREAM.count("/") + 1
        }


@pytest.mark.slow
def test_consumed_segments_are_retired_purged_and_deleted_automatically() -> None:
    bench = Bench()
    before = bench.segment_keys()
    sizes = {info.key: info.size_bytes for info in bench.memory.list("").objects}
    bench.pass_time(2 * HOUR_S)
    state = load_manifest(bench.memory, STREAM)
    assert state.head == Position(4, 0)
    assert bench.value("cleanup_segments_total", status="retired") == 3
    assert bench.value("cleanup_deleted_objects_total") == 0
    assert bench.segment_keys() == before
    bench.pass_time(DAY_S + 2 * HOUR_S)
    assert bench.value("cleanup_segments_total", status="purged") == 3
    assert bench.value("cleanup_segments_total", status="released") == 0
    assert bench.value("cleanup_deleted_objects_total") == 6
    gone = before - bench.segment_keys()
    assert (len(before), len(gone)) == (8, 6)
    assert bench.value("cleanup_deleted_bytes_total") == sum(sizes[key] for key in gone)
    assert bench.value("cleanup_pending_objects") == 0
    assert bench.value("cleanup_cycles_total", result="done") == pytest.approx(28, abs=4)


@pytest.mark.slow
def test_cleanup_delete_of_one_stream_applies_to_that_stream_only() -> None:
    bench = Bench(cleanup={"grace_period": "0h", "allow_large_delete": True})
    chosen, bench.settings = bench.settings, Bench(deletes=False).settings
    other = StreamWriter(bench.memory, "a/b/persistent/zz", clock=bench.clock)
    other_orphan = data_key(other.stream, new_segment_uuid(other.log.state.incarnation, 1))
    bench.memory.put(other_orphan, b"five!")
    orphan = bench.orphan(1)
    bench.settings_by_stream[STREAM] = chosen
    bench.pass_time(4 * DAY_S)
    kept = {info.key for info in bench.memory.list("").objects}
    assert orphan not in kept
    assert other_orphan in kept
    assert len(bench.segment_keys()) == 2


@pytest.mark.slow
def test_running_process_follows_changes_of_its_deletion_settings() -> None:
    bench = Bench(deletes=False, cleanup={"grace_period": "0h", "allow_large_delete": True})
    bench.pass_time(4 * DAY_S)
    assert len(bench.segment_keys()) == 8
    bench.settings = replace(bench.settings, cleanup=replace(bench.settings.cleanup, delete=True))
    bench.pass_time(2 * HOUR_S)
    assert len(bench.segment_keys()) == 2
    assert bench.value("cleanup_deletable_bytes") == 0


@pytest.mark.slow
def test_maintenance_jobs_run_once_a_period_with_jitter() -> None:
    bench = Bench(
        retention={"cycle_interval": 60 * (10**6)}, cleanup={"cycle_interval": "60m", "orphans_interval": "6h"}
    )
    runs: dict[str, list[float]] = {CLEANUP: [], ORPHANS: []}
    latest: dict[str, Any] = {}
    for _ in range(24 * 60):
        bench.pass_time(60)
        for name, run in bench.upkeep.latest.items():
            if latest.get(name) is not run:
                runs[name].append(bench.clock.monotonic_s())
                latest[name] = run
    for name, period_s in ((CLEANUP, HOUR_S), (ORPHANS, 6 * HOUR_S)):
        assert runs[name][0] <= min(period_s, FIRST_S_MAX) + 60
        gaps = [after - before for before, after in itertools.pairwise(runs[name])]
        assert all(period_s * (1 - JITTER) - 60 <= gap <= period_s * (1 + JITTER) + 60 for gap in gaps)
        assert len(set(gaps)) > 1, "the same in each period"
    assert len(runs[CLEANUP]) == pytest.approx(24, abs=2)
    assert bench.value("maintenance_last_success_timestamp_seconds", job=CLEANUP) == pytest.approx(
        bench.clock.now_ms() / 1000, abs=2 * HOUR_S
    )


@pytest.mark.slow
def test_old_orphans_are_deleted_and_remaining_ones_counted() -> None:
    bench = Bench(cleanup={"grace_period": 3600 * (10**4), "orphans_interval": "12h"})
    old = bench.orphan(1)
    # Turns come at any time within a period: this one is old enough for whichever comes next, the other one isn't.
    bench.pass_time(DAY_S + 8 * HOUR_S)
    young = bench.orphan(2)
    bench.memory.put(f"{STREAM}/notes", b"somebody's")
    bench.pass_time(14 * HOUR_S)
    assert old not in bench.segment_keys()
    assert young in bench.segment_keys()
    assert bench.value("orphan_deleted_objects_total") == 1
    assert bench.value("orphan_deleted_bytes_total") == 5
    assert bench.value("orphan_objects", owner="ours") == 1
    assert bench.value("orphan_bytes", owner="ours") == 5
    assert bench.value("orphan_oldest_seconds", owner="ours") == pytest.approx(14 * HOUR_S, abs=1)
    assert bench.value("orphan_objects", owner="foreign") == 1
    assert bench.value("orphan_bytes", owner="foreign") == len(b"somebody's")
    bench.pass_time(DAY_S)
    assert (bench.value("orphan_objects", owner="ours"), bench.value("orphan_bytes", owner="ours")) == (0, 0)


@pytest.mark.slow
def test_refused_deletions_are_reported_until_they_succeed(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(cleanup={"grace_period": "1h", "allow_large_delete": True})
    bench.store.refused = "-index"
    with caplog.at_level(logging.WARNING, "offloader.maintenance"):
        bench.pass_time(5 * HOUR_S)
    assert bench.value("cleanup_pending_objects") == 6
    assert bench.value("cleanup_pending_retries") == 1
    assert bench.value("cleanup_deleted_objects_total") == 0
    told = [record.getMessage() for record in caplog.records if getattr(record, "event", "") == "delete_failed"]
    assert told
    assert "locked" in told[0]
    bench.store.refused = ""
    bench.pass_time(3 * HOUR_S)
    assert (bench.value("cleanup_pending_objects"), bench.value("cleanup_pending_retries")) == (0, 0)
    assert bench.value("cleanup_deleted_objects_total") == 6


@pytest.mark.slow
def test_global_hold_is_reported_and_stops_all_deletion(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(cleanup={"grace_period": "0h", "allow_large_delete": True})
    orphan = bench.orphan(1)
    set_global_hold(bench.memory, by="ops", reason="restore", now_ms=1)
    before = bench.segment_keys()
    with caplog.at_level(logging.WARNING, "offloader.maintenance"):
        bench.pass_time(6 * HOUR_S)
    assert {type(run.error) for run in bench.upkeep.latest.values()} == {DeletionStoppedError}
    assert bench.segment_keys() == before
    assert load_manifest(bench.memory, STREAM).head is None
    assert any("stopped by ops: restore" in record.getMessage() for record in caplog.records)
    assert bench.value("maintenance_last_success_timestamp_seconds", job=CLEANUP) is None
    lift_global_hold(bench.memory)
    bench.pass_time(2 * DAY_S)
    assert {run.error for run in bench.upkeep.latest.values()} == {None}
    assert orphan not in bench.segment_keys()
    assert len(bench.segment_keys()) == 2


@pytest.mark.slow
def test_jobs_that_an_outage_failed_are_done_soon_after_it(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(retention={"cycle_interval": 60 * (10**6)})
    away = [Fault(call=1, calls=10**9, verb=verb, error=StoreUnavailableError) for verb in ("get", "list")]
    bench.store.set_faults(away[1:])  # it began, and couldn't go on
    bench.pass_time(FIRST_S_MAX)
    bench.store.set_faults(away)
    bench.pass_time(3600)
    caplog.clear()
    bench.pass_time(1800)
    assert {type(run.error) for run in bench.upkeep.latest.values()} == {StoreUnavailableError}
    assert [each for each in caplog.records if each.name == "offloader.maintenance"] == [], "no line for each attempt"
    bench.store.set_faults([])
    bench.pass_time(2 * RETRY_S_MIN)
    assert {name: run.error for name, run in bench.upkeep.latest.items()} == {CLEANUP: None, ORPHANS: None}


@pytest.mark.slow
def test_job_that_fails_while_the_store_answers_is_tried_less_and_less() -> None:
    bench = Bench(retention={"cycle_interval": 60 * (10**6)}, cleanup={"cycle_interval": 60 * (10**6)})
    bench.store.set_faults([Fault(call=1, calls=10**9, verb="list", error=StoreUnavailableError)])
    bench.pass_time(DAY_S)
    assert bench.upkeep._jobs[1].runs < 30


@pytest.mark.slow
def test_rounds_that_end_early_are_counted_by_their_reason() -> None:
    bench = Bench(cleanup={"allow_large_delete": False})
    bench.pass_time(6 * HOUR_S)
    refused = bench.value("cleanup_refusals_total", kind="LargeDelete")
    assert refused is not None
    assert refused >= 2
    assert bench.value("cleanup_cycles_total", result="failed") == refused
    assert len(bench.segment_keys()) == 8
    bench.settings = replace(bench.settings, cleanup=replace(bench.settings.cleanup, allow_large_delete=True))
    bench.pass_time(2 * HOUR_S)
    assert bench.value("cleanup_refusals_total", kind="LargeDelete") == refused
    assert bench.value("cleanup_segments_total", status="retired") == 3


@pytest.mark.slow
def test_cleanup_runs_during_a_long_orphan_search_and_no_second_search_starts() -> None:
    bench = Bench(clock=ManualClock(waits_pass=False), cleanup={"cycle_interval": "60m", "orphans_interval": "2h"})
    store, upkeep, clock = bench.store, bench.upkeep, bench.clock
    store.may_list.clear()
    workers = Workers(JOBS_AT_ONCE_MAX, clock)
    try:
        upkeep.start(workers.call_after)

        def passing(is_so: Callable[[], bool]) -> Callable[[], bool]:
            def found() -> bool:
                clock.advance(600)
                return is_so()

            return found

        def has_run_since(before: object) -> bool:
            return upkeep.latest.get(CLEANUP) is not before

        eventually(passing(lambda: store.listing == 1))
        for _ in range(5):
            eventually(passing(partial(has_run_since, upkeep.latest.get(CLEANUP))))
        asking = threading.Thread(target=run_due, args=(upkeep,))
        asking.start()
        assert ORPHANS not in upkeep.latest
        store.may_list.set()
        asking.join()
        eventually(lambda: ORPHANS in upkeep.latest)
        assert {run.error for run in upkeep.latest.values()} == {None}
        assert store.listing_most == 1, "two searches at once"
    finally:
        store.may_list.set()
        upkeep.close()
        workers.close()


def test_maintenance_starts_once_outlives_a_bug_and_ends_when_closed(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    waiting: list[tuple[float, Any]] = []

    def call_after(delay_s: float, run: Any) -> None:
        waiting.append((delay_s, run))

    bench.upkeep.start(call_after)
    bench.upkeep.start(call_after)
    assert len(waiting) == JOBS_AT_ONCE_MAX, "a turn each: retention, cleanup, the search for orphans"
    bench.clock.advance(DAY_S)
    bench.settings = None  # type: ignore[assignment]
    for _, run in [waiting.pop() for _ in range(JOBS_AT_ONCE_MAX)]:
        run()
    assert len(waiting) == JOBS_AT_ONCE_MAX
    assert any("a run of cleanup failed" in record.getMessage() for record in caplog.records)
    bench.upkeep.close()
    bench.upkeep.close()
    for _, run in [waiting.pop() for _ in range(JOBS_AT_ONCE_MAX)]:
        run()
    assert waiting == []
    assert not [key for key in exposed(bench.metrics) if key.startswith(("orphan", "upkeep"))]


@pytest.mark.slow
def test_cleanup_of_more_than_half_needs_approval_and_is_done_after_an_approval_of_what_was_shown() -> None:
    bench = Bench(cleanup={"allow_large_delete": False})
    bench.pass_time(2 * HOUR_S)
    (awaited,) = bench.upkeep.awaited_approvals
    assert (awaited.stream, 2 * awaited.bytes > awaited.bytes_stored > awaited.bytes) == (STREAM, True)
    assert awaited.since_ms is None or awaited.since_ms <= bench.clock.now_ms()
    shown = cleanup_stream(bench.memory, STREAM, clock=bench.clock, settings=bench.settings, dry_run=True).plan
    assert shown is not None
    with pytest.raises(InvalidCallError, match="has changed"):
        bench.upkeep.clean_approved(STREAM, plan="another", by="an admin")
    assert bench.upkeep.awaited_approvals == [awaited]
    assert bench.upkeep.clean_approved(STREAM, plan=shown.identity, by="an admin").swept.retired == 3
    assert bench.upkeep.awaited_approvals == []
    bench.pass_time(2 * HOUR_S)
    assert bench.upkeep.awaited_approvals == []


@pytest.mark.slow
def test_an_approval_deletes_nothing_where_deletion_is_off() -> None:
    bench = Bench(deletes=False, cleanup={"allow_large_delete": False})
    bench.pass_time(2 * HOUR_S)
    assert bench.upkeep.awaited_approvals == []
    shown = cleanup_stream(bench.memory, STREAM, clock=bench.clock, settings=bench.settings, dry_run=True).plan
    assert shown is not None
    with pytest.raises(InvalidCallError, match=r"cleanup\.delete is false"):
        bench.upkeep.clean_approved(STREAM, plan=shown.identity, by="an admin")
    assert len(bench.segment_keys()) == 8
