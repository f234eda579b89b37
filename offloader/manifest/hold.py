"""The hold on one stream.

Owns setting and lifting it. Must never act on a hold: the rules of the manifest refuse what it forbids.
"""

from __future__ import annotations

from formats.manifest import Hold
from offloader.clock import Clock
from offloader.manifest.log import ManifestLog
from offloader.store.base import ObjectStore

__all__ = ["set_hold"]


def set_hold(store: ObjectStore, stream: str, *, on: bool, reason: str, clock: Clock) -> bool:
    """Holds everything of a stream, or lets go of it; False: it was so already.

    Args:
        reason: for people.

    Raises:
        NotFound: no such stream.
        Fenced: it was deleted.
        OutcomeUnknown, StoreUnavailable: call it again.
    """
    log = ManifestLog(store, stream, clock=clock)
    if log.load().held == on:
        return False
    log.amend([Hold(on, reason)])
    return True
