"""``offloader inspect OBJECT``."""

from __future__ import annotations

from pathlib import Path

import pytest

from offloader.store.open import open_store
from tests.cli.reading_verbs import Offloader
from tests.support.streams import StreamWriter, batch_of


@pytest.fixture
def writer(tmp_path: Path) -> StreamWriter:
    writer = StreamWriter(open_store(f"file://{tmp_path}/store"), "orders")
    writer.add([batch_of(3, 0, 20)])
    return writer


@pytest.fixture
def offloader(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, writer: StreamWriter) -> Offloader:
    monkeypatch.setenv("OFFLOADER_STORE", writer.store.url)
    return Offloader(capsys)


def test_a_data_object_is_shown_header_by_header(offloader: Offloader, writer: StreamWriter) -> None:
    data, _ = writer.keys(writer.uuids[0])
    done = offloader("inspect", data)
    assert done.code == 0
    first, *rest = done.out.splitlines()
    size = writer.store.head(data).size_bytes
    assert first == f"{data}: data object, {size:,} bytes"
    assert "  managedledgername = orders" in rest
    header = next(line for line in rest if "block header" in line)
    assert header.split()[:2] == ["0", "128"]
    assert "ledger=3" in header
    assert "codec=none" in header
    assert "first=3:0  last=3:" in done.out


def test_hex_dump_is_optional_and_shows_no_control_characters(offloader: Offloader, writer: StreamWriter) -> None:
    data, _ = writer.keys(writer.uuids[0])
    done = offloader("inspect", data, "--hex", "--hex-bytes", "16", "--limit", "1")
    assert done.out.splitlines()[-1].strip() == (
        "00000000  26 a6 6d 32 00 00 00 00 00 00 00 80 00 00 00 00  &.m2............"
    )
    writer.store.put("orders/odd", b"\x1b[31mred", metadata={"role": "x"})
    assert "\x1b" not in offloader("inspect", "orders/odd", "--hex").out


def test_as_json_an_object_and_then_its_pieces(offloader: Offloader, writer: StreamWriter) -> None:
    _, index = writer.keys(writer.uuids[0])
    head, first, *_ = offloader("inspect", index, "--json", "--hex", "--hex-bytes", "4").rows
    assert (head["object"], head["kind"]) == (index, "index")
    assert (first["what"], first["start"], first["length"], first["hex"]) == ("index header", 0, 24, "3d1fb0bc")
    assert first["problem"] is None


def test_damage_is_reported_with_its_place_and_exit_code_6(
    offloader: Offloader, writer: StreamWriter, tmp_path: Path
) -> None:
    data, _ = writer.keys(writer.uuids[0])
    path = tmp_path / "store" / data
    content = bytearray(path.read_bytes())
    content[200] ^= 1
    path.write_bytes(content)
    done = offloader("inspect", data)
    assert done.code == 6
    assert "damaged: " in done.out
    assert "expected" in done.out
    row = next(row for row in offloader("inspect", data, "--json").rows if row.get("problem"))
    assert row["what"] == "entries"


def test_missing_object_is_an_error(offloader: Offloader) -> None:
    code, line, _ = offloader.refuses("inspect", "orders/nothing")
    assert code == 3
    assert "orders/nothing" in line
