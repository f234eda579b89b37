"""Export a range of a stream as Parquet files to a directory or a bucket, without Spark.

A file is built in memory and created with one request, which fails if the name exists: readers see whole files only,
and no file is replaced. Its name has its first and last position, ``FIRST-LAST.parquet`` with zero-padded numbers, in
the stream's folder. A range that overlaps an existing file is refused before the first entry is read. After an
interruption the existing files are complete, and the next export starts after the last one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq

from formats.entries import Position
from formats.pulsar.messages import COLUMNS as MESSAGE_COLUMNS
from formats.pulsar.messages import BadEntry, MessageOptions
from offloader.errors import (
    BucketMissingError,
    CorruptError,
    InvalidCallError,
    NotFoundError,
    OutcomeUnknownError,
    PreconditionFailedError,
)
from offloader.manifest.names import named_streams
from offloader.read.partitions import open_reader
from offloader.read.scan import SCHEMA, Moment, Query, Scan, scan_of
from offloader.settings import ReadSettings, Settings
from offloader.store.base import CREATE, ObjectInfo, ObjectStore
from offloader.store.open import open_store

Content = Literal["entries", "messages"]
#: Default maximum of a file, which is built in memory.
FILE_BYTES_MAX = 64 * 1024**2
#: Default maximum of the rows of a row group before compression.
ROW_GROUP_BYTES_MAX = 16 * 1024**2
ROW_GROUP_ROWS_MAX = 1_000_000
#: Reserved for the footer of a file: metadata of each column of each row group.
_FOOTER_BYTES = 64 * 1024
_DIGITS = 19
_NAME = re.compile(rf"(\d{{{_DIGITS}}})_(\d{{{_DIGITS}}})-(\d{{{_DIGITS}}})_(\d{{{_DIGITS}}})\.parquet")
_POSITION = ("ledger_id", "entry_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetOptions:
    """The rows of an export, and the size of its files.

    Attributes:
        start, stop: positions, ``start <= position < stop``; only of a single stream.
        since, until: publish times, instead of positions: as for ``Stream.scan``.
        content: a row is an entry, or a message of Pulsar.
        columns: in the wanted order; empty: all.
        bad_messages: for an entry that is not a message: raise ``CorruptError``, or add a row with the reason.
        file_bytes: maximum size of a file, unless one entry is larger.
        row_group_bytes: maximum size of the rows of a row group before compression.
    """

    start: Position | None = None
    stop: Position | None = None
    since: Moment | None = None
    until: Moment | None = None
    content: Content = "entries"
    columns: Sequence[str] = ()
    bad_messages: BadEntry = BadEntry.ERROR
    file_bytes: int = FILE_BYTES_MAX
    row_group_bytes: int = ROW_GROUP_BYTES_MAX

    def __post_init__(self) -> None:
        known = self.known_columns()
        if self.content not in ("entries", "messages"):
            raise InvalidCallError(f"unknown content {self.content!r}", hint="use entries or messages")
        if unknown := [name for name in self.columns if name not in known]:
            raise InvalidCallError(
                f"{self.content} have no column {', '.join(unknown)}", hint=f"columns: {', '.join(known)}"
            )
        if len(set(self.columns)) < len(self.columns):
            raise InvalidCallError(f"duplicate column in: {', '.join(self.columns)}", hint="name each column once")
        if not 0 < self.row_group_bytes <= self.file_bytes:
            raise InvalidCallError(
                f"a row group of {self.row_group_bytes:,} bytes doesn't fit a file of {self.file_bytes:,} bytes",
                hint="give a row group size of at least 1 byte and at most the file size",
            )

    def known_columns(self) -> Sequence[str]:
        """All columns of the content."""
        return ["stream", *MESSAGE_COLUMNS] if self.content == "messages" else SCHEMA.names


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetFile:
    """A written file.

    Attributes:
        key: its name in the target.
        first, last: positions of its first and last row.
    """

    key: str
    rows: int
    size_bytes: int
    first: Position
    last: Position


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetExport:
    """Result of the export of one stream; of a dry run without files.

    Attributes:
        entries: number of entries in the range.
    """

    stream: str
    entries: int
    files: tuple[ParquetFile, ...] = ()

    @property
    def rows(self) -> int:
        """Rows of all files."""
        return sum(each.rows for each in self.files)


def open_target(
    dest: str, *, endpoint_url: str | None, region: str | None, settings: Settings, dry_run: bool
) -> ObjectStore | None:
    """The store of the files; ``None``: a dry run, and the local directory does not exist. Raises as ``open_store``."""
    try:
        return open_store(
            dest,
            endpoint_url=endpoint_url,
            region=region,
            settings=settings.store,
            limits=settings.limits,
            read_only=dry_run,
            create=not dry_run,
        )
    except BucketMissingError:
        if dry_run:
            return None
        raise


def export_parquet(
    store: ObjectStore,
    name: str,
    target: ObjectStore | None,
    options: ParquetOptions,
    *,
    settings: ReadSettings | None = None,
    dry_run: bool = False,
    on_progress: Callable[[ParquetExport], object] = lambda _: None,
) -> Iterator[ParquetExport]:
    """Export a stream, or one partition of a topic after the other, and yield the result of each.

    Args:
        target: of ``open_target``; gets the files, in a folder of each stream.
        dry_run: only count the entries, and compare the range with the existing files.
        on_progress: called before the first file and after each file of a stream.

    Raises:
        NotFoundError: the stream does not exist.
        InvalidCallError: a file of the stream exists that overlaps the range; positions of a topic with partitions; or
            the entries are not messages.
        CorruptError: an entry is damaged, or the number of entries differs from the manifest.
        StoreUnavailableError, OutcomeUnknownError: a store can't be used. The written files are complete.
    """
    named = named_streams(store, name)
    if options.start is not None or options.stop is not None:
        named.require_one("a position belongs to one partition")
    for stream in named.streams:
        scan = scan_of(
            open_reader(store, stream, settings=settings),
            Query(),
            start=options.start,
            stop=options.stop,
            since=options.since,
            until=options.until,
        )
        done = ParquetExport(stream=stream, entries=scan.count())
        if target is not None and done.entries:
            _require_no_overlap(target, stream, scan)
        if target is not None and done.entries and not dry_run:
            on_progress(done)
            for file in _files(scan, stream, target, options):
                done = replace(done, files=(*done.files, file))
                on_progress(done)
            if options.content == "entries" and done.rows != done.entries:
                raise CorruptError(
                    f"stream {stream}: {done.rows} entries read, but the manifest counts {done.entries}",
                    hint=f"delete the files of {stream} in {target.url}, and run `offloader verify --deep {stream}`",
                )
        yield done


def _require_no_overlap(target: ObjectStore, stream: str, scan: Scan) -> None:
    """Raises ``InvalidCallError`` if an exported file has an entry of the range."""
    ends = scan.ends()[stream]
    for info in _existing(target, f"{stream}/"):
        match = _NAME.fullmatch(info.key.removeprefix(f"{stream}/"))
        if match is None:
            continue
        ledger, entry, last_ledger, last_entry = map(int, match.groups())
        first, last = Position(ledger, entry), Position(last_ledger, last_entry)
        if first <= ends[1] and ends[0] <= last:
            raise InvalidCallError(
                f"{info.key} in {target.url} already has entries {first} to {last} of stream {stream}",
                hint=f"start after {last}, or export to another place",
            )


def _existing(target: ObjectStore, prefix: str) -> Iterator[ObjectInfo]:
    after: str | None = ""
    while after is not None:
        page = target.list(prefix, after=after)
        yield from page.objects
        after = page.next_after


def _files(scan: Scan, stream: str, target: ObjectStore, options: ParquetOptions) -> Iterator[ParquetFile]:
    columns = list(options.columns or options.known_columns())
    file = _OpenFile(columns)
    for group in _row_groups(_rows(scan, stream, columns, options), options.row_group_bytes):
        # The messages of one entry are in one file, so that the next export can start after its last position.
        if file.size_bytes + group.nbytes + _FOOTER_BYTES > options.file_bytes and file.may_end_before(group):
            yield file.create(target, stream)
            file = _OpenFile(columns)
        file.write(group)
    if file.rows:
        yield file.create(target, stream)


def _rows(scan: Scan, stream: str, columns: Sequence[str], options: ParquetOptions) -> Iterator[pa.RecordBatch]:
    """The rows with the wanted columns, and the positions, which name the files."""
    needed = [*columns, *(name for name in _POSITION if name not in columns)]
    if options.content == "entries":
        yield from scan.to_batches(columns=needed)
        return
    names = tuple(name for name in needed if name != "stream")
    wanted = MessageOptions(columns=names, bad_entries=options.bad_messages)
    for batch in scan.messages(wanted):
        if "stream" not in columns:
            yield batch
            continue
        yield batch.append_column("stream", pa.repeat(pa.scalar(stream, pa.string()), batch.num_rows)).select(needed)


def _row_groups(batches: Iterable[pa.RecordBatch], bytes_max: int) -> Iterator[pa.Table]:
    """The rows in tables of at most ``bytes_max``, unless one row is larger, and of ``ROW_GROUP_ROWS_MAX`` rows."""
    waiting, size, rows = list[pa.RecordBatch](), 0, 0
    for batch in (part for each in batches for part in _parts(each, bytes_max)):
        if waiting and (size + batch.nbytes > bytes_max or rows + batch.num_rows > ROW_GROUP_ROWS_MAX):
            yield pa.Table.from_batches(waiting)
            waiting, size, rows = [], 0, 0
        waiting.append(batch)
        size, rows = size + batch.nbytes, rows + batch.num_rows
    if waiting:
        yield pa.Table.from_batches(waiting)


def _parts(batch: pa.RecordBatch, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """A batch in halves, until each is small enough or a single row."""
    if batch.nbytes <= bytes_max or batch.num_rows < 2:
        if batch.num_rows:
            yield batch
        return
    half = batch.num_rows // 2
    yield from _parts(batch.slice(0, half), bytes_max)
    yield from _parts(batch.slice(half), bytes_max)


class _OpenFile:
    """A file in memory."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns, self._sink = columns, pa.BufferOutputStream()
        self._writer: pq.ParquetWriter | None = None
        self._ends: tuple[Position, Position] | None = None
        self.rows = 0

    @property
    def size_bytes(self) -> int:
        """Bytes written so far, without the footer."""
        return int(self._sink.tell())

    def may_end_before(self, group: pa.Table) -> bool:
        return self._ends is not None and self._ends[1] != _position(group, 0)

    def write(self, group: pa.Table) -> None:
        first, last = _position(group, 0), _position(group, group.num_rows - 1)
        self._ends = (first if self._ends is None else self._ends[0], last)
        rows = group.select(self._columns)
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._sink, rows.schema, compression="zstd")
        self._writer.write_table(rows, row_group_size=rows.num_rows)
        self.rows += rows.num_rows

    def create(self, target: ObjectStore, stream: str) -> ParquetFile:
        """Creates the file in the target. Raises ``InvalidCallError``: another one has its name."""
        assert self._writer is not None
        assert self._ends is not None
        self._writer.close()
        body = memoryview(self._sink.getvalue()).cast("B")
        first, last = self._ends
        key = f"{stream}/{_padded(first)}-{_padded(last)}.parquet"
        try:
            target.put(key, body, mode=CREATE)
        except (PreconditionFailedError, OutcomeUnknownError) as error:
            _require_same(target, key, body, error)
        return ParquetFile(key=key, rows=self.rows, size_bytes=body.nbytes, first=first, last=last)


def _position(rows: pa.Table, number: int) -> Position:
    return Position(*(rows[name][number].as_py() for name in _POSITION))


def _padded(position: Position) -> str:
    return f"{position.ledger_id:0{_DIGITS}d}_{position.entry_id:0{_DIGITS}d}"


def _require_same(
    target: ObjectStore, key: str, body: memoryview, error: PreconditionFailedError | OutcomeUnknownError
) -> None:
    """A create whose response was lost is settled by reading the object. Raises ``error``, or ``InvalidCallError``."""
    try:
        found = target.get(key)[0]
    except NotFoundError:
        raise error from None
    if body != found:
        raise InvalidCallError(
            f"{key} in {target.url} exists with other content", hint="export to another place"
        ) from error
