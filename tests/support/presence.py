"""What a test knows to be there, though its type says that it may not be.

Where that something is there is what a test is about, an assertion says so instead.
"""

from __future__ import annotations

from typing import TypeVar

__all__ = ["there"]

_Thing = TypeVar("_Thing")


def there(thing: _Thing | None) -> _Thing:
    """``thing``; fails when it is ``None``."""
    assert thing is not None
    return thing
