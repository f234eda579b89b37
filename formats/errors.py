"""Exceptions for undecodable bytes.

Decoders raise only subclasses of ``FormatError`` for bad input.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


def one_line(text: str) -> str:
    """``text`` as one line of printable characters, for untrusted bytes and messages of other programs.

    Line ends and tabs become spaces, other unprintable characters an escape.
    """
    if text.isprintable():
        return text
    words = " ".join(text.split())
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in words)


class FormatError(Exception):
    """Bytes that don't decode.

    Args:
        object_name: the object or file the bytes came from, empty when unknown.
        offset: where in that object, in bytes; ``None`` without a single place.
    """

    def __init__(
        self,
        problem: str,
        *,
        object_name: str = "",
        offset: int | None = None,
        expected: object = None,
        found: object = None,
    ) -> None:
        self.problem = problem
        self.object_name = object_name
        self.offset = offset
        self.expected = expected
        self.found = found
        super().__init__(problem)

    def __str__(self) -> str:
        return one_line(self.described(f" in {self.object_name}" if self.object_name else ""))

    def described(self, where: str = "") -> str:
        """The problem, ``where``, the offset and the two values; may hold characters that can't be printed."""
        at = "" if self.offset is None else f" at byte {self.offset}"
        values = f": expected {self.expected}, found {self.found}"
        return f"{self.problem}{where}{at}{'' if self.expected is self.found is None else values}"


@contextmanager
def located(object_name: str, offset: int | None = None) -> Iterator[None]:
    """Adds to each ``FormatError`` raised in the context where the bytes are from.

    Args:
        object_name: the object or file, for errors that name none; empty when unknown.
        offset: where in it the bytes begin, which an error's own offset counts from; ``None``: at its beginning, so
            that errors without an offset get none.
    """
    try:
        yield
    except FormatError as error:
        error.object_name = error.object_name or object_name
        if offset is not None:
            error.offset = offset + (error.offset or 0)
        raise


class TruncatedError(FormatError):
    """The bytes end too early."""


class BadMagicError(FormatError):
    """The first bytes are not those of the expected format."""


class UnsupportedVersionError(FormatError):
    """A well-formed object of a version that this release doesn't know."""


class ChecksumMismatchError(FormatError):
    """A CRC doesn't match the bytes it covers."""


class LimitExceededError(FormatError):
    """A declared size is above the caller's limit."""


class InconsistentError(FormatError):
    """Two fields, or a field and the bytes, contradict each other."""


def require_at_most(what: str, found: int, most: int, *, unit: str = "", offset: int | None = None) -> int:
    """``found``; raises ``LimitExceededError`` unless it is 0 to ``most``. ``unit``: of both, for the error."""
    if not 0 <= found <= most:
        raise LimitExceededError(what, offset=offset, expected=f"at most {most} {unit}".rstrip(), found=found)
    return found


def require_bytes(what: str, found: int, needed: int) -> None:
    """Raises ``TruncatedError`` unless there are at least so many bytes."""
    if found < needed:
        raise TruncatedError(what, expected=needed, found=found)


def require_equal(what: str, found: object, expected: object, *, object_name: str = "") -> None:
    """Raises ``InconsistentError`` unless two values are equal that tell the same."""
    if found != expected:
        raise InconsistentError(what, object_name=object_name, expected=expected, found=found)
