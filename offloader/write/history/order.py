"""One segment of history as a value, which any process that sees both tiers can carry out.

Owns reading and uploading it. Must never commit anything, nor run twice for one order: a second attempt is another
order under another uuid.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from formats.object_metadata import Testimony
from formats.segment import Layout, SegmentSummary
from offloader.ledgers.base import LedgerSource
from offloader.limits import Priority, working_at
from offloader.settings import OffloadSettings
from offloader.store.base import ObjectStore
from offloader.write.history.planned import PlannedSegment
from offloader.write.segment.by_ledger import offload_pieces, pieces_between
from offloader.write.segment.upload import upload_of

__all__ = ["OrderUpload", "SegmentOrder", "upload_order"]


@dataclass(frozen=True, slots=True)
class SegmentOrder:
    """An assigned segment to be uploaded; small and picklable.

    Attributes:
        stream, incarnation, epoch: whose it is.
        uuid: its name, which the manifest has assigned to ``planned``.
        planned: which entries, in which layout.
        parts_max: parts of it that there is room for at once, where it is carried out by the process that has it.
        testimony: what its data object says of the record that assigned it.
    """

    stream: str
    incarnation: UUID
    epoch: int
    uuid: UUID
    planned: PlannedSegment
    parts_max: int = 1
    testimony: Testimony | None = None


#: Reads and uploads a segment, for (hot tier, order, whether to stop); both objects are proven when it returns.
OrderUpload = Callable[[LedgerSource, SegmentOrder, Callable[[], bool]], SegmentSummary]


def upload_order(
    store: ObjectStore,
    source: LedgerSource,
    order: SegmentOrder,
    is_stopped: Callable[[], bool] = lambda: False,
    *,
    settings: OffloadSettings,
    send_aside: Callable[[Callable[[], object]], object] | None = None,
) -> SegmentSummary:
    """Reads and uploads one segment in this process, behind everything that is written live.

    Args:
        send_aside: sends parts while the next is made; ``None``: this thread sends them, one by one.

    Raises:
        as ``offload_pieces`` and ``pieces_between``.
    """
    planned = order.planned
    pieces = pieces_between(source, source.ledgers(), planned.begin, planned.end, planned.ledger_ids)
    ledger_id = planned.begin.ledger_id if planned.layout is Layout.V1 else None
    with working_at(Priority.BACKFILL):
        upload = upload_of(
            store,
            order.stream,
            order.uuid,
            ledger_id,
            incarnation=order.incarnation,
            epoch=order.epoch,
            codec=settings.codec,
            testimony=lambda: order.testimony,
        )
        return offload_pieces(
            *(pieces, planned.layout, upload, settings),
            is_stopped=is_stopped,
            parts_max=order.parts_max,
            send_aside=send_aside,
        )
