"""The web page in a real browser: content, updates, keyboard, light and dark, phones, guests."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from formats.entries import Position
from offloader.manifest.topic_layouts import record_end, record_layout
from tests.read.test_partitions_segments import PLACE, layout_of, stream_of
from tests.support.http_process import ORDERS, PAYMENTS, http_process
from tests.support.page_looks import shown
from tests.support.page_server import PageServer
from tests.support.staged_view import NOW_MS, StagedView, lively, stream_row
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.process

Serve = Callable[..., PageServer]
Look = Callable[..., Page]
Keep = Callable[[Page, str], None]


def test_page_shows_state_of_real_process(look: Look, tmp_path: Path) -> None:
    """Uses a real process with ledgers and a store, seen through the page."""
    with http_process(tmp_path, streams=(ORDERS, PAYMENTS)) as (http, process):
        page = shown(look(f"{http.url}/"))
        rows = page.locator(".streams tbody tr")
        expect(rows).to_have_count(2)
        expect(rows.filter(has_text="orders")).to_contain_text("20 entries")
        page.get_by_role("link", name="orders").click()
        expect(page.get_by_role("img", name="20 entries in 1 ledger, offloaded as 1 segment")).to_be_visible()
        expect(page.get_by_role("region", name="Positions")).to_contain_text("1:19")
        expect(page.get_by_role("table", name="Segments")).to_contain_text("V2, ledger 1")
        expect(page.get_by_text("no policy: no automatic deletion")).to_be_visible()
        process.sources[ORDERS].append([b"one more"])
        process.streams[ORDERS].offload(timeout_s=PATIENCE_S)
        expect(page.get_by_role("img", name="21 entries in 1 ledger, offloaded as 2 segments")).to_be_visible()
        expect(page.locator("#state")).to_have_text("Working")


def test_everything_is_reached_by_keyboard(serve: Serve, look: Look) -> None:
    page = shown(look(serve(lively()).url))
    reached = []
    for _ in range(5):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate("document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent")
        )
    assert reached == [
        "Skip to the content", "offloader, all streams", "Search streams by name", "Order of the streams",
        "clicks-partition-0",
    ]  # fmt: skip
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("clicks-partition-0")
    expect(page.get_by_role("heading", level=1)).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Escape")
    link = page.get_by_role("link", name="clicks-partition-0").first
    expect(link).to_be_focused()
    # It stays there while what is shown is renewed.
    with page.expect_response(re.compile("/v1/orphans")):
        pass
    expect(link).to_be_focused()
    page.keyboard.press("/")
    page.keyboard.type("PAYMENTS")
    expect(page.locator(".streams tbody tr")).to_have_count(2)
    expect(page.get_by_role("status").filter(has_text="1 to 2 of 2")).to_be_visible()
    page.keyboard.type(" of nobody")
    expect(page.get_by_text("No matching streams")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator(".streams tbody tr")).to_have_count(12)


HOSTILE = [
    "shop/eu/persistent/<img src=x onerror=hacked=1>",
    'shop/eu/persistent/"><script>hacked=1</script>',
    "javascript:hacked=1/persistent/'onclick='hacked=1",
    "shop/eu/persistent/%3Cb%3E..%2F#&?=;",
    "shop/eu/persistent/\u202eevil\u0000".replace("\u0000", "\u2028"),
]


def test_markup_in_names_and_messages_is_shown_as_text(serve: Serve, look: Look) -> None:
    view = StagedView(rows=[stream_row(name, last_error=f"broken: {name}") for name in HOSTILE])
    view.problem_rows = [
        {"where": name, "what": name, "hint": name, "since_ms": None, "blocks_ready": True} for name in HOSTILE
    ]
    view.error_rows = [
        {
            "first_ms": NOW_MS, "last_ms": NOW_MS, "count": 1, "level": "error", "stream": name, "event": "",
            "hint": name, "message": name,
        }
        for name in HOSTILE
    ]  # fmt: skip
    view.decision_rows = [
        {"stream": name, "at_ms": NOW_MS, "bytes": 1, "overridden": [name], "why": name, "error": None, "hint": name}
        for name in HOSTILE
    ]
    view.words = HOSTILE
    server = serve(view)
    page = shown(look(server.url))
    for name in HOSTILE:
        assert name in page.get_by_role("region", name="Problems").inner_text()
        page.locator(f'.streams a[href="#/stream/{server.encoded(name)}"]').click()
        expect(page.get_by_role("region", name="Positions")).to_contain_text(name)
        assert page.locator("pre.words").text_content() == "\n".join(HOSTILE)
        page.keyboard.press("Escape")
        expect(page.locator(".streams tbody tr")).to_have_count(len(HOSTILE))
    assert page.evaluate("typeof hacked") == "undefined"
    assert page.locator("img").count() == 1, "the brand's"
    assert page.locator("script").count() == 1


def test_scalable_topic_is_drawn_with_the_segments_that_it_split_into(look: Look, tmp_path: Path) -> None:
    with http_process(tmp_path, streams=(ORDERS, *map(stream_of, range(3)))) as (http, process):
        record_layout(process.store, PLACE, layout_of(1, 2))
        record_end(process.store, PLACE, 0, Position(1, 19))
        page = shown(look(f"{http.url}/#/stream/{quote(PLACE, safe='')}", expected=("ERR_CONNECTION_REFUSED",)))
        graph = page.get_by_role("group", name="3 segments of the topic, 2 active, epoch 2")
        expect(graph.get_by_role("link")).to_have_count(3)
        expect(page.get_by_role("region", name="Partitions")).to_contain_text("segment 2")
        graph.get_by_role("link", name="Segment 1, hashes 0000 to 7fff, after 0: takes entries").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("0000-7fff-1")
        expect(graph.locator("[aria-current]")).to_have_attribute("href", re.compile("0000-7fff-1$"))
        page.get_by_role("link", name="The whole topic").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("orders")
        page.get_by_role("link", name="← All streams").click()
        page.get_by_role("link", name=ORDERS.rpartition("/")[2], exact=True).click()
        expect(page.get_by_role("table", name="Segments")).to_be_visible()
        expect(page.get_by_role("link", name="Segment 1", exact=False)).to_have_count(0)
        page.close()
