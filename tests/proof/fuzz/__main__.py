"""``./dev fuzz``: millions of changed inputs for everything that takes bytes from strangers.

    ./dev fuzz                                  # 10 million inputs over all targets
    ./dev fuzz objects manifest --inputs 100000
    ./dev fuzz --target manifest --input FILE   # one input again

Inputs that end somewhere new are added to the folder corpus with --keep; one that does what must not happen is written
to the folder that --failures names.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from tests.proof.fuzz.fuzz_engine import CORPUS, Report, child, name_of, run
from tests.proof.fuzz.fuzz_targets import TARGETS

#: What one process tries, in seconds of an idle core, before another one, which knows what was kept, goes on.
CHUNK_S = 10
#: What of a target's inputs is kept in the repository.
KEPT_BYTES_MAX = 4096
KEPT_INPUTS_MAX = 25


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}; default: all")
    parser.add_argument("--inputs", type=int, default=10_000_000, help="of all targets together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2, help="processes at once")
    parser.add_argument("--keep", action="store_true", help="add what ends somewhere new to tests/proof/fuzz/corpus")
    parser.add_argument("--failures", type=Path, default=Path("fuzz-failures"), help="folder for inputs that fail")
    parser.add_argument("--input", type=Path, help="try this one file only, in this process")
    parser.add_argument("--child", nargs=3, metavar=("ORDER", "SHARED", "REPORT"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        order = json.loads(arguments.child[0])
        child(TARGETS[order["target"]], order, Path(arguments.child[1]), Path(arguments.child[2]))
        return 0
    names = arguments.names or list(TARGETS)
    if unknown := [name for name in names if name not in TARGETS]:
        parser.error(f"no target {', '.join(unknown)}; there are {', '.join(TARGETS)}")
    if arguments.input:
        print(TARGETS[names[0]].check(arguments.input.read_bytes()))
        return 0
    with tempfile.TemporaryDirectory() as grown:
        failures = fuzz(names, arguments.inputs, arguments.seed, arguments.workers, Path(grown))
        for failed in failures:
            arguments.failures.mkdir(parents=True, exist_ok=True)
            path = arguments.failures / f"{failed.target}-{name_of(failed.culprit)}"
            path.write_bytes(failed.culprit)
            print(f"{failed.target}, seed {failed.seed}, input {failed.inputs}: {failed.failure}", file=sys.stderr)
            print(f"again: ./dev fuzz {failed.target} --input {path}", file=sys.stderr)
        if arguments.keep:
            keep(Path(grown), names)
    return 1 if failures else 0


def fuzz(names: list[str], inputs: int, seed: int, workers: int, grown: Path) -> list[Report]:
    """Runs all of it, a chunk after the other, and says what came of it; the failures."""
    orders = orders_of(names, inputs)
    tried, failures = dict.fromkeys(names, 0), list[Report]()
    with ThreadPoolExecutor(workers) as pool:
        asked = [
            pool.submit(run, name, seed=seed + number, inputs=size, grown=[grown])
            for number, (name, size) in enumerate(orders)
        ]
        for number, done in enumerate(as_completed(asked), 1):
            report = done.result()
            tried[report.target] += report.inputs
            failures += [report] if report.failure else []
            for data in report.kept:
                (grown / f"{report.target}-{name_of(data)}").write_bytes(data)
            if number % 20 == 0 or number == len(asked):
                print(f"{sum(tried.values()):,} inputs, {len(failures)} failures; {tried}", flush=True)
    return failures


def orders_of(names: list[str], inputs: int) -> list[tuple[str, int]]:
    """Target and inputs of each chunk, all targets side by side; each gets as many inputs as take as long."""
    together = sum(TARGETS[name].per_s for name in names)
    found = []
    for name in names:
        share = -(-inputs * TARGETS[name].per_s // together)
        chunks = -(-share // (TARGETS[name].per_s * CHUNK_S))
        found += [((number + 0.5) / chunks, name, -(-share // chunks)) for number in range(chunks)]
    return [(name, size) for _, name, size in sorted(found)]


def keep(grown: Path, names: list[str]) -> None:
    """Adds the smallest of what was found, up to the limit of each target."""
    for name in names:
        folder = CORPUS / name
        folder.mkdir(parents=True, exist_ok=True)
        room = KEPT_INPUTS_MAX - len(list(folder.iterdir()))
        found = sorted(grown.glob(f"{name}-*"), key=lambda path: path.stat().st_size)
        for path in [each for each in found if each.stat().st_size <= KEPT_BYTES_MAX][: max(room, 0)]:
            (folder / path.name.removeprefix(f"{name}-")).write_bytes(path.read_bytes())


if __name__ == "__main__":
    sys.exit(main())
