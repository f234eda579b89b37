"""The model's traces of lost databases and lost records can be read, and what they lose can be lost here."""

from __future__ import annotations

from pathlib import Path

import pytest

from formats.keys import record_key
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
from offloader.manifest.log import ManifestLog
from offloader.store.memory import MemoryStore
from offloader.testing.manual_clock import ManualClock
from tests.proof.models.loss_traces import LOSSES, Databases, LossTrace, lose
from tests.support.manifests import segment_edits

STREAM = "public/default/persistent/orders"
#: Rules of specification 10 and 11 that the model finds a loss without.
RULES = {
    "chain", "facts", "generation", "identity", "limit", "limit-nonce", "list-end", "name-before", "new-ledger",
    "no-records", "raise-first", "reach", "recheck", "reread-before-damage", "reserve", "testimony-epoch", "token",
    "truncate-held",
}  # fmt: skip


@pytest.mark.parametrize("path", LOSSES, ids=lambda path: path.stem)
def test_a_replay_knows_each_step_of_a_trace(path: Path) -> None:
    trace = LossTrace.read(path)
    assert [step for step in trace.steps if not step.is_known] == []
    assert trace.breaks[0] in "HN"


def test_each_rule_that_the_model_needs_has_a_trace() -> None:
    assert {rule for path in LOSSES for rule in LossTrace.read(path).rules} == RULES


def test_an_operator_loses_restores_and_copies_databases(tmp_path: Path) -> None:
    databases, clock = Databases(tmp_path), ManualClock()

    def entries(host: str, *, add: int = 0) -> int:
        ledgers = EmbeddedLedgers(f"sqlite:///{databases.path(host)}")
        try:
            stream = ledgers.open_stream(STREAM)
            for number in range(add):
                stream.append([b"%d" % number], clock.now_ms())
            return sum(info.entries for info in stream.ledgers())
        finally:
            ledgers.close()

    assert entries("A", add=3) == 3
    databases.handle("backup of the database")
    assert entries("A", add=2) == 5
    databases.handle("B gets a copy of A's database")
    databases.handle("the backup is restored")
    assert (entries("A"), entries("B")) == (3, 5)
    databases.handle("the database is lost")
    assert entries("A") == 0


def test_a_store_loses_records_one_by_one_or_with_the_folder() -> None:
    clock = ManualClock()
    store = MemoryStore("loss-traces", "", clock)
    log = ManifestLog(store, STREAM, clock=clock)
    log.open_epoch()
    for number in range(4):
        log.commit(segment_edits(number))
    incarnation = log.state.incarnation
    expected = [record_key(STREAM, incarnation, number) for number in (2, 3, 5)]
    lost = [*lose(store, STREAM, incarnation, "records [2, 3] are lost")]
    lost += lose(store, STREAM, incarnation, "record 5 is lost")
    assert lost == expected
    assert len(lose(store, STREAM, incarnation, "the manifest's folder is lost")) == 3, "two records and the boundary"
