"""A store and a ledger database of an earlier release open in this one and continue.

The archives beside this file are what ``make_previous_store.py`` wrote with each release. They hold a local directory's
store; most tests have its objects in a memory store, because a manifest names the place where its objects are.
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
from offloader import Settings, open_managed_ledger, open_reader, open_reader_groups, open_store
from offloader.cli.main import main
from offloader.managed_ledger import ManagedLedger
from offloader.manifest.log import load_manifest
from offloader.manifest.segment_table import SegmentStatus
from offloader.retention.cuts import Cut
from offloader.store.base import IfMatch
from tests.support.presence import there
from tests.upgrade.archives import ARCHIVES, EVERY_KIND, into_memory, objects, unpacked
from tests.upgrade.every_kind import LEDGER_ENTRIES, MANY_LEDGERS, RESERVED_LEDGERS, TOMBSTONES
from tests.upgrade.make_previous_store import digest
from tests.upgrade.place import DATABASES, SETTINGS, STORE, entries

pytestmark = pytest.mark.slow

pytestmark = pytest.mark.slow

#: Kinds of edits that the release of the newest archive hadn't.
SINCE_THE_NEWEST_ARCHIVE = {"gap_filled"}
#: Objects beside records, by their keys.
OBJECT_KINDS = [
    r"^_catalog/", r"^_groups/", r"^_hold$", r"/boundary$", r"\.checkpoint\.parquet$", r"\.ledgers\.parquet$",
    r"/leases/", r"/retention/topic$", r"/retention/truncation\.json$", r"/subscribers$", r"/records$", r"/decisions$",
    r"/retention/awaited/", r"/retention/deleted/", r"/retention/deleting/", r"-ledger-\d+$", r"-ledger-\d+-index$",
    r"^b/undone/[0-9a-f-]{36}$", r"^b/undone/[0-9a-f-]{36}-index$",
]  # fmt: skip
ORACLE = "public/default/persistent/oracle"


class Upgraded:
    """What a release left, and this release's ways to it."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.folder = folder
        self.store = open_store(STORE)
        self.readable: dict[str, dict[str, Any]] = json.loads((folder / "readable.json").read_text())
        self.config = folder / "offloader.toml"
        self.config.write_text('[retention]\npolicy = "consumption"\n[cleanup]\ngrace_period = "0s"\n')
        self.at_once = folder / "at-once.toml"
        self.at_once.write_text("[cleanup]\ngrace_period = '0s'\n[manifest]\norphan_age_min = '0s'\n")
        self.has_every_kind = "b/reserved" in self.readable

    def topic(self, stream: str, **offload: object) -> ManagedLedger:
        settings = Settings.of({**SETTINGS, "offload": {**SETTINGS["offload"], **offload}})
        return open_managed_ledger(
            stream,
            ledgers=f"sqlite:///{self.folder}/{DATABASES.get(stream, 'ledgers.db')}",
            store=self.store,
            settings=settings,
        )

    def run(self, *words: str) -> list[Any]:
        """A command that has to succeed, and its JSON."""
        self._capsys.readouterr()
        code = main([*words, "--store", STORE, "--json"])
        printed = self._capsys.readouterr()
        assert code == 0, (words, printed.err)
        return [json.loads(line) for line in printed.out.splitlines()]

    def payloads(self, stream: str) -> list[bytes]:
        """All there is in the store, in order."""
        with open_reader(self.store, stream) as reader:
            return [bytes(entry.payload) for batch in reader.scan() for entry in batch.entries()]

    def digest(self, stream: str) -> dict[str, object]:
        with open_reader(self.store, stream) as reader:
            return digest((e.position, bytes(e.payload)) for batch in reader.scan() for e in batch.entries())

    def finish_deletions(self) -> None:
        """No tombstone of a deleted stream is left."""
        for stream in TOMBSTONES if self.has_every_kind else ():
            self.run("delete-stream", stream, "--yes", "--config", str(self.at_once))

    def verify(self, streams: Iterable[str] | None = None) -> None:
        for stream in streams or self.readable:
            self.run("verify", stream, "--deep")


@pytest.fixture(params=ARCHIVES, ids=lambda path: path.name.removesuffix(".tar.xz"))
def archive(request: pytest.FixtureRequest) -> Path:
    """What a release wrote."""
    return Path(request.param)


@pytest.fixture
def as_written(archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Upgraded:
    """With the hold on all deletion that newer archives have."""
    into_memory(archive)
    return Upgraded(unpacked(archive, tmp_path, store=False), capsys)


@pytest.fixture
def upgraded(as_written: Upgraded) -> Upgraded:
    """What is there may be deleted."""
    as_written.run("cleanup", "hold", "--all", "--off")
    return as_written


@pytest.fixture
def every_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Upgraded:
    """The newest archive, as it was written."""
    into_memory(EVERY_KIND)
    return Upgraded(unpacked(EVERY_KIND, tmp_path, store=False), capsys)


def test_earlier_release_exists() -> None:
    assert ARCHIVES
    assert max(path.stat().st_size for path in ARCHIVES) < 200 * 1024


def test_local_directory_keeps_objects_and_metadata(archive: Path, tmp_path: Path) -> None:
    store = open_store(f"file://{unpacked(archive, tmp_path)}/store")
    described = {key: store.head(key).metadata.get("role") for key in objects(store) if "manifest" not in key}
    assert (
        sum(role == "data" for role in described.values()) == sum(role == "index" for role in described.values()) > 20
    )
    key = next(key for key in described if key.startswith("_catalog/"))
    info = store.head(key)
    store.put(key, bytes(store.get(key)[0]), mode=IfMatch(info.etag))


def test_every_stream_is_read_as_it_was_and_every_object_is_whole(upgraded: Upgraded) -> None:
    assert len(upgraded.readable) >= 9
    for stream, wanted in upgraded.readable.items():
        assert upgraded.digest(stream) == wanted, stream
    upgraded.verify()
    upgraded.finish_deletions()
    assert {row["stream"] for row in upgraded.run("ls")} == set(upgraded.readable)


@pytest.mark.slow
def test_inspection_commands_work_on_an_upgraded_store(upgraded: Upgraded) -> None:
    upgraded.finish_deletions()
    for stream in upgraded.readable:
        assert upgraded.run("segments", stream) or stream == "b/many-ledgers"  # nothing of it was offloaded
        assert upgraded.run("manifest", "show", stream)
        upgraded.run("read", stream, "--limit", "3")
    upgraded.run("status")
    upgraded.run("doctor")
    [reader] = upgraded.run("subscribers", "list", "a/streamed")
    assert reader["subscriber"] == "reader"
    group = upgraded.run("reader-groups", "list")[0]
    assert group["streams"] == ["a/by-ledger", "a/streamed"]
    plan = {row["stream"]: row for row in upgraded.run("retention", "plan", "--config", str(upgraded.config))}
    assert {"a/streamed", "a/topic"} <= set(plan)
    assert upgraded.run("retention", "explain", "a/topic", "--config", str(upgraded.config))
    assert upgraded.run("cleanup", "plan", "--config", str(upgraded.config))
    upgraded.run("cleanup", "orphans")
    upgraded.run("cleanup", "audit")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stream", "there", "method"),
    [
        ("a/streamed", 1250, "streaming"),
        ("a/by-ledger", 640, "ledger"),
        ("a/left", 310, "streaming"),
        ("a/rolled", 500, "streaming"),
    ],
)
def test_hot_entries_of_the_earlier_release_are_offloaded_with_new_ones(
    upgraded: Upgraded, stream: str, there: int, method: str
) -> None:
    with open_reader(upgraded.store, stream) as follower, upgraded.topic(stream, method=method) as topic:
        new = entries(stream, there, 500)
        topic.append_batch(new)
        assert len({ledger.ledger_id for ledger in topic.ledgers()}) >= 3
        topic.close_ledger()
        topic.offload()
        assert upgraded.payloads(stream) == entries(stream, 0, there + 500)
        with follower.refresh() as seen:
            assert seen.last_position == load_manifest(upgraded.store, stream).committed_end()
        whole = topic.read(begin_of(upgraded, stream), end_of(topic))
        assert [bytes(entry.payload) for entry in whole] == entries(stream, 0, there + 500)
    upgraded.verify([stream])


def begin_of(upgraded: Upgraded, stream: str) -> Position:
    return Position.parse(upgraded.readable[stream]["first"])


def end_of(topic: ManagedLedger) -> Position:
    last = [ledger for ledger in topic.ledgers() if ledger.entries][-1]
    return Position(last.ledger_id, last.last_entry_id)


def test_truncation_of_the_earlier_release_is_cleaned_up_or_undone(upgraded: Upgraded) -> None:
    head = begin_of(upgraded, "a/truncated")
    upgraded.run("cleanup", "undo", "a/truncated")
    gone = [
        segment.uuid
        for segment in load_manifest(upgraded.store, "a/truncated").offloaded()
        if there(segment.end) < head
    ]
    assert len(gone) >= 2
    assert upgraded.payloads("a/truncated") == entries("a/truncated", 0, 900)

    with upgraded.topic("a/truncated") as topic:
        topic.truncate(head)
    for _ in range(2):
        upgraded.run("cleanup", "run", "a/truncated", "--yes", "--config", str(upgraded.config))
    assert upgraded.digest("a/truncated") == upgraded.readable["a/truncated"]
    assert not [key for key in objects(upgraded.store) if any(str(uuid) in key for uuid in gone)]
    upgraded.verify(["a/truncated"])


def test_replaced_segments_are_purged_and_the_rest_can_be_rewritten(upgraded: Upgraded) -> None:
    with upgraded.topic("a/rolled") as topic:
        topic.append_batch([b"so that the ledger before is closed"])
        topic.offload()
    upgraded.run("rollback", "plan", "a/rolled")
    assert main(["rollback", "apply", "a/rolled", "--take-over", "--store", STORE]) == 2  # the newest one is open
    for _ in range(2):
        upgraded.run("cleanup", "run", "a/rolled", "--yes", "--config", str(upgraded.config))
    left = load_manifest(upgraded.store, "a/rolled")
    assert [segment.layout for segment in left.offloaded()][:2] == [Layout.V1, Layout.V1]
    assert upgraded.payloads("a/rolled")[:500] == entries("a/rolled", 0, 500)
    upgraded.verify(["a/rolled"])


def test_pause_and_hold_of_the_earlier_release_last_until_lifted(upgraded: Upgraded) -> None:
    with upgraded.topic("a/paused") as topic:
        assert load_manifest(upgraded.store, "a/paused").paused
        assert load_manifest(upgraded.store, "a/paused").held
        assert len(upgraded.payloads("a/paused")) == 300
        assert topic.resume()
        topic.offload()
        assert upgraded.payloads("a/paused") == entries("a/paused", 0, 330)
    upgraded.run("cleanup", "hold", "a/paused", "--off")
    upgraded.run("cleanup", "run", "a/paused", "--config", str(upgraded.config))
    upgraded.verify(["a/paused"])


def test_partitions_are_truncated_further_and_deleted_without_a_trace(upgraded: Upgraded) -> None:
    partitions = [f"a/topic-partition-{number}" for number in range(2)]
    ends = [upgraded.readable[name]["last"] for name in partitions]
    words = [word for number, end in enumerate(ends) for word in ("--at", f"{number}={end}")]
    upgraded.run("subscribers", "ack", "a/topic", "billing", *words)
    upgraded.run("retention", "run", "a/topic", "--config", str(upgraded.config))
    for name, end in zip(partitions, ends, strict=True):
        head = load_manifest(upgraded.store, name).head
        assert head is not None
        assert head > Position.parse(upgraded.readable[name]["first"])
        assert head.ledger_id <= Position.parse(end).ledger_id
    upgraded.run("delete-stream", "a/topic", "--yes", "--config", str(upgraded.config))
    assert all(load_manifest(upgraded.store, name).stream_deleted for name in partitions)


def test_adopted_objects_are_known_and_released(upgraded: Upgraded) -> None:
    before = {key for key in objects(upgraded.store) if "/" not in key}
    again, _ = upgraded.run("adopt")
    assert (again["stream"], again["adopted"]) == (ORACLE, 0)
    upgraded.run("adopt", ORACLE, "--release")
    assert {key for key in objects(upgraded.store) if "/" not in key} == before
    upgraded.run("adopt")
    assert upgraded.digest(ORACLE) == upgraded.readable[ORACLE]


@pytest.mark.slow
def test_a_checkpoint_of_this_release_holds_what_the_earlier_ones_did(upgraded: Upgraded) -> None:
    assert load_manifest(upgraded.store, "a/streamed").checkpoint_id
    for stream, wanted in upgraded.readable.items():
        upgraded.run("manifest", "checkpoint", stream)
        assert upgraded.digest(stream) == wanted


# -- what only the newest archive has


def test_the_newest_archive_has_every_kind_of_edit_and_object(every_kind: Upgraded) -> None:
    keys, kinds = list(objects(every_kind.store)), set()
    for key in keys:
        if "/manifest/" in key and record_number(key) is not None:
            kinds |= {edit.kind for edit in decode_record(every_kind.store.get(key)[0]).edits}
    assert kinds == set(EDIT_KINDS) - SINCE_THE_NEWEST_ARCHIVE
    for part in OBJECT_KINDS:
        assert [key for key in keys if re.search(part, key)], part
    for name in ("ledgers.db", *DATABASES.values()):
        with closing(sqlite3.connect(every_kind.folder / name)) as database:
            assert database.execute("PRAGMA user_version").fetchone() == (2,)
        assert (every_kind.folder / f"{name}.acked").stat().st_size


def test_nothing_is_deleted_while_the_store_is_on_hold(every_kind: Upgraded) -> None:
    before = set(objects(every_kind.store))
    assert main(["cleanup", "run", "--yes", "--config", str(every_kind.config), "--store", STORE]) == 2
    assert before <= set(objects(every_kind.store))


def test_ledger_ids_that_were_reserved_are_not_given_again(every_kind: Upgraded) -> None:
    reserved = load_manifest(every_kind.store, "b/reserved").source
    with every_kind.topic("b/reserved") as topic:
        assert len(topic.ledgers()) >= RESERVED_LEDGERS
        appended = topic.append(b"more")
        topic.offload()
    assert reserved is not None
    assert appended.ledger_id > reserved.reserved
    assert every_kind.payloads("b/reserved") == [*(b"%d" % each for each in range(RESERVED_LEDGERS)), b"more"]
    every_kind.verify(["b/reserved"])


def test_ledger_facts_in_a_checkpoint_run_are_read(every_kind: Upgraded) -> None:
    state = load_manifest(every_kind.store, "b/many-ledgers")
    assert state.record_id == state.checkpoint_id
    [shown] = every_kind.run("manifest", "checkpoint", "b/many-ledgers")
    assert shown["stream"] == "b/many-ledgers"
    with every_kind.topic("b/many-ledgers") as topic:
        appended = topic.append(b"the first")
        topic.offload()
    assert appended.ledger_id > MANY_LEDGERS
    assert every_kind.payloads("b/many-ledgers") == [b"the first"]


@pytest.mark.parametrize("stream", ["b/lost", "b/aside", "b/undone", "b/released", "b/failed", "b/anew"])
def test_stream_continues_where_the_earlier_release_left_it(every_kind: Upgraded, stream: str) -> None:
    before, state = every_kind.payloads(stream), load_manifest(every_kind.store, stream)
    new = entries(stream, 10_000, LEDGER_ENTRIES)
    with every_kind.topic(stream) as topic:
        topic.append_batch(new)
        topic.close_ledger()
        topic.offload()
    found = load_manifest(every_kind.store, stream)
    assert every_kind.payloads(stream) == [*before, *new]
    assert found.gaps == state.gaps
    assert bool(found.gaps) == (stream in ("b/lost", "b/aside"))
    every_kind.verify([stream])


def test_excluded_ledger_stays_out_of_the_store(every_kind: Upgraded) -> None:
    every_kind.run("cleanup", "hold", "--all", "--off")
    with every_kind.topic("b/aside") as topic:
        assert 1 in [ledger.ledger_id for ledger in topic.ledgers()]
        topic.release_hot()
        topic.truncate(load_manifest(every_kind.store, "b/aside").committed_end() or Position(0, 0))
        assert 1 in [ledger.ledger_id for ledger in topic.ledgers()], "its entries are nowhere else"
    assert b"never offloaded" not in every_kind.payloads("b/aside")


def test_unfinished_deletion_of_the_earlier_release_is_finished(every_kind: Upgraded) -> None:
    every_kind.run("cleanup", "hold", "--all", "--off")
    every_kind.run("cleanup", "run", "b/purged", "--yes", "--config", str(every_kind.config))
    assert every_kind.digest("b/purged") == every_kind.readable["b/purged"]
    every_kind.verify(["b/purged"])
    kept = [key for key in objects(every_kind.store) if key.startswith("b/purged/retention/")]
    assert len(kept) == 2
    assert all("/deleted/" in key for key in kept)


def test_retired_segment_is_purged_once_its_reader_lease_is_gone(every_kind: Upgraded) -> None:
    every_kind.run("cleanup", "hold", "--all", "--off")
    segments = load_manifest(every_kind.store, "b/awaited").segments.values()
    retired = {str(each.uuid) for each in segments if each.status is SegmentStatus.RETIRED}
    for is_read in (True, False):
        if not is_read:
            every_kind.store.delete([info.key for info in every_kind.store.list("b/awaited/leases/").objects])
        every_kind.run("cleanup", "run", "b/awaited", "--yes", "--config", str(every_kind.config))
        kept = {key.removeprefix("b/awaited/") for key in objects(every_kind.store)}
        assert bool(retired & kept) == is_read
    assert every_kind.digest("b/awaited") == every_kind.readable["b/awaited"]
    every_kind.verify(["b/awaited"])


def test_recorded_truncation_intent_is_carried_out(every_kind: Upgraded) -> None:
    every_kind.run("cleanup", "hold", "--all", "--off")
    every_kind.run("retention", "run", "b/half", "--config", str(every_kind.config))
    for number in range(2):
        stream = f"b/half-partition-{number}"
        assert len(every_kind.payloads(stream)) == 2 * LEDGER_ENTRIES - 2
        every_kind.verify([stream])


def test_a_checkpoint_of_a_reader_group_is_completed_and_published(every_kind: Upgraded) -> None:
    groups = open_reader_groups(every_kind.store)
    groups.reach_checkpoint("manual", "kept", "two", {"b/released": Cut()})
    assert groups.update_truncation_checkpoint("manual", "kept").group.streams == ("b/released",)
