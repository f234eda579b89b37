"""Ledger metadata: Pulsar's and BookKeeper's messages, byte for byte, including unknown fields."""

from __future__ import annotations

import importlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from google.protobuf import descriptor_pb2

from formats.errors import InconsistentError, located
from formats.metadata.messages import BookKeeperLedger, OffloadContext, OffloadSegment, PulsarLedger
from tests.support.ledger_records import encoded_ledger

ROOT = Path(__file__).resolve().parents[3]
#: An unknown field: number 900, length-delimited, "new".
UNKNOWN = bytes.fromhex("a238036e6577")
NEGATIVE = UUID("ffffffff-ffff-4fff-bfff-fffffffffffe")


@pytest.mark.parametrize(
    ("ledger", "encoded"),
    [
        (PulsarLedger(ledger_id=1, entries=5001, size_bytes=10000), "08011089271890 4e"),
        (PulsarLedger(ledger_id=2002, entries=20, size_bytes=200, closed_ms=1694), "08d20f101418c801209e0d"),
        (PulsarLedger(ledger_id=0), "0800"),
        (PulsarLedger(ledger_id=3, closed_ms=0), "08032000"),
    ],
)
def test_pulsar_ledger_bytes(ledger: PulsarLedger, encoded: str) -> None:
    data = bytes.fromhex(encoded)
    assert ledger.encode() == data
    decoded = PulsarLedger.decode(data)
    assert (decoded.ledger_id, decoded.entries, decoded.size_bytes, decoded.closed_ms) == (
        ledger.ledger_id, ledger.entries, ledger.size_bytes, ledger.closed_ms,
    )  # fmt: skip
    assert decoded.encode() == data


def test_minimal_bookkeeper_ledger_bytes() -> None:
    ledger = BookKeeperLedger(length_bytes=1000, last_entry_id=9, created_ms=0)
    data = bytes.fromhex("08011001 18e807 2009 2803 3803 4801 5000")
    assert ledger.encode() == data
    decoded = BookKeeperLedger.decode(data)
    assert (decoded.length_bytes, decoded.last_entry_id, decoded.closed, decoded.created_ms) == (1000, 9, True, 0)


@pytest.mark.parametrize("kind", [PulsarLedger, BookKeeperLedger])
def test_unknown_fields_are_kept(kind: type[PulsarLedger | BookKeeperLedger]) -> None:
    new = PulsarLedger(ledger_id=1) if kind is PulsarLedger else BookKeeperLedger(length_bytes=1)
    data = new.encode() + UNKNOWN
    assert kind.decode(data).encode() == data


def with_context(context: bytes) -> bytes:
    """A ledger's message with these bytes as its context, field 5."""
    assert len(context) < 128
    return bytes([0x08, 1, 0x2A, len(context)]) + context


def test_unknown_fields_of_a_context_and_its_segments_are_kept() -> None:
    segment = OffloadSegment(uuid=NEGATIVE, complete=True, assigned_ms=1, offloaded_ms=2, end_entry_id=3)
    inner = OffloadContext(segments=(segment,)).encode()
    # The unknown field goes into the segment: tag 0x3a, length, content.
    assert inner[0] == 0x3A
    changed = with_context(bytes([0x3A, inner[1] + len(UNKNOWN)]) + inner[2:] + UNKNOWN + UNKNOWN)
    decoded = PulsarLedger.decode(changed)
    assert decoded.context is not None
    assert decoded.context.segments == (segment,)
    assert decoded.encode() == changed


def test_a_password_is_never_written() -> None:
    read = BookKeeperLedger.decode(BookKeeperLedger(length_bytes=1).encode() + bytes.fromhex("4203") + b"pwd")
    assert b"pwd" not in read.encode()


def test_offload_context_round_trip_with_uuid_halves_signed() -> None:
    context = OffloadContext(
        uuid=NEGATIVE,
        complete=True,
        bookkeeper_deleted=True,
        timestamp_ms=1_700_000_000_000,
        driver_name="aws-s3",
        driver_metadata={"bucket": "b", "region": ""},
        segments=(
            OffloadSegment(
                uuid=NEGATIVE, end_entry_id=7, assigned_ms=5, driver_name="aws-s3", driver_metadata={"a": "b"}
            ),
            OffloadSegment(uuid=UUID(int=1), complete=True),
        ),
    )
    encoded = context.encode()
    # -1 << 48 ... as a 64-bit number: ten bytes of varint.
    assert encoded.startswith(bytes.fromhex("08 ff9ffdffffffffffff01"))
    ledger = PulsarLedger.decode(encoded_ledger(PulsarLedger(ledger_id=1, context=context)))
    assert ledger.context == context
    assert PulsarLedger.decode(ledger.encode()).context == context
    assert (
        OffloadContext.decode(encoded) == OffloadContext.decode(context.encode(proposed=True), proposed=True) == context
    )


def test_segment_field_numbers_are_those_of_pulsars_bytes() -> None:
    segment = OffloadSegment(uuid=UUID(int=1), complete=True, assigned_ms=4, offloaded_ms=5, end_entry_id=6)
    decoded = PulsarLedger.decode(with_context(bytes.fromhex("3a0c 0800 1001 1801 2004 2805 3006")))
    assert decoded.context == OffloadContext(segments=(segment,))


def test_segment_field_numbers_of_the_proposals_text() -> None:
    """It has bookkeeperDeleted as 4, which Pulsar left out: the numbers after it are one higher."""
    segment = OffloadSegment(
        uuid=UUID(int=1), complete=True, bookkeeper_deleted=True, assigned_ms=4, offloaded_ms=5, end_entry_id=6
    )
    context = OffloadContext(segments=(segment,))
    data = bytes.fromhex("3a0e 0800 1001 1801 2001 2804 3005 3806")
    assert context.encode(proposed=True) == data
    assert OffloadContext.decode(data, proposed=True) == context
    assert OffloadContext.decode(context.encode()) == OffloadContext(
        segments=(replace(segment, bookkeeper_deleted=False),)
    )
    assert context.encode() == bytes.fromhex("3a0c 0800 1001 1801 2004 2805 3006")


def test_bytes_of_no_context_are_inconsistent() -> None:
    with pytest.raises(InconsistentError, match="offload context"):
        OffloadContext.decode(bytes.fromhex("3aff"))


BAD = ["08", "ff", "0a", "10", "1001", "08011a", "2a", "0801 2a02 3200"]


@pytest.mark.parametrize("data", [bytes.fromhex(each) for each in BAD] + [b""])
def test_bytes_of_no_ledger_are_inconsistent(data: bytes) -> None:
    for kind in (PulsarLedger, BookKeeperLedger):
        with pytest.raises(InconsistentError, match="ledger metadata in thing at byte 9"), located("thing", 9):
            kind.decode(data)


def test_text_other_than_utf8_is_inconsistent() -> None:
    with pytest.raises(InconsistentError, match="UTF-8"):
        BookKeeperLedger.decode(BookKeeperLedger(length_bytes=1).encode() + bytes.fromhex("5a040a02fffe"))
    with pytest.raises(InconsistentError, match="UTF-8"):
        PulsarLedger.decode(bytes.fromhex("08012a0532030a01ff"))


def test_numbers_beyond_64_bits_are_inconsistent() -> None:
    with pytest.raises(InconsistentError, match="64-bit"):
        PulsarLedger(ledger_id=1, entries=2**63).encode()


@pytest.mark.process
@pytest.mark.parametrize("name", ["pulsar_ledger", "bookkeeper_ledger", "pulsar_message", "pulsar_protocol"])
def test_generated_code_matches_the_proto_file(name: str, tmp_path: Path) -> None:
    described = tmp_path / "described"
    source = f"formats/metadata/{name}.proto"
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT}", f"--descriptor_set_out={described}", source]
    subprocess.run(command, check=True, cwd=ROOT)
    fresh = descriptor_pb2.FileDescriptorSet.FromString(described.read_bytes()).file[0]
    for message in fresh.message_type:
        for part in (message, *message.nested_type):
            for field in part.field:
                field.ClearField("json_name")  # only descriptor sets have it
    generated = importlib.import_module(f"formats.metadata.{name}_pb2")
    assert descriptor_pb2.FileDescriptorProto.FromString(generated.DESCRIPTOR.serialized_pb) == fresh


@pytest.mark.parametrize("name", ["pulsar_ledger", "bookkeeper_ledger", "pulsar_message", "pulsar_protocol"])
def test_the_generated_code_asks_for_no_exact_protobuf_release(name: str) -> None:
    assert "runtime_version" not in (ROOT / "formats" / "metadata" / f"{name}_pb2.py").read_text()
