"""Doctor's finding on streams that close small segments by age."""

from __future__ import annotations

from itertools import count

import pytest

from offloader.doctor import Outcome
from offloader.service.small_topics import PUTS_AN_HOUR_MIN, PUTS_OF_A_SEGMENT, check_small_topics
from offloader.settings.layered import SettingsFile, parse_settings
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from offloader.testing.manual_clock import ManualClock
from tests.support.streams import BASE_MS, StreamWriter, batch_of

_names = count()


def store_of(segments: int, *, size: int = 20) -> ObjectStore:
    """Five streams with so many segments each, all offloaded at ``BASE_MS``."""
    store = open_store(f"memory://small-topics-{next(_names)}")
    for number in range(5):
        writer = StreamWriter(store, f"t/{number}")
        for first in range(segments):
            writer.add([batch_of(1, first, 1, size=size)])
    return store


def test_small_segments_of_the_last_hour_are_counted() -> None:
    file = parse_settings("[topics.'t/0'.offload]\nmethod = 'streaming'\nsegment_size_min = '1MiB'\n", "settings.toml")
    [found] = check_small_topics(store_of(6), file, ManualClock(BASE_MS + 60_000))
    assert found.outcome is Outcome.WARNING
    assert found.what == (
        "5 streams offloaded 30 segments of less than 1 MiB within the last hour, which took about 120 PUT requests; "
        "4 of these streams have no offload.segment_size_min"
    )
    assert "offload.segment_age_limit" in found.hint


@pytest.mark.slow
def test_few_old_or_large_segments_are_no_finding() -> None:
    few = PUTS_AN_HOUR_MIN // PUTS_OF_A_SEGMENT // 5 - 1
    assert not list(check_small_topics(store_of(few), SettingsFile(), ManualClock(BASE_MS + 60_000)))
    assert not list(check_small_topics(store_of(6), SettingsFile(), ManualClock(BASE_MS + 3_700_000)))
    large = store_of(6, size=1024 * 1024)
    assert not list(check_small_topics(large, SettingsFile(), ManualClock(BASE_MS + 60_000)))
