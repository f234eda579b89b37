"""Segment limits, and the size of parts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from formats.entries import EntryBatch
from offloader.settings import OffloadSettings, Settings, Size
from offloader.write.quota import PARTS_MAX, entries_that_fit, part_bytes_for, segment_bytes_max

MIB = 1024 * 1024


def test_size_of_a_segment_is_in_mebibytes() -> None:
    settings = OffloadSettings(segment_size_max=Size("1.5MiB"))

    assert segment_bytes_max(settings) == 1_572_864


@pytest.mark.parametrize("mbytes", [0.001, 1, 1024, 300_000, 5 * 1024 * 1024])
def test_no_segment_needs_more_than_ten_thousand_parts(mbytes: float) -> None:
    settings = OffloadSettings(segment_size_max=Size(round(mbytes * 2**20)))

    parts = -(-segment_bytes_max(settings) // part_bytes_for(settings))

    assert parts <= PARTS_MAX
    assert part_bytes_for(settings) >= settings.part_size


@given(st.lists(st.integers(0, 400), min_size=1, max_size=50), st.integers(0, 2000))
def test_the_entry_that_reaches_the_limit_is_the_last_one_in(sizes: list[int], held: int) -> None:
    settings = OffloadSettings(segment_size_max=Size(1024))
    batch = EntryBatch.build(1, 0, [bytes(size) for size in sizes])

    fit = entries_that_fit(batch, held, settings)

    wire = np.cumsum([size + 12 for size in sizes])
    before = held + (int(wire[fit - 2]) if fit > 1 else 0)
    assert fit >= 1
    assert fit == 1 or before < segment_bytes_max(settings)
    assert fit == len(sizes) or held + int(wire[fit - 1]) >= segment_bytes_max(settings)


def test_invalid_settings_are_all_reported_at_once() -> None:
    with pytest.raises(Exception, match=r"offload\.part_size: 1 is not between") as caught:
        Settings.of({"offload": {"part_size": 1, "colour": "red", "codec": "lz77"}, "paint": {}}, origin="a.toml")

    text = str(caught.value)
    for problem in ("a.toml", "offload.colour: no such setting", "offload.codec: 'lz77'", "paint: no such section"):
        assert problem in text
