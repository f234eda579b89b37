"""Bodies as the S3 SDK can send them, without a copy.

Owns how a body is cut for the socket. Must never hold bytes of its own.
"""

from __future__ import annotations

import io
from bisect import bisect_right
from itertools import accumulate

from formats.buffers import views_of
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
    return body if isinstance(body, bytes | bytearray) else bytes(body)


class BodyReader(io.RawIOBase):
    """A file over ``body`` whose reads answer views of it.

    A read answers up to ``_SLICE_BYTES``, not past the end of a piece, whatever smaller number is asked for: the HTTP
    client asks for 16 KiB at a time and sends what it gets, so larger pieces are fewer calls.
    """

    def __init__(self, body: Body) -> None:
        self._views = views_of(body)
        self._ends = list(accumulate(map(len, self._views)))
        self._position = 0

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: len(self)}[whence]
        self._position = max(0, base + offset)
        return self._position

    def read(self, size: int | None = -1) -> memoryview | bytes:
        if size is None or size < 0:
            return self._rest()
        number = bisect_right(self._ends, self._position)
        if number == len(self._views):
            return b""
        view = self._views[number]
        start = self._position - self._ends[number] + len(view)
        piece = view[start : start + max(size, _SLICE_BYTES)]
        self._position += len(piece)
        return piece

    def _rest(self) -> memoryview | bytes:
        start, self._position = self._position, max(self._position, len(self))
        rest = [view[max(0, start - end + len(view)) :] for view, end in zip(self._views, self._ends, strict=True)]
        filled = [view for view in rest if view]
        return filled[0] if len(filled) == 1 else b"".join(filled)
