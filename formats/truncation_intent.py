"""What a truncation of a partitioned topic is about to do: written under the topic's name before any partition changes.

Owns its bytes and its key. Must never say how far it got: the partitions' manifests do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast
from uuid import UUID

from formats.entries import Position
from formats.keys import stream_prefix
from formats.sealed_json import from_json, opened, sealed, to_json

__all__ = ["INTENT_FORMAT", "PartitionHead", "TruncationIntent", "decode_intent", "encode_intent", "intent_key"]

INTENT_FORMAT = 1


@dataclass(frozen=True, slots=True)
class PartitionHead:
    """The first position that stays of one partition's stream, in that incarnation of it and no later one."""

    stream: str
    incarnation: UUID
    head: Position


@dataclass(frozen=True, slots=True)
class TruncationIntent:
    """A truncation of several streams as one.

    Attributes:
        topic: the name above the partitions.
        heads: of each partition.
        forced: also where something before it isn't offloaded.
        by: who wants it.
        time_ms: since when, ms since 1970 UTC.
        is_done: every partition begins there by now.
    """

    topic: str
    heads: tuple[PartitionHead, ...]
    forced: bool
    by: str
    time_ms: int
    is_done: bool = False


def intent_key(topic: str) -> str:
    """Key of a topic's intent."""
    return f"{stream_prefix(topic)}retention/truncation.json"


def encode_intent(intent: TruncationIntent) -> bytes:
    """The bytes of an intent."""
    return sealed({"format": INTENT_FORMAT, **to_json(intent)})


def decode_intent(data: bytes, *, object_name: str = "") -> TruncationIntent:
    """The intent in ``data``; raises ``FormatError``."""
    return cast(TruncationIntent, from_json(TruncationIntent, opened(data, INTENT_FORMAT, object_name), object_name))
