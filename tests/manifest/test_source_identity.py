"""What a manifest knows of ledgers, and which ids it reserves for a hot tier."""

from __future__ import annotations

from contextlib import closing
from itertools import count
from pathlib import Path

from formats.entries import Position
from formats.manifest import HotReleased, LedgerClosed
from offloader.ledgers.base import KnownLedger
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
from offloader.manifest.log import ManifestLog
from offloader.manifest.source_identity import known_ledgers
from offloader.runtime.clock import SystemClock
from offloader.settings import LedgerSettings
from offloader.store.memory import MemoryStore
from offloader.testing.manual_clock import ManualClock
from offloader.write.ownership import LEDGERS_LEFT_MIN, LEDGERS_RESERVED, open_owned
from tests.support.streams import StreamWriter, batch_of

STREAM = "public/default/persistent/orders"
_names = count()


def memory() -> MemoryStore:
    return MemoryStore(f"source-identity-{next(_names)}", "", SystemClock())


def test_newest_entry_of_a_ledger_is_of_all_its_segments() -> None:
    writer = StreamWriter(memory(), STREAM)
    writer.add([batch_of(1, 0, 10)])
    writer.add([batch_of(1, 10, 15)])
    known = known_ledgers(writer.log.state, [1, 2])
    assert known.ledgers == {1: KnownLedger(last_entry_id=None, reached=24)}
    assert known.newest == Position(1, 24)


def test_reserved_ids_are_exactly_those_that_are_granted(tmp_path: Path) -> None:
    """A record reserves up to the last granted id: one more would be lost to every later start."""
    one_entry = LedgerSettings(ledger_entries_max=1)
    with closing(EmbeddedLedgers(str(tmp_path / "ledgers.db"), settings=one_entry)) as ledgers:
        source = ledgers.open_stream(STREAM, held=True)
        log = ManifestLog(memory(), STREAM, clock=ManualClock())
        open_owned(log, source, reserve=True)
        assert log.state.source is not None
        assert log.state.source.reserved + 1 == source.next_ledger()
        source.append([b"x"] * (LEDGERS_RESERVED - LEDGERS_LEFT_MIN + 1))
        log.commit([LedgerClosed(source.ledgers()[0].ledger_id, 0)])
        assert log.state.source.reserved + 1 == source.next_ledger() > 2 * LEDGERS_RESERVED


def test_unreleased_ledgers_are_the_closed_ones_up_to_the_settled_position() -> None:
    writer = StreamWriter(memory(), STREAM)
    writer.add([batch_of(1, 0, 10)], closes=[1])
    writer.add([batch_of(2, 0, 10)], closes=[2])
    writer.add([batch_of(3, 0, 10)])
    log = writer.log
    assert known_ledgers(log.state, None).ledgers == {1: KnownLedger(9, 9), 2: KnownLedger(9, 9)}
    log.commit_as_maintainer([HotReleased((1,))])
    assert known_ledgers(log.state, None).ledgers == {2: KnownLedger(9, 9)}
