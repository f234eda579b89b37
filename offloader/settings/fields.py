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
        return f"{_decimal(Fraction(str(value)))}{unit}"


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

MIB = 1024 * 1024
MINUTES_MAX = 100 * 365 * 24 * 60


class Duration(float):
    """A time in seconds, from a number of seconds or a text like ``"30s"``; -1 (``"never"``): it never ends.

    Raises:
        ValueError: the text isn't a duration.
    """

    __slots__ = ()

    def __new__(cls, value: float | str = 0) -> Duration:
        if isinstance(value, str):
            value = -1 if value == NEVER else float(DURATION.parse(value, "s"))
        return super().__new__(cls, value)

    def __repr__(self) -> str:
        return f"Duration({str_of(self)!r})"

    __str__ = float.__repr__

    @property
    def minutes(self) -> float:
        return self / 60

    @property
    def hours(self) -> float:
        return self / 3600


class Size(int):
    """A number of bytes, from a number or a text like ``"64MiB"``; -1 (``"never"``): no size is reached.

    Raises:
        ValueError: the text isn't a size, or not of whole bytes.
    """

    __slots__ = ()

    def __new__(cls, value: int | str = 0) -> Size:
        if isinstance(value, str):
            amount = Fraction(-1) if value == NEVER else SIZE.parse(value, "B")
            if amount.denominator != 1:
                raise ValueError(f"{value} is not a whole number of B")
            value = amount.numerator
        return super().__new__(cls, value)

    def __repr__(self) -> str:
        return f"Size({str_of(self)!r})"

    __str__ = int.__repr__

    @property
    def mebibytes(self) -> float:
        return self / MIB


def str_of(value: Duration | Size) -> str:
    """The shortest text of an amount in a settings file."""
    if value < 0:
        return NEVER
    return SIZE.text(value, "B") if isinstance(value, Size) else DURATION.text(value, "s")


#: Prefixes of secret sources.
_PLACES = ("file:", "env:")


def setting(default: Any, doc: str, *, low: float, high: float) -> Any:
    """A number between ``low`` and ``high``; an integer if the default is an integer."""
    return field(default=default, metadata={"doc": doc, "low": low, "high": high})


def duration(default: str, doc: str, *, low: str, high: str, **more: Any) -> Any:
    """A ``Duration``; the amounts are texts, as in a settings file. ``more``: see ``_amount``."""
    return _amount(Duration(default), doc, low=Duration(low), high=Duration(high), quantity=DURATION, **more)


def size(default: str, doc: str, *, low: str, high: str, **more: Any) -> Any:
    """A ``Size``; the amounts are texts, as in a settings file. ``more``: see ``_amount``."""
    return _amount(Size(default), doc, low=Size(low), high=Size(high), quantity=SIZE, **more)


def _amount(
    default: Any, doc: str, *, may_be_never: bool = False, alias: str = "", alias_unit: str = "", **how: Any
) -> Any:
    """An amount.

    Args:
        may_be_never: it may be ``"never"``.
        alias: a name of PIP-76, also accepted in a settings file, with a number in ``alias_unit``.
    """
    metadata = {"doc": doc, "may_be_never": may_be_never, "alias": alias, "alias_unit": alias_unit, **how}
    return field(default=default, metadata=metadata)


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
    if "quantity" in metadata:
        return _no_amount(metadata, default, value)
    if isinstance(value, bool) or not isinstance(value, int if isinstance(default, int) else (int, float)):
        return f"{value!r} is not {'a whole number' if isinstance(default, int) else 'a number'}"
    low, high = metadata["low"], metadata["high"]
    return "" if low <= value <= high else f"{value} is not between {low} and {high}"


def _no_amount(metadata: Mapping[str, Any], default: Any, value: object) -> str:
    is_number = isinstance(value, int if isinstance(default, int) else (int, float)) and not isinstance(value, bool)
    if (not is_number and not isinstance(value, str)) or (value == NEVER and not metadata["may_be_never"]):
        return f"{value!r} is not {metadata['quantity'].form}"
    try:
        amount = type(default)(value)
    except ValueError as error:
        return str(error)
    if amount == -1 and metadata["may_be_never"]:
        return ""
    return "" if metadata["low"] <= amount <= metadata["high"] else f"{value} is not {limits(metadata)}"


def from_file(metadata: Mapping[str, Any], default: Any, value: object) -> Any:
    """The value of a field from its form in a settings file: an amount has a unit there.

    Raises:
        ValueError: the value is invalid.
    """
    if "quantity" in metadata and not isinstance(value, str):
        raise ValueError(f"{value!r} is not {metadata['quantity'].form}")
    if why := problem(metadata, default, value):
        raise ValueError(why)
    return default.__class__(value)


def amount_text(number: object, unit: str) -> str:
    """The form in a settings file of a number in ``unit``, as PIP-76 and Pulsar have it; -1 is ``"never"``.

    Raises:
        ValueError: not a number.
    """
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise ValueError(f"{number!r} is not a number")
    return NEVER if number == -1 else f"{Decimal(repr(number)):f}{unit}"


def in_file(value: Any) -> Any:
    """A field's value in its settings file form: amounts are texts."""
    return str_of(value) if isinstance(value, Duration | Size) else value


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
    found = f"between {in_file(metadata['low'])} and {in_file(metadata['high'])}"
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
