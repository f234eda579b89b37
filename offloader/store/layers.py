"""The order of the wrappers around an implementation.

Owns the one decision which layer is outside which. Must never do a layer's work.
"""

from __future__ import annotations

from offloader.limits import Limiter
from offloader.settings import LimitSettings
from offloader.store.base import ObjectStore, StoreOptions
from offloader.store.metered import MeteredStore
from offloader.store.observed import ObservedStore
from offloader.store.read_only import ReadOnlyStore
from offloader.store.retrying import RetryingStore
from offloader.store.throttled import ThrottledStore
from offloader.telemetry import NO_TELEMETRY

__all__ = ["layered"]


def layered(raw: ObjectStore, options: StoreOptions) -> ObjectStore:
    """Retrying around throttled around measured around counted around ``raw``; reading only, where asked, outermost.

    Each attempt waits its turn and is counted, and the wait isn't part of what is measured.
    """
    limiter = options.limiter or Limiter(LimitSettings(), options.clock)
    counted: ObjectStore = MeteredStore(raw, options.clock)
    if options.recorder is not NO_TELEMETRY:
        counted = ObservedStore(counted, options.recorder, options.clock)
    throttled = ThrottledStore(counted, limiter, options.recorder)
    store = RetryingStore(throttled, options.settings, options.clock, recorder=options.recorder)
    return ReadOnlyStore(store, hint="open the store for writing") if options.read_only else store
