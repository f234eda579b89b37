"""Objects written by Pulsar 4.0.8's own classes are read, and their indexes encode to the same bytes.

The folder is ``OFFLOADER_GOLDEN_DIR`` or the copy beside this file; every case of its manifests is checked.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from formats.block import decode_block_header, padding, walk
from formats.entries import Position, byte_array
from formats.index import decode_index, encode_index
from formats.keys import check_object_version, data_key, index_key, parse_object_key
from formats.segment import SegmentMap
from formats.summary import Layout
from tests.independent_reader import check_blocks, read_segment

GOLDEN = Path(os.environ.get("OFFLOADER_GOLDEN_DIR") or Path(__file__).parent / "golden")
LIMITS = {"block_bytes_max": 1 << 28, "decompressed_bytes_max": 1 << 28}


def _load(layout: str) -> list[dict[str, Any]]:
    path = GOLDEN / layout / "manifest.json"
    assert path.exists(), f"no golden objects: {path} is missing"
    loaded: list[dict[str, Any]] = json.loads(path.read_text())
    assert loaded, f"{path} is empty"
    return loaded


def _v2_segments() -> list[tuple[str, dict[str, Any]]]:
    return [(case["name"], segment) for case in _load("v2") for segment in case["segments"]]


V1_CASES = [pytest.param(case, id=case["name"]) for case in _load("v1")]
V2_CASES = [pytest.param(case, id=case["name"]) for case in _load("v2")]
V2_SEGMENTS = [pytest.param(segment, id=f"{name}-{at}") for at, (name, segment) in enumerate(_v2_segments())]
OBJECTS = [pytest.param("v1", case, id=case["name"]) for case in _load("v1")] + [
    pytest.param("v2", segment, id=f"{name}-{at}") for at, (name, segment) in enumerate(_v2_segments())
]


def object_bytes(layout: str, key: str) -> bytes:
    path = GOLDEN / layout / key
    return path.read_bytes() if path.exists() else gzip.decompress(path.with_name(key + ".gz").read_bytes())


def load(layout: str, case: dict[str, Any]) -> tuple[SegmentMap, bytes]:
    data = object_bytes(layout, case["data"]["key"])
    index = object_bytes(layout, case["index"]["key"])
    ledger_id = case.get("ledger")
    return SegmentMap.parse(index, object_name=case["index"]["key"], ledger_id=ledger_id), data


def entries_of(
    segment_map: SegmentMap, data: bytes, first: Position, last: Position
) -> Iterator[tuple[int, int, bytes]]:
    for number in segment_map.find(first, last).tolist():
        start = int(segment_map.blocks.offset[number])
        stop = start + int(segment_map.blocks.read_bytes[number])
        batch = segment_map.decode(number, data[start:stop], **LIMITS).between(first, last)
        for entry in batch.entries():
            yield entry.ledger_id, entry.entry_id, entry.payload


def digest(entries: list[tuple[int, int, bytes]]) -> str:
    sha = hashlib.sha256()
    for _, entry_id, payload in entries:
        sha.update(struct.pack(">qi", entry_id, len(payload)) + payload)
    return sha.hexdigest()


def expected_payloads(part: dict[str, Any]) -> Iterator[tuple[int, int, bytes]]:
    """The payloads that the README describes: byte i of entry e in ledger L is (L*31 + e*7 + i) & 0xff."""
    entry_id = part["first"]
    ramp = bytes(range(256))
    for count, size in part["sizes_runs"]:
        for _ in range(count):
            start = (part["ledger"] * 31 + entry_id * 7) & 0xFF
            yield part["ledger"], entry_id, (ramp[start:] + ramp * (size // 256 + 1))[:size]
            entry_id += 1


@pytest.mark.parametrize(("layout", "case"), OBJECTS)
def test_objects_are_the_ones_the_manifest_describes(layout: str, case: dict[str, Any]) -> None:
    for role in ("data", "index"):
        described = case[role]
        content = object_bytes(layout, described["key"])
        assert len(content) == described["contentLength"]
        assert hashlib.sha256(content).hexdigest() == described["sha256"]
        assert check_object_version(described["userMetadata"], described["key"]) == 1


@pytest.mark.parametrize(("layout", "case"), OBJECTS)
def test_keys_parse_and_build(layout: str, case: dict[str, Any]) -> None:
    uuid, ledger_id = UUID(case["uuid"]), case.get("ledger")
    assert data_key("", uuid, ledger_id) == case["data"]["key"]
    assert index_key("", uuid, ledger_id) == case["index"]["key"]
    for role in ("data", "index"):
        parsed = parse_object_key(case[role]["key"], "")
        assert parsed is not None
        assert (parsed.uuid, parsed.ledger_id, parsed.is_index) == (uuid, ledger_id, role == "index")


@pytest.mark.parametrize(("layout", "case"), OBJECTS)
def test_index_fields(layout: str, case: dict[str, Any]) -> None:
    segment_map, data = load(layout, case)
    fields = case["index_fields"]
    index = object_bytes(layout, case["index"]["key"])
    assert segment_map.layout is Layout[layout.upper()]
    assert index[:4].hex() == fields["magic"]
    assert len(index) == fields["index_length"] == fields["actual_length"]
    assert segment_map.data_bytes == fields["data_object_length"] == len(data)
    assert segment_map.header_bytes == fields["data_header_length"]
    assert [group.metadata.hex() for group in segment_map.ledgers] == [g["metadata_hex"] for g in fields["groups"]]
    if layout == "v2":
        assert [group.ledger_id for group in segment_map.ledgers] == [g["ledger"] for g in fields["groups"]]
    blocks = segment_map.blocks
    found = sorted(zip(blocks.offset.tolist(), blocks.first_entry_id.tolist(), strict=True))
    listed = [(at, first) for g in fields["groups"] for first, _, at in g["entries_first_part_offset"]]
    assert found == sorted(listed)


@pytest.mark.parametrize(("layout", "case"), OBJECTS)
def test_index_is_encoded_to_the_same_bytes(layout: str, case: dict[str, Any]) -> None:
    index = object_bytes(layout, case["index"]["key"])
    assert encode_index(decode_index(index)) == index


@pytest.mark.parametrize(("layout", "case"), OBJECTS)
def test_block_headers_and_padding(layout: str, case: dict[str, Any]) -> None:
    _, data = load(layout, case)
    end = 0
    for block in case["blocks"]:
        offset = block["offset"]
        assert offset == end
        header = decode_block_header(data[offset:])
        assert header.layout is Layout[block["format"].upper()]
        assert header.header_bytes == block["header_length"]
        assert header.block_bytes == block["block_length"]
        assert header.first_entry_id == block["first_entry"]
        assert header.ledger_id == block.get("ledger")
        assert header.extension is None
        end = offset + header.block_bytes
        content = byte_array(data[offset:end])
        lengths, payload_end = walk(content, header.header_bytes, len(content), -1)
        assert len(lengths) == block["entries"]
        assert header.first_entry_id + len(lengths) - 1 == block["last_entry"]
        assert len(content) - payload_end == block["padding"]
        assert (content[payload_end:].tobytes() == padding(block["padding"])) == block["padding_ok"]
    assert end == len(data)


@pytest.mark.parametrize("case", V1_CASES)
def test_v1_entries(case: dict[str, Any]) -> None:
    segment_map, data = load("v1", case)
    entries = list(entries_of(segment_map, data, Position(0, 0), Position(2**62, 0)))
    assert entries == list(expected_payloads(case))
    assert len(entries) == case["count"]
    assert sum(len(payload) for _, _, payload in entries) == case["payload_bytes"]
    assert digest(entries) == case["sha256"]


@pytest.mark.parametrize("segment", V2_SEGMENTS)
def test_v2_entries(segment: dict[str, Any]) -> None:
    segment_map, data = load("v2", segment)
    begin_ledger, begin_entry, end_ledger, end_entry = segment["result"]
    entries = list(entries_of(segment_map, data, Position(0, 0), Position(2**62, 0)))
    assert entries[0][:2] == (begin_ledger, begin_entry)
    assert entries[-1][:2] == (end_ledger, end_entry)
    assert entries == [entry for part in segment["parts"] for entry in expected_payloads(part)]
    for part in segment["parts"]:
        own = [entry for entry in entries if entry[0] == part["ledger"]]
        assert len(own) == part["count"]
        assert digest(own) == part["sha256"]


@pytest.mark.parametrize("case", V2_CASES)
def test_v2_reads_over_segments(case: dict[str, Any]) -> None:
    segments = {segment["uuid"]: segment for segment in case["segments"]}
    for read in case["reads"]:
        first, last = Position(read["ledger"], read["first"]), Position(read["ledger"], read["last"])
        entries: list[tuple[int, int, bytes]] = []
        for uuid in read["segments"]:
            segment_map, data = load("v2", segments[uuid])
            entries += entries_of(segment_map, data, first, last)
        assert [entry_id for _, entry_id, _ in entries] == list(range(read["first"], read["last"] + 1))
        assert digest(entries) == read["sha256"]


@pytest.mark.parametrize(("layout", "case"), OBJECTS)
def test_the_independent_reader_agrees(layout: str, case: dict[str, Any]) -> None:
    data, index = (object_bytes(layout, case[role]["key"]) for role in ("data", "index"))
    expected = [entry for part in case.get("parts", [case]) for entry in expected_payloads(part)]
    assert read_segment(data, index, case.get("ledger", -1)) == expected
    blocks = [(b["format"].upper(), b["offset"], b["first_entry"], b.get("ledger")) for b in case["blocks"]]
    assert check_blocks(data) == blocks
