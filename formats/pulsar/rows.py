"""Messages on their way into columns: what was decoded of several entries.

Owns how pieces of entries become rows. Must never decide what is wrong with an entry, nor make columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from formats.metadata import pulsar_message_pb2

__all__ = ["NOTHING", "NOT_IN_A_BATCH", "MessageRows", "Piece"]

#: ``batch_index`` of a message that is an entry of its own: what Pulsar's message ids have there.
NOT_IN_A_BATCH: Final = -1

_PROTOCOL: Any = pulsar_message_pb2
#: Stands for the metadata of a message that couldn't be read.
NOTHING: Final[Any] = _PROTOCOL.SingleMessageMetadata()


class Piece(NamedTuple):
    """Rows of one entry: all of them, or some neighbours of a large batch.

    Attributes:
        entry_id: the entry.
        metadata, broker: protobuf; ``None`` where it couldn't be read, the broker's also where there is none.
        first: index in the batch of the first row, or ``NOT_IN_A_BATCH``.
        rows: how many.
        singles: the messages' own metadata (protobuf), of as many rows as could be read; none when nobody wants them.
        payload: bytes that hold them all; of a message that isn't in a batch, its own.
        starts, ends: where the bytes of messages of a batch are in ``payload``, before ``shift`` is taken off.
        shift: what is to be taken off.
        error: why the other rows, or if there is no other something in the last row, couldn't be read.
        more_bytes: about how much memory the rows take besides their payload.
    """

    entry_id: int
    metadata: Any
    broker: Any
    first: int = NOT_IN_A_BATCH
    rows: int = 1
    singles: Sequence[Any] = ()
    payload: bytes = b""
    starts: Sequence[int] = ()
    ends: Sequence[int] = ()
    shift: int = 0
    error: str | None = None
    more_bytes: int = 0


class MessageRows:
    """Rows of one ledger.

    Attributes:
        ledger_id: the ledger.
        count: rows so far.
        payload_bytes: bytes of ``payloads``.
        size_bytes: about how much memory the rows take.
        entry_ids, metadata, brokers, firsts, counts: a value per piece.
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
        self.firsts: list[int] = []
        self.counts: list[int] = []
        self.singles: list[Any] = []
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.payloads: list[bytes] = []
        self.errors: dict[int, str] = {}

    def add(self, piece: Piece) -> None:
        """Appends the rows of ``piece``."""
        self.entry_ids.append(piece.entry_id)
        self.metadata.append(piece.metadata)
        self.brokers.append(piece.broker)
        self.firsts.append(piece.first)
        self.counts.append(piece.rows)
        self.count += piece.rows
        self.size_bytes += piece.more_bytes
        if piece.singles:
            size = len(piece.payload)
            self.singles += piece.singles
            if piece.first == NOT_IN_A_BATCH:
                self.starts.append(self.payload_bytes)
                self.ends.append(self.payload_bytes + size)
            else:
                shift = self.payload_bytes - piece.shift
                self.starts += [shift + start for start in piece.starts]
                self.ends += [shift + end for end in piece.ends]
            self.payloads.append(piece.payload)
            self.payload_bytes += size
            self.size_bytes += size
        if piece.error is not None:
            self._add_unread(piece.rows - len(piece.singles), piece.error)

    def _add_unread(self, unread: int, reason: str) -> None:
        """The last ``unread`` rows have no content; the reason is on them, or on the last row."""
        self.singles += [NOTHING] * unread
        self.starts += [self.payload_bytes] * unread
        self.ends += [self.payload_bytes] * unread
        self.errors.update(dict.fromkeys(range(self.count - max(unread, 1), self.count), reason))
