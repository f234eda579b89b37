"""docs/tutorials/demo.md: its options are the demo's, and its line against MinIO fits the compose file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from offloader.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "tutorials" / "demo.md").read_text(encoding="utf-8")


def test_options_are_those_of_the_demo(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--help"]) == 0
    known = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    named = {option for command in re.findall(r"`(--[^`]*)`|(\./dev demo[^`\n]*)", TEXT) for option in command}
    options = set(re.findall(r"--[a-z-]+", " ".join(named)))
    assert {"--input", "--dir", "--store", "--clean"} <= options <= known


def test_line_against_minio_fits_the_compose_file() -> None:
    compose = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    (line,) = re.findall(r"^AWS_ACCESS_KEY_ID=.*$", TEXT, re.M)
    values = re.fullmatch(
        r"AWS_ACCESS_KEY_ID=(\S+) AWS_SECRET_ACCESS_KEY=(\S+) \./dev demo "
        r"--store s3://([^/]+)/\S+ --endpoint-url http://127\.0\.0\.1:(\d+)",
        line,
    )
    assert values is not None
    for value in values.groups():
        assert value in compose
