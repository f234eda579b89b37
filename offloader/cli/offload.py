"""Commands about offloading a stream: ``stream offload``, ``pause``, ``resume``, ``set-source``, ``accept-loss``.

They report only objects that are verified in the store, and a pause only after its record is durable.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any
from uuid import UUID

import typer

from formats.entries import Position
from formats.errors import FormatError
from formats.keys import data_key
from formats.summary import Layout, SegmentSummary
from offloader.cli import NOTHING_PLANNED
from offloader.cli.errors import run_on_each
from offloader.cli.ledgers import HotTiers, LedgerArguments
from offloader.cli.options import (
    Apply,
    DryRun,
    Json,
    ShowProgress,
    StoreArguments,
    Stream,
    StreamOrTopic,
    TakeOver,
    amount,
    option,
    position_of,
)
from offloader.cli.output import (
    AMOUNTS,
    ENDS,
    Column,
    SegmentProgress,
    bytes_text,
    counted,
    json_line,
    print_result,
    print_rows,
)
from offloader.errors import BucketMissingError, NotFoundError, OffloaderError
from offloader.inspect.saving import Saving, measure_saving
from offloader.ledgers.base import LedgerInfo
from offloader.ledgers.sqlite.embedded import has_stream
from offloader.manifest.catalog import read_entry
from offloader.manifest.names import NamedStreams, named_streams, resolve_name
from offloader.manifest.state import ManifestState
from offloader.owner_client import OwnerUnreachableError, ask_owner
from offloader.parallel_map import at_once, both
from offloader.read.reader import load_stream
from offloader.runtime.clock import SystemClock
from offloader.settings import Settings
from offloader.store.base import ObjectStore, is_local
from offloader.stored_stream import Stream as StoredStream
from offloader.write import epoch as accepting
from offloader.write.backfill import BackfillPlan, HistoryResult
from offloader.write.backfill_service import BackfillService, LedgerMethodPlan
from offloader.write.hot_tier import LedgerSizeEstimator, position_leaving
from offloader.write.offloader import LedgerOffloader, manual_method, offload_manually
from offloader.write.upload import verify_objects

STORED_COLUMNS = [Column("uuid", "SEGMENT"), Column("layout", "LAYOUT", less=6), *ENDS, *AMOUNTS]


def stored_rows(
    store: ObjectStore, stream: str, segments: Iterable[tuple[UUID, SegmentSummary]]
) -> list[Mapping[str, Any]]:
    """A row for each segment, in the stream's order.

    Raises:
        ObjectMissingError, ObjectChangedError: the store differs from the manifest.
    """

    def row(segment: tuple[UUID, SegmentSummary]) -> Mapping[str, Any]:
        uuid, summary = segment
        data, index = verify_objects(store, stream, uuid, summary)
        return {
            "uuid": str(uuid),
            "layout": f"V{int(summary.layout)}",
            "first": summary.begin,
            "last": summary.end,
            "entries": summary.entries,
            "payload_bytes": summary.payload_bytes,
            "object_bytes": summary.data_bytes + summary.index_bytes,
            "data": data,
            "index": index,
        }

    return at_once(row, sorted(segments, key=lambda each: each[1].begin), sequential_max=1)


def stored_totals(rows: list[Mapping[str, Any]]) -> dict[str, int]:
    """Sums over the rows; each segment is two objects."""
    sums = {name: sum(row[name] for row in rows) for name in ("entries", "payload_bytes", "object_bytes")}
    return {"segments": len(rows), "objects": 2 * len(rows), **sums}


def totals_text(totals: Mapping[str, int], store: ObjectStore) -> str:
    """The totals as text."""
    size = bytes_text(totals["payload_bytes"])
    return f"{totals['entries']:,} entries, {size}, in {totals['objects']} objects, each checked in {store.url}"


_PLANNED = [Column("layout", "LAYOUT"), *ENDS, Column("bytes", "ABOUT", bytes_text, right=True)]


def offload(
    stream: StreamOrTopic,
    given: LedgerArguments,
    until: Annotated[str, option("--to", "Last entry.", metavar="LEDGER:ENTRY", shown="the newest")] = "",
    size_threshold: Annotated[
        int,
        amount(
            "--size-threshold", "Keep this many of the newest bytes in the hot tier.", "bytes", whole=True, shown=True
        ),
    ] = 0,
    dry_run: DryRun = False,
    take_over: TakeOver = False,
    progress: ShowProgress = False,
    json: Json = False,
) -> int:
    """Offload a stream's ledgers to the object store and verify the new objects.

    If a process that can be reached offloads the stream (`offloader serve` with HTTP), that process closes and
    completes its current segment. Otherwise the command reads the ledger database of --ledgers, by default that of the
    settings file, by the stream's method: streaming (V2 segments of about the segment size, up to the newest entry,
    including a segment left unfinished by a writer) or ledger (an object pair for each closed ledger). The settings
    file sets the method, else the manifest does. If interrupted, repeat the command: it resumes where it stopped. The
    partitions of a topic are offloaded one after the other; --to needs one partition. If the database lacks
    acknowledged entries, the command offloads the entries before them and ends with exit code 6.

    Examples:
        offloader stream offload orders
        offloader stream offload orders --ledgers sqlite:///ledgers.db --dry-run
    """
    last = position_of(until, option="--to") if until else None
    in_database = _in_database(given)
    store = _opened(given, stream, in_database, read_only=dry_run)
    named = _to_offload(stream, store, in_database)
    if last is not None:
        named.require_one("a position belongs to one stream")
    one = partial(_offload_one, given=given, last=last, size_threshold=size_threshold, dry_run=dry_run, json=json)
    # For a stream that isn't in the database, ask its owner.
    with given.probed_meanwhile(store, at_once=not {*named.streams}.isdisjoint(in_database)) as require_probed:
        one = partial(one, store=store, require_probed=require_probed, take_over=take_over, progress=progress)
        return run_on_each(named.streams, one, as_json=json)


def _in_database(given: LedgerArguments) -> Collection[str]:
    """The streams of the ledger database; empty without one: an owner may offload the stream."""
    with suppress(NotFoundError), closing(given.open_ledgers()) if given.has_ledgers() else nullcontext() as database:
        return [] if database is None else database.streams()
    return []


def _opened(given: LedgerArguments, name: str, in_database: Collection[str], *, read_only: bool) -> ObjectStore:
    """The store, not probed; creates a local directory only for streams of the database."""
    try:
        return given.open(read_only=read_only, probed=False)
    except BucketMissingError:
        given.require_ledgers()
        if {*resolve_name(name, in_database).streams}.isdisjoint(in_database):
            with closing(given.open_ledgers()) as database:
                database.view_stream(name)  # raises
        return given.open(read_only=read_only, create=True, probed=False)


def _to_offload(name: str, store: ObjectStore, in_database: Collection[str]) -> NamedStreams:
    """Resolves a name among the streams of the store and of the ledger database."""
    in_ledgers = resolve_name(name, in_database)
    if in_ledgers.name in in_database:  # takes precedence over the store
        return in_ledgers
    in_store = named_streams(store, name)
    if not in_store.partitions and read_entry(store, in_store.name) is not None:
        return in_store
    return resolve_name(name, {*in_database, *in_store.partitions.values()})


def _offload_one(
    stream: str,
    *,
    given: LedgerArguments,
    store: ObjectStore,
    require_probed: Callable[[], object],
    last: Position | None,
    size_threshold: int,
    dry_run: bool,
    take_over: bool,
    progress: bool,
    json: bool,
) -> None:
    file = given.file() if given.config else None
    settings = Settings() if file is None else file.settings_of(stream)
    state = _known(store, stream, has_ledgers=given.has_ledgers())
    if state.owner.url and not (dry_run or take_over or size_threshold):
        asked = _asked_owner(store, state, last, settings, must=not given.has_ledgers())
        if asked is not None:
            _print_result(store, stream, state.method, asked, as_json=json, owner=state.owner.url)
            return
    with closing(given.open_ledgers()) as database:
        # A view doesn't fence the writer.
        source = database.view_stream(stream, may_delete=not dry_run)
        whole = partial(HotTiers(database.path, database).require_whole, stream, last=last)
        method = manual_method(state, file)
        infos = source.ledgers()
        if size_threshold and method == "streaming":
            leaving = position_leaving(infos, size_threshold)
            last = min(last or leaving, leaving) if leaving is not None else Position(0, -1)
        with closing(LedgerOffloader(store, settings)) as offloader:
            runs = offloader.history
            if dry_run:
                planned = runs.preview(state, infos, method=method, last=last, threshold_bytes=size_threshold)
                _print_planned(planned, infos, stream, as_json=json)
                whole(committed=state.committed_end())
                return
            require_probed()
            with SegmentProgress(sys.stderr, always=progress) as shown:
                result = offload_manually(
                    runs,
                    source,
                    stream,
                    method,
                    last=last,
                    threshold_bytes=size_threshold,
                    take_over=take_over,
                    on_plan=partial(_expect, shown),
                    on_progress=shown.segment,
                )
        _print_result(store, stream, method, result, as_json=json)
        if result.errors:
            raise result.errors[0]
        whole(committed=result.committed)


def _known(store: ObjectStore, stream: str, *, has_ledgers: bool) -> ManifestState:
    """A stream's manifest, which may be absent only where a ledger database has new streams."""
    try:
        return load_stream(store, stream, may_be_absent=has_ledgers)
    except NotFoundError as error:
        more = "for a stream that was never offloaded, give its ledger database with --ledgers"
        raise NotFoundError(error.message, hint=f"{error.hint}; {more}") from error


def _asked_owner(
    store: ObjectStore, before: ManifestState, last: Position | None, settings: Settings, *, must: bool
) -> HistoryResult | None:
    """The owner's result; ``None``: it stopped, or no longer offloads the stream. ``must``: there is no other way."""
    try:
        after = ask_owner(store, before, last, settings)
    except (OwnerUnreachableError, NotFoundError):
        if must:
            raise
        return None
    old = {record.uuid for record in before.offloaded(before.committed_end(), None)}
    records = after.offloaded(before.committed_end(), None)
    found = [(each.uuid, each.summary) for each in records if each.uuid not in old and each.summary is not None]
    return HistoryResult(offloaded=found, state=after)


def _expect(shown: SegmentProgress, plan: BackfillPlan | LedgerMethodPlan) -> None:
    if isinstance(plan, BackfillPlan):
        shown.expect(plan.segments, about=True)
    else:
        shown.expect(len(plan.segments))


def _print_planned(planned: Sequence[Any], ledgers: Sequence[LedgerInfo], stream: str, *, as_json: bool) -> None:
    sizes = LedgerSizeEstimator(ledgers)
    rows = [
        {
            "layout": f"V{int(each.layout)}",
            "first": each.begin,
            "last": each.end,
            "bytes": round(sizes.between(each.begin, each.end)),
        }
        for each in planned
    ]
    if as_json:
        print(json_line({"stream": stream, "dry_run": True, "segments": rows}))
        return
    print_rows(rows, _PLANNED, title=f"to be offloaded of {stream}", empty=f"nothing to offload in {stream}")


def _print_result(
    store: ObjectStore, stream: str, method: str, result: HistoryResult, *, as_json: bool, owner: str = ""
) -> None:
    rows, saving = both(
        partial(stored_rows, store, stream, result.offloaded),
        partial(_saving, store, stream, result.offloaded),
        sequential=is_local(store),
    )
    totals = stored_totals(rows)
    if as_json:
        facts = {
            "stream": stream,
            "dry_run": False,
            "method": method,
            "offloaded": rows,
            **totals,
            **({} if saving is None else {"zstd": asdict(saving)}),
            **({"owner": owner} if owner else {}),
            "committed": result.committed,
            "trimmed": [each.begin for each in result.trimmed],
        }
        print(json_line(facts))
        return
    for each in result.trimmed:
        print(f"ledger {each.begin.ledger_id} was trimmed from the hot tier during the run")
    if not rows:
        if not result.errors:
            print(f"nothing to offload in {stream}: committed end {result.committed or 'none'}")
        return
    print_rows(rows, STORED_COLUMNS)
    print(f"{totals_text(totals, store)}; committed end {result.committed or 'none'}")
    if saving is not None and saving.advice:
        print(f"compression: {saving}; {saving.advice}")


def _saving(store: ObjectStore, stream: str, segments: Iterable[tuple[UUID, SegmentSummary]]) -> Saving | None:
    """The saving of compression for the largest segment; ``None``: all are compressed, or it can't be read."""
    plain = [each for each in segments if not each[1].compressed]
    if not plain:
        return None
    uuid, summary = max(plain, key=lambda each: each[1].data_bytes)
    key = data_key(stream, uuid, summary.begin.ledger_id if summary.layout is Layout.V1 else None)
    with suppress(OffloaderError, FormatError):  # only advice: no reason to fail
        return measure_saving(store, key, summary, clock=SystemClock())
    return None


def pause(
    stream: StreamOrTopic,
    given: StoreArguments,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Reason, recorded in the manifest.")] = "",
    json: Json = False,
) -> int:
    """Stop offloading a stream until it is resumed, in every process.

    A segment in progress completes; later entries remain in the hot tier. A running writer notices the pause with its
    next record. Appends, reads and retention continue.

    Examples:
        offloader stream pause orders --reason 'the bucket is moved'
    """
    change = partial(BackfillService.pause, reason=reason)
    return _change(stream, given, change, "paused", "was already paused", as_json=json)


def resume(stream: StreamOrTopic, given: StoreArguments, json: Json = False) -> int:
    """Resume offloading a paused stream where it stopped.

    A running writer with a backlog checks at least once a minute; a writer in the process that resumes the stream
    continues immediately.

    Examples:
        offloader stream resume orders
    """
    return _change(stream, given, BackfillService.resume, "resumed", "wasn't paused", as_json=json)


def _change(
    name: str,
    given: StoreArguments,
    change: Callable[[BackfillService, str], bool],
    changed: str,
    as_it_was: str,
    *,
    as_json: bool,
) -> int:
    stored = given.open()

    def one(stream: str) -> None:
        load_stream(stored, stream)  # before the store is probed with a write
        settings, opened = given.prepared(stream, read_only=False)
        with closing(LedgerOffloader(opened, settings)) as offloader:
            done = change(offloader.history, stream)
        state = load_stream(opened, stream)
        left, end = len(state.assigned()), state.committed_end()
        facts = {"stream": stream, "paused": state.paused, "changed": done, "assigned": left, "committed": end}
        under_way = f"; {counted(left, 'assigned segment completes', 'assigned segments complete')}" if left else ""
        text = f"{stream} {changed if done else as_it_was}: committed end {end or 'none'}{under_way}"
        print_result(facts, text, as_json=as_json)

    return run_on_each(named_streams(stored, name).streams, one, as_json=as_json)


#: Why an irreversible command takes one stream only.
_ACCEPTED = "this command needs one stream"


def set_source(stream: Stream, given: LedgerArguments, apply: Apply = False, json: Json = False) -> int:
    """Switch a stream to a different ledger database, even if it does not match the store.

    Use it for a database that was lost, restored from an older backup, or replaced; or for a store that lacks the
    manifest to which the database was committed, or its newest records. Nothing is deleted: complete segments in
    progress are kept, entries known to be missing become a gap, and ledgers of the database that contradict the
    manifest are set aside: never offloaded, released or deleted. Stop the process that appends first. There is no undo.
    For a partitioned topic, accept each partition by its own name.

    Examples:
        offloader stream set-source orders --ledgers sqlite:///new.db
        offloader stream set-source orders --ledgers sqlite:///new.db --apply
    """
    dry_run, stored = not apply, given.open()
    named_streams(stored, stream).require_one(_ACCEPTED)
    if not has_stream(given.require_ledgers(), stream):
        load_stream(stored, stream)  # require the stream before the store is probed with a write
    settings, opened = given.prepared(stream, read_only=dry_run)
    with closing(given.open_ledgers(create=not dry_run)) as database:
        done = StoredStream(opened, stream).set_source(database, dry_run=dry_run, settings=settings)
    nothing = f"the manifest of {stream} already has ledger database {done.source}: nothing to do"
    lines = [f"{stream}: {done.why}", *_accepted_lines(done, dry_run=dry_run)] if done.why else [nothing]
    print_result(_accepted(done, dry_run=dry_run), lines, as_json=json)
    return 0 if done.why else NOTHING_PLANNED


def accept_loss(
    stream: Stream, given: LedgerArguments, take_over: TakeOver = False, apply: Apply = False, json: Json = False
) -> int:
    """Accept the loss of entries missing from the ledger database, so that the stream opens again.

    The positions of these entries remain used. Entries that the object store lacks too become a gap of the manifest,
    independent of on_gap. The command takes a segment in progress from its writer and keeps it if it is complete. If
    you have a copy of the database with these entries, restore it instead. Stop the process that appends first. There
    is no undo. For a partitioned topic, accept each partition by its own name.

    Examples:
        offloader stream accept-loss orders --ledgers sqlite:///ledgers.db
        offloader stream accept-loss orders --ledgers sqlite:///ledgers.db --apply
    """
    dry_run = not apply
    given.require_ledgers()
    settings, opened = given.prepared(stream, read_only=dry_run)
    named_streams(opened, stream).require_one(_ACCEPTED)
    with closing(given.open_ledgers()) as database:
        how: Any = {"take_over": take_over, "dry_run": dry_run, "settings": settings}
        accepted = StoredStream(opened, stream).accept_loss(database, **how)
    lost, recorded = accepted.lost, accepted.recorded
    facts = {
        "stream": stream,
        "dry_run": dry_run,
        "lost": [{"first": each.first, "last": each.last, "source": each.source_id} for each in lost],
        "manifest": None if recorded is None else _accepted(recorded, dry_run=dry_run),
    }
    verb = "would be lost" if dry_run else "lost"
    lines = [f"{verb} from the ledger database: {each.first} up to {each.last}" for each in lost] or [
        f"ledger database {given.ledgers_url()} has all acknowledged entries of {stream}: nothing to do"
    ]
    if recorded is not None and recorded.record_id is not None:
        lines += _accepted_lines(recorded, dry_run=dry_run)
    print_result(facts, lines, as_json=json)
    return 0 if lost else NOTHING_PLANNED


def _accepted(done: accepting.Acceptance, *, dry_run: bool) -> Mapping[str, object]:
    return {
        "stream": done.stream,
        "dry_run": dry_run,
        "source": done.source,
        "mismatch": done.why,
        "missing": [{"first": gap.first, "last": gap.last, "reason": gap.reason} for gap in done.gaps],
        "aside": done.aside,
        "adopted": done.adopted,
        "failed": done.failed,
        "record": done.record_id,
    }


def _accepted_lines(done: accepting.Acceptance, *, dry_run: bool) -> Sequence[str]:
    would = "would be " if dry_run else ""
    database = "the ledger database" if str(done.source) in done.why else f"ledger database {done.source}"
    lines = [f"recorded as a gap: {gap.first} up to {gap.last}: {gap.reason}" for gap in done.gaps]
    lines += [f"ledger {each} {would}set aside: never offloaded, released or deleted" for each in done.aside]
    lines += [f"segment {each} was complete and is kept" for each in done.adopted]
    if dry_run:
        lines += [f"segment {each} is in progress: kept if complete, else recorded as a gap" for each in done.failed]
        lines.append(f"{database} would be the stream's hot tier")
    else:
        lines.append(f"{database} is now the stream's hot tier (record {done.record_id})")
    return lines
