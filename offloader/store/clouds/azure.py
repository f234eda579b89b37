"""Azure Blob Storage through adlfs."""

from __future__ import annotations

import base64
import io
import json
import re
import struct
import uuid
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from adlfs import AzureBlobFileSystem
from azure.core import MatchConditions
from azure.core.exceptions import HttpResponseError
from azure.storage.blob import BlobBlock, BlobSasPermissions, generate_blob_sas

from formats.entries import views_of
from offloader.errors import (
    BucketMissingError,
    InvalidCallError,
    NotFoundError,
    OffloaderError,
    OutcomeUnknownError,
    PreconditionFailedError,
)
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
    delete_in_turns,
)
from offloader.store.clouds.base import CloudStore, MarkedUpload, send_once, was_never_sent
from offloader.store.s3_responses import meaning_of, require_start

#: Maximum number of blobs in one delete request.
DELETED_AT_ONCE_MAX = 256
#: Largest body that is sent whole. Larger bodies are streamed.
SENT_BYTES = 256 * 1024
#: Blobs of one page of a listing (the service's limit).
PAGE_BLOBS_MAX = 5000
#: Cached listing cursors, so that the next page doesn't restart at the first.
LISTINGS_KNOWN_MAX = 64
#: Name of the metadata that holds names that Azure doesn't accept, and the checksum, which Azure doesn't store.
_OTHERS, _CRC = "offloader_metadata", "offloader_crc32c"
_NAME = re.compile(r"[a-z_][a-z0-9_]*")
_RANGE = re.compile(r"bytes=(\d+)-(\d+)\Z")
_BLOCK_ID = struct.Struct(">16sII")
_CONDITION_CODES = {"BlobAlreadyExists", "ConditionNotMet", "UnauthorizedBlobOverwrite"}
_ONCE = {"retry_total": 0, "retry_connect": 0, "retry_read": 0, "retry_status": 0, "middlewares": (send_once,)}


def open_url(url: str, options: StoreOptions) -> ObjectStore:
    """Open the store at ``az://container/root``.

    ``access_key`` and ``secret_key`` are the name and the key of the account. Without them, Azure's variables and
    credential chain apply (``AZURE_STORAGE_CONNECTION_STRING``, ``AZURE_STORAGE_ACCOUNT_NAME``, ...).
    """
    parts = urlsplit(url)
    if not parts.netloc:
        raise InvalidCallError(f"{url} has no container name", hint="use az://container/root")
    root = checks.split_root(url, parts.path)
    given: dict[str, Any] = {}
    if options.access_key:
        given = {"account_name": options.access_key, "account_key": options.secret_key}
        if options.endpoint_url:
            given = {"connection_string": _connection(options)}
    try:
        files = AzureBlobFileSystem(**given, use_listings_cache=False, skip_instance_cache=True)
    except ValueError as error:
        raise InvalidCallError(
            f"{url}: missing storage account",
            hint="set AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ACCOUNT_NAME and credentials",
        ) from error
    return AzureStore(f"az://{parts.netloc}/{root}".rstrip("/"), files, parts.netloc, root, options)


def _connection(options: StoreOptions) -> str:
    fields = {
        "DefaultEndpointsProtocol": urlsplit(options.endpoint_url or "").scheme,
        "AccountName": options.access_key,
        "AccountKey": options.secret_key,
        "BlobEndpoint": options.endpoint_url,
    }
    return ";".join(f"{name}={value}" for name, value in fields.items())


class AzureStore(CloudStore):
    """``az://container/root``."""

    def __init__(self, url: str, files: Any, container: str, root: str, options: StoreOptions) -> None:
        super().__init__(
            url,
            root,
            options,
            files.loop,
            driver="azureblob",
            bucket=container,
            endpoint_url=str(files.service_client.primary_endpoint).partition("?")[0],
        )
        self._files = files
        self._container = files.service_client.get_container_client(container)
        self._once = {
            **_ONCE,
            "connection_timeout": options.settings.connect_timeout,
            "read_timeout": options.settings.read_timeout,
        }
        #: Prefix and key -> the token of a page, and whether the page begins directly after that key.
        self._tokens: OrderedDict[tuple[str, str], tuple[str, bool]] = OrderedDict()

    def _meaning(self, where: str, error: Exception, writes: bool) -> OffloaderError:
        words = " ".join(f"{type(error).__name__} {error}".split())
        if not isinstance(error, HttpResponseError):
            return self._in_doubt(f"{where}: {words[:300]}", writes and not was_never_sent(error))
        code, status = str(getattr(error, "error_code", "") or ""), error.status_code or 0
        said = f"{where}: {status} {code}".rstrip()
        if code in ("ContainerNotFound", "ContainerBeingDeleted"):
            return BucketMissingError(said, hint="create the container, or check its name")
        if code in _CONDITION_CODES or status == 412:
            return PreconditionFailedError(said)
        if code == "InvalidBlockList":
            return OutcomeUnknownError(said, hint=checks.COMPLETED_HINT)
        kind, hint = meaning_of("", status, writes=writes)
        return kind(said, hint=hint)

    def _scope(self, key: str) -> Mapping[str, str]:
        """Parameters for the encryption scope of a new object; empty for the container's default scope."""
        scope = self._kms_key(key)
        return {"encryption_scope": scope} if scope else {}

    def _blob(self, key: str) -> Any:
        return self._container.get_blob_client(self._root + key)

    def _signed_url(self, key: str, expires_s: float) -> str | None:
        account = self._files.service_client.credential
        account_key = getattr(account, "account_key", None)
        if not account_key:
            return None  # signing with a token requires a request for a key
        blob = self._blob(key)
        signature = generate_blob_sas(
            account_name=account.account_name,
            container_name=blob.container_name,
            blob_name=blob.blob_name,
            account_key=account_key,
            permission=BlobSasPermissions(read=True),
            expiry=datetime.fromtimestamp(self._clock.now_ms() / 1000 + expires_s, UTC),
        )
        return f"{str(blob.url).partition('?')[0]}?{signature}"

    async def _look(self, key: str) -> ObjectInfo:
        return _described(key, await self._blob(key).get_blob_properties(**self._once))

    async def _used_key(self, key: str) -> str:
        return (await self._blob(key).get_blob_properties(**self._once)).encryption_scope or ""

    def _status_of(self, error: BaseException | None) -> int:
        return error.status_code or 0 if isinstance(error, HttpResponseError) else 0

    async def _fetch(self, key: str, byte_range: ByteRange | None) -> tuple[bytes, ObjectInfo]:
        blob = self._blob(key)
        wanted = {} if byte_range is None else {"offset": byte_range.start, "length": byte_range.length}
        check = partial(_require_range, f"{self.url}: get of {key}")
        answer = await blob.download_blob(**wanted, **self._once, max_concurrency=1, raw_response_hook=check)
        body = bytes(await answer.readall())
        found = answer.properties
        if found.content_range:  # otherwise the size is that of the range
            found.size = int(found.content_range.rpartition("/")[2])
        return body, _described(key, found)

    def _put(self, key: str, body: Body, mode: PutMode, metadata: Mapping[str, str], crc: int) -> ObjectInfo:
        blob = self._blob(key)
        data = b"".join(views_of(body))
        kept = _kept({**metadata, _CRC: f"{crc:08x}"})
        send = self._put_whole if len(data) <= SENT_BYTES else self._put_large
        how = {**self._scope(key), **self._once}

        async def made() -> ObjectInfo:
            answer = await send(blob, data, kept, mode, how)
            return ObjectInfo(
                key,
                len(data),
                _quoted(answer["etag"]),
                int(answer["last_modified"].timestamp()) * 1000,
                dict(metadata),
                crc,
            )

        return self._ask(f"put of {key}", made(), writes=True, size_bytes=len(data))

    async def _put_whole(
        self, blob: Any, data: bytes, metadata: Mapping[str, str], mode: PutMode, how: Mapping[str, Any]
    ) -> Any:
        # Without overwrite, the library adds the condition.
        condition = {"overwrite": False} if mode.create_only else {"overwrite": True, **_condition(mode)}
        return await blob.upload_blob(
            data, length=len(data), metadata=metadata, validate_content=True, max_concurrency=1, **condition, **how
        )

    async def _put_large(
        self, blob: Any, data: bytes, metadata: Mapping[str, str], mode: PutMode, how: Mapping[str, Any]
    ) -> Any:
        """Upload the blob as a single block: the library streams only blocks."""
        block_id = _block_id(uuid.uuid4().hex, 1, 0)
        await blob.stage_block(block_id, io.BytesIO(data), length=len(data), validate_content=True, **how)
        return await blob.commit_block_list(
            [BlobBlock(block_id=block_id)], metadata=metadata, **_condition(mode), **how
        )

    def _listed(self, prefix: str, after: str, limit: int) -> ListPage:
        call = self._pages(self._root + prefix, self._root + after if after else "", limit)
        found, has_more = self._ask(f"list of {prefix!r}", call, writes=False, size_bytes=limit * 1024)
        objects = tuple(
            ObjectInfo(
                each.name[len(self._root) :], each.size, _quoted(each.etag), int(each.last_modified.timestamp()) * 1000
            )
            for each in found
        )
        return ListPage(objects, objects[-1].key if has_more else None)

    async def _pages(self, prefix: str, after: str, limit: int) -> tuple[list[Any], bool]:
        """Pages of a listing. Azure continues by a token; without the token, earlier pages are read again."""
        token, is_exact = self._tokens.pop((prefix, after), (None, not after))
        # Blobs before ``after`` are read and discarded: use large pages to send few requests.
        size = min(limit, PAGE_BLOBS_MAX) if is_exact else PAGE_BLOBS_MAX
        pages = self._container.list_blobs(name_starts_with=prefix, results_per_page=size, **self._once).by_page(
            continuation_token=token
        )
        found: list[Any] = []
        begin = token
        async for page in pages:
            found += [each async for each in page if each.name > after]
            begin, token = token, pages.continuation_token
            if len(found) >= limit:
                break
        is_exact = len(found) == limit
        known = token if is_exact else begin
        if known and len(found) >= limit:
            self._tokens[prefix, found[limit - 1].name] = known, is_exact
            while len(self._tokens) > LISTINGS_KNOWN_MAX:
                self._tokens.popitem(last=False)
        return found[:limit], bool(token) or len(found) > limit

    def _delete(self, keys: Sequence[str]) -> Sequence[DeleteFailure]:
        return delete_in_turns(keys, DELETED_AT_ONCE_MAX, self._delete_some)

    def _delete_some(self, keys: Sequence[str]) -> Sequence[DeleteFailure]:
        call = self._delete_all(keys)
        return self._ask(f"delete of {len(keys)} objects", call, writes=True, size_bytes=len(keys) * 65536)

    def _remove_version(self, key: str, etag: str) -> None:
        call = self._blob(key).delete_blob(etag=etag, match_condition=MatchConditions.IfNotModified, **self._once)
        try:
            self._ask(f"delete of {key}", call, writes=True)
        except PreconditionFailedError:
            self._head(key)  # the condition also fails for a missing object
            raise

    async def _delete_all(self, keys: Sequence[str]) -> list[DeleteFailure]:
        answers = await self._container.delete_blobs(
            *[self._root + key for key in keys], raise_on_any_failure=False, **self._once
        )
        statuses = [answer.status_code async for answer in answers]
        return [
            DeleteFailure(key, str(status), status >= 500 or status == 429, status in (401, 403))
            for key, status in zip(keys, statuses, strict=True)
            if status not in (202, 404)
        ]

    def _send_part(self, upload: MarkedUpload, number: int, body: Body, crc: int) -> PartInfo:
        blob = self._blob(upload.key)
        block_id = _block_id(upload.upload_id, number, crc)
        data = b"".join(views_of(body))
        # Sending a large body whole would block all other requests.
        sent = io.BytesIO(data) if len(data) > SENT_BYTES else data
        self._ask(
            f"part {number} of {upload.key}",
            blob.stage_block(
                block_id, sent, length=len(data), validate_content=True, **self._scope(upload.key), **self._once
            ),
            writes=True,
            size_bytes=len(data),
        )
        return PartInfo(number, block_id, len(data), crc)

    def _parts(self, upload: MarkedUpload) -> Sequence[PartInfo]:
        call = self._blob(upload.key).get_block_list("uncommitted", **self._once)
        try:
            _, waiting = self._ask(f"parts of {upload.key}", call, writes=False)
        except NotFoundError:
            return ()
        blocks = [(*_of_block(block.id), block) for block in waiting]
        return [
            PartInfo(number, block.id, block.size, crc)
            for upload_id, number, crc, block in sorted(blocks, key=lambda each: each[1])
            if upload_id == upload.upload_id
        ]

    def _join(self, upload: MarkedUpload, parts: Sequence[PartInfo]) -> None:
        blocks = [BlobBlock(block_id=part.etag) for part in parts]
        how = {**self._scope(upload.key), **self._once}
        call = self._blob(upload.key).commit_block_list(blocks, metadata=_kept(upload.metadata), **how)
        self._ask(f"joining of {upload.key}", call, writes=True, size_bytes=len(parts) * 1024)

    def _drop(self, upload: MarkedUpload) -> None:
        """No effect: the service removes uncommitted blocks."""


def _require_range(what: str, answer: Any) -> None:
    """Refuse a range of a blob that doesn't begin at the requested offset. The library doesn't check the offset.

    Args:
        answer: the library's response to each request of a download.
    """
    asked = _RANGE.match(answer.http_request.headers.get("x-ms-range", ""))
    if asked is not None and answer.http_response.status_code == 206:
        found = answer.http_response.headers.get("Content-Range", "")
        require_start(what, ByteRange(int(asked[1]), int(asked[2]) + 1), found)


def _condition(mode: PutMode) -> dict[str, Any]:
    if mode.create_only:
        return {"etag": "*", "match_condition": MatchConditions.IfMissing}
    return {} if mode.etag is None else {"etag": mode.etag, "match_condition": MatchConditions.IfNotModified}


def _kept(metadata: Mapping[str, str]) -> dict[str, str]:
    """Metadata under names that Azure accepts. All other metadata is packed under one name."""
    plain = {name: value for name, value in metadata.items() if _NAME.fullmatch(name) and value and name != _OTHERS}
    others = {name: value for name, value in metadata.items() if name not in plain}
    if others:
        plain[_OTHERS] = base64.b64encode(json.dumps(others, sort_keys=True).encode()).decode()
    return plain


def _described(key: str, found: Any) -> ObjectInfo:
    metadata = {name.lower(): value for name, value in (found.metadata or {}).items()}
    crc = metadata.pop(_CRC, None)
    others = metadata.pop(_OTHERS, None)
    if others:
        metadata |= json.loads(base64.b64decode(others))
    return ObjectInfo(
        key,
        int(found.size),
        _quoted(found.etag),
        int(found.last_modified.timestamp()) * 1000,
        metadata,
        int(crc, 16) if crc and re.fullmatch("[0-9a-f]{8}", crc) else None,
    )


def _quoted(etag: str) -> str:
    return etag if etag.startswith('"') else f'"{etag}"'


def _block_id(upload_id: str, number: int, crc: int) -> str:
    return base64.b64encode(_BLOCK_ID.pack(bytes.fromhex(upload_id), number, crc)).decode()


def _of_block(block_id: str) -> tuple[str, int, int]:
    """Upload, number and checksum of a block. Blocks of other programs get an upload id that offloader never uses."""
    with suppress(struct.error, ValueError):
        upload, number, crc = _BLOCK_ID.unpack(base64.b64decode(block_id))
        return upload.hex(), number, crc
    return "", 0, 0
