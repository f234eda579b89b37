"""The probe of a broker: what it says of each way to lose one, and that it notices when the broker is back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from offloader.runtime.clock import SystemClock
from offloader.service.health import PROBE_ANSWER_S, Probe, ask_broker, probe_client
from offloader.settings import PulsarSettings
from services.toxiproxy import Toxiproxy
from tests.support.certificates import Authority
from tests.support.pulsar_broker import FakeBroker
from tests.support.waiting import eventually

NO_ANSWER = f"no answer within {PROBE_ANSWER_S:g} s"


@contextmanager
def probing(settings: PulsarSettings) -> Iterator[Probe]:
    """A probe that asks often."""
    clock = SystemClock()
    client = probe_client(settings, clock)
    check = partial(ask_broker, client)
    probe = Probe("source", "pulsar", "the broker", check, clock=clock, hint="", end=client.close, period_s=0.05)
    probe.start()
    try:
        yield probe
    finally:
        probe.close()


def await_up(probe: Probe) -> None:
    eventually(lambda: probe.reach.is_up)
    assert probe.problem() is None


def await_outage(probe: Probe, why: str) -> None:
    eventually(lambda: probe.outage == f"the broker doesn't answer: {why}")
    problem = probe.problem()
    assert problem is not None
    assert problem.blocks_ready


@pytest.mark.process
def test_black_hole_and_trickling_broker_are_no_answer_until_it_ends(toxiproxy: Toxiproxy) -> None:
    with FakeBroker() as broker:
        between = toxiproxy.proxy("broker-probe", broker.url)
        settings = PulsarSettings(service_url=between.url.replace("http://", "pulsar://"))
        with probing(settings) as probe:
            await_up(probe)
            with between.toxic("timeout", timeout=0):
                await_outage(probe, NO_ANSWER)
            await_up(probe)
            # A byte of the answer each second: no wait for the next byte is long.
            with between.toxic("slicer", average_size=1, size_variation=0, delay=1_000_000):
                await_outage(probe, NO_ANSWER)
            await_up(probe)
            between.cut_off()
            await_outage(probe, "connection refused")
            between.let_through()
            await_up(probe)


def test_broker_that_takes_connections_and_says_nothing_is_an_outage() -> None:
    with FakeBroker() as broker, probing(PulsarSettings(service_url=broker.url)) as probe:
        await_up(probe)
        broker.is_silent = True
        await_outage(probe, NO_ANSWER)
        broker.is_silent = False
        await_up(probe)


def test_name_that_does_not_exist_is_told() -> None:
    with probing(PulsarSettings(service_url="pulsar://no-such-host.invalid:6650")) as probe:
        await_outage(probe, "host name not found")


def test_expired_certificate_is_told(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with FakeBroker(tls=authority.server(expired=True)) as broker:
        settings = PulsarSettings(service_url=broker.url, ca_file=str(authority.ca_file))
        with probing(settings) as probe:
            await_outage(probe, "certificate verification failed: certificate has expired")


def test_token_that_the_broker_refuses_is_told_and_a_right_one_is_let_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "token"
    token.write_text("wrong-token-0123456789")
    with FakeBroker(token="right-token-0123456789") as broker:
        settings = replace(PulsarSettings(service_url=broker.url), token=f"file:{token}")
        with probing(settings) as probe:
            eventually(lambda: probe.reach.is_up is False)
            assert "refuse" in probe.outage or "authenticate" in probe.outage, probe.outage
            assert "wrong-token" not in probe.outage
            token.write_text("right-token-0123456789")
            await_up(probe)
