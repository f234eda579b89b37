"""A broker's record of a topic's ledgers, as its metadata store has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from formats.metadata import pulsar_ledger_pb2
from formats.metadata.messages import OffloadContext, PulsarLedger

__all__ = ["encoded_context", "encoded_ledger", "record_of"]


def record_of(ledgers: Sequence[PulsarLedger]) -> bytes:
    """The bytes: the ledgers as field 1, each with its length."""
    found = b""
    for each in ledgers:
        data = encoded_ledger(each)
        size = len(data)
        assert size < 1 << 14
        found += bytes([0x0A, *([size] if size < 128 else [size & 127 | 128, size >> 7])]) + data
    return found


def encoded_ledger(ledger: PulsarLedger) -> bytes:
    """The message with its context, which the product only reads."""
    if ledger.context is None:
        return ledger.encode()
    context = encoded_context(ledger.context)
    whole: Any = pulsar_ledger_pb2.LedgerInfo.FromString(ledger.encode())  # type: ignore[attr-defined]
    whole.offloadContext.ParseFromString(context)
    return bytes(whole.SerializeToString(deterministic=True))


def encoded_context(context: OffloadContext) -> bytes:
    """Where a ledger was offloaded to, as a broker writes it; unset fields are absent."""
    message: Any = pulsar_ledger_pb2.OffloadContext()  # type: ignore[attr-defined]
    _fill(message, context.uuid, context.driver_name, context.driver_metadata)
    flags = {"complete": context.complete, "bookkeeperDeleted": context.bookkeeper_deleted}
    _set(message, {name: value or None for name, value in flags.items()})
    _set(message, {"timestamp": context.timestamp_ms})
    for each in context.segments:
        segment = message.offloadSegment.add()
        _fill(segment, each.uuid, each.driver_name, each.driver_metadata)
        times = {"assignedTimestamp": each.assigned_ms, "offloadedTimestamp": each.offloaded_ms}
        _set(segment, {"complete": each.complete or None, **times, "endEntryId": each.end_entry_id})
    return bytes(message.SerializeToString(deterministic=True))


def _fill(message: Any, uuid: UUID | None, driver: str, properties: Mapping[str, str]) -> None:
    if uuid is not None:
        halves = uuid.int >> 64, uuid.int & 2**64 - 1
        signed = [half - 2**64 if half >= 2**63 else half for half in halves]
        _set(message, {"uidMsb": signed[0], "uidLsb": signed[1]})
    if driver or properties:
        message.driverMetadata.name = driver
        for key, value in properties.items():
            message.driverMetadata.properties.add(key=key, value=value)


def _set(message: Any, values: Mapping[str, int | None]) -> None:
    for name, value in values.items():
        if value is not None:
            setattr(message, name, value)
