"""Write V1 objects out of the cold tier: in place of V2 segments, for readers older than the streaming method, and for
the records of Pulsar's own offloader.

A broker looks for an offloaded ledger by the uuid in its record of the topic: ``<uuid>-ledger-<id>`` and its index at
the root of a bucket. An export writes such objects; the stream and its manifest aren't changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit
from uuid import UUID

from formats.entries import Position
from formats.errors import FormatError
from formats.manifest import Edit, LedgersDeleted, Retire, Rewritten, SetMethod
from formats.metadata.messages import BookKeeperLedger, OffloadContext, PulsarLedger
from formats.segment_map import SegmentMap
from formats.summary import Layout, SegmentSummary
from offloader.coverage import without
from offloader.errors import (
    Corrupt,
    ErrorKind,
    InvalidCall,
    NotFound,
    ObjectChanged,
    ObjectMissing,
    OffloaderError,
    SourceMismatch,
    Unsupported,
)
from offloader.ledgers.base import LedgerInfo
from offloader.manifest.log import ManifestLog
from offloader.manifest.segment_table import is_at_root
from offloader.manifest.state import ManifestState, SegmentRecord
from offloader.read.fetch import Cache, Fetcher, SegmentObjects, block_runs
from offloader.read.ledger_entries import LedgerEntries
from offloader.read.ledger_plan import (
    BrokerFacts,
    LedgerIncomplete,
    LedgerStanding,
    ledger_standing,
    require_same_ledger,
    require_whole,
)
from offloader.settings import OffloadSettings, ReadSettings
from offloader.store.base import ObjectStore
from offloader.store.rate_limit import Priority, working_at
from offloader.write.backfill import HistoryTools, PlannedSegment
from offloader.write.quota import segment_bytes_max, sized_for
from offloader.write.replacement import (
    GROUP_SEGMENTS,
    ColdLedger,
    Contents,
    EntryDigest,
    RewriteGroup,
    SegmentReplacement,
    contents,
    runs_in,
)
from offloader.write.upload import LedgerPiece, upload_of, write_segment

#: Segments that one group replaces.
GROUP_SEGMENTS_MAX = 256


@dataclass(frozen=True, slots=True)
class StreamedLedger:
    """A ledger unreadable to an old reader: it has entries in V2 segments, or in compressed blocks.

    Attributes:
        segments: that hold entries of it; others may share them.
        entries, payload_bytes: in those.
        obstacle: why it can't be rewritten, for display; empty: it can.
    """

    ledger_id: int
    segments: int
    entries: int
    payload_bytes: int
    obstacle: str = ""


def streamed_ledgers(state: ManifestState) -> list[StreamedLedger]:
    """Ledgers unreadable to an old reader, ascending (proposal: rollback guide)."""
    return [
        StreamedLedger(
            ledger_id,
            segments=len(held),
            entries=sum(span.entries for _, span in held),
            payload_bytes=sum(span.payload_bytes for _, span in held),
            obstacle=_obstacle(state, ledger_id, held),
        )
        for ledger_id, held in contents(_unreadable(state.offloaded()))
    ]


def next_group(state: ManifestState, wanted: Sequence[int], bytes_max: int) -> RewriteGroup | None:
    """The first group of those that make ``wanted`` readable; ``None``: nothing left to rewrite.

    Whole segments are replaced, as long as they hold wanted ledgers and until they are enough and have completed one.
    This minimises double writes: only the first and the last one's parts of incomplete ledgers.

    Args:
        wanted: ledger ids without an obstacle, ascending.
        bytes_max: object bytes from which on a group ends; it also ends at ``GROUP_SEGMENTS_MAX`` segments.
    """
    if not wanted:
        return None
    left, missing, complete = set(wanted), dict[int, int](), set[int]()
    old, old_bytes = list[SegmentRecord](), 0
    for segment in _unreadable(state.offloaded(Position(wanted[0], 0))):
        spans = [span for span in segment.spans if span.ledger_id in left]
        if not spans:
            if old:
                break
            continue
        old.append(segment)
        old_bytes += segment.content.data_bytes
        for span in spans:
            entries = missing.get(span.ledger_id, state.closed_ledgers[span.ledger_id] + 1) - span.entries
            missing[span.ledger_id] = entries
            if not entries:
                complete.add(span.ledger_id)
        if complete and (old_bytes >= bytes_max or len(old) >= GROUP_SEGMENTS_MAX):
            break
    return RewriteGroup(tuple(old), tuple(_new(state, complete, old))) if complete else None


def _new(state: ManifestState, complete: set[int], old: Sequence[SegmentRecord]) -> Iterator[PlannedSegment]:
    """Replacements of ``old``: runs of entries, one of each ledger at a time."""
    for ledger_id, held in contents(old):
        layout = Layout.V1 if ledger_id in complete else Layout.V2
        for first, last in runs_in(held) if ledger_id not in state.deleted_ledgers else ():
            yield PlannedSegment(layout, Position(ledger_id, first), Position(ledger_id, last))


def _unreadable(segments: Sequence[SegmentRecord]) -> Iterator[SegmentRecord]:
    return (segment for segment in segments if segment.layout != 1 or segment.content.compressed)


def _obstacle(state: ManifestState, ledger_id: int, held: Contents) -> str:
    """Why a ledger can't become one V1 object; empty: it can."""
    if ledger_id in state.deleted_ledgers:
        return "it is deleted from the stream"
    if foreign := [segment for segment, _ in held if not segment.owned or is_at_root(segment.driver)]:
        return f"segment {foreign[-1].uuid} is adopted and can't be replaced"
    if (last := state.closed_ledgers.get(ledger_id)) is None:
        return "it isn't recorded as closed"
    if state.head is not None and state.head > Position(ledger_id, 0):
        return f"the stream begins at {state.head}"
    missing = without([(0, last)], runs_in(held))
    # Gaps inside a segment show only in its count.
    if missing or sum(span.entries for _, span in held) != last + 1:
        first, end = missing[0] if missing else (0, last)
        gap = next((g for g in state.gaps if g.first <= Position(ledger_id, first) <= g.last), None)
        why = "aren't offloaded" if gap is None else f"are a gap ({gap.reason})"
        return f"entries {first}..{end} {why}"
    committed = state.committed_end()
    if committed is None or committed < Position(ledger_id, last):
        return f"the committed end is {committed or '(none)'}"
    return ""


#: Why a ledger is left that was no candidate when the run began.
LATER = "it was completed during the run: the next run rewrites it"
#: Segments retired by one record.
RETIRED_PER_RECORD_MAX = 500


@dataclass(slots=True)
class RewriteResult:
    """Result of a run.

    Attributes:
        rewritten: name and summary of each V1 object, in the stream's order.
        deleted: ledgers that were marked as deleted.
        replaced, retired: segments whose objects are deleted after the grace period.
        left: ledgers still unreadable to an old reader, with the reason.
        errors: why groups couldn't be rewritten.
    """

    rewritten: list[tuple[UUID, SegmentSummary]] = field(default_factory=list)
    deleted: list[int] = field(default_factory=list)
    replaced: int = 0
    retired: int = 0
    left: list[StreamedLedger] = field(default_factory=list)
    errors: list[OffloaderError] = field(default_factory=list)


class LedgerRewrite:
    """One run over one stream. Single use.

    Args:
        log: the stream's manifest; the run opens an epoch, which fences the owner.
        tools: of the process; its settings must not compress: an old reader can't decompress.
        read: of the stream's reader.
        delete: ledgers to be deleted from the stream instead of rewritten.
        take_over: take the stream from an active owner.
        is_stopped: called at intervals; when True the run ends with an error.
        on_progress: called with each ledger that became readable to an old reader.

    Raises:
        InvalidCall: the settings compress, or a ledger to be deleted is already readable to an old reader.
    """

    def __init__(
        self,
        log: ManifestLog,
        tools: HistoryTools,
        read: ReadSettings,
        *,
        delete: Sequence[int],
        take_over: bool,
        is_stopped: Callable[[], bool],
        on_progress: Callable[[SegmentSummary], None],
    ) -> None:
        if tools.settings.codec != "none":
            raise InvalidCall(f"an old reader can't read codec {tools.settings.codec}", hint="set codec to none")
        self._log, self._delete = log, sorted(set(delete))
        self._replacement = SegmentReplacement(log, tools, is_stopped, read=read)
        self._take_over, self._on_progress = take_over, on_progress
        self._bytes_max = GROUP_SEGMENTS * segment_bytes_max(tools.settings)
        self._wanted = list[int]()
        self._failed: dict[int, OffloaderError] = {}
        self._result = RewriteResult()

    def run(self) -> RewriteResult:
        """Rewrite the rewritable ledgers and delete those to be deleted.

        Raises: as ``BackfillService.rollback``; EditRefused also when segments were repeatedly retired during the run.
        """
        ledgers = streamed_ledgers(self._log.load())
        if unknown := set(self._delete) - {each.ledger_id for each in ledgers}:
            raise InvalidCall(
                f"stream {self._log.stream}: an old reader reads ledger {min(unknown)}, or it isn't offloaded",
                hint="`offloader rollback plan` lists the ledgers that can be deleted",
            )
        self._wanted = [e.ledger_id for e in ledgers if not e.obstacle and e.ledger_id not in self._delete]
        if self._wanted or self._delete:
            self._replacement.take(take_over=self._take_over, more=self._first_edits)
            self._replacement.run(
                lambda state: next_group(state, self._wanted, self._bytes_max),
                on_replaced=self._replaced,
                on_failed=self._damaged,
                on_changed=self._changed,
            )
            self._retire_deleted()
        self._result.left = [
            replace(each, obstacle=each.obstacle or str(self._failed.get(each.ledger_id, LATER)))
            for each in streamed_ledgers(self._log.state)
            if each.ledger_id not in self._log.state.deleted_ledgers
        ]
        return self._result

    def _first_edits(self, state: ManifestState) -> Sequence[Edit]:
        # Else the stream's next segment would be V2 again.
        edits: list[Edit] = [SetMethod("ledger")] if state.method == "streaming" else []
        self._result.deleted = deleted = [each for each in self._delete if each not in state.deleted_ledgers]
        return [*edits, *([LedgersDeleted(tuple(deleted))] if deleted else [])]

    def _changed(self, state: ManifestState) -> None:
        whole = {each.ledger_id for each in streamed_ledgers(state) if not each.obstacle}
        self._wanted = [each for each in self._wanted if each in whole]

    def _damaged(self, group: RewriteGroup, error: OffloaderError) -> None:
        self._result.errors.append(error)
        self._failed |= dict.fromkeys(group.ledger_ids, error)
        self._leave(group)

    def _replaced(self, group: RewriteGroup, by: Sequence[Rewritten]) -> None:
        self._result.replaced += len(group.old)
        for each in by:
            if each.summary.layout is Layout.V1:
                self._result.rewritten.append((each.uuid, each.summary))
                self._on_progress(each.summary)
        self._leave(group)

    def _leave(self, group: RewriteGroup) -> None:
        done = set(group.ledger_ids)
        self._wanted = [each for each in self._wanted if each not in done]

    def _retire_deleted(self) -> None:
        state = self._log.state
        gone = [
            segment.uuid
            for segment in state.offloaded()
            if segment.owned and all(span.ledger_id in state.deleted_ledgers for span in segment.content.ledgers)
        ]
        for start in range(0, len(gone), RETIRED_PER_RECORD_MAX):
            self._log.commit([Retire(tuple(gone[start : start + RETIRED_PER_RECORD_MAX]))])
        self._result.retired = len(gone)


#: Of a ledger's own errors the kind that a run ends with: the first of these that there is.
_WORST_FIRST = (SourceMismatch, NotFound, Unsupported)
#: Ledgers named in an error.
NAMED_MAX = 10


@dataclass(frozen=True, slots=True)
class RecordedLedger:
    """An offloaded ledger in a broker's record.

    Attributes:
        length: payload bytes; 0: not recorded.
        driver: where the broker's offloader says that it put it; empty: it doesn't say.
    """

    ledger_id: int
    uuid: UUID
    entries: int
    length: int
    closed_ms: int
    driver: dict[str, str]

    def objects(self) -> SegmentObjects:
        """Its two objects at a store's root."""
        return SegmentObjects(stream="", uuid=self.uuid, ledger_id=self.ledger_id, at_root=True)


def recorded_ledgers(record: Sequence[PulsarLedger]) -> list[RecordedLedger]:
    """The ledgers of a broker's record that it says are offloaded, in its order."""
    return [
        RecordedLedger(
            ledger_id=each.ledger_id,
            uuid=context.uuid,
            entries=each.entries or 0,
            length=each.size_bytes or 0,
            closed_ms=each.closed_ms or 0,
            driver=dict(context.driver_metadata),
        )
        for each in record
        if (context := each.context or OffloadContext()).complete and context.uuid is not None and each.entries
    ]


@dataclass(frozen=True, slots=True)
class ExportedLedger:
    """Result of the export of one ledger.

    Attributes:
        payload_bytes: of its entries.
        written: whether this run wrote it, or would have; False: it was there already.
        error: why it isn't there; ``None``: it is, or will be.
    """

    ledger: RecordedLedger
    payload_bytes: int = 0
    written: bool = False
    error: OffloaderError | None = None


class LedgerExport:
    """One run over the ledgers of one topic. Single use.

    Args:
        store, state: of the stream, and the view of its manifest that is exported.
        target: where the objects go, at its root.
        settings: of offloads; the objects are never compressed, whatever they say.
        read: of the stream's reader.
        on_progress: called with each ledger that was written.

    Raises:
        InvalidCall: ``target`` is a folder of a bucket: Pulsar looks at the bucket's root.
    """

    def __init__(
        self,
        store: ObjectStore,
        state: ManifestState,
        target: ObjectStore,
        *,
        settings: OffloadSettings,
        read: ReadSettings,
        on_progress: Callable[[SegmentSummary], None] = lambda _: None,
    ) -> None:
        url = urlsplit(target.url)
        if url.scheme != "file" and url.path.strip("/"):
            raise InvalidCall(
                f"{target.url} is a folder of a bucket, but Pulsar's own offloader reads the bucket's root",
                hint="use the bucket without a folder",
            )
        self._store, self._state, self._target, self._on_progress = store, state, target, on_progress
        self._settings = replace(settings, codec="none")
        read = replace(read, read_priority="tiered-storage-first")
        self._entries = LedgerEntries(store, read, Cache(read.cache_bytes_max))
        self._written = Fetcher(target, read)

    def run(self, ledgers: Sequence[RecordedLedger], *, dry_run: bool) -> list[ExportedLedger]:
        """Write each ledger that isn't there yet, read it back and compare; one that can't be is left, with its error.

        Raises:
            OffloaderError: a store's errors, other than about the content of one ledger.
        """
        found = []
        for ledger in ledgers:
            try:
                found.append(self._one(ledger, dry_run=dry_run))
            except LedgerIncomplete as error:
                found.append(ExportedLedger(ledger, error=NotFound(error.message, hint=error.hint)))
            except OffloaderError as error:
                if error.kind not in (ErrorKind.NOT_FOUND, ErrorKind.DATA_CORRUPTION, ErrorKind.INVALID_REQUEST):
                    raise
                found.append(ExportedLedger(ledger, error=error))
        return found

    def _one(self, ledger: RecordedLedger, *, dry_run: bool) -> ExportedLedger:
        self._require_place(ledger)
        if (length := self._length_there(ledger)) is not None:
            return ExportedLedger(ledger, length)
        standing = ledger_standing(self._state, ledger.ledger_id, last=ledger.entries - 1)
        length = ledger.length or standing.payload_bytes
        facts = BrokerFacts(uuid=ledger.uuid, last=ledger.entries - 1, length=length, entries=ledger.entries)
        require_same_ledger(self._state.stream, standing, facts)
        require_whole(self._state.stream, standing)
        if standing.first:
            raise NotFound(
                f"its entries before {standing.first} were truncated", hint="truncated entries can't be exported"
            )
        if not dry_run:
            with working_at(Priority.BACKFILL):
                self._write(ledger, standing)
        return ExportedLedger(ledger, standing.payload_bytes, written=True)

    def _require_place(self, ledger: RecordedLedger) -> None:
        """Raises ``Unsupported``: Pulsar's own offloader would look elsewhere."""
        bucket, here = ledger.driver.get("bucket", ""), self._target.driver_metadata.get("bucket", "")
        if not ledger.driver or urlsplit(self._target.url).scheme == "file":
            return  # it takes the bucket of the broker's settings, or a copy of the folder is put there
        if bucket != here:
            where = f"names bucket {bucket}" if bucket else "names no bucket"
            raise Unsupported(
                f"the broker's record {where}, but these objects would go to {here}",
                hint="use the recorded bucket; new ledgers use export_bucket of the plugin's settings",
            )

    def _length_there(self, ledger: RecordedLedger) -> int | None:
        """Payload bytes of a ledger whose objects are there; ``None``: they aren't, or not completely.

        Raises:
            ObjectChanged, Corrupt: there are others under its name.
        """
        try:
            segment_map = self._written.index(ledger.objects(), keep=False)
        except ObjectMissing:
            return None  # data without an index is an attempt that ended early
        length = _length_of(segment_map, ledger)
        key = ledger.objects().data_key
        size = None
        with suppress(NotFound):
            size = self._target.head(key).size_bytes
        if size != segment_map.data_bytes:
            raise ObjectChanged(
                f"{key} in {self._target.url} has {size if size is not None else 'no'} bytes, but its index requires "
                f"{segment_map.data_bytes}",
                hint="delete the index object and run the export again",
            )
        return length

    def _write(self, ledger: RecordedLedger, standing: LedgerStanding) -> None:
        info = LedgerInfo(
            ledger_id=ledger.ledger_id,
            closed=True,
            entries=ledger.entries,
            size_bytes=standing.payload_bytes,
            created_ms=standing.created_ms or 0,
            closed_ms=ledger.closed_ms,
        )
        last = ledger.entries - 1
        cold = ColdLedger(info, self._entries.batches(self._state, standing, 0, last))
        upload = upload_of(
            self._target,
            self._state.stream,
            ledger.uuid,
            ledger.ledger_id,
            incarnation=self._state.incarnation,
            epoch=0,
            codec="none",
            at_root=True,
        )
        summary = write_segment(
            [LedgerPiece(cold, 0, last)], Layout.V1, upload, sized_for(self._settings, standing.payload_bytes)
        )
        try:
            if self._digest(ledger) != cold.digest.value():
                raise Corrupt(
                    f"{upload.data_key} in {self._target.url} has other content than ledger {ledger.ledger_id} of "
                    f"{self._state.stream}",
                    hint="run the export again",
                )
        except BaseException as error:  # an end before the comparison, too
            try:
                self._target.delete([upload.index_key])  # else the next run finds the ledger there
            except OffloaderError as left:
                error.add_note(f"{upload.index_key} couldn't be deleted: {left}")
            raise
        self._on_progress(summary)

    def _digest(self, ledger: RecordedLedger) -> bytes:
        """Digest of the stored entries."""
        digest, objects = EntryDigest(), ledger.objects()
        segment_map = self._written.index(objects, keep=False)
        ends = Position(ledger.ledger_id, 0), Position(ledger.ledger_id, ledger.entries - 1)
        runs = block_runs(objects, segment_map, segment_map.find(*ends), self._written.settings.request_bytes)
        for batches in self._written.runs(runs):
            for batch in batches:
                digest.add(batch)
        return digest.value()


def _length_of(segment_map: SegmentMap, ledger: RecordedLedger) -> int:
    """Payload bytes by an index; raises ``ObjectChanged``: it is of another ledger than the record's."""
    [group] = segment_map.ledgers
    try:
        length = BookKeeperLedger.decode(group.metadata).length_bytes
    except FormatError as error:
        raise Corrupt(f"{segment_map.object_name}: {error}", hint="delete both objects") from error
    there, wanted = (group.last_entry_id + 1, length), (ledger.entries, ledger.length or length)
    if there != wanted:
        raise ObjectChanged(
            f"{segment_map.object_name} exists already, with {there[0]} entries and {there[1]} bytes; the broker's "
            f"record has {wanted[0]} entries and {wanted[1]} bytes",
            hint="check that the record belongs to this topic",
        )
    return length


def error_of(found: Sequence[ExportedLedger]) -> OffloaderError | None:
    """One error for all ledgers that aren't exported, of the worst kind; ``None``: there are none."""
    left = [(each.ledger.ledger_id, each.error) for each in found if each.error is not None]
    if not left:
        return None
    made = next(each for each in _WORST_FIRST if any(error.kind is each.kind for _, error in left))
    named = "; ".join(f"{ledger_id} ({error.message})" for ledger_id, error in left[:NAMED_MAX])
    more = " ..." if len(left) > NAMED_MAX else ""
    hint = next(error.hint for _, error in left if error.kind is made.kind)
    return made(f"{len(left)} of {len(found)} ledgers aren't exported: {named}{more}", hint=hint)
