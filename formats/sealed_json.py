"""JSON documents with a checksum, and typed values in them.

Owns how values become JSON and how every mismatch on the way back becomes a ``FormatError`` that names the field. Must
never know which documents there are.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import types
from collections.abc import Mapping
from functools import cache
from typing import Any, Union, cast, get_args, get_origin, get_type_hints
from uuid import UUID

from formats.checksum import crc32c
from formats.entries import Position
from formats.errors import BadMagic, ChecksumMismatch, FormatError, Inconsistent, Truncated, UnsupportedVersion

__all__ = ["from_json", "opened", "sealed", "to_json"]

_CRC_SUFFIX = b',"crc32c":"%08x"}'
_CRC_SUFFIX_BYTES = len(_CRC_SUFFIX % 0)


def sealed(body: Mapping[str, Any]) -> bytes:
    """JSON with a CRC-32C at its end; the same body always gives the same bytes."""
    text = json.dumps(body, separators=(",", ":"), sort_keys=True, ensure_ascii=False, allow_nan=False).encode()
    return text[:-1] + _CRC_SUFFIX % crc32c(text[:-1])


def opened(data: bytes, version: int, object_name: str) -> dict[str, Any]:
    """The body in ``data``, of the format ``version``; raises ``FormatError``."""
    # The CRC stands at a fixed distance from the end and covers the raw bytes before it, so that checking it depends
    # on no JSON library writing the same text twice.
    if len(data) < _CRC_SUFFIX_BYTES + 1:
        raise Truncated("too short", object_name=object_name, expected=f"> {_CRC_SUFFIX_BYTES}", found=len(data))
    if data[:1] != b"{":
        raise BadMagic("not a JSON object", object_name=object_name, offset=0, expected="{", found=repr(data[:1]))
    body_bytes, suffix = data[:-_CRC_SUFFIX_BYTES], data[-_CRC_SUFFIX_BYTES:]
    expected = _CRC_SUFFIX % crc32c(body_bytes)
    if suffix != expected:
        raise ChecksumMismatch(
            "CRC-32C", object_name=object_name, offset=len(body_bytes), expected=repr(expected), found=repr(suffix)
        )
    try:
        body = json.loads(body_bytes + b"}")
    except (ValueError, RecursionError) as error:
        raise Inconsistent(f"not JSON: {error}", object_name=object_name) from error
    found = body.pop("format", None)
    if found != version or isinstance(found, bool):
        raise UnsupportedVersion("format", object_name=object_name, expected=version, found=found)
    return cast("dict[str, Any]", body)


def to_json(value: object) -> Any:
    """A value of the manifest as what JSON has: dataclasses become objects, positions pairs, uuids text."""
    if isinstance(value, Position):
        return [value.ledger_id, value.entry_id]
    if isinstance(value, UUID):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [to_json(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    return value


def from_json(kind: Any, value: object, object_name: str, path: str = "") -> Any:
    """``value`` as ``kind``; every mismatch is a ``FormatError`` that names the place."""
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        if value is None:
            return None
        kind = next(option for option in get_args(kind) if option is not type(None))
        origin = get_origin(kind)
    if kind is Position:
        return _position(value, object_name, path)
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind, value, object_name, path)
    if origin is tuple and isinstance(value, list):
        item = get_args(kind)[0]
        return tuple(from_json(item, v, object_name, f"{path}[{i}]") for i, v in enumerate(value))
    if origin is Mapping and isinstance(value, dict) and all(isinstance(v, str) for v in value.values()):
        return value
    if kind is UUID and isinstance(value, str):
        try:
            return UUID(value)
        except ValueError as error:
            raise _mismatch("a UUID", value, object_name, path) from error
    if isinstance(kind, type) and _is_scalar(kind, value):
        try:
            return kind(value)
        except ValueError as error:  # a number that is no member of an enumeration
            raise _mismatch(kind.__name__, value, object_name, path) from error
    raise _mismatch(getattr(kind, "__name__", str(kind)), value, object_name, path)


def _is_scalar(kind: type, value: object) -> bool:
    if kind is bool or isinstance(value, bool):
        return kind is bool and isinstance(value, bool)
    if issubclass(kind, int):
        return isinstance(value, int) and abs(value) < 2**63
    return issubclass(kind, str) and isinstance(value, str)


@functools.cache
def _field_kinds(kind: Any) -> Mapping[str, Any]:
    """Name -> type of each field. There are as many entries as kinds of documents."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _dataclass(kind: Any, value: object, object_name: str, path: str) -> Any:
    if not isinstance(value, dict):
        raise _mismatch("an object", value, object_name, path)
    hints = _hints(kind)
    names = [f.name for f in dataclasses.fields(kind)]
    unknown, missing = sorted(set(value) - set(names)), [name for name in names if name not in value]
    if unknown:
        raise UnsupportedVersion(
            f"unknown field {path}{unknown[0]}", object_name=object_name, expected=", ".join(names)
        )
    if missing:
        raise Inconsistent(f"field {path}{missing[0]} is missing", object_name=object_name)
    return kind(**{name: from_json(hints[name], value[name], object_name, f"{path}{name}.") for name in names})


@cache
def _hints(kind: Any) -> dict[str, Any]:
    # Evaluating the annotations takes longer than all the rest of decoding a record.
    return get_type_hints(kind)


def _position(value: object, object_name: str, path: str) -> Position:
    if (
        isinstance(value, list)
        and len(value) == 2
        and all(isinstance(v, int) and not isinstance(v, bool) and abs(v) < 2**63 for v in value)
    ):
        return Position(value[0], value[1])
    raise _mismatch("[ledger id, entry id]", value, object_name, path)


def _mismatch(expected: str, value: object, object_name: str, path: str) -> FormatError:
    return Inconsistent(f"field {path.rstrip('.')}", object_name=object_name, expected=expected, found=repr(value)[:60])
