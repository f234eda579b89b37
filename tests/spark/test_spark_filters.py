"""Pushed filters never drop a row that Spark would keep, and skip what they rule out."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formats.entries import TIME_UNKNOWN_MS
from offloader.spark.options import Needs, Predicate, SourceOptions, block_mask, matches_value, microseconds
from offloader.spark.scan import plan_slices
from tests.spark.reading import load
from tests.support.streams import BASE_MS, StreamWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SECOND = "timestamp_millis({})"
T3100 = SECOND.format(BASE_MS + 1000 * 3100)
T3100_5 = f"timestamp_micros({(BASE_MS + 1000 * 3100) * 1000 + 500})"
CONDITIONS = [
    "ledger_id = 9",
    "ledger_id <=> 9",
    "ledger_id <> 9",
    "NOT (ledger_id <=> 9)",
    "ledger_id > 9",
    "ledger_id >= 9",
    "ledger_id < 4",
    "ledger_id <= 4",
    "NOT (ledger_id <= 4)",
    "ledger_id IN (3, 10, 99)",
    "ledger_id NOT IN (3, 10)",
    "ledger_id IN (3, NULL)",
    "ledger_id NOT IN (3, NULL)",
    "ledger_id IS NULL",
    "ledger_id IS NOT NULL",
    "ledger_id = 9223372036854775807",
    "entry_id = 55",
    "entry_id > 150 AND ledger_id = 3",
    "entry_id >= 99 AND entry_id <= 101",
    "entry_id < 2",
    "entry_id IN (0, 249)",
    "entry_id NOT IN (0, 1, 2)",
    "ledger_id = 3 AND (entry_id = 3 OR entry_id = 130)",
    "ledger_id = 3 OR publish_time IS NULL",
    f"publish_time = {T3100}",
    f"publish_time <=> {T3100}",
    f"NOT (publish_time <=> {T3100})",
    f"publish_time <> {T3100}",
    f"publish_time > {T3100}",
    f"publish_time >= {T3100}",
    f"publish_time < {T3100}",
    f"publish_time <= {T3100}",
    f"publish_time > {T3100_5}",
    f"publish_time < {T3100_5}",
    f"publish_time IN ({T3100}, {SECOND.format(BASE_MS + 777)})",
    f"publish_time NOT IN ({T3100}, {SECOND.format(BASE_MS + 777)})",
    "publish_time IS NULL",
    "publish_time IS NOT NULL",
    "publish_time <=> NULL",
    "publish_time < timestamp'1969-01-01'",
    "stream = 'public/default/persistent/orders'",
    "stream <> 'public/default/persistent/orders'",
    "stream > 'public'",
    "stream IN ('a', 'public/default/persistent/orders')",
    "stream LIKE 'public/%'",
    "stream LIKE 'private/%'",
    "stream LIKE '%orders'",
    "stream IS NULL",
    "payload IS NOT NULL AND entry_id = 1",
]


Positions = list[tuple[int, int]]


@pytest.fixture(scope="module")
def unfiltered(spark: SparkSession, orders: StreamWriter) -> dict[str, Positions]:
    """For each condition the rows for which Spark finds it true in an unfiltered scan: nothing is pushed here."""
    flags = [f"({condition}) AS flag{number}" for number, condition in enumerate(CONDITIONS)]
    rows = load(spark, orders).selectExpr("ledger_id", "entry_id", *flags).collect()
    return {
        condition: sorted((row.ledger_id, row.entry_id) for row in rows if row[f"flag{number}"])
        for number, condition in enumerate(CONDITIONS)
    }


def positions(frame: DataFrame) -> Positions:
    return sorted((row.ledger_id, row.entry_id) for row in frame.select("ledger_id", "entry_id").collect())


@pytest.mark.parametrize("condition", CONDITIONS)
def test_filtered_scan_equals_filtering_an_unfiltered_scan(
    spark: SparkSession, orders: StreamWriter, unfiltered: dict[str, Positions], condition: str
) -> None:
    frame = load(spark, orders, pruneByFilters="true")
    assert positions(frame.where(condition)) == unfiltered[condition]


def test_data_frame_answers_any_queries_in_any_order(
    spark: SparkSession, orders: StreamWriter, unfiltered: dict[str, Positions]
) -> None:
    """Spark reads a query that pushes nothing from the partitions of the one before: they must always be whole."""
    frame = load(spark, orders)
    everything = len(orders.entries)
    for condition in ("entry_id < 2", "ledger_id = 3 OR publish_time IS NULL", "ledger_id = 9"):
        assert positions(frame.where(condition)) == unfiltered[condition]
        assert frame.count() == everything
    few, others = frame.where("ledger_id = 3 AND entry_id < 20"), frame.where("ledger_id = 9")
    assert few.union(others).count() == 60
    assert few.union(frame).count() == 20 + everything


def test_spark_reuses_pruned_partitions_so_pruning_is_optional(spark: SparkSession, orders: StreamWriter) -> None:
    """What Spark does with one data frame in two queries. When this fails, Spark has changed: make pruning the rule."""
    frame = load(spark, orders, pruneByFilters="true")
    assert frame.where("ledger_id = 3 AND entry_id < 20").count() == 20
    assert frame.count() < len(orders.entries)


def test_pruning_without_pushed_filters_is_refused(spark: SparkSession, orders: StreamWriter) -> None:
    from pyspark.errors import PySparkException

    other = spark.newSession()
    other.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    with pytest.raises(PySparkException, match=r"call offloader\.spark\.register"):
        load(other, orders, pruneByFilters="true").count()


def test_the_conditions_are_not_all_alike(unfiltered: dict[str, Positions]) -> None:
    assert len({len(found) for found in unfiltered.values()}) > 20


def test_times_in_another_time_zone_mean_the_same_moment(spark: SparkSession, orders: StreamWriter) -> None:
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        when = datetime.fromtimestamp(BASE_MS / 1000 + 3100, timezone(timedelta(hours=9))).strftime("%Y-%m-%d %H:%M:%S")
        expected = sum(entry.publish_time_ms >= BASE_MS + 1000 * 3100 for entry in orders.entries)
        assert (
            load(spark, orders, pruneByFilters="true").where(f"publish_time >= timestamp'{when}'").count() == expected
        )
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(zone))


# What they spare


def planned(writer: StreamWriter, *predicates: Predicate, needs: Needs = Needs.PAYLOADS) -> int:
    """How many blocks a plan reads."""
    options = SourceOptions(store=writer.store.url, stream=writer.stream)
    partitions = plan_slices(options, predicates, needs, writer.store)
    return sum(stop - start for slices in partitions for piece in slices for start, stop in piece.blocks)


def test_statistics_rule_out_segments_and_blocks(orders: StreamWriter) -> None:
    everything = planned(orders)
    assert planned(orders, Predicate("ledger_id", "eq", (12,))) < everything / 4
    assert planned(orders, Predicate("ledger_id", "eq", (3,)), Predicate("entry_id", "eq", (70,))) == 1
    assert planned(orders, Predicate("ledger_id", "gt", (99,))) == 0
    moment = (BASE_MS + 1000 * 3100) * 1000
    # Plain blocks say nothing of their times: they can't be ruled out.
    with_times = planned(orders, Predicate("publish_time", "eq", (moment,)))
    assert with_times < everything / 2
    assert planned(orders, Predicate("stream", "eq", ("another",))) == 0


# The decision itself

RANGES = st.tuples(st.integers(-3, 12), st.integers(0, 5)).map(lambda pair: (pair[0], pair[0] + pair[1]))
OPERATIONS = st.sampled_from(["eq", "ne", "lt", "le", "gt", "ge", "in", "not_in", "null", "not_null", "something"])


def keeps(operation: str, values: tuple[int, ...], value: int | None) -> bool:
    """Spark's answer for one row, by the book; ``None`` is null, for which every comparison is not true."""
    if operation in ("null", "not_null"):
        return (value is None) == (operation == "null")
    if operation == "something":
        return True
    if value is None:
        return False
    return {
        "eq": value == values[0],
        "ne": value != values[0],
        "lt": value < values[0],
        "le": value <= values[0],
        "gt": value > values[0],
        "ge": value >= values[0],
        "in": value in values,
        "not_in": value not in values,
    }[operation]


@settings(max_examples=400, deadline=None)
@given(RANGES, OPERATIONS, st.lists(st.integers(-5, 20), min_size=1, max_size=3), st.booleans())
def test_a_block_is_ruled_out_only_when_none_of_its_rows_can_be_kept(
    bounds: tuple[int, int], operation: str, values: list[int], has_nulls: bool
) -> None:
    low, high = bounds
    given_values = tuple(values if operation in ("in", "not_in") else values[:1])
    ids = Predicate("entry_id", operation, given_values)
    times = Predicate("publish_time", operation, tuple(value * 1000 for value in given_values))
    columns = {
        "ledger_id": np.array([1]),
        "first_entry_id": np.array([low]),
        "last_entry_id": np.array([high]),
        "publish_time_min_ms": np.array([low]),
        "publish_time_max_ms": np.array([high]),
    }
    may_keep = any(keeps(operation, given_values, value) for value in range(low, high + 1))
    if low >= 0:
        assert bool(block_mask([ids], columns)[0]) >= may_keep
        # ... and where the range is one value, exactly then.
        if low == high:
            assert bool(block_mask([ids], columns)[0]) == may_keep
    if low != TIME_UNKNOWN_MS and high != TIME_UNKNOWN_MS:
        with_null = may_keep or (has_nulls and keeps(operation, given_values, None))
        assert bool(block_mask([times], columns)[0]) >= with_null


def test_unknown_statistics_rule_nothing_out() -> None:
    columns = {
        "ledger_id": np.array([1]),
        "first_entry_id": np.array([10]),
        "last_entry_id": np.array([-1]),
        "publish_time_min_ms": np.array([-1]),
        "publish_time_max_ms": np.array([-1]),
    }
    assert block_mask([Predicate("entry_id", "eq", (10**9,))], columns).tolist() == [True]
    assert block_mask([Predicate("entry_id", "lt", (10,))], columns).tolist() == [False]
    for operation in ("eq", "lt", "gt", "null", "not_null", "ne"):
        assert block_mask([Predicate("publish_time", operation, (5,))], columns).tolist() == [True]


def test_numbers_beyond_64_bits_do_not_overflow() -> None:
    columns = {
        "ledger_id": np.array([2**62]),
        "first_entry_id": np.array([0]),
        "last_entry_id": np.array([2**63 - 1]),
        "publish_time_min_ms": np.array([2**62]),
        "publish_time_max_ms": np.array([2**62]),
    }
    assert block_mask([Predicate("publish_time", "gt", (2**63 * 100,))], columns).tolist() == [True]
    assert block_mask([Predicate("ledger_id", "lt", (2**70,))], columns).tolist() == [True]
    assert block_mask([Predicate("entry_id", "gt", (2**70,))], columns).tolist() == [False]


@pytest.mark.parametrize(
    ("operation", "values", "kept"),
    [
        ("eq", ("a/b",), True),
        ("eq", ("a/c",), False),
        ("ne", ("a/b",), False),
        ("in", ("x", "a/b"), True),
        ("not_in", ("x",), True),
        ("lt", ("b",), True),
        ("gt", ("b",), False),
        ("prefix", ("a/",), True),
        ("prefix", ("b/",), False),
        ("null", (), False),
        ("not_null", (), True),
    ],
)
def test_streams_are_chosen_by_their_name(operation: str, values: tuple[str, ...], kept: bool) -> None:
    assert matches_value([Predicate("stream", operation, values)], "stream", "a/b") is kept


def test_a_time_without_a_zone_is_not_trusted() -> None:
    assert microseconds(datetime(2020, 1, 1, tzinfo=UTC)) == 1_577_836_800_000_000
    assert microseconds(datetime(2020, 1, 1)) is None  # noqa: DTZ001
