"""``offloader ls STREAM``."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

from formats.entries import TIME_UNKNOWN_MS, Position
from formats.manifest import Assign, Failed
from formats.summary import Layout
from offloader.store.open import open_store
from tests.cli.reading_verbs import Offloader
from tests.support.streams import BASE_MS, StreamWriter, batch_of


@pytest.fixture
def offloader(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, writer: StreamWriter) -> Offloader:
    monkeypatch.setenv("OFFLOADER_STORE", writer.store.url)
    return Offloader(capsys)


@pytest.fixture
def writer(tmp_path: Path) -> StreamWriter:
    writer = StreamWriter(open_store(f"file://{tmp_path}/store"), "orders")
    writer.add([batch_of(3, 0, 10), batch_of(4, 0, 20)], closes=[3, 4])
    writer.add([batch_of(6, 0, 5)], layout=Layout.V1, extension=False, closes=[6])
    return writer


def test_segments_are_listed_in_stream_order_with_their_facts(offloader: Offloader, writer: StreamWriter) -> None:
    done = offloader("ls", "orders", "--wide")
    assert done.code == 0
    heading, first, second = (line.split() for line in done.out.splitlines())
    assert heading[:7] == ["SEGMENT", "LAYOUT", "STATUS", "FIRST", "LAST", "LEDGERS", "ENTRIES"]
    assert first[:7] == [str(writer.uuids[0]), "V2", "offloaded", "3:0", "4:19", "3,4", "30"]
    assert second[:7] == [str(writer.uuids[1]), "V1", "offloaded", "6:0", "6:4", "6", "5"]
    assert "2023-11-14T23:03:20.000Z" in first


def test_segments_fit_80_columns_unless_wide(offloader: Offloader, writer: StreamWriter) -> None:
    heading, *lines = offloader("ls", "orders").out.splitlines()
    assert heading.split() == ["SEGMENT", "FIRST", "LAST", "ENTRIES", "PAYLOAD", "STORED"]
    assert max(map(len, [heading, *lines])) <= 80


def test_as_json_with_the_names_of_the_objects(offloader: Offloader, writer: StreamWriter) -> None:
    first, second = offloader("ls", "orders", "--json").rows
    summary = writer.log.state.offloaded()[0].summary
    assert summary is not None
    assert first == {
        "uuid": str(writer.uuids[0]),
        "layout": "V2",
        "status": "offloaded",
        "first": "3:0",
        "last": "4:19",
        "ledgers": [3, 4],
        "entries": 30,
        "payload_bytes": 600,
        "object_bytes": summary.data_bytes + summary.index_bytes,
        "data_bytes": summary.data_bytes,
        "index_bytes": summary.index_bytes,
        "blocks": summary.blocks,
        "compressed": False,
        "publish_time_min_ms": BASE_MS + 3_000_000,
        "publish_time_max_ms": BASE_MS + 4_019_000,
        "assigned_ms": BASE_MS,
        "offloaded_ms": BASE_MS,
        "owned": True,
        "data": f"orders/{writer.uuids[0]}",
        "index": f"orders/{writer.uuids[0]}-index",
    }
    assert second["data"] == f"orders/{writer.uuids[1]}-ledger-6"


def test_assigned_segment_is_shown_without_unknown_facts(offloader: Offloader, writer: StreamWriter) -> None:
    uuid = uuid4()
    writer.log.commit([Assign(uuid, 2, Position(7, 0), None, BASE_MS, {})])
    row = offloader("ls", "orders", "--json").rows[-1]
    assert (row["status"], row["first"], row["last"], row["ledgers"]) == ("assigned", "7:0", None, [])
    assert "entries" not in row
    last = offloader("ls", "orders", "--wide").out.splitlines()[-1].split()
    assert last == [str(uuid), "V2", "assigned", "7:0", *["-"] * 9]


def test_failed_segments_are_listed_with_the_reason(offloader: Offloader, writer: StreamWriter) -> None:
    failed, later = uuid4(), uuid4()
    writer.log.commit([Assign(failed, 2, Position(7, 0), None, BASE_MS, {})])
    writer.log.commit([Failed(failed, "the store didn't answer"), Assign(later, 2, Position(7, 0), None, BASE_MS, {})])
    assert str(failed) not in offloader("ls", "orders", "--json").out
    rows = offloader("ls", "orders", "--all", "--json").rows
    assert [(row["uuid"], row["status"], row["reason"]) for row in rows] == [
        *((str(uuid), "offloaded", None) for uuid in writer.uuids),
        (str(failed), "failed", "the store didn't answer"),
        (str(later), "assigned", None),
    ]
    assert rows[2]["failed_ms"] > 0
    assert "the store didn't answer" in offloader("ls", "orders", "--all", "--wide").out


def test_unknown_publish_times_are_shown_as_dashes(offloader: Offloader, writer: StreamWriter) -> None:
    writer.add([batch_of(7, 0, 5, times=TIME_UNKNOWN_MS)])
    assert offloader("ls", "orders", "--wide").out.splitlines()[-1].split().count("-") == 2
    assert offloader("ls", "orders", "--json").rows[-1]["publish_time_min_ms"] is None


def test_a_limit_and_an_empty_stream(offloader: Offloader, writer: StreamWriter) -> None:
    assert len(offloader("ls", "orders", "--json", "--limit", "1").rows) == 1
    StreamWriter(writer.store, "empty")
    assert offloader("ls", "empty").out == "stream empty has no segments\n"


def test_an_unknown_stream_is_answered_with_similar_names(offloader: Offloader) -> None:
    code, line, hint = offloader.refuses("ls", "order")
    assert (code, hint) == (3, "did you mean orders?")
    assert line.startswith("stream order isn't in file://")


def test_invalid_stream_name_is_refused(offloader: Offloader) -> None:
    done = offloader("ls", "a//b")
    assert done.code == 2
    assert "stream name 'a//b' can't be used" in done.err


@pytest.mark.slow
@pytest.mark.parametrize(("name", "begin"), [("p.svg", b"<?xml"), ("p.png", b"\x89PNG")])
def test_a_picture_is_drawn_into_a_file(offloader: Offloader, tmp_path: Path, name: str, begin: bytes) -> None:
    path = tmp_path / name
    done = offloader("ls", "orders", "--plot", str(path))
    assert (done.code, done.out) == (0, f"Picture: {path}\n")
    assert path.read_bytes().startswith(begin)
    assert offloader("ls", "orders", "--plot", str(path), "--json").rows == [{"stream": "orders", "picture": str(path)}]


def test_a_picture_of_another_kind_is_refused_before_anything_is_written(offloader: Offloader, tmp_path: Path) -> None:
    code, line, _ = offloader.refuses("ls", "orders", "--plot", str(tmp_path / "p.xlsx"))
    assert code == 2
    assert ".svg or .png" in line
    assert not (tmp_path / "p.xlsx").exists()
