"""V2 segments exchanged with Pulsar's own classes, without a running broker.

Pulsar's reader has faults of its own (docs/reference/format.md, section 9). The tests state them, with its objects and
ours alike.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from formats.entries import EntryBatch
from formats.metadata.messages import OffloadContext, OffloadSegment
from formats.segment import LedgerFacts
from offloader.errors import ObjectChangedError
from offloader.settings import OffloadSettings, Settings, Size
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from offloader.write.offloader import LedgerOffloader
from services.pulsar.asked import Refused
from services.pulsar.broker import offload_settings
from services.pulsar.offloads import PulsarOffloads, running_offloads
from services.servers import make_bucket
from tests.independent_reader import read_segment
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.java

BUCKET = "pulsar-segments"
#: First entry of a segment -> the ledger of that case. 128 is what Pulsar's reader takes the first header's number for.
BEGINS = {0: 1, 100: 2, 127: 3, 128: 4, 129: 5, 1000: 6}
ENTRIES = 200
BLOCK_BYTES = 4096

#: Ledger id, first entry id, payloads.
Run = tuple[int, int, Sequence[bytes]]


@dataclass
class Place:
    """Both writers and both readers over one bucket; objects lie at its root, where Pulsar's classes look."""

    pulsar: PulsarOffloads
    store: ObjectStore
    ours: LedgerOffloader

    def write_ours(self, *runs: Run, codec: str = "none") -> UUID:
        uuid = uuid4()
        settings = OffloadSettings(block_size=Size(BLOCK_BYTES), codec=codec)
        handle = self.ours.streaming_offload(uuid, {}, settings=settings)
        for number, (ledger_id, first, payloads) in enumerate(runs):
            assert handle.offer_batch(EntryBatch.build(ledger_id, first, list(payloads), -1)) == len(payloads)
            if number < len(runs) - 1:
                handle.ledger_closed(LedgerFacts(ledger_id=ledger_id, closed=True), first + len(payloads) - 1)
        handle.close()
        handle.get_offload_result_async().result(PATIENCE_S)
        return uuid

    def write_theirs(self, *runs: Run) -> UUID:
        uuid = uuid4()
        for key, (body, metadata) in self.pulsar.segment_in_memory(uuid, entries_of(runs)).items():
            self.store.put(key, body, metadata=metadata)
        return uuid

    def read_ours(self, ledger_id: int, uuids: Sequence[UUID], last: int) -> list[bytes]:
        """All entries from the first segment's on, as our reader has them by Pulsar's metadata."""
        segments = tuple(OffloadSegment(uuid=uuid, complete=True) for uuid in uuids)
        handle = self.ours.read_offloaded(ledger_id, OffloadContext(segments=segments), {})
        return [bytes(entry.payload) for entry in handle.read(handle.first_entry_id, last)]


def entries_of(runs: Sequence[Run]) -> list[tuple[int, int, bytes]]:
    return [(ledger, first + at, payload) for ledger, first, payloads in runs for at, payload in enumerate(payloads)]


def payloads(seed: int, count: int) -> list[bytes]:
    """Of 0 to 300 bytes."""
    generator = random.Random(seed)
    return [generator.randbytes(generator.randint(0, 300)) for _ in range(count)]


@pytest.fixture(scope="module")
def place(servers: Mapping[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    endpoint = servers["minio"]
    make_bucket(endpoint, BUCKET)
    keys = {"ACCESS_KEY_ID": endpoint.access_key, "ACCESS_KEY_SECRET": endpoint.secret_key}
    store = open_store(
        f"s3://{BUCKET}",
        endpoint_url=endpoint.url,
        region="us-east-1",
        access_key=endpoint.access_key,
        secret_key=endpoint.secret_key,
    )
    ours = LedgerOffloader(store, Settings(offload=OffloadSettings(block_size=Size(BLOCK_BYTES))))
    folder: Path = tmp_path_factory.mktemp("pulsar")
    with running_offloads(folder, offload_settings(endpoint.url, BUCKET), keys) as pulsar:
        yield Place(pulsar, store, ours)
    ours.close()
    store.close()


def test_pulsars_reader_gives_every_entry_of_our_segments_byte_for_byte(place: Place) -> None:
    for first, case in BEGINS.items():
        ledger_id, wanted = 100 + case, payloads(first, ENTRIES)
        uuid, last = place.write_ours((ledger_id, first, wanted)), first + ENTRIES - 1

        # It gives what it passes on its way too, from the beginning of the segment.
        asked = [(first, last), (first + 150, first + 160), (last, last), (first, first)]
        found = place.pulsar.read(ledger_id, [uuid], asked, placed=True)

        whole = [(first + at, payload) for at, payload in enumerate(wanted)]
        assert found.ranges == [whole[: end - first + 1] for _, end in asked], first
        assert (found.last, found.length) == (last, sum(map(len, wanted)))


def test_a_ledger_in_two_segments_and_two_ledgers_in_one(place: Place) -> None:
    early, late = payloads(1, 300), payloads(2, 500)
    for write, base in ((place.write_ours, 200), (place.write_theirs, 300)):
        uuids = [
            write((base, 0, early[:200])),
            write((base, 200, early[200:]), (base + 1, 0, late[:129])),
            write((base + 1, 129, late[129:])),
        ]
        for ledger_id, segments, wanted, cut in ((base, uuids[:2], early, 200), (base + 1, uuids[1:], late, 129)):
            last = len(wanted) - 1
            found = place.pulsar.read(ledger_id, segments, [(0, cut - 1), (cut, last), (0, last)], placed=True)
            whole = list(enumerate(wanted))
            # Its reader goes through a ledger's segments backwards.
            assert found.ranges == [whole[:cut], whole[cut:], whole[cut:] + whole[:cut]]
            assert place.read_ours(ledger_id, segments, last) == wanted


def test_segments_streamed_by_pulsar_are_readable(place: Place) -> None:
    for first, case in BEGINS.items():
        ledger_id, wanted = 400 + case, payloads(first, ENTRIES)
        uuid = place.write_theirs((ledger_id, first, wanted))
        assert place.read_ours(ledger_id, [uuid], first + ENTRIES - 1) == wanted, first
        data, index = place.store.get(str(uuid))[0], place.store.get(f"{uuid}-index")[0]
        assert read_segment(bytes(data), bytes(index)) == entries_of([(ledger_id, first, wanted)])


def test_pulsars_reader_refuses_a_compressed_segment(place: Place) -> None:
    uuid = place.write_ours((800, 0, [b"again and again " * 100] * 20), codec="zstd")
    with pytest.raises(Refused, match="Invalid object version"):
        place.pulsar.read(800, [uuid], [(0, 19)], placed=True)


@pytest.mark.parametrize("writer", ["ours", "theirs"])
def test_pulsars_own_reader_fails_on_segments_beginning_at_128_or_later(place: Place, writer: str) -> None:
    """It reads any first block's header as an entry: magic as length, header length as number 128."""
    write, base = (place.write_ours, 500) if writer == "ours" else (place.write_theirs, 600)
    for first, case in BEGINS.items():
        ledger_id, wanted = base + case, payloads(first, 20)
        uuid = write((ledger_id, first, wanted))
        if first < 128:
            assert place.pulsar.read(ledger_id, [uuid], [(first, first + 19)]).ranges == [
                [(first + at, payload) for at, payload in enumerate(wanted)]
            ]
        else:
            with pytest.raises(Refused, match="InvocationTarget" if first == 128 else "NullPointer"):
                place.pulsar.read(ledger_id, [uuid], [(first, first + 19)])


def test_pulsars_writer_streams_neither_to_s3_nor_two_blocks_of_a_ledger(place: Place) -> None:
    """Its parts have no length, and its blocks exceed their declared length: such an object is refused."""
    with pytest.raises(Refused, match="getContentLength"):
        place.pulsar.segment(uuid4(), [(701, 0, b"entry")])

    generator = random.Random(0)
    wanted = [generator.randbytes(100_000) for _ in range(60)]
    uuid = place.write_theirs((702, 0, wanted))
    with pytest.raises(ObjectChangedError, match=r"expected \d+ bytes, found"):
        place.read_ours(702, [uuid], len(wanted) - 1)
