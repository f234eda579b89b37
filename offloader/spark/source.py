"""The Spark data source ``offloader``.

Owns what Spark calls: schema, filters, partitions, reading. Must never plan or read by itself: that is ``planning``
and ``scan``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)
from pyspark.sql.types import StructType

from offloader.errors import InvalidCall
from offloader.spark.driver_rows import DRIVER_CONTENTS, driver_batch
from offloader.spark.filters import Predicate, microseconds
from offloader.spark.options import SourceOptions
from offloader.spark.planning import pinned_states, plan_slices
from offloader.spark.python_worker import work_begins
from offloader.spark.scan import read_slices
from offloader.spark.schema import ddl, projection
from offloader.spark.stream import StreamingReader

__all__ = ["OffloaderDataSource", "OffloaderReader", "PlainOffloaderDataSource", "PushingReader"]


class OffloaderReader(DataSourceReader):
    """Reads without pushed filters. Pickled to the executors: holds options and columns only."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self.options = options
        self.projection = projection(schema.fields, options.content)
        self.predicates: tuple[Predicate, ...] = ()

    def partitions(self) -> Sequence[InputPartition]:
        """Plans the query, once: every stream's manifest is pinned here."""
        work_begins()
        store = self.options.open_store()
        if self.options.content in DRIVER_CONTENTS:
            states = pinned_states(self.options, self.predicates, store)
            relocate, schema = self.options.relocate, self.projection.schema
            batch = driver_batch(self.options.content, states, store, relocate, schema)
            return [InputPartition(pa.Table.from_batches([batch]).to_batches())]
        slices = plan_slices(self.options, self.predicates, self.projection.needs, store)
        return [InputPartition(each) for each in slices]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a partition."""
        value = partition.value
        if value is None:  # Spark makes one such partition when there is none
            return iter(())
        if self.options.content in DRIVER_CONTENTS:
            return iter(value)
        work_begins()
        return read_slices(value, self.options, self.predicates, self.projection, self.options.open_store())


class PushingReader(OffloaderReader):
    """Reads with pushed filters, which Spark allows only where its setting is on.

    They spare blocks only with the option ``pruneByFilters``, and that is safe only for a data frame that takes part in
    one query, once. Spark (4.1 to 4.3) keeps the partitions of the last filtered query with the *relation*, and reads a
    later query that pushes nothing from them, and both sides of a union or a self-join: with pruned partitions those
    would silently lose rows. ``startPosition``, ``endPosition``, ``startTime``, ``endTime`` and ``stream`` spare the
    same blocks, belong to the relation, and are always safe.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Takes notice of filters where that is safe, and leaves all of them to Spark: statistics rule out blocks, not
        rows."""
        if self.options.prune_by_filters:
            known = (p for p in map(_predicate, filters) if p is not None)
            # A message's own publish time needn't be the one that was recorded for its entry, which statistics tell.
            own_time = self.options.content == "messages"
            self.predicates = tuple(p for p in known if not (own_time and p.column == "publish_time"))
        return filters


class PlainOffloaderDataSource(DataSource):
    """The data source without filter pushdown: works whatever Spark's settings are."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        work_begins()

    @classmethod
    def name(cls) -> str:
        return "offloader"

    def schema(self) -> str:
        options = SourceOptions.of(dict(self.options))
        return ddl(options.content, options.columns)

    def reader(self, schema: StructType) -> OffloaderReader:
        options = SourceOptions.of(dict(self.options))
        options.require_batch()
        if options.prune_by_filters:
            raise InvalidCall(
                "option pruneByFilters needs filters that are pushed", hint="call offloader.spark.register(spark) first"
            )
        return OffloaderReader(options, schema)

    def streamReader(self, schema: StructType) -> StreamingReader:  # noqa: N802 - Spark's name
        return StreamingReader(SourceOptions.of(dict(self.options)), schema)


class OffloaderDataSource(PlainOffloaderDataSource):
    """The data source with filter pushdown; ``offloader.spark.register`` installs it."""

    def reader(self, schema: StructType) -> OffloaderReader:
        options = SourceOptions.of(dict(self.options))
        options.require_batch()
        return PushingReader(options, schema)


_OPERATIONS: dict[type[Filter], tuple[str, str]] = {
    # What a filter is called, and what its negation is for rows whose value isn't null.
    EqualTo: ("eq", "ne"),
    In: ("in", "not_in"),
    LessThan: ("lt", "ge"),
    LessThanOrEqual: ("le", "gt"),
    GreaterThan: ("gt", "le"),
    GreaterThanOrEqual: ("ge", "lt"),
    IsNull: ("null", "not_null"),
    IsNotNull: ("not_null", "null"),
    StringStartsWith: ("prefix", ""),
}


def _predicate(given: Filter) -> Predicate | None:
    """The filter as a value; ``None`` when it can't rule anything out."""
    negated = isinstance(given, Not)
    inner: Any = given.child if isinstance(given, Not) else given
    names = _OPERATIONS.get(type(inner))
    operation = "" if names is None else names[negated]
    if not operation or len(inner.attribute) != 1:
        return None
    column = inner.attribute[0]
    if operation in ("null", "not_null"):
        return Predicate(column, operation)
    values = inner.value if isinstance(inner, In) else (inner.value,)
    # A comparison with null is never true, so null adds nothing to a list of values.
    known = [_value(column, value) for value in values if value is not None]
    if not known or any(value is None for value in known):
        return None
    return Predicate(column, operation, tuple(known))


def _value(column: str, value: object) -> str | int | None:
    """A literal as ``Predicate`` wants it; ``None`` for one of a type that doesn't belong to the column."""
    match column, value:
        case "stream", str():
            return value
        case "ledger_id" | "entry_id", int() if not isinstance(value, bool):
            return value
        case "publish_time", datetime():
            return microseconds(value)
        case _:
            return None
