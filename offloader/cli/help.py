"""How ``--help`` is laid out: commands by panel, the options that commands share in panels at the end."""

from __future__ import annotations

import re
from collections import defaultdict
from inspect import cleandoc
from typing import Any

from typer.core import TyperCommand, TyperGroup

#: The type behind an argument's name, unless it lists choices.
_TYPE = re.compile(r" <[^|>]*>$")
#: Longest first sentence of a command: it is wrapped, not cut.
_WHOLE = 1000

#: Title of the last part of a command's docstring: one example in each line.
EXAMPLES = "Examples:"


def with_examples(doc: str) -> str:
    """A docstring whose examples keep their lines in the help."""
    return cleandoc(doc).replace(f"{EXAMPLES}\n", f"\b\n{EXAMPLES}\n")


def examples_of(doc: str) -> list[str]:
    """The examples of a command's docstring."""
    return [line.strip() for line in doc.partition(f"{EXAMPLES}\n")[2].splitlines() if line.strip()]


class Group(TyperGroup):
    """A group of commands, listed by panel."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - click's signature
        panels: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
        for name, command in self.commands.items():
            panels[str(getattr(command, "rich_help_panel", None) or "Commands")].append(
                (name, command.get_short_help_str(_WHOLE))
            )
        for panel, rows in panels.items():
            with formatter.section(panel):
                formatter.write_dl(rows)


class Leaf(TyperCommand):
    """A command that runs: its arguments, its own options, then the panels of options that it shares with others."""

    def rows(self, ctx: Any) -> list[tuple[str, str, str]]:
        """Panel, name and text of each argument and option."""
        found = []
        for each in self.get_params(ctx):
            row = each.get_help_record(ctx)
            if row is not None and each.param_type_name == "argument":
                found.append(("Arguments", _TYPE.sub("", row[0]), row[1]))
            elif row is not None:
                found.append((getattr(each, "rich_help_panel", None) or "Options", *row))
        return found

    def format_options(self, ctx: Any, formatter: Any) -> None:
        panels: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
        panels["Arguments"], panels["Options"] = [], []
        for panel, *row in self.rows(ctx):
            panels[panel].append((row[0], row[1]))
        for panel, rows in panels.items():
            if rows:
                with formatter.section(panel):
                    formatter.write_dl(rows)
