"""Small pipelines as data engineers write them; each equals what Python computes from the events that were sent."""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from formats.entries import EntryBatch
from formats.segment import Codec
from formats.summary import Layout
from offloader.spark import entries, messages
from offloader.spark.jobs import AvroValues, JsonValues, export
from offloader.store.open import open_store
from tests.formats.pulsar_entries import LZ4, NONE, ZSTD, Sent, batch_entry
from tests.read.test_values_avro import encoded, record
from tests.support.streams import BASE_MS, StreamWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Spark says so of each pandas that it finds; nothing here uses it.
PANDAS = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
pytestmark = [pytest.mark.java, PANDAS]

ORDERS, CUSTOMERS, CLICKS, READINGS = "shop/orders", "shop/customers", "shop/clicks", "sensors/readings"
ORDER = "id INT, customer STRING, amount INT, kind STRING"
READING = record(("sensor", "int"), ("celsius", "double"))
#: Seconds between two orders.
STEP_S = 7


@dataclass(frozen=True)
class Click:
    """A message of the stream of clicks: at which entry, and what the producer sent."""

    ledger_id: int
    entry_id: int
    batch_index: int
    codec: str
    sent: Sent


@dataclass(frozen=True)
class World:
    """What was sent, the store that has it, and a folder for results."""

    url: str
    folder: Path
    orders: list[dict[str, Any]]
    customers: list[dict[str, Any]]
    clicks: list[Click]
    readings: list[dict[str, Any]]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Orders are entries in JSON in three kinds of segments, clicks batches of messages, readings Avro."""
    folder, chance = tmp_path_factory.mktemp("pipelines"), random.Random(21)
    store = open_store(f"file://{folder}/store")
    orders = [
        {
            "id": number,
            "customer": f"c{chance.randrange(25)}",
            "amount": chance.randrange(1, 500),
            "kind": chance.choice("ABC"),
            "time_ms": BASE_MS + 1000 * STEP_S * number,
            "ledger_id": 1 + number // 200,
            "entry_id": number % 200,
        }
        for number in range(600)
    ]
    writer = StreamWriter(store, ORDERS)
    for ledger_id, more in ((1, {"codec": Codec.ZSTD}), (2, {"layout": Layout.V1}), (3, {})):
        writer.add(
            [_batch(ledger_id, [each for each in orders if each["ledger_id"] == ledger_id])], closes=[ledger_id], **more
        )
    customers = [
        {"name": f"c{number}", "country": chance.choice(["DE", "FR"]), "time_ms": BASE_MS} for number in range(20)
    ]
    StreamWriter(store, CUSTOMERS).add([_batch(1, customers)])
    clicks = [
        Click(5, entry, index, codec, Sent(
            value=f"v{entry}-{index}".encode(), key=f"k{chance.randrange(8)}", event_time=BASE_MS + 60_000 * entry,
            properties={"page": chance.choice(["home", "cart"]), "n": str(index)},
        ))
        for entry in range(30) for index, codec in ((index, ("none", "lz4", "zstd")[entry % 3]) for index in range(4))
    ]  # fmt: skip
    numbers = {"none": NONE, "lz4": LZ4, "zstd": ZSTD}
    batches = [[each for each in clicks if each.entry_id == entry] for entry in range(30)]
    sent = [batch_entry([each.sent for each in batch], codec=numbers[batch[0].codec]) for batch in batches]
    StreamWriter(store, CLICKS).add([EntryBatch.build(5, 0, sent)])
    readings = [{"sensor": chance.randrange(5), "celsius": chance.randrange(-40, 160) / 4} for _ in range(80)]
    values = [batch_entry([Sent(value=encoded(READING, each))]) for each in readings]
    StreamWriter(store, READINGS).add([EntryBatch.build(8, 0, values)])
    return World(store.url, folder, orders, customers, clicks, readings)


def _batch(ledger_id: int, events: list[dict[str, Any]]) -> EntryBatch:
    return EntryBatch.build(
        ledger_id, 0, [json.dumps(each).encode() for each in events], [e["time_ms"] for e in events]
    )


@pytest.fixture(autouse=True)
def few_partitions(spark: SparkSession) -> Iterator[None]:
    """Shuffles of hundreds of rows need no 200 tasks."""
    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    yield
    spark.conf.set("spark.sql.shuffle.partitions", str(before))


def load(spark: SparkSession, world: World, stream: str, **options: str) -> DataFrame:
    given = {"store": world.url, "stream": stream, "splitBytes": "8000", **options}
    return spark.read.format("offloader").options(**given).load()


def orders_of(spark: SparkSession, world: World, **options: str) -> DataFrame:
    """The orders' columns, out of their JSON."""
    from pyspark.sql.functions import col, from_json

    frame = load(spark, world, ORDERS, **options)
    parsed = from_json(col("payload").cast("string"), ORDER)
    return frame.select("ledger_id", "entry_id", "publish_time", parsed.alias("o")).select("*", "o.*").drop("o")


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.collect())


Rows = list[tuple[Any, ...]]
Pipeline = Callable[["SparkSession", World], tuple[Rows, Rows]]
#: Name -> what it finds, and the truth.
PIPELINES: dict[str, Pipeline] = {}


def pipeline(function: Pipeline) -> Pipeline:
    PIPELINES[function.__name__] = function
    return function


@pipeline
def group_by_ledger(spark: SparkSession, world: World) -> tuple[Rows, Rows]:
    found = load(spark, world, ORDERS).groupBy("ledger_id").count()
    return rows(found), sorted(Counter(each["ledger_id"] for each in world.orders).items())


@pipeline
def json_sums_by_customer(spark: SparkSession, world: World) -> tuple[Rows, Rows]:
    found = orders_of(spark, world).groupBy("customer").sum("amount")
    sums: Counter[str] = Counter()
    for each in world.orders:
        sums[each["customer"]] += each["amount"]
    return rows(found), sorted(sums.items())


@pipeline
def join_with_another_stream(spark: SparkSession, world: World) -> tuple[Rows, Rows]:
    customers = load(spark, world, CUSTOMERS).selectExpr(
        "from_json(string(payload), 'name STRING, country STRING') AS c"
    )
    joined = orders_of(spark, world).join(customers.select("c.*"), on=[_same("customer", "name")])
    country = {each["name"]: each["country"] for each in world.customers}
    known = [each for each in world.orders if each["customer"] in country]
    return rows(joined.groupBy("country").count()), sorted(Counter(country[each["customer"]] for each in known).items())


@pipeline
def left_anti_join(spark: SparkSession, world: World) -> tuple[Rows, Rows]:
    customers = load(spark, world, CUSTOMERS).selectExpr("get_json_object(string(payload), '$.name') AS name")
    found = orders_of(spark, world).join(customers, on=[_same("customer", "name")], how="left_anti").select("id")
    names = {each["name"] for each in world.customers}
    return rows(found), sorted((each["id"],) for each in world.orders if each["customer"] not in names)


def _same(left: str, right: str) -> Any:
    from pyspark.sql.functions import col

    return col(left) == col(right)


@pipeline
def two_largest_of_each_customer_by_window(spark: SparkSession, world: World) -> tuple[Rows, Rows]:
    orders_of(spark, world).createOrReplaceTempView("pipeline_orders")
    place = "row_number() OVER (PARTITION BY customer ORDER BY amount DESC, id) AS place"
    found = spark.sql(f"SELECT * FROM (SELECT customer, id, {place} FROM pipeline_orders) WHERE place <= 2")
    of: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for each in sorted(world.orders, key=lambda each: (-each["amount"], each["id"])):
        of[each["customer"]].append(each)
    truth = [(name, each["id"], place) for name, all_of in of.items() for place, each in enumerate(all_of[:2], 1)]
    return rows(found), sorted(truth)


@pipeline
def entries_in_each_minute(spark: SparkSession, world: World) -> tuple[Rows, Rows]:
    from pyspark.sql.functions import window

    windows = orders_of(spark, world).where("ledger_id != 2").groupBy(window("publish_time", "1 minute")).count()
    found = windows.selectExpr("unix_millis(window.start)", "count")
    counts = Counter(each["time_ms"] // 60_000 * 60_000 for each in world.orders if each["ledger_id"] != 2)
    return rows(found), sorted(counts.items())


@pipeline
def union_of_parts_of_one_stream(spark: SparkSession, world: World) -> tuple[Rows, Rows]:
    frame = orders_of(spark, world)
    cheap, dear = frame.where("amount < 100"), frame.where("amount >= 400")
    found = cheap.union(dear).union(cheap).select("id")
    truth = [(e["id"],) for e in world.orders for _ in range(2 * (e["amount"] < 100) + (e["amount"] >= 400))]
    return rows(found), sorted(truth)


@pipeline
def streams_of_a_pattern(spark: SparkSession, world: World) -> tuple[Rows, Rows]:
    found = load(spark, world, "shop/*").groupBy("stream").count()
    return rows(found), [(CLICKS, 30), (CUSTOMERS, len(world.customers)), (ORDERS, len(world.orders))]


@pipeline
def time_range(spark: SparkSession, world: World) -> tuple[Rows, Rows]:
    start, stop = BASE_MS + 1000 * STEP_S * 430, BASE_MS + 1000 * STEP_S * 550
    found = orders_of(spark, world, since=str(start), until=str(stop)).select("id")
    return rows(found), [(each["id"],) for each in world.orders if start <= each["time_ms"] < stop]


@pipeline
def range_of_positions(spark: SparkSession, world: World) -> tuple[Rows, Rows]:
    where = "ledger_id = 2 AND entry_id BETWEEN 20 AND 140"
    found = entries(spark, world.url, ORDERS, columns=["ledger_id", "entry_id"], where=where)
    return rows(found.select("ledger_id", "entry_id")), [(2, entry) for entry in range(20, 141)]


@pipeline
def sql_view_with_having(spark: SparkSession, world: World) -> tuple[Rows, Rows]:
    given = f"store '{world.url}', stream '{ORDERS}'"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW pipeline_sql USING offloader OPTIONS ({given})")
    parsed = "SELECT from_json(string(payload), 'customer STRING, amount INT') AS o FROM pipeline_sql"
    found = spark.sql(f"SELECT o.customer, max(o.amount) FROM ({parsed}) GROUP BY o.customer HAVING count(*) > 24")
    of: dict[str, list[int]] = defaultdict(list)
    for each in world.orders:
        of[each["customer"]].append(each["amount"])
    return rows(found), sorted((name, max(amounts)) for name, amounts in of.items() if len(amounts) > 24)


@pipeline
def distinct_sorted_and_limited(spark: SparkSession, world: World) -> tuple[Rows, Rows]:
    found = orders_of(spark, world).select("customer", "kind").distinct().orderBy("customer", "kind").limit(17)
    return [tuple(row) for row in found.collect()], sorted({(e["customer"], e["kind"]) for e in world.orders})[:17]


@pipeline
def latest_message_of_each_key(spark: SparkSession, world: World) -> tuple[Rows, Rows]:
    frame = messages(spark, world.url, CLICKS, columns=["ledger_id", "entry_id", "batch_index", "key", "value"])
    newest = "max_by(string(value), struct(ledger_id, entry_id, batch_index)) AS value"
    found = frame.groupBy("key").agg(_expression(newest))
    return rows(found), sorted({str(each.sent.key): each.sent.value.decode() for each in world.clicks}.items())


def _expression(text: str) -> Any:
    from pyspark.sql.functions import expr

    return expr(text)


@pipeline
def properties_of_messages(spark: SparkSession, world: World) -> tuple[Rows, Rows]:
    frame = load(spark, world, CLICKS, content="messages", columns="properties,compression,event_time")
    chosen = frame.selectExpr("properties['page'] AS page", "compression", "unix_millis(event_time) AS at")
    found = chosen.groupBy("page", "compression").agg(_expression("max(at)"))
    truth: dict[tuple[str, str], int] = defaultdict(int)
    for each in world.clicks:
        key = dict(each.sent.properties)["page"], each.codec
        truth[key] = max(truth[key], each.sent.event_time or 0)
    return rows(found), sorted((*key, at) for key, at in truth.items())


@pipeline
def arrow_batches_in_python(spark: SparkSession, world: World) -> tuple[Rows, Rows]:
    def hashed(batches: Any) -> Any:
        import pyarrow as pa

        for batch in batches:
            texts = [hashlib.sha256(payload).hexdigest() for payload in batch.column(0).to_pylist()]
            yield pa.RecordBatch.from_pydict({"digest": texts})

    found = load(spark, world, CUSTOMERS, columns="payload").mapInArrow(hashed, "digest STRING")
    return rows(found), sorted((hashlib.sha256(json.dumps(each).encode()).hexdigest(),) for each in world.customers)


@pipeline
def parquet_written_by_kind_and_read_again(spark: SparkSession, world: World) -> tuple[Rows, Rows]:
    target = f"file://{world.folder}/by-kind"
    orders_of(spark, world).select("id", "kind", "amount").write.partitionBy("kind").parquet(target)
    found = spark.read.parquet(target).where("kind = 'B'").select("id", "amount")
    return rows(found), [(each["id"], each["amount"]) for each in world.orders if each["kind"] == "B"]


@pipeline
def pivot_of_kinds(spark: SparkSession, world: World) -> tuple[Rows, Rows]:
    found = orders_of(spark, world).groupBy("ledger_id").pivot("kind", ["A", "B", "C"]).count()
    counts = Counter((each["ledger_id"], each["kind"]) for each in world.orders)
    return rows(found), [(ledger, *(counts[ledger, kind] for kind in "ABC")) for ledger in (1, 2, 3)]


@pipeline
def difference_to_the_order_before(spark: SparkSession, world: World) -> tuple[Rows, Rows]:
    frame = orders_of(spark, world).cache()
    before = "amount - lag(amount) OVER (PARTITION BY kind ORDER BY ledger_id, entry_id) AS step"
    found = frame.selectExpr("id", before).where("step > 300").select("id")
    last: dict[str, int] = {}
    truth = []
    for each in world.orders:
        if each["amount"] - last.get(each["kind"], each["amount"]) > 300:
            truth.append((each["id"],))
        last[each["kind"]] = each["amount"]
    result = rows(found)
    frame.unpersist()
    return result, truth


@pipeline
def avro_values_exported(spark: SparkSession, world: World) -> tuple[Rows, Rows]:
    to = f"file://{world.folder}/readings"
    export(spark, [READINGS], {"store": world.url}, to=to, content="messages", values=AvroValues(json.dumps(READING)))
    found = spark.read.parquet(f"{to}/messages").groupBy("decoded.sensor").agg(_expression("min(decoded.celsius)"))
    of: dict[int, list[float]] = defaultdict(list)
    for each in world.readings:
        of[each["sensor"]].append(each["celsius"])
    return rows(found), sorted((sensor, min(all_of)) for sensor, all_of in of.items())


@pipeline
def json_values_exported(spark: SparkSession, world: World) -> tuple[Rows, Rows]:
    to, store = f"file://{world.folder}/notes", open_store(world.url)
    notes = [{"note": number, "ok": number % 3 == 0} for number in range(40)]
    values = [batch_entry([Sent(value=json.dumps(each).encode()) for each in notes])]
    StreamWriter(store, "notes/all").add([EntryBatch.build(1, 0, values)])
    export(
        spark, ["notes/all"], {"store": world.url}, to=to, content="messages", values=JsonValues("note INT, ok BOOLEAN")
    )
    found = spark.read.parquet(f"{to}/messages").where("decoded.ok").selectExpr("decoded.note")
    return rows(found), [(each["note"],) for each in notes if each["ok"]]


@pipeline
def totals_of_a_streaming_query(spark: SparkSession, world: World) -> tuple[Rows, Rows]:
    stream = spark.readStream.format("offloader").options(store=world.url, stream=ORDERS, maxEntriesPerTrigger="250")
    parsed = stream.load().selectExpr("from_json(string(payload), 'kind STRING, amount INT') AS o")
    totals = parsed.groupBy("o.kind").agg(_expression("sum(o.amount)"))
    sink = totals.writeStream.format("memory").queryName("pipeline_totals").outputMode("complete")
    sink.option("checkpointLocation", f"file://{world.folder}/totals").trigger(
        availableNow=True
    ).start().awaitTermination()
    sums: Counter[str] = Counter()
    for each in world.orders:
        sums[each["kind"]] += each["amount"]
    return rows(spark.sql("SELECT * FROM pipeline_totals")), sorted(sums.items())


@pipeline
def streaming_orders_once_in_parquet(spark: SparkSession, world: World) -> tuple[Rows, Rows]:
    stream = spark.readStream.format("offloader").options(store=world.url, stream="shop/*", maxEntriesPerTrigger="200")
    sink = stream.load().select("stream", "ledger_id", "entry_id").writeStream.format("parquet")
    sink = sink.option("checkpointLocation", f"file://{world.folder}/checkpoint").trigger(availableNow=True)
    sink.start(f"file://{world.folder}/streamed").awaitTermination()
    truth = [(ORDERS, each["ledger_id"], each["entry_id"]) for each in world.orders]
    truth += [(CUSTOMERS, 1, entry) for entry in range(len(world.customers))] + [
        (CLICKS, 5, entry) for entry in range(30)
    ]
    return rows(spark.read.parquet(f"file://{world.folder}/streamed")), sorted(truth)


@pytest.mark.parametrize("name", PIPELINES)
def test_pipeline_equals_the_truth(spark: SparkSession, world: World, name: str) -> None:
    found, truth = PIPELINES[name](spark, world)
    assert truth, "a pipeline without a result proves nothing"
    assert found == truth


def test_there_are_at_least_twenty_pipelines() -> None:
    assert len(PIPELINES) >= 20
