"""A ledger database that isn't the one of the manifest: none of its entries counts as offloaded.

Rules M17 to M22 of docs/explanation/manifest.md. The tests use the public interfaces.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import closing, redirect_stderr, redirect_stdout, suppress
from io import StringIO
from itertools import count
from pathlib import Path
from time import sleep
from typing import Any

import pytest

from formats.entries import TIME_UNKNOWN_MS, EntryBatch, Position
from formats.keys import data_key
from offloader import errors
from offloader.cli.main import main
from offloader.coverage import GapReason
from offloader.errors import ErrorKind, FencedError, OffloaderError
from offloader.ledgers.base import ClosedListener, LedgerInfo, Listener, Subscription
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers, EmbeddedStream
from offloader.managed_ledger import ManagedLedger, open_managed_ledger
from offloader.manifest.log import ManifestLog, load_manifest
from offloader.read.reader import open_stream_reader
from offloader.retention.truncate import truncate_stream
from offloader.runtime.clock import SystemClock
from offloader.settings import Settings
from offloader.store.base import ObjectStore
from offloader.store.memory import MemoryStore
from offloader.store.open import open_store
from offloader.write.hot_release import release_hot_ledgers
from offloader.write.offloader import LedgerOffloader
from offloader.write.ownership import open_owned
from tests.support.streams import build

STREAM = "public/default/persistent/orders"
_names = count()


class Place:
    """A store, and a folder with the ledger database of one stream."""

    def __init__(self, folder: Path) -> None:
        self.store: ObjectStore = MemoryStore(f"identity-{next(_names)}", "", SystemClock())
        self.folder = folder
        self.opened: list[ManagedLedger] = []

    def open(self, name: str = "ledgers", *, method: str = "streaming", new_source: bool = False) -> ManagedLedger:
        """The stream over a database; hot copies may go as soon as they are offloaded, but only on request."""
        settings = Settings.of({"offload": {"method": method, "deletion_lag": "0m", "block_size": 1024}})
        # Only what is asked for: most of these tests say something about products that know no such option.
        options: dict[str, Any] = {"new_source": True} if new_source else {}
        opened = open_managed_ledger(
            STREAM,
            ledgers=str(self.folder / name / "ledgers.db"),
            store=self.store,
            settings=settings,
            **options,
        )
        self.opened.append(opened)
        return opened

    def lose(self, name: str = "ledgers") -> None:
        shutil.rmtree(self.folder / name)

    def copy(self, source: str, target: str) -> None:
        shutil.rmtree(self.folder / target, ignore_errors=True)
        shutil.copytree(self.folder / source, self.folder / target)

    def stored(self, first: Position, last: Position) -> list[bytes]:
        with open_stream_reader(self.store, STREAM) as reader:
            return [entry.payload for entry in reader.read(first, last)]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    for each in made.opened:
        each.close(drain=False)


def append(stream: ManagedLedger, word: str, entries: int = 30) -> list[tuple[Position, bytes]]:
    """Entries that say which they are, and where they are now."""
    payloads = [f"{word} {number}".encode() for number in range(entries)]
    positions = [entry.position for batch in stream.append_batch(payloads) for entry in batch.entries()]
    return list(zip(positions, payloads, strict=True))


def offloaded(stream: ManagedLedger, word: str, entries: int = 30) -> list[tuple[Position, bytes]]:
    found = append(stream, word, entries)
    stream.offload()
    return found


def use(place: Place, name: str = "ledgers", *, method: str = "streaming") -> tuple[list[tuple[Position, bytes]], str]:
    """What a program does that knows nothing of a loss: opens, appends, offloads, lets hot copies go.

    Returns:
        What was acknowledged to it, and the name of the error that it met.
    """
    acknowledged: list[tuple[Position, bytes]] = []
    stream = None
    try:
        stream = place.open(name, method=method)
        acknowledged = append(stream, "new")
        stream.close_ledger()
        stream.offload()
        stream.release_hot()
    except OffloaderError as error:
        return acknowledged, type(error).__name__
    finally:
        if stream is not None:
            stream.close(drain=False)
    return acknowledged, ""


def lost_entries(place: Place, acknowledged: list[tuple[Position, bytes]], name: str = "ledgers") -> list[bytes]:
    """Acknowledged entries that reading their positions, in either tier, doesn't give."""
    database = EmbeddedLedgers(str(place.folder / name / "ledgers.db"))
    try:
        hot: dict[Position, bytes] = {}
        if STREAM in database.streams():
            view, at = database.view_stream(STREAM), Position(0, 0)
            while (batch := view.read(at, 1 << 20)) is not None:
                hot |= {entry.position: entry.payload for entry in batch.entries()}
                at = batch.last.next()
    finally:
        database.close()
    missing = []
    for position, payload in acknowledged:
        if hot.get(position) == payload:
            continue
        try:
            found = place.stored(position, position)
        except OffloaderError:
            found = []
        if found != [payload]:
            missing.append(payload)
    return missing


@pytest.mark.slow
@pytest.mark.parametrize("method", ["streaming", "ledger"])
def test_a_lost_database_is_refused_by_name_and_no_entry_is_acknowledged(place: Place, method: str) -> None:
    with place.open(method=method) as stream:
        append(stream, "old")
        stream.close_ledger()
        stream.offload()
        stream.release_hot()
    place.lose()

    acknowledged, error = use(place, method=method)

    assert lost_entries(place, acknowledged) == []
    assert (error, acknowledged) == ("SourceMismatchError", [])


@pytest.mark.slow
@pytest.mark.parametrize("method", ["streaming", "ledger"])
def test_an_older_backup_is_refused_by_name_and_no_entry_is_acknowledged(place: Place, method: str) -> None:
    with place.open(method=method) as stream:
        append(stream, "early")
    place.copy("ledgers", "backup")
    with place.open(method=method) as stream:
        append(stream, "old")
        stream.close_ledger()
        stream.offload()
    place.copy("backup", "ledgers")

    acknowledged, error = use(place, method=method)

    assert lost_entries(place, acknowledged) == []
    assert (error, acknowledged) == ("SourceMismatchError", [])


@pytest.mark.slow
@pytest.mark.parametrize("method", ["streaming", "ledger"])
def test_a_second_database_for_the_same_stream_is_refused_by_name(place: Place, method: str) -> None:
    with place.open("one", method=method) as stream:
        append(stream, "old")
        stream.close_ledger()
        stream.offload()

    acknowledged, error = use(place, "two", method=method)

    assert lost_entries(place, acknowledged, "two") == []
    assert (error, acknowledged) == ("SourceMismatchError", [])


def test_truncation_at_an_unchanged_head_keeps_ledgers_of_another_database(place: Place) -> None:
    with place.open() as stream:
        old = offloaded(stream, "old")
        stream.close_ledger()
        later = offloaded(stream, "later")
        stream.truncate(later[0][0])
    place.lose()

    acknowledged: list[tuple[Position, bytes]] = []
    with suppress(OffloaderError):
        stream = place.open()
        acknowledged = append(stream, "new", len(old))
        stream.close_ledger()
        append(stream, "newer", 5)
        stream.truncate(later[0][0])

    assert lost_entries(place, acknowledged) == []


def test_source_mismatch_names_both_databases_and_the_ways_on(place: Place) -> None:
    with place.open() as stream:
        newest = offloaded(stream, "old")[-1][0]
    place.lose()

    with pytest.raises(OffloaderError) as caught:
        place.open()

    assert type(caught.value).__name__ == "SourceMismatchError"
    assert not caught.value.retryable
    assert caught.value.kind is ErrorKind.DATA_CORRUPTION
    assert STREAM in str(caught.value)
    assert str(newest) in str(caught.value)
    for way in ("set-source", "new_source", "another stream"):
        assert way in str(caught.value)


def command(*arguments: str) -> dict[str, Any]:
    """What a command prints with ``--json``; it succeeds."""
    printed = StringIO()
    with redirect_stdout(printed):
        assert main([*arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(printed.getvalue())
    return found


class StoredPlace(Place):
    """With a store that another process, as a command, sees too."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.url = f"file://{folder}/store"
        self.store = open_store(self.url, create=True, clock=SystemClock())

    def accept(self, *options: str, name: str = "ledgers") -> dict[str, Any]:
        database = f"sqlite:///{self.folder}/{name}/ledgers.db"
        return command("stream", "set-source", STREAM, "--store", self.url, "--ledgers", database, *options)


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[StoredPlace]:
    made = StoredPlace(tmp_path)
    yield made
    for each in made.opened:
        each.close(drain=False)


def readable(place: Place, name: str = "ledgers") -> list[bytes]:
    """Everything that reading both tiers gives."""
    with (
        closing(EmbeddedLedgers(str(place.folder / name / "ledgers.db"))) as database,
        open_stream_reader(place.store, STREAM, source=database.view_stream(STREAM)) as reader,
    ):
        return [entry.payload for batch in reader.scan() for entry in batch.entries()]


def payloads(*parts: list[tuple[Position, bytes]]) -> list[bytes]:
    return [payload for part in parts for _, payload in part]


@pytest.mark.slow
def test_a_lost_database_is_replaced_by_command_and_what_is_missing_is_named(stored: StoredPlace) -> None:
    with stored.open() as stream:
        old = offloaded(stream, "old")
        stream.pause()
        missing = append(stream, "missing", 5)
    with stored.open():
        pass  # its record tells how far the database reached
    stored.lose()
    with pytest.raises(OffloaderError):
        stored.open()

    planned = stored.accept()
    done = stored.accept("--apply")
    with stored.open() as stream:
        stream.resume()
        new = offloaded(stream, "new")

    for said in (planned, done):
        [gap] = said["missing"]
        assert gap["first"] == str(missing[0][0])
    assert planned["record"] is None
    assert done["record"] is not None
    assert new[0][0] > missing[-1][0], "no position is given twice"
    assert readable(stored) == payloads(old, new)


@pytest.mark.slow
def test_database_replaced_by_its_backup_never_reuses_positions(stored: StoredPlace) -> None:
    with stored.open() as stream:
        early = append(stream, "early")
    stored.copy("ledgers", "backup")
    with stored.open() as stream:
        old = offloaded(stream, "old")
    stored.copy("backup", "ledgers")

    with stored.open(new_source=True) as stream:
        new = offloaded(stream, "new")
        stream.close_ledger()
        stream.release_hot()

    assert new[0][0] > old[-1][0]
    assert readable(stored) == payloads(early, old, new)
    assert stored.accept("--apply")["mismatch"] == "", "it is the stream's by now"


@pytest.mark.slow
def test_foreign_database_with_the_same_ledger_ids_is_excluded_for_good(stored: StoredPlace) -> None:
    """Same ids, same lengths: only the database's identity differs."""
    with stored.open() as stream:
        old = offloaded(stream, "old")
        stream.close_ledger()
    with closing(EmbeddedLedgers(str(stored.folder / "two" / "ledgers.db"))) as database:
        # Somebody appends who has no store at hand.
        strange = database.open_stream(STREAM).append([b"strange %d" % number for number in range(30)])
    assert strange[0].first == Position(1, 0)

    done = stored.accept("--apply", name="two")
    with stored.open("two") as stream:
        new = offloaded(stream, "new")
        stream.close_ledger()
        stream.release_hot()
        stream.truncate(new[-1][0])
        kept = [info.ledger_id for info in stream.ledgers()]

    assert done["aside"] == [1]
    assert 1 in kept, "it isn't deleted"
    assert readable(stored, "two") == [new[-1][1]]
    assert old[-1][0] < new[0][0]


@pytest.mark.slow
def test_restart_standby_and_moved_database_are_the_same_source(stored: StoredPlace) -> None:
    with stored.open() as stream:
        first = offloaded(stream, "first")
    active = stored.open()
    second = append(active, "second")
    with stored.open() as standby:
        with pytest.raises(FencedError):
            append(active, "nothing")
        third = offloaded(standby, "third")
    active.close(drain=False)
    (stored.folder / "ledgers").rename(stored.folder / "moved")

    with stored.open("moved") as stream:
        fourth = offloaded(stream, "fourth")

    assert readable(stored, "moved") == payloads(first, second, third, fourth)


def test_every_start_gives_ledger_ids_above_all_earlier_ones(place: Place) -> None:
    """Restored within one start: uuid and token are equal, only ids that are never reused show the difference."""
    with place.open() as stream:
        append(stream, "one", 3)
        place.copy("ledgers", "backup")
        taken = append(stream, "two", 3)
    for part in ("ledgers.db", "ledgers.db-wal", "ledgers.db-shm"):
        (place.folder / "ledgers" / part).unlink(missing_ok=True)
        if (place.folder / "backup" / part).exists():
            shutil.copy(place.folder / "backup" / part, place.folder / "ledgers" / part)
    (place.folder / "ledgers" / "ledgers.db.acked").unlink(missing_ok=True)

    again: list[tuple[Position, bytes]] = []
    with suppress(OffloaderError):
        again = append(place.open(), "three", 3)

    assert not {position for position, _ in taken} & {position for position, _ in again}


# -- each rule of the model (tests/manifest/model, hot_world.py), from its counterexample


def log_of(place: Place) -> ManifestLog:
    return ManifestLog(place.store, STREAM, clock=SystemClock())


@pytest.mark.slow
def test_crash_between_token_and_record_blocks_no_later_start(place: Place) -> None:
    """Rule raise-first: the database is ahead of the manifest, never the other way round."""
    with place.open() as stream:
        old = offloaded(stream, "old")
    with closing(EmbeddedLedgers(str(place.folder / "ledgers" / "ledgers.db"))) as database:
        database.view_stream(STREAM, may_delete=True).record_start("of a process that died then")

    with place.open() as stream:
        new = offloaded(stream, "new")

    assert readable(place) == payloads(old, new)


def test_identity_is_compared_again_after_a_concurrent_epoch(place: Place) -> None:
    """Rule recheck: a host with a copy of the database opens an epoch between the check and the record."""
    with place.open() as stream:
        offloaded(stream, "old")
    place.copy("ledgers", "copy")
    with (
        closing(EmbeddedLedgers(str(place.folder / "ledgers" / "ledgers.db"))) as own,
        closing(EmbeddedLedgers(str(place.folder / "copy" / "ledgers.db"))) as copied,
    ):
        slow, fast = log_of(place), log_of(place)
        source = own.open_stream(STREAM, held=True)
        slow.load()
        fast.load()
        open_owned(fast, copied.open_stream(STREAM, held=True), reserve=True)

        with pytest.raises(errors.SourceMismatchError):
            open_owned(slow, source, reserve=True)

        with pytest.raises(OffloaderError):
            source.append([b"nobody knows where this is"])


def test_database_ending_before_its_recorded_end_is_refused(place: Place) -> None:
    """Rule reach: uuid and token are right, entries are missing."""
    with place.open() as stream:
        append(stream, "early", 3)
        place.copy("ledgers", "backup")
        offloaded(stream, "later")
    place.copy("backup", "ledgers")
    for acked in (place.folder / "ledgers").glob("*.acked"):
        acked.unlink()  # what only the manifest can tell

    with pytest.raises(errors.SourceMismatchError, match="it ends at"):
        place.open()


@pytest.mark.slow
def test_each_start_reserves_ids_and_begins_a_ledger_above_all_others(place: Place) -> None:
    """Rules reserve and new-ledger."""
    first: list[int] = []
    for _ in range(3):
        with place.open() as stream:
            first.append(append(stream, "some", 1)[0][0].ledger_id)
        known = load_manifest(place.store, STREAM).source
        assert known is not None
        assert first[-1] <= known.reserved

    assert first == [1, 1001, 2001]


def test_hot_copies_of_another_database_are_not_released(place: Place) -> None:
    """Rule release-checks: the same ids, the same lengths."""
    with place.open("one") as stream:
        offloaded(stream, "old")
        stream.close_ledger()
    with closing(EmbeddedLedgers(str(place.folder / "two" / "ledgers.db"))) as database:
        strange = database.open_stream(STREAM)
        strange.append([b"new %d" % number for number in range(30)])
        strange.close_ledger()

        with pytest.raises(errors.SourceMismatchError):
            release_hot_ledgers(strange, log_of(place), now_ms=2**52, lag_ms=0)

        assert [info.entries for info in strange.ledgers() if info.entries] == [30]


class Anonymous:
    """A source as an earlier release knew it: without an identity."""

    def __init__(self, inner: EmbeddedStream) -> None:
        self._inner = inner

    def ledgers(self) -> list[LedgerInfo]:
        return self._inner.ledgers()

    def read(self, start: Position, max_bytes: int) -> EntryBatch | None:
        return self._inner.read(start, max_bytes)

    def subscribe(self, listener: Listener | None, closed: ClosedListener | None = None) -> Subscription:
        return self._inner.subscribe(listener, closed)

    def release(self, position: Position) -> None:
        self._inner.release(position)

    def delete(self, ledger_id: int) -> None:
        self._inner.delete(ledger_id)


@pytest.mark.slow
@pytest.mark.parametrize("is_lost", [False, True], ids=["same", "lost"])
def test_manifest_of_an_earlier_release_is_accepted_unless_contradicted(place: Place, is_lost: bool) -> None:
    with closing(EmbeddedLedgers(str(place.folder / "ledgers" / "ledgers.db"))) as database:
        source = database.open_stream(STREAM)
        with closing(LedgerOffloader(place.store)) as offloader:
            stream = offloader.offload_stream(Anonymous(source), STREAM)
            source.append([b"old %d" % number for number in range(30)])
            stream.offload()
            stream.stop()
    assert load_manifest(place.store, STREAM).source is None
    if is_lost:
        place.lose()
        with closing(EmbeddedLedgers(str(place.folder / "ledgers" / "ledgers.db"))) as database:
            database.open_stream(STREAM).append([b"new"])

    acknowledged, error = use(place)

    assert error == ("SourceMismatchError" if is_lost else "")
    assert lost_entries(place, acknowledged) == []


class WithoutLedger(Anonymous):
    """As it looks to a writer that doesn't see one of its ledgers."""

    def __init__(self, inner: EmbeddedStream, hidden: int) -> None:
        super().__init__(inner)
        self._hidden = hidden

    def ledgers(self) -> list[LedgerInfo]:
        return [info for info in super().ledgers() if info.ledger_id != self._hidden]

    def read(self, start: Position, max_bytes: int) -> EntryBatch | None:
        return super().read(max(start, Position(self._hidden + 1, 0)), max_bytes)


def test_truncation_keeps_ledgers_whose_entries_exist_nowhere_else(place: Place) -> None:
    """Rule truncate-held: a ledger before the committed end needn't be in the cold tier."""
    with closing(EmbeddedLedgers(str(place.folder / "ledgers" / "ledgers.db"))) as database:
        source = database.open_stream(STREAM)
        source.append([b"never offloaded"])
        source.close_ledger()
        with closing(LedgerOffloader(place.store)) as offloader:
            stream = offloader.offload_stream(WithoutLedger(source, 1), STREAM)
            offloaded_at = source.append([b"offloaded"] * 3)[0].first
            stream.offload()
            stream.stop()
        source.close_ledger()

        done = truncate_stream(log_of(place), Position(2, 2), clock=SystemClock(), source=source)
        kept = [info.ledger_id for info in source.ledgers() if info.entries]
        forced = truncate_stream(log_of(place), Position(2, 2), clock=SystemClock(), source=source, force=True)
        left = [info.ledger_id for info in source.ledgers() if info.entries]

    assert offloaded_at == Position(2, 0)
    assert kept == [1, 2]
    assert [ledger_id for ledger_id, _ in done.hot_kept] == [1]
    assert forced.hot_ledgers == (1,)
    assert left == [2]


@pytest.mark.slow
def test_entries_lost_by_a_database_become_a_gap_by_command(stored: StoredPlace) -> None:
    """The file beside the database has the acknowledged end, which is in no record of the manifest."""
    with stored.open() as stream:
        old = offloaded(stream, "old")
        stream.pause()
    active = stored.open()
    stored.copy("ledgers", "backup")
    lost = append(active, "lost", 4)
    active.close(drain=False)
    for file in (stored.folder / "backup").iterdir():
        if not file.name.endswith(".acked"):
            shutil.copy(file, stored.folder / "ledgers" / file.name)
    with pytest.raises(errors.SourceMismatchError, match="acknowledged"):
        stored.open()

    database = f"sqlite:///{stored.folder}/ledgers/ledgers.db"
    done = command("stream", "accept-loss", STREAM, "--store", stored.url, "--ledgers", database, "--apply")
    with stored.open() as stream:
        stream.resume()
        new = offloaded(stream, "new")

    assert [each["last"] for each in done["lost"]] == [str(lost[-1][0])]
    assert new[0][0] > lost[-1][0]
    assert stored.stored(old[0][0], new[-1][0]) == payloads(old, new)
    assert [gap.last for gap in load_manifest(stored.store, STREAM).gaps] == [lost[-1][0]]


def crashed_with_an_open_segment(place: StoredPlace) -> dict[str, list[tuple[Position, bytes]]]:
    """A stream that was offloaded, then crashed with a segment on its way; the database lost its last entries."""
    with place.open() as stream:
        old = offloaded(stream, "old")
    active = place.open()
    kept = append(active, "kept", 3)
    while not load_manifest(place.store, STREAM).assigned():
        sleep(0.01)
    place.copy("ledgers", "backup")
    lost = append(active, "lost", 4)
    active.close(drain=False)
    for file in (place.folder / "backup").iterdir():
        if not file.name.endswith(".acked"):
            shutil.copy(file, place.folder / "ledgers" / file.name)
    with pytest.raises(errors.SourceMismatchError, match="acknowledged"):
        place.open()
    return {"old": old, "kept": kept, "lost": lost}


def accept_loss(place: StoredPlace, *options: str) -> dict[str, Any]:
    database = f"sqlite:///{place.folder}/ledgers/ledgers.db"
    return command("stream", "accept-loss", STREAM, "--store", place.url, "--ledgers", database, *options)


@pytest.mark.slow
def test_accepting_a_loss_records_the_gap_although_a_segment_was_left_open(stored: StoredPlace) -> None:
    parts = crashed_with_an_open_segment(stored)
    before = load_manifest(stored.store, STREAM)
    first, last = parts["lost"][0][0], parts["lost"][-1][0]

    planned = accept_loss(stored)
    assert (planned["manifest"], load_manifest(stored.store, STREAM)) == (None, before)
    done = accept_loss(stored, "--apply", "--take-over")
    after = load_manifest(stored.store, STREAM)

    assert [(gap.first, gap.last) for gap in after.gaps] == [(first, last)]
    assert planned["lost"] == done["lost"]
    assert done["manifest"]["missing"] == [{"first": str(first), "last": str(last), "reason": GapReason.ACCEPTED}]
    assert done["manifest"]["failed"] == [str(each.uuid) for each in before.assigned()]
    assert (done["manifest"]["record"], after.assigned()) == (after.record_id, [])
    assert accept_loss(stored, "--apply")["manifest"]["record"] is None, "nothing is left to do"
    with stored.open() as stream:
        parts["new"] = offloaded(stream, "new")
    kept = payloads(parts["old"], parts["kept"], parts["new"])
    assert stored.stored(parts["old"][0][0], parts["new"][-1][0]) == kept


@pytest.mark.slow
def test_accepting_a_loss_adopts_a_complete_segment_with_the_entries_that_the_database_lost(
    stored: StoredPlace,
) -> None:
    parts = crashed_with_an_open_segment(stored)
    [segment] = load_manifest(stored.store, STREAM).assigned()
    held = payloads(parts["kept"], parts["lost"][:2])
    batch = EntryBatch.build(segment.begin.ledger_id, segment.begin.entry_id, held, [TIME_UNKNOWN_MS] * len(held))
    stored.store.put(data_key(STREAM, segment.uuid), build([batch], 1024)[1])

    done = accept_loss(stored, "--apply", "--take-over")["manifest"]
    with stored.open() as stream:
        parts["new"] = offloaded(stream, "new")

    assert (done["adopted"], done["failed"]) == ([str(segment.uuid)], [])
    assert [each["first"] for each in done["missing"]] == [str(parts["lost"][2][0])]
    expected = payloads(parts["old"]) + held + payloads(parts["new"])
    assert stored.stored(parts["old"][0][0], parts["new"][-1][0]) == expected


@pytest.mark.slow
def test_accepting_a_loss_leaves_a_running_owner_alone_unless_told_otherwise(stored: StoredPlace) -> None:
    crashed_with_an_open_segment(stored)
    before = load_manifest(stored.store, STREAM)

    with redirect_stderr(StringIO()) as printed:
        database = f"sqlite:///{stored.folder}/ledgers/ledgers.db"
        code = main(["stream", "accept-loss", STREAM, "--store", stored.url, "--ledgers", database, "--apply"])

    assert (code, load_manifest(stored.store, STREAM)) == (5, before)
    assert "--take-over" in printed.getvalue()


@pytest.mark.slow
def test_accepting_no_loss_leaves_a_running_owner_and_its_segment_alone(stored: StoredPlace) -> None:
    active = stored.open()
    append(active, "waiting", 3)
    while not load_manifest(stored.store, STREAM).assigned():
        sleep(0.01)
    before = load_manifest(stored.store, STREAM)

    done = accept_loss(stored, "--apply", "--take-over")

    assert (done["lost"], done["manifest"]["record"], load_manifest(stored.store, STREAM)) == ([], None, before)
    active.offload()
    assert len(load_manifest(stored.store, STREAM).offloaded()) == 1
