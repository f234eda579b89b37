"""A stream of a store: reading, appending, offloading, retention, deletion and export.

A method imports the packages that it needs: opening a store takes milliseconds, without protobuf or pandas.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID

from formats.entries import Position
from offloader.manifest.names import stream_name
from offloader.settings import ReadSettings, Settings
from offloader.store.base import ObjectStore
from offloader.times import moment_ms

if TYPE_CHECKING:
    import pyarrow.compute as pc

    from formats.documents import DeletionRecord
    from formats.entries import EntryBatch
    from offloader.export import StreamExport
    from offloader.gc.delete_stream import StreamRemoval
    from offloader.gc.orphans import Garbage
    from offloader.gc.sweep import CleanupReport, Undone
    from offloader.inspect.verify import Finding
    from offloader.ledgers.base import ReadableLedgers
    from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
    from offloader.managed_ledger import ManagedLedger
    from offloader.manifest.segment_table import SegmentRecord
    from offloader.partitioned_ledger import PartitionedLedger
    from offloader.read.reader import Entries, Reader
    from offloader.read.scan import Moment, Scan
    from offloader.retention.cycle import CycleOutcome, RetentionCycle
    from offloader.retention.scope import ReadableOf, SourceOf
    from offloader.retention.subscribers import StreamRetention
    from offloader.retention.truncate import Truncation
    from offloader.stream_manifest import StreamManifest
    from offloader.write.backfill_service import BackfillService
    from offloader.write.epoch import Acceptance, AcceptedLoss


class Stream:
    """A stream of a store, or a topic with all its partitions. Holds no connection and no state.

    Attributes:
        objects: the object store that it is in.
        name: its name, levels separated by ``/``.
    """

    def __init__(self, objects: ObjectStore, name: str) -> None:
        self.objects = objects
        self.name = stream_name(name)

    def __repr__(self) -> str:
        return f"Stream({self.objects.url!r}, {self.name!r})"

    def partitions(self) -> list[str]:
        """The names of the partitions of a topic; else the name of the stream.

        Raises:
            NotFoundError: the stream does not exist (the hint names similar ones).
        """
        from offloader.read.reader import existing_streams

        named = existing_streams(self.objects, self.name)
        return list(named.partitions.values()) or [named.name]

    def open_ledger(
        self,
        ledgers: str | EmbeddedLedgers,
        *,
        settings: Settings | str | Path | None = None,
        new_source: bool = False,
    ) -> ManagedLedger:
        """Open the stream for appends to an embedded ledger database, and offload its entries as they are written.

        Takes over the stream: a previous owner is fenced at its next append. With offloading, appends wait until the
        manifest has recorded this start.

        Args:
            ledgers: ``sqlite:///path/ledgers.db``, a path, or an open ``EmbeddedLedgers``.
            settings: sizes and limits, or a settings file; ``offload.method`` selects the offload method.
            new_source: accept this database although the manifest knows another one, or it is an older copy: missing
                entries become a gap, and contradicting ledgers are skipped.

        Raises:
            SourceMismatchError: the database is not the one in the manifest, or has lost entries.
            InvalidCallError: the store can't take the name; unknown or contradictory settings, or without effect.
            UnsupportedError: the store lacks create-if-absent, and ``store.single_writer`` is not set.
            StoreUnavailableError, AccessDeniedError, NotFoundError: the database or the store can't be used.
        """
        from offloader.managed_ledger import open_managed_ledger

        return open_managed_ledger(
            self.name, ledgers=ledgers, store=self.objects, settings=settings, new_source=new_source
        )

    def open_partitions(
        self,
        ledgers: str | EmbeddedLedgers,
        partitions: int,
        *,
        hashing: Literal["java", "murmur3"] = "java",
        settings: Settings | str | Path | None = None,
    ) -> PartitionedLedger:
        """Open a topic with partitions for appends, and send each entry to the partition of its key.

        The partition of a key is that of a Pulsar producer: its hash modulo the number of partitions.

        Args:
            ledgers: as for ``open_ledger``; one database for all partitions.
            partitions: how many the topic has. If there are more than before, later entries of a key may go to another
                partition than its earlier ones.
            hashing: ``java``: ``JavaStringHash``, the default of Pulsar's Java client; ``murmur3``: ``Murmur3_32Hash``.
            settings: as for ``open_ledger``, of the topic.

        Raises:
            InvalidCallError: fewer partitions than the store has of this topic. Others as ``open_ledger``.
        """
        from offloader.partitioned_ledger import open_partitioned_ledger

        return open_partitioned_ledger(
            self.name, partitions, ledgers=ledgers, store=self.objects, hashing=hashing, settings=settings
        )

    def open_reader(
        self,
        *,
        settings: ReadSettings | None = None,
        source: ReadableLedgers | None = None,
        on_missing: Literal["error", "skip"] = "error",
        lease_seconds: int = 0,
    ) -> Reader:
        """A reader of the current manifest, for many reads of single entries or short ranges.

        Args:
            settings: sizes and limits of requests.
            source: the hot tier, for entries that are not offloaded yet. Only for a single stream; each read compares
                it with the manifest.
            on_missing: ``skip`` leaves out segments with a missing object, and lists them in ``Reader.skipped``.
            lease_seconds: how long a lease protects the entries from cleanup; reads renew it and closing the reader
                ends it. 0: no lease. The store must be open for writing.

        Raises:
            NotFoundError: the stream, bucket or directory does not exist (the hint names similar streams).
            InvalidCallError: a topic with more partitions than one reader merges.
            CorruptError: the manifest is damaged.
            SourceMismatchError: raised by reads: the hot tier is not the one that the manifest records.
        """
        from offloader.read.partitions import open_reader

        return open_reader(
            self.objects,
            self.name,
            settings=settings,
            source=source,
            on_missing=on_missing,
            lease_seconds=lease_seconds,
        )

    def read(self, start: Position, stop: Position, *, source: ReadableLedgers | None = None) -> Entries:
        """The entries with ``start <= position < stop``, in memory.

        Args:
            source: the hot tier, for entries that are not offloaded yet.

        Raises:
            as ``scan``.
        """
        from offloader.read.reader import Entries

        return Entries(tuple(self.scan(start=start, stop=stop, source=source).entries()))

    def scan(
        self,
        *,
        start: Position | None = None,
        stop: Position | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
        segments: Sequence[UUID] = (),
        columns: Sequence[str] = (),
        filter: pc.Expression | None = None,  # noqa: A002 - Arrow's name
        limit: int | None = None,
        settings: ReadSettings | None = None,
        source: ReadableLedgers | None = None,
        lease_seconds: int = 0,
    ) -> Scan:
        """The entries as a lazy table of Arrow, DuckDB, Polars or pandas.

        This call loads and pins the manifest: later commits are not visible. Entries are read when the table is used.

        Args:
            start, stop: positions, ``start <= position < stop``. Only for a single stream.
            since, until: instead of ``start`` and ``stop``: start at the earliest entry published at or after
                ``since``, and stop before the earliest entry published at or after ``until``. Milliseconds since 1970
                UTC, a ``datetime``, or a text: ``"2026-11-25T08:00:00Z"``, ``"2026-11-25"``, ``"-1h"``.
            segments: only the entries of these segments. Only for a single stream.
            columns: any of stream, ledger_id, entry_id, publish_time (ms, UTC, null = unknown, or outside of the years
                1 to 9999) and payload, in the wanted order; default: all.
            filter: a condition on these columns, for example ``pyarrow.compute.field("entry_id") < 10``.
            limit: maximum number of rows.
            settings, source, lease_seconds: as for ``open_reader``. The lease ends when the table is dropped.

        Raises:
            NotFoundError: the stream or a segment does not exist (the hint names similar streams).
            InvalidCallError: an unknown column, a filter that does not fit the columns, two bounds for the same end, or
                a position or segment in a topic with partitions.
            TrimmedError, BeyondEndError: a position is outside of the stream.
            CorruptError: the manifest is damaged. Using the table raises the same errors as ``Reader.scan``.
        """
        from offloader.read.scan import SCHEMA, Query, scan_of

        query = Query(tuple(columns) or tuple(SCHEMA.names), filter, limit)
        reader = self.open_reader(settings=settings, source=source, lease_seconds=lease_seconds)
        return scan_of(reader, query, start=start, stop=stop, since=since, until=until, segments=segments)

    def follow(
        self,
        *,
        since: Moment | None = None,
        ledgers: str | EmbeddedLedgers | None = None,
        stopping: threading.Event | None = None,
        settings: Settings | None = None,
    ) -> Iterator[tuple[str, EntryBatch]]:
        """Present and future entries with the names of their streams, each once and in order within its stream.

        New entries are read from the hot tier of the process that writes the stream if it answers over HTTP; otherwise
        after they are offloaded. Ends when ``stopping`` is set.

        Args:
            since: start at the earliest entry published then or later, as for ``scan``; default: at the beginning.
            ledgers: read new entries from this database instead.
            stopping: checked at least every 10 s while no entry comes.
            settings: of the stream; ``access.owner_hosts`` names hosts that may receive a token.

        Raises:
            NotFoundError: the stream does not exist.
            TrimmedError: the next entries were deleted meanwhile.
            CorruptError: the manifest or an entry is damaged.
            StoreUnavailableError: the store can't be used.
        """
        from offloader.follow import followed

        from_ms = None if since is None else moment_ms(since, what="since")
        with ExitStack() as stack:
            database = None if ledgers is None else self._database(ledgers, stack)
            found = followed(self.objects, self.name, from_ms, database, settings or Settings(), stopping)
            yield from stack.enter_context(closing(found))

    def pause(self, reason: str = "", *, settings: Settings | None = None) -> bool:
        """Stop offloading until any process calls ``resume``; appends and reads continue. False: already paused.

        Args:
            reason: recorded in the manifest.
            settings: of the stream; ``store.single_writer`` accepts a store without create-if-absent.

        Raises:
            NotFoundError: the stream was never offloaded.
            UnsupportedError: the store lacks create-if-absent, as for ``open_ledger``; so do all methods that change.
            StoreUnavailableError, OutcomeUnknownError: the record couldn't be written; repeat the call.
        """
        names = self.partitions()  # before the store is probed with a write
        with self._history(settings) as history:
            changed = [history.pause(name, reason) for name in names]
        return any(changed)

    def resume(self, *, settings: Settings | None = None) -> bool:
        """Resume offloading where it stopped; False: it wasn't paused. Raises as ``pause``."""
        names = self.partitions()
        with self._history(settings) as history:
            changed = [history.resume(name) for name in names]
        return any(changed)

    def offload(
        self,
        ledgers: str | EmbeddedLedgers,
        *,
        stop: Position | None = None,
        take_over: bool = False,
        settings: Settings | None = None,
    ) -> Position | None:
        """Offload the entries that a ledger database has and the store lacks; returns the committed end.

        A process that offloads the stream anyway needs no such call. If interrupted, call it again: it continues.

        Args:
            ledgers: ``sqlite:///path/ledgers.db``, or an open ``EmbeddedLedgers``.
            stop: position before which to stop; ``None``: all.
            take_over: also if another writer appears active.
            settings: sizes and limits; ``offload.method`` selects the offload method.

        Raises:
            FencedError: another writer appears active.
            NotFoundError: no such database, or it doesn't have the stream.
            SourceMismatchError: the database is not the one in the manifest, or lacks acknowledged entries; the
                entries before those are offloaded.
            StoreUnavailableError, OutcomeUnknownError: the store or the database can't be used; call it again.
        """
        from offloader.ledgers.sqlite.embedded import require_whole
        from offloader.write.offloader import offload_manually

        chosen, last = settings or Settings(), None if stop is None else stop.previous()
        with ExitStack() as stack:
            database = self._database(ledgers, stack)
            history = stack.enter_context(self._history(chosen))
            source = database.view_stream(self.name, may_delete=True)
            result = offload_manually(history, source, self.name, chosen.offload.method, last=last, take_over=take_over)
            for error in result.errors:
                raise error
            require_whole(database.path, database.losses([self.name]), self.name, result.committed, last)
            return result.committed

    def set_source(
        self, ledgers: str | EmbeddedLedgers, *, dry_run: bool = False, settings: Settings | None = None
    ) -> Acceptance:
        """Make another ledger database the hot tier of the stream, even if it does not match the store. No undo.

        Stop the process that appends first. Missing entries become a gap, and ledgers of the database that contradict
        the manifest are set aside. ``Acceptance.why`` is empty if nothing was to do.

        Args:
            ledgers: the new database; it is created unless ``dry_run``.
            dry_run: only plan.
            settings: of the stream.

        Raises:
            NotFoundError: no such stream, or with ``dry_run`` no such database.
            InvalidCallError: a topic with partitions.
            StoreUnavailableError, OutcomeUnknownError: call it again.
        """
        from offloader.ledgers.sqlite.embedded import has_stream
        from offloader.manifest.log import ManifestLog
        from offloader.manifest.names import named_streams
        from offloader.read.reader import load_stream
        from offloader.runtime.clock import SystemClock
        from offloader.write.epoch import accept_source

        chosen, clock = settings or Settings(), SystemClock()
        named_streams(self.objects, self.name).require_one("this needs one stream")
        if not has_stream(ledgers, self.name):
            load_stream(self.objects, self.name)  # an unknown stream is refused before a database is created
        if not dry_run:
            self._require_writable(chosen)
        with ExitStack() as stack:
            database = self._database(ledgers, stack, create=not dry_run)
            if not dry_run:
                database.accept_loss(self.name)
                if self.name not in database.streams():
                    database.open_stream(self.name, held=True)
            source = database.view_stream(self.name, may_delete=not dry_run)
            log = ManifestLog(self.objects, self.name, clock=clock, settings=chosen.manifest)
            return accept_source(log, source, settings=chosen.offload, clock=clock, dry_run=dry_run)

    def accept_loss(
        self,
        ledgers: str | EmbeddedLedgers,
        *,
        take_over: bool = False,
        dry_run: bool = False,
        settings: Settings | None = None,
    ) -> AcceptedLoss:
        """Accept that the ledger database lacks acknowledged entries, so that the stream opens again. No undo.

        Entries that the store lacks too become a gap of the manifest. Stop the process that appends first. If you have
        a copy of the database with the entries, restore it instead.

        Args:
            ledgers: the database that writes the stream.
            take_over: continue even if another writer appears active.
            dry_run: only list them.
            settings: of the stream.

        Raises:
            NotFoundError: no such stream or database.
            FencedError: another writer appears active.
            InvalidCallError: a topic with partitions.
            StoreUnavailableError, OutcomeUnknownError: call it again.
        """
        from offloader.manifest.catalog import read_entry
        from offloader.manifest.log import ManifestLog
        from offloader.manifest.names import named_streams
        from offloader.read.reader import load_stream
        from offloader.runtime.clock import SystemClock
        from offloader.write import epoch

        chosen, clock, objects = settings or Settings(), SystemClock(), self.objects
        named_streams(objects, self.name).require_one("this needs one stream")
        with ExitStack() as stack:
            database = self._database(ledgers, stack)
            is_offloaded = read_entry(objects, self.name) is not None
            if not is_offloaded and self.name not in database.streams():
                load_stream(objects, self.name)  # raises for an unknown stream
            if not dry_run:
                self._require_writable(chosen)
            lost, recorded = database.accept_loss(self.name, dry_run=dry_run), None
            if not dry_run and is_offloaded:
                log = ManifestLog(objects, self.name, clock=clock, settings=chosen.manifest)
                source = database.view_stream(self.name, may_delete=True)
                recorded = epoch.accept_loss(log, source, settings=chosen.offload, clock=clock, take_over=take_over)
            return epoch.AcceptedLoss(tuple(lost), recorded)

    def truncate(
        self,
        before: Position,
        *,
        ledgers: str | EmbeddedLedgers | None = None,
        force: bool = False,
        dry_run: bool = False,
        settings: Settings | None = None,
    ) -> Truncation:
        """Move the start position forward: entries before it become unreadable, and cleanup deletes their segments.

        Args:
            before: the first position to keep; no effect if the stream already begins later.
            ledgers: database whose closed ledgers before the position are deleted too.
            force: also past the committed end, which loses entries that aren't offloaded.
            dry_run: only plan.
            settings: of the stream.

        Raises:
            NotFoundError: no such stream.
            EditRefusedError: an earlier entry isn't offloaded and not forced, or the stream is on hold.
            InvalidCallError: no entry was ever written before the position.
            FencedError: forced, and an active writer owns the stream.
        """
        from offloader.manifest.log import ManifestLog
        from offloader.retention.truncate import truncate_stream
        from offloader.runtime.clock import SystemClock

        clock, chosen = SystemClock(), settings or Settings()
        if not dry_run:
            self._require_writable(chosen)
        with ExitStack() as stack:
            database = None if ledgers is None else self._database(ledgers, stack)
            source = None if database is None else database.view_stream(self.name, may_delete=not dry_run)
            log = ManifestLog(self.objects, self.name, clock=clock, settings=chosen.manifest)
            how: Any = {"force": force, "dry_run": dry_run, "method": chosen.offload.method}
            after_s = chosen.offload.takeover_after
            return truncate_stream(log, before, clock=clock, source=source, takeover_after_s=after_s, **how)

    def plan_retention(
        self, *, settings: Settings | None = None, ledgers: str | EmbeddedLedgers | None = None
    ) -> CycleOutcome:
        """The decision of the next retention cycle, with its reason; changes nothing.

        Args:
            settings: of the stream; ``retention`` has the policy.
            ledgers: database with entries that are not offloaded yet.

        Raises:
            NotFoundError: no such stream, or no such database.
            InvalidCallError: contradictory settings, one partition of a topic, or ``pulsar.broker_plugin``.
            CorruptError: a document or a manifest is damaged.
        """
        with self._cycle(settings, ledgers) as cycle:
            return cycle.plan(self.name)

    def explain_retention(
        self, *, settings: Settings | None = None, ledgers: str | EmbeddedLedgers | None = None
    ) -> str:
        """As ``plan_retention``, in lines for a terminal: entries, rule, and subscribers that still need them."""
        from offloader.retention.explain import explain

        return "\n".join(explain(self.plan_retention(settings=settings, ledgers=ledgers)))

    def run_retention(
        self, *, settings: Settings | None = None, ledgers: str | EmbeddedLedgers | None = None
    ) -> CycleOutcome:
        """Run one retention cycle: record the end of the stream, decide, and move the start position.

        Cleanup deletes the segments before the new start. Safe to interrupt and to repeat.

        Args:
            settings, ledgers: as for ``plan_retention``; the database's ledgers before the start are deleted too.

        Raises:
            ClockSkewError, DeletionStoppedError, EditRefusedError: clocks that can't be trusted, or a hold.
            StoreUnavailableError, OutcomeUnknownError: it ended early. Others as ``plan_retention``.
        """
        self.partitions()  # before the store is probed with a write
        self._require_writable(settings or Settings())
        with self._cycle(settings, ledgers, may_delete=True) as cycle:
            return cycle.run(self.name)

    @contextmanager
    def _cycle(
        self, settings: Settings | None, ledgers: str | EmbeddedLedgers | None, *, may_delete: bool = False
    ) -> Iterator[RetentionCycle]:
        from offloader.retention.cycle import RetentionCycle, require_no_broker
        from offloader.retention.scope import no_source
        from offloader.runtime.clock import SystemClock

        chosen = settings or Settings()
        require_no_broker(chosen.pulsar)
        with ExitStack() as stack:
            source_of: SourceOf = no_source
            if ledgers is not None:
                source_of = partial(self._database(ledgers, stack).source_of, may_delete=may_delete)
            yield RetentionCycle(self.objects, clock=SystemClock(), settings_of=lambda _: chosen, source_of=source_of)

    def deletions(self) -> Iterator[DeletionRecord]:
        """Every recorded deletion of segments, finished ones first: cause, actor, objects, sizes and time.

        Kept for ``cleanup.audit_period``, and as long as the stream exists.

        Raises:
            NotFoundError: the stream does not exist.
            CorruptError: a record is damaged.
        """
        from offloader.gc.sweep import read_batches

        for name in self.partitions():
            for done in (True, False):
                yield from read_batches(self.objects, name, done=done)

    def orphans(self, *, delete: bool = False, settings: Settings | None = None) -> Iterator[Garbage]:
        """Objects and unfinished uploads of the stream that its manifest does not reference. Iterate to the end.

        Args:
            delete, settings: as for ``Store.orphans``.

        Raises:
            NotFoundError: no such stream.
            LostRecordsError: an object refers to a missing record.
            others: as ``Store.orphans``.
        """
        from offloader.gc.reconcile import Reconciliation
        from offloader.manifest.names import named_streams
        from offloader.runtime.clock import SystemClock

        chosen = settings or Settings()
        names = named_streams(self.objects, self.name).streams
        if delete:
            self._require_writable(chosen)
        for name in names:
            how: Any = {"clock": SystemClock(), "settings": chosen.manifest, "delete": delete}
            yield from Reconciliation(self.objects, name, **how).leftovers()

    def compact(self, *, recode: bool = False, settings: Settings | None = None) -> int:
        """Merge small neighbouring segments; returns the number of segments that were replaced.

        Readers and the stream's owner continue meanwhile. If interrupted, call it again.

        Args:
            recode: also rewrite segments whose compression isn't the one of ``settings``.
            settings: size and codec of the new segments, ``offload``.

        Raises:
            EditRefusedError: the stream is on hold, or other writers changed it repeatedly.
            FencedError: another writer took the stream over during the call.
            StoreUnavailableError, OutcomeUnknownError: the store can't be used; call it again.
        """
        names = self.partitions()
        with self._history(settings) as history:
            done = [history.compact(name, recode=recode) for name in names]
        for error in (error for each in done for error in each.errors):
            raise error
        return sum(each.replaced for each in done)

    def cleanup(
        self, *, allow_large: bool = False, dry_run: bool = False, settings: Settings | None = None
    ) -> list[CleanupReport]:
        """Run one cleanup round of each partition: retire unneeded segments, and purge those after the grace period.

        A retired segment can be restored with ``undo``. Safe to interrupt and to repeat.

        Args:
            allow_large: also retire more than half of a stream.
            dry_run: only plan: ``CleanupReport.plan`` has the segments.
            settings: of the stream; ``cleanup`` has the grace period.

        Raises:
            NotFoundError: no such stream.
            LargeDeleteError: more than half would be retired, and ``allow_large`` is off.
            DeletionStoppedError, ClockSkewError: a hold on the store, or clocks that can't be trusted.
            EditRefusedError, StoreUnavailableError, OutcomeUnknownError: it ended early; the next round continues.
        """
        from offloader.gc.sweep import cleanup_stream
        from offloader.runtime.clock import SystemClock

        names, chosen = self.partitions(), settings or Settings()
        if not dry_run:
            self._require_writable(chosen)
        how: Any = {"clock": SystemClock(), "settings": chosen, "allow_large": allow_large, "dry_run": dry_run}
        return [cleanup_stream(self.objects, name, **how) for name in names]

    def undo(
        self,
        *,
        segments: Sequence[UUID] = (),
        start: Position | None = None,
        dry_run: bool = False,
        settings: Settings | None = None,
    ) -> list[Undone]:
        """Undo a truncation: restore retired segments that are not purged yet, and the start position before it.

        Args:
            segments: only these; default: all retired ones. Only for a single stream.
            start: the new start position; default: the one before the truncation. Only for a single stream.
            dry_run: only plan.
            settings: of the stream.

        Raises:
            NotFoundError: no such stream.
            InvalidCallError: nothing is retired, one of ``segments`` isn't, or the topic has partitions.
            EditRefusedError: the segments would leave a gap; nothing was changed.
            StoreUnavailableError, OutcomeUnknownError: call it again.
        """
        from offloader.gc.sweep import undo_retirements
        from offloader.manifest.log import ManifestLog
        from offloader.read.reader import existing_streams
        from offloader.runtime.clock import SystemClock

        named, chosen = existing_streams(self.objects, self.name), settings or Settings()
        if segments or start is not None:
            named.require_one("a segment or a position belongs to one")
        if not dry_run:
            self._require_writable(chosen)
        logs = (
            ManifestLog(self.objects, name, clock=SystemClock(), settings=chosen.manifest) for name in named.streams
        )
        return [undo_retirements(log, segments=segments, head=start, dry_run=dry_run) for log in logs]

    def delete(
        self, *, ignore_leases: bool = False, dry_run: bool = False, settings: Settings | None = None
    ) -> list[StreamRemoval]:
        """Delete the stream: its segments, unfinished uploads, records and manifest. There is no undo.

        A tombstone remains for ``manifest.orphan_age_min``; a later call, or a cleanup round, finishes the deletion.
        The hot tier is not changed.

        Args:
            ignore_leases: also while a reader holds a lease.
            dry_run: only count.
            settings: of the stream.

        Raises:
            NotFoundError: no such stream.
            EditRefusedError: the stream is on hold. InvalidCallError: a reader holds a lease.
            StoreUnavailableError, OutcomeUnknownError: call it again.
        """
        from offloader.maintenance import delete_streams
        from offloader.runtime.clock import SystemClock

        chosen = settings or Settings()
        how: Any = {"clock": SystemClock(), "settings": chosen.manifest}
        planned = delete_streams(self.objects, self.name, dry_run=True, **how)
        if dry_run:
            return planned
        self._require_writable(chosen)  # after a missing stream was refused: it probes the store with a write
        return delete_streams(self.objects, self.name, ignore_leases=ignore_leases, **how)

    def hold(self, reason: str = "", *, settings: Settings | None = None) -> bool:
        """Stop all deletion from the stream until ``release_hold``; False: it already had a hold.

        Args:
            reason: recorded in the manifest.
            settings: of the stream.

        Raises:
            as ``pause``.
        """
        return self._set_hold(reason, settings, on=True)

    def release_hold(self, *, settings: Settings | None = None) -> bool:
        """Allow deletion again; False: the stream had no hold. Raises as ``pause``."""
        return self._set_hold("", settings, on=False)

    def _set_hold(self, reason: str, settings: Settings | None, *, on: bool) -> bool:
        from offloader.manifest.protection import set_hold
        from offloader.runtime.clock import SystemClock

        names = self.partitions()  # before the store is probed with a write
        self._require_writable(settings or Settings())
        changed = [set_hold(self.objects, name, on=on, reason=reason, clock=SystemClock()) for name in names]
        return any(changed)

    def status(self, *, serving: str = "") -> list[Mapping[str, Any]]:
        """Mode, positions, segments and sizes of each partition: a row of ``offloader status --json``.

        Args:
            serving: address of the ``offloader serve`` that knows mode, lag and rate; it gets OFFLOADER_TOKEN.

        Raises:
            NotFoundError, CorruptError: the stream does not exist, or its manifest is damaged.
            StoreUnavailableError, AccessDeniedError, InvalidCallError: no process of this store, or no access to it.
        """
        from offloader.monitor import status_rows

        served: Mapping[str, Any] = {"streams": ()}
        if serving:
            from offloader.owner_client import served_status

            served = served_status(serving, self.objects.url)
        return status_rows(self.objects, self.partitions(), served)

    @property
    def manifest(self) -> StreamManifest:
        """The manifest, to be shown, checkpointed, expired or rebuilt."""
        from offloader.stream_manifest import StreamManifest

        return StreamManifest(self.objects, self.name)

    def undo_import(self, *, dry_run: bool = False, settings: Settings | None = None) -> int:
        """Remove imported segments from the manifest; returns their number. No object is deleted.

        Args:
            dry_run: only count.
            settings: of the stream.

        Raises:
            NotFoundError: no such stream.
            StoreUnavailableError, OutcomeUnknownError: call it again.
        """
        from offloader.adopt import release
        from offloader.runtime.clock import SystemClock

        names, clock = self.partitions(), SystemClock()
        if not dry_run:
            self._require_writable(settings or Settings())
        return sum(release(self.objects, name, clock=clock, dry_run=dry_run) for name in names)

    @property
    def export(self) -> StreamExport:
        """Exports of the stream: ``export.iceberg``, ``export.parquet``, ``export.pulsar`` and ``export.v1``."""
        from offloader.export import StreamExport

        return StreamExport(self.objects, self.name)

    @contextmanager
    def _history(self, settings: Settings | None) -> Iterator[BackfillService]:
        from offloader.write.offloader import LedgerOffloader

        chosen = settings or Settings()
        self._require_writable(chosen)
        with closing(LedgerOffloader(self.objects, chosen)) as offloader:
            yield offloader.history

    def _require_writable(self, settings: Settings) -> None:
        from offloader.store.probe import require_conditional_puts

        require_conditional_puts(self.objects, single_writer=settings.store.single_writer)

    @staticmethod
    def _database(ledgers: str | EmbeddedLedgers, stack: ExitStack, *, create: bool = False) -> EmbeddedLedgers:
        from offloader.ledgers.sqlite.embedded import EmbeddedLedgers

        if isinstance(ledgers, EmbeddedLedgers):
            return ledgers
        return stack.enter_context(closing(EmbeddedLedgers(ledgers, create=create)))

    def segments(self) -> list[SegmentRecord]:
        """The offloaded segments with readable entries, partition by partition, in stream order.

        Raises:
            NotFoundError, CorruptError: as ``open_reader``.
        """
        with self.open_reader() as reader:
            return reader.segments()

    def retention(self, *, source_of: ReadableOf | None = None) -> StreamRetention:
        """Subscribers and their positions. The store must be open for writing, for every change.

        Args:
            source_of: the hot tier by a stream's name, for subscribers that read entries before they are offloaded;
                without it a stream ends at its committed end.

        Raises:
            NotFoundError: the stream does not exist.
            InvalidCallError: one partition of a topic.
        """
        from offloader.retention.subscribers import open_retention

        return open_retention(self.objects, self.name, source_of=source_of)

    def verify(self, *, deep: bool = False, settings: ReadSettings | None = None) -> Iterator[Finding]:
        """Deviations of the stored objects from the manifest; none: the stream is complete.

        Args:
            deep: also read and decode every block, and read the records that a checkpoint contains.
            settings: sizes and limits of requests.

        Raises:
            NotFoundError, CorruptError: the stream does not exist, or its manifest is damaged.
            StoreUnavailableError, AccessDeniedError: the store can't be used.
        """
        from offloader.inspect.verify import check_stream
        from offloader.read.fetch import Fetcher
        from offloader.read.reader import load_stream

        for name in self.partitions():
            state = load_stream(self.objects, name)
            yield from check_stream(Fetcher(self.objects, settings or ReadSettings()), state, deep=deep)
