"""The manifest of a stream, shown and maintained: ``Stream.manifest``."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from formats.entries import Position
from formats.manifest import Record
from formats.metadata.messages import OffloadContext
from offloader.errors import NotFoundError
from offloader.ledgers.base import LedgerInfo
from offloader.manifest.catalog import is_released, read_entry, require_entry
from offloader.manifest.failed_segments import FailedSegment, failed_segments
from offloader.manifest.load import LoadedManifest, kept_records, load_manifest_view
from offloader.manifest.log import ManifestLog
from offloader.manifest.maintenance import expire_records, sweep_dead_incarnations
from offloader.manifest.names import named_streams
from offloader.manifest.protection import require_no_global_hold
from offloader.manifest.rebuild import Rebuild, rebuild_manifest
from offloader.manifest.state import offload_context
from offloader.read.reader import existing_streams
from offloader.runtime.clock import SystemClock
from offloader.settings import ManifestSettings, Settings
from offloader.store.base import ObjectStore
from offloader.store.probe import require_conditional_puts


@dataclass(frozen=True, slots=True)
class ExpiredManifest:
    """Deleted objects of one manifest, or in a dry run those to delete.

    Attributes:
        first_kept_record: ``None``: the stream was deleted.
        dead_incarnations: earlier lives of the stream with remaining objects, and their number.
        unknown: unrecognised keys, which are kept.
    """

    stream: str
    records: int = 0
    checkpoints: int = 0
    runs: int = 0
    first_kept_record: int | None = None
    dead_incarnations: int = 0
    objects_of_dead_incarnations: int = 0
    unknown: Sequence[str] = ()

    @property
    def objects(self) -> int:
        """Number of deleted objects."""
        return self.records + self.checkpoints + self.runs + self.objects_of_dead_incarnations


class StreamManifest:
    """The manifest of a stream, or those of a topic's partitions. Made by ``Stream.manifest``."""

    def __init__(self, store: ObjectStore, stream: str) -> None:
        self._store, self._stream = store, stream

    def __repr__(self) -> str:
        return f"StreamManifest({self._store.url!r}, {self._stream!r})"

    def show(self) -> list[Mapping[str, object]]:
        """A summary of each manifest: a row of ``offloader manifest show --json``.

        Raises:
            NotFoundError: the stream does not exist.
            CorruptError, UnsupportedError: the manifest can't be read.
        """
        return [manifest_facts(load_view(self._store, name)) for name in self._streams()]

    def records(self, count: int) -> Iterator[Record]:
        """The newest ``count`` records that are kept, newest first; manifest by manifest. Raises as ``show``."""
        for name in self._streams():
            yield from kept_records(self._store, load_view(self._store, name).state, newest_first=True, count=count)

    def failed_segments(self) -> list[FailedSegment]:
        """The segments that were given up and offloaded again, oldest first; manifest by manifest.

        Reads every kept record: one request each. Records older than ``manifest.history_age_min`` may be deleted.
        Raises as ``show``.
        """
        states = (load_view(self._store, name).state for name in self._streams())
        return [each for state in states for each in failed_segments(self._store, state)]

    def context(self, ledger_id: int, *, hot: Collection[int] | None = None) -> OffloadContext:
        """The location of a ledger's entries in Pulsar's terms (PIP-76, metadata changes).

        Args:
            hot: the ids of the ledgers that the hot tier or the broker lists now; default: a copy counts as deleted
                once the manifest has released it.

        Raises:
            NotFoundError: no such stream, or no segment has entries of the ledger.
            InvalidCallError: a topic with partitions.
            CorruptError, UnsupportedError: the manifest can't be read.
        """
        existing_streams(self._store, self._stream).require_one("a ledger belongs to one stream")
        found = offload_context(load_view(self._store, self._stream).state, ledger_id, hot=hot)
        if found.uuid is None:
            raise NotFoundError(
                f"stream {self._stream}: no segment has entries of ledger {ledger_id}",
                hint="`offloader ls` lists the segments",
            )
        return found

    def checkpoint(self, *, settings: Settings | None = None) -> None:
        """Write a checkpoint of each manifest now.

        Args:
            settings: of the stream.

        Raises:
            StoreUnavailableError, OutcomeUnknownError: call it again. Others as ``show``.
        """
        names, chosen = self._streams(), settings or Settings()
        self._require_writable(chosen)
        for name in names:
            log = ManifestLog(self._store, name, clock=SystemClock(), settings=chosen.manifest)
            log.load()
            log.checkpoint()

    def expire(self, *, dry_run: bool = False, settings: Settings | None = None) -> list[ExpiredManifest]:
        """Delete records and checkpoints that the manifests no longer need; never objects of segments.

        Args:
            dry_run: only count.
            settings: ``manifest.orphan_age_min`` is the minimum age.

        Raises:
            DeletionStoppedError, ClockSkewError: a hold on the store, or clocks that can't be trusted.
            StoreUnavailableError, OutcomeUnknownError: call it again. Others as ``show``.
        """
        names, chosen = self._streams(), settings or Settings()
        if not dry_run:
            self._require_writable(chosen)
        return [expire_manifest(self._store, name, settings=chosen.manifest, dry_run=dry_run) for name in names]

    def rebuild(
        self,
        *,
        start: Position | None,
        closed: Mapping[int, int] | None = None,
        hot: Sequence[LedgerInfo] = (),
        dry_run: bool = False,
        settings: Settings | None = None,
    ) -> Rebuild:
        """Rebuild the manifest from the objects in the store, which are neither changed nor deleted.

        For a stream whose manifest can't be read or lost records. Missing entries are recorded as gaps:
        ``Rebuild.missing`` lists them.

        Args:
            start: start position of the stream, which no object records; ``None``: the first entry found.
            closed: ledger id -> last entry id, of ledgers whose end the objects don't prove.
            hot: ledgers of the hot tier (``LedgerSource.ledgers``): their entries aren't missing.
            dry_run: write nothing.
            settings: of the stream.

        Raises:
            InvalidCallError: the manifest is readable and complete, or the stream is deleted, or a topic.
            NotFoundError: neither a manifest nor objects.
            EditRefusedError: ``start`` lies past the end of the gapless range.
            StoreUnavailableError, OutcomeUnknownError: call it again.
        """
        chosen = settings or Settings()
        named_streams(self._store, self._stream).require_one("a rebuild needs one stream")
        if not dry_run:
            self._require_writable(chosen)
        return rebuild_manifest(
            self._store,
            self._stream,
            head=start,
            clock=SystemClock(),
            closed_ledgers=closed,
            hot=hot,
            dry_run=dry_run,
            settings=chosen.manifest,
        )

    def _streams(self) -> Sequence[str]:
        return existing_streams(self._store, self._stream).streams

    def _require_writable(self, settings: Settings) -> None:
        require_conditional_puts(self._store, single_writer=settings.store.single_writer)


def load_view(store: ObjectStore, stream: str) -> LoadedManifest:
    """The manifest of one stream with its stored boundary.

    Raises:
        NotFoundError: no such stream.
        CorruptError, UnsupportedError: the manifest can't be read.
    """
    return load_manifest_view(store, stream, require_entry(store, stream).incarnation)


def expire_manifest(store: ObjectStore, stream: str, *, settings: ManifestSettings, dry_run: bool) -> ExpiredManifest:
    """As ``StreamManifest.expire``, of one stream, which may have been deleted."""
    clock, entry = SystemClock(), read_entry(store, stream)
    if entry is None and not is_released(store, stream):
        require_entry(store, stream)
    if not dry_run:
        require_no_global_hold(store)
    expired = None
    if entry is not None:
        # Load first: nothing is deleted from an unreadable manifest.
        expired = expire_records(store, load_view(store, stream).state, clock=clock, settings=settings, dry_run=dry_run)
    swept = sweep_dead_incarnations(store, stream, clock=clock, settings=settings, dry_run=dry_run)
    return ExpiredManifest(
        stream,
        records=0 if expired is None else expired.records,
        checkpoints=0 if expired is None else expired.checkpoints,
        runs=0 if expired is None else expired.runs,
        first_kept_record=None if expired is None else expired.first_kept_id,
        dead_incarnations=len(swept),
        objects_of_dead_incarnations=sum(dead.objects for dead in swept.values()),
        unknown=(
            *(() if expired is None else expired.unknown),
            *(key for dead in swept.values() for key in dead.unknown),
        ),
    )


def manifest_facts(loaded: LoadedManifest) -> Mapping[str, object]:
    """The summary of ``StreamManifest.show``."""
    state, stored = loaded
    totals = state.totals()
    boundary = None if stored is None else stored.boundary
    checkpoint = 0 if boundary is None else boundary.checkpoint_id
    return {
        "stream": state.stream,
        "incarnation": state.incarnation,
        "record": state.record_id,
        "time_ms": state.time_ms or None,
        "epoch": state.epoch,
        "owner": state.owner.name or None,
        "owner_url": state.owner.url or None,
        "method": state.method,
        "paused": state.paused,
        "held": state.held,
        "deleted": state.stream_deleted,
        "head": state.head,
        "first": state.first_position(),
        "committed_end": state.committed_end(),
        "newest_end": state.newest_end,
        "segments": totals.segments,
        "assigned": len(state.assigned()),
        "retired": len(state.segments) - totals.segments - len(state.assigned()) + len(state.replaced),
        "rewrites": len(state.rewrites),
        "entries": totals.entries,
        "payload_bytes": totals.payload_bytes,
        "object_bytes": totals.object_bytes,
        "gaps": len(state.gaps),
        "checkpoint": checkpoint or None,
        "records_since_checkpoint": state.record_id - checkpoint,
        "first_kept_record": None if boundary is None else boundary.first_kept_id,
    }
