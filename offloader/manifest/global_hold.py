"""The stop for all deletion in a store.

Owns setting it, lifting it and asking for it. Must never take a store that doesn't answer for one without a stop.
"""

from __future__ import annotations

from formats.errors import FormatError
from formats.global_hold import GLOBAL_HOLD_KEY, GlobalHold, decode_global_hold, encode_global_hold
from offloader.errors import ErrorKind, NotFound, OffloaderError, StoreUnavailable
from offloader.store.base import ObjectStore

__all__ = ["DeletionStopped", "global_hold", "lift_global_hold", "require_no_global_hold", "set_global_hold"]


class DeletionStopped(OffloaderError):
    """Somebody stopped all deletion in the store. Nothing was deleted."""

    kind = ErrorKind.FIX_CALL


def global_hold(store: ObjectStore) -> GlobalHold | None:
    """The stop, ``None``: there is none. One that can't be read counts."""
    try:
        data, info = store.get(GLOBAL_HOLD_KEY)
    except NotFound:
        return None
    try:
        return decode_global_hold(data)
    except FormatError:
        return GlobalHold("somebody", info.modified_ms, f"{GLOBAL_HOLD_KEY} can't be read")


def require_no_global_hold(store: ObjectStore) -> None:
    """Raises ``DeletionStopped`` while there is a stop."""
    found = global_hold(store)
    if found is not None:
        raise DeletionStopped(
            f"all deletion in {store.url} is stopped by {found.by}: {found.reason}",
            hint="`offloader cleanup hold --all --off` lifts that",
        )


def set_global_hold(store: ObjectStore, *, by: str, reason: str, now_ms: int) -> None:
    """Stops all deletion from now on; what is under way ends before its next step."""
    store.put(GLOBAL_HOLD_KEY, encode_global_hold(GlobalHold(by, now_ms, reason)))


def lift_global_hold(store: ObjectStore) -> None:
    """Lifts the stop, if there is one."""
    failures = store.delete([GLOBAL_HOLD_KEY])
    if failures:
        raise StoreUnavailable(f"{GLOBAL_HOLD_KEY} in {store.url} wasn't deleted: {failures[0].reason}")
