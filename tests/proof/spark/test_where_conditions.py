"""``offloader.spark.entries`` reads what a condition asks for, and every row for which it is true."""

from __future__ import annotations

import functools
import operator
import random
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from formats.entries import Position
from offloader.manifest.protection import leases_of
from offloader.spark import entries
from offloader.spark.options import Needs, SourceOptions
from offloader.spark.scan import facts_of, pinned_states
from offloader.spark.source import OffloaderDataSource
from offloader.spark.where import bounds_of
from offloader.store.open import open_store
from offloader.store.wrappers import requests_of
from tests.spark.reading import load, planned
from tests.support.streams import BASE_MS, StreamWriter, batch_of

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
    "ledger_id BETWEEN 4 AND 9 AND entry_id <= 30",
    "ledger_id >= 3 AND ledger_id <= 4 AND entry_id > 90",
    "publish_time >= '2023-11-14 23:05:00'",
    "publish_time >= '2023-11-14 23:05:00' AND publish_time < TIMESTAMP '2023-11-15 00:00:00' AND stream LIKE '%ord%'",
    "publish_time BETWEEN DATE '2023-11-14' AND '2023-11-15 12:00'",
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
    """For each condition the rows for which Spark finds it true in an unfiltered scan: nothing is bounded here."""
    flags = [f"({condition}) AS flag{number}" for number, condition in enumerate(CONDITIONS)]
    rows = load(spark, orders).selectExpr("ledger_id", "entry_id", *flags).collect()
    return {
        condition: sorted((row.ledger_id, row.entry_id) for row in rows if row[f"flag{number}"])
        for number, condition in enumerate(CONDITIONS)
    }


def positions(frame: DataFrame) -> Positions:
    return sorted((row.ledger_id, row.entry_id) for row in frame.select("ledger_id", "entry_id").collect())


@pytest.mark.java
def test_the_conditions_are_not_all_alike(unfiltered: dict[str, Positions]) -> None:
    assert len({len(found) for found in unfiltered.values()}) > 20


@pytest.mark.java
def test_limit_is_of_the_first_entries(spark: SparkSession, orders: StreamWriter) -> None:
    frame = entries(spark, orders.store.url, orders.stream, columns=["ledger_id", "entry_id"], limit=260)
    first = sorted((entry.ledger_id, entry.entry_id) for entry in orders.entries)[:260]
    assert positions(frame) == first
    assert frame.count() == 260
    filtered = entries(spark, orders.store.url, orders.stream, where="length(payload) > 0 AND ledger_id = 9", limit=7)
    assert len(filtered.collect()) == 7


@pytest.mark.java
def test_small_frame_is_broadcast_in_a_join(spark: SparkSession, orders: StreamWriter) -> None:
    def join(small: DataFrame) -> str:
        plan: Any = load(spark, orders).join(small, ["ledger_id", "entry_id"])._jdf
        return str(plan.queryExecution().executedPlan().toString())

    assert "BroadcastHashJoin" not in join(load(spark, orders))
    assert "BroadcastHashJoin" in join(
        entries(spark, orders.store.url, orders.stream, columns=["ledger_id", "entry_id"])
    )


# What a plan reads


def read_alone(writer: StreamWriter, where: str, **options: str) -> tuple[list[int], dict[str, int]]:
    """The entry ids that Spark would get, and the requests after the manifest was loaded."""
    from pyspark.sql.types import LongType, StructType

    bounds = bounds_of(where, time_zone="UTC").encoded()
    given = {"store": writer.store.url, "stream": writer.stream, "bounds": bounds, **options}
    store = SourceOptions.of(given).open_store()
    source = OffloaderDataSource(given)
    before = {verb: count.requests for verb, count in requests_of(store).items()}
    reader = source.reader(StructType().add("entry_id", LongType()).add("payload", "binary"))
    batches = [batch for part in reader.partitions() if part.value for batch in reader.read(part)]
    after = {verb: count.requests - before.get(verb, 0) for verb, count in requests_of(store).items()}
    ids = [entry_id for batch in batches for entry_id in batch["entry_id"].to_pylist()]
    return ids, {verb: count for verb, count in after.items() if count}


@pytest.mark.slow
def test_single_entry_costs_two_requests_beyond_the_opening(tmp_path: Path) -> None:
    writer = StreamWriter(open_store(f"file://{tmp_path}/store"), "shop/orders")
    for number in range(20):
        writer.add([batch_of(1, 500 * number, 500)])
    small = {"splitBytes": "5000"}  # less than a segment has
    assert read_alone(writer, "ledger_id = 1 AND entry_id = 4321", **small) == ([4321], {"get": 2})
    assert read_alone(writer, "ledger_id = 1 AND entry_id = 99999", **small) == ([], {})
    assert read_alone(writer, "ledger_id = 2", **small) == ([], {})
    assert read_alone(writer, "stream = 'another' AND ledger_id = 1", **small) == ([], {})


@pytest.mark.slow
def test_stream_under_a_pattern_is_bound_and_others_are_not_opened(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/store")
    for number in range(20):
        writer = StreamWriter(store, f"shop/s{number}")
        writer.add([batch_of(1, 0, 5)])
    before = requests_of(store)["get"].requests
    alone = {"store": store.url, "stream": "shop/*", "bounds": bounds_of("stream = 'shop/s7'", time_zone="").encoded()}
    [[piece]] = planned(SourceOptions.of(alone), Needs.PAYLOADS, store)
    assert piece.objects.stream == "shop/s7"
    assert requests_of(store)["get"].requests - before < 10, "those of one opening"


def test_names_that_no_stream_has_match_no_row_under_a_pattern(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/store")
    writer = StreamWriter(store, "public/default/persistent/orders")
    writer.add([batch_of(1, 0, 5)])

    def counted(where: str, **options: str) -> int:
        bounds = bounds_of(where, time_zone="").encoded()
        chosen = SourceOptions.of({"store": store.url, "stream": "*", "bounds": bounds, **options})
        return int(facts_of(chosen, pinned_states(chosen, store))["entries"])

    topic = "persistent://public/default/orders"
    assert counted(f"stream = '{topic}'") == 0, "the column has the stream's name, not the topic's"
    assert counted(f"stream IN ('{topic}', '{writer.stream}')") == 5
    assert [counted(f"stream = '{name}'") for name in ("", "a//b", "x://y", "none")] == [0, 0, 0, 0]
    assert counted("stream = 'none'", leaseSeconds="60") == 0
    assert leases_of(store, "none") == []


def blocks_planned(writer: StreamWriter, where: str) -> int:
    options = {"store": writer.store.url, "stream": writer.stream, "splitBytes": "1000"}
    bounds = bounds_of(where, time_zone="UTC").encoded()
    partitions = planned(SourceOptions.of({**options, "bounds": bounds}), Needs.PAYLOADS, writer.store)
    return sum(stop - start for slices in partitions for piece in slices for start, stop in piece.blocks)


def test_bounds_rule_out_segments_and_blocks(orders: StreamWriter) -> None:
    everything = blocks_planned(orders, "")
    assert blocks_planned(orders, "ledger_id = 12") < everything / 4
    assert blocks_planned(orders, "ledger_id > 99") == 0
    # Plain blocks say nothing of their times: they can't be ruled out.
    time = datetime.fromtimestamp(BASE_MS / 1000 + 3100, UTC).isoformat()
    assert 0 < blocks_planned(orders, f"publish_time = '{time}'") < everything / 2


# The decision itself

COMPARED: dict[str, Callable[[int, int], bool]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "<>": operator.ne,
}


def random_condition(chance: random.Random) -> tuple[str, Callable[[Position], bool]]:
    """Terms that are understood and others, and a function that evaluates them."""
    terms: list[str] = []
    tests: list[Callable[[Position], bool]] = []
    for _ in range(chance.randint(1, 4)):
        column, number = chance.randrange(2), chance.choice([0, 1, 2, 3, 5, 9])
        name, sign = ("ledger_id", "entry_id")[column], chance.choice([*COMPARED, "BETWEEN", "IN"])
        if sign == "BETWEEN":
            terms.append(f"{name} BETWEEN {number} AND {number + 2}")
            tests.append(functools.partial(lambda c, n, at: n <= at[c] <= n + 2, column, number))
        elif sign == "IN":
            terms.append(f"{name} IN ({number}, {number + 3})")
            tests.append(functools.partial(lambda c, n, at: at[c] in (n, n + 3), column, number))
        else:
            terms.append(f"({name} {sign} {number})")
            tests.append(functools.partial(lambda c, s, n, at: COMPARED[s](at[c], n), column, sign, number))
    return " AND ".join(terms), lambda at: all(test(at) for test in tests)


@pytest.mark.slow
def test_bounds_hold_every_row_that_a_condition_keeps_and_exact_ones_no_other() -> None:
    chance, rows = random.Random(7), [Position(a, b) for a in range(8) for b in range(8)]
    exact = 0
    for _ in range(3000):
        where, keeps = random_condition(chance)
        bounds = bounds_of(where, time_zone="UTC")
        within = [at for at in rows if (bounds.first or at) <= at <= (bounds.last or at)]
        kept = [at for at in rows if keeps(at)]
        assert set(kept) <= set(within), where
        assert not bounds.is_exact or kept == within, where
        exact += bounds.is_exact
    assert exact > 300
