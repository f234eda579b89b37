"""How long the whole demo takes, part by part, on a fresh directory.

    python benchmarks/bench_demo.py [--json]

The limit to compare with: the demo's data are 100 MB, written once to SQLite and once to the store; the rest is Spark's
start, which costs seconds whatever the data.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time


def timed(*options: str, directory: str) -> float:
    command = [sys.executable, "-m", "offloader.cli.main", "demo", "--dir", directory, "--json", *options]
    started = time.perf_counter()
    subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = {}
    with tempfile.TemporaryDirectory() as directory:
        rows["whole demo, Spark and picture included, s"] = timed(directory=f"{directory}/whole")
        short = ("--no-spark", "--no-picture")
        rows["without Spark and picture, s"] = timed(*short, directory=f"{directory}/short")
        rows["run again: verified, nothing appended, s"] = timed(*short, directory=f"{directory}/short")
    if options.json:
        print(json.dumps(rows))
        return
    for name, value in rows.items():
        print(f"{name:45} {value:6.1f}")


if __name__ == "__main__":
    main()
