"""Log events and their fields, as the calls of loggers in the source give them, and the fields that every line has."""

from __future__ import annotations

import ast
import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

import offloader
from offloader.runtime.logs import JsonLines

__all__ = ["log_events"]

_LOG_METHODS = {"critical", "debug", "error", "exception", "info", "log", "warning"}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
#: Of an event whose lines don't name it.
_NO_EVENT = "(no event)"


def log_events() -> str:
    found: dict[str, list[set[str]]] = {}
    for path in sorted(Path(offloader.__path__[0]).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "testing" not in path.parts and "extra=" in text:
            for event, names in _of_module(ast.parse(text)):
                found.setdefault(event, []).append(names)
    record = logging.makeLogRecord({"msg": "text"})
    try:
        raise ValueError
    except ValueError as error:
        record.exc_info = (ValueError, error, error.__traceback__)
    fields = sorted(json.loads(JsonLines().format(record)))
    lines = [f"every line: {', '.join(fields)} (error and traceback: where an exception is logged)", ""]
    for event, each in sorted(found.items()):
        everywhere = set.intersection(*each)
        given = [name if name in everywhere else f"{name}?" for name in sorted(set.union(*each))]
        lines.append(f"{event}: {', '.join(given)}".rstrip(": "))
    return "\n".join(lines) + "\n"


def _of_module(module: ast.Module) -> Iterator[tuple[str, set[str]]]:
    """Event and fields of each call of a logger that gives fields."""
    for function in ast.walk(module):
        for call in ast.walk(function) if isinstance(function, _FUNCTIONS) else ():
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in _LOG_METHODS:
                for keyword in call.keywords:
                    if keyword.arg == "extra":
                        given = dict(_given(keyword.value, function))
                        events = _events(given.pop("event", None), function, module)
                        yield from ((event, set(given)) for event in events)


def _given(value: ast.expr, function: ast.AST) -> Iterator[tuple[str, ast.expr | None]]:
    """Fields of a dictionary that is written down, or built before and named."""
    match value:
        case ast.Dict():
            for key, each in zip(value.keys, value.values, strict=True):
                if key is None:
                    yield from _given(each, function)
                elif isinstance(key, ast.Constant):
                    yield str(key.value), each
        case ast.BinOp(op=ast.BitOr()):
            yield from _given(value.left, function)
            yield from _given(value.right, function)
        case ast.Name():
            for node in ast.walk(function):
                yield from _assigned(value.id, node, function)
        case _:
            yield f"({ast.unparse(value)})", None


def _assigned(name: str, node: ast.AST, function: ast.AST) -> Iterator[tuple[str, ast.expr | None]]:
    """Fields that a statement gives the dictionary of this name."""
    if isinstance(node, ast.Assign):
        target = node.targets[0]
        if _names(target, name):
            yield from _given(node.value, function)
        elif isinstance(target, ast.Subscript) and _names(target.value, name):
            yield f"{ast.literal_eval(target.slice)}?", node.value
    elif isinstance(node, ast.AnnAssign | ast.AugAssign) and _names(node.target, name) and node.value is not None:
        yield from _given(node.value, function)


def _names(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _events(value: ast.expr | None, function: ast.AST, module: ast.Module) -> list[str]:
    match value:
        case None:
            return [_NO_EVENT]
        case ast.Constant():
            return [str(value.value)]
        case ast.IfExp():
            return [*_events(value.body, function, module), *_events(value.orelse, function, module)]
        case ast.JoinedStr():
            return _filled(value, function, module)
        case ast.Name():
            return _arguments(value.id, function, module) or ["(...)"]
        case _:
            return ["(...)"]


def _filled(value: ast.JoinedStr, function: ast.AST, module: ast.Module) -> list[str]:
    """An event whose name has a part that callers give."""
    texts = [""]
    for part in value.values:
        if isinstance(part, ast.FormattedValue):
            words = _events(part.value, function, module)
        else:
            words = [str(part.value)] if isinstance(part, ast.Constant) else ["..."]
        texts = [text + word for text in texts for word in words]
    return texts


def _arguments(name: str, function: ast.AST, module: ast.Module) -> list[str]:
    """Constants that this module's calls give for a parameter."""
    assert isinstance(function, _FUNCTIONS)
    given: Mapping[str, int] = {each.arg: at for at, each in enumerate(function.args.args)}
    if name not in given:
        return []
    found = set()
    for call in ast.walk(module):
        if isinstance(call, ast.Call):
            called = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            at = given[name] - (1 if "self" in given and isinstance(call.func, ast.Attribute) else 0)
            if called == function.name and len(call.args) > at:
                argument = call.args[at]
                found.add(_constant(argument, module))
    return sorted(found)


def _constant(value: ast.expr, module: ast.Module) -> str:
    """A text that is written down or has a name in the module; ``(...)``: only the running process knows it."""
    if isinstance(value, ast.Constant):
        return str(value.value)
    for node in module.body:
        if isinstance(node, ast.Assign) and isinstance(value, ast.Name) and _names(node.targets[0], value.id):
            return _constant(node.value, module)
    return "(...)"
