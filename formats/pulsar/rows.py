"""Messages on their way into columns: what was decoded of several entries.

Owns how entries become rows. Must never decide what is wrong with an entry, nor make columns.
"""

from __future__ import annotations

from typing import Any, Final

from formats.metadata import pulsar_message_pb2
from formats.pulsar.batch import Batch
from formats.pulsar.frame import Frame

__all__ = ["NOTHING", "MessageRows"]

_PROTOCOL: Any = pulsar_message_pb2
#: Stands for the metadata of a message that couldn't be read.
NOTHING: Final[Any] = _PROTOCOL.SingleMessageMetadata()


class MessageRows:
    """Rows of one ledger, collected entry by entry; wherever a ``count`` is given, 0 says that it isn't a batch.

    Attributes:
        ledger_id: the ledger.
        count: rows so far.
        payload_bytes: bytes of the payloads they came from, decompressed.
        size_bytes: about how much memory the rows will take.
        entry_ids, metadata, brokers, counts: a value per entry. Metadata (protobuf) is ``None`` where it couldn't be
            read, the broker's where there is none.
        singles, starts, ends: a value per row, none when only columns of entries are wanted: the message's own metadata
            (``NOTHING`` where it couldn't be read) and where its bytes are in the joined ``payloads``.
        errors: row -> why it, or something in its entry, couldn't be read.
    """

    def __init__(self, ledger_id: int) -> None:
        self.ledger_id = ledger_id
        self.count = 0
        self.payload_bytes = 0
        self.size_bytes = 0
        self.entry_ids: list[int] = []
        self.metadata: list[Any] = []
        self.brokers: list[Any] = []
        self.counts: list[int] = []
        self.singles: list[Any] = []
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.payloads: list[bytes] = []
        self.errors: dict[int, str] = {}

    def add_metadata(self, entry_id: int, frame: Frame, count: int) -> None:
        """An entry whose payload nobody wants."""
        self._add_entry(entry_id, frame.metadata, frame.broker, count)

    def add_single(self, entry_id: int, frame: Frame, payload: bytes) -> None:
        """An entry that is one message, or a part of one."""
        self.singles.append(frame.metadata)
        self.starts.append(self.payload_bytes)
        self.payload_bytes += len(payload)
        self.size_bytes += len(payload)
        self.ends.append(self.payload_bytes)
        self.payloads.append(payload)
        self._add_entry(entry_id, frame.metadata, frame.broker, 0)

    def add_batch(self, entry_id: int, frame: Frame, count: int, payload: bytes, batch: Batch) -> None:
        """An entry of ``count`` messages; those that ``batch`` lacks are rows without content."""
        base = self.payload_bytes
        self.singles += batch.singles
        self.starts += [base + start for start in batch.starts]
        self.ends += [base + end for end in batch.ends]
        self.payloads.append(payload)
        self.payload_bytes += len(payload)
        self.size_bytes += len(payload)
        if batch.error is not None:
            self._add_unread(count - len(batch.singles), self.count + count, str(batch.error))
        self._add_entry(entry_id, frame.metadata, frame.broker, count)

    def add_damaged(self, entry_id: int, frame: Frame, count: int, reason: str) -> None:
        """An entry whose payload can't be read: as many rows as it says there are messages."""
        self._add_unread(max(count, 1), self.count + max(count, 1), reason)
        self._add_entry(entry_id, frame.metadata, frame.broker, count)

    def add_unreadable(self, entry_id: int, reason: str) -> None:
        """An entry of which nothing is known: one row."""
        self._add_unread(1, self.count + 1, reason)
        self._add_entry(entry_id, None, None, 0)

    def _add_entry(self, entry_id: int, metadata: Any, broker: Any, count: int) -> None:
        self.entry_ids.append(entry_id)
        self.metadata.append(metadata)
        self.brokers.append(broker)
        self.counts.append(count)
        self.count += max(count, 1)

    def _add_unread(self, unread: int, stop: int, reason: str) -> None:
        """The ``unread`` rows before row ``stop`` have no content; the reason is on them, or on the last row."""
        self.singles += [NOTHING] * unread
        self.starts += [self.payload_bytes] * unread
        self.ends += [self.payload_bytes] * unread
        self.errors.update(dict.fromkeys(range(stop - max(unread, 1), stop), reason))
