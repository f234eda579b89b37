"""Streams of one offloader with their own settings: sizes, codec, method thresholds, and writer URL."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
from offloader.manifest.log import load_manifest
from offloader.runtime.clock import SystemClock
from offloader.settings import Settings, Size
from offloader.store.memory import MemoryStore
from offloader.write.offloader import LedgerOffloader
from tests.support.readback import stored_entries
from tests.support.waiting import PATIENCE_S

SMALL = Settings.of({"offload": {"block_size": 1024, "segment_size_max": "16KiB"}})


@pytest.mark.slow
def test_each_stream_has_its_own_size_codec_method_and_writer_url(tmp_path: Path) -> None:
    store = MemoryStore("stream-settings", "", SystemClock())
    database = EmbeddedLedgers(f"{tmp_path}/ledgers.db")
    large = replace(SMALL.offload, segment_size_max=Size("64.0MiB"), codec="zstd")
    names = {"small": SMALL.offload, "large": large, "ledger": replace(SMALL.offload, method="ledger")}
    sources = {name: database.open_stream(name) for name in names}
    generator = Random(7)
    for source in sources.values():
        for _ in range(8):
            source.append([generator.randbytes(25) * 20 for _ in range(20)])
    sources["ledger"].close_ledger()
    offloader = LedgerOffloader(store, SMALL, writer_url="http://127.0.0.1:1234")
    try:
        streams = [offloader.offload_stream(sources[name], name, settings=names[name]) for name in ("small", "large")]
        trigger = offloader.offload_closed_ledgers(sources["ledger"], "ledger", settings=names["ledger"])
        for each in streams:
            each.offload(timeout_s=PATIENCE_S)
        assert not trigger.offload().errors
        hold = {name: load_manifest(store, name) for name in names}
        for each in streams:
            each.stop()
        trigger.stop()
    finally:
        offloader.close()
        database.close()

    assert len(hold["small"].offloaded()) > 1
    assert len(hold["large"].offloaded()) == 1
    compressed = {name: {record.summary.compressed for record in hold[name].offloaded()} for name in names}  # type: ignore[union-attr]
    assert compressed == {"small": {False}, "large": {True}, "ledger": {False}}
    assert {int(record.layout) for record in hold["ledger"].offloaded()} == {1}
    assert {state.writer.url for state in hold.values()} == {"http://127.0.0.1:1234"}
    assert all(len(stored_entries(store, name)) == 160 for name in names)
