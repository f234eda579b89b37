"""Beside the peers: the same entries, the same server, the same run; one table.

    python benchmarks/bench_peers.py [--only NAME ...] [--delay-ms 0 30] [--mib 256] [--rounds 3]
                                     [--part rates readable] [--results FILE] [--report FILE] [--no-report] [--json]

rates: offloads and reads the same entries of 1 KiB with each peer on a MinIO of this run, one after the other:
throughput, a single entry, requests and their price, bytes stored, memory. readable: a trickle of entries, and when
each is in the tier. Results are kept in ``--results`` (peers and distances that aren't measured now stay as they are)
and become the document ``--report`` and the picture beside it.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.peers.bill import uncharged_metrics
from benchmarks.peers.entries import write_entries
from benchmarks.peers.kinds import KINDS
from benchmarks.peers.measure import Size, cell
from benchmarks.peers.readable import TIERS, readable
from benchmarks.peers.report import write_report
from benchmarks.peers.results import Results
from benchmarks.s3_rig import MIB, rig
from services.binaries import Unavailable

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "peers" / "results.json"
SERVER = "minio"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=list(KINDS), default=list(KINDS), metavar="NAME")
    parser.add_argument("--part", nargs="*", choices=("rates", "readable"), default=["rates", "readable"])
    parser.add_argument("--delay-ms", nargs="*", type=int, default=[0, 30])
    parser.add_argument("--mib", type=int, default=256, help="of payload, offered and read in each round")
    parser.add_argument("--warm-mib", type=int, default=64, help="of them before anything counts")
    parser.add_argument("--entry-bytes", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--singles", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=15.0, help="of the trickle")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--report", type=Path, default=ROOT / "docs" / "explanation" / "benchmarks.md")
    parser.add_argument("--readme", type=Path, default=ROOT / "README.md", help="the page whose table is written anew")
    parser.add_argument("--no-report", action="store_true", help="keep the results only")
    parser.add_argument("--json", action="store_true", help="print the results, too")
    given = parser.parse_args(arguments)
    size = Size(given.mib, given.entry_bytes, given.rounds, given.singles, given.warm_mib)
    try:
        results = Results.of(given.results, size, given.seconds)
    except ValueError as error:
        parser.error(str(error))
    missing = []
    try:
        for delay_ms in given.delay_ms if "rates" in given.part else ():
            missing += rates(results, given.only, delay_ms, size)
        for delay_ms in given.delay_ms if "readable" in given.part else ():
            for name in given.only:
                if name in TIERS:
                    results.add_readable(name, delay_ms, readable(name, delay_ms, given.seconds))
    except Unavailable as error:
        missing.append(str(error))
    if given.json:
        print(json.dumps(results.document))
    if not given.no_report:
        write_report(results.document, given.report, given.readme)
    for each in dict.fromkeys(missing):
        print(f"not measured: {each}", file=sys.stderr)
    return 1 if missing else 0


def rates(results: Results, names: list[str], delay_ms: int, size: Size) -> list[str]:
    """Measures peers at one distance, one after the other on one server; what couldn't be had."""
    missing = []
    uncharged_metrics()
    with tempfile.TemporaryDirectory(prefix="offloader-peers-") as folder, rig(SERVER) as running:
        entries_file = Path(folder) / "entries"
        write_entries(entries_file, size.mib * MIB)
        results.add_machine(running.data)
        for name in names:
            try:
                found = cell(running, KINDS[name], delay_ms, size, entries_file)
            except Unavailable as error:
                missing.append(str(error))
                continue
            results.add(name, delay_ms, found)
            shown = {part: round(found[part]["mb_s"], 1) for part in ("offload", "read") if part in found}
            print(f"{name} +{delay_ms} ms: {shown} MB/s", file=sys.stderr, flush=True)
    return missing


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    sys.exit(main())
