"""Setting fields: their kinds, and the check of one value. Knows no section."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any

__all__ = [
    "KIB",
    "MBYTES_MAX",
    "MIB",
    "MINUTES_MAX",
    "Pairs",
    "choice",
    "flag",
    "pairs",
    "places",
    "problem",
    "setting",
    "text",
    "texts",
]

KIB = 1024
MIB = 1024 * KIB
MBYTES_MAX = 2**40
#: Prefixes of a secret's source.
_PLACES = ("file:", "env:")
MINUTES_MAX = 100 * 365 * 24 * 60


def setting(default: Any, doc: str, *, low: float, high: float) -> Any:
    """A number between ``low`` and ``high``; an integer if its default is."""
    return field(default=default, metadata={"doc": doc, "low": low, "high": high})


def choice(default: str, doc: str, choices: tuple[str, ...]) -> Any:
    """One of several words."""
    return field(default=default, metadata={"doc": doc, "choices": choices})


def text(default: str, doc: str) -> Any:
    """Any text."""
    return field(default=default, metadata={"doc": doc, "text": True})


class Pairs(tuple[tuple[str, str], ...]):
    """A table of texts: pairs sorted by name, from a mapping or pairs."""

    __slots__ = ()

    def __new__(cls, values: Mapping[str, str] | Iterable[tuple[str, str]] = ()) -> Pairs:
        return super().__new__(cls, sorted(dict(values).items()))

    def get(self, name: str) -> str | None:
        """The text of ``name``, if any."""
        return dict(self).get(name)


def pairs(doc: str, *, are_places: bool = False) -> Any:
    """A table of texts, empty by default.

    Args:
        doc: its description.
        are_places: each text is the source of a secret, as in ``places``.
    """
    return field(default=Pairs(), metadata={"doc": doc, "pairs": True, "are_places": are_places})


def texts(doc: str) -> Any:
    """A list of texts, empty by default; a tuple as a value."""
    return field(default=(), metadata={"doc": doc, "texts": True})


def places(doc: str) -> Any:
    """Sources of secrets, a list of ``file:PATH`` and ``env:NAME``, empty by default; a tuple as a value."""
    return field(default=(), metadata={"doc": doc, "places": True})


def flag(default: bool, doc: str) -> Any:
    """Yes or no."""
    return field(default=default, metadata={"doc": doc, "flag": True})


def problem(metadata: Mapping[str, Any], default: object, value: object) -> str:
    """Why ``value`` is invalid for a field of this metadata and default; empty: it is valid."""
    if "choices" in metadata:
        return "" if value in metadata["choices"] else f"{value!r} is none of {', '.join(metadata['choices'])}"
    if "text" in metadata:
        return "" if isinstance(value, str) else f"{value!r} is not a text"
    if "pairs" in metadata:
        texts_of = list(dict(value).values()) if isinstance(value, (Mapping, Pairs)) else [None]
        known = all(isinstance(each, str) for each in texts_of)
        if metadata["are_places"]:
            return _not_places(texts_of)
        return "" if known else f"{value!r} is not a table of texts"
    if "texts" in metadata:
        known = isinstance(value, (list, tuple)) and all(isinstance(each, str) for each in value)
        return "" if known else f"{value!r} is not a list of texts"
    if "places" in metadata:
        return _not_places(value)
    if "flag" in metadata:
        return "" if isinstance(value, bool) else f"{value!r} is neither true nor false"
    wanted = "a whole number" if isinstance(default, int) else "a number"
    if isinstance(value, bool) or not isinstance(value, int if isinstance(default, int) else (int, float)):
        return f"{value!r} is not {wanted}"
    low, high = metadata["low"], metadata["high"]
    return "" if low <= value <= high else f"{value} is not between {low} and {high}"


def _not_places(value: object) -> str:
    given = value if isinstance(value, (list, tuple)) else ("",)
    known = all(isinstance(each, str) and each.startswith(_PLACES) and not each.endswith(":") for each in given)
    # The value may be the secret: don't repeat it.
    return "" if known else "not a list of places, each file:PATH or env:NAME; a secret itself never stands here"
