"""What a test knows to be there, though its type says that it may not be.

Must never be used to pass by what a test is about: that something is there is then the assertion.
"""

from __future__ import annotations

from typing import TypeVar

__all__ = ["there"]

_Thing = TypeVar("_Thing")


def there(thing: _Thing | None) -> _Thing:
    """``thing``; fails when it is ``None``."""
    assert thing is not None
    return thing
