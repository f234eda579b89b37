"""The object at a store's root that stops all deletion while it is there.

Owns its bytes and its key. Must never be needed to be readable: that it is there is what counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from formats.sealed_json import from_json, opened, sealed, to_json

__all__ = ["GLOBAL_HOLD_FORMAT", "GLOBAL_HOLD_KEY", "GlobalHold", "decode_global_hold", "encode_global_hold"]

GLOBAL_HOLD_FORMAT = 1
#: No stream's name begins like this.
GLOBAL_HOLD_KEY = "_hold"


@dataclass(frozen=True, slots=True)
class GlobalHold:
    """Who stopped all deletion, when (ms since 1970 UTC) and why."""

    by: str
    since_ms: int
    reason: str


def encode_global_hold(hold: GlobalHold) -> bytes:
    """The bytes of the object."""
    return sealed({"format": GLOBAL_HOLD_FORMAT, **to_json(hold)})


def decode_global_hold(data: bytes) -> GlobalHold:
    """The hold in ``data``; raises ``FormatError``."""
    return cast(GlobalHold, from_json(GlobalHold, opened(data, GLOBAL_HOLD_FORMAT, GLOBAL_HOLD_KEY), GLOBAL_HOLD_KEY))
