"""Stores behind asynchronous file systems: deadlines, uploads, and connections without hidden resends."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import hashlib
import json
import threading
import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import aiohttp

from formats.checksum import crc32c
from offloader.errors import (
    CorruptError,
    InvalidCallError,
    NotFoundError,
    OffloaderError,
    OutcomeUnknownError,
    StoreUnavailableError,
)
from offloader.store import checks
from offloader.store.base import (
    CREATE,
    Body,
    ByteRange,
    ListPage,
    ObjectInfo,
    PartInfo,
    Sink,
    StoreOptions,
    UploadInfo,
)
from offloader.store.wrappers import stream_of

_Answer = TypeVar("_Answer")

#: Location of upload markers, and of the parts if the service has no multipart uploads.
UPLOADS_PREFIX = "_uploads/"
#: Maximum number of cached uploads. A part of a cached upload doesn't read the marker first.
UPLOADS_KNOWN_MAX = 10_000
#: Minimum transfer rate. Slower transfers are aborted.
SLOWEST_BYTES_PER_S = 256 * 1024
_LIST_LIMIT = 1000


@dataclass(frozen=True, slots=True)
class MarkedUpload:
    """An unfinished upload, read from its marker."""

    key: str
    upload_id: str
    metadata: Mapping[str, str]


class _ServiceVerbs(Protocol):
    """Verbs that a service implements, in addition to ``_put`` and ``_delete``."""

    def _meaning(self, where: str, error: Exception, writes: bool) -> OffloaderError:
        """Translate an exception of the service's library."""

    def _status_of(self, error: BaseException | None) -> int:
        """HTTP status of an exception of the service's library; 0: none."""

    async def _used_key(self, key: str) -> str:
        """Name of the key that encrypts an object, as the service reports it; empty: none."""

    async def _look(self, key: str) -> ObjectInfo:
        """The object's description."""

    async def _fetch(self, key: str, byte_range: ByteRange | None) -> tuple[bytes, ObjectInfo]:
        """The object, or a range of it that isn't empty."""

    def _drop(self, upload: MarkedUpload) -> None:
        """Remove the remains of an ended upload except its marker."""

    def _listed(self, prefix: str, after: str, limit: int) -> ListPage: ...
    def _remove_version(self, key: str, etag: str) -> None: ...
    def _send_part(self, upload: MarkedUpload, number: int, body: Body, crc: int) -> PartInfo: ...
    def _parts(self, upload: MarkedUpload) -> Sequence[PartInfo]: ...
    def _join(self, upload: MarkedUpload, parts: Sequence[PartInfo]) -> None: ...


class CloudStore(checks.CheckedStore, _ServiceVerbs):
    """Service-independent verbs over a few that a service implements."""

    def __init__(
        self, url: str, root: str, options: StoreOptions, loop: asyncio.AbstractEventLoop, **driver: str
    ) -> None:
        super().__init__(url, root, **driver)
        self._settings = options.settings
        self._clock = options.clock
        self._loop = loop
        self._places = threading.BoundedSemaphore(options.settings.connections_max)
        self._known: OrderedDict[str, str] = OrderedDict()
        self._known_lock = threading.Lock()

    def _kms_key(self, key: str) -> str:
        """Name of the key that encrypts a new object, from its stream's settings; empty: the bucket's default key."""
        return self._settings.of_stream(stream_of(key)).kms_key

    @property
    def asks_encryption(self) -> bool:
        """See ``offloader.store.base.Adjustable``."""
        return bool(self._settings.kms_key)

    def checksum_taken(self, key: str) -> str:  # noqa: ARG002 - there is one checksum
        return ""

    def encryption_problem(self, key: str) -> str:
        wanted, used = self._settings.kms_key, self._ask(f"head of {key}", self._used_key(key), writes=False)
        if used == wanted or used.startswith(f"{wanted}/"):  # Google adds the key's version
            return ""
        return f"store.kms_key = {wanted!r} has no effect: a new object has the key {used or 'none'}"

    def _ask(self, what: str, call: Coroutine[Any, Any, _Answer], *, writes: bool, size_bytes: int = 0) -> _Answer:
        """Run ``call`` on the file system's loop. A write whose deadline passes has an unknown outcome."""
        settings = self._settings
        deadline_s = settings.connect_timeout + settings.read_timeout + size_bytes / SLOWEST_BYTES_PER_S
        where = f"{self.url}: {what}"
        if not self._places.acquire(timeout=deadline_s):
            call.close()
            raise StoreUnavailableError(f"{where}: no free connection within {deadline_s:g} s", hint="try again later")
        running = asyncio.run_coroutine_threadsafe(call, self._loop)
        running.add_done_callback(lambda _: self._places.release())
        try:
            return running.result(deadline_s)
        except concurrent.futures.TimeoutError as late:
            running.cancel()
            raise self._in_doubt(f"{where}: no answer within {deadline_s:g} s", writes) from late
        except OffloaderError:
            raise
        except Exception as error:
            raise self._meaning(where, error, writes) from error

    @staticmethod
    def _in_doubt(text: str, writes: bool) -> OffloaderError:
        if writes:
            return OutcomeUnknownError(text, hint="check the object before repeating the request")
        return StoreUnavailableError(text, hint="try again")

    def _head(self, key: str) -> ObjectInfo:
        return self._ask(f"head of {key}", self._look(key), writes=False)

    def _get(self, key: str, byte_range: ByteRange | None, into: Sink | None) -> tuple[bytes, ObjectInfo]:  # noqa: ARG002
        wanted = byte_range or ByteRange(0, 0)
        try:
            body, info = self._ask(
                f"get of {key}", self._fetch(key, byte_range), writes=False, size_bytes=wanted.length
            )
        except InvalidCallError as error:
            if self._status_of(error.__cause__) == 416:  # it starts past the end
                return b"", self._head(key)
            raise
        stop = info.size_bytes if byte_range is None else min(byte_range.stop, info.size_bytes)
        expected = max(stop - wanted.start, 0)
        if len(body) != expected:
            raise StoreUnavailableError(f"{self.url}: get of {key}: received {len(body)} bytes, expected {expected}")
        return body, info

    def _list(self, prefix: str, after: str, limit: int) -> ListPage:
        """List objects without upload markers and parts. A page may therefore hold fewer than ``limit`` objects."""
        page = self._listed(prefix, after, limit)
        return ListPage(
            tuple(info for info in page.objects if not info.key.startswith(UPLOADS_PREFIX)), page.next_after
        )

    def _delete_if_match(self, key: str, etag: str) -> None:
        with contextlib.suppress(NotFoundError):
            self._remove_version(key, etag)

    def _begin_upload(self, key: str, metadata: Mapping[str, str]) -> str:
        upload_id = uuid.uuid4().hex
        body = json.dumps({"key": key, "metadata": dict(metadata)}, sort_keys=True).encode()
        self._put(_mark_key(key, upload_id), body, CREATE, {}, crc32c(body))
        with self._known_lock:
            self._known[upload_id] = key
            while len(self._known) > UPLOADS_KNOWN_MAX:
                self._known.popitem(last=False)
        return upload_id

    def _upload_part(self, key: str, upload_id: str, number: int, body: Body, crc: int) -> PartInfo:
        with self._known_lock:
            is_known = self._known.get(upload_id) == key
        upload = MarkedUpload(key, upload_id, {}) if is_known else self._marked(key, upload_id)
        return self._send_part(upload, number, body, crc)

    def _complete_upload(self, key: str, upload_id: str, parts: Sequence[PartInfo]) -> ObjectInfo:
        with checks.completing():
            upload = self._marked(key, upload_id)
        there = {(part.number, part.etag, part.size_bytes) for part in self._parts(upload)}
        if not there:  # a completion was interrupted before it removed the marker
            raise OutcomeUnknownError(f"{self.url}: the parts of {key} are missing", hint=checks.COMPLETED_HINT)
        if any((part.number, part.etag, part.size_bytes) not in there for part in parts):
            raise InvalidCallError(
                f"{self.url}: the parts of {key} differ from the uploaded ones", hint="upload them again"
            )
        self._join(upload, parts)
        try:
            done = self._head(key)
        except OffloaderError as error:
            raise OutcomeUnknownError(
                f"{self.url}: completion of {key} succeeded, but its check failed: {error.message}",
                hint=checks.COMPLETED_HINT,
            ) from error
        # The object exists. A later cleanup finds the rest of the upload by its marker and removes it.
        with contextlib.suppress(OffloaderError):
            self._end(upload)
        return done

    def _abort_upload(self, key: str, upload_id: str) -> None:
        self._end(MarkedUpload(key, upload_id, {}))

    def _list_uploads(self, prefix: str) -> Sequence[UploadInfo]:
        """Unfinished uploads. Reads the marker of each; there are few."""
        found = []
        for info in self._marks():
            with contextlib.suppress(NotFoundError):  # completed or aborted meanwhile
                key, _ = self._mark(info.key)
                if key.startswith(prefix):
                    found.append(UploadInfo(key, info.key.split("/")[-2], info.modified_ms))
        return found

    def _marks(self) -> Iterator[ObjectInfo]:
        after: str | None = ""
        while after is not None:
            page = self._listed(UPLOADS_PREFIX, after, _LIST_LIMIT)
            yield from (info for info in page.objects if info.key.endswith("/begin"))
            after = page.next_after

    def _list_parts(self, key: str, upload_id: str) -> Sequence[PartInfo]:
        return self._parts(self._marked(key, upload_id))

    def _marked(self, key: str, upload_id: str) -> MarkedUpload:
        try:
            _, metadata = self._mark(_mark_key(key, self._checked_key(upload_id)))
        except NotFoundError as gone:
            raise NotFoundError(f"{self.url}: no upload {upload_id} of {key}") from gone
        return MarkedUpload(key, upload_id, metadata)

    def _mark(self, mark_key: str) -> tuple[str, Mapping[str, str]]:
        """Key and metadata of an upload. The marker is untrusted: any writer to the bucket can change it."""
        body, _ = self.get(mark_key)
        try:
            mark = json.loads(body)
            return str(mark["key"]), {str(name): str(value) for name, value in mark["metadata"].items()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as cause:
            raise CorruptError(
                f"{self.url}: {mark_key} isn't a valid upload marker",
                hint="find the program that wrote it, and remove it",
            ) from cause

    def _end(self, upload: MarkedUpload) -> None:
        """Remove the marker last, so that a later cleanup can find the rest of the upload."""
        with self._known_lock:
            self._known.pop(upload.upload_id, None)
        self._drop(upload)
        failed = self._delete([_mark_key(upload.key, upload.upload_id)])
        if failed:
            raise StoreUnavailableError(
                f"{self.url}: removing the marker of upload {upload.upload_id} failed: {failed[0].reason}"
            )


def _mark_key(key: str, upload_id: str) -> str:
    return f"{folder_of(key, upload_id)}begin"


def folder_of(key: str, upload_id: str) -> str:
    """Folder of an upload's marker, and of its parts if the service has no multipart uploads."""
    return f"{UPLOADS_PREFIX}{hashlib.sha256(key.encode()).hexdigest()[:32]}/{upload_id}/"


_Request = TypeVar("_Request")
_Response = TypeVar("_Response")

#: Exceptions raised while connecting: name resolution, connection refused, TLS handshake, proxy, connect timeout.
_CONNECTING = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.ClientHttpProxyError)


class AnswerLost(aiohttp.ClientError):
    """The connection ended after sending of the request began."""


async def send_once(request: _Request, send: Callable[[_Request], Awaitable[_Response]]) -> _Response:
    """Middleware that hides lost connections from aiohttp, which would resend PUT and DELETE on a new connection.

    The resend would fail because of the first attempt's effect: a create would be refused because its object exists.
    """
    try:
        return await send(request)
    except _CONNECTING:
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise AnswerLost(f"{type(error).__name__} {error}") from error


def was_never_sent(error: BaseException) -> bool:
    """Whether no byte of the request can have reached the service; false in doubt."""
    if isinstance(error, _CONNECTING):
        return True
    return error.__cause__ is not None and was_never_sent(error.__cause__)
