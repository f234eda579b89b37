"""A store that isn't the one that the hot tier has committed to: another, an emptied, or an older one."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from formats.entries import Position
from formats.manifest import Pause
from offloader.cli.main import main
from offloader.errors import CorruptError, NotFoundError, StoreMismatchError
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
from offloader.managed_ledger import ManagedLedger, open_managed_ledger
from offloader.manifest.log import ManifestLog
from offloader.manifest.rebuild import rebuild_manifest
from offloader.read.partitions import open_reader
from offloader.retention.truncate import truncate_stream
from offloader.runtime.clock import SystemClock
from offloader.settings import Settings
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from offloader.write.hot_release import release_hot_ledgers
from offloader.write.ownership import open_owned

STREAM = "public/default/persistent/orders"
SETTINGS = Settings.of({"offload": {"block_size": 1024, "deletion_lag": "0m"}})


class Place:
    """A ledger database and a local store, which can be replaced by another one."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.root, self.database = folder, folder / "store", str(folder / "ledgers.db")

    @property
    def store(self) -> ObjectStore:
        return open_store(f"file://{self.root}")

    def open(self, *, new_source: bool = False) -> ManagedLedger:
        return open_managed_ledger(
            STREAM, ledgers=self.database, store=self.store, settings=SETTINGS, new_source=new_source
        )

    def offload(self, word: str, *, release: bool = True) -> None:
        with self.open() as topic:
            topic.append_batch([f"{word} {number}".encode() for number in range(10)])
            assert topic.offload() is not None
            if release:
                topic.close_ledger()
                assert topic.release_hot()

    def copy(self, name: str) -> None:
        shutil.copytree(self.root, self.folder / name)

    def swap(self, name: str) -> None:
        """Puts the store aside, and another one in its place; an unknown one is empty."""
        with suppress(FileNotFoundError):
            self.root.rename(self.folder / "aside")
        with suppress(FileNotFoundError):
            (self.folder / name).rename(self.root)
        self.root.mkdir(exist_ok=True)

    def swap_back(self) -> None:
        shutil.rmtree(self.root)
        (self.folder / "aside").rename(self.root)

    def files(self) -> dict[str, bytes]:
        found = (path for path in self.root.rglob("*") if path.is_file() and path.parent.name != ".offloader")
        return {str(path): path.read_bytes() for path in found}

    def read(self) -> list[str]:
        """What readers of both tiers get."""
        with closing(EmbeddedLedgers(self.database, create=False)) as ledgers:
            source = ledgers.view_stream(STREAM)
            with open_reader(self.store, STREAM, source=source) as reader:
                return [entry.decode() for batch in reader.scan() for entry in batch.payloads.to_pylist()]


def emptied(place: Place) -> None:
    place.offload("old")
    place.swap("nothing")


def mistyped(place: Place) -> None:
    """A store that another stream uses."""
    place.offload("old")
    other = open_store(f"file://{place.folder}/typo")
    ledgers = str(place.folder / "others.db")
    with open_managed_ledger("another", ledgers=ledgers, store=other, settings=SETTINGS) as topic:
        topic.append(b"x")
        topic.offload()
    place.swap("typo")


def older(place: Place) -> None:
    place.offload("old")
    place.copy("backup")
    place.offload("new")
    place.swap("backup")


def from_before_a_rebuild(place: Place) -> None:
    place.offload("old")
    place.copy("backup")
    remove_manifest_record(place)
    rebuild_manifest(place.store, STREAM, head=None, clock=SystemClock(), closed_ledgers={1: 9})
    place.offload("new")
    place.swap("backup")


def from_before_a_deletion(place: Place) -> None:
    place.offload("old")
    place.copy("backup")
    delete(place)
    with place.open(new_source=True) as topic:
        topic.append(b"new 0")
        topic.offload()
    place.swap("backup")


def remove_manifest_record(place: Place) -> None:
    newest = max(path for path in place.root.rglob("manifest/*/*.json") if "0000" in path.name)
    newest.unlink()


def delete(place: Place) -> None:
    """What a complete deletion leaves, its tombstone removed."""
    shutil.rmtree(place.root / STREAM)
    (place.root / "_catalog" / STREAM).unlink()


WAYS = [emptied, mistyped, older, from_before_a_rebuild, from_before_a_deletion]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture(params=WAYS, ids=lambda way: way.__name__)
def replaced(place: Place, request: pytest.FixtureRequest) -> Place:
    """A place whose store was replaced by another one."""
    way: Callable[[Place], None] = request.param
    way(place)
    return place


@pytest.mark.slow
def test_writer_is_refused_and_changes_nothing(replaced: Place) -> None:
    before = replaced.files()
    with pytest.raises(StoreMismatchError, match="isn't the store recorded by its hot tier"):
        replaced.open().close()
    assert replaced.files() == before


@pytest.mark.slow
def test_reader_of_both_tiers_is_refused(replaced: Place) -> None:
    with pytest.raises(StoreMismatchError, match="isn't the store recorded by its hot tier"):
        replaced.read()
    assert main(["read", STREAM, "--ledgers", replaced.database, "--store", replaced.store.url]) == 6
    assert main(["doctor", "--ledgers", replaced.database, "--store", replaced.store.url]) != 0


@pytest.mark.slow
def test_no_hot_copy_is_released(replaced: Place) -> None:
    clock = SystemClock()
    with closing(EmbeddedLedgers(replaced.database, create=False)) as ledgers:
        source = ledgers.view_stream(STREAM, may_delete=True)
        before = source.ledgers()
        with pytest.raises((StoreMismatchError, NotFoundError)):
            release_hot_ledgers(
                source, ManifestLog(replaced.store, STREAM, clock=clock), now_ms=clock.now_ms(), lag_ms=0
            )
        assert source.ledgers() == before


@pytest.mark.slow
@pytest.mark.parametrize("method", ["streaming", "none"])
def test_no_hot_copy_is_truncated(replaced: Place, method: str) -> None:
    before = replaced.files()
    with closing(EmbeddedLedgers(replaced.database)) as ledgers:
        stream = ledgers.open_stream(STREAM)
        stream.append([b"kept"] * 5)
        ledgers.open_stream(STREAM)  # closes the ledger
        source = ledgers.view_stream(STREAM, may_delete=True)
        found = source.ledgers()
        log = ManifestLog(replaced.store, STREAM, clock=SystemClock())
        with pytest.raises(StoreMismatchError):
            truncate_stream(
                log, Position(10**6, 0), clock=SystemClock(), source=source, force=True, take_over=True, method=method
            )
        assert source.ledgers() == found
    assert replaced.files() == before


@pytest.mark.slow
def test_stream_goes_on_when_its_store_is_back(replaced: Place) -> None:
    with suppress(StoreMismatchError):
        replaced.open().close()
    replaced.swap_back()
    replaced.offload("later")
    found = replaced.read()
    assert len(found) > 10
    assert found[-10:] == [f"later {number}" for number in range(10)]


@pytest.mark.slow
def test_other_store_can_be_accepted_after_a_dry_run(replaced: Place, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "stream",
        "set-source",
        STREAM,
        "--ledgers",
        replaced.database,
        "--store",
        replaced.store.url,
        "--json",
    ]
    before = replaced.files()

    def accept(*options: str) -> Any:
        capsys.readouterr()
        assert main([*arguments, *options]) == 0
        return json.loads(capsys.readouterr().out)

    planned = accept()
    assert planned["mismatch"]
    assert replaced.files() == before
    done = accept("--apply")
    assert done["record"]
    assert done["mismatch"] == planned["mismatch"]
    replaced.offload("accepted")
    assert replaced.read()[-10:] == [f"accepted {number}" for number in range(10)]


@pytest.mark.slow
def test_rebuilt_stream_goes_on_by_itself(place: Place) -> None:
    place.offload("old")
    remove_manifest_record(place)
    rebuild_manifest(place.store, STREAM, head=None, clock=SystemClock(), closed_ledgers={1: 9})
    place.offload("new")
    assert place.read() == [f"{word} {number}" for word in ("old", "new") for number in range(10)]


@pytest.mark.slow
def test_lost_catalogue_entry_is_named_to_readers_of_both_tiers(place: Place) -> None:
    place.offload("old")
    (place.root / "_catalog" / STREAM).unlink()
    with pytest.raises(CorruptError, match="no catalogue entry"):
        place.read()


@pytest.mark.slow
def test_start_whose_note_is_missing_is_recognised(place: Place) -> None:
    """The process ended after the record of an accepted store, and before the note of it."""
    emptied(place)
    with closing(EmbeddedLedgers(place.database, create=False)) as ledgers:
        noted = ledgers.view_stream(STREAM).noted_manifests()
    with place.open(new_source=True) as topic:
        topic.append(b"new")
    with closing(EmbeddedLedgers(place.database)) as ledgers:
        source = ledgers.view_stream(STREAM, may_delete=True)
        assert len(source.noted_manifests()) == 2
        forget_newest_note(place)
        assert source.noted_manifests() == noted
    place.open().close()


def forget_newest_note(place: Place) -> None:
    with closing(sqlite3.connect(place.database)) as connection, connection:
        connection.execute("DELETE FROM manifests WHERE note_id = (SELECT max(note_id) FROM manifests)")


@pytest.mark.slow
def test_store_with_all_recorded_commits_can_be_reopened_repeatedly(place: Place) -> None:
    for word in ("one", "two", "three"):
        place.offload(word)
    assert place.read() == [f"{word} {number}" for word in ("one", "two", "three") for number in range(10)]


def test_start_with_a_view_older_than_the_hot_tiers_note_reads_the_manifest_again(place: Place) -> None:
    """Another part of the process commits and notes a record after the start has read the manifest."""
    place.offload("old", release=False)
    store, ledgers = place.store, EmbeddedLedgers(place.database)
    with closing(ledgers):
        source = ledgers.open_stream(STREAM)
        clock = SystemClock()
        starting, other = (ManifestLog(store, STREAM, clock=clock) for _ in range(2))
        starting.load()
        other.load()
        newest = other.commit_as_maintainer([Pause("while another starts")])
        source.note_manifest(newest.incarnation, newest.record_id)
        open_owned(starting, source)
        assert starting.state.record_id == newest.record_id + 1
        source.note_manifest(newest.incarnation, newest.record_id + 7)
        with pytest.raises(StoreMismatchError, match="ends with record"):
            open_owned(ManifestLog(store, STREAM, clock=clock), source)
