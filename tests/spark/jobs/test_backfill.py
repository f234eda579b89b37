"""The job ``backfill`` with a real Spark: exactly once after any kill; the command."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from offloader.errors import (
    CorruptError,
    ErrorKind,
    InvalidCallError,
    NotFoundError,
    ObjectMissingError,
    OffloaderError,
)
from offloader.manifest.log import load_manifest
from offloader.settings.layered import SettingsFile
from offloader.spark.jobs import Backfilled, backfill
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from tests.cli.reading_verbs import Offloader
from tests.spark.hot_tier import HotTier, LosingLedgers, another_database, settings_of
from tests.support.presence import there
from tests.support.readback import stored_entries, unaccounted_keys

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.java

STREAMS = ("other", "t/a", "t/b")


@pytest.fixture
def hot(tmp_path: Path) -> HotTier:
    """Three streams of two to four ledgers."""
    made = HotTier(tmp_path)
    for stream, entries in zip(STREAMS, (60, 600, 400), strict=True):
        made.append(stream, entries)
    return made


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    (tmp_path / "store").mkdir()
    return open_store(f"file://{tmp_path}/store")


@pytest.fixture
def run(spark: SparkSession, hot: HotTier, store: ObjectStore) -> Any:
    """``run("t/*", take_over=True)``: the job, by streams' names."""

    def run(*streams: str, **more: Any) -> dict[str, Backfilled]:
        given = {"ledgers": hot.url, "config": settings_of(), **more}
        done = backfill(spark, streams or ["*"], {"store": store.url}, **given)
        return {each.stream: each for each in done}

    return run


def require_whole(store: ObjectStore, hot: HotTier, *streams: str) -> None:
    """Every entry of the hot tier exactly once, and no object that the manifest doesn't explain."""
    for stream in streams:
        assert stored_entries(store, stream) == hot.expected[stream]
    assert unaccounted_keys_of(store, streams) == set()


def unaccounted_keys_of(store: ObjectStore, streams: tuple[str, ...]) -> set[str]:
    return set.intersection(*(unaccounted_keys(store, stream) for stream in streams))


def test_dry_run_reports_planned_segments_and_writes_nothing(run: Any, hot: HotTier, store: ObjectStore) -> None:
    done = run("t/*", dry_run=True)
    assert tuple(done) == ("t/a", "t/b")
    for stream, each in done.items():
        first, last = hot.expected[stream][0][0], hot.expected[stream][-1][0]
        assert (each.planned[0].begin, each.planned[-1].end) == (first, last)
        assert (each.offloaded, each.committed, each.error) == ((), None, None)
    assert not store.list("").objects


def test_copies_of_long_tasks_are_refused(spark: SparkSession, run: Any, store: ObjectStore) -> None:
    conf = spark.sparkContext._conf
    given = {"spark.speculation": "true", "spark.speculation.task.duration.threshold": "1h"}
    try:
        conf.setAll(list(given.items()))
        with pytest.raises(InvalidCallError, match="copies of long tasks") as caught:
            run("t/a")
    finally:
        for name in given:
            there(conf._jconf).remove(name)
    assert caught.value.hint == "set --conf spark.speculation=false"
    assert not store.list("").objects


def test_executors_that_see_another_hot_tier_upload_nothing(
    run: Any, hot: HotTier, store: ObjectStore, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    elsewhere = HotTier(tmp_path / "elsewhere")
    with_one = run("other", open_hot=partial(another_database, folder=tmp_path / "nowhere"))["other"]
    assert isinstance(with_one.error, NotFoundError)
    assert "on executor" in with_one.error.message
    for stream in STREAMS:
        elsewhere.append(stream, 60)
    old_copy = run("other", take_over=True, open_hot=partial(another_database, folder=tmp_path / "elsewhere"))["other"]
    assert isinstance(old_copy.error, CorruptError)
    assert "on executor" in old_copy.error.message
    assert "stream other, ledger 1" in old_copy.error.message
    assert len(load_manifest(store, "other").offloaded()) == 0
    assert run("other", take_over=True)["other"].error is None
    require_whole(store, hot, "other")


def test_segments_missing_from_the_drivers_store_are_not_committed(
    run: Any, store: ObjectStore, hot: HotTier, tmp_path: Path
) -> None:
    """As where file:///folder is another disk on each machine."""
    moved = run("other", open_hot=partial(LosingLedgers, store=tmp_path / "store" / "other"))["other"]
    assert isinstance(moved.error, ObjectMissingError)
    assert "must see the same store" in moved.error.hint
    assert load_manifest(store, "other").committed_end() is None
    assert run("other", take_over=True)["other"].error is None
    require_whole(store, hot, "other")


def test_partition_that_is_named_by_its_topic_and_not_offloaded_is_an_error(
    spark: SparkSession, hot: HotTier, store: ObjectStore
) -> None:
    """Of a pattern such a stream is left out."""
    hot.database.open_stream("a/b/persistent/c-partition-0").append([b"x"], [1])
    file = SettingsFile("test", {"": {"offload.method": "none"}})
    for name, is_error in (("persistent://a/b/c", True), ("a/b/*", False)):
        [done] = backfill(spark, [name], {"store": store.url}, ledgers=hot.url, config=file)
        assert (done.stream, done.error is not None) == ("a/b/persistent/c-partition-0", is_error)


@pytest.mark.parametrize(
    ("streams", "more", "kind", "expected"),
    [
        ([], {}, InvalidCallError, "streams must be a list of names or patterns"),
        (["nope"], {}, NotFoundError, "no stream nope in sqlite:///"),
        (["t/a", "nope*"], {}, NotFoundError, "no stream nope"),
        (["t/a"], {"ledgers": "sqlite://:memory:"}, InvalidCallError, "executors can't read a database in memory"),
        (["t/a"], {"ledgers": "sqlite:///nowhere/at.db"}, NotFoundError, "nowhere/at.db"),
        (["t/a"], {"options": {"splitBytes": "1"}}, InvalidCallError, "backfill doesn't accept option splitBytes"),
        (["t/a"], {"segments_at_once": 0}, InvalidCallError, "segments_at_once is 0"),
    ],
)
def test_invalid_backfill_is_refused_before_anything_is_done(
    spark: SparkSession,
    hot: HotTier,
    store: ObjectStore,
    streams: list[str],
    more: dict[str, Any],
    kind: type[OffloaderError],
    expected: str,
) -> None:
    options = {"store": store.url, **more.pop("options", {})}
    with pytest.raises(kind, match=expected):
        backfill(spark, streams, options, **{"ledgers": hot.url, **more})
    assert not store.list("").objects


# The command


@pytest.fixture
def command(
    spark: SparkSession,
    hot: HotTier,
    store: ObjectStore,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Offloader:
    monkeypatch.setenv("OFFLOADER_STORE", store.url)
    monkeypatch.setenv("OFFLOADER_LEDGERS", hot.url)
    return Offloader(capsys)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["backfill", "t/a", "--dest", "x"], "no such option: --dest"),
        (["verify", "t/a", "--dry-run"], "no such option: --dry-run"),
        (["export", "t/a", "--dest", "x", "--take-over"], "no such option: --take-over"),
    ],
)
def test_options_of_other_jobs_are_refused(command: Offloader, arguments: list[str], expected: str) -> None:
    code, line, _ = command.refuses("spark", *arguments)
    assert code == ErrorKind.INVALID_REQUEST.value
    assert expected in line


def test_command_without_ledgers_names_the_option(command: Offloader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OFFLOADER_LEDGERS")
    assert command.refuses("spark", "backfill", "t/a")[1] == "no ledger database was given"
