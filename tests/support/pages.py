"""Runs the samples of a Markdown page: its fenced blocks, in document order, in one folder.

The first word of an info string is the kind of the block:

* ``console``: commands after ``$ ``, and below each what it prints. ``...`` stands for any further lines, within a line
  for any text; widths of columns and empty lines don't count. A command of ours runs in this process; ``Shell`` knows
  ``export``, ``curl``, ``... | jq -r .name``, also ``| sort``, ``... &``, ``kill`` and ``wait``; bash runs all others.
* ``bash``: a script for ``bash -euo pipefail``.
* ``python``: runs in the namespace that the page's samples share.
* ``output``: what the block before prints.
* ``toml``: a valid settings file, which is written: ``offloader.toml``, or ``NAME.toml`` of ``toml NAME``.
* ``text``, ``json``, ``yaml``, ``hex NAME``: for readers only.

Words after it:

* ``not-run``: of ``bash``, ``console`` and ``python`` that no test can run.
* ``python file=NAME``: is written to the file and not run.
* ``python repeat``: runs again until it prints what the page shows.
* ``python spark``: runs with the Spark that the page's world has as ``spark``, or as a program without an environment
  on ``PATH``, with the texts among the world's names as variables.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from offloader.cli.main import main
from offloader.settings.layered import read_settings_file
from tests.support import bare_path
from tests.support.serving_processes import Serving
from tests.support.waiting import PATIENCE_S, eventually

__all__ = ["AGE", "TIME", "UUID", "Block", "Run", "World", "blocks_of", "fences", "fits", "is_known", "run_blocks"]

ROOT = Path(__file__).resolve().parents[2]
RUN = ("bash", "console", "python")
#: Kind -> the words that may follow it; ``None``: any one name.
KINDS: dict[str, frozenset[str] | None] = {
    "bash": frozenset({"not-run"}),
    "console": frozenset({"not-run"}),
    "python": frozenset({"not-run", "repeat", "spark"}),
    **dict.fromkeys(("output", "text", "json", "yaml"), frozenset()),
    **dict.fromkeys(("toml", "hex"), None),
}
#: Masks that several pages need: pattern -> what stands for it.
UUID = (r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "UUID")
TIME = (r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME")
AGE = (r"\b\d+ s\b", "AGE")
#: What only looks, and is repeated while a process works in the background.
_LOOKS = re.compile(r"curl (?!.*-X )|offloader (read|ls|segments|status) ")
_IS_SHELL = re.compile(r"[|&;<>()]+")


@dataclass(frozen=True)
class Block:
    """A fenced block. ``line`` is that of its fence, ``heading`` the one of the second level that it is below."""

    words: tuple[str, ...]
    body: str
    line: int
    heading: str

    @property
    def kind(self) -> str:
        return self.words[0] if self.words else ""

    @property
    def is_run(self) -> bool:
        return self.kind in RUN and "not-run" not in self.words

    @property
    def file(self) -> str:
        """The name in ``file=NAME``."""
        return next((word.removeprefix("file=") for word in self.words if word.startswith("file=")), "")


def blocks_of(text: str) -> Iterator[Block]:
    """The fenced blocks of a page, without what they are indented by."""
    heading, words, line, indent = "", None, 0, 0
    body: list[str] = []
    for number, each in enumerate(text.splitlines(), 1):
        if found := re.match(r"( *)```(.*)$", each):
            if words is None:
                words, line, indent, body = tuple(found[2].split()), number, len(found[1]), []
            else:
                yield Block(words, "".join(f"{one[indent:]}\n" for one in body), line, heading)
                words = None
        elif words is not None:
            body.append(each)
        elif each.startswith("## "):
            heading = each.removeprefix("## ")
    assert words is None, f"the fence of line {line} has no end"


def fences(text: str) -> Iterator[tuple[str, str]]:
    """Info string and text of each block."""
    for block in blocks_of(text):
        yield " ".join(block.words), block.body


def is_known(block: Block) -> bool:
    """Whether the info string is one of the module's."""
    if block.kind not in KINDS:
        return False
    known, more = KINDS[block.kind], block.words[1:]
    if known is None:
        return len(more) <= 1
    return all(word in known or (block.kind == "python" and word.startswith("file=")) for word in more)


@dataclass
class World:
    """What a page assumes.

    Attributes:
        replaces: what the page has -> what this machine has instead, in all blocks.
        masks: patterns of what differs from run to run -> what stands for it, in what is expected and printed.
        names: of the page's Python.
        environment: variables; an ``export`` on the page doesn't change them.
        commands: how a command begins -> what runs it and returns what it prints.
        processes: the name in ``kill -STOP $(pidof NAME)`` -> that process, which leads a group.
        is_ready: awaited after a process was started in the background.
        check: called at the end.
    """

    replaces: Mapping[str, str] = field(default_factory=dict)
    masks: Sequence[tuple[str, str]] = ()
    names: dict[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    commands: Mapping[str, Callable[[str], str]] = field(default_factory=dict)
    processes: Mapping[str, subprocess.Popen[Any]] = field(default_factory=dict)
    is_ready: Callable[[], object] = lambda: True
    check: Callable[[Run], None] = lambda _: None


def fits(expected: str, printed: str, masks: Iterable[tuple[str, str]] = ()) -> bool:
    """Whether what is printed is what a page shows; see the module."""
    for pattern, name in masks:
        expected, printed = (re.sub(pattern, name, text) for text in (expected, printed))
    pattern = ""
    for line in filter(str.strip, expected.splitlines()):
        parts = [re.escape(" ".join(part.split())) for part in line.split("...")]
        pattern += "(?:.*\n)*" if line.strip() == "..." else " ?.* ?".join(parts) + "\n"
    found = "".join(" ".join(line.split()) + "\n" for line in printed.splitlines() if line.strip())
    return re.fullmatch(pattern, found) is not None


def run_blocks(page: str, blocks: Iterable[Block], world: World, folder: Path) -> Run:
    """Runs a page's blocks in ``folder``.

    Raises:
        AssertionError: with page, line, command, and what was expected and printed.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        ours = {"PATH": path, "PYTHONPATH": str(ROOT), "COLUMNS": "200", "RCLONE_CONFIG": os.devnull}
        for name, value in {**ours, "XDG_STATE_HOME": str(folder / "state"), **world.environment}.items():
            patch.setenv(name, value)
        with Shell(world, patch) as shell:
            run = Run(page, world, folder, shell)
            for block, after in pairwise([*blocks, None]):
                assert block is not None
                run.take(block, after.body if after and after.kind == "output" else None)
            world.check(run)
    return run


@dataclass
class Run:
    """A page that runs; ``printed`` by each of its blocks that ran."""

    page: str
    world: World
    folder: Path
    shell: Shell
    printed: list[str] = field(default_factory=list)

    @property
    def names(self) -> dict[str, Any]:
        return self.world.names

    def take(self, block: Block, output: str | None) -> None:
        """Runs one block; ``output`` is what the page shows after it."""
        assert is_known(block), f"{self.page}:{block.line}: unknown info string {' '.join(block.words)!r}"
        body = self._here(block.body)
        try:
            if block.kind == "toml":
                path = self.folder / f"{(*block.words, 'offloader')[1]}.toml"
                path.write_text(body)
                read_settings_file(str(path)).settings_of("")
            elif block.file:
                (self.folder / block.file).write_text(body)
            elif block.kind == "console" and block.is_run:
                self._session(block.line, body)
            elif block.is_run:
                self.printed.append("")
                run = self._script if block.kind == "bash" else self._spark if self._is_apart(block) else self._python
                wanted = None if output is None else self._here(output)
                again = "repeat" in block.words
                self._compare(partial(run, body, block.line), block.line, block.kind, wanted, repeats=again)
        except AssertionError:
            raise
        except Exception as error:
            error.add_note(f"{self.page}:{block.line}")
            raise

    def _here(self, text: str) -> str:
        ours = self.world.replaces
        names = "|".join(map(re.escape, sorted(ours, key=len, reverse=True)))
        return re.sub(names, lambda found: ours[found[0]], text) if ours else text

    def _is_apart(self, block: Block) -> bool:
        return "spark" in block.words and "spark" not in self.names

    def _session(self, line: int, body: str) -> None:
        self.printed.append("")
        for command, expected, offset in _commands(body):
            repeats = self.shell.is_busy and _LOOKS.match(command) is not None
            self._compare(partial(self.shell.run, command), line + offset, command, expected, repeats=repeats)

    def _compare(
        self, run: Callable[[], str], line: int, what: str, expected: str | None, *, repeats: bool = False
    ) -> None:
        found = ""

        def is_so() -> bool:
            nonlocal found
            found = run()
            return expected is None or fits(expected, found, self.world.masks)

        try:
            if is_so():
                return
            if repeats:
                with contextlib.suppress(AssertionError):
                    eventually(is_so)
                    return
        finally:
            self.printed[-1] += found
        raise AssertionError(f"{self.page}:{line}: {what}\n--- expected\n{expected}--- printed\n{found[:4000]}")

    def _python(self, body: str, line: int) -> str:
        code = compile("\n" * line + body, self.page, "exec")
        with _captured() as (out, _):
            exec(code, self.names)
        return _text(out)

    def _script(self, body: str, line: int) -> str:
        done = self.shell.bash(body, "-euo", "pipefail")
        assert done.returncode == 0, f"{self.page}:{line}: {done.stderr}"
        return done.stdout

    def _spark(self, body: str, line: int) -> str:
        given = "".join(f"{name} = {value!r}\n" for name, value in self.names.items() if isinstance(value, str))
        done = bare_path.run([sys.executable, "-c", f"{given}{body}\nspark.stop()"], self.folder)
        assert done.returncode == 0, f"{self.page}:{line}: {done.stderr[-3000:]}"
        return done.stdout.rstrip("\n") + "\n"


def _commands(body: str) -> Iterator[tuple[str, str, int]]:
    """The commands of a session, what each prints, and where: lines below the fence."""
    assert body.startswith("$ "), f"a session begins with a command, not with {body.splitlines()[:1]}"
    for found in re.finditer(r"^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)", body, re.M):
        yield found[1].replace("\\\n", " "), found[2], body.count("\n", 0, found.start()) + 1


@contextlib.contextmanager
def _captured() -> Iterator[tuple[io.TextIOWrapper, io.TextIOWrapper]]:
    """What this process prints; bytes too, which some verbs write."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="", write_through=True) for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        yield out, err


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    stream.seek(0)
    return stream.read()


class Shell:
    """The terminal of a page; a context, which ends the processes in the background.

    Attributes:
        code: of the last command.
    """

    def __init__(self, world: World, patch: pytest.MonkeyPatch) -> None:
        self.code = 0
        self._world, self._patch = world, patch
        self._stack = contextlib.ExitStack()
        self._jobs: list[Serving] = []

    def __enter__(self) -> Shell:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def is_busy(self) -> bool:
        return any(job.process.poll() is None for job in self._jobs)

    def run(self, command: str) -> str:
        """What a command prints: standard output, then errors."""
        first, _, rest = command.partition("; echo $?")
        if first != command and not rest:
            return self.run(first) + self.run("echo $?")
        if command == "echo $?":
            return f"{self.code}\n"
        self.code = 0
        for beginning, function in self._world.commands.items():
            if command.startswith(beginning):
                return function(command)
        if assigned := re.match(r"(?:export )?([A-Za-z_]\w*)=(.*)$", command):
            return self._assign(assigned[1], assigned[2])
        if job := re.match(r"(kill|kill -9|wait) %(\d)$", command):
            return self._job(job[1], self._jobs[int(job[2]) - 1])
        if frozen := re.match(r"kill -(STOP|CONT) \$\(.* (\w+)\)$", command):
            process = self._world.processes[frozen[2]]
            os.killpg(process.pid, signal.SIGSTOP if frozen[1] == "STOP" else signal.SIGCONT)
            return ""
        if command.endswith(" &"):
            return self._begin(shlex.split(command))
        line, _, query = command.partition(" | jq ")
        printed = self._plain(line)
        if not query:
            return printed
        query, sorts, _ = query.partition(" | sort")
        picked = [_picked(json.loads(each), query) for each in printed.splitlines()]
        return "".join(sorted(picked) if sorts else picked)

    def _plain(self, line: str) -> str:
        here = os.path.expandvars(line)
        split = shlex.shlex(here, posix=True, punctuation_chars=True)
        split.whitespace_split = True
        words = list(split)
        if not any(_IS_SHELL.fullmatch(word) for word in words) and "$(" not in here:
            if words[0] == "curl":
                return _curl(words)
            if Path(words[0]).name == "offloader":
                return self._ours(words[1:])
        done = self.bash(line)
        self.code = done.returncode
        return done.stdout + done.stderr or self._silence

    def _ours(self, words: list[str]) -> str:
        with _captured() as (out, err):
            self.code = main(words)
        return _text(out) + _text(err) or self._silence

    @property
    def _silence(self) -> str:
        """What stands for nothing: a failure that says nothing is no success."""
        return f"(exit code {self.code})\n" if self.code else ""

    def bash(self, script: str, *options: str) -> subprocess.CompletedProcess[str]:
        command = ["bash", *options, "-c", script]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=2 * PATIENCE_S)

    def _assign(self, name: str, value: str) -> str:
        if "$(" in value:
            done = self.bash(f'{name}={value}; printf %s "${name}"')
            assert done.returncode == 0, done.stderr
            value = done.stdout
        if name not in self._world.environment:
            self._patch.setenv(name, "".join(shlex.split(os.path.expandvars(value))))
        return ""

    def _begin(self, words: list[str]) -> str:
        """Starts ``offloader serve --config FILE &``."""
        assert (Path(words[0]).name, *words[1:3]) == ("offloader", "serve", "--config"), words
        job = self._stack.enter_context(Serving(Path(words[3]), wait=False))
        self._jobs.append(job)
        eventually(lambda: job.process.poll() is not None or any(map(_says_started, list(job.lines))))
        assert job.process.poll() is None, job.lines
        eventually(self._world.is_ready)
        return ""

    def _job(self, act: str, job: Serving) -> str:
        if act == "wait":
            self.code = job.ended()
        else:
            job.signal(signal.SIGTERM if act == "kill" else signal.SIGKILL)
        return ""


def _says_started(line: dict[str, Any]) -> bool:
    return line.get("event") == "started" or "serving" in line.get("text", "")


def _curl(words: list[str]) -> str:
    method = words[words.index("-X") + 1] if "-X" in words else "GET"
    headers = dict([words[words.index("-H") + 1].split(": ", 1)]) if "-H" in words else {}
    answers = [_answered(word, method, headers) for word in words if word.startswith("http://")]
    return "".join(f"{answer}\n" for answer in answers if answer)


def _answered(url: str, method: str, headers: Mapping[str, str]) -> str:
    request = urllib.request.Request(url, method=method, headers=dict(headers))
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        with error:
            return str(error.read().decode())


def _picked(document: Any, query: str) -> str:
    """What jq finds by ``.items[0].lag.entries``; by ``-r`` a text has no quotation marks."""
    option, _, path = query.rpartition(" ")
    for name, number in re.findall(r"\.([a-z_]+)|\[(\d+)\]", path):
        found = document.get(name) if name else document[int(number) : int(number) + 1]
        document = found if name else found[0] if found else {}
    return f"{document if option == '-r' and isinstance(document, str) else json.dumps(document)}\n"
