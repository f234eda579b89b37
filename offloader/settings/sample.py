"""A sample settings file with every setting, its default and its definition's own description."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from dataclasses import Field, fields
from typing import Any

from offloader.settings import Pairs, Settings
from offloader.settings.fields import allowed
from offloader.settings.layered import ALIASES, METHOD_OF, PROCESS_SECTIONS, PROCESS_SETTINGS, key_of, shown

_WIDTH = 100
_HEAD = """\
# Settings of offloader: for `offloader serve --config FILE`, and for every command that takes --config.
#
# Every setting is here with its default: a line that begins with `#name = value` is the default, take the # away to
# change it. `offloader config check --config FILE` names every mistake, `offloader config explain TOPIC` says what
# counts for a topic and where it comes from. A running process reads the file again on SIGHUP. A duration is a number
# and its unit: ms, s, m, h or d; a size likewise: B, KiB, MiB, GiB or TiB.
"""
_TAIL = """\
# --- parts of it for some streams ---------------------------------------------------------------------------------
# What isn't marked "whole process" can be set for a namespace and for a topic too; the topic counts before the
# namespace, the namespace before what is above.
#
#[namespaces."public/default".offload]
#codec = "zstd"
#
#[topics."public/default/persistent/orders".retention]
#policy = "time"
#min_age = "7d"
"""
_UNITS = {"s": "seconds", "m": "minutes", "B": "bytes", "MiB": "MiB"}
#: Settings that a new file has to set.
_EXAMPLES = {"serve.store": '"s3://BUCKET/ROOT"', "offload.method": '"streaming"'}


def sample_settings() -> str:
    """The text of the file."""
    # Sections with required settings first.
    names = sorted((section.name for section in fields(Settings)), key=lambda name: name != "serve")
    sections = ["\n".join(_section(name, getattr(Settings(), name))) + "\n" for name in names]
    return "\n".join([_HEAD, *sections, _TAIL])


def _section(name: str, values: Any) -> Iterator[str]:
    words = " ".join((type(values).__doc__ or "").split())
    whole = " Whole process." if name in PROCESS_SECTIONS else ""
    yield from _comment(f"{words}{whole}")
    yield f"[{name}]"
    for each in fields(values):
        yield ""
        yield from _comment(_said(name, each))
        full = f"{name}.{each.name}"
        key = key_of(full).partition(".")[2]
        yield f"{key} = {_EXAMPLES[full]}" if full in _EXAMPLES else f"#{key} = {_toml(shown(full, each.default))}"


def _said(section: str, each: Field[Any]) -> str:
    full = f"{section}.{each.name}"
    notes = [allowed(each.metadata)]
    if full in METHOD_OF:
        notes.append(f"only for the method {METHOD_OF[full]}")
    if full in ALIASES:
        notes.append(f"also as a number, {each.name} in {_UNITS[each.metadata['unit']]}")
    if full in PROCESS_SETTINGS:
        notes.append("whole process")
    doc = str(each.metadata["doc"])
    return f"{doc[0].upper()}{doc[1:]} ({'; '.join(notes)})."


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="# ", subsequent_indent="# ", break_long_words=False)


def _toml(value: Any) -> str:
    return "{}" if isinstance(value, Pairs) else json.dumps(value)
