"""Positions and cuts in requests."""

from __future__ import annotations

from collections.abc import Mapping

from formats.entries import Position
from offloader.errors import InvalidCallError
from offloader.retention.subscribers import CutLike, StreamRetention

#: Stands for the current end of a stream.
LATEST = "latest"
_PARTITION_DIGITS_MAX = 10


def cut_of(retention: StreamRetention, given: object, what: str) -> CutLike:
    """A position, ``latest``, or positions by partition; raises ``InvalidCallError``: none of these."""
    return retention.tail() if given == LATEST else positions_of(given, what, or_else=f"nor {LATEST}, ")


def positions_of(given: object, what: str, *, or_else: str = "") -> Position | Mapping[int, Position]:
    """``"7:12"``, or of a partitioned topic ``{"0": "7:12"}``; raises ``InvalidCallError``: neither."""
    if isinstance(given, str):
        return position_of(given, what)
    if isinstance(given, Mapping) and given and all(isinstance(each, str) for each in given.values()):
        return {_partition(number, what): position_of(text, what) for number, text in given.items()}
    raise InvalidCallError(
        f"{what}: neither a position, {or_else}nor positions by partition", hint='"7:12" or {"0": "7:12"}'
    )


def position_of(text: str, what: str) -> Position:
    """``7:12``; raises ``InvalidCallError``: it isn't one."""
    try:
        return Position.parse(text)
    except ValueError as cause:
        raise InvalidCallError(f"{what}: {cause}", hint="the stream's segments list the positions there are") from cause


def _partition(number: object, what: str) -> int:
    text = str(number)
    if not text.isascii() or not text.isdecimal() or len(text) > _PARTITION_DIGITS_MAX:
        raise InvalidCallError(f"{what}: {ascii(text)[:40]} is not a partition number", hint='{"3": "7:12"}')
    return int(text)
