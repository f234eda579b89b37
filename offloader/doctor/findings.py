"""What a check finds, and running checks one after another.

Owns that one that fails keeps no other from its turn. Must never change anything but scratch objects of the store.

A check is anything with a name that yields findings: a source of streams brings its own (broker, subscriptions).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from offloader.errors import ErrorKind, OffloaderError

__all__ = ["Check", "Finding", "Outcome", "fine", "problem", "run_checks", "warning"]


class Outcome(StrEnum):
    """How it stands with what was looked at."""

    OK = "ok"
    #: It works, and somebody should know.
    WARNING = "warning"
    #: It doesn't work.
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of a doctor's report.

    Attributes:
        check: what was looked at, ``store put``.
        what: what was found, one line.
        hint: what to do about it, one line; empty where nothing has to be done.
        kind: of a problem: what kind of error it would be; decides the exit code.
    """

    check: str
    outcome: Outcome
    what: str
    hint: str = ""
    kind: ErrorKind | None = None


class Check(Protocol):
    """Looks at one thing or a few that belong together."""

    @property
    def name(self) -> str:
        """What is looked at, for a check that fails as a whole."""
        ...

    def run(self) -> Iterable[Finding]:
        """What is found.

        Raises:
            OffloaderError: the check couldn't be finished; it counts as a problem.
        """
        ...


def fine(check: str, what: str) -> Finding:
    """All is well."""
    return Finding(check=check, outcome=Outcome.OK, what=what)


def warning(check: str, what: str, hint: str) -> Finding:
    """Somebody should know."""
    return Finding(check=check, outcome=Outcome.WARNING, what=what, hint=hint)


def problem(check: str, error: OffloaderError, hint: str = "") -> Finding:
    """It doesn't work, because of ``error``; ``hint`` instead of the error's own, or of what its kind says."""
    said = hint or error.hint or error.kind.advice
    return Finding(check=check, outcome=Outcome.PROBLEM, what=error.message, hint=said, kind=error.kind)


def run_checks(checks: Iterable[Check]) -> Iterator[Finding]:
    """Everything that they find, in their order."""
    for check in checks:
        try:
            yield from check.run()
        except OffloaderError as error:
            yield problem(check.name, error)
