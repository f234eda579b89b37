"""The cases about the subscriber registry and reader groups, over a memory store."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from offloader.errors import InvalidCallError, NotFoundError, OffloaderError
from offloader.groups.group_service import ReaderGroups
from offloader.groups.reader_groups import GroupConfig, RetentionType, config_of
from offloader.manifest.log import ManifestLog
from offloader.retention.cuts import StreamCut
from offloader.retention.lineage import Lineage
from offloader.retention.scope import DocumentStore
from offloader.retention.subscribers import Registry, StreamRetention
from offloader.store.memory import MemoryStore
from offloader.testing.manual_clock import ManualClock
from tests.retention.case_file import cut, suite

Case = dict[str, Any]
_names = count()
SCOPE = "tenant/namespace"
#: Upstream's statuses, and what this library raises instead.
RAISED: dict[str, type[OffloaderError]] = {
    "STREAM_NOT_FOUND": NotFoundError,
    "RG_NOT_FOUND": NotFoundError,
    "SCOPE_NOT_FOUND": NotFoundError,
    "INVALID_RG_NAME": InvalidCallError,
}


class Groups:
    """Steps about groups, on streams in a store."""

    def __init__(self) -> None:
        clock = ManualClock()
        store = MemoryStore(f"registry-{next(_names)}", "", clock)
        for number in (1, 2, 3):
            ManifestLog(store, f"{SCOPE}/stream{number}", clock=clock).open_epoch()
        self.documents = DocumentStore(store, clock)
        self.groups = ReaderGroups(self.documents, lambda _: None)

    def list(self, step: Case) -> None:
        stream = f"{SCOPE}/{step['stream']}"
        found = StreamRetention(self.documents, stream, lambda _: None).registry()
        assert step["expect"] == found.names()

    def create_group(self, step: Case) -> None:
        existing = step["name"] in self.groups.names()
        before = self.groups.get(step["name"]) if existing else None
        group = self.groups.create(step["name"], self.config(step)).group
        assert step.get("expect_generation", group.generation) == group.generation
        if step.get("expect_config_unchanged"):
            assert before is not None
            assert config_of(before) == config_of(group)

    def update_group(self, step: Case) -> None:
        outcome = self.groups.update(step["name"], step["from_generation"], self.config(step))
        assert step["expect_generation"] == outcome.group.generation
        assert not outcome.refused
        assert not outcome.failed

    def delete_group(self, step: Case) -> None:
        self.groups.delete(step["name"])

    def get_config(self, step: Case) -> None:
        self.groups.get(step["name"])

    def config(self, step: Case) -> GroupConfig:
        scope = step.get("scope", SCOPE)
        streams = [f"{scope}/{name}" for name in step.get("streams", ["stream1"])]
        return GroupConfig(streams, RetentionType[step.get("retention", "NONE")])


class Subscribers:
    """Steps about one stream's registry, which is a value."""

    def __init__(self) -> None:
        self.registry = Registry()
        self.now_ms = 0
        self.rules = Lineage.of_partitions(range(1))

    def add_subscriber(self, step: Case) -> None:
        self.registry = self.registry.add(step["name"], step["generation"], now_ms=self.now_ms)
        found = self.registry.subscribers[step["name"]]
        assert step["expect_generation"] == found.generation
        if "expect_cut" in step:
            assert cut(step["expect_cut"]) == (found.cut or StreamCut())

    def delete_subscriber(self, step: Case) -> None:
        self.registry = self.registry.remove(step["name"], step["generation"])
        assert step["expect_present"] == (step["name"] in self.registry.subscribers)

    def publish(self, step: Case) -> None:
        before = self.registry
        outcome = self.registry.publish(
            step["name"], step["generation"], cut(step["cut"]), self.rules, now_ms=self.now_ms
        )
        self.registry = outcome.registry
        assert step["expect"] == outcome.status.name
        assert (outcome.status.name == "SUCCESS") == (outcome.registry != before)


@pytest.mark.parametrize("case", [pytest.param(case, id=title) for title, case in suite("subscriber_registry")])
def test_registry_case(case: Case) -> None:
    of_groups = any("group" in step["op"] for step in case["steps"])
    world: Groups | Subscribers = Groups() if of_groups else Subscribers()
    for step in case["steps"]:
        operation: Callable[[Case], None] = getattr(world, step["op"])
        expected = RAISED.get(step.get("expect_status", "SUCCESS"))
        if expected is None:
            operation(step)
        else:
            with pytest.raises(expected):
                operation(step)


@pytest.mark.parametrize("case", [pytest.param(case, id=title) for title, case in suite("reader_group_config")])
def test_reader_group_config_case(case: Case) -> None:
    if case["expect"] == "defaults":
        config = GroupConfig(["s1"])
        assert case["groupRefreshTimeMillis"] == config.refresh_ms
        assert case["automaticCheckpointIntervalMillis"] == config.automatic_checkpoint_ms
        assert case["maxOutstandingCheckpointRequest"] == config.outstanding_checkpoints_max
        assert case["retentionType"] == config.retention.name
        from offloader.groups.reader_groups import absent_group

        assert case["generation"] == absent_group("rg").generation
        return

    def configured() -> GroupConfig:
        streams = case.get("streams", [case.get("stream")])
        starts = {case["stream"]: _bound(case["start"])} if "start" in case else {}
        ends = {case["stream"]: _bound(case["end"])} if "end" in case else {}
        ends |= {case["end_cut_of"]: StreamCut.of({"0.0": 1})} if "end_cut_of" in case else {}
        return GroupConfig(streams, starts=starts, ends=ends)

    if case["expect"] == "ok":
        configured()
    else:
        with pytest.raises(InvalidCallError):
            configured()


def _bound(value: Any) -> StreamCut:
    return StreamCut() if value == "UNBOUNDED" else cut(value)


def test_every_case_of_the_two_suites_was_replayed() -> None:
    ops = {step["op"] for _, case in suite("subscriber_registry") for step in case["steps"]}
    assert ops <= {name for kind in (Groups, Subscribers) for name in vars(kind)}
    assert all("expect" in case for _, case in suite("reader_group_config"))
