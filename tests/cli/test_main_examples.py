"""The examples in the help of every command: all are valid calls, and those that need no service are run."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from offloader.cli.help import examples_of
from offloader.cli.main import main, program
from offloader.cli.tree import leaves
from offloader.managed_ledger import open_managed_ledger
from offloader.settings import Settings
from offloader.store.open import open_store
from tests.support.waiting import PATIENCE_S

STREAM = "orders"
SETTINGS = Settings.of({"ledgers": {"ledger_entries_max": 100}})
#: Beginning of an example -> commands that it follows.
BEFORE = {
    "offloader subscriber ack orders billing": ["subscriber add orders billing"],
    "offloader subscriber remove orders billing": ["subscriber add orders billing"],
    "offloader group checkpoint billing nightly": ["group set billing --stream orders --type manual"],
    "offloader group publish billing nightly": ["group set billing --stream orders --type manual"],
    "offloader group remove billing": ["group set billing --stream orders"],
    "offloader cleanup undo orders": [
        "stream truncate orders --before 7:0 --apply",
        "cleanup run --allow-large --apply",
    ],
    "offloader cleanup hold orders": ["cleanup hold orders"],
    "offloader cleanup audit orders": [],
    "offloader stream resume orders": ["stream pause orders"],
}
#: Words of examples that are parsed only: they need a broker, a cloud, a browser's certificate, Spark, or never end.
NEED_MORE = (
    "s3://",
    "https://",
    "offloader spark",
    "offloader serve",
    "offloader demo",
    "offloader export pulsar",
    "offloader export v1",
    "offloader group join",
    "--follow",
    "--watch",
)
#: Examples about a state that the stream of this test isn't in, and the exit code that says so.
REFUSED = {
    "offloader import orders --undo": 2,
    "offloader read orders --since -1h --messages": 2,  # its entries are no messages
    "offloader group checkpoint billing nightly": 2,  # the group has no reader
    "offloader group publish billing nightly": 3,
    "offloader manifest rebuild orders --head first --dry-run": 2,  # the manifest is whole
    "offloader ls topic://public/default/orders --graph": 2,  # there is no such topic
}


def examples() -> Iterator[tuple[str, str]]:
    """Words of each command, and each of its examples."""
    for words, place in leaves():
        module, _, function = place.partition(":")
        doc = getattr(import_module(f"offloader.cli.{module}"), function).__doc__
        yield from ((words, example) for example in examples_of(doc))


@cache
def _command(name: str) -> Any:
    return program(name).commands[name]


def test_every_command_has_an_example() -> None:
    assert {words for words, _ in leaves()} == {words for words, _ in examples()}


@pytest.mark.parametrize(("words", "example"), list(examples()))
def test_example_is_a_valid_call(words: str, example: str) -> None:
    assert example.startswith(f"offloader {words}")
    name, _, action = words.partition(" ")
    found: Any = _command(name)
    leaf = found.commands[action] if action else found
    arguments = shlex.split(example.removeprefix(f"offloader {words}"))
    with leaf.make_context(words, arguments) as context:
        assert not context.args


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store, two ledger databases of its stream, and a settings file."""
    folder = tmp_path_factory.mktemp("examples")
    for name in ("new", "ledgers"):
        store = open_store(f"file://{folder}/{'store' if name == 'ledgers' else name}")
        ledgers = f"sqlite:///{folder}/{name}.db"
        with open_managed_ledger(STREAM, ledgers=ledgers, store=store, settings=SETTINGS) as topic:
            for _ in range(8):
                topic.append_batch([b"order"] * 100)
                topic.offload(timeout_s=PATIENCE_S)
    (folder / "offloader.toml").write_text(f'[serve]\nstore = "{store.url}"\n[retention]\nkeep = "7d"\n')
    shutil.copytree(folder, folder.with_name("examples-as-made"))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("example", [example for _, example in examples() if not any(map(example.count, NEED_MORE))])
def test_example_does_its_work(
    example: str, made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(made)
    shutil.copytree(made.with_name("examples-as-made"), made)
    monkeypatch.chdir(made)
    monkeypatch.setenv("OFFLOADER_STORE", f"file://{made}/store")
    monkeypatch.setenv("OFFLOADER_LEDGERS", f"sqlite:///{made}/ledgers.db")
    for command in BEFORE.get(example.split(" --")[0], ()):
        assert main(shlex.split(command)) == 0, capsys.readouterr().err
    code = main(shlex.split(example.replace("file:///", f"file://{made}/"))[1:])  # nothing outside of the folder
    assert code == REFUSED.get(example, 0), capsys.readouterr().err


def test_help_has_plain_notes_and_whole_paths(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "parquet", "--help"]) == 0
    text = capsys.readouterr().out
    assert "[default: all]" in text
    assert "[default: 64MiB; at least 1]" in " ".join(text.split())
    assert "x>=" not in text
    assert main(["export", "--help"]) == 0
    listed = capsys.readouterr().out
    assert "  parquet  Write a range of a stream as Parquet files.\n" in listed
    assert main(["spark", "backfill", "--help"]) == 0
    assert "docs/how-to/spark-backfill.md" in capsys.readouterr().out
