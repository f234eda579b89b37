"""Error classes: Python's kinds, text, pickling."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest

from offloader.errors import ErrorKind, InvalidCallError, OffloaderError, TrimmedError, UnsupportedError, parsing
from tests.contracts.error_kinds import all_errors

#: Python's kinds of the error classes; a class has those of its bases, and others have none.
BUILTIN = {
    "AccessDeniedError": PermissionError,
    "BeyondEndError": LookupError,
    "BucketMissingError": LookupError,
    "InvalidCallError": ValueError,
    "NotFoundError": LookupError,
    "TrimmedError": LookupError,
}
_PYTHONS = (ArithmeticError, AssertionError, AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError)


def built(kind: type[OffloaderError]) -> OffloaderError:
    """An error as ``OffloaderError`` makes it: subclasses may take further arguments."""
    error = kind.__new__(kind)
    OffloaderError.__init__(error, "orders: no\nsuch thing", hint="do this")
    return error


@pytest.fixture(scope="module")
def kinds() -> list[type[OffloaderError]]:
    return all_errors()


@pytest.mark.slow
def test_error_has_the_documented_builtin_kind(kinds: list[type[OffloaderError]]) -> None:
    assert set(BUILTIN) <= {each.__name__ for each in kinds}
    for kind in kinds:
        wanted = {BUILTIN[base.__name__] for base in kind.__mro__ if base.__name__ in BUILTIN}
        assert all(issubclass(kind, each) for each in wanted), kind
        found = {each for each in _PYTHONS if issubclass(kind, each)}
        assert found == {each for each in _PYTHONS if any(issubclass(one, each) for one in wanted)}, kind


@pytest.mark.slow
def test_error_has_its_own_text(kinds: list[type[OffloaderError]]) -> None:
    for error in map(built, kinds):
        assert str(error) == "orders: no such thing (do this)"
        assert repr(error) == f"{type(error).__name__}('orders: no\\nsuch thing')"
        assert error.retryable is (error.kind is ErrorKind.RETRY_LATER)


@pytest.mark.slow
@pytest.mark.parametrize("again", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy])
def test_copy_of_an_error_has_its_message_and_hint(
    kinds: list[type[OffloaderError]], again: Callable[[OffloaderError], OffloaderError]
) -> None:
    for error in map(built, kinds):
        found = again(error)
        assert type(found) is type(error)
        assert (found.message, found.hint) == ("orders: no such thing", "do this")
        assert str(found) == str(error)
        assert found.args == ("orders: no such thing",)


def test_copy_of_an_error_has_its_further_attributes() -> None:
    found = pickle.loads(pickle.dumps(TrimmedError("orders: trimmed", first_available="7:0")))
    assert found.first_available == "7:0"


def test_parsing_words_errors_of_values_and_keeps_others() -> None:
    with pytest.raises(InvalidCallError, match="not a number"), parsing("not a number"):
        int("x")
    with pytest.raises(UnsupportedError, match="no numbers"), parsing("not a number"):
        raise UnsupportedError("no numbers")
