"""Which entries of a batch were published in an interval, and views of a manifest at a record."""

from __future__ import annotations

from itertools import count

import pytest

from formats.entries import TIME_UNKNOWN_MS, EntryBatch
from offloader.errors import InvalidCallError
from offloader.read.messages import published_between
from offloader.read.reader import load_manifest_at
from offloader.runtime.clock import SystemClock
from offloader.store.memory import MemoryStore
from tests.support.streams import StreamWriter, batch_of

_names = count()


@pytest.mark.parametrize(
    ("start_ms", "end_ms", "wanted"),
    [
        (None, None, [True, True, True, True]),
        (2_000, None, [False, True, True, True]),
        (None, 2_000, [True, False, False, True]),
        (2_000, 3_000, [False, True, False, True]),
    ],
)
def test_interval_has_its_start_and_not_its_end(start_ms: int | None, end_ms: int | None, wanted: list[bool]) -> None:
    """The last entry has no time, and unreadable metadata: it is never left out."""
    batch = EntryBatch.build(1, 0, [b"a", b"b", b"c", b"d"], [1_000, 2_000, 3_000, TIME_UNKNOWN_MS])
    assert published_between(batch, start_ms, end_ms).tolist() == wanted


def test_manifest_is_viewed_up_to_its_newest_record() -> None:
    store = MemoryStore(f"published-{next(_names)}", "", SystemClock())
    writer = StreamWriter(store, "a/b")
    writer.add([batch_of(1, 0, 10)])
    newest = writer.log.state.record_id
    assert load_manifest_at(store, "a/b", newest) == writer.log.state
    with pytest.raises(InvalidCallError, match=f"ends at record {newest}; record {newest + 1} does not exist yet"):
        load_manifest_at(store, "a/b", newest + 1)
