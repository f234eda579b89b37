"""``offloader inspect OBJECT``: one object of the store, header by header.

Escapes control characters: a terminal obeys none of the object's bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Annotated

import typer

from formats.describe import DescribedBytes
from formats.entries import Position
from offloader.cli.options import Json, StoreArguments
from offloader.cli.output import json_line
from offloader.errors import ErrorKind
from offloader.inspect.inspect import Inspection, inspect_object

__all__ = ["hex_lines", "run"]

_ROW_BYTES = 16


def run(
    key: Annotated[
        str,
        typer.Argument(
            metavar="OBJECT", help="The object's key, as `offloader segments --json` prints it.", show_default=False
        ),
    ],
    given: StoreArguments,
    limit: Annotated[int, typer.Option("--limit", min=0, help="Most pieces shown; 0 = all.")] = 0,
    hexadecimal: Annotated[bool, typer.Option("--hex", help="Show each piece's first bytes, too.")] = False,
    hex_bytes: Annotated[int, typer.Option("--hex-bytes", min=1, max=65536, help="How many of them.")] = 128,
    json: Json = False,
) -> int:
    """Show what an object says, piece by piece: data objects, indexes, manifest records, checkpoints.

    Objects that Pulsar wrote are shown, too. Of a damaged object everything before the damage is shown, then where it
    is and what was expected there; the exit code is 6.
    """
    found = inspect_object(given.open(), key)
    pieces = islice(found.pieces, limit or None)
    count = hex_bytes if hexadecimal else 0
    damaged = _print_json(found, pieces, count) if json else _print_text(found, pieces, count)
    return ErrorKind.REPAIR_DATA.value if damaged else 0


def _print_text(found: Inspection, pieces: Iterator[DescribedBytes], hex_bytes: int) -> bool:
    print(f"{_printable(found.key)}: {found.kind}, {found.size_bytes:,} bytes")
    for name, value in sorted(found.metadata.items()):
        print(f"  {_printable(name)} = {_printable(value)}")
    damaged = False
    for piece in pieces:
        damaged |= bool(piece.problem)
        facts = "  ".join(f"{name}={_value(value)}" for name, value in piece.facts.items())
        print(f"{piece.start:>12}  {piece.length:>10}  {piece.what:<16}  {facts}".rstrip())
        if piece.problem:
            print(f"{'':>12}  damaged: {_printable(piece.problem)}")
        for line in hex_lines(_first_bytes(found, piece, hex_bytes), piece.start):
            print(f"{'':>12}  {line}")
    return damaged


def _print_json(found: Inspection, pieces: Iterator[DescribedBytes], hex_bytes: int) -> bool:
    print(
        json_line(
            {
                "object": found.key,
                "kind": found.kind,
                "size_bytes": found.size_bytes,
                "metadata": found.metadata,
            }
        )
    )
    damaged = False
    for piece in pieces:
        damaged |= bool(piece.problem)
        row = {"start": piece.start, "length": piece.length, "what": piece.what, "facts": piece.facts}
        shown = {"hex": _first_bytes(found, piece, hex_bytes).hex()} if hex_bytes else {}
        print(json_line({**row, "problem": piece.problem or None, **shown}))
    return damaged


def _first_bytes(found: Inspection, piece: DescribedBytes, count: int) -> bytes:
    return found.bytes_of(piece.start, piece.start + min(piece.length, count)) if count else b""


def hex_lines(data: bytes, start: int) -> Iterator[str]:
    """Rows of 16 bytes: offset, hexadecimal, and their printable ASCII."""
    for at in range(0, len(data), _ROW_BYTES):
        row = data[at : at + _ROW_BYTES]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        yield f"{start + at:08x}  {row.hex(' '):<{3 * _ROW_BYTES - 1}}  {text}"


def _value(value: object) -> str:
    if isinstance(value, Mapping | list | tuple) and not isinstance(value, Position):
        return _printable(json_line({"": value})[5:-1])
    return _printable(str(value))


def _printable(text: str) -> str:
    return "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in text)
