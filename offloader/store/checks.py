"""Argument checks common to all stores, and the base class that runs them before a call has an effect."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Protocol

from formats.checksum import crc32c
from formats.entries import views_of
from offloader.errors import (
    InvalidCallError,
    NotFoundError,
    OutcomeUnknownError,
    PreconditionFailedError,
    UnsupportedError,
)
from offloader.store.base import (
    OVERWRITE,
    Body,
    ByteRange,
    DeleteFailure,
    IfMatch,
    ListPage,
    ObjectInfo,
    ObjectStore,
    PartInfo,
    PutMode,
    Sink,
    UploadInfo,
)

#: Longest key, root included, in UTF-8 bytes (S3's limit).
KEY_BYTES_MAX = 1024
#: Keys and values of one object's user metadata together (S3's limit).
METADATA_BYTES_MAX = 2048
#: Parts of one upload (S3's limit).
PARTS_MAX = 10_000
#: Hint of an error whose outcome is unknown.
COMPLETED_HINT = "check the object with head: an earlier attempt may have completed the upload"
#: Seconds for which a signed URL may be valid (S3's and Google's limit).
SIGNED_SECONDS_MAX = 7 * 24 * 3600

#: Fast check that most keys pass: printable ASCII, no level empty or beginning with a dot. Other keys are checked rule
#: by rule.
_PLAIN_KEY = re.compile(r"[\x20-\x2D0-~][\x20-\x2E0-~]*(?:/[\x20-\x2D0-~][\x20-\x2E0-~]*)*")
_METADATA_KEY = re.compile(r"[a-z0-9!#$&'*+.^_`|~-]+\Z")
_METADATA_VALUE = re.compile(r"(?:[!-~](?:[ -~]*[!-~])?)?\Z")


class _Verbs(Protocol):
    """Verbs that a store implements. Arguments are checked: lower-case metadata keys, ``crc`` is the body's CRC-32C."""

    def _head(self, key: str) -> ObjectInfo: ...
    def _get(self, key: str, byte_range: ByteRange | None, into: Sink | None) -> tuple[bytes, ObjectInfo]: ...
    def _put(self, key: str, body: Body, mode: PutMode, metadata: Mapping[str, str], crc: int) -> ObjectInfo: ...
    def _list(self, prefix: str, after: str, limit: int) -> ListPage: ...
    def _delete(self, keys: Sequence[str]) -> Sequence[DeleteFailure]: ...
    def _delete_if_match(self, key: str, etag: str) -> None: ...
    def _begin_upload(self, key: str, metadata: Mapping[str, str]) -> str: ...
    def _upload_part(self, key: str, upload_id: str, number: int, body: Body, crc: int) -> PartInfo: ...
    def _complete_upload(self, key: str, upload_id: str, parts: Sequence[PartInfo]) -> ObjectInfo: ...
    def _abort_upload(self, key: str, upload_id: str) -> None: ...
    def _list_uploads(self, prefix: str) -> Sequence[UploadInfo]: ...
    def _list_parts(self, key: str, upload_id: str) -> Sequence[PartInfo]: ...


class CheckedStore(_Verbs):
    """The verbs of ``ObjectStore``: check the arguments, then call the subclass's verb, whose name begins with ``_``.

    Keys are relative to ``_root``, which is empty or ends with a slash.
    """

    def __init__(
        self, url: str, root: str, *, driver: str, bucket: str, region: str = "", endpoint_url: str = ""
    ) -> None:
        self.url = url
        self.driver_metadata: Mapping[str, str] = {
            "managedLedgerOffloadDriver": driver,
            "bucket": bucket,
            "region": region,
            "serviceEndpoint": endpoint_url,
        }
        self._root = root

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def _checked_key(self, key: str) -> str:
        """Return the key, or refuse one that some store can't hold: empty, absolute, with an empty level, ``.``, ``..``
        or a control character, too long, or not UTF-8."""
        problem = _key_problem(self._root + key) if key else "the key is empty"
        if problem:
            raise InvalidCallError(f"invalid key {key!r}: {problem}", hint="use names separated by single slashes")
        return key

    def head(self, key: str) -> ObjectInfo:
        return self._head(self._checked_key(key))

    def get(
        self, key: str, byte_range: ByteRange | None = None, *, into: Sink | None = None
    ) -> tuple[bytes, ObjectInfo]:
        if byte_range is not None and not 0 <= byte_range.start <= byte_range.stop:
            raise InvalidCallError(
                f"invalid byte range {byte_range.start} to {byte_range.stop}", hint="use 0 <= start <= stop"
            )
        if byte_range is not None and byte_range.length == 0:
            return b"", self._head(self._checked_key(key))
        return self._get(self._checked_key(key), byte_range, into)

    def put(
        self,
        key: str,
        body: Body,
        *,
        mode: PutMode = OVERWRITE,
        metadata: Mapping[str, str] | None = None,
        crc32c: int | None = None,
    ) -> ObjectInfo:
        _check_mode(mode)
        return self._put(
            self._checked_key(key), body, mode, _checked_metadata(metadata), body_crc32c(key, body, crc32c)
        )

    def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> ListPage:
        _check_prefix(prefix)
        if limit < 1:
            raise InvalidCallError(f"invalid limit {limit} of a listing", hint="use a limit of at least 1")
        return self._list(prefix, after, limit)

    def delete(self, keys: Sequence[str]) -> Sequence[DeleteFailure]:
        if isinstance(keys, str):  # also a sequence of strings
            raise InvalidCallError(f"delete requires a list of keys, not the string {keys!r}", hint="pass [key]")
        unique = list(map(self._checked_key, dict.fromkeys(keys)))
        return self._delete(unique) if unique else ()

    def delete_if_match(self, key: str, etag: str) -> None:
        _check_mode(IfMatch(etag))
        self._delete_if_match(self._checked_key(key), etag)

    def begin_upload(self, key: str, *, metadata: Mapping[str, str] | None = None) -> str:
        return self._begin_upload(self._checked_key(key), _checked_metadata(metadata))

    def upload_part(self, key: str, upload_id: str, number: int, body: Body, *, crc32c: int | None = None) -> PartInfo:
        if not 1 <= number <= PARTS_MAX:
            raise InvalidCallError(f"part number {number} is not between 1 and {PARTS_MAX}", hint="use larger parts")
        return self._upload_part(self._checked_key(key), upload_id, number, body, self._part_crc32c(key, body, crc32c))

    def _part_crc32c(self, key: str, body: Body, given: int | None) -> int:
        """CRC-32C of a part, compared with the given one. A store that compares it elsewhere overrides this."""
        return body_crc32c(key, body, given)

    def complete_upload(self, key: str, upload_id: str, parts: Sequence[PartInfo]) -> ObjectInfo:
        numbers = [part.number for part in parts]
        if not numbers:
            raise InvalidCallError(
                f"an upload of {key} can't be completed without parts", hint="use put for an empty object"
            )
        if any(after <= before for before, after in pairwise(numbers)):
            raise InvalidCallError(
                f"part numbers of {key} aren't ascending: {numbers[:20]}", hint="pass each part once, in order"
            )
        return self._complete_upload(self._checked_key(key), upload_id, parts)

    def abort_upload(self, key: str, upload_id: str) -> None:
        self._abort_upload(self._checked_key(key), upload_id)

    def list_uploads(self, prefix: str) -> Sequence[UploadInfo]:
        _check_prefix(prefix)
        return self._list_uploads(prefix)

    def list_parts(self, key: str, upload_id: str) -> Sequence[PartInfo]:
        return self._list_parts(self._checked_key(key), upload_id)

    def signed_url(self, key: str, expires_s: float) -> str | None:
        if not 1 <= expires_s <= SIGNED_SECONDS_MAX:
            raise InvalidCallError(
                f"a signed URL of {key} can't be valid for {expires_s} s", hint=f"use 1 to {SIGNED_SECONDS_MAX} seconds"
            )
        return self._signed_url(self._checked_key(key), expires_s)

    def _signed_url(self, key: str, expires_s: float) -> str | None:  # noqa: ARG002
        """Default for stores without signed URLs."""
        return None

    def close(self) -> None:
        """Default for stores that own no connection or open file between calls."""


def _key_problem(key: str) -> str:
    if len(key) <= KEY_BYTES_MAX and _PLAIN_KEY.fullmatch(key):
        return ""
    try:
        if len(key.encode()) > KEY_BYTES_MAX:
            return f"the key is longer than {KEY_BYTES_MAX} bytes"
    except UnicodeEncodeError:
        return "the key can't be encoded in UTF-8"
    if any(level in ("", ".", "..") for level in key.split("/")):
        return "a level is empty, '.' or '..'"
    if not key.isprintable() and any(ord(letter) < 0x20 or ord(letter) == 0x7F for letter in key):
        return "the key contains control characters"
    return ""


def _check_prefix(prefix: str) -> None:
    """Refuse a prefix that no valid key begins with: a store on a file system must not follow ``../``."""
    if any(level in ("", ".", "..") for level in prefix.split("/")[:-1]):
        raise InvalidCallError(f"invalid prefix {prefix!r}", hint="use names separated by single slashes")


def _checked_metadata(metadata: Mapping[str, str] | None) -> dict[str, str]:
    """User metadata as every store accepts it: lower-case keys; printable ASCII values without outer spaces."""
    kept: dict[str, str] = {}
    for key, value in (metadata or {}).items():
        name = key.lower()
        if not _METADATA_KEY.match(name) or not _METADATA_VALUE.match(value):
            raise InvalidCallError(
                f"metadata {key!r} = {value!r} is not valid in an HTTP header", hint="percent-encode the value"
            )
        if name in kept:
            raise InvalidCallError(
                f"metadata {name!r} is given twice", hint="use keys that differ in more than upper and lower case"
            )
        kept[name] = value
    if sum(len(name) + len(value) for name, value in kept.items()) > METADATA_BYTES_MAX:
        raise InvalidCallError(
            f"metadata is longer than {METADATA_BYTES_MAX} bytes", hint="store it in the object's body"
        )
    return kept


def _check_mode(mode: PutMode) -> None:
    """Refuse a mode that is both create-only and conditional on an ETag, or conditional on an empty ETag."""
    if mode.etag is not None and (mode.create_only or not mode.etag):
        raise InvalidCallError(f"invalid mode {mode}", hint="use CREATE, OVERWRITE or IfMatch(etag)")


def body_crc32c(key: str, body: Body, given: int | None = None) -> int:
    """CRC-32C of ``body``; ``InvalidCallError`` if it differs from the caller's, because the bytes have changed
    since."""
    found = 0
    for piece in views_of(body):
        found = crc32c(piece, found)
    if given is not None and given != found:
        raise InvalidCallError(
            f"body of {key} has CRC-32C {found:#010x}, expected {given:#010x} from the caller",
            hint="don't change the bytes between computing the checksum and the put",
        )
    return found


def require_etag(store: ObjectStore, key: str, expected: str, found: str | None) -> None:
    """Raise ``PreconditionFailedError`` unless the object has the expected ETag; ``found`` is ``None`` without an
    object."""
    if found != expected:
        there = "doesn't exist" if found is None else f"has ETag {found}"
        raise PreconditionFailedError(f"{store.url}: {key} {there}, expected ETag {expected}")


@contextmanager
def completing() -> Iterator[None]:
    """Raise ``OutcomeUnknownError`` if a completion doesn't find its upload: an earlier attempt may have completed
    it."""
    try:
        yield
    except NotFoundError as gone:
        raise OutcomeUnknownError(gone.message, hint=COMPLETED_HINT) from gone


def split_root(url: str, path: str) -> str:
    """Key prefix of a URL's path: empty or ending with a slash."""
    root = path.strip("/")
    problem = _key_problem(root) if root else ""
    if problem:
        raise UnsupportedError(
            f"the path of {url} can't be a store's root: {problem}", hint="use names separated by single slashes"
        )
    return f"{root}/" if root else ""
