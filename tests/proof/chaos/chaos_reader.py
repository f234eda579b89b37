"""Reads whole streams, from both tiers, and says what a reader should never see: ``STORE DATABASE JOURNAL``.

What was acknowledged before it began has to be there, whatever happens meanwhile. It may fail, as the store does; that
is written down and is no finding. Exit code 0: it read everything; 1: it met with an error that the faults explain;
9: something is wrong.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

from offloader.errors import ErrorKind, NotFoundError, OffloaderError, TrimmedError
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
from offloader.read.reader import open_stream_reader
from offloader.runtime.clock import SystemClock
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from tests.proof.chaos.chaos_journal import Journal, number_of, read_journal

Position = tuple[int, int]
#: Positions, and the numbers of what was there.
Seen = list[tuple[Position, int | None]]

WRONG = 9
LEASE_SECONDS = 5


def read_stream(store: ObjectStore, ledgers: EmbeddedLedgers, name: str, journal: Journal) -> list[str]:
    """What is wrong with it."""
    reader = open_stream_reader(
        store, name, source=ledgers.view_stream(name), lease_seconds=LEASE_SECONDS, clock=SystemClock()
    )
    seen: Seen = []
    try:
        for batch in reader.scan():
            for entry, payload in zip(batch.entry_ids.tolist(), batch.payloads.to_pylist(), strict=True):
                seen.append(((batch.ledger_id, entry), number_of(name, payload)))
    finally:
        reader.close()
    return wrong_with(name, seen, journal)


def wrong_with(name: str, seen: Seen, journal: Journal, *, to_the_end: bool = True) -> list[str]:
    """What can't be in what was read of a stream, in the order that it was read in.

    Args:
        journal: as it was before the reader began.
        to_the_end: whether everything that it names has to be there, or only what lies before the last entry.
    """
    wrong = [f"{name}: {place} holds what nobody appended" for place, number in seen if number is None]
    if wrong or not seen:
        return wrong
    wrong = [f"{name}: {after} follows {before}" for before, after in pairwise(seen) if not _ascends(before, after)]
    places, first, last = dict(seen), seen[0][0], seen[-1][0]
    wrong += [
        f"{name}: number {number} isn't at {place}, where it was acknowledged"
        for number, place in journal.acked.items()
        if first <= place and (to_the_end or place <= last) and places.get(place) != number
    ]
    return wrong


def _ascends(before: tuple[Position, int | None], after: tuple[Position, int | None]) -> bool:
    return before[0] < after[0] and (before[1] or 0) < (after[1] or 0)


def main() -> int:
    url, database, path = sys.argv[1:]
    journals = read_journal(Path(path))
    failed = False
    try:
        store, ledgers = open_store(url), EmbeddedLedgers(database, create=False)
    except OffloaderError as error:
        print(error, file=sys.stderr)
        return 1
    for name, journal in journals.items():
        try:
            wrong = read_stream(store, ledgers, name, journal)
        except (NotFoundError, TrimmedError) as error:  # not begun yet; truncated while it was read
            print(f"{name}: {error}", file=sys.stderr, flush=True)
            continue
        except OffloaderError as error:
            print(f"{name}: {error}", file=sys.stderr, flush=True)
            if error.kind is ErrorKind.DATA_CORRUPTION:
                print(f"wrong {name}: {error}", flush=True)
                return WRONG
            failed = True
            continue
        for each in wrong[:5]:
            print(f"wrong {each}", flush=True)
        if wrong:
            return WRONG
        print(f"read {name}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
