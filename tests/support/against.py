"""``./dev test --against COMMIT LIST``: shows that tests fail on the product of an earlier commit, and how.

The commit's product code (``formats``, ``offloader``, ``pyspark_offloader.py``) is put under everything else of the
current tree in a temporary worktree, and each listed test is run there. A test proves something about that product only
when it fails by an assertion, or because the product raised an error of its own: one that can't be imported or calls
what isn't there would fail whatever the product does.

LIST is a text file: one test (pytest's node id) a line; what follows a ``#`` is a comment.
"""

from __future__ import annotations

import argparse
import enum
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

__all__ = ["Failure", "How", "compare", "listed_tests", "main"]

ROOT = Path(__file__).parent.parent.parent
#: What comes from the commit.
PRODUCT = ("formats", "offloader", "pyspark_offloader.py")
#: Letters of an error that are shown.
REASON_LETTERS = 110
#: pytest's exit code for a test that it doesn't find: then it runs none of those that it was given.
_NOT_FOUND = 4


class How(enum.Enum):
    """How a test ended on the earlier product."""

    ASSERTION = "assertion"
    PRODUCT_ERROR = "product error"
    OTHERWISE = "OTHERWISE"
    PASSES = "PASSES"

    @property
    def proves(self) -> bool:
        """Whether the test shows what the earlier product did wrong."""
        return self in (How.ASSERTION, How.PRODUCT_ERROR)


@dataclass(frozen=True, slots=True)
class Failure:
    """One test, or one set of its parameters.

    Attributes:
        test: its node id.
        how: how it ended.
        reason: type and message of what it failed with.
    """

    test: str
    how: str
    reason: str = ""


def listed_tests(text: str) -> list[str]:
    """The node ids of a list."""
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return list(dict.fromkeys(line for line in lines if line))


def compare(root: Path, commit: str, tests: Sequence[str]) -> list[Failure]:
    """Runs tests of ``root`` on the product of ``commit``.

    Raises:
        CalledProcessError: there is no such commit.
    """
    with _worktree(root, commit) as place:
        _overlay(root, place)
        found = []
        for module in dict.fromkeys(test.partition("::")[0] for test in tests):
            found += _run(place, [test for test in tests if test.partition("::")[0] == module])
    missing = [test for test in tests if not any(_is_of(each.test, test) for each in found)]
    return found + [Failure(test, How.OTHERWISE.name, "not collected") for test in missing]


@contextmanager
def _worktree(root: Path, commit: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="offloader-against-") as folder:
        place = Path(folder) / "tree"
        git = ["git", "-C", str(root), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(place), commit], check=True)
        try:
            yield place
        finally:
            subprocess.run([*git, "remove", "--force", str(place)], check=True)


def _overlay(root: Path, place: Path) -> None:
    """Everything of the current tree but the product; tests that are gone by now go."""
    shutil.rmtree(place / "tests", ignore_errors=True)
    listing = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, check=True, capture_output=True, text=True).stdout.split("\0")
    for name in names:
        if name and Path(name).parts[0] not in PRODUCT and (root / name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, place / name)


def _run(place: Path, tests: Sequence[str]) -> list[Failure]:
    """Tests of one module, together; one after the other when pytest doesn't find them all."""
    results = place.parent / "results.jsonl"
    results.unlink(missing_ok=True)
    environment = {**os.environ, "PYTHONPATH": str(place)}
    command = [sys.executable, "-P", __file__, "--record", str(results), "-", *tests]
    done = subprocess.run(command, cwd=place, env=environment, check=False, capture_output=True, text=True)
    if done.returncode == _NOT_FOUND and len(tests) > 1:
        return [failure for test in tests for failure in _run(place, [test])]
    lines = results.read_text().splitlines() if results.exists() else []
    found = [Failure(**json.loads(line)) for line in lines]
    # A module that can't be collected answers for all its tests.
    broken = [each for each in found if "::" not in each.test]
    if not broken:
        return found
    return [Failure(test, How.OTHERWISE.name, broken[0].reason) for test in tests]


def _is_of(test: str, listed: str) -> bool:
    return test == listed or test.startswith((f"{listed}[", f"{listed}::"))


class _Recorder:
    """A pytest plugin: writes down how each test ended."""

    def __init__(self, results: Path, place: Path) -> None:
        self._results, self._place = results, place

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write(Failure(report.nodeid, How.OTHERWISE.name, f"not collected: {_last_line(report.longreprtext)}"))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
        report = yield
        if call.excinfo is None:
            if report.when == "call" and report.passed:
                self._write(Failure(item.nodeid, How.PASSES.name))
        elif report.when == "call" and report.failed:
            reason = f"{call.excinfo.typename}: {call.excinfo.value}"
            self._write(Failure(item.nodeid, self._how(call.excinfo).name, reason))
        elif report.when == "setup":
            # A test that is skipped proves nothing either.
            self._write(Failure(item.nodeid, How.OTHERWISE.name, f"before it began: {call.excinfo.exconly()}"))
        return report

    def _how(self, error: pytest.ExceptionInfo[BaseException]) -> How:
        value = error.value
        if isinstance(value, pytest.fail.Exception):
            return How.OTHERWISE if str(value).startswith("Timeout") else How.ASSERTION
        if isinstance(value, AssertionError):
            return How.ASSERTION
        own = [path for entry in error.traceback if (path := self._relative(entry.path)) is not None]
        # Whose line raised it: of what isn't there, a test's; libraries raise for who called them.
        by_product = bool(own) and own[-1].parts[0] in PRODUCT
        return How.PRODUCT_ERROR if by_product and not isinstance(value, ImportError) else How.OTHERWISE

    def _relative(self, path: Path | str) -> Path | None:
        found = Path(path)
        return found.relative_to(self._place) if found.is_relative_to(self._place) else None

    def _write(self, failure: Failure) -> None:
        with self._results.open("a") as file:
            file.write(json.dumps(asdict(failure)) + "\n")


def _last_line(text: str) -> str:
    return next((line.removeprefix("E").strip() for line in reversed(text.splitlines()) if line.strip()), "")


def _record(results: str, tests: Sequence[str]) -> int:
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:xdist", "--tb=short"]
    return pytest.main([*options, *tests], plugins=[_Recorder(Path(results), Path.cwd())])


def main(arguments: Sequence[str] | None = None, *, root: Path = ROOT) -> int:
    """The command; 0 when every test fails by an assertion or by an error of the product, else 1."""
    parser = argparse.ArgumentParser(prog="./dev test --against", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--record", metavar="FILE", help=argparse.SUPPRESS)
    parser.add_argument("commit", help="whose product is tested")
    parser.add_argument("tests", nargs="+", metavar="LIST", help="file with one test a line")
    options = parser.parse_args(arguments)
    if options.record:
        return _record(options.record, options.tests)
    tests = [test for name in options.tests for test in listed_tests(Path(name).read_text())]
    try:
        found = compare(root, options.commit, tests)
    except subprocess.CalledProcessError as error:
        sys.stderr.write(f"{' '.join(error.cmd)} failed\n")
        return 2
    for each in found:
        reason = each.reason.splitlines()[0] if each.reason else ""
        sys.stdout.write(f"{How[each.how].value:13}  {each.test}\n")
        if reason:
            sys.stdout.write(f"{'':15}{reason[:REASON_LETTERS]}\n")
    proving = sum(How[each.how].proves for each in found)
    sys.stdout.write(f"{proving} of {len(found)} fail on {options.commit} by assertion or by the product's own error\n")
    return 0 if proving == len(found) and found else 1


if __name__ == "__main__":
    sys.exit(main())
