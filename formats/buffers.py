"""Bytes as one type: what decoders accept, and the NumPy view they work on.

Owns the conversion from any bytes-like object to an array of bytes without a copy. Must never copy
or interpret what it is given.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

__all__ = ["Buffer", "Bytes", "byte_array"]

#: Anything that holds bytes in one piece.
Buffer: TypeAlias = bytes | bytearray | memoryview | NDArray[np.uint8] | pa.Buffer
#: uint8, shape (n,).
Bytes: TypeAlias = NDArray[np.uint8]


def byte_array(data: Buffer) -> Bytes:
    """A uint8 view of ``data``, shape (n,); shares the memory."""
    if isinstance(data, np.ndarray) and data.dtype == np.uint8:
        return data
    return np.frombuffer(data, dtype=np.uint8) if len(data) else np.empty(0, dtype=np.uint8)
