"""Decodes an entry as a Pulsar producer wrote it: metadata, checksum, compression, batch."""

from __future__ import annotations

import functools
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

import pyarrow as pa
from google.protobuf.message import DecodeError

from formats.checksum import crc32c
from formats.errors import (
    ChecksumMismatchError,
    FormatError,
    InconsistentError,
    TruncatedError,
    UnsupportedVersionError,
    require_at_most,
    require_equal,
)
from formats.metadata import pulsar_message_pb2
from formats.metadata.messages import parse_message

_PROTOCOL: Any = pulsar_message_pb2

_MAGIC_BROKER_METADATA = 0x0E02
_MAGIC_CHECKSUM = 0x0E01
_U16 = struct.Struct(">H").unpack_from
_U32 = struct.Struct(">I").unpack_from


class Frame(NamedTuple):
    """Offsets and metadata of one entry.

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
        TruncatedError: a declared length exceeds the data.
        ChecksumMismatchError: metadata and payload differ from the producer's.
        InconsistentError: the metadata isn't a protobuf message of that kind, or lacks a required field.
    """
    position, size = 0, len(entry)
    broker = None
    magic = _U16(entry, 0)[0] if size >= 2 else 0
    if magic == _MAGIC_BROKER_METADATA:
        start = 6
        position = start + _length(entry, 2, "broker entry metadata")
        broker = parse_message(_PROTOCOL.BrokerEntryMetadata, entry[start:position], "message metadata", start)
        magic = _U16(entry, position)[0] if size >= position + 2 else 0
    if magic == _MAGIC_CHECKSUM:
        _check_crc(entry, position + 2)
        position += 6
    start = position + 4
    position = start + _length(entry, position, "message metadata")
    metadata = parse_message(_PROTOCOL.MessageMetadata, entry[start:position], "message metadata", start)
    return Frame(metadata, broker, position)


def _length(entry: bytes, at: int, what: str) -> int:
    """Reads a length field at ``at`` and checks that its bytes exist."""
    left = len(entry) - at - 4
    if left < 0:
        raise TruncatedError(f"length of {what}", offset=at, expected="4 bytes", found=max(left + 4, 0))
    length = int(_U32(entry, at)[0])
    if length > left:
        raise TruncatedError(what, offset=at, expected=f"at most {left} bytes", found=length)
    return length


def _check_crc(entry: bytes, at: int) -> None:
    if len(entry) < at + 4:
        raise TruncatedError("checksum of the message", offset=at, expected="4 bytes", found=len(entry) - at)
    expected, found = _U32(entry, at)[0], crc32c(entry[at + 4 :])
    if expected != found:
        raise ChecksumMismatchError("message", offset=at, expected=f"CRC-32C {expected:08x}", found=f"{found:08x}")


def signed64(value: int) -> int:
    """An unsigned 64-bit field as Pulsar's code (Java, signed) reads it."""
    return value - 2**64 if value >= 2**63 else value


#: Least size of a message in a batch: its metadata's length, and in that its own size.
MESSAGE_BYTES_MIN = 6


@dataclass(slots=True)
class BatchPart:
    """Consecutive messages of a batch, up to the first unreadable one.

    Attributes:
        end: where the next message begins, if there is no error.
        singles: protobuf ``SingleMessageMetadata`` of each.
        starts, ends: where each message's bytes are in the decompressed payload.
        error: why the messages after these couldn't be read, or what follows the last one; ``None`` if valid.
    """

    end: int
    singles: list[Any] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    error: FormatError | None = None


def split_batch(payload: bytes, start: int, first: int, stop: int, count: int) -> BatchPart:
    """Extracts messages ``first`` to ``stop`` (excluded) from a batch of ``count``.

    Args:
        payload: the whole batch, decompressed; offsets in errors count from its first byte.
        start: where message ``first`` begins: 0, or the end of the part before.
        first, stop, count: ``0 <= first < stop <= count``.
    """
    part = BatchPart(start)
    singles, starts, ends = part.singles.append, part.starts.append, part.ends.append
    parse = _PROTOCOL.SingleMessageMetadata.FromString
    size, position, number = len(payload), start, first
    try:
        for number in range(first, stop):
            begin = position + 4
            value = begin + _U32(payload, position)[0] if begin <= size else size + 1
            if value > size:
                raise _truncated("metadata", number, position, size)
            single = parse(payload[begin:value])
            length = single.payload_size
            following = value + length
            if length <= 0 and (length < 0 or not single.HasField("payload_size")):
                raise InconsistentError(
                    f"size of message {number} of a batch", offset=begin, expected="0 or more", found=length or "none"
                )
            if following > size:
                raise _truncated("bytes", number, value, size)
            singles(single)
            starts(value)
            ends(following)
            part.end = position = following
        if stop == count and position != size:
            raise InconsistentError(
                f"batch of {count} messages",
                offset=position,
                expected="its end",
                found=f"{size - position} more bytes",
            )
    except DecodeError as cause:
        part.error = InconsistentError(
            f"metadata of message {number} of a batch",
            offset=begin,
            expected="protobuf SingleMessageMetadata",
            found=str(cause),
        )
    except FormatError as error:
        part.error = error
    return part


def _truncated(what: str, number: int, offset: int, size: int) -> TruncatedError:
    return TruncatedError(
        f"{what} of message {number} of a batch", offset=offset, expected="all of it", found=f"{size - offset} bytes"
    )


class PayloadCodec(IntEnum):
    """``CompressionType`` of Pulsar's protocol."""

    NONE = 0
    LZ4 = 1
    ZLIB = 2
    ZSTD = 3
    SNAPPY = 4


_NAMES = {codec: codec.name.lower() for codec in PayloadCodec}


def codec_name(number: int) -> str:
    """``1`` -> ``"lz4"``; an unknown number is returned as text."""
    return _NAMES.get(number, str(number))  # type: ignore[call-overload,no-any-return]


def decompress_payload(codec: int, data: bytes, size: int, limit: int) -> bytes:
    """Decompresses exactly one payload to the ``size`` declared in its metadata, which isn't used for ``NONE``.

    Raises:
        UnsupportedVersionError: an unknown codec.
        LimitExceededError: ``size`` is above ``limit``.
        InconsistentError: ``data`` isn't compressed in that way, or has another decompressed size.
    """
    if codec == PayloadCodec.NONE:
        return data
    decompress = _CODECS.get(codec)
    if decompress is None:
        raise UnsupportedVersionError("unknown compression of a payload", expected="0 to 4", found=codec)
    require_at_most("payload's decompressed size", size, limit, unit="bytes")
    try:
        plain = decompress(data, size)
    except (OSError, ValueError, zlib.error, pa.ArrowException) as cause:
        raise InconsistentError(
            "compressed payload", expected=f"{size} bytes of {codec_name(codec)}", found=str(cause)
        ) from cause
    require_equal("payload's decompressed size", len(plain), size)
    return plain


@functools.cache
def _lz4_package() -> Callable[[bytes, int], bytes] | None:
    """Decompression by the package lz4 where it is installed: it reports how many bytes came out."""
    try:
        import lz4.block
    except ImportError:
        return None

    def decompress_lz4(data: bytes, size: int) -> bytes:
        try:
            plain: bytes = lz4.block.decompress(data, uncompressed_size=max(size, 1))
        except lz4.block.LZ4BlockError as cause:
            raise ValueError(str(cause)) from cause
        return plain

    return decompress_lz4


def _lz4_by_arrow(data: bytes, size: int) -> bytes:
    # Arrow doesn't report it: a too large declaration would expose the rest of its buffer, old memory.
    require_equal("lz4 payload's own size", _lz4_size(data), size)
    plain: bytes = pa.Codec("lz4_raw").decompress(pa.py_buffer(data), size, asbytes=True)
    return plain


def _lz4_size(data: bytes) -> int:
    """Bytes that an LZ4 block decompresses to, counted sequence by sequence; any number for one that is damaged."""
    position = size = 0
    end = len(data)
    while position < end:
        token = data[position]
        literals, position = _lz4_length(data, token >> 4, position + 1)
        position += literals
        size += literals
        if position >= end:
            break  # the last sequence has no match
        match, position = _lz4_length(data, token & 15, position + 2)
        size += match + 4
    return size


def _lz4_length(data: bytes, length: int, position: int) -> tuple[int, int]:
    """A length that begins with four bits of the token, and where what follows it begins."""
    more = 255 if length == 15 else 0
    while more == 255 and position < len(data):
        more = data[position]
        position += 1
        length += more
    return length, position


def _zlib(data: bytes, size: int) -> bytes:
    stream = zlib.decompressobj()
    plain = stream.decompress(data, size + 1)  # 0 would mean no limit, and the extra byte reveals a longer output
    # Pulsar's Java client flushes the stream without ending it, so its end and zlib's checksum may be missing.
    if stream.unused_data:
        raise InconsistentError(
            "zlib payload", expected="one stream", found=f"{len(stream.unused_data)} bytes after it"
        )
    return plain


def _snappy(data: bytes, size: int) -> bytes:
    # Arrow fills as many bytes as the data declares and leaves the rest uninitialised, so the two must agree.
    require_equal("snappy payload's own size", _varint32(data), size)
    plain: bytes = pa.Codec("snappy").decompress(pa.py_buffer(data), decompressed_size=size, asbytes=True)
    return plain


def _varint32(data: bytes) -> int:
    value = 0
    for index in range(min(len(data), 5)):
        value |= (data[index] & 0x7F) << 7 * index
        if not data[index] & 0x80:
            return value
    raise InconsistentError("snappy payload", expected="a length of at most 5 bytes", found=data[:5].hex())


_CODECS: dict[int, Callable[[bytes, int], bytes]] = {
    PayloadCodec.LZ4: lambda data, size: (_lz4_package() or _lz4_by_arrow)(data, size),
    PayloadCodec.ZLIB: _zlib,
    PayloadCodec.ZSTD: lambda data, size: pa.Codec("zstd").decompress(pa.py_buffer(data), size, asbytes=True),
    PayloadCodec.SNAPPY: _snappy,
}


#: Fields specific to the topic and cluster where an entry was stored.
_OF_THE_PLACE = ("replicated_from", "txnid_least_bits", "txnid_most_bits", "highest_sequence_id")


class Resent(NamedTuple):
    """An entry prepared for sending.

    Attributes:
        entry: the bytes after the command ``SEND``, with their checksum; empty for a broker's own marker, which isn't
            for consumers.
        is_of_transaction: whether it was sent within a transaction, whose outcome an entry doesn't contain.
    """

    entry: bytes
    messages: int
    is_of_transaction: bool


def resent(entry: bytes, producer_name: str, sequence_id: int) -> Resent:
    """Rewrites a stored entry for another producer, whose name and sequence id it gets.

    Raises:
        FormatError: it isn't what Pulsar stores, or damaged.
    """
    frame = decode_frame(entry)
    metadata = frame.metadata
    if metadata.HasField("marker_type"):
        return Resent(b"", 0, False)
    is_of_transaction = metadata.HasField("txnid_least_bits") or metadata.HasField("txnid_most_bits")
    metadata.producer_name = producer_name
    metadata.sequence_id = sequence_id
    for name in _OF_THE_PLACE:
        metadata.ClearField(name)
    encoded = metadata.SerializeToString()
    checked = b"".join((struct.pack(">I", len(encoded)), encoded, memoryview(entry)[frame.payload_start :]))
    sent = struct.pack(">HI", _MAGIC_CHECKSUM, crc32c(checked)) + checked
    return Resent(sent, max(metadata.num_messages_in_batch, 1), is_of_transaction)
