"""The rows of the specification's failure table for upload and commit, one test or more for each.

Rows that are proven elsewhere: a crash at any instant (test_kill, test_streaming, test_stream_backfill), adopting and
giving up what an earlier owner left (test_takeover), gaps (test_gaps, test_holes), a part that fails and is tried again
(tests/store/test_retrying).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from formats.entries import EntryBatch, Position
from formats.keys import data_key
from formats.manifest import Assign, Failed, Offloaded, decode_record
from offloader.errors import ErrorKind, FencedError, OutcomeUnknownError, StoreUnavailableError
from offloader.ledgers.sqlite.embedded import EmbeddedStream
from offloader.manifest.log import ManifestLog, load_manifest
from offloader.monitor import Watchdog
from offloader.testing.faulty_store import Fault
from offloader.testing.manual_clock import ManualClock
from offloader.write.machine import StreamOffload
from offloader.write.stream import Mode
from tests.support.readback import stored_entries
from tests.support.waiting import eventually
from tests.write.streaming_bench import KIB, STREAM, Bench, settings

BIG = settings(segment_size_max="100MiB", part_size=5 * KIB * KIB, retry_delay_max=0.01)
FOR_EVER = 10**9


@pytest.fixture
def new_bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(**changes: object) -> Bench:
        made.append(Bench(tmp_path, **changes))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for bench in made:
        bench.close()


def started(bench: Bench) -> tuple[EmbeddedStream, StreamOffload]:
    source = bench.open()
    return source, bench.start(source)


class TestBudgetUsedUp:
    """Status failed; the same range again under a new uuid before anything newer; the old upload is aborted."""

    @pytest.mark.slow
    def test_failed_range_is_offloaded_first_again_and_its_upload_aborted(
        self, new_bench: Callable[..., Bench]
    ) -> None:
        bench = new_bench(settings=BIG)
        source, stream = started(bench)
        bench.store.set_faults([Fault(call=2, verb="upload_part")])
        bench.append(source, 40, size=30_000)
        stream.offload()

        edits = [edit for record in bench.records() for edit in record]
        [failed] = [edit for edit in edits if isinstance(edit, Failed)]
        first, second = [edit for edit in edits if isinstance(edit, Assign)][:2]
        assert failed.uuid == first.uuid
        assert (second.begin, second.uuid != first.uuid) == (first.begin, True)
        together = next(record for record in bench.records() if failed in record)
        assert second in together, "one record"
        aborted = [key for verb, key in bench.store.calls if verb == "abort_upload"]
        assert aborted == [data_key(STREAM, first.uuid)]
        assert bench.memory.list_uploads("") == []
        assert stored_entries(bench.memory, STREAM) == bench.expected

    @pytest.mark.slow
    def test_nothing_newer_is_committed_before_the_failed_range(self, new_bench: Callable[..., Bench]) -> None:
        bench = new_bench()
        source, stream = started(bench)
        bench.store.set_faults([Fault(call=1, calls=3, verb="put", key_part="-index")])
        bench.append(source, 30)
        stream.offload()
        ended: list[Position] = []
        for record in bench.records():
            ended += [edit.summary.begin for edit in record if isinstance(edit, Offloaded)]
        assert ended == sorted(ended)
        assert stored_entries(bench.memory, STREAM) == bench.expected


class TestCompleteOutcomeUnknown:
    """Verify before deciding anything; never send again blindly, never delete in doubt."""

    @pytest.mark.slow
    @pytest.mark.parametrize("after", [False, True], ids=["it did not happen", "it happened"])
    def test_unknown_completion_is_verified_before_it_is_repeated(
        self, new_bench: Callable[..., Bench], after: bool
    ) -> None:
        bench = new_bench(settings=BIG)
        source, stream = started(bench)
        bench.store.set_faults([Fault(call=1, verb="complete_upload", after=after, error=OutcomeUnknownError)])
        bench.append(source, 40, size=30_000)
        stream.offload()

        calls = [(verb, key) for verb, key in bench.store.calls if "/manifest/" not in key]
        completes = [number for number, (verb, _) in enumerate(calls) if verb == "complete_upload"]
        assert len(completes) == (1 if after else 2)
        key = calls[completes[0]][1]
        # Of this object: its index goes up at the same time.
        own = [verb for verb, each in calls if each == key]
        assert own[own.index("complete_upload") + 1] == "head", "the next thing it does is to look"
        assert not any(verb in ("delete", "abort_upload") for verb, _ in calls)
        assert stored_entries(bench.memory, STREAM) == bench.expected

    @pytest.mark.slow
    @pytest.mark.parametrize("after", [False, True], ids=["it did not happen", "it happened"])
    def test_unknown_single_put_is_verified_before_it_is_repeated(
        self, new_bench: Callable[..., Bench], after: bool
    ) -> None:
        bench = new_bench(settings=BIG)
        source, stream = started(bench)
        bench.append(source, 1)
        eventually(bench.has_assigned)
        [segment] = load_manifest(bench.memory, STREAM).assigned()
        name = f"{segment.uuid}"
        bench.store.set_faults(
            [Fault(call=1, verb="put", key_part=name, but="-index", after=after, error=OutcomeUnknownError)]
        )
        stream.offload()
        calls = [verb for verb, key in bench.store.calls if key == data_key(STREAM, segment.uuid)]
        assert calls[:2] == ["put", "head"]
        assert "delete" not in calls
        assert stored_entries(bench.memory, STREAM) == bench.expected


class TestCommitOutcomeUnknown:
    """The identical record is repeated until its id exists; no other record is built."""

    def test_repeated_commits_send_the_same_bytes_and_nothing_else(self, new_bench: Callable[..., Bench]) -> None:
        bench = new_bench(settings=BIG)
        source, stream = started(bench)
        bench.append(source, 1)
        eventually(bench.has_assigned)
        record = f"{load_manifest(bench.memory, STREAM).record_id + 1:020d}.json"
        bodies: list[bytes] = []
        put = bench.memory.put

        def noting(key: str, body: object, **options: object) -> object:
            if key.endswith(record):
                bodies.append(bytes(body))  # type: ignore[call-overload]
                if len(bodies) < 9:
                    raise OutcomeUnknownError("no answer")
            return put(key, body, **options)  # type: ignore[arg-type]

        bench.memory.put = noting  # type: ignore[method-assign,assignment]
        sent = len(bench.store.calls)
        stream.offload()

        assert len(bodies) == 9
        assert set(bodies) == {bodies[0]}, "nonce, time and edits: the identical record"
        puts = [key for verb, key in bench.store.calls[sent:] if verb == "put" and key.endswith(".json")]
        assert {key.rsplit("/", 1)[1] for key in puts} == {record}
        assert decode_record(bodies[0]).record_id == load_manifest(bench.memory, STREAM).record_id
        assert stored_entries(bench.memory, STREAM) == bench.expected


class TestCommitLostToAHigherEpoch:
    """Fenced: it stops cleanly, with an exit code of its own, and deletes nothing."""

    @pytest.mark.slow
    def test_fenced_stream_stops_and_deletes_nothing(self, new_bench: Callable[..., Bench]) -> None:
        bench = new_bench(settings=BIG)
        source, stream = started(bench)
        bench.append(source, 40, size=30_000)
        eventually(lambda: bench.memory.list_uploads(""))
        kept = {info.key for info in bench.memory.list("").objects}
        ManifestLog(bench.memory, STREAM, clock=bench.clock).open_epoch()

        with pytest.raises(FencedError) as lost:
            stream.offload()

        assert lost.value.exit_code == ErrorKind.FENCED.value
        assert [kind for kind in ErrorKind if kind.value == ErrorKind.FENCED.value] == [ErrorKind.FENCED]
        assert stream.status().mode is Mode.STOPPED
        eventually(lambda: stream.status().buffer_bytes == 0)  # whoever waits hears of it first
        assert not any(verb in ("delete", "abort_upload") for verb, _ in bench.store.calls)
        assert kept <= {info.key for info in bench.memory.list("").objects}

    @pytest.mark.slow
    def test_restarting_owners_do_not_fence_each_other_forever(self, new_bench: Callable[..., Bench]) -> None:
        """Both live and want the stream; after the first exchange its epoch stays."""
        clock = ManualClock(waits_pass=False)
        bench = new_bench(clock=clock)
        source = bench.open()
        one = bench.start(source)
        bench.append(source, 1)
        one.offload()
        two = bench.start(source)
        bench.append(source, 1)
        two.offload()
        for _ in range(20):
            bench.append(source, 1)
            two.offload()
            clock.advance(59)
        assert load_manifest(bench.memory, STREAM).epoch == 2
        eventually(lambda: one.status().mode is Mode.STOPPED)
        assert stored_entries(bench.memory, STREAM) == bench.expected


class TestStoreDownForAnHour:
    """The hot tier is unaffected; the buffer fills; afterwards it catches up: nothing is lost or doubled."""

    @pytest.mark.slow
    def test_everything_arrives_once_after_an_hour_of_outage(self, new_bench: Callable[..., Bench]) -> None:
        clock = ManualClock(waits_pass=False)
        bench = new_bench(clock=clock, settings=settings(offload_buffer_size_max=64 * KIB, retry_delay_max=30.0))
        source, stream = started(bench)
        bench.append(source, 3)
        stream.offload()
        committed = stream.status().committed
        bench.store.set_faults([Fault(call=1, calls=FOR_EVER, error=StoreUnavailableError)])
        for _ in range(60):
            bench.append(source, 3)
            clock.advance(60)
            assert stream.status().buffer_bytes <= 2 * 64 * KIB
        eventually(lambda: stream.status().error)
        assert (stream.status().committed, source.released_position()) == (committed, committed)

        bench.store.set_faults([])
        eventually(lambda: stream.status().committed == bench.expected[-1][0], first=lambda: clock.advance(30))

        assert stored_entries(bench.memory, STREAM) == bench.expected
        assert source.released_position() == bench.expected[-1][0]


class _Shock(BaseException):
    """Not even an ``Exception``."""


class Broken:
    """A hot tier whose reads fail as told, for a while."""

    def __init__(self, inner: EmbeddedStream, error: BaseException) -> None:
        self.inner = inner
        self.error: BaseException | None = error
        self.failed = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def read(self, start: Position, max_bytes: int) -> EntryBatch | None:
        error = self.error
        if error is not None:
            self.failed += 1
            raise error
        return self.inner.read(start, max_bytes)


class TestDiskOrMemoryErrorInAWorker:
    """Marked as failed with the cause, restarted with backoff, never a silent stall: the watchdog names it."""

    @pytest.mark.slow
    @pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
    @pytest.mark.parametrize(
        "error", [MemoryError("no memory"), OSError(28, "No space left on device"), _Shock("out of line")], ids=repr
    )
    @pytest.mark.parametrize("batches", [5, 100], ids=["little is behind", "a long history"])
    def test_worker_error_is_reported_and_offloading_continues_after_it(
        self, new_bench: Callable[..., Bench], error: BaseException, batches: int
    ) -> None:
        bench = new_bench()
        source = bench.open()
        bench.append(source, batches)
        broken = Broken(source, error)
        stream = bench.start(broken)  # type: ignore[arg-type]
        eventually(lambda: broken.failed > 3)
        eventually(lambda: str(error) in stream.status().error)
        assert stream.status().committed is None

        broken.error = None
        assert stream.offload() == bench.expected[-1][0]
        assert stream.status().error == ""
        assert stored_entries(bench.memory, STREAM) == bench.expected

    @pytest.mark.slow
    def test_segment_with_a_failing_encoder_is_read_again(self, new_bench: Callable[..., Bench]) -> None:
        bench = new_bench()
        source, stream = started(bench)
        put = bench.memory.put
        failing = [MemoryError("no memory"), _Shock("out of line")]

        def shaken(key: str, body: object, **options: object) -> object:
            # Of the data object: its index goes up at the same time.
            if "/manifest/" not in key and key.startswith(STREAM) and not key.endswith("-index") and failing:
                raise failing.pop()
            return put(key, body, **options)  # type: ignore[arg-type]

        bench.memory.put = shaken  # type: ignore[method-assign,assignment]
        bench.append(source, 10)
        stream.offload()
        assert stream.status().segments_failed == 2
        assert stored_entries(bench.memory, STREAM) == bench.expected

    def test_entries_that_no_memory_was_left_for_when_they_were_written_are_read_again(
        self, new_bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bench = new_bench()
        source, stream = started(bench)
        bench.append(source, 1)
        stream.offload()
        eventually(lambda: stream.status().mode is Mode.LIVE)
        compact, failing = EntryBatch.compact, [MemoryError("no memory")]

        def shaken(batch: EntryBatch) -> EntryBatch:
            if failing:
                raise failing.pop()
            return compact(batch)

        monkeypatch.setattr(EntryBatch, "compact", shaken)
        bench.append(source, 1)
        assert not failing
        eventually(lambda: stream.status().offered == bench.expected[-1][0])
        stream.offload()
        assert stored_entries(bench.memory, STREAM) == bench.expected
        eventually(lambda: stream.status().buffer_bytes == 0)

    def test_an_entry_above_the_limit_is_named_at_once(self, new_bench: Callable[..., Bench]) -> None:
        bench = new_bench(settings=settings(entry_size_max=10 * KIB))
        source, stream = started(bench)
        bench.append(source, 1)
        stream.offload()
        eventually(lambda: stream.status().mode is Mode.LIVE)
        source.append([bytes(20 * KIB)], 1_700_000_000_000)
        eventually(lambda: stream.status().error_kind == "LimitReachedError")
        assert not bench.has_assigned(), "no segment begins without an entry"

    def test_the_watchdog_names_the_stream_and_why(self, new_bench: Callable[..., Bench]) -> None:
        bench = new_bench()
        source = bench.open()
        bench.append(source, 5)
        stream = bench.start(Broken(source, MemoryError("no memory")))  # type: ignore[arg-type]
        eventually(lambda: "no memory" in stream.status().error)
        watchdog = Watchdog(no_progress_s=900.0, segment_age_s=600.0)
        assert watchdog.look(0.0, {STREAM: stream.status()}) == {}
        stall = watchdog.look(901.0, {STREAM: stream.status()})[STREAM]
        assert "no memory" in stall.reason
