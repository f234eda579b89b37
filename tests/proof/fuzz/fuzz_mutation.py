"""Inputs that are nearly right: bytes cut, spliced and overwritten with extreme numbers; JSON with fields changed.

It knows no decoder.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import random
import string
import types
from collections.abc import Mapping
from typing import Any, Union, get_args, get_origin, get_type_hints
from uuid import UUID

from formats.entries import Position

EXTREMES = [0, 1, 2, 4, 127, 128, 129, 255, 256, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1]
#: What a JSON value may become.
STRANGE: list[Any] = [
    None, True, False, 0, 1, -1, -(2**63), 2**63 - 1, 2**63, 2**64, 1e308, -0.5, 10**400, "", "x", "\x00", "a/b",
    "\ud7ff", "../..", "x" * 5000, [], {}, [[]], [0, 0], [-1, -1], [2**62, 2**62], {"": ""},
    "00000000-0000-0000-0000-000000000000", "NaN",
]  # fmt: skip
#: Bytes of one input; more says nothing new, and takes longer.
INPUT_BYTES_MAX = 64 * 1024


def mutate(rng: random.Random, pool: list[bytes]) -> bytes:
    """Some input of ``pool``, changed in none to eight places."""
    data = bytearray(rng.choice(pool))
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3, 8))):
        if not data:
            break
        at = rng.randrange(len(data))
        match rng.randrange(6):
            case 0:
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                size = rng.choice((1, 2, 4, 8))
                data[at : at + size] = (rng.choice(EXTREMES) % 2 ** (8 * size)).to_bytes(size, "big")
            case 2:
                del data[at:]
            case 3:
                del data[at : at + rng.choice((1, 4, 12, 20, 128))]
            case 4:
                other = rng.choice(pool)
                start = rng.randrange(len(other)) if other else 0
                data[at:at] = other[start : start + rng.choice((1, 12, 128, 500))]
            case 5:
                # Numbers near the head decide most: lengths, counts, offsets.
                at = min(at % 140, len(data) - 1)
                data[at : at + 4] = rng.choice(EXTREMES[:13]).to_bytes(4, "big")
    return bytes(data[:INPUT_BYTES_MAX])


def mutate_text(rng: random.Random, pool: list[bytes], words: list[str]) -> bytes:
    """Text with words dropped, doubled, exchanged, and now and then bytes changed."""
    if rng.random() < 0.2:
        return mutate(rng, pool)
    text = rng.choice(pool).decode("utf-8", "replace")
    for _ in range(rng.choice((1, 1, 2, 4))):
        start = rng.randrange(len(text) + 1)
        stop = min(len(text), start + rng.choice((0, 0, 1, 3, 10, 60)))
        filling = rng.choice(["", "", text[stop : stop + 40], rng.choice(words), rng.choice(string.printable)])
        text = text[:start] + filling + text[stop:]
    return text.encode("utf-8", "surrogatepass")[:INPUT_BYTES_MAX]


def mutate_json(rng: random.Random, value: Any, others: list[Any]) -> Any:
    """A copy of a JSON value with one to four places changed."""
    value = copy.deepcopy(value)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        value = _changed(rng, value, others)
    return value


def _changed(rng: random.Random, value: Any, others: list[Any]) -> Any:
    if isinstance(value, dict) and value and rng.random() < 0.9:
        name = rng.choice(list(value))
        match rng.randrange(8):
            case 0:
                del value[name]
            case 1:
                value[rng.choice(["surplus", name.upper(), "", "format", "crc32c", "edit"])] = copy.deepcopy(
                    rng.choice(STRANGE)
                )
            case _:
                value[name] = _changed(rng, value[name], others)
        return value
    if isinstance(value, list) and value and rng.random() < 0.8:
        at = rng.randrange(len(value))
        match rng.randrange(5):
            case 0:
                del value[at]
            case 1:
                value.insert(at, copy.deepcopy(rng.choice(value)))
            case 2:
                value[at:at] = [copy.deepcopy(rng.choice(STRANGE))]
            case _:
                value[at] = _changed(rng, value[at], others)
        return value
    if isinstance(value, int) and not isinstance(value, bool) and rng.random() < 0.5:
        return value + rng.choice((-1, 1, 2, -value, 2**31, 2**62, -(2**62)))
    if rng.random() < 0.15:
        deep: Any = value
        for _ in range(rng.choice((3, 100, 1200))):
            deep = [deep]
        return deep
    return copy.deepcopy(rng.choice([*STRANGE, *others]))


def made(kind: Any, rng: random.Random) -> Any:
    """Some value of a type as annotations name it: dataclasses, enumerations, tuples, mappings, scalars."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return None if type(None) in arguments and rng.random() < 0.3 else made(arguments[0], rng)
    if origin is tuple:
        return tuple(made(arguments[0], rng) for _ in range(rng.choice((0, 1, 1, 3))))
    if origin is not None and issubclass(origin, Mapping):
        return {made(str, rng): made(str, rng) for _ in range(rng.randrange(3))}
    return made_plain(kind, rng)


def made_plain(kind: Any, rng: random.Random) -> Any:
    """As ``made``, of a type without arguments."""
    if kind is Position:
        return Position(rng.randrange(50), rng.randrange(1000))
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        return kind(**{each.name: made(hints[each.name], rng) for each in dataclasses.fields(kind)})
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return rng.choice(list(kind))
    if kind is UUID:
        return UUID(int=rng.getrandbits(128))
    if kind is bool:
        return rng.random() < 0.5
    if kind is int:
        return rng.choice((0, 1, 7, 1000, 2**40))
    return rng.choice(("", "orders", "public/default/persistent/orders", "0.1", "größer"))
