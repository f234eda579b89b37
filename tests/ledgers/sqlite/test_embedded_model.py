"""Embedded ledgers against a list: any sequence of calls gives what the list gives."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from formats.entries import Position
from offloader.errors import FencedError
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers, EmbeddedStream
from offloader.settings import Duration, LedgerSettings, Size
from tests.ledgers.ledger_cases import START_MS, TurnedClock, read_all
from tests.support.presence import there

SETTINGS = LedgerSettings(ledger_size_max=Size(200), ledger_entries_max=9, ledger_age_max=Duration("1.0m"))


class LedgersAgainstAList(RuleBasedStateMachine):
    """The model keeps (position, payload, time) of every entry, which ledger is open, and what was deleted."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.mkdtemp()
        self.clock = TurnedClock()
        self.entries: list[tuple[Position, bytes, int]] = []
        self.open_ledger: tuple[int, int, int, int] | None = None  # id, entries, bytes, created
        self.closed: set[int] = set()
        self.note = 0
        self.heard: list[bytes] = []
        self.written: list[bytes] = []
        self.fenced: EmbeddedStream | None = None
        self.next_ledger = 1

    @initialize()
    def create(self) -> None:
        self.database = EmbeddedLedgers(str(Path(self.directory) / "l.db"), settings=SETTINGS, clock=self.clock)
        self.open_stream()

    def open_stream(self) -> None:
        self.stream = self.database.open_stream("s")
        self.stream.subscribe(lambda batch: self.heard.extend(batch.payloads.to_pylist()))
        if self.open_ledger and self.open_ledger[1]:
            self.closed.add(self.open_ledger[0])
        self.open_ledger = (self.next_ledger, 0, 0, self.clock.time_ms)
        self.next_ledger += 1

    @rule(lengths=st.lists(st.integers(0, 120), min_size=1, max_size=25), salt=st.integers(0, 255))
    def append(self, lengths: list[int], salt: int) -> None:
        payloads = [bytes([(salt + i) % 256]) * length for i, length in enumerate(lengths)]
        times = [START_MS + salt * i for i in range(len(payloads))]
        self.note += len(payloads)
        returned = self.stream.append(payloads, times, notes={"n": b"%d" % self.note})
        self.leave_an_old_ledger()
        expected = [self.place(payload, time) for payload, time in zip(payloads, times, strict=True)]
        assert [(e.position, e.payload, e.publish_time_ms) for b in returned for e in b.entries()] == expected
        self.entries += expected
        self.written += payloads

    def leave_an_old_ledger(self) -> None:
        """Age is looked at once per call, before its first entry."""
        ledger = self.open_ledger
        if ledger is not None and ledger[1] and self.clock.time_ms - ledger[3] >= 60_000:
            self.closed.add(ledger[0])
            self.open_ledger = None

    def place(self, payload: bytes, time: int) -> tuple[Position, bytes, int]:
        ledger = self.open_ledger
        if ledger is None:
            ledger = (self.next_ledger, 0, 0, self.clock.time_ms)
            self.next_ledger += 1
        position = Position(ledger[0], ledger[1])
        ledger = (ledger[0], ledger[1] + 1, ledger[2] + len(payload), ledger[3])
        self.open_ledger = ledger
        if ledger[1] >= SETTINGS.ledger_entries_max or ledger[2] >= SETTINGS.ledger_size_max:
            self.closed.add(ledger[0])
            self.open_ledger = None
        return position, payload, time

    @rule(minutes=st.integers(0, 2))
    def time_passes(self, minutes: int) -> None:
        self.clock.time_ms += minutes * 60_000

    @rule()
    def close_ledger(self) -> None:
        info = self.stream.close_ledger()
        if self.open_ledger and self.open_ledger[1]:
            assert info is not None
            assert (info.ledger_id, info.entries, info.size_bytes) == self.open_ledger[:3]
            self.closed.add(self.open_ledger[0])
            self.open_ledger = None
        else:
            assert info is None

    @rule()
    def take_over(self) -> None:
        self.fenced = self.stream
        self.open_stream()

    @rule()
    def older_owner_appends(self) -> None:
        if self.fenced is not None:
            with pytest.raises(FencedError):
                self.fenced.append([b"never"])

    @rule()
    def restart(self) -> None:
        self.database.close()
        self.fenced = None
        self.database = EmbeddedLedgers(str(Path(self.directory) / "l.db"), settings=SETTINGS, clock=self.clock)
        self.open_stream()

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        if self.closed:
            ledger_id = data.draw(st.sampled_from(sorted(self.closed)))
            self.stream.delete(ledger_id)
            self.closed.discard(ledger_id)
            self.entries = [entry for entry in self.entries if entry[0].ledger_id != ledger_id]

    @rule(ledger=st.integers(-1, 30), entry=st.integers(-1, 12), max_bytes=st.integers(0, 400))
    def read(self, ledger: int, entry: int, max_bytes: int) -> None:
        batch = self.stream.read(Position(ledger, entry), max_bytes)
        rest = [e for e in self.entries if e[0] >= Position(ledger, entry)]
        if not rest:
            assert batch is None
            return
        fitting, total = list[tuple[Position, bytes, int]](), 0
        for position, payload, time in rest:
            total += len(payload)
            if position.ledger_id != rest[0][0].ledger_id or (fitting and total > max_bytes):
                break
            fitting.append((position, payload, time))
        assert [(e.position, e.payload, e.publish_time_ms) for e in there(batch).entries()] == fitting

    @invariant()
    def same_as_the_list(self) -> None:
        if not hasattr(self, "database"):
            return
        assert read_all(self.database.view_stream("s"), max_bytes=150) == self.entries
        infos = self.stream.ledgers()
        assert {info.ledger_id for info in infos if info.closed} == self.closed
        still_open = [(i.ledger_id, i.entries, i.size_bytes, i.created_ms) for i in infos if not i.closed]
        assert still_open == ([self.open_ledger] if self.open_ledger else [])
        assert self.stream.last_position() == (self.entries[-1][0] if self.entries else None)
        assert self.stream.first_position() == (self.entries[0][0] if self.entries else None)
        assert self.heard == self.written
        assert int(self.stream.get_note("n") or 0) == self.note

    def teardown(self) -> None:
        if hasattr(self, "database"):
            self.database.close()
        shutil.rmtree(self.directory)


TestLedgersAgainstAList = LedgersAgainstAList.TestCase
TestLedgersAgainstAList.settings = settings(max_examples=120, stateful_step_count=30, deadline=None)
