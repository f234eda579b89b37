"""JSON documents with a checksum, and typed values in them."""

from __future__ import annotations

import dataclasses
import functools
import json
import types
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, Union, cast, get_args, get_origin, get_type_hints
from uuid import UUID

from formats.checksum import crc32c
from formats.entries import Position
from formats.errors import (
    BadMagic,
    ChecksumMismatch,
    FormatError,
    Inconsistent,
    LimitExceeded,
    Truncated,
    UnsupportedVersion,
)

__all__ = ["ABSENT_BY_DEFAULT", "DOCUMENT_BYTES_MAX", "from_json", "opened", "sealed", "to_json"]

#: Field metadata: a document omits the field while it has its default. Documents of earlier releases stay readable, and
#: earlier releases read documents without new values.
ABSENT_BY_DEFAULT: Mapping[str, bool] = {"absent_by_default": True}

#: Limit of a document without a smaller one. Parsed JSON may take thirty times its bytes.
DOCUMENT_BYTES_MAX = 256 * 1024 * 1024

_CRC_SUFFIX = b',"crc32c":"%08x"}'
_CRC_SUFFIX_BYTES = len(_CRC_SUFFIX % 0)
_AS_THEY_ARE = frozenset({str, bool, type(None)})
_SEQUENCES = frozenset({tuple, list})

#: Converts a value, of the named object, at a place in it, to its field's type.
_Decoder = Callable[[object, str, str], Any]


def sealed(body: Mapping[str, Any], *, bytes_max: int = DOCUMENT_BYTES_MAX) -> bytes:
    """Encodes JSON with a CRC-32C at its end; deterministic.

    Raises:
        Inconsistent: a text that can't be encoded; everything encoded can be decoded.
        LimitExceeded: more than ``bytes_max`` bytes, which ``opened`` would refuse.
    """
    text = json.dumps(body, separators=(",", ":"), sort_keys=True, ensure_ascii=False, allow_nan=False)
    try:
        text_bytes = text.encode()
    except UnicodeEncodeError as error:
        raise Inconsistent(f"text that UTF-8 can't hold: {error}") from error
    data = text_bytes[:-1] + _CRC_SUFFIX % crc32c(text_bytes[:-1])
    _require_size(data, bytes_max, "")
    return data


def opened(data: bytes, version: int, object_name: str, *, bytes_max: int = DOCUMENT_BYTES_MAX) -> dict[str, Any]:
    """The body in ``data``, of the format ``version`` and of at most ``bytes_max`` bytes; raises ``FormatError``."""
    _require_size(data, bytes_max, object_name)
    # The CRC is at a fixed distance from the end and covers the raw bytes before it, so checking it doesn't depend on
    # JSON libraries producing identical text.
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


def _require_size(data: bytes, bytes_max: int, object_name: str) -> None:
    if len(data) > bytes_max:
        raise LimitExceeded("bytes", object_name=object_name, expected=f"at most {bytes_max}", found=len(data))


def to_json(value: object) -> Any:
    """Converts a manifest value to JSON types: dataclasses to objects, positions to pairs, uuids to text.

    Raises:
        Inconsistent: a number that no field holds; everything encoded can be decoded.
    """
    kind: Any = type(value)
    if kind is int:
        return _checked(value)  # type: ignore[arg-type]
    if kind in _AS_THEY_ARE:
        return value
    if kind is Position:
        return [_checked(number) for number in value]  # type: ignore[attr-defined]
    if kind is UUID:
        return str(value)
    if kind in _SEQUENCES:
        return [to_json(item) for item in value]  # type: ignore[attr-defined]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        absent = _absent_by_default(kind)
        names = _field_kinds(kind)
        if absent:
            names = {name: None for name in names if name not in absent or getattr(value, name) != absent[name]}
        return {name: to_json(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, int):
        return _checked(int(value))
    return value


def _checked(value: int) -> int:
    if not _is_int64(value):
        raise Inconsistent("a number that no field holds", expected="-2**63 to 2**63 - 1", found=value)
    return value


def from_json(kind: Any, value: object, object_name: str, path: str = "") -> Any:
    """Converts ``value`` to ``kind``; every mismatch is a ``FormatError`` that names the place."""
    return _decoder(kind)(value, object_name, path)


@functools.cache
def _decoder(kind: Any) -> _Decoder:
    """The converter to ``kind``; cached, because inspecting types takes longer than converting."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _optional(_decoder(next(option for option in arguments if option is not type(None))))
    if kind is Position:
        return _position
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind)
    if origin is tuple:
        return _tuple(_decoder(arguments[0]))
    if origin is Mapping:
        return _texts
    return _uuid if kind is UUID else _scalar(kind)


def _optional(decode: _Decoder) -> _Decoder:
    return lambda value, object_name, path: None if value is None else decode(value, object_name, path)


def _tuple(decode: _Decoder) -> _Decoder:
    def decode_all(value: object, object_name: str, path: str) -> Any:
        if not isinstance(value, list):
            raise _mismatch("tuple", value, object_name, path)
        return tuple(decode(item, object_name, f"{path}[{number}]") for number, item in enumerate(value))

    return decode_all


def _texts(value: object, object_name: str, path: str) -> Any:
    if isinstance(value, dict) and all(isinstance(each, str) for each in value.values()):
        return value
    raise _mismatch("Mapping", value, object_name, path)


def _uuid(value: object, object_name: str, path: str) -> UUID:
    try:
        if isinstance(value, str):
            return UUID(value)
    except ValueError as error:
        raise _mismatch("a UUID", value, object_name, path) from error
    raise _mismatch("UUID", value, object_name, path)


def _scalar(kind: Any) -> _Decoder:
    plain = kind in (str, bool)

    def decode(value: object, object_name: str, path: str) -> Any:
        if plain and type(value) is kind:
            return value
        if kind is int and type(value) is int and _is_int64(value):
            return value
        if isinstance(kind, type) and _is_scalar(kind, value):
            try:
                return kind(value)
            except ValueError as error:  # not a member of the enumeration
                raise _mismatch(kind.__name__, value, object_name, path) from error
        raise _mismatch(getattr(kind, "__name__", str(kind)), value, object_name, path)

    return decode


def _is_scalar(kind: type, value: object) -> bool:
    if kind is bool or isinstance(value, bool):
        return kind is bool and isinstance(value, bool)
    if issubclass(kind, int):
        return isinstance(value, int) and _is_int64(value)
    return issubclass(kind, str) and isinstance(value, str)


def _is_int64(value: int) -> bool:
    return -(2**63) <= value < 2**63


@functools.cache
def _field_kinds(kind: Any) -> Mapping[str, Any]:
    """Name -> type of each field. One cache entry per kind of document."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


@functools.cache
def _absent_by_default(kind: Any) -> Mapping[str, Any]:
    """Name -> default of each field that may be absent."""
    fields = dataclasses.fields(kind)
    return {field.name: field.default for field in fields if field.metadata.get("absent_by_default")}


def _dataclass(kind: Any) -> _Decoder:
    fields = [(name, f"{name}.", _decoder(field_kind)) for name, field_kind in _field_kinds(kind).items()]
    names = {name for name, _, _ in fields}
    absent = _absent_by_default(kind)

    def decode(value: object, object_name: str, path: str) -> Any:
        if not isinstance(value, dict):
            raise _mismatch("an object", value, object_name, path)
        if value.keys() != names:
            whole = {**absent, **value}
            if whole.keys() != names:
                _refuse_fields(whole, list(_field_kinds(kind)), object_name, path)
        return kind(
            **{name: field(value[name], object_name, path + place) for name, place, field in fields if name in value}
        )

    return decode


def _refuse_fields(value: dict[str, object], names: list[str], object_name: str, path: str) -> NoReturn:
    unknown = sorted(set(value) - set(names))
    if unknown:
        raise UnsupportedVersion(
            f"unknown field {path}{unknown[0]}", object_name=object_name, expected=", ".join(names)
        )
    missing = next(name for name in names if name not in value)
    raise Inconsistent(f"field {path}{missing} is missing", object_name=object_name)


def _position(value: object, object_name: str, path: str) -> Position:
    if (
        isinstance(value, list)
        and len(value) == 2
        and all(isinstance(v, int) and not isinstance(v, bool) and _is_int64(v) for v in value)
    ):
        return Position(value[0], value[1])
    raise _mismatch("[ledger id, entry id]", value, object_name, path)


def _mismatch(expected: str, value: object, object_name: str, path: str) -> FormatError:
    return Inconsistent(f"field {path.rstrip('.')}", object_name=object_name, expected=expected, found=repr(value)[:60])
