"""Settings: every key with type, default, unit and bounds; which are of the whole process; environment variables."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

import formats
import offloader
from offloader.settings import Pairs, Settings
from offloader.settings.layered import METHOD_OF, PROCESS_SECTIONS, PROCESS_SETTINGS

__all__ = ["setting_keys"]

#: What a name ends in, and what it counts then.
_UNITS = {
    "_bytes_per_s": "bytes a second",
    "_requests_per_s": "requests a second",
    "bytes_per_s": "bytes a second",
    "requests_per_s": "requests a second",
    "_per_1000": "dollars a thousand",
    "_mbytes": "MiB",
    "_bytes": "bytes",
    "_ms": "milliseconds",
    "_s": "seconds",
    "_seconds": "seconds",
    "_minutes": "minutes",
    "_hours": "hours",
    "_days": "days",
}


def setting_keys() -> str:
    lines = [_line(each.name, key) for each in fields(Settings) for key in fields(getattr(Settings(), each.name))]
    lines += ["", "# variables of the environment that the product reads", *sorted(set(_variables()))]
    return "\n".join(lines) + "\n"


def _line(section: str, each: Field[Any]) -> str:
    name = f"{section}.{each.name}"
    facts = [_kind(each), f"default {_default(each.default)}"]
    unit = _unit(each.name) if isinstance(each.default, int | float) and not isinstance(each.default, bool) else ""
    facts += [unit] if unit else []
    if "low" in each.metadata:
        facts.append(f"{each.metadata['low']} to {each.metadata['high']}")
    is_of_process = section in PROCESS_SECTIONS or name in PROCESS_SETTINGS
    facts.append("process" if is_of_process else "stream")
    if name in METHOD_OF:
        facts.append(f"method {METHOD_OF[name]}")
    return f"{name}: {', '.join(facts)}"


def _kind(each: Field[Any]) -> str:
    for kind, words in (
        ("text", "text"),
        ("pairs", "table of texts"),
        ("texts", "list of texts"),
        ("places", "list of file:PATH or env:NAME"),
        ("flag", "flag"),
    ):
        if kind in each.metadata:
            return words
    if "choices" in each.metadata:
        return "one of " + " ".join(each.metadata["choices"])
    return type(each.default).__name__


def _default(value: object) -> str:
    if isinstance(value, Pairs | tuple):
        return "empty" if not value else repr(value)
    return repr(value)


def _unit(name: str) -> str:
    base = name.removesuffix("_max").removesuffix("_min")
    return next((words for ending, words in _UNITS.items() if base.endswith(ending)), "")


def _variables() -> Iterator[str]:
    """Texts in the packages that are names of our variables."""
    for package in (offloader, formats):
        for path in Path(package.__path__[0]).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            for node in ast.walk(ast.parse(text)) if "OFFLOADER_" in text else ():
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    name = node.value
                    if name.startswith("OFFLOADER_") and name.replace("_", "").isalnum() and name.isupper():
                        yield name
