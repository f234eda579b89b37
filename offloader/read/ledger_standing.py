"""One ledger in a manifest: what of it is in the cold tier, and whether it is a broker's ledger. Does no I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from formats.checkpoint import LAST_UNKNOWN
from formats.entries import Position
from formats.manifest import FACT_UNKNOWN, GapFilled
from formats.segment_map import LedgerSpan
from offloader.errors import NotFound, SourceMismatch, StoreUnavailable, Trimmed
from offloader.manifest.ledger_table import ENTRY_ID_MAX, Run, count_of, fills_in, gap_runs, without
from offloader.manifest.segment_table import SegmentSlice, is_at_root
from offloader.manifest.state import ManifestState, SegmentRecord

#: Ranges that an error lists.
RUNS_NAMED_MAX = 5


class LedgerTrimmed(Trimmed):
    """A ledger was deleted from its stream on purpose."""


class LedgerMismatch(SourceMismatch):
    """A broker's ledger isn't the one that the manifest knows under that number."""


class LedgerIncomplete(StoreUnavailable):
    """Entries of a ledger aren't in the cold tier, and nothing says that they were deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerStanding:
    """What a manifest says of one ledger.

    Attributes:
        first: the first entry that readers may get; above 0 where a part was truncated.
        last: the last entry, -1: none. As recorded when the ledger was closed, else the last one in the cold tier.
        is_closed: whether the manifest has the ledger's end.
        records: readable segments with entries of it, in order.
        fills: objects with entries that readers aren't given.
        missing: runs of ids in recorded gaps without a fill.
        holes: runs of ids that nothing explains.
        payload_bytes: of all entries in segments and fills, and of those that were truncated where that is known.
        created_ms: when it was opened; ``None``: not recorded.
    """

    ledger_id: int
    first: int
    last: int
    is_closed: bool
    records: tuple[SegmentRecord, ...]
    fills: tuple[GapFilled, ...]
    missing: tuple[Run, ...]
    holes: tuple[Run, ...]
    payload_bytes: int
    created_ms: int | None

    @property
    def entries(self) -> int:
        """Number of entries, ids from 0 to ``last``."""
        return self.last + 1

    @property
    def is_whole(self) -> bool:
        """Whether each entry from ``first`` to ``last`` is in the cold tier."""
        return self.last >= 0 and not self.missing and not self.holes


def ledger_standing(state: ManifestState, ledger_id: int, *, last: int | None = None) -> LedgerStanding:
    """The standing of a ledger.

    Args:
        last: the ledger's last entry where the caller knows it; default: what the manifest knows.

    Raises:
        LedgerTrimmed: it was deleted, or truncated as a whole.
        NotFound: the manifest has no entry of it.
    """
    _require_kept(state, ledger_id)
    fact = state.ledgers.get(ledger_id)
    is_closed = fact.last_entry_id != LAST_UNKNOWN
    held = [(each, span) for each in _records(state, ledger_id) if (span := span_of(each, ledger_id)) is not None]
    spans = [span for _, span in held]
    gaps = gap_runs(state.gaps, ledger_id, 0, ENTRY_ID_MAX)
    fills = tuple(fills_in(state.fills, ledger_id, 0, ENTRY_ID_MAX))
    if not spans and not fills and not (gaps and (is_closed or last is not None)):
        raise NotFound(
            f"stream {state.stream}: the cold tier has no entry of ledger {ledger_id}",
            hint="it isn't offloaded yet, or it is another stream's ledger",
        )
    if last is None:
        ends = [*(span.last_entry_id for span in spans), *(fill.last.entry_id for fill in fills)]
        last = fact.last_entry_id if is_closed else max(ends, default=-1)
    first = state.head.entry_id if state.head is not None and state.head.ledger_id == ledger_id else 0
    rest = without([(first, last)] if first <= last else [], _readable(state, spans))
    in_gaps = without(rest, without(rest, gaps))
    payload_bytes = sum(span.payload_bytes for span in spans) + sum(fill.payload_bytes for fill in fills)
    if first and fact.payload_bytes != FACT_UNKNOWN:
        payload_bytes = fact.payload_bytes  # segments of the truncated part may be deleted
    return LedgerStanding(
        ledger_id=ledger_id,
        first=first,
        last=last,
        is_closed=is_closed,
        records=tuple(record for record, _ in held),
        fills=fills,
        missing=tuple(without(in_gaps, [run for fill in fills for run in fill_runs(state, fill)])),
        holes=tuple(without(rest, in_gaps)),
        payload_bytes=payload_bytes,
        created_ms=None if fact.created_ms == FACT_UNKNOWN else fact.created_ms,
    )


def _records(state: ManifestState, ledger_id: int) -> SegmentSlice:
    return state.offloaded(Position(ledger_id, 0), Position(ledger_id, ENTRY_ID_MAX))


def _readable(state: ManifestState, spans: Sequence[LedgerSpan]) -> list[Run]:
    """The entries in segments that belong to the committed run: readers get no others."""
    end, begin, found = state.committed_end(), state.committed_from or Position(0, 0), []
    for span in spans:
        low = max(Position(span.ledger_id, span.first_entry_id), begin)
        high = Position(span.ledger_id, span.last_entry_id)
        high = high if end is None else min(high, end)
        if end is not None and low <= high:
            found.append((low.entry_id, high.entry_id))
    return found


def span_of(record: SegmentRecord, ledger_id: int) -> LedgerSpan | None:
    """What a segment has of a ledger."""
    return next((span for span in record.spans if span.ledger_id == ledger_id), None)


def fill_runs(state: ManifestState, fill: GapFilled) -> list[Run]:
    """The runs of entry ids in a fill."""
    return gap_runs(state.gaps, fill.first.ledger_id, fill.first.entry_id, fill.last.entry_id)


def _require_kept(state: ManifestState, ledger_id: int) -> None:
    """Raises ``LedgerTrimmed``: the manifest says that all of the ledger was let go."""
    why = ""
    if state.stream_deleted:
        why = "the stream was deleted"
    elif ledger_id in state.deleted_ledgers:
        why = "it was deleted from the stream"
    elif state.head is not None and _ends_before(state, ledger_id, state.head):
        why = f"the stream begins at {state.head} now"
    if why:
        raise LedgerTrimmed(
            f"stream {state.stream}: ledger {ledger_id} is gone on purpose: {why}",
            first_available=state.first_position(),
            hint="nothing is left to read of it",
        )


def _ends_before(state: ManifestState, ledger_id: int, head: Position) -> bool:
    if ledger_id != head.ledger_id:
        return ledger_id < head.ledger_id
    last = state.ledgers.get(ledger_id).last_entry_id
    return last != LAST_UNKNOWN and last < head.entry_id


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFacts:
    """A closed ledger as its broker knows it.

    Attributes:
        uuid: of the attempt to offload it.
        length: payload bytes.
        created_ms: ms since 1970 UTC; ``None``: the broker doesn't say.
    """

    uuid: UUID | None
    last: int
    length: int
    entries: int
    created_ms: int | None = None


def require_same_ledger(stream: str, standing: LedgerStanding, facts: BrokerFacts) -> None:
    """Compares what both sides know of a ledger.

    The length is compared when every entry is in the cold tier, as it is known only then.

    Raises:
        LedgerMismatch: they differ; names both.
    """
    last, created_ms = standing.last, standing.created_ms
    found = ""
    if facts.entries != facts.last + 1:
        found = f"the broker's has {facts.entries} entries up to {facts.last}"
    elif standing.is_closed and last != facts.last:
        found = f"the broker's ends at entry {facts.last}, the manifest's at {last}"
    elif created_ms is not None and facts.created_ms is not None and created_ms != facts.created_ms:
        found = f"the broker's was opened at {facts.created_ms} ms, the manifest's at {created_ms} ms"
    elif (reached := _reached(standing)) > facts.last:
        found = f"the broker's ends at entry {facts.last}, and the cold tier has entry {reached}"
    if found:
        raise LedgerMismatch(
            f"stream {stream}, ledger {standing.ledger_id}: the broker's isn't the one in the cold tier: {found}",
            hint="does this store belong to another cluster?",
        )
    require_same_uuid(stream, standing, facts.uuid)
    if standing.is_whole and not standing.first and standing.payload_bytes != facts.length:
        raise LedgerMismatch(
            f"stream {stream}, ledger {standing.ledger_id}: the broker's {facts.entries} entries have {facts.length} "
            f"bytes, those in the cold tier {standing.payload_bytes}",
            hint="brokers that add entry metadata need exposingBrokerEntryMetadataToClientEnabled = true, or the cold "
            "tier gets entries without it; else: does this store belong to another cluster?",
        )


def _reached(standing: LedgerStanding) -> int:
    """The last entry in a segment or a fill; -1: none."""
    spans = [span_of(record, standing.ledger_id) for record in standing.records]
    ends = [*(span.last_entry_id for span in spans if span), *(fill.last.entry_id for fill in standing.fills)]
    return max(ends, default=-1)


def require_same_uuid(stream: str, standing: LedgerStanding, uuid: UUID | None) -> None:
    """Compares the broker's uuid with that of objects which Pulsar's own offloader wrote for the ledger.

    Our own objects are shared by all attempts, whatever their uuid.

    Raises:
        LedgerMismatch: it is another one.
    """
    own = next((each.uuid for each in standing.records if is_at_root(each.driver)), None)
    if uuid is not None and own is not None and uuid != own:
        raise LedgerMismatch(
            f"stream {stream}, ledger {standing.ledger_id}: attempt {uuid} is asked for, {own} was adopted",
            hint="does this store belong to another cluster?",
        )


def require_whole(stream: str, standing: LedgerStanding) -> None:
    """Raises ``LedgerIncomplete``: an entry isn't in the cold tier."""
    if standing.is_whole:
        return
    holes = standing.holes or standing.missing
    named = ", ".join(f"{low}..{high}" for low, high in holes[:RUNS_NAMED_MAX])
    why = "aren't there" if standing.holes else "are recorded as a gap"
    raise LedgerIncomplete(
        f"stream {stream}, ledger {standing.ledger_id}: entries {named} {why} ({count_of(holes)} in all)",
        hint="an offload by the broker completes it; nothing is skipped",
    )
