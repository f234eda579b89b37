"""Adopting ledgers that Pulsar offloaded: found, checked, recorded in place, read like any other stream."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from formats.entries import Position
from offloader.errors import OutcomeUnknownError, StoreUnavailableError
from offloader.read.reader import open_stream_reader
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from offloader.testing.faulty_store import Fault, FaultyStore
from tests.support.golden_bucket import GOLDEN_STREAM, put_golden
from tests.support.streams import StreamWriter, batch_of
from tests.test_adopt import CASES, adopted, digest_of
from tests.test_adopt import store as store


def entries_of(store: ObjectStore) -> list[Position]:
    return [entry.position for batch in open_stream_reader(store, GOLDEN_STREAM).scan() for entry in batch.entries()]


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True], ids=["before its effect", "after it"])
def test_adoption_interrupted_at_any_call_continues_and_hides_nothing(
    after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One segment in a record, history in front of a stream that has entries; the process dies at call n."""
    monkeypatch.setattr("offloader.adopt.RECORD_EDITS_MAX", 1)
    small = [case for case in CASES.values() if case["count"] < 100]
    call = 0
    stopped = True
    while stopped:
        call += 1
        store = open_store(f"memory://adopt-{uuid4().hex}")
        writer = StreamWriter(store, GOLDEN_STREAM)
        writer.add([batch_of(1008, 0, 5)])
        put_golden(store, small)
        calls = Fault(call=call, calls=10**6, after=after)
        try:
            adopted(FaultyStore(store, [calls]), requests_in_flight=1)
            stopped = False
        except (OutcomeUnknownError, StoreUnavailableError):
            seen = entries_of(store)
            assert seen[-5:] == [Position(1008, n) for n in range(5)]
            assert len(seen) == len(set(seen))
        assert adopted(store).problems_count == 0
        seen = entries_of(store)
        assert seen == sorted(set(seen))
        assert len(seen) == sum(case["count"] for case in small) + 5
        writer.add([batch_of(1008, 5, 5)])
    assert call > 20


def test_adoption_works_on_every_s3_server(s3_place: Any) -> None:
    store = s3_place.open()
    put_golden(store)

    done = adopted(store)

    assert done.problems_count == 0
    for case in CASES.values():
        assert digest_of(store, case["ledger"]) == (case["count"], case["sha256"])
    store.close()
