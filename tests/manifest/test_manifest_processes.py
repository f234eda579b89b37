"""Two writers at once in two processes, against real stores: one wins, the other stops fenced."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from offloader.manifest.log import load_manifest
from offloader.store.base import ObjectStore, open_store

ROOT = Path(__file__).parents[2]
STREAM = "public/default/persistent/orders"
COMMITS = 25
WAIT_S = 120.0


def start(task: dict[str, Any]) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.manifest.manifest_writer"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(task) + "\n")
    process.stdin.flush()
    return process


def race(store: ObjectStore, url: str, options: dict[str, Any], checkpoint_records: int) -> None:
    task = {"url": url, "options": options, "stream": STREAM, "commits": COMMITS}
    writers = [start({**task, "checkpoint_records": checkpoint_records}) for _ in range(2)]
    try:
        for writer in writers:
            assert writer.stdout is not None
            ready = writer.stdout.readline()
            assert ready == "ready\n", writer.stderr and writer.stderr.read()
        for writer in writers:
            assert writer.stdin is not None
            writer.stdin.write("go\n")
            writer.stdin.flush()
        outcomes = []
        for writer in writers:
            out, err = writer.communicate(timeout=WAIT_S)
            assert writer.returncode == 0, err
            outcomes.append(json.loads(out))
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
    outcomes.sort(key=lambda outcome: outcome["epoch"])
    loser, winner = outcomes
    assert (loser["epoch"], winner["epoch"]) == (1, 2)
    assert (loser["fenced"], winner["fenced"]) == (True, False)
    assert len(winner["committed"]) == COMMITS
    state = load_manifest(store, STREAM)
    # What a writer was told is committed is there, and nothing else: neither lost nor done twice.
    assert sorted(state.closed_ledgers) == sorted(loser["committed"] + winner["committed"])
    assert state.record_id == 2 + len(loser["committed"]) + len(winner["committed"])
    assert state.epoch == 2


@pytest.mark.parametrize("checkpoint_records", [100, 2])
def test_of_two_processes_one_owns_the_stream_and_nothing_confirmed_is_lost(
    s3_place: Any, checkpoint_records: int
) -> None:
    race(s3_place.open(), s3_place.url, s3_place.options, checkpoint_records)


def test_two_processes_over_a_local_directory(tmp_path: Path, exercises: Any) -> None:
    exercises("local directory")
    url = f"file://{tmp_path}/store"
    race(open_store(url), url, {}, 3)
