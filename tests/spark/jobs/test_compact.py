"""The job ``compact`` with a real Spark: many streams, ranges of one stream, the command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from formats.entries import Position
from formats.keys import data_key
from formats.manifest import Hold
from offloader.errors import CorruptError, FencedError, InvalidCallError
from offloader.manifest.log import load_manifest
from offloader.manifest.state import EditRefusedError
from offloader.settings.layered import read_settings_file
from offloader.spark.jobs import compact
from offloader.store.open import open_store
from tests.cli.reading_verbs import Offloader
from tests.support.readback import stored_entries
from tests.support.streams import StreamWriter, batch_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STREAMS = ("t/a", "t/b", "other")


@pytest.fixture
def writers(tmp_path: Path) -> dict[str, StreamWriter]:
    """Three streams of eight small segments, two a ledger; the last ledger is open."""
    store = open_store(f"file://{tmp_path}/store")
    found = {name: StreamWriter(store, name) for name in STREAMS}
    for writer in found.values():
        for ledger in (1, 2, 3, 4):
            writer.add([batch_of(ledger, 0, 5, size=100)])
            writer.add([batch_of(ledger, 5, 5, size=100)], closes=[ledger] * (ledger < 4))
    return found


def require_whole(writers: dict[str, StreamWriter]) -> None:
    for name, writer in writers.items():
        assert stored_entries(writer.store, name) == [(each.position, each.payload) for each in writer.entries]


def segments_of(writer: StreamWriter) -> list[tuple[Position, Position]]:
    return [(each.begin, each.content.end) for each in load_manifest(writer.store, writer.stream).offloaded()]


WHOLE = [(Position(1, 0), Position(4, 9))]


def test_streams_are_compacted_beside_their_owners(spark: SparkSession, writers: dict[str, StreamWriter]) -> None:
    options = {"store": writers["other"].store.url}
    refused = compact(spark, ["t/*"], options)
    assert [type(each.error) for each in refused] == [FencedError, FencedError]
    done = compact(spark, ["t/*", "other"], options, beside_owner=True)
    assert [(each.stream, each.replaced, len(each.merged), each.error) for each in done] == [
        ("other", 8, 1, None),
        ("t/a", 8, 1, None),
        ("t/b", 8, 1, None),
    ]
    require_whole(writers)
    assert all(segments_of(writer) == WHOLE for writer in writers.values())
    for writer in writers.values():
        writer.add([batch_of(4, 10, 5)])
    require_whole(writers)


def test_ranges_of_one_stream_are_compacted_by_several_tasks(
    spark: SparkSession, writers: dict[str, StreamWriter], tmp_path: Path
) -> None:
    """A merged segment has ten entries; a task has about one."""
    (tmp_path / "small.toml").write_text("[offload]\nsegment_size_max = '1150B'\nblock_size = '512B'\n")
    config = read_settings_file(str(tmp_path / "small.toml"))
    options = {"store": writers["other"].store.url, "splitBytes": "3000"}
    [planned] = compact(spark, ["other"], options, config=config, dry_run=True)
    assert len(planned.planned) == 4
    assert len(segments_of(writers["other"])) == 8
    [done] = compact(spark, ["other"], options, config=config, beside_owner=True)
    assert (done.error, done.replaced, [summary.begin for _, summary in done.merged]) == (
        None,
        8,
        [Position(ledger, 0) for ledger in (1, 2, 3, 4)],
    )
    require_whole(writers)
    assert load_manifest(writers["other"].store, "other").rewrites == ()


def test_stream_that_fails_keeps_no_other_from_being_compacted(
    spark: SparkSession, writers: dict[str, StreamWriter], tmp_path: Path
) -> None:
    damaged, held = writers["t/a"], writers["t/b"]
    path = tmp_path / "store" / data_key("t/a", damaged.uuids[3])
    body = bytearray(path.read_bytes())
    body[300] ^= 1
    path.write_bytes(body)
    held.log.commit([Hold(True, "court")])
    done = compact(spark, ["*", "t/*"], {"store": held.store.url}, beside_owner=True)
    assert [(each.stream, type(each.error)) for each in done] == [
        ("other", type(None)),
        ("t/a", CorruptError),
        ("t/b", EditRefusedError),
    ]
    assert (len(segments_of(damaged)), len(segments_of(held))) == (8, 8)
    assert segments_of(writers["other"]) == WHOLE


def test_unknown_option_is_refused(spark: SparkSession, writers: dict[str, StreamWriter]) -> None:
    with pytest.raises(InvalidCallError, match="compact doesn't accept option start"):
        compact(spark, ["other"], {"store": writers["other"].store.url, "start": "1:0"})


def test_command_prints_a_line_for_each_stream(
    spark: SparkSession,
    writers: dict[str, StreamWriter],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OFFLOADER_STORE", writers["other"].store.url)
    offloader = Offloader(capsys)
    assert offloader("spark", "compact", "t/*", "--dry-run").out.splitlines() == [
        "t/a: 1 merge planned",
        "t/b: 1 merge planned",
    ]
    done = offloader("spark", "compact", "t/*", "--beside-owner", "--json")
    assert done.code == 0
    assert [(row["stream"], row["replaced"], row["segments"], row["error"]) for row in done.rows] == [
        ("t/a", 8, 1, None),
        ("t/b", 8, 1, None),
    ]
    assert offloader("spark", "compact", "t/a", "--beside-owner").out == "t/a: nothing to merge\n"
    refused = offloader("spark", "compact", "other")
    assert (refused.code, refused.out.startswith("other: not completely compacted: stream other is owned by")) == (
        5,
        True,
    )
