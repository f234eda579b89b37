"""The serving process without listeners: streams of providers are offloaded, and failures stay isolated."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from formats.entries import Position
from offloader.errors import (
    ClosedError,
    CorruptError,
    FencedError,
    InvalidCallError,
    LimitReachedError,
    NotFoundError,
    StoreMismatchError,
    StoreUnavailableError,
)
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers, EmbeddedStream
from offloader.manifest.log import ManifestLog, list_streams, load_manifest
from offloader.monitor import read_status_file
from offloader.retention.truncate import truncate_stream
from offloader.runtime.clock import SystemClock
from offloader.service.process import FEED_RETRY_S
from offloader.service.streams import RESTART_S_MIN, StreamSupervisor
from offloader.store.memory import MemoryStore
from offloader.testing.faulty_store import FaultyStore
from offloader.testing.manual_clock import ManualClock
from tests.support.readback import stored_entries
from tests.support.served import HeldFeed, serving, settings_file
from tests.support.waiting import PATIENCE_S, eventually

ORDERS, BILLS = "a/b/persistent/orders", "a/b/persistent/bills"
_names = itertools.count()


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryStore(f"served-{next(_names)}", "", SystemClock()))


@pytest.fixture
def database(tmp_path: Path) -> Any:
    with closing(EmbeddedLedgers(str(tmp_path / "ledgers.db"))) as opened:
        yield opened


def append(source: EmbeddedStream, count: int = 40) -> Position:
    return source.append([b"x" * 100] * count)[-1].last


@pytest.mark.slow
def test_streams_of_several_providers_are_offloaded_and_drained(store: FaultyStore, database: EmbeddedLedgers) -> None:
    one, two = HeldFeed("one"), HeldFeed("two")
    sources = {name: database.open_stream(name) for name in (ORDERS, BILLS)}
    # Segments that close by nothing but the drain.
    file = settings_file(offload__segment_age_max="60m")
    with serving(store, file, one, two) as assembled:
        assert one.streams is not None
        assert two.streams is not None
        controls = [
            one.streams.add(ORDERS, sources[ORDERS], feed="one"),
            two.streams.add(BILLS, sources[BILLS], feed="two"),
        ]
        for source in sources.values():
            append(source)
        wanted = {(ORDERS, "one", True, "streaming"), (BILLS, "two", True, "streaming")}

        def are_shown() -> bool:  # a status document may be from before the second one was added
            rows = assembled.view.streams().items
            return {(row["stream"], row["feed"], row["active"], row["method"]) for row in rows} == wanted

        eventually(are_shown)
        assert assembled.view.readiness().ready
        assert assembled.process.stop() == 0
        assert all(not control.is_active for control in controls)
        with pytest.raises(ClosedError, match="stopping"):
            one.streams.add("a/b/persistent/late", sources[ORDERS], feed="one")
    assert one.heard == ["start", "stop", "close"]
    assert {name: len(stored_entries(store, name)) for name in sources} == {ORDERS: 40, BILLS: 40}


@pytest.mark.slow
def test_failing_provider_is_retried_and_blocks_no_other(store: FaultyStore, database: EmbeddedLedgers) -> None:
    broken = HeldFeed("broken", failing=[StoreUnavailableError("no answer", hint="look"), *[ValueError("a bug")] * 100])
    good = HeldFeed("good")
    with serving(store, settings_file(), broken, good) as assembled:
        source = database.open_stream(ORDERS)
        assert good.streams is not None
        good.streams.add(ORDERS, source, feed="good")
        last = append(source)
        eventually(lambda: load_manifest(store, ORDERS).committed_end() == last if ORDERS in names(store) else False)
        readiness = assembled.view.readiness()
        assert (readiness.ready, [(each.where, each.blocks_ready) for each in readiness.problems]) == (
            False,
            [("feed broken", True)],
        )
        eventually(lambda: len(broken.heard) >= 2)
        broken.failing.clear()
        eventually(lambda: assembled.view.readiness().ready)
        assert len(broken.heard) >= 3
        assert set(broken.heard) == {"start"}
        assert any("feed broken can't be started" in each["message"] for each in assembled.view.errors())


def names(store: FaultyStore) -> set[str]:
    return set(list_streams(store))


def test_invalid_provider_settings_end_the_start(store: FaultyStore) -> None:
    wrong = HeldFeed(failing=[InvalidCallError("pulsar.topics: 'x' is no topic")])
    with (
        serving(store, settings_file(), wrong, started=False) as assembled,
        pytest.raises(InvalidCallError, match="no topic"),
    ):
        assembled.process.start()


@pytest.mark.slow
def test_standby_stream_takes_over_when_activated_and_fences_the_other_process(
    store: FaultyStore, database: EmbeddedLedgers
) -> None:
    feeds = HeldFeed(), HeldFeed()
    source = database.open_stream(ORDERS)
    with serving(store, settings_file(), feeds[0]) as first, serving(store, settings_file(), feeds[1]) as second:
        assert feeds[0].streams is not None
        assert feeds[1].streams is not None
        working = feeds[0].streams.add(ORDERS, source, feed="held")
        waiting = feeds[1].streams.add(ORDERS, source, feed="held", active=False)
        append(source)
        working.offload(timeout_s=PATIENCE_S)
        epoch = load_manifest(store, ORDERS).epoch
        assert second.view.stream(ORDERS)["mode"] == "standby"
        with pytest.raises(FencedError, match="is on standby here"):
            waiting.offload(timeout_s=1)
        undecided = feeds[1].streams.add(f"{ORDERS}-2", source, feed="held", active=None)
        with pytest.raises(StoreUnavailableError, match="isn't known yet which process"):
            undecided.offload(timeout_s=1)
        undecided.stand_by()
        with pytest.raises(FencedError, match="is on standby here"):
            undecided.offload(timeout_s=1)

        waiting.activate()
        appended = 40

        def is_taken_over() -> bool:
            # The first one may be quicker with what is there: whoever has nothing to offload takes nothing over.
            nonlocal appended
            append(source, 1)
            appended += 1
            return load_manifest(store, ORDERS).epoch == epoch + 1

        eventually(is_taken_over)
        last = append(source)
        eventually(lambda: load_manifest(store, ORDERS).committed_end() == last)
        assert load_manifest(store, ORDERS).epoch == epoch + 1
        eventually(lambda: first.view.stream(ORDERS)["mode"] == "stopped")
        # It learns that it isn't its turn any more, and stands by without another epoch.
        working.stand_by()
        eventually(lambda: first.view.stream(ORDERS)["mode"] == "standby")
        assert load_manifest(store, ORDERS).epoch == epoch + 1
        assert len(stored_entries(store, ORDERS)) == appended + 40
        # And back.
        waiting.stand_by()
        eventually(lambda: second.view.stream(ORDERS)["mode"] == "standby")
        working.activate()
        last = append(source)
        eventually(lambda: load_manifest(store, ORDERS).committed_end() == last)
        assert load_manifest(store, ORDERS).epoch == epoch + 2
    assert len(stored_entries(store, ORDERS)) == appended + 80


@pytest.mark.slow
def test_feed_that_waits_for_its_next_start_is_not_started_after_its_stop(store: FaultyStore) -> None:
    """Else it listens in a process that ends, and nothing stops it any more."""
    clock, feed = ManualClock(), HeldFeed("held", [StoreUnavailableError("the port is taken")])

    class Slow(HeldFeed):
        def stop(self, within_s: float) -> None:
            super().stop(within_s)
            clock.advance(FEED_RETRY_S)
            with suppress(AssertionError):
                eventually(lambda: feed.heard.count("start") == 2, within_s=1.0)

    with serving(store, settings_file(), feed, Slow("slow"), clock=clock):
        assert feed.heard == ["start"]
    assert feed.heard == ["start", "stop", "close"]


class Flaky:
    """A source that can't say which ledgers it has, so often."""

    def __init__(self, inner: EmbeddedStream, failures: int, error: Exception) -> None:
        self._inner, self.failures, self._error = inner, failures, error

    def ledgers(self) -> Any:
        if self.failures:
            self.failures -= 1
            raise self._error
        return self._inner.ledgers()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@pytest.mark.slow
@pytest.mark.parametrize("error", [StoreUnavailableError("no answer"), OSError("a bug")])
def test_stream_that_fails_to_start_is_retried(store: FaultyStore, database: EmbeddedLedgers, error: Exception) -> None:
    feed, clock = HeldFeed(), ManualClock()
    inner = database.open_stream(ORDERS)
    source = Flaky(inner, 2, error)
    last = append(inner)
    with serving(store, settings_file(), feed, clock=clock) as assembled:
        assert feed.streams is not None
        feed.streams.add(ORDERS, source, feed="held")
        eventually(lambda: assembled.process.problems())
        assert assembled.view.readiness().ready, "the others are served"

        def is_offloaded() -> bool:
            clock.advance(RESTART_S_MIN)
            return bool(names(store)) and load_manifest(store, ORDERS).committed_end() == last

        eventually(is_offloaded)
        assert not source.failures
        eventually(lambda: not assembled.process.problems())


@pytest.mark.slow
def test_stream_stopped_by_an_error_is_restarted(store: FaultyStore, database: EmbeddedLedgers) -> None:
    feed, clock = HeldFeed(), ManualClock()
    inner = database.open_stream(ORDERS)

    class Damaged(Flaky):
        def read(self, start: Position, max_bytes: int) -> Any:
            if self.failures:
                self.failures -= 1
                raise CorruptError("ledger 1 is damaged")
            return inner.read(start, max_bytes)

        def ledgers(self) -> Any:
            return inner.ledgers()

    append(inner)
    source = Damaged(inner, 1, CorruptError(""))
    with serving(store, settings_file(), feed, clock=clock) as assembled:
        assert feed.streams is not None
        feed.streams.add(ORDERS, source, feed="held")

        def is_offloaded() -> bool:
            clock.advance(5)
            return ORDERS in names(store) and load_manifest(store, ORDERS).committed_end() is not None

        eventually(is_offloaded)
        assert not source.failures
        assert len(stored_entries(store, ORDERS)) == 40
        # That it had stopped is over by now; that it was said stays.
        said = [each["message"] for each in assembled.view.errors(stream=ORDERS)]
        assert any("isn't offloaded" in each and "damaged" in each for each in said)


def test_removed_stream_is_drained_and_can_be_added_again(store: FaultyStore, database: EmbeddedLedgers) -> None:
    feed = HeldFeed()
    source = database.open_stream(ORDERS)
    file = settings_file(offload__segment_age_max="60m", serve__streams_max=1)
    with serving(store, file, feed) as assembled:
        streams = feed.streams
        assert streams is not None
        streams.add(ORDERS, source, feed="held")
        with pytest.raises(InvalidCallError, match="added by feed held"):
            streams.add(ORDERS, source, feed="other")
        with pytest.raises(LimitReachedError, match="spread"):
            streams.add(BILLS, source, feed="other")
        with pytest.raises(InvalidCallError):
            streams.add("a//b", source, feed="other")
        last = append(source)
        assert streams.remove(ORDERS)
        assert not streams.remove(ORDERS)
        assert load_manifest(store, ORDERS).committed_end() == last
        with pytest.raises(NotFoundError, match="isn't offloaded by this process"):
            assembled.process.streams.require(ORDERS).offload(None, timeout_s=1)
        streams.add(ORDERS, source, feed="held")
        append(source)
        streams.remove(ORDERS)
    assert len(stored_entries(store, ORDERS)) == 80


def test_callers_wait_for_a_stream_that_is_starting(store: FaultyStore, database: EmbeddedLedgers) -> None:
    feed, starting, goes_on = HeldFeed(), threading.Event(), threading.Event()
    inner = database.open_stream(ORDERS)
    last = append(inner)

    class Slow(Flaky):
        """Its hot tier takes long to say what there is."""

        def ledgers(self) -> Any:
            starting.set()
            assert goes_on.wait(PATIENCE_S)
            return inner.ledgers()

        def subscribe(self, *given: Any) -> Any:
            starting.set()
            assert goes_on.wait(PATIENCE_S)
            return inner.subscribe(*given)

    with serving(store, settings_file(), feed) as assembled, ThreadPoolExecutor() as pool:
        assert feed.streams is not None
        feed.streams.add(ORDERS, Slow(inner, 0, OSError()), feed="held")
        assert starting.wait(PATIENCE_S)
        with pytest.raises(StoreUnavailableError, match="is being started"):
            assembled.process.streams.require(ORDERS).offload(None, timeout_s=0.01)
        asked = pool.submit(assembled.process.streams.require(ORDERS).offload, None, timeout_s=PATIENCE_S)
        goes_on.set()
        assert asked.result(PATIENCE_S) == last


@pytest.mark.slow
def test_reload_applies_settings_to_a_running_stream(store: FaultyStore, database: EmbeddedLedgers) -> None:
    feed = HeldFeed()
    source = database.open_stream(ORDERS)
    with serving(store, settings_file(), feed) as assembled:
        assert feed.streams is not None
        feed.streams.add(ORDERS, source, feed="held")
        append(source)
        eventually(lambda: assembled.view.stream(ORDERS)["mode"] == "live")
        assembled.process.streams.require(ORDERS).offload(None, timeout_s=PATIENCE_S)
        new = settings_file(topics={ORDERS: {"offload__codec": "zstd"}}, offload__workers_max=3)
        found = assembled.process.reload(new)
        assert found.changed == (f"[topic {ORDERS}] offload.codec",)
        assert found.needs_restart == ("offload.workers_max",)
        assert [each.what for each in assembled.process.problems()] == [
            "not in force before a restart: offload.workers_max"
        ]
        values = {row["name"]: row["value"] for row in assembled.view.config(ORDERS)}
        assert (values["offload.codec"], values["offload.workers_max"]) == ("zstd", 8), "what is in force"

        def segments_compressed() -> list[bool]:
            found = [each.summary for each in load_manifest(store, ORDERS).offloaded()]
            return [each.compressed for each in found if each is not None]

        def is_obeyed() -> bool:
            append(source)  # what comes before it is started anew is offloaded as before
            return segments_compressed()[-1]

        eventually(is_obeyed)
        assert segments_compressed()[0] is False
        assert assembled.process.reload(new).changed == ()
        # Somebody puts it back.
        found = assembled.process.reload(settings_file(topics={ORDERS: {"offload__codec": "zstd"}}))
        assert found.needs_restart == ()
        assert not assembled.process.problems()


def test_reload_with_a_pattern_that_fits_no_topic_changes_nothing(store: FaultyStore) -> None:
    file = settings_file(pulsar__topics=("public/default",))
    with serving(store, file) as assembled:
        with pytest.raises(InvalidCallError, match=r"pulsar\.topics: 'public default' is not a topic name or pattern"):
            assembled.process.reload(settings_file(pulsar__topics=("public default",), serve__log_level="debug"))
        assert assembled.process.streams.settings_of("") == file.settings_of("")


@pytest.mark.slow
def test_a_stream_of_the_ledger_method_and_one_of_none(store: FaultyStore, database: EmbeddedLedgers) -> None:
    feed = HeldFeed()
    sources = {name: database.open_stream(name) for name in (ORDERS, BILLS)}
    file = settings_file(topics={ORDERS: {"offload__method": "ledger"}, BILLS: {"offload__method": "none"}})
    with serving(store, file, feed) as assembled:
        assert feed.streams is not None
        for name, source in sources.items():
            feed.streams.add(name, source, feed="held")
            append(source)
            source.close_ledger()
        eventually(lambda: ORDERS in names(store) and load_manifest(store, ORDERS).committed_end() is not None)
        modes = {ORDERS: "ledger", BILLS: "none"}
        eventually(lambda: {row["stream"]: row["mode"] for row in assembled.view.streams().items} == modes)
        with pytest.raises(InvalidCallError, match="method is none"):
            assembled.process.streams.require(BILLS).offload(None, timeout_s=1)
        append(sources[ORDERS])
        sources[ORDERS].close_ledger()
        assert assembled.process.streams.require(ORDERS).offload(None, timeout_s=PATIENCE_S) is not None
        # What is shown may be some seconds old.
        eventually(lambda: assembled.view.stream(ORDERS)["segments"]["offloaded"] == 2)
    assert {int(each.layout) for each in load_manifest(store, ORDERS).offloaded()} == {1}


@pytest.mark.slow
def test_offload_of_a_ledger_method_stream_waits_no_longer_than_asked(
    store: FaultyStore, database: EmbeddedLedgers
) -> None:
    """Else a long history takes the caller's thread, and one of the requests that HTTP works on at once, for hours."""
    feed, inner = HeldFeed(), database.open_stream(ORDERS)
    reading, go_on = threading.Event(), threading.Event()

    class Slow(Flaky):
        def read(self, start: Position, max_bytes: int) -> Any:
            reading.set()
            assert go_on.wait(PATIENCE_S)
            return inner.read(start, max_bytes)

    last = append(inner)
    inner.close_ledger()
    file = settings_file(offload__method="ledger")
    with serving(store, file, feed) as assembled, ThreadPoolExecutor(1) as callers:
        assert feed.streams is not None
        control = feed.streams.add(ORDERS, Slow(inner, 0, OSError()), feed="held")
        assert reading.wait(PATIENCE_S)
        asked = callers.submit(assembled.control.offload, ORDERS, timeout_s=0.2, by="a test")
        in_time = wait({asked}, timeout=10.0).done
        go_on.set()
        assert in_time
        with pytest.raises(StoreUnavailableError, match=r"weren't committed within 0\.2 s"):
            asked.result()
        assert control.offload(timeout_s=PATIENCE_S) == last


@pytest.mark.slow
def test_ledger_method_continues_after_another_process_took_the_stream(
    store: FaultyStore, database: EmbeddedLedgers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offloader.service.streams.LOOK_S", 0.05)
    feed = HeldFeed()
    inner = database.open_stream(ORDERS)

    class Taken(Flaky):
        """Somebody else opens an epoch while the first ledger is read."""

        def ledgers(self) -> Any:
            return inner.ledgers()

        def read(self, start: Position, max_bytes: int) -> Any:
            if self.failures:
                self.failures -= 1
                ManifestLog(store, ORDERS, clock=SystemClock()).open_epoch()
            return inner.read(start, max_bytes)

    append(inner)
    inner.close_ledger()
    source = Taken(inner, 1, OSError())
    file = settings_file(offload__method="ledger", offload__takeover_after=0.05)
    with serving(store, file, feed) as assembled:
        assert feed.streams is not None
        feed.streams.add(ORDERS, source, feed="held")
        eventually(lambda: ORDERS in names(store) and load_manifest(store, ORDERS).committed_end() is not None)
        assert not source.failures
        assert any("isn't offloaded" in each["message"] for each in assembled.view.errors(stream=ORDERS))
    assert load_manifest(store, ORDERS).epoch == 3
    assert len(stored_entries(store, ORDERS)) == 40


class _EndedMeanwhile(StreamSupervisor):
    """Ends in the moment in which somebody looks at what it runs."""

    @property
    def _offload(self) -> Any:
        if not self._ended:
            self.end()
        return self.__dict__["running"]

    @_offload.setter
    def _offload(self, running: Any) -> None:
        self.__dict__["running"] = running


def test_drain_of_an_ended_stream_reports_it(store: FaultyStore, database: EmbeddedLedgers) -> None:
    """The stream is removed between two polls of the drain, which is not a late start."""
    feed = HeldFeed("feed")
    source = database.open_stream(ORDERS)
    with serving(store, settings_file(), feed):
        assert feed.streams is not None
        control = feed.streams.add(ORDERS, source, feed="feed")
        eventually(control.status)
        control.__dict__["running"] = control.__dict__.pop("_offload")
        control.__class__ = _EndedMeanwhile
        with pytest.raises(ClosedError, match="was stopped"):
            control.drain(PATIENCE_S)


class _EndsWhileTheTaskStops:
    """The offloader of a stream; the stream ends in the moment in which its task has found out what to stop."""

    def __init__(self, control: StreamSupervisor) -> None:
        self._inner, self._control = control._offloader, control
        self.ended = 0

    @property
    def observation(self) -> Any:
        self.ended += 1
        if self.ended == 1:
            self._control.end()
        return self._inner.observation

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def test_stream_stopped_twice_at_once_is_observed_no_more(store: FaultyStore, database: EmbeddedLedgers) -> None:
    """Its provider removes it while its task stops it, because another process is the leader."""
    feed = HeldFeed("feed")
    source = database.open_stream(ORDERS)
    with serving(store, settings_file(), feed) as assembled:
        assert feed.streams is not None
        control = feed.streams.add(ORDERS, source, feed="feed")
        eventually(control.status)
        hooked = _EndsWhileTheTaskStops(control)
        control._offloader = hooked  # type: ignore[assignment]
        control._stop()
        assert hooked.ended == 2
        assert [control.status(), control.is_active] == [None, False]
        rows = assembled.process.streams.documents()
        assert [(row["stream"], row["mode"]) for row in rows] == [(ORDERS, "stopped")]


def test_status_file_of_a_stopped_process_says_so(
    store: FaultyStore, database: EmbeddedLedgers, tmp_path: Path
) -> None:
    feed, path = HeldFeed("feed"), tmp_path / "status.json"
    with serving(store, settings_file(telemetry__status_file=str(path)), feed) as assembled:
        assert feed.streams is not None
        append(source := database.open_stream(ORDERS))
        eventually(feed.streams.add(ORDERS, source, feed="feed").status)
        assert assembled.process.stop() == 0
    rows = read_status_file(path)["streams"]
    assert [(row["stream"], row["mode"]) for row in rows] == [(ORDERS, "stopped")]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ledger", "none", "streaming", "nothing is served"])
def test_status_file_is_kept_up_to_date_whatever_the_method(
    store: FaultyStore, database: EmbeddedLedgers, tmp_path: Path, method: str
) -> None:
    feed, path = HeldFeed("feed"), tmp_path / "status.json"
    is_idle = method == "nothing is served"
    settings = settings_file(
        telemetry__status_file=str(path),
        telemetry__status_interval=0.05,
        offload__method="streaming" if is_idle else method,
    )
    with serving(store, settings, feed):
        assert feed.streams is not None
        if not is_idle:
            append(source := database.open_stream(ORDERS))
            feed.streams.add(ORDERS, source, feed="feed")
        eventually(path.exists)

        def rows() -> list[str]:
            return [row["stream"] for row in read_status_file(path)["streams"]]

        eventually(lambda: rows() == ([] if is_idle else [ORDERS]))
        written_ms = read_status_file(path)["written_ms"]
        eventually(lambda: read_status_file(path)["written_ms"] > written_ms)


@pytest.mark.slow
def test_retention_and_cleanup_run_by_themselves(store: FaultyStore, database: EmbeddedLedgers) -> None:
    feed = HeldFeed()
    source = database.open_stream(ORDERS)
    file = settings_file(
        serve__maintenance=True,
        retention__policy="size",
        retention__min_size=1049,
        retention__record_interval="0.001m",
        retention__cycle_interval="0.002m",
        cleanup__cycle_interval="0.002m",
        cleanup__grace_period="0.0h",
        cleanup__allow_large_delete=True,
    )
    with serving(store, file, feed) as assembled:
        assert feed.streams is not None
        feed.streams.add(ORDERS, source, feed="held")

        eventually(lambda: assembled.view.stream(ORDERS)["mode"] == "live")

        def is_shorter() -> bool:
            append(source)
            assembled.process.streams.require(ORDERS).offload(None, timeout_s=PATIENCE_S)
            found = assembled.view.recent_decisions()
            return any(each["bytes"] for each in found) and "cleanup" in assembled.view.orphans()["jobs"]

        eventually(is_shorter)
        assert assembled.view.retention(ORDERS)["policy"].startswith("by size")
        assert assembled.view.decisions(ORDERS)
        eventually(lambda: load_manifest(store, ORDERS).head is not None)


@pytest.mark.slow
def test_cycle_of_a_stream_without_a_policy_names_that_as_its_reason(
    store: FaultyStore, database: EmbeddedLedgers
) -> None:
    feed = HeldFeed()
    source = database.open_stream(ORDERS)
    append(source)
    file = settings_file(serve__maintenance=True, retention__cycle_interval="0.002m")
    with serving(store, file, feed) as assembled:
        assert feed.streams is not None
        feed.streams.add(ORDERS, source, feed="held")
        assembled.process.streams.require(ORDERS).offload(None, timeout_s=PATIENCE_S)

        def reasons() -> set[str]:
            return {each["why"] for each in assembled.view.recent_decisions()}

        eventually(lambda: reasons() == {"no policy: no automatic deletion"})


@pytest.mark.slow
def test_cleanup_of_more_than_half_waits_for_the_approval_of_its_plan(
    store: FaultyStore, database: EmbeddedLedgers
) -> None:
    feed = HeldFeed()
    source = database.open_stream(ORDERS)
    file = settings_file(serve__maintenance=True, cleanup__cycle_interval="0.002m", cleanup__delete=True)
    with serving(store, file, feed) as assembled:
        assert feed.streams is not None
        served = feed.streams.add(ORDERS, source, feed="held")
        eventually(served.status)
        append(source, 400)
        served.offload(None, timeout_s=PATIENCE_S)
        last = append(source)
        served.offload(None, timeout_s=PATIENCE_S)
        assert assembled.view.overview()["awaiting_approval"] == []
        clock = SystemClock()
        truncate_stream(ManifestLog(store, ORDERS, clock=clock), last, clock=clock)
        eventually(lambda: assembled.view.overview()["awaiting_approval"])
        plan = assembled.view.cleanup_plan(ORDERS)
        (awaited,) = assembled.view.overview()["awaiting_approval"]
        assert (plan["large"], plan["deletes"]) == (True, True)
        assert awaited["segments"] == plan["segments"] == sum(each["action"] == "retire" for each in plan["lines"])
        with pytest.raises(InvalidCallError, match="has changed"):
            assembled.control.clean(ORDERS, plan="another", by="a test")
        done = assembled.control.clean(ORDERS, plan=plan["plan"], by="a test")
        assert done["retired"] == plan["segments"]
        eventually(lambda: assembled.view.overview()["awaiting_approval"] == [])


@pytest.mark.slow
def test_plan_of_a_topic_is_approved_for_all_its_partitions(store: FaultyStore, database: EmbeddedLedgers) -> None:
    feed, clock, topic = HeldFeed(), SystemClock(), "shop/eu/persistent/events"
    # The second partition has nothing to delete.
    partitions = [f"{topic}-partition-{number}" for number in (0, 1, 2)]
    with serving(store, settings_file(serve__maintenance=True, cleanup__delete=True), feed) as assembled:
        assert feed.streams is not None
        for number, stream in enumerate(partitions):
            source = database.open_stream(stream)
            served = feed.streams.add(stream, source, feed="held")
            eventually(served.status)
            append(source, 400)
            served.offload(None, timeout_s=PATIENCE_S)
            last = append(source)
            served.offload(None, timeout_s=PATIENCE_S)
            if number != 1:
                truncate_stream(ManifestLog(store, stream, clock=clock), last, clock=clock)
        plan = assembled.view.cleanup_plan(topic)
        planned = [row["segments"] for row in plan["partitions"]]
        assert (plan["large"], plan["deletes"], plan["segments"], planned[1]) == (True, True, sum(planned), 0)
        one = plan["partitions"][0]["plan"]
        for stale in ("another", one):
            with pytest.raises(InvalidCallError, match=f"{topic}: the cleanup plan has changed"):
                assembled.control.clean(topic, plan=stale, by="a test")
        done = assembled.control.clean(topic, plan=plan["plan"], by="a test")
        assert done["retired"] == plan["segments"] > 0
        assert [(row["stream"], row["retired"]) for row in done["partitions"]] == list(
            zip(partitions, planned, strict=True)
        )
        with pytest.raises(InvalidCallError, match="has changed"):
            assembled.control.clean(topic, plan=plan["plan"], by="a test")


def test_hanging_source_does_not_delay_status_requests(
    store: FaultyStore, database: EmbeddedLedgers, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed, answers = HeldFeed(), threading.Event()
    inner = database.open_stream(ORDERS)

    class Hanging(Flaky):
        """Says at the start which ledgers it has, and later only when it may."""

        def ledgers(self) -> Any:
            if self.failures:
                answers.wait()
            return inner.ledgers()

    source = Hanging(inner, 0, OSError())
    monkeypatch.setattr("offloader.service.process.LOOK_WAIT_S_MAX", 0.01)
    monkeypatch.setattr("offloader.service.process.DOCUMENT_AGE_S_MAX", 0.0)
    file = settings_file(offload__segment_age_max="60m")
    with serving(store, file, feed) as assembled:
        assert feed.streams is not None
        feed.streams.add(ORDERS, source, feed="held")
        eventually(lambda: assembled.view.stream(ORDERS)["mode"] == "live")
        source.failures = 1
        append(inner)  # now it is behind, and how far only the source knows
        try:
            for _ in range(3):
                assert assembled.process.document()["streams"][0]["stream"] == ORDERS
            assert assembled.view.readiness().ready
        finally:
            answers.set()
        # Unknown until the source has answered once.
        eventually(lambda: (assembled.process.document()["streams"][0]["lag"] or {}).get("entries") == 40)


@pytest.mark.slow
def test_every_start_opens_a_new_epoch(store: FaultyStore, database: EmbeddedLedgers) -> None:
    source = database.open_stream(ORDERS)
    epochs = []
    for _ in range(3):
        feed = HeldFeed()
        with serving(store, settings_file(), feed) as assembled:
            assert feed.streams is not None
            feed.streams.add(ORDERS, source, feed="held")
            append(source)
            assembled.process.stop()
        epochs.append(load_manifest(store, ORDERS).epoch)
    assert epochs == [1, 2, 3]
    assert len(stored_entries(store, ORDERS)) == 120


@pytest.mark.slow
def test_paused_stream_is_shown_at_once(store: FaultyStore, database: EmbeddedLedgers) -> None:
    feed = HeldFeed()
    source = database.open_stream(ORDERS)
    with serving(store, settings_file(), feed) as assembled:
        assert feed.streams is not None
        feed.streams.add(ORDERS, source, feed="held")
        append(source)
        eventually(lambda: assembled.view.stream(ORDERS)["mode"] == "live")
        assembled.process.streams.require(ORDERS).offload(None, timeout_s=PATIENCE_S)
        assert assembled.control.pause(ORDERS, reason="test", by="test")["paused"]
        append(source)
        eventually(lambda: assembled.view.stream(ORDERS)["mode"] == "paused")
        assembled.control.resume(ORDERS, by="test")
        assembled.process.streams.require(ORDERS).offload(None, timeout_s=PATIENCE_S)
    assert ManifestLog(store, ORDERS, clock=SystemClock()).load().paused is False
    assert len(stored_entries(store, ORDERS)) == 80


@pytest.mark.slow
def test_process_without_a_feed_says_that_it_offloads_nothing(
    store: FaultyStore, caplog: pytest.LogCaptureFixture
) -> None:
    for feeds, maintenance, told in (([], True, 1), ([HeldFeed()], True, 0)):
        caplog.clear()
        with serving(store, settings_file(serve__maintenance=maintenance), *feeds):
            found = [each for each in caplog.records if each.__dict__.get("event") == "no_feed"]
        assert len(found) == told
        assert all("pulsar.topics, serve.ledgers or flight.listen" in each.getMessage() for each in found)


@pytest.mark.slow
def test_stream_whose_store_is_another_one_is_a_problem_and_begins_nothing(database: EmbeddedLedgers) -> None:
    first, other = (MemoryStore(f"served-{next(_names)}", "", SystemClock()) for _ in range(2))
    source = database.open_stream(ORDERS)
    append(source)
    file = settings_file(offload__segment_age_max="60m")
    feed = HeldFeed("one")
    with serving(first, file, feed):
        assert feed.streams is not None
        feed.streams.add(ORDERS, source, feed="one")
        eventually(lambda: source.noted_manifests())
    feed = HeldFeed("one")
    with serving(other, file, feed):
        assert feed.streams is not None
        control = feed.streams.add(ORDERS, source, feed="one")
        eventually(lambda: control.error is not None)
        assert isinstance(control.error, StoreMismatchError)
    assert list_streams(other) == []
    assert other.list("").objects == ()
