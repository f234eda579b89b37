"""A batch, after decompression: ``[size int32][SingleMessageMetadata][bytes]``, over and over.

Owns how a batch is taken apart. Must never copy the messages' bytes.
"""

from __future__ import annotations

import struct
from typing import Any

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from formats.errors import FormatError, Inconsistent, Truncated
from formats.metadata import pulsar_message_pb2

__all__ = ["MESSAGE_BYTES_MIN", "Batch", "split_batch"]

_PROTOCOL: Any = pulsar_message_pb2
_SingleMessageMetadata: Any = _PROTOCOL.SingleMessageMetadata
_U32 = struct.Struct(">I").unpack_from
#: A message of a batch takes at least that much: its metadata's length, and in that its own size.
MESSAGE_BYTES_MIN = 6


class Batch:
    """The messages of a batch that could be read, in order.

    Attributes:
        singles: protobuf ``SingleMessageMetadata`` of each.
        starts, ends: where each message's bytes are in the decompressed payload.
        error: why the messages after these couldn't be read; ``None`` when all could.
    """

    __slots__ = ("ends", "error", "singles", "starts")

    def __init__(self) -> None:
        self.singles: list[Any] = []
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.error: FormatError | None = None


def split_batch(payload: bytes, count: int) -> Batch:
    """Takes ``count`` messages out of a decompressed payload; what is wrong is in ``Batch.error``.

    Offsets in the error count from the first byte of ``payload``.
    """
    batch = Batch()
    singles, starts, ends = batch.singles.append, batch.starts.append, batch.ends.append
    parse = _SingleMessageMetadata.FromString
    size, position = len(payload), 0
    try:
        for number in range(count):
            start = position + 4
            stop = start + _U32(payload, position)[0] if start <= size else size + 1
            if stop > size:
                batch.error = _truncated("metadata", number, position, size)
                return batch
            single = parse(payload[start:stop])
            length = single.payload_size
            position = stop + length
            if length <= 0 and (length < 0 or not single.HasField("payload_size")):
                found = length if length else "none"
                batch.error = Inconsistent(
                    f"size of message {number} of a batch", offset=start, expected="0 or more", found=found
                )
                return batch
            if position > size:
                batch.error = _truncated("bytes", number, stop, size)
                return batch
            singles(single)
            starts(stop)
            ends(position)
    except DecodeError as cause:
        batch.error = Inconsistent(
            f"metadata of message {number} of a batch",
            offset=start,
            expected="protobuf SingleMessageMetadata",
            found=str(cause),
        )
        return batch
    if position != size:
        batch.error = Inconsistent(
            f"batch of {count} messages", offset=position, expected="its end", found=f"{size - position} more bytes"
        )
    return batch


def _truncated(what: str, number: int, offset: int, size: int) -> Truncated:
    return Truncated(
        f"{what} of message {number} of a batch", offset=offset, expected="all of it", found=f"{size - offset} bytes"
    )
