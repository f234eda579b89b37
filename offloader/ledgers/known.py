"""What a manifest knows of a hot tier's ledgers, as a source compares it with what it lists; pure values.

A source without an identity of its own has only the facts of its ledgers to show that it is the one that the manifest
knows (docs/MANIFEST.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from formats.entries import Position

__all__ = ["AskKnown", "ComparedSource", "KnownLedger", "KnownLedgers"]


@dataclass(frozen=True, slots=True)
class KnownLedger:
    """One ledger that a manifest knows of.

    Attributes:
        last_entry_id: where it ended, -1: empty; ``None``: its end was never recorded.
        reached: the newest of its entries that a segment holds or was to hold, -1: none.
    """

    last_entry_id: int | None = None
    reached: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownLedgers:
    """What a manifest knows of the ledgers that it was asked about.

    Attributes:
        newest: the newest position that it knows of; ``None``: none yet.
        whole: ledger ids, first and last, between which every ledger with entries is known: nothing is missing between
            the ranges there.
        ledgers: those of the ones asked about that it knows.
    """

    newest: Position | None = None
    whole: tuple[int, int] | None = None
    ledgers: Mapping[int, KnownLedger] = field(default_factory=dict)


#: What is known of some ledgers, by a manifest that was read before they were listed.
AskKnown = Callable[[Sequence[int]], KnownLedgers]


@runtime_checkable
class ComparedSource(Protocol):
    """A ``LedgerSource`` without an identity that can tell by its ledgers that it isn't the one that is known."""

    def require_same(self, known: AskKnown) -> None:
        """Compares what the source lists with what is known.

        Raises:
            SourceMismatch: they contradict each other, and a second look didn't change that.
            StoreUnavailable: they contradict each other, and there was no second look yet: nothing may be deleted.
        """
        ...
