"""Which number an entry has for its producer, and what a replay's producer is called; pure.

Owns both directions of the numbering. Must never give two entries of a stream one number, nor two replays one name.

A broker that deduplicates drops what has a number at or below the newest one of that name. So a number is the entry's
position itself, ascending like it, and what was stored last says where to go on.
"""

from __future__ import annotations

import hashlib
from uuid import UUID

from formats.entries import Position
from offloader.errors import Unsupported

__all__ = ["lease_name", "number_of", "place_of", "producer_name"]

#: 268 million entries of a ledger, of which brokers end one after 50,000, or after ten minutes if that is later.
_ENTRY_BITS = 28
_LEDGER_BITS = 63 - _ENTRY_BITS
_NAME = "offloader-replay"


def number_of(position: Position) -> int:
    """The sequence id of an entry.

    Raises:
        Unsupported: it would be above what the protocol has.
    """
    if not (0 <= position.ledger_id < 1 << _LEDGER_BITS and 0 <= position.entry_id < 1 << _ENTRY_BITS):
        raise Unsupported(
            f"{position} has no sequence id: a ledger's id must be below 2^{_LEDGER_BITS}, an entry's below "
            f"2^{_ENTRY_BITS}",
            hint="read this part and produce it with a program of your own",
        )
    return position.ledger_id << _ENTRY_BITS | position.entry_id


def place_of(number: int) -> Position | None:
    """The entry of a sequence id; ``None`` for -1: none."""
    return None if number < 0 else Position(number >> _ENTRY_BITS, number & (1 << _ENTRY_BITS) - 1)


def producer_name(stream: str, incarnation: UUID, topic: str, begin: str, label: str = "") -> str:
    """What the producer of a replay is called: the same whenever it is started again.

    Args:
        stream: what is replayed, and its incarnation.
        topic: where to.
        begin: where it was told to begin, as it was told. One that begins earlier is another one: by the numbers that a
            broker remembers it would have been there already.
        label: to replay once more what was replayed.
    """
    return f"{_NAME}-{_digest(stream, str(incarnation), topic, begin, label)}"


def lease_name(stream: str, incarnation: UUID, topic: str, label: str = "") -> str:
    """What the producer is called that keeps other replays of the stream away from a topic: one for all places where
    they may begin. Arguments as of ``producer_name``."""
    return f"{_NAME}-lease-{_digest(stream, str(incarnation), topic, label)}"


def _digest(*told: str) -> str:
    return hashlib.sha256("\0".join(told).encode()).hexdigest()[:20]
