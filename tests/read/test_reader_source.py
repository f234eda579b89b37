"""A hot tier that isn't the one of the manifest is refused by every read, and never read as the stream's."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from threading import Event

import pytest

from formats.entries import Position
from offloader.errors import SourceMismatchError
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
from offloader.managed_ledger import open_managed_ledger
from offloader.read.partitions import follow_all, open_reader
from offloader.read.reader import Reader
from offloader.runtime.clock import SystemClock
from offloader.settings import ReadSettings, Settings
from offloader.store.base import ObjectStore
from offloader.store.open import open_store

STREAM = "orders"
names = itertools.count()
#: A time after all entries, ms since 1970 UTC.
END_MS = 9_999_999_999_999
READS: dict[str, Callable[[Reader], object]] = {
    "last_position": lambda reader: reader.last_position,
    "read": lambda reader: reader.read(Position(1, 0), Position(1, 0)),
    "scan": lambda reader: list(reader.scan()),
    "count": lambda reader: reader.count(),
    "scan_published": lambda reader: list(reader.scan_published(0)),
    "position_at": lambda reader: reader.position_at(END_MS),
    "refreshed": lambda reader: list(reader.refresh().scan()),
    "follow": lambda reader: next(follow_all([reader], [None], clock=SystemClock(), stop=Event())),
}


def write(folder: Path, store: ObjectStore, database: str, *texts: bytes, hot: bytes = b"") -> None:
    """Offloads ``texts``; ``hot`` stays in the database only."""
    settings = Settings.of({"offload": {"method": "streaming"}})
    topic = open_managed_ledger(STREAM, ledgers=str(folder / f"{database}.db"), store=store, settings=settings)
    topic.append_batch(list(texts))
    topic.offload()
    if hot:
        topic.append(hot)
    topic.close(drain=False)


@pytest.fixture
def store() -> ObjectStore:
    return open_store(f"memory://source-{next(names)}")


@pytest.fixture
def databases(tmp_path: Path, store: ObjectStore) -> Iterator[Callable[[str], EmbeddedLedgers]]:
    """Opens ``own``, the database of the manifest, or ``other``, that of a stream of this name in another store."""
    write(tmp_path, store, "own", b"0 of own", b"1 of own", hot=b"2 of own")
    write(tmp_path, open_store(f"memory://source-{next(names)}"), "other", *[b"%d of other" % n for n in range(5)])
    opened: list[EmbeddedLedgers] = []

    def database(name: str) -> EmbeddedLedgers:
        opened.append(EmbeddedLedgers(str(tmp_path / f"{name}.db")))
        return opened[-1]

    yield database
    for each in opened:
        each.close()


@pytest.mark.slow
@pytest.mark.parametrize("priority", ["tiered-storage-first", "bookkeeper-first"])
@pytest.mark.parametrize("read", READS)
def test_another_database_is_refused_by_every_read(
    store: ObjectStore, databases: Callable[[str], EmbeddedLedgers], read: str, priority: str
) -> None:
    source, settings = databases("other").view_stream(STREAM), ReadSettings(read_priority=priority)
    with (
        open_reader(store, STREAM, source=source, settings=settings) as reader,
        pytest.raises(
            SourceMismatchError, match="isn't the one recorded in its manifest: it is another database"
        ) as caught,
    ):
        READS[read](reader)
    assert caught.value.exit_code == 6


def test_own_database_is_read_after_the_offloaded_entries(
    store: ObjectStore, databases: Callable[[str], EmbeddedLedgers]
) -> None:
    with open_reader(store, STREAM, source=databases("own").view_stream(STREAM)) as reader:
        found = [entry.payload for batch in reader.scan() for entry in batch.entries()]
    assert found == [b"0 of own", b"1 of own", b"2 of own"]


@pytest.mark.usefixtures("databases")
def test_older_copy_of_the_database_is_refused(store: ObjectStore, tmp_path: Path) -> None:
    shutil.copy(tmp_path / "own.db", tmp_path / "copy.db")
    write(tmp_path, store, "own", b"3 of own")
    with (
        closing(EmbeddedLedgers(str(tmp_path / "copy.db"))) as copy,
        open_reader(store, STREAM, source=copy.view_stream(STREAM)) as reader,
        pytest.raises(SourceMismatchError, match="it is an older copy"),
    ):
        list(reader.scan())
