"""The sample of a settings file: what the code says, all of it, and good as it is."""

from __future__ import annotations

import re
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from offloader.cli.main import main
from offloader.settings import Settings
from offloader.settings.layered import read_settings_file
from offloader.settings.sample import sample_settings

SAMPLE = Path(__file__).parents[1] / "docs" / "operations" / "offloader.toml"


def test_the_file_in_the_documents_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "sample"]) == 0
    assert capsys.readouterr().out == sample_settings()
    assert SAMPLE.read_text(encoding="utf-8") == sample_settings(), "run ./dev reference"
    assert main(["config", "sample", "topic"]) == 2


def test_it_is_good_as_it_is_and_its_values_are_the_defaults() -> None:
    file = read_settings_file(str(SAMPLE))
    assert file.layers == {"": {"streaming_offload": True, "serve.store": "s3://BUCKET/ROOT"}}
    uncommented = re.sub(r"^#(?=[\w.]+ = )", "", sample_settings().partition("# --- parts of it")[0], flags=re.M)
    values = tomllib.loads(uncommented)
    assert values.pop("streaming_offload") is True
    assert values["serve"].pop("store") == "s3://BUCKET/ROOT"
    named = {(section, name) for section, given in values.items() for name in given} | {("serve", "store")}
    assert named == {(s.name, each.name) for s in fields(Settings) for each in fields(getattr(Settings(), s.name))}
    assert Settings.of(values) == Settings()


def test_parts_for_some_streams_are_good_too(tmp_path: Path) -> None:
    path = tmp_path / "offloader.toml"
    head, _, tail = sample_settings().partition("# --- parts of it")
    path.write_text(head + "# " + re.sub(r"^#(?=[\w\[])", "", tail, flags=re.M))
    settings = read_settings_file(str(path)).settings_of("public/default/persistent/orders")
    assert (settings.offload.codec, settings.retention.policy) == ("zstd", "time")


def test_no_line_is_too_long_to_be_read() -> None:
    assert max(map(len, sample_settings().splitlines())) <= 120
