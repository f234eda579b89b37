"""The Spark data source: its name, options with their defaults, and the columns of each content."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

from offloader.errors import InvalidCallError
from offloader.spark import options as spark_options
from offloader.spark.options import CONTENTS, SourceOptions
from offloader.spark.source import OffloaderDataSource

__all__ = ["spark_source"]


def spark_source() -> str:
    defaults = {each.name: each.default for each in fields(SourceOptions)}
    lines = [f'format("{OffloaderDataSource.name()}")', "\n# options"]
    for name, (attribute, read) in spark_options._OPTIONS.items():
        where = "read and readStream"
        where = "readStream" if name in spark_options._STREAM_ONLY else where
        where = "read" if name in spark_options._BATCH_ONLY else where
        words = _words(name, read)
        kind, default = " ".join(words) or _kind(name, read), defaults[attribute]
        if words:
            default = next(word for word in words if read(name, word) == default)
        given = (
            "required" if name in ("store", "stream") else "no default" if default is None else f"default {default!r}"
        )
        lines.append(f"{name}: {kind}, {given}, {where}")
    for content in CONTENTS:
        lines.append(f"\n# columns of {content}")
        for column, (spark_type, arrow_type) in spark_options._COLUMNS[content].items():
            lines.append(f"{column}: {spark_type}, Arrow {arrow_type}")
    return "\n".join(lines) + "\n"


def _words(name: str, read: Callable[[str, str], object]) -> list[str]:
    """What an option may be that is one of some words, as its refusal names them."""
    try:
        read(name, "?")
    except InvalidCallError as refused:
        _, found, words = refused.message.partition(" is not one of ")
        return words.split(", ") if found else []
    return []


def _kind(name: str, read: Callable[[str, str], object]) -> str:
    """What an option is, by the first text that it takes."""
    samples = {
        "?": "text",
        "2026-01-31": "time",
        "7:8": "position",
        "old=new": "pairs",
        "a/b=7": "number, or stream=number",
        "7": "number",
        "{}": "JSON",
    }
    for sample, kind in samples.items():
        try:
            found = read(name, sample)
        except InvalidCallError:
            continue
        return "list of texts" if isinstance(found, tuple) and kind == "text" else kind
    raise AssertionError(f"option {name} takes none of {', '.join(samples)}")
