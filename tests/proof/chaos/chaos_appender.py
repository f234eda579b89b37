"""Appends to the streams of a run until it is killed: ``DATABASE JOURNAL``.

Each call's numbers are written down before, and what became of them after. One line on standard output for each call
that was acknowledged.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from offloader.errors import OffloaderError, OutcomeUnknownError
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
from offloader.ledgers.sqlite.stream import EmbeddedStream
from offloader.settings import Settings
from tests.proof.chaos.chaos_journal import JournalWriter, payload_of, read_journal

#: Entries of one call; a call of history is larger than all others together.
BATCHES = {"chaos/live": 20, "chaos/short": 12, "chaos/history": 1}
#: A pace that a developer's machine can offload at, several tiers and proxies and all.
PAUSE_S = 0.1
#: Appended at first to what is backfilled: more than one part of an upload.
HISTORY_BATCHES = 200
SETTINGS = Settings.of({"ledgers": {"ledger_entries_max": 700}}).ledgers


def append(stream: EmbeddedStream, name: str, first: int, count: int, journal: JournalWriter) -> bool:
    """One call; whether the stream can go on."""
    journal.tried(name, first, count)
    try:
        batches = stream.append([payload_of(name, number) for number in range(first, first + count)])
    except OutcomeUnknownError as error:
        print(f"unknown {name}: {error}", file=sys.stderr, flush=True)
        return False
    except OffloaderError as error:
        journal.refused(name, first, count)
        print(f"refused {name}: {error}", file=sys.stderr, flush=True)
        return error.retryable
    journal.acked(name, first, [(batch.first.ledger_id, int(entry)) for batch in batches for entry in batch.entry_ids])
    print(f"acked {name}", flush=True)
    return True


def main() -> None:
    database, path = sys.argv[1], Path(sys.argv[2])
    journal = JournalWriter(path)
    numbers = {name: done.next_number for name, done in read_journal(path).items()}
    try:
        ledgers = EmbeddedLedgers(database, settings=SETTINGS)
        streams = {name: ledgers.open_stream(name) for name in BATCHES}
    except OffloaderError as error:
        sys.exit(f"not opened: {error}")
    counts = dict(BATCHES)
    if numbers["chaos/history"] == 0:
        counts["chaos/history"] = HISTORY_BATCHES
    while True:
        for name, count in counts.items():
            if not append(streams[name], name, numbers[name], count, journal):
                return
            numbers[name] += count
        counts = BATCHES
        time.sleep(PAUSE_S)  # its pace; nobody waits for it


if __name__ == "__main__":
    main()
