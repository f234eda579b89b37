"""Bodies of S3's requests and responses: sent in slices, received in place, resumed after a broken connection."""

from __future__ import annotations

import contextlib
import io
from bisect import bisect_right
from collections.abc import Mapping
from contextlib import closing
from http.client import HTTPException, HTTPResponse
from itertools import accumulate
from typing import Any

import botocore.exceptions as sdk

from formats.checksum import crc32c
from formats.entries import views_of
from offloader.errors import ObjectChangedError, OffloaderError, PreconditionFailedError, StoreUnavailableError
from offloader.runtime.clock import Clock
from offloader.settings import StoreSettings
from offloader.store.base import Body, ByteRange, ObjectInfo, Sink
from offloader.store.s3_responses import object_info, place_of, received
from offloader.telemetry.recorder import Recorder

#: Bytes of one send; smaller bodies are sent whole. While a request is sent, the *connect* timeout limits each send. In
#: one piece, a large body on a slow line would exceed that timeout.
_SLICE_BYTES = 256 * 1024


def sendable(body: Body) -> bytes | bytearray | BodyReader:
    """Convert ``body`` for the SDK, which refuses a memoryview."""
    if len(body) > _SLICE_BYTES:
        return BodyReader(body)
    return body if isinstance(body, bytes | bytearray) else bytes(body)


class BodyReader(io.RawIOBase):
    """File over ``body`` whose reads return views of it.

    A read returns up to ``_SLICE_BYTES`` of one piece, even if fewer bytes are requested. The HTTP client requests
    16 KiB at a time and sends the returned bytes, so that larger slices mean fewer calls.
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
        rest = (view[max(0, start - end + len(view)) :] for view, end in zip(self._views, self._ends, strict=True))
        filled = [view for view in rest if view]
        return filled[0] if len(filled) == 1 else b"".join(filled)


_ENDED = "the connection ended before the body"


def read_into(stream: Any, room: memoryview) -> int:
    """Fill ``room``, which isn't empty, from ``stream``, the body of an SDK response. Returns the number of bytes read,
    at least one, and fewer than requested at the end of the body or its connection.

    The HTTP client below the SDK can read into existing memory, but the layers above it allocate each piece and copy.
    The client has no public name. If a later release moves it, pieces are copied.

    Raises:
        sdk.HTTPClientError: the connection broke, or ended before the body did.
    """
    raw = getattr(stream, "_raw_stream", None)
    response = getattr(raw, "_fp", None)
    if isinstance(response, HTTPResponse):
        return _from_connection(raw, response, room)
    piece = stream.read(len(room))
    if not piece:
        raise sdk.ResponseStreamingError(error=_ENDED)
    room[: len(piece)] = piece
    return len(piece)


def _from_connection(raw: Any, response: HTTPResponse, room: memoryview) -> int:
    try:
        came = response.readinto(room)
    except TimeoutError as error:
        raise sdk.ReadTimeoutError(endpoint_url=None, error=error) from error
    except (HTTPException, OSError) as error:
        raise sdk.ResponseStreamingError(error=error) from error
    if not came:
        raise sdk.ResponseStreamingError(error=_ENDED)
    if response.isclosed():  # complete: the connection can be reused
        raw.release_conn()
    return came


#: The value of ``store.checksum`` that enables S3's own checksums.
CRC32C = "crc32c"
#: Maximum number of requests for the rest of one body. A request that returns no bytes is the last one.
CONTINUATIONS_MAX = 4
#: Bytes per read from the connection. A reset loses a partial read; smaller reads are slower.
PIECE_BYTES = 512 * 1024
#: Bodies up to this size (a block, an index) are read in one call, which saves a copy, and are retried whole.
WHOLE_BYTES_MAX = 2 * 1024 * 1024


class Download:
    """A GET in progress: ``wanted`` gives the next request, ``take`` consumes its response, until ``result`` is set.

    Args:
        what: the call's name in errors.
        byte_range: the requested range, not empty; ``None``: the whole object.
        into: receives the body, instead of ``result``, if the response has exactly the requested range.
        settings: ``retry_total`` after the first request, no further request is sent.
        recorder: counts each further request.

    Attributes:
        result: the body and the object's description, after completion.
        begun: whether a part of the body has arrived.
    """

    def __init__(
        self,
        what: str,
        key: str,
        byte_range: ByteRange | None,
        into: Sink | None = None,
        *,
        settings: StoreSettings,
        clock: Clock,
        recorder: Recorder,
    ) -> None:
        self._what = what
        self._key = key
        self._asked = byte_range
        self._into = into
        self._clock = clock
        self._recorder = recorder
        self._whole = {"ChecksumMode": "ENABLED"} if settings.checksum == CRC32C else {}
        self._until_s = clock.monotonic_s() + settings.retry_total
        self._answer: Mapping[str, Any] = {}  # the first response
        #: Destination of the current body.
        self._room: Sink = _Whole(0)
        self._came_at_break = 0
        self._continuations = 0
        self.result: tuple[bytes, ObjectInfo] | None = None

    @property
    def begun(self) -> bool:
        return self._room.received_bytes > 0

    @property
    def wanted(self) -> dict[str, str]:
        """The next request's parameters besides bucket and key."""
        if self.begun:
            start = _first_byte(self._answer)
            rest = ByteRange(start + self._room.received_bytes, start + int(self._answer["ContentLength"]))
            return {"Range": _header(rest), "IfMatch": self._answer["ETag"]}
        return self._whole if self._asked is None else {"Range": _header(self._asked)}

    def take(self, answer: Mapping[str, Any]) -> None:
        """Read a response's body. After a failure, the received bytes are kept.

        Raises:
            ObjectChangedError: the body belongs to another version of the object than the earlier bytes.
            StoreUnavailableError: the body is shorter than announced, or has another range. Also the SDK's errors.
        """
        with closing(answer["Body"]) as stream:
            if not self.begun:
                self._answer = answer
                left = int(answer["ContentLength"])
                if self._into is not None:
                    self._into.begin()
                if self._into is not None and _is_just(self._asked, answer):
                    self._room = self._into
                elif left <= WHOLE_BYTES_MAX:
                    self.result = received(self._what, self._key, self._asked, stream.read(), answer)
                    return
                else:
                    self._room = _Whole(left)
            else:
                left = int(self._answer["ContentLength"]) - self._room.received_bytes
                self._require_rest(answer, left)
            while left:
                came = read_into(stream, self._room.room()[: min(PIECE_BYTES, left)])
                self._room.came(came)
                left -= came
        self._finish()

    def _finish(self) -> None:
        room, self._room = self._room, _Whole(0)
        if not isinstance(room, _Whole):
            _, size_bytes = place_of(self._answer["ContentRange"])
            self.result = b"", object_info(self._key, size_bytes, self._answer)
            return
        body = room.taken()
        self.result = received(self._what, self._key, self._asked, body, self._answer)
        if self._continuations and self._asked is None and self.result[1].crc32c not in (None, crc32c(body)):
            self.result = None
            raise StoreUnavailableError(
                f"{self._what}: the received parts don't match the object's CRC-32C", hint="try again"
            )

    def go_on_after(self, error: OffloaderError, *, past_end: bool) -> None:
        """Decide about an error of the request or of ``take``. Returns if the rest should be requested.

        Args:
            past_end: whether the server reports that the object ends before the requested range.

        Raises:
            ObjectChangedError: the object was replaced after its first bytes arrived.
            OffloaderError: ``error``, if a further request is impossible or would fail as well.
        """
        came = self._room.received_bytes
        if came and (past_end or isinstance(error, PreconditionFailedError)):
            raise self._changed("its ETag or size changed") from error
        if not isinstance(error, StoreUnavailableError) or came <= self._came_at_break:
            raise error
        if self._continuations == CONTINUATIONS_MAX or self._clock.monotonic_s() > self._until_s:
            error.add_note(f"gave up after {self._continuations} further requests and {came} bytes")
            raise error
        self._came_at_break = came
        self._continuations += 1
        self._recorder.add("retries_total")

    def _require_rest(self, answer: Mapping[str, Any], left: int) -> None:
        if answer["ETag"] != self._answer["ETag"]:
            raise self._changed(f"its ETag changed from {self._answer['ETag']} to {answer['ETag']}")
        start = _first_byte(self._answer) + self._room.received_bytes
        if _first_byte(answer) != start or int(answer["ContentLength"]) != left:
            found = answer.get("ContentRange", "the whole object")
            raise StoreUnavailableError(f"{self._what}: received {found}, expected {left} bytes from {start}")

    def _changed(self, how: str) -> ObjectChangedError:
        return ObjectChangedError(
            f"{self._what}: the object was replaced after {self._room.received_bytes} bytes of it had been read: {how}",
            hint="read it again; if no writer should have replaced it, restore it from a copy",
        )


class _Buffer(io.BytesIO):
    """A buffer that may be closed while views of it exist.

    A failed request leaves the buffer and its views in a reference cycle of the traceback. The garbage collector closes
    the buffer first, and Python 3.13 and later print the resulting error to stderr.
    """

    def close(self) -> None:
        with contextlib.suppress(BufferError):
            super().close()


class _Whole:
    """Sink that keeps a whole body.

    The buffer is allocated in one piece, of which the system clears only the written pages. ``taken`` returns the value
    without a copy.
    """

    def __init__(self, length: int) -> None:
        self._body = _Buffer(bytes(length))
        self._view = self._body.getbuffer()
        self.received_bytes = 0

    def begin(self) -> None:
        self.received_bytes = 0

    def room(self) -> memoryview:
        return self._view[self.received_bytes :]

    def came(self, count: int) -> None:
        self.received_bytes += count

    def taken(self) -> bytes:
        """Return the body. Afterwards, the sink can't receive another one."""
        self._view.release()
        return self._body.getvalue()


def _is_just(asked: ByteRange | None, answer: Mapping[str, Any]) -> bool:
    """Whether a response's body is the requested range, complete."""
    return (
        asked is not None
        and "ContentRange" in answer
        and _first_byte(answer) == asked.start
        and int(answer["ContentLength"]) == asked.length
    )


def _header(byte_range: ByteRange) -> str:
    return f"bytes={byte_range.start}-{byte_range.stop - 1}"


def _first_byte(answer: Mapping[str, Any]) -> int:
    """Offset of a response's body in the object. A server that ignores ranges sends the whole object."""
    return place_of(answer["ContentRange"])[0] if "ContentRange" in answer else 0
