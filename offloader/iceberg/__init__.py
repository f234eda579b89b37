"""Export of streams to a table of Apache Iceberg: one commit per range, with the range's positions in the commit.

The table is the only record of an export's progress: a run reads the newest exported range from the table's history. A
commit succeeds only if no other program has committed since that read, so two exporters never add the same range twice.
``offloader.iceberg.commits`` describes the order of a commit's durable steps.
"""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from pyarrow import DataType, types
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchTableError,
    RESTError,
    TableAlreadyExistsError,
    ValidationError,
)
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import Table, TableProperties
from pyiceberg.transforms import DayTransform, IdentityTransform
from pyiceberg.utils.config import Config
from requests import PreparedRequest, Response, Session
from requests.adapters import HTTPAdapter
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from formats.entries import Position
from formats.errors import one_line
from formats.pulsar.messages import BadEntry
from offloader.errors import (
    CorruptError,
    InvalidCallError,
    NotFoundError,
    OffloaderError,
    OutcomeUnknownError,
    StoreUnavailableError,
    UnsupportedError,
    plain_reason,
)
from offloader.iceberg import commits
from offloader.iceberg.columns import COLUMNS, CONTENT, MissingColumns, RowMaker, Values, content_of, require_columns
from offloader.iceberg.files import RangeFiles
from offloader.iceberg.history import ExportedRange, newest_range
from offloader.manifest.state import ManifestState
from offloader.read.ranges import PlannedRange, is_lost_after, planned_ranges
from offloader.read.reader import Reader, load_stream, open_stream_reader
from offloader.read.typed_values import plain_type
from offloader.settings import ReadSettings
from offloader.store.base import ObjectStore

#: Bytes of data objects in one range: the most that a crashed run has to repeat. A larger segment forms one range.
RANGE_BYTES_MAX = 1024**3
#: Attempts to commit one range before the export fails because other programs commit first.
COMMIT_ATTEMPTS_MAX = 100
#: Attempts to create a table, its namespace and the catalogue's own tables while other exporters create them.
OPEN_ATTEMPTS_MAX = 3
#: Seconds to wait for a response of a REST catalogue or an object store.
RESPONSE_S_MAX = 60
#: Seconds to connect to a REST catalogue or an object store.
CONNECT_S_MAX = 10

_NAME = "offloader"
_SECRETS = ("secret", "password", "token", "credential", "access-key")
_log = logging.getLogger("offloader.iceberg")


@dataclass(frozen=True, slots=True)
class Exported:
    """Result of a run for one stream: the ranges it added and the last exported position (``None``: none)."""

    stream: str
    ranges: tuple[ExportedRange, ...]
    end: Position | None


# -- the table


class _DeadlineAdapter(HTTPAdapter):
    def send(
        self,
        request: PreparedRequest,
        stream: bool = False,
        timeout: float | tuple[float | None, float | None] | None = None,
        verify: bool | str = True,
        cert: str | tuple[str, str] | None = None,
        proxies: dict[str, str] | None = None,
    ) -> Response:
        return super().send(request, stream, timeout or (CONNECT_S_MAX, RESPONSE_S_MAX), verify, cert, proxies)


class _RestCatalog(RestCatalog):
    def _create_session(self) -> Session:
        session = super()._create_session()
        for scheme in ("https://", "http://"):
            if type(session.adapters.get(scheme)) is HTTPAdapter:
                session.mount(scheme, _DeadlineAdapter())
        return session


def open_table(
    name: str,
    *,
    catalog: str,
    warehouse: str = "",
    options: Mapping[str, str] | None = None,
    content: str = "entries",
    create: bool = True,
) -> Table:
    """Returns the table to export to; creates it and its namespace if they don't exist.

    Args:
        name: name with namespace, for example ``lake.entries``.
        catalog: a URL of SQLAlchemy (``sqlite:////folder/catalog.db``), ``https://...`` of a REST catalogue, or the
            name of a catalogue configured for pyiceberg. A catalogue given by URL has the name ``offloader``.
        warehouse: location of the files of a new table: ``file:///folder`` or ``s3://bucket/root``.
        options: further properties of the catalogue, with pyiceberg's names: ``s3.endpoint``.
        content: kind of row in a new table: ``entries``, or ``messages`` of Pulsar.
        create: create a missing table; ``False``: raise ``NotFoundError``.

    Raises:
        InvalidCallError: a name, URL, option or content is wrong, or a new table has no warehouse.
        NotFoundError: no catalogue of that name is configured, or the table is missing and ``create`` is ``False``.
        UnsupportedError: the table exists with another content, other columns or partitions.
        StoreUnavailableError: the catalogue or the warehouse gave no usable response.
    """
    if len(name.split(".")) < 2 or not all(name.split(".")):
        raise InvalidCallError(
            f"table {name!r} has no namespace", hint="write NAMESPACE.TABLE, for example lake.entries"
        )
    if content not in COLUMNS:
        raise InvalidCallError(f"unknown table content {content!r}", hint=f"use one of {', '.join(COLUMNS)}")
    with (
        warnings.catch_warnings(),
        translated(
            f"table {name} in catalogue {catalog}", hint="check the catalogue's URL and that the catalogue runs"
        ),
    ):
        # pyiceberg raises an error where this warning would matter.
        warnings.filterwarnings("ignore", message="No preferred file implementation", category=UserWarning)
        for attempt in range(1, OPEN_ATTEMPTS_MAX + 1):
            try:
                table = _opened(_catalog(catalog, warehouse, options or {}), name, content, create=create)
                break
            except OffloaderError:
                raise
            except (ArgumentError, ValueError) as error:
                raise InvalidCallError(
                    f"table {name}: catalogue {catalog} or its warehouse can't be opened: {one_line(str(error))}",
                    hint="see docs/how-to/iceberg.md for supported URLs",
                ) from error
            except SQLAlchemyError:  # another exporter may be creating the same rows
                if attempt == OPEN_ATTEMPTS_MAX:
                    raise
    _require_fitting(table, name, content)
    return table


def _catalog(catalog: str, warehouse: str, options: Mapping[str, str]) -> Catalog:
    for each in options:
        if any(word in each.lower() for word in _SECRETS):
            raise InvalidCallError(
                f"catalogue option {each} is a secret; on a command line other users of this machine see it",
                hint=f"set PYICEBERG_CATALOG__OFFLOADER__{each.upper().replace('.', '__').replace('-', '_')}",
            )
    has_url = "://" in catalog
    name = _NAME if has_url else catalog
    configured: dict[str, Any] = dict(Config().get_catalog_config(name) or {})
    if not has_url and not configured:
        raise NotFoundError(
            f"no catalogue {catalog} is configured",
            hint="give a URL, for example sqlite:////folder/catalog.db, or configure it in ~/.pyiceberg.yaml",
        )
    if has_url and ":" in catalog.partition("://")[2].rpartition("@")[0]:
        raise InvalidCallError(
            "the catalogue's URL contains a password; on a command line other users of this machine see it",
            hint="configure the catalogue in ~/.pyiceberg.yaml and pass its name",
        )
    deadlines = {"s3.connect-timeout": str(CONNECT_S_MAX), "s3.request-timeout": str(RESPONSE_S_MAX)}
    given = {**deadlines, **configured, **options}
    given |= {"warehouse": warehouse} if warehouse else {}
    given |= {"uri": catalog, "type": "rest" if catalog.startswith("http") else "sql"} if has_url else {}
    is_rest = given.get("type", "rest") == "rest" and str(given.get("uri", "")).startswith("http")
    return _RestCatalog(name, **given) if is_rest else load_catalog(name, **given)


def _opened(catalog: Catalog, name: str, content: str, *, create: bool) -> Table:
    try:
        return catalog.load_table(name)
    except NoSuchTableError as error:
        if not create:
            raise NotFoundError(f"table {name} doesn't exist", hint="an export without --dry-run creates it") from error
    if "warehouse" not in catalog.properties and not isinstance(catalog, RestCatalog):
        raise InvalidCallError(f"table {name} doesn't exist, and no warehouse was given", hint="give --warehouse URL")
    catalog.create_namespace_if_not_exists(name.rpartition(".")[0])
    properties = {TableProperties.FORMAT_VERSION: "2", CONTENT: content}
    with (
        suppress(TableAlreadyExistsError, CommitFailedException),  # another exporter created the table first
        catalog.create_table_transaction(name, COLUMNS[content], properties=properties) as transaction,
        transaction.update_spec() as update,
    ):
        update.add_field("publish_time", DayTransform(), "publish_day")
        update.add_field("stream", IdentityTransform(), "stream")
    return catalog.load_table(name)


def _require_fitting(table: Table, name: str, content: str) -> None:
    if (found := content_of(table)) != content:
        raise UnsupportedError(f"table {name} contains {found}, not {content}", hint="export to a separate table")
    arrow, ours = schema_to_pyarrow(table.schema(), include_field_ids=False), COLUMNS[content]
    missing = [
        f"{each.name} {each.type}"
        for each in ours
        if each.name not in arrow.names or not _is_same(arrow.field(each.name).type, each.type)
    ]
    further = [each.name for each in arrow if each.name not in ours.names and not each.nullable]
    if missing or further:
        what = f"without {', '.join(missing)}" if missing else f"with the required columns {', '.join(further)}"
        raise UnsupportedError(f"table {name} exists {what}", hint="export to a separate table")
    fields = {(table.schema().find_column_name(each.source_id), str(each.transform)) for each in table.spec().fields}
    if fields != {("publish_time", "day"), ("stream", "identity")} or table.metadata.format_version < 2:
        raise UnsupportedError(
            f"table {name} is not partitioned by day of publish_time and by stream, or its format is older than 2",
            hint="export to a separate table",
        )


def _is_same(found: DataType, wanted: DataType) -> bool:
    """Whether a column's type is the wanted one; nested types are compared by their kind only."""
    return bool(types.is_nested(found) if types.is_nested(wanted) else plain_type(found) == wanted)


@contextmanager
def translated(what: str, *, hint: str) -> Iterator[None]:
    """Raises errors of pyiceberg and its libraries as ``StoreUnavailableError``.

    Args:
        what: object of the message: "... can't be used".
        hint: hint of the raised error.
    """
    try:
        yield
    except OffloaderError:  # also of the store from which the rows are read
        raise
    except (OSError, SQLAlchemyError, RESTError, ValidationError) as error:
        raise StoreUnavailableError(
            f"{what} can't be used: {plain_reason(error).partition('[SQL')[0].rstrip()}", hint=hint
        ) from error


# -- the export


def export(
    store: ObjectStore,
    stream: str,
    table: Table,
    *,
    skip_lost: bool = False,
    range_bytes: int = RANGE_BYTES_MAX,
    bad_messages: BadEntry = BadEntry.ERROR,
    values: Values | None = None,
    settings: ReadSettings | None = None,
    stop: threading.Event | None = None,
) -> Exported:
    """Adds every entry of a stream that the table doesn't have yet, up to the end of the newest manifest.

    Args:
        stream: name of the stream.
        table: result of ``open_table``; the export refreshes it.
        skip_lost: skip entries that retention deleted before their export, instead of raising ``TrimmedError``.
        range_bytes: maximum bytes of segments in one range; a larger segment forms one range.
        bad_messages: how to handle an entry that isn't a message (in a table of messages) or a value that doesn't match
            its schema: raise ``CorruptError``, or add a row with the reason.
        values: schemas that decode values into the column ``decoded``, whose missing fields the export adds. ``None``:
            values remain bytes.
        stop: when set, the export ends after the current range.

    Raises:
        NotFoundError: no such stream.
        InvalidCallError: the table has another stream of that name, or has decoded values while no schemas were given.
        UnsupportedError: a schema has a field whose type doesn't fit its column; nothing was changed.
        TrimmedError: entries were deleted before their export, and ``skip_lost`` isn't set.
        CorruptError: the table's properties were changed, the entries differ in number from the manifest, or a message
            is damaged or its value doesn't match its schema.
        StoreUnavailableError: catalogue or warehouse gave no usable response, or other programs always committed first.
        OutcomeUnknownError: a commit may have happened. Run the export again: it continues from the table's newest
            range.
    """
    if range_bytes < 1:
        raise InvalidCallError(f"range_bytes is {range_bytes}; it must be positive")
    name = ".".join(table.name())
    state = load_stream(store, stream)
    done: list[ExportedRange] = []
    with open_stream_reader(store, state.stream, state=state, settings=settings) as reader:
        with translated(f"table {name}", hint="run the export again: it continues after the last commit"):
            table.refresh()
            commits.sync_metadata(table)
            require_columns(table, values)
        while True:
            newest = newest_range(table.metadata, state.stream)
            after = None if newest is None else newest.last
            lost = newest is not None and is_lost_after(
                state, newest.incarnation, newest.last, exported_to=f"table {name}", skip_lost=skip_lost
            )
            planned = next(planned_ranges(state, after, range_bytes), None)
            if planned is None or (stop is not None and stop.is_set()):
                return Exported(state.stream, tuple(done), after)
            with translated(f"table {name}", hint="run the export again: it continues after the last commit"):
                maker = RowMaker(table, state.stream, bad_messages, values)
                try:
                    added = _add_range(table, reader, state, planned, after, maker, lost=lost)
                except MissingColumns:  # raised once for each new schema
                    require_columns(table, values)
                    continue
            if added is not None:
                done.append(added)
                _log.info("exported %s..%s of %s, %d entries", added.first, added.last, added.stream, added.entries)


def _add_range(
    table: Table,
    reader: Reader,
    state: ManifestState,
    planned: PlannedRange,
    after: Position | None,
    maker: RowMaker,
    *,
    lost: bool,
) -> ExportedRange | None:
    """Writes a range's files and commits them; ``None``: another exporter added the range first."""
    files, entries = RangeFiles(table, state.stream, maker.names), 0
    try:
        for batch in reader.scan(planned.first, planned.last):
            entries += len(batch)
            for rows in maker.rows(batch):
                files.add(rows)
        written = files.close()
        if planned.entries is not None and entries != planned.entries:
            raise CorruptError(
                f"stream {state.stream}, {planned.first}..{planned.last}: {entries} entries read, but the manifest "
                f"counts {planned.entries}; nothing was committed",
                hint="`offloader verify --deep` lists damaged objects",
            )
    except BaseException:
        files.discard()
        raise
    added = ExportedRange(
        stream=state.stream,
        incarnation=str(state.incarnation),
        manifest=state.record_id,
        first=planned.first,
        last=planned.last,
        after=after,
        entries=entries,
        rows=sum(each.record_count for each in written),
        lost=lost,
    )
    for _ in range(COMMIT_ATTEMPTS_MAX):
        try:
            commits.commit_range(table, written, added)
            return added
        except CommitFailedException:  # nothing was committed
            table.refresh()
            commits.sync_metadata(table)
            newest = newest_range(table.metadata, state.stream)
            if (None if newest is None else newest.last) != after:
                files.discard()
                return None
        except (OSError, SQLAlchemyError, RESTError) as error:
            raise OutcomeUnknownError(
                f"the commit of {added.first}..{added.last} of stream {added.stream} may have happened: {error}",
                hint="run the export again: it continues from the table's newest range",
            ) from error
    files.discard()
    raise StoreUnavailableError(
        f"stream {state.stream}: {COMMIT_ATTEMPTS_MAX} commits failed because other programs committed first",
        hint="run fewer exporters for one table",
    )
