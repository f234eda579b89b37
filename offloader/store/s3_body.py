"""Bodies as the S3 SDK can send them, without a copy.

Owns how a body is cut for the socket. Must never hold bytes of its own.
"""

from __future__ import annotations

import io

from offloader.store.base import Body

__all__ = ["BodyReader", "sendable"]

#: Bodies up to this size are handed over whole.
_WHOLE_BYTES_MAX = 256 * 1024
#: What goes into one send. The socket's time limit counts per send, and is the *connect* timeout while a request goes
#: out: sent in one piece, a large body on a slow line would have to arrive within those few seconds as a whole.
_SLICE_BYTES = 256 * 1024


def sendable(body: Body) -> bytes | bytearray | BodyReader:
    """``body`` for the SDK, which refuses a memoryview."""
    if len(body) > _WHOLE_BYTES_MAX:
        return BodyReader(body)
    return bytes(body) if isinstance(body, memoryview) else body


class BodyReader(io.RawIOBase):
    """A file over ``body`` whose reads answer views of it.

    A read answers up to ``_SLICE_BYTES`` whatever smaller number is asked for: the HTTP client asks for 16 KiB at a
    time and sends what it gets, so larger pieces are fewer calls.
    """

    def __init__(self, body: Body) -> None:
        self._body = memoryview(body).cast("B")
        self._position = 0

    def __len__(self) -> int:
        return len(self._body)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: len(self._body)}[whence]
        self._position = max(0, base + offset)
        return self._position

    def read(self, size: int | None = -1) -> memoryview:
        length = len(self._body) if size is None or size < 0 else max(size, _SLICE_BYTES)
        piece = self._body[self._position : self._position + length]
        self._position += len(piece)
        return piece
