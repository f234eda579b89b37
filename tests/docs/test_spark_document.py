"""docs/how-to/spark.md: its samples print the documented output, its tables are the program's."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pyspark
import pytest

from formats.entries import EntryBatch
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
from offloader.spark.options import _OPTIONS, _STREAM_ONLY, CONTENTS, SourceOptions, ddl
from offloader.spark.session import require_java
from offloader.store.open import open_store
from tests.formats.pulsar_entries import Sent, batch_entry
from tests.support.streams import StreamWriter
from tests.support.waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "how-to" / "spark.md").read_text(encoding="utf-8")
CLUSTERS = (ROOT / "docs" / "how-to" / "spark-clusters.md").read_text(encoding="utf-8")
#: Where the text's samples are.
PLACE = "/srv/orders"
#: A row of a table: first cell in backquotes.
ROW = re.compile(r"^\| `(\w+)` \|.*\| (.*?) ?\|$", re.M)
#: Between the outputs of two samples.
END = "--end--\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the streams of the text in ``store``."""
    folder = tmp_path_factory.mktemp("spark")
    (folder / "store").mkdir()
    store = open_store(f"file://{folder}/store")
    orders, prices = StreamWriter(store, "shop/orders"), StreamWriter(store, "shop/prices")
    for ledger_id in (1, 2):
        orders.add([batch(ledger_id, 500, day=ledger_id)], closes=[ledger_id])
    prices.add([batch(1, 300, day=3)], closes=[1])
    with closing(EmbeddedLedgers(f"sqlite:///{folder}/ledgers.db")) as database:
        for stream, count in (("shop/orders", 1000), ("shop/prices", 300)):
            database.open_stream(stream).append([b"{}"] * count, 0)
    (folder / "archive").mkdir()
    clicks = [b'{"id": 1, "page": "home"}', b'{"id": 2, "page": "cart"}', b'{"id": 3}', b"oops"]
    entries = [batch_entry([Sent(value=value) for value in part]) for part in (clicks[:2], clicks[2:])]
    StreamWriter(store, "web/clicks").add([EntryBatch.build(1, 0, entries)])
    return folder


def batch(ledger_id: int, count: int, *, day: int) -> EntryBatch:
    noon_ms = int(datetime(2026, 3, day, 12, tzinfo=UTC).timestamp() * 1000)
    return EntryBatch.build(ledger_id, 0, [b"{}"] * count, [noon_ms + number for number in range(count)])


def printed(command: list[str], folder: Path) -> str:
    java = require_java().parent.parent
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable, "JAVA_HOME": str(java)}
    environment.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=280
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def is_like(lines: list[str], wanted: list[str]) -> bool:
    """Whether printed lines are the text's, where ``...`` stands for anything."""
    patterns = [".*".join(map(re.escape, line.split("..."))) for line in wanted if line]
    lines = [line for line in lines if line]
    return len(lines) == len(patterns) and all(map(re.fullmatch, patterns, lines))


@pytest.mark.java
def test_the_samples_print_what_the_text_shows(folder: Path) -> None:
    """In document order and in one process, so that Spark starts once; commands are run in process."""
    blocks = re.findall(r"^```(python|output|console)\n(.*?)^```$", TEXT.replace(PLACE, str(folder)), re.M | re.S)
    program, expected = ["from offloader.cli.main import main"], []
    for kind, text in blocks:
        if kind == "python":
            program += [text, "print('--end--')"]
        elif kind == "output":
            expected.append(text.splitlines())
        else:
            for command in re.split(r"^\$ ", text, flags=re.M)[1:]:
                line, *wanted = command.splitlines()
                program += [f"assert main({shlex.split(line)[1:]!r}) == 0", "print('--end--')"]
                expected.append(wanted)
    found = [part.splitlines() for part in printed([sys.executable, "-c", "\n".join(program)], folder).split(END)]
    assert len(expected) == 14
    for lines, wanted in zip(found, [*expected, []], strict=True):
        assert is_like(lines, wanted), f"printed {lines}, the text has {wanted}"


@pytest.mark.java
def test_the_job_for_spark_submit_runs(folder: Path) -> None:
    (code,) = re.findall(r"^```python job\n(.*?)^```$", TEXT, re.M | re.S)
    (folder / "scrub.py").write_text(code)
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    lines = printed([str(submit), "--master", "local[1]", "scrub.py", f"file://{folder}/store", "shop/*"], folder)
    assert "|stream|problem|damage|segment|object|start|stop|expected|found|message|advice|" in lines


@pytest.mark.java
def test_documented_submit_lines_are_valid_for_spark_submit() -> None:
    """Spark's own launcher reads the lines; there is no YARN and no Kubernetes here to run them."""
    texts = re.findall(r"^```text\n(.*?)^```$", CLUSTERS, re.M | re.S)
    lines = [line for text in texts for line in text.replace("\\\n", " ").splitlines() if "spark-submit" in line]
    masters = set()
    for line in lines:
        words = shlex.split(line)
        arguments = words[words.index("spark-submit") + 1 :]
        masters.add(arguments[arguments.index("--master") + 1].partition(":")[0])
        program = "local:///opt/jobs/scrub.py" if "k8s" in line else "scrub.py"
        assert launched(arguments)[-3:] == [program, "s3://bucket/root", "shop/*"]
    assert masters == {"spark", "yarn", "k8s"}
    assert "--usage-error" in launched(["--executer-cores", "4", "scrub.py"]), "else nothing was tested"


def launched(arguments: list[str]) -> list[str]:
    """The command that ``spark-submit`` would run."""
    home, java = Path(pyspark.__file__).parent, require_java()
    launcher = [str(java), "-cp", f"{home}/jars/*", "org.apache.spark.launcher.Main"]
    environment = {"JAVA_HOME": str(java.parent.parent), "SPARK_HOME": str(home), "SPARK_SCALA_VERSION": "2.13"}
    command = [*launcher, "org.apache.spark.deploy.SparkSubmit", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    return done.stdout.strip("\0\n").split("\0")


def test_the_table_of_contents_has_every_content_with_its_columns() -> None:
    table = TEXT.partition("## What a row is")[2].partition("## ")[0]
    rows = dict(ROW.findall(table))
    assert rows.pop("content") == "columns"
    assert tuple(rows) == CONTENTS
    for content, cell in rows.items():
        if content != "messages":
            names = cell.strip("`").split(", ")
            assert ddl(content, names) == ddl(content)


def test_the_table_of_options_has_every_option_of_read_with_its_default() -> None:
    table = TEXT.partition("## Options")[2].partition("## ")[0]
    rows = dict(ROW.findall(table))
    assert set(rows) == set(_OPTIONS) - set(_STREAM_ONLY)
    defaults = {name: cell.strip("`") for name, cell in rows.items() if cell.startswith("`")}
    place = {"store": "file:///x", "stream": "y"}
    assert SourceOptions.of({**place, **defaults}) == SourceOptions.of(place)
    assert len(defaults) == 7
