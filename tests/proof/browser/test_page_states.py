"""The page in four states, wide and on a phone: working, store down, broker down, approval needed.

``python -m docs.page_pictures`` runs it and draws the pictures of the documents anew.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.support.page_looks import FAINT_TEXT, TOKEN, WORST, address, nudge, overflow_px, shown
from tests.support.page_server import PageServer
from tests.support.staged_view import NOW_MS, StagedView, lively, stream_row

pytestmark = pytest.mark.process

Serve = Callable[..., PageServer]
Look = Callable[..., Page]
Keep = Callable[[Page, str], None]

CLICKS = "shop/eu/persistent/clicks-partition-0"
STORE_WHY = "no answer within 5 s"
BROKER_WHY = "the broker pulsar://broker-1:6650: connection refused"
#: Parts of the streams in what is offloaded; the last one is idle.
SHARES = (0.25, 0.02, 0.58, 0.1, 0.05, 0.0)
#: Captions and figures of which a part isn't seen: the text is wider than its box, and the rest is cut off.
CUT_TEXT = """() => [...document.querySelectorAll("main *, .pill")].filter((node) => {
  const style = getComputedStyle(node);
  return node.checkVisibility() && style.overflowX !== "visible" && style.overflowX !== "auto"
    && node.scrollWidth > node.clientWidth + 1 && node.textContent.trim() && !node.closest("svg, thead");
}).map((node) => node.textContent.trim().slice(0, 60))"""
#: Captions of cells on a phone that share a line with what stands beside them and overlap it.
OVERLAPS = """() => [...document.querySelectorAll(".cards td")].filter((cell) => {
  const node = cell.firstChild;
  if (!node || !cell.checkVisibility() || getComputedStyle(cell).display !== "flex") return false;
  return cell.scrollWidth > cell.clientWidth + 1;
}).map((cell) => `${cell.dataset.label}: ${cell.textContent}`)"""


def working() -> StagedView:
    """A process in which nothing is wrong."""
    view = lively(6)
    for row in view.rows:
        row |= {
            "mode": "live", "stalled": None, "last_error": None, "active": True, "feed": "pulsar",
            "method": "streaming", "segments": {"offloaded": 412, "failed": 0},
        }  # fmt: skip
    template = stream_row("x")
    for row in view.rows:
        row |= {name: value for name, value in template.items() if row.get(name) is None and name != "stream"}
        row["stalled"] = row["last_error"] = None
    view.rows[4]["lag"] = {"entries": 2_400, "bytes": 2_457_600, "seconds": 12.0}
    view.rows[2]["lag"] = {"entries": 120, "bytes": 122_880, "seconds": 3.0}
    view.rows[2]["buffer"] = {"bytes": 9 * 1024 * 1024, "bytes_max": 64 * 1024 * 1024}
    view.rows[2]["last_progress_ms"] = NOW_MS - 21_000
    view.problem_rows, view.error_rows = [], []
    view.decision_rows = [each for each in view.decision_rows if each["error"] is None]
    view.health = {"store": reach(), "sources": {"pulsar": reach()}}
    share_rate(view)
    return view


def share_rate(view: StagedView) -> None:
    """Gives each stream a part of the rate of the process."""
    per_second = sum(view.minute_bytes[-5:]) / 300
    for row, part in zip(view.rows, SHARES, strict=True):
        row["bytes_per_second"] = per_second * part


def reach(why: str = "") -> dict[str, Any]:
    return {"up": not why, "why": why, "since_ms": NOW_MS - 130_000}


def outage(view: StagedView, where: str, why: str) -> None:
    problem = {
        "where": where, "what": why, "hint": "no data is lost: the process retries until the store answers",
        "since_ms": NOW_MS - 130_000, "blocks_ready": True,
    }  # fmt: skip
    view.problem_rows.append(problem)
    view.minute_bytes = [*view.minute_bytes[2:], 0, 0]
    share_rate(view)


def store_down() -> StagedView:
    """The store is frozen: nothing that is asked of it is answered."""
    view = working()
    outage(view, "store s3://cold-tier/production", STORE_WHY)
    view.health["store"] = reach(STORE_WHY)
    view.store_answers.clear()
    for number, row in enumerate(view.rows):
        row["stalled"] = f"entries up to 9:4411 wait: the store: {STORE_WHY}" if number < 3 else None
        row["mode"] = "stalled" if number < 3 else "live"
        row["lag"] = {"entries": 8_120, "bytes": 8_314_880, "seconds": 131.0} if number < 3 else row["lag"]
    return view


def broker_down() -> StagedView:
    view = working()
    outage(view, "feed pulsar", f"{BROKER_WHY}; 6 topics wait")
    view.health["sources"]["pulsar"] = reach(BROKER_WHY)
    for row in view.rows:
        lag = {"entries": 0, "bytes": 0, "seconds": 131.0}
        row |= {
            "mode": "disconnected", "disconnected": BROKER_WHY, "lag": lag, "lag_known_ms": NOW_MS - 131_000,
        }  # fmt: skip
    return view


def asking() -> StagedView:
    """Cleanup of more than half of a stream needs approval."""
    view = working()
    gib = 1024**3
    view.approval_rows = [
        {"stream": CLICKS, "segments": 34, "bytes": 12 * gib, "bytes_stored": 20 * gib, "since_ms": NOW_MS - 600_000},
    ]  # fmt: skip
    view.plan_fields = {"large": True, "segments": 34, "bytes": 12 * gib, "bytes_stored": 20 * gib}
    return view


STATES: dict[str, tuple[Callable[[], StagedView], str]] = {
    "working": (working, "Working"),
    "store-down": (store_down, "Store unreachable"),
    "broker-down": (broker_down, "Broker unreachable"),
    "asking": (asking, "Needs approval"),
}


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("state", STATES)
def test_each_state_is_named_and_readable_wide_and_on_a_phone(
    serve: Serve, look: Look, keep_picture: Keep, state: str, width: int
) -> None:
    make, word = STATES[state]
    view = make()
    try:
        page = look(serve(view).url, width=width, height=900 if width > 760 else 1100)
        expect(page.locator("#state")).to_have_text(word)
        expect(page.locator(".streams tbody tr")).to_have_count(6)
        expect(page.get_by_text("Loading…").filter(visible=True)).to_have_count(0)
        assert overflow_px(page) <= 0
        assert page.evaluate(FAINT_TEXT) == []
        assert page.evaluate(CUT_TEXT) == []
        assert page.evaluate(OVERLAPS) == []
        keep_picture(page, f"page-{state}-{width}")
    finally:
        view.store_answers.set()


@pytest.mark.parametrize("width", [360, 1024])
def test_rows_are_whole_on_a_small_phone_and_a_tablet(serve: Serve, look: Look, width: int) -> None:
    page = look(serve(broker_down()).url, width=width)
    expect(page.locator(".streams tbody tr")).to_have_count(6)
    assert page.evaluate(CUT_TEXT) == []
    assert page.evaluate(OVERLAPS) == []
    table = page.locator(".streams").evaluate("(table) => table.scrollWidth - table.parentElement.clientWidth")
    assert table <= 0


def test_rate_of_each_stream_is_shown_and_orders_the_list(serve: Serve, look: Look) -> None:
    view = working()
    view.rows = [
        stream_row("a/b/persistent/idle"),
        stream_row("a/b/persistent/fast", bytes_per_second=20_800_000.0),
        stream_row("a/b/persistent/slow", bytes_per_second=4_000.0),
        stream_row("a/b/persistent/elsewhere", bytes_per_second=None),
    ]
    page = shown(look(serve(view).url))
    page.get_by_label("Order of the streams").select_option(label="Highest rate")
    rows = page.locator(".streams tbody tr")
    for number, (name, rate) in enumerate([
        ("fast", "20.8 MB/s"), ("slow", "< 0.01 MB/s"), ("elsewhere", ""), ("idle", "0 MB/s"),
    ]):  # fmt: skip
        expect(rows.nth(number)).to_contain_text(name)
        expect(rows.nth(number).locator('td[data-label="Rate"]')).to_have_text(rate)


def test_frozen_store_leaves_the_state_of_the_process_and_its_age(serve: Serve, look: Look) -> None:
    """Before the store has answered anything: rows, lag, the last hour, and how old they are; never "Working"."""
    view = working()
    view.store_answers.clear()
    try:
        page = look(serve(view).url)
        expect(page.locator(".streams tbody tr")).to_have_count(6)
        expect(page.locator("#state")).to_have_text("Waiting for the store")
        expect(page.get_by_text("Process figures: < 1 s old, no figures from the store yet.")).to_be_visible()
        expect(page.get_by_text("Only the streams of this process: no answer from the store yet")).to_be_visible()
        page.get_by_role("link", name="clicks-partition-0").first.click()
        expect(page.get_by_role("region", name="Behind")).to_contain_text("3 s")
        expect(page.get_by_role("region", name="Segments", exact=True).first).to_contain_text("412")
        expect(page.locator("#state")).to_have_text("Waiting for the store")
        expect(page.get_by_role("region", name="Subscribers")).to_contain_text("no answer from the store yet")
    finally:
        view.store_answers.set()
    expect(page.locator("#state")).to_have_text("Working")
    expect(page.get_by_text("store figures")).to_be_visible()
    expect(page.get_by_role("table", name="Subscribers")).to_contain_text("billing")


def test_working_turns_into_an_outage_and_back(serve: Serve, look: Look) -> None:
    view = working()
    page = shown(look(serve(view).url))
    expect(page.locator("#state")).to_have_text("Working")
    down = broker_down()
    view.rows, view.problem_rows, view.health = down.rows, down.problem_rows, down.health
    nudge(page)
    expect(page.locator("#state")).to_have_text("Broker unreachable")
    row = page.locator(".streams tbody tr").first
    expect(row).to_contain_text("disconnected")
    expect(row).to_contain_text("≥ 2 min")
    expect(page.get_by_role("region", name="Problems")).to_contain_text("connection refused; 6 topics wait")
    up = working()
    view.rows, view.problem_rows, view.health = up.rows, up.problem_rows, up.health
    nudge(page)
    expect(page.locator("#state")).to_have_text("Working")


def test_process_that_is_not_ready_is_never_called_working(serve: Serve, look: Look) -> None:
    view = working()
    view.health = {"store": None, "sources": {}}
    outage(view, "feed pulsar", "no broker answers")
    page = shown(look(serve(view).url))
    expect(page.locator("#state")).to_have_text("1 problem")
    expect(page.locator("#state")).to_have_attribute("data-state", "bad")


def test_last_hour_is_the_servers_and_survives_a_reload(serve: Serve, look: Look) -> None:
    view = working()
    view.minute_bytes = [60_000_000] * 59 + [6_000_000_000]
    page = shown(look(serve(view).url))
    label = "8.9 GiB in the last hour, at most 100 MB/s in a minute"
    for _ in range(2):
        expect(page.get_by_role("img", name=label)).to_be_visible()
        expect(page.get_by_role("img", name=label).locator("rect")).to_have_count(60)
        expect(page.get_by_role("region", name="The last hour")).to_contain_text("20.8 MB/s")
        page.reload()


class Commands:
    """Notes what is asked of it, and does it to the view."""

    def __init__(self, view: StagedView) -> None:
        self.view, self.asked = view, list[tuple[Any, ...]]()

    def offload(self, name: str, *, until: str, timeout_s: float, by: str) -> dict[str, Any]:
        self.asked.append(("offload", name))
        return {"stream": name, "committed": "9:4411"}

    def pause(self, name: str, *, reason: str, by: str) -> dict[str, Any]:
        self.asked.append(("pause", name, reason))
        return self._in_mode(name, "paused")

    def resume(self, name: str, *, by: str) -> dict[str, Any]:
        self.asked.append(("resume", name))
        return self._in_mode(name, "live")

    def clean(self, name: str, *, plan: str, by: str) -> dict[str, Any]:
        self.asked.append(("clean", name, plan))
        self.view.plan_fields, self.view.approval_rows = {}, []
        counts = {"retired": 34, "released": 0, "purged": 0, "deleted_objects": 0, "deleted_bytes": 0}
        return {"stream": name, **counts}

    def _in_mode(self, name: str, mode: str) -> dict[str, Any]:
        for row in self.view.rows:
            if row["stream"] == name:
                row["mode"] = mode
        return {"stream": name, "paused": mode == "paused", "changed": True, "assigned": 0, "committed": None}


def signed_in(page: Page) -> Page:
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_role("button", name="Sign in").click()
    return shown(page)


def test_writer_offloads_pauses_and_resumes(serve: Serve, look: Look, keep_picture: Keep) -> None:
    view = working()
    commands = Commands(view)
    server = serve(view, TOKEN, control=commands, role="write")
    page = signed_in(look(server.url + address(CLICKS), expected=("401",)))
    page.get_by_role("button", name="Offload now").click()
    expect(page.get_by_text("All entries up to 9:4411 are in the store.")).to_be_visible()
    page.get_by_role("button", name="Pause…").click()
    page.get_by_label("Reason (shown to other operators)").fill("a move")
    keep_picture(page, "page-pause")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    page.get_by_role("button", name="Pause…").click()
    page.get_by_label("Reason (shown to other operators)").fill("a move")
    page.get_by_role("button", name="Pause", exact=True).click()
    expect(page.get_by_text("Offloading paused.")).to_be_visible()
    expect(page.locator(".head .badge")).to_have_text("paused")
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_text("Offloading resumed.")).to_be_visible()
    assert commands.asked == [("offload", CLICKS), ("pause", CLICKS, "a move"), ("resume", CLICKS)]


def test_reader_sees_no_buttons_and_is_told_who_may_approve(serve: Serve, look: Look) -> None:
    server = serve(asking(), TOKEN, control=None, role="read")
    page = signed_in(look(server.url + address(CLICKS), expected=("401",)))
    expect(page.get_by_role("region", name="Needs approval")).to_contain_text("34 segments, 12.0 GiB of 20.0 GiB")
    expect(page.get_by_text("A user with the role admin can approve it here.")).to_be_visible()
    for name in ("Offload now", "Pause…", "Resume", "Approve…"):
        expect(page.get_by_role("button", name=name)).to_have_count(0)


@pytest.mark.parametrize("width", [1280, 390])
def test_admin_approves_what_is_shown(serve: Serve, look: Look, keep_picture: Keep, width: int) -> None:
    view = asking()
    commands = Commands(view)
    server = serve(view, TOKEN, control=commands, role="admin")
    page = signed_in(look(server.url, width=width, expected=("401",)))
    page.get_by_role("region", name="Needs approval").get_by_role("link", name="clicks-partition-0").click()
    page.get_by_role("button", name="Approve…").click()
    dialog = page.get_by_role("dialog", name="Delete more than half of this stream?")
    expect(dialog).to_contain_text(f"Deletes 34 segments, 12.0 GiB of 20.0 GiB (60%) of {CLICKS}.")
    expect(dialog).to_contain_text("Entries 6:0 to 6:9999.")
    assert overflow_px(page) <= 0
    keep_picture(page, f"page-approve-{width}")
    dialog.get_by_role("button", name="Cancel").click()
    assert commands.asked == []
    page.get_by_role("button", name="Approve…").click()
    dialog.get_by_role("button", name="Yes, delete").click()
    expect(page.get_by_text("34 segments retired, 0 objects deleted.")).to_be_visible()
    expect(page.get_by_role("region", name="Needs approval")).to_be_hidden()
    assert commands.asked == [("clean", CLICKS, "0f8f")]


def test_refused_command_says_why_and_keeps_the_page(serve: Serve, look: Look) -> None:
    view = working()
    page = shown(look(serve(view).url + address(WORST), expected=("500",)))  # nobody executes commands there
    page.get_by_role("button", name="Offload now").click()
    expect(page.locator(".done")).to_contain_text("this is a bug; the process's log has the details")
    expect(page.locator("#token-form")).to_be_hidden()
    expect(page.get_by_role("region", name="Behind")).to_be_visible()
