"""A broker's record of a topic's ledgers: the bytes that its metadata store has below ``/managed-ledgers``."""

from __future__ import annotations

import struct
from typing import Any

from formats.errors import InconsistentError
from formats.metadata import pulsar_ledger_pb2
from formats.metadata.messages import PulsarLedger, parse_message
from formats.pulsar.entry import decompress_payload

#: In front of a compressed record: magic number, and the length of what says how it is compressed.
_COMPRESSED = struct.Struct(">hi")
_MAGIC = 0x4778
#: Metadata stores take smaller values only.
RECORD_BYTES_MAX = 64 * 1024 * 1024
_WHAT = "record of a managed ledger"
_PULSAR: Any = pulsar_ledger_pb2


def decode_ledger_record(data: bytes) -> list[PulsarLedger]:
    """The ledgers of a topic in the order of the record, compressed or not (``managedLedgerInfoCompressionType``).

    Raises:
        FormatError: ``data`` isn't such a record.
    """
    if not data:
        raise InconsistentError(_WHAT, expected="at least a ledger", found="no bytes")
    message = parse_message(_PULSAR.ManagedLedgerInfo, _plain(data), _WHAT)
    return [PulsarLedger.decode(each.SerializeToString()) for each in message.ledgerInfo]


def _plain(data: bytes) -> bytes:
    if len(data) < _COMPRESSED.size or _COMPRESSED.unpack_from(data)[0] != _MAGIC:
        return data
    size = _COMPRESSED.unpack_from(data)[1]
    stop = _COMPRESSED.size + size
    if not 0 <= size <= len(data) - _COMPRESSED.size:
        raise InconsistentError(_WHAT, expected=f"at most {len(data) - _COMPRESSED.size} bytes of metadata", found=size)
    how = parse_message(_PULSAR.ManagedLedgerInfoMetadata, data[_COMPRESSED.size : stop], _WHAT)
    return decompress_payload(how.compressionType, data[stop:], how.uncompressedSize, RECORD_BYTES_MAX)
