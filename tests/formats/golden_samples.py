"""One value of every kind that is kept in a bucket or beside it, each with everything it may say; and its bytes.

What is here makes golden files (``make_golden_own.py``): a change of a value is a change of a file that is never
written again. A new kind, edit or field gets a new sample; a new version of a format its own folder.
"""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import UUID

import numpy as np

from formats.checked_json import CheckedDocument
from formats.checkpoint import (
    ASIDE,
    DELETED,
    HOT_RELEASED,
    LAST_UNKNOWN,
    AssignedSegment,
    Checkpoint,
    KnownSource,
    LedgerColumns,
    LedgerRow,
    ReplacedSegment,
    RowRange,
    RunRef,
    decode_checkpoint,
    decode_ledgers,
    encode_checkpoint,
    encode_ledgers,
    run_name,
)
from formats.checkpoint_parquet import NUMBER_COLUMNS, SegmentColumns, decode_columns, encode_columns
from formats.documents import (
    AssignmentRow,
    AwaitedReaders,
    CheckpointRow,
    CutRow,
    DecisionRow,
    Decisions,
    DeletedSegment,
    DeletionRecord,
    GlobalHold,
    GroupState,
    Lease,
    MemberRow,
    PartitionHead,
    PartitionRow,
    RecordRow,
    Records,
    SizeRow,
    StoreIdentity,
    StreamCutRow,
    SubscriberRow,
    Subscribers,
    ToDoRow,
    TopicEntry,
    TruncationIntent,
    Version,
)
from formats.entries import EntryBatch, Position
from formats.frames import decode_fill, encode_fill
from formats.manifest import (
    FACT_UNKNOWN,
    Adopt,
    Assign,
    Boundary,
    CatalogEntry,
    Edit,
    Failed,
    Gap,
    GapFilled,
    Hold,
    HotReleased,
    LedgerClosed,
    LedgersDeleted,
    Offloaded,
    OpenEpoch,
    Pause,
    Purged,
    Record,
    Recover,
    Release,
    Replace,
    ReserveLedgers,
    Restore,
    Resume,
    Retire,
    Rewrite,
    Rewritten,
    SetAside,
    SetMethod,
    StreamDeleted,
    Totals,
    Truncate,
    UndoRetire,
    Writer,
    decode_record,
    encode_record,
)
from formats.summary import Layout, LedgerSpan, SegmentSummary
from formats.topic_layout import RangeSegment, TopicLayout, TopicSchema
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
from offloader.replay import Progress, ProgressFile
from offloader.settings import LedgerSettings
from offloader.spark.stream import StreamOffset, decode_offsets, encode_offsets
from offloader.store.base import StoreOptions
from offloader.store.open import ObjectsPlace, create_catalogue, open_store
from offloader.testing.manual_clock import ManualClock

__all__ = ["KINDS", "Kind", "write_ledgers"]

STREAM = "public/default/persistent/orders é"
INCARNATION = UUID("5f0c2a5e-8f53-4b0c-9f0e-1d2c3b4a5968")
UUIDS = [UUID(int=(number * 0x9E3779B97F4A7C15F39CC0605CEDC835) % 2**128) for number in range(1, 9)]
MS = 1_700_000_000_000
DRIVER = {"managedLedgerOffloadDriver": "S3", "bucket": "b", "region": "eu-1", "serviceEndpoint": "http://store:9000"}
SUMMARY = SegmentSummary(
    layout=Layout.V2,
    begin=Position(7, 100),
    end=Position(9, 3),
    data_bytes=1_048_576,
    index_bytes=270,
    data_crc32c=0xFFFFFFFF,
    index_crc32c=1,
    entries=54,
    payload_bytes=54_000,
    publish_time_min_ms=MS,
    publish_time_max_ms=MS + 1,
    blocks=3,
    compressed=True,
    ledgers=(LedgerSpan(7, 100, 149, 50, 50_000), LedgerSpan(9, 0, 3, 4, 4_000)),
)
PLAIN = replace(
    SUMMARY, layout=Layout.V1, end=Position(7, 149), publish_time_min_ms=-1, publish_time_max_ms=-1, compressed=False,
    ledgers=SUMMARY.ledgers[:1],
)  # fmt: skip
EDITS: Mapping[str, Edit] = {
    "open_epoch": OpenEpoch(3),
    "open_epoch-source": OpenEpoch(3, UUIDS[6], "0123456789abcdef0123456789abcdef", 1_000, True),
    "reserve_ledgers": ReserveLedgers(2_000),
    "ledger_closed": LedgerClosed(7, 149),
    "ledger_closed-facts": LedgerClosed(7, 149, 54_000, MS),
    "ledger_closed-empty": LedgerClosed(8, -1),
    "assign": Assign(UUIDS[0], 2, Position(7, 100), None, MS, DRIVER),
    "assign-history": Assign(UUIDS[1], 1, Position(7, 0), Position(7, 99), MS, {}),
    "offloaded": Offloaded(UUIDS[0], SUMMARY, MS + 2),
    "offloaded-plain": Offloaded(UUIDS[1], PLAIN, MS + 2),
    "failed": Failed(UUIDS[2], 'the store said "no", twice'),
    "gap": Gap(Position(7, 3), Position(8, 0), "lost"),
    "gap_filled": GapFilled(UUIDS[4], Position(7, 3), Position(7, 9), 5, 5_000, 5_120, 0xFFFFFFFE),
    "adopt": Adopt(UUIDS[3], PLAIN, DRIVER, True),
    "release": Release((UUIDS[3], UUIDS[4])),
    "truncate": Truncate(Position(9, 0)),
    "ledgers_deleted": LedgersDeleted((7, 8)),
    "hot_released": HotReleased((7,)),
    "set_aside": SetAside((3, 7)),
    "retire": Retire((UUIDS[0],)),
    "purged": Purged((UUIDS[0], UUIDS[1]), 41),
    "undo_retire": UndoRetire((UUIDS[1],), 41),
    "restore": Restore(Position(7, 0), (7, 8)),
    "restore-beginning": Restore(None, ()),
    "rewrite": Rewrite(UUIDS[5], 1, Position(7, 0), Position(7, 149), MS, DRIVER),
    "replace": Replace((UUIDS[0],), (Rewritten(UUIDS[5], PLAIN),), MS + 3),
    "recover": Recover((Rewritten(UUIDS[5], PLAIN),), MS + 3),
    "set_method": SetMethod("streaming"),
    "pause": Pause("Wartung, größere"),
    "resume": Resume(),
    "hold": Hold(True, "case 7"),
    "stream_deleted": StreamDeleted(),
}
TOTALS = Totals(2, 104, 104_000, 1_048_846, Position(7, 0), Position(9, 3))
NO_TOTALS = Totals(0, 0, 0, 0, None, None)
WRITER = Writer("host-1 1234", "http://10.0.0.1:8750", "0123456789abcdef")
VERSION = Version(3, "c" * 32, ("b" * 32, "a" * 32), MS)
PARTITIONS = (PartitionRow(0, INCARNATION), PartitionRow(1, UUIDS[7]))
CUT = (CutRow(0, Position(7, 5)), CutRow(1, Position(8, -1)))


def records() -> dict[str, bytes]:
    """A record for each edit, and one of several."""
    made = {name: _record((edit,), NO_TOTALS if name == "open_epoch" else TOTALS) for name, edit in EDITS.items()}
    several = tuple(edit for name, edit in EDITS.items() if name not in _WITH_SOURCE)[:6]
    with_source = tuple(EDITS[name] for name in _WITH_SOURCE)
    return made | {"several": _record(several, TOTALS), "source_end": _record(with_source, TOTALS, Position(9, 40))}


#: What later releases say of the hot tier.
_WITH_SOURCE = ("open_epoch-source", "reserve_ledgers", "ledger_closed-facts")


def _record(edits: tuple[Edit, ...], totals: Totals, source_end: Position | None = None) -> bytes:
    return encode_record(Record(42, INCARNATION, 3, WRITER, MS, edits, totals, source_end))


def deletions() -> dict[str, bytes]:
    """Batches under way and done, and the readers that are waited for."""
    first = DeletedSegment(
        uuid=UUIDS[0], keys=("a/b", "a/b-index"), first=Position(7, 0), last=Position(7, 9), entries=10, object_bytes=99
    )
    begun = DeletionRecord(
        name="0001700000000000-0123456789abcdef",
        stream=STREAM,
        incarnation=INCARNATION,
        action="purge",
        by="retention on host-1",
        rule="age",
        retire_record=41,
        segments=(first, replace(first, uuid=UUIDS[1], keys=(), first=None, last=None)),
        planned_ms=MS,
    )
    done = replace(begun, action="release", done_ms=MS + 9, attempts=2, tried_ms=MS + 8, problem="503")
    awaited = AwaitedReaders(INCARNATION, 41, (UUIDS[5], UUIDS[6]))
    return {"begun": begun.encode(), "done": done.encode(), "awaited": awaited.encode()}


def retention() -> dict[str, bytes]:
    """The documents beside a manifest; each kind's file begins with its name."""
    never = SubscriberRow(name="a", generation=0, updated_ms=MS, active_ms=MS, cut=None, start=None)
    reader = SubscriberRow(name="b c", generation=2, updated_ms=MS, active_ms=MS + 1, cut=CUT, start=CUT[:1])
    sizes = (SizeRow(0, Position(7, 5), 500, 5, 400, 4),)
    recorded = (RecordRow(MS, None, ()), RecordRow(MS + 1, 1000, CUT))
    cuts = (StreamCutRow("other", ()), StreamCutRow(STREAM, CUT))
    at = CheckpointRow(name="1", kept=True, created_ms=MS, waiting=("r1",), behind=("r1", "r2"), cuts=cuts)
    group = GroupState(
        name="group",
        generation=4,
        retention="automatic",
        streams=("other", STREAM),
        automatic_checkpoint_ms=30_000,
        outstanding_checkpoints_max=3,
        refresh_ms=1_000,
    )
    full = replace(
        group,
        starts=cuts,
        ends=cuts[1:],
        readers=("r1", "r2"),
        checkpoints=(at, replace(at, name="2", kept=False, released=True)),
        to_do=(
            ToDoRow(action="publish", stream=STREAM, generation=2, cut=CUT),
            ToDoRow(action="remove", stream="other", generation=1),
        ),
        published=cuts,
        published_ms=MS,
        checkpoint_ms=MS - 1,
        deleted=True,
        version=VERSION,
    )
    assigned = AssignmentRow(
        stream=STREAM, partition=1, incarnation=UUIDS[7], reader="r1", epoch=5, position=Position(7, 5)
    )
    read = replace(
        full,
        deleted=False,
        heartbeat_ms=5_000,
        expiry_ms=20_000,
        renew_ms=90_000,
        members=(
            MemberRow(name="r1", session="5e" * 8, beat=3, seen_ms=MS - 1),
            MemberRow(name="r2", session="7f" * 8, beat=2, seen_ms=MS),
        ),
        assignments=(replace(assigned, partition=0, reader="", position=None), assigned),
        epoch=5,
        clock_ms=MS,
        store_ms=MS + 9,
    )
    finished = replace(assigned, partition=2, reader="", is_finished=True)
    return {
        "subscribers": Subscribers(
            name=STREAM, partitions=PARTITIONS, subscribers=(never, reader), version=VERSION
        ).encode(),
        "records": Records(
            name=STREAM, partitions=PARTITIONS, records=recorded, head_ms=MS, sizes=sizes, version=VERSION
        ).encode(),
        "records-new": Records(name=STREAM, partitions=()).encode(),
        "decisions": Decisions(name=STREAM, decisions=(DecisionRow(MS, '{"a":1}'),), version=VERSION).encode(),
        "group": full.encode(),
        "group-new": group.encode(),
        "group-read": read.encode(),
        "group-segments": replace(read, assignments=(*read.assignments, finished)).encode(),
        "topic": TopicEntry(STREAM, INCARNATION, PARTITIONS).encode(),
    }


_DOCUMENTS: dict[str, type[CheckedDocument]] = {
    "subscribers": Subscribers,
    "records": Records,
    "decisions": Decisions,
    "group": GroupState,
}


def _retention_again(name: str, data: bytes) -> bytes:
    kind = name.partition("-")[0]
    if kind == "topic":
        return TopicEntry.decode(data).encode()
    return _DOCUMENTS[kind].decode(data).encode()


def segment_columns(count: int) -> SegmentColumns:
    """Rows of every status, layout and width of number; each third has two ledgers."""
    number = np.arange(count)
    columns = {name: np.zeros(count, dtype) for name, dtype in NUMBER_COLUMNS.items()}
    columns |= {
        "status": 1 + number % 2,
        "layout": 2 - number % 2,
        "owned": number % 2,
        "compressed": number % 3 == 0,
        "driver": number % 2,
        "epoch": np.full(count, 3),
        "retire_record": np.where(number % 2, 41, -1),
        "begin_ledger_id": 7 + 2 * number,
        "begin_entry_id": number,
        "end_ledger_id": 7 + 2 * number + (number % 3 == 0),
        "end_entry_id": number + 9,
        "assigned_ms": MS + number,
        "offloaded_ms": MS + 70_000 * number,
        "data_bytes": 2**40 + number,
        "index_bytes": 270 + number,
        "data_crc32c": (number + 1) * 2654435761 % 2**32,
        "index_crc32c": 2**32 - 1 - number,
        "entries": 10 + number,
        "payload_bytes": 1_000 * number,
        "publish_time_min_ms": np.where(number % 5, MS, -1),
        "publish_time_max_ms": np.where(number % 5, MS + number, -1),
        "blocks": 1 + number,
    }
    rows = np.flatnonzero(number % 3 == 0)
    spans = [[[7 + 2 * n, n, n + 4, 5, 10], [8 + 2 * n, 0, n + 9, 5 + n, 20]] for n in rows.tolist()]
    return SegmentColumns(
        uuid_high=(number.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15),
        uuid_low=(number.astype(np.uint64) + np.uint64(2**63)),
        **{name: values.astype(NUMBER_COLUMNS[name]) for name, values in columns.items()},
        span_rows=rows.astype(np.int64),
        span_offsets=2 * np.arange(len(rows) + 1),
        spans=np.array(spans, np.int64).reshape(-1, 5),
        drivers=(DRIVER, {"bucket": "other"}),
    )


def checkpoints() -> dict[str, bytes]:
    """One that says everything, with segments; one that says as little as it can, without."""
    full = Checkpoint(
        record_id=42,
        base_id=7,
        incarnation=INCARNATION,
        epoch=3,
        owner=WRITER,
        writer=replace(WRITER, url="", nonce="f" * 16),
        time_ms=MS,
        totals=TOTALS,
        committed_end=Position(9, 3),
        newest_end=Position(9, 9),
        head=Position(7, 1),
        method="streaming",
        paused=True,
        held=True,
        stream_deleted=False,
        gaps=(Gap(Position(7, 3), Position(8, 0), "lost"),),
        assigned=(
            AssignedSegment(
                uuid=UUIDS[0], epoch=3, layout=2, begin=Position(9, 4), end=None, assigned_ms=MS, driver=DRIVER
            ),
        ),
        rewrites=(
            AssignedSegment(
                uuid=UUIDS[5], epoch=3, layout=1, begin=Position(7, 0), end=Position(7, 9), assigned_ms=MS, driver={}
            ),
        ),
        replaced=(
            ReplacedSegment(uuid=UUIDS[6], ledger_id=7, retire_record=41, object_bytes=99),
            ReplacedSegment(uuid=UUIDS[7], ledger_id=None, retire_record=42, object_bytes=98),
        ),
        runs=(
            RunRef(
                name=run_name(40, 2**64 - 1, "segments"),
                rows=1000,
                object_bytes=77_777,
                crc32c=5,
                dead=(RowRange(0, 7), RowRange(9, 10)),
            ),
        ),
        ledger_runs=(RunRef(name=run_name(40, 1, "ledgers"), rows=9, object_bytes=777, crc32c=6),),
        ledgers=(LedgerRow(7, 149, DELETED | HOT_RELEASED), LedgerRow(9, LAST_UNKNOWN, 0)),
        committed_from=Position(7, 2),
    )
    bare = replace(
        full, base_id=0, totals=NO_TOTALS, committed_end=None, newest_end=None, head=None, method="none", paused=False,
        held=False, stream_deleted=True, gaps=(), assigned=(), rewrites=(), replaced=(), runs=(), ledger_runs=(),
        ledgers=(), committed_from=None,
    )  # fmt: skip
    source = KnownSource(uuid=UUIDS[6], token="ab" * 16, reserved=1_000, reach=Position(9, 40))
    with_source = replace(full, source=source, ledgers=(LedgerRow(7, 149, ASIDE, 54_000, MS),))
    filled = GapFilled(UUIDS[4], Position(7, 3), Position(7, 9), 5, 5_000, 5_120, 1)
    return {
        "fills": encode_checkpoint(replace(full, fills=(filled,)), segment_columns(7)),
        "source": encode_checkpoint(with_source, segment_columns(7)),
        "source-empty": encode_checkpoint(replace(bare, source=replace(source, reach=None)), segment_columns(0)),
        "full": encode_checkpoint(full, segment_columns(7)),
        "bare": encode_checkpoint(bare, segment_columns(0)),
    }


def ledger_columns(*, facts: bool = False) -> LedgerColumns:
    """A hundred ledgers of every kind."""
    number = np.arange(100)
    last = np.where(number % 3 == 0, -1, np.where(number % 7 == 0, LAST_UNKNOWN, 1000 + number))
    unknown = np.full(100, FACT_UNKNOWN, np.int64)
    return LedgerColumns(
        ledger_id=5 * number,
        last_entry_id=last.astype(np.int64),
        flags=(number % (8 if facts else 4)).astype(np.uint8),
        payload_bytes=np.where(number % 2, 2**33 + number, -1) if facts else unknown,
        created_ms=np.where(number % 3, MS + number, -1) if facts else unknown,
    )


def write_ledgers(path: Path) -> None:
    """A database as the embedded managed ledger writes it: two streams, rollovers, notes, a deleted ledger."""
    clock = ManualClock(MS, waits_pass=False)
    ledgers = EmbeddedLedgers(
        str(path), settings=LedgerSettings(ledger_entries_max=50), clock=clock, entropy=lambda n: bytes(range(n))
    )
    for stream in (STREAM, "other"):
        opened = ledgers.open_stream(stream)
        for number in range(6):
            clock.advance(1.0)
            opened.append([bytes([number]) * (7 * n % 90) for n in range(30)], notes={"at": b"%d" % number})
        opened.release(Position(opened.ledgers()[1].ledger_id, 10))
        opened.delete(opened.ledgers()[0].ledger_id)
    ledgers.open_stream("other").append([b"by the next owner", b""], [-1, MS - 5])
    ledgers.close()


def database() -> dict[str, bytes]:
    """The database in one file, compressed."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledgers.db"
        write_ledgers(path)
        return {"ledgers.db.gz": gzip.compress(path.read_bytes(), mtime=0)}


def progress() -> dict[str, bytes]:
    """Progress of a replay."""
    begun = Progress(producer="offloader-replay-1", stream=STREAM, topic="persistent://public/default/orders")
    later = replace(begun, sent=Position(7, 3), target=Position(12, -1))
    with tempfile.TemporaryDirectory() as folder:
        return {name: _progress(Path(folder), value) for name, value in (("begun", begun), ("later", later))}


def _progress(folder: Path, value: Progress | bytes) -> bytes:
    file = ProgressFile(folder / "progress.json")
    if isinstance(value, bytes):
        file.path.write_bytes(value)
        found = file.read()
        assert found is not None
        value = found
    file.write(value)
    return file.path.read_bytes()


def _progress_again(data: bytes) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return _progress(Path(folder), data)


def catalogue() -> dict[str, bytes]:
    """The note of a catalogue."""
    place = ObjectsPlace("s3://bucket/root", "http://store:9000", "eu-1")
    with tempfile.TemporaryDirectory() as folder:
        create_catalogue(f"catalogue://{folder}", place, StoreOptions())
        return {"place": bytes(open_store(f"file://{folder}", read_only=True).get("_objects/place.json")[0])}


def _catalogue_again(data: bytes) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        # One that is there already is compared, and left as it is where it says the same.
        open_store(f"file://{folder}").put("_objects/place.json", data)
        create_catalogue(
            f"catalogue://{folder}", ObjectsPlace("s3://bucket/root", "http://store:9000", "eu-1"), StoreOptions()
        )
    return catalogue()["place"]


def offsets() -> dict[str, bytes]:
    """What Spark keeps of a streaming query."""
    made = {
        STREAM: StreamOffset(INCARNATION, 42, Position(7, 3), Position(7, -1)),
        "new": StreamOffset(UUIDS[0], 1, None, None),
    }
    return {"offsets": json.dumps(encode_offsets(made)).encode()}


@dataclass(frozen=True, slots=True)
class Kind:
    """One format.

    Attributes:
        name, version: of the folder.
        constant: dotted name of the constant that says the version; empty where none does.
        samples: name -> bytes, as this release writes them.
        again: decodes the sample of a name, and encodes it.
        is_parquet: other bytes with another release of Arrow, which says its name in them.
    """

    name: str
    version: int
    constant: str
    samples: Callable[[], Mapping[str, bytes]]
    again: Callable[[str, bytes], bytes]
    is_parquet: bool = False

    @property
    def folder(self) -> str:
        return f"{self.name}-{self.version}"


def _one(name: str, data: bytes) -> Callable[[], Mapping[str, bytes]]:
    return lambda: {name: data}


def fills() -> dict[str, bytes]:
    """Entries of several gaps, of different lengths and empty ones; one entry."""
    several = EntryBatch.concat(
        [EntryBatch.build(7, 3, [b"marker", b""]), EntryBatch.build(7, 9, [bytes(range(256)), b"abort"])]
    )
    return {"several": bytes(encode_fill(several)), "one": bytes(encode_fill(EntryBatch.build(8, 0, [b"x"])))}


def _boundaries() -> dict[str, bytes]:
    named = Boundary(10, 42, 7, newest_id=44, newest_nonce="0a", subscribers_revision=5)
    return {
        "boundary": Boundary(10, 42, 7).encode(),
        "boundary-new": Boundary(1, 0).encode(),
        "boundary-subscribers": named.encode(),
    }


def _entries() -> dict[str, bytes]:
    entry = CatalogEntry(STREAM, INCARNATION, MS)
    return {"entry": entry.encode(), "entry-rebuilt": replace(entry, replaces=(UUID(int=1), UUID(int=2))).encode()}


def _intents() -> dict[str, bytes]:
    heads = (PartitionHead("t-partition-0", INCARNATION, Position(7, 0)),)
    intent = TruncationIntent(STREAM, heads, True, "host-1", MS)
    return {"begun": intent.encode(), "done": replace(intent, is_done=True).encode()}


def _layout() -> TopicLayout:
    place = "public/default/segment/orders"
    sealed = {"created_epoch": 0, "created_ms": MS, "sealed_epoch": 1, "sealed_ms": MS + 1}
    return TopicLayout(
        topic="topic://public/default/orders",
        epoch=1,
        segments=(
            RangeSegment(
                id=0,
                stream=STREAM,
                hash_start=0,
                hash_stop=65536,
                parents=(),
                end=Position(7, 9),
                is_legacy=True,
                **sealed,
            ),
            RangeSegment(
                id=1, stream=f"{place}/0000-7fff-1", hash_start=0, hash_stop=32768, parents=(0,), created_epoch=1
            ),
            RangeSegment(
                id=2, stream=f"{place}/8000-ffff-2", hash_start=32768, hash_stop=65536, parents=(0,), created_epoch=1
            ),
        ),
    )


def _layout_with_schemas() -> TopicLayout:
    schemas = (
        TopicSchema(version=0, type="AVRO", data='{"type":"record","name":"Order","fields":[]}'),
        TopicSchema(version=0, type="STRING", data="", properties={"__charset": "UTF-8"}),
    )
    return replace(_layout(), schemas=schemas)


def _deletion_again(name: str, data: bytes) -> bytes:
    return AwaitedReaders.decode(data).encode() if name == "awaited" else DeletionRecord.decode(data).encode()


def _database_again(name: str, data: bytes) -> bytes:
    return data  # its rows and tables are compared by a test of its own


KINDS: Iterable[Kind] = (
    Kind("record", 1, "formats.manifest.RECORD_FORMAT", records, lambda _, d: encode_record(decode_record(d))),
    Kind(
        "boundary",
        1,
        "formats.manifest.Boundary.format_version",
        _boundaries,
        lambda _, d: Boundary.decode(d).encode(),
    ),
    Kind(
        "catalog",
        1,
        "formats.manifest.CatalogEntry.format_version",
        _entries,
        lambda _, d: CatalogEntry.decode(d).encode(),
    ),
    Kind(
        "checkpoint",
        1,
        "formats.checkpoint.Checkpoint.format_version",
        checkpoints,
        lambda _, d: encode_checkpoint(*decode_checkpoint(d)),
        is_parquet=True,
    ),
    Kind(
        "run",
        1,
        "formats.checkpoint_parquet.RUN_FORMAT",
        lambda: {"small": encode_columns(segment_columns(7), {}), "large": encode_columns(segment_columns(300), {})},
        lambda _, d: encode_columns(decode_columns(d), {}),
        is_parquet=True,
    ),
    Kind(
        "ledger-run",
        1,
        "formats.checkpoint._FORMAT",
        lambda: {
            "ledgers": encode_ledgers(ledger_columns()),
            "ledgers-facts": encode_ledgers(ledger_columns(facts=True)),
        },
        lambda _, d: encode_ledgers(decode_ledgers(d)),
        is_parquet=True,
    ),
    Kind(
        "lease",
        1,
        "formats.documents.Lease.format_version",
        _one("lease", Lease(UUIDS[0], STREAM, "spark app-1", 3600).encode()),
        lambda _, d: Lease.decode(d).encode(),
    ),
    Kind(
        "hold",
        1,
        "formats.documents.GlobalHold.format_version",
        _one("hold", GlobalHold("host-1", MS, "case 7").encode()),
        lambda _, d: GlobalHold.decode(d).encode(),
    ),
    Kind(
        "store",
        1,
        "formats.documents.StoreIdentity.format_version",
        _one("identity", StoreIdentity(UUIDS[3]).encode()),
        lambda _, d: StoreIdentity.decode(d).encode(),
    ),
    Kind("deletion", 1, "formats.documents.DeletionRecord.format_version", deletions, _deletion_again),
    Kind(
        "intent",
        1,
        "formats.documents.TruncationIntent.format_version",
        _intents,
        lambda _, d: TruncationIntent.decode(d).encode(),
    ),
    Kind(
        "layout",
        1,
        "formats.topic_layout.TopicLayout.format_version",
        lambda: {"split": _layout().encode(), "schemas": _layout_with_schemas().encode()},
        lambda _, d: TopicLayout.decode(d).encode(),
    ),
    Kind("retention", 1, "formats.documents.Subscribers.format_version", retention, _retention_again),
    Kind("fill", 1, "formats.frames.FILL_VERSION", fills, lambda _, d: bytes(encode_fill(decode_fill(d)))),
    Kind("ledgers", 4, "offloader.ledgers.sqlite.database._SCHEMA_VERSION", database, _database_again),
    Kind("replay", 1, "offloader.replay._VERSION", progress, lambda _, d: _progress_again(d)),
    Kind("catalogue", 1, "offloader.store.open._FORMAT", catalogue, lambda _, d: _catalogue_again(d)),
    Kind(
        "offsets",
        1,
        "",
        offsets,
        lambda _, d: json.dumps(encode_offsets(decode_offsets(json.loads(d)))).encode(),
    ),
)
