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
from offloader.owner_client import NotOwner
from offloader.read.ledger_plan import LedgerMismatch, LedgerTrimmed
from offloader.service.auth import NotAllowed, NotAuthenticated

#: Media type of every error.
PROBLEM_JSON = "application/problem+json"

#: The first match counts. A store that denies us access isn't the caller's fault.
_STATUS: tuple[tuple[type[OffloaderError], int], ...] = (
    (NotAuthenticated, 401),
    (NotAllowed, 403),
    (LedgerTrimmed, 410),
    (LedgerMismatch, 409),
    (NotOwner, 421),
    (AccessDenied, 502),
    (PreconditionFailed, 409),
    (StreamPaused, 409),
    (Closed, 503),
    (LimitReached, 409),
    (Unsupported, 501),
)
_STATUS_OF_KIND = {
    ErrorKind.BUG: 500,
    ErrorKind.INVALID_REQUEST: 400,
    ErrorKind.NOT_FOUND: 404,
    ErrorKind.RETRY_LATER: 503,
    ErrorKind.FENCED: 409,
    ErrorKind.DATA_CORRUPTION: 500,
    ErrorKind.OUTCOME_UNKNOWN: 503,
    ErrorKind.DENIED: 502,
}
#: Kinds that only brokers' requests have, each with its own remedy.
_BROKER_KINDS: tuple[tuple[type[OffloaderError], str], ...] = (
    (LedgerTrimmed, "trimmed"),
    (LedgerMismatch, "source_mismatch"),
    (NotOwner, "not_owner"),
)
#: Of errors without a kind; others are an invalid request.
_KIND_OF_STATUS = {
    **dict.fromkeys((401, 403), ErrorKind.DENIED),
    404: ErrorKind.NOT_FOUND,
    **dict.fromkeys((408, 503, 504), ErrorKind.RETRY_LATER),
    500: ErrorKind.BUG,
}


def problem_document(
    status: int, detail: str, *, kind: ErrorKind | None = None, hint: str = "", **more: Any
) -> dict[str, Any]:
    """The members of a problem.

    Args:
        detail: one line: what, where, why.
        kind: the caller's remedy; default: by the status.
        hint: the remedy in words, one line.
        more: further members.
    """
    kind = kind or _KIND_OF_STATUS.get(status, ErrorKind.INVALID_REQUEST)
    return {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": " ".join(detail.split()),
        "kind": kind.name.lower(),
        "hint": hint,
        "retryable": kind is ErrorKind.RETRY_LATER,
        **more,
    }


def problem_headers(document: Mapping[str, Any]) -> dict[str, str]:
    """Headers for a problem's status."""
    if document["status"] == HTTPStatus.UNAUTHORIZED:
        return {"www-authenticate": "Bearer"}
    return {"retry-after": "1"} if document["status"] == HTTPStatus.SERVICE_UNAVAILABLE else {}


def problem_of(error: Exception) -> dict[str, Any] | None:
    """The problem of a package error; ``None``: another error, so a bug."""
    if isinstance(error, Inconsistent) and str(error).startswith("stream name"):
        return problem_document(400, str(error), hint="`/v1/streams` lists the streams")
    if isinstance(error, FormatError):
        return problem_document(500, str(error), kind=ErrorKind.DATA_CORRUPTION, hint="stored bytes are damaged")
    if not isinstance(error, OffloaderError):
        return None
    status = next((each for kind, each in _STATUS if isinstance(error, kind)), _STATUS_OF_KIND[error.kind])
    more = {
        name: str(value)
        for name in ("first_available", "last_available", "owner")
        if (value := getattr(error, name, None)) is not None
    }
    found = problem_document(
        status, error.message, kind=error.kind, hint=error.hint, error=type(error).__name__, **more
    )
    of_broker = next((name for kind, name in _BROKER_KINDS if isinstance(error, kind)), None)
    return found if of_broker is None else {**found, "kind": of_broker}


#: For an unexpected error; its details are only in the log.
BUG = problem_document(500, "this is a bug; the process's log has it", hint="report what the log says")
