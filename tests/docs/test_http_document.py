"""docs/HTTP.md says what is so: its settings."""

from __future__ import annotations

import re
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from offloader.settings import AccessSettings, Settings

TEXT = (Path(__file__).parents[2] / "docs" / "HTTP.md").read_text(encoding="utf-8")
SECTIONS = {"access": AccessSettings}


@pytest.mark.parametrize(("section", "kind"), SECTIONS.items())
def test_every_setting_is_in_the_table_as_it_is(section: str, kind: type) -> None:
    def shown(default: object) -> str:
        return str(default).lower() if isinstance(default, bool) else "(empty)" if default in ("", ()) else str(default)

    expected = [
        f"| `{section}.{field.name}` | {shown(field.default)} | {field.metadata['doc']} |" for field in fields(kind)
    ]
    assert [line for line in TEXT.splitlines() if line.startswith(f"| `{section}.")] == expected


def test_every_setting_that_the_text_names_exists() -> None:
    known = {f"{section}.{field.name}" for section, kind in SECTIONS.items() for field in fields(kind)}
    assert set(re.findall(rf"`((?:{'|'.join(SECTIONS)})\.[a-z0-9_]+)", TEXT)) <= known


def test_the_settings_that_the_text_shows_are_good() -> None:
    for sample in re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL):
        assert Settings.of(tomllib.loads(sample))
