"""Structured logs: one line of JSON each, one line per segment."""

from __future__ import annotations

import io
import json
import logging
import re
import socket
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from offloader.managed_ledger import open_managed_ledger
from offloader.manifest.log import load_manifest
from offloader.monitor import stream_document
from offloader.runtime.clock import SystemClock
from offloader.runtime.logs import JsonLines, PlainLines, log_to
from offloader.settings import Duration, StoreSettings
from offloader.store.memory import MemoryStore
from offloader.store.open import open_store
from offloader.testing.faulty_store import Fault, FaultyStore
from offloader.write.offloader import LedgerOffloader
from tests.support.waiting import eventually
from tests.write.streaming_bench import STREAM, Bench


@pytest.fixture
def logged() -> Iterator[Any]:
    """What was logged since, line by line as JSON."""
    stream = io.StringIO()
    logger = logging.getLogger("offloader")
    level = logger.level
    handler = log_to(stream)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    logger.removeHandler(handler)
    logger.setLevel(level)


def record(message: str, *args: object, **extra: object) -> logging.LogRecord:
    return logging.getLogger("offloader.x").makeRecord(
        "offloader.x", logging.WARNING, "file", 1, message, args, None, extra=extra
    )


def test_log_line_has_time_level_logger_message_and_fields() -> None:
    made = record("segment %s", "a", event="e", count=3)
    made.created = 1_700_000_000.25
    assert json.loads(JsonLines().format(made)) == {
        "time": "2023-11-14T22:13:20.250Z",
        "level": "warning",
        "logger": "offloader.x",
        "message": "segment a",
        "event": "e",
        "count": 3,
    }


def test_no_value_breaks_a_line_in_two_or_replaces_the_message() -> None:
    line = JsonLines().format(record("a\nb", level="forged", other="x\ny\u2028\x85"))
    assert line.splitlines() == [line]
    assert json.loads(line)["other"] == "x\ny\u2028\x85"
    assert json.loads(line)["message"] == "a\nb"
    assert json.loads(line)["level"] == "warning"


def test_exception_is_logged_with_error_and_traceback(logged: Any) -> None:
    try:
        raise ValueError("bad")
    except ValueError:
        logging.getLogger("offloader.x").exception("failed")
    (line,) = logged()
    assert line["error"] == "ValueError: bad"
    assert "Traceback" in line["traceback"]


def test_a_line_for_people_has_time_level_and_message_and_stays_one() -> None:
    made = record("segment %s\nforged\x1b[31m", "a", event="e")
    made.created = 1_700_000_000.25
    assert PlainLines().format(made) == "2023-11-14T22:13:20.250Z WARNING segment a\\nforged\\u001b[31m"


def test_a_traceback_follows_the_line_for_people() -> None:
    try:
        raise ValueError("bad")
    except ValueError:
        made = record("failed")
        made.exc_info = sys.exc_info()
    first, second, *_ = PlainLines().format(made).splitlines()
    assert first.endswith("WARNING failed")
    assert second == "Traceback (most recent call last):"


def segments(logged: Any, event: str = "segment_offloaded") -> list[dict[str, Any]]:
    return [line for line in logged() if line.get("event") == event]


@pytest.mark.slow
def test_each_segment_gets_one_line_with_its_facts(logged: Any, tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/store")
    with open_managed_ledger(STREAM, ledgers=str(tmp_path / "ledgers.db"), store=store) as ledger:
        first = ledger.append_batch([b"one", b"two"], [1000, 3000])[0]
        ledger.offload()
        second = ledger.append_batch([b"three"], 5000)[0]
        ledger.offload()
    lines = segments(logged)
    assert [(line["begin"], line["end"], line["entries"], line["payload_bytes"]) for line in lines] == [
        (str(first.first), str(first.last), 2, 6),
        (str(second.first), str(second.last), 1, 5),
    ]
    assert [(line["publish_time_min_ms"], line["publish_time_max_ms"]) for line in lines] == [
        (1000, 3000),
        (5000, 5000),
    ]
    state = load_manifest(store, STREAM)
    for line, segment in zip(lines, state.offloaded(), strict=True):
        assert segment.summary is not None
        assert line.keys() == {
            *("time", "level", "logger", "message", "event", "stream", "segment", "format", "epoch", "record", "begin"),
            *("end", "ledgers", "entries", "payload_bytes", "data_bytes", "index_bytes", "blocks", "seconds"),
            *("publish_time_min_ms", "publish_time_max_ms"),
        }
        assert line["stream"] == STREAM
        assert line["segment"] == str(segment.uuid)
        assert (line["level"], line["format"], line["epoch"], line["ledgers"]) == ("info", "V2", 1, 1)
        assert line["seconds"] == pytest.approx(((segment.offloaded_ms or 0) - segment.assigned_ms) / 1000)
        assert store.head(f"{STREAM}/{line['segment']}").size_bytes == line["data_bytes"]
        assert store.head(f"{STREAM}/{line['segment']}-index").size_bytes == line["index_bytes"]
        assert line["blocks"] == segment.summary.blocks
    assert lines[-1]["record"] == state.record_id


def test_history_the_ledger_method_and_failures_are_logged_alike(logged: Any, tmp_path: Path) -> None:
    faulty = FaultyStore(MemoryStore("logged", "", SystemClock()))
    bench = Bench(tmp_path)
    try:
        source = bench.open()
        bench.append(source, 3)
        source.close_ledger()
        bench.append(source, 3)
        with closing(LedgerOffloader(faulty, bench.settings)) as offloader:
            offloader.offload_ledgers(source, STREAM)
            faulty.set_faults([Fault(call=1, verb="put", key_part="-index")])
            offloader.history.backfill(source, STREAM)
    finally:
        bench.close()
    assert [(line["format"], line["entries"]) for line in segments(logged)] == [("V1", 30), ("V2", 30)]
    [failed] = segments(logged, "segment_failed")
    assert failed["level"] == "warning"
    assert failed["stream"] == STREAM
    assert failed["reason"].startswith("fault before put of")
    assert failed["segment"] in failed["reason"]


def test_text_log_has_the_same_facts(tmp_path: Path) -> None:
    text = io.StringIO()
    handler = log_to(text, as_json=False)
    try:
        store = open_store(f"file://{tmp_path}/store")
        with open_managed_ledger(STREAM, ledgers=str(tmp_path / "ledgers.db"), store=store) as ledger:
            batch = ledger.append_batch([b"one", b"two"])[0]
            ledger.offload()
    finally:
        logging.getLogger("offloader").removeHandler(handler)
    [line] = text.getvalue().splitlines()
    assert re.fullmatch(
        rf"\S+Z INFO    stream {STREAM}: segment \S+ {batch.first}\.\.{batch.last}, 2 entries, \d+ bytes", line
    )


def test_no_secret_is_ever_logged_or_shown(logged: Any, tmp_path: Path) -> None:
    secrets = ("AKIDNOTFORLOGS", "secret-not-for-logs", "token-not-for-logs")
    fast = StoreSettings(retries_max=0, connect_timeout=Duration(0.5))
    with socket.socket() as port:
        # Bound and not listening: nobody answers there.
        port.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{port.getsockname()[1]}"
        keys = dict(zip(("access_key", "secret_key", "session_token"), secrets, strict=True))
        store = open_store("s3://bucket/root", endpoint_url=endpoint, settings=fast, **keys)  # type: ignore[arg-type]
        bench = Bench(tmp_path)
        try:
            source = bench.open()
            stream = bench.start(source, store)
            bench.append(source, 3)
            eventually(lambda: stream.status().error)
            shown = json.dumps(stream_document(STREAM, stream.status(), None, None)) + repr(store) + str(logged())
        finally:
            bench.close()
    assert "root" in shown
    assert [line for line in logged() if line["level"] == "warning"]
    assert [secret for secret in secrets if secret in shown] == []
