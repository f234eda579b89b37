"""The file of acknowledged ends beside a ledger database, alone and together with it; accepting a loss."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from formats.entries import Position
from offloader.errors import ErrorKind, SourceMismatchError
from offloader.ledgers.base import LedgerInfo, LostRange
from offloader.ledgers.sqlite.database import SLOT_BYTES, AckedEnd, AckedFile, AckedSlot, Database, digest_of
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers, EmbeddedStream
from offloader.settings import LedgerSettings
from tests.ledgers.ledger_cases import payloads_of, read_all

SETTINGS = LedgerSettings(ledger_entries_max=10)


class Place:
    """A database whose states can be kept and put back."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = str(folder / "l.db")
        self._opened: EmbeddedLedgers | None = None

    def open(self) -> EmbeddedLedgers:
        self.close()
        self._opened = EmbeddedLedgers(self.path, settings=SETTINGS)
        return self._opened

    def stream(self, name: str = "s") -> EmbeddedStream:
        return self.open().open_stream(name)

    def append(self, count: int, name: str = "s") -> None:
        self.stream(name).append([b"%d" % number for number in range(count)])
        self.close()

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def keep(self, name: str) -> None:
        shutil.copytree(self.folder, self.folder.parent / name)

    def restore(self, name: str, *files: str) -> None:
        for file in files:
            shutil.copy(self.folder.parent / name / file, self.folder / file)

    def remove(self, *files: str) -> None:
        for file in files:
            (self.folder / file).unlink()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    (tmp_path / "live").mkdir()
    made = Place(tmp_path / "live")
    yield made
    made.close()


@pytest.fixture
def short(place: Place) -> Place:
    """Ledger 1 has entries 0..3; 4..7 of it were acknowledged after the copy that is here now."""
    stream = place.stream()
    stream.append([b"kept"] * 4)
    place.close()
    place.keep("older")
    _append_in_the_same_ledger(place)
    place.restore("older", "l.db")
    return place


def _append_in_the_same_ledger(place: Place) -> None:
    """As the process would have that was running when the copy was made: it opened nothing anew."""
    ledgers = place.open()
    stream = ledgers.open_stream("s")
    stream.append([b"gone"] * 4)
    place.close()


def listed(infos: list[LedgerInfo]) -> list[tuple[int, bool, int, tuple[tuple[int, int], ...]]]:
    return [(info.ledger_id, info.closed, info.entries, info.lost) for info in infos]


def test_database_older_than_its_acknowledged_ends_is_reported_and_readable(
    short: Place, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        ledgers = short.open()
    assert "entries up to 2:3 were acknowledged" in caplog.text
    with pytest.raises(
        SourceMismatchError, match=r"stream 's': entries up to 2:3 were acknowledged.*none from 1:4 on"
    ) as at:
        ledgers.open_stream("s")
    assert short.path in str(at.value)
    assert "accept-loss s" in at.value.hint
    assert (at.value.kind, at.value.retryable) == (ErrorKind.DATA_CORRUPTION, False)
    view = ledgers.view_stream("s", may_delete=True)
    assert payloads_of(view) == [b"kept"] * 4
    assert view.reached() == Position(1, 3)


def test_refused_stream_affects_no_other(short: Place) -> None:
    ledgers = short.open()
    with pytest.raises(SourceMismatchError):
        ledgers.open_stream("s")
    other = ledgers.open_stream("t")
    other.append([b"x"])
    assert there_ids(other) == [3]
    assert [lost.stream for lost in ledgers.losses()] == ["s"]


def there_ids(stream: EmbeddedStream) -> list[int]:
    return [info.ledger_id for info in stream.ledgers()]


def test_a_loss_is_shown_without_being_accepted(short: Place) -> None:
    ledgers = short.open()
    lost = ledgers.accept_loss("s", dry_run=True)
    source_id = ledgers.view_stream("s").source_id()
    assert lost == [LostRange(stream="s", first=Position(1, 4), last=Position(2, 3), source_id=source_id)]
    assert ledgers.losses() == lost
    with pytest.raises(SourceMismatchError):
        ledgers.open_stream("s")


def test_an_accepted_loss_keeps_its_positions_used(short: Place) -> None:
    ledgers = short.open()
    [lost] = ledgers.accept_loss("s")
    assert (lost.first, lost.last, lost.is_other) == (Position(1, 4), Position(2, 3), False)
    assert ledgers.accept_loss("s") == []
    assert ledgers.losses() == []
    stream = ledgers.open_stream("s")
    stream.append([b"new"])
    assert listed(stream.ledgers()) == [(1, True, 4, ()), (2, True, 4, ((0, 3),)), (3, False, 1, ())]
    assert [(position, payload) for position, payload, _ in read_all(stream)][3:] == [
        (Position(1, 3), b"kept"),
        (Position(3, 0), b"new"),
    ]
    assert stream.reached() == stream.last_position() == Position(3, 0)


def test_entries_lost_at_the_end_of_a_ledger_are_listed_as_lost_in_it(place: Place) -> None:
    ledgers = place.open()
    stream = ledgers.open_stream("s")
    stream.append([b"kept"] * 4)
    place.keep("killed")
    stream.append([b"gone"] * 3)
    place.keep("later")
    place.close()
    place.restore("killed", "l.db", "l.db-wal")
    place.restore("later", "l.db.acked")
    ledgers = place.open()
    [lost] = ledgers.accept_loss("s")
    assert (lost.first, lost.last) == (Position(1, 4), Position(1, 6))
    stream = ledgers.open_stream("s")
    assert listed(stream.ledgers()) == [(1, True, 7, ((4, 6),)), (2, False, 0, ())]
    assert (stream.last_position(), stream.reached()) == (Position(1, 3), Position(1, 6))
    assert stream.read(Position(1, 4), 100) is None
    stream.append([b"new"])
    assert payloads_of(stream) == [b"kept"] * 4 + [b"new"]
    stream.delete(1)
    place.append(1)
    assert place.open().losses() == []


def test_an_older_owner_appends_nothing_after_a_loss_was_accepted(short: Place) -> None:
    ledgers = short.open()
    ledgers.accept_loss("s")
    stream = ledgers.open_stream("s")
    assert stream.owner is not None
    assert stream.owner >= 3


def test_accepting_without_a_loss_changes_nothing(place: Place) -> None:
    place.append(3)
    ledgers = place.open()
    before = ledgers.view_stream("s").ledgers()
    assert (ledgers.accept_loss("s"), ledgers.accept_loss("never seen"), ledgers.losses()) == ([], [], [])
    assert ledgers.view_stream("s").ledgers() == before
    assert ledgers.streams() == ["s"]


def test_without_the_file_the_database_is_trusted_and_the_file_made_again(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.append(3)
    place.keep("older")
    place.remove("l.db.acked")
    with caplog.at_level(logging.WARNING):
        place.append(3)
    assert "l.db.acked is missing" in caplog.text
    place.restore("older", "l.db")
    with pytest.raises(SourceMismatchError, match="2:2 were acknowledged"):
        place.stream()


def test_missing_file_of_a_database_without_one_is_created_silently(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        place.append(3)
    assert caplog.text == ""
    assert (place.folder / "l.db.acked").stat().st_size == SLOT_BYTES


def test_an_older_file_is_too_low_and_refuses_nothing(place: Place) -> None:
    place.append(3)
    place.keep("older")
    place.append(3)
    place.restore("older", "l.db.acked")
    place.keep("newer database")
    place.append(3)
    place.restore("newer database", "l.db")
    with pytest.raises(SourceMismatchError, match="3:2 were acknowledged"):
        place.stream()


def test_older_copies_of_database_and_file_are_consistent(place: Place) -> None:
    """What was acknowledged since is the manifest's to know."""
    place.append(3)
    place.keep("older")
    place.append(3)
    place.restore("older", "l.db", "l.db.acked")
    place.append(1)


def test_a_new_database_beside_an_old_file_is_not_taken_for_the_old_one(place: Place) -> None:
    """Even where it has handed out the same positions, and more."""
    place.append(15)
    place.remove("l.db")
    ledgers = place.open()
    with pytest.raises(SourceMismatchError, match=r"2:4 were acknowledged by database.*is a different database"):
        ledgers.open_stream("s")
    ledgers.open_stream("not in the file").append([b"x"])
    [lost] = ledgers.accept_loss("s")
    assert (lost.last, lost.is_other) == (Position(2, 4), True)
    stream = ledgers.open_stream("s")
    stream.append([b"new"])
    assert stream.reached() is not None
    assert min(there_ids(stream)) > 2
    place.append(2)


def test_a_file_of_another_database_refuses_its_streams_only(place: Place, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = Place(tmp_path / "other")
    other.append(1, "s")
    other.append(1, "u")
    place.append(25, "s")
    place.append(25, "t")
    shutil.copy(f"{other.path}.acked", f"{place.path}.acked")
    ledgers = place.open()
    with pytest.raises(SourceMismatchError, match="is a different database"):
        ledgers.open_stream("s")
    ledgers.open_stream("t").append([b"x"])
    ledgers.accept_loss("s")
    ledgers.open_stream("s").append([b"x"])


def test_damaged_slot_is_skipped(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.append(3, "s")
    place.append(3, "t")
    file = Path(f"{place.path}.acked")
    data = bytearray(file.read_bytes())
    data[40] ^= 1
    file.write_bytes(data)
    with caplog.at_level(logging.WARNING):
        place.append(2, "s")
    assert "the slot at byte 0 is damaged" in caplog.text
    place.append(2, "t")
    assert len(AckedFile(file.name).of_stream("s")) == 0
    reader = AckedFile(str(file))
    reader.load()
    assert [each.end for each in reader.of_stream("s")] == [Position(3, 1)]
    assert [each.end for each in reader.of_stream("t")] == [Position(4, 1)]
    reader.close()


def test_all_new_slots_are_loaded_with_one_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "acked")
    file, reader = AckedFile(path), AckedFile(path)
    file.make()
    reads: list[int] = []
    pread = os.pread

    def counted(fd: int, length: int, offset: int) -> bytes:
        reads.append(offset)
        return pread(fd, length, offset)

    monkeypatch.setattr(os, "pread", counted)
    for known in (0, 50):
        for number in range(known, known + 50):
            file.replace(f"s{number}", UUID(int=1), Position(number, 0), 1)
        reads.clear()
        assert reader.load()
        assert len(reads) == 1
        assert reader.newest_ledger == known + 49
        assert [each.end for number in range(known + 50) for each in reader.of_stream(f"s{number}")] == [
            Position(number, 0) for number in range(known + 50)
        ]
    file.close()
    reader.close()


def test_replaced_owner_does_not_lower_the_end(tmp_path: Path) -> None:
    file = AckedFile(str(tmp_path / "acked"))
    file.make()
    old = file.replace("s", UUID(int=1), Position(1, 5), 1)
    new = file.replace("s", UUID(int=1), Position(1, 5), 2)
    new.write(Position(2, 7))
    old.write(Position(1, 6))
    assert [each.end for each in file.of_stream("s")] == [Position(2, 7)]
    file.close()
    new.write(Position(2, 8))  # nothing: its number may be another file's by now


def test_an_end_that_cant_be_noted_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """The entries are durable although the file can't be written. Every write to this device finds a full disk."""
    file = AckedFile("/dev/full")
    assert file.load()
    slot = AckedSlot(file, 0, AckedEnd(digest_of("s"), UUID(int=1), Position(1, 0), 1))
    slot.write(Position(1, 1))
    slot.write(Position(1, 2))
    file.close()
    assert [record.message.split(":")[0] for record in caplog.records] == ["/dev/full"]


_APPEND_FOR_EVER = """
import sys
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
stream = EmbeddedLedgers(sys.argv[1]).open_stream(sys.argv[2])
while True:
    [batch] = stream.append([b"x"] * 3)
    print(batch.last, flush=True)
"""


@pytest.mark.process
def test_processes_sharing_a_database_record_their_own_ends(place: Place) -> None:
    children = {
        name: subprocess.Popen([sys.executable, "-c", _APPEND_FOR_EVER, place.path, name], stdout=subprocess.PIPE)
        for name in ("one", "two", "three")
    }
    acknowledged = {}
    for name, child in children.items():
        assert child.stdout is not None
        for _ in range(20):
            acknowledged[name] = child.stdout.readline().decode().strip()
    for child in children.values():
        child.kill()
    for name, child in children.items():
        assert child.stdout is not None
        lines = child.stdout.read().decode().splitlines()
        acknowledged[name] = [acknowledged[name], *lines][-1]
        child.wait()
        child.stdout.close()
    file = AckedFile(f"{place.path}.acked")
    file.load()
    ends = {name: file.of_stream(name) for name in acknowledged}
    assert all(len(each) == 1 for each in ends.values())
    noted = {name: each[0].end for name, each in ends.items()}
    file.close()
    assert all(noted[name] >= position_of(acknowledged[name]) for name in noted)
    ledgers = place.open()
    assert ledgers.losses() == []
    for name in acknowledged:
        ledgers.open_stream(name)


def position_of(text: str) -> Position:
    ledger_id, entry_id = text.split(":")
    return Position(int(ledger_id), int(entry_id))


def test_a_database_in_memory_has_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ledgers = EmbeddedLedgers("sqlite://:memory:")
    ledgers.open_stream("s").append([b"x"])
    assert (ledgers.losses(), ledgers.accept_loss("s")) == ([], [])
    ledgers.close()
    assert list(tmp_path.iterdir()) == []


def test_what_a_writer_acknowledges_while_a_loss_is_accepted_is_not_forgotten(
    short: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A supervisor starts the writer again and again until the operator has accepted the loss."""
    ledgers, writing = short.open(), Database.writing
    closed: list[EmbeddedLedgers] = []

    def write_elsewhere() -> None:
        elsewhere = EmbeddedLedgers(short.path, settings=SETTINGS)
        closed.append(elsewhere)
        elsewhere.open_stream("s").append([b"later"] * 3)
        elsewhere.close()

    @contextlib.contextmanager
    def followed(database: Database) -> Iterator[sqlite3.Connection]:
        with writing(database) as connection:
            yield connection
        if not closed:
            write_elsewhere()

    monkeypatch.setattr(Database, "writing", followed)
    ledgers.accept_loss("s")
    acked = AckedFile(f"{short.path}.acked")
    acked.load()
    assert [each.end for each in acked.of_stream("s")] == [ledgers.view_stream("s").reached()]
    acked.close()
