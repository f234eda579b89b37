"""Adoption attempts in their packed form."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from formats.entries import Position
from formats.summary import Layout, LedgerSpan, SegmentSummary
from offloader.adopt import Attempt, AttemptOwner, AttemptTable
from offloader.manifest.rebuild import FoundSegment


def attempt_of(ledger_id: int, *, uuid: int = 1, **summary: object) -> Attempt:
    """A plain V1 attempt with as large numbers as fit."""
    span = LedgerSpan(ledger_id, 0, 2**62, 2**62 + 1, 2**63 - 1)
    plain = SegmentSummary(
        layout=Layout.V1,
        begin=Position(ledger_id, 0),
        end=Position(ledger_id, 2**62),
        data_bytes=2**63 - 1,
        index_bytes=2**31,
        data_crc32c=2**32 - 1,
        index_crc32c=2**32 - 2,
        entries=2**62 + 1,
        payload_bytes=2**63 - 1,
        publish_time_min_ms=-1,
        publish_time_max_ms=-1,
        blocks=7,
        compressed=False,
        ledgers=(span,),
    )
    return Attempt(
        segment=FoundSegment(
            uuid=UUID(int=uuid),
            ledger_id=ledger_id,
            epoch=0,
            owned=False,
            summary=replace(plain, **summary),  # type: ignore[arg-type]
            closed_bytes={},
        ),
        managed_ledger="t/n/persistent/a",
        cluster="c",
        closed=True,
        modified_ms=1_700_000_000_000,
    )


def test_attempts_round_trip_through_the_table_by_owner() -> None:
    table = AttemptTable()
    plain = [attempt_of(2**63 - 1, uuid=2**128 - 1), replace(attempt_of(5), closed=False)]
    # None of these fits into a row of numbers.
    special = [
        attempt_of(6, publish_time_max_ms=5),
        attempt_of(7, compressed=True),
        replace(attempt_of(8), segment=replace(attempt_of(8).segment, ledger_id=None)),
        attempt_of(9, begin=Position(9, 3)),
        replace(attempt_of(10), segment=replace(attempt_of(10).segment, closed_bytes={10: 5})),
    ]
    foreign = replace(attempt_of(5), cluster="d")
    for attempt in (*plain, *special, foreign):
        table.add(attempt)

    assert table.count == 8
    assert table.owners() == [AttemptOwner("t/n/persistent/a", "c"), AttemptOwner("t/n/persistent/a", "d")]
    assert list(table.of(table.owners()[0])) == [*plain, *special]
    assert list(table.of(table.owners()[1])) == [foreign]
    assert list(table.of(AttemptOwner("other", ""))) == []
