"""Export of a stream to other formats: ``Stream.export``.

The four kinds have a method each, with the names of ``offloader export``. One method for all of them would take the
options of an Iceberg catalogue beside those of a Pulsar cluster, and return one of four results.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from offloader.errors import needs_extra
from offloader.settings import Settings
from offloader.store.base import ObjectStore
from offloader.store.open import open_store

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from formats.entries import Position
    from offloader.export.parquet import ParquetExport
    from offloader.export.pulsar import Replayed
    from offloader.iceberg import Exported
    from offloader.read.scan import Moment
    from offloader.write.export_v1 import ExportedLedger

Content = Literal["entries", "messages"]


class StreamExport:
    """Exports of one stream, or of a topic with all its partitions; see ``Stream.export``.

    A method that is repeated after an interruption continues where it stopped, except ``parquet``, which refuses a
    range that is partly exported. The commands ``offloader export`` call the same code.
    """

    def __init__(self, store: ObjectStore, stream: str) -> None:
        self._store, self._stream = store, stream

    def __repr__(self) -> str:
        return f"StreamExport({self._store.url!r}, {self._stream!r})"

    def iceberg(
        self,
        table: str | Table,
        *,
        catalog: str = "",
        warehouse: str = "",
        catalog_options: Mapping[str, str] | None = None,
        content: Content = "entries",
        schema: str | Path | Mapping[int | None, str | Path] | None = None,
        message_type: str = "",
        admin_url: str = "",
        recorded_schemas: bool = False,
        skip_lost: bool = False,
        subscriber: str = "",
        on_bad_message: Literal["error", "null"] = "error",
        range_size: int = 1024**3,
        settings: Settings | None = None,
        stopping: threading.Event | None = None,
    ) -> list[Exported]:
        """Add the entries that an Iceberg table does not have yet; returns the result of each partition.

        Each range is one commit with the range's positions, so that a repeated or concurrent export adds no row twice.

        Args:
            table: ``NAMESPACE.TABLE``, which is created if it does not exist; or an open table of ``open_table``.
            catalog: ``sqlite:////folder/catalog.db`` or another SQL database, ``https://...`` for REST, or a name in
                ``~/.pyiceberg.yaml``. Only for a table's name; so are ``warehouse`` and ``catalog_options``.
            warehouse: location of a new table's files.
            catalog_options: properties of the catalogue with pyiceberg's names.
            content: a row is an entry, or a message of Pulsar.
            schema: decodes the values: a file with their schema, or files by version (``None``: all other versions).
            message_type: message type in a schema with protobuf descriptors.
            admin_url: get the schemas from this Pulsar; the token is in ``OFFLOADER_ADMIN_TOKEN``.
            recorded_schemas: use the schemas that ``offloader serve`` recorded of a scalable topic.
            skip_lost: skip entries that retention deleted before they were exported.
            subscriber: protect unexported entries from retention as this subscriber. The store must be open for
                writing.
            on_bad_message: for an entry that is not a message, or a value that does not match its schema: raise, or add
                a row with the reason.
            range_size: maximum bytes of one commit.
            settings: of the stream.
            stopping: if it is set, the export ends after the current range.

        Raises:
            UnsupportedError: without the extra ``iceberg``. Others as ``offloader.iceberg.open_table`` and ``export``.
        """
        from formats.pulsar.messages import BadEntry

        with needs_extra("iceberg", "an export to Iceberg"):
            from offloader.export.iceberg import export_topic
            from offloader.iceberg import open_table
        from offloader.read.schemas import ValueSchemas

        files: Mapping[int | None, str | Path] = {None: schema} if isinstance(schema, str | Path) else schema or {}
        schemas = ValueSchemas(files=files, message_type=message_type, admin_url=admin_url, recorded=recorded_schemas)
        if isinstance(table, str):
            table = open_table(table, catalog=catalog, warehouse=warehouse, options=catalog_options, content=content)
        chosen = settings or Settings()
        return export_topic(
            self._store,
            self._stream,
            table,
            schemas=schemas,
            settings_of=lambda _: chosen.read,
            skip_lost=skip_lost,
            subscriber=subscriber,
            range_bytes=range_size,
            bad_messages=BadEntry(on_bad_message),
            stop=stopping,
        )

    def parquet(
        self,
        dest: str,
        *,
        endpoint_url: str | None = None,
        region: str | None = None,
        start: Position | None = None,
        stop: Position | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
        content: Content = "entries",
        columns: Sequence[str] = (),
        on_bad_message: Literal["error", "null"] = "error",
        file_size: int = 64 * 1024**2,
        row_group_size: int = 16 * 1024**2,
        dry_run: bool = False,
        settings: Settings | None = None,
    ) -> list[ParquetExport]:
        """Write a range as Parquet files; returns the result of each partition.

        A file is created whole and never replaced: ``DEST/STREAM/FIRST-LAST.parquet``.

        Args:
            dest: ``file:///folder``, or the URL of another store.
            endpoint_url, region: of ``dest``, as for ``open_store``.
            start, stop, since, until: as for ``Stream.scan``.
            content: a row is an entry, or a message of Pulsar.
            columns: in the wanted order; default: all. Entries have those of ``Stream.scan``.
            on_bad_message: for an entry that is not a message: raise, or add a row with the reason.
            file_size: maximum bytes of a file, unless one entry is larger. A file is built in memory.
            row_group_size: maximum bytes of a row group before compression.
            dry_run: write nothing; the results have the number of entries.
            settings: of the stream.

        Raises:
            NotFoundError: the stream does not exist.
            InvalidCallError: an existing file overlaps the range, or an argument is wrong.
            CorruptError: an entry is damaged or not a message.
            StoreUnavailableError, OutcomeUnknownError: a store can't be used. The written files are complete.
        """
        from formats.pulsar.messages import BadEntry
        from offloader.export.parquet import ParquetOptions, export_parquet, open_target

        options = ParquetOptions(
            start=start,
            stop=stop,
            since=since,
            until=until,
            content=content,
            columns=columns,
            bad_messages=BadEntry(on_bad_message),
            file_bytes=file_size,
            row_group_bytes=row_group_size,
        )
        chosen = settings or Settings()
        target = open_target(dest, endpoint_url=endpoint_url, region=region, settings=chosen, dry_run=dry_run)
        try:
            done = export_parquet(self._store, self._stream, target, options, settings=chosen.read, dry_run=dry_run)
            return list(done)
        finally:
            if target is not None:
                target.close()

    def v1(
        self,
        dest: str,
        broker_record: str | Path | Mapping[int, str | Path],
        *,
        endpoint_url: str | None = None,
        region: str | None = None,
        dry_run: bool = False,
        settings: Settings | None = None,
    ) -> list[ExportedLedger]:
        """Write the stream's ledgers for a broker with Pulsar's own offloader.

        Each object is read back and compared, and existing objects are kept. The stream isn't changed.

        Args:
            dest: the bucket of the broker's own offloader.
            broker_record: file with the broker's metadata record of the topic, or of each partition by its number.
            endpoint_url, region: of ``dest``, as for ``open_store``.
            dry_run: write nothing.
            settings: of the stream.

        Raises:
            NotFoundError, UnsupportedError, SourceMismatchError: the stream or a record does not exist; or ledgers
                can't be exported: the error names them, and all others are exported.
            InvalidCallError: a record is missing or invalid, or ``dest`` is a folder of a bucket.
            StoreUnavailableError, OutcomeUnknownError: a store can't be used; repeat the call.
        """
        from offloader.export.v1 import plan_export
        from offloader.write.export_v1 import error_of

        chosen = settings or Settings()
        given = broker_record.items() if isinstance(broker_record, Mapping) else [(None, broker_record)]
        plan = plan_export(self._store, self._stream, [(number, str(path)) for number, path in given])
        target = open_store(
            dest,
            endpoint_url=endpoint_url,
            region=region,
            settings=chosen.store,
            limits=chosen.limits,
            read_only=dry_run,
            create=not dry_run,
        )
        with closing(target):
            found = [
                ledger
                for stream in plan.named.streams
                for ledger in plan.run(stream, target, settings=chosen, dry_run=dry_run)
            ]
        if (error := error_of(found)) is not None:
            raise error
        return found

    def pulsar(
        self,
        dest: str,
        *,
        service_url: str = "",
        token_file: str = "",
        ca_file: str = "",
        start: Position | None = None,
        stop: Position | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
        rate: float = 0,
        rate_mbytes: float = 0,
        with_transactions: bool = False,
        label: str = "",
        progress_file: str = "",
        dry_run: bool = False,
        settings: Settings | None = None,
    ) -> list[Replayed]:
        """Send the stream's messages to a Pulsar topic; returns the result of each partition.

        Messages arrive once if the target's broker deduplicates; otherwise at most one entry may arrive twice, and the
        result reports it. A relative ``since`` is resolved at the first run and kept with the progress.

        Args:
            dest: ``persistent://tenant/namespace/topic``, which must exist, with as many partitions.
            service_url: ``pulsar://broker:6650`` or ``pulsar+ssl://broker:6651``; default: that of ``settings``.
            token_file, ca_file: files with the token, and with certificate authorities.
            start, stop, since, until: as for ``Stream.scan``.
            rate, rate_mbytes: maximum messages and megabytes per second; 0: unlimited.
            with_transactions: also send messages of transactions, as committed.
            label: name of the replay; another name sends the range again.
            progress_file: records the progress; default: a file in ``~/.local/state/offloader/replay``.
            dry_run: send nothing.
            settings: of the stream.

        Raises:
            NotFoundError: the stream or the topic does not exist.
            InvalidCallError: no cluster was given, or an argument is wrong; or the replay of that relative start is
                finished.
            CorruptError: an entry is damaged or not a message.
            TrimmedError: entries after those of an earlier run were deleted.
            StoreUnavailableError, OutcomeUnknownError: a store or the broker can't be used; repeat the call.
        """
        from offloader.export.pulsar import ReplayOptions, open_replay
        from offloader.replay import ReplayLimits

        options = ReplayOptions(
            start=start,
            stop=stop,
            since=since,
            until=until,
            limits=ReplayLimits(messages_per_s=rate, bytes_per_s=rate_mbytes * 1e6),
            with_transactions=with_transactions,
            label=label,
            progress_file=progress_file,
        )
        with open_replay(
            self._store,
            self._stream,
            dest,
            options,
            settings=settings or Settings(),
            service_url=service_url,
            token_file=token_file,
            ca_file=ca_file,
            dry_run=dry_run,
        ) as replay:
            return list(replay.run())
