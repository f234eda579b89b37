"""Doctor's finding about streams that close small segments by age: their cost in requests, and the remedy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import islice, takewhile

from offloader.doctor import CheckResult, warning
from offloader.errors import OffloaderError
from offloader.manifest.catalog import list_streams
from offloader.manifest.log import load_manifest
from offloader.manifest.state import ManifestState
from offloader.runtime.clock import Clock
from offloader.settings.layered import SettingsFile
from offloader.store.base import ObjectStore

#: PUT requests per segment closed by age: two manifest records, the data object and the index object.
PUTS_OF_A_SEGMENT = 4
#: Payload bytes below which a segment counts as small.
SMALL_BYTES = 1024 * 1024
#: Maximum number of streams whose manifests are read, and of their newest segments that are checked.
STREAMS_MAX, SEGMENTS_MAX = 500, 100
#: PUT requests per hour of all streams from which on the finding is reported.
PUTS_AN_HOUR_MIN = 100
_HOUR_MS = 3_600_000


def check_small_topics(store: ObjectStore, file: SettingsFile, clock: Clock) -> Iterator[CheckResult]:
    """Counts the small segments of the last hour, and yields a finding if there are many."""
    since_ms = clock.now_ms() - _HOUR_MS
    found = {
        name: count for name in islice(list_streams(store), STREAMS_MAX) if (count := _count(store, name, since_ms))
    }
    puts = PUTS_OF_A_SEGMENT * sum(found.values())
    if puts < PUTS_AN_HOUR_MIN:
        return
    without = [name for name in found if not file.settings_of(name).offload.segment_size_min]
    yield warning(
        "small topics",
        f"{len(found)} streams offloaded {sum(found.values())} segments of less than 1 MiB within the last hour, which "
        f"took about {puts:,} PUT requests; {len(without)} of these streams have no offload.segment_size_min",
        "set offload.segment_size_min, so that small segments are closed at offload.segment_age_limit, and merge "
        "existing segments with `offloader stream compact`",
    )


def _count(store: ObjectStore, stream: str, since_ms: int) -> int:
    with suppress(OffloaderError):  # ``check_streams`` reports unreadable manifests
        return small_segments(load_manifest(store, stream), since_ms)
    return 0


def small_segments(state: ManifestState, since_ms: int) -> int:
    """Number of small segments among a stream's newest ones that were offloaded at ``since_ms`` or later."""
    newest = islice(reversed(state.offloaded()), SEGMENTS_MAX)
    recent = takewhile(lambda each: (each.offloaded_ms or 0) >= since_ms, newest)
    return sum(each.content.payload_bytes < SMALL_BYTES for each in recent)
