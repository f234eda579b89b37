"""A Pulsar message as a line: for people, or as JSON.

Owns what such a line says. Must never print bytes that a terminal would obey, nor decode entries.
"""

from __future__ import annotations

import base64
import codecs
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from offloader.cli.output import json_line

__all__ = ["VALUE_SIGNS_MAX", "message_json", "message_text"]

#: Signs of a value that a line for people shows.
VALUE_SIGNS_MAX = 200
#: Enough for so many signs of UTF-8.
_PREVIEW_BYTES = 4 * VALUE_SIGNS_MAX

_Row = Mapping[str, Any]


def message_text(row: _Row) -> str:
    """``id <tab> publish time <tab> key <tab> value``, the value cut; what isn't an ordinary value is in brackets."""
    key = "-" if row["key"] is None else _one_line(row["key"])
    time = "-" if row["publish_time"] is None else _time(row["publish_time"])
    return "\t".join([_id(row), time, key, _note(row) or _preview(row["value"])])


def message_json(row: _Row) -> str:
    """One object: ``id``, ``publish_time``, ``key``, ``value``, ``properties``, and whatever else is known.

    Bytes are base64 under a name that ends in ``_base64``; a value that is UTF-8 is text.
    """
    shown: dict[str, object] = {"id": _id(row)}
    for name in ("publish_time", "key"):
        shown[name] = _plain(row[name])
    shown |= _value(row["value"])
    shown["properties"] = dict(row["properties"] or ())
    for name, value in row.items():
        if name not in _SHOWN_ALREADY and value is not None and value is not False:
            shown[f"{name}_base64" if isinstance(value, bytes) else name] = _plain(value)
    if row["encryption_keys"]:
        shown["encryption_keys"] = [key["name"] for key in row["encryption_keys"]]
    return json_line(shown)


_SHOWN_ALREADY = frozenset(
    ("ledger_id", "entry_id", "batch_index", "publish_time", "key", "value", "properties", "encryption_keys")
)


def _id(row: _Row) -> str:
    """``7:12``, and in a batch ``7:12:3``."""
    place = f"{row['ledger_id']}:{row['entry_id']}"
    return place if row["batch_index"] < 0 else f"{place}:{row['batch_index']}"


def _value(value: bytes | None) -> dict[str, object]:
    text = _decoded(value) if value is not None else None
    if value is None or text is not None:
        return {"value": text}
    return {"value_base64": _base64(value)}


def _note(row: _Row) -> str:
    """What stands for a value that isn't an ordinary one, in brackets; empty for an ordinary one."""
    value, note = row["value"], ""
    if row["error"] is not None and value is None:
        note = f"error: {row['error']}"
    elif row["marker_type"] is not None:
        note = f"marker {row['marker_type']}"
    elif value is None:
        note = "compacted out" if row["compacted_out"] else "null"
    elif row["encryption_keys"]:
        note = f"encrypted, {len(value)} bytes"
    elif row["chunk_id"] is not None:
        note = f"chunk {row['chunk_id'] + 1} of {row['chunk_count']} of {row['chunk_uuid']}, {len(value)} bytes"
    return f"({_one_line(note)})" if note else ""


def _preview(value: bytes) -> str:
    head = value[:_PREVIEW_BYTES]
    try:
        # The cut may go through a sign, which then isn't shown.
        text = codecs.getincrementaldecoder("utf-8")().decode(head, final=len(head) == len(value))
    except UnicodeDecodeError:
        shown = "base64:" + _base64(value[:VALUE_SIGNS_MAX])
        return shown if len(value) <= VALUE_SIGNS_MAX else f"{shown}..."
    whole = len(head) == len(value) and len(text) <= VALUE_SIGNS_MAX
    return _one_line(text[:VALUE_SIGNS_MAX]) + ("" if whole else "...")


def _one_line(text: str) -> str:
    """Line breaks, tabs and whatever else isn't printable as escapes."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode("ascii") for sign in text)


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return _time(value)
    return _base64(value) if isinstance(value, bytes) else value


def _time(when: datetime) -> str:
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


def _decoded(value: bytes) -> str | None:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return None
