"""Durations and sizes as text, ``30s`` and ``1GiB``: the one parser, and the text of a value. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

#: The word for the value -1: what the amount bounds never happens.
NEVER = "never"


@dataclass(frozen=True, slots=True)
class Quantity:
    """What an amount measures.

    Attributes:
        name: ``duration`` or ``size``.
        example: an amount, for error messages.
        zero: the text of nothing.
        units: unit -> its multiple of the first one, in ascending order.
    """

    name: str
    example: str
    zero: str
    units: Mapping[str, int]

    @property
    def form(self) -> str:
        """Description of the accepted texts."""
        return f'a {self.name} like "{self.example}" ({", ".join(self.units)})'

    def parse(self, text: str, unit: str) -> Fraction:
        """An amount in ``unit``.

        Raises:
            ValueError: the text isn't a number directly followed by a unit.
        """
        found = re.fullmatch(rf"([0-9]{{1,20}}(?:\.[0-9]{{1,30}})?)({'|'.join(self.units)})", text)
        if found is None:
            raise ValueError(f"{text!r} is not {self.form}")
        return Fraction(found[1]) * self.units[found[2]] / self.units[unit]

    def text(self, value: float, unit: str) -> str:
        """The shortest text whose ``parse`` gives exactly ``value``, which is in ``unit`` and isn't negative."""
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
    """A number without an exponent, as short as possible; its denominator divides a power of ten."""
    whole, rest = divmod(Fraction(number), 1)
    digits = ""
    while rest:
        digit, rest = divmod(rest * 10, 1)
        digits += str(digit)
    return f"{whole}.{digits}" if digits else str(whole)


DURATION = Quantity("duration", "30s", "0s", {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000})
SIZE = Quantity(
    "size", "64MiB", "0B", {unit: 1024**power for power, unit in enumerate(("B", "KiB", "MiB", "GiB", "TiB"))}
)
