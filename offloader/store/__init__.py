"""Object stores: the eight verbs of ``base`` and what implements them, loaded by scheme.

Owns the lazily re-exported ``open_store``. Must never load an SDK by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["open_store"]

if TYPE_CHECKING:
    from offloader.store.open import open_store


def __getattr__(name: str) -> object:
    if name == "open_store":
        from offloader.store.open import open_store

        return open_store
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
