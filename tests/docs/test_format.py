"""docs/reference/format.md: its dumps are what this release writes, decode, and match its tables."""

from __future__ import annotations

import hashlib
import re
from typing import Any
from uuid import UUID

import pytest

from formats.block import decode_block
from formats.checksum import crc32c
from formats.entries import EntryBatch, Position
from formats.extension import Codec
from formats.frames import FILL_BYTES_MAX, FILL_HEADER_BYTES, decode_fill, encode_fill
from formats.keys import new_segment_uuid
from formats.segment import ENTRY_BYTES_MAX, LedgerFacts, SegmentBuilder, SegmentMap
from formats.summary import Layout
from tests.docs.worlds import ROOT
from tests.independent_reader import read_segment
from tests.support.pages import fences

DOCUMENT = (ROOT / "docs" / "reference" / "format.md").read_text(encoding="utf-8")
LIMITS: dict[str, Any] = {"block_bytes_max": 1 << 20, "decompressed_bytes_max": 1 << 20}

#: Name -> bytes of every fenced dump ```` ```hex NAME ````; what follows two spaces after the bytes is a comment.
DUMPS = {
    info.removeprefix("hex "): bytes.fromhex("".join(re.findall(r"^[0-9a-f]{4}  ((?:[0-9a-f]{2} ?)+)", body, re.M)))
    for info, body in fences(DOCUMENT)
    if info.startswith("hex ")
}
#: (dump, offset, size, "in the example") of every row of every table that stands under <!-- NAME -->.
FIELDS = [
    (name, int(offset), int(size), value)
    for name, body in re.findall(r"^<!-- (\S+) -->\n\n((?:\|.*\n)+)", DOCUMENT, flags=re.MULTILINE)
    for offset, size, value in re.findall(
        r"^\| (\d+) \| (\d+) \| .* \| (?:`([0-9a-f]*)`)? ?\|$", body, flags=re.MULTILINE
    )
]

T = 1_700_000_000_000


def written(
    batches: list[EntryBatch],
    *,
    layout: Layout = Layout.V2,
    codec: Codec = Codec.NONE,
    extension: bool = True,
    facts: dict[int, LedgerFacts] | None = None,
) -> tuple[bytes, bytes]:
    builder = SegmentBuilder(layout=layout, block_bytes=1 << 20, part_bytes=1 << 24, codec=codec, extension=extension)
    parts = [part for batch in batches for part in builder.append(batch)]
    finished = builder.finish(facts)
    return b"".join(bytes(part.body) for part in [*parts, *finished.parts]), finished.index


def examples() -> dict[str, bytes]:
    """The dumps as this release writes them."""
    seven = EntryBatch.build(7, 5, [b"hello", b"", b"world"], [T, T + 10, T + 300])
    nine = EntryBatch.build(9, 0, [b"next"])
    facts = {7: LedgerFacts(ledger_id=7, closed=True, closed_ms=T + 100_000, size_bytes=1000)}
    data, index = written([seven, nine], facts=facts)
    plain, _ = written([nine], extension=False)
    eleven = EntryBatch.build(11, 0, [b"a", b"bb", b"ccc"])
    old = {11: LedgerFacts(ledger_id=11, closed=True, created_ms=4_000)}
    v1_data, v1_index = written([eleven], layout=Layout.V1, extension=False, facts=old)
    compressed, _ = written([EntryBatch.build(7, 0, [b"z" * 20] * 200)], codec=Codec.ZSTD)
    return {
        "plain-v2-block": plain,
        "v2-index": index,
        "v2-data": data,
        "plain-v1-index": v1_index,
        "plain-v1-block": v1_data,
        "zstd-block": compressed,
        "fill": bytes(
            encode_fill(EntryBatch.concat([EntryBatch.build(7, 8, [b"abort"]), EntryBatch.build(7, 10, [b""])]))
        ),
    }


def test_page_has_all_dumps() -> None:
    assert set(DUMPS) == set(examples())


@pytest.mark.parametrize("name", [name for name in sorted(DUMPS) if name != "zstd-block"])
def test_dump_is_what_this_release_writes(name: str) -> None:
    assert DUMPS[name].hex(" ") == examples()[name].hex(" ")


def test_fields_have_the_values_in_the_tables() -> None:
    assert len(FIELDS) > 100
    assert [each for each in FIELDS if each[1] + each[2] > len(DUMPS[each[0]])] == []
    shown = [(*each, DUMPS[each[0]][each[1] : each[1] + each[2]].hex()) for each in FIELDS if each[3]]
    assert [each for each in shown if each[3] != each[4]] == []


@pytest.mark.parametrize("name", ["plain-v2-block", "plain-v1-index", "plain-v1-block", "v2-index", "fill"])
def test_tables_leave_no_byte_out(name: str) -> None:
    covered = {at for dump, offset, size, _ in FIELDS if dump == name for at in range(offset, offset + size)}
    assert covered == set(range(len(DUMPS[name])))


def test_tables_cover_the_first_block_of_the_example() -> None:
    covered = {at for dump, offset, size, _ in FIELDS if dump == "v2-data" for at in range(offset, offset + size)}
    assert covered == set(range(int(SegmentMap.parse(DUMPS["v2-index"]).blocks.offset[1])))


def test_example_decodes_to_the_entries_that_the_text_names() -> None:
    found = SegmentMap.parse(DUMPS["v2-index"])
    blocks = [found.decode(number, DUMPS["v2-data"][int(found.blocks.offset[number]) :], **LIMITS) for number in (0, 1)]
    entries = [tuple(entry) for block in blocks for entry in block.entries()]
    assert entries == [(7, 5, b"hello", T), (7, 6, b"", T + 10), (7, 7, b"world", T + 300), (9, 0, b"next", -1)]
    assert read_segment(DUMPS["v2-data"], DUMPS["v2-index"]) == [entry[:3] for entry in entries]
    assert read_segment(DUMPS["plain-v1-block"], DUMPS["plain-v1-index"], 11) == [
        (11, 0, b"a"),
        (11, 1, b"bb"),
        (11, 2, b"ccc"),
    ]
    assert found.find(Position(7, 6), Position(9, 0)).tolist() == [0, 1]


def test_fill_of_the_example_decodes_to_the_entries_that_the_text_names() -> None:
    found = decode_fill(DUMPS["fill"])
    assert [(entry.ledger_id, entry.entry_id, entry.payload) for entry in found.entries()] == [
        (7, 8, b"abort"),
        (7, 10, b""),
    ]
    assert (
        f"| fill | {FILL_BYTES_MAX - FILL_HEADER_BYTES >> 20} MiB and its header of {FILL_HEADER_BYTES} bytes |"
        in DOCUMENT
    )


def test_compressed_example_decodes() -> None:
    found = decode_block(DUMPS["zstd-block"], **LIMITS)
    assert found.payloads.to_pylist() == [b"z" * 20] * 200


def test_documented_checksums_cover_the_documented_bytes() -> None:
    data, index = DUMPS["v2-data"], DUMPS["v2-index"]
    stored, table = (int.from_bytes(data[at : at + 4], "big") for at in (56, 68))
    assert crc32c(data[:124]).to_bytes(4, "big") == data[124:128]
    assert crc32c(data[128 : 128 + stored]).to_bytes(4, "big") == data[64:68]
    assert crc32c(data[132 + stored : 132 + stored + table]).to_bytes(4, "big") == data[72:76]
    seals = [127, 246]
    assert [value for name, offset, _, value in FIELDS if name == "v2-index" and offset in seals] == [
        index[127:131].hex()
    ] * 2
    zeroed = bytearray(index)
    for at in seals:
        zeroed[at : at + 4] = bytes(4)
    assert crc32c(zeroed).to_bytes(4, "little") == index[127:131]
    assert f"`{crc32c(b'123456789'):08x}`" in DOCUMENT


def test_documented_uuid_is_the_one_that_is_generated() -> None:
    incarnation, bits, uuid = re.search(
        r"incarnation `([0-9a-f-]{36})` and the\s+random bits `([0-9a-f]{16})` it is `([0-9a-f-]{36})`", DOCUMENT
    ).groups()  # type: ignore[union-attr]
    assert new_segment_uuid(UUID(incarnation), int(bits, 16)) == UUID(uuid)
    prefix = b"offloader segment uuid 1"
    assert f"the {len(prefix)} ASCII characters `{prefix.decode()}`" in DOCUMENT
    digest = hashlib.sha256(prefix + UUID(incarnation).bytes + bytes.fromhex(bits)).digest()
    free = bits + f"{int.from_bytes(digest[:8], 'big') >> 6:015x}"
    assert f"{UUID(uuid).int:032x}"[:12] == free[:12]
    assert UUID(uuid).int & (1 << 58) - 1 == int.from_bytes(digest[:8], "big") >> 6


def test_largest_entry_in_the_page_is_the_limit() -> None:
    assert f"| payload of an entry | {ENTRY_BYTES_MAX:,} bytes |" in DOCUMENT
    assert 128 + 12 + ENTRY_BYTES_MAX + 4 + 16 + 12 == 2**31 - 1
