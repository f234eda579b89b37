"""The hold on one stream.

Owns setting and lifting it. Must never act on a hold: the rules of the manifest refuse what it forbids.
"""

from __future__ import annotations

from formats.manifest import Hold
from offloader.clock import Clock
from offloader.errors import StoreUnavailable
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
    was = log.load().held
    if was != on:
        log.amend([Hold(on, reason)])
    # Also where it was so: who set it may not have come as far. If the record is lost then, everybody notices.
    if log.name_newest().held != on:
        raise StoreUnavailable(f"stream {stream}: somebody else changed its hold meanwhile", hint="look again")
    return was != on
