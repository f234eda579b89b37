"""docs/how-to/migration.md: its steps run on a broker's bucket and print the documented output."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from offloader.cli.main import main
from offloader.settings import Settings
from offloader.store.open import open_store
from tests.support.documents import run_samples
from tests.support.golden_bucket import put_golden

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "how-to"
TEXT = (FOLDER / "migration.md").read_text(encoding="utf-8")
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?<=\"uuid\": \")\.\.\.")


@pytest.mark.slow
def test_migration_steps_run_in_order_and_print_documented_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put_golden(open_store(f"file://{tmp_path}/bucket"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    count = run_samples(TEXT, "/srv/pulsar", tmp_path, monkeypatch, capsys, plain=lambda line: UUID.sub("0" * 36, line))
    assert count == 14
    main(["segments", "public/default/persistent/oracle", "--json"])
    owned = capsys.readouterr().out.splitlines()
    assert len(owned) == 4
    assert all('"owned": true' in line for line in owned), "what step 6 is for"


def test_options_defaults_and_links_of_the_page_exist(capsys: pytest.CaptureFixture[str]) -> None:
    helps = ""
    for verb in (
        ["adopt"],
        ["rollback", "apply"],
        ["rollback", "export"],
        ["offload"],
        ["verify"],
        ["segments"],
        ["read"],
    ):
        main([*verb, "--help"])
        helps += capsys.readouterr().out
    ours = re.sub(r"^```bash\n.*?^```$", "", TEXT, flags=re.M | re.S)
    assert set(re.findall(r"(?<![\w-])(--[a-z][a-z-]+)", ours)) <= set(re.findall(r"--[a-z][a-z-]+", helps))
    assert f"`deletion_lag` ({Settings().offload.deletion_lag_minutes / 60:g} hours)" in TEXT
    assert [link for link in re.findall(r"\]\(([^)#]+)\)", TEXT) if not (FOLDER / link).exists()] == []
