"""Error kinds, each with the caller's remedy and an exit code.

Every intended error of the package is in this tree, except ``formats.errors``, which the callers translate. An error
keeps its cause (``raise ... from``).
"""

from __future__ import annotations

import enum
import errno
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from formats.errors import one_line

__all__ = [
    "AccessDenied",
    "BeyondEnd",
    "BucketMissing",
    "Closed",
    "Corrupt",
    "ErrorKind",
    "ExecutorLost",
    "Fenced",
    "InvalidCall",
    "LimitReached",
    "NotFound",
    "ObjectChanged",
    "ObjectMissing",
    "OffloaderError",
    "OutcomeUnknown",
    "Overloaded",
    "PreconditionFailed",
    "ReaderExpired",
    "SourceMismatch",
    "StoreMismatch",
    "StoreUnavailable",
    "Throttled",
    "Trimmed",
    "Unsupported",
    "install_hint",
    "plain_reason",
]


def install_hint(extra: str) -> str:
    """Instruction to install an extra from a checkout, as in README. No package index has this project."""
    return f"in a checkout of offloader: pip install -c constraints.txt '.[{extra}]'"


#: What an operating system says about a connection -> the same in plain words.
_REASONS: dict[type[BaseException], str] = {
    ConnectionRefusedError: "connection refused",
    ConnectionError: "the connection was cut",
    socket.gaierror: "no such host name",
}
_UNREACHABLE = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN)
#: Causes of causes that are looked at.
_CAUSES_MAX = 20


def plain_reason(error: BaseException, answer_s: float | None = None) -> str:
    """Why a connection failed, in plain words and without a library's text: ``connection refused``.

    Args:
        error: with its causes; one that isn't about a connection is described by its own text.
        answer_s: the call's limit, for ``no answer within 5 s``.
    """
    causes = list(_causes(error))
    # Where nothing has loaded it, which takes long, no error is one of its.
    ssl: Any = sys.modules.get("ssl")
    for each in causes:
        if ssl and isinstance(each, ssl.SSLCertVerificationError):
            return f"its certificate isn't good: {each.verify_message}"
        if isinstance(each, OSError) and each.errno in _UNREACHABLE:
            return "no way to that address"
        found = next((text for kind, text in _REASONS.items() if isinstance(each, kind)), "")
        if found:
            return found
        if ssl and isinstance(each, ssl.SSLError):
            return f"it speaks no TLS that fits: {(each.reason or 'unknown reason').lower().replace('_', ' ')}"
    if any("timeout" in f"{type(each).__name__}".lower() for each in causes):
        return "no answer" if answer_s is None else f"no answer within {answer_s:g} s"
    return one_line(error.message if isinstance(error, OffloaderError) else str(error) or type(error).__name__)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error and what it came from, the nearest first."""
    waiting, seen = [error], set[int]()
    while waiting and len(seen) < _CAUSES_MAX:
        each = waiting.pop(0)
        if id(each) not in seen:
            seen.add(id(each))
            yield each
            waiting += [cause for cause in (each.__cause__, each.__context__) if cause is not None]


class ErrorKind(enum.Enum):
    """The caller's remedy; the value is the process's exit code."""

    BUG = 1
    INVALID_REQUEST = 2
    NOT_FOUND = 3
    RETRY_LATER = 4
    FENCED = 5
    DATA_CORRUPTION = 6
    OUTCOME_UNKNOWN = 7
    DENIED = 8

    @property
    def advice(self) -> str:
        """Remedy for an error of this kind, as text."""
        return _ADVICE[self]


_ADVICE = {
    ErrorKind.BUG: "report it, with what `--debug` prints",
    ErrorKind.INVALID_REQUEST: "change the command, the settings or the input; nothing was changed",
    ErrorKind.NOT_FOUND: "the stream, bucket, object or position isn't there: look at the name",
    ErrorKind.RETRY_LATER: "the store or source didn't answer usefully; try again later",
    ErrorKind.FENCED: "a newer owner has the stream; stop, and look who it is with `offloader status`",
    ErrorKind.DATA_CORRUPTION: "stored bytes are damaged or gone: `offloader verify --deep` names them; restore a copy",
    ErrorKind.OUTCOME_UNKNOWN: "a write may or may not have happened; look before you repeat it",
    ErrorKind.DENIED: "credentials or permissions are wrong: mend them, then repeat",
}


class OffloaderError(Exception):
    """Base of all intended errors.

    Args:
        message: one line: what, where (stream, object, position, setting and file), why.
        hint: the remedy, one line, may be empty.
    """

    kind: ClassVar[ErrorKind] = ErrorKind.BUG

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = one_line(message)
        self.hint = one_line(hint)

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def __reduce__(self) -> tuple[object, ...]:
        return type(self).__new__, (type(self), self.message), self.__dict__

    @property
    def retryable(self) -> bool:
        """Whether the same call may succeed later without any change."""
        return self.kind is ErrorKind.RETRY_LATER

    @property
    def exit_code(self) -> int:
        return self.kind.value


class InvalidCall(OffloaderError):
    """The call, setting or input is wrong; nothing was changed."""

    kind = ErrorKind.INVALID_REQUEST


class Unsupported(InvalidCall):
    """The store or source doesn't support the operation."""


@contextmanager
def needs_extra(extra: str, what: str) -> Iterator[None]:
    """Context for imports of packages that the extra ``extra`` brings.

    Args:
        what: what needs them, for the message: ``"the command line"``.

    Raises:
        Unsupported: one isn't installed.
    """
    try:
        yield
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        raise Unsupported(
            f"{what} needs the package {package}, which isn't installed", hint=install_hint(extra)
        ) from error


@contextmanager
def parsing(message: str, hint: str = "") -> Iterator[None]:
    """Context that reads what a caller gave. Raises ``InvalidCall`` with this message instead of a ``ValueError``."""
    try:
        yield
    except ValueError as error:
        raise InvalidCall(message, hint=hint) from error


class LimitReached(InvalidCall):
    """A named limit would be exceeded."""


class Closed(InvalidCall):
    """The object was closed before this call."""


class NotFound(OffloaderError):
    """A stream, bucket, object or file doesn't exist."""

    kind = ErrorKind.NOT_FOUND


class BucketMissing(OffloaderError):
    """No such bucket or directory. Not a ``NotFound``, so that handlers of an absent object don't catch it."""

    kind = ErrorKind.NOT_FOUND


class AccessDenied(OffloaderError):
    """Credentials or permissions are wrong."""

    kind = ErrorKind.DENIED


class StoreUnavailable(OffloaderError):
    """The store gave no usable response, and the call changed nothing."""

    kind = ErrorKind.RETRY_LATER


class Throttled(StoreUnavailable):
    """The store asks for fewer requests (503 SlowDown and similar)."""


class ExecutorLost(OffloaderError):
    """A process of a job was lost; its work is unknown and doesn't count."""

    kind = ErrorKind.RETRY_LATER


class OutcomeUnknown(OffloaderError):
    """A write was sent and its outcome is unknown. Read the state before deciding."""

    kind = ErrorKind.OUTCOME_UNKNOWN


class Overloaded(OutcomeUnknown):
    """A write got a 503 response: it may have happened, and the store asks for fewer requests."""


class PreconditionFailed(OffloaderError):
    """The precondition of a conditional put failed: the key exists, or its ETag is another."""

    kind = ErrorKind.INVALID_REQUEST


class Fenced(OffloaderError):
    """A newer owner has the stream: stop, and delete nothing."""

    kind = ErrorKind.FENCED


class ReaderExpired(Fenced):
    """A reader group gave this reader's partitions to others: it was silent for too long, or its name joined again."""


class Corrupt(OffloaderError):
    """Stored bytes are damaged; the message has object, range, expected and found."""

    kind = ErrorKind.DATA_CORRUPTION


class SourceMismatch(OffloaderError):
    """A hot tier isn't the recorded source, or has lost entries."""

    kind = ErrorKind.DATA_CORRUPTION


class StoreMismatch(SourceMismatch):
    """A store isn't the one that a hot tier has committed to: another, an emptied or an older one."""


class ObjectMissing(OffloaderError):
    """An object of the manifest isn't in the store."""

    kind = ErrorKind.DATA_CORRUPTION


class ObjectChanged(OffloaderError):
    """An object differs from the manifest's record."""

    kind = ErrorKind.DATA_CORRUPTION


class Trimmed(OffloaderError):
    """Retention deleted the position; the stream begins at ``first_available``."""

    kind = ErrorKind.NOT_FOUND

    def __init__(self, message: str, *, first_available: object = None, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.first_available = first_available


class BeyondEnd(OffloaderError):
    """The position is after the last readable entry, ``last_available``."""

    kind = ErrorKind.NOT_FOUND

    def __init__(self, message: str, *, last_available: object = None, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.last_available = last_available
