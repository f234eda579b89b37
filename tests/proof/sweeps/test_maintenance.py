"""Automatic maintenance: schedule, effects of failures and holds, metrics."""

from __future__ import annotations

import logging

import pytest

from formats.entries import Position
from formats.manifest import Hold
from offloader.errors import StoreUnavailableError
from offloader.maintenance import CLEANUP, ORPHANS
from offloader.manifest.log import load_manifest
from offloader.retention.cycle import RETRY
from offloader.testing.faulty_store import Fault
from tests.support.metrics import exposed
from tests.support.streams import StreamWriter, batch_of
from tests.test_maintenance import DAY_S, STREAM, Bench


def events(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(getattr(record, "event", ""), record.getMessage()) for record in caplog.records]


@pytest.mark.slow
def test_maintenance_reports_and_deletes_nothing_by_default(caplog: pytest.LogCaptureFixture) -> None:
    # Four rounds a day of each kind: by default there would be seventy, over forty days.
    bench = Bench(
        deletes=False,
        retention={"policy": "consumption", "record_interval": "1m", "cycle_interval": "360m"},
        cleanup={"grace_period": "0h", "allow_large_delete": True, "cycle_interval": "360m"},
    )
    orphan = bench.orphan(1)
    bench.writer.log.checkpoint()
    before = {info.key for info in bench.memory.list("").objects}
    with caplog.at_level(logging.INFO, "offloader.maintenance"):
        bench.pass_time(40 * DAY_S)
    kept = {info.key for info in bench.memory.list("").objects}
    assert before <= kept, f"deleted: {sorted(before - kept)}"
    assert orphan in kept
    state = load_manifest(bench.memory, STREAM)
    assert state.head == Position(4, 0), "the policy counts: readers begin later"
    assert state.sums.segments == 4, "and no segment is retired"
    assert {run.error for run in bench.upkeep.latest.values()} == {None}
    told = {event: text for event, text in events(caplog) if event.endswith("_reported")}
    assert told["cleanup_reported"].startswith("cleanup would retire, release or purge 3 segments")
    assert told["orphans_reported"].startswith("1 orphans (5 bytes)")
    assert told["history_reported"].startswith("5 objects of 1 manifests")
    assert all("cleanup.delete is false" in text for text in told.values())
    assert bench.value("orphan_objects", owner="ours") == 1
    assert bench.value("cleanup_deletable_bytes") == sum(
        each.size_bytes for each in bench.memory.list("").objects if each.key in bench.before_the_head()
    )


@pytest.mark.slow
def test_no_search_for_orphans_when_its_period_is_zero() -> None:
    bench = Bench(cleanup={"orphans_interval": "0h"})
    bench.pass_time(5 * DAY_S)
    assert set(bench.upkeep.latest) == {CLEANUP}


@pytest.mark.slow
def test_failing_job_is_reported_and_retried_soon_and_blocks_no_other() -> None:
    bench = Bench(cleanup={"cycle_interval": "100m", "orphans_interval": "6h"})
    other = StreamWriter(bench.memory, "a/b/persistent/zz", clock=bench.clock)
    other.add([batch_of(1, 0, 10)], closes=[1])
    bench.store.set_faults([Fault(call=1, calls=10**6, key_part="_catalog/", error=StoreUnavailableError)])
    runs = bench.pass_time(DAY_S)
    assert all(isinstance(run.error, StoreUnavailableError) for run in bench.upkeep.latest.values())
    assert len(runs) > DAY_S / (100 * 60 * RETRY) / 2
    bench.store.set_faults([Fault(call=1, calls=10**6, key_part=f"{STREAM}/manifest/", error=StoreUnavailableError)])
    bench.pass_time(DAY_S)
    assert bench.upkeep.latest[CLEANUP].error is None
    assert isinstance(bench.upkeep.latest[ORPHANS].error, StoreUnavailableError)
    assert (bench.value("cleanup_cycles_total", result="failed") or 0) > 5
    done = {key: value for key, value in exposed(bench.metrics).items() if key.startswith("cleanup_cycles_total")}
    assert next(value for key, value in done.items() if other.stream in key and 'result="done"' in key) > 5


@pytest.mark.slow
@pytest.mark.parametrize("kept", ["for three days", "for ever", "by a hold"])
def test_old_checkpointed_records_are_deleted_unless_held_or_kept_forever(kept: str) -> None:
    days = -1 if kept == "for ever" else 3
    bench = Bench(
        manifest={"history_age_min": 86400 * days if days > 0 else -1},
        retention={"policy": "none"},
        cleanup={"cycle_interval": "1440m", "orphans_interval": "12h"},
    )
    if kept == "by a hold":
        bench.writer.log.commit_as_maintainer([Hold(True, "court")])
    folded = bench.writer.log.state.record_id
    bench.writer.log.checkpoint()
    bench.writer.add([batch_of(5, 0, 10)], closes=[5])
    before, first = load_manifest(bench.memory, STREAM), bench.records()
    bench.pass_time(2.9 * DAY_S)
    assert bench.records() == first
    bench.pass_time(2.2 * DAY_S)
    kept_ids = [number for number in first if kept != "for three days" or number > folded]
    assert bench.records() == kept_ids
    after = load_manifest(bench.memory, STREAM)
    assert (after.record_id, after.head, after.sums) == (before.record_id, None, before.sums)
    assert bench.upkeep.latest[ORPHANS].error is None
