"""A column of equal texts."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from formats.entries import repeated_text
from formats.errors import LimitExceededError


@given(st.text(), st.integers(min_value=0, max_value=50))
def test_column_of_equal_texts_is_what_arrow_repeats(text: str, count: int) -> None:
    column = repeated_text(text, count)
    column.validate(full=True)
    assert column.equals(pa.repeat(pa.scalar(text), count))


def test_column_of_equal_texts_beyond_arrows_offsets_is_refused() -> None:
    with pytest.raises(LimitExceededError, match="column of texts"):
        repeated_text("x" * 1024, 1 << 21)
    assert len(repeated_text("", 1 << 21)) == 1 << 21
