"""Verbs about offloading a stream: offload, rollback, pause, resume, accept-source, accept-loss.

Reports only objects that are verified in the store, and a pause only after its record is durable.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import typer

from formats.entries import Position
from formats.errors import FormatError
from formats.metadata.messages import PulsarLedger
from formats.pulsar.ledger_record import decode_ledger_record
from formats.segment import SegmentSummary
from offloader.cli.errors import run_on_each
from offloader.cli.ledgers import LedgerArguments
from offloader.cli.options import (
    DryRun,
    Json,
    ShowProgress,
    StoreArguments,
    Stream,
    StreamOrTopic,
    TakeOver,
    amount,
    open_chosen_store,
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
from offloader.errors import BucketMissing, InvalidCall, NotFound, OffloaderError, Unsupported
from offloader.inspect.saving import COST, Saving, measure_saving
from offloader.ledgers.base import LedgerInfo
from offloader.manifest.catalog import read_entry
from offloader.manifest.log import ManifestLog
from offloader.manifest.names import NamedStreams, named_streams, resolve_name
from offloader.manifest.state import ManifestState
from offloader.owner_client import OwnerUnreachable, ask_owner
from offloader.parallel_map import at_once
from offloader.read.reader import existing_streams, load_stream
from offloader.runtime.clock import SystemClock
from offloader.settings import Settings
from offloader.store.base import ObjectStore
from offloader.write import epoch as accepting
from offloader.write.backfill import BackfillPlan, HistoryResult
from offloader.write.backfill_service import BackfillService, LedgerMethodPlan
from offloader.write.hot_tier import LedgerSizeEstimator, position_leaving
from offloader.write.ledger_export import ExportedLedger, LedgerExport, error_of, recorded_ledgers
from offloader.write.offloader import LedgerOffloader, manual_method, offload_manually
from offloader.write.rollback import RewriteResult, StreamedLedger, streamed_ledgers
from offloader.write.upload import verify_objects

STORED_COLUMNS = [Column("uuid", "SEGMENT"), Column("layout", "LAYOUT"), *ENDS, *AMOUNTS]


def stored_rows(
    store: ObjectStore, stream: str, segments: Iterable[tuple[UUID, SegmentSummary]]
) -> list[Mapping[str, Any]]:
    """A row for each segment, in the stream's order.

    Raises:
        ObjectMissing, ObjectChanged: the store differs from the manifest.
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
    """The same for people."""
    size = bytes_text(totals["payload_bytes"])
    return f"{totals['entries']:,} entries, {size}, in {totals['objects']} objects, each checked in {store.url}"


_PLANNED = [Column("layout", "LAYOUT"), *ENDS, Column("bytes", "ABOUT", bytes_text, right=True)]


def offload(
    stream: StreamOrTopic,
    given: LedgerArguments,
    until: Annotated[str, option("--until", "Last entry.", metavar="LEDGER:ENTRY", shown="the newest")] = "",
    size_threshold: Annotated[
        int, amount("--size-threshold", "Leave so much of the newest behind.", "bytes", whole=True, shown=True)
    ] = 0,
    dry_run: DryRun = False,
    take_over: TakeOver = False,
    progress: ShowProgress = False,
    json: Json = False,
) -> int:
    """Offload what a stream's ledgers hold and the store doesn't, and check in the store that it is there.

    Where a process offloads the stream that can be asked (`offloader serve` with HTTP), that one is: it closes and
    completes its current segment. Else from the ledger database of --ledgers, by default that of the settings file, by
    the stream's method: streaming (V2 segments of about the segment size, up to the newest entry; one that a writer
    left unfinished is completed) or ledger (an object pair for each closed ledger). A settings file says the method,
    else the manifest does. Interrupted, it goes on where it was when it is called again. Of a topic with partitions
    each is offloaded in turn; --until is of one.
    """
    last = position_of(until, option="--until") if until else None
    named = _to_offload(stream, given)
    if last is not None:
        named.require_one("a position is of one")
    one = partial(
        _offload_one, given=given, last=last, size_threshold=size_threshold, dry_run=dry_run, take_over=take_over
    )
    return run_on_each(named.streams, partial(one, progress=progress, json=json), as_json=json)


def _to_offload(name: str, given: LedgerArguments) -> NamedStreams:
    """What a name means among the streams of the store and of the ledger database, if there is one."""
    in_store = NamedStreams(name)
    try:
        opened = given.open()
        in_store = named_streams(opened, name)
        if not in_store.partitions and read_entry(opened, in_store.name) is not None:
            return in_store
    except BucketMissing:  # the first offload makes a local directory
        given.require_ledgers()
    if not given.has_ledgers():
        return in_store
    with closing(given.open_ledgers()) as database:
        return resolve_name(name, {*database.streams(), *in_store.partitions.values()})


def _offload_one(
    stream: str,
    *,
    given: LedgerArguments,
    last: Position | None,
    size_threshold: int,
    dry_run: bool,
    take_over: bool,
    progress: bool,
    json: bool,
) -> None:
    file = given.file() if given.config else None
    settings = Settings() if file is None else file.settings_of(stream)
    opened = _opened(given, stream, read_only=dry_run)
    state = load_stream(opened, stream, may_be_absent=True)
    if state.owner.url and not (dry_run or take_over or size_threshold):
        asked = _asked_owner(opened, state, last, settings, must=not given.has_ledgers())
        if asked is not None:
            _print_result(opened, stream, state.method, asked, as_json=json, owner=state.owner.url)
            return
    with closing(given.open_ledgers()) as database:
        # A view, which doesn't fence the writer.
        source = database.view_stream(stream, may_delete=not dry_run)
        method = manual_method(state, file)
        infos = source.ledgers()
        if size_threshold and method == "streaming":
            leaving = position_leaving(infos, size_threshold)
            last = min(last or leaving, leaving) if leaving is not None else Position(0, -1)
        with closing(LedgerOffloader(opened, settings)) as offloader:
            runs = offloader.history
            if dry_run:
                planned = runs.preview(state, infos, method=method, last=last, threshold_bytes=size_threshold)
                _print_planned(planned, infos, stream, as_json=json)
                return
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
    _print_result(opened, stream, method, result, as_json=json)
    if result.errors:
        raise result.errors[0]


def _opened(given: LedgerArguments, stream: str, *, read_only: bool) -> ObjectStore:
    """The store; creates a local directory only for an existing stream."""
    try:
        return given.open(read_only=read_only)
    except BucketMissing:
        with closing(given.open_ledgers()) as database:
            database.view_stream(stream)
        return given.open(read_only=read_only, create=True)


def _asked_owner(
    store: ObjectStore, before: ManifestState, last: Position | None, settings: Settings, *, must: bool
) -> HistoryResult | None:
    """The owner's result; ``None``: it ended, or doesn't offload the stream any more. ``must``: only it can do it."""
    try:
        after = ask_owner(store, before, last, settings)
    except (OwnerUnreachable, NotFound):
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
    print_rows(rows, _PLANNED, title=f"to be offloaded of {stream}", empty=f"nothing to offload of {stream}")


def _print_result(
    store: ObjectStore, stream: str, method: str, result: HistoryResult, *, as_json: bool, owner: str = ""
) -> None:
    rows = stored_rows(store, stream, result.offloaded)
    totals, saving = stored_totals(rows), _saving(store, rows, result)
    if as_json:
        whole = {"stream": stream, "dry_run": False, "method": method, "offloaded": rows, **totals}
        whole |= {} if saving is None else {"zstd": asdict(saving)}
        whole |= {"owner": owner} if owner else {}
        print(json_line({**whole, "committed": result.committed, "trimmed": [each.begin for each in result.trimmed]}))
        return
    for each in result.trimmed:
        print(f"ledger {each.begin.ledger_id} left the hot tier meanwhile")
    if not rows:
        if not result.errors:
            print(f"nothing to offload of {stream}: committed is {result.committed or 'nothing'}")
        return
    print_rows(rows, STORED_COLUMNS)
    print(f"{totals_text(totals, store)}; committed is {result.committed or 'nothing'}")
    if saving is not None and saving.is_worth_it:
        print(f'compression: {saving}; offload.codec = "zstd" does that, but {COST}')


def _saving(store: ObjectStore, rows: Sequence[Mapping[str, Any]], result: HistoryResult) -> Saving | None:
    """What compression would have saved of the largest segment; ``None``: nothing to say, or it can't be read."""
    plain = {str(uuid): each for uuid, each in result.offloaded if not each.compressed}
    largest = max((row for row in rows if row["uuid"] in plain), key=lambda row: int(row["object_bytes"]), default=None)
    if largest is None:
        return None
    with suppress(OffloaderError, FormatError):  # what was offloaded is verified; this is only advice
        return measure_saving(store, largest["data"], plain[largest["uuid"]], clock=SystemClock())
    return None


#: Ledgers named in an error.
NAMED_MAX = 10


_ROLLBACK_COLUMNS = [
    Column("ledger_id", "LEDGER", str, right=True),
    Column("segments", "SEGMENTS", right=True),
    Column("entries", "ENTRIES", right=True),
    Column("payload_bytes", "PAYLOAD", bytes_text, right=True),
    Column("becomes", "BECOMES"),
    Column("obstacle", "WHY"),
]


def plan_rollback(
    stream: StreamOrTopic,
    given: StoreArguments,
    _dry_run: Annotated[bool, typer.Option("--dry-run", hidden=True)] = False,
    _progress: Annotated[bool, typer.Option("--progress", hidden=True)] = False,
    json: Json = False,
) -> int:
    """List the ledgers that a V1 reader can't read.

    Such a reader is from before the streaming method and knows V1 objects only. Also listed: what would become of each
    ledger. Nothing is written.
    """
    opened = given.open()
    return _print_rollback_plans(opened, named_streams(opened, stream), (), as_json=json)


def apply_rollback(
    stream: StreamOrTopic,
    given: StoreArguments,
    delete: Annotated[
        list[int] | None,
        option(
            "--delete",
            "Delete this ledger from the stream instead of rewriting it. May be repeated; needs --yes.",
            metavar="LEDGER",
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do delete what --delete names.")] = False,
    dry_run: DryRun = False,
    take_over: TakeOver = False,
    progress: ShowProgress = False,
    json: Json = False,
) -> int:
    """Make a stream's ledgers readable for a V1 reader.

    Such a reader is from before the streaming method and knows V1 objects only. Writes each whole ledger as a V1 object
    and lets it take the place of its V2 segments, whose objects go after the grace period. Everything stays readable
    meanwhile. Interrupted, it goes on where it was when it is called again. Of a topic with partitions each is
    rewritten, one after the other; --delete is of one.
    """
    chosen = sorted(set(delete or []))
    stored = given.open()
    named = existing_streams(stored, stream)  # before the store is probed with a write
    if chosen:
        named.require_one("a ledger is of one")
    if dry_run:
        return _print_rollback_plans(stored, named, chosen, as_json=json)
    if chosen and not yes:
        raise InvalidCall(
            f"deleting {_ledgers(chosen)} from {stream} loses what only the store has of them",
            hint="look at it with --dry-run, then say --yes",
        )
    one = partial(_apply_rollback, given=given, delete=chosen, take_over=take_over, progress=progress, json=json)
    return run_on_each(named.streams, one, as_json=json)


def _apply_rollback(
    stream: str, *, given: StoreArguments, delete: Sequence[int], take_over: bool, progress: bool, json: bool
) -> None:
    settings = given.settings(stream)
    # Old readers don't support compression.
    settings = replace(settings, offload=replace(settings.offload, codec="none"))
    opened = given.open(read_only=False)
    ledgers = streamed_ledgers(load_stream(opened, stream))
    with (
        closing(LedgerOffloader(opened, settings)) as offloader,
        SegmentProgress(sys.stderr, always=progress, what="ledgers") as shown,
    ):
        shown.expect(sum(1 for each in ledgers if not each.obstacle and each.ledger_id not in delete))
        result = offloader.history.rollback(stream, delete=delete, take_over=take_over, on_progress=shown.segment)
    _print_rollback(opened, stream, result, as_json=json)
    if result.errors:
        raise result.errors[0]
    if result.left:
        named = ", ".join(f"{each.ledger_id} ({each.obstacle})" for each in result.left[:NAMED_MAX])
        more = " ..." if len(result.left) > NAMED_MAX else ""
        raise Unsupported(
            f"an old reader still can't read {len(result.left)} of the ledgers of {stream}: {named}{more}",
            hint="close and offload what can be and call this again, or --delete LEDGER --yes what nobody needs",
        )


def _print_rollback_plans(store: ObjectStore, named: NamedStreams, delete: Collection[int], *, as_json: bool) -> int:
    def show(stream: str) -> None:
        ledgers = streamed_ledgers(load_stream(store, stream))
        of, columns = _of_partition(named, stream)
        rows = [{**of, **asdict(each), "becomes": _fate(each, delete)} for each in ledgers]
        empty = f"an old reader can read all that is offloaded of {stream}"
        print_rows(rows, [*columns, *_ROLLBACK_COLUMNS], as_json=as_json, empty=empty)

    return run_on_each(named.streams, show, as_json=as_json)


def _of_partition(named: NamedStreams, stream: str) -> tuple[Mapping[str, str], Sequence[Column]]:
    """What is added to each row of a table that says the stream only of a topic with partitions, and its column."""
    return ({"stream": stream}, [Column("stream", "STREAM")]) if named.partitions else ({}, [])


def _fate(ledger: StreamedLedger, delete: Collection[int]) -> str:
    if ledger.ledger_id in delete:
        return "deleted"
    return "as it is" if ledger.obstacle else "V1"


def _print_rollback(store: ObjectStore, stream: str, result: RewriteResult, *, as_json: bool) -> None:
    rows = stored_rows(store, stream, result.rewritten)
    totals = stored_totals(rows)
    if as_json:
        whole = {
            "stream": stream,
            "rewritten": rows,
            **totals,
            "deleted": result.deleted,
            "replaced": result.replaced,
            "retired": result.retired,
            "left": [asdict(each) for each in result.left],
        }
        print(json_line(whole))
        return
    if result.deleted:
        print(f"deleted from the stream: {_ledgers(result.deleted)}")
    if not rows:
        if not result.left and not result.deleted:
            print(f"nothing to rewrite: an old reader can read all that is offloaded of {stream}")
        return
    print_rows(rows, STORED_COLUMNS)
    waiting = counted(result.replaced + result.retired, "segment awaits", "segments await")
    print(f"{totals_text(totals, store)}; {waiting} deletion after the grace period")


def _ledgers(ids: Sequence[int]) -> str:
    shown = ", ".join(map(str, ids[:NAMED_MAX]))
    return f"{'ledger' if len(ids) == 1 else 'ledgers'} {shown}{' ...' if len(ids) > NAMED_MAX else ''}"


_EXPORT_COLUMNS = [
    Column("ledger_id", "LEDGER", str, right=True),
    Column("entries", "ENTRIES", right=True),
    Column("payload_bytes", "PAYLOAD", bytes_text, right=True),
    Column("state", "STATE"),
    Column("data", "OBJECT"),
    Column("why", "WHY"),
]


def export_rollback(
    stream: StreamOrTopic,
    given: StoreArguments,
    to: Annotated[str, option("--to", "The bucket in which the broker's own offloader will look.", metavar="URL")],
    broker_record: Annotated[
        list[str],
        option(
            "--broker-record",
            "What the broker's metadata store has of the topic: the value of "
            "/managed-ledgers/TENANT/NAMESPACE/persistent/TOPIC. Of a topic with "
            "partitions one for each, by its number.",
            metavar="[PARTITION=]FILE",
        ),
    ],
    dry_run: DryRun = False,
    progress: ShowProgress = False,
    json: Json = False,
) -> int:
    """Write a stream's ledgers where a broker without the plugin looks for them.

    For a broker that offloaded through the plugin and goes back to Pulsar's own offloader. Each ledger that its record
    says is offloaded becomes a V1 object and its index, under the record's uuid, at the root of the bucket. Entries
    that only brokers get (markers, aborted messages) are in it. Each is read back and compared; what is there already
    stays. The stream isn't changed. Interrupted, it goes on where it was when it is called again.
    """
    settings, opened = given.prepared(stream)
    named = named_streams(opened, stream)
    paths = _by_stream(named, broker_record)
    states = {each: load_stream(opened, each) for each in named.streams}
    target = open_chosen_store(
        *(to, given.endpoint_url, given.region),
        settings=settings.store,
        limits=settings.limits,
        read_only=dry_run,
        create=not dry_run,
    )
    recorded = {each: recorded_ledgers(_broker_record(path)) for each, path in paths.items()}

    def one(each: str) -> None:
        own = given.settings(each)
        with SegmentProgress(sys.stderr, always=progress, what="ledgers") as shown:
            shown.expect(len(recorded[each]))
            export = LedgerExport(
                *(opened, states[each], target), settings=own.offload, read=own.read, on_progress=shown.segment
            )
            done = export.run(recorded[each], dry_run=dry_run)
        of, columns = _of_partition(named, each)
        rows = [{**of, **_export_row(ledger, dry_run=dry_run)} for ledger in done]
        empty = f"the broker's record has no offloaded ledger: {paths[each]}"
        print_rows(rows, [*columns, *_EXPORT_COLUMNS], as_json=json, empty=empty)
        error = error_of(done)
        if error is not None:
            raise error

    return run_on_each(named.streams, one, as_json=json)


def _by_stream(named: NamedStreams, given: Sequence[str]) -> Mapping[str, str]:
    """The record's file of each stream; raises ``InvalidCall`` unless there is exactly one for each."""
    hint = "give --broker-record PARTITION=FILE once for each partition"
    if not named.partitions:
        if len(given) > 1:
            raise InvalidCall(f"{named.name} is one stream, and has one record", hint="give --broker-record once")
        return {named.name: given[0]}
    found: dict[str, str] = {}
    for text in given:
        number, separator, path = text.partition("=")
        if not separator or not number.isdecimal():
            named.require_one("a broker's record is of one: --broker-record PARTITION=FILE")
        stream = named.partitions.get(int(number))
        if stream is None or stream in found:
            what = f"names partition {number} twice" if stream else f"partition {number} isn't in the store"
            raise InvalidCall(f"--broker-record {text}: {what}", hint=hint)
        found[stream] = path
    absent = [str(number) for number, stream in named.partitions.items() if stream not in found]
    if absent:
        raise InvalidCall(f"there is no record of partition {', '.join(absent)} of {named.name}", hint=hint)
    return found


def _export_row(done: ExportedLedger, *, dry_run: bool) -> Mapping[str, object]:
    return {
        "ledger_id": done.ledger.ledger_id,
        "uuid": str(done.ledger.uuid),
        "entries": done.ledger.entries,
        "payload_bytes": done.payload_bytes,
        "state": _export_state(done, dry_run=dry_run),
        "data": done.ledger.objects().data_key,
        "index": done.ledger.objects().index_key,
        "why": "" if done.error is None else done.error.message,
    }


def _broker_record(path: str) -> Sequence[PulsarLedger]:
    try:
        return decode_ledger_record(Path(path).read_bytes())
    except OSError as cause:
        raise NotFound(
            f"--broker-record: {path} can't be read: {cause.strerror}", hint="save the value there first"
        ) from cause
    except FormatError as cause:
        raise InvalidCall(
            f"--broker-record: {path} isn't a broker's record of a topic: {cause}",
            hint="save the value's bytes as they are, neither as text nor as base64",
        ) from cause


def _export_state(done: ExportedLedger, *, dry_run: bool) -> str:
    if done.error is not None:
        return "left"
    if not done.written:
        return "there already"
    return "to be written" if dry_run else "written"


#: Action -> its function, in the order of the help.
ROLLBACK: Mapping[str, Callable[..., Any]] = {
    "plan": plan_rollback,
    "apply": apply_rollback,
    "export": export_rollback,
}


def pause(
    stream: StreamOrTopic,
    given: StoreArguments,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why, for who reads the manifest.")] = "",
    json: Json = False,
) -> int:
    """Stop offloading a stream until it is resumed, in whichever process it runs.

    A segment that is under way completes; whatever comes later stays in the hot tier. A running writer notices with its
    next record. Appending, reading and retention go on.
    """
    change = partial(BackfillService.pause, reason=reason)
    return _change(stream, given, change, "is paused", "was paused already", as_json=json)


def resume(stream: StreamOrTopic, given: StoreArguments, json: Json = False) -> int:
    """Let a paused stream go on, exactly where it stopped.

    A running writer that has entries waiting looks every minute at the latest; one in the process that resumes it goes
    on at once.
    """
    return _change(stream, given, BackfillService.resume, "goes on", "wasn't paused", as_json=json)


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
        text = f"{stream} {changed if done else as_it_was}: committed is {end or 'nothing'}{under_way}"
        print_result(facts, text, as_json=as_json)

    return run_on_each(named_streams(stored, name).streams, one, as_json=as_json)


#: Why what can't be undone isn't done to several streams at once.
_ACCEPTED = "what is accepted is of one stream"


def accept_source(stream: Stream, given: LedgerArguments, dry_run: DryRun = False, json: Json = False) -> None:
    """Make a ledger database the stream's hot tier, whatever its manifest knows of another one.

    For a database that was lost, restored from an older backup, or replaced. Nothing is deleted: complete segments that
    were on their way are kept, what is missing becomes a gap, and ledgers of the database that contradict the manifest
    are left aside: never offloaded, released or deleted. Stop the process that appends first. There is no undo. Of a
    topic with partitions each is accepted by its own name.
    """
    existing_streams(given.open(), stream).require_one(_ACCEPTED)  # before the store is probed with a write
    given.require_ledgers()
    settings, opened = given.prepared(stream, read_only=dry_run)
    load_stream(opened, stream)  # require the stream before the database creates it
    clock = SystemClock()
    with closing(given.open_ledgers(create=not dry_run)) as database:
        if not dry_run:
            database.accept_loss(stream)
            if stream not in database.streams():
                database.open_stream(stream, held=True)
        source = database.view_stream(stream, may_delete=not dry_run)
        log = ManifestLog(opened, stream, clock=clock, settings=settings.manifest)
        done = accepting.accept_source(log, source, settings=settings.offload, clock=clock, dry_run=dry_run)
    nothing = f"ledger database {done.source} is the one that the manifest of {stream} knows: nothing to do"
    lines = [f"{stream}: {done.why}", *_accepted_lines(done, dry_run=dry_run)] if done.why else [nothing]
    print_result(_accepted(done, dry_run=dry_run), lines, as_json=json)


def accept_loss(
    stream: Stream, given: LedgerArguments, take_over: TakeOver = False, dry_run: DryRun = False, json: Json = False
) -> None:
    """Open a stream again whose ledger database lacks entries that it acknowledged.

    Their positions stay used. What the object store doesn't have of them becomes a gap of the manifest, whatever
    on_gap says. A segment that is on its way is taken from its writer and kept if it is complete. Restore the database
    instead if there is a copy that has them. Stop the process that appends first. There is no undo. Of a topic with
    partitions each is accepted by its own name.
    """
    given.require_ledgers()
    settings, opened = given.prepared(stream, read_only=dry_run)
    named_streams(opened, stream).require_one(_ACCEPTED)
    clock, recorded = SystemClock(), None
    with closing(given.open_ledgers()) as database:
        is_offloaded = read_entry(opened, stream) is not None
        if not is_offloaded and stream not in database.streams():
            load_stream(opened, stream)  # raises if the stream is unknown
        lost = database.accept_loss(stream, dry_run=dry_run)
        if not dry_run and is_offloaded:
            log = ManifestLog(opened, stream, clock=clock, settings=settings.manifest)
            source = database.view_stream(stream, may_delete=True)
            recorded = accepting.accept_loss(log, source, settings=settings.offload, clock=clock, take_over=take_over)
    facts = {
        "stream": stream,
        "dry_run": dry_run,
        "lost": [{"first": each.first, "last": each.last, "source": each.source_id} for each in lost],
        "manifest": None if recorded is None else _accepted(recorded, dry_run=dry_run),
    }
    verb = "would be lost" if dry_run else "lost"
    lines = [f"{verb} from the ledger database: {each.first} up to {each.last}" for each in lost]
    lines = lines or [f"ledger database {given.ledgers_url()} has everything of {stream} that it acknowledged"]
    if recorded is not None and recorded.record_id is not None:
        lines += _accepted_lines(recorded, dry_run=dry_run)
    print_result(facts, lines, as_json=json)


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
    lines = [f"missing from now on: {gap.first} up to {gap.last}: {gap.reason}" for gap in done.gaps]
    lines += [f"ledger {each} {would}left aside: never offloaded, released or deleted" for each in done.aside]
    lines += [f"segment {each} was complete and is kept" for each in done.adopted]
    if dry_run:
        lines += [f"segment {each} is on its way: kept if it is complete, else missing" for each in done.failed]
        lines.append(f"ledger database {done.source} would be the stream's hot tier")
    else:
        lines.append(f"ledger database {done.source} is the stream's hot tier, since record {done.record_id}")
    return lines
