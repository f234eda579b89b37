"""Ledger metadata as values: Pulsar's LedgerInfo and OffloadContext, BookKeeper's LedgerMetadataFormat.

The only user of the generated protobuf code. A value keeps the message it was decoded from, so encoding preserves
unknown fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any
from uuid import UUID

from formats.errors import InconsistentError

_INT64 = range(-(2**63), 2**63)


#: BookKeeper's enum ``State``.
_OPEN, _CLOSED = 1, 3
#: BookKeeper's enum ``DigestType``: CRC32C.
_DIGEST_CRC32C = 3


# Loaded with the first message: protobuf takes 25 ms, which a listing would wait for.
@cache
def _generated(name: str) -> Any:
    return import_module(f"formats.metadata.{name}_ledger_pb2")


def _decode_error() -> type[Exception]:
    from google.protobuf.message import DecodeError

    error: type[Exception] = DecodeError
    return error


def parse_message(kind: Any, data: bytes, what: str = "ledger metadata", offset: int | None = None) -> Any:
    """A protobuf message of the generated class ``kind``.

    Raises:
        InconsistentError: ``data``, which is ``what`` at ``offset``, isn't one, or lacks a required field.
    """
    try:
        message = kind.FromString(data)
        if message.IsInitialized():
            return message
    except _decode_error() as cause:
        raise InconsistentError(
            what, offset=offset, expected=f"protobuf {kind.DESCRIPTOR.name}", found=str(cause)
        ) from cause
    found = f"no {', '.join(message.FindInitializationErrors())}"
    raise InconsistentError(what, offset=offset, expected=f"protobuf {kind.DESCRIPTOR.name}", found=found)


def _text(value: str | bytes) -> str:
    """A string field; protobuf returns bytes if it isn't UTF-8."""
    if isinstance(value, bytes):
        raise InconsistentError("ledger metadata", expected="UTF-8 text", found=value[:100].hex())
    return value


def _set(message: Any, values: Mapping[str, int | bytes | None]) -> None:
    """Sets the fields that have a value and clears those that are ``None``."""
    for name, value in values.items():
        if value is None:
            message.ClearField(name)
        elif isinstance(value, bytes) or value in _INT64:
            setattr(message, name, value)
        else:
            raise InconsistentError(f"ledger metadata field {name}", expected="a 64-bit number", found=value)


def _get(message: Any, name: str) -> Any:
    return getattr(message, name) if message.HasField(name) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PulsarLedger:
    """Pulsar's ``ManagedLedgerInfo.LedgerInfo``: the metadata of a group of a V2 index.

    Attributes:
        entries: last entry id (in the segment, or of the ledger) + 1; ``None`` when absent.
        size_bytes: payload bytes of the ledger.
        closed_ms: when it was closed; 0 or ``None`` while it is open.
        context: where Pulsar offloaded the ledger to, if present; only read, ``encode`` keeps the message's own.
        blocks: our index extension for the group, see ``formats.extension``.
        index_crc32c: our checksum of the whole index.
        message: the protobuf message this was decoded from, empty for a new one.
    """

    ledger_id: int
    entries: int | None = None
    size_bytes: int | None = None
    closed_ms: int | None = None
    context: OffloadContext | None = None
    blocks: bytes | None = field(default=None, repr=False)
    index_crc32c: int | None = None
    message: bytes = field(default=b"", repr=False)

    @classmethod
    def decode(cls, data: bytes) -> PulsarLedger:
        """The value in ``data``; ``InconsistentError`` when it isn't this protobuf message."""
        message = parse_message(_generated("pulsar").LedgerInfo, data)
        return cls(
            ledger_id=message.ledgerId,
            entries=_get(message, "entries"),
            size_bytes=_get(message, "size"),
            closed_ms=_get(message, "timestamp"),
            context=_context(message.offloadContext) if message.HasField("offloadContext") else None,
            blocks=_get(message, "offloaderBlocks"),
            index_crc32c=_get(message, "offloaderIndexCrc32c"),
            message=data,
        )

    def encode(self) -> bytes:
        """The message, fields in the order of their numbers."""
        kind = _generated("pulsar").LedgerInfo
        message = parse_message(kind, self.message) if self.message else kind()
        values = {
            "ledgerId": self.ledger_id,
            "entries": self.entries,
            "size": self.size_bytes,
            "timestamp": self.closed_ms,
            "offloaderBlocks": self.blocks,
            "offloaderIndexCrc32c": self.index_crc32c,
        }
        _set(message, values)
        return bytes(message.SerializeToString(deterministic=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class BookKeeperLedger:
    """BookKeeper's ``LedgerMetadataFormat``: the metadata of a V1 index. A password in it is never written.

    Attributes:
        length_bytes: payload bytes of the ledger.
        last_entry_id: its last entry; ``None`` when absent.
        created_ms: ms since 1970 UTC; ``None`` when absent.
        custom: custom metadata, key -> value, in order.
        message: the protobuf message this was decoded from, empty for a new one.
    """

    length_bytes: int
    last_entry_id: int | None = None
    closed: bool = True
    created_ms: int | None = None
    custom: Mapping[str, bytes] = field(default_factory=dict)
    message: bytes = field(default=b"", repr=False)

    @classmethod
    def decode(cls, data: bytes) -> BookKeeperLedger:
        """The value in ``data``; ``InconsistentError`` when it isn't this protobuf message."""
        message = parse_message(_generated("bookkeeper").LedgerMetadataFormat, data)
        return cls(
            length_bytes=message.length,
            last_entry_id=_get(message, "lastEntryId"),
            closed=message.state == _CLOSED,
            created_ms=_get(message, "ctime"),
            custom={_text(pair.key): pair.value for pair in message.customMetadata},
            message=data,
        )

    def encode(self) -> bytes:
        """The message, fields in the order of their numbers; a new one has quorum 1, ensemble 1, CRC-32C."""
        if self.message:
            message = parse_message(_generated("bookkeeper").LedgerMetadataFormat, self.message)
        else:
            message = _generated("bookkeeper").LedgerMetadataFormat()
            message.quorumSize = message.ensembleSize = message.ackQuorumSize = 1
            message.digestType = _DIGEST_CRC32C
        _set(message, {"length": self.length_bytes, "lastEntryId": self.last_entry_id, "ctime": self.created_ms})
        if (message.state == _CLOSED) != self.closed or not message.HasField("state"):
            message.state = _CLOSED if self.closed else _OPEN
        message.ClearField("password")
        del message.customMetadata[:]
        for key, value in self.custom.items():
            message.customMetadata.add(key=key, value=value)
        return bytes(message.SerializeToString(deterministic=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadSegment:
    """One streaming segment in an ``OffloadContext``; times in ms since 1970 UTC.

    Attributes:
        end_entry_id: the ledger's last entry in it.
        bookkeeper_deleted: whether the ledger's entries in it are deleted in BookKeeper. Only PIP-76's numbers have it.
    """

    uuid: UUID
    complete: bool = False
    bookkeeper_deleted: bool = False
    assigned_ms: int | None = None
    offloaded_ms: int | None = None
    end_entry_id: int | None = None
    driver_name: str = ""
    driver_metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadContext:
    """Where a ledger was offloaded to, in Pulsar's terms; times in ms since 1970 UTC.

    Its segments have two sets of field numbers: Pulsar ships 4 to 7 for what PIP-76's text numbers 5 to 8, because it
    left out the segment's ``bookkeeperDeleted``, number 4 in the text. Bytes don't tell which set they have.
    """

    uuid: UUID | None = None
    complete: bool = False
    bookkeeper_deleted: bool = False
    timestamp_ms: int | None = None
    driver_name: str = ""
    driver_metadata: Mapping[str, str] = field(default_factory=dict)
    segments: tuple[OffloadSegment, ...] = ()

    @classmethod
    def decode(cls, data: bytes, *, proposed: bool = False) -> OffloadContext:
        """The value in ``data``, whose numbers are Pulsar's, or PIP-76's if ``proposed``.

        Raises ``InconsistentError``: it isn't this protobuf message.
        """
        return _context(parse_message(_context_kind(proposed=proposed), data, "offload context"))

    def encode(self, *, proposed: bool = False) -> bytes:
        """The message, with Pulsar's field numbers, or with PIP-76's if ``proposed``; unset fields are absent."""
        message = _context_kind(proposed=proposed)()
        _set_place(message, self.uuid, self.driver_name, self.driver_metadata)
        deleted = self.bookkeeper_deleted or None
        _set(message, {"complete": self.complete or None, "bookkeeperDeleted": deleted, "timestamp": self.timestamp_ms})
        for each in self.segments:
            segment = message.offloadSegment.add()
            _set_place(segment, each.uuid, each.driver_name, each.driver_metadata)
            values = {
                "complete": each.complete or None,
                "assignedTimestamp": each.assigned_ms,
                "offloadedTimestamp": each.offloaded_ms,
                "endEntryId": each.end_entry_id,
            }
            _set(segment, values | ({"bookkeeperDeleted": each.bookkeeper_deleted or None} if proposed else {}))
        return bytes(message.SerializeToString(deterministic=True))


def _context_kind(*, proposed: bool) -> Any:
    generated = _generated("pulsar")
    return generated.ProposedOffloadContext if proposed else generated.OffloadContext


def _set_place(message: Any, uuid: UUID | None, driver: str, properties: Mapping[str, str]) -> None:
    if uuid is not None:
        halves = (half - 2**64 if half >= 2**63 else half for half in (uuid.int >> 64, uuid.int % 2**64))
        message.uidMsb, message.uidLsb = halves
    if driver or properties:
        message.driverMetadata.name = driver
        for key, value in properties.items():
            message.driverMetadata.properties.add(key=key, value=value)


def _context(message: Any) -> OffloadContext:
    return OffloadContext(
        uuid=_uuid(message),
        complete=message.complete,
        bookkeeper_deleted=message.bookkeeperDeleted,
        timestamp_ms=_get(message, "timestamp"),
        driver_name=_text(message.driverMetadata.name),
        driver_metadata=_properties(message.driverMetadata.properties),
        segments=tuple(_segment(segment) for segment in message.offloadSegment),
    )


def _segment(message: Any) -> OffloadSegment:
    return OffloadSegment(
        uuid=_uuid(message) or UUID(int=0),
        complete=message.complete,
        # Pulsar's message has no such field.
        bookkeeper_deleted=getattr(message, "bookkeeperDeleted", False),
        assigned_ms=_get(message, "assignedTimestamp"),
        offloaded_ms=_get(message, "offloadedTimestamp"),
        end_entry_id=_get(message, "endEntryId"),
        driver_name=_text(message.driverMetadata.name),
        driver_metadata=_properties(message.driverMetadata.properties),
    )


def _properties(pairs: Iterable[Any]) -> dict[str, str]:
    return {_text(pair.key): _text(pair.value) for pair in pairs}


def _uuid(message: Any) -> UUID | None:
    if not message.HasField("uidMsb") or not message.HasField("uidLsb"):
        return None
    return UUID(int=(message.uidMsb % 2**64) << 64 | message.uidLsb % 2**64)
