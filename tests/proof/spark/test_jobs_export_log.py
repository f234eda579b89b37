"""The job ``export`` with a real Spark: every row once after any kill; dates, bad messages, lost entries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from formats.entries import Position
from offloader.errors import CorruptError, InvalidCallError, OffloaderError, OutcomeUnknownError, UnsupportedError
from offloader.read.ranges import PlannedRange, planned_ranges
from offloader.spark.jobs import export
from offloader.spark.jobs.export import ExportedRange, ExportLog
from offloader.store.open import open_store
from tests.support.streams import StreamWriter, batch_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def writer(tmp_path: Path) -> StreamWriter:
    return StreamWriter(open_store(f"file://{tmp_path}/store"), "public/default/persistent/orders")


@pytest.fixture
def to(tmp_path: Path) -> str:
    return str(tmp_path / "export")


def run(spark: SparkSession, writer: StreamWriter, to: str, **more: Any) -> tuple[ExportedRange, ...]:
    """One run for the writer's stream; the ranges that it added."""
    options = {"store": writer.store.url, **more.pop("options", {})}
    [done] = export(spark, [writer.stream], options, to=to, **more)
    return done.ranges


# Again and again


def test_stream_name_that_reads_as_a_pattern_is_refused(spark: SparkSession, tmp_path: Path, to: str) -> None:
    store = open_store(f"file://{tmp_path}/store")
    for name in ("a?", "ab"):
        StreamWriter(store, name).add([batch_of(1, 0, 10)])
    with pytest.raises(UnsupportedError, match=r"the name of stream a\? is a pattern"):
        export(spark, ["a*"], {"store": store.url}, to=to)


# Dying


def test_concurrent_export_of_the_same_range_is_reported(
    spark: SparkSession, writer: StreamWriter, to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.add([batch_of(1, 0, 10)])
    add = ExportLog.add

    def twice(self: ExportLog, done: ExportedRange) -> None:
        add(self, done)
        add(self, done)

    monkeypatch.setattr(ExportLog, "add", twice)
    with pytest.raises(OutcomeUnknownError, match="another export wrote range 1 of public/default/persistent/orders"):
        run(spark, writer, to)


# What is in the way


def test_recreated_stream_needs_a_new_folder(
    spark: SparkSession, writer: StreamWriter, tmp_path: Path, to: str
) -> None:
    writer.add([batch_of(1, 0, 10)])
    run(spark, writer, to)
    anew = StreamWriter(open_store(f"file://{tmp_path}/other"), writer.stream)
    anew.add([batch_of(1, 0, 30)])
    with pytest.raises(InvalidCallError, match="was deleted and recreated since its export"):
        run(spark, anew, to)


def test_damaged_export_log_is_reported(spark: SparkSession, writer: StreamWriter, to: str) -> None:
    writer.add([batch_of(1, 0, 10)])
    run(spark, writer, to)
    [log] = Path(to).rglob("00000001.json")
    written = json.loads(log.read_text())
    assert (written["first"], written["last"], written["rows"], written["manifest"]) == (
        "1:0", "1:9", 10, writer.log.state.record_id,
    )  # fmt: skip
    for damage in ("{", "[]", json.dumps({**written, "last": "x"}), json.dumps({**written, "number": 7})):
        (log.parent / f".{log.name}.crc").unlink(missing_ok=True)
        log.write_text(damage)
        with pytest.raises(CorruptError, match=r"00000001\.json"):
            run(spark, writer, to)


# Messages


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"content": "segments"}, "unknown content 'segments'"),
        ({"dead_letter": True}, "only messages can be bad"),
        ({"range_bytes": 0}, "range_bytes is 0"),
        ({"options": {"columns": "payload,ledger_id"}}, "export needs the columns entry_id, publish_time too"),
        ({"options": {"stop": "1:0"}}, "export doesn't accept option stop"),
        ({"options": {"onBadMessage": "null"}}, "export doesn't accept option onBadMessage"),
        (
            {"content": "messages", "dead_letter": True, "options": {"columns": "value"}},
            "batch_index, publish_time, err",
        ),
    ],
)
def test_invalid_export_is_refused(
    spark: SparkSession, writer: StreamWriter, to: str, more: dict[str, Any], expected: str
) -> None:
    with pytest.raises(OffloaderError, match=expected):
        run(spark, writer, to, **more)
    assert not Path(to).exists()


# Ranges


def test_ranges_are_whole_segments_up_to_the_size_and_cover_the_stream(writer: StreamWriter) -> None:
    for number in range(6):
        writer.add([batch_of(number, 0, 100)], closes=[number])
    state = writer.log.state
    sizes = [record.summary.data_bytes for record in state.offloaded() if record.summary]
    pairs = list(planned_ranges(state, None, 2 * max(sizes)))
    assert pairs == [PlannedRange(Position(number, 0), Position(number + 1, 99), 200) for number in (0, 2, 4)]
    assert list(planned_ranges(state, None, 1)) == [
        PlannedRange(Position(number, 0), Position(number, 99), 100) for number in range(6)
    ]
    assert list(planned_ranges(state, Position(3, 99), 10**9)) == [PlannedRange(Position(4, 0), Position(5, 99), 200)]
    assert list(planned_ranges(state, Position(5, 99), 10**9)) == []
    # A segment that was exported in part, as after a rewrite with other borders: how many are left nobody says.
    assert list(planned_ranges(state, Position(4, 10), 10**9)) == [PlannedRange(Position(4, 11), Position(5, 99), None)]
    assert list(planned_ranges(state, Position(4, 10), 1)) == [
        PlannedRange(Position(4, 11), Position(4, 99), None), PlannedRange(Position(5, 0), Position(5, 99), 100),
    ]  # fmt: skip


# The command
