"""docs/PULSAR.md says what is so: its settings."""

from __future__ import annotations

import re
import tomllib
from dataclasses import fields
from pathlib import Path

from offloader.settings import PulsarSettings, Settings

TEXT = (Path(__file__).parents[2] / "docs" / "PULSAR.md").read_text(encoding="utf-8")


def _shown(default: object) -> str:
    return str(default).lower() if isinstance(default, bool) else "(empty)" if default in ("", ()) else str(default)


def test_every_setting_is_in_the_table_as_it_is() -> None:
    expected = [f"| `pulsar.{f.name}` | {_shown(f.default)} | {f.metadata['doc']} |" for f in fields(PulsarSettings)]
    assert [line for line in TEXT.splitlines() if line.startswith("| `pulsar.")] == expected


def test_every_setting_that_the_text_names_exists() -> None:
    known = {f"{section.name}.{f.name}" for section in fields(Settings) for f in fields(type(section.default))}
    named = set(re.findall(r"`((?:pulsar|offload)\.[a-z0-9_]+)", TEXT))
    assert named <= known
    assert "pulsar.on_gap" in named


def test_the_settings_that_the_text_shows_are_good() -> None:
    for sample in re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL):
        assert Settings.of(tomllib.loads(sample))
