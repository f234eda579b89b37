"""The job ``export`` with a real Spark: every row once after any kill; dates, bad messages, lost entries."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from formats.entries import TIME_UNKNOWN_MS, Entry, EntryBatch, Position
from formats.manifest import Retire, Truncate
from formats.segment import SegmentMap
from offloader.errors import CorruptError, OutcomeUnknownError, TrimmedError
from offloader.spark.jobs import export
from offloader.spark.jobs.export import ExportLog
from offloader.store.open import open_store
from tests.cli.reading_verbs import Offloader
from tests.formats.pulsar_entries import Sent, batch_entry, entry_of, metadata_of
from tests.spark.reading import entries_in
from tests.support.streams import BASE_MS, StreamWriter, batch_of, random_batch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
from tests.proof.spark.test_jobs_export_log import run
from tests.proof.spark.test_jobs_export_log import to as to
from tests.proof.spark.test_jobs_export_log import writer as writer

ROOT = Path(__file__).resolve().parents[3]


GARBAGE = entry_of(metadata_of(compression=3, uncompressed_size=300, batch=3, publish_time=BASE_MS), b"garbage")


def exported(spark: SparkSession, to: str) -> list[Entry]:
    """What a reader of the Parquet files sees: doubled rows come twice."""
    return entries_in(spark.read.parquet(f"{to}/entries"))


def die(*_: object) -> None:
    raise KeyboardInterrupt


def test_second_export_adds_only_new_rows(spark: SparkSession, writer: StreamWriter, to: str) -> None:
    chance = random.Random(3)
    writer.add([batch_of(3, 0, 200)])
    [first] = run(spark, writer, to)
    assert (first.number, first.first, first.last, first.rows) == (1, Position(3, 0), Position(3, 199), 200)
    assert exported(spark, to) == sorted(writer.entries)
    assert run(spark, writer, to) == ()
    files = sorted(Path(to).rglob("*.parquet"))
    writer.add([batch_of(3, 200, 50), random_batch(chance, 4, 0, 100, 300)], closes=[3, 4])
    writer.add([batch_of(7, 0, 60)])
    [second] = run(spark, writer, to)
    assert (second.first, second.last, second.entries) == (Position(3, 200), Position(7, 59), 210)
    assert exported(spark, to) == sorted(writer.entries)
    assert run(spark, writer, to) == ()
    assert set(files) < set(Path(to).rglob("*.parquet")), "what was exported isn't written again"


def test_rows_are_partitioned_by_stream_and_utc_day_in_any_session_zone(
    spark: SparkSession, writer: StreamWriter, to: str
) -> None:
    midnight = int(datetime(2026, 3, 1, tzinfo=UTC).timestamp() * 1000)
    times = [midnight - 1, midnight, midnight + 86_399_999, midnight + 86_400_000, TIME_UNKNOWN_MS, -1000]
    writer.add([EntryBatch.build(1, 0, [b"x"] * len(times), times)])
    other = spark.newSession()
    other.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    run(other, writer, to)
    frame = spark.read.parquet(f"{to}/entries")
    rows = {row.entry_id: row for row in frame.collect()}
    assert [rows[number].date for number in range(len(times))] == [
        date(2026, 2, 28), date(2026, 3, 1), date(2026, 3, 1), date(2026, 3, 2), None, date(1969, 12, 31),
    ]  # fmt: skip
    assert {row.stream for row in rows.values()} == {writer.stream}
    assert frame.columns == ["ledger_id", "entry_id", "publish_time", "payload", "stream", "range", "date"]
    folder = Path(to) / "entries" / "stream=public%2Fdefault%2Fpersistent%2Forders" / "range=00000001"
    assert (folder / "date=2026-03-01").is_dir()


def test_several_streams_are_exported_to_separate_folders(spark: SparkSession, tmp_path: Path, to: str) -> None:
    store = open_store(f"file://{tmp_path}/store")
    writers = [StreamWriter(store, name) for name in ("t/a", "t/b", "t/empty")]
    writers[0].add([batch_of(1, 0, 10)])
    writers[1].add([batch_of(1, 0, 20)])
    done = export(spark, ["t/*"], {"store": store.url}, to=to)
    assert [(each.stream, len(each.ranges), each.end) for each in done] == [
        ("t/a", 1, Position(1, 9)), ("t/b", 1, Position(1, 19)), ("t/empty", 0, None),
    ]  # fmt: skip
    counts = spark.read.parquet(f"{to}/entries").groupBy("stream").count().collect()
    assert {row.stream: row["count"] for row in counts} == {"t/a": 10, "t/b": 20}


@pytest.mark.parametrize("grows", [False, True])
def test_files_of_a_run_that_died_before_its_log_entry_are_replaced(
    spark: SparkSession, writer: StreamWriter, to: str, monkeypatch: pytest.MonkeyPatch, grows: bool
) -> None:
    writer.add([batch_of(1, 0, 100)])
    run(spark, writer, to)
    writer.add([batch_of(1, 100, 100, times=BASE_MS)])
    with monkeypatch.context() as patched:
        patched.setattr(ExportLog, "add", die)
        with pytest.raises(KeyboardInterrupt):
            run(spark, writer, to)
    assert len(exported(spark, to)) == 200, "the files were written before"
    # Of the next range everything has another day: nothing is overwritten by name alone.
    if grows:
        writer.add([batch_of(1, 200, 50, times=BASE_MS + 900 * 86_400_000)])
    # A session that replaces single partitions must not keep what the dead run left.
    other = spark.newSession()
    other.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    stray = (
        Path(to) / "entries" / "stream=public%2Fdefault%2Fpersistent%2Forders" / "range=00000002" / "date=1999-01-01"
    )
    stray.mkdir()
    done = next(Path(to).rglob("range=00000002/date=*/*.parquet"))
    (stray / "part-of-a-dead-run.parquet").write_bytes(done.read_bytes())
    [again] = run(other, writer, to)
    assert again.number == 2
    assert exported(spark, to) == sorted(writer.entries)
    assert run(spark, writer, to) == ()


def test_export_killed_at_any_range_is_continued(spark: SparkSession, writer: StreamWriter, to: str) -> None:
    """With SIGKILL, where a range's files are complete and its log isn't written: the worst moment."""
    for number in range(4):
        writer.add([batch_of(1, 50 * number, 50)])
    code = f"""
import os, signal, sys
from offloader.spark import local_session
from offloader.spark.jobs import export
from offloader.spark.jobs.export import ExportLog
add = ExportLog.add
def add_or_die(self, done):
    if done.number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    add(self, done)
ExportLog.add = add_or_die
export(local_session(cores=1), [{writer.stream!r}], {{"store": {writer.store.url!r}}}, to={to!r}, range_bytes=1)
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    dead = subprocess.run([sys.executable, "-c", code], env=environment, check=False, timeout=240, capture_output=True)
    assert dead.returncode == -signal.SIGKILL, dead.stderr
    assert len(exported(spark, to)) == 150
    newest = ExportLog(spark, to, "entries", writer.stream).newest()
    assert newest is not None
    assert (newest.number, newest.last) == (2, Position(1, 99))
    assert [each.number for each in run(spark, writer, to, range_bytes=1)] == [3, 4]
    assert exported(spark, to) == sorted(writer.entries)


def test_files_with_other_rows_than_written_are_not_recorded(
    spark: SparkSession, writer: StreamWriter, to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job: Any = sys.modules["offloader.spark.jobs.export"]  # the package has a function of that name
    writer.add([batch_of(1, 0, 10)])
    replace = job._replace

    def disturbed(frame: Any, folder: str, *partitions: str) -> None:
        replace(frame, folder, *partitions)
        next(Path(folder).rglob("*.parquet")).unlink()

    with monkeypatch.context() as patched:
        patched.setattr(job, "_replace", disturbed)
        with pytest.raises(OutcomeUnknownError, match=r"expected 10 rows, found 0 in .*; nothing was recorded"):
            run(spark, writer, to)
    [done] = run(spark, writer, to)
    assert done.rows == 10


def test_damage_fails_the_run_and_keeps_the_ranges_before_it(
    spark: SparkSession, writer: StreamWriter, to: str
) -> None:
    for number in range(3):
        writer.add([batch_of(1, 100 * number, 100)])
    data, index = writer.keys(writer.uuids[1])
    whole, info = writer.store.get(data)
    broken = bytearray(whole)
    broken[int(SegmentMap.parse(writer.store.get(index)[0]).blocks.offset[1]) + 150] ^= 1
    writer.store.put(data, bytes(broken), metadata=info.metadata)
    with pytest.raises(CorruptError, match="Spark's export failed: .*" + str(writer.uuids[1])):
        run(spark, writer, to, range_bytes=1)
    assert exported(spark, to) == writer.entries[:100]
    skipped, last = run(spark, writer, to, range_bytes=1, options={"onCorrupt": "skip"})
    assert skipped.entries == 100
    assert 0 < skipped.rows < 100, "the log has what was left out"
    assert (last.rows, last.number) == (100, 3)


def test_entries_deleted_before_their_export_are_an_error_or_recorded(
    spark: SparkSession, writer: StreamWriter, to: str
) -> None:
    first = writer.add([batch_of(1, 0, 10)])
    run(spark, writer, to)
    second = writer.add([batch_of(1, 10, 10)])
    writer.add([batch_of(1, 20, 10)])
    writer.log.commit([Truncate(Position(1, 10)), Retire((first,))])
    assert run(spark, writer, to)[0].first == Position(1, 10), "what was exported may go"
    writer.add([batch_of(1, 30, 10)])
    third = writer.add([batch_of(1, 40, 10)])
    writer.log.commit([Truncate(Position(1, 35)), Retire((second,))])
    with pytest.raises(
        TrimmedError, match="exported up to 1:29, but the following entries were deleted: the stream now begins at 1:35"
    ) as caught:
        run(spark, writer, to)
    assert "--skip-lost" in caught.value.hint
    [done] = run(spark, writer, to, skip_lost=True)
    assert (done.lost, done.first, done.last, done.rows) == (True, Position(1, 35), Position(1, 49), 15)
    assert third in {record.uuid for record in writer.log.state.offloaded()}


def test_unreadable_messages_fail_the_run_or_become_dead_letters_once(
    spark: SparkSession, writer: StreamWriter, to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = batch_entry([Sent(value=b"a", key="k"), Sent(value=b"b")])
    writer.add([EntryBatch.build(3, 0, [good, b"no message at all", GARBAGE, good])])
    with pytest.raises(CorruptError, match="entry 3:1"):
        run(spark, writer, to, content="messages")
    with monkeypatch.context() as patched:
        patched.setattr(ExportLog, "add", die)
        with pytest.raises(KeyboardInterrupt):
            run(spark, writer, to, content="messages", dead_letter=True)
    [done] = run(spark, writer, to, content="messages", dead_letter=True)
    assert (done.rows, done.bad_rows, done.entries) == (4, 4, 4)
    rows = spark.read.parquet(f"{to}/messages").orderBy("entry_id", "batch_index").collect()
    assert [(row.entry_id, row.batch_index, bytes(row.value)) for row in rows] == [
        (0, 0, b"a"), (0, 1, b"b"), (3, 0, b"a"), (3, 1, b"b"),
    ]  # fmt: skip
    bad = spark.read.parquet(f"{to}/bad/messages").orderBy("entry_id", "batch_index").collect()
    assert [row.entry_id for row in bad] == [1, 2, 2, 2]
    assert all(row.error for row in bad)
    assert "entry 3:1 at byte" in bad[0].error
    writer.add([EntryBatch.build(3, 4, [good])])
    [more] = run(spark, writer, to, content="messages", dead_letter=True, options={"columns": _FEW})
    assert (more.rows, more.bad_rows) == (2, 0)
    assert spark.read.parquet(f"{to}/messages").count() == 6


_FEW = "ledger_id,entry_id,batch_index,publish_time,value,error"


def test_command_prints_the_number_of_new_rows(
    spark: SparkSession,
    writer: StreamWriter,
    to: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OFFLOADER_STORE", writer.store.url)
    writer.add([batch_of(1, 0, 1200)])
    offloader = Offloader(capsys)
    done = offloader("spark", "export", writer.stream, "--dest", to)
    assert (done.code, done.out) == (0, f"{writer.stream}: 1,200 new rows, exported up to 1:1199\n")
    assert offloader("spark", "export", writer.stream, "--dest", to).out == f"{writer.stream}: no new rows\n"
    [row] = offloader("spark", "export", writer.stream, "--dest", to, "--json").rows
    assert row == {"stream": writer.stream, "ranges": 0, "rows": 0, "bad_rows": 0, "end": "1:1199"}
    assert exported(spark, to) == sorted(writer.entries)
    code, line, _ = offloader.refuses("spark", "export", writer.stream, "--dest", to, "--content", "messages")
    assert (code, "entry 1:0 isn't a message of Pulsar's" in line) == (2, True)
