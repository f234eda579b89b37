"""``offloader retention groups | group | ungroup | publish-checkpoint``: reader groups over several streams.

Owns what is asked and said about groups. Must never hide that a stream refused, or didn't get, what a group owed it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated

import typer

from formats.retention_state import GroupState
from offloader.cli.options import ConfigArguments, Json
from offloader.cli.output import Column, json_line, print_rows
from offloader.retention.group_checkpoints import is_complete
from offloader.retention.group_retention import GroupOutcome, open_reader_groups
from offloader.retention.reader_groups import GroupConfig, RetentionType, config_of

__all__ = ["configure", "publish_checkpoint", "remove", "show"]

Group = Annotated[str, typer.Argument(metavar="GROUP", help="The reader group's name.", show_default=False)]


def show(
    given: ConfigArguments,
    group: Annotated[str, typer.Argument(metavar="GROUP", help="Only this one.", show_default="all")] = "",
    json: Json = False,
) -> None:
    """List reader groups: what they read, how they publish, which checkpoints they keep, what they owe."""
    groups = open_reader_groups(given.open(given.settings(), read_only=True))
    found = [groups.get(name) for name in ([group] if group else groups.names())]
    print_rows(map(_row, found), _COLUMNS, as_json=json, empty="there are no reader groups")


def configure(
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


def remove(
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


_COLUMNS = [
    Column("group", "GROUP"),
    Column("type", "TYPE"),
    Column("streams", "STREAMS", ", ".join),
    Column("readers", "READERS", lambda readers: str(len(readers)), right=True),
    Column("checkpoints", "CHECKPOINTS", lambda rows: ", ".join(row["name"] for row in rows) or "-"),
    Column("owed", "OWED", lambda rows: ", ".join(f"{row['action']} {row['stream']}" for row in rows) or "-"),
    Column("generation", "GENERATION", right=True),
]


def _print(outcome: GroupOutcome, as_json: bool, words: str) -> None:
    """What was done, and what wasn't; raises the first error of a store that didn't answer."""
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
