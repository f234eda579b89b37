"""Indexes: golden bytes in both directions, lookups, and all inconsistent contents."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from formats.entries import Position
from formats.errors import BadMagicError, FormatError, InconsistentError, TruncatedError
from formats.index import INDEX_ENTRY, IndexGroup, InOrder, ObjectIndex, decode_index, encode_index
from formats.metadata.messages import BookKeeperLedger, PulsarLedger
from formats.segment import LedgerFacts, SegmentMap
from formats.summary import Layout
from tests.formats.segments import batch, build

V1_METADATA = BookKeeperLedger(length_bytes=1000, last_entry_id=9, created_ms=0).encode()
LEDGER_1 = PulsarLedger(ledger_id=1, entries=5001, size_bytes=10000).encode()
LEDGER_2 = PulsarLedger(ledger_id=2, entries=5001, size_bytes=10000).encode()


def group(ledger_id: int, metadata: bytes, *entries: tuple[int, int, int]) -> IndexGroup:
    return IndexGroup(ledger_id, metadata, np.array(list(entries), dtype=INDEX_ENTRY))


CASES = [
    pytest.param(
        ObjectIndex(Layout.V1, 1248, 128, (group(-1, V1_METADATA, (0, 1, 0)),)),
        "de47de47 00000045 00000000000004e0 0000000000000080 00000001 00000011"
        "0801100118e807200928033803 48015000 0000000000000000 00000001 0000000000000000",
        id="V1",
    ),
    pytest.param(
        ObjectIndex(Layout.V2, 1, 23455, (group(1, LEDGER_1, (0, 2, 0), (1000, 3, 0x4000000), (2000, 4, 0x8000000)),)),
        "3d1fb0bc0000006c00000000000000010000000000005b9f00000000000000010000000300000008080110892718904e"
        "000000000000000000000002000000000000000000000000000003e800000003000000000400000000000000000007d0"
        "000000040000000008000000",
        id="V2",
    ),
    pytest.param(
        ObjectIndex(
            Layout.V2,
            1,
            23455,
            (
                group(1, LEDGER_1, (1000, 2, 0)),
                group(2, LEDGER_2, (0, 3, 0x4000000), (1000, 4, 0x8000000)),
            ),
        ),
        "3d1fb0bc0000008400000000000000010000000000005b9f00000000000000010000000100000008080110892718904e"
        "00000000000003e800000002000000000000000000000000000000020000000200000008080210892718904e00000000"
        "0000000000000003000000000400000000000000000003e8000000040000000008000000",
        id="V2 two ledgers",
    ),
]


@pytest.mark.parametrize(("index", "expected"), CASES)
def test_golden_indexes_in_both_directions_whole_cut_and_with_trailing_bytes(index: ObjectIndex, expected: str) -> None:
    data = bytes.fromhex(expected)
    assert encode_index(index) == data
    for tail in (b"", b"\0", b"more", data):
        decoded = decode_index(data + tail)
        assert (decoded.layout, decoded.data_bytes, decoded.header_bytes) == (
            index.layout, index.data_bytes, index.header_bytes,
        )  # fmt: skip
        assert [g.entries.tolist() for g in decoded.groups] == [g.entries.tolist() for g in index.groups]
        assert encode_index(decoded) == data
        SegmentMap.parse(data + tail)
    for length in range(len(data)):
        with pytest.raises(TruncatedError):
            SegmentMap.parse(data[:length])


@pytest.mark.parametrize("data", [bytes(128), b"\xff" * 128, bytes.fromhex("fbdbabcb") + bytes(100)])
def test_other_bytes_than_an_index_are_refused(data: bytes) -> None:
    with pytest.raises(BadMagicError, match="index in thing at byte 0"):
        SegmentMap.parse(data, object_name="thing")


def written(number: int) -> bytes:
    """The bytes of a case."""
    text = CASES[number].values[1]
    assert isinstance(text, str)
    return bytes.fromhex(text)


def changed(at: int, value: int, size: int = 4, *, number: int = 1) -> bytes:
    data = bytearray(written(number))
    data[at : at + size] = value.to_bytes(size, "big")
    return bytes(data)


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("value", [0, 23, 24, 40, 2**31, 2**32 - 1, -1, -20, 1, 20])
def test_an_index_length_that_lies_is_refused(number: int, value: int) -> None:
    data = written(number)
    lie = value if value in (0, 23, 24, 40, 2**31, 2**32 - 1) else len(data) + value
    if number and lie == 24:
        assert len(SegmentMap.parse(changed(4, lie, number=number)).ledgers) == 0
        return
    with pytest.raises((TruncatedError, InconsistentError)):
        SegmentMap.parse(changed(4, lie, number=number) + bytes(8))


@pytest.mark.parametrize("value", [2, 4, 2**31 - 1, 2**31, 2**32 - 1])
@pytest.mark.parametrize(("number", "at"), [(0, 24), (0, 28), (1, 32), (1, 36), (2, 32), (2, 36)])
def test_wrong_counts_are_refused(number: int, at: int, value: int) -> None:
    with pytest.raises((TruncatedError, InconsistentError)):
        SegmentMap.parse(changed(at, value, number=number))


@pytest.mark.parametrize(
    ("at", "value"),
    [(8, 2**63), (16, 2**63), (16, 2**31), (24, 9), (48, 2**63), (60, 2**63), (68, 2**63 - 1), (80, 0), (68, 0)],
    ids=[
        "negative data length", "negative header length", "huge header length", "ledger differs from its metadata",
        "negative entry id", "negative offset", "ids fall", "offsets stay", "ids stay"
    ],
)  # fmt: skip
def test_numbers_that_contradict_each_other_are_refused(at: int, value: int) -> None:
    if (at, value) == (68, 0):
        # Twice the same first entry: Pulsar's V1 writer makes an empty block before an entry that doesn't fit.
        assert SegmentMap.parse(changed(at, value, 8)).blocks.first_entry_id.tolist() == [0, 0, 2000]
        return
    with pytest.raises(InconsistentError):
        SegmentMap.parse(changed(at, value, 8))


def test_ledger_in_two_groups_is_refused() -> None:
    twice = ObjectIndex(Layout.V2, 512, 128, (group(1, LEDGER_1, (0, 1, 0)), group(1, LEDGER_1, (9, 1, 256))))
    with pytest.raises(InconsistentError, match="one group per ledger"):
        SegmentMap.parse(encode_index(twice))


def lookup_map() -> SegmentMap:
    """Ledger 1 closed at 29 with blocks at 0, 10, 20; ledger 2 open with blocks at 5, 50; groups out of order."""
    one = PulsarLedger(ledger_id=1, entries=30, closed_ms=1).encode()
    two = PulsarLedger(ledger_id=2, entries=60).encode()
    groups = (
        group(2, two, (5, 1, 3000), (50, 1, 4000)),
        group(1, one, (0, 1, 0), (10, 1, 1000), (20, 1, 2000)),
    )
    return SegmentMap.parse(encode_index(ObjectIndex(Layout.V2, 5000, 128, groups)))


@pytest.mark.parametrize(
    ("first", "last", "blocks"),
    [
        ((1, 0), (1, 0), [0]),
        ((1, 9), (1, 9), [0]),
        ((1, 9), (1, 10), [0, 1]),
        ((1, 10), (1, 10), [1]),
        ((1, 29), (1, 29), [2]),
        ((1, 30), (1, 99), []),
        ((1, 30), (2, 4), []),
        ((1, 25), (2, 5), [2, 3]),
        ((2, 0), (2, 4), []),
        ((2, 49), (2, 49), [3]),
        ((2, 60), (2, 10**6), [4]),
        ((0, 0), (0, 99), []),
        ((3, 0), (9, 0), []),
        ((0, 0), (9, 0), [0, 1, 2, 3, 4]),
        ((2, 50), (2, 5), []),
    ],
)
def test_lookups_at_between_and_past_the_entries(
    first: tuple[int, int], last: tuple[int, int], blocks: list[int]
) -> None:
    """An open ledger may extend past its metadata, a closed one may not."""
    assert lookup_map().find(Position(*first), Position(*last)).tolist() == blocks


def test_the_table_of_a_plain_index() -> None:
    found = lookup_map()
    assert [(g.ledger_id, g.first_entry_id, g.last_entry_id, g.closed) for g in found.ledgers] == [
        (2, 5, 59, False),
        (1, 0, 29, True),
    ]
    assert found.blocks.ledger_id.tolist() == [1, 1, 1, 2, 2]
    assert found.blocks.offset.tolist() == [0, 1000, 2000, 3000, 4000]
    assert found.blocks.length.tolist() == [1000] * 5
    assert found.blocks.read_bytes.tolist() == [1128] * 4 + [1000]
    assert not found.has_extension
    for column in ("last_entry_id", "entries", "payload_crc32c", "codec", "table_bytes", "publish_time_max_ms"):
        assert getattr(found.blocks, column).tolist() == [-1] * 5


def test_the_table_of_our_index_needs_no_data() -> None:
    batches = [batch(1, 0, [b"x" * 100] * 60, list(range(1000, 1060))), batch(3, 7, [b"y"] * 5)]
    data, finished = build(batches, facts={1: LedgerFacts(ledger_id=1, closed=True, closed_ms=9, size_bytes=10**6)})
    found = SegmentMap.parse(finished.index, object_name="i")
    blocks = found.blocks
    assert found.has_extension
    assert blocks.ledger_id.tolist() == [1, 1, 3]
    assert blocks.first_entry_id.tolist() == [0, 31, 7]
    assert blocks.last_entry_id.tolist() == [30, 59, 11]
    assert blocks.entries.tolist() == [31, 29, 5]
    assert blocks.publish_time_min_ms.tolist() == [1000, 1031, -1]
    assert blocks.publish_time_max_ms.tolist() == [1030, 1059, -1]
    assert (blocks.offset + blocks.length).tolist() == [*blocks.offset.tolist()[1:], len(data)]
    assert blocks.uncompressed_bytes.tolist() == [31 * 112, 29 * 112, 5 * 13]
    assert found.find(Position(1, 60), Position(3, 6)).tolist() == []
    closed, opened = (PulsarLedger.decode(g.metadata) for g in found.ledgers)
    assert (closed.entries, closed.size_bytes, closed.closed_ms) == (60, 10**6, 9)
    assert (opened.entries, opened.size_bytes, opened.closed_ms) == (12, 5, None)


@pytest.mark.parametrize("layout", Layout)
def test_parsing_never_needs_the_ledger_of_our_own_v1_index(layout: Layout) -> None:
    _, finished = build([batch(42, 0, [b"x"])], layout=layout)
    assert SegmentMap.parse(finished.index).blocks.ledger_id.tolist() == [42]
    if layout is Layout.V1:
        assert SegmentMap.parse(finished.index, ledger_id=42).ledgers[0].ledger_id == 42
        with pytest.raises(FormatError):
            SegmentMap.parse(finished.index, ledger_id=43)


def test_offsets_beyond_two_and_four_gibibytes() -> None:
    """An object of a tebibyte, as arithmetic: nothing is cut to 32 bits."""
    count = 1 << 12
    entries = np.zeros(count, dtype=INDEX_ENTRY)
    entries["first_entry_id"] = np.arange(count, dtype=np.int64) << 33
    entries["offset"] = np.arange(count, dtype=np.int64) << 28
    metadata = PulsarLedger(ledger_id=1 << 40, entries=count << 33, size_bytes=1 << 40, closed_ms=1).encode()
    data = encode_index(ObjectIndex(Layout.V2, 1 << 40, 128, (IndexGroup(1 << 40, metadata, entries),)))
    found = SegmentMap.parse(data)
    assert found.data_bytes == 1 << 40
    assert (found.blocks.length == 1 << 28).all()
    assert found.find(Position(1 << 40, (5 << 33) - 1), Position(1 << 40, 5 << 33)).tolist() == [4, 5]
    assert int(found.blocks.offset[-1]) == (count - 1) << 28
    assert encode_index(decode_index(data)) == data


@pytest.mark.slow
def test_binary_search_finds_the_same_blocks_as_a_full_scan() -> None:
    chance = random.Random(5)
    for _ in range(60):
        groups = []
        offset = 0
        for ledger_id in chance.sample(range(1, 9), chance.randrange(1, 5)):
            firsts = sorted(chance.randrange(40) for _ in range(chance.randrange(1, 6)))
            closed_ms = chance.choice([None, 1])
            metadata = PulsarLedger(ledger_id=ledger_id, entries=45, closed_ms=closed_ms).encode()
            groups.append(
                group(ledger_id, metadata, *((first, 1, offset + 100 * at) for at, first in enumerate(firsts)))
            )
            offset += 1000
        halving = SegmentMap.parse(encode_index(ObjectIndex(Layout.V2, offset + 1000, 128, tuple(groups))))
        looking = replace(halving, _in_order=None)
        for _ in range(50):
            first, last = (Position(chance.randrange(10), chance.randrange(60)) for _ in range(2))
            assert halving.find(first, last).tolist() == looking.find(first, last).tolist(), (first, last)
        assert halving._in_order is not None


def test_overlapping_blocks_are_found_by_a_full_scan() -> None:
    found = lookup_map()
    overlapping = np.array([9, 45, 29, 49, 2**62])
    assert InOrder.of(found.blocks, np.arange(5), overlapping) is None
    damaged = replace(found, _upper=overlapping, _in_order=None)
    assert damaged.find(Position(1, 40), Position(1, 41)).tolist() == [1]


GOLDEN = Path(__file__).parent / "golden"


def test_part_numbers_of_pulsars_indexes_count_uploaded_parts_over_the_object() -> None:
    """One block a part: 1, 2, 3 over the object, also where a ledger's only block is the third."""
    for path in sorted(GOLDEN.rglob("*-index")):
        rows = np.concatenate([each.entries for each in decode_index(path.read_bytes()).groups])
        rows = rows[np.argsort(rows["offset"])]
        assert rows["part"].tolist() == list(range(1, len(rows) + 1)), path


def test_part_numbers_are_not_looked_at() -> None:
    """Ours count uploaded parts too, which may hold several blocks; another number changes no lookup."""
    batches = [batch(1, 0, [b"x" * 100] * 60), batch(3, 7, [b"y"] * 5)]
    _, finished = build(batches, extension=False)
    ours = decode_index(finished.index)
    assert [each.entries["part"].tolist() for each in ours.groups] == [[1, 1], [1]]
    other = replace(ours, groups=tuple(replace(each, entries=each.entries.copy()) for each in ours.groups))
    for each in other.groups:
        each.entries["part"] = 7
    found, again = (SegmentMap.parse(encode_index(each), object_name="i") for each in (ours, other))
    assert found.blocks.offset.tolist() == again.blocks.offset.tolist()
    for first in range(60):
        ends = Position(1, first), Position(3, 7)
        assert found.find(*ends).tolist() == again.find(*ends).tolist()
