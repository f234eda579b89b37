"""Reader groups with few reads: empty checkpoints, missing readers, silent applications."""

from __future__ import annotations

from contextlib import suppress

import pytest

from formats.entries import Position
from formats.manifest import Truncate
from offloader.errors import LimitReachedError, NotFoundError, StoreUnavailableError
from offloader.groups import reader_groups
from offloader.groups.reader_groups import GroupConfig, RetentionType
from offloader.manifest.log import ManifestLog
from offloader.manifest.maintenance import delete_stream
from offloader.retention import subscribers
from offloader.retention.cuts import StreamCut
from offloader.retention.subscribers import Followed, open_retention
from offloader.testing.faulty_store import Fault
from offloader.testing.manual_clock import ManualClock
from tests.groups.grouped_streams import ONE, TWO, Bench, at
from tests.support.manifests import segment_edits


def test_checkpoint_without_reads_publishes_the_first_position() -> None:
    bench = Bench()
    bench.groups.initiate_checkpoint("rg", "c1")
    bench.reach("c1", {ONE: StreamCut()}, {TWO: at(7)})
    outcome = bench.pass_all("c1")
    assert (outcome.group.to_do, outcome.refused, outcome.failed) == ((), [], [])
    assert bench.cuts() == {ONE: "0.0=1:0", TWO: "0.0=1:7"}, "all there is is needed"


def test_cuts_of_nothing_are_published_too() -> None:
    bench = Bench(RetentionType.MANUAL)
    outcome = bench.groups.update_truncation_cuts("rg", {ONE: StreamCut(), TWO: at(3)})
    assert (outcome.group.to_do, outcome.refused, outcome.failed) == ((), [], [])
    assert bench.cuts() == {ONE: "0.0=1:0", TWO: "0.0=1:3"}


def test_pending_checkpoint_stays_although_the_head_passed_it() -> None:
    bench = Bench()
    for name in ("kept", "waits"):
        bench.groups.initiate_checkpoint("rg", name)
    bench.reach("kept", {ONE: at(5)}, {TWO: at(5)})
    bench.groups.reach_checkpoint("rg", "waits", "r1", {ONE: at(6)})
    for stream in (ONE, TWO):
        log = ManifestLog(bench.memory, stream, clock=bench.clock)
        log.load()
        log.commit_as_maintainer([Truncate(Position(1, 9))])
    bench.groups.initiate_checkpoint("rg", "later")
    bench.reach("later", {ONE: at(10)}, {TWO: at(10)})
    assert [row.name for row in bench.groups.get("rg").checkpoints] == ["waits", "later"]


def silent_ms(bench: Bench, stream: str) -> int:
    registry = open_retention(bench.memory, stream, clock=bench.clock).registry()
    return bench.clock.now_ms() - registry.subscribers["rg"].active_ms


def test_group_is_renewed_in_its_other_streams_while_one_fails() -> None:
    bench = Bench(automatic_checkpoint_ms=10**9)
    bench.groups.initiate_checkpoint("rg", "c1", keep=False)
    bench.reach("c1", {ONE: at(20)}, {TWO: at(20)})
    bench.pass_all("c1")
    bench.store.set_faults([Fault(call=1, key_part=f"{ONE}/", calls=10**6)])
    for _ in range(4):
        bench.clock.advance(60)
        assert [row.stream for row, _ in bench.groups.tick("rg", renew_ms=60_000).failed] == [ONE]
    assert silent_ms(bench, TWO) == 0
    bench.store.set_faults([])
    assert bench.groups.tick("rg", renew_ms=60_000).group.to_do == ()
    assert silent_ms(bench, ONE) == 0


def test_next_sign_of_life_comes_in_time_although_the_last_one_took_long() -> None:
    bench = Bench(automatic_checkpoint_ms=10**9)
    bench.groups.initiate_checkpoint("rg", "c1", keep=False)
    bench.reach("c1", {ONE: at(5)}, {TWO: at(5)})
    bench.groups.pass_checkpoint("rg", "c1", "r1")
    # One stream has it, and the other one takes long.
    bench.store.set_faults([Fault(call=2, verb="put", key_part="/subscribers", error=None, latency_s=50.0)])
    bench.groups.pass_checkpoint("rg", "c1", "r2")
    assert silent_ms(bench, ONE) == 50_000
    bench.clock.advance(10)
    bench.groups.tick("rg", renew_ms=60_000)
    assert silent_ms(bench, ONE) == 0


@pytest.mark.slow
@pytest.mark.parametrize("behind_s", [0, 3600])
def test_connected_mirrored_subscriber_is_renewed_by_a_process_whose_clock_is_behind(behind_s: int) -> None:
    bench = Bench(RetentionType.NONE)
    slow = ManualClock(bench.clock.now_ms() - behind_s * 1000)
    wanted = {"rg": Followed(at(5), is_connected=True)}
    for _ in range(20):
        open_retention(bench.memory, ONE, clock=slow).follow(wanted, renew_ms=200_000)
        bench.clock.advance(60)
        slow.advance(60)
    assert silent_ms(bench, ONE) <= 600_000


def test_mirrored_subscribers_are_renewed_and_moved_although_there_is_no_room_for_a_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(RetentionType.NONE)
    monkeypatch.setattr(subscribers, "SUBSCRIBERS_MAX", 2)
    retention = open_retention(bench.memory, ONE, clock=bench.clock)
    retention.follow({name: Followed(at(5), is_connected=True) for name in ("moves", "rg")})
    bench.clock.advance(600)
    wanted = {name: Followed(at(5), is_connected=True) for name in ("a new one", "rg")}
    told = ""
    try:
        retention.follow({**wanted, "moves": Followed(at(9), is_connected=True)}, renew_ms=200_000)
    except LimitReachedError as error:
        told = str(error)
    assert "a new one" in told
    assert silent_ms(bench, ONE) == 0
    assert retention.registry().subscribers["moves"].cut == at(9)


def test_subscriber_that_is_gone_makes_room_for_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(RetentionType.NONE)
    monkeypatch.setattr(subscribers, "SUBSCRIBERS_MAX", 2)
    retention = open_retention(bench.memory, ONE, clock=bench.clock)
    retention.follow({name: Followed(at(5), is_connected=True) for name in ("old", "rg")})
    with suppress(LimitReachedError):
        retention.follow({"new": Followed(at(5), is_connected=True)}, gone=["old"])
    assert retention.registry().names() == ["new", "rg"]


def test_checkpoints_renew_a_group_in_streams_that_nobody_reads_now() -> None:
    bench = Bench(automatic_checkpoint_ms=10**9)
    for number in range(1, 10):
        bench.clock.advance(20)
        bench.groups.initiate_checkpoint("rg", f"c{number}", keep=False)
        bench.reach(f"c{number}", {ONE: at(number)}, {TWO: at(5)} if number == 1 else {})
        bench.pass_all(f"c{number}")
        bench.groups.tick("rg", renew_ms=60_000)
        assert bench.cuts() == {ONE: f"0.0=1:{number}", TWO: "0.0=1:5"}
        assert silent_ms(bench, TWO) <= 60_000


def test_reader_reaches_a_checkpoint_while_a_stream_fails_that_it_does_not_read() -> None:
    bench = Bench(RetentionType.MANUAL)
    bench.groups.initiate_checkpoint("rg", "c1")
    bench.reach("c1", {ONE: at(5)}, {TWO: at(5)})
    bench.groups.initiate_checkpoint("rg", "c2")
    bench.store.set_faults([Fault(call=1, key_part=f"{TWO}/", calls=10**6)])
    failures = []
    try:
        bench.groups.reach_checkpoint("rg", "c2", "r1", {ONE: at(9)})
    except StoreUnavailableError as error:
        failures.append(error)
    assert failures == []
    assert bench.groups.get("rg").checkpoints[-1].waiting == ("r2",)


def deleted(bench: Bench, stream: str) -> None:
    for _ in range(2):
        delete_stream(bench.memory, stream, clock=bench.clock, delete_objects=lambda _: None)
        bench.clock.advance(86_401)


def test_publication_to_a_deleted_stream_is_refused_and_not_owed_for_ever() -> None:
    bench = Bench(RetentionType.MANUAL)
    deleted(bench, ONE)
    outcome = bench.groups.update_truncation_cuts("rg", {ONE: at(20), TWO: at(20)})
    assert [(row.stream, why) for row, why in outcome.refused] == [(ONE, f"stream {ONE} isn't in {bench.memory.url}")]
    assert (outcome.group.to_do, outcome.failed) == ((), [])
    assert [row.stream for row in outcome.group.published] == [TWO]


def kept_checkpoints(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as the group keeps, complete and behind what is truncated next."""
    monkeypatch.setattr(reader_groups, "CHECKPOINTS_MAX", 2)
    for name in ("c1", "c2"):
        bench.groups.initiate_checkpoint("rg", name)
        bench.reach(name, {ONE: at(5)}, {TWO: at(5)})


def truncate_at(bench: Bench, stream: str, entry: int) -> None:
    log = ManifestLog(bench.memory, stream, clock=bench.clock)
    log.load()
    log.commit_as_maintainer([Truncate(Position(1, entry))])


def start_next(bench: Bench, by: str) -> list[str]:
    """The group's checkpoints after one more was to start, by its reader or by its period."""
    bench.clock.advance(60)
    with suppress(LimitReachedError):
        if by == "reader":
            bench.groups.initiate_checkpoint("rg", "next")
        else:
            for _ in range(2):
                bench.groups.tick("rg", renew_ms=10**6)
    return [row.name for row in bench.groups.get("rg").checkpoints]


@pytest.mark.parametrize("by", ["reader", "period"])
def test_checkpoint_starts_once_the_kept_ones_that_fill_the_group_are_behind(
    monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    bench = Bench(automatic_checkpoint_ms=30_000)
    kept_checkpoints(bench, monkeypatch)
    assert start_next(bench, by) == ["c1", "c2"]
    for stream in (ONE, TWO):
        truncate_at(bench, stream, 9)
    found = start_next(bench, by)
    assert len(found) == 1
    assert found[0] not in ("c1", "c2")


@pytest.mark.slow
@pytest.mark.parametrize("recreated", [False, True])
def test_kept_checkpoint_does_not_wait_for_the_head_of_a_deleted_stream(
    monkeypatch: pytest.MonkeyPatch, recreated: bool
) -> None:
    bench = Bench()
    kept_checkpoints(bench, monkeypatch)
    deleted(bench, ONE)
    if recreated:
        log = ManifestLog(bench.memory, ONE, clock=bench.clock)
        log.open_epoch()
        log.commit(segment_edits(0))
    assert start_next(bench, "reader") == ["c1", "c2"], "the other stream has all of it"
    truncate_at(bench, TWO, 9)
    assert start_next(bench, "reader") == ["next"]


def test_interrupted_deletion_of_a_group_is_completed_by_another_one() -> None:
    bench = Bench()
    bench.store.set_faults([Fault(call=1, verb="put", key_part=f"{TWO}/retention/")])
    assert [row.stream for row, _ in bench.groups.delete("rg").failed] == [TWO]
    assert bench.cuts() == {TWO: None}
    with suppress(NotFoundError):
        bench.open().delete("rg")
    assert bench.cuts() == {}
    with pytest.raises(NotFoundError, match="reader group rg doesn't exist"):
        bench.groups.delete("rg")


@pytest.mark.slow
def test_group_does_not_start_in_a_recreated_stream_where_it_started_in_the_earlier_one() -> None:
    bench = Bench()
    starts = {ONE: at(25), TWO: at(25)}
    bench.store.set_faults([Fault(call=1, verb="put", key_part=f"{TWO}/retention/", calls=2)])
    assert bench.groups.create("late", GroupConfig([ONE, TWO], RetentionType.MANUAL, starts)).failed
    for stream, segments in ((ONE, 1), (TWO, 3)):
        deleted(bench, stream)
        log = ManifestLog(bench.memory, stream, clock=bench.clock)
        log.open_epoch()
        for number in range(segments):
            log.commit(segment_edits(number))
    bench.groups.update_truncation_cuts("late", {ONE: at(5), TWO: at(5)})
    outcome = bench.groups.settle("late")
    assert (outcome.group.to_do, outcome.failed, outcome.refused) == ((), [], [])
    for stream in (ONE, TWO):
        found = open_retention(bench.memory, stream, clock=bench.clock).registry().subscribers["late"]
        assert (str(found.cut), found.start) == ("0.0=1:5", None)


def test_manual_group_is_not_renewed_by_itself() -> None:
    bench = Bench(RetentionType.MANUAL, automatic_checkpoint_ms=10**9)
    bench.groups.update_truncation_cuts("rg", {ONE: at(5)})
    before = open_retention(bench.memory, ONE, clock=bench.clock).registry().subscribers["rg"]
    bench.clock.advance(60)
    bench.groups.tick("rg", renew_ms=20_000)
    assert open_retention(bench.memory, ONE, clock=bench.clock).registry().subscribers["rg"] == before


def begun(bench: Bench, partition: int, segments: int) -> None:
    log = ManifestLog(bench.memory, f"a/topic-partition-{partition}", clock=bench.clock)
    log.open_epoch()
    for number in range(segments):
        log.commit(segment_edits(number))


def test_recreated_partition_counts_as_unread() -> None:
    bench = Bench()
    for partition in (0, 1):
        begun(bench, partition, 1)
    bench.groups.create("parts", GroupConfig(["a/topic"], RetentionType.AUTOMATIC))
    bench.groups.add_reader("parts", "r")
    bench.groups.initiate_checkpoint("parts", "kept")
    bench.groups.reach_checkpoint("parts", "kept", "r", {"a/topic": StreamCut.of({"0.0": "1:4", "1.0": "1:5"})})
    bench.groups.pass_checkpoint("parts", "kept", "r")
    for _ in range(2):
        delete_stream(bench.memory, "a/topic-partition-1", clock=bench.clock, delete_objects=lambda _: None)
        bench.clock.advance(86_401)
    begun(bench, 1, 3)
    bench.groups.tick("parts", renew_ms=1)
    found = open_retention(bench.memory, "a/topic", clock=bench.clock).registry().subscribers["parts"]
    assert str(found.cut) == "0.0=1:4"
    bench.groups.initiate_checkpoint("parts", "later", keep=False)
    bench.groups.reach_checkpoint("parts", "later", "r", {"a/topic": StreamCut.of({"1.0": "1:2"})})
    assert not bench.groups.pass_checkpoint("parts", "later", "r").refused
    found = open_retention(bench.memory, "a/topic", clock=bench.clock).registry().subscribers["parts"]
    assert str(found.cut) == "0.0=1:4,1.0=1:2"


def test_published_cut_is_not_repeated_for_a_recreated_stream() -> None:
    bench = Bench()
    bench.groups.initiate_checkpoint("rg", "c1", keep=False)
    bench.reach("c1", {ONE: at(20)}, {TWO: at(20)})
    bench.pass_all("c1")
    for _ in range(2):
        delete_stream(bench.memory, ONE, clock=bench.clock, delete_objects=lambda _: None)
        bench.clock.advance(86_401)
    log = ManifestLog(bench.memory, ONE, clock=bench.clock)
    log.open_epoch()
    for number in range(3):
        log.commit(segment_edits(number))
    bench.groups.tick("rg", renew_ms=1)
    bench.groups.settle("rg")
    assert bench.cuts() == {ONE: "0.0=1:0", TWO: "0.0=1:20"}
