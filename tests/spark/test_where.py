"""Conditions read as bounds: what is understood, and that no row is lost that Spark would keep."""

from __future__ import annotations

import pytest

from formats.entries import Position
from offloader.coverage import ENTRY_ID_MAX
from offloader.spark.where import Bounds, bounds_of, columns_in

NOON = 1_767_268_800_000  # 2026-01-01T12:00Z


def found(where: str, zone: str = "UTC") -> Bounds:
    return bounds_of(where, time_zone=zone)


def positions(first: str, last: str, *, is_exact: bool = True) -> Bounds:
    ends = [Position.parse(text.replace("max", str(ENTRY_ID_MAX))) for text in (first, last)]
    return Bounds(first=ends[0], last=ends[1], is_exact=is_exact)


@pytest.mark.parametrize(
    ("where", "bounds"),
    [
        ("", Bounds()),
        ("ledger_id = 3 AND entry_id = 5", positions("3:5", "3:5")),
        ("(ledger_id = 3) and (5 <= `entry_id` AND entry_id < 9)", positions("3:5", "3:8")),
        (f"ledger_id = 3 AND entry_id > {10**30}", positions("3:max", "3:max")),
        (f"ledger_id > {-(10**30)} AND ledger_id <= {10**30}", Bounds()),
        ("LEDGER_ID > 3", positions("4:0", "max:max")),
        ("ledger_id BETWEEN 3 AND 5 AND ledger_id <> 4", positions("3:0", "5:max", is_exact=False)),
        ("ledger_id IN (9, 3)", positions("3:0", "9:max", is_exact=False)),
        ("ledger_id IN (9)", positions("9:0", "9:max")),
        ("ledger_id BETWEEN 3 AND 5 AND entry_id >= 7", positions("3:7", "5:max", is_exact=False)),
        ("entry_id <=> 7", positions("0:7", "max:7", is_exact=False)),
        ("stream = 'a/b'", Bounds(streams=("a/b",))),
        ("stream IN ('b', 'a') AND stream IN ('b', 'c')", Bounds(streams=("b",))),
        ("stream = 'a' AND stream = 'b'", Bounds(streams=())),
        ("publish_time >= '2026-01-01 12:00:00'", Bounds(start_ms=NOON)),
        ("publish_time > TIMESTAMP '2026-01-01T12:00:00Z'", Bounds(start_ms=NOON + 1)),
        ("publish_time < timestamp'2026-01-01 12:00:00.0005'", Bounds(end_ms=NOON + 1)),
        ("publish_time <= '2026-01-01 14:00:00+02:00'", Bounds(end_ms=NOON + 1)),
        ("publish_time = '2026-01-01 12:00'", Bounds(start_ms=NOON, end_ms=NOON + 1)),
        ("DATE '2026-01-01' <= publish_time", Bounds(start_ms=NOON - 12 * 3_600_000)),
        (
            "publish_time BETWEEN '2026-01-01' AND '2026-01-01 12:00' AND ledger_id = 1",
            Bounds(
                start_ms=NOON - 12 * 3_600_000, end_ms=NOON + 1, first=Position(1, 0), last=Position(1, ENTRY_ID_MAX)
            ),
        ),
    ],
)
def test_understood_conditions_become_bounds(where: str, bounds: Bounds) -> None:
    assert found(where) == bounds
    assert Bounds.decode(bounds.encoded()) == bounds


@pytest.mark.parametrize(
    "where",
    [
        "ledger_id = 3 OR entry_id = 5",
        "ledger_id = 3 AND entry_id = 1 OR true",
        "NOT (ledger_id = 3 AND entry_id = 5)",
        "NOT ledger_id = 3",
        "ledger_id NOT IN (3)",
        "ledger_id = 3 + 1",
        "ledger_id = 3.5",
        "ledger_id = '3'",
        "ledger_id + 1 = 3",
        "ledger_id IN (3, NULL)",
        "ledger_id IN (SELECT 3)",
        "CASE WHEN true AND ledger_id = 3 AND true THEN true ELSE true END",
        "(SELECT true AND ledger_id = 3)",
        "EXISTS (SELECT 1 WHERE ledger_id = 3)",
        "exists(array(1), x -> true AND ledger_id = 3)",
        "t.ledger_id = 3",
        "ledger_id = entry_id",
        "stream LIKE 'a%'",
        "stream > 'a'",
        r"stream = 'a\'b'",
        "stream = 'a''b'",
        'stream = "a"',
        "publish_time >= DATE '2026-01-01 12:00'",
        "publish_time > '12:00'",
        "publish_time > '2026-02-30'",
        "publish_time > current_timestamp()",
        "publish_time > '2026'",
        "publish_time IN ('2026-01-01')",
        "publish_time IS NULL",
        "key = 'ledger_id = 3'",
        "key = '\n' -- AND ledger_id = 3\n",
        r"(key = 'a\' ) AND ledger_id = 3 AND ( \'b')",
        "(true OR /* ) AND ledger_id = 3 AND ( */ true)",
        """(key = "' ) AND ledger_id = 3 AND ( '")""",
        "ledger_id",
        "AND",
        "((",
    ],
)
def test_other_conditions_bound_nothing(where: str) -> None:
    assert found(where) == Bounds(is_exact=False)


def test_understood_terms_bound_beside_others() -> None:
    assert found("key = 'x' AND ledger_id = 3") == positions("3:0", "3:max", is_exact=False)
    assert found("(key = 'x' OR ledger_id = 9) AND ledger_id = 3") == positions("3:0", "3:max", is_exact=False)


def test_times_without_a_zone_are_in_the_sessions() -> None:
    assert found("publish_time >= '2026-01-01 21:00'", "Asia/Tokyo").start_ms == NOON
    assert found("publish_time >= '2026-01-01 21:00+09:00'", "America/New_York").start_ms == NOON
    assert found("publish_time >= '2026-01-01 21:00'", "GMT+9:00 or so") == Bounds(is_exact=False)


def test_times_of_messages_are_not_those_of_entries() -> None:
    where = "publish_time >= '2026-01-01' AND ledger_id = 3"
    assert bounds_of(where, time_zone="UTC", has_own_times=True) == positions("3:0", "3:max", is_exact=False)


def test_columns_of_a_condition_are_found() -> None:
    assert columns_in("LENGTH(payload) > 3 AND `Entry_Id` = 1", ["stream", "entry_id", "payload"]) == [
        "entry_id",
        "payload",
    ]
