"""User metadata of objects: the keys Pulsar writes and checks, and our own marker.

Owns those names and what their values may be. Must never decide what to do with an object.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from formats.errors import UnsupportedVersion
from formats.stream_names import encode_stream

__all__ = [
    "CONTENT_TYPE",
    "ObjectOwner",
    "Testimony",
    "check_object_version",
    "object_metadata",
    "object_owner",
    "object_testimony",
]

#: Content type we write for data and index; ignored on reading.
CONTENT_TYPE = "application/octet-stream"

_FORMAT_VERSION = "s3managedledgeroffloaderformatversion"
_SOFTWARE_VERSION = "s3managedledgeroffloadersoftwareversion"
_INCARNATION = "offloaderincarnation"
_EPOCH = "offloaderepoch"
_EPOCH_NONCE = "offloaderepochnonce"
_RECORD = "offloaderrecord"


@dataclass(frozen=True, slots=True)
class ObjectOwner:
    """Who wrote an object: the stream's incarnation and the writer's epoch."""

    incarnation: UUID
    epoch: int


@dataclass(frozen=True, slots=True)
class Testimony:
    """What an object tells of the manifest: the record that assigned it, or a later one of its epoch that assigned.

    Attributes:
        epoch_nonce: of the record that opened the epoch.
        record_id: of the record that assigned.
    """

    epoch_nonce: str
    record_id: int

    def as_metadata(self) -> dict[str, str]:
        """As user metadata of an object."""
        return {_EPOCH_NONCE: self.epoch_nonce, _RECORD: str(self.record_id)}


def object_metadata(
    *,
    role: Literal["data", "index"],
    stream: str,
    format_version: int,
    software_version: str,
    incarnation: UUID,
    epoch: int,
    testimony: Testimony | None = None,
) -> dict[str, str]:
    """The user metadata of an object that this project writes.

    Args:
        role: what the object is.
        stream: the stream's name; written percent-encoded, because metadata is ASCII. Empty: not known, not written
            (objects at the store's root, in Pulsar's own layout).
        format_version: 1, or 2 when a block is compressed (Pulsar refuses 2 when it opens the object).
        software_version: of this project.
        incarnation: of the stream.
        epoch: of the writer.
        testimony: of the record that assigned the segment; ``None``: not written.
    """
    return {
        "role": role,
        **({"managedledgername": encode_stream(stream)} if stream else {}),
        _FORMAT_VERSION: str(format_version),
        _SOFTWARE_VERSION: software_version,
        _INCARNATION: str(incarnation),
        _EPOCH: str(epoch),
        **({} if testimony is None else testimony.as_metadata()),
    }


def check_object_version(metadata: Mapping[str, str], object_name: str) -> int:
    """The object's format version, 1 or 2; ``UnsupportedVersion`` when it is missing or another."""
    found = _lower(metadata).get(_FORMAT_VERSION)
    if found not in ("1", "2"):
        raise UnsupportedVersion("invalid object version", object_name=object_name, expected="1 or 2", found=found)
    return int(found)


def object_owner(metadata: Mapping[str, str]) -> ObjectOwner | None:
    """Who wrote the object; ``None`` when it carries no marker of ours, or a damaged one."""
    values = _lower(metadata)
    try:
        return ObjectOwner(UUID(values[_INCARNATION]), int(values[_EPOCH]))
    except (KeyError, ValueError):
        return None


def object_testimony(metadata: Mapping[str, str]) -> Testimony | None:
    """Which record assigned the object; ``None`` when it doesn't say, or not in our words."""
    values = _lower(metadata)
    try:
        return Testimony(values[_EPOCH_NONCE], int(values[_RECORD]))
    except (KeyError, ValueError):
        return None


def _lower(metadata: Mapping[str, str]) -> dict[str, str]:
    # Stores differ in how they give back the case of metadata names.
    return {name.lower(): value for name, value in metadata.items()}
