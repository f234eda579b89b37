"""The page of a sidecar whose real Pulsar broker is frozen and killed: its own state, and the broker by name."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pulsar
import pytest
from playwright.sync_api import Locator, Page, expect

from services.pulsar.broker import start_broker
from services.servers import free_port
from tests.proof.interop.broker_topics import NAMESPACE, topic_of
from tests.support.http_process import ask
from tests.support.page_looks import overflow_px, shown
from tests.support.serving_processes import Serving
from tests.support.sidecar_outage import Sidecar, write_settings
from tests.support.waiting import eventually

pytestmark = pytest.mark.java

TOPICS = ("orders", "payments", "shipments")
#: Seconds by which the lag on the page has to grow.
GROWTH_S = 3
#: Figures of seconds and minutes on the page.
_UNITS = {"s": 1, "min": 60}


def send(url: str) -> None:
    """One message to each topic."""
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    for name in TOPICS:
        client.create_producer(topic_of(name)).send(b"an order")
    client.close()


def rows_of(page: Page) -> Locator:
    return page.locator(".streams tbody tr")


def behind_s(row: Locator) -> int:
    """How far a stream is behind, as the page has it."""
    number, unit = re.fullmatch(r"≥ (?:< )?(\d+) (s|min)", row.locator('td[data-label="Behind"]').inner_text()).groups()  # type: ignore[union-attr]
    return int(number) * _UNITS[unit]


def check_lost(page: Page, sidecar: Sidecar, why: str) -> None:
    """Not ready, the broker named with the reason, every stream disconnected, and a lag that grows."""
    expect(page.locator("#state")).to_have_text("Broker unreachable")
    expect(page.locator("#state")).to_have_attribute("data-state", "bad")
    problems = page.get_by_role("region", name="Problems")
    expect(problems).to_contain_text(f"the broker {sidecar.broker_url} doesn't answer: {why}")
    assert ask(f"{sidecar.url}/readyz").status == 503
    rows = rows_of(page)
    expect(rows).to_have_count(len(TOPICS))
    for number in range(len(TOPICS)):
        expect(rows.nth(number).locator('td[data-label="Mode"]')).to_have_text("disconnected")
        expect(rows.nth(number).locator('td[data-label="Behind"]')).to_contain_text("≥")
    first_s = behind_s(rows.first)
    eventually(lambda: behind_s(rows.first) >= first_s + GROWTH_S)
    expect(page.get_by_role("region", name="Furthest behind")).to_contain_text("≥")


def check_working(page: Page, sidecar: Sidecar, entries: str) -> None:
    """Ready, every stream live and not behind, and all its entries in the store."""
    sidecar.check_working()
    expect(page.locator("#state")).to_have_text("Working")
    expect(page.get_by_role("region", name="Problems")).to_be_hidden()
    rows = rows_of(page)
    expect(rows).to_have_count(len(TOPICS))
    for number in range(len(TOPICS)):
        expect(rows.nth(number).locator('td[data-label="Mode"]')).to_have_text("live")
        expect(rows.nth(number).locator('td[data-label="Behind"]')).to_have_text("0 s")
        expect(rows.nth(number).locator('td[data-label="Offloaded"]')).to_contain_text(entries)


def test_page_names_the_frozen_and_the_killed_broker_and_recovers(tmp_path: Path, look: Callable[..., Page]) -> None:
    ports = {"brokerServicePort": str(free_port()), "webServicePort": str(free_port())}
    broker, port = start_broker(tmp_path / "broker", ports), free_port()
    try:
        send(broker.service_url)
        config = write_settings(tmp_path, broker.service_url, broker.admin_url, NAMESPACE, port)
        with Serving(config) as process:
            sidecar = Sidecar(process, f"http://127.0.0.1:{port}", broker.service_url, NAMESPACE, len(TOPICS))
            sidecar.check_working()
            page = shown(look(sidecar.url))
            check_working(page, sidecar, "1 entry")

            os.kill(broker.process.pid, signal.SIGSTOP)
            try:
                check_lost(page, sidecar, "no answer within 5 s")
            finally:
                os.kill(broker.process.pid, signal.SIGCONT)
            check_working(page, sidecar, "1 entry")

            broker.kill()
            check_lost(page, sidecar, "connection refused")
            phone = shown(look(sidecar.url, width=390, height=1100))
            check_lost(phone, sidecar, "connection refused")
            assert overflow_px(phone) <= 0

            broker = start_broker(tmp_path / "broker", ports)
            send(broker.service_url)
            check_working(page, sidecar, "2 entries")
            expect(phone.locator("#state")).to_have_text("Working")
            # A tab that outlived the process would complain about requests refused or reset.
            for tab in (page, phone):
                tab.context.close()
    finally:
        broker.end()
