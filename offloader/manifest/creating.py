"""Creating one record: a PUT, and as many repeats and looks as its outcome needs."""

from __future__ import annotations

from contextlib import suppress

from offloader.errors import NotFound, OffloaderError, OutcomeUnknown, PreconditionFailed, Throttled
from offloader.store.base import CREATE, ObjectStore

__all__ = ["NotWritten", "put_record", "stands_there"]

#: Times one commit repeats a record whose outcome is unknown before it reports that.
UNKNOWN_REPEATS_MAX = 5


class NotWritten(Exception):
    """A record was refused before anything was written, with ``error``."""

    def __init__(self, error: OffloaderError) -> None:
        super().__init__(str(error))
        self.error = error


def put_record(store: ObjectStore, key: str, body: bytes, *, repeated: bool) -> bool:
    """Creates the record ``body`` under ``key``; False when another one is there.

    Args:
        repeated: an earlier call sent the same bytes and may have written them.

    Raises:
        NotWritten: it was refused, and isn't there.
        OffloaderError: any other: it may be there, or come yet.
    """
    for attempt in range(UNKNOWN_REPEATS_MAX + 1):
        try:
            store.put(key, body, mode=CREATE)
        except PreconditionFailed:
            return stands_there(store, key, body)
        except OutcomeUnknown:
            # Neither building another record nor believing a 404 is safe: the PUT may still land.
            if attempt == UNKNOWN_REPEATS_MAX:
                raise
            repeated = True
        except OffloaderError as error:
            # An answer that says no may be wrong: of a server in conflict with itself, of a gateway that sent it twice.
            found = None if isinstance(error, Throttled) else _found(store, key)
            if found is not None:
                return found == body
            if isinstance(error, NotFound) or repeated:
                raise  # no server refuses a PUT so: it stays in doubt
            raise NotWritten(error) from error
        else:
            return True
    raise AssertionError("the last repeat raises")


def stands_there(store: ObjectStore, key: str, body: bytes) -> bool:
    """Whether the record under ``key`` is this one."""
    try:
        return store.get(key)[0] == body
    except NotFound:
        return False  # it was there and is deleted: the boundary has passed it


def _found(store: ObjectStore, key: str) -> bytes | None:
    """What stands there; ``None``: nothing, or nobody says."""
    with suppress(OffloaderError):
        return store.get(key)[0]
    return None
