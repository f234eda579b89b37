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
#: The document behind a first sentence, which a list of commands leaves out.
_DOCUMENT = re.compile(r"; see docs/\S+\.md\.?$")
#: In the notes in brackets behind an option's text: click's forms of a default in words and of a range -> plain forms.
_NOTES = (
    (re.compile(r"\[default: \(([^\[\]]+)\)(?=[;\]])"), r"[default: \1"),
    (re.compile(r"(?:; |  \[)x>=0(?:\.0)?\]$"), lambda found: "]" if found[0].startswith(";") else ""),
    (re.compile(r"(\S+)<=x<=(\S+)(?=\])"), r"\1 to \2"),
    (re.compile(r"\bx>=(\S+)(?=\])"), r"at least \1"),
)
#: Stands for a hyphen while text is wrapped: a path or an option's name isn't divided.
_HYPHEN = "\N{NON-BREAKING HYPHEN}"

#: Title of the last part of a command's docstring: one example in each line.
EXAMPLES = "Examples:"


def with_examples(doc: str) -> str:
    """A docstring whose examples keep their lines in the help."""
    return cleandoc(doc).replace(f"{EXAMPLES}\n", f"\b\n{EXAMPLES}\n")


def examples_of(doc: str) -> list[str]:
    """The examples of a command's docstring."""
    return [line.strip() for line in doc.partition(f"{EXAMPLES}\n")[2].splitlines() if line.strip()]


def _formatter(context: Any) -> Any:
    """The context's formatter, which breaks no line at a hyphen."""
    made = context.make_formatter()

    class Unbroken(type(made)):  # type: ignore[misc]
        def write_text(self, text: str) -> None:
            super().write_text(text.replace("-", _HYPHEN))

        def write_dl(self, rows: Any, *more: Any, **options: Any) -> None:
            super().write_dl([(name, text.replace("-", _HYPHEN)) for name, text in rows], *more, **options)

        def getvalue(self) -> str:
            return str(super().getvalue()).replace(_HYPHEN, "-")

    made.__class__ = Unbroken
    return made


def _help(command: Any, context: Any) -> str:
    formatter = _formatter(context)
    command.format_help(context, formatter)
    return str(formatter.getvalue()).rstrip("\n")


def _noted(text: str) -> str:
    """An option's text with plain notes."""
    for form, plain in _NOTES:
        text = form.sub(plain, text)
    return text


class Group(TyperGroup):
    """A group of commands, listed by panel."""

    def get_help(self, ctx: Any) -> str:
        return _help(self, ctx)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - click's signature
        panels: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
        for name, command in self.commands.items():
            panels[str(getattr(command, "rich_help_panel", None) or "Commands")].append(
                (name, _DOCUMENT.sub(".", command.get_short_help_str(_WHOLE)))
            )
        for panel, rows in panels.items():
            with formatter.section(panel):
                formatter.write_dl(rows)


class Leaf(TyperCommand):
    """A command that runs: its arguments, its own options, then the panels of options that it shares with others."""

    def get_help(self, ctx: Any) -> str:
        return _help(self, ctx)

    def rows(self, ctx: Any) -> list[tuple[str, str, str]]:
        """Panel, name and text of each argument and option."""
        found = []
        for each in self.get_params(ctx):
            row = each.get_help_record(ctx)
            if row is not None and each.param_type_name == "argument":
                found.append(("Arguments", _TYPE.sub("", row[0]), _noted(row[1])))
            elif row is not None:
                found.append((getattr(each, "rich_help_panel", None) or "Options", row[0], _noted(row[1])))
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
