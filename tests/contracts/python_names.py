"""Public names: those of ``__all__`` of packages, those that documents import, and what these answer and take."""

from __future__ import annotations

import ast
import enum
import functools
import importlib
import inspect
import pkgutil
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import formats
import offloader
from tests.contracts.signatures import default_text, short_type, signature_text

__all__ = ["python_names"]

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("offloader", "formats", "pyspark_offloader")
#: What a name answers, and what that answers: what lies deeper is seen by few.
ANSWERS_DEEP = 2
_FENCE = re.compile(r"^```python[^\n]*\n(.*?)^```$", re.M | re.S)
#: Methods that a language construct calls.
_DUNDERS = {"__call__", "__contains__", "__enter__", "__exit__", "__getitem__", "__iter__", "__len__", "__next__"}


def python_names() -> str:
    found = _of_documents()
    for name, value in _of_packages().items():
        # Two of the same name are told apart by the package of the second one.
        found[name if name not in found else f"{value.__module__.split('.')[-2]}.{name}"] = value
    answered: dict[int, type[Any]] = {}
    values: list[Any] = list(found.values())
    for _ in range(ANSWERS_DEEP):
        named = {id(each) for each in (*found.values(), *answered.values())}
        values = [each for value in values for each in _answered(value) if id(each) not in named]
        answered |= {id(each): each for each in values}
    lines = ["# Names that users import; the first ones from offloader itself"]
    for name, value in sorted(found.items(), key=lambda pair: (not pair[0].startswith("offloader."), pair)):
        lines += ["", f"{name}: {_heading(value)}", *(f"    {line}" for line in _members(value))]
    lines.append("\n# Types of what these answer; how they are made is no promise")
    for heading, members in sorted((_heading(each, made=False), _members(each)) for each in answered.values()):
        lines += ["", heading, *(f"    {line}" for line in members)]
    return "\n".join(lines) + "\n"


def _of_packages() -> dict[str, Any]:
    """Every package that lists what it offers: the name -> the value, ``offloader.name`` in the one that users know."""
    found: dict[str, Any] = {}
    packages = [offloader, formats]
    for package in (offloader, formats):
        inner = pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        packages += [importlib.import_module(info.name) for info in inner if info.ispkg]
    for package in packages:
        for name in getattr(package, "__all__", ()):
            value = getattr(package, name)
            if package is offloader:
                found[f"offloader.{name}"] = value
            elif not any(value is each for each in found.values()):
                found[name] = value
    return found


def _of_documents() -> dict[str, Any]:
    """What samples in the documents import, by its short name."""
    found: dict[str, Any] = {}
    listed = list(_of_packages().values())
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for sample in _FENCE.findall(path.read_text(encoding="utf-8")):
            for node in ast.walk(ast.parse(textwrap.dedent(sample))):
                if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in PACKAGES:
                    module = importlib.import_module(node.module or "")
                    for alias in node.names:
                        value = getattr(module, alias.name)
                        if not any(value is each for each in listed) and not isinstance(value, ModuleType):
                            found[alias.name] = value
    return found


def _heading(value: Any, *, made: bool = True) -> str:
    if isinstance(value, ModuleType):
        return "module"
    if inspect.isclass(value):
        if issubclass(value, enum.Enum):
            name = "enum" if made else f"{value.__name__}: enum"
            return f"{name} {', '.join(f'{each.name} = {each.value!r}' for each in value)}"
        bases = [base.__name__ for base in value.__bases__ if base is not object and base.__name__ != "Generic"]
        name = "class" if made else f"{value.__name__}: class"
        fields_of = _constructor(value) if made or is_dataclass(value) else ""
        return f"{name}({', '.join(bases)}){fields_of}"
    if callable(value):
        return f"function{signature_text(value)}"
    return f"{type(value).__name__}"


def _constructor(kind: type[Any]) -> str:
    if getattr(kind, "_is_protocol", False):
        return ""
    if "__new__" in vars(kind) and issubclass(kind, tuple):
        return f" {signature_text(kind.__new__, bound=True)}"
    made = kind.__init__
    if is_dataclass(kind):
        # Defaults of fields that a factory makes have no text of their own.
        words = [f"{each.name}: {short_type(each.type)}" for each in fields(kind) if each.init]
        return f" dataclass({', '.join(words)})"
    if not inspect.isfunction(made) or not made.__module__.startswith(PACKAGES):
        return ""
    return f" {signature_text(made, bound=True).removesuffix(' -> None')}"


def _members(value: Any) -> list[str]:
    """Public methods, properties and attributes of a class and its own bases; the names in a module."""
    if isinstance(value, ModuleType):
        own = [name for name, each in vars(value).items() if getattr(each, "__module__", "") == value.__name__]
        public = getattr(value, "__all__", [name for name in own if not name.startswith("_")])
        return sorted(f"{name}: {_heading(getattr(value, name))}" for name in public)
    if not inspect.isclass(value) or issubclass(value, enum.Enum):
        return []
    found: dict[str, str] = {}
    for kind in reversed(value.__mro__):
        if kind.__module__.startswith(PACKAGES):
            found |= dict(_own_members(kind))
    return [f"{name}{text}" for name, text in sorted(found.items())]


def _own_members(kind: type[Any]) -> Iterator[tuple[str, str]]:
    inherited = {each.name for each in fields(kind)} if is_dataclass(kind) else set()
    for name, annotation in vars(kind).get("__annotations__", {}).items():
        if not name.startswith("_") and name not in inherited:
            yield name, f": {short_type(annotation)}"
    for name, member in vars(kind).items():
        if (name.startswith("_") and name not in _DUNDERS) or name.startswith("test_") or name in inherited:
            continue
        if isinstance(member, property | functools.cached_property):
            getter = member.fget if isinstance(member, property) else member.func
            yield name, f": {short_type(inspect.signature(getter).return_annotation) if getter else ''} (read only)"
        elif isinstance(member, staticmethod | classmethod):
            bound = isinstance(member, classmethod)
            yield name, f"{signature_text(member.__func__, bound=bound)} ({'class' if bound else 'static'} method)"
        elif inspect.isfunction(member):
            yield name, signature_text(member, bound=True)
        elif not inspect.ismemberdescriptor(member) and not inspect.isclass(member) and not callable(member):
            yield name, f" = {default_text(member)}"


def _answered(value: Any) -> Iterator[type[Any]]:
    """Classes of the packages that a function answers, or that are values in the class."""
    if isinstance(value, ModuleType) or (inspect.isclass(value) and issubclass(value, Exception | enum.Enum)):
        return
    if inspect.isclass(value):
        homes = [each.__module__ for each in value.__mro__ if each.__module__.startswith(PACKAGES)]
        # Of a method what it answers, of anything else its type.
        texts = [re.split(r" -> (?!.* -> )", line)[-1] if ") -> " in line else line for line in _members(value)]
        texts += [short_type(each.type) for each in fields(value)] if is_dataclass(value) else []
    elif callable(value):
        homes, texts = [value.__module__], [_heading(value).rpartition(" -> ")[2]]
    else:
        return
    for word in sorted({word for text in texts if "(" not in text for word in re.findall(r"\b[A-Z]\w+", text)}):
        for home in homes:
            found = getattr(sys.modules[home], word, None)
            if inspect.isclass(found) and found.__module__.startswith(PACKAGES):
                yield found
                break
