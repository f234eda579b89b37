"""How a producer may have compressed a payload, and decompression that a hostile size can't fool.

Owns Pulsar's codec numbers. Must never allocate more than the caller's limit, nor hand out bytes that didn't come
out of the decompressor.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from enum import IntEnum

import lz4.block
import pyarrow as pa

from formats.errors import FormatError, Inconsistent, LimitExceeded, UnsupportedVersion

__all__ = ["PayloadCodec", "codec_name", "decompress_payload"]


class PayloadCodec(IntEnum):
    """``CompressionType`` of Pulsar's protocol."""

    NONE = 0
    LZ4 = 1
    ZLIB = 2
    ZSTD = 3
    SNAPPY = 4


_NAMES = {codec: codec.name.lower() for codec in PayloadCodec}


def codec_name(number: int) -> str:
    """``1`` -> ``"lz4"``; a number that this release doesn't know stays one."""
    return _NAMES.get(number, str(number))  # type: ignore[call-overload,no-any-return]


def decompress_payload(codec: int, data: bytes, size: int, limit: int) -> bytes:
    """The payload as it was before it was compressed.

    Args:
        codec: number from the metadata.
        data: exactly the stored payload.
        size: how many bytes must come out, as the metadata declares; not used for ``NONE``.
        limit: most bytes the caller allows to come out.

    Raises:
        UnsupportedVersion: an unknown codec.
        LimitExceeded: ``size`` is above ``limit``.
        Inconsistent: ``data`` isn't compressed in that way, or another number of bytes comes out.
    """
    if codec == PayloadCodec.NONE:
        return data
    decompress = _CODECS.get(codec)
    if decompress is None:
        raise UnsupportedVersion("unknown compression of a payload", expected="0 to 4", found=codec)
    if size > limit:
        raise LimitExceeded("payload's decompressed size", expected=f"at most {limit} bytes", found=size)
    try:
        plain = decompress(data, size)
    except FormatError:
        raise
    except (OSError, ValueError, lz4.block.LZ4BlockError, zlib.error, pa.ArrowException) as cause:
        raise Inconsistent(
            "compressed payload", expected=f"{size} bytes of {codec_name(codec)}", found=str(cause)
        ) from cause
    if len(plain) != size:
        raise Inconsistent("payload's decompressed size", expected=size, found=len(plain))
    return plain


def _lz4(data: bytes, size: int) -> bytes:
    # Arrow has this codec too, but can't say how much came out: what a too large size leaves would be old memory.
    plain: bytes = lz4.block.decompress(data, uncompressed_size=max(size, 1))
    return plain


def _zlib(data: bytes, size: int) -> bytes:
    stream = zlib.decompressobj()
    plain = stream.decompress(data, size + 1)  # 0 would mean no limit, and one more shows that there is more
    # Pulsar's Java client flushes the stream and doesn't end it, so its end, and zlib's checksum, may be missing.
    if stream.unused_data:
        raise Inconsistent("zlib payload", expected="one stream", found=f"{len(stream.unused_data)} bytes after it")
    return plain


def _zstd(data: bytes, size: int) -> bytes:
    plain: bytes = pa.Codec("zstd").decompress(pa.py_buffer(data), decompressed_size=size, asbytes=True)
    return plain


def _snappy(data: bytes, size: int) -> bytes:
    # Arrow fills as many bytes as the data says and leaves the rest as it was: so the two must agree.
    declared = _varint32(data)
    if declared != size:
        raise Inconsistent("snappy payload's own size", expected=size, found=declared)
    plain: bytes = pa.Codec("snappy").decompress(pa.py_buffer(data), decompressed_size=size, asbytes=True)
    return plain


def _varint32(data: bytes) -> int:
    value = 0
    for index in range(min(len(data), 5)):
        value |= (data[index] & 0x7F) << 7 * index
        if not data[index] & 0x80:
            return value
    raise Inconsistent("snappy payload", expected="a length of at most 5 bytes", found=data[:5].hex())


_CODECS: dict[int, Callable[[bytes, int], bytes]] = {
    PayloadCodec.LZ4: _lz4,
    PayloadCodec.ZLIB: _zlib,
    PayloadCodec.ZSTD: _zstd,
    PayloadCodec.SNAPPY: _snappy,
}
