"""Puts the chunks of large Pulsar messages together again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from formats.errors import LimitExceededError, require_equal

#: Messages of which some chunks have come; the one that has waited longest goes, as in Pulsar's clients.
CHUNKED_MESSAGES_MAX = 100


#: ``next_id`` of a message that can't become complete.
_BROKEN = -1


@dataclass(slots=True)
class _Begun:
    """The chunks of one message so far."""

    next_id: int = 0
    size_bytes: int = 0
    parts: list[bytes] = field(default_factory=list)


class ChunkJoiner:
    """Joins the chunks of one stream, which come in the stream's order, those of several messages mixed.

    Args:
        bytes_max: of the chunks of all messages that are not complete.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max, self._held_bytes, self._given_up = bytes_max, 0, 0
        self._begun: dict[tuple[str, str], _Begun] = {}

    @property
    def incomplete(self) -> int:
        """Messages of which some chunks came and others didn't, so far."""
        return self._given_up + len(self._begun)

    def add(self, metadata: Any, payload: bytes) -> bytes | None:
        """The stored payload of the whole message, when this was its last chunk; ``None``: others are missing.

        Args:
            metadata: protobuf ``MessageMetadata`` of a chunk.
            payload: of the chunk, as stored, decrypted; empty: only count.

        Raises:
            InconsistentError: the chunks have another size than the message says.
            LimitExceededError: more than ``bytes_max``.
        """
        name, chunk = (metadata.producer_name, metadata.uuid), metadata.chunk_id
        is_last = chunk == metadata.num_chunks_from_msg - 1
        if chunk == 0 and name in self._begun:
            self._forget(name)  # the producer sends the message again
        begun = self._begun.setdefault(name, _Begun())
        if len(self._begun) > CHUNKED_MESSAGES_MAX:
            self._give_up(next(iter(self._begun)))
        if 0 <= chunk < begun.next_id:
            return None  # the producer sent it twice
        if chunk != begun.next_id:
            self._held_bytes -= begun.size_bytes
            begun.next_id, begun.size_bytes, begun.parts = _BROKEN, 0, []
            if is_last:
                self._give_up(name)
            return None
        begun.next_id += 1
        begun.size_bytes += len(payload)
        begun.parts.append(payload)
        self._held_bytes += len(payload)
        if self._held_bytes > self._bytes_max:
            found = self._held_bytes
            self._give_up(name)
            raise LimitExceededError("chunks of messages", expected=f"at most {self._bytes_max} bytes", found=found)
        if not is_last:
            return None
        self._forget(name)
        if payload:
            require_equal("size of a chunked message", begun.size_bytes, metadata.total_chunk_msg_size)
        return b"".join(begun.parts)

    def _give_up(self, name: tuple[str, str]) -> None:
        if name in self._begun:
            self._given_up += 1
            self._forget(name)

    def _forget(self, name: tuple[str, str]) -> None:
        self._held_bytes -= self._begun.pop(name).size_bytes
