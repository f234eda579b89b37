"""Documents of too many bytes are refused before they are parsed, and impossible runs before they are read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any
from uuid import UUID

import numpy as np
import pytest

from formats.checked_json import sealed
from formats.checkpoint import Checkpoint, RowRange, RunRef, decode_checkpoint, encode_checkpoint, run_name
from formats.checkpoint_parquet import SegmentColumns, decode_columns, encode_columns
from formats.errors import FormatError, LimitExceededError
from formats.keys import STREAM_BYTES_MAX
from formats.manifest import Boundary, CatalogEntry, Pause, decode_record
from offloader.errors import InvalidCallError
from offloader.manifest.compaction import plan_checkpoint
from offloader.manifest.log import ManifestLog, load_manifest
from offloader.manifest.segment_table import columns_of
from offloader.runtime.clock import SystemClock
from offloader.store.memory import MemoryStore
from offloader.testing.manual_clock import ManualClock
from tests.support.manifests import segment_edits

_names = count()


@pytest.mark.slow
def test_segments_of_very_many_equal_ledgers_round_trip() -> None:
    """What compresses best of all that is right: ledgers that differ in nothing but their ids."""
    columns = segments_with_ledgers(segments=40, ledgers=5000)
    again = decode_columns(encode_columns(columns, {}))
    assert again.spans.tolist() == columns.spans.tolist()
    assert again.span_rows.tolist() == columns.span_rows.tolist()


def segments_with_ledgers(segments: int, ledgers: int) -> SegmentColumns:
    edits = [edit for number in range(segments) for edit in segment_edits(number)]
    log = manifest_log()
    log.open_epoch()
    log.commit(edits)
    columns = columns_of(log.state.segments.values())
    spans = np.tile(np.array([0, 0, 9, 10, 1000]), (segments * ledgers, 1))
    spans[:, 0] = np.arange(len(spans))
    offsets = np.arange(segments + 1) * ledgers
    return replace(columns, span_rows=np.arange(segments), span_offsets=offsets, spans=spans)


def manifest_log() -> ManifestLog:
    return ManifestLog(MemoryStore(f"size-limits-{next(_names)}", "", SystemClock()), "orders", clock=ManualClock())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("decode", "most"),
    [(decode_record, 16 * 1024 * 1024), (Boundary.decode, 4 * 1024), (CatalogEntry.decode, 16 * 1024)],
)
def test_oversized_document_is_refused_before_it_is_parsed(decode: Callable[[bytes], object], most: int) -> None:
    for size, said in ((most + 1, "bytes"), (most, "unknown field|field|edits")):
        empty = len(sealed({"format": 1, "surplus": ""}))
        with pytest.raises(FormatError, match=f"^{said}") as raised:
            decode(sealed({"format": 1, "surplus": "x" * (size - empty)}))
        assert isinstance(raised.value, LimitExceededError) is (size > most), raised.value


@pytest.mark.slow
def test_edits_that_no_record_can_hold_are_refused_and_nothing_is_committed() -> None:
    log = manifest_log()
    log.open_epoch()
    log.commit(segment_edits(0))
    before = log.state.record_id
    reason = "x" * (17 * 1024 * 1024)
    with pytest.raises(InvalidCallError, match="don't fit into one record"):
        log.commit([Pause(reason)])
    assert load_manifest(log.store, "orders").record_id == before
    log.commit(segment_edits(1))
    assert log.state.record_id == before + 1


def test_longest_stream_name_fits_into_its_catalogue_entry() -> None:
    name = "\x01" * STREAM_BYTES_MAX  # six bytes each in JSON
    entry = CatalogEntry(name, UUID(int=7), 2**62)
    assert CatalogEntry.decode(entry.encode()) == entry


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rows": 2**40}, "rows of a run"),
        ({"rows": -1}, "rows of a run"),
        ({"dead": (RowRange(0, 2**62),)}, "dead rows of a run"),
        ({"dead": (RowRange(0, 9), RowRange(0, 9))}, "dead rows of a run"),
        ({"name": run_name(40, 1, "ledgers")}, "names of runs"),
    ],
)
def test_checkpoint_with_impossible_runs_is_refused(change: dict[str, Any], said: str) -> None:
    """Room is made for the rows of runs before the runs are read, and for each row that is dead."""
    header = checkpoint_header()
    [run] = header.runs
    body = encode_checkpoint(replace(header, runs=(replace(run, **change),)), columns_of([]))
    with pytest.raises(FormatError, match=f"^{said}"):
        decode_checkpoint(body)
    assert decode_checkpoint(encode_checkpoint(header, columns_of([])))[0] == header


def checkpoint_header() -> Checkpoint:
    log = manifest_log()
    log.open_epoch()
    header, _ = decode_checkpoint(plan_checkpoint(log.state, lambda: 7).body)
    return replace(
        header,
        runs=(RunRef(name=run_name(40, 1, "segments"), rows=10, object_bytes=1000, crc32c=5, dead=(RowRange(0, 9),)),),
        ledger_runs=(RunRef(name=run_name(40, 1, "ledgers"), rows=10, object_bytes=1000, crc32c=5),),
    )
