"""``offloader export v1 STREAM``: ledgers under the broker's uuids, for Pulsar's own offloader."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from formats.entries import EntryBatch, Position
from formats.extension import Codec
from formats.manifest import Gap, LedgersDeleted
from formats.metadata.messages import OffloadContext, PulsarLedger
from formats.segment import Part
from formats.summary import Layout
from offloader.coverage import GapReason
from offloader.errors import StoreUnavailableError
from offloader.manifest.log import load_manifest
from offloader.read.reader import read_offloaded
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from offloader.write import export_v1
from offloader.write.backfill_service import fill_gaps
from offloader.write.upload import SegmentUpload
from tests.cli.reading_verbs import Done, Offloader
from tests.support.ledger_records import record_of
from tests.support.streams import StreamWriter, batch_of

STREAM = "public/default/persistent/orders"


def uuid_of(ledger_id: int) -> UUID:
    return UUID(int=1000 + ledger_id)


def context_of(ledger_id: int, driver: dict[str, str] | None = None, *, complete: bool = True) -> OffloadContext:
    return OffloadContext(
        uuid=uuid_of(ledger_id), complete=complete, driver_name="offloader", driver_metadata=driver or {}
    )


class Export:
    """A stream with ledgers of each kind, a broker's record of them, and a folder to export to."""

    def __init__(self, folder: Path, offloader: Offloader) -> None:
        self.folder, self.offloader = folder, offloader
        self.writer = StreamWriter(open_store(f"file://{folder}/store"), STREAM)
        self.writer.add([batch_of(3, 0, 100), batch_of(4, 0, 20)], closes=[3])
        self.writer.add([batch_of(4, 20, 50)], codec=Codec.ZSTD, closes=[4])
        self.writer.add([batch_of(5, 0, 30)])
        self.writer.log.commit([Gap(Position(5, 30), Position(5, 31), GapReason.UNDELIVERED)])
        self.writer.add([batch_of(5, 32, 8)], closes=[5])
        markers = EntryBatch.build(5, 30, [b"commit", b"abort"])
        fill_gaps(self.writer.log, markers, 30, 31)
        self.writer.entries = sorted([*self.writer.entries, *markers.entries()])

    def payloads(self, ledger_id: int) -> list[bytes]:
        return [each.payload for each in self.writer.entries if each.ledger_id == ledger_id]

    def recorded(self, ledger_id: int, /, **changed: Any) -> PulsarLedger:
        sizes = [len(each) for each in self.payloads(ledger_id)]
        known = PulsarLedger(
            ledger_id=ledger_id,
            entries=len(sizes),
            size_bytes=sum(sizes),
            closed_ms=5,
            context=context_of(ledger_id),
        )
        return replace(known, **changed)

    def save(self, ledgers: Sequence[PulsarLedger]) -> Path:
        path = self.folder / "record"
        path.write_bytes(record_of(ledgers))
        return path

    def __call__(self, ledgers: Sequence[PulsarLedger], *more: str, to: str = "") -> Done:
        return self.offloader(*self.words(to), "--broker-record", str(self.save(ledgers)), *more)

    def words(self, to: str = "") -> Sequence[str]:
        return "export", "v1", STREAM, "--store", self.writer.store.url, "--dest", to or self.target_url

    @property
    def target_url(self) -> str:
        return f"file://{self.folder}/bucket"

    @property
    def objects(self) -> dict[str, bytes]:
        """What was exported."""
        target = self.target
        return {info.key: target.get(info.key)[0] for info in target.list("").objects}

    @property
    def target(self) -> ObjectStore:
        return open_store(self.target_url)


@pytest.fixture
def export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Export:
    return Export(tmp_path, Offloader(capsys))


@pytest.mark.slow
def test_whole_ledgers_are_written_under_the_brokers_uuids_with_what_readers_are_not_given(export: Export) -> None:
    before = load_manifest(export.writer.store, STREAM).record_id
    ledgers = [export.recorded(each) for each in (3, 4, 5)]
    open_ledger = PulsarLedger(ledger_id=6)
    attempt = export.recorded(3, ledger_id=2, context=context_of(2, complete=False))
    assert export.objects == {}
    planned = export([attempt, *ledgers, open_ledger], "--dry-run", "--json")
    assert [each["state"] for each in planned.rows] == ["to be written"] * 3
    assert export.objects == {}
    done = export([attempt, *ledgers, open_ledger], "--json")
    assert (done.code, [each["state"] for each in done.rows]) == (0, ["written"] * 3)
    assert done.rows[0] == {
        "ledger_id": 3,
        "uuid": str(uuid_of(3)),
        "entries": 100,
        "payload_bytes": 2000,
        "state": "written",
        "data": f"{uuid_of(3)}-ledger-3",
        "index": f"{uuid_of(3)}-ledger-3-index",
        "why": "",
    }
    for each in ledgers:
        assert each.context is not None
        with_all = read_offloaded(export.target, each.ledger_id, each.context, {})
        read = with_all.read(0, with_all.last_entry_id)
        assert [entry.payload for entry in read] == export.payloads(each.ledger_id)
        assert with_all.length == each.size_bytes
        assert with_all.closed_ledger
    assert len(export.objects) == 6
    assert load_manifest(export.writer.store, STREAM).record_id == before
    again = export(ledgers)
    assert again.code == 0
    assert [line.split()[4:6] for line in again.out.splitlines()[1:]] == [["there", "already"]] * 3


def test_what_an_interrupted_run_left_is_written_anew(export: Export) -> None:
    export.target.put(f"{uuid_of(3)}-ledger-3", b"the beginning")
    assert export([export.recorded(3)], "--json").rows[0]["state"] == "written"
    assert read_offloaded(export.target, 3, context_of(3), {}).read(0, 99).payload_bytes == 2000


def test_what_reads_otherwise_than_it_was_written_is_not_there_for_the_next_run(
    export: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = f"{uuid_of(3)}-ledger-3"

    def damaged(upload: SegmentUpload, part: Part) -> None:
        body = bytearray(bytes(part.body))
        body[body.index(export.payloads(3)[50])] ^= 1
        upload.store.put(upload.data_key, bytes(body))

    with monkeypatch.context() as patched:
        patched.setattr(SegmentUpload, "send_whole", damaged)
        done = export([export.recorded(3)], "--json")
    assert (done.code, done.rows[0]["state"]) == (6, "left")
    assert set(export.objects) == {key}
    again = export([export.recorded(3)], "--json")
    assert (again.code, again.rows[0]["state"]) == (0, "written")
    assert [entry.payload for entry in read_offloaded(export.target, 3, context_of(3), {}).read(0, 99)] == (
        export.payloads(3)
    )


def test_what_could_not_be_read_back_is_not_there_for_the_next_run(
    export: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is killed during the comparison leaves no index either."""

    def unreadable(*_: object) -> bytes:
        assert set(export.objects) == {f"{uuid_of(3)}-ledger-3"}, "the index is written last"
        raise StoreUnavailableError("the bucket doesn't answer")

    with monkeypatch.context() as patched:
        patched.setattr(export_v1.LedgerExport, "_digest", unreadable)
        assert export([export.recorded(3)]).code == StoreUnavailableError.kind.value
    assert [row["state"] for row in export([export.recorded(3)], "--json").rows] == ["written"]


def test_attempt_that_another_one_overtakes_finds_an_equal_index(
    export: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example the same task of Spark on two executors."""
    compared = export_v1.LedgerExport._digest
    others: list[tuple[int, dict[str, bytes]]] = []

    def overtaken(own: export_v1.LedgerExport, ledger: export_v1.RecordedLedger, index: bytes) -> bytes:
        monkeypatch.setattr(export_v1.LedgerExport, "_digest", compared)
        others.append((export([export.recorded(3)]).code, export.objects))
        return compared(own, ledger, index)

    monkeypatch.setattr(export_v1.LedgerExport, "_digest", overtaken)
    done = export([export.recorded(3)], "--json")
    assert (done.code, [row["state"] for row in done.rows]) == (0, ["written"])
    assert others == [(0, export.objects)]
    assert len(export.objects) == 2


def test_missing_and_different_ledgers_are_named_and_the_others_written(export: Export) -> None:
    export.writer.log.commit([LedgersDeleted((4,))])
    different = export.recorded(5, size_bytes=1)
    done = export([export.recorded(3), different], "--json")
    assert (done.code, [each["state"] for each in done.rows]) == (6, ["written", "left"])
    assert "1 of 2 ledgers aren't exported: 5 (" in done.err
    assert "40 entries have 1 bytes, those in the cold tier have 771" in done.err
    done = export([export.recorded(3), export.recorded(4), PulsarLedger(ledger_id=9, entries=2, context=context_of(9))])
    assert done.code == 3
    assert "2 of 3 ledgers aren't exported: 4 (" in done.err
    assert "was deliberately deleted" in done.err
    assert "; 9 (" in done.err
    assert len(export.objects) == 2


def test_a_ledger_with_a_gap_is_not_exported(export: Export) -> None:
    export.writer.add([batch_of(7, 0, 5)])
    export.writer.log.commit([Gap(Position(7, 5), Position(7, 6), GapReason.UNDELIVERED)])
    export.writer.add([batch_of(7, 7, 5)], closes=[7])
    done = export([export.recorded(7, entries=12)])
    assert done.code == 3
    assert "entries 5..6 are recorded as a gap" in done.err


def test_objects_of_another_ledger_are_never_replaced(export: Export) -> None:
    assert export([export.recorded(3)]).code == 0
    before = export.objects
    done = export([export.recorded(4, ledger_id=3, context=context_of(3))])
    assert done.code == 6
    assert "exists already, with 100 entries and 2000 bytes" in done.err
    assert export.objects == before
    key = f"{uuid_of(3)}-ledger-3"
    export.target.put(key, before[key][:-1])
    done = export([export.recorded(3)])
    assert done.code == 6
    assert f"{key} in {export.target.url} has {len(before[key]) - 1} bytes" in done.err


@pytest.mark.slow
@pytest.mark.parametrize("driver", [{"offloader.source": "east"}, {"bucket": "elsewhere", "region": ""}])
def test_ledgers_that_the_broker_would_look_for_elsewhere_are_refused(export: Export, driver: dict[str, str]) -> None:
    done = export([export.recorded(3, context=context_of(3, driver))], to="memory://cold")
    assert done.code == 2
    named = "names bucket elsewhere" if "bucket" in driver else "names no bucket"
    assert f"the broker's record {named}, but these objects would go to cold" in done.err
    here = export.recorded(3, context=context_of(3, {"bucket": "cold-back", "region": "", "serviceEndpoint": ""}))
    assert export([here], to="memory://cold-back").code == 0
    assert export([here], to="memory://cold-back/root").code == 2


def test_a_compressed_record_is_read_too(export: Export) -> None:
    plain = record_of([export.recorded(3)])
    packed = zlib.compress(plain)
    how = bytes(
        [0x08, 2, 0x10, len(plain) & 127 | 128, len(plain) >> 7] if len(plain) > 127 else [8, 2, 16, len(plain)]
    )
    path = export.save([])
    path.write_bytes(struct.pack(">hi", 0x4778, len(how)) + how + packed)
    done = export.offloader(*export.words(), "--broker-record", str(path), "--json")
    assert [json.loads(line)["ledger_id"] for line in done.out.splitlines()] == [3]


@pytest.mark.slow
@pytest.mark.parametrize("data", [b"", b"[]", b"\x0a\x02\x10\x01", struct.pack(">hi", 0x4778, 900) + b"x"])
def test_bytes_of_no_record_are_refused(export: Export, data: bytes) -> None:
    path = export.save([])
    path.write_bytes(data)
    code, line, hint = export.offloader.refuses(*export.words(), "--broker-record", str(path))
    assert code == 2
    assert line.startswith(f"{path} isn't a broker's record of a topic: ")
    assert "raw bytes" in hint
    code, line, _ = export.offloader.refuses(*export.words(), "--broker-record", f"{path}.none")
    assert code == 3
    assert "can't be read" in line


def test_target_is_checked_before_the_brokers_record_is_read(export: Export) -> None:
    words = *export.words("nowhere://bucket"), "--broker-record", f"{export.folder}/none"
    code, line, _ = export.offloader.refuses(*words)
    assert code == 2
    assert "nowhere" in line
    assert "broker record" not in line


def test_folder_is_not_made_for_a_record_that_cant_be_read(export: Export) -> None:
    folder = export.folder / "new"
    code, line, _ = export.offloader.refuses(*export.words(f"file://{folder}"), "--broker-record", f"{folder}/none")
    assert (code, "can't be read" in line) == (3, True), line
    assert not folder.exists()


def test_a_record_without_offloaded_ledgers_says_so(export: Export) -> None:
    done = export([PulsarLedger(ledger_id=6)])
    assert done.code == 0
    assert "the broker's record has no offloaded ledger" in done.out


def test_pulsars_own_objects_stay_as_they_are(export: Export) -> None:
    """A ledger that was imported is where the broker looks for it."""
    uuid = export.writer.add([batch_of(8, 0, 10)], layout=Layout.V1, extension=False, closes=[8])
    for source, target in zip(export.writer.keys(uuid, 8), ("", "-index"), strict=True):
        data, info = export.writer.store.get(source)
        export.target.put(f"{uuid_of(8)}-ledger-8{target}", data, metadata=info.metadata)
    assert [each["state"] for each in export([export.recorded(8)], "--json").rows] == ["there already"]
