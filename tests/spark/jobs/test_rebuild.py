"""The job ``rebuild`` with a real Spark: new manifests of many streams from their objects."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from formats.entries import Position
from formats.keys import catalog_key, data_key, record_key
from offloader.errors import InvalidCallError, NotFoundError
from offloader.manifest.log import load_manifest
from offloader.spark.jobs import rebuild
from offloader.store.open import open_store
from tests.cli.reading_verbs import Offloader
from tests.spark.hot_tier import HotTier
from tests.support.readback import stored_entries
from tests.support.streams import StreamWriter, batch_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIRST: dict[str, Position | None] = {"*": None}


@pytest.fixture
def writers(tmp_path: Path) -> dict[str, StreamWriter]:
    """Streams of four segments: of ``t/a`` and ``t/b`` a record is damaged, ``t/c`` is whole."""
    store = open_store(f"file://{tmp_path}/store")
    found = {name: StreamWriter(store, name) for name in ("t/a", "t/b", "t/c")}
    for writer in found.values():
        for ledger in (1, 2, 3, 4):
            writer.add([batch_of(ledger, 0, 5)], closes=[ledger])
    for name in ("t/a", "t/b"):
        damage(found[name])
    return found


def damage(writer: StreamWriter) -> None:
    """Its second record can't be read."""
    incarnation = writer.log.state.incarnation
    writer.store.put(record_key(writer.stream, incarnation, 2), b"damaged")


def require_whole(writer: StreamWriter) -> None:
    entries = [(each.position, each.payload) for each in writer.entries]
    assert stored_entries(writer.store, writer.stream) == entries


def test_unreadable_manifests_are_made_anew_and_readable_ones_stay(
    spark: SparkSession, writers: dict[str, StreamWriter]
) -> None:
    store = writers["t/a"].store
    whole = load_manifest(store, "t/c")
    planned = rebuild(spark, ["t/*"], {"store": store.url}, heads=FIRST, dry_run=True)
    assert [(each.stream, each.segments, each.entries, each.missing) for each in planned[:2]] == [
        ("t/a", 4, 20, ()),
        ("t/b", 4, 20, ()),
    ]
    done = rebuild(spark, ["t/*"], {"store": store.url}, heads=FIRST)
    assert [(each.stream, each.entries, type(each.error)) for each in done] == [
        ("t/a", 20, type(None)),
        ("t/b", 20, type(None)),
        ("t/c", 0, InvalidCallError),
    ]
    assert "can be read: no rebuild is needed" in str(done[2].error)
    for writer in writers.values():
        require_whole(writer)
    assert load_manifest(store, "t/c") == whole


def test_lost_catalogue_entry_and_missing_segment_are_reported(
    spark: SparkSession, writers: dict[str, StreamWriter]
) -> None:
    store = writers["t/a"].store
    store.delete([data_key("t/a", writers["t/a"].uuids[1]), catalog_key("t/b")])
    done = rebuild(spark, ["t/a", "t/b"], {"store": store.url}, heads={"t/a": Position(1, 0), "*": None})
    assert done[0].missing == ((Position(2, 0), Position(2, 4)),)
    assert len(done[0].problems) == 1
    assert done[1].error is None
    require_whole(writers["t/b"])
    state = load_manifest(store, "t/a")
    assert [(gap.first, gap.last) for gap in state.gaps] == [(Position(2, 0), Position(2, 4))]


def test_entries_that_the_hot_tier_still_has_are_no_gap(spark: SparkSession, tmp_path: Path) -> None:
    """Else the stream would never offload them."""
    hot = HotTier(tmp_path)
    hot.append("t/a", 500)
    source = hot.database.view_stream("t/a")
    store = open_store(f"file://{tmp_path}/store")
    writer = StreamWriter(store, "t/a")
    for info in source.ledgers():
        batch = source.read(Position(info.ledger_id, 0), 10**9)
        assert batch is not None
        writer.add([batch], closes=[info.ledger_id] * info.closed)
    assert len(writer.uuids) > 2
    store.delete([data_key("t/a", writer.uuids[-1])])
    damage(writer)
    [planned] = rebuild(spark, ["t/a"], {"store": store.url}, heads=FIRST, dry_run=True)
    assert len(planned.missing) == 1
    [done] = rebuild(spark, ["t/a"], {"store": store.url}, heads=FIRST, ledgers=hot.url)
    assert (done.missing, done.error) == ((), None)


def test_stream_without_a_head_and_unknown_stream_are_refused(
    spark: SparkSession, writers: dict[str, StreamWriter]
) -> None:
    options = {"store": writers["t/a"].store.url}
    with pytest.raises(InvalidCallError, match="the start of stream t/b is unknown"):
        rebuild(spark, ["t/a", "t/b"], options, heads={"t/a": None})
    with pytest.raises(NotFoundError, match="no stream nope"):
        rebuild(spark, ["nope"], options, heads=FIRST)


def test_command_ends_with_the_first_error(
    spark: SparkSession,
    writers: dict[str, StreamWriter],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OFFLOADER_STORE", writers["t/a"].store.url)
    offloader = Offloader(capsys)
    refused = offloader("spark", "rebuild", "t/a")
    assert (refused.code, "the start of stream t/a is unknown" in refused.err) == (2, True)
    done = offloader("spark", "rebuild", "t/a", "t/b", "--head", "t/a=1:0", "--head", "first")
    assert (done.code, done.out.splitlines()) == (
        0,
        ["t/a: 4 segments, 20 entries", "t/b: 4 segments, 20 entries"],
    )
    again = offloader("spark", "rebuild", "t/a", "--head", "first")
    assert (again.code, again.out.startswith("t/a: not rebuilt: the manifest of stream t/a can be read")) == (2, True)
