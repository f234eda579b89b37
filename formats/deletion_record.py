"""What was deleted of a stream, and what is about to be: one object for each batch.

Owns their bytes and keys. Must never say whether the objects it names may go: the manifest does.

It is written below ``deleting/`` before the manifest says ``purged``, and below ``deleted/`` when the objects are gone.
So what a crash leaves between is known by name, also where no uuid proves whose it is (somebody else's objects that
were adopted with ownership).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import cast
from uuid import UUID

from formats.entries import Position
from formats.keys import stream_prefix
from formats.sealed_json import from_json, opened, sealed, to_json

__all__ = [
    "DELETION_FORMAT",
    "AwaitedReaders",
    "DeletedSegment",
    "DeletionRecord",
    "awaited_key",
    "awaited_number",
    "awaited_prefix",
    "decode_awaited",
    "decode_deletion",
    "deletion_key",
    "deletion_name",
    "deletion_prefix",
    "encode_awaited",
    "encode_deletion",
]

DELETION_FORMAT = 1
_NAME = re.compile(r"[0-9]{16}-[0-9a-f]{16}")
_NUMBER = re.compile(r"[0-9]{20}")
_SUFFIX = ".json"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedSegment:
    """One segment of a batch.

    Attributes:
        keys: of its objects; empty: they stay, only the manifest forgot them.
        first, last: its range; ``None``: it had none any more.
        object_bytes: of all its objects.
    """

    uuid: UUID
    keys: tuple[str, ...]
    first: Position | None
    last: Position | None
    entries: int
    object_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionRecord:
    """One batch.

    Attributes:
        name: of the object, in the order of time.
        action: ``purge`` or ``release``.
        by: who ran it.
        rule: why its segments may go.
        retire_record: the record that retired them; 0: none did.
        planned_ms: when it was written first, ms since 1970 UTC by the earlier clock.
        done_ms: when everything was gone; ``None``: not yet.
        attempts: how often deleting failed.
        tried_ms: when that was last, 0: never.
        problem: why the last attempt failed.
    """

    name: str
    stream: str
    incarnation: UUID
    action: str
    by: str
    rule: str
    retire_record: int
    segments: tuple[DeletedSegment, ...]
    planned_ms: int
    done_ms: int | None = None
    attempts: int = 0
    tried_ms: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class AwaitedReaders:
    """The leases that were there after record ``retire_record`` was durable: they are waited for, later ones aren't."""

    incarnation: UUID
    retire_record: int
    leases: tuple[UUID, ...]


def deletion_prefix(stream: str, *, done: bool) -> str:
    """What the keys of a stream's deletion records begin with: of those that are done, or of those under way."""
    return f"{stream_prefix(stream)}retention/{'deleted' if done else 'deleting'}/"


def deletion_key(stream: str, name: str, *, done: bool) -> str:
    """Key of one deletion record."""
    return f"{deletion_prefix(stream, done=done)}{name}{_SUFFIX}"


def deletion_name(key: str, stream: str, *, done: bool) -> str | None:
    """The name of the deletion record with a key; ``None`` for any other key. It begins with 16 digits: the time."""
    name = key.removeprefix(deletion_prefix(stream, done=done)).removesuffix(_SUFFIX)
    return name if _NAME.fullmatch(name) and deletion_key(stream, name, done=done) == key else None


def encode_deletion(record: DeletionRecord) -> bytes:
    """The bytes of a deletion record."""
    return sealed({"format": DELETION_FORMAT, **to_json(record)})


def decode_deletion(data: bytes, *, object_name: str = "") -> DeletionRecord:
    """The deletion record in ``data``; raises ``FormatError``."""
    return cast(DeletionRecord, from_json(DeletionRecord, opened(data, DELETION_FORMAT, object_name), object_name))


def awaited_prefix(stream: str) -> str:
    """What the keys of the lists of awaited readers begin with."""
    return f"{stream_prefix(stream)}retention/awaited/"


def awaited_key(stream: str, retire_record: int) -> str:
    """Key of the list of readers that the purge of a retirement waits for."""
    return f"{awaited_prefix(stream)}{retire_record:020d}{_SUFFIX}"


def awaited_number(key: str, stream: str) -> int | None:
    """The retire record that a key is for; ``None`` for any other key."""
    number = key.removeprefix(awaited_prefix(stream)).removesuffix(_SUFFIX)
    return int(number) if _NUMBER.fullmatch(number) and awaited_key(stream, int(number)) == key else None


def encode_awaited(awaited: AwaitedReaders) -> bytes:
    """The bytes of a list of awaited readers."""
    return sealed({"format": DELETION_FORMAT, **to_json(awaited)})


def decode_awaited(data: bytes, *, object_name: str = "") -> AwaitedReaders:
    """The list in ``data``; raises ``FormatError``."""
    return cast(AwaitedReaders, from_json(AwaitedReaders, opened(data, DELETION_FORMAT, object_name), object_name))
