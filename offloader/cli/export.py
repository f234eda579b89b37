"""``offloader export iceberg STREAM...``: adds streams to an Iceberg table, once or continuously."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from formats.pulsar.messages import BadEntry
from offloader.cli.errors import run_on_each
from offloader.cli.messages import SchemaArguments
from offloader.cli.options import Json, StoreArguments, amount, name_argument, named_value, option
from offloader.cli.output import counted, print_result
from offloader.cli.spark import Content
from offloader.errors import InvalidCallError, OffloaderError, OutcomeUnknownError
from offloader.manifest.names import named_streams
from offloader.read.reader import load_stream
from offloader.read.schemas import ValueSchemas
from offloader.retention.subscribers import require_subscriber_name
from offloader.runtime.clock import Clock, SystemClock
from offloader.settings import Settings
from offloader.store.base import ObjectStore

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from offloader.iceberg import Exported


#: Interval of --follow.
EVERY_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TableArguments:
    """Options that name the table."""

    table: Annotated[str, option("--table", "Table; created if it does not exist.", metavar="NAMESPACE.TABLE")] = ""
    catalog: Annotated[
        str,
        option(
            "--catalog",
            "Catalogue: sqlite:////folder/catalog.db or another SQL database, https://... for REST, or a name in "
            "~/.pyiceberg.yaml.",
            metavar="URL",
        ),
    ] = ""
    warehouse: Annotated[
        str, option("--warehouse", "Location of a new table's files: file:///folder, s3://bucket/root.", metavar="URL")
    ] = ""
    catalog_option: Annotated[
        list[str] | None,
        option("--catalog-option", "A pyiceberg property of the catalogue. May be repeated.", metavar="N=V"),
    ] = None

    content: Annotated[Content, typer.Option("--content", help="Content of a row.")] = "entries"

    def open(self, *, create: bool = True) -> Table:
        """The table, created where it doesn't exist and ``create`` is set.

        Raises ``InvalidCallError``, and as ``offloader.iceberg.open_table``.
        """
        if not self.table or not self.catalog:
            raise InvalidCallError(
                "missing --table and --catalog",
                hint="give --table NAMESPACE.TABLE and --catalog URL, and for a new table --warehouse URL",
            )
        example = "for example s3.endpoint=http://10.0.0.1:9000"
        options = dict(named_value(text, option="--catalog-option", hint=example) for text in self.catalog_option or [])

        from offloader.iceberg import open_table  # loads pyiceberg, which is slow, and an extra

        return open_table(
            self.table,
            catalog=self.catalog,
            warehouse=self.warehouse,
            options=options,
            content=self.content,
            create=create,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeArguments:
    """Options for the exported rows."""

    skip_lost: Annotated[
        bool, typer.Option("--skip-lost", help="Skip entries that retention deleted before they were exported.")
    ] = False
    subscriber: Annotated[
        str,
        option(
            "--subscriber",
            "Protect unexported entries from retention as this subscriber; writes to the store.",
            metavar="NAME",
        ),
    ] = ""
    on_bad_message: Annotated[
        BadEntry,
        typer.Option(
            "--on-bad-message",
            help="For an entry that is not a message, or a value that does not match its schema: fail, or add a row "
            "with the reason.",
        ),
    ] = BadEntry.ERROR
    range_size: Annotated[
        int, amount("--range-size", "Maximum data of one commit.", "bytes", whole=True, low=1, shown="1GiB")
    ] = 1024**3


@dataclass(frozen=True, slots=True, kw_only=True)
class UpkeepArguments:
    """Options for table maintenance after an export."""

    join_files: Annotated[
        bool, typer.Option("--join-files", help="After the export, join small data files of each day of these streams.")
    ] = False
    expire_snapshots: Annotated[
        float | None,
        amount(
            "--expire-snapshots",
            "After the export, expire snapshots of the table that are older than this.",
            "seconds",
            shown="never",
        ),
    ] = None
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Export nothing; print the files to join and snapshots to expire.")
    ] = False

    def require_sense(self) -> None:
        """Raises ``InvalidCallError`` for ``--dry-run`` without ``--join-files`` or ``--expire-snapshots``."""
        if self.dry_run and not self.join_files and self.expire_snapshots is None:
            raise InvalidCallError("--dry-run requires --join-files or --expire-snapshots", hint="give one of them")

    def run(self, store: ObjectStore, names: list[str], table: Table, clock: Clock, *, as_json: bool) -> None:
        """Maintains the table and prints the result; raises as ``offloader.iceberg.upkeep``."""
        from offloader.iceberg.upkeep import expire, join_files

        for stream in (
            [each for name in names for each in named_streams(store, name).streams] if self.join_files else []
        ):
            for done in join_files(table, stream, dry_run=self.dry_run):
                text = f"{'would join' if self.dry_run else 'joined'} {done.files} files of {done.bytes:,} bytes"
                print_result(asdict(done), f"{stream}: {text}", as_json=as_json)
        if self.expire_snapshots is not None:
            before_ms = clock.now_ms() - int(self.expire_snapshots * 1000)
            expired = expire(table, before_ms=before_ms, dry_run=self.dry_run)
            if expired.snapshots:
                name, number = ".".join(table.name()), counted(expired.snapshots, "snapshot")
                text = f"would expire {number}" if self.dry_run else f"expired {number}, deleted {expired.files} files"
                print_result({"table": name, **asdict(expired)}, f"{name}: {text}", as_json=as_json)
        sys.stdout.flush()


def run(
    streams: Annotated[list[str], name_argument("The streams' names, or topics'.", metavar="STREAM")],
    given: StoreArguments,
    place: TableArguments,
    wanted: RangeArguments,
    schemas: SchemaArguments,
    upkeep: UpkeepArguments,
    following: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep exporting newly offloaded entries until interrupted.")
    ] = False,
    every: Annotated[
        float | None,
        amount("--every", "With --follow: interval between exports.", "seconds", low=0.1, shown=str(EVERY_S)),
    ] = None,
    json: Json = False,
) -> int:
    """Add a stream's new entries to an Iceberg table; see docs/how-to/iceberg.md.

    Each range is one commit, which also records the stream's positions: repeated or restarted, the command continues
    after the last commit. Several exports may run concurrently. SIGTERM ends --follow after the current range. With
    --subscriber, retention keeps entries that the table does not have yet. Without --follow, a failure in one stream
    does not stop the others.

    Examples:
        offloader export iceberg orders --table lake.orders --catalog sqlite:///catalog.db --warehouse file:///data
        offloader export iceberg orders --table lake.orders --catalog https://catalog.example.com --follow
    """
    if every is not None and not following:
        raise InvalidCallError("--every requires --follow", hint="add --follow, or leave --every out")
    if wanted.subscriber:
        require_subscriber_name(wanted.subscriber)
    upkeep.require_sense()
    settings_of, store = given.settings_of(), given.open(read_only=upkeep.dry_run or not wanted.subscriber)
    _require_exportable(store, streams, schemas.schemas())  # before a table is created
    table = place.open(create=not upkeep.dry_run)
    clock, stop = SystemClock(), threading.Event()
    exported = [] if upkeep.dry_run else streams

    def add(name: str) -> None:
        for done in _exported(store, name, table, wanted, schemas.schemas(), settings_of, stop):
            if done.ranges or not following:
                _print(done, as_json=json)

    def look() -> None:
        for name in exported:
            add(name)
        if not stop.is_set():
            upkeep.run(store, streams, table, clock, as_json=json)

    with closing(table.catalog):
        if following:
            _follow(look, clock, stop, EVERY_S if every is None else every)
            return 0
        code = run_on_each(exported, add, as_json=json)
        if not code:
            upkeep.run(store, streams, table, clock, as_json=json)
        return code


def _follow(look: Callable[[], None], clock: Clock, stop: threading.Event, every_s: float) -> None:
    """Exports new entries every ``every_s`` seconds until SIGINT or SIGTERM; retries after a retryable error."""
    interrupted = threading.Event()

    def interrupt(*_: object) -> None:
        """Sets the event too: a library may swallow the exception in a C callback."""
        interrupted.set()
        stop.set()
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    signal.signal(signal.SIGINT, interrupt)
    while True:
        try:
            look()
        except OffloaderError as error:
            if not (error.retryable or isinstance(error, OutcomeUnknownError)):
                raise
            print(f"note: {error}; retrying in {every_s:g} s", file=sys.stderr)
        if clock.wait(stop, every_s):
            break
    if interrupted.is_set():
        raise KeyboardInterrupt


def _require_exportable(store: ObjectStore, names: list[str], schemas: ValueSchemas) -> None:
    """Raises for a stream that does not exist, and for a schema that can't be used."""
    from offloader.export.iceberg import values_of  # loads pyiceberg

    for name in names:
        named = named_streams(store, name)
        for each in named.streams:
            load_stream(store, each)
            values_of(schemas, store, each if named.layout is None else named.name)


def _exported(
    store: ObjectStore,
    name: str,
    table: Table,
    wanted: RangeArguments,
    schemas: ValueSchemas,
    settings_of: Callable[[str], Settings],
    stop: threading.Event,
) -> list[Exported]:
    from offloader.export.iceberg import export_topic

    return export_topic(
        store,
        name,
        table,
        schemas=schemas,
        settings_of=lambda each: settings_of(each).read,
        skip_lost=wanted.skip_lost,
        subscriber=wanted.subscriber,
        range_bytes=wanted.range_size,
        bad_messages=wanted.on_bad_message,
        stop=stop,
    )


def _print(done: Exported, *, as_json: bool) -> None:
    entries, rows = sum(each.entries for each in done.ranges), sum(each.rows for each in done.ranges)
    facts = {"stream": done.stream, "ranges": len(done.ranges), "entries": entries, "rows": rows, "end": done.end}
    new = f"{entries:,} new entries, exported up to {done.end}" if done.ranges else "no new entries"
    print_result(facts, f"{done.stream}: {new}", as_json=as_json)
    sys.stdout.flush()
