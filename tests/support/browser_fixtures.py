"""A real browser, a process that is staged, and an eye on what the browser complains about."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from services.chromium import find_chromium
from tests.support.page_server import PageServer
from tests.support.quick import needs
from tests.support.staged_view import StagedView

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page

#: Waits of the page are 2.5 s; the machine may be busy.
PATIENCE_MS = 120_000
FLAGS = ["--no-first-run", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
         "--disable-sync", "--disable-extensions", "--disable-dev-shm-usage"]  # fmt: skip


@pytest.fixture(scope="module")
@needs("process")
def browser() -> Iterator[Browser]:
    """Chromium without a window; one for all tests of a module."""
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        as_root = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=[*FLAGS, *as_root])
        yield browser
        browser.close()


@pytest.fixture
def serve() -> Iterator[Callable[..., PageServer]]:
    """``serve(view, token="...")``: the page and what it asks, on a port of its own, until the test ends. ``control``
    executes commands; ``role`` is the token's."""
    with ExitStack() as stack:
        yield lambda view, token="", **more: stack.enter_context(PageServer(view, token, **more))


@pytest.fixture
def look(browser: Browser) -> Iterator[Callable[..., Page]]:
    """``look(url)``: a tab of its own. At the end nothing may be on its console that ``expected`` doesn't name."""
    complaints: list[str] = []
    allowed: list[str] = []

    def hear(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not any(each in message.text for each in allowed):
            complaints.append(f"{message.type}: {message.text}")

    with ExitStack() as stack:

        def opened(
            url: str, *, width: int = 1280, height: int = 900, dark: bool = False, expected: tuple[str, ...] = ()
        ) -> Page:
            allowed.extend(expected)
            context = browser.new_context(
                viewport={"width": width, "height": height},
                color_scheme="dark" if dark else "light",
                locale="en-GB",
                timezone_id="UTC",
            )
            stack.callback(context.close)
            page = context.new_page()
            page.set_default_timeout(PATIENCE_MS)
            page.on("console", hear)
            page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
            page.goto(url)
            return page

        yield opened
    assert complaints == []


@pytest.fixture
def keep_picture(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Page, str], None]:
    """Keeps what is seen for people, outside of the repository: ``OFFLOADER_PICTURES`` names a folder."""
    given = os.environ.get("OFFLOADER_PICTURES")
    folder = Path(given) if given else tmp_path_factory.getbasetemp() / "pictures"
    folder.mkdir(parents=True, exist_ok=True)

    def keep(page: Page, name: str) -> None:
        page.screenshot(path=folder / f"{name}.png", full_page=True)

    return keep


@pytest.fixture
def empty() -> StagedView:
    return StagedView()
