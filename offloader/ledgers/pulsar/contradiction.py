"""Whether a topic's ledgers can be those that a manifest knows; pure.

BookKeeper gives ids in ascending order, of a counter that all topics share: a topic's ids jump, and its oldest ledgers
go. A cluster that was made anew begins to count at its beginning again, and one that was restored gives the newest ids
a second time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from offloader.ledgers.known import KnownLedgers

__all__ = ["contradiction"]


def contradiction(listed: Sequence[tuple[int, int]], known: KnownLedgers) -> str | None:
    """What can't be so, ``None``: nothing speaks against it.

    Jumps and trimmed ledgers are no contradiction, nor is an empty list, which tells nothing. A ledger that the
    manifest doesn't know is one only where the manifest knows all there were: it may be history that isn't offloaded
    yet.

    Args:
        listed: ledgers and how many entries they have, ascending; read after the manifest.
        known: of the listed ledgers.
    """
    newest = known.newest
    if newest is None or not listed:
        return None
    if listed[-1][0] < newest.ledger_id:
        return f"its newest ledger is {listed[-1][0]}, and the manifest has entries up to {newest}"
    return next(_contradictions((each for each in listed if each[0] <= newest.ledger_id), known), None)


def _contradictions(listed: Iterable[tuple[int, int]], known: KnownLedgers) -> Iterator[str]:
    for ledger_id, entries in listed:
        found = known.ledgers.get(ledger_id)
        if found is None:
            if entries and known.whole is not None and known.whole[0] <= ledger_id <= known.whole[1]:
                yield f"ledger {ledger_id} has {entries} entries, and the manifest knows of no such ledger there"
        elif found.last_entry_id is not None and found.last_entry_id != entries - 1:
            yield f"ledger {ledger_id} ends at entry {entries - 1}, and it ended at {found.last_entry_id}"
        elif found.reached >= entries:
            yield f"ledger {ledger_id} ends at entry {entries - 1}, and it had entry {found.reached}"
