"""Exceptions for undecodable bytes.

Decoders raise only subclasses of ``FormatError`` for bad input.
"""

from __future__ import annotations

__all__ = [
    "BadMagic",
    "ChecksumMismatch",
    "FormatError",
    "Inconsistent",
    "LimitExceeded",
    "Truncated",
    "UnsupportedVersion",
    "one_line",
]


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
        problem: what is wrong, in a few words.
        object_name: the object or file the bytes came from, empty when unknown.
        offset: where in that object, in bytes; ``None`` without a single place.
        expected: the expected value.
        found: the actual value.
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
        super().__init__(problem, object_name, offset, expected, found)

    def __str__(self) -> str:
        text = self.problem
        if self.object_name:
            text += f" in {self.object_name}"
        if self.offset is not None:
            text += f" at byte {self.offset}"
        if self.expected is not None or self.found is not None:
            text += f": expected {self.expected}, found {self.found}"
        return one_line(text)

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.problem, self.object_name, self.offset, self.expected, self.found))


def _rebuild(
    kind: type[FormatError], problem: str, object_name: str, offset: int | None, expected: object, found: object
) -> FormatError:
    return kind(problem, object_name=object_name, offset=offset, expected=expected, found=found)


class Truncated(FormatError):
    """The bytes end too early."""


class BadMagic(FormatError):
    """The first bytes are not those of the expected format."""


class UnsupportedVersion(FormatError):
    """A well-formed object of a version that this release doesn't know."""


class ChecksumMismatch(FormatError):
    """A CRC doesn't match the bytes it covers."""


class LimitExceeded(FormatError):
    """A declared size is above the caller's limit."""


class Inconsistent(FormatError):
    """Two fields, or a field and the bytes, contradict each other."""
