"""From ``keep`` to a deleted object: a serving process moves the start position, its page asks, an admin approves."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from formats.keys import parse_object_key
from offloader.cli.main import main
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
from offloader.manifest.boundary import listed
from offloader.read.reader import open_stream_reader
from offloader.settings import Settings
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from tests.support.http_process import ORDERS, ask
from tests.support.page_looks import shown
from tests.support.serving_processes import Serving
from tests.support.waiting import eventually

pytestmark = pytest.mark.process

SETTINGS = """
[serve]
store = "{store}"
ledgers = "{ledgers}"

[http]
listen = "127.0.0.1:0"

[offload]
method = "ledger"

[retention]
keep = "1d"
cycle_interval = "200ms"

[cleanup]
delete = true
grace_period = "0s"
cycle_interval = "200ms"
"""
HOUR_MS = 3_600_000
#: Three days of data, an entry for each hour, a ledger for two.
HOURS, LEDGER_ENTRIES = 72, 2


def test_data_older_than_keep_is_deleted_after_approval_on_the_page(tmp_path: Path, look: Callable[..., Page]) -> None:
    store = open_store(f"file://{tmp_path}/store")
    ledgers = f"sqlite:///{tmp_path}/ledgers.db"
    file = tmp_path / "offloader.toml"
    file.write_text(SETTINGS.format(store=store.url, ledgers=ledgers))
    now_ms = int(time.time() * 1000)
    settings = Settings.of({"ledgers": {"ledger_entries_max": LEDGER_ENTRIES}})
    with contextlib.closing(EmbeddedLedgers(ledgers, settings=settings.ledgers)) as database:
        orders = database.open_stream(ORDERS)
        for age in range(HOURS, 0, -1):
            orders.append([b"an hour"], [now_ms - age * HOUR_MS])
        orders.append([b"now"], [now_ms])
    assert main(["stream", "offload", ORDERS, "--ledgers", ledgers, "--config", str(file)]) == 0
    everything = objects_of(store)
    with Serving(file) as serving:
        url = serving.logged("http_started")["url"]
        eventually(lambda: ask(f"{url}/v1/overview").json()["awaiting_approval"])
        # The start position has moved to within one segment of a day ago; nothing was deleted.
        assert now_ms - 26 * HOUR_MS <= first_ms(store) <= now_ms - 22 * HOUR_MS
        assert objects_of(store) == everything

        page = shown(look(f"{url}/"))
        expect(page.locator("#state")).to_have_text("Needs approval")
        page.get_by_role("region", name="Needs approval").get_by_role("link", name="orders").click()
        page.get_by_role("button", name="Approve…").click()
        dialog = page.get_by_role("dialog", name="Delete more than half of this stream?")
        expect(dialog).to_contain_text(f"of {ORDERS}.")
        dialog.get_by_role("button", name="Yes, delete").click()
        expect(page.get_by_role("region", name="Needs approval")).to_be_hidden()

        eventually(lambda: len(objects_of(store)) < len(everything) / 2)
        assert sum(len(batch) for batch in open_stream_reader(store, ORDERS).scan()) in range(22, 28)
        assert ask(f"{url}/v1/overview").json()["awaiting_approval"] == []


def first_ms(store: ObjectStore) -> int:
    """Publish time of the first entry that can be read."""
    batch = next(iter(open_stream_reader(store, ORDERS).scan()))
    return int(batch.publish_times_ms[0])


def objects_of(store: ObjectStore) -> set[str]:
    return {info.key for info in listed(store, f"{ORDERS}/") if parse_object_key(info.key, ORDERS)}
