"""Pages with samples: what is in them, and running them in order."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from offloader.cli.main import main

__all__ = ["fences", "run_samples", "sessions"]


def fences(text: str) -> Iterator[tuple[str, str]]:
    """Language and text of each block."""
    for found in re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.M | re.S):
        yield found[1], found[2]


def sessions(text: str) -> Iterator[tuple[str, list[str]]]:
    """Commands of a console block, and what each prints."""
    for block in re.split(r"^\$ ", text, flags=re.M)[1:]:
        command, *expected = block.splitlines()
        yield command, expected


def run_samples(
    text: str,
    place: str,
    folder: Path,
    monkeypatch: Any,
    capsys: Any,
    *,
    plain: Callable[[str], str] = lambda line: line,
) -> int:
    """Runs what is Python or a command of ours, in order, and compares what is printed; the number of commands.

    Args:
        place: where the page says that its files are; they are in ``folder``.
        plain: takes out of a line what differs from run to run. A promised line that ends in ``...`` is a beginning.
    """
    printed, count = "", 0
    for language, block in fences(text):
        here = block.replace(place, str(folder))
        if language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile(here, "sample", "exec"), {})
            printed = out.getvalue()
        elif language == "text":
            assert printed == here, "what the sample before printed"
        elif language == "console":
            for command, expected in sessions(here):
                words = shlex.split(command)
                if words[0] == "export":
                    monkeypatch.setenv(*words[1].split("=", 1))
                    continue
                assert words[0] == "offloader"
                capsys.readouterr()
                code = main(words[1:])
                found = capsys.readouterr()
                assert (code, found.err) == (0, ""), command
                lines = [plain(line) for line in found.out.splitlines()]
                wanted = [plain(line) for line in expected]
                if wanted and wanted[-1].endswith("..."):
                    wanted[-1] = wanted[-1].removesuffix("...")
                    lines[-1] = lines[-1][: len(wanted[-1])]
                assert lines == wanted, f"{command}: {lines}"
                count += 1
    return count
