"""Replace segments of a stream by others that hold the same entries, out of the cold tier alone.

``compact`` makes one large segment of many small ones this way. It plans groups (a pure function of the manifest's
view); this module carries one group out. The order of durable steps:

1. The run works beside the stream's owner: its records are maintenance commits within the epoch that it found, refused
   once another one is open. The owner continues: it never changes an offloaded segment. Promises older than
   ``PROMISE_AGE_MS_MAX`` fail in the first record, so that their objects may be swept. Failing one that another process
   is still working on loses nothing: step 5 is refused then.
2. ``rewrite``, one for each new segment: from this record on the orphan search leaves its objects alone. A promise
   claims no range; readers see the old segments.
3. Both objects of each new segment are uploaded. The entries come from the old segments through the reader, which
   checks every block, and are counted: exactly the old segments' runs, without a gap.
4. Each new segment is read back like a reader would after step 5, and compared by digests of ids, lengths, publish
   times and payloads of each ledger.
5. ``replace``, one record: readers see the new segments from it on. The manifest refuses it unless the new segments
   hold the same runs of entries with the same numbers of entries and bytes, and no old one was retired meanwhile. The
   old objects are deleted later, by cleanup, after the grace period and the leases.

An interruption before step 5 leaves the stream unchanged; the next epoch or a later run fails the promises. After it
nothing is left to do. A record of unknown outcome is settled by ``ManifestLog``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from operator import itemgetter
from uuid import UUID

import numpy as np

from formats.entries import EntryBatch, Position
from formats.errors import FormatError
from formats.manifest import Edit, Failed, Replace, Rewrite, Rewritten
from formats.metadata.messages import PulsarLedger
from formats.summary import Layout, LedgerSpan, SegmentSummary
from offloader.coverage import Run, joined
from offloader.errors import CorruptError, ErrorKind, OffloaderError
from offloader.ledgers.base import LedgerInfo
from offloader.manifest.apply import apply_edits
from offloader.manifest.log import ManifestLog
from offloader.manifest.state import EditRefusedError, ManifestState, SegmentRecord, newest_of, require_takeable
from offloader.read.cold import objects_of
from offloader.read.fetch import Fetcher
from offloader.read.fetch import ReaderThreads as Parallel
from offloader.read.reader import Reader
from offloader.settings import ReadSettings
from offloader.store.rate_limit import Priority, working_at
from offloader.store.wrappers import recorder_of
from offloader.write.backfill import HistoryTools, PlannedSegment
from offloader.write.quota import sized_for
from offloader.write.stream_state import announce
from offloader.write.upload import READ_BYTES, LedgerPiece, upload_of, write_segment

_log = logging.getLogger("offloader.replacement")

#: Size of a group in segments: bounds the work repeated after a crash, and the duplicate data per retry.
GROUP_SEGMENTS = 4
#: Attempts to plan again because of concurrent changes of the stream.
REPLANS_MAX = 3
#: Age from which on a run beside the owner fails a promise that another run left.
PROMISE_AGE_MS_MAX = 24 * 3600 * 1000


class EntryDigest:
    """Digest of entries, independent of batch boundaries: ids, lengths, publish times and payloads."""

    def __init__(self) -> None:
        self._digests = [blake2b() for _ in range(4)]

    def add(self, batch: EntryBatch) -> None:
        columns = (batch.entry_ids, batch.lengths, batch.publish_times_ms)
        payloads = batch.data[int(batch.offsets[0]) : int(batch.offsets[-1])]
        pieces = (*(np.ascontiguousarray(column, dtype="<i8").data for column in columns), payloads)
        for digest, piece in zip(self._digests, pieces, strict=True):
            digest.update(piece)

    def value(self) -> bytes:
        return b"".join(each.digest() for each in self._digests)


class ColdLedger:
    """Entries of one ledger in the cold tier (``LedgerHandle``), read once.

    Args:
        batches: the entries, ascending, none of them empty.

    Attributes:
        info: the ledger.
        digest: of the entries read so far.
    """

    def __init__(self, info: LedgerInfo, batches: Iterator[EntryBatch]) -> None:
        self.info = info
        self.digest = EntryDigest()
        self._batches = batches

    def read(self, first_entry_id: int, max_bytes: int) -> EntryBatch | None:  # noqa: ARG002 - their own size
        batch = next(self._batches, None)
        if batch is not None:
            assert batch.first.entry_id >= first_entry_id, "batches go forward"
            self.digest.add(batch)
        return batch


def ledger_info(fetcher: Fetcher, state: ManifestState, segment: SegmentRecord, ledger_id: int) -> LedgerInfo:
    """Facts about a ledger from the manifest and the index of its last segment.

    Raises:
        CorruptError, ObjectMissingError, ObjectChangedError: the index is damaged.
    """
    objects = objects_of(state.stream, segment, fetcher.store, fetcher.settings.relocate)
    segment_map = fetcher.index(objects)
    known = PulsarLedger(ledger_id=ledger_id)
    if segment_map.layout is Layout.V2:
        [metadata] = [each.metadata for each in segment_map.ledgers if each.ledger_id == ledger_id]
        try:
            known = PulsarLedger.decode(metadata)
        except FormatError as error:
            raise CorruptError(f"{objects.index_key}: {error}") from error
    last = state.closed_ledgers.get(ledger_id)
    return LedgerInfo(
        ledger_id=ledger_id,
        closed=last is not None,
        entries=0 if last is None else last + 1,
        size_bytes=known.size_bytes or 0,
        created_ms=0,
        closed_ms=known.closed_ms,
    )


#: Segments and what each of them has of one ledger, in order.
Contents = list[tuple[SegmentRecord, LedgerSpan]]


def contents(segments: Iterable[SegmentRecord]) -> list[tuple[int, Contents]]:
    """Ledger ids, ascending, and the contents of the segments by ledger."""
    found: dict[int, Contents] = {}
    for segment in segments:
        for span in segment.content.ledgers:
            found.setdefault(span.ledger_id, []).append((segment, span))
    return sorted(found.items(), key=itemgetter(0))


def runs_in(held: Contents) -> list[Run]:
    """First and last entries of the runs, those side by side joined."""
    return joined((span.first_entry_id, span.last_entry_id) for _, span in held)


@dataclass(frozen=True, slots=True)
class RewriteGroup:
    """Replacements of one record.

    Attributes:
        old: replaced segments.
        new: their replacements, in the stream's order; together they hold what ``old`` holds.
    """

    old: tuple[SegmentRecord, ...]
    new: tuple[PlannedSegment, ...]


#: The digest of each ledger of a segment, in order.
_Digests = dict[int, bytes]


class SegmentReplacement:
    """Replaces groups of one stream's segments. ``join`` comes first.

    Args:
        log: the stream's manifest, loaded.
        tools: of the process.
        is_stopped: called at intervals; when True the run ends with an error.
        read: how the old segments are read.
    """

    def __init__(
        self, log: ManifestLog, tools: HistoryTools, is_stopped: Callable[[], bool], *, read: ReadSettings
    ) -> None:
        self._log, self._tools, self._is_stopped, self._read = log, tools, is_stopped, read
        #: The epoch that the records belong to, and its nonce.
        self._epoch, self._nonce = 0, ""

    def join(self, *, beside_owner: bool) -> None:
        """Work within the current epoch; its owner continues.

        Args:
            beside_owner: also if the owner was active recently.

        Raises:
            EditRefusedError: the stream is on hold.
            FencedError: an active owner has the stream.
        """
        state, tools = self._log.state, self._tools
        if state.held:
            raise EditRefusedError(
                f"stream {self._log.stream} is on hold: none of its segments are replaced", hint="lift the hold first"
            )
        now_ms, after_s = tools.clock.now_ms(), tools.settings.takeover_after
        require_takeable(state, now_ms, after_s, take_over=beside_owner, option="--beside-owner")
        self._epoch, self._nonce = state.epoch, state.owner.nonce
        old = [each.uuid for each in state.rewrites if each.assigned_ms < now_ms - PROMISE_AGE_MS_MAX]
        if old:
            self._commit([Failed(uuid, "the run that promised it ended") for uuid in old])

    def run(
        self,
        next_group: Callable[[ManifestState], RewriteGroup | None],
        *,
        on_replaced: Callable[[RewriteGroup, Sequence[Rewritten]], None],
        on_failed: Callable[[RewriteGroup, OffloaderError], None],
        on_changed: Callable[[ManifestState], None],
    ) -> None:
        """Replace groups until there is none left.

        Args:
            on_replaced: called with a group that was replaced, and by what.
            on_failed: called with a group whose data is damaged; it must not come again.
            on_changed: called when another writer changed the stream: plan again.

        Raises:
            EditRefusedError: other writers changed the stream repeatedly.
            FencedError, StoreUnavailableError, OutcomeUnknownError, ClosedError: the run ends; the next one continues.
        """
        replans = 0
        while (group := next_group(self._log.state)) is not None:
            named = [(self._tools.new_uuid(self._log.state), planned) for planned in group.new]
            uuids = [uuid for uuid, _ in named]
            try:
                by = self._replace(group, named)
            except EditRefusedError:
                # Retention retired a segment, or another record was written in the meantime.
                replans += 1
                if replans > REPLANS_MAX:
                    raise
                self._give_up(uuids, "the stream changed meanwhile")
                on_changed(self._log.state)
            except OffloaderError as error:
                if error.kind is not ErrorKind.DATA_CORRUPTION:
                    raise
                _log.warning(
                    "stream %s: %s..%s isn't rewritten: %s",
                    *(self._log.stream, group.old[0].begin, group.old[-1].end, error),
                )
                self._give_up(uuids, str(error))
                on_failed(group, error)
            else:
                on_replaced(group, by)

    def _give_up(self, named: Iterable[UUID], reason: str) -> None:
        """Give up a group's promises; the sweeper deletes uploads under their names."""
        mine = set(named)
        if promised := [Failed(each.uuid, reason) for each in self._log.load().rewrites if each.uuid in mine]:
            self._commit(promised)

    def _commit(self, edits: Sequence[Edit]) -> None:
        log = self._log
        after = log.commit_as_maintainer(edits, epoch=self._epoch)
        announce(edits, after, recorder_of(log.store))

    def _replace(self, group: RewriteGroup, named: Sequence[tuple[UUID, PlannedSegment]]) -> Sequence[Rewritten]:
        """Promise, upload, compare and replace."""
        tools, log = self._tools, self._log
        now_ms = tools.clock.now_ms()
        self._commit([Rewrite(u, int(p.layout), p.begin, p.end, now_ms, tools.driver) for u, p in named])
        # Entries before the start position are unreadable, but share segments with readable ones.
        before = replace(log.state, head=None)
        parallel = Parallel(tools.settings.backfill_segments_in_flight_max)
        sent = list(parallel.in_order(partial(self._send, uuid, planned, group, before) for uuid, planned in named))
        by = tuple(Rewritten(uuid, summary) for (uuid, _), (summary, _) in zip(named, sent, strict=True))
        edit = Replace(tuple(each.uuid for each in group.old), by, tools.clock.now_ms())
        # Read the new objects like a reader before retiring the old ones, which may be the only copy.
        after = apply_edits(before, [edit], record_id=before.record_id + 1)
        found = list(parallel.in_order(partial(self._digests, after, planned) for _, planned in named))
        for (uuid, planned), (_, expected), digests in zip(named, sent, found, strict=True):
            if digests != expected:
                raise CorruptError(
                    f"stream {log.stream}: segment {uuid} has other content than {planned.begin}..{planned.end}",
                    hint="nothing was replaced",
                )
        self._commit([edit])
        return by

    def _send(
        self, uuid: UUID, planned: PlannedSegment, group: RewriteGroup, before: ManifestState
    ) -> tuple[SegmentSummary, _Digests]:
        """Upload one segment; returns its summary, and the digests of the entries read."""
        settings, log = self._tools.settings, self._log
        fetcher = Fetcher(log.store, self._read)
        reader = Reader(fetcher, before)
        begin, end = planned.begin, planned.end
        holding = [each for each in group.old if each.begin <= end and begin <= (each.end or each.begin)]
        pieces, ledgers = list[LedgerPiece](), list[ColdLedger]()
        for ledger_id, held in contents(holding):
            for low, high in runs_in(held):
                first, last = max(begin, Position(ledger_id, low)), min(end, Position(ledger_id, high))
                if first > last:
                    continue
                info = ledger_info(fetcher, before, held[-1][0], ledger_id)
                ledgers.append(ColdLedger(info, reader.scan(first, last, READ_BYTES)))
                pieces.append(LedgerPiece(ledgers[-1], first.entry_id, last.entry_id))
        sized = sized_for(settings, sum(each.content.payload_bytes for each in holding))
        with working_at(Priority.BACKFILL):
            upload = upload_of(
                log.store,
                log.stream,
                uuid,
                planned.begin.ledger_id if planned.layout is Layout.V1 else None,
                incarnation=log.state.incarnation,
                epoch=self._epoch,
                codec=settings.codec,
                testimony=lambda: newest_of(log.state.assigning, self._nonce),
            )
            summary = write_segment(pieces, planned.layout, upload, sized, is_stopped=self._is_stopped)
        return summary, {each.info.ledger_id: each.digest.value() for each in ledgers}

    def _digests(self, state: ManifestState, planned: PlannedSegment) -> _Digests:
        digests: dict[int, EntryDigest] = {}
        reader = Reader(Fetcher(self._log.store, self._read), state)
        with working_at(Priority.BACKFILL), closing(reader.scan(planned.begin, planned.end, READ_BYTES)) as batches:
            for batch in batches:
                digests.setdefault(batch.ledger_id, EntryDigest()).add(batch)
        return {ledger_id: digest.value() for ledger_id, digest in digests.items()}
