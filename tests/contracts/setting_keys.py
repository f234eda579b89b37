"""Settings: every key with type, default, unit and bounds; which are of the whole process; environment variables."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

import formats
import offloader
from docs.make_reference import type_of
from offloader.settings import Pairs, Settings
from offloader.settings.fields import allowed, in_file
from offloader.settings.layered import METHOD_OF, is_of_process

__all__ = ["setting_keys"]

#: What a rate's name ends in, and what it counts then.
_UNITS = {
    "bytes_per_s": "bytes a second",
    "requests_per_s": "requests a second",
    "_per_1000": "dollars a thousand",
}


def setting_keys() -> str:
    lines = [_line(each.name, key) for each in fields(Settings) for key in fields(getattr(Settings(), each.name))]
    lines += ["", "# variables of the environment that the product reads", *sorted(set(_variables()))]
    return "\n".join(lines) + "\n"


def _line(section: str, each: Field[Any]) -> str:
    name = f"{section}.{each.name}"
    facts = [_type(each), f"default {_default(in_file(each.default))}"]
    unit = next((words for ending, words in _UNITS.items() if re.sub(r"_(max|min)$", "", name).endswith(ending)), "")
    facts += [unit] if unit else []
    if "low" in each.metadata:
        facts.append(allowed(each.metadata))
    facts.append("process" if is_of_process(name) else "stream")
    if name in METHOD_OF:
        facts.append(f"method {METHOD_OF[name]}")
    if each.metadata.get("alias"):
        facts.append(f"alias {each.metadata['alias']} in {each.metadata['alias_unit']}")
    return f"{name}: {', '.join(facts)}"


def _type(each: Field[Any]) -> str:
    if "choices" in each.metadata:
        return "one of " + " ".join(each.metadata["choices"])
    return "list of file:PATH or env:NAME" if "places" in each.metadata else type_of(each.metadata, each.default)


def _default(value: object) -> str:
    if isinstance(value, Pairs | tuple):
        return "empty" if not value else repr(value)
    return repr(value)


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
