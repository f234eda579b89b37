"""Spark's errors as ours: the line that says what went wrong, not the pages around it.

Owns finding that line in what Spark says. Must never hide the original: it stays the cause.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from itertools import takewhile

from offloader import errors
from offloader.errors import ExecutorLost, OffloaderError, Unsupported, install_hint

__all__ = ["translated"]

#: Characters of a telling line that are kept.
LINE_MAX = 500
#: How a traceback from a worker names an error of ours.
_OURS = re.compile(r"^offloader\.errors\.(\w+): (.*)$")
#: And any other error.
_RAISED = re.compile(r"^(?:[a-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt)\b(?:: .*)?$")
_LOST = re.compile(r"Python worker exited unexpectedly|Python worker failed to connect back|ExecutorLostFailure")


@contextlib.contextmanager
def translated(what: str, *, hint: str) -> Iterator[None]:
    """Lets no error of Spark out: one that a worker raised on purpose keeps its class, a worker that is gone is
    ``ExecutorLost``, others are ``OffloaderError``.

    Args:
        what: what failed if something does, for the message: "Spark's scan of orders".
        hint: what to do about it, unless something better is known.

    Raises:
        Unsupported: Spark isn't installed.
    """
    try:
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]
        from pyspark.errors import PySparkException
    except ImportError as error:
        raise Unsupported("Spark isn't installed", hint=install_hint("spark")) from error
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise _ours(what, str(error), hint) from error


def _ours(what: str, said: str, hint: str) -> OffloaderError:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    # Of a chain of causes the last is what was raised.
    for line in reversed(lines):
        match = _OURS.match(line)
        kind = None if match is None else getattr(errors, match[1], None)
        if match is not None and isinstance(kind, type) and issubclass(kind, OffloaderError):
            return kind(f"{what} failed: {match[2][:LINE_MAX]}", hint=hint)
    if _LOST.search(said):
        hint = "was it killed? Executors need memory, and the same Python with offloader and pyarrow: PYSPARK_PYTHON"
        return ExecutorLost(
            f"{what} failed: an executor's process is gone: {' '.join(lines[:1])[:LINE_MAX]}", hint=hint
        )
    # The end of the first traceback says it, before the JVM's frames; Spark's own first line doesn't.
    start = next((number for number, line in enumerate(lines) if "Traceback (most recent" in line), len(lines))
    python = list(takewhile(lambda line: not line.startswith("at "), lines[start + 1 :]))
    telling = next((line for line in reversed(python) if _RAISED.match(line)), " ".join(lines[:1]))
    return OffloaderError(f"{what} failed: {telling[:LINE_MAX]}", hint=hint)
