"""Wrong calls, wrong settings, wrong stores and damaged manifests, met where users meet them: library and command.

Each is a named error with its kind; what is in the store and in the ledgers stays as it was, and nothing is deleted on
doubt. The rules themselves are tested where they are made (handles, settings, records, probes).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import offloader
from formats.entries import Entry, EntryBatch, Position
from formats.keys import boundary_key, catalog_key, record_key
from offloader.cli.main import main
from offloader.errors import (
    ClosedError,
    CorruptError,
    ErrorKind,
    FencedError,
    InvalidCallError,
    LimitReachedError,
    UnsupportedError,
)
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
from offloader.library import Store
from offloader.managed_ledger import open_managed_ledger
from offloader.manifest.log import load_manifest
from offloader.read.partitions import open_reader
from offloader.settings import Settings
from offloader.store.base import OVERWRITE, ObjectStore
from offloader.store.open import open_store
from offloader.testing.store_suite import all_keys
from offloader.write.segment import OffloadHandle
from tests.support.readback import stored_entries

STREAM = "public/default/persistent/orders"
SETTINGS = Settings.of({"offload": {"block_size": 1024}, "ledgers": {"ledger_entries_max": 30}})
WAIT_S = 60


@dataclass
class Place:
    """A stream of forty entries in a store, all offloaded, and twenty more in its ledgers."""

    directory: Path
    url: str
    ledgers: str
    store: ObjectStore

    def objects(self) -> dict[str, bytes]:
        """Everything in the store."""
        return {info.key: bytes(self.store.get(info.key)[0]) for info in self.store.list("").objects}

    def hot(self) -> list[tuple[int, int]]:
        """Ledgers and how many entries they have."""
        with closing(EmbeddedLedgers(self.ledgers)) as database:
            return [(info.ledger_id, info.entries) for info in database.view_stream(STREAM).ledgers()]

    def open(self) -> Any:
        return open_managed_ledger(STREAM, ledgers=self.ledgers, store=self.store, settings=SETTINGS)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    url, ledgers = f"file://{tmp_path}/store", f"sqlite:///{tmp_path}/ledgers.db"
    made = Place(tmp_path, url, ledgers, open_store(url))
    with made.open() as topic:
        topic.append_batch([b"entry %d" % n for n in range(40)])
        topic.offload(timeout_s=WAIT_S)
        topic.set_method("none")
        topic.append_batch([b"later %d" % n for n in range(20)])
        topic.set_method("streaming")
        topic.close(drain=False)
    monkeypatch.setenv("OFFLOADER_STORE", url)
    monkeypatch.setenv("OFFLOADER_LEDGERS", ledgers)
    return made


@dataclass
class Command:
    """``offloader ...`` in this process."""

    capsys: pytest.CaptureFixture[str]

    def refused(self, *arguments: str) -> tuple[int, Mapping[str, Any]]:
        """Exit code and error of a command that must fail and print nothing else."""
        self.capsys.readouterr()
        code = main([*arguments, "--json"])
        printed = self.capsys.readouterr()
        assert printed.out == ""
        assert "Traceback" not in printed.err
        return code, json.loads(printed.err.splitlines()[-1])["error"]

    def reported(self, *arguments: str) -> tuple[int, list[Mapping[str, Any]]]:
        """Exit code and rows of a command that must say what it finds, and nothing beside it."""
        self.capsys.readouterr()
        code = main([*arguments, "--json"])
        printed = self.capsys.readouterr()
        assert printed.err == ""
        return code, [json.loads(line) for line in printed.out.splitlines()]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


# -- offers


@pytest.fixture
def handle(place: Place) -> Iterator[OffloadHandle]:
    with closing(offloader.LedgerOffloader(place.store, SETTINGS)) as made:
        found = made.streaming_offload(UUID(int=9), {}, stream="other/stream")
        found.offer_batch(EntryBatch.build(7, 0, [b"0", b"1", b"2"]))
        yield found


def _batch(ledger_id: int, first: int, count: int) -> EntryBatch:
    return EntryBatch.build(ledger_id, first, [b"x"] * count)


OFFERS: dict[str, Callable[[OffloadHandle], object]] = {
    "an entry again": lambda handle: handle.offer_entry(Entry(7, 2, b"2")),
    "an earlier entry": lambda handle: handle.offer_entry(Entry(7, 0, b"0")),
    "an earlier ledger": lambda handle: handle.offer_entry(Entry(6, 9, b"x")),
    "a gap": lambda handle: handle.offer_entry(Entry(7, 4, b"4")),
    "a ledger that nobody said the end of": lambda handle: handle.offer_entry(Entry(8, 0, b"x")),
    "a batch that overlaps": lambda handle: handle.offer_batch(_batch(7, 2, 3)),
    "a batch after a gap": lambda handle: handle.offer_batch(_batch(7, 5, 3)),
    "an entry above the limit": lambda handle: handle.offer_entry(Entry(7, 3, bytes(64 * 2**20 + 1))),
}


@pytest.mark.slow
@pytest.mark.parametrize("wrong", list(OFFERS))
def test_wrong_offer_is_refused_and_leaves_the_segment_unchanged(
    place: Place, handle: OffloadHandle, wrong: str
) -> None:
    before = place.objects()
    with pytest.raises(
        LimitReachedError if "limit" in wrong else InvalidCallError, match=r"entry_size_max|doesn't follow"
    ):
        OFFERS[wrong](handle)
    assert handle.last_offered() == Position(7, 2)
    assert place.objects() == before
    assert handle.offer_entry(Entry(7, 3, b"3"))
    handle.close()
    result = handle.get_offload_result_async().result(WAIT_S)
    assert (result.begin_entry_id, result.end_entry_id, result.summary and result.summary.entries) == (0, 3, 4)


STORE_TAKERS: dict[str, Callable[[Any], object]] = {
    "open_ledger": lambda store: Store(store).stream(STREAM).open_ledger("ledgers.db"),
    "open_reader": lambda store: Store(store).stream(STREAM).open_reader(),
    "reader_groups": lambda store: Store(store).reader_groups(),
    "retention": lambda store: Store(store).stream(STREAM).retention(),
    "scan": lambda store: Store(store).stream(STREAM).scan(),
    "LedgerOffloader": offloader.LedgerOffloader,
}


@pytest.mark.parametrize("name", STORE_TAKERS)
@pytest.mark.parametrize("store", ["s3://key:secret@bucket/root", Path("/data/store")], ids=["URL", "path"])
def test_url_in_place_of_a_store_is_refused_with_the_call_that_opens_it(name: str, store: object) -> None:
    with pytest.raises(InvalidCallError, match="not an open store") as refused:
        STORE_TAKERS[name](store)
    assert "offloader.open_store(" in str(refused.value)
    assert "secret" not in str(refused.value)


def test_closed_handle_and_reader_refuse_calls(place: Place, handle: OffloadHandle) -> None:
    handle.close()
    with pytest.raises(ClosedError):
        handle.offer_entry(Entry(7, 3, b"3"))
    with pytest.raises(ClosedError):
        handle.offer_batch(_batch(7, 3, 2))
    assert not handle.can_offer(1)
    reader = open_reader(place.store, STREAM)
    reader.close()
    with pytest.raises(ClosedError):
        reader.read(Position(1, 0), Position(1, 0))


@pytest.mark.slow
def test_an_entry_above_the_limit_is_not_appended_nor_is_any_of_its_batch(place: Place) -> None:
    hot = place.hot()
    small = Settings.of({"offload": {"entry_size_max": 1000}})
    with open_managed_ledger(STREAM, ledgers=place.ledgers, store=place.store, settings=small) as topic:
        with pytest.raises(LimitReachedError, match="entry_size_max") as refused:
            topic.append_batch([b"fine", bytes(1001)])
        assert refused.value.hint == "nothing of the batch was appended"
        assert topic.append(b"the next").entry_id == 0
    assert sum(entries for _, entries in place.hot()) == sum(entries for _, entries in hot) + 1


# -- writers


@pytest.mark.slow
def test_second_writer_fences_the_first(place: Place, command: Command) -> None:
    first = place.open()
    first.append(b"one")
    first.offload(timeout_s=WAIT_S)
    first.append(b"waiting")
    committed = stored_entries(place.store, STREAM)
    code, error = command.refused("stream", "offload", STREAM)
    assert (code, error["error"]) == (ErrorKind.FENCED.value, "FencedError")
    assert stored_entries(place.store, STREAM) == committed
    with place.open() as second:
        with pytest.raises(FencedError):
            first.append(b"too late")
        second.append(b"two")
        second.offload(timeout_s=WAIT_S)
    first.close(drain=False)
    assert [payload for _, payload in stored_entries(place.store, STREAM)][-3:] == [b"one", b"waiting", b"two"]


# -- settings

BAD_SETTINGS = """
ofload = 1
[offload]
blok_bytes = 5
codec = "rar"
entry_size_max = "200000B"
offload_buffer_size_max = "100000B"
[telemetry]
labels = "topic"
label_sets_max = 0
[topics."public/default/persistent/orders".offload]
drain_timeout = "5s"
workers_max = 2
"""
BAD_KEYS = [
    "ofload: no such setting",
    "offload.blok_bytes: no such setting",
    "offload.codec: 'rar' is none of none, zstd",
    "telemetry.label_sets_max: 0 is not between",
    'topics."public/default/persistent/orders".offload.workers_max: applies to the whole process',
    'topics."public/default/persistent/orders".offload.drain_timeout: has no effect',
    "offload.entry_size_max = 200000B is above offload.offload_buffer_size_max = 100000B",
]


@pytest.mark.slow
def test_every_wrong_setting_is_reported_with_file_and_key_before_any_work(place: Place, command: Command) -> None:
    config = place.directory / "bad.toml"
    config.write_text(BAD_SETTINGS)
    before, hot = place.objects(), place.hot()
    for arguments in (
        ["config", "check"],
        ["config", "explain", STREAM],
        ["stream", "offload", STREAM, "--take-over"],
        ["stream", "compact", STREAM, "--beside-owner"],
    ):
        code, error = command.refused(*arguments, "--config", str(config))
        assert (code, error["error"]) == (ErrorKind.INVALID_REQUEST.value, "InvalidCallError")
        assert error["message"].startswith(f"{config}: ")
        problems = error["message"].removeprefix(f"{config}: ").split("; ")
        assert len(problems) == len(BAD_KEYS)
        assert all(problem.startswith(key) for problem, key in zip(problems, BAD_KEYS, strict=True))
    with pytest.raises(InvalidCallError, match="blok_bytes"):
        open_managed_ledger(STREAM, ledgers=place.ledgers, store=place.store, settings=config)
    with pytest.raises(InvalidCallError, match=r"offload\.x: no such setting; y: no such section"):
        Settings.of({"offload": {"x": 1}, "y": {}})
    assert (place.objects(), place.hot()) == (before, hot)


# -- manifests


def _flip(place: Place, key: str) -> None:
    body = bytearray(place.store.get(key)[0])
    body[len(body) // 2] ^= 1
    place.store.put(key, bytes(body), mode=OVERWRITE)


def _record(number: int) -> Callable[[Place], str]:
    return lambda place: record_key(STREAM, load_manifest(place.store, STREAM).incarnation, number)


FLIPPED: dict[str, Callable[[Place], str]] = {
    "the first record": _record(1),
    "a record in the middle": _record(3),
    "the boundary": lambda place: boundary_key(STREAM, load_manifest(place.store, STREAM).incarnation),
    "the catalogue entry": lambda _: catalog_key(STREAM),
}
#: What reads or writes a stream by its manifest, and can't without it.
COMMANDS = [
    ["read", STREAM],
    ["ls", STREAM],
    ["manifest", "show", STREAM],
    ["manifest", "checkpoint", STREAM],
    ["stream", "offload", STREAM, "--take-over"],
    ["stream", "compact", STREAM, "--dry-run"],
    ["stream", "compact", STREAM, "--beside-owner"],
]


def _requires_repair(place: Place, command: Command, named: str) -> None:
    """Every command says what is damaged and leaves all as it is; so does the library. ``verify`` lists anyway."""
    before, hot = place.objects(), place.hot()
    for arguments in COMMANDS:
        code, error = command.refused(*arguments)
        assert (code, error["kind"]) == (ErrorKind.DATA_CORRUPTION.value, "data_corruption"), arguments
        assert named in error["message"], arguments
    for more in ([], ["--deep"]):
        code, (first, *others, totals) = command.reported("verify", STREAM, *more)
        assert code == ErrorKind.DATA_CORRUPTION.value
        assert (first["problem"], first["damage"]) == ("manifest", True)
        assert named in first["message"]
        assert "manifest rebuild" in first["advice"]
        damage = 1 + sum(row["damage"] for row in others)
        assert (totals["ok"], totals["damage"], totals["notes"]) == (False, damage, 1 + len(others) - damage)
        assert {row["problem"] for row in others} <= {"manifest", "lost records", "orphan"}, "every object is there"
    with pytest.raises(CorruptError, match=named):
        open_reader(place.store, STREAM)
    with pytest.raises(CorruptError, match=named):
        place.open()
    assert place.objects() == before
    assert place.hot() == hot


@pytest.mark.slow
@pytest.mark.parametrize("what", list(FLIPPED))
def test_a_flipped_bit_in_a_manifest_is_named_and_nothing_is_changed(place: Place, command: Command, what: str) -> None:
    key = FLIPPED[what](place)
    _flip(place, key)
    _requires_repair(place, command, key.rpartition("/")[2])


@pytest.mark.slow
def test_a_missing_record_in_the_middle_is_an_error_and_not_the_end(place: Place, command: Command) -> None:
    state = load_manifest(place.store, STREAM)
    assert state.record_id > 4
    place.store.delete([record_key(STREAM, state.incarnation, 3)])
    _requires_repair(place, command, "record 3")


# -- stores


def test_a_store_without_conditional_creates_is_not_written_to(
    place: Place, command: Command, servers: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """rclone's S3 server ignores If-None-Match: two writers would both win."""
    weak = servers.place("rclone")
    store, hot = weak.open(), place.hot()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", weak.endpoint.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", weak.endpoint.secret_key)
    where = ["--store", weak.url, "--endpoint-url", weak.endpoint.url, "--region", "us-east-1"]

    def require_refused(*arguments: str) -> None:
        code, error = command.refused(*arguments, *where)
        assert (code, error["error"]) == (ErrorKind.INVALID_REQUEST.value, "UnsupportedError")
        assert "can't be written safely" in error["message"]
        assert "single_writer" in error["hint"]

    require_refused("stream", "offload", STREAM)
    with pytest.raises(UnsupportedError, match="can't be written safely"):
        open_managed_ledger(STREAM, ledgers=place.ledgers, store=store)
    assert all_keys(store) == []
    assert place.hot() == hot
    # A verb that changes only what is there, of a stream that a single writer has brought.
    (tmp_path / "single.toml").write_text("[store]\nsingle_writer = true\n")
    where_once = [*where, "--config", f"{tmp_path}/single.toml"]
    assert command.reported("stream", "set-source", STREAM, *where_once, "--apply")[0] == 0, (
        "its hot tier was committed to another store"
    )
    assert command.reported("stream", "offload", STREAM, *where_once, "--take-over")[0] == 0
    brought = all_keys(store)
    require_refused("stream", "compact", STREAM, "--beside-owner")
    assert all_keys(store) == brought
    store.close()
