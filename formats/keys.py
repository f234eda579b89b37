"""Object names: building and parsing every key of the bucket, and the uuids that prove their origin.

Owns the shapes of keys under a store's root. Must never list, read or write anything.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache
from uuid import UUID

from formats.errors import Inconsistent
from formats.object_metadata import check_object_version, object_metadata
from formats.stream_names import decode_stream, encode_stream

__all__ = [
    "ObjectKey",
    "boundary_key",
    "catalog_key",
    "catalog_prefix",
    "check_object_version",
    "checkpoint_key",
    "checkpoint_number",
    "data_key",
    "decode_stream",
    "encode_stream",
    "index_key",
    "is_segment_uuid_of",
    "manifest_prefix",
    "new_segment_uuid",
    "object_metadata",
    "parse_object_key",
    "record_key",
    "record_number",
    "stream_of_catalog_key",
    "stream_prefix",
]

_CATALOG = "_catalog/"
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_OBJECT = re.compile(rf"({_UUID.pattern})(?:-ledger-([0-9]{{1,19}}))?(-index)?")
_RECORD = re.compile(r"([0-9]{20})\.json")
_CHECKPOINT = re.compile(r"([0-9]{20})\.checkpoint\.parquet")
_LEDGER_ID_MAX = 2**63 - 1
_DIGEST_BITS = 58
_DIGEST_DOMAIN = b"offloader segment uuid 1"


@lru_cache(maxsize=4096)
def stream_prefix(stream: str) -> str:
    """What all keys of a stream begin with; empty for the stream ``""``, which is Pulsar's own layout."""
    return f"{encode_stream(stream)}/" if stream else ""


def data_key(stream: str, uuid: UUID, ledger_id: int | None = None) -> str:
    """Key of a data object: V2 without a ledger, V1 with one."""
    ledger = "" if ledger_id is None else f"-ledger-{ledger_id}"
    return f"{stream_prefix(stream)}{uuid}{ledger}"


def index_key(stream: str, uuid: UUID, ledger_id: int | None = None) -> str:
    """Key of the index object beside ``data_key``."""
    return f"{data_key(stream, uuid, ledger_id)}-index"


@dataclass(frozen=True, slots=True)
class ObjectKey:
    """What the name of a data or index object says. ``ledger_id`` is ``None`` in V2."""

    stream: str
    uuid: UUID
    ledger_id: int | None
    is_index: bool


def parse_object_key(key: str, stream: str) -> ObjectKey | None:
    """What a listed key of this stream is; ``None`` when it is no data or index object directly under the stream."""
    prefix = stream_prefix(stream)
    match = _OBJECT.fullmatch(key[len(prefix) :]) if key.startswith(prefix) else None
    if match is None:
        return None
    ledger_id = None if match[2] is None else int(match[2])
    if ledger_id is not None and (ledger_id > _LEDGER_ID_MAX or str(ledger_id) != match[2]):
        return None
    return ObjectKey(stream, UUID(match[1]), ledger_id, match[3] is not None)


def catalog_prefix() -> str:
    """What the keys of all catalogue entries begin with."""
    return _CATALOG


def catalog_key(stream: str) -> str:
    """Key of the tiny object that names a stream and its incarnation."""
    return f"{_CATALOG}{encode_stream(stream)}"


def stream_of_catalog_key(key: str) -> str:
    """The stream a catalogue entry is for; ``Inconsistent`` when the key is none."""
    if not key.startswith(_CATALOG):
        raise Inconsistent("not a catalogue key", expected=f"{_CATALOG}...", found=ascii(key))
    return decode_stream(key[len(_CATALOG) :])


def manifest_prefix(stream: str, incarnation: UUID) -> str:
    """What the keys of one incarnation's manifest begin with."""
    return f"{encode_stream(stream)}/manifest/{incarnation}/"


def record_key(stream: str, incarnation: UUID, number: int) -> str:
    """Key of manifest record ``number`` (20 digits, so that names sort like numbers)."""
    return f"{manifest_prefix(stream, incarnation)}{number:020d}.json"


def record_number(key: str) -> int | None:
    """The number in a record's key; ``None`` for any other key."""
    match = _RECORD.fullmatch(key.rpartition("/")[2])
    return None if match is None else int(match[1])


def checkpoint_key(stream: str, incarnation: UUID, number: int) -> str:
    """Key of the checkpoint after record ``number``."""
    return f"{manifest_prefix(stream, incarnation)}{number:020d}.checkpoint.parquet"


def checkpoint_number(key: str) -> int | None:
    """The number in a checkpoint's key; ``None`` for any other key."""
    match = _CHECKPOINT.fullmatch(key.rpartition("/")[2])
    return None if match is None else int(match[1])


def boundary_key(stream: str, incarnation: UUID) -> str:
    """Key of the object that says which records may be deleted."""
    return f"{manifest_prefix(stream, incarnation)}boundary"


def new_segment_uuid(incarnation: UUID, random_bits: int) -> UUID:
    """A version 8 uuid that proves which incarnation it was made for.

    A listing of unfinished uploads carries no metadata, so ownership must show in the key alone.
    Its 122 free bits are 64 random bits followed by the first 58 bits of
    SHA-256(``"offloader segment uuid 1"`` + incarnation, 16 bytes + the random bits, 8 bytes).

    Args:
        incarnation: of the stream.
        random_bits: 64 random bits, 0 <= bits < 2**64.
    """
    if not 0 <= random_bits < 2**64:
        raise Inconsistent("random bits of a segment uuid", expected="64 bits", found=random_bits)
    free = random_bits << _DIGEST_BITS | _digest(incarnation, random_bits)
    high, middle, low = free >> 74, free >> 62 & 0xFFF, free & (1 << 62) - 1
    return UUID(int=high << 80 | 8 << 76 | middle << 64 | 0b10 << 62 | low)


def is_segment_uuid_of(uuid: UUID, incarnation: UUID) -> bool:
    """Whether ``new_segment_uuid`` made this uuid for this incarnation."""
    number = uuid.int
    if number >> 76 & 0xF != 8 or number >> 62 & 0b11 != 0b10:
        return False
    free = number >> 80 << 74 | (number >> 64 & 0xFFF) << 62 | number & (1 << 62) - 1
    return free & (1 << _DIGEST_BITS) - 1 == _digest(incarnation, free >> _DIGEST_BITS)


def _digest(incarnation: UUID, random_bits: int) -> int:
    digest = hashlib.sha256(_DIGEST_DOMAIN + incarnation.bytes + random_bits.to_bytes(8, "big")).digest()
    return int.from_bytes(digest[:8], "big") >> 64 - _DIGEST_BITS
