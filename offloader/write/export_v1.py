"""Write V1 objects out of the cold tier, for the records of Pulsar's own offloader.

A broker looks for an offloaded ledger by the uuid in its record of the topic: ``<uuid>-ledger-<id>`` and its index at
the root of a bucket. An export writes such objects; the stream and its manifest aren't changed.

The index is the commit point: a ledger counts as exported when its index exists. The steps are: send the data object,
read it back and compare every entry, create the index. Nothing is deleted. An attempt that ends early leaves a data
object without an index, and the next attempt replaces it. Two attempts at the same time with equal settings send equal
bytes, and the index is created, never replaced: the later attempt finds an equal one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit
from uuid import UUID

from formats.entries import Position
from formats.errors import FormatError
from formats.metadata.messages import BookKeeperLedger, OffloadContext
from formats.pulsar.ledger_record import decode_ledger_record
from formats.segment_map import SegmentMap
from formats.summary import Layout, SegmentSummary
from offloader.errors import (
    CorruptError,
    ErrorKind,
    InvalidCallError,
    NotFoundError,
    ObjectChangedError,
    ObjectMissingError,
    OffloaderError,
    SourceMismatchError,
    UnsupportedError,
)
from offloader.ledgers.base import LedgerInfo
from offloader.manifest.state import ManifestState
from offloader.read.fetch import Cache, Fetcher, SegmentObjects, block_runs
from offloader.read.ledger_entries import LedgerEntries
from offloader.read.ledger_plan import (
    BrokerFacts,
    LedgerIncompleteError,
    LedgerStanding,
    ledger_standing,
    require_same_ledger,
    require_whole,
)
from offloader.settings import OffloadSettings, ReadSettings
from offloader.store.base import ObjectStore
from offloader.store.rate_limit import Priority, working_at
from offloader.write.quota import sized_for
from offloader.write.replacement import (
    ColdLedger,
    EntryDigest,
)
from offloader.write.upload import LedgerPiece, upload_of, write_segment

#: Of a ledger's own errors the kind that a run ends with: the first of these that there is.
_WORST_FIRST = (SourceMismatchError, NotFoundError, UnsupportedError)
#: Ledgers, or files of records, named in an error.
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


def recorded_ledgers(path: str) -> list[RecordedLedger]:
    """The ledgers that a broker's record of a topic, saved in the file ``path``, says are offloaded, in its order.

    Raises:
        NotFoundError: the file can't be read.
        InvalidCallError: it has no such record.
    """
    try:
        record = decode_ledger_record(Path(path).read_bytes())
    except OSError as cause:
        raise NotFoundError(
            f"broker record {path} can't be read: {cause.strerror}", hint="save the value to this file first"
        ) from cause
    except FormatError as cause:
        raise InvalidCallError(
            f"{path} isn't a broker's record of a topic: {cause}",
            hint="save the raw bytes of the value, neither text nor base64",
        ) from cause
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


def require_root(target: ObjectStore) -> None:
    """Raises ``InvalidCallError`` for a folder of a bucket: Pulsar looks at the bucket's root."""
    url = urlsplit(target.url)
    if url.scheme != "file" and url.path.strip("/"):
        raise InvalidCallError(
            f"{target.url} is a folder of a bucket, but Pulsar's own offloader reads the bucket's root",
            hint="use the bucket without a folder",
        )


class LedgerExport:
    """One run over the ledgers of one topic. Single use.

    Args:
        store, state: of the stream, and the view of its manifest that is exported.
        target: where the objects go, at its root.
        settings: of offloads; the objects are never compressed, whatever they say.
        read: of the stream's reader.
        on_progress: called with each ledger that was written.

    Raises:
        InvalidCallError: as ``require_root``.
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
        require_root(target)
        self._store, self._state, self._target, self._on_progress = store, state, target, on_progress
        self._settings = replace(settings, codec="none")
        read = replace(read, read_priority="tiered-storage-first")
        self._entries = LedgerEntries(store, read, Cache(read.cache_size_max))
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
            except LedgerIncompleteError as error:
                found.append(ExportedLedger(ledger, error=NotFoundError(error.message, hint=error.hint)))
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
            raise NotFoundError(
                f"its entries before {standing.first} were truncated", hint="truncated entries can't be exported"
            )
        if not dry_run:
            with working_at(Priority.BACKFILL):
                self._write(ledger, standing)
        return ExportedLedger(ledger, standing.payload_bytes, written=True)

    def _require_place(self, ledger: RecordedLedger) -> None:
        """Raises ``UnsupportedError``: Pulsar's own offloader would look elsewhere."""
        bucket, here = ledger.driver.get("bucket", ""), self._target.driver_metadata.get("bucket", "")
        if not ledger.driver or urlsplit(self._target.url).scheme == "file":
            return  # it takes the bucket of the broker's settings, or a copy of the folder is put there
        if bucket != here:
            where = f"names bucket {bucket}" if bucket else "names no bucket"
            raise UnsupportedError(
                f"the broker's record {where}, but these objects would go to {here}",
                hint="use the recorded bucket; new ledgers use export_bucket of the plugin's settings",
            )

    def _length_there(self, ledger: RecordedLedger) -> int | None:
        """Payload bytes of a ledger whose objects are there; ``None``: they aren't, or not completely.

        Raises:
            ObjectChangedError, CorruptError: there are others under its name.
        """
        try:
            segment_map = self._written.index(ledger.objects(), keep=False)
        except ObjectMissingError:
            return None  # data without an index is an attempt that ended early
        length = _length_of(segment_map, ledger)
        key = ledger.objects().data_key
        size = None
        with suppress(NotFoundError):
            size = self._target.head(key).size_bytes
        if size != segment_map.data_bytes:
            raise ObjectChangedError(
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

        def compare(index: bytes) -> None:
            if self._digest(ledger, index) != cold.digest.value():
                raise CorruptError(
                    f"{upload.data_key} in {self._target.url} has other content than ledger {ledger.ledger_id} of "
                    f"{self._state.stream}",
                    hint="run the export again",
                )

        summary = write_segment(
            [LedgerPiece(cold, 0, last)],
            Layout.V1,
            replace(upload, before_index=compare),
            sized_for(self._settings, standing.payload_bytes),
        )
        self._on_progress(summary)

    def _digest(self, ledger: RecordedLedger, index: bytes) -> bytes:
        """Digest of the entries in the stored data object."""
        digest, objects = EntryDigest(), ledger.objects()
        segment_map = SegmentMap.parse(index, object_name=objects.index_key, ledger_id=ledger.ledger_id)
        ends = Position(ledger.ledger_id, 0), Position(ledger.ledger_id, ledger.entries - 1)
        runs = block_runs(objects, segment_map, segment_map.find(*ends), self._written.settings.request_size)
        for batches in self._written.runs(runs):
            for batch in batches:
                digest.add(batch)
        return digest.value()


def _length_of(segment_map: SegmentMap, ledger: RecordedLedger) -> int:
    """Payload bytes by an index; raises ``ObjectChangedError``: it is of another ledger than the record's."""
    [group] = segment_map.ledgers
    try:
        length = BookKeeperLedger.decode(group.metadata).length_bytes
    except FormatError as error:
        raise CorruptError(f"{segment_map.object_name}: {error}", hint="delete both objects") from error
    there, wanted = (group.last_entry_id + 1, length), (ledger.entries, ledger.length or length)
    if there != wanted:
        raise ObjectChangedError(
            f"{segment_map.object_name} exists already, with {there[0]} entries and {there[1]} bytes; the broker's "
            f"record has {wanted[0]} entries and {wanted[1]} bytes",
            hint="check that the record belongs to this topic",
        )
    return length


def error_of(found: Sequence[ExportedLedger]) -> OffloaderError | None:
    """One error for all ledgers that aren't exported, of the worst kind; ``None``: there are none.

    An error that isn't about a ledger's content, such as of the store, comes first and isn't changed.
    """
    left = [(each.ledger.ledger_id, each.error) for each in found if each.error is not None]
    if not left:
        return None
    about_ledgers = {each.kind for each in _WORST_FIRST}
    other = next((error for _, error in left if error.kind not in about_ledgers), None)
    if other is not None:
        return other
    made = next(each for each in _WORST_FIRST if any(error.kind is each.kind for _, error in left))
    named = "; ".join(f"{ledger_id} ({error.message})" for ledger_id, error in left[:NAMED_MAX])
    more = " ..." if len(left) > NAMED_MAX else ""
    hint = next(error.hint for _, error in left if error.kind is made.kind)
    return made(f"{len(left)} of {len(found)} ledgers aren't exported: {named}{more}", hint=hint)
