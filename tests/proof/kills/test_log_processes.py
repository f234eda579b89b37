"""Two concurrent writers in two processes, against real stores: one wins, the other is fenced."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from typing import Any

import pytest

from formats.manifest import LedgerClosed
from offloader.errors import FencedError, OutcomeUnknownError
from offloader.manifest.log import UNKNOWN_REPEATS_MAX, ManifestLog, load_manifest
from offloader.manifest.maintenance import expire_records
from offloader.runtime.clock import SystemClock
from offloader.settings import Duration, ManifestSettings, StoreSettings
from tests.manifest.test_log_processes import (
    COMMITS,
    STREAM,
    begin,
    outcome_of,
    race,
    rest_of,
    start,
)
from tests.manifest.test_log_processes import writers as writers
from tests.support.holding_proxy import HoldingProxy
from tests.support.waiting import eventually

pytestmark = pytest.mark.process


def heard(writer: subprocess.Popen[str], count: int) -> list[int]:
    """Waits until a writer was told of so many commits."""
    assert writer.stdout is not None
    return [json.loads(writer.stdout.readline()) for _ in range(count)]


def task_of(place: Any, checkpoint_records: int) -> dict[str, Any]:
    where = {"url": place.url, "options": place.options, "stream": STREAM}
    return {**where, "commits": COMMITS, "checkpoint_records": checkpoint_records}


@pytest.mark.parametrize("checkpoint_records", [100, 2])
def test_one_of_two_processes_owns_the_stream_and_no_commit_is_lost(s3_place: Any, checkpoint_records: int) -> None:
    race(s3_place.open(), s3_place.url, s3_place.options, checkpoint_records)


def test_commits_confirmed_to_a_killed_writer_survive(s3_place: Any, writers: list[subprocess.Popen[str]]) -> None:
    store = s3_place.open()
    writers.append(start(task_of(s3_place, 7)))
    begin(writers[0])
    told = heard(writers[0], 20)
    writers[0].kill()
    # The last line may be half a line: then it wasn't told.
    told += [json.loads(line) for line in rest_of(writers[0]).splitlines(keepends=True) if line.endswith("\n")]
    state = load_manifest(store, STREAM)
    assert 0 <= len(state.closed_ledgers) - len(told) <= 1, "at most the one that it was just committing"
    assert set(told) <= set(state.closed_ledgers)

    writers.append(start(task_of(s3_place, 7)))
    begin(writers[1])
    told_next, next_one = outcome_of(writers[1])

    assert (next_one["epoch"], next_one["fenced"]) == (2, False)
    assert set(load_manifest(store, STREAM).closed_ledgers) == set(state.closed_ledgers) | set(told_next)


def test_writer_suspended_while_its_records_were_deleted_is_fenced(
    s3_place: Any, writers: list[subprocess.Popen[str]]
) -> None:
    """SIGSTOP anywhere in a commit; meanwhile others take the stream, fold all records and delete them."""
    store = s3_place.open()
    writers.append(start(task_of(s3_place, 10**5)))
    begin(writers[0])
    told = heard(writers[0], 5)
    os.kill(writers[0].pid, signal.SIGSTOP)
    settings = ManifestSettings(orphan_age_min=Duration("0h"))
    log = ManifestLog(store, STREAM, clock=SystemClock(), settings=settings)
    log.open_epoch()
    log.commit([LedgerClosed(5, 9)])
    log.checkpoint()

    def deleted() -> bool:
        # A store's clock may count whole seconds: then what is fresh isn't older than now.
        found = expire_records(store, log.state, clock=SystemClock(), settings=settings)
        return found.records == log.state.record_id

    eventually(deleted)

    os.kill(writers[0].pid, signal.SIGCONT)
    more, woken = outcome_of(writers[0])

    assert woken["fenced"]
    state = load_manifest(store, STREAM)
    assert state == log.load()
    assert set(state.closed_ledgers) >= {*told, *more, 5}
    assert len(state.closed_ledgers) - len({*told, *more, 5}) <= 1


@pytest.mark.parametrize("taken_over", [False, True])
def test_a_put_that_lands_after_its_writer_gave_up_counts_or_is_refused(s3_place: Any, taken_over: bool) -> None:
    """On its way to a real server, for as long as the writer waits and longer."""
    clock = SystemClock()
    with HoldingProxy(s3_place.options["endpoint_url"]) as proxy:
        quick = StoreSettings(retries_max=0)
        a = ManifestLog(s3_place.open(endpoint_url=proxy.url, settings=quick), STREAM, clock=clock)
        a.open_epoch()
        proxy.hold("PUT", ".json")
        with pytest.raises(OutcomeUnknownError):
            a.commit([LedgerClosed(1, 9)])
        proxy.let_through()
        assert len(proxy.held) == UNKNOWN_REPEATS_MAX + 1
        b = ManifestLog(s3_place.open(), STREAM, clock=clock)
        if taken_over:
            assert b.open_epoch() == 2

        answers = [proxy.land() for _ in range(len(proxy.held))]

        landed = [answer.split(b" ", 2)[1] for answer in answers]
        assert landed == [b"412" if taken_over else b"200", *[b"412"] * UNKNOWN_REPEATS_MAX]
        if taken_over:
            with pytest.raises(FencedError):
                a.commit([LedgerClosed(1, 9)])
            assert 1 not in load_manifest(b.store, STREAM).closed_ledgers
        else:
            assert b.open_epoch() == 2
            assert b.state.closed_ledgers == {1: 9}
            assert a.commit([LedgerClosed(1, 9)]).record_id >= 2, "what it asked for again is done already"
            with pytest.raises(FencedError):
                a.commit([LedgerClosed(2, 9)])
        assert b.commit([LedgerClosed(3, 9)]).record_id == (3 if taken_over else 4)
