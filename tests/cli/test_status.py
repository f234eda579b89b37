"""``offloader status``: from manifests, from a status file, from both; watched."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from uuid import uuid4

import pytest

from formats.entries import Position
from formats.manifest import Assign
from offloader.cli.status import watch
from offloader.errors import CorruptError, StoreUnavailableError
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
from offloader.managed_ledger import open_managed_ledger
from offloader.settings import Settings
from offloader.store.open import open_store
from offloader.testing.manual_clock import ManualClock
from tests.cli.reading_verbs import Offloader
from tests.support.ctrl_c import heed_ctrl_c
from tests.support.served import HeldFeed, serving, settings_file
from tests.support.streams import BASE_MS, StreamWriter, batch_of
from tests.support.waiting import PATIENCE_S, eventually

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def offloader(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Offloader:
    for name in ("OFFLOADER_STORE", "OFFLOADER_STATUS_FILE"):
        monkeypatch.delenv(name, raising=False)
    return Offloader(capsys)


@pytest.fixture
def store_url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/store"


@pytest.fixture
def writer(store_url: str) -> StreamWriter:
    writer = StreamWriter(open_store(store_url), "orders")
    writer.add([batch_of(3, 0, 10), batch_of(4, 0, 20)], closes=[3, 4])
    writer.log.commit([Assign(uuid4(), 2, Position(5, 0), None, BASE_MS, {})])
    return writer


def written(tmp_path: Path, store_url: str, *, drain: bool = True) -> Path:
    """The status file of a process that appended three entries, and ended."""
    file = tmp_path / "status.json"
    settings = Settings.of({"telemetry": {"status_file": str(file), "status_interval": 3600.0}})
    ledger = open_managed_ledger(
        "live", ledgers=str(tmp_path / "ledgers.db"), store=open_store(store_url), settings=settings
    )
    ledger.append_batch([b"one", b"two", b"three"], publish_times_ms=[BASE_MS, BASE_MS + 1000, BASE_MS + 3000])
    ledger.close(drain=drain)
    return file


def test_from_the_manifest_alone(offloader: Offloader, writer: StreamWriter) -> None:
    (row,) = offloader("status", "--store", writer.store.url, "--json").rows
    assert row["stream"] == "orders"
    assert row["source"] == "manifest"
    assert row["committed"] == "4:19"
    assert row["segments"] == {"assigned": 1, "offloaded": 1, "retired": 0}
    assert (row["entries_offloaded"], row["bytes_offloaded"]) == (30, 600)
    assert row["last_progress_ms"] == BASE_MS
    assert (row["mode"], row["tail"], row["lag"], row["buffer"]) == (None, None, None, None)


def test_status_table_shows_dashes_for_facts_outside_the_manifest(offloader: Offloader, writer: StreamWriter) -> None:
    heading, row = offloader("status", "orders", "--wide", "--store", writer.store.url).out.splitlines()
    assert heading.split()[:6] == ["STREAM", "MODE", "COMMITTED", "OFFERED", "TAIL", "LAG"]
    assert row.split()[:7] == ["orders", "-", "4:19", "-", "-", "-", "-"]
    assert "1 assigned, 1 offloaded" in row
    assert "600 B" in row


def test_from_the_file_of_a_process_that_ended(offloader: Offloader, tmp_path: Path, store_url: str) -> None:
    """The last document has the final state and its time."""
    file = written(tmp_path, store_url)
    (row,) = offloader("status", "--status-file", str(file), "--json").rows
    assert (row["source"], row["mode"]) == ("process", "stopped")
    assert row["tail"] == row["offered"] == row["committed"]
    assert row["lag"] == {"entries": 0, "bytes": 0, "seconds": 0.0}
    assert row["buffer"]["bytes"] == 0
    assert (row["entries_offloaded"], row["bytes_offloaded"]) == (3, 11)
    assert row["segments"] == {"offloaded": 1, "failed": 0}
    assert row["age_s"] >= 0
    assert row["last_error"] is None, "it was told to stop"


def test_lag_is_in_entries_bytes_and_seconds(offloader: Offloader, tmp_path: Path, store_url: str) -> None:
    file = written(tmp_path, store_url, drain=False)
    (row,) = offloader("status", "live", "--status-file", str(file), "--json").rows
    assert row["lag"] == {"entries": 3, "bytes": 11, "seconds": 3.0}
    assert row["committed"] is None
    table = offloader("status", "--wide", "--status-file", str(file)).out
    assert "3 entries, 11 B, 3.0 s" in table


@pytest.mark.slow
def test_status_file_and_manifest_are_merged(
    offloader: Offloader, tmp_path: Path, writer: StreamWriter, store_url: str
) -> None:
    file = written(tmp_path, store_url)
    done = offloader("status", "--status-file", str(file), "--store", store_url, "--json")
    live, orders = done.rows
    assert (live["stream"], live["source"], live["mode"]) == ("live", "process and manifest", "stopped")
    assert live["segments"] == {"assigned": 0, "offloaded": 1, "retired": 0, "failed": 0}
    assert (orders["stream"], orders["source"]) == ("orders", "manifest")


@pytest.mark.slow
def test_rate_of_a_serving_process_is_in_the_table_and_in_json(
    offloader: Offloader, tmp_path: Path, store_url: str
) -> None:
    file, feed = tmp_path / "status.json", HeldFeed()
    database = EmbeddedLedgers(str(tmp_path / "ledgers.db"))
    source = database.open_stream("orders")
    open_store(store_url, create=True)
    settings = settings_file(serve__store=store_url, telemetry__status_file=str(file), telemetry__status_interval=0.05)
    with serving(None, settings, feed) as assembled, closing(database):
        assert feed.streams is not None
        eventually(feed.streams.add("orders", source, feed="held").status)
        source.append([b"x" * 1_000_000], [BASE_MS])
        assembled.process.streams.require("orders").offload(None, timeout_s=PATIENCE_S)

        def is_fast() -> bool:
            # the first file may have been written before the stream was there
            rows = offloader("status", "--status-file", str(file), "--json").rows
            return any(row["bytes_per_second"] > 1000 for row in rows)

        eventually(is_fast)
        heading, row = offloader("status", "--status-file", str(file), "--store", store_url).out.splitlines()[-2:]
        assert "RATE" in heading
        assert " MB/s" in row
    (row,) = offloader("status", "--store", store_url, "--json").rows
    assert row["bytes_per_second"] is None


@pytest.mark.slow
def test_an_old_file_is_called_old(offloader: Offloader, tmp_path: Path, store_url: str) -> None:
    file = written(tmp_path, store_url)
    document = json.loads(file.read_text())
    assert "OLD" not in offloader("status", "--status-file", str(file)).out
    document["written_ms"] -= 4 * 3600 * 1000
    file.write_text(json.dumps(document))
    line = offloader("status", "--status-file", str(file)).out.splitlines()[0]
    assert "OLD, expected every 3600 s; the process may have stopped" in line


def test_limits_and_problems_are_shown(offloader: Offloader, tmp_path: Path, store_url: str) -> None:
    file = written(tmp_path, store_url)
    document = json.loads(file.read_text())
    document["limits"] |= {"waiting": {"live": 2, "read": 0}, "pace_requests_per_s": 2.5}
    document["settings"]["limits"]["bytes_per_s"] = 1000.0
    document["settings"]["store"]["single_writer"] = True
    document["store"] |= {"single_writer": True, "problems": ["a create replaces an existing object"]}
    document["store"] |= {"open_requests": 3, "oldest_request": {"verb": "put", "key": "k", "seconds": 31.0}}
    document["streams"][0] |= {"stalled": "stream live: entries wait", "last_error": "x"}
    file.write_text(json.dumps(document))
    lines = offloader("status", "--wide", "--status-file", str(file)).out.splitlines()
    assert lines[1:6] == [
        (
            f"store: {store_url}; single writer: no other process may ever write to it; missing guarantees: a create "
            "replaces an existing object"
        ),
        "3 requests are open, put of k for 31 s",
        ("settings: store.single_writer = True, limits.bytes_per_s = 1000.0, telemetry.status_interval = 1h"),
        "waiting because of a rate limit: 2 live",
        "throttled by the store to 2.5 requests/s",
    ]
    assert lines[-1].endswith("stream live: entries wait")


@pytest.mark.slow
def test_limits_lists_every_setting_with_default_and_description(
    offloader: Offloader, tmp_path: Path, store_url: str
) -> None:
    file = written(tmp_path, store_url)
    rows = {row["setting"]: row for row in offloader("status", "--status-file", str(file), "--limits", "--json").rows}
    assert rows.keys() == {
        f"{section.name}.{setting.name}"
        for section in fields(Settings())
        for setting in fields(getattr(Settings(), section.name))
    }
    assert rows["telemetry.status_interval"] == {
        "setting": "telemetry.status_interval",
        "value": "1h",
        "default": "5s",
        "what": "interval between two checks of the streams",
    }
    assert rows["offload.offload_buffer_size_max"]["value"] == "64MiB"
    assert rows["store.single_writer"]["value"] is False
    code, line, _ = offloader.refuses("status", "--limits")
    assert (code, line) == (2, "neither a store nor a status file was given")
    code, line, hint = offloader.refuses("status", "--limits", "--store", store_url)
    assert (code, hint) == (2, "give its status file: --status-file FILE")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "[" * 5000, '{"version": 2}', '{"version": 1, "written_ms": 1, "streams": [1]}']
)
def test_other_file_than_status_document_is_refused(offloader: Offloader, tmp_path: Path, text: str) -> None:
    file = tmp_path / "status.json"
    file.write_text(text)
    done = offloader("status", "--status-file", str(file))
    assert done.code == 6
    assert "isn't a status document" in done.err


@pytest.mark.slow
def test_missing_source_file_or_stream_is_an_error_with_a_hint(
    offloader: Offloader, tmp_path: Path, writer: StreamWriter, store_url: str
) -> None:
    code, line, hint = offloader.refuses("status")
    assert (code, line) == (2, "neither a store nor a status file was given")
    code, line, hint = offloader.refuses("status", "--status-file", str(tmp_path / "none.json"))
    assert (code, line) == (3, f"the status file {tmp_path / 'none.json'} doesn't exist")
    assert "telemetry.status_file" in hint
    code, line, hint = offloader.refuses("status", "order", "--store", store_url)
    assert (code, hint) == (3, "did you mean orders?")
    code, line, hint = offloader.refuses("status", "orders", "--status-file", str(written(tmp_path, store_url)))
    assert (code, hint) == (3, "add --store URL to read its manifest")


def test_damaged_manifest_does_not_hide_other_streams(
    offloader: Offloader, tmp_path: Path, writer: StreamWriter, store_url: str
) -> None:
    StreamWriter(writer.store, "zebra")
    for record in (tmp_path / "store" / "orders" / "manifest").rglob("*.json"):
        record.write_bytes(b"{}")
    done = offloader("status", "--store", store_url, "--json")
    assert done.code == 6
    damaged, whole = done.rows
    assert damaged["stream"] == "orders"
    assert damaged["last_error"]
    assert whole["segments"] == {"assigned": 0, "offloaded": 0, "retired": 0}


# -- watching


def test_watch_refreshes_after_each_interval_until_stopped() -> None:
    clock, stop, looks = ManualClock(), threading.Event(), []

    def show() -> None:
        looks.append(clock.monotonic_s())
        if len(looks) == 3:
            stop.set()

    watch(show, 2.0, clock=clock, stop=stop)
    assert looks == [0.0, 2.0, 4.0]


def test_watching_survives_an_unreachable_store(capsys: pytest.CaptureFixture[str]) -> None:
    stop, answers = threading.Event(), [StoreUnavailableError("the store is away"), None]

    def show() -> None:
        answer = answers.pop(0)
        if answer is not None:
            raise answer
        stop.set()

    watch(show, 1.0, clock=ManualClock(), stop=stop)
    assert capsys.readouterr().err == "offloader: the store is away\n"


def test_watching_ends_with_an_error_that_lasts() -> None:
    def show() -> None:
        raise CorruptError("the file is damaged")

    with pytest.raises(CorruptError):
        watch(show, 1.0, clock=ManualClock(), stop=threading.Event())


@pytest.mark.process
def test_a_watching_process_shows_what_changes_and_ends_at_ctrl_c(tmp_path: Path, store_url: str) -> None:
    file = written(tmp_path, store_url)
    command = [sys.executable, "-m", "offloader.cli.main", "status", "--status-file", str(file), "--json"]
    process = subprocess.Popen(
        [*command, "--watch", "--interval", "0.05"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        preexec_fn=heed_ctrl_c,
    )
    try:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["mode"] == "stopped"
        document = json.loads(file.read_text())
        document["streams"][0]["mode"] = "live"
        (tmp_path / "next.json").write_text(json.dumps(document))
        (tmp_path / "next.json").replace(file)
        while json.loads(process.stdout.readline())["mode"] != "live":
            pass
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 130
    finally:
        process.kill()
        process.wait()


@pytest.mark.process
def test_watching_on_a_terminal_refreshes_in_place_within_its_width(tmp_path: Path, store_url: str) -> None:
    file = written(tmp_path, store_url)
    document = json.loads(file.read_text())
    [stream] = document["streams"]
    document["streams"] = [{**stream, "stream": f"public/default/persistent/orders-{n}"} for n in range(50)]
    document["streams"][40] |= {"stalled": "stream public/default/persistent/orders-40: entries wait " + "long " * 30}
    file.write_text(json.dumps(document))
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "offloader.cli.main", "status", "--status-file", str(file), "--watch"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", "COLUMNS": "", "LINES": ""},
        preexec_fn=heed_ctrl_c,
    )
    os.close(theirs)
    shown = b""
    try:
        while b"long" not in shown.partition(b"!")[2]:
            assert select.select([ours], [], [], 60)[0], shown
            shown += os.read(ours, 65536)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode()).replace("\r", "").splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith(f"{file}"[:80])
    rows = [line.split()[0] for line in lines if line.startswith("orders-")]
    assert rows[0] == "orders-40", "trouble comes first where not everything has room"
    assert 3 <= len(rows) < 20


@pytest.mark.slow
def test_disconnected_stream_shows_since_when_its_lag_is_unknown(
    offloader: Offloader, tmp_path: Path, store_url: str
) -> None:
    file = written(tmp_path, store_url)
    document = json.loads(file.read_text())
    (row,) = document["streams"]
    row |= {"mode": "disconnected", "disconnected": "the broker pulsar://b:6650 doesn't answer: connection refused"}
    row |= {"lag": {"entries": 0, "bytes": 0, "seconds": 300.0}, "lag_known_ms": BASE_MS}
    file.write_text(json.dumps(document))
    text = offloader("status", "--wide", "--status-file", str(file)).out
    assert "disconnected" in text
    assert "unknown for 5.0 min" in text
    assert "connection refused" in text
    (shown,) = offloader("status", "--status-file", str(file), "--json").rows
    assert (shown["lag"]["seconds"], shown["lag_known_ms"]) == (300.0, BASE_MS)
