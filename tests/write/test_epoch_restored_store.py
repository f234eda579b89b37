"""A store restored to an earlier state, beside a hot tier that has seen more of it."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import pytest

from formats.entries import Position
from formats.manifest import Pause
from offloader.errors import OffloaderError
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
from offloader.managed_ledger import ManagedLedger, open_managed_ledger
from offloader.manifest.boundary import LostRecords
from offloader.manifest.log import ManifestLog
from offloader.runtime.clock import SystemClock
from offloader.settings import Settings
from offloader.store.open import open_store

STREAM = "public/default/persistent/orders"


def opened(folder: Path) -> ManagedLedger:
    store = open_store(f"file://{folder}/store")
    settings = Settings.of({"offload": {"block_bytes": 1024, "deletion_lag_minutes": 0}})
    return open_managed_ledger(STREAM, ledgers=str(folder / "ledgers.db"), store=store, settings=settings)


def offload(topic: ManagedLedger, word: str) -> Position:
    topic.append_batch([f"{word} {number}".encode() for number in range(10)])
    end = topic.offload()
    assert end is not None
    return end


@pytest.mark.slow
def test_a_store_restored_from_a_backup_is_named_and_takes_no_entry(tmp_path: Path) -> None:
    with opened(tmp_path) as topic:
        offload(topic, "old")
    shutil.copytree(tmp_path / "store", tmp_path / "backup")
    with opened(tmp_path) as topic:
        offload(topic, "new")
        topic.close_ledger()
        topic.release_hot()
    shutil.rmtree(tmp_path / "store")
    (tmp_path / "backup").rename(tmp_path / "store")

    with pytest.raises(OffloaderError, match="it ends with record"):
        opened(tmp_path).close()


@pytest.mark.slow
def test_store_with_all_recorded_commits_can_be_reopened_repeatedly(tmp_path: Path) -> None:
    ends = []
    for word in ("one", "two", "three"):
        with opened(tmp_path) as topic:
            ends.append(offload(topic, word))
            topic.close_ledger()
            topic.release_hot()
    assert ends == sorted(ends)


def test_start_with_a_view_older_than_the_hot_tiers_note_reads_the_manifest_again(tmp_path: Path) -> None:
    """Another part of the process commits and notes a record after the start has read the manifest."""
    with opened(tmp_path) as topic:
        offload(topic, "old")
    store, ledgers = open_store(f"file://{tmp_path}/store"), EmbeddedLedgers(str(tmp_path / "ledgers.db"))
    with closing(ledgers):
        source = ledgers.open_stream(STREAM)
        clock = SystemClock()
        starting, other = (ManifestLog(store, STREAM, clock=clock) for _ in range(2))
        starting.load()
        other.load()
        newest = other.commit_as_maintainer([Pause("while another starts")])
        source.note_manifest(newest.incarnation, newest.record_id)
        starting.open_epoch(source)
        assert starting.state.record_id == newest.record_id + 1
        source.note_manifest(newest.incarnation, newest.record_id + 7)
        with pytest.raises(LostRecords, match="it ends with record"):
            ManifestLog(store, STREAM, clock=clock).open_epoch(source)
