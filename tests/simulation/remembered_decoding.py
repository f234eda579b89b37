"""Manifest objects decoded once in many simulated worlds: a world's processes read each of them dozens of times."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import lru_cache
from types import ModuleType
from typing import Any

from formats.checkpoint import decode_checkpoint
from formats.manifest import decode_record
from offloader.manifest import boundary, checkpoint, load

__all__ = ["decoding_remembered"]

#: Of each kind; a world has some hundred.
OBJECTS_MAX = 1024
_USERS: tuple[tuple[ModuleType, Any], ...] = (
    (load, decode_record),
    (boundary, decode_record),
    (load, decode_checkpoint),
    (checkpoint, decode_checkpoint),
)


@contextlib.contextmanager
def decoding_remembered() -> Iterator[None]:
    """Equal bytes give the same value, which nothing can change; what can't be decoded is tried each time."""
    remembered: dict[str, Any] = {each.__name__: lru_cache(OBJECTS_MAX)(each) for _, each in _USERS}
    try:
        for module, decode in _USERS:
            setattr(module, decode.__name__, remembered[decode.__name__])
        yield
    finally:
        for module, decode in _USERS:
            setattr(module, decode.__name__, decode)
