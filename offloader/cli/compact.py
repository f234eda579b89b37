"""``offloader stream compact``: merge a stream's small neighbouring segments into larger ones.

Reports only objects that are verified in the store.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Literal

import typer

from offloader.cli.errors import run_on_each
from offloader.cli.offload import STORED_COLUMNS, stored_rows, stored_totals, totals_text
from offloader.cli.options import DryRun, Json, ShowProgress, StoreArguments, StreamOrTopic, amount, option
from offloader.cli.output import ENDS, Column, SegmentProgress, bytes_text, counted, json_line, print_rows
from offloader.errors import OffloaderError, UnsupportedError
from offloader.manifest.state import SegmentRecord
from offloader.read.reader import existing_streams, load_stream
from offloader.settings import OffloadSettings, Size
from offloader.store.base import ObjectStore
from offloader.write.compact import CompactionPlan, CompactionResult, plan_compaction
from offloader.write.offloader import LedgerOffloader

#: Segments named in an error.
NAMED_MAX = 10
_MIB = 1024 * 1024

_PLANNED = [
    *ENDS,
    Column("segments", "SEGMENTS", right=True),
    Column("entries", "ENTRIES", right=True),
    Column("payload_bytes", "PAYLOAD", bytes_text, right=True, less=1),
    Column("object_bytes", "STORED NOW", bytes_text, right=True, less=2),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentArguments:
    """Options for written segments; they override the settings file."""

    segment_size: Annotated[
        int | None,
        amount(
            "--segment-size",
            "Largest size of a merged segment.",
            "bytes",
            whole=True,
            low=1049,
            high=5 * 1024 * 1024 * _MIB,
            shown="segment_size_max of the settings",
        ),
    ] = None
    codec: Annotated[
        Literal["none", "zstd"] | None,
        option("--codec", "Compression of the written blocks.", shown="codec of the settings"),
    ] = None
    block_size: Annotated[
        int | None,
        amount(
            "--block-size",
            "Target size of the written blocks.",
            "bytes",
            whole=True,
            low=256,
            high=2**30,
            shown="block_size of the settings",
        ),
    ] = None

    def over(self, settings: OffloadSettings) -> OffloadSettings:
        """``settings`` with the options that were given."""
        if self.segment_size is not None:
            settings = replace(settings, segment_size_max=Size(self.segment_size))
        if self.codec is not None:
            settings = replace(settings, codec=self.codec)
        if self.block_size is not None:
            settings = replace(settings, block_size=Size(self.block_size))
        return settings


def run(
    stream: StreamOrTopic,
    given: StoreArguments,
    written: SegmentArguments,
    recode: Annotated[
        bool,
        typer.Option("--recode", help="Also rewrite segments with another compression than the codec's."),
    ] = False,
    dry_run: DryRun = False,
    beside_owner: Annotated[
        bool, typer.Option("--beside-owner", help="Compact even if the stream's owner is active.")
    ] = False,
    progress: ShowProgress = False,
    json: Json = False,
) -> int:
    """Merge a stream's small neighbouring segments into segments of the configured size.

    The command reads entries from the store only. It uploads the new objects, reads them back and compares them with
    the old ones. Then one manifest record replaces the old segments, and cleanup deletes their objects after the grace
    period. The stream's owner keeps working; while it is active, the command needs --beside-owner. If interrupted,
    repeat the command. Segments of another layout, with gaps or of truncated ledgers are not merged. Adopted segments
    that could otherwise be merged are listed, with exit code 2. The partitions of a topic are compacted one after the
    other.

    Examples:
        offloader stream compact orders --dry-run
        offloader stream compact orders --beside-owner
    """
    stored = given.open()
    named = existing_streams(stored, stream)  # before the store is probed with a write
    if dry_run:
        planned = partial(_print_plan, store=stored, given=given, written=written, recode=recode, json=json)
        return run_on_each(named.streams, planned, as_json=json)
    opened = given.open(read_only=False)
    one = partial(_compact, store=opened, given=given, written=written, recode=recode, json=json)
    return run_on_each(named.streams, partial(one, beside_owner=beside_owner, progress=progress), as_json=json)


def _print_plan(
    stream: str, *, store: ObjectStore, given: StoreArguments, written: SegmentArguments, recode: bool, json: bool
) -> None:
    settings = written.over(given.settings(stream).offload)
    plan = plan_compaction(load_stream(store, stream), settings, recode=recode)
    rows = [
        {
            "first": each.begin,
            "last": each.end,
            "segments": len(each.old),
            "entries": each.entries,
            "payload_bytes": each.payload_bytes,
            "object_bytes": each.object_bytes,
        }
        for each in plan.merges
    ]
    if json:
        print(json_line({"stream": stream, "dry_run": True, "merges": rows, "adopted": _names(plan.adopted)}))
        return
    print_rows(rows, _PLANNED, empty=f"nothing to merge in {stream}")
    if rows:
        old = counted(sum(len(each.old) for each in plan.merges), "segment", "segments")
        print(f"{stream}: {old} would become {len(rows)}")
    _require_ours(stream, plan.adopted)


def _compact(
    stream: str,
    *,
    store: ObjectStore,
    given: StoreArguments,
    written: SegmentArguments,
    recode: bool,
    beside_owner: bool,
    progress: bool,
    json: bool,
) -> None:
    settings = given.settings(stream)
    settings = replace(settings, offload=written.over(settings.offload))
    with (
        closing(LedgerOffloader(store, settings)) as offloader,
        SegmentProgress(sys.stderr, always=progress) as shown,
    ):

        def expect(plan: CompactionPlan) -> None:
            shown.expect(len(plan.merges))

        result = offloader.history.compact(
            stream,
            recode=recode,
            beside_owner=beside_owner,
            read=settings.read,
            on_plan=expect,
            on_progress=shown.segment,
        )
    _print_result(store, stream, result, as_json=json)
    if result.errors:
        raise result.errors[0]
    _require_ours(stream, result.adopted)


def _print_result(store: ObjectStore, stream: str, result: CompactionResult, *, as_json: bool) -> None:
    rows = stored_rows(store, stream, result.merged)
    totals = stored_totals(rows)
    if as_json:
        facts = {
            "stream": stream,
            "dry_run": False,
            "merged": rows,
            **totals,
            "replaced": result.replaced,
            "replaced_bytes": result.replaced_bytes,
            "adopted": _names(result.adopted),
        }
        print(json_line(facts))
        return
    if not rows:
        if not result.errors:
            print(f"nothing to merge in {stream}")
        return
    print_rows(rows, STORED_COLUMNS)
    waiting = counted(result.replaced, "segment awaits", "segments await")
    print(
        f"{totals_text(totals, store)}; {waiting} deletion after the grace period ({bytes_text(result.replaced_bytes)})"
    )


def _names(adopted: Sequence[SegmentRecord]) -> list[str]:
    return [str(each.uuid) for each in adopted]


def _require_ours(stream: str, adopted: Sequence[SegmentRecord]) -> None:
    error = adopted_error(stream, adopted)
    if error is not None:
        raise error


def adopted_error(stream: str, adopted: Sequence[SegmentRecord]) -> OffloaderError | None:
    """The error that names adopted segments which would have been merged; ``None``: there are none."""
    if not adopted:
        return None
    names = _names(adopted)
    more = " ..." if len(names) > NAMED_MAX else ""
    return UnsupportedError(
        f"stream {stream}: {counted(len(names), 'small segment is', 'small segments are')} adopted and can't be "
        f"merged: {', '.join(names[:NAMED_MAX])}{more}",
        hint="another program owns their objects; no action is needed for the other segments",
    )
