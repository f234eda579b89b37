"""The topic roster after successful and failed listings of a cluster."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloader.ledgers.pulsar.discovery import Look, Roster


def look(*topics: str, failed: tuple[str, ...] = (), namespaces: tuple[str, ...] = (), is_whole: bool = True) -> Look:
    found: dict[str, set[str]] = {namespace: set() for namespace in namespaces}
    for topic in topics:
        found.setdefault(topic.rpartition("/")[0], set()).add(f"persistent://{topic}")
    return Look({name: frozenset(each) for name, each in found.items()}, frozenset(failed), is_whole)


def test_new_topics_appear_at_once_and_missing_ones_go_after_two_looks() -> None:
    roster = Roster()
    assert roster.see(look("t/n/a", "t/n/b")) == (["persistent://t/n/a", "persistent://t/n/b"], [])
    assert roster.see(look("t/n/a")) == ([], [])
    assert roster.see(look("t/n/a", "t/n/c")) == (["persistent://t/n/c"], ["persistent://t/n/b"])
    assert roster.see(look("t/n/a", "t/n/b", "t/n/c")) == (["persistent://t/n/b"], [])


def test_failed_listing_changes_no_topic() -> None:
    roster = Roster()
    roster.see(look("t/n/a", "u/m/b"))
    for _ in range(5):
        assert roster.see(look("t/n/a", failed=("u/m",))) == ([], [])
        assert roster.see(look("t/n/a", is_whole=False)) == ([], [])
    # Its namespace is gone.
    roster.see(look("t/n/a"))
    assert roster.see(look("t/n/a")) == ([], ["persistent://u/m/b"])


def test_a_sight_between_two_misses_counts() -> None:
    roster = Roster()
    for _ in range(4):
        roster.see(look("t/n/a", namespaces=("t/n",)))
        assert roster.see(look(namespaces=("t/n",))) == ([], [])


LOOKS = st.lists(st.tuples(st.frozensets(st.sampled_from("abcd")), st.booleans()), max_size=12)


@pytest.mark.slow
@given(LOOKS)
def test_topic_is_dropped_only_after_missing_from_last_two_good_listings(
    looks: list[tuple[frozenset[str], bool]],
) -> None:
    roster, good = Roster(), list[frozenset[str]]()
    for shown, is_good in looks:
        before = set(roster.topics)
        if is_good:
            good.append(shown)
            new, gone = roster.see(look(*(f"t/n/{each}" for each in shown), namespaces=("t/n",)))
            assert {each[-1] for each in new} == shown - {each[-1] for each in before}
            for topic in gone:
                assert all(topic[-1] not in each for each in good[-2:])
        else:
            assert roster.see(look(failed=("t/n",))) == ([], [])
            assert roster.topics == before
