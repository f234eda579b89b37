"""The demo's two Spark queries, which read only the data source, and a snippet to run the first by hand."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from offloader.spark.session import command_session, translated

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    #: Waits until Spark has started.
    WaitForSession = Callable[[], SparkSession]

#: The fields of a flight in the query.
FLIGHT_FIELDS = "carrier STRING, month INT, dep_delay DOUBLE"
#: Bytes of one Spark partition: less than a segment, to show splits inside segments.
SPLIT_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ScanResult:
    """A query's result: ``rows`` of ``columns``, from ``partitions`` scanned in parallel."""

    question: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    partitions: int


@contextlib.contextmanager
def starting_session() -> Iterator[WaitForSession]:
    """Starts Spark in a thread; yields a call that waits for the session, which is stopped at the end.

    Raises:
        UnsupportedError: by the call that waits: no pyspark, or no Java.
    """
    session = command_session("offloader demo", is_short=True)
    with ThreadPoolExecutor(1, "spark-start") as starter:
        started = starter.submit(session.__enter__)
        try:
            yield started.result
        finally:
            if started.exception() is None:
                session.__exit__(None, None, None)


def delays_by_carrier_and_month(
    session: WaitForSession, store_url: str, stream: str, options: Mapping[str, str]
) -> ScanResult:
    """Mean departure delay by carrier and month, over the flights that departed.

    Args:
        session: waits for Spark's session.
        store_url, stream: to scan; payloads are flights as JSON.
        options: further ones of the data source (``endpointUrl``, ``region``).

    Raises:
        UnsupportedError: no pyspark, or no Java.
    """

    def ask(entries: DataFrame) -> DataFrame:
        from pyspark.sql import functions as f

        flights = entries.select(f.from_json(f.col("payload").cast("string"), FLIGHT_FIELDS).alias("flight"))
        # A condition on ``dep_delay`` itself would go below the projection: Spark then parses each payload twice.
        return (
            flights.select("flight.*")
            .groupBy("carrier", "month")
            .agg(f.avg("dep_delay").alias("mean_dep_delay_minutes"), f.count("dep_delay").alias("flights"))
            .where("flights > 0")
            .orderBy("carrier", "month")
        )

    return _ask("mean departure delay in minutes by carrier and month", ask, session, store_url, stream, options)


def entries_by_ledger(session: WaitForSession, store_url: str, stream: str, options: Mapping[str, str]) -> ScanResult:
    """Entries, payload bytes and publish times by ledger; args and errors as of ``delays_by_carrier_and_month``."""

    def ask(entries: DataFrame) -> DataFrame:
        from pyspark.sql import functions as f

        return (
            entries.groupBy("ledger_id")
            .agg(
                f.count("*").alias("entries"),
                f.sum(f.length("payload")).alias("payload_bytes"),
                f.min("publish_time").cast("string").alias("first_publish_time"),
                f.max("publish_time").cast("string").alias("last_publish_time"),
            )
            .orderBy("ledger_id")
        )

    return _ask("entries by ledger", ask, session, store_url, stream, options)


def snippet(store_url: str, stream: str, options: Mapping[str, str], *, flights: bool) -> str:
    """Lines to paste into a Python prompt: the same scan by hand."""
    extra = "".join(f'\n    .option("{name}", "{value}")' for name, value in options.items())
    read = f"""from offloader.spark import local_session

spark = local_session()
entries = (
    spark.read.format("offloader")
    .option("store", "{store_url}")
    .option("stream", "{stream}"){extra}
    .load()
)
"""
    if not flights:
        return read + 'entries.groupBy("ledger_id").count().orderBy("ledger_id").show()\n'
    return read + (
        f'flights = entries.selectExpr("from_json(CAST(payload AS STRING), \'{FLIGHT_FIELDS}\') AS f").select("f.*")\n'
        'flights.groupBy("carrier").avg("dep_delay").orderBy("carrier").show()\n'
    )


def _ask(
    question: str,
    ask: Callable[[DataFrame], DataFrame],
    session: WaitForSession,
    store_url: str,
    stream: str,
    options: Mapping[str, str],
) -> ScanResult:
    with translated(f"Spark's scan of {stream}", hint="run the command again; `offloader read` needs no Spark"):
        given = {"store": store_url, "stream": stream, "splitBytes": str(SPLIT_BYTES), **options}
        entries = session().read.format("offloader").options(**given).load()
        answer = ask(entries)
        rows = tuple(map(tuple, answer.collect()))
        return ScanResult(question, tuple(answer.columns), rows, entries.rdd.getNumPartitions())
