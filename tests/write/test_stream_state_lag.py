"""Lag: the newest hot entry against the newest committed one, in entries, bytes and seconds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formats.entries import TIME_UNKNOWN_MS, EntryBatch, Position
from offloader.ledgers.base import LedgerInfo
from offloader.write.stream_state import Lag, Progress, lag_between


def ledger(ledger_id: int, entries: int, *, entry_bytes: int = 10) -> LedgerInfo:
    return LedgerInfo(
        ledger_id=ledger_id, closed=True, entries=entries, size_bytes=entries * entry_bytes, created_ms=0, closed_ms=0
    )


def test_without_a_commit_everything_is_lag() -> None:
    assert lag_between(None, [ledger(1, 5), ledger(2, 0), ledger(4, 3)]) == Lag(8, 80, None)


def test_only_entries_after_the_committed_end_count_as_lag() -> None:
    ledgers = [ledger(1, 5), ledger(2, 10), ledger(4, 3)]
    assert lag_between(Position(2, 3), ledgers) == Lag(9, 90, None)
    assert lag_between(Position(2, 9), ledgers) == Lag(3, 30, None)
    assert lag_between(Position(4, 2), ledgers) == Lag(0, 0, 0.0)


def test_ledgers_that_the_hot_tier_deleted_or_shortened_are_no_lag() -> None:
    assert lag_between(Position(9, 99), [ledger(1, 5), ledger(9, 50)]) == Lag(0, 0, 0.0)


def test_seconds_are_between_the_publish_times_and_never_negative() -> None:
    ledgers = [ledger(1, 5)]
    assert lag_between(None, ledgers, committed_time_ms=1000, tail_time_ms=3500).seconds == 2.5
    assert lag_between(None, ledgers, committed_time_ms=5000, tail_time_ms=3500).seconds == 0
    assert lag_between(None, ledgers, committed_time_ms=None, tail_time_ms=3500).seconds is None


@given(st.lists(st.integers(0, 20), max_size=8), st.integers(0, 8), st.integers(-1, 19))
def test_lag_is_the_count_of_entries_above_the_committed_end(counts: list[int], at: int, entry_id: int) -> None:
    ledgers = [ledger(number, count) for number, count in enumerate(counts)]
    committed = Position(at, entry_id)
    behind = [(n, e) for n, count in enumerate(counts) for e in range(count) if (n, e) > (at, entry_id)]
    lag = lag_between(committed, ledgers)
    assert (lag.entries, lag.payload_bytes) == (len(behind), 10 * len(behind))


def test_unknown_times_give_no_lag_in_seconds() -> None:
    progress = Progress()
    progress.seen(EntryBatch.build(1, 0, [b"a", b"b"], TIME_UNKNOWN_MS))
    assert (progress.oldest_time_ms, progress.tail_time_ms) == (None, None)
    progress.seen(EntryBatch.build(1, 2, [b"a", b"b"], [5000, 7000]))
    progress.seen(EntryBatch.build(1, 4, [b"a"], [6000]))
    assert (progress.oldest_time_ms, progress.tail_time_ms) == (5000, 7000)


@pytest.mark.parametrize("size", [0, 1])
def test_a_partly_committed_ledger_counts_by_its_mean_entry(size: int) -> None:
    assert lag_between(Position(1, 0), [ledger(1, 3, entry_bytes=size)]).payload_bytes == 2 * size
