"""Evaluates the alert rules that need no arithmetic, over scrapes of real processes, as Prometheus does."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

__all__ = ["Scrape", "firing"]

#: Labels of a series, its name left out.
_Labels = frozenset[tuple[str, str]]
_Vector = dict[_Labels, float]
_JOB = "offloader"
_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
#: How long Prometheus takes a series for current without a newer sample.
_CURRENT_S = 300
_TOKEN = re.compile(r"\s*([a-zA-Z_]\w*|\d+|\{[^}]*\}|\[[^\]]*\]|==|>|\(|\)|,)")
_OVER_TIME: Mapping[str, Callable[[Sequence[float]], float]] = {
    "present_over_time": lambda _: 1.0,
    "absent_over_time": lambda _: 1.0,
    "max_over_time": max,
}


@dataclass(frozen=True)
class Scrape:
    """What one target answered.

    Attributes:
        text: in Prometheus' format; ``None``: there was no answer.
        is_target: whether it is still listed as a target.
    """

    at_s: float
    instance: str
    text: bytes | None
    is_target: bool = True


def firing(expression: str, scrapes: Sequence[Scrape], now_s: float) -> list[dict[str, str]]:
    """The labels of each series for which a rule's expression is true.

    Raises:
        ValueError: the expression has something that isn't evaluated here.
    """
    parser = _Parser(expression, _Samples(scrapes, now_s))
    return [dict(labels) for labels in parser.whole()]


class _Samples:
    """Series by name, with their values over time."""

    def __init__(self, scrapes: Sequence[Scrape], now_s: float) -> None:
        self._now_s = now_s
        self._series: dict[str, dict[_Labels, list[tuple[float, float | None]]]] = {}
        for scrape in sorted(scrapes, key=lambda each: each.at_s):
            self._take(scrape)

    def _take(self, scrape: Scrape) -> None:
        target = {"job": _JOB, "instance": scrape.instance}
        found: dict[tuple[str, _Labels], float] = {}
        for family in text_string_to_metric_families((scrape.text or b"").decode()):
            for sample in family.samples:
                exported = {
                    f"exported_{name}" if name in target else name: value for name, value in sample.labels.items()
                }
                found[sample.name, frozenset({**exported, **target}.items())] = sample.value
        if scrape.is_target:
            found["up", frozenset(target.items())] = float(scrape.text is not None)
        # A series that isn't there any more is over at once.
        for name, series in self._series.items():
            for labels, values in series.items():
                if ("instance", scrape.instance) in labels and (name, labels) not in found:
                    values.append((scrape.at_s, None))
        for (name, labels), value in found.items():
            self._series.setdefault(name, {}).setdefault(labels, []).append((scrape.at_s, value))

    def now(self, name: str, matchers: Mapping[str, str]) -> _Vector:
        found: _Vector = {}
        for labels, values in self._matching(name, matchers):
            at_s, value = values[-1]
            if value is not None and self._now_s - at_s <= _CURRENT_S:
                found[labels] = value
        return found

    def over(self, name: str, matchers: Mapping[str, str], range_s: float) -> dict[_Labels, list[float]]:
        found: dict[_Labels, list[float]] = {}
        for labels, values in self._matching(name, matchers):
            within = [value for at_s, value in values if value is not None and self._now_s - at_s < range_s]
            if within:
                found[labels] = within
        return found

    def _matching(
        self, name: str, matchers: Mapping[str, str]
    ) -> list[tuple[_Labels, list[tuple[float, float | None]]]]:
        series = self._series.get(name, {}).items()
        return [(labels, values) for labels, values in series if matchers.items() <= dict(labels).items()]


class _Parser:
    def __init__(self, expression: str, samples: _Samples) -> None:
        self._samples = samples
        self._tokens: list[str] = []
        place = 0
        while place < len(expression.rstrip()):
            token = _TOKEN.match(expression, place)
            if token is None:
                raise ValueError(f"not evaluated here: {expression[place:]}")
            self._tokens.append(token[1])
            place = token.end()

    def whole(self) -> _Vector:
        found = self._either()
        if self._tokens:
            raise ValueError(f"not evaluated here: {self._tokens}")
        return found

    def _next(self, *expected: str) -> str:
        token = self._tokens.pop(0)
        if expected and token not in expected:
            raise ValueError(f"{token} instead of {expected}")
        return token

    def _is_next(self, *tokens: str) -> bool:
        return bool(self._tokens) and self._tokens[0] in tokens

    def _either(self) -> _Vector:
        found = self._less()
        while self._is_next("or"):
            self._next()
            found = {**self._less(), **found}
        return found

    def _less(self) -> _Vector:
        found = self._compared()
        while self._is_next("unless"):
            self._next()
            labels = self._labels() if self._is_next("on") and self._next() else None
            other = {_only(each, labels) for each in self._compared()}
            found = {each: value for each, value in found.items() if _only(each, labels) not in other}
        return found

    def _compared(self) -> _Vector:
        found = self._term()
        while self._is_next("==", ">"):
            is_equal, number = self._next() == "==", float(self._next())
            found = {
                labels: value for labels, value in found.items() if (value == number if is_equal else value > number)
            }
        return found

    def _term(self) -> _Vector:
        name = self._next()
        if name == "(":
            found = self._either()
            self._next(")")
            return found
        if name == "sum":
            self._next("by")
            labels = self._labels()
            summed: _Vector = {}
            for each, value in self._term().items():
                summed[_only(each, labels)] = summed.get(_only(each, labels), 0.0) + value
            return summed
        if name in _OVER_TIME:
            return self._over(name)
        return self._samples.now(name, self._matchers())

    def _over(self, function: str) -> _Vector:
        self._next("(")
        name, matchers = self._next(), self._matchers()
        length = self._next().strip("[]")
        self._next(")")
        found = self._samples.over(name, matchers, int(length[:-1]) * _UNIT_S[length[-1]])
        if function == "absent_over_time":
            return {} if found else {frozenset(matchers.items()): 1.0}
        return {labels: _OVER_TIME[function](values) for labels, values in found.items()}

    def _matchers(self) -> dict[str, str]:
        if not (self._tokens and self._tokens[0].startswith("{")):
            return {}
        return dict(re.findall(r'(\w+)="([^"]*)"', self._next()))

    def _labels(self) -> set[str]:
        self._next("(")
        found: set[str] = set()
        while (token := self._next()) != ")":
            found |= {token} - {","}
        return found


def _only(labels: _Labels, names: set[str] | None) -> _Labels:
    return labels if names is None else frozenset(each for each in labels if each[0] in names)
