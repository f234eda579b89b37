"""Reader groups: registration, checkpoints, publishing, and store failures in between."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from formats.entries import Position
from formats.manifest import Truncate
from offloader.errors import (
    InvalidCallError,
    LimitReachedError,
    NotFoundError,
    OffloaderError,
    StoreUnavailableError,
    UnsupportedError,
)
from offloader.groups.group_service import ReaderGroups
from offloader.groups.reader_groups import (
    CHECKPOINTS_MAX,
    GROUP_STREAMS_MAX,
    GroupConfig,
    RetentionType,
)
from offloader.manifest.log import ManifestLog
from offloader.manifest.maintenance import delete_stream
from offloader.retention.cuts import StreamCut
from offloader.retention.subscribers import open_retention
from offloader.testing.faulty_store import Fault
from tests.groups.grouped_streams import ONE, TWO, Bench, at, is_published
from tests.support.manifests import segment_edits


def test_an_automatic_group_publishes_when_the_last_reader_has_passed() -> None:
    bench = Bench()
    assert bench.cuts() == {ONE: None, TWO: None}
    bench.groups.initiate_checkpoint("rg", "c1", keep=False)
    bench.reach("c1", {ONE: at(12)}, {TWO: at(7)})
    group = bench.groups.pass_checkpoint("rg", "c1", "r1").group
    assert is_published(group)
    assert bench.cuts() == {ONE: None, TWO: None}
    outcome = bench.groups.pass_checkpoint("rg", "c1", "r2")
    assert bench.cuts() == {ONE: "0.0=1:12", TWO: "0.0=1:7"}
    assert (outcome.group.checkpoints, outcome.group.to_do, list(outcome.failed)) == ((), (), [])


def test_publish_is_pending_from_the_last_pass_until_every_stream_has_it() -> None:
    bench = Bench()
    bench.groups.initiate_checkpoint("rg", "c1")
    bench.reach("c1", {ONE: at(12)}, {TWO: at(7)})
    bench.store.set_faults([Fault(call=1, verb="put", key_part="two/retention/", calls=100)])
    outcome = bench.pass_all("c1")
    assert bench.cuts() == {ONE: "0.0=1:12", TWO: None}
    assert not is_published(outcome.group)
    assert [(row.stream, type(error)) for row, error in outcome.failed] == [(TWO, StoreUnavailableError)]
    bench.store.set_faults([])
    assert not is_published(bench.groups.get("rg"))
    assert is_published(bench.open().tick("rg", renew_ms=10**9).group)
    assert bench.cuts() == {ONE: "0.0=1:12", TWO: "0.0=1:7"}


def test_reader_must_report_its_position_before_it_passes_a_checkpoint() -> None:
    bench = Bench()
    bench.groups.initiate_checkpoint("rg", "c1")
    with pytest.raises(InvalidCallError, match="hasn't reported its position"):
        bench.groups.pass_checkpoint("rg", "c1", "r1")
    with pytest.raises(NotFoundError, match="no checkpoint c9"):
        bench.groups.pass_checkpoint("rg", "c9", "r1")
    with pytest.raises(InvalidCallError, match="doesn't read stream a/three"):
        bench.groups.reach_checkpoint("rg", "c1", "r1", {"a/three": StreamCut()})
    with pytest.raises(InvalidCallError, match="beyond the tail 1:30"):
        bench.groups.reach_checkpoint("rg", "c1", "r1", {ONE: at(31)})


def test_passing_a_checkpoint_passes_those_before_it() -> None:
    bench = Bench()
    for number in (1, 2):
        bench.groups.initiate_checkpoint("rg", f"c{number}", keep=False)
        bench.reach(f"c{number}", {ONE: at(10 * number)}, {TWO: at(number)})
    bench.pass_all("c2")
    assert bench.cuts() == {ONE: "0.0=1:20", TWO: "0.0=1:2"}
    assert bench.groups.get("rg").checkpoints == ()


def test_earlier_position_counts_for_a_partition_with_two_readers() -> None:
    bench = Bench()
    bench.groups.initiate_checkpoint("rg", "c1")
    bench.reach("c1", {ONE: at(12)}, {ONE: at(9)})
    bench.pass_all("c1")
    assert bench.cuts() == {ONE: "0.0=1:9", TWO: None}


def test_a_reader_that_stops_holds_no_checkpoint_up() -> None:
    bench = Bench()
    bench.groups.initiate_checkpoint("rg", "c1")
    bench.groups.reach_checkpoint("rg", "c1", "r1", {ONE: at(12)})
    bench.groups.pass_checkpoint("rg", "c1", "r1")
    bench.groups.remove_reader("rg", "r2", {TWO: at(5)})
    assert bench.cuts() == {ONE: "0.0=1:12", TWO: "0.0=1:5"}
    assert bench.groups.get("rg").readers == ("r1",)


def test_reader_that_stops_before_it_has_read_up_to_a_checkpoint_counts_where_it_stopped() -> None:
    bench = Bench()
    bench.groups.initiate_checkpoint("rg", "c1")
    bench.reach("c1", {ONE: at(12)}, {TWO: at(7)})
    bench.groups.pass_checkpoint("rg", "c1", "r1")
    bench.groups.remove_reader("rg", "r2", {TWO: at(5)})
    assert bench.cuts() == {ONE: "0.0=1:12", TWO: "0.0=1:5"}, "another reader goes on at 1:5"


def test_reader_that_stops_behind_a_checkpoint_does_not_move_it() -> None:
    bench = Bench()
    bench.groups.initiate_checkpoint("rg", "c1")
    bench.reach("c1", {ONE: at(12)}, {TWO: at(7)})
    bench.groups.pass_checkpoint("rg", "c1", "r2")
    bench.groups.remove_reader("rg", "r2", {TWO: at(9)})
    bench.groups.pass_checkpoint("rg", "c1", "r1")
    assert bench.cuts() == {ONE: "0.0=1:12", TWO: "0.0=1:7"}


def test_partitions_unread_at_a_checkpoint_keep_their_published_position() -> None:
    bench = Bench()
    for number in (0, 1):
        ManifestLog(bench.memory, f"a/topic-partition-{number}", clock=bench.clock).open_epoch()
        log = ManifestLog(bench.memory, f"a/topic-partition-{number}", clock=bench.clock)
        log.load()
        log.open_epoch()
        log.commit(segment_edits(0))
    bench.groups.create("parts", GroupConfig(["a/topic"], RetentionType.AUTOMATIC))
    bench.groups.add_reader("parts", "r")
    for name, cut in (("c1", {"0.0": "1:4", "1.0": "1:5"}), ("c2", {"1.0": "1:9"})):
        bench.groups.initiate_checkpoint("parts", name, keep=False)
        bench.groups.reach_checkpoint("parts", name, "r", {"a/topic": StreamCut.of(cut)})
        assert not bench.groups.pass_checkpoint("parts", name, "r").refused
    found = open_retention(bench.memory, "a/topic", clock=bench.clock).registry().subscribers["parts"]
    assert str(found.cut) == "0.0=1:4,1.0=1:9"


def test_manual_group_publishes_checkpoints_and_cuts_on_request() -> None:
    bench = Bench(RetentionType.MANUAL)
    for number in (1, 2):
        bench.groups.initiate_checkpoint("rg", f"c{number}")
        bench.reach(f"c{number}", {ONE: at(10 * number)}, {TWO: at(number)})
        bench.pass_all(f"c{number}")
    assert bench.cuts() == {ONE: None, TWO: None}
    bench.groups.update_truncation_checkpoint("rg", "c1")
    assert bench.cuts() == {ONE: "0.0=1:10", TWO: "0.0=1:1"}
    bench.groups.update_truncation_cuts("rg", {ONE: at(15)})
    assert bench.cuts() == {ONE: "0.0=1:15", TWO: "0.0=1:1"}
    # Behind what was published: refused by the stream, not owed for ever.
    outcome = bench.groups.update_truncation_checkpoint("rg", "c1")
    assert [row.stream for row, _ in outcome.refused] == [ONE]
    assert outcome.group.to_do == ()
    bench.groups.update_truncation_checkpoint("rg", "c2")
    assert bench.cuts() == {ONE: "0.0=1:20", TWO: "0.0=1:2"}


@pytest.mark.parametrize("retention", [RetentionType.AUTOMATIC, RetentionType.NONE])
def test_publish_commands_are_refused_for_automatic_groups(retention: RetentionType) -> None:
    bench = Bench(retention)
    bench.groups.initiate_checkpoint("rg", "c1")
    bench.reach("c1", {ONE: at(12)}, {TWO: at(7)})
    acts: list[Callable[[], object]] = [
        lambda: bench.groups.update_truncation_checkpoint("rg", "c1"),
        lambda: bench.groups.update_truncation_cuts("rg", {ONE: at(3)}),
    ]
    for act in acts:
        with pytest.raises(UnsupportedError, match="only manual groups"):
            act()


def test_an_unfinished_or_unknown_checkpoint_is_not_published() -> None:
    bench = Bench(RetentionType.MANUAL)
    bench.groups.initiate_checkpoint("rg", "c1")
    with pytest.raises(InvalidCallError, match="waits for r1, r2"):
        bench.groups.update_truncation_checkpoint("rg", "c1")
    with pytest.raises(NotFoundError):
        bench.groups.update_truncation_checkpoint("rg", "c2")
    with pytest.raises(InvalidCallError, match="doesn't read stream a/three"):
        bench.groups.update_truncation_cuts("rg", {"a/three": at(1)})


def test_checkpoints_before_the_head_are_dropped_when_one_is_complete() -> None:
    bench = Bench(RetentionType.MANUAL)
    for number in (1, 2):
        bench.groups.initiate_checkpoint("rg", f"c{number}")
        bench.reach(f"c{number}", {ONE: at(5 * number)}, {TWO: at(5 * number)})
    for name in (ONE, TWO):
        log = ManifestLog(bench.memory, name, clock=bench.clock)
        log.load()
        log.commit_as_maintainer([Truncate(Position(1, 10))])
    bench.groups.initiate_checkpoint("rg", "c3")
    group = bench.reach("c3", {ONE: at(20)}, {TWO: at(20)}).group
    # c2 lies exactly at the head: nothing of it is missing.
    assert [row.name for row in group.checkpoints] == ["c2", "c3"]


def test_becoming_a_subscriber_and_ceasing_to_be_one_register_and_remove() -> None:
    bench = Bench(RetentionType.NONE)
    assert bench.cuts() == {}
    bench.groups.update("rg", 0, GroupConfig([ONE], RetentionType.MANUAL, starts={ONE: at(10)}))
    assert bench.cuts() == {ONE: None}
    started = open_retention(bench.memory, ONE, clock=bench.clock).registry().subscribers["rg"].start
    assert started == at(10)
    bench.groups.update("rg", 1, GroupConfig([TWO], RetentionType.AUTOMATIC))
    assert bench.cuts() == {TWO: None}
    with pytest.raises(InvalidCallError, match="generation is 2, not 1"):
        bench.groups.update("rg", 1, GroupConfig([ONE]))
    bench.groups.update("rg", 2, GroupConfig([TWO], RetentionType.NONE))
    assert bench.cuts() == {}


def test_configuration_change_keeps_the_cut_and_pending_publishes() -> None:
    bench = Bench(RetentionType.MANUAL)
    bench.groups.update_truncation_cuts("rg", {ONE: at(5)})
    bench.store.set_faults([Fault(call=1, verb="put", key_part="one/retention/", calls=100)])
    bench.groups.update_truncation_cuts("rg", {ONE: at(9)})
    outcome = bench.groups.update("rg", 0, GroupConfig([ONE], RetentionType.AUTOMATIC))
    assert [row.action for row, _ in outcome.failed] == ["add"], "in order: the publish waits behind it"
    bench.store.set_faults([])
    bench.groups.settle("rg")
    found = open_retention(bench.memory, ONE, clock=bench.clock).registry().subscribers["rg"]
    assert (found.generation, str(found.cut)) == (1, "0.0=1:9")
    assert bench.cuts() == {ONE: "0.0=1:9"}


def test_recreated_group_continues_the_generation_of_the_deleted_one() -> None:
    bench = Bench()
    bench.store.set_faults([Fault(call=1, verb="put", key_part="two/retention/", calls=100)])
    assert len(bench.groups.delete("rg").failed) == 1
    assert bench.cuts() == {TWO: None}
    with pytest.raises(NotFoundError, match="reader group rg doesn't exist"):
        bench.groups.get("rg")
    bench.store.set_faults([])
    assert bench.groups.names() == []
    again = bench.groups.create("rg", GroupConfig([TWO], RetentionType.MANUAL)).group
    # What the old one owed was done first: the new one is registered, under a higher generation.
    assert again.generation == 1
    assert bench.cuts() == {TWO: None}
    assert bench.groups.names() == ["rg"]


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["get", "put"])
@pytest.mark.parametrize("after", [False, True])
def test_a_crash_at_any_call_is_completed_by_the_next_one(verb: str, after: bool) -> None:
    """Creating, publishing and changing; each call fails once, then is repeated."""
    clean = Bench(RetentionType.MANUAL)

    def story(groups: ReaderGroups) -> None:
        groups.create("late", GroupConfig([ONE, TWO], RetentionType.MANUAL))
        groups.settle("late")
        groups.update_truncation_cuts("late", {ONE: at(5), TWO: at(6)})
        if groups.get("late").generation == 0:
            groups.update("late", 0, GroupConfig([ONE], RetentionType.MANUAL))
        groups.settle("late")

    clean.store.set_faults([])
    story(clean.groups)
    calls = sum(1 for each, _ in clean.store.calls if each == verb)
    expected = open_retention(clean.memory, ONE, clock=clean.clock).registry().subscribers["late"]
    for number in range(1, calls + 1, 3):
        bench = Bench(RetentionType.MANUAL)
        bench.store.set_faults([Fault(call=number, verb=verb, key_part="/", after=after)])
        for _ in range(3):
            try:
                story(bench.open())
            except InvalidCallError:
                break  # it was changed already: a cut of the second stream isn't its business any more
            except OffloaderError:
                continue
        bench.store.set_faults([])
        bench.open().settle("late")
        found = open_retention(bench.memory, ONE, clock=bench.clock).registry().subscribers["late"]
        assert (found.generation, found.cut) == (expected.generation, expected.cut)
        assert "late" not in open_retention(bench.memory, TWO, clock=bench.clock).registry().subscribers
        assert bench.groups.get("late").to_do == ()


@pytest.mark.slow
def test_a_group_and_its_checkpoints_have_limits() -> None:
    bench = Bench(outstanding_checkpoints_max=3)
    bench.groups.initiate_checkpoint("rg", "c0")
    with pytest.raises(InvalidCallError, match="has a checkpoint c0 already"):
        bench.groups.initiate_checkpoint("rg", "c0")
    bench.groups.initiate_checkpoint("rg", "c1")
    bench.groups.initiate_checkpoint("rg", "c2")
    with pytest.raises(LimitReachedError, match="3 checkpoints wait"):
        bench.groups.initiate_checkpoint("rg", "c3")
    for number in range(CHECKPOINTS_MAX):
        name = f"c{number}"
        if number > 2:
            bench.groups.initiate_checkpoint("rg", name)
        bench.reach(name, {}, {})
    with pytest.raises(LimitReachedError, match=f"keeps {CHECKPOINTS_MAX}"):
        bench.groups.initiate_checkpoint("rg", "one more")
    with pytest.raises(LimitReachedError, match="at most 1000"):
        GroupConfig([f"s{n}" for n in range(GROUP_STREAMS_MAX + 1)])
    bench.groups.create("idle", GroupConfig([ONE]))
    with pytest.raises(InvalidCallError, match="has no readers"):
        bench.groups.initiate_checkpoint("idle", "c")
    with pytest.raises(InvalidCallError, match=r"can't start at 0\.0=1:99"):
        bench.groups.create("late", GroupConfig([ONE], RetentionType.MANUAL, starts={ONE: at(99)}))


def test_a_kept_checkpoint_is_published_once_and_never_again() -> None:
    bench = Bench()
    for name, entry in (("kept", 10), ("later", 20)):
        bench.groups.initiate_checkpoint("rg", name, keep=name == "kept")
        bench.reach(name, {ONE: at(entry)}, {TWO: at(entry)})
        outcome = bench.pass_all(name)
        assert not outcome.refused
    bench.groups.initiate_checkpoint("rg", "last", keep=False)
    assert not bench.reach("last", {ONE: at(21)}, {TWO: at(21)}).refused
    assert bench.cuts() == {ONE: "0.0=1:20", TWO: "0.0=1:20"}
    outcome = bench.pass_all("last")
    assert (outcome.refused, outcome.group.to_do) == ([], ())
    assert bench.cuts() == {ONE: "0.0=1:21", TWO: "0.0=1:21"}
    assert [row.name for row in outcome.group.checkpoints] == ["kept"]


def test_earlier_cut_does_not_replace_a_later_pending_one() -> None:
    bench = Bench(RetentionType.MANUAL)
    bench.store.set_faults([Fault(call=1, verb="put", key_part="one/retention/", calls=100)])
    bench.groups.update_truncation_cuts("rg", {ONE: at(9)})
    bench.groups.update_truncation_cuts("rg", {ONE: at(5)})
    bench.store.set_faults([])
    bench.groups.settle("rg")
    assert bench.cuts()[ONE] == "0.0=1:9"


def test_group_registers_again_in_a_recreated_stream() -> None:
    bench = Bench()
    bench.groups.initiate_checkpoint("rg", "c1", keep=False)
    bench.reach("c1", {ONE: at(20)}, {TWO: at(20)})
    bench.pass_all("c1")
    for _ in range(2):
        delete_stream(bench.memory, ONE, clock=bench.clock, delete_objects=lambda _: None)
        bench.clock.advance(86_401)
    log = ManifestLog(bench.memory, ONE, clock=bench.clock)
    log.open_epoch()
    log.commit(segment_edits(0))
    assert bench.cuts() == {TWO: "0.0=1:20"}
    bench.groups.initiate_checkpoint("rg", "c2", keep=False)
    bench.reach("c2", {ONE: at(5)}, {TWO: at(20)})
    bench.pass_all("c2")
    assert bench.groups.tick("rg", renew_ms=10**9).group.to_do == ()
    assert bench.cuts() == {ONE: "0.0=1:5", TWO: "0.0=1:20"}
