"""Google Cloud Storage through gcsfs."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import re
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

import aiohttp
from gcsfs import GCSFileSystem
from google.oauth2 import service_account

from formats.entries import Buffer, byte_array, views_of
from offloader.errors import BucketMissingError, InvalidCallError, OffloaderError, StoreUnavailableError
from offloader.store import checks
from offloader.store.base import (
    Body,
    ByteRange,
    DeleteFailure,
    ListPage,
    ObjectInfo,
    ObjectStore,
    PartInfo,
    PutMode,
    StoreOptions,
)
from offloader.store.clouds.base import CloudStore, MarkedUpload, folder_of, send_once, was_never_sent
from offloader.store.s3_responses import decoded_crc32c, encoded_crc32c, meaning_of, require_start

#: Maximum sources of one compose request.
COMPOSED_MAX = 32
#: Objects deleted in parallel.
DELETES_AT_ONCE_MAX = 16
#: Body bytes per send.
SENT_BYTES = 256 * 1024
_META = "x-goog-meta-"
#: Algorithm of signed URLs, version 4.
_ALGORITHM = "GOOG4-RSA-SHA256"
_XML_MESSAGE = re.compile(rb"<Message>([^<]{1,300})</Message>")


class _Response(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes


class _Refused(Exception):
    """An error response."""

    def __init__(self, answer: _Response) -> None:
        super().__init__(answer.status)
        self.answer = answer


def open_url(url: str, options: StoreOptions) -> ObjectStore:
    """Open the store at ``gs://bucket/root``, with Google's credential chain, or without credentials over ``http``."""
    parts = urlsplit(url)
    if not parts.netloc:
        raise InvalidCallError(f"{url} has no bucket name", hint="use gs://bucket/root")
    root = checks.split_root(url, parts.path)
    endpoint = options.endpoint_url
    files = GCSFileSystem(
        token="anon" if (endpoint or "").startswith("http://") else None,
        endpoint_url=endpoint,
        use_listings_cache=False,
        skip_instance_cache=True,
    )
    return GcsStore(f"gs://{parts.netloc}/{root}".rstrip("/"), files, parts.netloc, root, options)


class GcsStore(CloudStore):
    """``gs://bucket/root``. An ETag is the object's generation."""

    def __init__(self, url: str, files: Any, bucket: str, root: str, options: StoreOptions) -> None:
        place = {"region": options.region or "", "endpoint_url": files._endpoint or ""}  # noqa: SLF001
        super().__init__(url, root, options, files.loop, driver="google-cloud-storage", bucket=bucket, **place)
        self._files = files
        self._bucket = bucket

    async def _request(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        data: Sequence[Buffer] | None = None,
        **params: Any,
    ) -> _Response:
        files, settings = self._files, self._settings
        await files._set_session()  # noqa: SLF001 - as gcsfs's requests, without retries
        timeout = aiohttp.ClientTimeout(sock_connect=settings.connect_timeout, sock_read=settings.read_timeout)
        async with files.session.request(
            method,
            f"{files._location}/{path}",  # noqa: SLF001
            params={name: str(value) for name, value in params.items() if value is not None},
            headers=files._get_headers(dict(headers or {})),  # noqa: SLF001
            data=None if data is None else _in_slices(data),
            timeout=timeout,
            middlewares=(send_once,),
        ) as answer:
            found = _Response(
                answer.status, {name.lower(): value for name, value in answer.headers.items()}, await answer.read()
            )
        if found.status not in (200, 204, 206):
            raise _Refused(found)
        return found

    def _meaning(self, where: str, error: Exception, writes: bool) -> OffloaderError:
        if not isinstance(error, _Refused):
            words = " ".join(f"{type(error).__name__} {error}".split())
            return self._in_doubt(f"{where}: {words}", writes and not was_never_sent(error))
        answer = error.answer
        said = _message(answer.body)
        # An object's path in the message may also contain that word.
        if answer.status == 404 and any("bucket" in word for word in said.lower().split() if "/" not in word):
            return BucketMissingError(f"{where}: {said}", hint="create the bucket, or check its name")
        kind, hint = meaning_of("", answer.status, writes=writes)
        return kind(f"{where}: {answer.status} {said}".rstrip(), hint=hint)

    def _object_path(self, key: str) -> str:
        return f"{quote(self._bucket, safe='')}/{quote(self._root + key, safe='/~')}"

    def _api_path(self, key: str) -> str:
        return f"storage/v1/b/{quote(self._bucket, safe='')}/o/{quote(self._root + key, safe='')}"

    def _signed_url(self, key: str, expires_s: float) -> str | None:
        account = getattr(self._files.credentials, "credentials", None)
        if not isinstance(account, service_account.Credentials):
            return None  # other credentials sign by a request to Google
        url = urlsplit(f"{self._files._location}/{self._object_path(key)}")  # noqa: SLF001
        time = datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC).strftime("%Y%m%dT%H%M%SZ")
        scope = f"{time[:8]}/auto/storage/goog4_request"
        query = urlencode(
            {
                "X-Goog-Algorithm": _ALGORITHM,
                "X-Goog-Credential": f"{account.signer_email}/{scope}",
                "X-Goog-Date": time,
                "X-Goog-Expires": str(int(expires_s)),
                "X-Goog-SignedHeaders": "host",
            },
            quote_via=quote,
            safe="",
        )
        request = f"GET\n{url.path}\n{query}\nhost:{url.netloc}\n\nhost\nUNSIGNED-PAYLOAD"
        signed = f"{_ALGORITHM}\n{time}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
        return f"{url.geturl()}?{query}&X-Goog-Signature={account.sign_bytes(signed.encode()).hex()}"

    async def _look(self, key: str) -> ObjectInfo:
        answer = await self._request("HEAD", self._object_path(key))
        return _described(key, answer.headers)

    async def _used_key(self, key: str) -> str:
        found = json.loads((await self._request("GET", self._api_path(key))).body)
        return str(found.get("kmsKeyName", ""))

    def _status_of(self, error: BaseException | None) -> int:
        return error.answer.status if isinstance(error, _Refused) else 0

    async def _fetch(self, key: str, byte_range: ByteRange | None) -> tuple[bytes, ObjectInfo]:
        asked = {} if byte_range is None else {"Range": f"bytes={byte_range.start}-{byte_range.stop - 1}"}
        headers = {"Accept-Encoding": "identity", **asked}
        answer = await self._request("GET", self._object_path(key), headers=headers)
        body = answer.body
        if answer.status == 200 and byte_range is not None:  # the server ignores ranges
            body = body[byte_range.start : byte_range.stop]
        elif byte_range is not None:
            require_start(f"{self.url}: get of {key}", byte_range, answer.headers.get("content-range", ""))
        return body, _described(key, answer.headers)

    def _put(self, key: str, body: Body, mode: PutMode, metadata: Mapping[str, str], crc: int) -> ObjectInfo:
        return self._send(key, body, mode, metadata, crc, self._kms_key(key))

    def _send(
        self, key: str, body: Body, mode: PutMode, metadata: Mapping[str, str], crc: int, kms_key: str
    ) -> ObjectInfo:
        described = {"name": self._root + key, "metadata": dict(metadata), "crc32c": encoded_crc32c(crc)}
        between = f"--{uuid.uuid4().hex}"
        head = f"{between}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n{json.dumps(described)}\r\n"
        head += f"{between}\r\nContent-Type: application/octet-stream\r\n\r\n"
        data = [head.encode(), *views_of(body), f"\r\n{between}--".encode()]
        size_bytes = sum(len(piece) for piece in data)
        call = self._made(
            f"upload/storage/v1/b/{quote(self._bucket, safe='')}/o",
            headers={"Content-Type": f'multipart/related; boundary="{between[2:]}"', "Content-Length": str(size_bytes)},
            data=data,
            uploadType="multipart",
            ifGenerationMatch="0" if mode.create_only else mode.etag and mode.etag.strip('"'),
            kmsKeyName=kms_key or None,
        )
        return self._ask(f"put of {key}", call, writes=True, size_bytes=size_bytes)

    async def _made(self, path: str, **how: Any) -> ObjectInfo:
        """Description of the object that a POST created."""
        return self._resource(json.loads((await self._request("POST", path, **how)).body))

    def _resource(self, found: Mapping[str, Any]) -> ObjectInfo:
        return ObjectInfo(
            found["name"][len(self._root) :],
            int(found["size"]),
            f'"{found["generation"]}"',
            int(datetime.fromisoformat(found["updated"]).timestamp()) * 1000,  # HEAD has a resolution of seconds
            {name.lower(): value for name, value in found.get("metadata", {}).items()},
            decoded_crc32c(found.get("crc32c")),
        )

    def _resources(self, prefix: str, after: str, limit: int) -> tuple[list[ObjectInfo], bool]:
        """Up to ``limit`` objects, and whether more follow."""
        start = f"{self._root}{after}\0" if after else None  # offsets are inclusive
        params: dict[str, Any] = {"prefix": self._root + prefix, "maxResults": limit, "startOffset": start}
        found: list[ObjectInfo] = []
        path = f"storage/v1/b/{quote(self._bucket, safe='')}/o"
        while len(found) < limit:  # a page may be short without being the last
            page, params["pageToken"] = self._ask(f"list of {prefix!r}", self._page(path, params), writes=False)
            found += page
            if params["pageToken"] is None:
                return found, False
        return found[:limit], True

    async def _page(self, path: str, params: Mapping[str, Any]) -> tuple[list[ObjectInfo], str | None]:
        """The objects of a page of a listing, and the token of the next one."""
        page = json.loads((await self._request("GET", path, **params)).body)
        return [self._resource(each) for each in page.get("items", ())], page.get("nextPageToken")

    def _listed(self, prefix: str, after: str, limit: int) -> ListPage:
        found, has_more = self._resources(prefix, after, limit)
        plain = tuple(ObjectInfo(info.key, info.size_bytes, info.etag, info.modified_ms) for info in found)
        return ListPage(plain, found[-1].key if has_more else None)

    def _delete(self, keys: Sequence[str]) -> Sequence[DeleteFailure]:
        call = self._delete_all(keys)
        return self._ask(f"delete of {len(keys)} objects", call, writes=True, size_bytes=len(keys) * 64 * 1024)

    def _remove_version(self, key: str, etag: str) -> None:
        self._ask(
            f"delete of {key}",
            self._request("DELETE", self._api_path(key), ifGenerationMatch=etag.strip('"')),
            writes=True,
        )

    async def _delete_all(self, keys: Sequence[str]) -> Sequence[DeleteFailure]:
        turns = asyncio.Semaphore(DELETES_AT_ONCE_MAX)

        async def delete(key: str) -> DeleteFailure | None:
            async with turns:
                try:
                    await self._request("DELETE", self._api_path(key))
                except _Refused as refused:
                    status, said = refused.answer.status, _message(refused.answer.body)
                    if status != 404:
                        return DeleteFailure(
                            key, f"{status} {said}", status >= 500 or status == 429, status in (401, 403)
                        )
                return None

        found = await asyncio.gather(*(delete(key) for key in keys), return_exceptions=True)
        lost = [each for each in found if isinstance(each, BaseException)]
        if len(lost) == len(keys):
            raise next((error for error in lost if not was_never_sent(error)), lost[0])
        # Some keys have been removed, so that the call returns failures instead of raising one.
        return [
            DeleteFailure(key, type(each).__name__, True) if isinstance(each, BaseException) else each
            for key, each in zip(keys, found, strict=True)
            if each is not None
        ]

    def _send_part(self, upload: MarkedUpload, number: int, body: Body, crc: int) -> PartInfo:
        part_key = f"{folder_of(upload.key, upload.upload_id)}{number:05d}"
        info = self._send(part_key, body, PutMode(), {}, crc, self._kms_key(upload.key))
        return PartInfo(number, info.etag, info.size_bytes, crc)

    def _parts(self, upload: MarkedUpload) -> Sequence[PartInfo]:
        folder = folder_of(upload.key, upload.upload_id)
        found = [(info.key[len(folder) :], info) for info in self._all_in(folder)]
        return [
            PartInfo(int(name), info.etag, info.size_bytes, -1 if info.crc32c is None else info.crc32c)
            for name, info in found
            if name.isdigit()
        ]

    def _all_in(self, folder: str) -> list[ObjectInfo]:
        return self._resources(folder, "", checks.PARTS_MAX * 2)[0]

    def _join(self, upload: MarkedUpload, parts: Sequence[PartInfo]) -> None:
        folder = folder_of(upload.key, upload.upload_id)
        sources = [(f"{folder}{part.number:05d}", part.etag) for part in parts]
        numbers, kms_key = itertools.count(), self._kms_key(upload.key)
        while len(sources) > COMPOSED_MAX:
            groups = [sources[at : at + COMPOSED_MAX] for at in range(0, len(sources), COMPOSED_MAX)]
            joined = [self._compose(f"{folder}joined-{next(numbers):05d}", group, {}, kms_key) for group in groups]
            sources = [(info.key, info.etag) for info in joined]
        self._compose(upload.key, sources, upload.metadata, kms_key)

    def _compose(
        self, key: str, sources: Sequence[tuple[str, str]], metadata: Mapping[str, str], kms_key: str
    ) -> ObjectInfo:
        order = {
            "sourceObjects": [
                {
                    "name": self._root + name,
                    "generation": etag.strip('"'),
                    "objectPreconditions": {"ifGenerationMatch": etag.strip('"')},
                }
                for name, etag in sources
            ],
            "destination": {"contentType": "application/octet-stream", "metadata": dict(metadata)},
        }
        call = self._made(
            f"{self._api_path(key)}/compose",
            headers={"Content-Type": "application/json"},
            data=[json.dumps(order).encode()],
            kmsKeyName=kms_key or None,
        )
        with checks.completing():
            return self._ask(f"joining of {key}", call, writes=True)

    def _drop(self, upload: MarkedUpload) -> None:
        folder = folder_of(upload.key, upload.upload_id)
        left = [info.key for info in self._all_in(folder) if not info.key.endswith("/begin")]
        failed = self._delete(left) if left else ()
        if failed:
            raise StoreUnavailableError(
                f"{self.url}: removing the parts of an upload of {upload.key} failed: {failed[0].reason}",
                hint="abort the upload again",
            )


async def _in_slices(pieces: Sequence[Buffer]) -> AsyncIterator[Buffer]:
    """Body in slices, without copies. Sending it whole would block all other requests."""
    for piece in pieces:
        view = byte_array(piece).data
        for at in range(0, len(view), SENT_BYTES):
            yield view[at : at + SENT_BYTES]


def _described(key: str, headers: Mapping[str, str]) -> ObjectInfo:
    sums = dict(each.strip().partition("=")[::2] for each in headers.get("x-goog-hash", "").split(","))
    size_bytes = int(headers.get("content-range", "/" + headers.get("content-length", "0")).rpartition("/")[2])
    return ObjectInfo(
        key,
        size_bytes,
        f'"{headers["x-goog-generation"]}"',
        int(parsedate_to_datetime(headers["last-modified"]).timestamp()) * 1000,
        {name[len(_META) :]: value for name, value in headers.items() if name.startswith(_META)},
        decoded_crc32c(sums.get("crc32c")),
    )


def _message(body: bytes) -> str:
    """Message of an error response, from JSON or XML; empty if there is none."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        found = _XML_MESSAGE.search(body)
        return found[1].decode(errors="replace") if found else ""
