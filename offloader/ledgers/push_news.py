"""What a broker that pushes hears, and what it is made of."""

from __future__ import annotations

from dataclasses import dataclass

from formats.entries import Position
from offloader.errors import OffloaderError

__all__ = ["Offered", "PushNews", "Pushed"]


@dataclass(frozen=True, slots=True)
class Offered:
    """What became of entries, as the one who offloads them knows it.

    Attributes:
        offered: the newest that a segment took; goes back when one failed.
        committed: the newest that is durable.
        error: why the stream was stopped, ``None``: it wasn't.
    """

    offered: Position | None = None
    committed: Position | None = None
    error: OffloaderError | None = None


@dataclass(frozen=True, slots=True)
class PushNews:
    """What a broker wants to know.

    Attributes:
        taken: the newest entry that needn't be pushed again as it stands: go on after it. Goes back when it has to be.
        durable: the newest entry that is committed in the cold tier: the broker's copy up to it may go.
    """

    taken: Position | None
    durable: Position | None


@dataclass(frozen=True, slots=True)
class Pushed:
    """What became of one push: entries taken, and entries that were there already."""

    taken: int
    repeated: int
