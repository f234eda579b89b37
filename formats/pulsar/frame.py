"""The frame of a stored entry: ``[0x0e02 broker metadata] [0x0e01 CRC-32C] metadata, payload``.

Owns where each part begins and that the checksum fits. Must never look into the payload.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from formats.checksum import crc32c
from formats.errors import ChecksumMismatch, Inconsistent, Truncated
from formats.metadata import pulsar_message_pb2

__all__ = ["Frame", "decode_frame", "parse_message", "signed64"]

_PROTOCOL: Any = pulsar_message_pb2
_MessageMetadata: Any = _PROTOCOL.MessageMetadata
_BrokerEntryMetadata: Any = _PROTOCOL.BrokerEntryMetadata

_MAGIC_BROKER_METADATA = 0x0E02
_MAGIC_CHECKSUM = 0x0E01
_U16 = struct.Struct(">H").unpack_from
_U32 = struct.Struct(">I").unpack_from


class Frame(NamedTuple):
    """Where things are in one entry.

    Attributes:
        metadata: protobuf ``MessageMetadata``, complete.
        broker: protobuf ``BrokerEntryMetadata``, or ``None`` where the broker added none.
        payload_start: offset of the payload, which reaches to the end of the entry.
    """

    metadata: Any
    broker: Any
    payload_start: int


def decode_frame(entry: bytes) -> Frame:
    """Reads the frame of one entry; offsets in errors count from its first byte.

    Raises:
        Truncated: a declared length is more than there is.
        ChecksumMismatch: metadata and payload aren't what the producer sent.
        Inconsistent: the metadata isn't a protobuf message of that kind, or lacks a required field.
    """
    position, size = 0, len(entry)
    broker = None
    magic = _U16(entry, 0)[0] if size >= 2 else 0
    if magic == _MAGIC_BROKER_METADATA:
        start = 6
        position = start + _length(entry, 2, "broker entry metadata")
        broker = parse_message(_BrokerEntryMetadata, entry[start:position], start)
        magic = _U16(entry, position)[0] if size >= position + 2 else 0
    if magic == _MAGIC_CHECKSUM:
        _check_crc(entry, position + 2)
        position += 6
    start = position + 4
    position = start + _length(entry, position, "message metadata")
    metadata = parse_message(_MessageMetadata, entry[start:position], start)
    return Frame(metadata, broker, position)


def _length(entry: bytes, at: int, what: str) -> int:
    """A length field at ``at`` whose bytes are there too."""
    left = len(entry) - at - 4
    if left < 0:
        raise Truncated(f"length of {what}", offset=at, expected="4 bytes", found=max(left + 4, 0))
    length = int(_U32(entry, at)[0])
    if length > left:
        raise Truncated(what, offset=at, expected=f"at most {left} bytes", found=length)
    return length


def _check_crc(entry: bytes, at: int) -> None:
    if len(entry) < at + 4:
        raise Truncated("checksum of the message", offset=at, expected="4 bytes", found=len(entry) - at)
    expected, found = _U32(entry, at)[0], crc32c(entry[at + 4 :])
    if expected != found:
        raise ChecksumMismatch("message", offset=at, expected=f"CRC-32C {expected:08x}", found=f"{found:08x}")


def parse_message(kind: Any, data: bytes, offset: int) -> Any:
    """The protobuf message in ``data``; ``Inconsistent`` when it isn't one, or lacks a required field."""
    try:
        message = kind.FromString(data)
    except DecodeError as cause:
        raise Inconsistent(
            "message metadata", offset=offset, expected=f"protobuf {kind.DESCRIPTOR.name}", found=str(cause)
        ) from cause
    if not message.IsInitialized():
        missing = ", ".join(message.FindInitializationErrors())
        raise Inconsistent(
            "message metadata", offset=offset, expected=f"protobuf {kind.DESCRIPTOR.name}", found=f"no {missing}"
        )
    return message


def signed64(value: int) -> int:
    """An unsigned 64-bit field as Pulsar's code, which has no unsigned numbers, reads it."""
    return value - 2**64 if value >= 2**63 else value
