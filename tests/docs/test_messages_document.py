"""docs/how-to/messages.md: its commands and examples print the documented output, its tables are the program's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from formats.entries import EntryBatch
from formats.pulsar.messages import COLUMNS, ENTRY_COLUMNS
from offloader.spark.options import SourceOptions, ddl
from offloader.store.open import open_store
from tests.formats.pulsar_entries import recorded
from tests.support.streams import StreamWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "how-to" / "messages.md").read_text(encoding="utf-8")
#: Topics of the streams that the page reads, and how many of their entries.
STREAMS = {"orders": [("json-schema", 1), ("transactions", 3), ("encrypted-batch", 1)], "chunks": [("chunked-lz4", 3)]}


def fences(language: str) -> list[str]:
    """Bodies of the code fences whose info string is exactly ``language``."""
    return re.findall(rf"^```{re.escape(language)}\n(.*?)^```$", TEXT, re.M | re.S)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store of recorded entries in ``store``."""
    folder = tmp_path_factory.mktemp("messages")
    (folder / "store").mkdir()
    topics = recorded("plain")
    for stream, parts in STREAMS.items():
        writer = StreamWriter(open_store(f"file://{folder}/store"), stream)
        for name, count in parts:
            entries = topics[name].entries[:count]
            writer.add([EntryBatch.build(entries[0][0], 0, [data for *_, data in entries])], closes=[entries[0][0]])
    return folder


def run(command: list[str], folder: Path) -> str:
    """The command's output, with this folder's store for the page's."""
    command = [part.replace("file:///data/store", f"file://{folder}/store") for part in command]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.process
def test_the_commands_print_what_the_page_shows(folder: Path) -> None:
    shown = fences("console")
    assert len(shown) == 2
    for fence in shown:
        command, _, output = fence.partition("\n")
        assert run(["bash", "-c", command.removeprefix("$ ")], folder) == output


@pytest.mark.process
def test_the_examples_print_what_the_page_shows(folder: Path) -> None:
    examples, outputs = fences("python"), fences("output")
    assert len(examples) == len(outputs) == 2
    for code, output in zip(examples, outputs, strict=True):
        found = run([sys.executable, "-W", "error", "-c", code], folder).splitlines()
        # A long value is cut in the page.
        assert [line[: len(start) - 2] for line, start in zip(found, output.splitlines(), strict=True)] == [
            start[:-2] for start in output.splitlines()
        ]


def test_the_spark_example_shows_keys_and_values(
    folder: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = fences("python spark")
    exec(code.replace("file:///data/store", f"file://{folder}/store"), {"spark": spark})
    printed = capsys.readouterr().out
    assert re.search(r"^\| t0\|committed 0\|$", printed, re.M), printed


def test_documented_columns_are_the_schema_and_mark_uncompressed_ones() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([\w<>,:]+) \| (e?) ?\| .*\|$", TEXT, re.M)
    columns = {name: kind for name, kind, _ in rows}
    assert ", ".join(f"{name} {kind}" for name, kind in columns.items()) == ", ".join(
        f"{name} {kind}" for name, kind in columns_of_spark().items()
    )
    assert {name for name, _, mark in rows if mark} == {"stream", *ENTRY_COLUMNS}
    assert set(columns) == {"stream", *COLUMNS}


def columns_of_spark() -> dict[str, str]:
    found = re.findall(r"(\w+) ((?:[^,<]|<[^<>]*(?:<[^<>]*(?:<[^<>]*>)?[^<>]*>)?[^<>]*>)+)(?:, |$)", ddl("messages"))
    return dict(found)


def test_the_table_of_options_is_the_sources() -> None:
    defaults = dict(re.findall(r"^\| `(\w+)` \| .* \| `(\w+)` \|$", TEXT, re.M))
    options = SourceOptions.of({"store": "file:///x", "stream": "y", "content": "messages", **defaults})
    assert options == SourceOptions.of({"store": "file:///x", "stream": "y", "content": "messages"})
    assert set(defaults) == {"onBadMessage", "markers", "messageBytesMax"}
