"""``offloader rollback plan|apply STREAM``: ledgers for a reader from before the streaming method.

Deletes only named ledgers, and reports only objects that it has verified in the store.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Collection, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from typing import Annotated

import typer

from offloader.cli.options import ConfigArguments, DryRun, Json, ShowProgress, Stream, TakeOver
from offloader.cli.output import Column, SegmentProgress, bytes_text, json_line, print_rows
from offloader.cli.segments import STORED_COLUMNS, stored_rows, stored_totals, totals_text
from offloader.errors import InvalidCall, Unsupported
from offloader.read.reader import load_stream
from offloader.store.base import ObjectStore
from offloader.write.offloader import LedgerOffloader
from offloader.write.rollback import RewriteResult, StreamedLedger, streamed_ledgers

__all__ = ["Action", "run"]

#: Ledgers named in an error.
NAMED_MAX = 10


class Action(enum.StrEnum):
    """The verb's actions."""

    PLAN = "plan"
    APPLY = "apply"


_COLUMNS = [
    Column("ledger_id", "LEDGER", str, right=True),
    Column("segments", "SEGMENTS", right=True),
    Column("entries", "ENTRIES", right=True),
    Column("payload_bytes", "PAYLOAD", bytes_text, right=True),
    Column("becomes", "BECOMES"),
    Column("obstacle", "WHY"),
]


def run(
    action: Annotated[Action, typer.Argument(help="plan or apply.", show_default=False)],
    stream: Stream,
    given: ConfigArguments,
    delete: Annotated[
        list[int] | None,
        typer.Option(
            "--delete",
            metavar="LEDGER",
            help="apply: delete this ledger from the stream instead of rewriting it. May be repeated; needs --yes.",
            show_default=False,
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="apply: do delete what --delete names.")] = False,
    dry_run: DryRun = False,
    take_over: TakeOver = False,
    progress: ShowProgress = False,
    json: Json = False,
) -> None:
    """Make a stream's ledgers readable to a reader from before the streaming method, which knows V1 objects only.

    plan: list the ledgers that such a reader can't read, and what would become of them. apply: write each whole ledger
    as a V1 object and let it take the place of its V2 segments, whose objects go after the grace period. Everything
    stays readable meanwhile. Interrupted, it goes on where it was when it is called again.
    """
    chosen = sorted(set(delete or []))
    if action is Action.PLAN and (chosen or yes or take_over):
        raise InvalidCall("--delete, --yes and --take-over are for applying", hint="`offloader rollback apply STREAM`")
    if action is Action.PLAN or dry_run:
        state = load_stream(given.open(), stream)
        _print_plan(stream, streamed_ledgers(state), chosen, as_json=json)
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
    plan = streamed_ledgers(load_stream(opened, stream))
    with (
        closing(LedgerOffloader(opened, settings)) as offloader,
        SegmentProgress(sys.stderr, always=progress, what="ledgers") as shown,
    ):
        shown.expect(sum(1 for each in plan if not each.obstacle and each.ledger_id not in chosen))
        result = offloader.history.rollback(stream, delete=chosen, take_over=take_over, on_progress=shown.segment)
    _print_result(opened, stream, result, as_json=json)
    if result.errors:
        raise result.errors[0]
    if result.left:
        raise _left(stream, result.left)


def _print_plan(stream: str, ledgers: Sequence[StreamedLedger], delete: Collection[int], *, as_json: bool) -> None:
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
    gone = result.replaced + result.retired
    waiting = "1 segment awaits" if gone == 1 else f"{gone} segments await"
    print(f"{totals_text(totals, store)}; {waiting} deletion after the grace period")


def _ledgers(ids: Sequence[int]) -> str:
    shown = ", ".join(map(str, ids[:NAMED_MAX]))
    return f"{'ledger' if len(ids) == 1 else 'ledgers'} {shown}{' ...' if len(ids) > NAMED_MAX else ''}"


def _left(stream: str, left: Sequence[StreamedLedger]) -> Unsupported:
    named = ", ".join(f"{each.ledger_id} ({each.obstacle})" for each in left[:NAMED_MAX])
    more = " ..." if len(left) > NAMED_MAX else ""
    return Unsupported(
        f"an old reader still can't read {len(left)} of the ledgers of {stream}: {named}{more}",
        hint="close and offload what can be and call this again, or --delete LEDGER --yes what nobody needs",
    )
