"""The demo's run: complete, interrupted anywhere, repeated, against other data, against damage."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from offloader.demo.run import DemoRequest, DemoResult, Imported, Progress
from offloader.errors import (
    BucketMissingError,
    FencedError,
    InvalidCallError,
    StoreMismatchError,
)
from tests.demo.demo_cases import Watching, events, files_in, run
from tests.demo.test_run import EVENTS, stored
from tests.demo.test_run import input_file as input_file
from tests.support.presence import there

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("at", [1, 2, 4])
def test_interrupted_run_continues_after_the_last_appended_entry(tmp_path: Path, input_file: Path, at: int) -> None:
    observer = Watching()

    def interrupt(now: Progress) -> None:
        if len(observer.moments) == at:
            raise KeyboardInterrupt

    observer._at_progress = interrupt
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, observer, input_path=str(input_file))
    imported = Imported.read(DemoRequest(directory=str(tmp_path)).ledgers_path)
    assert imported.events == min(at * 8192, EVENTS)
    result = run(tmp_path, input_path=str(input_file))
    assert result.events_before == imported.events
    assert there(result.offload).appended == EVENTS - imported.events
    assert there(result.verification).ok
    assert stored(result.request.url) == events(EVENTS)


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "offloader.cli.main", "demo", "--no-spark", "--no-picture", *map(str, arguments)]


@pytest.mark.process
@pytest.mark.parametrize("lines", [2, 4, 7])
def test_killed_run_continues(tmp_path: Path, input_file: Path, lines: int) -> None:
    """kill -9 after some lines of progress; the same command then completes and finds every event exactly once."""
    arguments = ["--dir", tmp_path / "demo", "--input", input_file]
    child = subprocess.Popen(command(*arguments), stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    for _ in range(lines):
        child.stdout.readline()
    child.kill()
    child.stdout.close()
    child.wait()
    done = subprocess.run(command(*arguments, "--json"), capture_output=True, text=True, check=True)
    result = json.loads(done.stdout)
    assert result["verification"]["ok"]
    assert result["events_before"] + result["events_appended"] == EVENTS
    assert stored(result["store"]) == events(EVENTS)


def test_a_store_with_data_and_lost_ledgers_is_refused(tmp_path: Path, input_file: Path) -> None:
    result = run(tmp_path, input_path=str(input_file))
    for path in tmp_path.glob("ledgers.db*"):
        path.unlink()
    with pytest.raises(InvalidCallError, match="has no record of it") as caught:
        run(tmp_path, input_path=str(input_file))
    assert "--clean" in caught.value.hint
    assert stored(result.request.url) == events(EVENTS)
    assert there(run(tmp_path, input_path=str(input_file), clean=True).verification).ok


def test_an_s3_store_does_the_same(
    tmp_path: Path, input_file: Path, s3_place: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_place.options["access_key"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_place.options["secret_key"])
    where = {"store_url": s3_place.url, "endpoint_url": s3_place.options["endpoint_url"], "region": "us-east-1"}
    result = run(tmp_path, input_path=str(input_file), **where)
    assert result.problems == []
    assert stored(s3_place.url, endpoint_url=where["endpoint_url"], region="us-east-1") == events(EVENTS)
    assert not (tmp_path / "store").exists()
    assert run(tmp_path, input_path=str(input_file), **where).offload is None
    assert there(run(tmp_path, input_path=str(input_file), clean=True, **where).offload).appended == EVENTS


def test_a_completed_run_appends_nothing_and_verifies_and_changes_nothing(tmp_path: Path, input_file: Path) -> None:
    before = run(tmp_path, input_path=str(input_file))
    files = files_in(tmp_path)
    again = run(tmp_path, input_path=str(input_file))
    assert again.offload is None
    assert again.events_before == EVENTS
    assert there(again.verification).ok
    assert files_in(tmp_path) == files
    assert again.ledgers == before.ledgers
    assert all(count.bytes_sent == 0 for count in there(again.verification).requests.values())


def test_run_interrupted_repeatedly_stores_every_event_once(tmp_path: Path, input_file: Path) -> None:
    def interrupt(now: Progress) -> None:
        raise KeyboardInterrupt

    for _ in range(4):
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, Watching(interrupt), input_path=str(input_file))
    result = run(tmp_path, input_path=str(input_file))
    assert there(result.verification).ok
    assert stored(result.request.url) == events(EVENTS)


def test_two_runs_at_once_dont_mix(tmp_path: Path, input_file: Path) -> None:
    """The later one takes over and completes; the earlier one stops as fenced."""
    other: list[DemoResult] = []

    def start_another(now: Progress) -> None:
        if not other:
            other.append(run(tmp_path, input_path=str(input_file)))

    with pytest.raises(FencedError):
        run(tmp_path, Watching(start_another), input_path=str(input_file))
    assert there(other[0].verification).ok
    assert stored(other[0].request.url) == events(EVENTS)


def test_the_same_file_with_times_is_another_input(tmp_path: Path, input_file: Path) -> None:
    run(tmp_path, input_path=str(input_file))
    with pytest.raises(InvalidCallError, match="another input"):
        run(tmp_path, input_path=str(input_file), time_field="t")


def test_a_store_that_lost_everything_is_refused_until_its_objects_are_back(tmp_path: Path, input_file: Path) -> None:
    run(tmp_path, input_path=str(input_file))
    folder, aside = tmp_path / "store", tmp_path / "aside"
    folder.rename(aside)
    with pytest.raises(StoreMismatchError, match="isn't the store recorded by its hot tier"):
        run(tmp_path, input_path=str(input_file))
    shutil.rmtree(folder)
    aside.rename(folder)
    again = run(tmp_path, input_path=str(input_file))
    assert (again.events_before, again.offload) == (EVENTS, None)
    assert there(again.verification).ok


def test_a_missing_bucket_is_named_and_nothing_is_left_behind(
    tmp_path: Path, input_file: Path, servers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = servers["moto"]
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", endpoint.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", endpoint.secret_key)
    with pytest.raises(BucketMissingError, match="no-such-bucket") as caught:
        run(
            tmp_path / "demo",
            input_path=str(input_file),
            store_url="s3://no-such-bucket/x",
            endpoint_url=endpoint.url,
            region="us-east-1",
        )
    assert caught.value.hint
    assert not (tmp_path / "demo").exists()
