"""Each verb that needs a store takes it from ``serve.store`` of --config when --store isn't given."""

from __future__ import annotations

from pathlib import Path

import pytest

from offloader.store.open import open_store
from tests.cli.reading_verbs import Offloader
from tests.contracts.command_line import commands
from tests.support.streams import StreamWriter, batch_of

STREAM = "orders"
#: Commands -> their further arguments. Some end with an error, for example without ledgers: not for want of a store.
COMMANDS: dict[str, list[str]] = {
    "stream accept-loss": [STREAM, "--ledgers", "sqlite:///nowhere.db"],
    "stream set-source": [STREAM],
    "import": ["--dry-run"],
    "cleanup audit": [],
    "cleanup hold": [STREAM],
    "cleanup orphans": [],
    "cleanup plan": [],
    "cleanup run": [],
    "cleanup undo": [STREAM],
    "stream delete": [STREAM],
    "doctor": [],
    "export iceberg": [STREAM, "--table", "a.b", "--catalog", "sqlite:///:memory:", "--warehouse", "file:///nowhere"],
    "group checkpoint": ["readers", "one"],
    "group join": ["readers", "one"],
    "group list": [],
    "group publish": ["readers", "one"],
    "group remove": ["readers"],
    "group set": ["readers", "--stream", STREAM],
    "inspect": ["nothing"],
    "ls": [],
    "ls --all": [STREAM],
    "manifest checkpoint": [STREAM],
    "manifest context": [STREAM, "1"],
    "manifest expire": [STREAM],
    "manifest rebuild": [STREAM, "--head", "first"],
    "manifest show": [STREAM],
    "stream offload": [STREAM],
    "stream pause": [STREAM],
    "read": [STREAM],
    "export pulsar": [STREAM, "--dest", "t", "--service-url", "pulsar://127.0.0.1:1", "--dry-run"],
    "stream resume": [STREAM],
    "retention explain": [STREAM],
    "retention plan": [],
    "retention run": [],
    "stream compact": [STREAM],
    "export parquet": [STREAM, "--dest", "file:///nowhere", "--dry-run"],
    "export v1": [STREAM, "--dest", "file:///nowhere", "--broker-record", "nothing"],
    # refused before a session begins
    "spark backfill": [STREAM, "--option", "nothing"],
    "spark compact": [STREAM, "--option", "nothing"],
    "spark export": [STREAM, "--dest", "nowhere", "--option", "nothing"],
    "spark rebuild": [STREAM, "--option", "nothing"],
    "spark verify": [STREAM, "--option", "nothing"],
    "status": [],
    "subscriber ack": [STREAM, "billing", "--at", "latest"],
    "subscriber accept-loss": [STREAM],
    "subscriber add": [STREAM, "billing"],
    "subscriber list": [STREAM],
    "subscriber remove": [STREAM, "billing"],
    "stream truncate": [STREAM, "--before", "1:5"],
    "verify": [STREAM],
}
#: Its store is a folder of its own unless one is named.
OWN_STORE = {"demo"}


@pytest.fixture
def offloader(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Offloader:
    for name in ("STORE", "CONFIG", "LEDGERS"):
        monkeypatch.delenv(f"OFFLOADER_{name}", raising=False)
    return Offloader(capsys)


def place(folder: Path) -> tuple[str, str]:
    """A store with one stream, and a settings file that names another store with such a stream."""
    for name in ("named", "configured"):
        writer = StreamWriter(open_store(f"file://{folder}/{name}"), STREAM)
        writer.add([batch_of(1, 0, 10)], closes=[1])
    (folder / "settings.toml").write_text(f'[serve]\nstore = "file://{folder}/configured"\n')
    return f"file://{folder}/named", f"{folder}/settings.toml"


def with_store() -> set[str]:
    found = {}
    for words, command in commands():
        names = {name for each in command.params for name in each.opts}
        if "--store" in names:
            found[words.removeprefix("offloader ")] = names
    assert {name for name, names in found.items() if "--config" not in names} == OWN_STORE
    return found.keys() - OWN_STORE


@pytest.mark.slow
def test_table_has_every_command_with_a_store() -> None:
    assert with_store() == COMMANDS.keys() - {"ls --all"}


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_command_takes_the_store_from_the_settings_file(command: str, offloader: Offloader, tmp_path: Path) -> None:
    url, config = place(tmp_path)
    words = [*command.split(), *COMMANDS[command]]
    by_store, by_config = offloader(*words, "--store", url), offloader(*words, "--config", config)
    assert by_config.code == by_store.code, (by_store, by_config)
    for done in (by_store, by_config):
        assert "store was given" not in done.out + done.err
        assert "Traceback" not in done.err


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_command_without_a_store_names_both_ways(command: str, offloader: Offloader, tmp_path: Path) -> None:
    done = offloader(*command.split(), *COMMANDS[command])
    assert done.code == 2
    text = done.out + done.err
    assert "--store URL" in text
    assert "--config FILE with serve.store" in text
    (tmp_path / "empty.toml").write_text("")
    done = offloader(*command.split(), *COMMANDS[command], "--config", f"{tmp_path}/empty.toml")
    assert done.code == 2
    assert "store was given" in done.out + done.err or "neither a store" in done.out + done.err


@pytest.mark.slow
def test_named_store_wins_over_the_settings_file(offloader: Offloader, tmp_path: Path) -> None:
    url, config = place(tmp_path)
    assert offloader("stream", "pause", STREAM, "--store", url, "--config", config).code == 0
    assert "paused" in offloader("status", "--store", url, "--json").out
    rows = offloader("status", "--config", config, "--json").rows
    assert not any(row.get("paused") for row in rows)
