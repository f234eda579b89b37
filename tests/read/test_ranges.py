"""What an export misses: entries that retention deleted before it, and not those that no tier ever had."""

from __future__ import annotations

import random
from uuid import UUID

import pytest

from formats.entries import Position
from formats.manifest import Gap, LedgerClosed, Retire, Truncate
from offloader.errors import TrimmedError
from offloader.read.ranges import is_lost_after
from offloader.store.open import open_store
from tests.support.streams import StreamWriter, batch_of


@pytest.fixture
def writer() -> StreamWriter:
    return StreamWriter(open_store(f"memory://{random.getrandbits(64):x}"))


def is_lost(writer: StreamWriter, last: Position) -> bool:
    state = writer.log.state
    return is_lost_after(state, str(state.incarnation), last, exported_to="a table", skip_lost=True)


def add_gap(writer: StreamWriter, ledger_id: int) -> None:
    gap = Gap(Position(ledger_id, 0), Position(ledger_id, 9), "lost by the source")
    writer.log.commit([LedgerClosed(ledger_id, 9), gap])


def trim(writer: StreamWriter, head: Position, *segments: UUID) -> None:
    writer.log.commit([Truncate(head), Retire(segments)])


def test_gap_beside_deleted_entries_does_not_hide_their_loss(writer: StreamWriter) -> None:
    for ledger_id in (1, 2):
        writer.add([batch_of(ledger_id, 0, 10)], closes=[ledger_id])
    add_gap(writer, 3)
    for ledger_id in (4, 5):
        writer.add([batch_of(ledger_id, 0, 10)], closes=[ledger_id])
    trim(writer, Position(4, 0), *writer.uuids[:2])
    assert is_lost(writer, Position(1, 9)), "ledger 2 was deleted"
    assert not is_lost(writer, Position(2, 9)), "only the gap lies between"
    trim(writer, Position(5, 0), writer.uuids[2])
    assert is_lost(writer, Position(2, 9)), "ledger 4 was deleted after the gap"
    state = writer.log.state
    with pytest.raises(
        TrimmedError, match="exported up to 1:9, but the following entries were deleted: the stream now begins at 5:0"
    ):
        is_lost_after(state, str(state.incarnation), Position(1, 9), exported_to="a table", skip_lost=False)


def test_neighbouring_gaps_and_empty_ledgers_are_no_loss(writer: StreamWriter) -> None:
    writer.add([batch_of(1, 0, 10)], closes=[1])
    add_gap(writer, 2)
    writer.log.commit([LedgerClosed(3, -1)])
    add_gap(writer, 4)
    writer.add([batch_of(5, 0, 10)])
    assert not is_lost(writer, Position(1, 9))
    assert not is_lost(writer, Position(5, 4))
