"""The newest warnings and errors of the process, for who looks into it.

Owns which are kept and for how long. Must never keep a traceback or an object: text alone, bounded, and nothing that
isn't in the log too.

What the package logs as a warning or worse is what people should know of; the same thing said again is counted, not
kept again.
"""

from __future__ import annotations

import logging
import re
import threading
from collections import OrderedDict
from dataclasses import asdict, dataclass, replace
from typing import Any

from offloader.errors import OffloaderError

__all__ = ["ERRORS_KEPT", "RecentErrors", "TroubleSeen"]

#: Different messages that are kept; above it the one not said for longest goes.
ERRORS_KEPT = 200
#: Longest text that is kept of one.
TEXT_CHARS_MAX = 2000
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class TroubleSeen:
    """One message.

    Attributes:
        first_ms, last_ms: when it was said, ms since 1970 UTC.
        count: how often.
        level: ``warning`` or ``error``.
        stream: whose; empty: of the process.
        event: short name for programs (docs/OBSERVING.md); may be empty.
        message: one line.
        hint: what to do about it, where the message doesn't say; may be empty.
    """

    first_ms: int
    last_ms: int
    count: int
    level: str
    stream: str
    event: str
    message: str
    hint: str = ""

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return asdict(self)


class RecentErrors(logging.Handler):
    """A handler for the logger ``offloader``. Thread-safe.

    Args:
        kept_max: different messages that are kept.
    """

    def __init__(self, kept_max: int = ERRORS_KEPT) -> None:
        super().__init__(logging.WARNING)
        self._kept_max = kept_max
        self._seen: OrderedDict[tuple[str, str], TroubleSeen] = OrderedDict()
        self._guard = threading.Lock()

    def emit(self, record: logging.LogRecord) -> None:
        """Takes one record; never raises."""
        try:
            self._keep(record)
        except Exception:
            self.handleError(record)

    def _keep(self, record: logging.LogRecord) -> None:
        hint, text = "", record.getMessage()
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, OffloaderError):
            hint = error.hint
        if error is not None:
            text = (
                f"{text}: {error.message if isinstance(error, OffloaderError) else f'{type(error).__name__}: {error}'}"
            )
        message = " ".join(text.split())[:TEXT_CHARS_MAX]
        stream = str(getattr(record, "stream", ""))
        now_ms = int(record.created * 1000)
        # Numbers change from one time to the next: what is said is the same.
        key = stream, _NUMBER.sub("#", message)
        with self._guard:
            before = self._seen.pop(key, None)
            if before is None:
                before = TroubleSeen(
                    first_ms=now_ms, last_ms=now_ms, count=0, level="", stream=stream, event="", message=""
                )
            self._seen[key] = replace(
                before,
                last_ms=now_ms,
                count=before.count + 1,
                level=record.levelname.lower(),
                event=str(getattr(record, "event", "")),
                message=message,
                hint=hint,
            )
            while len(self._seen) > self._kept_max:
                self._seen.popitem(last=False)

    def newest(self, limit: int = ERRORS_KEPT, *, stream: str | None = None) -> list[TroubleSeen]:
        """The newest first; ``stream``: of that one only."""
        with self._guard:
            found = [each for each in reversed(self._seen.values()) if stream is None or each.stream == stream]
        return found[:limit]
