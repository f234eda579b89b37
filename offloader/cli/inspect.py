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
from offloader.cli.options import Json, StoreArguments, amount, argument
from offloader.cli.output import json_line, print_result
from offloader.errors import ErrorKind
from offloader.inspect.inspect import Inspection, inspect_object

_ROW_BYTES = 16


def run(
    key: Annotated[str, argument("The object's key, as `offloader segments --json` prints it.", metavar="OBJECT")],
    given: StoreArguments,
    limit: Annotated[int, typer.Option("--limit", min=0, help="Most pieces shown; 0 = all.")] = 0,
    hexadecimal: Annotated[bool, typer.Option("--hex", help="Show each piece's first bytes, too.")] = False,
    hex_bytes: Annotated[
        int, amount("--hex-bytes", "How many of them.", "bytes", whole=True, low=1, high=65536, shown=True)
    ] = 128,
    json: Json = False,
) -> int:
    """Show what an object says, piece by piece: data objects, indexes, manifest records, checkpoints.

    Objects that Pulsar wrote are shown, too. Of a damaged object everything before the damage is shown, then where it
    is and what was expected there; the exit code is 6.
    """
    found = inspect_object(given.open(), key)
    head = {"object": found.key, "kind": found.kind, "size_bytes": found.size_bytes, "metadata": found.metadata}
    print_result(head, _head_lines(found), as_json=json)
    damaged = False
    for piece in islice(found.pieces, limit or None):
        damaged |= bool(piece.problem)
        data = found.bytes_of(piece.start, piece.start + min(piece.length, hex_bytes)) if hexadecimal else b""
        facts = {"start": piece.start, "length": piece.length, "what": piece.what, "facts": piece.facts}
        facts |= {"problem": piece.problem or None, **({"hex": data.hex()} if hexadecimal else {})}
        print_result(facts, _piece_lines(piece, data), as_json=json)
    return ErrorKind.DATA_CORRUPTION.value if damaged else 0


def _head_lines(found: Inspection) -> Iterator[str]:
    yield f"{_printable(found.key)}: {found.kind}, {found.size_bytes:,} bytes"
    for name, value in sorted(found.metadata.items()):
        yield f"  {_printable(name)} = {_printable(value)}"


def _piece_lines(piece: DescribedBytes, data: bytes) -> Iterator[str]:
    facts = "  ".join(f"{name}={_value(value)}" for name, value in piece.facts.items())
    yield f"{piece.start:>12}  {piece.length:>10}  {piece.what:<16}  {facts}".rstrip()
    if piece.problem:
        yield f"{'':>12}  damaged: {_printable(piece.problem)}"
    for line in hex_lines(data, piece.start):
        yield f"{'':>12}  {line}"


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
