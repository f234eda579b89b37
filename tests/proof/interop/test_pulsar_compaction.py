"""Segments that compaction merged, read by Pulsar's own classes."""

from __future__ import annotations

import pytest

from formats.keys import data_key, index_key
from offloader.manifest.log import load_manifest
from offloader.settings import Settings
from offloader.write.offloader import LedgerOffloader
from tests.proof.interop.test_pulsar_segments import Place
from tests.proof.interop.test_pulsar_segments import place as place
from tests.support.streams import StreamWriter, batch_of

pytestmark = pytest.mark.java

STREAM = "public/default/persistent/compacted"


def test_pulsars_reader_gives_every_entry_of_a_merged_segment(place: Place) -> None:
    """Forty segments of four ledgers, some of which share a segment, become one; one ledger is still open."""
    writer = StreamWriter(place.store, STREAM, block_bytes=4096)
    sizes = {901: 57, 902: 130, 905: 3, 906: 90}
    run, ledgers = [], list(sizes)
    for ledger_id in ledgers:
        for first in range(0, sizes[ledger_id], 7):
            last = min(first + 7, sizes[ledger_id])
            run.append(batch_of(ledger_id, first, last - first, size=300))
            # The end of a ledger shares a segment with the begin of the next one.
            if last < sizes[ledger_id] or ledger_id == 906:
                writer.add(run, closes=[each.ledger_id for each in run[:-1] if each.ledger_id != ledger_id])
                run = []
    old = load_manifest(place.store, STREAM).offloaded()
    assert len(old) > 38
    settings = Settings.of({"offload": {"block_size": 4096, "takeover_after": 0.01}})
    offloader = LedgerOffloader(place.store, settings)
    done = offloader.history.compact(STREAM)
    offloader.close()
    assert (done.replaced, len(done.merged)) == (len(old), 1)

    [(uuid, _)] = done.merged
    for source, target in ((data_key(STREAM, uuid), str(uuid)), (index_key(STREAM, uuid), f"{uuid}-index")):
        body, info = place.store.get(source)
        place.store.put(target, body, metadata=place.store.head(source).metadata)
        assert len(body) == info.size_bytes
    for ledger_id, count in sizes.items():
        wanted = [(each.entry_id, each.payload) for each in writer.entries if each.ledger_id == ledger_id]
        assert len(wanted) == count
        found = place.pulsar.read(ledger_id, [uuid], [(0, count - 1), (count - 2, count - 1)], placed=True)
        assert found.ranges[0] == wanted, ledger_id
        assert found.ranges[1][-2:] == wanted[-2:], ledger_id
        assert found.last == count - 1, ledger_id
