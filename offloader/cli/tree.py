"""The tree of commands: the panels of ``offloader --help``, each command's line in it, and the functions of all.

Imports no command, so that ``offloader --help`` starts quickly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Command:
    """One command.

    Attributes:
        help: its line in ``offloader --help``.
        place: its function as ``module:function``; empty: it has actions.
        actions: action -> the action's function, in the order of the help.
    """

    help: str
    place: str = ""
    actions: Mapping[str, str] = field(default_factory=dict)


#: Panel -> command -> what it is.
Tree = Mapping[str, Mapping[str, Command]]

TREE: Tree = {
    "Run": {
        "demo": Command("Offload and read back real data once.", "demo:run"),
        "serve": Command("Offload streams continuously as a service.", "serve:run"),
        "status": Command("Show mode, lag and errors of the streams.", "status:run"),
        "doctor": Command("Check configuration, connectivity and stalled streams.", "doctor:run"),
    },
    "Read": {
        "ls": Command("List the streams of a store, or the segments of a stream.", "listing:list_stored"),
        "read": Command("Print a stream's entries.", "reading:read"),
        "verify": Command("Check a stream's objects against its manifest.", "reading:verify"),
        "inspect": Command("Show one object, header by header.", "reading:inspect"),
    },
    "Streams": {
        "stream": Command(
            "Offload, pause, compact, truncate or delete streams.",
            actions={
                "offload": "offload:offload",
                "pause": "offload:pause",
                "resume": "offload:resume",
                "compact": "compact:run",
                "truncate": "retention:truncate",
                "delete": "cleanup:delete_stream",
                "set-source": "offload:set_source",
                "accept-loss": "offload:accept_loss",
            },
        ),
    },
    "Retention": {
        "retention": Command(
            "Delete old entries by age, size and subscribers.",
            actions={
                "plan": "retention:plan",
                "run": "retention:run",
                "explain": "retention:explain_stream",
            },
        ),
        "subscriber": Command(
            "List, add, acknowledge and remove subscribers of a stream.",
            actions={
                "list": "retention:list_subscribers",
                "add": "retention:add_subscriber",
                "ack": "retention:acknowledge",
                "remove": "retention:remove_subscriber",
                "accept-loss": "retention:accept_registry_loss",
            },
        ),
        "group": Command(
            "Read streams with reader groups.",
            actions={
                "list": "group:list_groups",
                "set": "group:set_group",
                "join": "group:join",
                "checkpoint": "group:start_checkpoint",
                "publish": "group:publish_checkpoint",
                "remove": "group:remove_group",
            },
        ),
        "cleanup": Command(
            "Delete unreferenced objects; undo, hold and audit deletions.",
            actions={
                "plan": "cleanup:plan",
                "run": "cleanup:run",
                "undo": "cleanup:undo",
                "orphans": "cleanup:orphans",
                "audit": "cleanup:audit",
                "hold": "cleanup:hold",
            },
        ),
    },
    "Data": {
        "export": Command(
            "Export to Iceberg, Parquet, Pulsar or Pulsar's own offloader.",
            actions={
                "iceberg": "export:run",
                "parquet": "export_parquet:run",
                "pulsar": "pulsar:replay",
                "v1": "export_v1:run",
            },
        ),
        "import": Command("Import ledgers that Pulsar offloaded, in place.", "pulsar:import_ledgers"),
    },
    "Repair": {
        "manifest": Command(
            "Show, rebuild, checkpoint or expire a stream's manifest.",
            actions={
                "show": "manifest:show",
                "context": "manifest:context",
                "rebuild": "manifest:rebuild",
                "checkpoint": "manifest:checkpoint",
                "expire": "manifest:expire",
            },
        ),
    },
    "Configuration": {
        "config": Command(
            "Explain or check settings.",
            actions={
                "explain": "config:explain",
                "check": "config:check",
                "sample": "config:sample",
            },
        ),
    },
    "Spark": {
        "spark": Command(
            "Run jobs over many streams with Spark.",
            actions={
                "backfill": "spark:backfill",
                "compact": "spark:compact",
                "export": "spark:export",
                "rebuild": "spark:rebuild",
                "verify": "spark:verify",
            },
        ),
    },
}


def leaves(tree: Tree = TREE) -> Iterator[tuple[str, str]]:
    """The words of each command that runs, ``stream offload``, and its function as ``module:function``."""
    for commands in tree.values():
        for name, command in commands.items():
            yield from ((f"{name} {action}", place) for action, place in command.actions.items())
            if command.place:
                yield name, command.place
