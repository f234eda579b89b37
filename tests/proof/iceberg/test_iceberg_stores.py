"""Export to Iceberg by the command line: files, an S3 server, topics, following, and what is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

import pyarrow.fs
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import load_catalog

from tests.cli.reading_verbs import Offloader
from tests.iceberg.lake import Lake, named_files, rows_by_duckdb, rows_of, sent
from tests.iceberg.test_iceberg_stores import ROOT, places
from tests.iceberg.test_iceberg_stores import lake as lake
from tests.support.server_fixtures import S3Place
from tests.support.streams import StreamWriter, batch_of
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.slow


@pytest.mark.process
def test_following_export_ends_by_sigterm_after_the_range_that_it_adds(lake: Lake) -> None:
    writer = lake.writer()
    for ledger in range(1, 301):
        writer.add([batch_of(ledger, 0, 2)], closes=[ledger])
    command = [
        sys.executable,
        "-m",
        "offloader",
        "export",
        "iceberg",
        writer.stream,
        *places(lake),
        "--follow",
        "--json",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [*command, "--range-size", "1"], cwd=lake.folder, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        eventually(lambda: bool(lake.data_files()))
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    done = json.loads(said)
    assert 0 < done["entries"] < 600, "it didn't go on to the end"
    table = lake.foreign_table()
    assert rows_by_duckdb(table) == sent(writer)[: done["entries"]]
    assert {str(path) for path in lake.data_files()} == set(named_files(table))


@pytest.mark.process
def test_warehouse_on_an_s3_server(
    lake: Lake, s3_place: S3Place, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = StreamWriter(s3_place.open(), "t/orders")
    writer.add([batch_of(1, 0, 100)], closes=[1])
    writer.add([batch_of(2, 0, 100)])
    endpoint = s3_place.options["endpoint_url"]
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_place.options["access_key"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_place.options["secret_key"])
    arguments = [
        *(
            "export",
            "iceberg",
            "t/orders",
            "--store",
            s3_place.url,
            "--endpoint-url",
            endpoint,
            "--table",
            "lake.entries",
        ),
        *("--catalog", lake.catalog, "--warehouse", f"{s3_place.url}/warehouse", "--range-size", "1"),
        *("--catalog-option", f"s3.endpoint={endpoint}", "--catalog-option", "s3.region=us-east-1"),
    ]
    offloader = Offloader(capsys)
    assert offloader(*arguments).out == "t/orders: 200 new entries, exported up to 2:99\n"
    assert offloader(*arguments).out == "t/orders: no new entries\n"
    facts = {"s3.endpoint": endpoint, "s3.region": "us-east-1"}
    table = load_catalog("offloader", type="sql", uri=lake.catalog, **facts).load_table("lake.entries")
    assert rows_of(table.scan().to_arrow()) == sent(writer)
    files: Any = pyarrow.fs.S3FileSystem(
        access_key=s3_place.options["access_key"],
        secret_key=s3_place.options["secret_key"],
        endpoint_override=endpoint,
        region="us-east-1",
    )
    paths = [path.removeprefix("s3://") for path in table.inspect.files()["file_path"].to_pylist()]
    assert len(paths) == 2
    assert sum(pq.read_metadata(path, filesystem=files).num_rows for path in paths) == 200


@pytest.mark.process
def test_following_export_adds_what_is_offloaded_later(lake: Lake) -> None:
    writer = lake.writer()
    writer.add([batch_of(1, 0, 10)])
    command = [
        sys.executable,
        "-m",
        "offloader",
        "export",
        "iceberg",
        writer.stream,
        *places(lake),
        "--follow",
        "--json",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [*command, "--every", "200ms"], cwd=lake.folder, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for end in (9, 19, 29):
            assert json.loads(process.stdout.readline())["end"] == f"1:{end}"
            assert rows_by_duckdb(lake.foreign_table()) == sent(writer)
            writer.add([batch_of(1, end + 1, 10)])
        eventually(lambda: rows_by_duckdb(lake.foreign_table()) == sent(writer))
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130
