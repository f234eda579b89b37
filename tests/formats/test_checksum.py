"""CRC-32C: the C extension and both portable ones agree, and CRCs can be combined."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import google_crc32c.python
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formats import checksum
from formats.checksum import crc32c, crc32c_combine


def test_the_published_check_value() -> None:
    assert crc32c(b"123456789") == 0xE3069283


def test_no_bytes_change_nothing() -> None:
    assert crc32c(b"") == 0
    assert crc32c(b"", 0x12345678) == 0x12345678


def test_the_c_extension_is_used_where_there_is_one() -> None:
    assert google_crc32c.implementation == "c"


@settings(max_examples=100)
@given(st.binary(max_size=2000), st.binary(max_size=200))
def test_all_implementations_agree(first: bytes, second: bytes) -> None:
    fast: Callable[[int, bytes], int] = checksum._extend()
    for portable in (checksum.portable_extend(), google_crc32c.python.extend):
        begun = fast(0, first)
        assert begun == portable(0, first)
        assert fast(begun, second) == portable(begun, second) == crc32c(first + second)


@pytest.fixture
def choose(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Callable[[int, Any], int]]]:
    """What is chosen on a platform without google-crc32c's extension."""
    monkeypatch.setattr(google_crc32c, "implementation", "python")
    monkeypatch.setattr(google_crc32c, "extend", google_crc32c.python.extend)
    checksum._extend.cache_clear()
    yield checksum._extend
    checksum._extend.cache_clear()


@pytest.mark.parametrize("is_installed", [True, False])
def test_crcmod_is_the_fallback_and_googles_python_the_last_one(
    choose: Callable[[], Callable[[int, Any], int]], monkeypatch: pytest.MonkeyPatch, *, is_installed: bool
) -> None:
    if not is_installed:
        monkeypatch.setitem(sys.modules, "crcmod.predefined", None)
    asked: list[int] = []

    def extend(value: int, data: bytes) -> int:
        asked.append(value)
        return int(google_crc32c.python.extend(value, data))  # type: ignore[no-untyped-call]

    monkeypatch.setattr(google_crc32c, "extend", extend)
    for kind in (bytes, bytearray, memoryview, lambda body: np.frombuffer(body, np.uint8)):
        assert crc32c(kind(b"123456789")) == 0xE3069283
    assert crc32c(b"789", crc32c(b"123456")) == 0xE3069283
    assert bool(asked) is not is_installed


@pytest.mark.slow
@settings(max_examples=100)
@given(st.binary(max_size=5000), st.binary(max_size=5000))
def test_the_crc_of_two_strings_follows_from_theirs(first: bytes, second: bytes) -> None:
    assert crc32c_combine(crc32c(first), crc32c(second), len(second)) == crc32c(first + second)
    assert crc32c(second, crc32c(first)) == crc32c(first + second)


def test_combining_knows_lengths_above_four_gibibytes() -> None:
    """Zeros are appended by squaring: twice 2**33 zeros must be 2**34 zeros."""
    crc = crc32c(b"x")
    zeros = 0
    for power in range(34):
        # CRC of 2**power zero bytes, from two halves.
        zeros = crc32c(b"\0") if power == 0 else crc32c_combine(zeros, zeros, 1 << (power - 1))
    once = crc32c_combine(crc, zeros, 1 << 33)
    twice = crc32c_combine(once, zeros, 1 << 33)
    assert twice == crc32c_combine(crc, crc32c_combine(zeros, zeros, 1 << 33), 1 << 34)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, pa.py_buffer, lambda b: np.frombuffer(b, np.uint8)])
def test_every_kind_of_buffer_is_taken(kind: object) -> None:
    assert crc32c(kind(b"123456789")) == 0xE3069283  # type: ignore[operator]
    assert crc32c(memoryview(bytearray(b"..123456789"))[2:]) == 0xE3069283
