"""A stored entry as another producer would send it: the same messages under a name and a number of its own.

Owns what must change for that, and that nothing else does: payload, compression, keys, properties, times, schema
version and encryption stay as they are stored. Must never decompress a payload.

What changes: the producer's name and sequence id, by which a broker recognises repetitions; the broker's own metadata
in front of the entry, which the next broker adds itself; and marks that would make another cluster's broker keep the
messages from consumers: where they were replicated from, and the transaction they belonged to.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from formats.checksum import crc32c
from formats.pulsar.frame import decode_frame

__all__ = ["Resent", "resent"]

_CHECKSUM = struct.Struct(">HI")
_SIZE = struct.Struct(">I")
_MAGIC_CHECKSUM = 0x0E01
#: Fields that are of the place where an entry was stored.
_OF_THE_PLACE = ("replicated_from", "txnid_least_bits", "txnid_most_bits", "highest_sequence_id")


class Resent(NamedTuple):
    """What to send.

    Attributes:
        entry: what follows the command ``SEND``, with its checksum; nothing, if the entry is a marker of the broker's
            own, which isn't for consumers.
        messages: how many are in it.
        is_of_transaction: whether it was sent within a transaction, of which an entry doesn't tell how it ended.
    """

    entry: bytes
    messages: int
    is_of_transaction: bool


def resent(entry: bytes, producer_name: str, sequence_id: int) -> Resent:
    """A stored entry for another producer.

    Args:
        entry: as it is stored.
        producer_name, sequence_id: of the producer that is to send it.

    Raises:
        FormatError: it isn't what Pulsar stores, or damaged.
    """
    frame = decode_frame(entry)
    metadata = frame.metadata
    if metadata.HasField("marker_type"):
        return Resent(b"", 0, False)
    is_of_transaction = metadata.HasField("txnid_least_bits") or metadata.HasField("txnid_most_bits")
    metadata.producer_name = producer_name
    metadata.sequence_id = sequence_id
    for name in _OF_THE_PLACE:
        metadata.ClearField(name)
    encoded = metadata.SerializeToString()
    checked = b"".join((_SIZE.pack(len(encoded)), encoded, memoryview(entry)[frame.payload_start :]))
    sent = _CHECKSUM.pack(_MAGIC_CHECKSUM, crc32c(checked)) + checked
    return Resent(sent, max(metadata.num_messages_in_batch, 1), is_of_transaction)
