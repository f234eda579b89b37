"""``offloader rollback plan|apply STREAM``: ledgers for a reader from before the streaming method.

Deletes only named ledgers, and reports only objects that it has verified in the store.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from typing import Annotated, Any

import typer

from offloader.cli.options import ConfigArguments, DryRun, Json, ShowProgress, Stream, TakeOver, option
from offloader.cli.output import Column, SegmentProgress, bytes_text, counted, json_line, print_rows
from offloader.cli.segments import STORED_COLUMNS, stored_rows, stored_totals, totals_text
from offloader.errors import InvalidCall, Unsupported
from offloader.read.reader import load_stream
from offloader.store.base import ObjectStore
from offloader.write.offloader import LedgerOffloader
from offloader.write.rollback import RewriteResult, StreamedLedger, streamed_ledgers

#: Ledgers named in an error.
NAMED_MAX = 10


_COLUMNS = [
    Column("ledger_id", "LEDGER", str, right=True),
    Column("segments", "SEGMENTS", right=True),
    Column("entries", "ENTRIES", right=True),
    Column("payload_bytes", "PAYLOAD", bytes_text, right=True),
    Column("becomes", "BECOMES"),
    Column("obstacle", "WHY"),
]


def plan(
    stream: Stream,
    given: ConfigArguments,
    _dry_run: Annotated[bool, typer.Option("--dry-run", hidden=True)] = False,
    _progress: Annotated[bool, typer.Option("--progress", hidden=True)] = False,
    json: Json = False,
) -> None:
    """List the ledgers that a V1 reader can't read.

    Such a reader is from before the streaming method and knows V1 objects only. Also listed: what would become of each
    ledger. Nothing is written.
    """
    _print_plan(given, stream, (), as_json=json)


def apply(
    stream: Stream,
    given: ConfigArguments,
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
) -> None:
    """Make a stream's ledgers readable for a V1 reader.

    Such a reader is from before the streaming method and knows V1 objects only. Writes each whole ledger as a V1 object
    and lets it take the place of its V2 segments, whose objects go after the grace period. Everything stays readable
    meanwhile. Interrupted, it goes on where it was when it is called again.
    """
    chosen = sorted(set(delete or []))
    if dry_run:
        _print_plan(given, stream, chosen, as_json=json)
        return
    if chosen and not yes:
        raise InvalidCall(
            f"deleting {_ledgers(chosen)} from {stream} loses what only the store has of them",
            hint="look at it with --dry-run, then say --yes",
        )
    settings = given.settings(stream)
    # Old readers don't support compression.
    settings = replace(settings, offload=replace(settings.offload, codec="none"))
    opened = given.open(settings, read_only=False)
    ledgers = streamed_ledgers(load_stream(opened, stream))
    with (
        closing(LedgerOffloader(opened, settings)) as offloader,
        SegmentProgress(sys.stderr, always=progress, what="ledgers") as shown,
    ):
        shown.expect(sum(1 for each in ledgers if not each.obstacle and each.ledger_id not in chosen))
        result = offloader.history.rollback(stream, delete=chosen, take_over=take_over, on_progress=shown.segment)
    _print_result(opened, stream, result, as_json=json)
    if result.errors:
        raise result.errors[0]
    if result.left:
        named = ", ".join(f"{each.ledger_id} ({each.obstacle})" for each in result.left[:NAMED_MAX])
        more = " ..." if len(result.left) > NAMED_MAX else ""
        raise Unsupported(
            f"an old reader still can't read {len(result.left)} of the ledgers of {stream}: {named}{more}",
            hint="close and offload what can be and call this again, or --delete LEDGER --yes what nobody needs",
        )


def _print_plan(given: ConfigArguments, stream: str, delete: Collection[int], *, as_json: bool) -> None:
    ledgers = streamed_ledgers(load_stream(given.open(), stream))
    rows = [{**asdict(each), "becomes": _fate(each, delete)} for each in ledgers]
    print_rows(rows, _COLUMNS, as_json=as_json, empty=f"an old reader can read all that is offloaded of {stream}")


def _fate(ledger: StreamedLedger, delete: Collection[int]) -> str:
    if ledger.ledger_id in delete:
        return "deleted"
    return "as it is" if ledger.obstacle else "V1"


def _print_result(store: ObjectStore, stream: str, result: RewriteResult, *, as_json: bool) -> None:
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


#: Action -> its function, in the order of the help.
ACTIONS: Mapping[str, Callable[..., Any]] = {"plan": plan, "apply": apply}
