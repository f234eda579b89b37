"""Shapes of JSON values: names and types of fields, of many values put together."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

__all__ = ["shape_lines"]

#: Keys that are values and no names: streams, uuids, positions, numbers, codes.
_VALUES = re.compile(r"[0-9]|.*[/:{ ]|.*\.\w+$")
_NAMES = {str: "text", bool: "flag", int: "number", float: "number", type(None): "null"}


def shape_lines(values: Iterable[Mapping[str, Any]]) -> list[str]:
    """``path: types`` for every field of ``values``, nested ones too.

    A field that some values don't have ends in ``?``; ``[]`` stands for the items of a list, ``*`` for keys that are
    values themselves. An empty list or object says nothing of what it may hold.
    """
    kinds: dict[str, set[str]] = {}
    counts: dict[str, int] = {}
    for value in values:
        _count(value, "", kinds, counts)
    lines = []
    for path, types in kinds.items():
        parent = path.rpartition(".")[0]
        is_field = not path.endswith("[]") and not path.endswith("*")
        mark = "?" if is_field and counts[path] < counts.get(f"{parent}{{}}", 0) else ""
        lines.append(f"{path}{mark}: {' | '.join(sorted(types))}")
    return sorted(lines)


def _count(value: Any, path: str, kinds: dict[str, set[str]], counts: dict[str, int]) -> None:
    if path:
        kinds.setdefault(path, set()).add(_kind(value))
        counts[path] = counts.get(path, 0) + 1
    if isinstance(value, Mapping):
        counts[f"{path}{{}}"] = counts.get(f"{path}{{}}", 0) + 1
        for name, each in _fields(value):
            _count(each, f"{path}.{name}" if path else name, kinds, counts)
    elif isinstance(value, list):
        for each in value:
            _count(each, f"{path}[]", kinds, counts)


def _fields(value: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    return (("*" if _VALUES.match(name) else name, each) for name, each in value.items())


def _kind(value: Any) -> str:
    return _NAMES.get(type(value)) or ("list" if isinstance(value, list) else "object")
