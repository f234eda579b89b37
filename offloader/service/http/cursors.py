"""Where the next page of a list goes on, as a text that clients hand back.

Owns its form, which nobody may rely on. Must never let a place in one list stand for one in another.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac

from offloader.errors import InvalidCall

__all__ = ["CURSOR_CHARS_MAX", "place_of", "write_cursor"]

#: A place holds a stream's name.
CURSOR_CHARS_MAX = 4096
_CHECK_BYTES = 6


def write_cursor(place: str | None, *of: str) -> str | None:
    """The cursor of a place in the list that ``of`` says: its path, order and filters; ``None``: the list ends."""
    if place is None:
        return None
    return base64.urlsafe_b64encode(_check(of) + place.encode()).rstrip(b"=").decode()


def place_of(cursor: str, *of: str) -> str:
    """The place where a page begins; empty for an empty cursor: the first one.

    Raises:
        InvalidCall: it isn't a cursor of this list.
    """
    if not cursor:
        return ""
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), b"-_", validate=True)
        check, place = raw[:_CHECK_BYTES], raw[_CHECK_BYTES:].decode()
    except (ValueError, binascii.Error):
        check, place = b"", ""
    if len(cursor) > CURSOR_CHARS_MAX or not place or not hmac.compare_digest(check, _check(of)):
        raise InvalidCall(
            "cursor: no place in this list", hint="take next_cursor of the page before, with the same filters"
        )
    return place


def _check(of: tuple[str, ...]) -> bytes:
    return hashlib.sha256("\0".join(of).encode()).digest()[:_CHECK_BYTES]
