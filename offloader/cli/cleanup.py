"""``offloader cleanup ACTION``: deletion of unreferenced segments and objects."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any
from uuid import UUID

import typer

from formats.documents import DeletedSegment, DeletionRecord
from offloader.cli import NOTHING_PLANNED
from offloader.cli.errors import failure_of, run_on_each
from offloader.cli.options import (
    Apply,
    DryRun,
    Json,
    StoreArguments,
    StreamOrTopic,
    name_argument,
    option,
    position_of,
)
from offloader.cli.output import (
    ENDS,
    Column,
    bytes_text,
    counted,
    print_result,
    print_rows,
    yes_or_no,
)
from offloader.errors import ErrorKind, InvalidCallError, NotFoundError, OffloaderError
from offloader.gc.delete_stream import StreamRemoval
from offloader.gc.orphans import Garbage, Outcome, Place
from offloader.gc.plan import Action, AwaitedApproval, CleanupPlan, PlannedDeletion
from offloader.gc.reconcile import Reconciliation, StoreReconciliation, Tally, known_entry
from offloader.gc.sweep import CleanupReport, cleanup_all, cleanup_stream, read_batches, undo_retirements
from offloader.maintenance import awaited_approval, delete_streams
from offloader.manifest.catalog import list_streams
from offloader.manifest.log import ManifestLog
from offloader.manifest.names import NamedStreams, named_streams, resolve_name
from offloader.manifest.protection import (
    global_hold,
    lift_global_hold,
    set_global_hold,
    set_hold,
    user_at_host,
)
from offloader.read.reader import existing_streams
from offloader.runtime.clock import SystemClock
from offloader.store.base import ObjectStore
from offloader.times import duration_text, time_text

_AUDIT_COLUMNS = [
    Column("stream", "STREAM"),
    Column("done_ms", "WHEN", time_text, none="not yet"),
    Column("action", "ACTION"),
    *ENDS,
    Column("entries", "ENTRIES", right=True, less=5),
    Column("object_bytes", "BYTES", bytes_text, right=True),
    Column("by", "BY", less=1),
    Column("rule", "WHY", wraps=True),
]


def audit(
    given: StoreArguments,
    stream: Annotated[str, name_argument("The stream's name, or its topic's.", shown="every stream")] = "",
    json: Json = False,
) -> None:
    """List every segment that was deleted from the store, with the cause, the objects, their size and the time.

    With --json, one object per line, for an archive elsewhere. The manifest keeps batches for cleanup.audit_period, at
    most cleanup.audit_records_max per stream, and only as long as the stream exists.

    Examples:
        offloader cleanup audit orders
        offloader cleanup audit orders --json
    """
    opened = given.open()
    streams = list_streams(opened)
    chosen = resolve_name(stream, streams).streams if stream else streams
    if stream and chosen[0] not in streams:
        raise NotFoundError(f"stream {stream} isn't in {opened.url}", hint="run `offloader ls` to list the streams")
    rows = (
        _audit_row(batch, segment)
        for name in chosen
        for done in (True, False)
        for batch in read_batches(opened, name, done=done)
        for segment in batch.segments
    )
    print_rows(rows, _AUDIT_COLUMNS, as_json=json, empty="no deletions are recorded")


def _audit_row(batch: DeletionRecord, segment: DeletedSegment) -> Mapping[str, object]:
    return {
        "stream": batch.stream,
        "incarnation": batch.incarnation,
        "batch": batch.name,
        "action": batch.action,
        "by": batch.by,
        "rule": batch.rule,
        "retire_record": batch.retire_record or None,
        "segment": segment.uuid,
        "keys": segment.keys,
        "first": segment.first,
        "last": segment.last,
        "entries": segment.entries,
        "object_bytes": segment.object_bytes,
        "planned_ms": batch.planned_ms,
        "done_ms": batch.done_ms,
        "attempts": batch.attempts,
        "problem": batch.problem or None,
    }


def hold(
    given: StoreArguments,
    stream: Annotated[str, name_argument("The stream's name, or its topic's.")] = "",
    everything: Annotated[bool, typer.Option("--all", help="Stop all deletion in the store.")] = False,
    off: Annotated[bool, typer.Option("--off", help="Remove the hold.")] = False,
    reason: Annotated[str, option("--reason", "Reason, shown to operators.", metavar="TEXT", shown="none")] = "",
    json: Json = False,
) -> int:
    """Stop all deletion from a stream, or from the whole store, until the hold is removed.

    While the hold is in force, entries are not truncated and segments are not retired, purged or deleted. A deletion in
    progress stops before its next step.

    Examples:
        offloader cleanup hold orders --reason 'legal case 12'
        offloader cleanup hold orders --off
    """
    if bool(stream) == everything:
        raise InvalidCallError("give either a stream or --all", hint="name a STREAM, or give --all for the whole store")
    # A wrong name is refused before the store is probed with a write.
    named = existing_streams(given.open(), stream) if stream else NamedStreams("")
    opened, clock = given.open(read_only=False), SystemClock()

    def one(name: str) -> None:
        changed = True
        if name:
            changed = set_hold(opened, name, on=not off, reason=reason, clock=clock)
        elif off:
            lift_global_hold(opened)
        else:
            set_global_hold(opened, by=user_at_host(), reason=reason or "no reason given", now_ms=clock.now_ms())
        what = f"stream {name}" if name else f"store {opened.url}"
        text = f"deletion from {what} is stopped until `offloader cleanup hold {name or '--all'} --off`"
        if off:
            text = f"removed the hold on {what}" if changed else f"{what} had no hold"
        print_result({"stream": name or None, "held": not off, "changed": changed}, text, as_json=json)

    return run_on_each(named.streams, one, as_json=json)


def orphans(
    given: StoreArguments,
    stream: Annotated[str, name_argument("The stream's name, or its topic's; without one: the whole store.")] = "",
    apply: Apply = False,
    ours: Annotated[bool, typer.Option("--ours", help="Hide foreign objects; the totals still count them.")] = False,
    json: Json = False,
) -> int:
    """Find objects and unfinished uploads that no manifest references, and delete old ones.

    Only objects whose names this project gives can be deleted. All others are foreign: the command lists them and never
    deletes them. An object is old when it was last written at least orphan_age_min ago, by the earlier of this
    machine's clock and the store's clock. With --apply, each line of the same list shows the result.

    Examples:
        offloader cleanup orphans
        offloader cleanup orphans orders --apply
    """
    opened, clock, settings = given.open(), SystemClock(), given.settings().manifest
    named = named_streams(opened, stream) if stream else NamedStreams("")
    if apply:
        if stream and not named.partitions:
            known_entry(opened, named.name)  # before the store is probed with a write
        opened = given.open(read_only=False)

    found = []

    def one(name: str) -> int:
        said = _Said(ours_only=ours)
        found.append(said)
        search: Reconciliation | StoreReconciliation
        if name:
            search = Reconciliation(opened, name, clock=clock, settings=settings, delete=apply)
        else:
            search = StoreReconciliation(
                opened, clock=clock, settings_of=lambda _: settings, failed=said.fail, delete=apply
            )
        print_rows(said.rows(search.leftovers(), clock.now_ms()), _ORPHAN_COLUMNS, as_json=json)
        if named.partitions and not json:
            print(f"{name}:")
        of = {"stream": name} if named.partitions else {}
        print_result({**of, **said.facts(search.needed)}, said.lines(search.needed), as_json=json)
        return said.exit_code

    code = run_on_each(named.streams, one, as_json=json)
    return code or (0 if any(said.has_deletable for said in found) else NOTHING_PLANNED)


_ORPHAN_COLUMNS = [
    Column("stream", "STREAM", lambda name: name or "-", less=3),
    Column("key", "KEY"),
    Column("what", "WHAT", less=1),
    Column("age_s", "AGE", lambda seconds: "in the future" if seconds < 0 else duration_text(seconds), right=True),
    Column("bytes", "BYTES", bytes_text, right=True),
    Column("ours", "OURS", yes_or_no, less=2),
    Column("reason", "WHY", wraps=True),
    Column("outcome", "OUTCOME"),
]


@dataclass(slots=True)
class _Said:
    """Sums of the printed lines, by outcome and whether they are ours; with ``ours_only`` no others are printed."""

    ours_only: bool
    tallies: dict[tuple[Outcome, bool], Tally] = field(default_factory=dict)
    failures: int = 0
    exit_code: int = 0

    def rows(self, leftovers: Iterator[Garbage], now_ms: int) -> Iterator[Mapping[str, object]]:
        for each in leftovers:
            ours = each.reason.is_ours
            self.tallies.setdefault((each.outcome, ours), Tally()).add(each.objects, each.size_bytes)
            if each.outcome is Outcome.FAILED:
                self.exit_code = self.exit_code or ErrorKind.RETRY_LATER.value
            if ours or not self.ours_only:
                yield each.as_json(now_ms)

    def fail(self, stream: str, error: OffloaderError) -> None:
        failure = failure_of(error)
        self.failures += 1
        self.exit_code = max(self.exit_code, failure.exit_code)
        failure.print(sys.stderr, f"stream {stream}: ")

    @property
    def has_deletable(self) -> bool:
        return any(outcome is Outcome.DELETABLE for outcome, _ in self.tallies)

    def facts(self, needed: Mapping[Place, Tally]) -> Mapping[str, object]:
        found: dict[str, object] = {"what": "summary", "failed_streams": self.failures}
        for (outcome, ours), tally in sorted(self.tallies.items()):
            name = outcome.value if ours else "foreign"
            found |= {name: tally.objects, f"{name}_bytes": tally.size_bytes}
        found["needed"] = {
            place.value: {"objects": tally.objects, "bytes": tally.size_bytes} for place, tally in needed.items()
        }
        return found

    def lines(self, needed: Mapping[Place, Tally]) -> Iterator[str]:
        size_bytes = sum(each.size_bytes for each in needed.values())
        yield f"{sum(each.objects for each in needed.values()):,} objects ({bytes_text(size_bytes)}) are needed"
        words = {
            Outcome.DELETABLE: "can be deleted with --apply",
            Outcome.DELETED: "deleted",
            Outcome.FAILED: "could not be deleted; the next run retries",
            Outcome.KEPT: "kept for now",
        }
        for (outcome, ours), tally in sorted(self.tallies.items()):
            text = words[outcome] if ours else "foreign, never deleted"
            yield f"{tally.objects:,} ({bytes_text(tally.size_bytes)}) {text}"
        if not any(ours for _, ours in self.tallies) and not self.failures:
            yield "no unreferenced objects of this project"


_Stream = Annotated[str, name_argument("The stream's name, or its topic's.", shown="every stream")]
_Prefix = Annotated[str, option("--prefix", "Only streams whose names begin with TEXT.", metavar="TEXT")]

_PLAN_COLUMNS = [
    Column("stream", "STREAM"),
    Column("action", "ACTION"),
    Column("segment", "SEGMENT", less=5),
    *ENDS,
    Column("object_bytes", "BYTES", bytes_text, right=True, less=1),
    Column("rule", "WHY", wraps=True),
    Column("when", "WHEN", wraps=True),
]
_SUM_COLUMNS = [Column("segments", "SEGMENTS", right=True) if each.key == "segment" else each for each in _PLAN_COLUMNS]


def plan(given: StoreArguments, stream: _Stream = "", prefix: _Prefix = "", json: Json = False) -> int:
    """List the actions of the next round, segment by segment, with the reason and what each waits for. Writes nothing.

    This command computes ages by this machine's clock; a round also uses the store's clock.

    Examples:
        offloader cleanup plan
        offloader cleanup plan orders --config offloader.toml
    """
    return run(given, stream, prefix, json=json)


def run(
    given: StoreArguments,
    stream: _Stream = "",
    prefix: _Prefix = "",
    allow_large: Annotated[
        bool, typer.Option("--allow-large", help="Allow retiring more than half of a stream.")
    ] = False,
    apply: Apply = False,
    listing: Annotated[bool, typer.Option("--list", help="First list every segment, as `cleanup plan` does.")] = False,
    json: Json = False,
) -> int:
    """Run one cleanup round: retire unneeded segments, purge retired ones after the grace period and their last reader.

    Prints totals by action first; with --list or --json, every segment. The round deletes the objects of a segment only
    after the manifest has recorded the purge. The next round continues an interrupted one. Later rounds retry objects
    that could not be deleted, without a limit.

    Examples:
        offloader cleanup run
        offloader cleanup run orders --apply
    """
    if stream and prefix:
        raise InvalidCallError("--prefix and STREAM exclude each other", hint="leave out the stream's name")
    named = existing_streams(given.open(), stream) if stream else NamedStreams("")
    dry_run, clock, settings_of = not apply, SystemClock(), given.settings_of()
    opened = given.open(read_only=dry_run)
    stop = global_hold(opened) if dry_run else None
    if stop is not None and not json:
        print(f"a hold by {stop.by} stops all deletion ({stop.reason}): this round deletes nothing")

    def show(planned: CleanupPlan) -> None:
        if json or dry_run or listing:
            print_rows(_plan_rows(planned), _PLAN_COLUMNS, as_json=json)
        else:
            print_rows(_plan_sums(planned), _SUM_COLUMNS)

    how: Any = {"allow_large": allow_large, "dry_run": dry_run, "on_plan": show}
    reported: list[CleanupReport] = []

    def one(name: str) -> None:
        if name:
            settings = settings_of(name)
            reports: Iterable[CleanupReport] = [cleanup_stream(opened, name, clock=clock, settings=settings, **how)]
        else:
            reports = cleanup_all(opened, clock=clock, settings_of=settings_of, prefix=prefix, **how)
        reported.extend(_print_reports(opened, reports, as_json=json))

    code = run_on_each(named.streams, one, as_json=json)
    has_work = stop is None and any(_has_work(each, allow_large=allow_large) for each in reported)
    return code or (0 if has_work else NOTHING_PLANNED)


def _has_work(report: CleanupReport, *, allow_large: bool) -> bool:
    """Whether a round would change the stream: it retires, releases, purges, or finishes an earlier deletion."""
    planned = report.plan
    if report.held or planned is None:
        return report.is_deleted
    may_retire = bool(planned.doomed) and (allow_large or not planned.large)
    return may_retire or bool(planned.due or report.pending or report.is_deleted)


def _print_reports(store: ObjectStore, reports: Iterable[CleanupReport], *, as_json: bool) -> list[CleanupReport]:
    """Prints and returns the reports, then raises the first error."""
    errors, printed = [], []
    for report in reports:
        printed.append(report)
        planned = report.plan if report.dry_run or report.error else None
        awaited = None if planned is None else awaited_approval(store, planned)
        print_result(_facts(report, awaited), _lines(report, awaited), as_json=as_json)
        errors += [] if report.error is None else [report.error]
    if errors:
        raise errors[0]
    return printed


def _plan_rows(planned: CleanupPlan) -> Iterator[Mapping[str, object]]:
    for line in planned.lines():
        yield {"stream": planned.state.stream, **line.as_json(), "when": _when(line.waits_for, line.until_ms)}


def _when(waits_for: str, until_ms: int | None) -> str:
    until = "" if until_ms is None else f" until {time_text(until_ms)}"
    return f"waits for {waits_for}{until}" if waits_for else "now"


def _plan_sums(planned: CleanupPlan) -> Iterator[Mapping[str, object]]:
    """The lines of a plan, summed by action and cause of waiting."""
    groups: dict[tuple[Action, str], list[PlannedDeletion]] = {}
    for line in planned.lines():
        groups.setdefault((line.action, line.waits_for), []).append(line)
    for (action, waits_for), lines in groups.items():
        rules, untils = {line.rule for line in lines}, [line.until_ms for line in lines if line.until_ms is not None]
        yield {
            "stream": planned.state.stream,
            "action": action.value,
            "segments": len(lines),
            "first": min((line.first for line in lines if line.first is not None), default=None),
            "last": max((line.last for line in lines if line.last is not None), default=None),
            "object_bytes": sum(line.object_bytes for line in lines),
            "rule": lines[0].rule + (f", and {counted(len(rules) - 1, 'other reason')}" if len(rules) > 1 else ""),
            "when": _when(waits_for, min(untils, default=None)),
        }


def _facts(report: CleanupReport, awaited: AwaitedApproval | None) -> Mapping[str, object]:
    return {
        "what": "summary",
        "stream": report.stream,
        "dry_run": report.dry_run,
        "held": report.held,
        "large": None if report.plan is None else report.plan.large,
        "awaiting_approval": None if awaited is None else asdict(awaited),
        "is_deleted": report.is_deleted,
        "retired": report.swept.retired,
        "released": report.swept.released,
        "purged": report.swept.purged,
        "deleted_objects": report.swept.deleted_objects,
        "deleted_bytes": report.swept.deleted_bytes,
        "pending": [
            {
                "batch": batch.name,
                "segments": len(batch.segments),
                "attempts": batch.attempts,
                "tried_ms": batch.tried_ms or None,
                "problem": batch.problem or None,
            }
            for batch in report.pending
        ],
        "error": None if report.error is None else str(report.error),
    }


def _lines(report: CleanupReport, awaited: AwaitedApproval | None) -> Iterator[str]:
    swept = report.swept
    for batch in report.pending:
        what = f"{counted(len(batch.segments), 'segment')} of batch {batch.name}"
        tried = f", tried {counted(batch.attempts, 'time')}: {batch.problem}"
        yield f"{report.stream}: not deleted yet: {what}{tried if batch.attempts else ': the next round continues'}"
    if report.error is not None:
        done = str(report.error)
    elif report.is_deleted:
        done = "the stream is being deleted"
    elif report.held:
        done = "on hold, nothing done"
    elif report.dry_run:
        since = "" if awaited is None or awaited.since_ms is None else f", since {time_text(awaited.since_ms)}"
        done = "nothing done" if awaited is None else f"more than half would be retired{since}: add --allow-large"
    else:
        done = (
            f"{counted(swept.retired, 'segment')} retired, {swept.released:,} released, {swept.purged:,} purged; "
            f"{counted(swept.deleted_objects, 'object')} deleted, {bytes_text(swept.deleted_bytes)}"
        )
    yield f"{report.stream}: {done}"


def undo(
    stream: StreamOrTopic,
    given: StoreArguments,
    segment: Annotated[
        list[str] | None,
        option("--segment", "Only this segment. May be repeated.", metavar="UUID", shown="all retired"),
    ] = None,
    head: Annotated[
        str,
        option("--head", "New start position.", metavar="LEDGER:ENTRY", shown="the start before the truncation"),
    ] = "",
    dry_run: DryRun = False,
    json: Json = False,
) -> int:
    """Undo a truncation: restore segments that are retired but not yet purged.

    The stream starts at its earlier position again. Purged segments can't be restored, nor can entries before them. A
    retention policy that truncated the stream will truncate it again: put a hold on the stream first. For a partitioned
    topic, the command restores each partition; --segment and --head need one partition.

    Examples:
        offloader cleanup undo orders --dry-run
        offloader cleanup undo orders --head 3:0
    """
    try:
        uuids = [UUID(text) for text in segment or []]
    except ValueError as cause:
        raise InvalidCallError(
            f"--segment: {cause}", hint="`offloader cleanup plan STREAM` lists the segments"
        ) from cause
    start = position_of(head, option="--head") if head else None
    named = existing_streams(given.open(), stream)  # before the store is probed with a write
    settings, opened = given.prepared(read_only=dry_run)
    if uuids or start is not None:
        named.require_one("a segment belongs to one stream" if uuids else "a position belongs to one stream")

    def one(name: str) -> None:
        log = ManifestLog(opened, name, clock=SystemClock(), settings=settings.manifest)
        done = undo_retirements(log, segments=uuids, head=start, dry_run=dry_run)
        facts = {
            "stream": name,
            "dry_run": dry_run,
            "segments": [each.uuid for each in done.segments],
            "head_before": done.head_before,
            "head": done.head,
            "ledgers": done.ledgers,
            "record": done.record_id,
        }
        verbs = ("would be restored", "would start") if dry_run else ("restored", "starts")
        begins = "" if done.head == done.head_before else f"; the stream {verbs[1]} at {done.head} again"
        print_result(facts, f"{counted(len(done.segments), 'segment')} of {name} {verbs[0]}{begins}", as_json=json)

    return run_on_each(named.streams, one, as_json=json)


def delete_stream(
    stream: StreamOrTopic,
    given: StoreArguments,
    ignore_leases: Annotated[
        bool, typer.Option("--ignore-leases", help="Delete even if a reader holds a lease.")
    ] = False,
    apply: Apply = False,
    json: Json = False,
) -> None:
    """Delete a stream: its segments, unfinished uploads, records and manifest.

    There is no undo. Writers stop at their next record. A tombstone remains for orphan_age_min, so that stalled writers
    notice the deletion; afterwards, repeat this command or let `offloader cleanup run` finish it. The hot tier is not
    changed.

    Examples:
        offloader stream delete orders
        offloader stream delete orders --apply
    """
    settings = given.settings(stream)
    how: Any = {"clock": SystemClock(), "settings": settings.manifest}
    planned = delete_streams(given.open(), stream, dry_run=True, **how)
    if apply:
        planned = delete_streams(given.open(read_only=False), stream, ignore_leases=ignore_leases, **how)
    _print_removed(planned, as_json=json)


def _print_removed(found: Sequence[StreamRemoval], *, as_json: bool) -> None:
    for each in found:
        facts = {
            "stream": each.stream,
            "dry_run": each.deletion is None,
            "objects": each.objects,
            "object_bytes": each.object_bytes,
            "uploads": each.uploads,
            "readers": each.readers,
            "adopted_segments_kept": each.adopted,
            "foreign": each.foreign,
            "finished": each.deletion is not None and each.deletion.is_finished,
        }
        print_result(facts, _removal_lines(each), as_json=as_json)


def _removal_lines(each: StreamRemoval) -> Iterator[str]:
    verb = "would delete" if each.deletion is None else "deleted"
    yield (
        f"{each.stream}: {verb} {counted(each.objects, 'object')}, {bytes_text(each.object_bytes)}, and "
        f"{counted(each.uploads, 'unfinished upload')}"
    )
    for key in each.foreign:
        yield f"foreign object, not deleted: {key}"
    if each.readers:
        yield f"read by {', '.join(each.readers)}"
    if each.adopted:
        yield f"the objects of {counted(each.adopted, 'adopted segment')} are not deleted: another program owns them"
    if each.deletion is not None and not each.deletion.is_finished:
        yield f"{each.stream}: a later `offloader cleanup run`, or this command again, deletes the tombstone"
