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
from typing import Any, TypeVar

import aiohttp

from offloader.errors import (
    Corrupt,
    InvalidCall,
    NotFound,
    OffloaderError,
    OutcomeUnknown,
    StoreUnavailable,
)
from offloader.store import checks
from offloader.store.base import (
    CREATE,
    OVERWRITE,
    Body,
    DeleteFailure,
    IfMatch,
    ListPage,
    ObjectInfo,
    PartInfo,
    PutMode,
    StoreOptions,
    UploadInfo,
)

__all__ = ["UPLOADS_PREFIX", "AnswerLost", "CloudStore", "MarkedUpload", "folder_of", "send_once", "was_never_sent"]

_Answer = TypeVar("_Answer")

#: Location of upload markers, and of parts where the service has none of its own.
UPLOADS_PREFIX = "_uploads/"
#: Cached uploads begun by this process, so that a part doesn't read the marker first.
UPLOADS_KNOWN_MAX = 10_000
#: Transfers slower than this are aborted.
SLOWEST_BYTES_PER_S = 256 * 1024
_LIST_LIMIT = 1000
_LOOK = "look with head: it may have been completed before"


@dataclass(frozen=True, slots=True)
class MarkedUpload:
    """An unfinished upload, read from its marker."""

    key: str
    upload_id: str
    metadata: Mapping[str, str]


class CloudStore:
    """Service-independent verbs over a few that a service implements.

    A service's class has ``url``, ``driver_metadata``, ``head``, ``get``, and ``_write``, ``_listed``, ``_remove``,
    ``_remove_version``, ``_send_part``, ``_parts``, ``_join``, ``_drop``.
    """

    def __init__(self, url: str, root: str, options: StoreOptions, loop: asyncio.AbstractEventLoop) -> None:
        self._url = url
        self._root = root
        self._settings = options.settings
        self._loop = loop
        self._places = threading.BoundedSemaphore(options.settings.connections_max)
        self._known: OrderedDict[str, str] = OrderedDict()
        self._known_lock = threading.Lock()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._url!r})"

    @property
    def url(self) -> str:
        return self._url

    # -- one call

    def _ask(self, what: str, call: Coroutine[Any, Any, _Answer], *, writes: bool, size_bytes: int = 0) -> _Answer:
        """Run ``call`` on the file system's loop. A write whose deadline passes has an unknown outcome."""
        settings = self._settings
        deadline_s = settings.connect_timeout_s + settings.read_timeout_s + size_bytes / SLOWEST_BYTES_PER_S
        where = f"{self._url}: {what}"
        if not self._places.acquire(timeout=deadline_s):
            call.close()
            raise StoreUnavailable(f"{where}: no connection was free for {deadline_s:g} s", hint="try again later")
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
            return OutcomeUnknown(text, hint="look before repeating it")
        return StoreUnavailable(text, hint="try again")

    def _meaning(self, where: str, error: Exception, writes: bool) -> OffloaderError:
        """Translate an exception of the service's library."""
        raise NotImplementedError

    # -- implemented by a service

    def head(self, key: str) -> ObjectInfo:
        raise NotImplementedError

    def _read(self, key: str) -> bytes:
        raise NotImplementedError

    def _write(self, key: str, body: Body, mode: PutMode, metadata: Mapping[str, str], crc: int) -> ObjectInfo:
        raise NotImplementedError

    def _listed(self, prefix: str, after: str, limit: int) -> ListPage:
        raise NotImplementedError

    def _remove(self, keys: Sequence[str]) -> Sequence[DeleteFailure]:
        raise NotImplementedError

    def _remove_version(self, key: str, etag: str) -> None:
        raise NotImplementedError

    def _send_part(self, upload: MarkedUpload, number: int, body: Body, crc: int) -> PartInfo:
        raise NotImplementedError

    def _parts(self, upload: MarkedUpload) -> Sequence[PartInfo]:
        raise NotImplementedError

    def _join(self, upload: MarkedUpload, parts: Sequence[PartInfo]) -> None:
        raise NotImplementedError

    def _drop(self, upload: MarkedUpload) -> None:
        """Remove the remains of an ended upload except its marker."""
        raise NotImplementedError

    # -- objects

    def put(
        self,
        key: str,
        body: Body,
        *,
        mode: PutMode = OVERWRITE,
        metadata: Mapping[str, str] | None = None,
        crc32c: int | None = None,
    ) -> ObjectInfo:
        _, kept, crc = checks.check_put(key, body, mode, metadata, crc32c)
        return self._write(key, body, mode, kept, crc)

    def list(self, prefix: str, *, after: str = "", limit: int = _LIST_LIMIT) -> ListPage:
        """List objects except upload markers and parts among them: a page may hold fewer than ``limit``."""
        checks.check_list(prefix, limit)
        page = self._listed(prefix, after, limit)
        objects = tuple(info for info in page.objects if not info.key.startswith(UPLOADS_PREFIX))
        return ListPage(objects, page.next_after)

    def delete(self, keys: Sequence[str]) -> Sequence[DeleteFailure]:
        checked = checks.check_keys(keys)
        return self._remove(checked) if checked else ()

    def delete_if_match(self, key: str, etag: str) -> None:
        checks.check_key(key)
        checks.check_mode(IfMatch(etag))
        with contextlib.suppress(NotFound):
            self._remove_version(key, etag)

    # -- uploads

    def begin_upload(self, key: str, *, metadata: Mapping[str, str] | None = None) -> str:
        checks.check_key(key)
        kept = checks.check_metadata(metadata)
        upload_id = uuid.uuid4().hex
        body = json.dumps({"key": key, "metadata": kept}, sort_keys=True).encode()
        self._write(_mark_key(key, upload_id), body, CREATE, {}, checks.body_crc32c(key, body, None))
        self._remember(key, upload_id)
        return upload_id

    def upload_part(self, key: str, upload_id: str, number: int, body: Body, *, crc32c: int | None = None) -> PartInfo:
        checks.check_key(key)
        checks.check_part_number(number)
        crc = checks.body_crc32c(key, body, crc32c)
        with self._known_lock:
            is_known = self._known.get(upload_id) == key
        upload = MarkedUpload(key, upload_id, {}) if is_known else self._marked(key, upload_id)
        return self._send_part(upload, number, body, crc)

    def complete_upload(self, key: str, upload_id: str, parts: Sequence[PartInfo]) -> ObjectInfo:
        checks.check_key(key)
        checks.check_parts(key, parts)
        try:
            upload = self._marked(key, upload_id)
        except NotFound as gone:
            raise OutcomeUnknown(gone.message, hint=_LOOK) from gone
        there = {(part.number, part.etag, part.size_bytes) for part in self._parts(upload)}
        if not there:  # a completion that was interrupted before it removed the marker
            raise OutcomeUnknown(f"{self._url}: the parts of {key} are gone", hint=_LOOK)
        if any((part.number, part.etag, part.size_bytes) not in there for part in parts):
            raise InvalidCall(f"{self._url}: the parts of {key} aren't what was uploaded", hint="upload them again")
        self._join(upload, parts)
        try:
            done = self.head(key)
        except OffloaderError as error:
            raise OutcomeUnknown(f"{self._url}: {key} was completed, then {error.message}", hint=_LOOK) from error
        # The object exists: the remains of its upload are found by its marker and removed later.
        with contextlib.suppress(OffloaderError):
            self._end(upload)
        return done

    def abort_upload(self, key: str, upload_id: str) -> None:
        checks.check_key(key)
        self._end(MarkedUpload(key, upload_id, {}))

    def list_uploads(self, prefix: str) -> Sequence[UploadInfo]:
        """Unfinished uploads. Reads the marker of each; there are few."""
        checks.check_list(prefix, 1)
        return [upload for mark in self._marks() for upload in self._described(mark, prefix)]

    def _marks(self) -> Iterator[ObjectInfo]:
        after: str | None = ""
        while after is not None:
            page = self._listed(UPLOADS_PREFIX, after, _LIST_LIMIT)
            yield from (info for info in page.objects if info.key.endswith("/begin"))
            after = page.next_after

    def _described(self, info: ObjectInfo, prefix: str) -> Sequence[UploadInfo]:
        try:
            key, _ = self._mark(info.key)
        except NotFound:  # completed or aborted meanwhile
            return []
        upload_id = info.key.split("/")[-2]
        return [UploadInfo(key, upload_id, info.modified_ms)] if key.startswith(prefix) else []

    def list_parts(self, key: str, upload_id: str) -> Sequence[PartInfo]:
        checks.check_key(key)
        return self._parts(self._marked(key, upload_id))

    def _marked(self, key: str, upload_id: str) -> MarkedUpload:
        try:
            _, metadata = self._mark(_mark_key(key, checks.check_key(upload_id)))
        except NotFound as gone:
            raise NotFound(f"{self._url}: no upload {upload_id} of {key}") from gone
        return MarkedUpload(key, upload_id, metadata)

    def _mark(self, mark_key: str) -> tuple[str, Mapping[str, str]]:
        """Key and metadata of an upload. The content is untrusted: any writer to the bucket can change it."""
        body = self._read(mark_key)
        try:
            mark = json.loads(body)
            return str(mark["key"]), {str(name): str(value) for name, value in mark["metadata"].items()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as cause:
            raise Corrupt(
                f"{self._url}: {mark_key} isn't the mark of an upload", hint="look who wrote it, and remove it"
            ) from cause

    def _remember(self, key: str, upload_id: str) -> None:
        with self._known_lock:
            self._known[upload_id] = key
            while len(self._known) > UPLOADS_KNOWN_MAX:
                self._known.popitem(last=False)

    def _end(self, upload: MarkedUpload) -> None:
        """Remove the marker last, so that an upload's remains stay discoverable."""
        with self._known_lock:
            self._known.pop(upload.upload_id, None)
        self._drop(upload)
        failed = self._remove([_mark_key(upload.key, upload.upload_id)])
        if failed:
            raise StoreUnavailable(f"{self._url}: the mark of upload {upload.upload_id} stays: {failed[0].reason}")

    def close(self) -> None:
        """No effect: fsspec owns and closes the file system."""


def _mark_key(key: str, upload_id: str) -> str:
    return f"{folder_of(key, upload_id)}begin"


def folder_of(key: str, upload_id: str) -> str:
    """Folder of an upload's marker, and of its parts where the service has none of its own."""
    return f"{UPLOADS_PREFIX}{hashlib.sha256(key.encode()).hexdigest()[:32]}/{upload_id}/"


_Request = TypeVar("_Request")
_Response = TypeVar("_Response")

#: Raised while connecting: name resolution, connection refused, TLS handshake, proxy, connect timeout.
_CONNECTING = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.ClientHttpProxyError)


class AnswerLost(aiohttp.ClientError):
    """The connection ended after sending of the request began."""


async def send_once(request: _Request, send: Callable[[_Request], Awaitable[_Response]]) -> _Response:
    """Middleware that hides lost connections from aiohttp, which would resend PUT and DELETE on a new connection.

    The resend would meet the effect of the first attempt: a create would be refused because of its own object.
    """
    try:
        return await send(request)
    except _CONNECTING:
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise AnswerLost(f"{type(error).__name__} {error}") from error


def was_never_sent(error: BaseException) -> bool:
    """Whether no byte of the request can have reached the service; false where uncertain."""
    return any(isinstance(cause, _CONNECTING) for cause in _causes(error))


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__
