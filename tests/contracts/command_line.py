"""Every verb and action of the command line: arguments, options, defaults, what they may be, and their variables."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Any

from offloader.cli.main import program
from offloader.cli.tree import TREE

__all__ = ["command_line", "commands"]


def commands() -> Iterator[tuple[str, Any]]:
    """Words of each command, and what typer made of it."""
    yield "offloader", program()
    for panel in TREE.values():
        for name, command in panel.items():
            found = program(name).commands[name]
            if command.place:
                yield f"offloader {name}", found
            else:
                yield from ((f"offloader {name} {action}", leaf) for action, leaf in found.commands.items())


def command_line() -> str:
    lines = ["# exit codes are those of errors; 130: interrupted, 141: the reader of the output went away"]
    for words, command in commands():
        lines += ["", words, *(f"    {_parameter(each)}" for each in command.params)]
    return "\n".join(lines) + "\n"


def _parameter(each: Any) -> str:
    names = "/".join([*each.opts, *each.secondary_opts])
    facts = [f"<{each.name}>" if each.param_type_name == "argument" else names]
    is_flag = getattr(each, "is_flag", False)
    choices = each.type_descriptor.choices
    kind = getattr(each.type_descriptor.annotation, "__name__", str(each.type_descriptor.annotation))
    facts.append("flag" if is_flag else "|".join(map(_word, choices)) if choices else kind)
    if each.min is not None or each.max is not None:
        facts.append(f"from {each.min} to {each.max}")
    if each.required:
        facts.append("required")
    elif each.default is not None and (not is_flag or each.default):
        default = each.default() if callable(each.default) else each.default
        facts.append(f"default {_word(default)!r}")
    if getattr(each, "multiple", False) or each.nargs != 1:
        facts.append("may be repeated")
    if each.envvar:
        facts.append(f"variable {each.envvar if isinstance(each.envvar, str) else ' '.join(each.envvar)}")
    if getattr(each, "hidden", False):
        facts.append("hidden")
    return ", ".join(facts)


def _word(value: Any) -> Any:
    """A choice as it is typed."""
    return value.value if isinstance(value, enum.Enum) else value
