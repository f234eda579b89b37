"""``./dev mutants``: how many of the fixed mutants the quick tests catch, and how many the gate.

    ./dev mutants                          # all of them: a mutant takes a few seconds
    ./dev mutants --area read --jobs 2
    ./dev mutants --only 17,42
    ./dev mutants --gate                   # those that survive the quick tests meet the slow ones of the gate, too

Each mutant is applied to a copy of the checkout in a temporary folder, and quick tests run there until the first one
fails: those that name the mutated module, then the folders of its area. The tests run in a fork of this process, which
has the libraries loaded but nothing of the product. The tests that caught a mutant have to pass without it.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import resource
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from queue import Queue

from tests.proof.mutants.mutants import AREAS, FOLDERS, Mutant, load, mutated, place_of

ROOT = Path(__file__).resolve().parents[3]
#: What the quick tests import of others: loaded once, before the first fork.
LIBRARIES = ("pytest", "hypothesis", "hypothesis.stateful", "numpy", "pyarrow", "pyarrow.parquet", "google.protobuf",
             "lz4.block", "zstandard", "fsspec", "typer", "rich.console", "sqlite3")  # fmt: skip
#: A mutant whose tests need more processor time than this hangs.
CPU_S_MAX = 180
#: Seconds after which a quick test fails that a mutant makes wait; they take less than ten.
TEST_S_MAX = 90
#: Options of pytest for the quick tests, and for the other tests of the gate that start no process.
QUICK, SLOW = [["--quick"]], [["-m", "slow and not process and not java"]]
#: Share of the mutants that the quick tests, or the gate, have to catch.
CAUGHT_BY_QUICK_MIN, CAUGHT_BY_GATE_MIN = 0.8, 0.9
#: pytest's exit code when it finds no test.
NO_TESTS = 5
#: What is not copied from the checkout: environments, caches and what runs left behind.
NOT_COPIED = {"build", "dist", "offloader-demo", "__pycache__"}
#: Hidden folders that tests read.
COPIED = {".ci", ".github"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the tests of one mutant ended; ``test`` is the first that failed."""

    number: int
    caught: bool
    test: str


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="./dev mutants", description="How many fixed mutants the quick tests catch.")
    parser.add_argument("--area", choices=AREAS, help="only those of one area")
    parser.add_argument("--only", help="only these numbers, with commas")
    parser.add_argument("--gate", action="store_true", help="slow tests of the gate too, without servers")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="mutants at once")
    parser.add_argument("--json", type=Path, help="appends each outcome to this file; mutants it has are passed over")
    options = parser.parse_args(arguments)
    chosen = dict(enumerate(load()))
    if options.area:
        chosen = {number: mutant for number, mutant in chosen.items() if mutant.area == options.area}
    if options.only:
        chosen = {number: chosen[number] for number in map(int, options.only.split(","))}
    outcomes = _kept(options.json)
    outcomes = {number: outcome for number, outcome in outcomes.items() if number in chosen}
    for name in LIBRARIES:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory(prefix="offloader-mutants-") as folder:
        copies: Queue[Path] = Queue()
        for job in range(options.jobs):
            copies.put(_copied(Path(folder) / str(job)))

        def run(number: int) -> Outcome:
            copy = copies.get()
            try:
                return _run(number, chosen[number], copy, QUICK + SLOW if options.gate else QUICK)
            finally:
                copies.put(copy)

        with ThreadPoolExecutor(options.jobs) as pool:
            for outcome in pool.map(run, [number for number in chosen if number not in outcomes]):
                outcomes[outcome.number] = outcome
                said = f"caught by {outcome.test}" if outcome.caught else "SURVIVES"
                print(f"{outcome.number}: {chosen[outcome.number]}\n    {said}", flush=True)
                if options.json:
                    with options.json.open("a", encoding="utf-8") as file:
                        file.write(json.dumps([outcome.number, outcome.caught, outcome.test]) + "\n")
        _require_sound(outcomes.values(), copies.get())
    return _report(chosen, outcomes, CAUGHT_BY_GATE_MIN if options.gate else CAUGHT_BY_QUICK_MIN)


def _kept(path: Path | None) -> dict[int, Outcome]:
    if path is None or not path.exists():
        return {}
    return {row[0]: Outcome(*row) for row in map(json.loads, path.read_text(encoding="utf-8").splitlines())}


def _report(chosen: dict[int, Mutant], outcomes: dict[int, Outcome], caught_min: float) -> int:
    every, caught = Counter(mutant.area for mutant in chosen.values()), Counter[str]()
    for number, outcome in outcomes.items():
        caught[chosen[number].area] += outcome.caught
    for area in every:
        print(f"{area}: {caught[area]} of {every[area]} caught")
    print(f"all: {caught.total()} of {every.total()} caught")
    return 0 if caught.total() >= caught_min * every.total() else 1


def _copied(target: Path) -> Path:
    target.mkdir()
    for source in ROOT.iterdir():
        if source.name in NOT_COPIED or (source.name.startswith(".") and source.name not in COPIED):
            continue
        if source.is_dir():
            shutil.copytree(source, target / source.name)
        else:
            shutil.copy2(source, target / source.name)
    return target


def _require_sound(outcomes: Iterable[Outcome], copy: Path) -> None:
    """The tests that caught something pass on the product as it is: else that they failed would say nothing."""
    tests = sorted({outcome.test for outcome in outcomes if outcome.caught and outcome.test.startswith("tests/")})
    if tests:
        passes, test = _tests(copy, tests, ())
        if not passes:
            raise SystemExit(f"./dev mutants: without a mutant this test fails too: {test}")


def _run(number: int, mutant: Mutant, copy: Path, selections: Sequence[Sequence[str]]) -> Outcome:
    place = place_of(mutant, ROOT)
    path = copy / place.path
    before, times = path.read_text(encoding="utf-8"), path.stat()
    path.write_text(mutated(mutant, place, ROOT), encoding="utf-8")
    os.utime(path, (times.st_atime, times.st_mtime + 60 + number))  # its compiled code is known by size and second
    try:
        stages = list(_stages(copy, mutant.area, ".".join(place.path.with_suffix("").parts)))
        for selection, files in product(selections, stages):
            passes, test = _tests(copy, files, selection)
            if not passes:
                break
    finally:
        path.write_text(before, encoding="utf-8")
        os.utime(path, (times.st_atime, times.st_mtime))
    return Outcome(number, not passes, test)


def _stages(copy: Path, area: str, module: str) -> Iterator[list[str]]:
    """Test modules, those first that are likely to notice: what names the mutated module, then the area's folders."""
    names = re.compile(rf"\b{re.escape(module)}\b")
    proof = copy / "tests" / "proof"
    gate = [path for path in (copy / "tests").rglob("test_*.py") if not path.is_relative_to(proof)]
    naming = [path for path in gate if names.search(path.read_text(encoding="utf-8"))]
    yield _relative(copy, naming)
    for folder in FOLDERS[area]:
        yield _relative(copy, [path for path in (copy / folder).rglob("test_*.py") if path not in naming])


def _relative(copy: Path, files: list[Path]) -> list[str]:
    return [path.relative_to(copy).as_posix() for path in sorted(files, key=lambda path: path.stat().st_size)]


def _tests(copy: Path, files: list[str], selection: Sequence[str]) -> tuple[bool, str]:
    """Runs the selected tests in a fork; whether all passed, else the first that failed."""
    report = copy / "failed.txt"
    report.unlink(missing_ok=True)
    process = os.fork()
    if process == 0:
        code = 1
        try:
            code = _in_child(copy, files, selection, report)
        except BaseException as error:
            report.write_text(f"{type(error).__name__}: {error}", encoding="utf-8")
        os._exit(code)
    _, status = os.waitpid(process, 0)
    if os.WIFSIGNALED(status):
        return False, f"signal {os.WTERMSIG(status)}: hangs, or ends the process"
    code = os.waitstatus_to_exitcode(status)
    if code == NO_TESTS:  # none of them is quick
        code = 0
    said = report.read_text(encoding="utf-8") if report.exists() else f"pytest's exit code {code}"
    return code == 0, said


class _FirstFailure:
    """A pytest plugin that writes down what failed first, and that the product under test is the copy's."""

    def __init__(self, copy: Path, report: Path) -> None:
        self._copy, self._report = copy, report

    def pytest_collectreport(self, report: object) -> None:
        self.pytest_runtest_logreport(report)

    def pytest_runtest_logreport(self, report: object) -> None:
        if getattr(report, "failed", False) and not self._report.exists():
            self._report.write_text(str(getattr(report, "nodeid", "")), encoding="utf-8")

    def pytest_collection_finish(self) -> None:
        for name in ("formats", "offloader"):
            loaded = sys.modules.get(name)
            assert loaded is None or Path(str(loaded.__file__)).is_relative_to(self._copy), loaded


def _in_child(copy: Path, files: list[str], selection: Sequence[str], report: Path) -> int:
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S_MAX, CPU_S_MAX))
    os.chdir(copy)
    sys.path[:] = [str(copy), *(each for each in sys.path if Path(each or ".").resolve() != ROOT)]
    for name in [each for each in sys.modules if each.split(".")[0] in ("tests", "services")]:
        del sys.modules[name]
    with Path(os.devnull).open("w", encoding="utf-8") as silent:
        os.dup2(silent.fileno(), 1)
        os.dup2(silent.fileno(), 2)
    os.environ["PYTHONDONTWRITEBYTECODE"] = ""
    sys.dont_write_bytecode = False
    import pytest

    options = ["-x", "-q", *selection, "--tb=no", "-p", "no:randomly", "-p", "no:schemathesis", "-p", "no:xdist"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # libraries are loaded already
    options += ["-p", "no:cacheprovider", "--rootdir", str(copy), "-c", str(copy / "pyproject.toml")]
    options += [f"--timeout={TEST_S_MAX}"]
    return int(pytest.main([*options, *files], plugins=[_FirstFailure(copy, report)]))


if __name__ == "__main__":
    sys.exit(main())
