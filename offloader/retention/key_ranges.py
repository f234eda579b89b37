"""Ranges of keys, [from, to) parts of [0, 1), that stream segments own; pure.

Owns what it means that ranges cover others, and which scalings are allowed. Must never know of a stream segment's name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["covers", "covers_once", "scale_problem"]


def scale_problem(sealed: Sequence[tuple[float, float]], ranges: Sequence[tuple[float, float]]) -> str:
    """Why segments with the key ranges ``ranges`` can't take over from those with ``sealed``; empty if they can."""
    if any(not low < high for low, high in ranges):
        return "a new stream segment has no keys"
    if not sealed or not covers_once(ranges, sealed):
        return "the new stream segments don't take over each key of the sealed ones once"
    return ""


def covers(ranges: Iterable[tuple[float, float]], low: float, high: float) -> bool:
    """Whether every key of [low, high) is in one of ``ranges`` at least."""
    for begin, end in sorted(ranges):
        if begin > low:
            return False
        low = max(low, end)
        if low >= high:
            return True
    return low >= high


def covers_once(ranges: Iterable[tuple[float, float]], keys: Iterable[tuple[float, float]]) -> bool:
    """Whether ``ranges`` have exactly the keys of ``keys``, each once; ``keys`` don't overlap."""
    return _merged(ranges) == _merged(keys)


def _merged(ranges: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The ranges in order, neighbours made one. Those that overlap stay two: no ranges without overlap come out so."""
    found: list[tuple[float, float]] = []
    for low, high in sorted(ranges):
        if found and low == found[-1][1]:
            found[-1] = (found[-1][0], high)
        else:
            found.append((low, high))
    return found
