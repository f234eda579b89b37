"""The provider of an embedded ledger database: its streams, its polling, its lock."""

from __future__ import annotations

import itertools
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from formats.entries import EntryBatch, Position
from offloader.errors import CorruptError, InvalidCallError
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
from offloader.ledgers.sqlite.stream import EmbeddedStream
from offloader.manifest.log import list_streams, load_manifest
from offloader.runtime.clock import SystemClock
from offloader.service.providers.embedded import EmbeddedProvider, ProcessLock
from offloader.service.streams import ServedStreams, StreamSupervisor
from offloader.store.memory import MemoryStore
from tests.support.readback import stored_entries
from tests.support.served import HeldFeed, serving, settings_file
from tests.support.waiting import PATIENCE_S, eventually

_names = itertools.count()


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(f"ledgers-feed-{next(_names)}", "", SystemClock())


@pytest.fixture
def database(tmp_path: Path) -> Any:
    with closing(EmbeddedLedgers(str(tmp_path / "ledgers.db"))) as opened:
        yield opened


def file_of(**names: Any) -> Any:
    return settings_file(ledgers__poll_interval=0.02, **names)


def append(database: EmbeddedLedgers, name: str, count: int = 10) -> None:
    database.open_stream(name).append([name.encode()] * count)


def stored(store: MemoryStore, name: str) -> int:
    return len(stored_entries(store, name)) if name in set(list_streams(store)) else 0


@pytest.mark.slow
def test_matching_streams_are_served_and_drained_once_they_no_longer_match(
    store: MemoryStore, database: EmbeddedLedgers
) -> None:
    for name in ("a/b/one", "a/c/two", "other"):
        append(database, name)
    feed = EmbeddedProvider(database.path, clock=SystemClock())
    with serving(store, file_of(serve__streams=("a/b/*", "a/?/two")), feed) as assembled:
        eventually(lambda: stored(store, "a/b/one") == stored(store, "a/c/two") == 10)
        append(database, "a/b/three")
        eventually(lambda: stored(store, "a/b/three") == 10)
        assert stored(store, "other") == 0
        rows = assembled.view.streams().items
        assert {row["stream"]: row["feed"] for row in rows} == dict.fromkeys(
            ("a/b/one", "a/b/three", "a/c/two"), "ledgers"
        )
        # A reload counts with the next look: what was appended just before is completed.
        append(database, "a/b/one")
        assembled.process.reload(file_of(serve__streams=("other",)))
        eventually(lambda: {each.name for each in assembled.process.streams.all()} == {"other"})
        eventually(lambda: stored(store, "other") == 10)
        assembled.process.reload(file_of())
        eventually(lambda: len(assembled.process.streams.all()) == 4)
        eventually(lambda: stored(store, "a/b/one") == 20)


@pytest.mark.slow
def test_streams_that_wait_for_their_last_segment_delay_no_look_at_others(
    store: MemoryStore, database: EmbeddedLedgers, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("gone/1", "gone/2", "gone/3", "stays"):
        append(database, name)
    feed = EmbeddedProvider(database.path, clock=SystemClock())
    with serving(store, file_of(), feed) as assembled:
        eventually(lambda: len(assembled.process.streams.all()) == 4)
        goes_on = threading.Event()
        monkeypatch.setattr(StreamSupervisor, "drain", lambda *_: goes_on.wait())
        assembled.process.reload(file_of(serve__streams=("stays", "new")))
        eventually(lambda: feed._followed.keys() == {"stays"})
        append(database, "new")
        try:
            eventually(lambda: stored(store, "new") == 10)
        finally:
            goes_on.set()
        eventually(lambda: {each.name for each in assembled.process.streams.all()} == {"stays", "new"})


@pytest.mark.slow
def test_stream_that_matches_again_before_it_has_ended_is_followed_once_it_has(
    store: MemoryStore, database: EmbeddedLedgers, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("comes back", "stays"):
        append(database, name)
    feed = EmbeddedProvider(database.path, clock=SystemClock())
    with serving(store, file_of(), feed) as assembled:
        eventually(lambda: stored(store, "comes back") == stored(store, "stays") == 10)
        goes_on = threading.Event()
        monkeypatch.setattr(StreamSupervisor, "drain", lambda *_: goes_on.wait())
        assembled.process.reload(file_of(serve__streams=("stays",)))
        eventually(lambda: feed._followed.keys() == {"stays"})
        append(database, "comes back")
        assembled.process.reload(file_of())
        eventually(lambda: feed._refused.keys() == {"comes back"})
        eventually(lambda: isinstance(feed._version, tuple) and not feed._version[1])  # it has looked at all
        goes_on.set()
        eventually(lambda: stored(store, "comes back") == 20)
        eventually(lambda: feed.problems() == [])


@pytest.mark.slow
def test_stream_with_damaged_entries_keeps_nothing_of_others_back(
    store: MemoryStore, database: EmbeddedLedgers, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(database, "a damaged one")
    append(database, "b")
    feed = EmbeddedProvider(database.path, clock=SystemClock())
    with serving(store, file_of(), feed) as assembled:
        eventually(lambda: stored(store, "a damaged one") == stored(store, "b") == 10)
        read = EmbeddedStream.read

        def damaged(self: EmbeddedStream, start: Position, max_bytes: int) -> EntryBatch | None:
            if self.stream == "a damaged one":
                raise CorruptError("its chunk 3 has another checksum")
            return read(self, start, max_bytes)

        monkeypatch.setattr(EmbeddedStream, "read", damaged)
        append(database, "a damaged one")
        append(database, "b")
        eventually(lambda: stored(store, "b") == 20)
        assert "stream a damaged one" in {each.where for each in feed.problems()}
        assert not any(each.blocks_ready for each in assembled.process.problems())


@pytest.mark.slow
def test_stream_whose_ledger_is_damaged_from_the_start_keeps_nothing_of_others_back(
    store: MemoryStore, database: EmbeddedLedgers
) -> None:
    append(database, "a damaged one")
    append(database, "b")
    with closing(sqlite3.connect(database.path)) as connection, connection:
        connection.execute("UPDATE ledgers SET entries = 7 WHERE ledger_id = (SELECT min(ledger_id) FROM ledgers)")
    feed = EmbeddedProvider(database.path, clock=SystemClock())
    with serving(store, file_of(), feed) as assembled:
        eventually(lambda: assembled.view.readiness().ready)
        [problem] = feed.problems()
        assert (problem.where, problem.blocks_ready) == ("stream a damaged one", False)
        assert "entries, but 10 are stored" in problem.what
        eventually(lambda: stored(store, "b") == 10)
        assert {each.name for each in assembled.process.streams.all()} == {"b"}


@pytest.mark.slow
def test_stream_of_another_provider_stays_there_and_is_reported(store: MemoryStore, database: EmbeddedLedgers) -> None:
    held, feed = HeldFeed(), EmbeddedProvider(database.path, clock=SystemClock())
    append(database, "a/b/one")
    with serving(store, file_of(), held, feed, started=False) as assembled:
        streams = assembled.process.streams
        streams.add("a/b/one", database.view_stream("a/b/one"), feed="held", active=False)
        assembled.process.start()
        eventually(lambda: any("added by feed held" in each.what for each in assembled.process.problems()))
        append(database, "a/b/two")
        eventually(lambda: stored(store, "a/b/two") == 10)
        assert assembled.view.readiness().ready


@pytest.mark.slow
def test_lock_holder_works_and_the_standby_takes_over_when_it_is_free(
    store: MemoryStore, database: EmbeddedLedgers
) -> None:
    append(database, "a/b/one")
    lock = ProcessLock(Path(f"{database.path}.serve"))
    assert lock.take()
    feed = EmbeddedProvider(database.path, clock=SystemClock())
    with serving(store, file_of(), feed) as assembled:
        eventually(lambda: assembled.view.readiness().ready)
        [problem] = assembled.process.problems()
        assert problem.what.startswith("on standby: ")
        assert not problem.blocks_ready
        eventually(lambda: assembled.view.streams().items)
        assert assembled.view.stream("a/b/one")["mode"] == "standby"
        labels = {"namespace": "a/b", "mode": "standby"}
        assert assembled.metrics.registry.get_sample_value("offloader_streams", labels) == 1
        lock.give()
        eventually(lambda: stored(store, "a/b/one") == 10)
        assert load_manifest(store, "a/b/one").epoch == 1
        eventually(lambda: not assembled.process.problems())
    assert lock.take(), "it is free when the process has stopped"
    lock.give()


@pytest.mark.slow
def test_process_is_ready_when_it_knows_the_streams_of_the_database(
    store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_look, look = threading.Event(), EmbeddedProvider.look

    def waits(provider: EmbeddedProvider, streams: ServedStreams) -> None:
        assert may_look.wait(PATIENCE_S)
        look(provider, streams)

    monkeypatch.setattr(EmbeddedProvider, "look", waits)
    path = str(tmp_path / "ledgers.db")
    with closing(EmbeddedLedgers(path)) as database:
        append(database, "a/b/one")
    with serving(store, file_of(), EmbeddedProvider(path, clock=SystemClock())) as assembled:
        readiness = assembled.view.readiness()
        assert (readiness.ready, [each.what for each in readiness.problems]) == (
            False,
            ["the database wasn't read yet"],
        )
        may_look.set()
        eventually(lambda: assembled.view.readiness().ready)
        assert assembled.process.streams.get("a/b/one") is not None


@pytest.mark.slow
def test_unusable_database_is_tried_again(store: MemoryStore, tmp_path: Path) -> None:
    path = tmp_path / "ledgers.db"
    path.write_bytes(b"not a database, and long enough to be told from one" * 10)
    feed = EmbeddedProvider(str(path), clock=SystemClock())
    with serving(store, file_of(), feed) as assembled:
        [problem] = assembled.process.problems()
        assert (problem.where, problem.blocks_ready) == ("feed ledgers", True)
        assert "not a ledger database" in problem.what
        path.unlink()
        with closing(EmbeddedLedgers(str(path))) as database:
            append(database, "a/b/one")
            eventually(lambda: stored(store, "a/b/one") == 10)
        eventually(lambda: assembled.view.readiness().ready)


def test_invalid_database_url_is_a_permanent_error(store: MemoryStore) -> None:
    feed = EmbeddedProvider("mysql://x", clock=SystemClock())
    with (
        serving(store, file_of(), feed, started=False) as assembled,
        pytest.raises(InvalidCallError, match="not the URL"),
    ):
        assembled.process.start()


@pytest.mark.slow
def test_entries_appended_before_stopping_are_drained(store: MemoryStore, database: EmbeddedLedgers) -> None:
    feed = EmbeddedProvider(database.path, clock=SystemClock())
    append(database, "a/b/one")
    # Looks once, and not again before it is told to stop.
    file = settings_file(ledgers__poll_interval=3600, offload__segment_age_max="60m")
    with serving(store, file, feed) as assembled:
        eventually(lambda: assembled.process.streams.all())
        eventually(lambda: assembled.view.stream("a/b/one")["mode"] in ("live", "catch-up"))
        append(database, "a/b/one")
        assert assembled.process.stop() == 0
    assert stored(store, "a/b/one") == 20
