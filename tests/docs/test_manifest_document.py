"""docs/explanation/manifest.md matches the code."""

from __future__ import annotations

import re
from pathlib import Path

from formats.entries import Position
from formats.manifest import EDIT_KINDS, Assign, LedgerClosed, Offloaded, decode_record, encode_record

TEXT = (Path(__file__).parents[2] / "docs" / "explanation" / "manifest.md").read_text(encoding="utf-8")


def test_sample_record_decodes_to_the_documented_edits() -> None:
    found = re.search(r"```json\n(.*?)```", TEXT, re.S)
    assert found is not None
    data = found[1].replace("\n", "").encode()

    record = decode_record(data)

    assert encode_record(record) == data
    assert record.record_id == 3
    closed, offloaded, assigned = record.edits
    assert closed == LedgerClosed(7, 5)
    assert isinstance(offloaded, Offloaded)
    assert isinstance(assigned, Assign)
    assert (offloaded.summary.end, assigned.begin) == (Position(8, 3), Position(8, 4))


def test_every_kind_of_edit_is_explained_once() -> None:
    assert re.findall(r"^\| `(\w+)` \|", TEXT, re.M) == list(EDIT_KINDS)
