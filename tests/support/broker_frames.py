"""What a broker's plugin makes of bytes, written from the format's description alone: blocks, frames, a whole plan."""

from __future__ import annotations

import struct
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from formats.checksum import crc32c
from tests.support.http_process import Answer
from tests.support.waiting import PATIENCE_S

__all__ = ["Got", "block_entries", "frame_entries", "frames_of", "read_range", "through_plan"]

#: Entry id and payload.
Got = list[tuple[int, bytes]]
_MAGICS = (bytes.fromhex("fbdbabcb"), bytes.fromhex("26a66d32"))


def block_entries(block: bytes) -> Got:
    """The entries of one whole block of either layout."""
    assert block[:4] in _MAGICS
    header_bytes, block_bytes = struct.unpack_from(">qq", block, 4)
    assert block_bytes == len(block)
    found, at = [], header_bytes
    while at + 12 <= len(block):
        length, entry_id = struct.unpack_from(">iq", block, at)
        if length < 0:
            break
        found.append((entry_id, block[at + 12 : at + 12 + length]))
        at += 12 + length
    return found


def frame_entries(body: bytes) -> Got:
    """The entries of frames; raises ``AssertionError`` without a right end mark."""
    assert len(body) >= 12
    mark, checksum = struct.unpack(">iq", body[-12:])
    assert (mark, checksum) == (-1, crc32c(body[:-12]))
    found, at = [], 0
    while at < len(body) - 12:
        length, entry_id = struct.unpack_from(">iq", body, at)
        assert length >= 0
        found.append((entry_id, body[at + 12 : at + 12 + length]))
        at += 12 + length
    assert at == len(body) - 12
    return found


def frames_of(entries: Got) -> bytes:
    """Frames with an end mark, as a broker sends them."""
    body = b"".join(struct.pack(">iq", len(payload), entry_id) + payload for entry_id, payload in entries)
    return body + struct.pack(">iq", -1, crc32c(body))


def read_range(url: str, start: int, stop: int) -> bytes:
    """A ranged GET without any credentials."""
    request = urllib.request.Request(url, headers={"Range": f"bytes={start}-{stop - 1}"})
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        body: bytes = answer.read()
        return body


def through_plan(
    plan: Mapping[str, Any],
    entries: Callable[[int, int], Answer],
    read: Callable[[str, int, int], bytes] = read_range,
) -> Iterator[tuple[int, bytes]]:
    """A ledger's entries, chunk by chunk, everything checked that a plan promises.

    Args:
        entries: asks for frames.
        read: fetches a range of an object.
    """
    expected = 0
    for chunk in plan["chunks"]:
        assert chunk["first"] == expected
        if chunk["object"] < 0:
            assert (chunk["start"], chunk["stop"], list(chunk["blocks"])) == (0, 0, [])
            answer = entries(chunk["first"], chunk["last"])
            assert answer.status == 200, answer.body
            found = frame_entries(answer.body)
        else:
            data = read(plan["objects"][chunk["object"]], chunk["start"], chunk["stop"])
            found, at = [], chunk["start"]
            for start, stop, checksum, first in chunk["blocks"]:
                assert start == at
                block, at = data[start - chunk["start"] : stop - chunk["start"]], stop
                assert checksum in (None, crc32c(block))
                held = block_entries(block)
                assert held[0][0] == first
                found += held
            assert at == chunk["stop"]
        assert [entry_id for entry_id, _ in found] == list(range(chunk["first"], chunk["last"] + 1))
        yield from found
        expected = chunk["last"] + 1
    assert expected == plan["last"] + 1 == plan["entries"]
