"""The newest entry that consumers can receive."""

from __future__ import annotations

import pytest

from formats.entries import Position
from offloader.ledgers.base import LedgerInfo, newest_given

Runs = tuple[tuple[int, int], ...]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ledgers", "newest"),
    [
        ([], None),
        ([(0, (), ())], None),
        ([(3, (), ()), (0, (), ())], Position(1, 2)),
        ([(3, (), ()), (5, ((4, 4),), ())], Position(2, 3)),
        ([(3, (), ()), (5, ((2, 2), (4, 4)), ((3, 3),))], Position(2, 1)),
        ([(3, (), ()), (5, ((0, 4),), ())], Position(1, 2)),
        ([(3, ((0, 2),), ())], None),
        ([(5, ((1, 2),), ())], Position(1, 4)),
    ],
)
def test_undelivered_runs_at_the_end_do_not_count(
    ledgers: list[tuple[int, Runs, Runs]], newest: Position | None
) -> None:
    infos = [
        LedgerInfo(
            ledger_id=number,
            closed=False,
            entries=entries,
            size_bytes=0,
            created_ms=0,
            undelivered=undelivered,
            lost=lost,
        )
        for number, (entries, undelivered, lost) in enumerate(ledgers, 1)
    ]
    assert newest_given(infos) == newest
