"""``offloader group``: reader groups, and reading as a member of one."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from formats.entries import Entry, EntryBatch
from offloader.cli.ledgers import LedgerArguments, opening_sources
from offloader.cli.options import Apply, Json, StoreArguments, amount, argument, option
from offloader.cli.output import Column, json_line, print_each, print_result
from offloader.cli.reading import entry_facts, entry_line, watch_output
from offloader.errors import InvalidCallError
from offloader.follow import OwnersHotTiers
from offloader.groups.assignment import require_reader_name
from offloader.groups.group_reader import Checkpoint, GroupReader
from offloader.groups.group_service import GroupOutcome, group_facts, open_reader_groups
from offloader.groups.reader_groups import GroupConfig, RetentionType, absent_group
from offloader.manifest.names import stream_name
from offloader.retention.scope import find_scope
from offloader.runtime.clock import SystemClock

Group = Annotated[str, argument("The reader group's name.", metavar="GROUP")]
_Type = Annotated[
    RetentionType,
    typer.Option("--type", help="none: does not hold entries back; automatic: publishes each passed checkpoint."),
]


def list_groups(
    given: StoreArguments,
    group: Annotated[str, argument("Only this group.", metavar="GROUP", shown="all")] = "",
    json: Json = False,
) -> int:
    """List reader groups with their streams, readers, checkpoints and unpublished cuts.

    Examples:
        offloader group list
        offloader group list --json
    """
    groups = open_reader_groups(given.open())
    return print_each(
        [group] if group else groups.names(),
        lambda name: group_facts(groups.get(name)),
        lambda name, error: {"group": name, "error": str(error)},
        _GROUP_COLUMNS,
        is_named=bool(group),
        as_json=json,
        empty="no reader groups",
    )


def set_group(
    group: Group,
    stream: Annotated[
        list[str], option("--stream", "A stream of the group. May be repeated.", metavar="NAME", parser=stream_name)
    ],
    given: StoreArguments,
    retention: _Type = RetentionType.NONE,
    checkpoint_every: Annotated[
        float | None,
        amount("--checkpoint-every", "Interval of automatic checkpoints; 0: none.", "seconds", shown="30s"),
    ] = None,
    json: Json = False,
) -> None:
    """Create a reader group, or change its streams, type or checkpoint interval.

    A group of another type than none subscribes to each of its streams under the group's name.

    Examples:
        offloader group set billing --stream orders --type automatic
    """
    absent_group(group)  # checks the names before the store is probed with a write
    for each in stream:
        find_scope(given.open(), each)
    checkpoint_ms = None if checkpoint_every is None else round(checkpoint_every * 1000)
    outcome = open_reader_groups(given.open(read_only=False)).configure(group, stream, retention, checkpoint_ms)
    _print_group(
        outcome, json, f"{group} reads {', '.join(outcome.group.streams)}; retention {outcome.group.retention}"
    )


def join(
    group: Group,
    reader: Annotated[str, argument("This reader's name, unique in the group.", metavar="READER")],
    given: LedgerArguments,
    stream: Annotated[
        list[str] | None,
        option(
            "--stream",
            "Create the group with this stream if it doesn't exist. May be repeated.",
            metavar="NAME",
            parser=stream_name,
        ),
    ] = None,
    retention: _Type = RetentionType.NONE,
    limit: Annotated[int, typer.Option("--limit", min=0, help="Leave after this many entries; 0: never.")] = 0,
    raw: Annotated[bool, typer.Option("--raw", help="Write only the bytes of the payloads.")] = False,
    json: Json = False,
) -> None:
    """Join a reader group and print the entries of this reader's partitions until interrupted.

    A printed entry counts as consumed. An interrupted reader leaves the group, and the other readers continue where it
    stopped. A killed reader loses its partitions after 30 seconds; other readers repeat the entries since its last
    checkpoint. With --json, one object per entry: stream, position, publish_time, and payload (text) or payload_base64.

    Examples:
        offloader group join billing reader-1
        offloader group join billing reader-2 --stream orders --type automatic
    """
    if raw and json:
        raise InvalidCallError("--raw and --json exclude each other", hint="leave one of them out")
    absent_group(group)
    require_reader_name(reader)
    clock, stop = SystemClock(), threading.Event()
    with opening_sources(given.ledgers, may_be_absent=True) as ledgers_of:
        opened = given.open(read_only=False)
        owners = OwnersHotTiers(opened, ledgers_of, given.settings().access.owner_hosts, clock)
        groups = open_reader_groups(opened, source_of=owners, clock=clock)
        if stream:
            found = groups.create(group, GroupConfig(stream, retention)).group
            if set(found.streams) != set(stream):
                raise InvalidCallError(
                    f"reader group {group} exists and reads {', '.join(found.streams)}",
                    hint=f"leave out --stream, choose another name, or change the group: `offloader group set {group}`",
                )
        settings_of = given.settings_of()
        line_of = None if raw else _json_line if json else lambda _, each: entry_line(each)
        with _ending(stop):
            joined = groups.open(group).join(
                reader,
                settings_of=lambda stream: settings_of(stream).read,
                refreshed=lambda each: each.refresh(owners.of),
                stop=stop,
            )
            _print_entries(joined, limit, line_of)


@contextmanager
def _ending(stop: threading.Event) -> Iterator[None]:
    """Sets ``stop`` at SIGTERM, at Ctrl-C and when standard output's reader disconnects.

    So a signal never separates a printed entry from the note of its position. At the end Ctrl-C raises
    ``KeyboardInterrupt``, and a disconnected reader ``BrokenPipeError``. A second Ctrl-C interrupts immediately.
    """
    received = set[int]()

    def end(number: int, _: object) -> None:
        received.add(number)
        stop.set()
        signal.signal(number, before[signal.Signals(number)])

    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
    for each in before:
        signal.signal(each, end)
    watch_output(sys.stdout, stop)
    try:
        yield
        if signal.SIGINT in received:
            raise KeyboardInterrupt
        if stop.is_set() and not received:
            raise BrokenPipeError
    finally:
        stop.set()
        for each, handler in before.items():
            signal.signal(each, handler)


def _print_entries(reader: GroupReader, limit: int, line_of: Callable[[str, Entry], str] | None) -> None:
    """Prints entries; unprinted ones are returned to the group."""
    left, unread = limit or sys.maxsize, None
    try:
        for item in reader:
            if isinstance(item, Checkpoint):
                continue
            name, batch = item
            unread = batch.first
            taken = batch.slice(0, min(left, len(batch)))
            _write(name, taken, line_of)
            unread = None if len(taken) == len(batch) else taken.last.next()
            left -= len(taken)
            if left <= 0:
                return
    finally:
        reader.close(unread=unread)


def _write(name: str, batch: EntryBatch, line_of: Callable[[str, Entry], str] | None) -> None:
    if line_of is None:
        sys.stdout.buffer.write(b"".join([entry.payload for entry in batch.entries()]))
    else:
        sys.stdout.write("".join([line_of(name, entry) + "\n" for entry in batch.entries()]))
    sys.stdout.flush()


def _json_line(name: str, entry: Entry) -> str:
    return json_line({"stream": name, **entry_facts(entry)})


def start_checkpoint(
    group: Group,
    checkpoint: Annotated[str, argument("The checkpoint's name, unique in the group.")],
    given: StoreArguments,
    keep: Annotated[
        bool,
        typer.Option("--keep/--no-keep", help="Keep the checkpoint until it expires, so that it can be published."),
    ] = True,
    json: Json = False,
) -> None:
    """Start a checkpoint. It completes when every reader has passed it; see `group list`.

    Examples:
        offloader group checkpoint billing nightly
    """
    outcome = open_reader_groups(given.open(read_only=False)).initiate_checkpoint(group, checkpoint, keep=keep)
    _print_group(outcome, json, f"checkpoint {checkpoint} of {group} waits for {len(outcome.group.readers)} readers")


def publish_checkpoint(
    group: Group,
    checkpoint: Annotated[str, argument("A kept checkpoint that all readers have passed.")],
    given: StoreArguments,
    json: Json = False,
) -> None:
    """Publish a checkpoint of a manual group: retention may delete the entries before it.

    Examples:
        offloader group publish billing nightly
    """
    outcome = open_reader_groups(given.open(read_only=False)).update_truncation_checkpoint(group, checkpoint)
    _print_group(outcome, json, f"{group} consumed all entries before checkpoint {checkpoint}")


def remove_group(group: Group, given: StoreArguments, apply: Apply = False, json: Json = False) -> None:
    """Remove a reader group: its readers stop, and its subscriptions end.

    Examples:
        offloader group remove billing
        offloader group remove billing --apply
    """
    if apply:
        _print_group(open_reader_groups(given.open(read_only=False)).delete(group), json, f"removed group {group}")
    else:
        found = open_reader_groups(given.open()).get(group)
        _print_group(GroupOutcome(found), json, f"would remove group {group} of {', '.join(found.streams)}")


_GROUP_COLUMNS = [
    Column("group", "GROUP"),
    Column("type", "TYPE"),
    Column("streams", "STREAMS", ", ".join, wraps=True),
    Column(
        "readers",
        "READERS",
        lambda readers: ", ".join(f"{name} ({share})" for name, share in readers.items()) or "-",
        wraps=True,
    ),
    Column("checkpoints", "CHECKPOINTS", lambda rows: ", ".join(row["name"] for row in rows) or "-", wraps=True),
    Column(
        "owed", "OWED", lambda rows: ", ".join(f"{row['action']} {row['stream']}" for row in rows) or "-", wraps=True
    ),
    Column("generation", "GENERATION", right=True, less=1),
]


def _print_group(outcome: GroupOutcome, as_json: bool, words: str) -> None:
    """Prints the result, even a partial one; raises the first error of an unresponsive store."""
    refused = [{"action": row.action, "stream": row.stream, "why": why} for row, why in outcome.refused]
    lines = [words, *(f"refused by {each['stream']}: {each['why']}" for each in refused)]
    print_result({**group_facts(outcome.group), "refused": refused}, lines, as_json=as_json)
    for _, error in outcome.failed:
        raise error
