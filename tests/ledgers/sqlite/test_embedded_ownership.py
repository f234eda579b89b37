"""One owner per stream, across threads and processes, and what a killed process leaves."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from formats.entries import EntryBatch, Position
from offloader.errors import FencedError, InvalidCallError, NotFoundError, UnsupportedError
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
from tests.ledgers.ledger_cases import payloads_of
from tests.support.presence import there


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "new" / "dir" / "l.db")


@pytest.fixture
def ledgers(path: str) -> Iterator[EmbeddedLedgers]:
    opened = EmbeddedLedgers(path)
    yield opened
    opened.close()


def test_opening_again_closes_the_open_ledger_and_starts_a_new_one(ledgers: EmbeddedLedgers) -> None:
    old = ledgers.open_stream("s")
    old.append([b"a"])
    new = ledgers.open_stream("s")
    assert new.owner == there(old.owner) + 1
    assert [(x.ledger_id, x.closed, x.entries) for x in new.ledgers()] == [(1, True, 1), (2, False, 0)]


def test_opening_again_and_again_piles_up_no_empty_ledgers(ledgers: EmbeddedLedgers) -> None:
    for _ in range(5):
        stream = ledgers.open_stream("s")
    assert [(x.ledger_id, x.closed) for x in stream.ledgers()] == [(5, False)]


def test_an_older_owner_can_change_nothing(ledgers: EmbeddedLedgers) -> None:
    old = ledgers.open_stream("s")
    old.append([b"a"])
    old.close_ledger()
    new = ledgers.open_stream("s")
    new.append([b"b"])
    heard: list[EntryBatch] = []
    old.subscribe(heard.append)
    for change in (
        lambda: old.append([b"x"], notes={"k": b"v"}),
        old.close_ledger,
        lambda: old.delete(1),
        lambda: old.put_note("k", b"v"),
        lambda: old.release(Position(1, 0)),
    ):
        with pytest.raises(FencedError, match="owner 1 was replaced by owner 2"):
            change()
    assert payloads_of(new) == [b"a", b"b"]
    assert (new.get_note("k"), new.released_position(), heard) == (None, None, [])


def test_an_older_owner_still_reads(ledgers: EmbeddedLedgers) -> None:
    old = ledgers.open_stream("s")
    ledgers.open_stream("s").append([b"b"])
    assert payloads_of(old) == [b"b"]


def test_a_view_reads_and_changes_nothing(ledgers: EmbeddedLedgers) -> None:
    owner = ledgers.open_stream("s")
    view = ledgers.view_stream("s")
    owner.append([b"a"])
    assert payloads_of(view) == [b"a"]
    for change in (
        lambda: view.append([b"x"]),
        view.close_ledger,
        lambda: view.delete(1),
        lambda: view.put_note("k", b"v"),
        lambda: view.release(Position(1, 0)),
        lambda: view.subscribe(print),
    ):
        with pytest.raises(UnsupportedError, match="reading only"):
            change()
    owner.append([b"b"])
    assert payloads_of(view) == [b"a", b"b"]


def test_a_view_of_an_unknown_stream_is_refused(ledgers: EmbeddedLedgers) -> None:
    with pytest.raises(NotFoundError, match=r"stream 'nope'.*it has no streams"):
        ledgers.view_stream("nope")
    ledgers.open_stream("s")
    with pytest.raises(NotFoundError, match=r"stream 'nope'.*it has s"):
        ledgers.view_stream("nope")
    assert ledgers.streams() == ["s"]


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 1025, "\0"])
def test_a_bad_stream_name_is_refused(ledgers: EmbeddedLedgers, name: str) -> None:
    with pytest.raises(InvalidCallError, match="stream name"):
        ledgers.open_stream(name)
    assert ledgers.streams() == []


_OPEN_AND_APPEND = """
import sys
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
ledgers = EmbeddedLedgers(sys.argv[1])
stream = ledgers.open_stream("s")
stream.append([b"from the other process"])
print(stream.owner, flush=True)
"""


@pytest.mark.process
def test_another_process_takes_the_stream_over(ledgers: EmbeddedLedgers, path: str) -> None:
    mine = ledgers.open_stream("s")
    mine.append([b"mine"])
    done = subprocess.run([sys.executable, "-c", _OPEN_AND_APPEND, path], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "2"
    with pytest.raises(FencedError):
        mine.append([b"too late"])
    assert payloads_of(mine) == [b"mine", b"from the other process"]
    assert [x.closed for x in mine.ledgers()] == [True, False]


@pytest.mark.process
def test_two_processes_may_create_the_database_at_once(path: str) -> None:
    """SQLite doesn't wait for locks when it switches to the write-ahead log; we do."""
    script = _OPEN_AND_APPEND.replace('"s"', "sys.argv[2]")
    children = [
        subprocess.Popen([sys.executable, "-c", script, path, f"s{n}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for n in range(4)
    ]
    errors = [child.communicate()[1] for child in children]
    assert errors == [b""] * 4
    ledgers = EmbeddedLedgers(path)
    assert ledgers.streams() == ["s0", "s1", "s2", "s3"]
    ledgers.close()
