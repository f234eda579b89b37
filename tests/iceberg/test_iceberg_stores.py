"""Export to Iceberg by the command line: files, an S3 server, topics, following, and what is refused."""

from __future__ import annotations

import contextlib
import signal
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import load_catalog

from formats.entries import EntryBatch, Position
from formats.manifest import Retire, Truncate
from formats.pulsar.messages import MessageDecoder, MessageOptions
from offloader import iceberg
from offloader.errors import StoreUnavailableError, TrimmedError
from offloader.iceberg import commits
from offloader.iceberg.history import ExportedRange
from tests.cli.reading_verbs import Offloader
from tests.formats.pulsar_entries import recorded
from tests.iceberg.lake import Lake, named_files, rows_by_duckdb, sent
from tests.iceberg.rest_catalog import rest_catalog
from tests.support.misbehaving_servers import silent_server
from tests.support.streams import batch_of

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


def places(lake: Lake) -> list[str]:
    return [
        "--store",
        lake.store_url,
        "--table",
        "lake.entries",
        "--catalog",
        lake.catalog,
        "--warehouse",
        lake.warehouse,
    ]


def test_command_exports_streams_and_all_partitions_of_a_topic(lake: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    offloader = Offloader(capsys)
    writers = [lake.writer(f"shop/eu/persistent/orders-partition-{number}") for number in range(2)]
    writers.append(lake.writer("t/other"))
    for number, each in enumerate(writers):
        each.add([batch_of(1, 0, 10 + number)], closes=[1])
        each.add([batch_of(2, 0, 5)], closes=[2])
    done = offloader("export", "iceberg", "persistent://shop/eu/orders", "t/other", *places(lake), "--range-size", "1")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [
        "shop/eu/persistent/orders-partition-0: 15 new entries, exported up to 2:4",
        "shop/eu/persistent/orders-partition-1: 16 new entries, exported up to 2:4",
        "t/other: 17 new entries, exported up to 2:4",
    ]
    assert rows_by_duckdb(lake.foreign_table()) == sent(*writers)
    again = offloader("export", "iceberg", "t/other", *places(lake), "--json")
    assert again.rows == [{"stream": "t/other", "ranges": 0, "entries": 0, "rows": 0, "end": "2:4"}]


def test_stream_that_cannot_be_exported_keeps_no_other_from_its_turn(
    lake: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    offloader, (trimmed, other) = Offloader(capsys), (lake.writer(name) for name in ("t/trimmed", "t/whole"))
    for ledger in (1, 2, 3):
        trimmed.add([batch_of(ledger, 0, 10)], closes=[ledger])
        if ledger == 1:
            lake.export(trimmed)
    trimmed.log.commit([Truncate(Position(3, 0))])
    trimmed.log.commit([Retire(tuple(trimmed.uuids[:2]))])
    other.add([batch_of(1, 0, 10)])
    done = offloader("export", "iceberg", "t/trimmed", "t/whole", *places(lake))
    assert (done.code, done.out) == (TrimmedError.kind.value, "t/whole: 10 new entries, exported up to 1:9\n")
    assert "stream t/trimmed: exported up to 1:9, but the following entries were deleted" in done.err


def test_retention_keeps_what_the_subscribed_export_has_not_committed(
    lake: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    offloader = Offloader(capsys)
    one, *partitions = (
        lake.writer(name) for name in ("t/one", "a/b/persistent/c-partition-0", "a/b/persistent/c-partition-1")
    )
    arguments = ["export", "iceberg", "t/one", "persistent://a/b/c", *places(lake), "--subscriber", "lake"]
    assert offloader(*arguments).code == 0
    for each in (one, *partitions):
        each.add([batch_of(1, 0, 10)], closes=[1])
        each.add([batch_of(2, 0, 7)])

    def cut_of(name: str) -> object:
        [row] = offloader("subscriber", "list", name, "--store", lake.store_url, "--json").rows
        return row["subscriber"], row["cut"]

    assert cut_of("t/one") == ("lake", None)
    assert offloader(*arguments).code == 0
    assert cut_of("t/one") == ("lake", {"0.0": "2:7"})
    assert cut_of("persistent://a/b/c") == ("lake", {"0.0": "2:7", "1.0": "2:7"})
    assert offloader(*arguments).code == 0, "publishing the same again"
    one.add([batch_of(2, 7, 1)])
    assert offloader(*arguments).code == 0
    assert cut_of("t/one") == ("lake", {"0.0": "2:8"})


def test_exporter_that_another_of_its_subscriber_has_passed_is_done(
    lake: Lake, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, offloader, export = lake.writer("t/one"), Offloader(capsys), iceberg.export
    one.add([batch_of(1, 0, 10)])
    arguments = ["export", "iceberg", "t/one", *places(lake), "--subscriber", "lake"]

    def passed(*given: Any, **more: Any) -> Any:
        """Before it acknowledges, another exporter adds more."""
        done = export(*given, **more)
        monkeypatch.setattr(iceberg, "export", export)
        one.add([batch_of(1, 10, 5)])
        assert offloader(*arguments).code == 0
        return done

    monkeypatch.setattr(iceberg, "export", passed)
    assert offloader(*arguments).code == 0
    [row] = offloader("subscriber", "list", "t/one", "--store", lake.store_url, "--json").rows
    assert row["cut"] == {"0.0": "1:15"}


def test_table_of_messages_has_every_column_of_every_message(lake: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    writer, expected = lake.writer("t/messages"), list[dict[str, Any]]()
    for ledger, (name, topic) in enumerate(sorted(recorded("plain").items())):
        batch = EntryBatch.build(ledger, 0, [data for *_, data in topic.entries])
        writer.add([batch], closes=[ledger])
        rows = [row for part in MessageDecoder(MessageOptions(), source=name).decode(batch) for row in part.to_pylist()]
        expected += [{"stream": "t/messages", **row} for row in rows]
    done = Offloader(capsys)("export", "iceberg", "t/messages", *places(lake), "--content", "messages", "--json")
    assert done.rows[0]["rows"] == len(expected) > done.rows[0]["entries"] == len(writer.entries)
    table = lake.foreign_table()

    def ordered(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return sorted(rows, key=lambda row: (row["ledger_id"], row["entry_id"], row["batch_index"]))

    files = [pq.read_table(path, partitioning=None) for path in named_files(table)]
    assert ordered(pa.concat_tables(files).to_pylist()) == ordered(expected)
    scanned = table.scan().to_arrow().to_pylist()
    for row in scanned:
        row["encryption_keys"] = row["encryption_keys"] or None  # pyiceberg's scan takes a null list for an empty one
    assert ordered(scanned) == ordered(expected)
    _, said, _ = Offloader(capsys).refuses("export", "iceberg", "t/messages", *places(lake))
    assert said == "table lake.entries contains messages, not entries"


def test_damaged_message_fails_or_is_a_row_that_says_why(lake: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    writer, offloader = lake.writer("t/messages"), Offloader(capsys)
    writer.add([EntryBatch.build(1, 0, [b"no message", b"nor this"])])
    arguments = ["export", "iceberg", "t/messages", *places(lake), "--content", "messages"]
    code, said, hint = offloader.refuses(*arguments)
    assert (code, "1:0" in said) == (2, True), "entries that aren't Pulsar's are refused"
    assert "--on-bad-message null" in hint
    assert lake.data_files() == []
    assert offloader(*arguments, "--on-bad-message", "null").code == 0
    found = lake.foreign_table().scan().to_arrow()
    assert (found.num_rows, found["error"].null_count, found["value"].null_count) == (2, 0, 2)


@pytest.mark.parametrize(
    ("arguments", "error", "hint"),
    [
        (["export", "iceberg", "s"], "missing --table and --catalog", "--table NAMESPACE.TABLE and --catalog URL"),
        (
            ["export", "iceberg", "s", "--table", "a.b", "--catalog", "c", "--catalog-option", "x"],
            "'x' isn't NAME=VALUE",
            "s3.",
        ),
        (["export", "iceberg", "s", "--table", "a.b", "--catalog", "c"], "no catalogue c is configured", "sqlite:"),
    ],
)
def test_wrong_calls_are_refused(
    lake: Lake, capsys: pytest.CaptureFixture[str], arguments: list[str], error: str, hint: str
) -> None:
    lake.writer("s")
    _, said, hinted = Offloader(capsys).refuses(*arguments, "--store", lake.store_url)
    assert error in said
    assert hint in hinted


@pytest.mark.parametrize(
    ("stream", "more", "error"),
    [
        ("nosuch", [], "stream nosuch isn't in"),
        ("s", ["--schema", "nofile.avsc"], "nofile.avsc can't be read"),
        ("s", ["--message-type", "a.B"], "requires --schema"),
    ],
)
def test_wrong_input_creates_no_table(
    lake: Lake, capsys: pytest.CaptureFixture[str], stream: str, more: list[str], error: str
) -> None:
    lake.writer("s").add([batch_of(1, 0, 10)])
    _, said, _ = Offloader(capsys).refuses("export", "iceberg", stream, *places(lake), *more)
    assert error in said
    catalog = load_catalog("offloader", type="sql", uri=lake.catalog, warehouse=lake.warehouse)
    assert not catalog.table_exists("lake.entries")


def test_following_export_ends_though_a_library_loses_the_interrupt(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As Python itself loses what a callback of C raises."""
    writer, export = lake.writer(), iceberg.export
    writer.add([batch_of(1, 0, 10)])

    def interrupted(*args: Any, **options: Any) -> Any:
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        return export(*args, **options)

    monkeypatch.setattr(iceberg, "export", interrupted)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        done = Offloader(capsys)("export", "iceberg", writer.stream, *places(lake), "--follow")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert done.code == 130
    assert lake.data_files() == []


def test_export_that_is_stopped_adds_no_further_range(lake: Lake) -> None:
    writer, stop = lake.writer(), threading.Event()
    writer.add([batch_of(1, 0, 2)], closes=[1])
    stop.set()
    assert lake.export(writer, stop=stop).ranges == ()
    assert lake.data_files() == []


def test_rest_catalogue(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = lake.writer()
    for ledger in (1, 2):
        writer.add([batch_of(ledger, 0, 20)], closes=[ledger])
    commit, others = commits.commit_range, list[str]()

    def overtaken(table: Any, files: Any, added: ExportedRange) -> None:
        if not others:
            others.append("another exporter, by the SQL catalogue")
            lake.export(writer, range_bytes=1)
        commit(table, files, added)

    with rest_catalog(lake.catalog, lake.warehouse) as url:
        table = iceberg.open_table("lake.entries", catalog=url)
        assert [each.entries for each in lake.export(writer, table, range_bytes=1).ranges] == [20, 20]
        writer.add([batch_of(3, 0, 20)], closes=[3])
        monkeypatch.setattr(commits, "commit_range", overtaken)
        assert lake.export(writer, table).ranges == ()
    assert rows_by_duckdb(lake.foreign_table()) == sent(writer)


def test_rest_catalogue_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iceberg, "RESPONSE_S_MAX", 0.2)
    with silent_server() as url, pytest.raises(StoreUnavailableError, match="no answer"):
        iceberg.open_table("lake.entries", catalog=url)
