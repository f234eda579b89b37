"""Appended batches whose outcome is unknown: what was written is looked up."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from formats.entries import Position
from offloader.errors import OutcomeUnknown
from offloader.ledgers.sqlite.database import Database
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
from offloader.runtime.clock import SystemClock
from offloader.service.flight.sessions import AppendedLedgers

ORDERS = "shop/eu/persistent/orders"


def test_numbered_batch_that_was_written_with_an_unknown_outcome_is_not_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer sends every batch again whose number is above the one that it is told."""
    payloads, commit = pa.array([b"one", b"two"], pa.binary()), Database._commit

    def broken(database: Database, connection: sqlite3.Connection) -> None:
        commit(database, connection)
        raise OutcomeUnknown("the disk failed during a commit")

    with closing(EmbeddedLedgers(str(tmp_path / "ledgers.db"))) as ledgers:
        source = AppendedLedgers(ledgers.open_stream(ORDERS), 0, SystemClock())
        source.append(payloads, None, producer="p", sequence=1)
        with monkeypatch.context() as failing:
            failing.setattr(Database, "_commit", broken)
            with pytest.raises(OutcomeUnknown):
                source.append(payloads, None, producer="p", sequence=2)
        assert source.sequence("p") == 2
        assert source.append(payloads, None, producer="p", sequence=2) == []
        assert [each.entries for each in source.ledgers()] == [4]
        assert source.news().taken == Position(source.ledgers()[-1].ledger_id, 3)
