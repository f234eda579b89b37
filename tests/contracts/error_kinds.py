"""Errors: kinds with exit code, HTTP status and whether to retry; which class is of which kind."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import formats
import offloader
from formats.errors import FormatError
from offloader.errors import ErrorKind, OffloaderError
from offloader.service.http.middleware import problem_of

__all__ = ["all_errors", "error_kinds"]

_CLASS = re.compile(r"^class (\w+)\(([^)]*)\)", re.M)
_Error = TypeVar("_Error", bound=Exception)
#: Not part of what runs.
_LEFT_OUT = ("offloader.testing", "formats.metadata")


def error_kinds() -> str:
    found = all_errors()
    lines = ["# kinds: exit code"]
    lines += [f"{kind.name.lower()}: {kind.value}" for kind in ErrorKind]
    lines.append("\n# errors: kind, exit code, HTTP status")
    lines += sorted(map(_line, found))
    lines.append("\n# errors of bytes: what they derive from")
    lines += sorted(f"{each.__name__}: {', '.join(b.__name__ for b in each.__bases__)}" for each in _all(FormatError))
    return "\n".join(lines) + "\n"


def all_errors() -> list[type[OffloaderError]]:
    """Every error class of the package."""
    _import_errors()
    return sorted(_all(OffloaderError), key=lambda each: each.__name__)


def _import_errors() -> None:
    """Imports every module with a class that derives from an error."""
    known = {each.__name__ for each in (*_all(OffloaderError), *_all(FormatError))}
    texts = {
        path: path.read_text(encoding="utf-8")
        for package in (formats, offloader)
        for path in Path(package.__path__[0]).rglob("*.py")
    }
    is_new = True
    while is_new:
        is_new = False
        for path, text in texts.items():
            derived = {name for name, bases in _CLASS.findall(text) if known & set(re.findall(r"\w+", bases))}
            if derived - known and path.parent.name != "testing":
                root = Path(offloader.__path__[0]).parent
                importlib.import_module(".".join(path.relative_to(root).with_suffix("").parts))
                known, is_new = known | derived, True


def _all(kind: type[_Error]) -> Iterator[type[_Error]]:
    module = kind.__module__
    is_ours = module.split(".")[0] in ("offloader", "formats") and not module.startswith(_LEFT_OUT)
    if is_ours and not kind.__name__.startswith("_"):
        yield kind
    for each in kind.__subclasses__():
        yield from _all(each)


def _line(error: type[OffloaderError]) -> str:
    made = error.__new__(error)
    OffloaderError.__init__(made, "message")
    document = problem_of(made)
    status = document["status"] if document else 500
    again = ", retryable" if made.retryable else ""
    bases = ", ".join(base.__name__ for base in error.__bases__)
    return f"{error.__name__}({bases}): {error.kind.name.lower()}, {made.exit_code}, {status}{again}"
