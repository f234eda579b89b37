"""Frames from a broker and fills from a bucket: any bytes decode, or raise FormatError and nothing else.

Seeds are what this release writes. In half of the inputs the checksums are made to fit, so that what is behind them is
reached.
"""

from __future__ import annotations

import random
import struct

import numpy as np

from formats.checksum import crc32c
from formats.describe import describe_fill
from formats.entries import EntryBatch
from formats.errors import FormatError
from formats.frames import (
    END_MARK_BYTES,
    FILL_HEADER_BYTES,
    decode_fill,
    decode_fill_header,
    decode_frames,
    encode_fill,
    encode_frames,
)
from tests.proof.fuzz.fuzz_engine import Outcome, Target, attempt
from tests.proof.fuzz.fuzz_mutation import mutate


def _batches() -> list[EntryBatch]:
    made = [
        EntryBatch.build(7, 3, [b"marker", b"", bytes(300)]),
        EntryBatch.build(7, 0, [b"equal"] * 40),
        EntryBatch.build(2**62, 2**62, [b"x"]),
    ]
    apart = EntryBatch(7, np.array([1, 5, 2**40], dtype=np.int64), made[0].payloads, made[0].publish_times_ms)
    return [*made, apart]


def seeds() -> list[bytes]:
    """Fills, and the frames in them."""
    batches = _batches()
    frames = [b"".join(bytes(piece) for piece in encode_frames(some)) for some in ([], *([each] for each in batches))]
    return [*(bytes(encode_fill(batch)) for batch in batches), *frames]


def change(rng: random.Random, pool: list[bytes]) -> bytes:
    """A changed body; in half of them with checksums that fit."""
    data = mutate(rng, pool)
    return sealed(data) if rng.random() < 0.5 else data


def sealed(data: bytes) -> bytes:
    """With the checksums that a fill, or else frames, would have."""
    if len(data) < END_MARK_BYTES:
        return data
    start = FILL_HEADER_BYTES if data[:4] == b"OFIL" and len(data) >= FILL_HEADER_BYTES + END_MARK_BYTES else 0
    head = data[: start - 4] + crc32c(data[: start - 4]).to_bytes(4, "big") if start else b""
    run = data[start:-END_MARK_BYTES]
    return head + run + struct.pack(">iq", -1, crc32c(run))


def checked(batch: EntryBatch) -> list[object]:
    """A decoded batch must be sound, and give the same bytes again."""
    batch.payloads.validate(full=True)
    assert len(batch.payloads) == len(batch.entry_ids) == len(batch.publish_times_ms)
    assert (batch.entry_ids[1:] > batch.entry_ids[:-1]).all()
    assert not len(batch) or batch.entry_ids[0] >= 0
    return [batch.ledger_id, batch.entry_ids.tolist(), batch.payloads.to_pylist()]


def check(data: bytes) -> Outcome:
    """The invariant for one input."""
    frames, place = attempt(lambda: decode_frames(data, ledger_id=7), FormatError)
    outcome: list[object] = [place]
    if frames is not None:
        checked(frames)
        assert b"".join(bytes(piece) for piece in encode_frames([frames])) == data
        outcome.append(min(len(frames), 3))
    fill, place = attempt(lambda: decode_fill(data), FormatError)
    if fill is not None:
        checked(fill)
        assert bytes(encode_fill(fill)) == data
    outcome += [place, attempt(lambda: decode_fill_header(data), FormatError)[1]]
    pieces = list(describe_fill(data))
    assert sum(piece.length for piece in pieces) == len(data)
    return (*outcome, *(bool(piece.problem) for piece in pieces))


TARGETS = [Target("fills", seeds, check, change, per_s=5000)]
