"""A stream of a scenario of the retention cases: its history, subscribers, records and head, moved step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from offloader.retention.cuts import UNBOUNDED, Record, SegmentId, StreamCut
from offloader.retention.decide import Situation, decide, subscriptions_of
from offloader.retention.lineage import LineageMeasure
from offloader.retention.policy import Limits, Policy, PolicyKind, Unit
from offloader.retention.state import Decision, RetentionSet
from offloader.retention.subscribers import Registry
from tests.retention.case_file import cut, segments
from tests.retention.lineages import ScalableLineage

Step = dict[str, Any]


class Scenario:
    """What a list of steps does to a stream; each step is compared with what it expects.

    A step with ``better`` is compared with that, and the stream then goes on as ``expect`` says, for which the steps
    after it were written.
    """

    def __init__(self) -> None:
        self.lineage = ScalableLineage(())
        self.head = UNBOUNDED
        self.head_time_ms: int | None = None
        self.records = RetentionSet()
        self.registry = Registry()
        self.is_truncating = False

    def play(self, step: Step) -> None:
        replay: Callable[[Step], None] = getattr(self, step["op"])
        replay(step)

    def create(self, step: Step) -> None:
        ranges = {SegmentId.parse(name): (low, high) for name, (low, high) in step["segments"].items()}
        self.lineage = ScalableLineage.build(ranges, [list(ranges)])
        self.head = self.lineage.first_cut

    def scale(self, step: Step) -> None:
        sealed = {SegmentId.parse(name): size for name, size in step["seal_with_size"].items()}
        before = set(self.lineage.by_id)
        self.lineage = self.lineage.scaled(sealed, [(low, high) for low, high in step["new_ranges"]])
        assert segments(step["expect_new"]) == [s.segment for s in self.lineage.segments if s.segment not in before]

    def add_subscriber(self, step: Step) -> None:
        self.registry = self.registry.add(step["name"], step["generation"], now_ms=0)

    def delete_subscriber(self, step: Step) -> None:
        self.registry = self.registry.remove(step["name"], step["generation"])
        if "expect_subscribers" in step:
            assert step["expect_subscribers"] == self.registry.names()

    def publish(self, step: Step) -> None:
        outcome = self.registry.publish(step["name"], step["generation"], cut(step["cut"]), self.lineage, now_ms=0)
        self.registry = outcome.registry
        expected: str = step.get("ideal") or step["expect"]
        assert expected.removeprefix("STREAM_") == outcome.status.name

    def record(self, step: Step) -> None:
        self.records = self.records.add(Record(step["time"], cut(step["cut"]), step["size"]))

    def cycle(self, step: Step) -> None:
        expected = step["expect"]
        assert expected["tail_recorded"] == self.recorded_tail(step)
        decision = decide(self.situation(step))
        self.compare_bound(expected["subscriber_lower_bound"], decision)
        wanted = step["better"]["truncate_at"] if "better" in step else expected["truncate_at"]
        self.compare_cut(wanted, decision)
        if "better" in step and "keeps_bytes" in step["better"]:
            assert decision.cut is not None
            assert step["better"]["keeps_bytes"] == self.kept(decision.cut)
        if expected["truncate_at"] is not None:
            if "segments_to_delete" in expected:
                gone = self.lineage.deleted_between(self.head, cut(expected["truncate_at"]))
                assert segments(expected["segments_to_delete"]) == gone
            self.truncated(cut(expected["truncate_at"]))
        assert expected["retention_set_times"] == [one.time_ms for one in self.records.records]

    def recorded_tail(self, step: Step) -> bool:
        if "tail" not in step or not self.records.is_due(step["now"], step["frequency"]):
            return False
        tail, size = cut(step["tail"]["cut"]), step["tail"]["size"]
        assert self.lineage.problem(tail) == ""
        if size is not None:
            assert size == self.lineage.bytes_till(tail)
        before = self.records
        self.records = before.add(Record(step["tail"]["time"], tail, size))
        return self.records is not before

    def situation(self, step: Step) -> Situation:
        limits = step["policy"]
        kind = PolicyKind[limits["type"]]
        policy = Policy(kind=kind, limits=Limits(Unit[limits["type"]], limits["min"], limits["max"]))
        return Situation(
            policy=policy,
            lineage=self.lineage,
            measure=LineageMeasure(self.lineage),
            records=self.records,
            head=self.head,
            head_time_ms=self.head_time_ms,
            now_ms=step["now"],
            subscriptions=subscriptions_of(self.registry, policy, now_ms=step["now"], tail=None, rules=self.lineage),
        )

    def compare_bound(self, expected: Any, decision: Decision) -> None:
        """The bound upstream computed isn't joined with the head, and may be no valid cut."""
        published = [one.cut for one in self.registry.subscribers.values() if one.cut is not None]
        assert (expected is None) == (decision.bound is None) == (not published)
        if expected is not None and not self.lineage.problem(cut(expected)):
            assert self.lineage.equal(cut(expected), self.lineage.meet(published))

    def compare_cut(self, wanted: Any, decision: Decision) -> None:
        if wanted is None or decision.cut is None:
            assert wanted is decision.cut
        else:
            assert self.lineage.problem(decision.cut) == ""
            assert self.lineage.equal(cut(wanted), decision.cut), (wanted, str(decision.cut))

    def kept(self, at: StreamCut) -> int:
        newest = self.records.newest
        assert newest is not None
        return self.lineage.bytes_till(newest.cut) - self.lineage.bytes_till(at)

    def truncate(self, step: Step) -> None:
        at = cut(step["cut"])
        accepted = not self.is_truncating and not self.lineage.problem(at) and self.lineage.reaches(at, self.head)
        assert (step["expect"] == "accepted") == accepted
        if accepted:
            assert segments(step["segments_to_delete"]) == self.lineage.deleted_between(self.head, at)
            assert step["span"] == {str(segment): epoch for segment, epoch in self.lineage.span(at).items()}
            assert step["size_till"] == self.lineage.bytes_till(at)
            self.truncated(at)

    def truncated(self, at: StreamCut) -> None:
        youngest = self.records.at_or_before(at, self.lineage)
        self.head_time_ms = youngest.time_ms if youngest else self.head_time_ms
        self.head, self.is_truncating = at, True
        self.records = self.records.truncated(at, self.lineage)

    def complete_truncation(self, step: Step) -> None:
        self.is_truncating = False
