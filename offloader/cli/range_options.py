"""A range of a stream as options say it: by position or by time at either end.

Owns which of them contradict each other, and what they mean for a stream. Must never read an entry that isn't needed
for that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from formats.entries import Position
from offloader.cli.options import position_of
from offloader.errors import InvalidCall
from offloader.read.reader import Reader
from offloader.read.times import time_ms_of

__all__ = ["AskedRange", "From", "FromTime", "chosen_range"]

From = Annotated[
    str, typer.Option("--from", metavar="LEDGER:ENTRY", help="First entry.", show_default="the first there is")
]
FromTime = Annotated[
    str,
    typer.Option(
        "--from-time",
        metavar="TIME",
        help="Begin at the earliest entry published then or later: 2013-07-04T12:00:00Z, 2013-07-04 (UTC), or ms.",
        show_default=False,
    ),
]


@dataclass(frozen=True, slots=True)
class AskedRange:
    """Where to begin and to end: by position, both included, or by time; ``None``: at the stream's own end."""

    first: Position | None
    last: Position | None
    from_ms: int | None
    to_ms: int | None

    @classmethod
    def of(
        cls, start: str, end: str, from_time: str, to_time: str, *, end_options: tuple[str, str] = ("--to", "--to-time")
    ) -> AskedRange:
        """From the options' texts; empty ones weren't given.

        Args:
            start, from_time: of ``--from`` and ``--from-time``.
            end, to_time: of ``end_options``.

        Raises:
            InvalidCall: one isn't a position or a time, or two say the same thing.
        """
        by_position, by_time = end_options
        first = position_of(start, option="--from") if start else None
        last = position_of(end, option=by_position) if end else None
        from_ms = time_ms_of(from_time, option="--from-time") if from_time else None
        to_ms = time_ms_of(to_time, option=by_time) if to_time else None
        if first is not None and from_ms is not None:
            raise InvalidCall("--from and --from-time both say where to begin", hint="leave one of them out")
        if last is not None and to_ms is not None:
            raise InvalidCall(f"{by_position} and {by_time} both say where to end", hint="leave one of them out")
        return cls(first, last, from_ms, to_ms)


def chosen_range(reader: Reader, asked: AskedRange) -> tuple[Position | None, Position | None] | None:
    """The first and last position that are meant; ``None`` when times leave nothing between them."""
    first, last = asked.first, asked.last
    if asked.from_ms is not None:
        first = reader.position_at(asked.from_ms)
        if first is None or (last is not None and first > last):
            return None
    if asked.to_ms is not None:
        after, begin = reader.position_at(asked.to_ms), first or reader.first_position
        if after is not None and begin is not None and after <= begin:
            return None
        last = None if after is None else Position(after.ledger_id, after.entry_id - 1)
    return first, last
