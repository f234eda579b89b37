"""docs/FLIGHT.md: its samples run and print what it says, its tables are what the code has; the example broker."""

from __future__ import annotations

import contextlib
import io
import re
import tomllib
from pathlib import Path

import pytest

from offloader.service.auth import OPERATION_OF_ACTION
from offloader.service.flight.handlers import ACTIONS
from offloader.settings import Settings
from offloader.store.open import open_store
from tests.support.flight_door import flight_door

DOCS = Path(__file__).resolve().parents[2] / "docs"
TEXT = (DOCS / "FLIGHT.md").read_text(encoding="utf-8")


def fences(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.M | re.S)


@pytest.mark.slow
def test_the_samples_run_and_print_what_the_text_says(tmp_path: Path) -> None:
    printed = fences("text")
    store = open_store(f"file://{tmp_path}/store")
    with flight_door(store, ledgers__ledger_entries_max=5) as door:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            for sample in fences("python"):
                exec(compile(sample.replace("grpc://127.0.0.1:8815", door.location), "sample", "exec"), {})
        assert door.act("status", stream="shop/eu/persistent/orders")["durable"] == "2:0"
    assert out.getvalue() == "".join(printed)


def test_the_example_broker_is_as_short_as_it_says() -> None:
    assert len((DOCS / "flight_broker.py").read_text(encoding="utf-8").splitlines()) <= 60


def test_the_settings_that_the_text_shows_are_good() -> None:
    for sample in fences("toml"):
        assert Settings.of(tomllib.loads(sample))


def test_the_actions_are_those_that_there_are() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| ((?:read|write|admin)(?:, subscriber)?) \| (.*) \|$", TEXT, re.M)
    assert rows == [(name, OPERATION_OF_ACTION[name].who, about) for name, about in ACTIONS.items()]
