"""The web page in a real browser: content, updates, keyboard, light and dark, phones, guests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.service.dashboard.test_dashboard import Keep, Look, Serve
from tests.support.http_process import ORDERS, http_process
from tests.support.page_looks import FAINT_TEXT, TOKEN, WORST, address, nudge, overflow_px, shown
from tests.support.staged_view import NOW_MS, StagedView, lively, shape, stream_row

pytestmark = pytest.mark.process


@pytest.mark.parametrize("width", [1280, 390])
def test_topic_page_shows_all_partitions_and_offloads_them(
    look: Look, keep_picture: Keep, tmp_path: Path, width: int
) -> None:
    partitions = [f"shop/eu/persistent/events-partition-{number}" for number in (0, 1)]
    with http_process(tmp_path, streams=(*partitions, ORDERS)) as (http, process):
        # Retention is of the topic: a partition's page says so.
        page = shown(look(f"{http.url}/{address(partitions[1])}", width=width, expected=("400",)))
        page.get_by_role("link", name="All partitions").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("events")
        table = page.get_by_role("table", name="Partitions").locator("tbody tr")
        expect(table).to_have_count(2)
        expect(table.nth(1)).to_contain_text("live")
        expect(page.get_by_role("region", name="In the store")).to_contain_text("40 entries")
        expect(page.get_by_role("region", name="Ledgers, segments and time")).to_be_hidden()
        expect(page.get_by_role("table", name="Segments").locator("tbody tr")).to_have_count(2)
        for stream in partitions:
            process.sources[stream].append([b"one more"])
        page.get_by_role("button", name="Offload now").click()
        expect(page.get_by_text("All entries of 2 partitions are in the store.")).to_be_visible()
        expect(page.get_by_role("table", name="Segments")).to_contain_text("partition 1, V2, ledger")
        expect(page.get_by_role("region", name="In the store")).to_contain_text("42 entries")
        assert overflow_px(page) <= 0
        keep_picture(page, f"topic-{width}")
        page.get_by_role("table", name="Partitions").get_by_role("link", name="partition 0").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("events-partition-0")
        expect(page.get_by_role("region", name="Ledgers, segments and time")).to_be_visible()
        # A topic is found by the name that a person knows.
        page.goto(f"{http.url}/#/stream/persistent%3A%2F%2Fshop%2Feu%2Fevents")
        expect(table).to_have_count(2)
        page.goto("about:blank")


def test_thousands_of_streams_are_shown_in_pages(serve: Serve, look: Look) -> None:
    view = StagedView(
        rows=[stream_row(f"shop/eu/persistent/t-{number:04}", lag_s=float(number)) for number in range(2500)]
    )
    page = shown(look(serve(view).url))
    rows = page.locator(".streams tbody tr")
    expect(rows).to_have_count(50)
    expect(rows.first).to_contain_text("t-2499")
    # Twice before the page is there: a double click may be slower than the answer.
    page.get_by_role("button", name="Next").evaluate("button => { button.click(); button.click(); }")
    expect(rows.first).to_contain_text("t-2449")
    expect(page.get_by_text("51 to 100 of 2,500")).to_be_visible()
    page.get_by_role("button", name="Next").click()
    expect(page.get_by_text("101 to 150 of 2,500")).to_be_visible()
    page.get_by_role("button", name="Previous").click()
    expect(page.get_by_text("51 to 100 of 2,500")).to_be_visible()
    page.get_by_label("Order of the streams").select_option("name")
    expect(rows.first).to_contain_text("t-0000")
    expect(page.get_by_text("1 to 50 of 2,500")).to_be_visible()


@pytest.mark.parametrize("where", ["streams", "stream"])
def test_page_is_readable_in_light_and_dark_and_fits_a_phone(
    serve: Serve, look: Look, keep_picture: Keep, where: str
) -> None:
    view = lively()
    view.rows.append(stream_row(f"shop/eu/persistent/{'a-very-long-name-' * 14}end", lag_s=9999.0))
    url = serve(view).url + (address(WORST) if where == "stream" else "")
    grounds = []
    for dark in (False, True):
        page = shown(look(url, width=375, height=800, dark=dark))
        assert overflow_px(page) <= 0
        keep_picture(page, f"{where}-phone-{'dark' if dark else 'light'}")
        page.set_viewport_size({"width": 1280, "height": 900})
        page.locator("h2:visible").first.wait_for()
        assert overflow_px(page) <= 0
        assert page.evaluate(FAINT_TEXT) == []
        grounds.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        keep_picture(page, f"{where}-{'dark' if dark else 'light'}")
    assert grounds == ["rgb(245, 247, 248)", "rgb(15, 22, 28)"]


def test_page_asks_guest_for_token_and_keeps_it_in_the_tab(serve: Serve, look: Look, keep_picture: Keep) -> None:
    server = serve(lively(), token=TOKEN)
    asked: list[str] = []
    page = look(server.url, expected=("401",))
    page.on("request", lambda request: asked.append(request.url))
    expect(page.get_by_label("Token")).to_be_focused()
    expect(page.locator("#view")).to_be_hidden()
    keep_picture(page, "token")
    page.keyboard.type("a-token-that-nobody-gave-out")
    page.keyboard.press("Enter")
    expect(page.get_by_text("The process does not know this token.")).to_be_visible()
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator(".streams tbody tr")).to_have_count(12)
    expect(page.locator("#token-form")).to_be_hidden()
    assert page.evaluate("[Object.values({...sessionStorage}), {...localStorage}, document.cookie]") == [
        [TOKEN],
        {},
        "",
    ]
    assert all(TOKEN not in each for each in asked)
    assert {each.startswith(server.url) for each in asked} == {True}, "nobody else is asked"
    assert TOKEN not in page.content()
    page.get_by_role("button", name="Forget the token").click()
    expect(page.get_by_label("Token")).to_be_focused()
    assert page.evaluate("sessionStorage.length") == 0


def test_problems_are_listed_first_and_page_updates_by_itself(serve: Serve, look: Look, keep_picture: Keep) -> None:
    view = lively()
    server = serve(view)
    page = shown(look(server.url))
    rows = page.get_by_role("table", name="Streams").locator("tbody tr")
    expect(rows).to_have_count(12)
    expect(rows.first).to_contain_text("clicks-partition-0")
    expect(rows.first).to_contain_text("stalled")
    expect(rows.first).to_contain_text("32 min")
    expect(rows.first).to_contain_text("503 SlowDown")
    expect(rows.filter(has_text="sensors-partition-0")).to_contain_text("standby")
    expect(page.get_by_role("region", name="Problems")).to_contain_text("the store asks for fewer requests")
    expect(page.get_by_role("region", name="Retention decisions")).to_contain_text(
        "4.0 GiB: unread data is above max: the excess is deleted"
    )
    expect(page.get_by_role("region", name="Errors and warnings")).to_contain_text("it is asked again every 30 s")
    expect(page.get_by_role("region", name="Orphans", exact=True)).to_contain_text("31.0 MiB")
    expect(page).to_have_title("1 problem · offloader")
    keep_picture(page, "streams")

    view.rows[2] |= {
        "stalled": None,
        "last_error": None,
        "mode": "live",
        "lag": {"entries": 0, "bytes": 0, "seconds": 0},
    }
    view.problem_rows.clear()
    row = page.locator("tbody tr", has_text="clicks-partition-0")
    expect(row).to_contain_text("live")
    expect(row).not_to_contain_text("503 SlowDown")
    expect(page.locator("#state")).to_have_text("Working")
    expect(page.get_by_role("region", name="Problems")).to_be_hidden()
    expect(page).to_have_title("offloader")


def test_stream_page_draws_ledgers_segments_and_facts(serve: Serve, look: Look, keep_picture: Keep) -> None:
    view = lively()
    page = shown(look(serve(view).url + address(WORST), expected=("404",)))
    expect(page.get_by_role("heading", level=1)).to_have_text("clicks-partition-0")
    picture = page.get_by_role(
        "img", name=re.compile("4 ledgers, offloaded as 12 segments, 1 gap, 81,204 entries waiting")
    )
    expect(picture.locator("rect[data-ledger] > title").filter(has_text="ledger 6:")).to_have_count(1)
    # A segment that lies in two ledgers has a piece of the colour of each.
    across = picture.locator("rect[data-ledger] > title").filter(has_text="of ledger 6, ledger 7")
    expect(across).to_have_count(2)
    expect(picture.locator("line.gap")).to_have_count(1)
    expect(picture.locator("path.rate")).to_have_count(1)
    expect(page.get_by_role("region", name="Positions")).to_contain_text("9:3999")
    expect(page.get_by_role("table", name="Subscribers")).to_contain_text("billing")
    expect(page.get_by_role("table", name="Plan of cleanup")).to_contain_text("waits for grace period")
    expect(page.get_by_text("entries before 7:100 would be deleted: 74,000 entries")).to_be_visible()
    expect(page.get_by_role("alert").filter(has_text="entries up to 7:19 wait")).to_be_visible()
    decided = page.get_by_role("region", name="Past retention decisions")
    expect(decided.locator("li")).to_have_text(
        [re.compile("Deleted 12.0 MiB.*all subscribers have read"), re.compile("Nothing deleted")]
    )
    keep_picture(page, "stream")

    view.rows[2]["lag"] = {"entries": 90_000, "bytes": 1, "seconds": 1950.0}
    nudge(page)
    expect(page.get_by_role("img", name=re.compile("90,000 entries waiting"))).to_be_visible()
    # Times that don't rise can't be the axis: they are a line over the entries.
    uneven = shape(seed=5)
    uneven["timeline"][3][1] = NOW_MS - 90_000_000
    view.shapes["shop/eu/persistent/audit-partition-0"] = uneven
    page.goto(page.url.partition("#")[0] + address("shop/eu/persistent/audit-partition-0"))
    expect(page.locator("svg polyline.times")).to_have_count(1)
    expect(page.get_by_text(re.compile("the axis is entries"))).to_be_visible()
    # What isn't in the store has no picture, and says so.
    view.rows.append(stream_row("shop/eu/persistent/new"))
    page.goto(page.url.partition("#")[0] + address("shop/eu/persistent/new"))
    expect(page.get_by_text("No entries are in the store yet.")).to_be_visible()
    page.goto(page.url.partition("#")[0] + address("shop/eu/persistent/gone"))
    expect(page.get_by_text("there is no stream shop/eu/persistent/gone")).to_be_visible()


def test_last_known_state_stays_shown_while_server_is_unreachable(serve: Serve, look: Look, keep_picture: Keep) -> None:
    server = serve(lively())
    page = shown(look(server.url, expected=("Failed to load resource",)))
    server.stop()
    nudge(page)
    expect(page.get_by_text("The process does not respond:")).to_be_visible()
    expect(page.locator("#state")).to_have_text("Unreachable")
    expect(page.locator(".streams tbody tr")).to_have_count(12)
    keep_picture(page, "unreachable")
    server.start()
    page.get_by_role("button", name="Try now").click()
    expect(page.locator("#state")).to_have_text("1 problem")
    expect(page.get_by_text("The process does not respond:")).to_be_hidden()


def test_unreachable_store_hides_only_facts_from_the_store(serve: Serve, look: Look) -> None:
    view = lively()
    server = serve(view)
    page = shown(look(server.url, expected=("503",)))
    view.store_error = "store s3://cold-tier/production: connection refused"
    nudge(page)
    expect(page.get_by_text(f"Only the streams of this process: {view.store_error}")).to_be_visible()
    expect(page.locator(".streams tbody tr")).to_have_count(12)
    expect(page.get_by_text("The process returned an error:")).to_be_hidden()
    page.get_by_role("link", name="clicks-partition-0").first.click()
    expect(page.get_by_role("alert").filter(has_text="No figures from the store")).to_be_visible()
    expect(page.get_by_role("region", name="Behind")).to_contain_text("32 min")
    for part in ("Ledgers, segments and time", "Subscribers", "Cleanup: next round"):
        expect(page.get_by_role("region", name=part)).to_contain_text("connection refused")


def test_empty_process_shows_messages_instead_of_tables(
    serve: Serve, look: Look, empty: StagedView, keep_picture: Keep
) -> None:
    page = shown(look(serve(empty).url))
    expect(page.get_by_text("No streams yet")).to_be_visible()
    expect(page.get_by_text("No retention cycle has run yet.")).to_be_visible()
    expect(page.get_by_text("This process runs no cleanup.")).to_be_visible()
    expect(page.locator("#state")).to_have_text("Working")
    keep_picture(page, "empty")
