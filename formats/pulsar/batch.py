"""A batch, after decompression: ``[size int32][SingleMessageMetadata][bytes]``, over and over.

Owns how a batch is taken apart, some messages at a time. Must never copy the messages' bytes.
"""

from __future__ import annotations

import struct
from typing import Any

from google.protobuf.message import DecodeError

from formats.errors import FormatError, Inconsistent, Truncated
from formats.metadata import pulsar_message_pb2

__all__ = ["MESSAGE_BYTES_MIN", "BatchPart", "split_batch"]

_PROTOCOL: Any = pulsar_message_pb2
_SingleMessageMetadata: Any = _PROTOCOL.SingleMessageMetadata
_U32 = struct.Struct(">I").unpack_from
#: A message of a batch takes at least that much: its metadata's length, and in that its own size.
MESSAGE_BYTES_MIN = 6


class BatchPart:
    """Some messages of a batch, in order, as far as they could be read.

    Attributes:
        singles: protobuf ``SingleMessageMetadata`` of each.
        starts, ends: where each message's bytes are in the decompressed payload.
        end: where the next message begins, if there is no error.
        error: why the messages after these couldn't be read, or what is behind the last one; ``None`` when all is well.
    """

    __slots__ = ("end", "ends", "error", "singles", "starts")

    def __init__(self, start: int) -> None:
        self.singles: list[Any] = []
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.end = start
        self.error: FormatError | None = None


def split_batch(payload: bytes, start: int, first: int, stop: int, count: int) -> BatchPart:
    """Takes messages ``first`` to ``stop`` (excluded) out of a batch of ``count``.

    Args:
        payload: the whole batch, decompressed; offsets in errors count from its first byte.
        start: where message ``first`` begins: 0, or where the part before ended.
        first, stop, count: ``0 <= first < stop <= count``.
    """
    part = BatchPart(start)
    singles, starts, ends = part.singles.append, part.starts.append, part.ends.append
    parse = _SingleMessageMetadata.FromString
    size, position, number = len(payload), start, first
    try:
        for number in range(first, stop):
            begin = position + 4
            value = begin + _U32(payload, position)[0] if begin <= size else size + 1
            if value > size:
                part.error = _truncated("metadata", number, position, size)
                return part
            single = parse(payload[begin:value])
            length = single.payload_size
            following = value + length
            if length <= 0 and (length < 0 or not single.HasField("payload_size")):
                part.error = _bad_size(number, begin, length)
                return part
            if following > size:
                part.error = _truncated("bytes", number, value, size)
                return part
            singles(single)
            starts(value)
            ends(following)
            part.end = position = following
    except DecodeError as cause:
        what = f"metadata of message {number} of a batch"
        part.error = Inconsistent(what, offset=begin, expected="protobuf SingleMessageMetadata", found=str(cause))
        return part
    if stop == count and position != size:
        more = f"{size - position} more bytes"
        part.error = Inconsistent(f"batch of {count} messages", offset=position, expected="its end", found=more)
    return part


def _truncated(what: str, number: int, offset: int, size: int) -> Truncated:
    return Truncated(
        f"{what} of message {number} of a batch", offset=offset, expected="all of it", found=f"{size - offset} bytes"
    )


def _bad_size(number: int, offset: int, length: int) -> Inconsistent:
    found = length if length else "none"
    return Inconsistent(f"size of message {number} of a batch", offset=offset, expected="0 or more", found=found)
