"""Errors of the ledger database: full disks, locks, foreign and damaged files."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from offloader.errors import (
    AccessDeniedError,
    CorruptError,
    ErrorKind,
    InvalidCallError,
    LimitReachedError,
    NotFoundError,
    OffloaderError,
    StoreUnavailableError,
    UnsupportedError,
)
from offloader.ledgers.sqlite.database import PAGE_BYTES, RESERVE_BYTES, database_path
from offloader.ledgers.sqlite.embedded import ENTRY_BYTES_MAX, EmbeddedLedgers
from tests.ledgers.ledger_cases import payloads_of, read_all


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "l.db")


@pytest.fixture
def ledgers(path: str) -> Iterator[EmbeddedLedgers]:
    opened = EmbeddedLedgers(path, busy_timeout_s=0.1)
    yield opened
    opened.close()


def one_line(error: OffloaderError, path: str) -> None:
    assert "\n" not in str(error)
    assert path in str(error)
    assert error.hint


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///relative.db", "relative.db"),
        ("sqlite:///dir/relative.db", "dir/relative.db"),
        ("sqlite:////absolute.db", "/absolute.db"),
        ("sqlite://:memory:", ":memory:"),
        ("plain.db", "plain.db"),
        ("/abs/plain.db", "/abs/plain.db"),
    ],
)
def test_urls_and_paths_name_the_file(url: str, path: str) -> None:
    assert database_path(url) == path


@pytest.mark.parametrize("url", ["", "postgres://x/y", "sqlite://host/x.db", "sqlite:///", "sqlite://", "a\0b"])
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(InvalidCallError, match="ledgers ") as caught:
        EmbeddedLedgers(url)
    assert "sqlite:///relative.db" in caught.value.hint


def test_a_directory_that_cant_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    path = str(tmp_path / "file" / "l.db")
    with pytest.raises(AccessDeniedError) as caught:
        EmbeddedLedgers(path)
    one_line(caught.value, path)


def test_unwritable_path_is_denied_by_name() -> None:
    with pytest.raises(AccessDeniedError) as caught:
        EmbeddedLedgers("/proc/offloader-test.db")
    one_line(caught.value, "/proc/offloader-test.db")


def test_a_directory_in_the_files_place_is_named(tmp_path: Path) -> None:
    with pytest.raises(AccessDeniedError) as caught:
        EmbeddedLedgers(str(tmp_path))
    one_line(caught.value, str(tmp_path))


def test_a_missing_database_is_created_only_when_asked(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "l.db"
    with pytest.raises(NotFoundError) as caught:
        EmbeddedLedgers(str(path), create=False)
    one_line(caught.value, str(path))
    assert not path.parent.exists()


def test_file_other_than_a_database_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    path.write_bytes(b"this is a letter, not a database, and it is longer than a header\n" * 20)
    before = path.read_bytes()
    with pytest.raises(CorruptError) as caught:
        EmbeddedLedgers(str(path))
    one_line(caught.value, str(path))
    assert path.read_bytes() == before


def test_another_programs_database_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(InvalidCallError, match="another program's") as caught:
        EmbeddedLedgers(str(path))
    one_line(caught.value, str(path))
    assert path.read_bytes() == before


def test_a_newer_layout_is_refused(ledgers: EmbeddedLedgers, path: str) -> None:
    ledgers.close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(UnsupportedError, match="schema version 99"):
        EmbeddedLedgers(path)


def test_denied_access_inside_of_a_transaction_has_its_own_words(ledgers: EmbeddedLedgers) -> None:
    with pytest.raises(AccessDeniedError) as caught, ledgers._database.writing():
        raise AccessDeniedError("the store denied it")
    assert str(caught.value) == "the store denied it"


def test_a_full_disk_changes_nothing_and_can_be_retried(ledgers: EmbeddedLedgers, path: str) -> None:
    stream = ledgers.open_stream("s")
    stream.append([b"kept"], notes={"k": b"1"})
    pages = ledgers._database._writer.execute("PRAGMA page_count").fetchone()[0]
    ledgers._database._writer.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreUnavailableError, match="disk is full") as caught:
        stream.append([bytes(100_000)] * 10, notes={"k": b"2"})
    one_line(caught.value, path)
    assert caught.value.retryable
    assert isinstance(caught.value.__cause__, sqlite3.Error)
    assert (payloads_of(stream), stream.get_note("k")) == ([b"kept"], b"1")
    ledgers._database._writer.execute("PRAGMA max_page_count = 1000000")
    stream.append([b"again"])
    assert payloads_of(stream) == [b"kept", b"again"]


def leave_bytes(monkeypatch: pytest.MonkeyPatch, free: Callable[[str], int]) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=free(folder)))


def test_an_append_leaves_the_room_that_deleting_needs(
    ledgers: EmbeddedLedgers, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = ledgers.open_stream("s")
    stream.append([b"old"])
    stream.close_ledger()
    # Nothing was folded yet: the file has to grow by all its pages, and the log by what is appended.
    pages = ledgers._database._writer.execute("PRAGMA page_count").fetchone()[0]
    left = (pages * PAGE_BYTES - Path(path).stat().st_size) + RESERVE_BYTES + 2 * 100 - 1
    leave_bytes(monkeypatch, lambda folder: left if folder == str(Path(path).parent) else 0)
    with pytest.raises(StoreUnavailableError, match="the disk is nearly full") as caught:
        stream.append([bytes(40), bytes(60)], notes={"k": b"1"})
    one_line(caught.value, path)
    assert caught.value.retryable
    assert (payloads_of(stream), stream.get_note("k")) == ([b"old"], None)
    stream.append([bytes(40), bytes(59)])
    leave_bytes(monkeypatch, lambda folder: 0)
    stream.put_note("k", b"2")
    stream.delete(1)
    assert payloads_of(stream) == [bytes(40), bytes(59)]


def test_an_append_may_take_the_room_of_what_was_deleted(
    ledgers: EmbeddedLedgers, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = ledgers.open_stream("s")
    stream.append([bytes(1_000_000)] * 4)
    stream.close_ledger()
    ledgers._database._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    leave_bytes(monkeypatch, lambda folder: 3_000_000 + RESERVE_BYTES)
    with pytest.raises(StoreUnavailableError, match="the disk is nearly full"):
        stream.append([bytes(1_000_000)] * 2)
    stream.delete(1)
    stream.append([bytes(1_000_000)] * 2)
    assert payloads_of(stream) == [bytes(1_000_000)] * 2


@pytest.mark.process
def test_full_disk_while_opening_is_reported_as_full(ledgers: EmbeddedLedgers, path: str) -> None:
    """A process that may not make a file of more than 16 KiB sees what one on a full disk sees."""
    ledgers.open_stream("s").append([b"kept"])
    ledgers.close()
    code = (
        "import resource, sys\n"
        "from offloader.ledgers.sqlite.embedded import EmbeddedLedgers\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (16384, 16384))\n"
        "try: EmbeddedLedgers(sys.argv[1])\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.startswith(f"StoreUnavailableError ledger database {path}: ")
    assert "the disk is full; nothing was written (free some space" in done.stdout
    again = EmbeddedLedgers(path)
    assert payloads_of(again.open_stream("s")) == [b"kept"]
    again.close()


@pytest.mark.slow
def test_append_blocked_by_a_lock_changes_nothing_and_can_be_retried(ledgers: EmbeddedLedgers, path: str) -> None:
    stream = ledgers.open_stream("s")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailableError, match="another process holds the lock") as caught:
        stream.append([b"x"])
    one_line(caught.value, path)
    assert stream.last_position() is None
    other.execute("ROLLBACK")
    other.close()
    stream.append([b"x"])
    assert payloads_of(stream) == [b"x"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE chunks SET payload = X'78' || substr(payload, 2)",
        "UPDATE chunks SET crc = crc + 1",
        "UPDATE chunks SET first_time_ms = first_time_ms + 1",
        "UPDATE chunks SET entries = entries + 1",
        "UPDATE chunks SET lengths = NULL",
        "UPDATE chunks SET times = NULL",
        "UPDATE chunks SET lengths = substr(lengths, 1, 7)",
        "DELETE FROM chunks",
        "DELETE FROM chunks WHERE first_entry_id > 0",
        "DELETE FROM chunks WHERE first_entry_id = 0",
        "UPDATE chunks SET payload = 'text'",
        "UPDATE chunks SET payload = 7",
    ],
)
def test_damaged_entries_are_never_answered(ledgers: EmbeddedLedgers, path: str, damage: str) -> None:
    """The error names the database, the ledger and the chunk; its kind is data that needs repair."""
    stream = ledgers.open_stream("s")
    stream.append([b"aa", b"bbb", b"cc"], [1, 2, 3])
    stream.append([b"dd", b"e"], [4, 5])
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(damage)
    connection.close()
    with pytest.raises(CorruptError) as caught:
        read_all(stream, max_bytes=1000)
    one_line(caught.value, path)
    assert caught.value.kind is ErrorKind.DATA_CORRUPTION
    assert "stream 's'" in str(caught.value)


def test_an_entry_above_the_limit_is_refused(ledgers: EmbeddedLedgers) -> None:
    stream = ledgers.open_stream("s")
    # zeros that nobody touches take no memory
    too_long = np.zeros(ENTRY_BYTES_MAX + 1, dtype=np.uint8)
    offsets = np.array([0, len(too_long)], dtype=np.int32)
    entry = pa.BinaryArray.from_buffers(pa.binary(), 1, [None, pa.py_buffer(offsets), pa.py_buffer(too_long)])
    with pytest.raises(
        LimitReachedError, match=f"an entry of {ENTRY_BYTES_MAX + 1} bytes, the limit is {ENTRY_BYTES_MAX}"
    ):
        stream.append(entry)
    assert stream.last_position() is None


_WITH_A_FILE_LIMIT = """
import resource, sys
from offloader.errors import OutcomeUnknownError, StoreUnavailableError
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
ledgers = EmbeddedLedgers(sys.argv[1])
stream = ledgers.open_stream("s")
stream.append([b"kept"])
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
try:
    stream.append([bytes(1_000_000)] * 3)
except (OutcomeUnknownError, StoreUnavailableError) as error:
    print(type(error).__name__, error)
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
before = stream.last_position()
stream.append([b"again"])
print(before, stream.read(before, 0).payload_bytes, stream.last_position())
"""


@pytest.mark.process
def test_a_disk_that_fails_in_the_middle_of_a_write_leaves_the_old_state(tmp_path: Path, path: str) -> None:
    """Writes beyond a size limit fail in the operating system, below SQLite."""
    done = subprocess.run([sys.executable, "-c", _WITH_A_FILE_LIMIT, path], capture_output=True, text=True, check=True)
    error, state = done.stdout.splitlines()
    assert error.startswith(("OutcomeUnknownError", "StoreUnavailableError"))
    assert path in error
    assert state == "1:0 4 1:1"
