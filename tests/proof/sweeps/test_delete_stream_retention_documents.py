"""Retention documents of deleted streams and topics are deleted, and those of live ones never."""

from __future__ import annotations

import contextlib

import pytest

from formats.documents import (
    retention_prefix,
)
from offloader.errors import OffloaderError
from offloader.gc.delete_stream import remove_stream
from offloader.gc.sweep import cleanup_all
from offloader.testing.faulty_store import Fault, FaultyStore
from tests.gc.test_delete_stream_retention_documents import (
    DAY_S,
    GRACELESS,
    PARTITIONS,
    kinds,
    lived,
    reconcile,
    remaining,
    rounds,
)
from tests.retention.retained_streams import STREAM, TOPIC

pytestmark = pytest.mark.slow


def test_topic_deletion_interrupted_at_any_request_is_completed_later() -> None:
    """The last round of a topic's deletion is broken off before each of its requests for the topic, for good."""
    for call in range(1, 20):
        bench = lived()
        for stream in PARTITIONS:
            remove_stream(bench.memory, stream, clock=bench.clock, ignore_leases=True)
        bench.clock.advance(DAY_S + 1)
        store = FaultyStore(bench.memory)
        store.set_faults([Fault(call=call, calls=10**6, key_part=retention_prefix(TOPIC))])
        with contextlib.suppress(OffloaderError):
            list(cleanup_all(store, clock=bench.clock, settings_of=lambda _: GRACELESS))
        for _ in range(2):  # one lets go, the next removes what was let go of
            bench.clock.advance(DAY_S + 1)
            rounds(bench)
            reconcile(bench.memory, bench.clock)
        assert not [key for key in remaining(bench.memory) if TOPIC in key], call
        assert "subscribers" in kinds(bench, STREAM)
        if sum(key.startswith(retention_prefix(TOPIC)) for _, key in store.calls) < call:
            assert call > 4
            return
    raise AssertionError("no round was without a fault")
