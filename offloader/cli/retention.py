"""``offloader retention ACTION``: subscribers, reader groups, and retention cycles."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Annotated, Any

import typer

from formats.documents import GroupState
from formats.entries import Position
from offloader.cli.options import ConfigArguments, Json, LedgerArguments, StreamOrTopic, position_of
from offloader.cli.output import Column, bytes_text, json_line, print_rows
from offloader.errors import InvalidCall, NotFound, OffloaderError
from offloader.ledgers.base import LedgerSource
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
from offloader.read.reader import time_text
from offloader.retention.cuts import Cut
from offloader.retention.cycle import CycleOutcome, RetentionCycle, retained_streams
from offloader.retention.explain import explain, outcome_facts
from offloader.retention.group_service import GroupOutcome, open_reader_groups
from offloader.retention.reader_groups import GroupConfig, RetentionType, config_of, is_complete
from offloader.retention.state import read_decisions
from offloader.retention.subscribers import StreamRetention, Subscriber, cut_of, open_retention
from offloader.runtime.clock import SystemClock
from offloader.settings.layered import SettingsFile

__all__ = [
    "ACTIONS",
    "add",
    "cut_text",
    "explain_stream",
    "group",
    "opening_sources",
    "plan",
    "publish",
    "publish_checkpoint",
    "remove",
    "run",
    "show",
    "show_groups",
    "ungroup",
    "wanted_cut",
]

Group = Annotated[str, typer.Argument(metavar="GROUP", help="The reader group's name.", show_default=False)]


def show_groups(
    given: ConfigArguments,
    group: Annotated[str, typer.Argument(metavar="GROUP", help="Only this one.", show_default="all")] = "",
    json: Json = False,
) -> None:
    """List reader groups: what they read, how they publish, which checkpoints they keep, what they owe."""
    groups = open_reader_groups(given.open(given.settings(), read_only=True))
    found = [groups.get(name) for name in ([group] if group else groups.names())]
    print_rows(map(_row, found), _GROUP_COLUMNS, as_json=json, empty="there are no reader groups")


def group(
    group: Group,
    stream: Annotated[
        list[str], typer.Option("--stream", metavar="NAME", help="It reads this. May be repeated.", show_default=False)
    ],
    given: ConfigArguments,
    retention: Annotated[
        RetentionType,
        typer.Option("--type", help="none: it holds nothing back; automatic: each passed checkpoint is published."),
    ] = RetentionType.NONE,
    json: Json = False,
) -> None:
    """Make a reader group, or change what it reads and how it publishes.

    A group that isn't of type none is a subscriber of each of its streams, under its own name.
    """
    groups = open_reader_groups(given.open(given.settings(), read_only=False))
    wanted = GroupConfig(stream, retention)
    outcome = groups.create(group, wanted)
    if outcome.group.streams != tuple(sorted(set(stream))) or outcome.group.retention != retention.value:
        before = config_of(outcome.group)
        kept = GroupConfig(
            stream,
            retention,
            {name: cut for name, cut in before.starts.items() if name in stream},
            {name: cut for name, cut in before.ends.items() if name in stream},
            before.automatic_checkpoint_ms,
            before.outstanding_checkpoints_max,
            before.refresh_ms,
        )
        outcome = groups.update(group, outcome.group.generation, kept)
    _print(outcome, json, f"{group} reads {', '.join(outcome.group.streams)}; retention {outcome.group.retention}")


def ungroup(
    group: Group,
    given: ConfigArguments,
    json: Json = False,
) -> None:
    """Remove a reader group: it subscribes to nothing any more."""
    groups = open_reader_groups(given.open(given.settings(), read_only=False))
    _print(groups.delete(group), json, f"{group} is gone")


def publish_checkpoint(
    group: Group,
    checkpoint: Annotated[str, typer.Argument(help="A checkpoint that all readers have reached.", show_default=False)],
    given: ConfigArguments,
    json: Json = False,
) -> None:
    """Say that a group of type manual has consumed everything before one of its checkpoints."""
    groups = open_reader_groups(given.open(given.settings(), read_only=False))
    outcome = groups.update_truncation_checkpoint(group, checkpoint)
    _print(outcome, json, f"{group} has consumed what lies before checkpoint {checkpoint}")


def _row(group: GroupState) -> Mapping[str, object]:
    return {
        "group": group.name,
        "generation": group.generation,
        "type": group.retention,
        "streams": group.streams,
        "readers": group.readers,
        "checkpoints": [
            {"name": row.name, "kept": row.kept, "complete": is_complete(row), "behind": row.behind}
            for row in group.checkpoints
        ],
        "published": {
            each.stream: {str(row.partition): str(row.position) for row in each.cut} for each in group.published
        },
        "owed": [{"action": row.action, "stream": row.stream} for row in group.to_do],
    }


_GROUP_COLUMNS = [
    Column("group", "GROUP"),
    Column("type", "TYPE"),
    Column("streams", "STREAMS", ", ".join),
    Column("readers", "READERS", lambda readers: str(len(readers)), right=True),
    Column("checkpoints", "CHECKPOINTS", lambda rows: ", ".join(row["name"] for row in rows) or "-"),
    Column("owed", "OWED", lambda rows: ", ".join(f"{row['action']} {row['stream']}" for row in rows) or "-"),
    Column("generation", "GENERATION", right=True),
]


def _print(outcome: GroupOutcome, as_json: bool, words: str) -> None:
    """Prints the result, also a partial one; raises the first error of an unresponsive store."""
    if as_json:
        print(json_line({**_row(outcome.group), "refused": list(_refused(outcome))}))
    else:
        print(words)
        for each in _refused(outcome):
            print(f"refused by {each['stream']}: {each['why']}")
    for _, error in outcome.failed:
        raise error


def _refused(outcome: GroupOutcome) -> Iterator[Mapping[str, object]]:
    for row, why in outcome.refused:
        yield {"action": row.action, "stream": row.stream, "why": why}


#: Name of the cut at the current end.
LATEST = "latest"

Name = Annotated[str, typer.Argument(metavar="SUBSCRIBER", help="The subscriber's name.", show_default=False)]
_CUT = "[PARTITION=]LEDGER:ENTRY"


def show(
    stream: StreamOrTopic,
    given: LedgerArguments,
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            min=0,
            metavar="SECONDS",
            help="Silent for longer: timed out. 0 = never.",
            show_default="retention.subscriber_timeout_minutes",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """List a stream's subscribers: what each has consumed, how far it is behind, whether it counts."""
    if timeout is None:
        timeout = given.settings(stream).retention.subscriber_timeout_minutes * 60
    with _retention(stream, given, ledgers=given.ledgers, read_only=True) as retention:
        found = retention.subscribers(timeout_ms=max(1, round(timeout * 1000)) if timeout else None)
    print_rows(
        (each.as_json() for each in found),
        _SUBSCRIBER_COLUMNS,
        as_json=json,
        empty=f"stream {stream} has no subscribers",
    )


def add(
    stream: StreamOrTopic,
    name: Name,
    given: LedgerArguments,
    generation: Annotated[int, typer.Option("--generation", min=0, help="Of an owner that counts them.")] = 0,
    start: Annotated[
        list[str] | None,
        typer.Option(
            "--start", metavar=_CUT, help="Where it begins reading, or 'latest'.", show_default="the beginning"
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Register a subscriber, or raise the generation of one.

    It holds nothing back until it publishes for the first time, unless the policy protects those who never did.
    """
    with _retention(stream, given, ledgers=given.ledgers, read_only=False) as retention:
        begin = wanted_cut(retention, start, option="--start") if start else None
        found = retention.add(name, generation=generation, start=begin)
    _print_status(stream, found, json, f"{name} subscribes to {stream}, generation {found.generation}")


def publish(
    stream: StreamOrTopic,
    name: Name,
    at: Annotated[
        list[str],
        typer.Option(
            "--at",
            metavar=_CUT,
            help="Everything before it is consumed: the first entry still needed, or 'latest'. Of a partitioned topic "
            "once for each partition, by its number.",
            show_default=False,
        ),
    ],
    given: LedgerArguments,
    generation: Annotated[
        int | None, typer.Option("--generation", min=0, help="Refuse unless it has this one.", show_default=False)
    ] = None,
    json: Json = False,
) -> None:
    """Say what a subscriber has consumed, so that it may go.

    Publishing the same again is fine, and a sign of life. What isn't offloaded yet is known only with --ledgers.
    """
    with _retention(stream, given, ledgers=given.ledgers, read_only=False) as retention:
        found = retention.publish(name, wanted_cut(retention, at, option="--at"), generation=generation)
    _print_status(stream, found, json, f"{name} has consumed {stream} up to {cut_text(found.cut)}")


def remove(
    stream: StreamOrTopic,
    name: Name,
    given: ConfigArguments,
    generation: Annotated[
        int | None, typer.Option("--generation", min=0, help="Leave it if it has a higher one.", show_default=False)
    ] = None,
    json: Json = False,
) -> None:
    """Forget a subscriber and what it published: it holds nothing back any more."""
    with _retention(stream, given, ledgers="", read_only=False) as retention:
        if name not in retention.registry().subscribers:
            raise NotFound(
                f"{name} doesn't subscribe to stream {stream}", hint=f"`offloader retention subscribers {stream}`"
            )
        removed = retention.remove(name, generation=generation)
    if json:
        print(json_line({"stream": stream, "subscriber": name, "removed": removed}))
    elif removed:
        print(f"{name} doesn't subscribe to {stream} any more")
    else:
        print(f"{name} stays subscribed to {stream}: its generation is higher than {generation}")


def wanted_cut(retention: StreamRetention, texts: list[str], *, option: str) -> Cut:
    """The cut of an option's values: one position, one for each partition, or ``latest``.

    Raises:
        InvalidCall: invalid values; names the option.
    """
    if texts == [LATEST]:
        return retention.tail()
    positions: dict[int, Position] = {}
    for text in texts:
        number, separator, rest = text.rpartition("=")
        if separator and not number.isdecimal():
            raise InvalidCall(f"{option} {text}: {number!r} is no partition's number", hint=f"{option} 3=7:12")
        if int(number or 0) in positions:
            raise InvalidCall(f"{option} names partition {int(number or 0)} twice", hint="give each partition once")
        positions[int(number or 0)] = position_of(rest, option=option)
    return cut_of(positions)


def cut_text(cut: Cut | None) -> str:
    """``7:12``, or ``0=7:12,3=8:0`` of several partitions."""
    if cut is None:
        return "-"
    parts = {segment.number: offset for segment, offset in cut.offsets.items()}
    if list(parts) == [0]:
        return str(parts[0])
    return ",".join(f"{number}={parts[number]}" for number in sorted(parts)) or "nothing"


@contextmanager
def _retention(stream: str, given: ConfigArguments, *, ledgers: str, read_only: bool) -> Iterator[StreamRetention]:
    opened = given.open(given.settings(stream), read_only=read_only)
    with opening_sources(ledgers) as source_of:
        yield open_retention(opened, stream, source_of=source_of)


@contextmanager
def opening_sources(ledgers: str) -> Iterator[Callable[[str], LedgerSource | None]]:
    """The hot tier by a stream's name; none for other streams, or without a database."""
    if not ledgers:
        yield lambda _: None
        return
    with closing(EmbeddedLedgers(ledgers, create=False)) as database:

        def source_of(stream: str) -> LedgerSource | None:
            try:
                return database.view_stream(stream)
            except NotFound:
                return None

        yield source_of


_SUBSCRIBER_COLUMNS = [
    Column("subscriber", "SUBSCRIBER"),
    Column("activity", "ACTIVITY"),
    Column("cut", "CONSUMED UP TO", lambda cut: cut_text(None if cut is None else Cut.of(cut)), right=True),
    Column("lag_entries", "ENTRIES BEHIND", right=True),
    Column("lag_bytes", "BYTES BEHIND", bytes_text, right=True),
    Column("active_ms", "LAST HEARD OF", time_text),
    Column("generation", "GENERATION", right=True),
]


def _print_status(stream: str, subscriber: Subscriber, as_json: bool, words: str) -> None:
    print(json_line({"stream": stream, **subscriber.as_json()}) if as_json else words)


Streams = Annotated[
    list[str] | None, typer.Argument(metavar="[STREAM]...", help="Streams, or partitioned topics.", show_default="all")
]


def plan(
    given: LedgerArguments,
    streams: Streams = None,
    json: Json = False,
) -> int:
    """Say what the next cycle would do to each stream; change nothing.

    The policies are those of the settings file: see `offloader config explain`.
    """
    with _cycles(given, read_only=True) as (cycle, _):
        return _print_each(cycle, streams, cycle.plan, json, done=False)


def run(
    given: LedgerArguments,
    streams: Streams = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="The same as plan.")] = False,
    json: Json = False,
) -> int:
    """Run one cycle now: record where the streams end, decide, and let streams begin later.

    With --ledgers, hot ledgers before the new beginning are deleted at once. Objects in the store stay until a round of
    cleanup, which has a grace period. A stream that fails keeps no other from its turn.
    """
    with _cycles(given, read_only=dry_run) as (cycle, _):
        return _print_each(cycle, streams, cycle.plan if dry_run else cycle.run, json, done=not dry_run)


def explain_stream(
    stream: StreamOrTopic,
    given: LedgerArguments,
    decisions: Annotated[bool, typer.Option("--decisions", help="List the decisions of past cycles instead.")] = False,
    json: Json = False,
) -> None:
    """Explain in words and as a picture what would go of a stream now, by which rule, and who isn't done with it."""
    with _cycles(given, read_only=True) as (cycle, file):
        if decisions:
            retention = open_retention(cycle.store, stream)
            kept = read_decisions(retention, retention.place())
            print_rows(map(_decision_row, kept), _DECISIONS, as_json=json, empty=f"stream {stream} has no decision yet")
            return
        outcome = cycle.plan(stream)
    if json:
        print(json_line(outcome_facts(outcome, done=False)))
        return
    for line in explain(outcome):
        print(line)
    if outcome.policy is None and not file.name:
        print("\nno settings file was named: --config FILE says which policies there are", file=sys.stderr)


@contextmanager
def _cycles(given: LedgerArguments, *, read_only: bool) -> Iterator[tuple[RetentionCycle, SettingsFile]]:
    file = given.file()
    opened = given.open(file.settings_of(""), read_only=read_only)
    with opening_sources(given.ledgers) as source_of:
        yield RetentionCycle(opened, clock=SystemClock(), settings_of=file.settings_of, source_of=source_of), file


def _print_each(
    cycle: RetentionCycle,
    streams: Sequence[str] | None,
    turn: Callable[[str], CycleOutcome],
    as_json: bool,
    *,
    done: bool,
) -> int:
    """The exit code: that of the first failed stream."""
    failed: list[OffloaderError] = []

    def rows() -> Iterator[Mapping[str, object]]:
        for stream in streams or retained_streams(cycle.store):
            try:
                yield outcome_facts(turn(stream), done=done)
            except NotFound:
                if streams:
                    raise  # deleted meanwhile, and not named on the command line
            except OffloaderError as error:
                if streams is not None and len(streams) == 1:
                    raise
                failed.append(error)
                yield {"stream": stream, "error": str(error), "retryable": error.retryable}

    print_rows(rows(), _CYCLE_COLUMNS, as_json=as_json, empty=f"no stream in {cycle.store.url}")
    for error in failed:
        print(f"error: {error}", file=sys.stderr)
    return failed[0].kind.value if failed else 0


def _decision_row(row: Mapping[str, object]) -> Mapping[str, object]:
    cut = row.get("cut")
    overridden = row.get("overridden")
    names = [str(each["name"]) for each in overridden] if isinstance(overridden, list) else []
    shown = ",".join(f"{name}={at}" for name, at in cut.items()) if isinstance(cut, dict) else None
    return {**row, "shown": shown, "loses": ", ".join(names) or None}


_CYCLE_COLUMNS = [
    Column("stream", "STREAM"),
    Column("new_head", "BEGINS AT", right=True),
    Column("entries", "ENTRIES GO", right=True),
    Column("bytes", "BYTES GO", lambda count: "-" if count is None else bytes_text(count), right=True),
    Column("overridden", "LOSES", lambda names: ", ".join(names or ()) or "-"),
    Column("rule", "RULE"),
]
_DECISIONS = [
    Column("at_ms", "TIME", time_text),
    Column("shown", "BEGINS AT"),
    Column("removed_entries", "ENTRIES", right=True),
    Column("removed_bytes", "BYTES", lambda count: "-" if count is None else bytes_text(count), right=True),
    Column("loses", "LOSES"),
    Column("why", "RULE"),
]


#: Action -> its function, in the order of the help.
ACTIONS: Mapping[str, Callable[..., Any]] = {
    "explain": explain_stream,
    "plan": plan,
    "run": run,
    "subscribers": show,
    "add": add,
    "publish": publish,
    "remove": remove,
    "groups": show_groups,
    "group": group,
    "ungroup": ungroup,
    "publish-checkpoint": publish_checkpoint,
}
