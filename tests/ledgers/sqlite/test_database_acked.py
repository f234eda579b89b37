"""Acknowledged entries lost by a database are reported before anything is added, above all after damage to its log."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from uuid import UUID

import pytest

from formats.entries import Position
from offloader.errors import ClosedError, CorruptError, OffloaderError, StoreUnavailableError
from offloader.ledgers.sqlite import database
from offloader.ledgers.sqlite.database import AckedEnd, AckedFile, Database, decode_slot
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
from offloader.settings import LedgerSettings
from tests.ledgers.ledger_cases import read_all

FLIPS = 120
Found = list[tuple[Position, bytes, int]]


class Killed:
    """What a process that was killed left of a database with one or more streams."""

    def __init__(self, folder: Path, streams: tuple[str, ...] = ("s",), *, folded: bool = True) -> None:
        self.folder = folder / "killed"
        self.acknowledged: dict[str, Found] = {}
        live = folder / "live"
        live.mkdir(parents=True)
        ledgers = EmbeddedLedgers(str(live / "l.db"), settings=LedgerSettings(ledger_entries_max=40))
        opened = {name: ledgers.open_stream(name) for name in streams}
        for number in range(24):
            if number == 12 and folded:
                connection = sqlite3.connect(live / "l.db")
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                connection.close()
            for name, stream in opened.items():
                stream.append([f"{name} {number}.{each}".encode() * (1 + 40 * each) for each in range(5)], number)
        for name, stream in opened.items():
            self.acknowledged[name] = read_all(stream)
        shutil.copytree(live, self.folder)
        ledgers.close()

    @property
    def log_bytes(self) -> int:
        return (self.folder / "l.db-wal").stat().st_size

    def copy(self, folder: Path) -> str:
        shutil.copytree(self.folder, folder)
        return str(folder / "l.db")

    def flipped(self, folder: Path, at: int) -> str:
        """A copy with one bit of the log flipped."""
        path = self.copy(folder)
        log = Path(f"{path}-wal")
        data = bytearray(log.read_bytes())
        data[at] ^= 1 << at % 8
        log.write_bytes(data)
        return path


def shorter(path: str) -> None:
    """The database without what is in its log."""
    Path(f"{path}-wal").unlink()


@pytest.fixture
def killed(tmp_path: Path) -> Killed:
    return Killed(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("folded", [True, False])
def test_flipped_bit_in_the_log_loses_nothing_silently(tmp_path: Path, folded: bool) -> None:
    """Either everything acknowledged is there, or the stream is refused by name."""
    killed = Killed(tmp_path, folded=folded)
    silent, refused = [], list[str]()
    for number in range(FLIPS):
        at = number * killed.log_bytes // FLIPS
        path = killed.flipped(tmp_path / f"flip-{folded}-{number}", at)
        try:
            ledgers = EmbeddedLedgers(path)
            stream = ledgers.open_stream("s")
        except OffloaderError as error:
            refused.append(str(error))
            continue
        if read_all(stream) != killed.acknowledged["s"]:
            silent.append(at)
        ledgers.close()
        shutil.rmtree(Path(path).parent)
    assert silent == []
    assert len(refused) > FLIPS // 4, "otherwise the flips hit nothing"
    assert all("l.db" in error for error in refused)


def test_a_position_is_not_used_again_after_the_log_was_cut(killed: Killed, tmp_path: Path) -> None:
    path = killed.copy(tmp_path / "cut")
    shorter(path)
    ledgers = EmbeddedLedgers(path)
    try:
        stream = ledgers.open_stream("s")
    except OffloaderError:
        ledgers.close()
        return
    written = [entry.position for batch in stream.append([b"new"] * 100) for entry in batch.entries()]
    ledgers.close()
    assert not set(written) & {position for position, _, _ in killed.acknowledged["s"]}


@pytest.mark.slow
@pytest.mark.parametrize("change", ["stream_id = 99", "stream_id = (SELECT stream_id FROM streams WHERE stream = 't')"])
def test_ledger_moved_to_another_stream_is_missed_at_open(tmp_path: Path, change: str) -> None:
    for number in range(3):
        path = Killed(tmp_path / f"{number}", ("s", "t")).copy(tmp_path / f"changed {number}")
        connection = sqlite3.connect(path)
        [*ledger_ids] = connection.execute("SELECT ledger_id FROM ledgers WHERE stream_id = 1 AND entries > 0")
        with connection:
            connection.execute(f"UPDATE ledgers SET {change} WHERE ledger_id = ?", ledger_ids[number])
        connection.close()
        with pytest.raises(CorruptError, match="ledger"):
            EmbeddedLedgers(path).view_stream("s")


@pytest.mark.parametrize("change", ["entries = entries - 1", "entries = 0", "entries = entries + 3"])
def test_a_ledger_of_another_length_than_its_entries_is_named_at_open(killed: Killed, change: str) -> None:
    path = str(killed.folder / "l.db")
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(f"UPDATE ledgers SET {change} WHERE entries = 40")
    connection.close()
    ledgers = EmbeddedLedgers(path)
    with pytest.raises(CorruptError, match=r"ledger 1 has .* entries, but 40 are stored"):
        ledgers.open_stream("s")
    with pytest.raises(CorruptError, match=r"ledger 1 has .* entries, but 40 are stored"):
        ledgers.view_stream("s")
    ledgers.close()


def test_entries_without_a_ledger_are_reported_at_open(killed: Killed) -> None:
    path = str(killed.folder / "l.db")
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("UPDATE chunks SET ledger_id = 77 WHERE ledger_id = 2")
    connection.close()
    with pytest.raises(CorruptError, match="there are entries of ledger 77"):
        EmbeddedLedgers(path)


def test_acknowledged_ends_are_noted_after_another_opening_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "ledgers.db")
    with closing(EmbeddedLedgers(path)) as first, closing(EmbeddedLedgers(path)) as second:
        stream = first.open_stream("orders")
        stream.append([b"a"])

        def full(*_: object) -> None:
            raise StoreUnavailableError("the disk is full")

        with monkeypatch.context() as failing:
            failing.setattr(Database, "_commit", full)
            with pytest.raises(StoreUnavailableError):
                second.open_stream("orders")
        last = stream.append([b"b", b"c"])[0].last
        acked = AckedFile(f"{path}.acked")
        acked.load()
        assert [each.end for each in acked.of_stream("orders")] == [last]
        acked.close()


@pytest.mark.slow
def test_threads_that_read_the_file_at_once_agree_on_where_each_stream_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a stream's end is written over another's, whose loss then goes unnoticed."""
    path, source_id = str(tmp_path / "l.db.acked"), UUID(int=1)
    first = AckedFile(path)
    first.make()
    first.replace("one", source_id, Position(1, 1), 1)
    first.replace("two", source_id, Position(2, 2), 1)
    ours, others = AckedFile(path), AckedFile(path)
    meanwhile = [threading.Thread(target=ours.load)]

    def interrupted(data: bytes) -> AckedEnd | None:
        if meanwhile:
            thread = meanwhile.pop()
            thread.start()
            thread.join(0.2)  # it may have to wait
        return decode_slot(data)

    monkeypatch.setattr(database, "decode_slot", interrupted)
    ours.load()
    others.load()
    others.replace("three", source_id, Position(3, 3), 1)
    ours.load()
    ours.replace("one", source_id, Position(1, 4), 2)
    found = AckedFile(path)
    found.load()
    ends = [[each.end for each in found.of_stream(name)] for name in ("one", "two", "three")]
    assert ends == [[Position(1, 4)], [Position(2, 2)], [Position(3, 3)]]
    for each in (first, ours, others, found):
        each.close()


def test_slot_that_a_full_disk_refused_may_be_another_stream_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, source_id, write = str(tmp_path / "l.db.acked"), UUID(int=1), os.pwrite
    ours, others = AckedFile(path), AckedFile(path)
    ours.make()
    full = [OSError(errno.ENOSPC, "No space left on device")]

    def on_a_full_disk(fd: int, data: bytes, at: int) -> int:
        if full:
            raise full.pop()
        return write(fd, data, at)

    monkeypatch.setattr(os, "pwrite", on_a_full_disk)
    with pytest.raises(OSError, match="No space"):
        ours.replace("one", source_id, Position(1, 1), 1)
    others.load()
    others.replace("two", source_id, Position(2, 2), 1)
    ours.load()
    ours.replace("one", source_id, Position(1, 1), 1)
    found = AckedFile(path)
    found.load()
    ends = [[each.end for each in found.of_stream(name)] for name in ("one", "two")]
    assert ends == [[Position(1, 1)], [Position(2, 2)]]
    for each in (ours, others, found):
        each.close()


def test_asking_a_closed_database_for_losses_opens_no_file_again(tmp_path: Path) -> None:
    ledgers = EmbeddedLedgers(str(tmp_path / "l.db"))
    ledgers.open_stream("s").append([b"entry"])
    ledgers.close()
    with pytest.raises(ClosedError):
        ledgers.losses()
    opened = [str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
    assert [path for path in opened if path.startswith(str(tmp_path))] == []
