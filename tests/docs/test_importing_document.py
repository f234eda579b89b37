"""docs/how-to/importing.md: its samples run in order on a small golden bucket and print the documented output."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from offloader.cli.main import main
from offloader.store.open import open_store
from tests.support.documents import run_samples
from tests.support.golden_bucket import golden_cases, put_golden

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / "importing.md").read_text(encoding="utf-8")
#: Where the text's samples are.
PLACE = "/srv/pulsar"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """What the page says is there: whole ledgers, one without a name, half of an offload, somebody's notes."""
    bucket = open_store(f"file://{tmp_path}/bucket")
    put_golden(bucket)
    [small] = golden_cases("v2")[0]["segments"]
    put_golden(bucket, [small], layout="v2")
    bucket.put("11111111-1111-4111-8000-000000000bad-ledger-1009", b"half of an offload")
    bucket.put("notes.txt", b"somebody's")
    ledgers = [
        {"ledgerId": 2002, "entries": 20, "size": 200, "offloaded": True},
        {"ledgerId": 2005, "entries": 0, "size": 0, "offloaded": False},
    ]
    (tmp_path / "small.json").write_text(json.dumps({"ledgers": ledgers, "cursors": {}}))
    return tmp_path


@pytest.mark.slow
def test_samples_run_in_order_and_print_documented_output(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    assert run_samples(TEXT, PLACE, place, monkeypatch, capsys) == 8


def test_every_option_that_the_text_names_exists(capsys: pytest.CaptureFixture[str]) -> None:
    main(["adopt", "--help"])
    helps = capsys.readouterr().out
    main(["read", "--help"])
    helps += capsys.readouterr().out
    main(["verify", "--help"])
    helps += capsys.readouterr().out
    assert set(re.findall(r"(?<![\w-])(--[a-z][a-z-]+)", TEXT)) <= set(re.findall(r"--[a-z][a-z-]+", helps))
