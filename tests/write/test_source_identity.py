"""A ledger database that isn't the one the manifest knows: nothing of it is taken for what is offloaded already.

The rules are those of docs/MANIFEST.md, "Which hot tier". The tests go through the interfaces that applications use.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from formats.entries import Position
from offloader.clock import SystemClock
from offloader.errors import ErrorKind, OffloaderError
from offloader.managed_ledger import ManagedLedger, open_managed_ledger
from offloader.read.reader import open_reader
from offloader.settings import Settings
from offloader.store.memory import MemoryStore

STREAM = "public/default/persistent/orders"
_names = count()


class Place:
    """A store, and a folder with the ledger database of one stream."""

    def __init__(self, folder: Path) -> None:
        self.store = MemoryStore(f"identity-{next(_names)}", "", SystemClock())
        self.folder = folder
        self.opened: list[ManagedLedger] = []

    def open(self, name: str = "ledgers", *, method: str = "streaming", **options: object) -> ManagedLedger:
        """The stream over a database; hot copies may go as soon as they are offloaded, but only on request."""
        settings = Settings.of({"offload": {"method": method, "deletion_lag_minutes": 0, "block_bytes": 1024}})
        opened = open_managed_ledger(
            STREAM,
            ledgers=str(self.folder / name / "ledgers.db"),
            store=self.store,
            settings=settings,
            **options,  # type: ignore[arg-type]
        )
        self.opened.append(opened)
        return opened

    def lose(self, name: str = "ledgers") -> None:
        shutil.rmtree(self.folder / name)

    def copy(self, source: str, target: str) -> None:
        shutil.rmtree(self.folder / target, ignore_errors=True)
        shutil.copytree(self.folder / source, self.folder / target)

    def stored(self, first: Position, last: Position) -> list[bytes]:
        with open_reader(self.store, STREAM) as reader:
            return [entry.payload for entry in reader.read(first, last)]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    for each in made.opened:
        each.close(drain=False)


def append(stream: ManagedLedger, word: str, entries: int = 30) -> list[tuple[Position, bytes]]:
    """Entries that say which they are, and where they are now."""
    payloads = [f"{word} {number}".encode() for number in range(entries)]
    positions = [entry.position for batch in stream.append_batch(payloads) for entry in batch.entries()]
    return list(zip(positions, payloads, strict=True))


def offloaded(stream: ManagedLedger, word: str, entries: int = 30) -> list[tuple[Position, bytes]]:
    found = append(stream, word, entries)
    stream.offload()
    return found


def use(place: Place, name: str = "ledgers", **options: object) -> tuple[list[tuple[Position, bytes]], str]:
    """What a program does that knows nothing of a loss: opens, appends, offloads, lets hot copies go.

    Returns:
        What was acknowledged to it, and the name of the error that it met.
    """
    acknowledged: list[tuple[Position, bytes]] = []
    stream = None
    try:
        stream = place.open(name, **options)
        acknowledged = append(stream, "new")
        stream.close_ledger()
        stream.offload()
        stream.release_hot()
    except OffloaderError as error:
        return acknowledged, type(error).__name__
    finally:
        if stream is not None:
            stream.close(drain=False)
    return acknowledged, ""


def lost_entries(place: Place, acknowledged: list[tuple[Position, bytes]], name: str = "ledgers") -> list[bytes]:
    """Acknowledged entries that reading their positions, in either tier, doesn't give."""
    from offloader.ledgers.embedded import EmbeddedLedgers

    database = EmbeddedLedgers(str(place.folder / name / "ledgers.db"))
    try:
        hot = {}
        if STREAM in database.streams():
            view, at = database.view_stream(STREAM), Position(0, 0)
            while (batch := view.read(at, 1 << 20)) is not None:
                hot |= {entry.position: entry.payload for entry in batch.entries()}
                at = Position(batch.last.ledger_id, batch.last.entry_id + 1)
    finally:
        database.close()
    missing = []
    for position, payload in acknowledged:
        if hot.get(position) == payload:
            continue
        try:
            found = place.stored(position, position)
        except OffloaderError:
            found = []
        if found != [payload]:
            missing.append(payload)
    return missing


@pytest.mark.parametrize("method", ["streaming", "ledger"])
def test_a_lost_database_is_refused_by_name_and_no_entry_is_acknowledged(place: Place, method: str) -> None:
    with place.open(method=method) as stream:
        append(stream, "old")
        stream.close_ledger()
        stream.offload()
        stream.release_hot()
    place.lose()

    acknowledged, error = use(place, method=method)

    assert lost_entries(place, acknowledged) == []
    assert (error, acknowledged) == ("SourceMismatch", [])


@pytest.mark.parametrize("method", ["streaming", "ledger"])
def test_an_older_backup_is_refused_by_name_and_no_entry_is_acknowledged(place: Place, method: str) -> None:
    with place.open(method=method) as stream:
        append(stream, "early")
    place.copy("ledgers", "backup")
    with place.open(method=method) as stream:
        append(stream, "old")
        stream.close_ledger()
        stream.offload()
    place.copy("backup", "ledgers")

    acknowledged, error = use(place, method=method)

    assert lost_entries(place, acknowledged) == []
    assert (error, acknowledged) == ("SourceMismatch", [])


@pytest.mark.parametrize("method", ["streaming", "ledger"])
def test_a_second_database_for_the_same_stream_is_refused_by_name(place: Place, method: str) -> None:
    with place.open("one", method=method) as stream:
        append(stream, "old")
        stream.close_ledger()
        stream.offload()

    acknowledged, error = use(place, "two", method=method)

    assert lost_entries(place, acknowledged, "two") == []
    assert (error, acknowledged) == ("SourceMismatch", [])


def test_a_truncation_at_the_unchanged_head_deletes_no_ledger_of_another_database(place: Place) -> None:
    with place.open() as stream:
        old = offloaded(stream, "old")
        stream.close_ledger()
        later = offloaded(stream, "later")
        stream.truncate(later[0][0])
    place.lose()

    acknowledged: list[tuple[Position, bytes]] = []
    with suppress(OffloaderError):
        stream = place.open()
        acknowledged = append(stream, "new", len(old))
        stream.close_ledger()
        append(stream, "newer", 5)
        stream.truncate(later[0][0])

    assert lost_entries(place, acknowledged) == []


def test_the_refusal_names_what_the_manifest_has_what_the_source_is_and_the_ways_on(place: Place) -> None:
    with place.open() as stream:
        newest = offloaded(stream, "old")[-1][0]
    place.lose()

    with pytest.raises(OffloaderError) as caught:
        place.open()

    assert type(caught.value).__name__ == "SourceMismatch"
    assert not caught.value.retryable
    assert caught.value.kind is ErrorKind.REPAIR_DATA
    assert STREAM in str(caught.value)
    assert str(newest) in str(caught.value)
    for way in ("accept-source", "new_source", "another stream"):
        assert way in str(caught.value)


def command(*arguments: str) -> dict[str, object]:
    """What a command prints with ``--json``; it succeeds."""
    printed = StringIO()
    with redirect_stdout(printed):
        assert main([*arguments, "--json"]) == 0
    found: dict[str, object] = json.loads(printed.getvalue())
    return found


class StoredPlace(Place):
    """With a store that another process, as a command, sees too."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.url = f"file://{folder}/store"
        self.store = open_store(self.url, create=True, clock=SystemClock())

    def accept(self, *options: str, name: str = "ledgers") -> dict[str, object]:
        database = f"sqlite:///{self.folder}/{name}/ledgers.db"
        return command("accept-source", STREAM, "--store", self.url, "--ledgers", database, *options)


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[StoredPlace]:
    made = StoredPlace(tmp_path)
    yield made
    for each in made.opened:
        each.close(drain=False)


def contents(place: Place, name: str = "ledgers", last: Position = Position(2**40, 0)) -> list[bytes]:
    with closing(EmbeddedLedgers(str(place.folder / name / "ledgers.db"))) as database:
        view = database.view_stream(STREAM)
        with open_reader(place.store, STREAM, source=view) as reader:
            return [entry.payload for entry in reader.read_until_end()]
