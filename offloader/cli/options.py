"""Options that several verbs share: store, settings, ledger database, ranges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import typer

from formats.entries import Position
from offloader.errors import InvalidCall
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
from offloader.read.reader import Reader, time_ms_of
from offloader.settings import LimitSettings, Settings, StoreSettings
from offloader.settings.layered import SettingsFile, read_settings_file
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from offloader.store.probe import require_conditional_puts

__all__ = [
    "AskedRange",
    "Config",
    "ConfigArguments",
    "DryRun",
    "EndpointUrl",
    "From",
    "FromTime",
    "Json",
    "LedgerArguments",
    "Region",
    "ShowProgress",
    "Store",
    "StoreArguments",
    "Stream",
    "StreamOrTopic",
    "TakeOver",
    "chosen_range",
    "open_chosen_store",
    "position_of",
]

Stream = Annotated[str, typer.Argument(help="The stream's name.", show_default=False)]
StreamOrTopic = Annotated[str, typer.Argument(help="The stream's name, or a partitioned topic's.", show_default=False)]
Store = Annotated[
    str,
    typer.Option(
        "--store",
        envvar="OFFLOADER_STORE",
        metavar="URL",
        help="The object store: file:///folder, s3://bucket/root, memory://name, catalogue:///folder (see adopt).",
        show_default=False,
    ),
]
EndpointUrl = Annotated[
    str,
    typer.Option(
        "--endpoint-url",
        envvar="OFFLOADER_ENDPOINT_URL",
        metavar="URL",
        help="Where the S3 API is, when it isn't AWS.",
        show_default=False,
    ),
]
Region = Annotated[
    str,
    typer.Option(
        "--region",
        envvar="OFFLOADER_REGION",
        metavar="NAME",
        help="The store's region.",
        show_default=False,
    ),
]
Config = Annotated[
    str,
    typer.Option(
        "--config", envvar="OFFLOADER_CONFIG", metavar="FILE", help="The settings file (TOML).", show_default=False
    ),
]
Ledgers = Annotated[
    str,
    typer.Option(
        "--ledgers",
        envvar="OFFLOADER_LEDGERS",
        metavar="URL",
        help="The ledger database: sqlite:///relative.db, sqlite:////absolute.db.",
        show_default=False,
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only print what would be done.")]
TakeOver = Annotated[bool, typer.Option("--take-over", help="Take the stream from a writer that gives signs of life.")]
ShowProgress = Annotated[
    bool, typer.Option("--progress", help="Report each segment on standard error, also without a terminal.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")]


def open_chosen_store(
    url: str,
    endpoint_url: str = "",
    region: str = "",
    *,
    settings: StoreSettings | None = None,
    limits: LimitSettings | None = None,
    read_only: bool = True,
    create: bool = False,
) -> ObjectStore:
    """The store of the options; creates a local directory only for verbs that may write its first object.

    Raises:
        InvalidCall: no URL was given.
        OffloaderError: the errors of ``open_store``.
    """
    if not url:
        raise InvalidCall(
            "no store was named",
            hint="give --store URL or set OFFLOADER_STORE, for example file://$PWD/offloader-demo/store",
        )
    return open_store(
        url,
        endpoint_url=endpoint_url or None,
        region=region or None,
        settings=settings or StoreSettings(),
        limits=limits,
        read_only=read_only,
        create=create,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreArguments:
    """Options of verbs that read a store. A parameter of such a type is replaced by its fields, each an option."""

    store: Store = ""
    endpoint_url: EndpointUrl = ""
    region: Region = ""

    def open(self, settings: Settings | None = None, *, read_only: bool = True, create: bool = False) -> ObjectStore:
        """The store by the options and ``settings``; probed before the first write.

        Raises:
            Unsupported: it lets two writers create one object, and ``store.single_writer`` isn't set.
            OffloaderError: the errors of ``open_chosen_store``.
        """
        opened = open_chosen_store(
            *(self.store, self.endpoint_url, self.region),
            settings=None if settings is None else settings.store,
            limits=None if settings is None else settings.limits,
            read_only=read_only,
            create=create,
        )
        if not read_only:
            require_conditional_puts(opened, single_writer=settings is not None and settings.store.single_writer)
        return opened


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigArguments(StoreArguments):
    """Options of verbs with a settings file."""

    config: Config = ""

    def settings(self, stream: str = "") -> Settings:
        """The settings of a stream, by default those of the process."""
        return self.settings_of()(stream)

    def settings_of(self) -> Callable[[str], Settings]:
        """A function from a stream's name to its settings; reads the file once."""
        return self.file().settings_of if self.config else lambda _: Settings()

    def file(self) -> SettingsFile:
        """The whole file; an empty one if none was given."""
        return read_settings_file(self.config) if self.config else SettingsFile()


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerArguments(ConfigArguments):
    """Options of verbs that read a ledger database."""

    ledgers: Ledgers = ""

    def require_ledgers(self) -> None:
        """Raises ``InvalidCall`` without a ledger database."""
        if not self.ledgers:
            raise InvalidCall(
                "no ledger database was named", hint="give --ledgers sqlite:///FILE or set OFFLOADER_LEDGERS"
            )

    def open_ledgers(self, *, create: bool = False) -> EmbeddedLedgers:
        """The ledger database; close it.

        Raises:
            InvalidCall: none was given.
            OffloaderError: as ``EmbeddedLedgers``.
        """
        self.require_ledgers()
        return EmbeddedLedgers(self.ledgers, create=create)


def position_of(text: str, *, option: str) -> Position:
    """``LEDGER:ENTRY`` as a position.

    Raises:
        InvalidCall: anything else; names the option.
    """
    try:
        return Position.parse(text)
    except ValueError as cause:
        raise InvalidCall(
            f"{option}: {cause}", hint="`offloader segments STREAM` lists the positions there are"
        ) from cause


From = Annotated[
    str, typer.Option("--from", metavar="LEDGER:ENTRY", help="First entry.", show_default="the first there is")
]
FromTime = Annotated[
    str,
    typer.Option(
        "--from-time",
        metavar="TIME",
        help="Begin at the earliest entry published then or later: 2013-07-04T12:00:00Z, 2013-07-04 (UTC), or ms.",
        show_default=False,
    ),
]


@dataclass(frozen=True, slots=True)
class AskedRange:
    """Range by position, inclusive, or by time; ``None``: the stream's own end."""

    first: Position | None
    last: Position | None
    from_ms: int | None
    to_ms: int | None

    @classmethod
    def of(
        cls, start: str, end: str, from_time: str, to_time: str, *, end_options: tuple[str, str] = ("--to", "--to-time")
    ) -> AskedRange:
        """From the options' texts; empty ones weren't given.

        Args:
            start, from_time: of ``--from`` and ``--from-time``.
            end, to_time: of ``end_options``.

        Raises:
            InvalidCall: an invalid position or time, or two options for the same end.
        """
        by_position, by_time = end_options
        first = position_of(start, option="--from") if start else None
        last = position_of(end, option=by_position) if end else None
        from_ms = time_ms_of(from_time, option="--from-time") if from_time else None
        to_ms = time_ms_of(to_time, option=by_time) if to_time else None
        if first is not None and from_ms is not None:
            raise InvalidCall("--from and --from-time both say where to begin", hint="leave one of them out")
        if last is not None and to_ms is not None:
            raise InvalidCall(f"{by_position} and {by_time} both say where to end", hint="leave one of them out")
        return cls(first, last, from_ms, to_ms)


def chosen_range(reader: Reader, asked: AskedRange) -> tuple[Position | None, Position | None] | None:
    """The range's first and last position; ``None`` when no entry lies between the times."""
    first, last = asked.first, asked.last
    if asked.from_ms is not None:
        first = reader.position_at(asked.from_ms)
        if first is None or (last is not None and first > last):
            return None
    if asked.to_ms is not None:
        after, begin = reader.position_at(asked.to_ms), first or reader.first_position
        if after is not None and begin is not None and after <= begin:
            return None
        last = None if after is None else after.previous()
    return first, last
