"""``offloader truncate STREAM --before LEDGER:ENTRY``: moves a stream's start position.

Gives up entries that aren't offloaded only with ``--force``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Annotated

import typer

from formats.entries import Position
from offloader.cli.options import (
    DryRun,
    Json,
    LedgerArguments,
    StreamOrTopic,
    TakeOver,
    option,
    partition_position_of,
)
from offloader.cli.output import bytes_text, counted, print_result
from offloader.cli.retention import opening_lists
from offloader.errors import InvalidCall, NotFound, OffloaderError, StoreUnavailable
from offloader.ledgers.base import LedgerSource
from offloader.manifest.leases import user_at_host
from offloader.manifest.log import ManifestLog
from offloader.owner_client import OwnerUnreachable, ask_owner
from offloader.read.reader import load_stream
from offloader.retention.broker import ListedOf
from offloader.retention.scope import find_scope
from offloader.retention.truncate import Truncation, truncate_stream, truncate_topic
from offloader.runtime.clock import SystemClock
from offloader.settings import Settings
from offloader.store.base import ObjectStore

Force = Annotated[
    bool,
    typer.Option(
        "--force",
        help="Also give up entries that aren't offloaded yet, a gap is recorded; and ledgers that a broker still lists "
        "and reads from here.",
    ),
]


def run(
    stream: StreamOrTopic,
    before: Annotated[
        list[str],
        option(
            "--before",
            "The first position that stays; of a partitioned topic one for each partition, by its number.",
            metavar="[PARTITION=]LEDGER:ENTRY",
        ),
    ],
    given: LedgerArguments,
    force: Force = False,
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
    settings, opened = given.prepared(stream, read_only=dry_run)
    hint = "PARTITION=LEDGER:ENTRY"
    wanted = [partition_position_of(text, option="--before", hint=hint) for text in before]
    with ExitStack() as stack:
        database = stack.enter_context(closing(given.open_ledgers())) if given.ledgers else None

        def source_of(name: str) -> LedgerSource | None:
            return None if database is None else database.view_stream(name, may_delete=not dry_run)

        after_s = settings.offload.takeover_after_seconds
        if force and not (take_over or dry_run):
            _ask_owners(opened, stream, wanted, settings)
        names = [stream if number is None else f"{stream}-partition-{number}" for number, _ in wanted]
        listed = {} if force else _first_listed(stack.enter_context(opening_lists(settings.pulsar, source_of)), names)
        done: Iterable[Truncation]
        if len(wanted) == 1 and wanted[0][0] is None:
            log = ManifestLog(opened, stream, clock=SystemClock(), settings=settings.manifest)
            done = [
                truncate_stream(
                    *(log, wanted[0][1]),
                    clock=SystemClock(),
                    source=source_of(stream),
                    force=force,
                    take_over=take_over,
                    takeover_after_s=after_s,
                    dry_run=dry_run,
                    method=settings.offload.method,
                    listed=listed.get(stream),
                )
            ]
        else:
            heads = _heads(opened, stream, wanted)
            done = truncate_topic(
                *(opened, stream, heads),
                clock=SystemClock(),
                by=user_at_host(),
                source_of=source_of,
                force=force,
                take_over=take_over,
                takeover_after_s=after_s,
                dry_run=dry_run,
                listed=listed,
            ).values()
        for each in done:
            print_result(_facts(each, dry_run=dry_run), _lines(each, dry_run=dry_run), as_json=json)


def _first_listed(listed_of: ListedOf, streams: Sequence[str]) -> Mapping[str, int]:
    """The first ledger that brokers with the plugin list of each stream; a stream without such a broker isn't in it.

    Raises:
        StoreUnavailable: it isn't known.
    """
    found = {}
    for stream in streams:
        try:
            answer = listed_of(stream)
        except OffloaderError as error:
            raise StoreUnavailable(
                f"stream {stream}: it isn't known which ledgers its broker lists: {error.message}",
                hint="nothing was changed; try again, or --force, which doesn't ask: consumers that come to a ledger "
                "that is gone stand still there",
            ) from error
        if answer is not None and not answer.stored:
            raise StoreUnavailable(f"stream {stream}: its broker lists no ledger", hint="--force doesn't ask")
        if answer is not None:
            found[stream] = answer.stored[0][0]
    return found


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
    place = find_scope(store, topic)
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


def _lines(done: Truncation, *, dry_run: bool) -> Iterator[str]:
    if not done.moves and not done.hot_ledgers:
        yield f"{done.stream} begins at {done.head} already: nothing to do"
        return
    verb = "would begin" if dry_run else "begins"
    yield (
        f"{done.stream} {verb} at {done.head}; before it: {counted(done.segments, 'segment')}, "
        f"{done.entries:,} entries, {bytes_text(done.object_bytes)} in the store, which the next cleanup retires"
    )
    for gap in done.gaps:
        yield f"given up, never offloaded: {gap.first} up to {gap.last}"
    kept = dict(done.hot_kept)
    gone = [ledger_id for ledger_id in done.hot_ledgers if ledger_id not in kept]
    if gone:
        yield f"hot ledgers {'that would go' if dry_run else 'deleted'}: {', '.join(map(str, gone))}"
    for ledger_id, error in kept.items():
        yield f"hot ledger {ledger_id} stays for now: {error}"
