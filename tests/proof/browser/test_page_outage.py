"""The page of a real process whose S3 server is frozen: the process's own state at once, and never "Working"."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
from services.servers import RunningServer, free_port, make_bucket, start
from tests.support.freezing_proxy import FreezingProxy
from tests.support.http_process import ORDERS, ask, quoted
from tests.support.page_looks import address, shown
from tests.support.serving_processes import Serving
from tests.support.waiting import eventually

pytestmark = pytest.mark.process

SETTINGS = """
[serve]
store = "s3://cold-tier/page"
endpoint_url = "{endpoint}"
region = "us-east-1"
ledgers = "{ledgers}"

[http]
listen = "127.0.0.1:0"

[offload]
method = "streaming"
"""


@pytest.fixture
def server(tmp_path: Path, one_server: str) -> Iterator[RunningServer]:
    """An S3 server of this test alone: it is frozen."""
    found = start(one_server, tmp_path / "s3")
    try:
        make_bucket(found.endpoint, "cold-tier")
        yield found
    finally:
        signalled(found, signal.SIGCONT)
        found.stop()


def signalled(server: RunningServer, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.process.pid, number)


def test_page_shows_the_state_of_a_process_whose_store_is_frozen(
    tmp_path: Path, server: RunningServer, look: Callable[..., Page]
) -> None:
    ledgers = f"sqlite:///{tmp_path}/ledgers.db"
    file = tmp_path / "offloader.toml"
    file.write_text(SETTINGS.format(endpoint=server.endpoint.url, ledgers=ledgers))
    keys = {"AWS_ACCESS_KEY_ID": server.endpoint.access_key, "AWS_SECRET_ACCESS_KEY": server.endpoint.secret_key}
    with contextlib.closing(EmbeddedLedgers(ledgers)) as database:
        orders = database.open_stream(ORDERS)
        orders.append([b"an entry"] * 20)
        with Serving(file, keys) as serving:
            url = serving.logged("http_started")["url"]
            offload = f"{url}/v1/streams/{quoted(ORDERS)}/offload"
            # HTTP answers before the database is looked at.
            eventually(lambda: ask(offload, method="POST").json().get("committed") == "1:19")
            status = f"{url}/v1/streams?served=true"
            eventually(lambda: ask(status).json()["items"][0]["bytes_per_second"] > 0)
            page = shown(look(f"{url}/", expected=("503", "Failed to load resource")))
            expect(page.locator("#state")).to_have_text("Working")

            signalled(server, signal.SIGSTOP)
            orders.append([b"one more"])
            new = look(f"{url}/")
            row = new.locator(".streams tbody tr", has_text="orders")
            expect(row).to_contain_text("20 entries")
            expect(new.locator("#state")).to_have_text(re.compile("Waiting for the store|Store unreachable"))
            expect(new.get_by_text("Process figures: < 1 s old")).to_be_visible()
            new.goto(f"{url}/{address(ORDERS)}")
            expect(new.get_by_role("region", name="Behind")).to_contain_text("1 entry wait")
            expect(page.locator("#state")).not_to_have_text("Working")
            eventually(lambda: ask(status).json()["items"][0]["mode"] == "stalled")
            assert re.search(r'^offloader_streams{mode="stalled".*} 1\.0$', ask(f"{url}/metrics").body.decode(), re.M)

            signalled(server, signal.SIGCONT)
            assert ask(offload, method="POST").json()["committed"] == "1:20"
            expect(new.locator("#state")).to_have_text("Working")
            expect(new.get_by_role("region", name="In the store")).to_contain_text("21 entries")
            expect(page.locator("#state")).to_have_text("Working")
            serving.logged("outage_over")
            told = [each["event"] for each in serving.lines if each["level"] != "info"]
            assert told == ["outage", "outage_over"], "one line an outage, and one when it ends"


#: What the probe of the store asks for.
PROBE = b"/_store"
#: No request gives up by itself while a test runs.
PATIENT = """
[store]
read_timeout = "1h"
retry_total = "1h"
"""


def test_state_of_the_process_is_shown_before_any_request_to_the_store_ends(
    tmp_path: Path, server: RunningServer, look: Callable[..., Page]
) -> None:
    ledgers = f"sqlite:///{tmp_path}/ledgers.db"
    file = tmp_path / "offloader.toml"
    keys = {"AWS_ACCESS_KEY_ID": server.endpoint.access_key, "AWS_SECRET_ACCESS_KEY": server.endpoint.secret_key}
    with (
        FreezingProxy(server.endpoint.url) as proxy,
        contextlib.closing(EmbeddedLedgers(ledgers)) as database,
    ):
        file.write_text(SETTINGS.format(endpoint=proxy.url, ledgers=ledgers) + PATIENT)
        orders = database.open_stream(ORDERS)
        orders.append([b"an entry"] * 20)
        with Serving(file, keys) as serving:
            url = serving.logged("http_started")["url"]
            offload = f"{url}/v1/streams/{quoted(ORDERS)}/offload"
            # HTTP answers before the database is looked at.
            eventually(lambda: ask(offload, method="POST").json().get("committed") == "1:19")

            proxy.freeze()
            orders.append([b"one more"])
            eventually(lambda: proxy.waiting)
            page = look(f"{url}/", expected=("503", "Failed to load resource"))
            expect(page.locator(".streams tbody tr", has_text="orders")).to_contain_text("20 entries")
            expect(page.get_by_text("Process figures: < 1 s old")).to_be_visible()
            page.goto(f"{url}/{address(ORDERS)}")
            expect(page.get_by_role("region", name="Behind")).to_contain_text("1 entry wait")
            assert ask(f"{url}/readyz").status in (200, 503)
            assert ask(f"{url}/v1/status").json()["streams"][0]["stream"] == ORDERS
            assert ask(f"{url}/v1/overview").status == 200
            [row] = ask(f"{url}/v1/streams?served=true").json()["items"]
            assert (row["stream"], row["lag"]["entries"]) == (ORDERS, 1)
            assert ask(f"{url}/metrics").status == 200
            expect(page.locator("#state")).to_have_text(re.compile("Waiting for the store|Store unreachable"))
            eventually(lambda: ask(f"{url}/readyz").status == 503)
            # All of this without one answer of the store, and without a request that gave up but the probe's own.
            assert proxy.waiting
            assert [each for each in proxy.given_up if PROBE not in each] == []
            proxy.thaw()
            expect(page.locator("#state")).to_have_text("Working")


BROKER = """
[serve]
store = "file://{folder}/store"

[http]
listen = "127.0.0.1:0"

[pulsar]
topics = ["public/default/orders"]
service_url = "pulsar://127.0.0.1:{port}"
admin_url = "http://127.0.0.1:{port}"
"""


def test_page_names_the_broker_that_refuses_connections(tmp_path: Path, look: Callable[..., Page]) -> None:
    file = tmp_path / "offloader.toml"
    file.write_text(BROKER.format(folder=tmp_path, port=free_port()))
    with Serving(file) as serving:
        page = shown(look(f"{serving.logged('http_started')['url']}/", expected=("Failed to load resource",)))
        expect(page.locator("#state")).to_have_text("Broker unreachable")
        expect(page.locator("#state")).to_have_attribute("data-state", "bad")
        expect(page.get_by_role("region", name="Problems")).to_contain_text("connection refused")
