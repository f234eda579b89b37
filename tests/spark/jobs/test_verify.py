"""The job ``verify`` with a real Spark: findings, partitioning, the command."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from offloader.errors import AccessDeniedError, InvalidCallError, NotFoundError, OffloaderError, StoreUnavailableError
from offloader.inspect.verify import Damage, Finding, SegmentCheck
from offloader.read.ranges import grouped
from offloader.spark.jobs import verify
from offloader.spark.jobs.verify import FINDINGS_PER_SEGMENT_MAX, SegmentTask, bounded
from offloader.spark.options import SourceOptions
from offloader.spark.session import translated
from offloader.store.open import open_store
from tests.cli.reading_verbs import Offloader
from tests.support.streams import StreamWriter, batch_of, random_batch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STREAMS = ("t/a", "t/b", "other")


@pytest.fixture
def writers(tmp_path: Path) -> dict[str, StreamWriter]:
    """Three streams of four segments each."""
    store, chance = open_store(f"file://{tmp_path}/store"), random.Random(5)
    found = {name: StreamWriter(store, name) for name in STREAMS}
    for writer in found.values():
        for number in range(4):
            writer.add([random_batch(chance, number, 0, 60, 200)], closes=[number])
    return found


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def test_whole_streams_have_no_findings_and_every_entry_was_decoded(
    spark: SparkSession, writers: dict[str, StreamWriter]
) -> None:
    store = writers["other"].store
    scrub = verify(spark, ["t/*", "other"], {"store": store.url, "splitBytes": "10000"})
    assert [each.stream for each in scrub.streams] == ["t/a", "t/b", "other"]
    for each in scrub.streams:
        state = writers[each.stream].log.state
        summaries = [record.summary for record in state.offloaded()]
        assert each.manifest == state.record_id
        assert (each.totals.segments, each.totals.entries) == (4, 240)
        assert each.totals.data_bytes == sum(summary.data_bytes for summary in summaries if summary)
        assert (each.totals.damage, each.totals.notes) == (0, 0)
    assert not scrub.has_damage
    assert scrub.frame.collect() == []


def test_every_kind_of_damage_is_a_row_and_the_rest_is_checked(
    spark: SparkSession, writers: dict[str, StreamWriter], tmp_path: Path
) -> None:
    a, b = writers["t/a"], writers["t/b"]
    bucket = tmp_path / "store"
    data_a, data_b = a.keys(a.uuids[1])[0], b.keys(b.uuids[0])[0]
    index_b = b.keys(b.uuids[3])[1]
    flip(bucket / data_a, 900)  # only a deep look sees that
    (bucket / data_b).unlink()
    flip(bucket / index_b, 40)
    (bucket / "other" / "notes.txt").write_text("mine")
    scrub = verify(spark, STREAMS, {"store": a.store.url})
    found = {(row.stream, row.problem, row.damage, row.object) for row in scrub.frame.collect()}
    assert found == {
        ("t/a", "corrupt", True, data_a),
        ("t/b", "missing", True, data_b),
        ("t/b", "corrupt", True, index_b),
        ("other", "foreign", False, "other/notes.txt"),
    }
    assert scrub.has_damage
    totals = {each.stream: each.totals for each in scrub.streams}
    assert [(totals[name].damage, totals[name].notes) for name in STREAMS] == [(1, 0), (2, 0), (0, 1)]
    assert totals["other"].entries == 240
    assert totals["t/b"].entries == 120


def test_stream_matched_by_two_patterns_is_checked_once(spark: SparkSession, writers: dict[str, StreamWriter]) -> None:
    store = writers["other"].store
    StreamWriter(store, "empty")
    scrub = verify(spark, ["t/a", "t/*", "empty"], {"store": store.url})
    assert [(each.stream, each.totals.segments) for each in scrub.streams] == [("t/a", 4), ("t/b", 4), ("empty", 0)]


@pytest.mark.parametrize(
    ("streams", "options", "kind", "expected"),
    [
        ([], {}, InvalidCallError, "streams must be a list of names or patterns"),
        ("t/a", {}, InvalidCallError, "streams must be a list of names or patterns"),
        (["t/a"], {"start": "1:0"}, InvalidCallError, "verify doesn't accept option start"),
        (["t/a"], {"splitBytes": "much"}, InvalidCallError, "option splitBytes: 'much'"),
        (["nope"], {}, NotFoundError, "stream nope isn't in"),
        (["nope/*"], {}, NotFoundError, "no stream in"),
    ],
)
def test_invalid_verify_is_refused_before_anything_is_read(
    spark: SparkSession,
    writers: dict[str, StreamWriter],
    streams: list[str],
    options: dict[str, str],
    kind: type[OffloaderError],
    expected: str,
) -> None:
    with pytest.raises(kind, match=expected):
        verify(spark, streams, {"store": writers["other"].store.url, **options})


@pytest.mark.slow
def test_segments_are_packed_in_order_up_to_the_size(
    writers: dict[str, StreamWriter],
) -> None:
    writer = writers["other"]
    writer.add([batch_of(9, 0, 2000, size=100)], closes=[9])
    writer.add([batch_of(10, 0, 10)])
    options = SourceOptions.of({"store": writer.store.url, "stream": "other"})
    tasks = [SegmentTask("other", record, options) for record in writer.log.state.offloaded()]
    sizes = [task.record.summary.data_bytes for task in tasks if task.record.summary]
    packs = list(grouped(tasks, lambda task: task.record.content.data_bytes, sizes[0] + sizes[1]))
    assert [task for pack in packs for task in pack] == tasks
    for pack in packs:
        assert len(pack) == 1 or sum(t.record.summary.data_bytes for t in pack if t.record.summary) <= sum(sizes[:2])
    assert len(packs) < len(tasks)
    assert [tasks[4]] in packs
    assert list(grouped(tasks[:0], lambda _: 1, 100)) == []


@pytest.mark.parametrize("count", [0, 1, FINDINGS_PER_SEGMENT_MAX, FINDINGS_PER_SEGMENT_MAX + 1, 1000])
def test_findings_per_segment_are_bounded_and_the_rest_counted(count: int) -> None:
    findings = tuple(
        Finding(stream="s", problem=Damage.CORRUPT, key="k", message=f"block {number}") for number in range(count)
    )
    check = bounded("s", SegmentCheck(uuid=UUID(int=7), entries=3, findings=findings))
    assert check.entries == 3
    assert len(check.findings) == min(count, FINDINGS_PER_SEGMENT_MAX)
    if count > FINDINGS_PER_SEGMENT_MAX:
        assert check.findings[:-1] == findings[: FINDINGS_PER_SEGMENT_MAX - 1]
        assert f": {count - FINDINGS_PER_SEGMENT_MAX + 1} more findings" in check.findings[-1].message
        assert check.findings[-1].is_damage
    else:
        assert check.findings == findings


def fail_on_an_executor(spark: SparkSession, error: Exception) -> None:
    def fail(_: object) -> object:
        raise error

    with translated("Spark's work", hint="do this"):
        spark.sparkContext.parallelize([1], 1).map(fail).collect()


def test_worker_error_keeps_its_kind_and_line(spark: SparkSession) -> None:
    for kind in (StoreUnavailableError, AccessDeniedError):
        with pytest.raises(kind) as caught:
            fail_on_an_executor(spark, kind("s3://b: no answer", hint="wait"))
        assert caught.value.message == "Spark's work failed: s3://b: no answer (wait)"
        assert caught.value.hint == "do this"
    with pytest.raises(OffloaderError, match="Spark's work failed: KeyError: 'x'") as other:
        fail_on_an_executor(spark, KeyError("x"))
    assert type(other.value) is OffloaderError
    assert "\n" not in other.value.message


# The command


def test_the_command_prints_findings_and_sums_and_ends_with_6_on_damage(
    spark: SparkSession,
    writers: dict[str, StreamWriter],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writer = writers["t/a"]
    monkeypatch.setenv("OFFLOADER_STORE", writer.store.url)
    offloader = Offloader(capsys)
    whole = offloader("spark", "verify", "t/*")
    assert whole.code == 0
    assert [line.partition(":")[0] for line in whole.out.splitlines()] == ["t/a", "t/b"]
    assert all("240 entries" in line and "all match the manifest" in line for line in whole.out.splitlines())
    data = writer.keys(writer.uuids[2])[0]
    flip(tmp_path / "store" / data, 700)
    lines = offloader("spark", "verify", "t/a", "other").out.splitlines()
    assert lines[0].startswith(f"corrupt: stream t/a, object {data}")
    assert lines[1].endswith("1 finding of damage")
    damaged = offloader("spark", "verify", "t/a", "other", "--json")
    assert damaged.code == 6
    row, total, other = damaged.rows
    assert (row["stream"], row["problem"], row["object"], row["damage"]) == ("t/a", "corrupt", data, True)
    assert (total["stream"], total["damage"], total["ok"], total["deep"]) == ("t/a", 1, False, True)
    assert (other["stream"], other["entries"], other["ok"]) == ("other", 240, True)
    assert spark.range(3).count() == 3, "a session that was there before stays"


def test_the_command_and_verify_deep_agree(
    spark: SparkSession,
    writers: dict[str, StreamWriter],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writer = writers["t/b"]
    monkeypatch.setenv("OFFLOADER_STORE", writer.store.url)
    offloader = Offloader(capsys)
    for uuid, at in zip(writer.uuids, (300, 600, 900, 1200), strict=True):
        flip(tmp_path / "store" / writer.keys(uuid)[0], at)
    alone, spread = offloader("verify", "--deep", "--json", "t/b"), offloader("spark", "verify", "--json", "t/b")
    assert alone.code == spread.code == 6
    assert alone.rows == spread.rows
    assert len(alone.rows) > 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["verify", "t/a", "--dest", "x"], "no such option: --dest"),
        (["verify", "t/a", "--option", "splitBytes"], "--option 'splitBytes' isn't NAME=VALUE"),
        (["verify", "t/a", "--option", "secretKey=x"], "--option secretKey: other users of this machine can see it"),
        (["export", "t/a"], "missing option '--dest'"),
    ],
)
def test_command_refuses_invalid_calls_without_starting_spark(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: list[str], expected: str
) -> None:
    monkeypatch.setenv("OFFLOADER_STORE", "file:///nowhere")
    code, line, _ = Offloader(capsys).refuses("spark", *arguments)
    assert code == 2
    assert expected in line
    monkeypatch.delenv("OFFLOADER_STORE")
    code, line, hint = Offloader(capsys).refuses("spark", "verify", "t/a")
    assert (code, line) == (2, "no store was given")
    assert "OFFLOADER_STORE" in hint


def test_findings_have_the_columns_of_anomalies(
    spark: SparkSession, writers: dict[str, StreamWriter], tmp_path: Path
) -> None:
    (tmp_path / "store" / "other" / "notes.txt").write_text("mine")
    scrub = verify(spark, ["other"], {"store": writers["other"].store.url})
    [row] = scrub.frame.collect()
    assert row.object == "other/notes.txt"
    source = spark.read.format("offloader").option("store", writers["other"].store.url).option("stream", "other")
    anomalies = source.option("content", "anomalies").load()
    assert anomalies.schema.simpleString() == scrub.frame.schema.simpleString()
    assert [tuple(each) for each in anomalies.collect()] == [tuple(each) for each in scrub.frame.collect()]
