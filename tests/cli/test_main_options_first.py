"""Options in front of the command: their values may be equal to the names of commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from offloader.cli.main import WITH_VALUE, program
from offloader.cli.options import COMMON
from offloader.cli.tree import leaves
from offloader.store.open import open_store
from tests.cli.reading_verbs import Offloader
from tests.support.streams import StreamWriter, batch_of


@pytest.mark.parametrize("before", [["--json"], ["--region", "read"], ["--region", "stream", "--json"]], ids=" ".join)
def test_value_of_an_option_is_not_taken_for_the_command(
    before: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    StreamWriter(open_store(f"memory://{tmp_path.name}"), "orders").add([batch_of(1, 0, 10)])
    done = Offloader(capsys)(*before, "--store", f"memory://{tmp_path.name}", "ls")
    assert (done.code, "orders" in done.out) == (0, True), done.err


def test_value_of_an_option_is_not_taken_for_the_action(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "expire").write_text(f'[serve]\nstore = "memory://{tmp_path.name}"\n')
    StreamWriter(open_store(f"memory://{tmp_path.name}"), "orders").add([batch_of(1, 0, 10)])
    done = Offloader(capsys)("manifest", "--config", "expire", "show", "orders", "--json")
    assert (done.code, done.rows[0]["stream"]) == (0, "orders"), done.err


@pytest.mark.slow
def test_common_options_with_a_value_are_known() -> None:
    found = set()
    for words, _ in leaves():
        name, _, action = words.partition(" ")
        command = program(name, action).commands[name]
        leaf = command.commands[action] if action else command
        for each in leaf.params:
            if getattr(each, "rich_help_panel", None) == COMMON and not each.is_flag:
                found |= set(each.opts)
    assert found == WITH_VALUE
