"""A store and a ledger database of an earlier release open in this one, and everything goes on where it was.

The archives beside this file are what ``make_previous_store.py`` wrote with each release. They hold a local directory's
store; most tests have its objects in a memory store, because a manifest names the place where its objects are.
"""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from formats.entries import Position
from formats.segment import Layout
from offloader import Settings, open_managed_ledger, open_reader, open_store
from offloader.cli.main import main
from offloader.managed_ledger import ManagedLedger
from offloader.manifest.log import load_manifest
from offloader.store.base import IfMatch, ObjectStore
from tests.support.presence import there
from tests.upgrade.make_previous_store import SETTINGS, STORE, digest, entries

ARCHIVES = sorted(Path(__file__).parent.glob("*.tar.xz"))
ORACLE = "public/default/persistent/oracle"


class Upgraded:
    """What a release left, and this release's ways to it."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.folder = folder
        self.store = open_store(STORE)
        self.readable: dict[str, dict[str, Any]] = json.loads((folder / "readable.json").read_text())
        self.config = folder / "offloader.toml"
        self.config.write_text('[retention]\npolicy = "consumption"\n[cleanup]\ngrace_hours = 0.0\n')

    def topic(self, stream: str, **offload: object) -> ManagedLedger:
        settings = Settings.of({**SETTINGS, "offload": {**SETTINGS["offload"], **offload}})
        return open_managed_ledger(
            stream, ledgers=f"sqlite:///{self.folder}/ledgers.db", store=self.store, settings=settings
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

    def verify(self, streams: Iterable[str] | None = None) -> None:
        for stream in streams or self.readable:
            self.run("verify", stream, "--deep")


def objects(store: ObjectStore) -> Iterator[str]:
    after: str | None = ""
    while after is not None:
        page = store.list("", after=after)
        yield from (info.key for info in page.objects)
        after = page.next_after


@pytest.fixture(params=ARCHIVES, ids=lambda path: path.name.removesuffix(".tar.xz"))
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A release's files, as they were."""
    with tarfile.open(request.param) as packed:
        packed.extractall(tmp_path, filter="data")
    for name, modified_ns in json.loads((tmp_path / "modified.json").read_text()).items():
        os.utime(tmp_path / name, ns=(modified_ns, modified_ns))
    return tmp_path


@pytest.fixture
def upgraded(directory: Path, capsys: pytest.CaptureFixture[str]) -> Upgraded:
    local, made = open_store(f"file://{directory}/store"), Upgraded(directory, capsys)
    made.store.delete(list(objects(made.store)))
    for key in objects(local):
        body, info = local.get(key)
        made.store.put(key, bytes(body), metadata=dict(info.metadata))
    return made


def test_there_is_an_earlier_release() -> None:
    assert ARCHIVES
    assert sum(path.stat().st_size for path in ARCHIVES) < 300 * 1024


def test_a_local_directory_keeps_its_objects_and_what_was_said_of_them(directory: Path) -> None:
    store = open_store(f"file://{directory}/store")
    described = {key: store.head(key).metadata.get("role") for key in objects(store) if "manifest" not in key}
    assert (
        sum(role == "data" for role in described.values()) == sum(role == "index" for role in described.values()) > 20
    )
    key = next(key for key in described if key.startswith("_catalog/"))
    info = store.head(key)
    store.put(key, bytes(store.get(key)[0]), mode=IfMatch(info.etag))


def test_every_stream_is_read_as_it_was_and_every_object_is_whole(upgraded: Upgraded) -> None:
    assert len(upgraded.readable) == 9
    for stream, wanted in upgraded.readable.items():
        assert upgraded.digest(stream) == wanted, stream
    upgraded.verify()
    assert {row["stream"] for row in upgraded.run("ls")} == set(upgraded.readable)


def test_what_looks_at_streams_says_what_it_finds(upgraded: Upgraded) -> None:
    for stream in upgraded.readable:
        assert upgraded.run("segments", stream)
        assert upgraded.run("manifest", "show", stream)
        upgraded.run("read", stream, "--limit", "3")
    upgraded.run("status")
    upgraded.run("doctor")
    [reader] = upgraded.run("retention", "subscribers", "a/streamed")
    assert reader["subscriber"] == "reader"
    [group] = upgraded.run("retention", "groups")
    assert group["streams"] == ["a/by-ledger", "a/streamed"]
    plan = {row["stream"]: row for row in upgraded.run("retention", "plan", "--config", str(upgraded.config))}
    assert {"a/streamed", "a/topic"} <= set(plan)
    assert upgraded.run("retention", "explain", "a/topic", "--config", str(upgraded.config))
    assert upgraded.run("cleanup", "plan", "--config", str(upgraded.config))
    upgraded.run("cleanup", "orphans")
    upgraded.run("cleanup", "audit")


@pytest.mark.parametrize(
    ("stream", "there", "method"),
    [
        ("a/streamed", 1250, "streaming"),
        ("a/by-ledger", 640, "ledger"),
        ("a/left", 310, "streaming"),
        ("a/rolled", 500, "streaming"),
    ],
)
def test_what_was_only_hot_is_offloaded_and_what_comes_joins_it(
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


def test_a_truncation_is_cleaned_up_or_taken_back(upgraded: Upgraded) -> None:
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


def test_rewritten_segments_go_and_the_rest_can_be_rewritten(upgraded: Upgraded) -> None:
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


def test_a_pause_and_a_hold_last_until_they_are_lifted(upgraded: Upgraded) -> None:
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
    upgraded.run("retention", "publish", "a/topic", "billing", *words)
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


def test_a_checkpoint_of_this_release_holds_what_the_earlier_ones_did(upgraded: Upgraded) -> None:
    assert load_manifest(upgraded.store, "a/streamed").checkpoint_id
    for stream, wanted in upgraded.readable.items():
        upgraded.run("manifest", "checkpoint", stream)
        assert upgraded.digest(stream) == wanted
