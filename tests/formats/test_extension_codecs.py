"""Codecs: data round-trips, and no output exceeds its limit."""

from __future__ import annotations

import lz4.block
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from formats.errors import FormatError, InconsistentError, LimitExceededError, UnsupportedVersionError, located
from formats.extension import Codec, codec_of, compress, decompress
from formats.pulsar import entry

PLAIN = bytes(range(256)) * 20


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("data", [b"", b"x", PLAIN, bytes(100_000)], ids=["empty", "one", "ramp", "zeros"])
def test_round_trip(codec: Codec, data: bytes) -> None:
    assert decompress(codec, compress(codec, data), len(data), 1 << 20) == data


@pytest.mark.parametrize("codec", Codec)
def test_the_limit_is_checked_before_anything_is_decompressed(codec: Codec) -> None:
    with pytest.raises(LimitExceededError, match="expected at most 10, found 1000000000000"):
        decompress(codec, b"not even a frame", 10**12, 10)


def test_frame_declaring_more_than_the_header_is_refused_before_allocation() -> None:
    bomb = compress(Codec.ZSTD, bytes(1 << 24))
    with pytest.raises(InconsistentError, match="content size"):
        decompress(Codec.ZSTD, bomb, 100, 1 << 30)


def test_a_frame_without_a_declared_size_is_refused() -> None:
    frame = zstandard.ZstdCompressor(write_content_size=False).compress(PLAIN)
    with pytest.raises(InconsistentError):
        decompress(Codec.ZSTD, frame, len(PLAIN), 1 << 20)


def test_a_truncated_frame_is_refused_at_every_length() -> None:
    frame = compress(Codec.ZSTD, PLAIN)
    for length in range(len(frame)):
        with pytest.raises(FormatError):
            decompress(Codec.ZSTD, frame[:length], len(PLAIN), 1 << 20)


@pytest.mark.parametrize("tail", [b"x", compress(Codec.ZSTD, b"second frame")], ids=["byte", "frame"])
def test_bytes_after_the_frame_are_refused(tail: bytes) -> None:
    with pytest.raises(InconsistentError):
        decompress(Codec.ZSTD, compress(Codec.ZSTD, PLAIN) + tail, len(PLAIN), 1 << 20)


def test_wrong_stored_length_is_refused() -> None:
    with pytest.raises(InconsistentError, match="decompressed size"):
        decompress(Codec.NONE, b"abc", 2, 100)


def test_an_unknown_codec_is_a_newer_version() -> None:
    assert codec_of(1) is Codec.ZSTD
    with pytest.raises(UnsupportedVersionError, match="unknown codec in thing at byte 7"), located("thing", 7):
        codec_of(2)


def lz4_results(data: bytes, size: int) -> list[bytes | None]:
    """What the package and Arrow make of a block with a declared size; ``None``: refused, or of another size."""
    found: list[bytes | None] = []
    by_package = entry._lz4_package()
    assert by_package is not None
    for decompress_lz4 in (by_package, entry._lz4_by_arrow):
        try:
            plain = decompress_lz4(data, size)
        except (FormatError, OSError, ValueError):
            found.append(None)
        else:
            found.append(plain if len(plain) == size else None)
    return found


@settings(max_examples=200)
@given(
    st.text("abc", max_size=300), st.integers(-2, 6), st.lists(st.tuples(st.integers(0, 400), st.binary(max_size=3)))
)
def test_lz4_by_arrow_gives_what_the_package_gives(text: str, more: int, damage: list[tuple[int, bytes]]) -> None:
    plain = text.encode()
    data = lz4.block.compress(plain, store_size=False)
    for place, replacement in damage:
        data = data[:place] + replacement + data[place + 1 :]
    size = max(len(plain) + more, 1)
    by_package, by_arrow = lz4_results(data, size)
    assert by_arrow == by_package
    if not damage:
        assert by_arrow == (plain if size == len(plain) else None)


@pytest.mark.parametrize(
    ("block", "length"),
    [
        (b"\x09", 0),
        (b"\x10a", 1),
        # Sixteen literals, a match of twenty, and no literals after it: no encoder ends a block so.
        (b"\xff\x01" + b"0123456789abcdef" + b"\x10\x00\x01" + b"\x00", 36),
    ],
    ids=["nothing", "one literal", "ends with a match"],
)
def test_lz4_by_arrow_hands_out_no_byte_that_the_block_has_not(block: bytes, length: int) -> None:
    assert entry._lz4_size(block) == length
    for size in range(max(length, 1) + 1, length + 40):
        assert lz4_results(block, size) == [None, None]
