"""One segment of a backfill, uploaded by one task of Spark.

Owns what such a task is told and what it looks at before it begins. Must never upload in any but the first attempt of
a task: the next one would write under the same uuid. The driver has the segment done again, under another.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

from formats.segment import SegmentSummary
from offloader.errors import Corrupt, NotFound, OffloaderError
from offloader.ledgers.base import LedgerInfo, Ledgers
from offloader.settings import LimitSettings, OffloadSettings, StoreSettings
from offloader.spark.options import SourceOptions
from offloader.write.history.order import SegmentOrder, upload_order

__all__ = ["UploadTask", "carry_out"]

_log = logging.getLogger("offloader.spark")


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadTask:
    """What an executor needs to upload a segment; small and picklable.

    Attributes:
        order: the segment.
        ledgers: that hold it, as the driver sees them.
        hot_url: where the hot tier is.
        open_hot: opens it.
        place: the store.
        store, limits, offload: settings.
    """

    order: SegmentOrder
    ledgers: tuple[LedgerInfo, ...]
    hot_url: str
    open_hot: Callable[[str], Ledgers]
    place: SourceOptions
    store: StoreSettings
    limits: LimitSettings
    offload: OffloadSettings


def carry_out(task: UploadTask) -> SegmentSummary | OffloaderError | None:
    """Uploads the segment; ``None`` when Spark tried it before: nobody knows what that attempt still writes.

    Runs on an executor. An error is an answer like any other: if it were raised, Spark would try again, and hide it.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None or context.attemptNumber() > 0:
        return None
    try:
        return _uploaded(task)
    except OffloaderError as error:
        return error
    except Exception as error:
        _log.exception("stream %s: a task failed", task.order.stream)
        return OffloaderError(f"on executor {socket.gethostname()}: {type(error).__name__}: {error}")


def _uploaded(task: UploadTask) -> SegmentSummary:
    order = task.order
    try:
        with closing(task.open_hot(task.hot_url)) as hot:
            source = hot.view_stream(order.stream)
            _require_same(order, task.ledgers, source.ledgers())
            store = task.place.open_store(read_only=False, settings=task.store, limits=task.limits)
            return upload_order(store, source, order, settings=task.offload)
    except NotFound as error:
        raise NotFound(f"on executor {socket.gethostname()}: {error.message}", hint=_SHARED) from error


_SHARED = "the driver and all executors must see the same ledgers under this URL"


def _require_same(order: SegmentOrder, expected: Sequence[LedgerInfo], found: Sequence[LedgerInfo]) -> None:
    """Refuses a file that happens to lie at the same path on another machine: an old copy, another database."""
    here = {info.ledger_id: info for info in found}
    for info in expected:
        own = here.get(info.ledger_id)
        if own is None or own.created_ms != info.created_ms or own.entries < info.entries:
            there = f"{info.entries} entries, created {info.created_ms}"
            what = "isn't there" if own is None else f"has {own.entries} entries, created {own.created_ms}"
            raise Corrupt(
                f"stream {order.stream}, ledger {info.ledger_id}: {there} for the driver, on executor "
                f"{socket.gethostname()} it {what}",
                hint=_SHARED,
            )
