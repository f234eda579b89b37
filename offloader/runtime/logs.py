"""Structured logs: one JSON object per line, or a plain line.

Importing the module doesn't configure logging. Line breaks in values are escaped, so that a value can't split a line.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import TextIO

#: The standard attributes of a record; others come from ``extra=``.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


#: Characters that some parsers treat as line breaks and JSON doesn't escape.
_LINE_BREAKS = {ord(sign): f"\\u{ord(sign):04x}" for sign in "\x7f\x85\u2028\u2029"}
_CONTROLS = {code: f"\\u{code:04x}" for code in range(32)} | _LINE_BREAKS | {10: "\\n", 13: "\\r", 9: "\\t"}


class JsonLines(logging.Formatter):
    """A record as one line of JSON.

    Fields: ``time`` (UTC, ISO 8601 with milliseconds), ``level``, ``logger``, ``message``; the caller's ``extra``
    fields; ``error`` (class and message) and ``traceback`` of a logged exception. ``extra`` can't replace the first
    four. Line breaks inside values are escaped.
    """

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields |= {name: value for name, value in vars(record).items() if name not in _STANDARD and name not in fields}
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            fields["error"] = f"{type(error).__name__}: {error}"
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False, default=str).translate(_LINE_BREAKS)


class PlainLines(logging.Formatter):
    """A record as ``TIME LEVEL message``, for people; a traceback follows on its own lines.

    Line breaks are escaped as in JSON.
    """

    def format(self, record: logging.LogRecord) -> str:
        line = f"{_time(record)} {record.levelname:7} {record.getMessage().translate(_CONTROLS)}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def log_to(stream: TextIO, *, level: str = "INFO", as_json: bool = True) -> logging.Handler:
    """Sends the package's logs to ``stream``; other loggers are not changed.

    Args:
        as_json: one JSON object per line; otherwise plain text.

    Returns:
        The handler, for ``logging.getLogger("offloader").removeHandler``.
    """
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines() if as_json else PlainLines())
    logger = logging.getLogger("offloader")
    logger.addHandler(handler)
    logger.setLevel(level)
    return handler
