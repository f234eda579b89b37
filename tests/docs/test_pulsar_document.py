"""docs/tutorials/beside-pulsar.md: its settings and commands are valid."""

from __future__ import annotations

import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest

from offloader.cli.main import main
from offloader.ledgers.pulsar.discovery import TopicPatterns
from offloader.settings import PulsarSettings
from offloader.settings.layered import SETTINGS, key_of, parse_settings, shown
from offloader.store.open import open_store
from tests.replay.replaying import entries_of, write_stream
from tests.support.pulsar_broker import FakeBroker
from tests.support.pulsar_producers import FakeProducers
from tests.support.pulsar_topics import FakeTopic

TEXT = (Path(__file__).parents[2] / "docs" / "tutorials" / "beside-pulsar.md").read_text(encoding="utf-8")


def _shown(name: str, default: object) -> str:
    default = shown(name, default)
    return str(default).lower() if isinstance(default, bool) else "(empty)" if default in ("", ()) else str(default)


def test_table_lists_every_setting_with_its_default() -> None:
    expected = [
        f"| `{key_of(f'pulsar.{f.name}')}` | {_shown(f'pulsar.{f.name}', f.default)} | {f.metadata['doc']} |"
        for f in fields(PulsarSettings)
    ]
    assert [line for line in TEXT.splitlines() if line.startswith("| `pulsar.")] == expected


def test_every_setting_that_the_text_names_exists() -> None:
    named = set(re.findall(r"`((?:pulsar|offload)\.[a-z0-9_]+)", TEXT))
    assert named <= set(SETTINGS)
    assert "pulsar.on_gap" in named


def test_the_settings_that_the_text_shows_are_good() -> None:
    for sample in re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL):
        assert parse_settings(sample, "PULSAR.md").layers


def test_the_commands_that_the_text_shows_are_understood(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    [block] = re.findall(r"```\n(offloader replay .*?)```", TEXT, re.DOTALL)
    store = open_store(f"file://{tmp_path}/store")
    write_stream(store, entries_of({7: 10}), stream="public/default/persistent/orders")
    monkeypatch.setenv("OFFLOADER_STORE", store.url)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with FakeBroker() as broker:
        topic = FakeTopic(broker, "persistent://public/default/orders-again")
        FakeProducers(broker, topic)
        monkeypatch.setenv("OFFLOADER_PULSAR_URL", broker.url)
        words = shlex.split(block.replace("\\\n", " "))[1:]
        assert main(words) == 0
        # What the range leaves out; without it everything is sent.
        assert "nothing in that range" in capsys.readouterr().out
        assert main([*words[:4], "--rate", "5000"]) == 0
        assert len(topic.entries) == 10


def test_patterns_that_the_text_shows_are_patterns() -> None:
    for sample in re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL):
        pulsar = parse_settings(sample, "PULSAR.md").settings_of("").pulsar
        assert TopicPatterns.of(pulsar.topics, pulsar.exclude).have("persistent://public/default/orders-eu")
