"""The sample of a settings file: equal to the command's output, complete, and valid."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from offloader.cli.main import main
from offloader.settings import Settings
from offloader.settings.layered import FIELDS, read_settings_file, sample_settings

SAMPLE = Path(__file__).parents[2] / "deploy" / "offloader.toml"


def test_the_file_in_the_documents_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "sample"]) == 0
    assert capsys.readouterr().out == sample_settings()
    assert SAMPLE.read_text(encoding="utf-8") == sample_settings(), "run ./dev reference"
    assert main(["config", "sample", "topic"]) == 2


def test_sample_is_valid_and_shows_the_defaults(tmp_path: Path) -> None:
    file = read_settings_file(str(SAMPLE))
    assert file.layers == {"": {"offload.method": "streaming", "serve.store": "s3://BUCKET/ROOT"}}
    text = re.sub(r"^#(?=[\w.]+ = )", "", sample_settings().partition("# --- overrides per namespace")[0], flags=re.M)
    named = {f"{section}.{key}" for section, given in tomllib.loads(text).items() for key in given}
    assert named == set(FIELDS)
    path = tmp_path / "offloader.toml"
    path.write_text(re.sub(r"^offload_threshold_.*\n", "", text, flags=re.M))  # of the other method
    found = read_settings_file(str(path)).settings_of("")
    assert replace(found, serve=replace(found.serve, store="")) == Settings()


def test_sample_sections_for_single_streams_are_valid(tmp_path: Path) -> None:
    path = tmp_path / "offloader.toml"
    head, _, tail = sample_settings().partition("# --- overrides per namespace")
    path.write_text(head + "# " + re.sub(r"^#(?=[\w\[])", "", tail, flags=re.M))
    settings = read_settings_file(str(path)).settings_of("public/default/persistent/orders")
    assert (settings.offload.codec, settings.retention.policy) == ("zstd", "time")


def test_no_line_is_too_long_to_be_read() -> None:
    assert max(map(len, sample_settings().splitlines())) <= 120
