"""``offloader verify STREAM...``."""

from __future__ import annotations

from pathlib import Path

import pytest

from offloader.store.open import open_store
from tests.cli.reading_verbs import Offloader
from tests.support.streams import StreamWriter, batch_of


@pytest.fixture
def offloader(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, writer: StreamWriter) -> Offloader:
    monkeypatch.setenv("OFFLOADER_STORE", writer.store.url)
    return Offloader(capsys)


@pytest.fixture
def writer(tmp_path: Path) -> StreamWriter:
    writer = StreamWriter(open_store(f"file://{tmp_path}/store"), "orders")
    writer.add([batch_of(3, 0, 100)], closes=[3])
    writer.add([batch_of(4, 0, 200)])
    return writer


def test_a_whole_stream_is_one_line_and_exit_code_0(offloader: Offloader) -> None:
    shallow, deep = offloader("verify", "orders"), offloader("verify", "orders", "--deep")
    assert (shallow.code, shallow.out) == (0, "orders: 2 segments: all match the manifest\n")
    assert deep.code == 0
    assert deep.out.startswith("orders: 2 segments, ")
    assert "300 entries" in deep.out
    assert deep.out.endswith(": all match the manifest\n")


def test_damage_is_one_line_with_its_facts_and_exit_code_6(
    offloader: Offloader, writer: StreamWriter, tmp_path: Path
) -> None:
    data, _ = writer.keys(writer.uuids[1])
    path = tmp_path / "store" / data
    content = bytearray(path.read_bytes())
    content[3000] ^= 1
    path.write_bytes(content)
    done = offloader("verify", "orders", "--deep")
    assert done.code == 6
    *findings, total = done.out.splitlines()
    assert any(line.startswith("corrupt: stream orders, object " + data) for line in findings)
    assert all("expected" in line and "found" in line for line in findings)
    assert total.endswith("finding of damage")

    path.unlink()
    row, summary = offloader("verify", "orders", "--json").rows
    assert (row["problem"], row["damage"], row["object"], row["segment"]) == (
        "missing",
        True,
        data,
        str(writer.uuids[1]),
    )
    assert summary == {
        "stream": "orders",
        "manifest": writer.log.state.record_id,
        "deep": False,
        "segments": 2,
        "blocks": 0,
        "entries": 0,
        "data_bytes": 0,
        "trimmed": 0,
        "damage": 1,
        "notes": 0,
        "ok": False,
    }


def test_foreign_object_is_a_note_and_no_failure(offloader: Offloader, writer: StreamWriter, tmp_path: Path) -> None:
    (tmp_path / "store" / "orders" / "notes.txt").write_text("mine")
    done = offloader("verify", "orders")
    assert done.code == 0
    note, total = done.out.splitlines()
    assert note.startswith("foreign: stream orders, object orders/notes.txt, 4 bytes: ")
    assert total == "orders: 2 segments: all match the manifest; 1 note"


def test_each_stream_has_a_line_and_an_unknown_one_is_an_error(offloader: Offloader, writer: StreamWriter) -> None:
    StreamWriter(writer.store, "bills").add([batch_of(1, 0, 10)])
    assert [line.split(":")[0] for line in offloader("verify", "orders", "bills").out.splitlines()] == [
        "orders",
        "bills",
    ]
    code, line, _ = offloader.refuses("verify", "order")
    assert code == 3
    assert "stream order isn't in" in line
