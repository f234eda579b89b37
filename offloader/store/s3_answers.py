"""What S3 says in headers and fields, as values.

Owns times, checksums and ETags in the forms that S3 gives them. Must never name the SDK or touch a connection.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

from formats.checksum import crc32c
from offloader.errors import NotFound, OutcomeUnknown, StoreUnavailable
from offloader.store.base import ByteRange, DeleteFailure, ObjectInfo, PartInfo
from offloader.store.s3_errors import meaning_of

__all__ = [
    "answered_ms",
    "checksum_of_parts",
    "completed_parts",
    "composite_crc32c",
    "composite_etag",
    "decoded_crc32c",
    "delete_failures",
    "encoded_crc32c",
    "is_aws",
    "listed_object",
    "object_info",
    "parsed_time",
    "received",
    "time_ms",
]

_MD5 = re.compile(r"[0-9a-f]{32}\Z")


def object_info(key: str, size_bytes: int, answer: Mapping[str, Any]) -> ObjectInfo:
    """What the answer to a HEAD or GET says about the object."""
    metadata = {name.lower(): value for name, value in answer.get("Metadata", {}).items()}
    # Of an object of parts the server keeps a sum over sums (and not every server marks it), which isn't the object's.
    whole = "-" not in answer["ETag"] or answer.get("ChecksumType") == "FULL_OBJECT"
    crc = decoded_crc32c(answer.get("ChecksumCRC32C")) if whole else None
    return ObjectInfo(key, size_bytes, answer["ETag"], time_ms(answer["LastModified"]), metadata, crc)


def received(
    what: str, key: str, byte_range: ByteRange | None, body: bytes, answer: Mapping[str, Any]
) -> tuple[bytes, ObjectInfo]:
    """Body and description of a GET's answer, when it is all that was asked for; else ``StoreUnavailable``."""
    expected = size_bytes = int(answer["ContentLength"])
    if len(body) == expected and byte_range is not None:
        if "ContentRange" not in answer:  # a server that knows no ranges sends all of it
            return body[byte_range.start : byte_range.stop], object_info(key, size_bytes, answer)
        size_bytes = int(answer["ContentRange"].rpartition("/")[2])
        expected = min(byte_range.stop, size_bytes) - byte_range.start
    if len(body) != expected:
        raise StoreUnavailable(f"{what}: {len(body)} bytes came instead of {expected}", hint="try again")
    return body, object_info(key, size_bytes, answer)


def listed_object(root_length: int, found: Mapping[str, Any]) -> ObjectInfo:
    """What a listing says about one object; the key loses its first ``root_length`` letters."""
    return ObjectInfo(found["Key"][root_length:], found["Size"], found["ETag"], time_ms(found["LastModified"]))


def completed_parts(parts: Sequence[PartInfo]) -> list[dict[str, object]]:
    """The parts as a completion names them: servers refuse one without the checksums that the upload began with."""
    return [
        {"PartNumber": part.number, "ETag": part.etag, "ChecksumCRC32C": encoded_crc32c(part.crc32c)} for part in parts
    ]


def delete_failures(root_length: int, errors: Sequence[Mapping[str, str]]) -> list[DeleteFailure]:
    """The keys that a delete names as not removed; one that wasn't there is removed."""
    failures = []
    for error in errors:
        code = error.get("Code", "")
        kind, _ = meaning_of(code, 200, writes=True)
        if kind is not NotFound:
            retryable = issubclass(kind, StoreUnavailable | OutcomeUnknown)
            failures.append(DeleteFailure(error["Key"][root_length:], f"{code}: {error.get('Message', '')}", retryable))
    return failures


def is_aws(endpoint_url: str) -> bool:
    """Whether the endpoint is Amazon's own."""
    host = urlsplit(endpoint_url).hostname or ""
    return host.endswith((".amazonaws.com", ".amazonaws.com.cn"))


def parsed_time(text: Any, otherwise: Callable[[Any], datetime]) -> datetime:
    """A time as listings have it, a thousand in a page; whatever isn't in that form is left to ``otherwise``.

    The SDK tries several forms and a parser for human beings: three quarters of what a listing costs.
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
    """The server's own time of the answer: it doesn't send the modification time of what it stored."""
    try:
        return time_ms(parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"]))
    except (KeyError, ValueError):
        return 0


def encoded_crc32c(crc: int) -> str:
    """A CRC-32C as S3 writes it: base64 of four bytes, big-endian."""
    return base64.b64encode(struct.pack(">I", crc)).decode()


def decoded_crc32c(text: str | None) -> int | None:
    """The value of such a text; ``None`` for no text, and for one that isn't four bytes."""
    try:
        return int(struct.unpack(">I", base64.b64decode(text or ""))[0])
    except (struct.error, binascii.Error):
        return None


def checksum_of_parts(answer: Mapping[str, Any]) -> str:
    """The CRC-32C over the parts' that an answer has, without their number; empty when it has none."""
    checksum: str = answer.get("ChecksumCRC32C", "")
    return checksum.partition("-")[0]


def composite_etag(parts: Sequence[PartInfo]) -> str:
    """The ETag of an object of parts where a part's ETag is its MD5, which isn't so everywhere."""
    digests = [part.etag.strip('"') for part in parts]
    if not all(_MD5.match(digest) for digest in digests):
        return ""
    whole = hashlib.md5(bytes.fromhex("".join(digests)), usedforsecurity=False).hexdigest()
    return f'"{whole}-{len(parts)}"'


def composite_crc32c(parts: Sequence[PartInfo]) -> str:
    """What S3 keeps for an object of parts: the CRC-32C over the parts' CRC-32Cs."""
    return encoded_crc32c(crc32c(struct.pack(f">{len(parts)}I", *(part.crc32c for part in parts))))
