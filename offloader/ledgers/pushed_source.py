"""Pushed ledgers of a producer that names its log."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from formats.entries import Position
from offloader.errors import Unsupported
from offloader.ledgers.pushed import PushedLedgers

__all__ = ["IdentifiedLedgers"]


class IdentifiedLedgers(PushedLedgers):
    """Pushed ledgers with the identity of the producer's log: an ``IdentifiedSource``.

    The log is somewhere else: it records no starts, and its producer picks the ledger ids. That it is the log which
    was stored is proven by its entries, before anything is taken.

    Args:
        source: the log's own uuid.
    """

    def __init__(self, stream: str, source: UUID, **given: Any) -> None:
        super().__init__(stream, **given)
        self._source = source

    def source_id(self) -> UUID:
        """The producer's log."""
        return self._source

    def has_start(self, token: str) -> bool:  # noqa: ARG002 - nothing is recorded here
        """Always: the entries are the proof."""
        return True

    def record_start(self, token: str) -> None:
        """Nothing: see ``has_start``."""

    def reached(self) -> Position | None:
        """Not known: the producer's log may have more than was pushed."""
        return None

    def next_ledger(self) -> int:
        """0: the producer picks the ids."""
        return 0

    def grant_ledgers(self, first: int, end: int) -> None:
        """Raises ``Unsupported``: the producer picks the ids."""
        raise Unsupported(f"stream {self.stream}: the producer picks the ids of ledgers, not {first} up to {end}")

    def ledgers_left(self) -> int | None:
        """``None``: the producer picks the ids."""
        return None

    def seed_ledgers(self, above: int) -> None:
        """Nothing: the producer picks the ids."""

    def note_manifest(self, incarnation: UUID, record_id: int) -> None:
        """Nothing: a producer keeps no notes for its consumer."""

    def noted_manifest(self) -> tuple[UUID, int] | None:
        """Nothing is noted."""
        return None
