"""Truncate a stream, a partitioned or a scalable topic: commit a new start position before any deletion."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any
from uuid import UUID

from formats.documents import PartitionHead, TruncationIntent, intent_key
from formats.entries import Position
from formats.manifest import Edit, Failed, Gap, LedgerClosed, LedgersDeleted, SetMethod, Truncate
from offloader.coverage import GapReason, KnownEnds, follows, holes
from offloader.errors import FencedError, InvalidCallError, NotFoundError, OffloaderError, StoreUnavailableError
from offloader.ledgers.base import LedgerInfo, LedgerSource, noting
from offloader.manifest.apply import apply_edits
from offloader.manifest.catalog import mode_of_new, not_listed, read_entry, read_intent, require_entry
from offloader.manifest.log import ManifestLog
from offloader.manifest.noted import load_noted, noted_by, require_absence_noted
from offloader.manifest.protection import require_no_global_hold
from offloader.manifest.source_identity import checked, closed_edit, first_not_held
from offloader.manifest.state import EditRefusedError, ManifestState, require_takeable
from offloader.manifest.topic_layouts import read_layout
from offloader.retention.scope import SourceOf, no_source
from offloader.runtime.clock import Clock
from offloader.store.base import ObjectInfo, ObjectStore, put_if
from offloader.stream_names import is_place, partition_of

#: Attempts to plan a truncation again because the manifest changed.
ATTEMPTS_MAX = 10
_FORCE = "offload the entries first, or use --force to give up entries that aren't offloaded yet"
_FORCE_LISTED = (
    "trim or delete it at the broker first; with --force every consumer that reaches that ledger gets an error and "
    "stops there until the broker trims it"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncation:
    """Changes of a truncation, planned or done.

    Attributes:
        head: the new start position.
        head_before: the old one; ``None``: the first entry.
        ledgers: newly marked as deleted from the stream, ascending.
        closed: ledger ends that the source knows and the manifest doesn't.
        gaps: entries that were in no offloaded segment and are given up; only when forced.
        failed: assigned but uncommitted segments that are given up; only when forced.
        hot_ledgers: ledgers of the hot tier wholly before the head: deleted or to be deleted.
        hot_kept: other ledgers before the head that are kept, with the reason: their deletion failed or a hold forbade
            it, and the next truncation retries it, or they hold the only copy of some entries.
        segments, entries, object_bytes: of the offloaded segments wholly before the head.
        record_id: its record; ``None``: nothing was written: planned only, or the head was in place, or the stream has
            no manifest.
    """

    stream: str
    head: Position
    head_before: Position | None = None
    ledgers: tuple[int, ...] = ()
    closed: tuple[LedgerClosed, ...] = ()
    gaps: tuple[Gap, ...] = ()
    failed: tuple[UUID, ...] = ()
    hot_ledgers: tuple[int, ...] = ()
    hot_kept: Sequence[tuple[int, OffloaderError]] = field(default=(), compare=False)
    segments: int = 0
    entries: int = 0
    object_bytes: int = 0
    record_id: int | None = None

    @property
    def moves(self) -> bool:
        """Whether the start position moves."""
        return self.head_before is None or self.head > self.head_before

    def edits(self) -> list[Edit]:
        """Edits of its record."""
        return [
            *self.closed,
            *(Failed(uuid, GapReason.TRUNCATED) for uuid in self.failed),
            *self.gaps,
            *([LedgersDeleted(self.ledgers)] if self.ledgers else []),
            *([Truncate(self.head)] if self.moves else []),
        ]


def plan_truncation(
    state: ManifestState,
    before: Position,
    ledgers: Sequence[LedgerInfo] = (),
    *,
    force: bool = False,
    source: LedgerSource | None = None,
    listed: int | None = None,
) -> Truncation:
    """Plan a truncation of a stream before a position. Pure.

    Args:
        state: the current manifest.
        before: the first position to keep; a later start position is unchanged.
        ledgers: the hot tier's, ascending; empty: not queried.
        force: also past the committed end: unoffloaded entries before the position are given up.
        source: the ledgers' source, which decides what to record about their ends.
        listed: the first ledger that a broker which reads the cold tier lists; ``None``: no broker does.

    Raises:
        InvalidCallError: no position, or one past all known entries.
        EditRefusedError: past the committed end or a listed ledger's beginning and not forced, or the stream is on
            hold.
    """
    if before.ledger_id < 0 or before.entry_id < 0:
        raise InvalidCallError(f"{before} is not a position", hint="use LEDGER:ENTRY, both 0 or more")
    if listed is not None and before > Position(listed, 0) and not force:
        raise EditRefusedError(
            f"stream {state.stream}: the broker still lists ledger {listed}, and reads it from here: {before} is past "
            "its beginning",
            hint=_FORCE_LISTED,
        )
    head = before if state.head is None else max(before, state.head)
    # Facts in the source about ledgers up to the head that the manifest lacks
    closed = tuple(
        closed_edit(info, source)
        for info in ledgers
        if info.closed and info.ledger_id <= head.ledger_id and info.ledger_id not in state.closed_ledgers
    )
    ends = KnownEnds({**state.closed_ledgers, **{fact.ledger_id: fact.last_entry_id for fact in closed}})
    before_head = [info for info in ledgers if info.closed and _is_before(info.ledger_id, head, ends)]
    stay = {} if force or state.method == "none" else _not_held_ledgers(state, before_head)
    stay |= _on_hold(state, [info.ledger_id for info in before_head])
    marked, known = state.deleted_ledgers, {*ends, *(info.ledger_id for info in ledgers)} - stay.keys()
    plan = Truncation(
        stream=state.stream,
        head=head,
        head_before=state.head,
        ledgers=tuple(sorted(each for each in known if _is_before(each, head, ends) and each not in marked)),
        closed=closed,
        hot_ledgers=tuple(info.ledger_id for info in before_head if info.ledger_id not in stay),
        hot_kept=tuple(stay.items()),
    )
    end = state.committed_end()
    is_offloaded = end is not None and (head <= end or follows(end, head, ends))
    if plan.moves and not is_offloaded:
        if state.method != "none" and not force:
            raise EditRefusedError(
                f"stream {state.stream}: {head} is past the committed end {end or '(nothing is offloaded)'}",
                hint=_FORCE,
            )
        _require_known(state, ledgers, head)
        if state.method != "none":
            plan = _forced(state, plan, ledgers, ends)
    if plan.moves or plan.ledgers:
        # Check the manifest's rules before any write.
        apply_edits(state, plan.edits(), record_id=state.record_id + 1)
    sums = state.offloaded_before(head).sums()
    return replace(plan, segments=sums.segments, entries=sums.entries, object_bytes=sums.object_bytes)


def truncate_stream(
    log: ManifestLog,
    before: Position,
    *,
    clock: Clock,
    source: LedgerSource | None = None,
    force: bool = False,
    take_over: bool = False,
    takeover_after_s: float = 60.0,
    dry_run: bool = False,
    method: str = "streaming",
    listed: int | None = None,
) -> Truncation:
    """Move a stream's start position to ``before``, unless it is later already.

    A stream with method ``none`` and nothing offloaded only loses hot ledgers. A forced truncation past the committed
    end takes the stream over from its writer, which continues at the new start position when it reopens the stream.

    Args:
        source: the hot tier, whose closed ledgers before the head are deleted; ``None``: left to their owner.
        force: also past the committed end, with the loss of unoffloaded entries.
        take_over: force also against an active writer.
        dry_run: only plan.
        method: planned offload method of a stream without a manifest: only with ``none`` are its hot ledgers deleted
            without a record.
        listed: as for ``plan_truncation``.

    Raises:
        NotFoundError: no such stream in the store and the hot tier, or it was deleted since ``log`` was loaded.
        SourceMismatchError: the hot tier, or the store, isn't the one that the other knows; nothing was changed.
        InvalidCallError, EditRefusedError: as ``plan_truncation``.
        FencedError: forced, and an active writer owns the stream.
        StoreUnavailableError, OutcomeUnknownError: call it again.
    """
    require_no_global_hold(log.store)
    if source is not None:
        source = checked(source, log)
    if read_entry(log.store, log.stream) is None:
        require_absence_noted(log.store, log.stream, source, noted_by(source))
        plan = _planned_without_manifest(log, before, source, force=force, method=method)
        if dry_run:
            return plan
        if method == "none":
            return _with_hot_gone(plan, log, source, is_marked=False)
        if log.load(create=True).method != method:
            log.commit_as_maintainer([SetMethod(method)])
    for _ in range(ATTEMPTS_MAX):
        state = load_noted(log, source)
        if state.stream_deleted:
            raise NotFoundError(f"stream {log.stream} was deleted")
        ledgers = [] if source is None else source.ledgers()
        plan = plan_truncation(state, before, ledgers, force=force, source=source, listed=listed)
        if dry_run:
            return plan
        if not plan.edits():
            return _with_hot_gone(plan, log, source)
        if plan.gaps or plan.failed:
            require_takeable(state, clock.now_ms(), takeover_after_s, take_over=take_over)
            # Fence the writer first: it can't assign segments into the given-up range then.
            log.open_epoch()
            ledgers = [] if source is None else source.ledgers()
            plan = plan_truncation(log.state, before, ledgers, force=force, source=source, listed=listed)
            state = log.commit(plan.edits())
        else:
            try:
                state = log.commit_as_maintainer(plan.edits())
            except EditRefusedError:
                continue  # the manifest changed: plan again, which raises the same refusal if it persists
        return _with_hot_gone(replace(plan, record_id=state.record_id), log, source)
    raise StoreUnavailableError(f"stream {log.stream}: other processes changed its manifest {ATTEMPTS_MAX} times")


def _not_held_ledgers(state: ManifestState, ledgers: Sequence[LedgerInfo]) -> dict[int, OffloaderError]:
    """Ledgers whose entries exist only in the hot tier, with the reason to keep each."""
    marked = state.deleted_ledgers
    return {
        info.ledger_id: EditRefusedError(f"{missing} was never offloaded", hint="use --force to give it up")
        for info in ledgers
        if info.ledger_id not in marked and (missing := first_not_held(state, info)) is not None
    }


def _is_before(ledger_id: int, head: Position, ends: KnownEnds) -> bool:
    return (ledger_id, ends.get(ledger_id, head.entry_id)) < head


def _require_known(state: ManifestState, ledgers: Sequence[LedgerInfo], head: Position) -> None:
    """Refuse a head past the newest entry: it would swallow future entries."""
    known = [
        *([state.newest_end.next()] if state.newest_end else []),
        *(segment.begin for segment in state.assigned()),
        *(Position(info.ledger_id, info.entries) for info in ledgers[-1:]),
    ]
    if not known or head > max(known):
        raise InvalidCallError(
            f"stream {state.stream}: neither the manifest nor the hot tier has entries up to {head}"
            + (f", the newest position is before {max(known)}" if known else ""),
            hint="name the hot tier that has them with --ledgers, or use an earlier position",
        )


def _forced(state: ManifestState, plan: Truncation, ledgers: Sequence[LedgerInfo], ends: KnownEnds) -> Truncation:
    """The plan with unoffloaded entries before the head given up."""
    end = state.committed_end()
    if state.method == "ledger" and plan.head.entry_id > 0 and plan.head.ledger_id not in plan.ledgers:
        raise InvalidCallError(
            f"stream {state.stream}: {plan.head} is inside a ledger that isn't offloaded, and the ledger method "
            "offloads whole ledgers only",
            hint=f"use {plan.head.ledger_id}:0, or the beginning of a later ledger",
        )
    failed = [segment for segment in state.assigned() if segment.begin < plan.head]
    if end is None:
        begins = [segment.begin for segment in state.segments.in_order()[:1]]
        begins += [Position(info.ledger_id, 0) for info in ledgers if info.entries][:1]
        end = min(begins, default=plan.head).previous()
    gaps = tuple(_not_held(state, end, plan.head, {each.uuid for each in failed}, ends))
    return replace(plan, failed=tuple(each.uuid for each in failed), gaps=gaps)


def _not_held(
    state: ManifestState, reached: Position, head: Position, failed: set[UUID], ends: KnownEnds
) -> Iterator[Gap]:
    """Entries after ``reached`` and before the head that are neither in a segment nor in a gap."""
    before = head.previous()
    held = [
        *((s.begin, s.end) for s in state.segments.in_order(reached.next(), before) if s.uuid not in failed),
        *((gap.first, gap.last) for gap in state.gaps if gap.last > reached and gap.first <= before),
    ]
    return (Gap(first, last, GapReason.TRUNCATED) for first, last in holes(reached, held, ends, until=head))


def _planned_without_manifest(
    log: ManifestLog, before: Position, source: LedgerSource | None, *, force: bool, method: str
) -> Truncation:
    ledgers = [] if source is None else source.ledgers()
    if not ledgers or log.is_loaded:  # loaded: a manifest existed, and the hot tier belongs to a later stream
        raise not_listed(log.store, log.stream)
    begun = ManifestState(stream=log.stream, incarnation=UUID(int=0), method=method)
    plan = plan_truncation(begun, before, ledgers, force=force)
    return replace(plan, ledgers=(), closed=()) if method == "none" else plan


def _on_hold(state: ManifestState, ledger_ids: Iterable[int]) -> dict[int, OffloaderError]:
    """Ledgers that are kept because the stream is on hold, with that reason."""
    why = EditRefusedError(f"stream {state.stream} is on hold", hint="`offloader cleanup hold --off` lifts the hold")
    return dict.fromkeys(ledger_ids, why) if state.held else {}


def _with_hot_gone(
    plan: Truncation, log: ManifestLog, source: LedgerSource | None, *, is_marked: bool = True
) -> Truncation:
    """Delete marked hot ledgers, including those left by an earlier call; not once a hold was set since.

    Args:
        is_marked: False: there is no manifest, and those of the plan go.
    """
    if source is None:
        return plan
    marked = log.state.deleted_ledgers if is_marked else plan.hot_ledgers
    doomed = [info.ledger_id for info in source.ledgers() if info.closed and info.ledger_id in marked]
    kept = dict(plan.hot_kept)
    if is_marked and doomed:
        newest = log.name_newest()
        doomed = [ledger_id for ledger_id in doomed if ledger_id in newest.deleted_ledgers]
        kept |= _on_hold(newest, doomed)
        if (notes := noting(source)) is not None and set(doomed) - kept.keys():
            # A store restored to an earlier state lacks the record that this relies on.
            try:
                notes.note_manifest(newest.incarnation, newest.record_id)
            except OffloaderError as error:
                kept |= dict.fromkeys(doomed, error)
    for ledger_id in [each for each in doomed if each not in kept]:
        try:
            require_no_global_hold(log.store)
            source.delete(ledger_id)
        except OffloaderError as error:
            kept[ledger_id] = error
    return replace(plan, hot_ledgers=tuple(doomed), hot_kept=tuple(kept.items()))


def truncate_topic(
    store: ObjectStore,
    topic: str,
    heads: Mapping[str, Position],
    *,
    clock: Clock,
    by: str,
    source_of: SourceOf = no_source,
    force: bool = False,
    take_over: bool = False,
    takeover_after_s: float = 60.0,
    dry_run: bool = False,
    still: Callable[[], bool] = lambda: True,
    listed: Mapping[str, int] = MappingProxyType({}),
) -> Mapping[str, Truncation]:
    """Truncate each partition or segment at its position, in the order given; an unnamed one is unchanged.

    An earlier unfinished truncation is finished first.

    Args:
        topic: its name; of a scalable topic, the place.
        heads: partition's stream -> the first position to keep; segments after their parents, which the caller checks.
        by: the operator or process, for display.
        source_of: the hot tier of a partition.
        force, take_over, takeover_after_s, dry_run: as for ``truncate_stream``.
        still: whether the truncation is still wanted; called once a concurrent one can't start unnoticed.
        listed: by partition's stream, as for ``plan_truncation``.

    Returns:
        Changes by partition; empty: no longer wanted.

    Raises:
        InvalidCallError, EditRefusedError, NotFoundError, FencedError: a partition can't be truncated; none was.
        StoreUnavailableError, OutcomeUnknownError: it isn't finished; call it, or ``resume_topic_truncation``, again.
    """
    _require_parts(store, topic, heads)
    require_no_global_hold(store)
    how: dict[str, Any] = {
        "clock": clock,
        "source_of": source_of,
        "take_over": take_over,
        "takeover_after_s": takeover_after_s,
    }
    truncate = partial(_truncate_partition, store, force=force, **how)
    for _ in range(1 if dry_run else ATTEMPTS_MAX):
        if not dry_run:
            resume_topic_truncation(store, topic, **how)
        before, info = read_intent(store, topic)
        # A refusal of one partition comes before any changes: a partition that passes remains truncatable.
        wanted = tuple(
            PartitionHead(name, require_entry(store, name).incarnation, head) for name, head in heads.items()
        )
        plan = partial(truncate, dry_run=dry_run, probe=not dry_run)
        planned = {each.stream: plan(each, listed=listed.get(each.stream)) for each in wanted}
        if dry_run:
            return planned
        if before is not None and not before.is_done:
            raise StoreUnavailableError(f"another process is truncating {topic}: {before.by}")
        if not still():
            return {}
        intent = TruncationIntent(topic, wanted, force, by, clock.now_ms())
        if _begun(store, intent, info):
            return _apply(store, intent, truncate)
    raise StoreUnavailableError(f"{topic} in {store.url} was truncated by other processes {ATTEMPTS_MAX} times")


def _require_parts(store: ObjectStore, topic: str, streams: Collection[str]) -> None:
    layout = read_layout(store, topic) if is_place(topic) else None
    segments = None if layout is None else {row.stream for row in layout.segments}
    foreign = [
        name
        for name in streams
        if (name not in segments if segments is not None else (partition_of(name) or ("",))[0] != topic)
    ]
    if foreign or not streams:
        raise InvalidCallError(
            f"{', '.join(foreign) or 'nothing'} isn't a {'partition' if layout is None else 'segment'} of {topic}",
            hint=f"use {topic}-partition-0 and so on" if layout is None else f"see `offloader ls {layout.topic}`",
        )


def resume_topic_truncation(
    store: ObjectStore,
    topic: str,
    *,
    clock: Clock,
    source_of: SourceOf = no_source,
    take_over: bool = False,
    takeover_after_s: float = 60.0,
) -> Mapping[str, Truncation]:
    """Finish an unfinished truncation; empty: none. Raises as ``truncate_topic``."""
    found, _ = read_intent(store, topic)
    if found is None or found.is_done:
        return {}
    truncate = partial(
        _truncate_partition,
        store,
        clock=clock,
        source_of=source_of,
        force=found.forced,
        take_over=take_over,
        takeover_after_s=takeover_after_s,
    )
    return _apply(store, found, truncate)


def _truncate_partition(
    store: ObjectStore,
    wanted: PartitionHead,
    *,
    clock: Clock,
    source_of: SourceOf,
    force: bool,
    take_over: bool,
    takeover_after_s: float = 60.0,
    dry_run: bool = False,
    probe: bool = False,
    listed: int | None = None,
) -> Truncation:
    """Truncate one partition; ``dry_run``: plan it, ``probe``: plan it, and refuse an active writer."""
    log = ManifestLog(store, wanted.stream, clock=clock, incarnation=wanted.incarnation)
    done = truncate_stream(
        log,
        wanted.head,
        clock=clock,
        source=source_of(wanted.stream),
        force=force,
        take_over=take_over,
        takeover_after_s=takeover_after_s,
        dry_run=dry_run or probe,
        listed=listed,
    )
    if probe and (done.gaps or done.failed):
        require_takeable(log.state, clock.now_ms(), takeover_after_s, take_over=take_over)
    return done


def _apply(
    store: ObjectStore, intent: TruncationIntent, truncate: Callable[[PartitionHead], Truncation]
) -> Mapping[str, Truncation]:
    done = {}
    # One that was deleted since is left out; a recreated stream of that name is another one.
    for each in filter(partial(_is_alive, store), intent.heads):
        try:
            done[each.stream] = truncate(each)
        except (NotFoundError, FencedError):
            if _is_alive(store, each):
                raise
    _finish(store, intent)
    return done


def _is_alive(store: ObjectStore, wanted: PartitionHead) -> bool:
    entry = read_entry(store, wanted.stream)
    return entry is not None and entry.incarnation == wanted.incarnation


def _begun(store: ObjectStore, intent: TruncationIntent, before: ObjectInfo | None) -> bool:
    """Write an intent over the one read, unless that has changed."""
    key = intent_key(intent.topic)
    # Another one that is there may be this one, whose response was lost.
    return (
        put_if(store, key, intent.encode(), mode_of_new(store, key, before))
        or read_intent(store, intent.topic)[0] == intent
    )


def _finish(store: ObjectStore, intent: TruncationIntent) -> None:
    """Record that it is done, unless another process has."""
    key = intent_key(intent.topic)
    for _ in range(ATTEMPTS_MAX):
        found, info = read_intent(store, intent.topic)
        done = replace(intent, is_done=True).encode()
        if found != intent or put_if(store, key, done, mode_of_new(store, key, info)):
            return
    raise StoreUnavailableError(f"{key} in {store.url} was changed by other processes {ATTEMPTS_MAX} times")
