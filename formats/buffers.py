"""Bytes as one type: what decoders accept, the NumPy view they work on, and bytes that lie in several places.

Owns the conversion from any bytes-like object to an array of bytes without a copy. Must never interpret what it is
given, nor copy it unasked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

__all__ = ["Buffer", "Bytes", "Pieces", "byte_array", "views_of"]

#: Anything that holds bytes in one piece.
Buffer: TypeAlias = bytes | bytearray | memoryview | NDArray[np.uint8] | pa.Buffer
#: uint8, shape (n,).
Bytes: TypeAlias = NDArray[np.uint8]


def byte_array(data: Buffer) -> Bytes:
    """A uint8 view of ``data``, shape (n,); shares the memory."""
    if isinstance(data, np.ndarray) and data.dtype == np.uint8:
        return data
    return np.frombuffer(data, dtype=np.uint8) if len(data) else np.empty(0, dtype=np.uint8)


class Pieces:
    """Bytes in several places that are one body: whoever sends them needs no copy in one piece.

    Its length is that of all bytes; ``bytes(pieces)`` is the copy in one piece. Compares with any bytes.

    Args:
        pieces: in order; not changed by anybody from here on.
    """

    __slots__ = ("_size_bytes", "views")

    def __init__(self, pieces: Iterable[Buffer]) -> None:
        self.views: Sequence[memoryview] = tuple(byte_array(piece).data for piece in pieces if len(piece))
        self._size_bytes = sum(map(len, self.views))

    def __len__(self) -> int:
        return self._size_bytes

    def __bytes__(self) -> bytes:
        return b"".join(self.views)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, bytes | bytearray | memoryview | Pieces):
            return NotImplemented
        return len(self) == len(other) and bytes(self) == bytes(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<Pieces: {len(self)} bytes in {len(self.views)}>"


def views_of(body: Buffer | Pieces) -> Sequence[memoryview]:
    """The bytes of ``body`` where they lie, in order."""
    if isinstance(body, Pieces):
        return body.views
    return (byte_array(body).data,) if len(body) else ()
