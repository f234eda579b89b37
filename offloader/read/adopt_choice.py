"""Which of the attempts that were found become part of a stream; pure.

Owns the choice, and a reason in words for whatever is left out. Must never take what contradicts the topic's ledgers or
the stream's manifest: in doubt it stays where it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple
from uuid import UUID

from formats.entries import Position
from formats.manifest import Adopt, Edit, LedgerClosed
from formats.segment import LedgerSpan
from offloader.ledgers.pulsar.topics import TopicLedger, TopicLedgers
from offloader.manifest.apply import apply_edits
from offloader.manifest.attempts import choose_segments
from offloader.manifest.salvage import FoundSegment
from offloader.manifest.state import ManifestState
from offloader.read.adopt_objects import Attempt

__all__ = ["Choice", "LeftOut", "adoptions_of", "choose_attempts", "facts_of", "without_hiding"]


class LeftOut(NamedTuple):
    """An attempt that isn't taken, and why."""

    segment: FoundSegment
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What becomes of a stream's attempts.

    Attributes:
        adopted: disjoint, in the stream's order, none of them in the manifest yet.
        already: how many the manifest has.
        left_out: the others.
        closed: ledger id -> last entry id (-1: empty), facts that the manifest doesn't have yet.
        missing: closed ledgers of the topic that have entries and of which neither the store nor the manifest has all.
    """

    adopted: Sequence[FoundSegment]
    already: int
    left_out: Sequence[LeftOut]
    closed: Mapping[int, int]
    missing: Sequence[TopicLedger]


def choose_attempts(attempts: Sequence[Attempt], state: ManifestState, topic: TopicLedgers | None) -> Choice:
    """Sorts a stream's attempts.

    Of several whole attempts at the same entries the newest counts: Pulsar forgets an attempt when it begins another,
    and deletes its objects.

    Args:
        attempts: whole ones, all of the same stream and cluster.
        state: the stream's manifest, an empty one when it has none.
        topic: what the broker says of its ledgers; ``None`` when nobody asked.
    """
    left: list[LeftOut] = []
    fresh: dict[tuple[Position, Position], Attempt] = {}
    already = 0
    for attempt in attempts:
        segment = attempt.segment
        if _is_recorded(segment, state):
            already += 1
            continue
        why = _refusal(attempt, state, topic)
        if why:
            left.append(LeftOut(segment, why))
            continue
        span = segment.summary.begin, segment.summary.end
        other = fresh.setdefault(span, attempt)
        if other is attempt:
            continue
        older, newer = sorted((attempt, other), key=_age)
        fresh[span] = newer
        left.append(LeftOut(older.segment, f"attempt {newer.segment.uuid} at the same entries is newer"))
    of_topic = {} if topic is None else topic.closed
    chosen = choose_segments([attempt.segment for attempt in fresh.values()], None, of_topic)
    left += [LeftOut(segment, "other attempts hold more of these entries") for segment in chosen.overlapping]
    adopted = _one_per_uuid(chosen.recorded, left)
    known = state.closed_ledgers
    return Choice(
        adopted=adopted,
        already=already,
        left_out=left,
        closed={ledger_id: last for ledger_id, last in chosen.closed_ledgers.items() if known.get(ledger_id) != last},
        missing=[] if topic is None else _missing(topic, adopted, state),
    )


def facts_of(choice: Choice) -> list[Edit]:
    """What is recorded before the segments that rely on it."""
    return [LedgerClosed(ledger_id, last) for ledger_id, last in choice.closed.items()]


def adoptions_of(choice: Choice, driver: Mapping[str, str], *, owned: bool) -> list[Edit]:
    """The segments from the newest to the oldest: so a stream that is there already grows at its front record by
    record, and its committed end never steps back."""
    return [Adopt(each.uuid, each.summary, driver, owned) for each in reversed(choice.adopted)]


def without_hiding(choice: Choice, state: ManifestState) -> Choice:
    """The choice without what wouldn't join what is committed.

    History that ends in a hole before entries that are readable now couldn't be read itself, and would hold up the
    stream's head.
    """
    committed = state.committed_end()
    while committed is not None and choice.adopted:
        edits = [*facts_of(choice), *adoptions_of(choice, {}, owned=False)]
        end = apply_edits(state, edits, record_id=state.record_id + 1).prefix_end()
        if end is not None and end >= committed:
            break
        kept = [s for s in choice.adopted if end is not None and s.summary.begin > end]
        if len(kept) == len(choice.adopted):
            kept = []
        why = f"ledgers are missing between it and {committed}, which can be read now and couldn't any more"
        hidden = [LeftOut(s, why) for s in choice.adopted if s not in kept]
        taken = {span.ledger_id for s in kept for span in s.summary.ledgers}
        closed = {ledger_id: last for ledger_id, last in choice.closed.items() if ledger_id in taken}
        choice = replace(choice, adopted=kept, closed=closed, left_out=[*choice.left_out, *hidden])
    return choice


def _is_recorded(segment: FoundSegment, state: ManifestState) -> bool:
    record = state.segments.get(segment.uuid)
    return record is not None and (record.begin, record.end) == (segment.summary.begin, segment.summary.end)


def _age(attempt: Attempt) -> tuple[int, UUID]:
    return attempt.modified_ms, attempt.segment.uuid


def _refusal(attempt: Attempt, state: ManifestState, topic: TopicLedgers | None) -> str:
    """Why an attempt can't be part of the stream; empty when it can."""
    summary = attempt.segment.summary
    if not attempt.closed:
        return "its index says that the ledger wasn't closed"
    if state.segments.get(attempt.segment.uuid) is not None:
        return "the manifest has another range under its uuid"
    for span in summary.ledgers:
        why = _contradiction(span, state, topic)
        if why:
            return why
    there = next(iter(state.segments.in_order(summary.begin, summary.end)), None)
    if there is not None:
        return f"the stream has these entries already, in segment {there.uuid}"
    if any(gap.first <= summary.end and gap.last >= summary.begin for gap in state.gaps):
        return "the stream has a gap recorded there"
    return ""


def _contradiction(span: LedgerSpan, state: ManifestState, topic: TopicLedgers | None) -> str:
    known = state.closed_ledgers.get(span.ledger_id)
    if known is not None and span.last_entry_id > known:
        return f"the stream's ledger {span.ledger_id} ends at entry {known}, this has {span.last_entry_id}"
    if topic is None:
        return ""
    of_topic = {ledger.ledger_id: ledger for ledger in topic.ledgers}
    if span.ledger_id not in of_topic:
        return f"the topic has no ledger {span.ledger_id} (any more)"
    last = topic.closed.get(span.ledger_id)
    if last is not None and span.last_entry_id > last:
        return f"the topic's ledger {span.ledger_id} ends at entry {last}, this has {span.last_entry_id}"
    return ""


def _one_per_uuid(segments: Iterable[FoundSegment], left: list[LeftOut]) -> list[FoundSegment]:
    """A manifest names segments by uuid alone."""
    taken: dict[UUID, FoundSegment] = {}
    for segment in segments:
        if segment.uuid in taken:
            left.append(LeftOut(segment, "another ledger of the stream has the same uuid"))
        else:
            taken[segment.uuid] = segment
    return list(taken.values())


def _missing(topic: TopicLedgers, adopted: Sequence[FoundSegment], state: ManifestState) -> list[TopicLedger]:
    held: dict[int, int] = {}
    recorded = [record.summary for record in state.offloaded() if record.summary is not None]
    for summary in [*recorded, *(segment.summary for segment in adopted)]:
        for span in summary.ledgers:
            held[span.ledger_id] = held.get(span.ledger_id, 0) + span.entries
    return [ledger for ledger in topic.ledgers[:-1] if held.get(ledger.ledger_id, 0) < ledger.entries]
