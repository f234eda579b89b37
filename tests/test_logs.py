"""Structured logs: one line of JSON each, one line per segment."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from offloader.logs import JsonLines, log_to
from offloader.managed_ledger import open_managed_ledger
from offloader.store import open_store


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


def test_a_line_has_time_level_logger_message_and_what_was_given() -> None:
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


def test_an_exception_comes_as_error_and_traceback(logged: Any) -> None:
    try:
        raise ValueError("bad")
    except ValueError:
        logging.getLogger("offloader.x").exception("failed")
    (line,) = logged()
    assert line["error"] == "ValueError: bad"
    assert "Traceback" in line["traceback"]


def test_each_segment_gets_one_line_with_its_facts(logged: Any, tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/store")
    with open_managed_ledger("t/n/persistent/logs", ledgers=str(tmp_path / "ledgers.db"), store=store) as ledger:
        first = ledger.append_batch([b"one", b"two"])[0]
        ledger.offload()
        second = ledger.append_batch([b"three"])[0]
        ledger.offload()
    lines = [line for line in logged() if line.get("event") == "segment_offloaded"]
    assert [(line["begin"], line["end"], line["entries"], line["payload_bytes"]) for line in lines] == [
        (str(first.first), str(first.last), 2, 6),
        (str(second.first), str(second.last), 1, 5),
    ]
    for line in lines:
        assert line["stream"] == "t/n/persistent/logs"
        assert store.head(f"t/n/persistent/logs/{line['segment']}").size_bytes == line["data_bytes"]
        assert store.head(f"t/n/persistent/logs/{line['segment']}-index").size_bytes == line["index_bytes"]
