"""JSON documents with a checksum, and typed values in them."""

from __future__ import annotations

import dataclasses
import functools
import json
import types
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NoReturn, Self, Union, cast, get_args, get_origin, get_type_hints
from uuid import UUID

from formats.checksum import crc32c
from formats.entries import Position
from formats.errors import (
    BadMagicError,
    ChecksumMismatchError,
    FormatError,
    InconsistentError,
    TruncatedError,
    UnsupportedVersionError,
    located,
    require_at_most,
)

#: Field metadata: a document omits the field while it has its default. Documents of earlier releases remain readable,
#: and
#: earlier releases read documents without new values.
ABSENT_BY_DEFAULT: Mapping[str, bool] = {"absent_by_default": True}

#: Limit of a document without a smaller one. Parsed JSON may take thirty times its bytes.
DOCUMENT_BYTES_MAX = 256 * 1024 * 1024

#: One for all: ``json.dumps`` with options makes one for each call.
_ENCODER = json.JSONEncoder(separators=(",", ":"), sort_keys=True, ensure_ascii=False, allow_nan=False)

_CRC_SUFFIX = b',"crc32c":"%08x"}'
_CRC_SUFFIX_BYTES = len(_CRC_SUFFIX % 0)

#: Converts a value, at a place in its document, to its field's type.
_Decoder = Callable[[object, str], Any]


def sealed(body: Mapping[str, Any], *, bytes_max: int = DOCUMENT_BYTES_MAX) -> bytes:
    """Encodes JSON with a CRC-32C at its end; deterministic.

    Raises:
        InconsistentError: a text that can't be encoded; everything encoded can be decoded.
        LimitExceededError: more than ``bytes_max`` bytes, which ``opened`` would refuse.
    """
    text = _ENCODER.encode(body)
    try:
        text_bytes = text.encode()
    except UnicodeEncodeError as error:
        raise InconsistentError(f"text that UTF-8 can't hold: {error}") from error
    data = text_bytes[:-1] + _CRC_SUFFIX % crc32c(text_bytes[:-1])
    require_at_most("bytes", len(data), bytes_max)
    return data


def opened(data: bytes, version: int, *, bytes_max: int = DOCUMENT_BYTES_MAX) -> dict[str, Any]:
    """The body in ``data``, of the format ``version`` and of at most ``bytes_max`` bytes; raises ``FormatError``."""
    require_at_most("bytes", len(data), bytes_max)
    # The CRC is at a fixed distance from the end and covers the raw bytes before it, so checking it doesn't depend on
    # JSON libraries producing identical text.
    if len(data) < _CRC_SUFFIX_BYTES + 1:
        raise TruncatedError("too short", expected=f"> {_CRC_SUFFIX_BYTES}", found=len(data))
    if data[:1] != b"{":
        raise BadMagicError("not a JSON object", offset=0, expected="{", found=repr(data[:1]))
    body_bytes, suffix = data[:-_CRC_SUFFIX_BYTES], data[-_CRC_SUFFIX_BYTES:]
    expected = _CRC_SUFFIX % crc32c(body_bytes)
    if suffix != expected:
        raise ChecksumMismatchError("CRC-32C", offset=len(body_bytes), expected=repr(expected), found=repr(suffix))
    try:
        body = json.loads(body_bytes + b"}")
    except (ValueError, RecursionError) as error:
        raise InconsistentError(f"not JSON: {error}") from error
    found = body.pop("format", None)
    if found != version or isinstance(found, bool):
        raise UnsupportedVersionError("format", expected=version, found=found)
    return cast("dict[str, Any]", body)


class CheckedDocument:
    """Base of the dataclasses that form separate objects, of one version and at most ``bytes_max`` bytes."""

    __slots__ = ()
    format_version: ClassVar[int] = 1
    bytes_max: ClassVar[int] = DOCUMENT_BYTES_MAX

    def encode(self) -> bytes:
        """The bytes of the object; the same document always gives the same bytes.

        Raises:
            InconsistentError: a text or a number that can't be encoded.
            LimitExceededError: more than ``bytes_max``.
        """
        return sealed({"format": self.format_version, **to_json(self)}, bytes_max=self.bytes_max)

    @classmethod
    def decode(cls, data: bytes, *, object_name: str = "") -> Self:
        """The document in ``data``; raises ``FormatError``, with the object's name."""
        with located(object_name):
            return cast(Self, from_json(cls, opened(data, cls.format_version, bytes_max=cls.bytes_max)))


def to_json(value: object) -> Any:
    """Converts a manifest value to JSON types: dataclasses to objects, positions to pairs, uuids to text.

    Raises:
        InconsistentError: a number that no field holds; everything encoded can be decoded.
    """
    kind: Any = type(value)
    if kind is int:
        return _checked(value)  # type: ignore[arg-type]
    if kind in (str, bool, type(None)):
        return value
    if kind is Position:
        return [_checked(number) for number in value]  # type: ignore[attr-defined]
    if kind is UUID:
        return str(value)
    if kind in (tuple, list):
        return [to_json(item) for item in value]  # type: ignore[attr-defined]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        found = {}
        for name, is_absent, default in _written_fields(kind):
            own = getattr(value, name)
            if is_absent and own == default:
                continue
            # Most of them, and a call of each takes longer than all else.
            is_plain = own is None or type(own) is str or type(own) is bool
            found[name] = own if is_plain else to_json(own)
        return found
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, int):
        return _checked(int(value))
    return value


def _checked(value: int) -> int:
    if not _is_int64(value):
        raise InconsistentError("a number that no field holds", expected="-2**63 to 2**63 - 1", found=value)
    return int(value)  # a position may have NumPy's integers


def from_json(kind: Any, value: object, path: str = "") -> Any:
    """Converts ``value`` to ``kind``; every mismatch is a ``FormatError`` that names the place."""
    return _decoder(kind)(value, path)


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
    return lambda value, path: None if value is None else decode(value, path)


def _tuple(decode: _Decoder) -> _Decoder:
    def decode_all(value: object, path: str) -> Any:
        if not isinstance(value, list):
            raise _mismatch("tuple", value, path)
        return tuple(decode(item, f"{path}[{number}]") for number, item in enumerate(value))

    return decode_all


def _texts(value: object, path: str) -> Any:
    if isinstance(value, dict) and all(isinstance(each, str) for each in value.values()):
        return value
    raise _mismatch("Mapping", value, path)


def _uuid(value: object, path: str) -> UUID:
    try:
        return UUID(cast(str, value))
    except (ValueError, TypeError, AttributeError) as error:
        raise _mismatch("a UUID", value, path) from error


def _scalar(kind: type) -> _Decoder:
    plain = next(each for each in (bool, int, str) if issubclass(kind, each))

    def decode(value: object, path: str) -> Any:
        if type(value) is plain and (plain is not int or _is_int64(cast(int, value))):
            try:
                return value if kind is plain else kind(value)
            except ValueError as error:  # not a member of the enumeration
                raise _mismatch(kind.__name__, value, path) from error
        raise _mismatch(kind.__name__, value, path)

    return decode


def _is_int64(value: int) -> bool:
    return -(2**63) <= value < 2**63


@functools.cache
def _field_kinds(kind: Any) -> Mapping[str, Any]:
    """Name -> type of each field. One cache entry per kind of document."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


@functools.cache
def _written_fields(kind: Any) -> list[tuple[str, bool, Any]]:
    """Name, whether it may be absent, and its default if so, of each field."""
    absent = _absent_by_default(kind)
    return [(name, name in absent, absent.get(name)) for name in _field_kinds(kind)]


def _absent_by_default(kind: Any) -> Mapping[str, Any]:
    """Name -> default of each field that may be absent."""
    return {each.name: each.default for each in dataclasses.fields(kind) if each.metadata.get("absent_by_default")}


def _dataclass(kind: Any) -> _Decoder:
    fields = [(name, f"{name}.", _decoder(field_kind)) for name, field_kind in _field_kinds(kind).items()]
    names = {name for name, _, _ in fields}
    absent = _absent_by_default(kind)

    def decode(value: object, path: str) -> Any:
        if not isinstance(value, dict):
            raise _mismatch("an object", value, path)
        if value.keys() != names:
            whole = {**absent, **value}
            if whole.keys() != names:
                _refuse_fields(whole, list(_field_kinds(kind)), path)
        return kind(**{name: field(value[name], path + place) for name, place, field in fields if name in value})

    return decode


def _refuse_fields(value: dict[str, object], names: list[str], path: str) -> NoReturn:
    unknown = sorted(set(value) - set(names))
    if unknown:
        raise UnsupportedVersionError(f"unknown field {path}{unknown[0]}", expected=", ".join(names))
    missing = next(name for name in names if name not in value)
    raise InconsistentError(f"field {path}{missing} is missing")


def _position(value: object, path: str) -> Position:
    if isinstance(value, list) and len(value) == 2 and all(type(v) is int and _is_int64(v) for v in value):
        return Position(value[0], value[1])
    raise _mismatch("[ledger id, entry id]", value, path)


def _mismatch(expected: str, value: object, path: str) -> FormatError:
    return InconsistentError(f"field {path.rstrip('.')}", expected=expected, found=repr(value)[:60])
