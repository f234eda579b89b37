"""CRC-32C (Castagnoli), the checksum of every block, part and index.

Computed by the C extension of ``google-crc32c``. Where a platform has none, by ``crcmod``, whose extension is compiled
when it is installed, and without that package by the Python of ``google-crc32c``. All give the same results
(docs/decisions/0001-dependencies.md).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from formats.entries import Buffer, byte_array
from formats.errors import ChecksumMismatchError

#: The polynomial of CRC-32C, bits reversed.
_POLYNOMIAL = 0x82F63B78


@functools.cache
def _extend() -> Callable[[int, Any], int]:
    import google_crc32c

    extend: Callable[[int, Any], int] = google_crc32c.extend
    if google_crc32c.implementation == "c":
        return extend
    with suppress(ImportError):
        return portable_extend()
    # Its Python takes bytes only.
    return lambda value, data: extend(value, bytes(data))


def portable_extend() -> Callable[[int, Any], int]:
    """``crcmod``'s function: of a CRC and the bytes that follow. Raises ``ImportError``: it isn't installed."""
    from crcmod.predefined import mkPredefinedCrcFun

    crc_of = mkPredefinedCrcFun("crc-32c")
    return lambda value, data: int(crc_of(data, value))


def crc32c(data: Buffer, value: int = 0) -> int:
    """CRC-32C of ``data``, continuing from ``value`` (the CRC of the bytes before it).

    ``crc32c(b, crc32c(a)) == crc32c(a + b)``; the CRC of no bytes is 0.
    """
    if not len(data):
        return value
    # bytes and NumPy arrays pass google-crc32c's check for read-only buffers, bytearray and memoryview don't.
    return _extend()(value, data if type(data) is bytes else byte_array(data))


def check_crc32c(what: str, data: Buffer, expected: int, *, offset: int | None = None) -> None:
    """Raises ``ChecksumMismatchError`` unless ``expected``, which is at ``offset``, is the CRC-32C of ``data``."""
    found = crc32c(data)
    if found != expected:
        raise ChecksumMismatchError(what, offset=offset, expected=f"{expected:08x}", found=f"{found:08x}")


def crc32c_combine(first: int, second: int, second_bytes: int) -> int:
    """CRC-32C of two byte strings in a row, from the CRC of each and the length of the second."""
    return _multiply(_shift(second_bytes), first) ^ second


def crc32c_combine_many(
    first: NDArray[np.int64], second: NDArray[np.int64], second_bytes: NDArray[np.int64]
) -> NDArray[np.int64]:
    """``crc32c_combine`` of n pairs; int64, shape (n,)."""
    product = first
    for bit in range(int(second_bytes.max(initial=0)).bit_length()):
        product = np.where(second_bytes >> bit & 1, _multiply_many(3 + bit, product), product)
    result: NDArray[np.int64] = product ^ second
    return result


@functools.cache
def _power_table(exponent_log2: int) -> NDArray[np.int64]:
    """Products of ``_power(exponent_log2)`` and each value of each byte of a CRC, int64, shape (4, 256)."""
    table = np.zeros((4, 256), dtype=np.int64)
    for bit in range(32):
        byte, place = divmod(bit, 8)
        product = _multiply(_power(exponent_log2), 1 << bit)
        # Multiplication distributes over XOR: each value is the sum of its bits.
        table[byte, 1 << place : 2 << place] = table[byte, : 1 << place] ^ product
    return table


def _multiply_many(exponent_log2: int, b: NDArray[np.int64]) -> NDArray[np.int64]:
    """``_multiply`` of ``_power(exponent_log2)`` and n others."""
    table = _power_table(exponent_log2)
    product: NDArray[np.int64] = table[0][b & 255] ^ table[1][b >> 8 & 255]
    product ^= table[2][b >> 16 & 255] ^ table[3][b >> 24]
    return product


def _multiply(a: int, b: int) -> int:
    """Product of two polynomials modulo the CRC's, bits reversed (x^0 is the top bit)."""
    product = 0
    for bit in reversed(range(32)):
        if a >> bit & 1:
            product ^= b
        b = (b >> 1) ^ _POLYNOMIAL if b & 1 else b >> 1
    return product


@functools.cache
def _power(exponent_log2: int) -> int:
    """x^(2^exponent_log2) modulo the polynomial."""
    if exponent_log2 == 0:
        return 1 << 30
    root = _power(exponent_log2 - 1)
    return _multiply(root, root)


@functools.lru_cache(maxsize=1024)
def _shift(length_bytes: int) -> int:
    """x^(8 * length_bytes) modulo the polynomial: the effect of appending that many bytes on a CRC."""
    powers = (_power(3 + bit) for bit in range(length_bytes.bit_length()) if length_bytes >> bit & 1)
    return functools.reduce(_multiply, powers, 1 << 31)
