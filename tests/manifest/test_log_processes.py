"""Two concurrent writers in two processes, against real stores: one wins, the other is fenced."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from offloader.manifest.log import load_manifest
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from tests.support.waiting import eventually

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
STREAM = "public/default/persistent/orders"
COMMITS = 25
#: Of the first one before the second one takes the stream, which begins no later: else it commits for seconds.
COMMITS_ALONE = 5
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


def outcome_of(writer: subprocess.Popen[str]) -> tuple[list[int], dict[str, Any]]:
    """The ledgers that a writer was told are closed, and what it said at its end."""
    out = rest_of(writer)
    _, err = writer.communicate(timeout=WAIT_S)
    assert writer.returncode == 0, err
    *committed, last = [json.loads(line) for line in out.splitlines()]
    return committed, last


def rest_of(writer: subprocess.Popen[str]) -> str:
    """The output until its end. ``communicate`` would miss the lines that ``readline`` has read ahead."""
    assert writer.stdout is not None
    return writer.stdout.read()


def await_ready(writer: subprocess.Popen[str]) -> None:
    assert writer.stdout is not None
    ready = writer.stdout.readline()
    assert ready == "ready\n", writer.stderr and writer.stderr.read()


def begin(writer: subprocess.Popen[str], *, is_ready: bool = False) -> None:
    if not is_ready:
        await_ready(writer)
    assert writer.stdin is not None
    writer.stdin.write("go\n")
    writer.stdin.flush()


@pytest.fixture
def writers() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes to be ended."""
    started: list[subprocess.Popen[str]] = []
    yield started
    for writer in started:
        writer.kill()
        writer.communicate()


def race(store: ObjectStore, url: str, options: dict[str, Any], checkpoint_records: int) -> None:
    task = {"url": url, "options": options, "stream": STREAM, "commits": COMMITS}
    writers = [start({**task, "checkpoint_records": checkpoint_records}) for _ in range(2)]
    try:
        for writer in writers:
            await_ready(writer)
        begin(writers[0], is_ready=True)
        eventually(lambda: len(load_manifest(store, STREAM).closed_ledgers) >= COMMITS_ALONE)
        begin(writers[1], is_ready=True)
        outcomes = [outcome_of(writer) for writer in writers]
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
    (lost, loser), (won, winner) = sorted(outcomes, key=lambda outcome: outcome[1]["epoch"])
    assert (loser["epoch"], winner["epoch"]) == (1, 2)
    assert (loser["fenced"], winner["fenced"]) == (True, False)
    assert len(won) == COMMITS
    state = load_manifest(store, STREAM)
    # What a writer was told is committed is there, and nothing else: neither lost nor done twice.
    assert sorted(state.closed_ledgers) == sorted(lost + won)
    assert state.record_id == 2 + len(lost) + len(won)
    assert state.epoch == 2


def test_two_processes_over_a_local_directory(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    race(open_store(url), url, {}, 3)
