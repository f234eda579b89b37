"""Identity of a stream's ledger database: its uuid, its starts, and ledger ids that are never reused."""

from __future__ import annotations

import gzip
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from formats.entries import Position
from offloader.errors import FencedError, InvalidCallError, StoreUnavailableError, UnsupportedError
from offloader.ledgers.base import IdentifiedSource, identified
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers, FollowedStream
from offloader.ledgers.sqlite.stream import STARTS_KEPT
from offloader.ledgers.tail_buffer import TailingSource
from offloader.settings import LedgerSettings
from tests.formats.make_golden_own import FOLDER
from tests.ledgers.ledger_cases import payloads_of

SETTINGS = LedgerSettings(ledger_entries_max=3)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "l.db")


@pytest.fixture
def ledgers(path: str) -> Iterator[EmbeddedLedgers]:
    opened = EmbeddedLedgers(path, settings=SETTINGS)
    yield opened
    opened.close()


def test_database_keeps_its_uuid_and_databases_differ(path: str, tmp_path: Path) -> None:
    found = set()
    for _ in range(2):
        ledgers = EmbeddedLedgers(path)
        found.add(ledgers.open_stream("s").source_id())
        found.add(ledgers.open_stream("t").source_id())
        ledgers.close()
    other = EmbeddedLedgers(str(tmp_path / "other.db"))
    assert len(found) == 1
    assert other.open_stream("s").source_id() not in found
    other.close()


def test_a_database_of_version_1_gets_its_identity_at_its_first_opening(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    path.write_bytes(gzip.decompress((FOLDER / "ledgers-1" / "ledgers.db.gz").read_bytes()))
    first = EmbeddedLedgers(str(path))
    before = [info.ledger_id for info in first.view_stream("other").ledgers()]
    source_id = first.view_stream("other").source_id()
    first.close()
    again = EmbeddedLedgers(str(path))
    stream = again.open_stream("other")
    assert stream.source_id() == source_id
    assert stream.reached() == stream.last_position()
    assert stream.ledgers()[-1].ledger_id > max(before)
    assert [info.ledger_id for info in stream.ledgers()][:-1] == before
    again.close()


def test_starts_belong_to_one_stream_and_outlast_the_handle(ledgers: EmbeddedLedgers, path: str) -> None:
    ledgers.open_stream("t")
    stream = ledgers.open_stream("s")
    stream.record_start("a")
    stream.record_start("a")
    ledgers.close()
    again = EmbeddedLedgers(path)
    assert again.view_stream("s").has_start("a")
    assert not again.view_stream("s").has_start("b")
    assert not again.view_stream("t").has_start("a")
    again.close()


def test_a_copy_has_the_starts_up_to_the_copy(ledgers: EmbeddedLedgers, path: str, tmp_path: Path) -> None:
    stream = ledgers.open_stream("s")
    stream.record_start("before")
    ledgers.close()
    shutil.copy(path, tmp_path / "copy.db")
    again = EmbeddedLedgers(path)
    again.open_stream("s").record_start("after")
    again.close()
    copy = EmbeddedLedgers(str(tmp_path / "copy.db"))
    view = copy.view_stream("s")
    assert (view.has_start("before"), view.has_start("after")) == (True, False)
    copy.close()


@pytest.mark.slow
def test_a_start_that_the_manifest_has_outlasts_any_number_of_later_ones(ledgers: EmbeddedLedgers, path: str) -> None:
    stream = ledgers.open_stream("s")
    stream.record_start("in the manifest")
    connection = sqlite3.connect(path)
    with connection:
        connection.executemany(
            "INSERT INTO starts (stream_id, token) SELECT stream_id, ? FROM streams",
            ((f"crashed {n}",) for n in range(STARTS_KEPT + 5)),
        )
    connection.close()
    assert stream.has_start("in the manifest")
    stream.record_start("new")
    assert stream.has_start("in the manifest")
    assert [n for n in range(10) if stream.has_start(f"crashed {n}")] == [6, 7, 8, 9]


def test_an_older_owner_records_no_start(ledgers: EmbeddedLedgers) -> None:
    old = ledgers.open_stream("s")
    ledgers.open_stream("s")
    with pytest.raises(FencedError):
        old.record_start("late")
    with pytest.raises(FencedError):
        old.grant_ledgers(100, 200)
    assert not old.has_start("late")


def test_only_a_view_that_may_delete_records_starts(ledgers: EmbeddedLedgers) -> None:
    ledgers.open_stream("s")
    with pytest.raises(UnsupportedError):
        ledgers.view_stream("s").record_start("a")
    ledgers.view_stream("s", may_delete=True).record_start("a")
    assert ledgers.view_stream("s").has_start("a")


def test_the_reach_outlasts_its_ledgers(ledgers: EmbeddedLedgers) -> None:
    stream = ledgers.open_stream("s")
    assert stream.reached() is None
    stream.append([b"x"] * 5)
    assert stream.reached() == Position(2, 1)
    stream.close_ledger()
    for info in stream.ledgers():
        stream.delete(info.ledger_id)
    assert (stream.last_position(), stream.reached()) == (None, Position(2, 1))
    ledgers.open_stream("t").append([b"x"])
    assert ledgers.open_stream("s").reached() == Position(2, 1)


def test_every_noted_manifest_is_kept_the_newest_last(ledgers: EmbeddedLedgers) -> None:
    stream = ledgers.open_stream("s")
    assert stream.noted_manifests() == []
    stream.note_manifest(UUID(int=7), 12)
    stream.note_manifest(UUID(int=8), 3)
    stream.note_manifest(UUID(int=8), 5)
    assert ledgers.view_stream("s").noted_manifests() == [(UUID(int=7), 12), (UUID(int=8), 5)]
    stream.note_manifest(UUID(int=7), 20)
    assert ledgers.view_stream("s").noted_manifests() == [(UUID(int=8), 5), (UUID(int=7), 20)]


def test_held_stream_accepts_nothing_before_ids_are_granted(ledgers: EmbeddedLedgers) -> None:
    stream = ledgers.open_stream("s", held=True)
    with pytest.raises(StoreUnavailableError, match="no ledger id is granted") as caught:
        stream.append([b"a"])
    assert caught.value.retryable
    assert (stream.ledgers(), stream.ledgers_left()) == ([], 0)
    stream.grant_ledgers(100, 103)
    assert [(x.ledger_id, x.closed) for x in stream.ledgers()] == [(100, False)]
    stream.append([b"x"] * 4)
    assert [(x.ledger_id, x.closed, x.entries) for x in stream.ledgers()] == [(100, True, 3), (101, False, 1)]
    assert stream.ledgers_left() == 1


def test_a_ledger_stays_open_when_no_id_is_left(ledgers: EmbeddedLedgers) -> None:
    stream = ledgers.open_stream("s", held=True)
    stream.grant_ledgers(10, 11)
    stream.append([b"x"] * 7)
    assert [(x.ledger_id, x.closed, x.entries) for x in stream.ledgers()] == [(10, False, 7)]
    with pytest.raises(StoreUnavailableError, match="remains open"):
        stream.close_ledger()
    stream.grant_ledgers(11, 20)
    assert stream.ledgers_left() == 9
    stream.append([b"y"] * 2)
    assert [(x.ledger_id, x.closed, x.entries) for x in stream.ledgers()] == [(10, True, 7), (11, False, 2)]
    assert payloads_of(stream) == [b"x"] * 7 + [b"y"] * 2


def test_later_grant_extends_or_replaces_the_remaining_ids(ledgers: EmbeddedLedgers) -> None:
    stream = ledgers.open_stream("s", held=True)
    stream.grant_ledgers(10, 15)
    stream.grant_ledgers(15, 20)
    assert stream.ledgers_left() == 9
    stream.grant_ledgers(1000, 1002)
    assert stream.ledgers_left() == 2
    stream.append([b"x"] * 4)
    assert [x.ledger_id for x in stream.ledgers()] == [10, 1000]


def test_a_granted_range_closes_the_ledger_of_a_free_handle(ledgers: EmbeddedLedgers) -> None:
    stream = ledgers.open_stream("s")
    stream.append([b"a"])
    ended: list[int] = []
    stream.subscribe(None, lambda info: ended.append(info.ledger_id))
    stream.grant_ledgers(50, 60)
    assert [(x.ledger_id, x.closed) for x in stream.ledgers()] == [(1, True), (50, False)]
    assert ended == [1]


def test_no_two_streams_get_the_same_id(ledgers: EmbeddedLedgers) -> None:
    """Each manifest reserves for itself, so that ranges of two streams may be the same."""
    one, two = ledgers.open_stream("one", held=True), ledgers.open_stream("two", held=True)
    one.grant_ledgers(10, 20)
    with pytest.raises(StoreUnavailableError, match="used or granted all ids up to 19") as caught:
        two.grant_ledgers(10, 20)
    assert caught.value.retryable
    assert two.next_ledger() == 20
    two.grant_ledgers(15, 25)
    two.append([b"x"])
    assert two.last_position() == Position(20, 0)
    assert ledgers.open_stream("three").ledgers()[0].ledger_id == 25


@pytest.mark.parametrize(("first", "end"), [(0, 10), (10, 10), (11, 10), (-5, 3), (1, 2**63)])
def test_ids_that_no_ledger_can_have_are_not_granted(ledgers: EmbeddedLedgers, first: int, end: int) -> None:
    with pytest.raises(InvalidCallError):
        ledgers.open_stream("s", held=True).grant_ledgers(first, end)


def test_new_start_uses_no_id_granted_to_an_earlier_one(ledgers: EmbeddedLedgers) -> None:
    ledgers.open_stream("s", held=True).grant_ledgers(10, 20)
    again = ledgers.open_stream("s", held=True)
    with pytest.raises(StoreUnavailableError):
        again.append([b"a"])
    with pytest.raises(StoreUnavailableError, match="used or granted"):
        again.grant_ledgers(10, 20)
    assert ledgers.open_stream("s").ledgers()[-1].ledger_id == 20


def test_ids_are_seeded_above_what_the_manifest_knows(ledgers: EmbeddedLedgers) -> None:
    assert [x.ledger_id for x in ledgers.open_stream("s", above=41).ledgers()] == [42]
    assert [x.ledger_id for x in ledgers.open_stream("t", above=7).ledgers()] == [43]
    with pytest.raises(InvalidCallError):
        ledgers.open_stream("s", above=-1)


def test_a_view_seeds_ids_above_what_the_manifest_knows(ledgers: EmbeddedLedgers) -> None:
    stream = ledgers.open_stream("s")
    stream.append([b"a"])
    ledgers.view_stream("s", may_delete=True).seed_ledgers(99)
    stream.append([b"b"])
    assert [(x.ledger_id, x.closed) for x in stream.ledgers()] == [(1, True), (100, False)]
    ledgers.view_stream("s", may_delete=True).seed_ledgers(99)
    stream.append([b"c"])
    assert stream.last_position() == Position(100, 1)


def test_an_id_is_not_used_again_after_its_ledger_is_deleted(ledgers: EmbeddedLedgers, path: str) -> None:
    stream = ledgers.open_stream("s", held=True)
    stream.grant_ledgers(10, 13)
    stream.append([b"x"] * 3)
    stream.delete(10)
    ledgers.close()
    again = EmbeddedLedgers(path)
    assert again.open_stream("s").ledgers()[-1].ledger_id == 13
    again.close()


def test_source_identity_is_found_through_wrappers(ledgers: EmbeddedLedgers) -> None:
    stream = ledgers.open_stream("s")
    tail = TailingSource(stream, 1000)
    followed = FollowedStream(ledgers.view_stream("s", may_delete=True))
    assert isinstance(stream, IdentifiedSource)
    assert identified(tail) is stream
    found = identified(TailingSource(followed, 0))
    assert found is not None
    found.record_start("a")
    assert stream.has_start("a")


def test_a_database_in_memory_has_an_identity_too() -> None:
    ledgers = EmbeddedLedgers("sqlite://:memory:")
    stream = ledgers.open_stream("s", held=True)
    stream.record_start("a")
    stream.grant_ledgers(5, 6)
    stream.append([b"x"])
    assert stream.source_id() == ledgers.view_stream("s").source_id()
    assert (stream.has_start("a"), stream.reached()) == (True, Position(5, 0))
    ledgers.close()


def test_database_identity_survives_a_lost_log(ledgers: EmbeddedLedgers, path: str, tmp_path: Path) -> None:
    """The uuid is in the database's file before anything is appended."""
    source_id = ledgers.open_stream("s").source_id()
    copy = str(tmp_path / "copy.db")
    shutil.copy(path, copy)
    connection = sqlite3.connect(copy)
    assert UUID(bytes=connection.execute("SELECT source_id FROM identity").fetchone()[0]) == source_id
    connection.close()
