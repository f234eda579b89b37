"""Error kinds, each with a remedy and an exit code.

Every intended error of the package is in this tree, except ``formats.errors``, which callers translate. An error keeps
its cause (``raise ... from``).

Where one fits, a class is also one of Python's own kinds: a caller's mistake is a ``ValueError``, an absent object or
position a ``LookupError``, denied access a ``PermissionError``. So ``except ValueError`` and ``except OSError`` catch
them: around a call that may raise one, such a clause comes after ``except OffloaderError: raise``. Damage, fencing and
an unavailable store are none of Python's kinds, so that no handler of another problem catches them.
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
    "AccessDeniedError",
    "BeyondEndError",
    "BucketMissingError",
    "ClosedError",
    "CorruptError",
    "ErrorKind",
    "ExecutorLostError",
    "FencedError",
    "InvalidCallError",
    "LimitReachedError",
    "NotFoundError",
    "ObjectChangedError",
    "ObjectMissingError",
    "OffloaderError",
    "OutcomeUnknownError",
    "OverloadedError",
    "PreconditionFailedError",
    "ReaderExpiredError",
    "SourceMismatchError",
    "StoreMismatchError",
    "StoreUnavailableError",
    "ThrottledError",
    "TrimmedError",
    "UnsupportedError",
    "install_hint",
    "plain_reason",
]


def install_hint(extra: str) -> str:
    """Instruction to install an extra from a checkout, as in README. No package index has this project."""
    return f"in a checkout of offloader: pip install -c constraints.txt '.[{extra}]'"


#: Error class of a failed connection -> its cause as text.
_REASONS: dict[type[BaseException], str] = {
    ConnectionRefusedError: "connection refused",
    ConnectionError: "connection closed by the peer",
    socket.gaierror: "host name not found",
}
_UNREACHABLE = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN)
#: Maximum number of causes to examine.
_CAUSES_MAX = 20


def plain_reason(error: BaseException, answer_s: float | None = None) -> str:
    """The cause of a failed connection as short text, without a library's wording: ``connection refused``.

    Args:
        error: with its causes; an error that isn't about a connection is described by its own text.
        answer_s: the timeout of the call, for ``no answer within 5 s``.
    """
    causes = list(_causes(error))
    # Don't load it here, which takes long: without it, no error can be of its classes.
    ssl: Any = sys.modules.get("ssl")
    for each in causes:
        if ssl and isinstance(each, ssl.SSLCertVerificationError):
            return f"certificate verification failed: {each.verify_message}"
        if isinstance(each, OSError) and each.errno in _UNREACHABLE:
            return "no route to host"
        found = next((text for kind, text in _REASONS.items() if isinstance(each, kind)), "")
        if found:
            return found
        if ssl and isinstance(each, ssl.SSLError):
            return f"TLS handshake failed: {(each.reason or 'unknown reason').lower().replace('_', ' ')}"
    if any("timeout" in f"{type(each).__name__}".lower() for each in causes):
        return "no answer" if answer_s is None else f"no answer within {answer_s:g} s"
    return one_line(error.message if isinstance(error, OffloaderError) else str(error) or type(error).__name__)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error and its causes, the nearest first."""
    waiting, seen = [error], set[int]()
    while waiting and len(seen) < _CAUSES_MAX:
        each = waiting.pop(0)
        if id(each) not in seen:
            seen.add(id(each))
            yield each
            waiting += [cause for cause in (each.__cause__, each.__context__) if cause is not None]


class ErrorKind(enum.Enum):
    """Kind of an error by its remedy; the value is the process's exit code."""

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
        """The remedy for an error of this kind."""
        return _ADVICE[self]


_ADVICE = {
    ErrorKind.BUG: "report it with the output of `--debug`",
    ErrorKind.INVALID_REQUEST: "change the command, the settings or the input; nothing was changed",
    ErrorKind.NOT_FOUND: "the stream, bucket, object or position doesn't exist; check the name",
    ErrorKind.RETRY_LATER: "the store or source gave no usable response; retry later",
    ErrorKind.FENCED: "another owner has the stream; stop, and find it with `offloader status`",
    ErrorKind.DATA_CORRUPTION: "stored data is damaged or missing: run `offloader verify --deep`, restore a copy",
    ErrorKind.OUTCOME_UNKNOWN: "a write may or may not have happened; check its result before you repeat it",
    ErrorKind.DENIED: "credentials or permissions are wrong; correct them and repeat",
}


class OffloaderError(Exception):
    """Base of all intended errors.

    Args:
        message: one line: what failed, on which object (stream, object, position, setting and file), why.
        hint: the remedy in one line; may be empty.
    """

    kind: ClassVar[ErrorKind] = ErrorKind.BUG

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = one_line(message)
        self.hint = one_line(hint)

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def __reduce__(self) -> tuple[object, ...]:
        return _unpickled, (type(self), self.message), self.__dict__

    @property
    def retryable(self) -> bool:
        """Whether the same call may succeed later without any change."""
        return self.kind is ErrorKind.RETRY_LATER

    @property
    def exit_code(self) -> int:
        return self.kind.value

    @property
    def label(self) -> str:
        """Value of a metric's label: the name without its ending, ``ClockSkew``."""
        return type(self).__name__.removesuffix("Error")


def _unpickled(kind: type[OffloaderError], message: str) -> OffloaderError:
    """An error without a call of its constructor, whose arguments differ between classes."""
    error = kind.__new__(kind, message)
    error.args = (message,)  # ``OSError`` leaves this to its constructor
    return error


class InvalidCallError(OffloaderError, ValueError):
    """The call, setting or input is wrong; nothing was changed."""

    kind = ErrorKind.INVALID_REQUEST


class UnsupportedError(InvalidCallError):
    """The store or source doesn't support the operation."""


@contextmanager
def needs_extra(extra: str, what: str) -> Iterator[None]:
    """Context for imports of packages of the extra ``extra``.

    Args:
        what: the feature that needs them, for the message: ``"the command line"``.

    Raises:
        UnsupportedError: a package isn't installed.
    """
    try:
        yield
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        raise UnsupportedError(
            f"{what} needs the package {package}, which isn't installed", hint=install_hint(extra)
        ) from error


@contextmanager
def parsing(message: str, hint: str = "") -> Iterator[None]:
    """Context for parsing a caller's input.

    Raises ``InvalidCallError`` with this message instead of a ``ValueError``.
    """
    try:
        yield
    except OffloaderError:
        raise
    except ValueError as error:
        raise InvalidCallError(message, hint=hint) from error


class LimitReachedError(InvalidCallError):
    """A named limit would be exceeded."""


class ClosedError(InvalidCallError):
    """The object was closed before this call."""


class NotFoundError(OffloaderError, LookupError):
    """A stream, bucket, object or file doesn't exist."""

    kind = ErrorKind.NOT_FOUND


class BucketMissingError(OffloaderError, LookupError):
    """A bucket or directory doesn't exist. Not a ``NotFoundError``: handlers of an absent object must not catch it."""

    kind = ErrorKind.NOT_FOUND


class AccessDeniedError(OffloaderError, PermissionError):
    """Credentials or permissions are wrong."""

    kind = ErrorKind.DENIED


class StoreUnavailableError(OffloaderError):
    """The store gave no usable response, and the call changed nothing."""

    kind = ErrorKind.RETRY_LATER


class ThrottledError(StoreUnavailableError):
    """The store asks for fewer requests (503 SlowDown and similar)."""


class ExecutorLostError(OffloaderError):
    """A process of a job was lost; its results are unknown and ignored."""

    kind = ErrorKind.RETRY_LATER


class OutcomeUnknownError(OffloaderError):
    """A write was sent and its outcome is unknown. Read the state before deciding."""

    kind = ErrorKind.OUTCOME_UNKNOWN


class OverloadedError(OutcomeUnknownError):
    """A write got a 503 response: it may have happened, and the store asks for fewer requests."""


class PreconditionFailedError(OffloaderError):
    """The precondition of a conditional put failed: the key exists, or its ETag is another."""

    kind = ErrorKind.INVALID_REQUEST


class FencedError(OffloaderError):
    """A newer owner has the stream: stop, and delete nothing."""

    kind = ErrorKind.FENCED


class ReaderExpiredError(FencedError):
    """The reader group reassigned this reader's partitions: it was inactive too long, or its name joined again."""


class CorruptError(OffloaderError):
    """Stored bytes are damaged; the message has object, range, expected and found."""

    kind = ErrorKind.DATA_CORRUPTION


class SourceMismatchError(OffloaderError):
    """A hot tier isn't the recorded source, or has lost entries."""

    kind = ErrorKind.DATA_CORRUPTION


class StoreMismatchError(SourceMismatchError):
    """A store isn't the one to which a hot tier has committed: another, an emptied or an older one."""


class ObjectMissingError(OffloaderError):
    """An object of the manifest isn't in the store."""

    kind = ErrorKind.DATA_CORRUPTION


class ObjectChangedError(OffloaderError):
    """An object differs from the manifest's record."""

    kind = ErrorKind.DATA_CORRUPTION


class TrimmedError(OffloaderError, LookupError):
    """Retention deleted the position; the stream begins at ``first_available``."""

    kind = ErrorKind.NOT_FOUND

    def __init__(self, message: str, *, first_available: object = None, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.first_available = first_available


class BeyondEndError(OffloaderError, LookupError):
    """The position is after the last readable entry, ``last_available``."""

    kind = ErrorKind.NOT_FOUND

    def __init__(self, message: str, *, last_available: object = None, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.last_available = last_available
