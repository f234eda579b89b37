"""docs/reference/flight.md: samples print the documented output, tables match the code, the example broker runs."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

from offloader.service.auth import OPERATION_OF_ACTION
from offloader.service.providers.flight import ACTIONS
from offloader.settings.layered import parse_settings
from offloader.store.open import open_store
from tests.support.flight_door import flight_door

DOCS = Path(__file__).resolve().parents[2] / "docs"
TEXT = (DOCS / "reference" / "flight.md").read_text(encoding="utf-8")


def fences(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.M | re.S)


@pytest.mark.slow
def test_samples_print_documented_output(tmp_path: Path) -> None:
    printed = fences("text")
    store = open_store(f"file://{tmp_path}/store")
    with flight_door(store, ledgers__ledger_entries_max=5) as door:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            for sample in fences("python"):
                exec(compile(sample.replace("grpc://127.0.0.1:8815", door.location), "sample", "exec"), {})
        assert door.act("status", stream="shop/eu/persistent/orders")["durable"] == "2:0"
    assert out.getvalue() == "".join(printed)


def test_example_broker_has_at_most_60_lines() -> None:
    assert len((DOCS / "reference" / "flight_broker.py").read_text(encoding="utf-8").splitlines()) <= 60


def test_the_settings_that_the_text_shows_are_good() -> None:
    for sample in fences("toml"):
        assert parse_settings(sample, "FLIGHT.md").layers


def test_documented_actions_are_the_programs() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| ((?:read|write|admin)(?:, subscriber|, streams)?) \| (.*) \|$", TEXT, re.M)
    assert rows == [(name, OPERATION_OF_ACTION[name].who, about) for name, about in ACTIONS.items()]
