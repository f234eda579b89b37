"""Argument checks common to all stores: keys, ranges, metadata, checksums and parts.

Pure: run before a call has an effect and never access a store.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

from formats.checksum import crc32c
from formats.entries import views_of
from offloader.errors import InvalidCall, Unsupported
from offloader.store.base import Body, ByteRange, PartInfo, PutMode

__all__ = [
    "PARTS_MAX",
    "body_crc32c",
    "check_key",
    "check_keys",
    "check_list",
    "check_metadata",
    "check_mode",
    "check_part_number",
    "check_parts",
    "check_put",
    "check_range",
    "split_root",
]

#: Longest key, root included, in UTF-8 bytes (S3's limit).
KEY_BYTES_MAX = 1024
#: Keys and values of one object's user metadata together (S3's limit).
METADATA_BYTES_MAX = 2048
#: Parts of one upload (S3's limit).
PARTS_MAX = 10_000

#: Most keys: printable ASCII, no level empty or beginning with a dot. Others are checked rule by rule.
_PLAIN_KEY = re.compile(r"[\x20-\x2D0-~][\x20-\x2E0-~]*(?:/[\x20-\x2D0-~][\x20-\x2E0-~]*)*")
_METADATA_KEY = re.compile(r"[a-z0-9!#$&'*+.^_`|~-]+\Z")
_METADATA_VALUE = re.compile(r"(?:[!-~](?:[ -~]*[!-~])?)?\Z")


def check_key(key: str, *, root: str = "") -> str:
    """``root + key``, or ``InvalidCall`` for a key that some store can't hold: empty, absolute, with an empty level,
    ``.``, ``..`` or a control character, too long, not UTF-8."""
    problem = _key_problem(root + key) if key else "it is empty"
    if problem:
        raise InvalidCall(f"key {key!r} can't be used: {problem}", hint="keys are names separated by single slashes")
    return root + key


def _key_problem(key: str) -> str:
    if len(key) <= KEY_BYTES_MAX and _PLAIN_KEY.fullmatch(key):
        return ""
    try:
        if len(key.encode()) > KEY_BYTES_MAX:
            return f"it is longer than {KEY_BYTES_MAX} bytes"
    except UnicodeEncodeError:
        return "it isn't text that UTF-8 can hold"
    if any(level in ("", ".", "..") for level in key.split("/")):
        return "a level of it is empty, '.' or '..'"
    if not key.isprintable() and any(ord(letter) < 0x20 or ord(letter) == 0x7F for letter in key):
        return "it has control characters"
    return ""


def check_keys(keys: Sequence[str], *, root: str = "") -> list[str]:
    """``check_key`` for each, without duplicates; a single string (a sequence of letters) is refused."""
    if isinstance(keys, str):
        raise InvalidCall(f"delete takes a list of keys, not the text {keys!r}", hint="give [key]")
    return list(dict.fromkeys(check_key(key, root=root) for key in keys))


def check_list(prefix: str, limit: int) -> None:
    """Refuse a prefix that no key can have (a store on a file system must not follow ``../``), or a limit below one."""
    if any(level in ("", ".", "..") for level in prefix.split("/")[:-1]):
        raise InvalidCall(f"no key begins with {prefix!r}", hint="keys are names separated by single slashes")
    if limit < 1:
        raise InvalidCall(f"a listing of {limit} objects was asked for", hint="limit is at least 1")


def check_metadata(metadata: Mapping[str, str] | None) -> dict[str, str]:
    """User metadata as every store accepts it: lower-case keys; printable ASCII values without outer spaces."""
    kept: dict[str, str] = {}
    for key, value in (metadata or {}).items():
        name = key.lower()
        if not _METADATA_KEY.match(name) or not _METADATA_VALUE.match(value):
            raise InvalidCall(f"metadata {key!r} = {value!r} can't travel in an HTTP header", hint="percent-encode it")
        if name in kept:
            raise InvalidCall(f"metadata {name!r} is given twice", hint="keys differ in more than upper and lower case")
        kept[name] = value
    if sum(len(name) + len(value) for name, value in kept.items()) > METADATA_BYTES_MAX:
        raise InvalidCall(f"metadata is longer than {METADATA_BYTES_MAX} bytes", hint="put it into the object")
    return kept


def check_mode(mode: PutMode) -> None:
    """Refuse a mode that is create-only and conditional on an ETag at once, or on an empty ETag."""
    if mode.etag is not None and (mode.create_only or not mode.etag):
        raise InvalidCall(f"{mode} can't be satisfied", hint="use CREATE, OVERWRITE or IfMatch(etag)")


def check_put(
    key: str,
    body: Body,
    mode: PutMode,
    metadata: Mapping[str, str] | None,
    given_crc32c: int | None,
    *,
    root: str = "",
) -> tuple[str, dict[str, str], int]:
    """Checks of every ``put``: returns ``root + key``, the normalised metadata and the body's CRC-32C."""
    full_key = check_key(key, root=root)
    check_mode(mode)
    return full_key, check_metadata(metadata), body_crc32c(key, body, given_crc32c)


def check_range(byte_range: ByteRange | None) -> None:
    """Refuse a range with a negative start or an end before its start."""
    if byte_range is not None and not 0 <= byte_range.start <= byte_range.stop:
        raise InvalidCall(f"bytes {byte_range.start} to {byte_range.stop} are no range", hint="0 <= start <= stop")


def check_part_number(number: int) -> None:
    """Refuse part numbers outside 1 .. ``PARTS_MAX``."""
    if not 1 <= number <= PARTS_MAX:
        raise InvalidCall(f"part number {number} is not between 1 and {PARTS_MAX}", hint="use larger parts")


def check_parts(key: str, parts: Sequence[PartInfo]) -> None:
    """Refuse a completion without parts, or with parts that don't ascend."""
    numbers = [part.number for part in parts]
    if not numbers:
        raise InvalidCall(f"upload of {key} can't be completed without parts", hint="an empty object is one put")
    if any(after <= before for before, after in pairwise(numbers)):
        raise InvalidCall(f"parts of {key} don't ascend: {numbers[:20]}", hint="pass them in order, each once")


def body_crc32c(key: str, body: Body, given: int | None) -> int:
    """CRC-32C of ``body``; ``InvalidCall`` if it differs from the caller's (the bytes changed since)."""
    found = 0
    for piece in views_of(body):
        found = crc32c(piece, found)
    if given is not None and given != found:
        raise InvalidCall(
            f"body of {key} has CRC-32C {found:#010x}, the caller says {given:#010x}",
            hint="the bytes were changed between the checksum and the put",
        )
    return found


def split_root(url: str, path: str) -> str:
    """Key prefix of a URL's path: empty or ending with a slash."""
    root = path.strip("/")
    if not root:
        return ""
    problem = _key_problem(root)
    if problem:
        raise Unsupported(
            f"the path of {url} can't be a root: {problem}", hint="use plain names between single slashes"
        )
    return root + "/"
