"""Codecs of blocks: compress, and decompress within the caller's limit.

Allocates no more than the caller's limit.
"""

from __future__ import annotations

from enum import IntEnum

import zstandard

from formats.entries import Buffer, byte_array
from formats.errors import Inconsistent, LimitExceeded, UnsupportedVersion

__all__ = ["ZSTD_LEVEL", "Codec", "codec_of", "compress", "decompress"]

#: zstd's own default: the best ratio that still keeps up with an upload.
ZSTD_LEVEL = 3
#: Largest window of a frame: 128 MiB, zstd's own limit for streams.
_WINDOW_BYTES_MAX = 1 << 27


class Codec(IntEnum):
    """How a block's payload is stored; the number is in the block header."""

    NONE = 0
    ZSTD = 1


def codec_of(number: int, *, object_name: str = "", offset: int | None = None) -> Codec:
    """The codec with this number; ``UnsupportedVersion`` for an unknown one."""
    try:
        return Codec(number)
    except ValueError as cause:
        raise UnsupportedVersion(
            "unknown codec", object_name=object_name, offset=offset, expected="0 (none) or 1 (zstd)", found=number
        ) from cause


def compress(codec: Codec, data: Buffer) -> bytes:
    """``data`` in the codec's form; zstd gives one frame that states its content size."""
    if codec is Codec.NONE:
        return bytes(data)
    return zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_content_size=True).compress(byte_array(data).data)


def decompress(
    codec: Codec, data: Buffer, length: int, limit: int, *, object_name: str = "", offset: int | None = None
) -> bytes:
    """The bytes that ``compress`` was given.

    Args:
        codec: how ``data`` is stored.
        data: exactly the stored bytes, nothing after them.
        length: decompressed length, as declared in the block header.
        limit: the caller's maximum.
        object_name: for error messages.
        offset: for error messages.

    Raises:
        LimitExceeded: ``length`` is above ``limit``.
        Inconsistent: the bytes don't decompress to exactly ``length`` bytes.
    """
    if length > limit:
        raise LimitExceeded(
            "decompressed size is too large",
            object_name=object_name,
            offset=offset,
            expected=f"at most {limit}",
            found=length,
        )
    plain = bytes(data) if codec is Codec.NONE else _unzstd(data, length, object_name, offset)
    if len(plain) != length:
        raise Inconsistent(
            "decompressed size", object_name=object_name, offset=offset, expected=length, found=len(plain)
        )
    return plain


def _unzstd(data: Buffer, length: int, object_name: str, offset: int | None) -> bytes:
    try:
        view = byte_array(data).data
        # The library allocates what the frame declares, regardless of max_output_size: so check first.
        declared = zstandard.frame_content_size(view)
        if declared != length:
            raise Inconsistent(
                "zstd frame's content size", object_name=object_name, offset=offset, expected=length, found=declared
            )
        decompressor = zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES_MAX)
        return decompressor.decompress(view, max_output_size=length, allow_extra_data=False)
    except (zstandard.ZstdError, ValueError) as cause:
        raise Inconsistent(
            "zstd frame", object_name=object_name, offset=offset, expected="a whole frame", found=str(cause)
        ) from cause
