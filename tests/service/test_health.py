"""Values of health: plain reasons, states of streams, unknown lag, grouped log lines, and probes that hang."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from offloader.errors import (
    AccessDeniedError,
    NotFoundError,
    OffloaderError,
    StoreUnavailableError,
    ThrottledError,
    plain_reason,
)
from offloader.monitor import lag_now, mode_of
from offloader.runtime.clock import SystemClock
from offloader.service.answers import KeptAnswers
from offloader.service.health import PROBES_OPEN_MAX, OutageFilter, Probe, TroubleLog, ask_store, named
from offloader.store.base import ObjectStore
from offloader.store.memory import MemoryStore
from offloader.testing.faulty_store import Fault, FaultyStore
from offloader.testing.manual_clock import ManualClock
from offloader.write.stream_state import Lag
from tests.support.waiting import eventually


def wrapped(cause: Exception) -> Exception:
    """As a library raises it: its own error from another one of its own."""
    inner, outer = RuntimeError("HTTPConnectionPool(host='x')"), RuntimeError("Max retries exceeded")
    inner.__cause__, outer.__context__ = cause, inner
    return outer


class ConnectTimeoutError(Exception):
    """Libraries have their own, which aren't ``TimeoutError``."""


def expired() -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError("certificate verify failed")
    error.verify_message = "certificate has expired"
    return error


@pytest.mark.parametrize(
    ("cause", "reason"),
    [
        (ConnectionRefusedError(111, "Connection refused"), "connection refused"),
        (ConnectionResetError(104, "Connection reset by peer"), "connection closed by the peer"),
        (socket.gaierror(-2, "Name or service not known"), "host name not found"),
        (TimeoutError("timed out"), "no answer within 5 s"),
        (ConnectTimeoutError("connect timeout=5"), "no answer within 5 s"),
        (OSError(113, "No route to host"), "no route to host"),
        (expired(), "certificate verification failed: certificate has expired"),
    ],
)
def test_reasons_of_connections_are_plain_words(cause: Exception, reason: str) -> None:
    assert plain_reason(wrapped(cause), 5.0) == reason


def test_other_errors_keep_their_own_words() -> None:
    assert plain_reason(AccessDeniedError("the store refuses", hint="look at the keys")) == "the store refuses"
    assert plain_reason(ValueError("not\na line")) == "not a line"


@pytest.mark.parametrize(
    ("mode", "disconnected", "stalled", "shown"),
    [
        ("live", "", None, "live"),
        ("live", "the broker doesn't answer", None, "disconnected"),
        ("standby", "the broker doesn't answer", None, "disconnected"),
        ("live", "", "entries wait", "stalled"),
        ("catch-up", "the broker doesn't answer", "entries wait", "disconnected"),
        ("paused", "the broker doesn't answer", "entries wait", "paused"),
        ("stopped", "the broker doesn't answer", None, "stopped"),
    ],
)
def test_mode_says_what_an_outage_does_to_a_stream(
    mode: str, disconnected: str, stalled: str | None, shown: str
) -> None:
    assert mode_of(mode, disconnected=disconnected, stalled=stalled) == shown


def test_unknown_lag_grows_from_the_last_known_one() -> None:
    behind = Lag(7, 70, 4.0)
    assert lag_now(behind, 100.0, 1_000, 130.0, is_caught_up=False) == Lag(7, 70, 34.0, 1_000)
    assert lag_now(behind, 100.0, 1_000, 130.0, is_caught_up=True) == Lag(0, 0, 30.0, 1_000), "it was committed since"
    assert lag_now(Lag(7, 70, None), 100.0, 1_000, 130.0, is_caught_up=False).seconds == 30.0


def test_troubles_are_told_once_they_last_grouped_by_their_reason() -> None:
    log = TroubleLog(told_after_s=15.0)
    streams = {f"s-{number}": f"topic of s-{number}: refused" for number in range(50)}
    assert log.look(0.0, streams) == []
    assert log.look(14.0, streams) == []
    assert log.look(15.0, streams) == [
        "50 streams (s-0, s-1, s-10 and 47 more): topic of its stream: refused; tried again until it works"
    ]
    assert log.look(3600.0, streams) == [], "once"
    some = {name: streams[name] for name in ("s-1", "s-2")}
    assert log.look(3605.0, some) == ["48 streams (s-0, s-10, s-11 and 45 more): works again"]
    assert log.look(3610.0, {}) == ["2 streams (s-1, s-2): works again"]
    assert log.look(3615.0, {"s-1": "refused"}) == []
    assert log.look(3620.0, {}) == [], "what wasn't told isn't over"
    assert log.look(4000.0, {"s-1": "refused"}) == []
    log.wait()
    assert log.look(4020.0, {"s-1": "refused"}) == [], "an outage explained it until now"
    assert len(log.look(4040.0, {"s-1": "refused"})) == 1
    assert named(["s-1"]) == "stream s-1"


def test_repeated_attempts_and_what_an_outage_causes_are_not_written() -> None:
    out = False
    passes = OutageFilter(lambda: out).filter

    def record(event: str) -> logging.LogRecord:
        return logging.makeLogRecord({"event": event})

    assert [passes(record(event)) for event in ("retry", "retention_failed", "outage")] == [False, True, True]
    out = True
    assert [passes(record(event)) for event in ("retention_failed", "outage", "gap")] == [False, True, True]


def probe_of(check: Callable[[], object], *, answer_s: float = 0.05) -> Probe:
    return Probe(
        "store",
        "store s3://b",
        "the store",
        check,
        clock=ManualClock(),
        hint="look",
        period_s=0.01,
        answer_s=answer_s,
    )


@pytest.fixture
def go_on() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


@pytest.mark.slow
def test_probe_that_hangs_is_no_answer_and_a_few_hang_at_once(go_on: threading.Event) -> None:
    asked = threading.Semaphore(0)

    def hang() -> None:
        asked.release()
        go_on.wait()

    probe = probe_of(hang)
    assert probe.problem() is None, "it isn't known yet"
    probe.start()
    try:
        eventually(lambda: probe.outage == "the store doesn't answer: no answer within 0.05 s")
        for _ in range(PROBES_OPEN_MAX):
            asked.acquire()
        problem = probe.problem()
        assert problem is not None
        assert (problem.where, problem.hint, problem.blocks_ready) == ("store s3://b", "look", True)
        assert not asked.acquire(timeout=0.2), "more aren't begun"
        go_on.set()
        eventually(lambda: probe.problem() is None)
    finally:
        probe.close()


def test_outage_is_one_line_and_its_end_another(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "offloader")
    errors: list[Exception] = [ConnectionRefusedError(), TimeoutError(), ConnectionRefusedError()]
    asked = threading.Semaphore(0)

    def check() -> None:
        asked.release()
        if errors:
            raise errors.pop()

    probe = probe_of(check, answer_s=60.0)
    probe.start()
    try:
        for _ in range(6):
            asked.acquire()
    finally:
        probe.close()
    told = [(getattr(each, "event", ""), each.getMessage()) for each in caplog.records]
    assert told == [
        ("outage", "store s3://b: the store doesn't answer: connection refused"),
        ("outage_over", "store s3://b: the store answers again after 0 s"),
    ]


def faulty(error: type[OffloaderError]) -> ObjectStore:
    return FaultyStore(MemoryStore("health", "", SystemClock()), [Fault(call=1, calls=10**6, error=error)])


@pytest.mark.parametrize("error", [NotFoundError, ThrottledError])
def test_an_absent_key_and_a_busy_store_are_answers(error: type[OffloaderError]) -> None:
    ask_store(faulty(error))


@pytest.mark.parametrize("error", [StoreUnavailableError, AccessDeniedError])
def test_silence_and_refusal_are_none(error: type[OffloaderError]) -> None:
    with pytest.raises(error):
        ask_store(faulty(error))


def test_overview_does_not_wait_for_a_store_that_hangs(go_on: threading.Event) -> None:
    clock, away = ManualClock(), ""
    with ThreadPoolExecutor(2) as threads:
        kept = KeptAnswers[int](threads, clock, is_away=lambda: away)
        soon = partial(kept.get, age_s_max=10.0)

        def hang() -> int:
            go_on.wait()
            return 2

        assert soon("a", lambda: 1, deadline_s=clock.monotonic_s() + 60.0) == 1
        clock.advance(60.0)
        assert soon("a", hang, deadline_s=clock.monotonic_s() + 0.05) == 1, "what was known last"
        with pytest.raises(StoreUnavailableError, match="didn't respond within"):
            soon("b", hang, deadline_s=clock.monotonic_s() + 0.05)
        away = "the store doesn't answer: connection refused"
        with pytest.raises(StoreUnavailableError, match="connection refused"):
            soon("c", lambda: 3, deadline_s=clock.monotonic_s() + 60.0)
        assert soon("a", hang, deadline_s=clock.monotonic_s() + 60.0) == 1
        away = ""
        go_on.set()
        assert soon("a", lambda: 3, deadline_s=clock.monotonic_s() + 60.0) in (2, 3)
