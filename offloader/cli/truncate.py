"""``offloader truncate STREAM --before LEDGER:ENTRY``: moves a stream's start position.

Gives up entries that aren't offloaded only with ``--force``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Annotated

import typer

from formats.entries import Position
from offloader.cli.options import DryRun, Json, LedgerArguments, StreamOrTopic, TakeOver, position_of
from offloader.cli.output import bytes_text, counted, json_line
from offloader.errors import InvalidCall, NotFound, StoreUnavailable
from offloader.ledgers.base import LedgerSource
from offloader.manifest.leases import user_at_host
from offloader.manifest.log import ManifestLog
from offloader.owner_client import OwnerUnreachable, ask_owner
from offloader.read.reader import load_stream
from offloader.retention.scope import find_place
from offloader.retention.truncate import Truncation, truncate_stream, truncate_topic
from offloader.runtime.clock import SystemClock
from offloader.settings import Settings
from offloader.store.base import ObjectStore

__all__ = ["run"]


def run(
    stream: StreamOrTopic,
    before: Annotated[
        list[str],
        typer.Option(
            "--before",
            metavar="[PARTITION=]LEDGER:ENTRY",
            help="The first position that stays; of a partitioned topic one for each partition, by its number.",
            show_default=False,
        ),
    ],
    given: LedgerArguments,
    force: Annotated[
        bool, typer.Option("--force", help="Also give up entries that aren't offloaded yet; a gap is recorded.")
    ] = False,
    dry_run: DryRun = False,
    take_over: TakeOver = False,
    json: Json = False,
) -> None:
    """Let a stream begin later: what comes before a position isn't readable any more.

    The new head and the ledgers that are gone are one record of the manifest. Hot ledgers before it are deleted if
    --ledgers names them. Segments before it are deleted by `offloader cleanup run`, after its grace period; until then
    `offloader cleanup undo` takes it back. Nothing moves the head past what is offloaded, except --force: a process
    that offloads the stream and can be reached is asked first to complete what comes before the position.
    """
    settings = given.settings(stream)
    opened = given.open(settings, read_only=dry_run)
    wanted = [_wanted(text) for text in before]
    with ExitStack() as stack:
        database = stack.enter_context(closing(given.open_ledgers())) if given.ledgers else None

        def source_of(name: str) -> LedgerSource | None:
            return None if database is None else database.view_stream(name, may_delete=not dry_run)

        after_s = settings.offload.takeover_after_seconds
        if force and not (take_over or dry_run):
            _ask_owners(opened, stream, wanted, settings)
        if len(wanted) == 1 and wanted[0][0] is None:
            log = ManifestLog(opened, stream, clock=SystemClock(), settings=settings.manifest)
            done = truncate_stream(
                *(log, wanted[0][1]),
                clock=SystemClock(),
                source=source_of(stream),
                force=force,
                take_over=take_over,
                takeover_after_s=after_s,
                dry_run=dry_run,
                method=settings.offload.method,
            )
            _print([done], dry_run=dry_run, as_json=json)
            return
        heads = _heads(opened, stream, wanted)
        changed = truncate_topic(
            *(opened, stream, heads),
            clock=SystemClock(),
            by=user_at_host(),
            source_of=source_of,
            force=force,
            take_over=take_over,
            takeover_after_s=after_s,
            dry_run=dry_run,
        )
        _print(changed.values(), dry_run=dry_run, as_json=json)


def _wanted(text: str) -> tuple[int | None, Position]:
    """The partition's number, if any, and a position."""
    number, separator, rest = text.rpartition("=")
    if separator and not number.isdecimal():
        raise InvalidCall(f"--before {text}: {number!r} is no partition's number", hint="PARTITION=LEDGER:ENTRY")
    return int(number) if separator else None, position_of(rest, option="--before")


def _ask_owners(
    store: ObjectStore, stream: str, wanted: Sequence[tuple[int | None, Position]], settings: Settings
) -> None:
    """Has the owner, if its address is known and reachable, complete the entries before the start position: they then
    needn't be given up, nor the stream taken over.

    Raises:
        StoreUnavailable: not in time; the owner continues.
        InvalidCall: the owner is done, and entries before the start position still aren't offloaded.
        OffloaderError: the owner's error, or as ``ask_owner``.
    """
    for number, head in wanted:
        name = stream if number is None else f"{stream}-partition-{number}"
        state = load_stream(store, name, may_be_absent=True)
        end = state.committed_end()
        if not state.owner.url or state.method == "none" or (end is not None and head <= end):
            continue
        until = head.previous() if head.entry_id else None
        try:
            end = ask_owner(store, state, until, settings).committed_end()
        except (OwnerUnreachable, NotFound):
            continue  # it ended, or offloads another stream by now
        except StoreUnavailable as error:
            raise StoreUnavailable(
                error.message, hint="try again when it is done, or give up what isn't offloaded with --take-over"
            ) from error
        if until is not None and (end is None or end < until):
            raise InvalidCall(
                f"{state.owner.url} completed stream {name} up to {end or 'nothing'}, not up to {until}",
                hint="nothing was given up; --take-over asks nobody",
            )


def _heads(store: ObjectStore, topic: str, wanted: Sequence[tuple[int | None, Position]]) -> Mapping[str, Position]:
    place = find_place(store, topic)
    known = [each.stream for each in place.partitions.values()] if place.is_topic else []
    heads = {f"{topic}-partition-{number}": head for number, head in wanted if number is not None}
    unknown = [stream for stream in heads if stream not in known]
    if len(heads) < len(wanted) or unknown:
        raise InvalidCall(
            f"{unknown[0]} isn't in {store.url}" if unknown else "several positions are for several partitions",
            hint="give PARTITION=LEDGER:ENTRY once for each partition"
            + (f"; partitions of {topic}: {len(known)}" if known else f"; {topic} has no partitions here"),
        )
    return heads


def _print(done: Iterable[Truncation], *, dry_run: bool, as_json: bool) -> None:
    for each in done:
        if as_json:
            print(json_line(_facts(each, dry_run=dry_run)))
        else:
            _print_words(each, dry_run=dry_run)


def _facts(done: Truncation, *, dry_run: bool) -> Mapping[str, object]:
    return {
        "stream": done.stream,
        "dry_run": dry_run,
        "head": done.head,
        "head_before": done.head_before,
        "record": done.record_id,
        "ledgers": done.ledgers,
        "hot_ledgers": done.hot_ledgers,
        "hot_kept": [{"ledger_id": ledger_id, "reason": str(error)} for ledger_id, error in done.hot_kept],
        "segments": done.segments,
        "entries": done.entries,
        "object_bytes": done.object_bytes,
        "gaps": [{"first": gap.first, "last": gap.last} for gap in done.gaps],
        "failed": done.failed,
    }


def _print_words(done: Truncation, *, dry_run: bool) -> None:
    if not done.moves and not done.hot_ledgers:
        print(f"{done.stream} begins at {done.head} already: nothing to do")
        return
    verb = "would begin" if dry_run else "begins"
    print(
        f"{done.stream} {verb} at {done.head}; before it: {counted(done.segments, 'segment')}, "
        f"{done.entries:,} entries, {bytes_text(done.object_bytes)} in the store, which the next cleanup retires"
    )
    for gap in done.gaps:
        print(f"given up, never offloaded: {gap.first} up to {gap.last}")
    kept = dict(done.hot_kept)
    gone = [ledger_id for ledger_id in done.hot_ledgers if ledger_id not in kept]
    if gone:
        print(f"hot ledgers {'that would go' if dry_run else 'deleted'}: {', '.join(map(str, gone))}")
    for ledger_id, error in kept.items():
        print(f"hot ledger {ledger_id} stays for now: {error}")
