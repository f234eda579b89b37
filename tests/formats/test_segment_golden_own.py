"""Data and index objects of every version of our extension are read, and this release still writes its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from formats.index import decode_index, encode_index
from formats.segment import SegmentMap
from tests.formats.make_golden_own import FOLDER, OBJECTS, batches, objects
from tests.formats.segments import decode, entries_of
from tests.independent_reader import digest, read_segment


def cases(folders: str = "*") -> list[Any]:
    return [
        pytest.param(path.parent, name, case, id=f"{path.parent.name} {name}")
        for path in sorted(FOLDER.glob(f"{folders}/manifest.json"))
        for name, case in json.loads(path.read_text()).items()
    ]


CASES = cases()


def test_there_are_golden_files_of_this_release() -> None:
    assert (FOLDER / OBJECTS / "manifest.json").exists()


@pytest.mark.parametrize(("folder", "name", "case"), CASES)
def test_objects_of_every_version_are_read(folder: Path, name: str, case: dict[str, Any]) -> None:
    data, index = (folder / name).read_bytes(), (folder / f"{name}-index").read_bytes()
    ledger_id = int(next(iter(case["ledgers"])))
    found = SegmentMap.parse(index, object_name=name, ledger_id=ledger_id if case["layout"] == "V1" else None)
    blocks = decode(found, data)
    assert digest(entries_of(blocks)) == case["sha256"]
    assert sum(map(len, blocks)) == case["entries"]
    assert found.has_extension == case["extension"]
    assert encode_index(decode_index(index)) == index
    if case["extension"]:
        times = [time for each in blocks for time in each.publish_times_ms.tolist()]
        assert times == [time for each in batches(case) for time in each.publish_times_ms.tolist()]
    if case["codec"] == "NONE":
        assert digest(read_segment(data, index, ledger_id)) == case["sha256"]


@pytest.mark.parametrize(("folder", "name", "case"), cases(OBJECTS))
def test_this_release_writes_the_same_bytes(folder: Path, name: str, case: dict[str, Any]) -> None:
    """Of a compressed object only the length of its entries: another zstd release may compress better."""
    data, index = objects(case)
    if case["codec"] == "NONE":
        assert data == (folder / name).read_bytes()
        assert index == (folder / f"{name}-index").read_bytes()
    else:
        own, old = SegmentMap.parse(index), SegmentMap.parse((folder / f"{name}-index").read_bytes())
        assert own.blocks.uncompressed_bytes.tolist() == old.blocks.uncompressed_bytes.tolist()
        assert own.blocks.codec.tolist() == old.blocks.codec.tolist()
