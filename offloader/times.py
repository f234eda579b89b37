"""Text forms of times, of milliseconds since 1970 and of durations: one parser for every option that takes a time."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from operator import index

from offloader.errors import InvalidCallError
from offloader.runtime.clock import SystemClock
from offloader.settings.fields import DURATION

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Eight digits are a date in ISO's compact form, not a time of 1 January 1970.
_MILLISECONDS = re.compile(r"(?!\d{8}$)-?\d{1,18}")
_UNIT = "ms"
#: First millisecond of the year 1, and last one of the year 9999: other publish times are null in tables of every kind,
#: because Python and most engines can't represent them.
TABLE_TIME_MS_MIN, TABLE_TIME_MS_MAX = -62_135_596_800_000, 253_402_300_799_999
#: The accepted forms, for messages and help texts.
TIME_FORMS = "2013-07-04T12:00:00Z, 2013-07-04 (UTC without a zone), -1h (an hour ago) or ms since 1970"


def time_ms_of(text: str, *, option: str, now_ms: int) -> int:
    """A time in milliseconds since 1970 UTC.

    ``2013-07-04T12:00:00+02:00`` is a time in ISO 8601; without a zone it is in UTC, never in the machine's zone.
    ``2013-07-04`` is the start of that day in UTC. ``-1h``, ``-30m``, ``-1d`` (units: ms, s, m, h, d) means that
    long before now. ``1372939200000`` is the number itself.

    Args:
        option: its name for errors: ``--since``.
        now_ms: the base of ``-1h``. Read the clock once per call, so that two times have the same base.

    Raises:
        InvalidCallError: anything else; names ``option``.
    """
    given = text.strip()
    if _MILLISECONDS.fullmatch(given):
        return int(given)
    try:
        if given.startswith("-"):
            # Round up here too: bounds mean "at this time or later".
            return now_ms - int(DURATION.parse(given[1:], _UNIT))
        when = datetime.fromisoformat(given)
    except ValueError as cause:
        raise InvalidCallError(f"{option}: {text!r} is not a time", hint=f"accepted forms: {TIME_FORMS}") from cause
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    # Round up: entries have whole milliseconds.
    return -((_EPOCH - when) // timedelta(milliseconds=1))


def is_relative(text: str) -> bool:
    """Whether a time in a form of ``time_ms_of`` depends on the current time: ``-1h``."""
    return text.strip().startswith("-") and not _MILLISECONDS.fullmatch(text.strip())


def moment_ms(given: int | str | datetime, *, what: str) -> int:
    """A time as a program passes it, in milliseconds since 1970 UTC: such a number, a time with or without a zone (then
    UTC), or a text as ``time_ms_of`` takes it, ``-1h`` counting back from now. Raises ``InvalidCallError`` as that
    does."""
    if isinstance(given, datetime):
        given = given.isoformat()
    # Other values are numbers, possibly of NumPy.
    return time_ms_of(given, option=what, now_ms=SystemClock().now_ms()) if isinstance(given, str) else index(given)


def time_text(time_ms: int) -> str:
    """``1372939200000`` -> ``"2013-07-04T12:00:00.000Z"``; a time outside of the calendar is left as a number."""
    try:
        when = _EPOCH + timedelta(milliseconds=time_ms)
    except OverflowError:
        return str(time_ms)
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def duration_text(seconds: float) -> str:
    """``7200`` -> ``"2.0 h"``; up to two of a unit in the next smaller one."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"
