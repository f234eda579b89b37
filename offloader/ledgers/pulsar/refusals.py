"""What a broker's error codes mean for a caller.

Owns that table. Must never hide a broker's own words.
"""

from __future__ import annotations

from offloader.errors import (
    AccessDenied,
    InvalidCall,
    NotFound,
    OffloaderError,
    StoreUnavailable,
    Throttled,
    Unsupported,
)

__all__ = ["NameTaken", "refusal"]


class NameTaken(StoreUnavailable):
    """A producer of that name is connected to the topic; or the topic has as many producers as it may."""


#: Brokers answer whole stack traces.
MESSAGE_CHARACTERS_MAX = 300

#: Code of Pulsar's ``ServerError`` -> its name, and the error here. Codes that aren't listed pass by themselves, as far
#: as anybody knows: it is tried again.
_KINDS: dict[int, tuple[str, type[OffloaderError]]] = {
    0: ("unknown error", StoreUnavailable),
    1: ("metadata error", StoreUnavailable),
    2: ("persistence error", StoreUnavailable),
    3: ("authentication failed", AccessDenied),
    4: ("not authorized", AccessDenied),
    5: ("another consumer is connected", StoreUnavailable),
    6: ("not ready", StoreUnavailable),
    7: ("the topic's backlog quota is used up", StoreUnavailable),
    8: ("the topic's backlog quota is used up", StoreUnavailable),
    9: ("the checksum is wrong", StoreUnavailable),
    10: ("unsupported version", Unsupported),
    11: ("no such topic", NotFound),
    12: ("no such subscription", NotFound),
    13: ("no such consumer", StoreUnavailable),
    14: ("too many requests", Throttled),
    15: ("the topic was terminated", InvalidCall),
    16: ("a producer of that name is connected", NameTaken),
    17: ("no topic's name", InvalidCall),
    18: ("another schema", InvalidCall),
    19: ("consumer not assigned", StoreUnavailable),
    22: ("not allowed", InvalidCall),
}


def refusal(broker: str, command: str, code: int, message: str) -> OffloaderError:
    """The error that a broker answered.

    Args:
        broker: its address.
        command: what it was asked.
        code: of Pulsar's ``ServerError``.
        message: its words; only their first line, and not too much of it, is repeated.
    """
    name, kind = _KINDS.get(code, (f"error {code}", StoreUnavailable))
    words = (message.strip().splitlines() or [""])[0][:MESSAGE_CHARACTERS_MAX]
    hint = "set a token that may do this" if kind is AccessDenied else ""
    return kind(f"{broker} refused {command}: {name}{': ' if words else ''}{words}", hint=hint)
