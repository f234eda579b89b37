"""Errors as problem details (RFC 9457), with their status.

A response never contains a traceback, a code path of this machine or a client's secret: unknown errors only refer to
the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from formats.errors import FormatError, Inconsistent
from offloader.errors import (
    AccessDenied,
    Closed,
    ErrorKind,
    LimitReached,
    OffloaderError,
    PreconditionFailed,
    Unsupported,
)
from offloader.manifest.state import StreamPaused
from offloader.service.auth import NotAllowed, NotAuthenticated

__all__ = ["BUG", "PROBLEM_JSON", "RETRY_AFTER_S", "problem_document", "problem_headers", "problem_of"]

#: Media type of every error.
PROBLEM_JSON = "application/problem+json"
#: Retry-After where a retry helps.
RETRY_AFTER_S = 1

#: The first match counts. A store that denies us access isn't the caller's fault.
_STATUS: tuple[tuple[type[OffloaderError], int], ...] = (
    (NotAuthenticated, 401),
    (NotAllowed, 403),
    (AccessDenied, 502),
    (PreconditionFailed, 409),
    (StreamPaused, 409),
    (Closed, 503),
    (LimitReached, 409),
    (Unsupported, 501),
)
_STATUS_OF_KIND = {
    ErrorKind.BUG: 500,
    ErrorKind.FIX_CALL: 400,
    ErrorKind.NOT_FOUND: 404,
    ErrorKind.RETRY_LATER: 503,
    ErrorKind.FENCED: 409,
    ErrorKind.REPAIR_DATA: 500,
    ErrorKind.OUTCOME_UNKNOWN: 503,
    ErrorKind.DENIED: 502,
}


def problem_document(
    status: int, detail: str, *, kind: ErrorKind | None = None, hint: str = "", **more: Any
) -> dict[str, Any]:
    """The members of a problem.

    Args:
        status: of the response.
        detail: one line: what, where, why.
        kind: the caller's remedy; default: by the status.
        hint: the remedy in words, one line.
        more: further members.
    """
    found = kind or {401: ErrorKind.DENIED, 403: ErrorKind.DENIED, 404: ErrorKind.NOT_FOUND}.get(status)
    if found is None:
        found = ErrorKind.RETRY_LATER if status in (408, 503, 504) else ErrorKind.FIX_CALL
        found = ErrorKind.BUG if status == 500 else found
    document = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": " ".join(detail.split()),
        "kind": found.name.lower(),
        "hint": hint,
    }
    return {**document, **more}


def problem_headers(document: Mapping[str, Any]) -> dict[str, str]:
    """Headers for a problem's status."""
    if document["status"] == HTTPStatus.UNAUTHORIZED:
        return {"www-authenticate": "Bearer"}
    return {"retry-after": str(RETRY_AFTER_S)} if document["status"] == HTTPStatus.SERVICE_UNAVAILABLE else {}


def problem_of(error: Exception) -> dict[str, Any] | None:
    """The problem of a package error; ``None``: another error, so a bug."""
    if isinstance(error, Inconsistent) and str(error).startswith("stream name"):
        return problem_document(400, str(error), hint="`/v1/streams` lists the streams")
    if isinstance(error, FormatError):
        return problem_document(500, str(error), kind=ErrorKind.REPAIR_DATA, hint="stored bytes are damaged")
    if not isinstance(error, OffloaderError):
        return None
    status = next((each for kind, each in _STATUS if isinstance(error, kind)), _STATUS_OF_KIND[error.kind])
    more = {
        name: str(value)
        for name in ("first_available", "last_available")
        if (value := getattr(error, name, None)) is not None
    }
    return problem_document(status, error.message, kind=error.kind, hint=error.hint, error=type(error).__name__, **more)


#: For an unexpected error; its details are only in the log.
BUG = problem_document(500, "this is a bug; the process's log has it", hint="report what the log says")
