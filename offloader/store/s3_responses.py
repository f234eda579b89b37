"""Meaning of S3's responses and error codes, and S3's checksums. Imports no SDK: stores of other clouds use it too."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

from formats.checksum import crc32c
from formats.entries import views_of
from offloader.errors import (
    AccessDeniedError,
    BucketMissingError,
    InvalidCallError,
    NotFoundError,
    OffloaderError,
    OutcomeUnknownError,
    OverloadedError,
    PreconditionFailedError,
    StoreUnavailableError,
    ThrottledError,
    UnsupportedError,
)
from offloader.store.base import Body, ByteRange, ObjectInfo, PartInfo

_REGION = "check --region and --endpoint-url: the bucket is in another region"
_AGAIN = "try again"
#: Hint of a request that the server denies to these credentials.
DENIED = "check the credentials and the bucket's policy"
_LOOK = "check the object before repeating the request"
#: The only code by which S3 states that it didn't start a request. MinIO's SlowDownWrite doesn't state that: a server
#: also sends it after writing to some of its disks.
_NOT_BEGUN = "SlowDown"

#: Class and hint of an error -> the codes that mean it.
_MEANINGS: dict[tuple[type[OffloaderError], str], tuple[str, ...]] = {
    (NotFoundError, ""): ("NoSuchKey",),
    (NotFoundError, "the upload was completed or aborted"): ("NoSuchUpload",),
    (BucketMissingError, "create the bucket, or check its name and --endpoint-url"): ("NoSuchBucket",),
    (PreconditionFailedError, ""): ("PreconditionFailed",),
    (AccessDeniedError, DENIED): (
        "AccessDenied",
        "AllAccessDisabled",
        "AccountProblem",
        "Forbidden",
    ),
    (AccessDeniedError, "check the credentials: environment, profile, or access_key and secret_key"): (
        "InvalidAccessKeyId",
    ),
    (
        AccessDeniedError,
        "check the credentials (the secret key), this machine's clock, and whether a proxy changes requests",
    ): ("SignatureDoesNotMatch",),
    (AccessDeniedError, "the session has expired: get new credentials"): ("ExpiredToken", "TokenRefreshRequired"),
    (AccessDeniedError, "the session isn't valid: get new credentials"): ("InvalidToken", "InvalidTokenId"),
    (AccessDeniedError, "set this machine's clock"): ("RequestTimeTooSkewed", "RequestExpired"),
    (ThrottledError, _AGAIN): (
        "SlowDown",
        "SlowDownRead",
        "SlowDownWrite",
        "ServiceUnavailable",
        "Throttling",
        "ThrottlingException",
        "RequestThrottled",
        "RequestLimitExceeded",
        "TooManyRequests",
        "BandwidthLimitExceeded",
    ),
    # The first two report racing conditional writes: none was confirmed, and a retry decides. The others report an
    # incomplete body; nothing was stored.
    (StoreUnavailableError, _AGAIN): (
        "ConditionalRequestConflict",
        "OperationAborted",
        "RequestTimeout",
        "IncompleteBody",
    ),
    (StoreUnavailableError, "the body was damaged in transit: try again"): (
        "BadDigest",
        "XAmzContentChecksumMismatch",
        "XAmzContentSHA256Mismatch",
    ),
    (StoreUnavailableError, "the server is starting: try again"): ("XMinioServerNotInitialized",),
    (StoreUnavailableError, "free space on the server"): ("XMinioStorageFull", "InsufficientCapacity"),
    (InvalidCallError, _REGION): (
        "PermanentRedirect",
        "AuthorizationHeaderMalformed",
        "IllegalLocationConstraintException",
    ),
    (StoreUnavailableError, _REGION): ("TemporaryRedirect",),
    (InvalidCallError, "check the bucket's name"): ("InvalidBucketName",),
    (InvalidCallError, "raise part_size: every part except the last must have at least 5 MiB"): ("EntityTooSmall",),
    (InvalidCallError, "upload the object in parts: it exceeds the server's limit for one request"): (
        "EntityTooLarge",
    ),
    (InvalidCallError, "a part is missing or differs from the uploaded one: upload it again"): ("InvalidPart",),
    (InvalidCallError, "pass the parts in order"): ("InvalidPartOrder",),
    (UnsupportedError, "this server can't store an object below the key of another object"): (
        "ObjectParentIsFile",
        "XMinioParentIsObject",
        "XMinioObjectExistsAsDirectory",
    ),
    (InvalidCallError, "check store.storage_class: the server may not have this class"): ("InvalidStorageClass",),
    (InvalidCallError, "check store.encryption: the server may not support it"): ("InvalidEncryptionAlgorithmError",),
    (UnsupportedError, "the object is in an archive class: restore it, then repeat the request"): (
        "InvalidObjectState",
    ),
    (InvalidCallError, "check store.kms_key and its region"): ("KMS.NotFoundException",),
    (AccessDeniedError, "enable the KMS key of the objects"): (
        "KMS.DisabledException",
        "KMS.KMSInvalidStateException",
    ),
    (UnsupportedError, "the server doesn't support this request"): ("NotImplemented", "MethodNotAllowed"),
}
_CODES = {code: meaning for meaning, codes in _MEANINGS.items() for code in codes}

_STATUSES: dict[int, tuple[type[OffloaderError], str]] = {
    301: _CODES["PermanentRedirect"],
    307: _CODES["TemporaryRedirect"],
    401: _CODES["InvalidAccessKeyId"],
    403: _CODES["AccessDenied"],
    404: _CODES["NoSuchKey"],
    408: _CODES["RequestTimeout"],
    412: _CODES["PreconditionFailed"],
    429: _CODES["TooManyRequests"],
    501: _CODES["NotImplemented"],
    503: _CODES["ServiceUnavailable"],
    507: _CODES["InsufficientCapacity"],
}


def meaning_of(code: str, status: int, *, writes: bool) -> tuple[type[OffloaderError], str]:
    """Error class and hint for an error response.

    A gateway may send 503 or 507 after it forwarded a request, and so may a server that aborts halfway. The outcome of
    a write is therefore unknown after every retriable 5xx except ``SlowDown``.

    Args:
        code: the ``Code`` of the response's body, or the SDK's text of the status if the body has none.
        status: HTTP status; 200 for an error inside the body of a success.
        writes: whether the request is a write.
    """
    is_server_error = status >= 500 or status < 300
    kind, hint = (
        _CODES.get(code)
        or _STATUSES.get(status)
        or (
            (StoreUnavailableError, _AGAIN) if is_server_error else (InvalidCallError, "the server refused the request")
        )
    )
    if not (writes and is_server_error and issubclass(kind, StoreUnavailableError)) or code == _NOT_BEGUN:
        return kind, hint
    if issubclass(kind, ThrottledError):
        return OverloadedError, _LOOK
    return OutcomeUnknownError, _LOOK if hint == _AGAIN else f"{hint}; {_LOOK}"


_MD5 = re.compile(r"[0-9a-f]{32}\Z")
_PLACE = re.compile(r"bytes (\d{1,19})-\d{1,19}/(\d{1,19})\Z")


def object_info(key: str, size_bytes: int, answer: Mapping[str, Any]) -> ObjectInfo:
    """Object description from the response to a HEAD or GET."""
    metadata = {name.lower(): value for name, value in answer.get("Metadata", {}).items()}
    # A multipart object has a checksum of checksums, which not every server marks as such.
    whole = "-" not in answer["ETag"] or answer.get("ChecksumType") == "FULL_OBJECT"
    return ObjectInfo(
        key,
        size_bytes,
        answer["ETag"],
        time_ms(answer["LastModified"]),
        metadata,
        decoded_crc32c(answer.get("ChecksumCRC32C")) if whole else None,
    )


def place_of(content_range: str) -> tuple[int, int]:
    """Offset of a response's body in the object, and the object's size, from the response's ``Content-Range``.

    Raises:
        StoreUnavailableError: the header is missing or incomplete.
    """
    found = _PLACE.match(content_range)
    if found is None:
        raise StoreUnavailableError(f"partial response with an invalid Content-Range: {content_range!r}", hint=_AGAIN)
    return int(found[1]), int(found[2])


def require_start(what: str, byte_range: ByteRange, content_range: str) -> None:
    """Raise ``StoreUnavailableError`` for a body that doesn't begin at the requested offset."""
    if place_of(content_range)[0] != byte_range.start:
        raise StoreUnavailableError(
            f"{what}: the response has {content_range}, expected bytes from {byte_range.start}", hint=_AGAIN
        )


def received(
    what: str, key: str, byte_range: ByteRange | None, body: bytes, answer: Mapping[str, Any]
) -> tuple[bytes, ObjectInfo]:
    """Body and description of a GET's response, if complete; else ``StoreUnavailableError``."""
    expected = size_bytes = int(answer["ContentLength"])
    if len(body) == expected and byte_range is not None:
        if "ContentRange" not in answer:  # a server that ignores ranges sends the whole object
            return body[byte_range.start : byte_range.stop], object_info(key, size_bytes, answer)
        require_start(what, byte_range, answer["ContentRange"])
        _, size_bytes = place_of(answer["ContentRange"])
        expected = min(byte_range.stop, size_bytes) - byte_range.start
    if len(body) != expected:
        raise StoreUnavailableError(f"{what}: received {len(body)} bytes, expected {expected}", hint="try again")
    return body, object_info(key, size_bytes, answer)


def is_aws(endpoint_url: str) -> bool:
    """Whether the endpoint is Amazon's own."""
    return (urlsplit(endpoint_url).hostname or "").endswith((".amazonaws.com", ".amazonaws.com.cn"))


def parsed_time(text: Any, otherwise: Callable[[Any], datetime]) -> datetime:
    """Parse a time in the listing format; other formats fall back to ``otherwise``.

    The SDK's parser, which tries several formats, takes three quarters of a listing's time.
    """
    try:
        found = datetime.fromisoformat(text)
    except (ValueError, TypeError):
        return otherwise(text)
    return found if found.tzinfo is not None else otherwise(text)


def time_ms(time: datetime) -> int:
    """Milliseconds since 1970 UTC."""
    return int(time.timestamp() * 1000)


def answered_ms(answer: Mapping[str, Any]) -> int:
    """The response's server time. S3's response to a write doesn't contain the object's modification time."""
    with suppress(KeyError, ValueError):
        return time_ms(parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"]))
    return 0


def encoded_crc32c(crc: int) -> str:
    """A CRC-32C in S3's encoding: base64 of four bytes, big-endian."""
    return base64.b64encode(struct.pack(">I", crc)).decode()


def encoded_md5(body: Body) -> str:
    """The ``Content-MD5`` of a body."""
    digest = hashlib.md5(usedforsecurity=False)
    for piece in views_of(body):
        digest.update(piece)
    return base64.b64encode(digest.digest()).decode()


def decoded_crc32c(text: str | None) -> int | None:
    """Decode a CRC-32C in S3's encoding; ``None`` if it is missing or doesn't have four bytes."""
    with suppress(struct.error, binascii.Error):
        return int(struct.unpack(">I", base64.b64decode(text or ""))[0])
    return None


def checksum_of_parts(answer: Mapping[str, Any]) -> str:
    """The response's CRC-32C over the parts' checksums, without the number of parts; empty if absent."""
    checksum: str = answer.get("ChecksumCRC32C", "")
    return checksum.partition("-")[0]


def composite_etag(parts: Sequence[PartInfo]) -> str:
    """ETag of a multipart object on servers where a part's ETag is its MD5."""
    digests = [part.etag.strip('"') for part in parts]
    if not all(_MD5.match(digest) for digest in digests):
        return ""
    whole = hashlib.md5(bytes.fromhex("".join(digests)), usedforsecurity=False).hexdigest()
    return f'"{whole}-{len(parts)}"'


def composite_crc32c(parts: Sequence[PartInfo]) -> str:
    """S3's checksum of a multipart object: the CRC-32C over the parts' CRC-32Cs."""
    return encoded_crc32c(crc32c(struct.pack(f">{len(parts)}I", *(part.crc32c for part in parts))))
