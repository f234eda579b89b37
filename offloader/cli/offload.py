"""``offloader offload STREAM``: by hand, what an embedded ledger database holds and the store doesn't.

Owns what is said before, meanwhile and afterwards. Must never report an object that it hasn't looked at in the store.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Annotated, Any, TextIO
from uuid import UUID

import typer

from formats.entries import Position
from formats.segment import SegmentSummary
from offloader.cli.options import EndpointUrl, Json, Region, Store, open_chosen_store, position_of
from offloader.cli.output import Column, bytes_text, json_line, print_rows
from offloader.errors import InvalidCall
from offloader.ledgers.base import LedgerInfo
from offloader.ledgers.embedded import EmbeddedLedgers
from offloader.manifest.state import ManifestState
from offloader.read.reader import load_stream
from offloader.store.base import ObjectStore
from offloader.store.probe import require_conditional_puts
from offloader.write.backfill import BackfillPlan
from offloader.write.confirmation import confirm_stored
from offloader.write.history import HistoryResult
from offloader.write.ledger_method import LedgerMethodPlan
from offloader.write.offloader import LedgerOffloader
from offloader.write.split import HistoryBytes, position_leaving

__all__ = ["run"]

_COLUMNS = [
    Column("uuid", "SEGMENT"),
    Column("layout", "LAYOUT"),
    Column("first", "FIRST", right=True),
    Column("last", "LAST", right=True),
    Column("entries", "ENTRIES", right=True),
    Column("payload_bytes", "PAYLOAD", bytes_text, right=True),
    Column("object_bytes", "STORED", bytes_text, right=True),
]
_PLANNED = [
    Column("layout", "LAYOUT"),
    Column("first", "FIRST", right=True),
    Column("last", "LAST", right=True),
    Column("bytes", "ABOUT", bytes_text, right=True),
]

Ledgers = Annotated[
    str,
    typer.Option(
        "--ledgers",
        envvar="OFFLOADER_LEDGERS",
        metavar="URL",
        help="The ledger database: sqlite:///relative.db, sqlite:////absolute.db.",
        show_default=False,
    ),
]


def run(
    stream: Annotated[str, typer.Argument(help="The stream's name.", show_default=False)],
    ledgers: Ledgers = "",
    store: Store = "",
    endpoint_url: EndpointUrl = "",
    region: Region = "",
    until: Annotated[
        str, typer.Option("--until", metavar="LEDGER:ENTRY", help="Last entry.", show_default="the newest")
    ] = "",
    size_threshold: Annotated[
        int, typer.Option("--size-threshold", min=0, metavar="BYTES", help="Leave the newest BYTES bytes behind.")
    ] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be done.")] = False,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Take the stream from a writer that gives signs of life.")
    ] = False,
    progress: Annotated[
        bool, typer.Option("--progress", help="Report each segment on standard error, also without a terminal.")
    ] = False,
    json: Json = False,
) -> None:
    """Offload what a stream's ledgers hold and the store doesn't, and check in the store that it is there.

    By the stream's method: streaming (V2 segments of about the segment size, up to the newest entry) or ledger (an
    object pair for each closed ledger). Interrupted, it goes on where it was when it is called again.
    """
    if not ledgers:
        raise InvalidCall("no ledger database was named", hint="give --ledgers sqlite:///FILE or set OFFLOADER_LEDGERS")
    last = position_of(until, option="--until") if until else None
    opened = open_chosen_store(store, endpoint_url, region, read_only=dry_run)
    with closing(EmbeddedLedgers(ledgers, create=False)) as database:
        # A view: who appends to the stream isn't disturbed.
        source = database.view_stream(stream)
        infos = source.ledgers()
        state = load_stream(opened, stream, may_be_absent=True)
        if state.method == "none":
            raise InvalidCall(f"stream {stream} isn't offloaded: its method is none", hint="set another method first")
        if size_threshold and state.method == "streaming":
            leaving = position_leaving(infos, size_threshold)
            last = min(last or leaving, leaving) if leaving is not None else Position(0, -1)
        offloader = LedgerOffloader(opened)
        with closing(offloader):
            if dry_run:
                planned = offloader.history.preview(state, infos, last=last, threshold_bytes=size_threshold)
                _print_planned(planned, infos, stream, as_json=json)
                return
            require_conditional_puts(opened)
            told = _Progress(sys.stderr if progress or sys.stderr.isatty() else None)
            common: dict[str, Any] = {
                "last": last,
                "take_over": take_over,
                "acknowledges": False,
                "on_plan": told.plan,
                "on_progress": told.segment,
            }
            if state.method == "ledger":
                result = offloader.history.ledgers(source, stream, threshold_bytes=size_threshold, **common)
            else:
                result = offloader.history.backfill(source, stream, **common)
    _print_result(opened, stream, state, result, as_json=json)
    if result.errors:
        raise result.errors[0]


class _Progress:
    """One line for each segment; to nobody without a stream."""

    def __init__(self, out: TextIO | None) -> None:
        self._out = out
        self._of = ""
        self._segments = 0
        self._payload_bytes = 0

    def plan(self, plan: BackfillPlan | LedgerMethodPlan) -> None:
        if isinstance(plan, BackfillPlan):
            self._of = f"about {plan.segments}"
        else:
            self._of = str(len(plan.segments))

    def segment(self, summary: SegmentSummary) -> None:
        self._segments += 1
        self._payload_bytes += summary.payload_bytes
        if self._out is not None:
            done = f"{self._segments} of {self._of} segments, {bytes_text(self._payload_bytes)}"
            self._out.write(f"{done}: {summary.begin}..{summary.end}\n")
            self._out.flush()


def _print_planned(planned: Sequence[Any], ledgers: Sequence[LedgerInfo], stream: str, *, as_json: bool) -> None:
    sizes = HistoryBytes(ledgers)
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
    store: ObjectStore, stream: str, before: ManifestState, result: HistoryResult, *, as_json: bool
) -> None:
    rows = [_verified(store, stream, uuid, summary) for uuid, summary in result.offloaded]
    rows.sort(key=lambda row: row["first"])
    totals = {
        "segments": len(rows),
        "objects": 2 * len(rows),
        "entries": sum(row["entries"] for row in rows),
        "payload_bytes": sum(row["payload_bytes"] for row in rows),
        "object_bytes": sum(row["object_bytes"] for row in rows),
    }
    if as_json:
        whole = {"stream": stream, "dry_run": False, "method": before.method, "offloaded": rows, **totals}
        print(json_line({**whole, "committed": result.committed, "trimmed": [each.begin for each in result.trimmed]}))
        return
    for each in result.trimmed:
        print(f"ledger {each.begin.ledger_id} left the hot tier meanwhile")
    if not rows:
        if not result.errors:
            print(f"nothing to offload of {stream}: committed is {result.committed or 'nothing'}")
        return
    print_rows(rows, _COLUMNS)
    print(
        f"{totals['entries']:,} entries, {bytes_text(totals['payload_bytes'])}, in {totals['objects']} objects, each "
        f"checked in {store.url}; committed is {result.committed or 'nothing'}"
    )


def _verified(store: ObjectStore, stream: str, uuid: UUID, summary: SegmentSummary) -> Mapping[str, Any]:
    data, index = confirm_stored(store, stream, uuid, summary)
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
