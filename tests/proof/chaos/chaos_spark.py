"""Reads a stream with Spark, as often as it takes to be killed, or once: ``STORE JOURNAL``.

Exit codes are those of chaos_reader; what Spark raises, it says itself, and Python makes exit code 1 of it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from offloader.spark.session import local_session
from tests.proof.chaos.chaos_journal import number_of, read_journal
from tests.proof.chaos.chaos_reader import LEASE_SECONDS, WRONG, Seen, wrong_with

STREAM = "chaos/live"


def main() -> int:
    url, path = sys.argv[1:]
    journal = read_journal(Path(path))[STREAM]
    with local_session() as spark:
        options = {"store": url, "stream": STREAM, "splitBytes": "65536", "leaseSeconds": str(2 * LEASE_SECONDS)}
        frame = spark.read.format("offloader").options(**options).load()
        print("session", flush=True)
        rows = frame.select("ledger_id", "entry_id", "payload").collect()
    seen: Seen = sorted(((row[0], row[1]), number_of(STREAM, bytes(row[2]))) for row in rows)
    wrong = wrong_with(STREAM, seen, journal, to_the_end=False)
    for each in wrong[:5]:
        print(f"wrong {each}", flush=True)
    print(f"read {len(seen)} entries", flush=True)
    return WRONG if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
