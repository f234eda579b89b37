"""Signatures and types as text, without the modules they come from."""

from __future__ import annotations

import enum
import inspect
import re
from collections.abc import Callable
from typing import Any

__all__ = ["default_text", "short_type", "signature_text"]

_MODULES = re.compile(r"\b(?:[a-z_][a-z0-9_]*\.)+(?=[A-Za-z_])")


def short_type(annotation: Any) -> str:
    """A type by its short name: ``collections.abc.Iterator[offloader.x.Y]`` is ``Iterator[Y]``."""
    if annotation is inspect.Parameter.empty:
        return ""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return _MODULES.sub("", text).replace('"', "'")


def default_text(value: object) -> str:
    """A default, the same in every process."""
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if inspect.isroutine(value) or inspect.isclass(value):
        return getattr(value, "__name__", "...").replace("<lambda>", "...")
    text = repr(value)
    return "..." if " at 0x" in text else _MODULES.sub("", text)


def signature_text(function: Callable[..., Any], *, bound: bool = False) -> str:
    """``(name: type = default, *, ...) -> type``; ``bound``: without the first parameter."""
    signature = inspect.signature(function)
    given = list(signature.parameters.values())[1 if bound else 0 :]
    words, starred, positional = [], False, False
    for each in given:
        if positional and each.kind is not each.POSITIONAL_ONLY:
            words.append("/")
            positional = False
        if each.kind is each.KEYWORD_ONLY and not starred:
            words.append("*")
            starred = True
        starred = starred or each.kind is each.VAR_POSITIONAL
        positional = positional or each.kind is each.POSITIONAL_ONLY
        mark = "*" if each.kind is each.VAR_POSITIONAL else "**" if each.kind is each.VAR_KEYWORD else ""
        kind, default = short_type(each.annotation), each.default
        words.append(
            f"{mark}{each.name}{f': {kind}' if kind else ''}"
            f"{'' if default is each.empty else f' = {default_text(default)}'}"
        )
    answer = short_type(signature.return_annotation)
    return f"({', '.join(words)}){f' -> {answer}' if answer else ''}"
