"""``offloader rollback``: make ledgers readable for V1-only readers or for Pulsar's own offloader.

The commands report only objects that are verified in the store.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from formats.errors import FormatError
from formats.metadata.messages import PulsarLedger
from formats.pulsar.ledger_record import decode_ledger_record
from offloader.cli.errors import run_on_each
from offloader.cli.offload import STORED_COLUMNS, stored_rows, stored_totals, totals_text
from offloader.cli.options import (
    DryRun,
    Json,
    ShowProgress,
    StoreArguments,
    StreamOrTopic,
    TakeOver,
    number_of,
    open_chosen_store,
    option,
)
from offloader.cli.output import (
    Column,
    SegmentProgress,
    bytes_text,
    counted,
    json_line,
    print_rows,
)
from offloader.errors import BucketMissing, InvalidCall, NotFound, Unsupported
from offloader.manifest.names import NamedStreams, named_streams
from offloader.read.reader import existing_streams, load_stream
from offloader.store.base import ObjectStore
from offloader.write.offloader import LedgerOffloader
from offloader.write.rollback import (
    ExportedLedger,
    LedgerExport,
    RewriteResult,
    StreamedLedger,
    error_of,
    recorded_ledgers,
    streamed_ledgers,
)

#: Ledgers named in an error.
NAMED_MAX = 10


_ROLLBACK_COLUMNS = [
    Column("ledger_id", "LEDGER", str, right=True),
    Column("segments", "SEGMENTS", right=True),
    Column("entries", "ENTRIES", right=True),
    Column("payload_bytes", "PAYLOAD", bytes_text, right=True, less=1),
    Column("becomes", "BECOMES"),
    Column("obstacle", "WHY", wraps=True),
]


def plan_rollback(
    stream: StreamOrTopic,
    given: StoreArguments,
    _dry_run: Annotated[bool, typer.Option("--dry-run", hidden=True)] = False,
    _progress: Annotated[bool, typer.Option("--progress", hidden=True)] = False,
    json: Json = False,
) -> int:
    """List the ledgers that a V1 reader can't read, with the planned result for each.

    A V1 reader predates the streaming method and supports V1 objects only. Writes nothing.
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
            "Delete this ledger from the stream instead of rewriting it; needs --yes. May be repeated.",
            metavar="LEDGER",
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Confirm the deletion of the ledgers of --delete.")] = False,
    dry_run: DryRun = False,
    take_over: TakeOver = False,
    progress: ShowProgress = False,
    json: Json = False,
) -> int:
    """Rewrite a stream's ledgers for V1 readers.

    A V1 reader predates the streaming method and supports V1 objects only. The command writes each whole ledger as a V1
    object, which replaces the V2 segments; cleanup deletes their objects after the grace period. The stream remains
    readable meanwhile. If interrupted, repeat the command: it resumes where it stopped. The partitions of a topic are
    rewritten one after the other; --delete needs one partition.
    """
    chosen = sorted(set(delete or []))
    stored = given.open()
    named = existing_streams(stored, stream)  # before the store is probed with a write
    if chosen:
        named.require_one("a ledger belongs to one stream")
    if dry_run:
        return _print_rollback_plans(stored, named, chosen, as_json=json)
    if chosen and not yes:
        raise InvalidCall(
            f"deleting {_ledgers(chosen)} from {stream} loses entries that only the store has",
            hint="check the plan with --dry-run, then repeat with --yes",
        )
    one = partial(_apply_rollback, given=given, delete=chosen, take_over=take_over, progress=progress, json=json)
    return run_on_each(named.streams, one, as_json=json)


def _apply_rollback(
    stream: str, *, given: StoreArguments, delete: Sequence[int], take_over: bool, progress: bool, json: bool
) -> None:
    settings = given.settings(stream)
    # V1 readers don't support compression.
    settings = replace(settings, offload=replace(settings.offload, codec="none"))
    opened = given.open(read_only=False)
    ledgers = streamed_ledgers(load_stream(opened, stream))
    with (
        closing(LedgerOffloader(opened, settings)) as offloader,
        SegmentProgress(sys.stderr, always=progress, what="ledgers") as shown,
    ):
        shown.expect(sum(1 for each in ledgers if not each.obstacle and each.ledger_id not in delete))
        result = offloader.history.rollback(
            stream, delete=delete, take_over=take_over, read=settings.read, on_progress=shown.segment
        )
    _print_rollback(opened, stream, result, as_json=json)
    if result.errors:
        raise result.errors[0]
    if result.left:
        named = ", ".join(f"{each.ledger_id} ({each.obstacle})" for each in result.left[:NAMED_MAX])
        more = " ..." if len(result.left) > NAMED_MAX else ""
        raise Unsupported(
            f"a V1 reader still can't read {len(result.left)} of the ledgers of {stream}: {named}{more}",
            hint="close and offload these ledgers and repeat, or delete them with --delete LEDGER --yes",
        )


def _print_rollback_plans(store: ObjectStore, named: NamedStreams, delete: Collection[int], *, as_json: bool) -> int:
    def show(stream: str) -> None:
        ledgers = streamed_ledgers(load_stream(store, stream))
        of, columns = _of_partition(named, stream)
        rows = [{**of, **asdict(each), "becomes": _fate(each, delete)} for each in ledgers]
        print_rows(
            *(rows, [*columns, *_ROLLBACK_COLUMNS]),
            as_json=as_json,
            empty=f"a V1 reader can read all offloaded ledgers of {stream}",
        )

    return run_on_each(named.streams, show, as_json=as_json)


def _of_partition(named: NamedStreams, stream: str) -> tuple[Mapping[str, str], Sequence[Column]]:
    """The stream as a value for each row and as a column; empty unless the topic has partitions."""
    return ({"stream": stream}, [Column("stream", "STREAM")]) if named.partitions else ({}, [])


def _fate(ledger: StreamedLedger, delete: Collection[int]) -> str:
    return "deleted" if ledger.ledger_id in delete else "as it is" if ledger.obstacle else "V1"


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
            print(f"nothing to rewrite: a V1 reader can read all offloaded ledgers of {stream}")
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
    Column("payload_bytes", "PAYLOAD", bytes_text, right=True, less=1),
    Column("state", "STATE"),
    Column("data", "OBJECT", less=2),
    Column("why", "WHY", wraps=True),
]


def export_rollback(
    stream: StreamOrTopic,
    given: StoreArguments,
    to: Annotated[str, option("--dest", "Bucket of the broker's own offloader.", metavar="URL")],
    broker_record: Annotated[
        list[str],
        option(
            "--broker-record",
            "File with the broker's metadata record of the topic: the value of "
            "/managed-ledgers/TENANT/NAMESPACE/persistent/TOPIC. For a partitioned topic "
            "once for each partition, by its number.",
            metavar="[PARTITION=]FILE",
        ),
    ],
    dry_run: DryRun = False,
    progress: ShowProgress = False,
    json: Json = False,
) -> int:
    """Write a stream's ledgers for a broker with Pulsar's own offloader.

    Use it when a broker that offloaded through the plugin returns to Pulsar's own offloader. Each ledger that is
    offloaded according to the broker's record becomes a V1 object with its index, under the record's uuid, at the root
    of the bucket. The objects include entries that only brokers read (markers, aborted messages). Each object is read
    back and compared; existing objects are kept. The stream isn't changed. If interrupted, repeat the command: it
    resumes where it stopped.
    """
    settings, opened = given.prepared(stream)
    named = named_streams(opened, stream)
    paths = _by_stream(named, broker_record)
    states = {each: load_stream(opened, each) for each in named.streams}
    open_target = partial(
        open_chosen_store,
        *(to, given.endpoint_url, given.region),
        settings=settings.store,
        limits=settings.limits,
    )
    with suppress(BucketMissing):
        open_target()  # the records are readable: only now create the target
    recorded = {each: recorded_ledgers(_broker_record(path)) for each, path in paths.items()}
    target = open_target(read_only=dry_run, create=not dry_run)

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
        print_rows(
            *(rows, [*columns, *_EXPORT_COLUMNS]),
            as_json=json,
            empty=f"the broker's record has no offloaded ledger: {paths[each]}",
        )
        error = error_of(done)
        if error is not None:
            raise error

    return run_on_each(named.streams, one, as_json=json)


def _by_stream(named: NamedStreams, given: Sequence[str]) -> Mapping[str, str]:
    """The record's file of each stream; raises ``InvalidCall`` unless there is exactly one for each."""
    hint = "give --broker-record PARTITION=FILE once for each partition"
    if not named.partitions:
        if len(given) > 1:
            raise InvalidCall(f"{named.name} is one stream and needs one record", hint="give --broker-record once")
        return {named.name: given[0]}
    found: dict[str, str] = {}
    for text in given:
        digits, separator, path = text.partition("=")
        number = number_of(digits)
        if not separator or number is None:
            named.require_one("a broker's record belongs to one: give --broker-record PARTITION=FILE")
        stream = None if number is None else named.partitions.get(number)
        if stream is None or stream in found:
            what = f"names partition {number} twice" if stream else f"partition {number} isn't in the store"
            raise InvalidCall(f"--broker-record {text}: {what}", hint=hint)
        found[stream] = path
    absent = [str(number) for number, stream in named.partitions.items() if stream not in found]
    if absent:
        raise InvalidCall(f"missing --broker-record for partition {', '.join(absent)} of {named.name}", hint=hint)
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
            f"--broker-record: {path} can't be read: {cause.strerror}", hint="save the value to this file first"
        ) from cause
    except FormatError as cause:
        raise InvalidCall(
            f"--broker-record: {path} isn't a broker's record of a topic: {cause}",
            hint="save the raw bytes of the value, neither text nor base64",
        ) from cause


def _export_state(done: ExportedLedger, *, dry_run: bool) -> str:
    if done.error is not None:
        return "left"
    return "there already" if not done.written else "to be written" if dry_run else "written"


#: Action -> its function, in the order of the help.
ACTIONS: Mapping[str, Callable[..., Any]] = {
    "plan": plan_rollback,
    "apply": apply_rollback,
    "export": export_rollback,
}
