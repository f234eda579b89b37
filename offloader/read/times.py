"""Times as people write them, in ms since 1970 UTC.

Owns which notations are understood. Must never depend on the machine's own time zone.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from offloader.errors import InvalidCall

__all__ = ["time_ms_of", "time_text"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Eight digits are a date in ISO's compact form, not a moment of 1 January 1970.
_MILLISECONDS = re.compile(r"(?!\d{8}$)-?\d{1,18}")
_MILLISECOND = timedelta(milliseconds=1)


def time_ms_of(text: str, *, option: str) -> int:
    """``"2013-07-04T12:00:00Z"``, ``"2013-07-04"`` (UTC where no zone is given) or ``"1372939200000"`` -> ms.

    Raises:
        InvalidCall: anything else; names ``option``.
    """
    given = text.strip()
    if _MILLISECONDS.fullmatch(given):
        return int(given)
    try:
        when = datetime.fromisoformat(given)
    except ValueError as cause:
        raise InvalidCall(
            f"{option}: {text!r} is not a time", hint="write 2013-07-04T12:00:00Z, 2013-07-04 (UTC) or ms since 1970"
        ) from cause
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    # Rounded up: the bounds mean "at this time or later", and entries have whole milliseconds.
    return -((_EPOCH - when) // _MILLISECOND)


def time_text(time_ms: int) -> str:
    """``1372939200000`` -> ``"2013-07-04T12:00:00.000Z"``; a time outside of the calendar stays a number."""
    try:
        when = _EPOCH + timedelta(milliseconds=time_ms)
    except OverflowError:
        return str(time_ms)
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")
