"""``offloader reader-groups ACTION``: what groups read, and the checkpoints that they publish."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, Any

import typer

from formats.documents import GroupState
from offloader.cli.options import ConfigArguments, Json, argument, option
from offloader.cli.output import Column, print_result, print_rows
from offloader.retention.group_service import GroupOutcome, open_reader_groups
from offloader.retention.reader_groups import GroupConfig, RetentionType, config_of

Group = Annotated[str, argument("The reader group's name.", metavar="GROUP")]


def list_groups(
    given: ConfigArguments,
    group: Annotated[str, argument("Only this one.", metavar="GROUP", shown="all")] = "",
    json: Json = False,
) -> None:
    """List reader groups: what they read, how they publish, which checkpoints they keep, what they owe."""
    groups = open_reader_groups(given.open(given.settings(), read_only=True))
    found = [groups.get(name) for name in ([group] if group else groups.names())]
    print_rows(map(_row, found), _GROUP_COLUMNS, as_json=json, empty="there are no reader groups")


def set_group(
    group: Group,
    stream: Annotated[list[str], option("--stream", "It reads this. May be repeated.", metavar="NAME")],
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
    outcome = groups.create(group, GroupConfig(stream, retention))
    if outcome.group.streams != tuple(sorted(set(stream))) or outcome.group.retention != retention.value:
        before = config_of(outcome.group)
        starts, ends = ({name: each[name] for name in each if name in stream} for each in (before.starts, before.ends))
        kept = replace(before, streams=stream, retention=retention, starts=starts, ends=ends)
        outcome = groups.update(group, outcome.group.generation, kept)
    _print(outcome, json, f"{group} reads {', '.join(outcome.group.streams)}; retention {outcome.group.retention}")


def remove(group: Group, given: ConfigArguments, json: Json = False) -> None:
    """Remove a reader group: it subscribes to nothing any more."""
    groups = open_reader_groups(given.open(given.settings(), read_only=False))
    _print(groups.delete(group), json, f"{group} is gone")


def publish_checkpoint(
    group: Group,
    checkpoint: Annotated[str, argument("A checkpoint that all readers have reached.")],
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
            {"name": row.name, "kept": row.kept, "complete": not row.waiting, "behind": row.behind}
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
    refused = [{"action": row.action, "stream": row.stream, "why": why} for row, why in outcome.refused]
    lines = [words, *(f"refused by {each['stream']}: {each['why']}" for each in refused)]
    print_result({**_row(outcome.group), "refused": refused}, lines, as_json=as_json)
    for _, error in outcome.failed:
        raise error


#: Action -> its function, in the order of the help.
ACTIONS: Mapping[str, Callable[..., Any]] = {
    "list": list_groups,
    "set": set_group,
    "remove": remove,
    "publish-checkpoint": publish_checkpoint,
}
