"""Object stores: the verbs of ``base`` and their implementations, loaded by scheme.

``open_store`` is re-exported lazily. Importing this package loads no SDK.
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
