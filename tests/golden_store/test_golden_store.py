"""The golden store, which earlier code of this format wrote, is read, continued and cleaned up by today's code.

Most tests have its objects in a memory store, because a manifest names the place where its objects are.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from formats.entries import Position
from formats.keys import record_number
from formats.manifest import EDIT_KINDS, decode_record
from formats.summary import Layout
from offloader.cli.main import main
from offloader.managed_ledger import ManagedLedger
from offloader.manifest.log import ManifestLog, load_manifest
from offloader.manifest.segment_table import SegmentStatus
from offloader.read.cold import read_fill
from offloader.read.partitions import open_reader
from offloader.retention.cuts import StreamCut
from offloader.runtime.clock import SystemClock
from offloader.store.base import IfMatch
from offloader.store.open import open_store
from offloader.write.backfill_service import missing_runs
from tests.golden_store import make
from tests.golden_store.archive import ARCHIVE, into_memory, object_keys, read_digest, unpack, unpack_databases
from tests.golden_store.every_kind import (
    FILL,
    LEDGER_ENTRIES,
    MANY_LEDGERS,
    MANY_SEGMENTS,
    ORACLE,
    RESERVED_LEDGERS,
    TOMBSTONE,
)
from tests.golden_store.place import DATABASES, STORE, Place, entries
from tests.groups.bookkept_groups import open_bookkept_groups
from tests.support.presence import there

pytestmark = pytest.mark.slow

#: Objects beside records, by their keys.
OBJECT_KINDS = [
    r"^_catalog/", r"^_groups/", r"^_hold$", r"/boundary$", r"\.checkpoint\.parquet$", r"\.ledgers\.parquet$",
    r"\.segments\.parquet$", r"/leases/", r"/retention/topic$", r"/retention/truncation\.json$", r"/subscribers$",
    r"/records$", r"/decisions$", r"/retention/awaited/", r"/retention/deleted/", r"/retention/deleting/",
    r"-ledger-\d+$", r"-ledger-\d+-index$", r"^b/undone/[0-9a-f-]{36}$", r"^b/undone/[0-9a-f-]{36}-index$", r"-fill$",
]  # fmt: skip


class Golden(Place):
    """The golden store in memory, its databases, and what must be read from it."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        super().__init__(folder)
        self._capsys = capsys
        self.readable: dict[str, dict[str, Any]] = json.loads((folder / "readable.json").read_text())

    def lines(self, *words: str) -> list[Any]:
        """What a command prints with ``--json``; it has to succeed."""
        self._capsys.readouterr()
        code = main([*words, "--store", STORE, "--json"])
        printed = self._capsys.readouterr()
        assert code == 0, (words, printed.err)
        return [json.loads(line) for line in printed.out.splitlines()]

    def payloads(self, stream: str) -> list[bytes]:
        """All that the store has of a stream, in order."""
        with open_reader(self.store, stream) as reader:
            return [bytes(entry.payload) for batch in reader.scan() for entry in batch.entries()]

    def first_position(self, stream: str) -> Position:
        return Position.parse(self.readable[stream]["first"])

    def remove_tombstone(self) -> None:
        self.lines("stream", "delete", "--apply", TOMBSTONE, "--config", str(self.at_once))

    def verify(self, streams: Iterable[str]) -> None:
        """Every byte of the streams' objects."""
        self.lines("verify", *streams, "--deep")


@pytest.fixture
def golden(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Golden:
    """As it was written: nothing may be deleted."""
    into_memory()
    return Golden(unpack_databases(tmp_path), capsys)


@pytest.fixture
def deletable(golden: Golden) -> Golden:
    """Without the hold on all deletion."""
    golden.store.delete(["_hold"])
    return golden


def test_archive_has_every_kind_of_edit_and_object(golden: Golden) -> None:
    assert ARCHIVE.stat().st_size < 200 * 1024
    keys, kinds = list(object_keys(golden.store)), set()
    for key in keys:
        if "/manifest/" in key and record_number(key) is not None:
            kinds |= {edit.kind for edit in decode_record(golden.store.get(key)[0]).edits}
    # The archive is older than this edit, whose bytes are in tests/formats/golden_own.
    assert kinds == set(EDIT_KINDS) - {"recover"}
    for part in OBJECT_KINDS:
        assert [key for key in keys if re.search(part, key)], part
    for name in ("ledgers.db", *DATABASES.values()):
        with closing(sqlite3.connect(golden.folder / name)) as database:
            assert database.execute("PRAGMA user_version").fetchone() == (2,)
        assert (golden.folder / f"{name}.acked").stat().st_size


def test_archive_is_not_overwritten(tmp_path: Path) -> None:
    target = tmp_path / "written.tar.xz"
    target.touch()
    with pytest.raises(SystemExit, match=r"written\.tar\.xz exists"):
        make.main([str(target)])
    assert target.stat().st_size == 0


def test_local_directory_keeps_objects_and_metadata(tmp_path: Path) -> None:
    store = open_store(f"file://{unpack(tmp_path)}/store")
    described = {key: store.head(key).metadata.get("role") for key in object_keys(store) if "manifest" not in key}
    roles = list(described.values())
    assert roles.count("data") == roles.count("index") > 20
    assert roles.count("fill") == 1
    key = next(key for key in described if key.startswith("_catalog/"))
    info = store.head(key)
    store.put(key, bytes(store.get(key)[0]), mode=IfMatch(info.etag))


def test_every_stream_is_read_as_written_and_every_object_is_whole(deletable: Golden) -> None:
    assert len(deletable.readable) >= 20
    for stream, wanted in deletable.readable.items():
        assert read_digest(deletable.store, stream) == wanted, stream
    deletable.verify(deletable.readable)
    deletable.remove_tombstone()
    assert {row["stream"] for row in deletable.lines("ls")} == set(deletable.readable)


def test_inspection_commands_work(deletable: Golden) -> None:
    deletable.remove_tombstone()
    for stream in deletable.readable.keys() - {"b/many-segments"}:  # its thousands of lines take long
        assert deletable.lines("ls", stream) or stream == "b/many-ledgers"  # nothing of it was offloaded
    for stream in ("a/streamed", "a/topic", "b/filled", "b/many-segments", "b/purged", ORACLE):
        assert deletable.lines("manifest", "show", stream)
    for stream in ("a/streamed", "a/by-ledger", ORACLE):  # V2, V1 and Pulsar's own
        assert len(deletable.lines("read", stream, "--limit", "3")) == 3
    deletable.lines("status")
    deletable.lines("doctor")
    [reader] = deletable.lines("subscriber", "list", "a/streamed")
    assert reader["subscriber"] == "reader"
    group = deletable.lines("group", "list")[0]
    assert group["streams"] == ["a/by-ledger", "a/streamed"]
    plan = {row["stream"]: row for row in deletable.lines("retention", "plan", "--config", str(deletable.config))}
    assert {"a/streamed", "a/topic"} <= set(plan)
    assert deletable.lines("retention", "explain", "a/topic", "--config", str(deletable.config))
    assert deletable.lines("cleanup", "plan", "--config", str(deletable.config))
    deletable.lines("cleanup", "orphans")
    deletable.lines("cleanup", "audit")


@pytest.mark.parametrize(
    ("stream", "written", "method"),
    [
        ("a/streamed", 1250, "streaming"),
        ("a/by-ledger", 640, "ledger"),
        ("a/left", 310, "streaming"),
        ("a/rolled", 500, "streaming"),
    ],
)
def test_hot_entries_are_offloaded_with_new_ones(deletable: Golden, stream: str, written: int, method: str) -> None:
    with open_reader(deletable.store, stream) as follower, deletable.topic(stream, method=method) as topic:
        topic.append_batch(entries(stream, written, 500))
        assert len({ledger.ledger_id for ledger in topic.ledgers()}) >= 3
        topic.close_ledger()
        topic.offload()
        assert deletable.payloads(stream) == entries(stream, 0, written + 500)
        with follower.refresh() as seen:
            assert seen.last_position == load_manifest(deletable.store, stream).committed_end()
        whole = topic.read(deletable.first_position(stream), end_of(topic))
        assert [bytes(entry.payload) for entry in whole] == entries(stream, 0, written + 500)
    deletable.verify([stream])


def end_of(topic: ManagedLedger) -> Position:
    last = [ledger for ledger in topic.ledgers() if ledger.entries][-1]
    return Position(last.ledger_id, last.last_entry_id)


def test_truncation_is_undone_and_cleaned_up(deletable: Golden) -> None:
    head = deletable.first_position("a/truncated")
    deletable.lines("cleanup", "undo", "a/truncated")
    segments = load_manifest(deletable.store, "a/truncated").offloaded()
    gone = [segment.uuid for segment in segments if there(segment.end) < head]
    assert len(gone) >= 2
    assert deletable.payloads("a/truncated") == entries("a/truncated", 0, 900)

    with deletable.topic("a/truncated") as topic:
        topic.truncate(head)
    for _ in range(2):
        deletable.lines("cleanup", "run", "--apply", "a/truncated", "--allow-large", "--config", str(deletable.config))
    assert read_digest(deletable.store, "a/truncated") == deletable.readable["a/truncated"]
    assert not [key for key in object_keys(deletable.store) if any(str(uuid) in key for uuid in gone)]
    deletable.verify(["a/truncated"])


def test_replaced_segments_are_purged_and_the_rest_can_be_rewritten(deletable: Golden) -> None:
    with deletable.topic("a/rolled") as topic:
        topic.append_batch([b"so that the ledger before is closed"])
        topic.offload()
    deletable.lines("stream", "compact", "a/rolled", "--beside-owner")
    for _ in range(2):
        deletable.lines("cleanup", "run", "--apply", "a/rolled", "--allow-large", "--config", str(deletable.config))
    left = load_manifest(deletable.store, "a/rolled")
    assert left.offloaded()[0].layout == Layout.V1
    assert deletable.payloads("a/rolled")[:500] == entries("a/rolled", 0, 500)
    deletable.verify(["a/rolled"])


def test_pause_and_hold_last_until_lifted(deletable: Golden) -> None:
    with deletable.topic("a/paused") as topic:
        assert load_manifest(deletable.store, "a/paused").paused
        assert load_manifest(deletable.store, "a/paused").held
        assert len(deletable.payloads("a/paused")) == 300
        assert topic.resume()
        topic.offload()
        assert deletable.payloads("a/paused") == entries("a/paused", 0, 330)
    deletable.lines("cleanup", "hold", "a/paused", "--off")
    deletable.lines("cleanup", "run", "--apply", "a/paused", "--config", str(deletable.config))
    deletable.verify(["a/paused"])


def test_partitions_are_truncated_further_and_deleted_without_a_trace(deletable: Golden) -> None:
    partitions = [f"a/topic-partition-{number}" for number in range(2)]
    ends = [deletable.readable[name]["last"] for name in partitions]
    words = [word for number, end in enumerate(ends) for word in ("--at", f"{number}={end}")]
    deletable.lines("subscriber", "ack", "a/topic", "billing", *words)
    deletable.lines("retention", "run", "--apply", "a/topic", "--config", str(deletable.config))
    for name, end in zip(partitions, ends, strict=True):
        head = there(load_manifest(deletable.store, name).head)
        assert head > deletable.first_position(name)
        assert head.ledger_id <= Position.parse(end).ledger_id
    deletable.lines("stream", "delete", "--apply", "a/topic", "--config", str(deletable.config))
    assert all(load_manifest(deletable.store, name).stream_deleted for name in partitions)


def test_adopted_objects_are_known_and_released(deletable: Golden) -> None:
    before = {key for key in object_keys(deletable.store) if "/" not in key}
    again, _ = deletable.lines("import")
    assert (again["stream"], again["adopted"]) == (ORACLE, 0)
    deletable.lines("import", ORACLE, "--undo")
    assert {key for key in object_keys(deletable.store) if "/" not in key} == before
    deletable.lines("import")
    assert read_digest(deletable.store, ORACLE) == deletable.readable[ORACLE]


def test_new_checkpoint_has_what_records_and_older_checkpoints_have(golden: Golden) -> None:
    assert load_manifest(golden.store, "a/streamed").checkpoint_id
    for stream, wanted in golden.readable.items():
        log = ManifestLog(golden.store, stream, clock=SystemClock())
        log.checkpoint()
        state = load_manifest(golden.store, stream)
        assert state.checkpoint_id == state.record_id
        assert read_digest(golden.store, stream) == wanted, stream


def test_nothing_is_deleted_while_the_store_is_on_hold(golden: Golden) -> None:
    before = set(object_keys(golden.store))
    assert main(["cleanup", "run", "--apply", "--allow-large", "--config", str(golden.config), "--store", STORE]) == 2
    assert before <= set(object_keys(golden.store))
    golden.lines("cleanup", "hold", "--all", "--off")
    golden.lines("cleanup", "run", "--apply", "a/truncated", "--allow-large", "--config", str(golden.config))
    assert not before <= set(object_keys(golden.store))


def test_reserved_ledger_ids_are_not_given_again(golden: Golden) -> None:
    reserved = there(load_manifest(golden.store, "b/reserved").source).reserved
    with golden.topic("b/reserved") as topic:
        assert len(topic.ledgers()) >= RESERVED_LEDGERS
        appended = topic.append(b"more")
        topic.offload()
    assert appended.ledger_id > reserved
    assert golden.payloads("b/reserved") == [*(b"%d" % each for each in range(RESERVED_LEDGERS)), b"more"]
    golden.verify(["b/reserved"])


def test_ledger_facts_in_a_checkpoint_run_are_read(golden: Golden) -> None:
    state = load_manifest(golden.store, "b/many-ledgers")
    assert state.record_id == state.checkpoint_id
    [shown] = golden.lines("manifest", "checkpoint", "b/many-ledgers")
    assert shown["stream"] == "b/many-ledgers"
    with golden.topic("b/many-ledgers") as topic:
        appended = topic.append(b"the first")
        topic.offload()
    assert appended.ledger_id > MANY_LEDGERS
    assert golden.payloads("b/many-ledgers") == [b"the first"]


def test_segments_in_a_checkpoint_run_are_read(golden: Golden) -> None:
    for _ in range(2):
        state = load_manifest(golden.store, "b/many-segments")
        assert len(state.segments.retired()) == MANY_SEGMENTS
        assert len(list(state.offloaded())) == 1
        assert golden.payloads("b/many-segments") == entries("b/many-segments", 0, LEDGER_ENTRIES)
        golden.lines("manifest", "checkpoint", "b/many-segments")


def test_filled_gaps_are_read_only_by_the_broker(golden: Golden) -> None:
    for _ in range(2):
        state = load_manifest(golden.store, "b/filled")
        [fill] = state.fills
        stored = read_fill(golden.store, "b/filled", fill)
        assert {entry.entry_id: bytes(entry.payload) for entry in stored.entries()} == FILL
        assert missing_runs(state, 7, 15) == [(15, 15)]
        with open_reader(golden.store, "b/filled") as reader:
            found = [entry.position for batch in reader.scan() for entry in batch.entries()]
        assert not {Position(7, each) for each in (*FILL, 15)} & set(found)
        golden.lines("manifest", "checkpoint", "b/filled")


@pytest.mark.parametrize(
    "stream",
    ["b/lost", "b/aside", "b/undone", "b/released", "b/failed", "b/anew", "b/filled", "b/many-segments"],
)
def test_stream_continues_where_its_writer_left_it(golden: Golden, stream: str) -> None:
    before, state = golden.payloads(stream), load_manifest(golden.store, stream)
    new = entries(stream, 10_000, LEDGER_ENTRIES)
    with golden.topic(stream) as topic:
        topic.append_batch(new)
        topic.close_ledger()
        topic.offload()
    found = load_manifest(golden.store, stream)
    assert golden.payloads(stream) == [*before, *new]
    assert (found.gaps, found.fills) == (state.gaps, state.fills)
    assert bool(found.gaps) == (stream in ("b/lost", "b/aside", "b/filled"))
    golden.verify([stream])


def test_ledger_that_was_set_aside_stays_out_of_the_store(deletable: Golden) -> None:
    with deletable.topic("b/aside") as topic:
        assert 1 in [ledger.ledger_id for ledger in topic.ledgers()]
        topic.release_hot()
        topic.truncate(load_manifest(deletable.store, "b/aside").committed_end() or Position(0, 0))
        assert 1 in [ledger.ledger_id for ledger in topic.ledgers()], "its entries are nowhere else"
    assert b"never offloaded" not in deletable.payloads("b/aside")


def test_unfinished_deletion_is_finished(deletable: Golden) -> None:
    deletable.lines("cleanup", "run", "--apply", "b/purged", "--allow-large", "--config", str(deletable.config))
    assert read_digest(deletable.store, "b/purged") == deletable.readable["b/purged"]
    deletable.verify(["b/purged"])
    kept = list(object_keys(deletable.store, "b/purged/retention/"))
    assert len(kept) == 2
    assert all("/deleted/" in key for key in kept)


def test_retired_segment_is_purged_once_its_reader_lease_is_gone(deletable: Golden) -> None:
    segments = load_manifest(deletable.store, "b/awaited").segments.values()
    retired = {str(each.uuid) for each in segments if each.status is SegmentStatus.RETIRED}
    for is_read in (True, False):
        if not is_read:
            deletable.store.delete(list(object_keys(deletable.store, "b/awaited/leases/")))
        deletable.lines("cleanup", "run", "--apply", "b/awaited", "--allow-large", "--config", str(deletable.config))
        kept = {key.removeprefix("b/awaited/") for key in object_keys(deletable.store, "b/awaited/")}
        assert bool(retired & kept) == is_read
    assert read_digest(deletable.store, "b/awaited") == deletable.readable["b/awaited"]
    deletable.verify(["b/awaited"])


def test_recorded_truncation_intent_is_carried_out(deletable: Golden) -> None:
    deletable.lines("retention", "run", "--apply", "b/half", "--config", str(deletable.config))
    for number in range(2):
        stream = f"b/half-partition-{number}"
        assert len(deletable.payloads(stream)) == 2 * LEDGER_ENTRIES - 2
        deletable.verify([stream])


def test_checkpoint_of_a_reader_group_is_completed_and_published(golden: Golden) -> None:
    groups = open_bookkept_groups(golden.store)
    groups.reach_checkpoint("manual", "kept", "two", {"b/released": StreamCut()})
    for reader in ("one", "two"):
        groups.pass_checkpoint("manual", "kept", reader)
    assert groups.update_truncation_checkpoint("manual", "kept").group.streams == ("b/released",)
