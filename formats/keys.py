"""Object keys, encoded stream names and the user metadata of objects."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal
from urllib.parse import quote, unquote
from uuid import UUID

from formats.errors import InconsistentError, UnsupportedVersionError

#: Levels that a stream name can't have: they are folders of the stream itself.
RESERVED_LEVELS = frozenset({"manifest", "retention", "leases"})
#: First level that a stream name can't have: the folder that a local store keeps beside its objects.
RESERVED_FIRST_LEVEL = ".offloader"
#: File systems' limit of a name.
LEVEL_BYTES_MAX = 255
#: S3's limit of a key is 1,024 bytes; the rest is for what follows the stream's name.
STREAM_BYTES_MAX = 800
#: Every key begins with a name, and a process uses few of them.
_NAMES_CACHED = 4096


@lru_cache(_NAMES_CACHED)
def encode_stream(stream: str) -> str:
    """A stream's name as the prefix of its keys: levels between ``/``, each percent-encoded.

    Letters, digits and ``_ . - ~`` aren't encoded, so Pulsar's names are unchanged; a level of dots only is encoded
    too, because
    it is special in file systems.

    Raises:
        InconsistentError: an empty name or level, a reserved level, a first level that begins with ``_`` or is
            ``.offloader``, a name that is too long or isn't text (spec: names of streams).
    """
    levels = stream.split("/")
    encoded = "/".join(_encode_level(stream, level) for level in levels)
    if levels[0].startswith("_"):
        raise _bad_stream(stream, "a first level that doesn't begin with _", levels[0])
    if levels[0] == RESERVED_FIRST_LEVEL:
        raise _bad_stream(stream, f"a first level other than {RESERVED_FIRST_LEVEL}", levels[0])
    if len(encoded) > STREAM_BYTES_MAX:
        raise _bad_stream(stream, f"at most {STREAM_BYTES_MAX} bytes when encoded", len(encoded))
    return encoded


def levels_above(stream: str) -> list[str]:
    """The names above a stream's: their keys would overlap its own, so only one of two such streams can exist."""
    levels = stream.split("/")
    return ["/".join(levels[:count]) for count in range(1, len(levels))]


def _encode_level(stream: str, level: str) -> str:
    if not level:
        raise _bad_stream(stream, "levels that aren't empty, separated by /", "an empty level")
    if level in RESERVED_LEVELS:
        raise _bad_stream(stream, f"no level named {', '.join(sorted(RESERVED_LEVELS))}", level)
    try:
        encoded = quote(level, safe="")
    except UnicodeEncodeError as cause:
        raise _bad_stream(stream, "text", "a lone surrogate") from cause
    if not level.strip("."):
        encoded = encoded.replace(".", "%2E")
    if len(encoded) > LEVEL_BYTES_MAX:
        raise _bad_stream(stream, f"levels of at most {LEVEL_BYTES_MAX} bytes when encoded", len(encoded))
    return encoded


def _bad_stream(stream: str, expected: str, found: object) -> InconsistentError:
    shown = ascii(stream if len(stream) <= 100 else stream[:100] + "...")
    return InconsistentError(f"stream name {shown} can't be used", expected=expected, found=found)


def decode_stream(encoded: str) -> str:
    """The stream whose ``encode_stream`` is ``encoded``; ``InconsistentError`` when there is none."""
    try:
        stream = "/".join(unquote(level, errors="strict") for level in encoded.split("/"))
    except UnicodeDecodeError as cause:
        raise InconsistentError("not an encoded stream name", expected="UTF-8", found=ascii(encoded)) from cause
    if encode_stream(stream) != encoded:
        raise InconsistentError("not an encoded stream name", expected=encode_stream(stream), found=ascii(encoded))
    return stream


#: Content type of written data and index objects; ignored on reading.
CONTENT_TYPE = "application/octet-stream"

_FORMAT_VERSION = "s3managedledgeroffloaderformatversion"
_SOFTWARE_VERSION = "s3managedledgeroffloadersoftwareversion"
_INCARNATION = "offloaderincarnation"
_EPOCH = "offloaderepoch"
_EPOCH_NONCE = "offloaderepochnonce"
_ASSIGNING_RECORD = "offloaderrecord"


@dataclass(frozen=True, slots=True)
class ObjectOwner:
    """The writer of an object: the stream's incarnation and the writer's epoch."""

    incarnation: UUID
    epoch: int


@dataclass(frozen=True, slots=True)
class Testimony:
    """Assignment evidence of an object: the record that assigned it, or a later assigning one of its epoch.

    ``epoch_nonce`` is of the record that opened the epoch.
    """

    epoch_nonce: str
    record_id: int

    def as_metadata(self) -> dict[str, str]:
        """As user metadata of an object."""
        return {_EPOCH_NONCE: self.epoch_nonce, _ASSIGNING_RECORD: str(self.record_id)}


def object_metadata(
    *,
    role: Literal["data", "index", "fill"],
    stream: str,
    format_version: int,
    software_version: str,
    incarnation: UUID,
    epoch: int,
    testimony: Testimony | None = None,
) -> dict[str, str]:
    """The user metadata of an object that this project writes.

    Args:
        stream: the stream's name; written percent-encoded, because metadata is ASCII. Empty: not known, not written
            (objects at the store's root, in Pulsar's own layout).
        format_version: 1, or 2 when a block is compressed (Pulsar refuses 2 when it opens the object).
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
    """The object's format version, 1 or 2; ``UnsupportedVersionError`` when it is missing or another."""
    found = _lower(metadata).get(_FORMAT_VERSION)
    if found not in ("1", "2"):
        raise UnsupportedVersionError("invalid object version", object_name=object_name, expected="1 or 2", found=found)
    return int(found)


def object_owner(metadata: Mapping[str, str]) -> ObjectOwner | None:
    """The object's writer; ``None`` if our marker is missing or damaged."""
    values = _lower(metadata)
    with suppress(KeyError, ValueError):
        return ObjectOwner(UUID(values[_INCARNATION]), int(values[_EPOCH]))
    return None


def object_testimony(metadata: Mapping[str, str]) -> Testimony | None:
    """The record that assigned the object; ``None`` if it is missing or invalid."""
    values = _lower(metadata)
    with suppress(KeyError, ValueError):
        return Testimony(values[_EPOCH_NONCE], int(values[_ASSIGNING_RECORD]))
    return None


def _lower(metadata: Mapping[str, str]) -> dict[str, str]:
    # Stores differ in the case of returned metadata names.
    return {name.lower(): value for name, value in metadata.items()}


#: Prefix of all catalogue keys.
CATALOG_PREFIX = "_catalog/"
_UUID = r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})"
_OBJECT = re.compile(rf"{_UUID}(?:(?:-ledger-([0-9]{{1,19}}))?(-index)?|(-fill))")
_RECORD = re.compile(r"([0-9]{20})\.json")
_CHECKPOINT = re.compile(r"([0-9]{20})\.checkpoint\.parquet")
_LEDGER_ID_MAX = 2**63 - 1
_DIGEST_BITS = 58
_DIGEST_DOMAIN = b"offloader segment uuid 1"


@lru_cache(maxsize=4096)
def stream_prefix(stream: str) -> str:
    """Prefix of all keys of a stream; empty for the stream ``""``, which is Pulsar's own layout."""
    return f"{encode_stream(stream)}/" if stream else ""


def data_key(stream: str, uuid: UUID, ledger_id: int | None = None) -> str:
    """Key of a data object: V2 without a ledger, V1 with one."""
    ledger = "" if ledger_id is None else f"-ledger-{ledger_id}"
    return f"{stream_prefix(stream)}{uuid}{ledger}"


def index_key(stream: str, uuid: UUID, ledger_id: int | None = None) -> str:
    """Key of the index object beside ``data_key``."""
    return f"{data_key(stream, uuid, ledger_id)}-index"


def fill_key(stream: str, uuid: UUID) -> str:
    """Key of a fill: entries of recorded gaps, which readers aren't given."""
    return f"{stream_prefix(stream)}{uuid}-fill"


@dataclass(frozen=True, slots=True)
class ObjectKey:
    """The parsed name of a data object, an index or a fill. ``ledger_id`` is ``None`` in V2 and of a fill."""

    stream: str
    uuid: UUID
    ledger_id: int | None
    is_index: bool
    is_fill: bool = False

    @property
    def witness_key(self) -> str:
        """Key of the object whose user metadata tells of its record; of an index that is its data object."""
        if self.is_fill:
            return fill_key(self.stream, self.uuid)
        return data_key(self.stream, self.uuid, self.ledger_id)


def parse_object_key(key: str, stream: str) -> ObjectKey | None:
    """Parses a listed key of this stream; ``None`` unless it is a data object, an index or a fill directly under it."""
    prefix = stream_prefix(stream)
    match = _OBJECT.fullmatch(key[len(prefix) :]) if key.startswith(prefix) else None
    if match is None:
        return None
    ledger_id = None if match[2] is None else int(match[2])
    if ledger_id is not None and (ledger_id > _LEDGER_ID_MAX or str(ledger_id) != match[2]):
        return None
    return ObjectKey(stream, UUID(match[1]), ledger_id, match[3] is not None, match[4] is not None)


def catalog_key(stream: str) -> str:
    """Key of the tiny object that names a stream and its incarnation."""
    return f"{CATALOG_PREFIX}{encode_stream(stream)}"


def stream_of_catalog_key(key: str) -> str:
    """The stream of a catalogue key; ``InconsistentError`` for any other key."""
    if not key.startswith(CATALOG_PREFIX):
        raise InconsistentError("not a catalogue key", expected=f"{CATALOG_PREFIX}...", found=ascii(key))
    return decode_stream(key[len(CATALOG_PREFIX) :])


@lru_cache(_NAMES_CACHED)
def manifest_prefix(stream: str, incarnation: UUID) -> str:
    """Prefix of one incarnation's manifest keys."""
    return f"{encode_stream(stream)}/manifest/{incarnation}/"


def record_key(stream: str, incarnation: UUID, number: int) -> str:
    """Key of manifest record ``number`` (20 digits, so that names sort like numbers)."""
    return f"{manifest_prefix(stream, incarnation)}{number:020d}.json"


def record_number(key: str) -> int | None:
    """The number in a record's key; ``None`` for any other key."""
    return _number(_RECORD, key)


def checkpoint_key(stream: str, incarnation: UUID, number: int) -> str:
    """Key of the checkpoint after record ``number``."""
    return f"{manifest_prefix(stream, incarnation)}{number:020d}.checkpoint.parquet"


def checkpoint_number(key: str) -> int | None:
    """The number in a checkpoint's key; ``None`` for any other key."""
    return _number(_CHECKPOINT, key)


def _number(kind: re.Pattern[str], key: str) -> int | None:
    match = kind.fullmatch(key.rpartition("/")[2])
    return None if match is None else int(match[1])


def boundary_key(stream: str, incarnation: UUID) -> str:
    """Key of the boundary, which limits the deletable records."""
    return f"{manifest_prefix(stream, incarnation)}boundary"


def new_segment_uuid(incarnation: UUID, random_bits: int) -> UUID:
    """A version 8 uuid that proves its incarnation.

    A listing of unfinished uploads carries no metadata, so the key alone must prove ownership. Its 122 free bits are 64
    random bits followed by the first 58 bits of SHA-256(``"offloader segment uuid 1"`` + incarnation, 16 bytes + the
    random bits, 8 bytes).
    """
    if not 0 <= random_bits < 2**64:
        raise InconsistentError("random bits of a segment uuid", expected="64 bits", found=random_bits)
    digest = hashlib.sha256(_DIGEST_DOMAIN + incarnation.bytes + random_bits.to_bytes(8, "big")).digest()
    free = random_bits << _DIGEST_BITS | int.from_bytes(digest[:8], "big") >> 64 - _DIGEST_BITS
    high, middle, low = free >> 74, free >> 62 & 0xFFF, free & (1 << 62) - 1
    return UUID(int=high << 80 | 8 << 76 | middle << 64 | 0b10 << 62 | low)


def is_segment_uuid_of(uuid: UUID, incarnation: UUID) -> bool:
    """Whether ``new_segment_uuid`` created this uuid for this incarnation."""
    number = uuid.int
    free = number >> 80 << 74 | (number >> 64 & 0xFFF) << 62 | number & (1 << 62) - 1
    return uuid == new_segment_uuid(incarnation, free >> _DIGEST_BITS)
