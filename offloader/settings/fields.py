"""Kinds of settings, validation of one value, and its form in a settings file: durations and sizes are texts, ``30s``
and ``1GiB``. The sections are defined in ``offloader.settings.values``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

#: Enough digits for an exact result.
_EXACT = Context(prec=400)
#: Text of the value -1: the event that the amount bounds never happens.
NEVER = "never"


@dataclass(frozen=True, slots=True)
class Quantity:
    """A measured quantity with its units.

    Attributes:
        name: ``duration`` or ``size``.
        example: an amount, for error messages.
        zero: the text of the amount 0.
        units: unit -> its multiple of the first unit, in ascending order.
        read_units: units that ``parse`` also accepts; ``text`` doesn't write them.
    """

    name: str
    example: str
    zero: str
    units: Mapping[str, int]
    read_units: Mapping[str, int] = field(default_factory=dict)

    @property
    def form(self) -> str:
        """Description of the accepted texts."""
        return f'a {self.name} like "{self.example}" ({", ".join([*self.units, *self.read_units])})'

    def parse(self, text: str, unit: str) -> Fraction:
        """The amount of ``text``, in ``unit``.

        Raises:
            ValueError: the text isn't a number directly followed by a unit.
        """
        known = {**self.units, **self.read_units}
        found = re.fullmatch(rf"([0-9]{{1,20}}(?:\.[0-9]{{1,30}})?)({'|'.join(known)})", text)
        if found is None:
            raise ValueError(f"{text!r} is not {self.form}")
        return Fraction(found[1]) * known[found[2]] / self.units[unit]

    def text(self, value: float, unit: str) -> str:
        """The shortest text that ``parse`` converts exactly to ``value``, a nonnegative number in ``unit``."""
        if not value:
            return self.zero
        for digits in (0, 3):
            for each, factor in reversed(list(self.units.items())):
                number = round(Fraction(value) * self.units[unit] / factor, digits)
                found = f"{_decimal(number)}{each}"
                if number >= 1 and float(self.parse(found, unit)) == value:
                    return found
        return f"{_decimal(Fraction(repr(value)))}{unit}"


def _decimal(number: Fraction | int) -> str:
    """The shortest text of a number without an exponent. The denominator must divide a power of ten."""
    return f"{_EXACT.normalize(_EXACT.divide(Decimal(number.numerator), Decimal(number.denominator))):f}"


DURATION = Quantity("duration", "30s", "0s", {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000})
SIZE = Quantity(
    "size",
    "64MiB",
    "0B",
    {unit: 1024**power for power, unit in enumerate(("B", "KiB", "MiB", "GiB", "TiB"))},
    {unit: 1000**power for power, unit in enumerate(("KB", "MB", "GB", "TB"), start=1)},
)

KIB = 1024
MIB = 1024 * KIB
MBYTES_MAX = 2**40
#: Prefixes of secret sources.
_PLACES = ("file:", "env:")
MINUTES_MAX = 100 * 365 * 24 * 60


def setting(default: Any, doc: str, *, low: float, high: float) -> Any:
    """A number between ``low`` and ``high``; an integer if the default is an integer."""
    return field(default=default, metadata={"doc": doc, "low": low, "high": high})


def duration(default: float, doc: str, *, unit: str = "s", **more: Any) -> Any:
    """A duration: a number in ``unit``, in a settings file ``key = "30s"``.

    Args:
        unit: of the value: ``s``, ``m``, ``h`` or ``d``.
        more: further arguments of ``_amount``.
    """
    return _amount(DURATION, default, doc, unit=unit, **more)


def size(default: float, doc: str, *, unit: str = "B", **more: Any) -> Any:
    """A size: a number in ``unit`` (``B`` or ``MiB``), in a settings file ``key = "1GiB"``. Arguments as for
    ``duration``."""
    return _amount(SIZE, default, doc, unit=unit, **more)


def _amount(
    quantity: Quantity,
    default: float,
    doc: str,
    *,
    key: str,
    low: float,
    high: float,
    unit: str,
    may_be_never: bool = False,
    is_alias: bool = False,
) -> Any:
    """A number with a unit. ``default``, ``low`` and ``high`` are in this unit; ``key`` is the name in a settings file.

    Args:
        may_be_never: the value may be -1, ``"never"`` in a settings file.
        is_alias: a settings file may also use the field's name, with a number in ``unit``.
    """
    return field(
        default=default,
        metadata={
            "doc": doc,
            "key": key,
            "low": -1 if may_be_never else low,
            "high": high,
            "quantity": quantity,
            "unit": unit,
            "may_be_never": may_be_never,
            "is_alias": is_alias,
        },
    )


def choice(default: str, doc: str, choices: tuple[str, ...]) -> Any:
    """One of several texts."""
    return field(default=default, metadata={"doc": doc, "choices": choices})


def text(default: str, doc: str) -> Any:
    """Any text."""
    return field(default=default, metadata={"doc": doc, "text": True})


class Pairs(tuple[tuple[str, str], ...]):
    """A table of texts: pairs sorted by name, made from a mapping or from pairs."""

    __slots__ = ()

    def __new__(cls, values: Mapping[str, str] | Iterable[tuple[str, str]] = ()) -> Pairs:
        return super().__new__(cls, sorted(dict(values).items()))

    def get(self, name: str) -> str | None:
        """The text of ``name``, if any."""
        return dict(self).get(name)


def pairs(doc: str, *, are_places: bool = False) -> Any:
    """A table of texts, empty by default.

    Args:
        doc: the description.
        are_places: each text is the source of a secret, as in ``places``.
    """
    return field(default=Pairs(), metadata={"doc": doc, "pairs": True, "are_places": are_places})


def texts(doc: str) -> Any:
    """A list of texts, empty by default. The value is a tuple."""
    return field(default=(), metadata={"doc": doc, "texts": True})


def places(doc: str) -> Any:
    """A list of secret sources, ``file:PATH`` and ``env:NAME``, empty by default. The value is a tuple."""
    return field(default=(), metadata={"doc": doc, "places": True})


def flag(default: bool, doc: str) -> Any:
    """A boolean."""
    return field(default=default, metadata={"doc": doc, "flag": True})


def problem(metadata: Mapping[str, Any], default: object, value: object) -> str:
    """The reason why ``value`` is invalid for a field with this metadata and default; empty: it is valid."""
    if "choices" in metadata:
        return "" if value in metadata["choices"] else f"{value!r} is none of {', '.join(metadata['choices'])}"
    if "text" in metadata:
        return "" if isinstance(value, str) else f"{value!r} is not a text"
    if "pairs" in metadata:
        texts_of = list(dict(value).values()) if isinstance(value, (Mapping, Pairs)) else [None]
        if metadata["are_places"]:
            return _not_places(texts_of)
        return "" if _are_texts(texts_of) else f"{value!r} is not a table of texts"
    if "texts" in metadata:
        return "" if _are_texts(value) else f"{value!r} is not a list of texts"
    if "places" in metadata:
        return _not_places(value)
    if "flag" in metadata:
        return "" if isinstance(value, bool) else f"{value!r} is neither true nor false"
    if isinstance(value, bool) or not isinstance(value, int if isinstance(default, int) else (int, float)):
        return f"{value!r} is not {'a whole number' if isinstance(default, int) else 'a number'}"
    low, high = metadata["low"], metadata["high"]
    return "" if low <= value <= high else f"{value} is not between {low} and {high}"


def from_file(metadata: Mapping[str, Any], default: Any, value: object) -> Any:
    """The value of a field from its form in a settings file. Values that are no amounts are returned unchecked.

    Raises:
        ValueError: the text isn't an amount within the field's limits.
    """
    quantity: Quantity | None = metadata.get("quantity")
    if quantity is None:
        return value
    if value == NEVER and metadata["may_be_never"]:
        return default.__class__(-1)
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not {quantity.form}")
    amount = quantity.parse(value, metadata["unit"])
    if isinstance(default, int) and amount.denominator != 1:
        raise ValueError(f"{value} is not a whole number of {metadata['unit']}")
    found = default.__class__(amount)
    # Compare floats with floats: 60 ms is 0.001 minutes.
    if not max(metadata["low"], 0) <= found <= metadata["high"]:
        raise ValueError(f"{value} is not {limits(metadata)}")
    return found


def in_file(metadata: Mapping[str, Any], value: Any) -> Any:
    """A field's value in its settings file form: amounts are texts."""
    quantity: Quantity | None = metadata.get("quantity")
    if quantity is None:
        return value
    return NEVER if value < 0 else quantity.text(value, metadata["unit"])


#: Kind of a field without limits -> description of its values, for documents.
_VALUES = {
    "text": "a text",
    "pairs": "a table of texts",
    "texts": "a list of texts",
    "places": "a list of file:PATH, env:NAME",
    "flag": "true, false",
}


def allowed(metadata: Mapping[str, Any]) -> str:
    """Description of the allowed values of a field, for documents."""
    if "choices" in metadata:
        return ", ".join(metadata["choices"])
    if "low" in metadata:
        return limits(metadata).removeprefix("between ").replace(" and ", " to ", 1)
    return next(values for kind, values in _VALUES.items() if kind in metadata)


def limits(metadata: Mapping[str, Any]) -> str:
    """The limits of a number or amount in their settings file form: ``between 1s and 10m``."""
    low = max(metadata["low"], 0) if "quantity" in metadata else metadata["low"]
    found = f"between {in_file(metadata, low)} and {in_file(metadata, metadata['high'])}"
    return f"{found}, or {NEVER}" if metadata.get("may_be_never") else found


def _are_texts(value: object) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(each, str) for each in value)


def _not_places(value: object) -> str:
    given: Any = value if _are_texts(value) else ("",)
    known = all(each.startswith(_PLACES) and not each.endswith(":") for each in given)
    # The message must not repeat the value: it may be the secret itself.
    return (
        ""
        if known
        else "not a list of secret sources, file:PATH or env:NAME each; the secret itself must not be in the settings"
    )
