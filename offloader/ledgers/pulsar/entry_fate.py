"""Why a stored entry wasn't given to a reader, as a broker's admin interface tells of that entry; pure.

Owns reading that answer. Must never take an entry for one that nobody gets unless the broker says why.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

__all__ = ["EntryFate", "fate_of"]

_MARKER, _ABORTED, _UNDECIDED = "x-pulsar-marker-type", "x-pulsar-txn-aborted", "x-pulsar-txn-uncommitted"
#: What a broker says of an entry that its bookies don't have; with 404 where the whole ledger is gone.
_NO_ENTRY = "message id not found"
_NOT_RECOVERABLE = "nonrecoverableledgerexception"


class EntryFate(enum.Enum):
    """What became of one entry."""

    #: Nobody gets it: a marker, or part of a transaction that was aborted.
    UNDELIVERED = "undelivered"
    #: The broker lists it, and its bookies don't have it any more.
    LOST = "lost"
    #: It is there like any other: whoever didn't get it has to get it yet.
    READABLE = "readable"
    #: This token may not ask.
    DENIED = "denied"
    #: This broker, or what stands before it, has no answer to this question.
    UNKNOWN = "unknown"


def fate_of(status: int, headers: Mapping[str, str], body: bytes) -> EntryFate | None:
    """What ``GET .../ledger/L/entry/E`` says; ``None``: it failed, and may answer later.

    The headers are those of brokers since 2.11; as seen at 4.0.7.

    Args:
        headers: by names in small letters.
        body: of an answer that isn't 200, its reason.
    """
    if status == 200:
        if _MARKER in headers or headers.get(_ABORTED) == "true":
            return EntryFate.UNDELIVERED
        # Earlier brokers say nothing of transactions: an aborted one looks like everything else.
        return EntryFate.READABLE if _UNDECIDED in headers else EntryFate.UNKNOWN
    reason = body.decode(errors="replace").lower()
    if (status == 404 and _NO_ENTRY in reason) or (status == 500 and _NOT_RECOVERABLE in reason):
        return EntryFate.LOST
    if status in (401, 403):
        return EntryFate.DENIED
    return EntryFate.UNKNOWN if status in (404, 405, 412) else None
