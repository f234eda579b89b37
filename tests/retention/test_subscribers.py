"""The subscriber registry as a value: generations, publishing, activity."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offloader.errors import InvalidCallError, LimitReachedError
from offloader.retention.cuts import StreamCut
from offloader.retention.lineage import Lineage
from offloader.retention.subscribers import (
    RENEWED_MS_MIN,
    SUBSCRIBERS_MAX,
    Activity,
    PublishStatus,
    Registry,
    Subscriber,
)

RULES = Lineage.of_partitions(range(2))


def cut(one: int, two: int | None = None) -> StreamCut:
    return StreamCut.of({"0.0": one} if two is None else {"0.0": one, "1.0": two})


def published(at_ms: int, *, now_ms: int = 1_000) -> Registry:
    registry = Registry().add("s", 3, now_ms=now_ms)
    outcome = registry.publish("s", 3, cut(5, 5), RULES, now_ms=at_ms)
    assert outcome.status is PublishStatus.SUCCESS
    return outcome.registry


@pytest.mark.parametrize(
    ("name", "generation", "given", "status", "why"),
    [
        ("t", 3, cut(6, 6), PublishStatus.SUBSCRIBER_NOT_FOUND, "t isn't registered; registered: s"),
        ("s", 2, cut(6, 6), PublishStatus.GENERATION_MISMATCH, "generation 3, not 2"),
        ("s", 4, cut(6, 6), PublishStatus.GENERATION_MISMATCH, "generation 3, not 4"),
        ("s", 3, cut(4, 6), PublishStatus.CUT_NOT_VALID, "isn't at or after"),
        ("s", 3, cut(6), PublishStatus.CUT_NOT_VALID, "isn't at or after"),
        ("s", 3, StreamCut.of({"7.0": 9}), PublishStatus.CUT_NOT_VALID, "no stream segment 7.0"),
        ("s", 3, StreamCut(), PublishStatus.CUT_NOT_VALID, "lists no stream segment"),
    ],
)
def test_a_refused_publish_names_the_reason_and_changes_nothing(
    name: str, generation: int, given: StreamCut, status: PublishStatus, why: str
) -> None:
    before = published(2_000)
    outcome = before.publish(name, generation, given, RULES, now_ms=9_000)
    assert outcome.status is status
    assert why in outcome.why
    assert outcome.registry is before


def test_an_equal_publish_is_a_sign_of_life_and_no_change_of_the_cut() -> None:
    before = published(2_000).subscribers["s"]
    after = published(2_000).publish("s", 3, cut(5, 5), RULES, now_ms=60_000).registry.subscribers["s"]
    assert (after.cut, after.updated_ms, after.active_ms) == (before.cut, 2_000, 60_000)
    soon = published(2_000)
    assert soon.publish("s", 3, cut(5, 5), RULES, now_ms=2_000 + RENEWED_MS_MIN - 1).registry is soon


def test_subscriber_times_never_decrease_with_the_clock() -> None:
    after = published(50_000).publish("s", 3, cut(6, 6), RULES, now_ms=10).registry.subscribers["s"]
    assert (after.cut, after.updated_ms, after.active_ms) == (cut(6, 6), 50_000, 50_000)


@pytest.mark.parametrize(
    ("silent_ms", "given", "expected"),
    [
        (1000, {}, Activity.ACTIVE),
        (1001, {}, Activity.TIMED_OUT),
        (-(10**9), {}, Activity.ACTIVE),
        (1001, {"is_at_tail": True}, Activity.ACTIVE),
        (1001, {"is_connected": True}, Activity.ACTIVE),
        (10**12, {"timeout_ms": None}, Activity.ACTIVE),
    ],
)
def test_subscriber_silent_beyond_the_timeout_is_inactive(
    silent_ms: int, given: dict[str, bool], expected: Activity
) -> None:
    one = Subscriber(name="s", generation=0, updated_ms=0, active_ms=10**10, cut=cut(5))
    assert one.activity(**{"now_ms": one.active_ms + silent_ms, "timeout_ms": 1000, **given}) is expected  # type: ignore[arg-type]


def test_unpublished_subscriber_holds_nothing_back_unless_protected() -> None:
    registry = published(2_000).add("new", 0, now_ms=3_000).add("later", 0, now_ms=3_000, start=cut(7, 7))
    activities = registry.active(now_ms=4_000, timeout_ms=1, tail=cut(5, 5), rules=RULES)
    # At the tail, so it is active although it is silent; who never published isn't.
    assert activities == {"later": Activity.UNPUBLISHED, "new": Activity.UNPUBLISHED, "s": Activity.ACTIVE}
    behind = registry.active(now_ms=4_000, timeout_ms=1, tail=cut(5, 6), rules=RULES, connected={"x"})
    assert behind["s"] is Activity.TIMED_OUT
    assert registry.bounding(cut(1, 1)) == {"s": cut(5, 5)}
    protected = registry.bounding(cut(1, 1), protect_unpublished=True)
    assert protected == {"later": cut(7, 7), "new": cut(1, 1), "s": cut(5, 5)}


@pytest.mark.parametrize("name", ["", " x", "x\n", "a" * 256, "\ud800"])
def test_names_are_one_line_of_text(name: str) -> None:
    with pytest.raises(InvalidCallError, match="isn't a valid subscriber name"):
        Registry().add(name, 0, now_ms=0)


def test_a_registry_has_a_limit_and_generations_one_too() -> None:
    full = Registry(
        {f"s{n}": Subscriber(name=f"s{n}", generation=0, updated_ms=0, active_ms=0) for n in range(SUBSCRIBERS_MAX)}
    )
    with pytest.raises(LimitReachedError, match="limit of 1000 is reached"):
        full.add("one more", 0, now_ms=0)
    assert full.add("s7", 9, now_ms=1).subscribers["s7"].generation == 9
    for generation in (-1, 2**63):
        with pytest.raises(InvalidCallError, match="not a generation"):
            Registry().add("s", generation, now_ms=0)


steps = st.lists(
    st.tuples(
        st.sampled_from(["add", "remove", "publish"]),
        st.sampled_from(["a", "b"]),
        st.integers(0, 3),
        st.integers(0, 5),
    ),
    max_size=12,
)


def run(registry: Registry, step: tuple[str, str, int, int]) -> Registry:
    action, name, generation, offset = step
    if action == "add":
        return registry.add(name, generation, now_ms=1)
    if action == "remove":
        return registry.remove(name, generation)
    return registry.publish(name, generation, cut(offset, offset), RULES, now_ms=1).registry


@settings(max_examples=200, deadline=None)
@given(steps)
def test_subscribers_are_independent_and_never_move_back(
    given_steps: list[tuple[str, str, int, int]],
) -> None:
    together = Registry()
    for step in given_steps:
        before, together = together.subscribers.get(step[1]), run(together, step)
        after = together.subscribers.get(step[1])
        if before is not None and after is not None:
            assert after.generation >= before.generation
            assert before.cut is None or (after.cut is not None and RULES.reaches(after.cut, before.cut))
    for name in ("a", "b"):
        alone = Registry()
        for step in given_steps:
            alone = run(alone, step) if step[1] == name else alone
        assert alone.subscribers.get(name) == together.subscribers.get(name)
