"""What is said of a manifest's object that can't be read.

Owns telling damage from the work of a later release. Must never advise to rebuild what a later release can read: its
writers would be stopped for nothing.
"""

from __future__ import annotations

from formats.errors import UnsupportedVersion
from offloader.errors import Corrupt, OffloaderError, Unsupported

__all__ = ["REBUILD", "LostRecords", "Unreadable", "unreadable"]

REBUILD = "`offloader manifest rebuild` makes a new manifest from the objects"
#: What ``unreadable`` answers.
Unreadable = (Corrupt, Unsupported)


class LostRecords(Corrupt):
    """Records of a manifest certainly existed and aren't there."""


def unreadable(what: str, error: Exception, *, hint: str = REBUILD) -> OffloaderError:
    """The error to raise for an object that doesn't decode, or doesn't fit.

    Args:
        what: the object and its stream, for people.
        error: why it can't be read.
        hint: what to do where it is damaged.
    """
    if isinstance(error, UnsupportedVersion):
        return Unsupported(f"{what}: {error}", hint="a later release wrote this: use that one. Nothing was changed")
    return Corrupt(f"{what}: {error}", hint=hint)
