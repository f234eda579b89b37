"""Every pair of phase and event, as the page on phases lists it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.write.stream_phases import EVENTS, head, row

PAGE = (Path(__file__).parents[2] / "docs/explanation/stream-phases.md").read_text()


def test_page_lists_every_event() -> None:
    assert head() in PAGE
    assert [line.split(" | ")[0].removeprefix("| ") for line in PAGE.split(head())[1].split("\n\n")[0].split("\n")] == [
        "",
        *EVENTS,
    ]


@pytest.mark.slow
@pytest.mark.parametrize("event", EVENTS)
def test_event_leads_to_the_listed_phases(event: str) -> None:
    assert row(event) in PAGE
