"""The order of the wrappers around an implementation.

Owns the one decision which layer is outside which. Must never do a layer's work.
"""

from __future__ import annotations

from offloader.store.base import ObjectStore, StoreOptions
from offloader.store.metered import MeteredStore
from offloader.store.read_only import ReadOnlyStore
from offloader.store.retrying import RetryingStore

__all__ = ["layered"]


def layered(raw: ObjectStore, options: StoreOptions) -> ObjectStore:
    """Retrying around metered around ``raw``: each attempt is counted; reading only, where asked, outermost."""
    store = RetryingStore(MeteredStore(raw), options.settings, options.clock)
    return ReadOnlyStore(store, hint="open the store for writing") if options.read_only else store
