"""What records change of the hot tier that a manifest knows; pure.

The rules of docs/MANIFEST.md, "Which hot tier": a view keeps one source, the newest token and the highest reserved id;
how far the source reached never goes back while the source is the same.
"""

from __future__ import annotations

from dataclasses import replace

from formats.checkpoint import KnownSource
from formats.entries import Position
from formats.manifest import FACT_UNKNOWN, Edit, LedgerClosed, OpenEpoch
from offloader.manifest.draft import Draft
from offloader.manifest.ledger_table import LedgerFact

__all__ = ["NO_LEDGER", "closed_fact", "open_source", "reach_source", "reserve"]

#: Below every ledger id.
NO_LEDGER = -1


def open_source(draft: Draft, edit: OpenEpoch) -> None:
    """Takes note of the source that a new epoch's owner offloads, if it has an identity."""
    known: KnownSource | None = draft.now("source")
    if edit.source is not None:
        goes_on = known is not None and known.uuid == edit.source and not edit.accepted
        draft.changes["source"] = KnownSource(
            uuid=edit.source,
            token=edit.token,
            reserved=NO_LEDGER if known is None else known.reserved,
            reach=known.reach if known is not None and goes_on else None,
        )
    if edit.reserved is not None:
        reserve(draft, edit, edit.reserved)


def reserve(draft: Draft, edit: Edit, reserved: int) -> None:
    """Keeps ledger ids up to ``reserved`` from later starts."""
    known: KnownSource | None = draft.now("source")
    if known is None:
        raise draft.refused(edit, "no source is known that could give ledger ids")
    draft.changes["source"] = replace(known, reserved=max(known.reserved, reserved))


def reach_source(draft: Draft, source_end: Position | None) -> None:
    """Takes note of how far the owner's source reached."""
    known: KnownSource | None = draft.now("source")
    if known is not None and source_end is not None and (known.reach is None or source_end > known.reach):
        draft.changes["source"] = replace(known, reach=source_end)


def closed_fact(draft: Draft, edit: LedgerClosed, fact: LedgerFact) -> LedgerFact:
    """What is known of a ledger once its source has said how it ended.

    Raises:
        EditRefused: another payload size or creation time was recorded of it: it is another ledger.
    """
    for name in ("payload_bytes", "created_ms"):
        before, now = getattr(fact, name), getattr(edit, name)
        if FACT_UNKNOWN not in (before, now) and before != now:
            raise draft.refused(edit, f"ledger {edit.ledger_id} had {name} {before}, now {now}")
        if now != FACT_UNKNOWN:
            fact = fact._replace(**{name: now})
    return fact._replace(last_entry_id=edit.last_entry_id)
