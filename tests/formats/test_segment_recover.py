"""An index recovered from a data object alone: the writer's own bytes, and nothing from a damaged object."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formats.entries import EntryBatch
from formats.errors import FormatError, InconsistentError, LimitExceededError, TruncatedError
from formats.extension import Codec
from formats.segment import FinishedSegment, LedgerFacts, SegmentBuilder, SegmentRecovery
from formats.summary import Layout

PART_BYTES = 3000


def written(
    runs: list[list[int]], codec: Codec = Codec.NONE, layout: Layout = Layout.V2, extension: bool = True
) -> tuple[bytes, FinishedSegment, dict[int, LedgerFacts]]:
    """One ledger for each list of payload sizes; the data object, how it was finished, the facts given."""
    builder = SegmentBuilder(layout=layout, block_bytes=700, part_bytes=PART_BYTES, codec=codec, extension=extension)
    parts = []
    facts = {}
    for ledger_id, sizes in enumerate(runs, 3):
        payloads = [bytes([number % 7]) * size for number, size in enumerate(sizes)]
        times = [1_700_000_000_000 + number if number % 3 else -1 for number in range(len(sizes))]
        parts += builder.append(EntryBatch.build(ledger_id, 0, payloads, times))
        facts[ledger_id] = LedgerFacts(ledger_id=ledger_id, closed=ledger_id % 2 == 0, size_bytes=5, closed_ms=9)
    finished = builder.finish(facts)
    return b"".join(bytes(part.body) for part in [*parts, *finished.parts]), finished, facts


def recovery(**changes: object) -> SegmentRecovery:
    limits = {"part_bytes": PART_BYTES, "block_bytes_max": 2**20, "decompressed_bytes_max": 2**20, **changes}
    return SegmentRecovery(**limits)  # type: ignore[arg-type]


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    runs=st.lists(st.lists(st.integers(0, 900), min_size=1, max_size=20), min_size=1, max_size=4),
    codec=st.sampled_from(Codec),
    cut=st.integers(1, 2000),
)
def test_the_recovered_index_is_the_writers_own_byte_for_byte(runs: list[list[int]], codec: Codec, cut: int) -> None:
    data, finished, facts = written(runs, codec)
    found = recovery()

    for start in range(0, len(data), cut):
        found.feed(data[start : start + cut])

    assert found.finish(facts) == (finished.index, finished.summary)


def test_v1_object_is_recovered_with_its_ledger() -> None:
    data, finished, facts = written([[100] * 30], layout=Layout.V1)
    found = recovery(layout=Layout.V1, ledger_id=3)
    found.feed(data)
    assert found.finish(facts) == (finished.index, finished.summary)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(at=st.integers(0, 10_000), flip=st.integers(1, 255))
def test_damaged_byte_is_found_at_any_offset(at: int, flip: int) -> None:
    """All but the padding of the end marker is covered by a checksum; a damaged marker changes no entry."""
    data, finished, facts = written([[50] * 20, [300] * 5])
    damaged = bytearray(data)
    damaged[at % len(data)] ^= flip
    found = recovery()
    try:
        found.feed(bytes(damaged))
        _, summary = found.finish(facts)
    except FormatError:
        return
    assert summary.data_crc32c != finished.summary.data_crc32c
    assert (summary.begin, summary.end, summary.entries) == (
        finished.summary.begin,
        finished.summary.end,
        finished.summary.entries,
    )


def test_an_object_that_ends_within_a_block_or_is_empty_is_no_segment() -> None:
    data, _, facts = written([[50] * 20])
    short = recovery()
    short.feed(data[:-1])
    with pytest.raises(TruncatedError, match="data object"):
        short.finish(facts)
    with pytest.raises(TruncatedError, match="0 blocks and 0 bytes"):
        recovery().finish()


def test_foreign_oversized_and_unordered_blocks_are_refused() -> None:
    plain, _, _ = written([[50] * 20], extension=False)
    with pytest.raises(InconsistentError, match="without it"):
        recovery().feed(plain)
    data, _, _ = written([[50] * 20])
    with pytest.raises(InconsistentError, match="expected V1"):
        recovery(layout=Layout.V1, ledger_id=3).feed(data)
    with pytest.raises(LimitExceededError, match="block is too large"):
        recovery(block_bytes_max=500).feed(data)
    with pytest.raises(InconsistentError, match="out of order"):
        recovery().feed(data + data)
