"""Manifest records: encoded records decode, damaged ones are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formats.checksum import crc32c
from formats.entries import Position
from formats.errors import (
    ChecksumMismatchError,
    FormatError,
    InconsistentError,
    TruncatedError,
    UnsupportedVersionError,
)
from formats.manifest import (
    EDIT_KINDS,
    Adopt,
    Assign,
    Boundary,
    CatalogEntry,
    Edit,
    Failed,
    Gap,
    GapFilled,
    Hold,
    HotReleased,
    LedgerClosed,
    LedgersDeleted,
    Offloaded,
    OpenEpoch,
    Pause,
    Purged,
    Record,
    Recover,
    Release,
    Replace,
    ReserveLedgers,
    Restore,
    Resume,
    Retire,
    Rewrite,
    Rewritten,
    SetAside,
    SetMethod,
    StreamDeleted,
    Totals,
    Truncate,
    UndoRetire,
    Writer,
    decode_record,
    encode_record,
)
from formats.summary import Layout, LedgerSpan, SegmentSummary

GOLDEN = Path(__file__).parent / "golden_manifest"
INCARNATION = UUID("0f0e0d0c-0b0a-4900-8807-060504030201")
UUID_A = UUID("11111111-2222-8333-8444-555555555555")
UUID_B = UUID("66666666-7777-8888-9999-aaaaaaaaaaaa")

SUMMARY = SegmentSummary(
    layout=Layout.V2,
    begin=Position(7, 100),
    end=Position(9, 4),
    data_bytes=2**33,
    index_bytes=1234,
    data_crc32c=0xDEADBEEF,
    index_crc32c=1,
    entries=1005,
    payload_bytes=2**32 + 5,
    publish_time_min_ms=1_357_016_400_000,
    publish_time_max_ms=-1,
    blocks=3,
    compressed=False,
    ledgers=(LedgerSpan(7, 100, 1099, 1000, 2**32), LedgerSpan(9, 0, 4, 5, 5)),
)

EDITS: tuple[Edit, ...] = (
    OpenEpoch(3),
    LedgerClosed(7, 1099),
    LedgerClosed(8, -1),
    Assign(UUID_A, 2, Position(7, 100), None, 1_700_000_000_000, {"bucket": "b", "region": "", "ünï": "çode"}),
    Assign(UUID_B, 1, Position(5, 0), Position(5, 9), 1, {}),
    Offloaded(UUID_A, SUMMARY, 1_700_000_000_001),
    Failed(UUID_B, 'an "error" in two\nlines'),
    Gap(Position(6, 0), Position(6, 5), "not delivered"),
    Adopt(UUID_B, SUMMARY, {"bucket": "other"}, False),
    Release((UUID_B,)),
    Truncate(Position(7, 500)),
    LedgersDeleted((5, 6)),
    HotReleased((5,)),
    Retire((UUID_A, UUID_B)),
    Purged((UUID_A,), 41),
    UndoRetire((UUID_B,), 41),
    Rewrite(UUID_B, 1, Position(7, 0), Position(7, 1099), 1_700_000_000_003, {"bucket": "b"}),
    Replace((UUID_A,), (Rewritten(UUID_B, SUMMARY),), 1_700_000_000_004),
    SetMethod("ledger"),
    Pause("by hand"),
    Resume(),
    Hold(True, "audit"),
    StreamDeleted(),
)

#: Kinds that came after the golden record was written.
LATER_EDITS = (Restore(Position(7, 400), (5,)), Restore(None, (5, 6)))
#: Kinds and fields that tell of the hot tier; those of one written before read as before.
SOURCE_EDITS = (
    OpenEpoch(3, UUID_A, "00ff" * 8, 1_000, True),
    ReserveLedgers(2_000),
    LedgerClosed(9, 4, 5, 1_700_000_000_000),
    SetAside((5, 6)),
)

#: Kinds of which earlier releases know nothing.
FILL_EDITS = (
    GapFilled(UUID_A, Position(6, 0), Position(6, 5), 6, 600, 732, 0xFFFFFFFF),
    Recover((Rewritten(UUID_B, SUMMARY),), 1_700_000_000_004),
)

RECORD = Record(
    record_id=42,
    incarnation=INCARNATION,
    epoch=3,
    writer=Writer("host/1", "http://host:8080", "00ff"),
    time_ms=1_700_000_000_002,
    edits=EDITS,
    totals=Totals(1, 1005, 2**32 + 5, 2**33 + 1234, Position(7, 100), None),
)


def test_the_sample_record_holds_every_kind_of_edit() -> None:
    assert {type(edit) for edit in (*EDITS, *LATER_EDITS, *SOURCE_EDITS, *FILL_EDITS)} == set(EDIT_KINDS.values())


def test_record_round_trips() -> None:
    assert decode_record(encode_record(RECORD)) == RECORD
    with_source = replace(RECORD, edits=SOURCE_EDITS, source_end=Position(9, 40))
    assert decode_record(encode_record(with_source)) == with_source
    with_fill = replace(RECORD, edits=FILL_EDITS)
    assert decode_record(encode_record(with_fill)) == with_fill


def test_the_format_is_the_one_of_the_golden_record() -> None:
    """The file was written by the first release; every later one reads it, and version 1 never changes."""
    golden = (GOLDEN / "record-v1.json").read_bytes()

    assert decode_record(golden) == RECORD
    later = replace(RECORD, edits=LATER_EDITS)
    golden_later = (GOLDEN / "record-v1-restore.json").read_bytes()
    assert decode_record(golden_later) == later
    assert encode_record(later) == golden_later
    assert encode_record(RECORD) == golden


def test_later_record_fields_have_their_own_golden_files() -> None:
    chained = replace(RECORD, edits=EDITS[:2], previous_nonce="ff00")
    golden = (GOLDEN / "record-v1-chained.json").read_bytes()
    assert decode_record(golden) == chained
    assert encode_record(chained) == golden
    plain, named = Boundary(101, 100, 0xDEADBEEF), Boundary(101, 100, 0xDEADBEEF, 104, "00ff")
    for boundary, name in ((plain, "boundary-v1.json"), (named, "boundary-v1-named.json")):
        golden = (GOLDEN / name).read_bytes()
        assert Boundary.decode(golden) == boundary
        assert boundary.encode() == golden


def test_a_record_is_json_that_anything_can_read() -> None:
    body = json.loads(encode_record(RECORD))

    assert body["format"] == 1
    assert [edit["edit"] for edit in body["edits"]] == [edit.kind for edit in EDITS]
    assert body["totals"]["first"] == [7, 100]


def test_truncation_at_every_byte_is_refused() -> None:
    data = encode_record(RECORD)

    for length in range(len(data)):
        with pytest.raises((TruncatedError, ChecksumMismatchError)):
            decode_record(data[:length])


def test_every_flipped_bit_is_refused() -> None:
    data = encode_record(replace(RECORD, edits=EDITS[:2]))

    for byte in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[byte] ^= 1 << bit
            with pytest.raises(FormatError):
                decode_record(bytes(damaged))


def _resealed(change: dict[str, object]) -> bytes:
    body = json.loads(encode_record(RECORD))
    del body["crc32c"]
    body.update(change)
    text = json.dumps(body).encode()[:-1]
    return text + b',"crc32c":"%08x"}' % crc32c(text)


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"format": 2}, UnsupportedVersionError),
        ({"format": True}, UnsupportedVersionError),
        ({"edits": [{"edit": "teleport"}]}, UnsupportedVersionError),
        ({"edits": [{"edit": "open_epoch", "epoch": 1, "colour": "red"}]}, UnsupportedVersionError),
        ({"edits": [{"edit": "open_epoch"}]}, InconsistentError),
        ({"edits": [{"edit": "open_epoch", "epoch": "1"}]}, InconsistentError),
        ({"edits": [{"edit": "open_epoch", "epoch": True}]}, InconsistentError),
        ({"edits": [{"edit": "open_epoch", "epoch": 2**63}]}, InconsistentError),
        ({"edits": [{"edit": "truncate", "head": [1]}]}, InconsistentError),
        ({"edits": [{"edit": "truncate", "head": None}]}, InconsistentError),
        ({"edits": [{"edit": "retire", "uuids": ["no uuid"]}]}, InconsistentError),
        ({"edits": ["open_epoch"]}, InconsistentError),
        ({"edits": {}}, InconsistentError),
        ({"writer": "me"}, InconsistentError),
        ({"record_id": 1.5}, InconsistentError),
        ({"extra": 1}, UnsupportedVersionError),
    ],
)
def test_invalid_record_is_refused_by_name(change: dict[str, object], kind: type[FormatError]) -> None:
    with pytest.raises(kind):
        decode_record(_resealed(change), object_name="manifest/1.json")


def test_an_error_names_object_and_field() -> None:
    with pytest.raises(InconsistentError, match=r"field epoch in manifest/1\.json: expected int, found 'x'"):
        decode_record(_resealed({"edits": [{"edit": "open_epoch", "epoch": "x"}]}), object_name="manifest/1.json")


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode)))
def test_garbage_never_raises_anything_but_a_format_error(data: bytes) -> None:
    for sealed in (data, b"{" + data + b',"crc32c":"%08x"}' % crc32c(b"{" + data)):
        for decode in (decode_record, Boundary.decode, CatalogEntry.decode):
            with pytest.raises(FormatError):
                decode(sealed)


def test_boundary_and_catalogue_entry_round_trip_and_detect_damage() -> None:
    boundary, entry = Boundary(101, 100), CatalogEntry("a/ü", INCARNATION, 5)

    assert Boundary.decode(boundary.encode()) == boundary
    assert CatalogEntry.decode(entry.encode()) == entry
    with pytest.raises(ChecksumMismatchError):
        Boundary.decode(boundary.encode().replace(b"101", b"102"))
    with pytest.raises(FormatError):
        Boundary.decode(entry.encode())
