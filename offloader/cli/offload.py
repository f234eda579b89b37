"""``offloader offload STREAM``: offloads the rest of an embedded ledger database on request.

Reports only objects that it has verified in the store.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from typing import Annotated, Any

from formats.entries import Position
from offloader.cli.options import (
    DryRun,
    Json,
    LedgerArguments,
    ShowProgress,
    Stream,
    TakeOver,
    amount,
    option,
    position_of,
)
from offloader.cli.output import ENDS, Column, SegmentProgress, bytes_text, json_line, print_rows
from offloader.cli.segments import STORED_COLUMNS, stored_rows, stored_totals, totals_text
from offloader.errors import BucketMissing, NotFound
from offloader.ledgers.base import LedgerInfo
from offloader.manifest.state import ManifestState
from offloader.owner_client import OwnerUnreachable, ask_owner
from offloader.read.reader import load_stream
from offloader.settings import Settings
from offloader.store.base import ObjectStore
from offloader.write.backfill import BackfillPlan, HistoryResult
from offloader.write.backfill_service import LedgerMethodPlan
from offloader.write.hot_tier import LedgerSizeEstimator, position_leaving
from offloader.write.offloader import LedgerOffloader, manual_method, offload_manually

_PLANNED = [Column("layout", "LAYOUT"), *ENDS, Column("bytes", "ABOUT", bytes_text, right=True)]


def run(
    stream: Stream,
    given: LedgerArguments,
    until: Annotated[str, option("--until", "Last entry.", metavar="LEDGER:ENTRY", shown="the newest")] = "",
    size_threshold: Annotated[
        int, amount("--size-threshold", "Leave so much of the newest behind.", "bytes", whole=True, shown=True)
    ] = 0,
    dry_run: DryRun = False,
    take_over: TakeOver = False,
    progress: ShowProgress = False,
    json: Json = False,
) -> None:
    """Offload what a stream's ledgers hold and the store doesn't, and check in the store that it is there.

    Where a process offloads the stream that can be asked (`offloader serve` with HTTP), that one is: it closes and
    completes its current segment. Else from the ledger database, by the stream's method: streaming (V2 segments of
    about the segment size, up to the newest entry; one that a writer left unfinished is completed) or ledger (an object
    pair for each closed ledger). A settings file says the method, else the manifest does. Interrupted, it goes on where
    it was when it is called again.
    """
    last = position_of(until, option="--until") if until else None
    file = given.file() if given.config else None
    settings = Settings() if file is None else file.settings_of(stream)
    opened = _opened(given, settings, stream, read_only=dry_run)
    state = load_stream(opened, stream, may_be_absent=True)
    if state.owner.url and not (dry_run or take_over or size_threshold):
        asked = _asked_owner(opened, state, last, settings, must=not given.ledgers)
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


def _opened(given: LedgerArguments, settings: Settings, stream: str, *, read_only: bool) -> ObjectStore:
    """The store; creates a local directory only for an existing stream."""
    try:
        return given.open(settings, read_only=read_only)
    except BucketMissing:
        with closing(given.open_ledgers()) as database:
            database.view_stream(stream)
        return given.open(settings, read_only=read_only, create=True)


def _asked_owner(
    store: ObjectStore, before: ManifestState, last: Position | None, settings: Settings, *, must: bool
) -> HistoryResult | None:
    """The owner's result; ``None``: it ended, or doesn't offload the stream any more.

    Args:
        must: only the owner can do it.
    """
    try:
        after = ask_owner(store, before, last, settings)
    except (OwnerUnreachable, NotFound):
        if must:
            raise
        return None
    old = {record.uuid for record in before.offloaded(before.committed_end(), None)}
    records = after.offloaded(before.committed_end(), None)
    found = [(each.uuid, each.summary) for each in records if each.uuid not in old and each.summary is not None]
    return HistoryResult(offloaded=found, committed=after.committed_end())


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
    totals = stored_totals(rows)
    if as_json:
        whole = {"stream": stream, "dry_run": False, "method": method, "offloaded": rows, **totals}
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
