"""Data frames of a part of some streams: each has a separate relation, planned for its arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from offloader.errors import InvalidCallError
from offloader.spark.options import column_names, ddl
from offloader.spark.session import translated
from offloader.spark.where import bounds_of, columns_in

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: A frame with less than this is broadcast in joins: Spark's own limit for tables whose size it knows.
BROADCAST_BYTES_MAX = 10 * 1024 * 1024
#: Key of a frame's facts from the manifests, in the metadata of its first column.
FACTS = "offloader"
#: Options by which entries within the bounds may be no rows.
_DROPPING = ("since", "until", "oncorrupt", "onmissing")
_OWN = ("store", "stream", "content", "columns", "bounds")


def entries(
    spark: SparkSession,
    store: str,
    stream: str,
    *,
    columns: Sequence[str] = (),
    where: str = "",
    limit: int | None = None,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """The entries of some streams, as a data frame that is planned for these arguments alone.

    Terms of ``where`` on ``stream``, ``ledger_id``, ``entry_id`` and ``publish_time`` that are combined with AND bound
    the read, others filter the rows. Its ``count()`` asks the manifest only, where that is exact: there is no other
    condition than on streams and positions, and each ledger has an entry at every id. Other counts, and those of
    frames made of it, are Spark's. Joins broadcast it when it has less than 10 MiB of payloads by the manifest.

    Args:
        spark: the session.
        store: URL of the object store.
        stream: a stream's or topic's name, or a pattern.
        columns: names of the wanted ones; empty: all.
        where: a condition in Spark's SQL on any column of the content; empty: none.
        limit: most rows, the first ones where ``where`` bounds all; ``None``: all.
        options: further ones of the data source.

    Raises:
        InvalidCallError: a column or option is wrong.
        NotFoundError: no such stream, or none matches the pattern.
        TrimmedError, BeyondEndError: an option names a position that the stream doesn't have.
    """
    return _frame(spark, "entries", store, stream, columns, where, limit, options or {})


def messages(
    spark: SparkSession,
    store: str,
    stream: str,
    *,
    columns: Sequence[str] = (),
    where: str = "",
    limit: int | None = None,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """The messages of some streams; arguments and errors as of ``entries``.

    A message has a separate publish time, so ``publish_time`` in ``where`` filters and bounds nothing: the options
    ``since`` and ``until`` bound. The manifest doesn't know how many messages there are: ``count()`` is Spark's.
    """
    return _frame(spark, "messages", store, stream, columns, where, limit, options or {})


def _frame(
    spark: SparkSession,
    content: str,
    store: str,
    stream: str,
    columns: Sequence[str],
    where: str,
    limit: int | None,
    options: Mapping[str, str],
) -> DataFrame:
    if own := [name for name in options if name.lower() in _OWN]:
        raise InvalidCallError(
            f"{content} doesn't accept {', '.join(own)} as an option", hint="use the argument instead"
        )
    if limit is not None and limit < 0:
        raise InvalidCallError(f"limit is {limit}, not a number of rows")
    ddl(content, columns)
    bounds = bounds_of(
        where,
        time_zone=str(spark.conf.get("spark.sql.session.timeZone")),
        has_own_times=content == "messages",
    )
    # Otherwise not each of the first entries is a row.
    dropping = any(name.lower() in _DROPPING for name in options) or bounds.start_ms is not None
    if content == "entries" and bounds.is_exact and bounds.end_ms is None and not dropping:
        bounds = replace(bounds, limit=limit)
    needed = list(dict.fromkeys([*columns, *columns_in(where, column_names(content))])) if columns else []
    given = {"store": store, "stream": stream, "content": content, "bounds": bounds.encoded(), **options}
    if needed:
        given["columns"] = ",".join(needed)
    with translated(f"reading {content} of {stream}", hint="`offloader read` needs no Spark"):
        frame = spark.read.format("offloader").options(**given).load()
        facts = frame.schema.fields[0].metadata[FACTS]
        if where.strip():
            frame = frame.where(where)
        if len(needed) > len(columns):
            frame = frame.select(*columns)
        if limit is not None:
            frame = frame.limit(limit)
        if facts["payload_bytes"] < BROADCAST_BYTES_MAX:
            frame = frame.hint("broadcast")
    if (count := facts["entries"]) is not None:
        frame.count = lambda: count  # type: ignore[method-assign]
    return frame
