"""docs/how-to/streaming-queries.md: its example reads the stream, its options and offsets are the program's."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from offloader.spark.options import SourceOptions
from offloader.spark.stream import decode_offsets
from offloader.store.open import open_store
from tests.support.streams import StreamWriter, batch_of

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "how-to" / "streaming-queries.md").read_text(encoding="utf-8")


def fence(language: str) -> str:
    """The one code fence whose info string is exactly ``language``."""
    (found,) = re.findall(rf"^```{re.escape(language)}\n(.*?)^```$", TEXT, re.M | re.S)
    return str(found)


@pytest.mark.java
def test_the_example_writes_the_stream_into_parquet(tmp_path: Path) -> None:
    writer = StreamWriter(open_store(f"file://{tmp_path}/store"), "orders")
    writer.add([batch_of(1, 0, 300)])
    before = "from offloader.spark.session import local_session\nspark = local_session(cores=1)\n"
    after = "\nfrom offloader.spark import lag_of\nprint(lag_of(query.lastProgress))\nspark.stop()"
    sample = fence("python spark").replace("file:///data/", f"file://{tmp_path}/")
    code = before + fence("python spark lag") + sample + after
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stderr
    files = [path for path in (tmp_path / "out").glob("part-*") if path.stat().st_size]
    ids = [entry_id for path in files for entry_id in pq.read_table(path)["entry_id"].to_pylist()]
    assert sorted(ids) == list(range(300))
    assert "{'orders': StreamLag(entries=0, bytes=0)}" in done.stdout


def test_the_example_of_a_subscriber_is_the_first_one_with_one_option_more() -> None:
    reads, subscribes = fence("python spark").split("query =")[0], fence("python spark subscriber")
    named = [line for line in subscribes.splitlines() if "subscriber" in line]
    assert [line.strip() for line in named] == ['.option("subscriber", "search-index")']
    assert set(subscribes.splitlines()) - set(reads.splitlines()) == set(named)
    assert SourceOptions.of({"store": "file:///x", "stream": "y", "subscriber": "z"}).subscriber == "z"


def test_the_options_of_the_table_are_the_sources() -> None:
    rows = re.findall(r"^\| (`.*`) \| .* \| (.*) \|$", TEXT, re.M)
    given = {"store": "file:///x", "stream": "y"}
    defaults = {name.strip("`"): value.strip("`") for name, value in rows if value.startswith("`")}
    assert SourceOptions.of({**given, **defaults}) == SourceOptions.of(given)
    assert set(defaults) == {"startFrom", "failOnDataLoss", "subscriberRenewSeconds"}
    numbers = ("maxEntriesPerTrigger", "maxBytesPerTrigger")
    options = SourceOptions.of({**given, **dict.fromkeys(numbers, "5")})
    assert (options.max_entries_per_trigger, options.max_bytes_per_trigger) == (5, 5)
    assert set(numbers) <= set(re.findall(r"`(\w+)`", "".join(name for name, _ in rows)))


def test_the_offset_is_one_that_the_source_reads() -> None:
    shown = json.loads(fence("json"))
    shown["orders"]["incarnation"] = "3f0c0000-0000-0000-0000-000000000000"
    assert str(decode_offsets(shown)["orders"].position) == "4:49"
