"""A body that is worked on while it comes.

Owns what a store and a reader owe each other then. Must never hold bytes.

Whoever reads a large range piece by piece needs no memory for all of it: each piece can lie where the one before it
lay. That memory stays in the processor's cache, and what is made of a piece is made while it is there.
"""

from __future__ import annotations

from typing import Protocol

__all__ = ["Receiver"]


class Receiver(Protocol):
    """Takes a body instead of an answer that holds all of it: see ``ObjectStore.get``. Used by one call at a time.

    What came may turn out to be nothing: the connection may break for good, the object may be another one. So whoever
    receives decides nothing before the call has returned; and it never raises, as the store takes an error for its own.
    """

    @property
    def received_bytes(self) -> int:
        """How much of the body came since ``begin``."""
        ...

    def begin(self) -> None:
        """A body begins, at the first byte that was asked for; whatever came before is forgotten."""
        ...

    def room(self) -> memoryview:
        """Where the next bytes go: not empty, and nobody else's until ``came``."""
        ...

    def came(self, count: int) -> None:
        """``count`` bytes stand at the beginning of ``room`` now, at least one; that memory isn't the store's any
        more."""
        ...
