"""Offloads that brokers are refused are problems, metrics and one error in the log, until they end."""

from __future__ import annotations

import itertools
import logging
from dataclasses import replace
from functools import partial

import pytest

from offloader.errors import NotFoundError, StoreUnavailableError
from offloader.owner_client import NotOwnerError
from offloader.read.ledger_plan import BrokerFacts, LedgerMismatch, LedgerTrimmed
from offloader.service.bootstrap import Assembled
from offloader.service.broker_ledgers import BrokerCaller
from offloader.service.broker_refusals import REFUSED_S_MAX, UNKNOWN_S, BrokerRefusals, is_refusal
from offloader.service.streams import PROBLEMS_NAMED_MAX
from offloader.store.open import open_store
from offloader.testing.manual_clock import ManualClock
from tests.support.broker_requests import STREAM
from tests.support.metrics import exposed
from tests.support.served import serving, settings_file
from tests.support.streams import StreamWriter, batch_of

_names = itertools.count()
CALLER = BrokerCaller(name="a broker")
MISMATCH = LedgerMismatch("the broker's ledger is another one", hint="compare the clusters")


def refused(assembled: Assembled) -> list[str]:
    """The problems of the process that are about brokers."""
    return [each.what for each in assembled.view.readiness().problems if each.what.startswith("brokers are refused")]


@pytest.mark.slow
def test_refused_offload_is_a_problem_a_metric_and_one_error(caplog: pytest.LogCaptureFixture) -> None:
    store = open_store(f"memory://refused-{next(_names)}")
    batch = batch_of(7, 0, 10)
    StreamWriter(store, STREAM).add([batch], closes=(7,))
    right = BrokerFacts(uuid=None, last=9, length=batch.payload_bytes, entries=10)
    with serving(store, settings_file()) as assembled, caplog.at_level(logging.INFO, "offloader"):
        offload = partial(assembled.ledgers.offload, STREAM, 7, wait_s=0.0, caller=CALLER)
        for _ in range(5):
            with pytest.raises(LedgerMismatch):
                offload(replace(right, length=right.length + 1))
            assembled.ledgers.attempt_deleted(STREAM, 7, uuid=None, caller=CALLER)
        [what] = refused(assembled)
        assert "refused ledger 7, and keep their copies" in what
        assert assembled.view.readiness().ready
        measured = exposed(assembled.metrics)
        assert measured['streams_broker_offloads_failing{by="refused",namespace="public/default"}'] == 1
        assert measured['broker_offload_requests_total{result="refused"}'] == 5
        [line] = [each for each in caplog.records if each.levelno >= logging.ERROR]
        assert line.__dict__["event"] == "broker_offload_refused"
        assert not [each for each in caplog.records if each.__dict__.get("event") == "broker_deleted"]
        assert offload(right)["committed"]
        assert refused(assembled) == []
        assert 'streams_broker_offloads_failing{by="refused",namespace="public/default"}' not in exposed(
            assembled.metrics
        )


@pytest.mark.slow
def test_brokers_of_another_cluster_are_a_problem() -> None:
    store = open_store(f"memory://refused-{next(_names)}")
    with serving(store, settings_file(broker__source="east")) as assembled:
        with pytest.raises(LedgerMismatch):
            assembled.ledgers.require_source("west", STREAM, 7)
        [what] = refused(assembled)
        assert "the broker's cluster is 'west'" in what


def test_stream_that_nobody_knows_counts_after_a_while() -> None:
    clock = ManualClock()
    refusals = BrokerRefusals(clock)
    refusals.refused(STREAM, 7, NotFoundError("no such stream"))
    clock.advance(UNKNOWN_S - 1)
    refusals.refused(STREAM, 7, NotFoundError("no such stream"))
    assert (refusals.problems(), list(refusals.readings())) == ([], [])
    clock.advance(2)
    refusals.refused(STREAM, 7, NotFoundError("no such stream"))
    [problem] = refusals.problems()
    assert (problem.since_ms, problem.blocks_ready) == (clock.now_ms() - int(UNKNOWN_S * 1000) - 1000, False)


def test_refusals_of_several_ledgers_of_a_stream_are_one(caplog: pytest.LogCaptureFixture) -> None:
    """A broker asks for one closed ledger after the other, again and again."""
    clock = ManualClock()
    refusals = BrokerRefusals(clock)
    for _ in range(10):
        for ledger_id in (9, 7):
            clock.advance(UNKNOWN_S / 10)
            refusals.refused(STREAM, ledger_id, NotFoundError(f"no such stream, ledger {ledger_id}"))
    [problem] = refusals.problems()
    assert "refused ledger 7, and keep their copies: no such stream, ledger 7" in problem.what
    [line] = caplog.records
    assert (line.__dict__["event"], line.__dict__["ledger"]) == ("broker_offload_refused", 7)
    refusals.refused(STREAM, 7, MISMATCH)
    assert MISMATCH.message in refusals.problems()[0].what


def test_refusals_end_with_the_ledger_and_without_requests() -> None:
    clock = ManualClock()
    refusals = BrokerRefusals(clock)
    refusals.refused("a", 7, MISMATCH)
    refusals.refused("b", 7, MISMATCH)
    refusals.accepted("a", 8)
    assert [each.where for each in refusals.problems()] == ["stream a", "stream b"]
    refusals.accepted("a", 7)
    assert [each.where for each in refusals.problems()] == ["stream b"]
    clock.advance(REFUSED_S_MAX)
    assert refusals.problems() == []
    assert not refusals.stands("b")


def test_problems_of_many_streams_are_summed_up() -> None:
    refusals = BrokerRefusals(ManualClock())
    for number in range(PROBLEMS_NAMED_MAX + 3):
        refusals.refused(f"t/n/persistent/{number:03}", 1, MISMATCH)
    assert len(refusals.problems()) == PROBLEMS_NAMED_MAX + 1
    assert refusals.problems()[-1].what == "offloads of 3 more streams are refused"


def test_answers_that_change_by_themselves_are_no_refusals() -> None:
    refused = [MISMATCH, NotFoundError("no"), LedgerTrimmed("gone")]
    assert [is_refusal(each) for each in refused] == [True] * 3
    assert [is_refusal(each) for each in (StoreUnavailableError("later"), NotOwnerError("another"))] == [False] * 2
