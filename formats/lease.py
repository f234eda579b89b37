"""A reader's lease: an object that says that somebody still needs what the manifest named when they began.

Owns its bytes and its key. Must never say when it ends: that is the object's modification time and ``seconds`` later,
by the store's clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast
from uuid import UUID

from formats.keys import stream_prefix
from formats.sealed_json import from_json, opened, sealed, to_json

__all__ = ["LEASE_FORMAT", "Lease", "decode_lease", "encode_lease", "lease_key", "lease_prefix", "lease_uuid"]

LEASE_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Lease:
    """Who reads, and for how long after the object was last written."""

    uuid: UUID
    stream: str
    reader: str
    seconds: int


def lease_prefix(stream: str) -> str:
    """What the keys of a stream's leases begin with."""
    return f"{stream_prefix(stream)}leases/"


def lease_key(stream: str, uuid: UUID) -> str:
    """Key of one lease."""
    return f"{lease_prefix(stream)}{uuid}"


def lease_uuid(key: str, stream: str) -> UUID | None:
    """The lease that a key is of; ``None`` for any other key."""
    name = key.removeprefix(lease_prefix(stream))
    try:
        found = UUID(name)
    except ValueError:
        return None
    return found if lease_key(stream, found) == key else None


def encode_lease(lease: Lease) -> bytes:
    """The bytes of a lease object."""
    return sealed({"format": LEASE_FORMAT, **to_json(lease)})


def decode_lease(data: bytes, *, object_name: str = "") -> Lease:
    """The lease in ``data``; raises ``FormatError``."""
    return cast(Lease, from_json(Lease, opened(data, LEASE_FORMAT, object_name), object_name))
