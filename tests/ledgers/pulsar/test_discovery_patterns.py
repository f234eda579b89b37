"""Topics selected by names and patterns."""

from __future__ import annotations

import pytest

from offloader.errors import InvalidCallError
from offloader.ledgers.pulsar.discovery import TopicPatterns, is_internal
from offloader.stream_names import partition_of

P = "persistent://"


@pytest.mark.parametrize(
    ("topics", "exclude", "meant", "not_meant"),
    [
        (["public/default/orders"], [], ["public/default/orders", "public/default/orders-partition-3"],
         ["public/default/orders2", "public/other/orders", "public/default/orders-partition-x"]),
        (["persistent://public/default/a?"], [], ["public/default/ab"], ["public/default/a", "public/default/abc"]),
        (["public/default"], [], ["public/default/x"], ["public/defaults/x"]),
        (["*/live-*/orders-*"], ["test/*/*", "*/*/*-tmp"], ["a/live-1/orders-x"],
         ["test/live-1/orders-x", "a/live-1/orders-tmp", "a/dead/orders-x", "a/live-1/orders-tmp-partition-0"]),
        (["t/n/x-partition-2"], [], ["t/n/x-partition-2"], ["t/n/x-partition-1", "t/n/x"]),
        (["t/n/*", "pulsar/*/*"], [], ["t/n/_own"],
         ["t/n/__change_events", "t/n/__change_events-partition-0", "t/n/x-sub__transaction_pending_ack",
          "pulsar/system/transaction_coordinator_assign-partition-0"]),
        (["t/n/[ab]"], [], ["t/n/[ab]", "t/n/[ab]-partition-0"], ["t/n/a", "t/n/b"]),
        (["t/n"], ["t/n/pay[1]", "t/n/[!x]*"], ["t/n/pay1", "t/n/y"], ["t/n/pay[1]", "t/n/[!x]y"]),
        ([], [], [], ["t/n/x"]),
    ],
)  # fmt: skip
def test_patterns(topics: list[str], exclude: list[str], meant: list[str], not_meant: list[str]) -> None:
    patterns = TopicPatterns.of(topics, exclude)
    assert [topic for topic in meant if not patterns.have(P + topic)] == []
    assert [topic for topic in not_meant if patterns.have(P + topic)] == []


def test_patterns_select_namespaces_and_tenants_to_list() -> None:
    patterns = TopicPatterns.of(["public/default/*", "t/a*/x", "u/b/*"])
    assert (patterns.namespaces, patterns.tenants, patterns.is_everywhere) == (["public/default", "u/b"], ["t"], False)
    assert [each for each in ("t/ab", "t/b", "u/b", "pulsar/system") if patterns.have_namespace(each)] == [
        "t/ab",
        "u/b",
    ]
    everywhere = TopicPatterns.of(["*/b/x"])
    assert (everywhere.namespaces, everywhere.tenants, everywhere.is_everywhere) == ([], [], True)
    assert not everywhere.have_namespace("pulsar/b")


def test_invalid_patterns_are_reported_together() -> None:
    with pytest.raises(InvalidCallError) as raised:
        TopicPatterns.of(["orders", "a/b/c/d", "t/n/ x "], ["non-persistent://t/n/x", "t//x", ""])
    for text in ("'orders'", "'a/b/c/d'", "'t/n/ x '", "non-persistent", "'t//x'", "''"):
        assert text in raised.value.message
    assert "pulsar.exclude" in raised.value.message


def test_partitions_and_brokers_own() -> None:
    assert partition_of(f"{P}t/n/x-partition-12") == (f"{P}t/n/x", 12)
    assert partition_of(f"{P}t/n/x-partition-012") is None
    assert partition_of(f"{P}t/n/x") is None
    assert is_internal(f"{P}t/n/__transaction_buffer_snapshot")
    assert not is_internal(f"{P}t/n/a__b")
