"""Appended batches: repetitions, other payloads under a used number, an unknown outcome."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from formats.entries import Position
from offloader.errors import OutcomeUnknownError, SourceMismatchError
from offloader.ledgers.sqlite.database import Database
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
from offloader.runtime.clock import SystemClock
from offloader.service.flight.sessions import REPEATS_MAX, AppendedLedgers

ORDERS = "shop/eu/persistent/orders"


def test_numbered_batch_that_was_written_with_an_unknown_outcome_is_not_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer sends every batch again whose number is above the one that it is told."""
    payloads, commit = pa.array([b"one", b"two"], pa.binary()), Database._commit

    def broken(database: Database, connection: sqlite3.Connection) -> None:
        commit(database, connection)
        raise OutcomeUnknownError("the disk failed during a commit")

    with closing(EmbeddedLedgers(str(tmp_path / "ledgers.db"))) as ledgers:
        source = AppendedLedgers(ledgers.open_stream(ORDERS), 0, SystemClock())
        source.append(payloads, None, producer="p", sequence=1)
        with monkeypatch.context() as failing:
            failing.setattr(Database, "_commit", broken)
            with pytest.raises(OutcomeUnknownError):
                source.append(payloads, None, producer="p", sequence=2)
        assert source.sequence("p") == 2
        assert source.append(payloads, None, producer="p", sequence=2) == []
        assert [each.entries for each in source.ledgers()] == [4]
        assert source.news().taken == Position(source.ledgers()[-1].ledger_id, 3)


@pytest.fixture
def source(tmp_path: Path) -> Iterator[AppendedLedgers]:
    with closing(EmbeddedLedgers(str(tmp_path / "ledgers.db"))) as ledgers:
        yield AppendedLedgers(ledgers.open_stream(ORDERS), 0, SystemClock())


def sent(*payloads: bytes) -> pa.BinaryArray:
    """As a batch of Flight may come: a slice."""
    return pa.array([b"before", *payloads, b"after"], pa.binary())[1:-1]


@pytest.mark.parametrize(
    "other", [sent(b"B1"), sent(b"A1", b""), sent(b"A", b"1"), sent()], ids=["other", "one more", "split", "none"]
)
def test_other_payloads_under_a_used_number_are_refused_and_logged(
    source: AppendedLedgers, other: pa.BinaryArray, caplog: pytest.LogCaptureFixture
) -> None:
    for number, payload in enumerate([b"A1", b"A2"], 1):
        source.append(sent(payload), None, producer="p", sequence=number)
    with pytest.raises(SourceMismatchError, match="sequence 1, and its newest is 2: it was used for other payloads"):
        source.append(other, None, producer="p", sequence=1)
    assert [getattr(each, "event", "") for each in caplog.records] == ["flight_sequence_refused"]
    assert source.append(pa.array([b"A1"], pa.binary()), None, producer="p", sequence=1) == []
    assert len(source.append(other, None, producer="another", sequence=1)) == bool(len(other))


@pytest.mark.slow
def test_used_numbers_are_compared_after_a_restart_and_in_a_window(tmp_path: Path) -> None:
    with closing(EmbeddedLedgers(str(tmp_path / "ledgers.db"))) as ledgers:
        before = AppendedLedgers(ledgers.open_stream(ORDERS), 0, SystemClock())
        for number in range(0, 2 * (REPEATS_MAX + 2), 2):
            before.append(sent(b"%d" % number), None, producer="p", sequence=number)
        after, newest = AppendedLedgers(ledgers.open_stream(ORDERS), 0, SystemClock()), 2 * (REPEATS_MAX + 1)
        for number in (4, newest):
            assert after.append(sent(b"%d" % number), None, producer="p", sequence=number) == []
            with pytest.raises(SourceMismatchError, match="other payloads"):
                after.append(sent(b"other"), None, producer="p", sequence=number)
        for number in (2, newest - 1):  # too old, and never sent
            with pytest.raises(SourceMismatchError, match="can't be compared"):
                after.append(sent(b"%d" % number), None, producer="p", sequence=number)
        assert len(after.append(sent(b"next"), None, producer="p", sequence=newest + 1)) == 1
