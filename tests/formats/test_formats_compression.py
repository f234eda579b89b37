"""Codecs: data round-trips, and no output exceeds its limit."""

from __future__ import annotations

import pytest
import zstandard

from formats.errors import FormatError, Inconsistent, LimitExceeded, UnsupportedVersion, located
from formats.extension import Codec, codec_of, compress, decompress

PLAIN = bytes(range(256)) * 20


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("data", [b"", b"x", PLAIN, bytes(100_000)], ids=["empty", "one", "ramp", "zeros"])
def test_round_trip(codec: Codec, data: bytes) -> None:
    assert decompress(codec, compress(codec, data), len(data), 1 << 20) == data


@pytest.mark.parametrize("codec", Codec)
def test_the_limit_is_checked_before_anything_is_decompressed(codec: Codec) -> None:
    with pytest.raises(LimitExceeded, match="expected at most 10, found 1000000000000"):
        decompress(codec, b"not even a frame", 10**12, 10)


def test_frame_declaring_more_than_the_header_is_refused_before_allocation() -> None:
    bomb = compress(Codec.ZSTD, bytes(1 << 24))
    with pytest.raises(Inconsistent, match="content size"):
        decompress(Codec.ZSTD, bomb, 100, 1 << 30)


def test_a_frame_without_a_declared_size_is_refused() -> None:
    frame = zstandard.ZstdCompressor(write_content_size=False).compress(PLAIN)
    with pytest.raises(Inconsistent):
        decompress(Codec.ZSTD, frame, len(PLAIN), 1 << 20)


def test_a_truncated_frame_is_refused_at_every_length() -> None:
    frame = compress(Codec.ZSTD, PLAIN)
    for length in range(len(frame)):
        with pytest.raises(FormatError):
            decompress(Codec.ZSTD, frame[:length], len(PLAIN), 1 << 20)


@pytest.mark.parametrize("tail", [b"x", compress(Codec.ZSTD, b"second frame")], ids=["byte", "frame"])
def test_bytes_after_the_frame_are_refused(tail: bytes) -> None:
    with pytest.raises(Inconsistent):
        decompress(Codec.ZSTD, compress(Codec.ZSTD, PLAIN) + tail, len(PLAIN), 1 << 20)


def test_wrong_stored_length_is_refused() -> None:
    with pytest.raises(Inconsistent, match="decompressed size"):
        decompress(Codec.NONE, b"abc", 2, 100)


def test_an_unknown_codec_is_a_newer_version() -> None:
    assert codec_of(1) is Codec.ZSTD
    with pytest.raises(UnsupportedVersion, match="unknown codec in thing at byte 7"), located("thing", 7):
        codec_of(2)
