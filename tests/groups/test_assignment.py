"""Decisions about a group's readers: shares, expiry by the store's time, sessions, partitions."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formats.documents import GroupState, PartitionRow, Version
from formats.entries import Position
from offloader.errors import InvalidCallError, NotFoundError, ReaderExpiredError
from offloader.groups.assignment import (
    Held,
    has_surplus,
    held,
    joined,
    left,
    partitioned,
    repartitioned,
    require_reader_name,
    stepped,
    timed,
)
from offloader.groups.reader_groups import (
    GroupConfig,
    RetentionType,
    absent_group,
    created,
    deleted,
    started_checkpoint,
)
from offloader.retention.cuts import StreamCut

HOMES = {"t": tuple(PartitionRow(number, UUID(int=number + 1)) for number in range(5))}
SECOND_MS = 1000


class Versions:
    """A group's document, written again and again."""

    def __init__(self, retention: RetentionType = RetentionType.NONE, **config: object) -> None:
        self.store_ms = 1_000_000
        made = created(absent_group("g"), GroupConfig(["t"], retention, **config), HOMES)  # type: ignore[arg-type]
        self.group: GroupState = self._written(replace(made, to_do=()))

    def _written(self, group: GroupState) -> GroupState:
        return replace(group, version=Version(group.version.revision + 1, "", (), 0))

    def now(self) -> GroupState:
        return timed(self.group, self.store_ms)

    def write(self, group: GroupState, *, after_ms: int = SECOND_MS) -> None:
        self.group = self._written(group)
        self.store_ms += after_ms  # when it was written

    def join(self, name: str) -> None:
        self.write(joined(self.now(), name, f"{name}'s", HOMES, {}))

    def step(self, name: str, entry: int | None = None, *, after_ms: int = SECOND_MS) -> None:
        positions = None if entry is None else {key: Position(1, entry) for key in held(self.group, name)}
        self.write(stepped(self.now(), name, f"{name}'s", positions), after_ms=after_ms)

    def shares(self) -> dict[str, int]:
        return {row.name: len(held(self.group, row.name)) for row in self.group.members}


def test_first_reader_gets_everything_and_the_second_what_the_first_releases() -> None:
    group = Versions()
    group.join("a")
    group.join("b")
    assert group.shares() == {"a": 5, "b": 0}
    group.step("a")
    assert group.shares() == {"a": 5, "b": 0}, "not everything that it delivered is consumed"
    group.step("a", 3)
    assert group.shares() == {"a": 3, "b": 2}
    assert {row.position for row in group.group.assignments} == {Position(1, 3)}


def test_each_change_of_a_holder_raises_the_epoch() -> None:
    group = Versions()
    group.join("a")
    before = dict.fromkeys(held(group.group, "a"))
    group.join("b")
    group.step("a", 0)
    assert set(held(group.group, "a")) < set(before)
    assert min(key.epoch for key in held(group.group, "b")) > max(key.epoch for key in before)


def test_positions_of_another_epoch_are_ignored() -> None:
    group = Versions()
    group.join("a")
    stale = {replace_epoch(key): Position(1, 9) for key in held(group.group, "a")}
    group.write(stepped(group.now(), "a", "a's", stale))
    assert {row.position for row in group.group.assignments} == {None}


def replace_epoch(key: Held) -> Held:
    return key._replace(epoch=key.epoch - 1)


def test_position_never_moves_back() -> None:
    group = Versions()
    group.join("a")
    group.step("a", 7)
    group.step("a", 3)
    assert {row.position for row in group.group.assignments} == {Position(1, 7)}


def test_silent_reader_expires_while_others_write() -> None:
    group = Versions()
    group.join("a")
    group.join("b")
    group.step("a", 4)
    for _ in range(5):
        group.step("b", after_ms=10 * SECOND_MS)
    assert group.shares() == {"b": 5}
    assert len([row for row in group.group.assignments if row.position == Position(1, 4)]) == 5
    with pytest.raises(ReaderExpiredError, match="silent for more than 30 s"):
        group.step("a")


def test_outage_of_the_store_expires_no_reader() -> None:
    group = Versions()
    group.join("a")
    group.join("b")
    group.step("a")
    group.step("b", after_ms=3_600 * SECOND_MS)
    group.step("b")
    group.step("a")
    assert sorted(group.shares()) == ["a", "b"]


def test_clock_of_the_store_that_is_set_back_expires_no_reader() -> None:
    group = Versions()
    group.join("a")
    group.join("b")
    for offset_ms in (-7_200 * SECOND_MS, 7_200 * SECOND_MS, -SECOND_MS):
        group.step("a", after_ms=offset_ms)
        group.step("b")
    assert sorted(group.shares()) == ["a", "b"]


def test_new_session_of_a_name_takes_its_partitions_at_the_persisted_positions() -> None:
    group = Versions()
    group.join("a")
    group.step("a", 4)
    old = set(held(group.group, "a"))
    group.write(joined(group.now(), "a", "second", HOMES, {}))
    assert len(held(group.group, "a")) == 5
    assert not old & set(held(group.group, "a"))
    assert {row.position for row in group.group.assignments} == {Position(1, 4)}
    with pytest.raises(ReaderExpiredError, match="joined again by another process"):
        group.step("a", 9)
    group.write(left(group.now(), "a", "a's", None))
    assert len(held(group.group, "a")) == 5, "the earlier session can't leave for the new one"


def test_reader_that_leaves_passes_its_checkpoints() -> None:
    group = Versions(RetentionType.MANUAL)
    group.join("a")
    group.join("b")
    group.write(started_checkpoint(group.now(), "c", kept=True, now_ms=0))
    group.step("b", 2)
    positions = {key: Position(1, 6) for key in held(group.group, "a")}
    group.write(left(group.now(), "a", "a's", positions))
    (checkpoint,) = group.group.checkpoints
    assert checkpoint.behind == ()
    assert sorted({row.position for each in checkpoint.cuts for row in each.cut}) == [Position(1, 6)]


def test_recreated_partition_starts_at_its_beginning_and_a_new_one_at_the_groups_start() -> None:
    group = Versions(starts={"t": StreamCut.of({"5.0": "1:3"})})
    group.join("a")
    group.step("a", 8)
    recreated = (replace(HOMES["t"][0], incarnation=UUID(int=99)), *HOMES["t"][1:], PartitionRow(5, UUID(int=6)))
    group.write(repartitioned(group.now(), {"t": recreated}, {}))
    rows = {row.partition: row for row in group.group.assignments}
    assert (rows[0].position, rows[1].position, rows[5].position) == (None, Position(1, 8), Position(1, 3))
    assert rows[0].epoch > rows[1].epoch
    assert {row.reader for row in rows.values()} == {"a"}
    group.write(repartitioned(group.now(), {"t": HOMES["t"][1:]}, {}))
    assert [row.partition for row in group.group.assignments] == [1, 2, 3, 4]


def test_streams_without_a_known_partition_set_keep_their_rows() -> None:
    group = Versions()
    group.join("a")
    assert partitioned(group.group, {}, {}) == group.group
    assert partitioned(group.group, {"other": HOMES["t"]}, {}) == group.group


def test_reader_without_a_row_of_a_member_blocks_no_checkpoint() -> None:
    group = Versions()
    group.join("a")
    group.group = replace(group.group, readers=("a", "of an earlier release"))
    group.write(started_checkpoint(group.now(), "c", kept=True, now_ms=0))
    group.step("a", 0)
    assert group.group.readers == ("a",)
    assert group.group.checkpoints[0].behind == ()


def test_deleted_group_ends_its_readers() -> None:
    group = Versions()
    group.join("a")
    group.write(deleted(group.now()))
    with pytest.raises(NotFoundError, match="doesn't exist"):
        group.step("a")
    assert left(group.now(), "a", "a's", {}) == group.now()


@pytest.mark.parametrize("name", ["", " a", "a\n", "x" * 256])
def test_names_of_readers_print_on_one_line(name: str) -> None:
    with pytest.raises(InvalidCallError, match="is not a valid reader name"):
        require_reader_name(name)


@pytest.mark.slow
@given(st.lists(st.tuples(st.sampled_from(["join", "step", "leave", "late"]), st.integers(0, 5)), max_size=30))
def test_shares_differ_by_one_at_most_once_everybody_stepped(acts: list[tuple[str, int]]) -> None:
    group = Versions()
    for act, number in acts:
        name, names = f"r{number}", [row.name for row in group.group.members]
        if act == "join":
            group.join(name)
        elif name in names and act == "step":
            group.step(name, number)
        elif name in names and act == "leave":
            group.write(left(group.now(), name, f"{name}'s", None))
        elif name in names and act == "late":
            group.step(name, after_ms=20 * SECOND_MS)
    for _ in range(2):
        for name in [row.name for row in group.group.members]:
            if name in [row.name for row in group.group.members]:
                group.step(name, 0, after_ms=1)
    shares = sorted(group.shares().values())
    assert not shares or (sum(shares) == 5 and shares[-1] - shares[0] <= 1)
    assert not any(has_surplus(group.group, name) for name in group.shares())
