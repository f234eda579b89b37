"""Following streams that other processes append to: each entry and each ledger end once and in order."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest

from formats.entries import EntryBatch, Position
from offloader.ledgers.base import LedgerInfo
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers, FollowedStream
from offloader.settings import LedgerSettings

STREAM = "followed"


class Heard:
    """What one listener heard: positions, and ``end L`` of ledgers."""

    def __init__(self) -> None:
        self.all: list[object] = []
        self.payloads: list[bytes] = []

    def entries(self, batch: EntryBatch) -> None:
        self.all += [entry.position for entry in batch.entries()]
        self.payloads += [entry.payload for entry in batch.entries()]

    def end(self, info: LedgerInfo) -> None:
        assert info.closed
        self.all.append(f"end {info.ledger_id}")


@pytest.fixture
def place(tmp_path: Path) -> Any:
    """Two connections to one database, as two processes have: who appends and who follows."""
    path, settings = str(tmp_path / "ledgers.db"), LedgerSettings(ledger_entries_max=10)
    with closing(EmbeddedLedgers(path, settings=settings)) as ours, closing(EmbeddedLedgers(path)) as theirs:
        yield ours, theirs


def test_entries_appended_after_subscribing_are_delivered_once_in_order(place: Any) -> None:
    ours, theirs = place
    source = ours.open_stream(STREAM)
    source.append([b"before"] * 15)
    followed = FollowedStream(theirs.view_stream(STREAM))
    assert not followed.look(), "nobody listens"
    heard = Heard()
    subscription = followed.subscribe(heard.entries, heard.end)
    followed.look()
    assert heard.all == []
    source.append([b"one", b"two"])
    source.append([b"three"] * 5)
    followed.look()
    source.close_ledger()
    followed.look()
    ours.open_stream(STREAM).append([b"four"])
    followed.look()
    followed.look()
    first = [Position(2, number) for number in range(5, 10)]
    assert heard.all == [*first, "end 2", Position(3, 0), Position(3, 1), "end 3", Position(4, 0)]
    subscription.cancel()
    source = ours.open_stream(STREAM)
    source.append([b"five"])
    followed.look()
    assert len(heard.payloads) == 8


def test_following_survives_an_empty_first_ledger_and_a_deletion(place: Any) -> None:
    ours, theirs = place
    ours.open_stream(STREAM)
    followed, heard = FollowedStream(theirs.view_stream(STREAM, may_delete=True)), Heard()
    followed.subscribe(heard.entries, heard.end)
    source = ours.open_stream(STREAM)
    source.append([b"x"] * 12)
    followed.look()
    followed.delete(source.ledgers()[0].ledger_id)
    source.append([b"y"] * 2)
    followed.look()
    assert len(heard.payloads) == 14
    followed.release(Position(1, 1))
    assert len(followed.ledgers()) == 1


def test_random_appends_closings_and_owners_are_followed_in_order(place: Any) -> None:
    ours, theirs = place
    generator = Random(11)
    source = ours.open_stream(STREAM)
    followed, heard = FollowedStream(theirs.view_stream(STREAM)), Heard()
    followed.subscribe(heard.entries, heard.end)
    written: list[bytes] = []
    for step in range(120):
        match generator.randrange(6):
            case 0:
                source.close_ledger()
            case 1:
                source = ours.open_stream(STREAM)
            case 2:
                followed.look()
            case _:
                payloads = [b"%d-%d" % (step, number) for number in range(generator.randrange(1, 15))]
                source.append(payloads)
                written += payloads
    followed.look()
    assert heard.payloads == written
    positions = [each for each in heard.all if isinstance(each, Position)]
    assert positions == sorted(set(positions))
    ended: set[int] = set()
    for each in heard.all:
        if isinstance(each, Position):
            assert each.ledger_id not in ended, "nothing comes after a ledger's end"
        else:
            ended.add(int(str(each).split()[1]))
    closed = {info.ledger_id for info in source.ledgers() if info.closed and info.entries}
    assert closed <= ended


def test_database_version_changes_exactly_with_changes_by_any_client(place: Any) -> None:
    ours, theirs = place
    source = ours.open_stream(STREAM)
    versions = [theirs.version(), theirs.version(), ours.version()]
    assert versions[0] == versions[1]
    source.append([b"x"])
    assert theirs.version() != versions[0]
    assert ours.version() != versions[2], "its own changes too"
    with closing(EmbeddedLedgers(":memory:")) as memory:
        before = memory.version()
        memory.open_stream(STREAM).append([b"x"])
        assert memory.version() != before
