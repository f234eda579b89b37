"""Breadth-first search through the states of a model of the manifest. Not a test."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import NamedTuple, TypeVar

__all__ = ["Broken", "Found", "search"]

_World = TypeVar("_World", bound=Hashable)


class Broken(Exception):
    """An invariant that doesn't hold; its name comes first."""

    def __init__(self, invariant: str, why: str) -> None:
        super().__init__(f"{invariant}: {why}")
        self.invariant = invariant


class Found(NamedTuple):
    """What a search found.

    Attributes:
        broken: the invariant, empty: all hold everywhere.
        steps: the shortest way there.
        states: how many were seen.
    """

    broken: str
    steps: tuple[str, ...]
    states: int


def search(first: _World, successors: Callable[[_World], Iterator[tuple[str, _World]]]) -> Found:
    """Looks at every state that can be reached, nearest first, until an invariant breaks.

    Args:
        successors: each next step and the state after it; raises ``Broken``.
    """
    came: dict[_World, tuple[_World, str] | None] = {first: None}
    level = [first]
    while level:
        following: list[_World] = []
        for world in level:
            try:
                for label, after in successors(world):
                    if after not in came:
                        came[after] = world, label
                        following.append(after)
            except Broken as error:
                return Found(error.invariant, tuple(_way(came, world)), len(came))
        level = following
    return Found("", (), len(came))


def _way(came: dict[_World, tuple[_World, str] | None], world: _World) -> list[str]:
    labels: list[str] = []
    while (step := came[world]) is not None:
        world, label = step
        labels.append(label)
    return labels[::-1]
