"""Options that several commands share: store, settings, ledger database, ranges."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from formats.entries import Position
from offloader.errors import InvalidCallError
from offloader.manifest.names import stream_name
from offloader.runtime.clock import SystemClock
from offloader.runtime.system import cache_folder
from offloader.settings import LimitSettings, Settings, StoreSettings
from offloader.settings.fields import DURATION, MINUTES_MAX, SIZE
from offloader.settings.layered import SettingsFile, read_settings_file
from offloader.store.base import ObjectStore, is_local
from offloader.store.open import ObjectsPlace, open_store
from offloader.store.probe import require_conditional_puts
from offloader.store.wrappers import ReadOnlyStore
from offloader.times import TIME_FORMS, time_ms_of

#: Panel of options that most commands have, the last one of a help.
COMMON = "Common options"


def option(name: str, text: str, *, shown: str | bool = False, **more: Any) -> Any:
    """An option with the help ``text``; ``shown``: the default as shown in the help, False: none."""
    return typer.Option(name, help=text, show_default=shown, **more)


def argument(text: str, *, shown: str | bool = False, **more: Any) -> Any:
    """An argument with the help ``text``; ``shown`` as for ``option``."""
    return typer.Argument(help=text, show_default=shown, **more)


#: Unit of a plain number -> its quantity, the unit as a number of the quantity's smallest one, the maximum (no clock
#: waits for more than a hundred years), and an example for the help.
_COUNTED = {
    "seconds": (DURATION, 1000, MINUTES_MAX * 60, "30s"),
    "bytes": (SIZE, 1, 2**63 - 1, "4KiB"),
    "megabytes": (SIZE, 1_000_000, 2**50, "64MiB"),
}


def amount(
    name: str,
    text: str,
    unit: str,
    *,
    whole: bool = False,
    low: float = 0,
    high: float | None = None,
    **more: Any,
) -> Any:
    """An option for an amount: a plain number of ``unit``, or a text as in a settings file, ``30s`` or ``1GiB``.

    Args:
        unit: of the value, of ``low`` and of ``high``: ``seconds``, ``bytes`` or ``megabytes``.
        high: default: the maximum of any amount.
        whole: the value is an integer.
    """
    quantity, factor, largest, example = _COUNTED[unit]
    highest = largest if high is None else high

    def parse(given: str | float) -> float:
        try:
            number = float(given)
        except ValueError:
            try:
                number = float(quantity.parse(str(given), next(iter(quantity.units))) / factor)
            except ValueError as cause:
                raise typer.BadParameter(f"{given!r} is neither a number of {unit} nor {quantity.form}") from cause
        if not low <= number <= highest or (whole and not number.is_integer()):
            most = f", at most {highest:,}" if high is not None or number > highest else ""
            raise typer.BadParameter(
                f"{given!r} isn't a {quantity.name} of at least {low:,}{most} {'whole ' * whole}{unit}"
            )
        return int(number) if whole else number

    text = f"{text} In {unit}, or with a unit as in a settings file: {example}."
    return option(name, text, metavar=unit.upper(), min=low, max=high, parser=parse, **more)


def name_argument(text: str, **more: Any) -> Any:
    """An argument for names of streams or of topics: ``persistent://tenant/ns/topic``."""
    return argument(text, parser=stream_name, **more)


Stream = Annotated[str, name_argument("The stream's name, or its topic's: persistent://tenant/namespace/topic.")]
StreamOrTopic = Annotated[
    str,
    name_argument("The stream's name, or a topic's, partitioned or not: persistent://tenant/namespace/topic."),
]
Config = Annotated[
    str,
    option("--config", "The settings file (TOML).", envvar="OFFLOADER_CONFIG", metavar="FILE", rich_help_panel=COMMON),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the planned changes; change nothing.")]
Apply = Annotated[
    bool,
    typer.Option("--apply", help="Carry out the plan. Without this option, the command only prints the plan."),
]
TakeOver = Annotated[bool, typer.Option("--take-over", help="Take ownership even if another writer appears active.")]
ShowProgress = Annotated[
    bool, typer.Option("--progress", help="Report each segment on standard error, also without a terminal.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.", rich_help_panel=COMMON)]


#: Hint where a store is missing.
NAME_A_STORE = (
    "give --store URL, for example file://$PWD/offloader-demo/store, or --config FILE with serve.store; or set "
    "OFFLOADER_STORE or OFFLOADER_CONFIG"
)


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
    """The store of the options; creates a local directory only for commands that may write its first object.

    Raises:
        InvalidCallError: no URL was given.
        OffloaderError: the errors of ``open_store``.
    """
    if not url:
        raise InvalidCallError("no store was given", hint=NAME_A_STORE)
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
class PlaceArguments:
    """Options that name a store. A parameter of such a type is replaced by its fields, each an option."""

    store: Annotated[
        str,
        option(
            "--store",
            "The object store: file:///folder, s3://bucket/root, gs://bucket/root, az://container/root, "
            "catalogue:///folder (see import).",
            envvar="OFFLOADER_STORE",
            metavar="URL",
            rich_help_panel=COMMON,
        ),
    ] = ""
    endpoint_url: Annotated[
        str,
        option(
            "--endpoint-url",
            "URL of the S3 API, if it is not AWS.",
            envvar="OFFLOADER_ENDPOINT_URL",
            metavar="URL",
            rich_help_panel=COMMON,
        ),
    ] = ""
    region: Annotated[
        str,
        option("--region", "The store's region.", envvar="OFFLOADER_REGION", metavar="NAME", rich_help_panel=COMMON),
    ] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreArguments(PlaceArguments):
    """Options of commands that need a store and settings; default of --store: the file's ``serve.store``."""

    config: Config = ""

    def file(self) -> SettingsFile:
        """The whole file; an empty one if none was given."""
        return read_settings_file(self.config) if self.config else SettingsFile()

    def place(self) -> ObjectsPlace:
        """The store's URL, endpoint and region; the URL is empty if neither the options nor the file name one."""
        if self.store or not self.config:
            return ObjectsPlace(self.store, self.endpoint_url, self.region)
        serve = self.file().settings_of("").serve
        return ObjectsPlace(serve.store, self.endpoint_url or serve.endpoint_url, self.region or serve.region)

    def settings_of(self) -> Callable[[str], Settings]:
        """A function from a stream's name to its settings; reads the file once."""
        return self.file().settings_of if self.config else lambda _: Settings()

    def settings(self, stream: str = "") -> Settings:
        """The settings of a stream, by default those of the process."""
        return self.settings_of()(stream)

    def open(self, *, read_only: bool = True, create: bool = False, probed: bool = True) -> ObjectStore:
        """The store of the options and the file; unless it is read-only, probed before the first write.

        Args:
            create: a missing local directory.
            probed: False: ``probed_meanwhile`` probes it.

        Raises:
            InvalidCallError: neither the options nor the settings file name a store.
            UnsupportedError: the store lets two writers create one object, and ``store.single_writer`` isn't set.
            OffloaderError: the errors of ``open_chosen_store`` and ``read_settings_file``.
        """
        place, settings = self.place(), self.settings()
        if not place.url and self.config:
            raise InvalidCallError(f"no store was given: {self.config} has no serve.store", hint=NAME_A_STORE)
        opened = open_chosen_store(
            *(place.url, place.endpoint_url, place.region),
            settings=settings.store,
            limits=settings.limits,
            read_only=read_only,
            create=create,
        )
        if probed and not read_only:
            self._probe(opened)
        return opened

    def _probe(self, store: ObjectStore) -> None:
        require_conditional_puts(
            store, single_writer=self.settings().store.single_writer, notes=cache_folder() / "stores"
        )

    @contextmanager
    def probed_meanwhile(self, store: ObjectStore, *, at_once: bool) -> Iterator[Callable[[], object]]:
        """Probes a store that ``open`` did not probe, while the caller reads the stream.

        Args:
            at_once: False: probe on demand, as for a local store and one that was opened for reading.

        Yields:
            a function to call before the first write; raises ``UnsupportedError`` as ``open``.
        """
        if not at_once or is_local(store) or isinstance(store, ReadOnlyStore):
            yield cache(partial(self._probe, store))
        else:
            with ThreadPoolExecutor(1) as thread:
                yield thread.submit(self._probe, store).result

    def prepared(self, stream: str = "", *, read_only: bool = True) -> tuple[Settings, ObjectStore]:
        """The settings of a stream, and the store. Raises as ``open`` and ``read_settings_file``."""
        return self.settings(stream), self.open(read_only=read_only)


#: Maximum digits of a number in front of a ``=``: those of the formats' largest number.
DIGITS_MAX = 19


def position_of(text: str, *, option: str) -> Position:
    """``LEDGER:ENTRY`` as a position.

    Raises:
        InvalidCallError: anything else; names the option.
    """
    try:
        return Position.parse(text)
    except ValueError as cause:
        raise InvalidCallError(
            f"{option}: {cause}", hint="`offloader ls STREAM` lists the stream's positions"
        ) from cause


def named_value(text: str, *, option: str, hint: str) -> tuple[str, str]:
    """The parts of ``NAME=VALUE``. Raises ``InvalidCallError``, with the option's name, for anything else."""
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise InvalidCallError(f"{option} {text!r} isn't NAME=VALUE", hint=hint)
    return name, value


def named_file(text: str) -> tuple[str, str]:
    """The parts of ``NAME=FILE`` or ``FILE``. Both may contain a =; an existing file is a path."""
    is_path = False
    with suppress(OSError):  # too long for a path, for example a file's content
        is_path = Path(text).exists()
    name, _, path = ("", "", text) if is_path else text.rpartition("=")
    return name, path


def number_of(text: str) -> int | None:
    """The number in a text of digits; ``None``: not a number, or too large."""
    return int(text) if text.isdecimal() and len(text) <= DIGITS_MAX else None


def partition_position_of(text: str, *, option: str, hint: str) -> tuple[int | None, Position]:
    """``[PARTITION=]LEDGER:ENTRY`` as the partition's number, if there is one, and a position.

    Raises:
        InvalidCallError: anything else; names the option.
    """
    given, separator, rest = text.rpartition("=")
    number = number_of(given)
    if separator and number is None:
        raise InvalidCallError(f"{option} {text:.200}: {given!r:.80} isn't a partition number", hint=hint)
    return number, position_of(rest, option=option)


From = Annotated[str, option("--from", "First entry.", metavar="LEDGER:ENTRY", shown="the stream's first")]
To = Annotated[str, option("--to", "Last entry, inclusive.", metavar="LEDGER:ENTRY", shown="the stream's last")]
Since = Annotated[
    str,
    option(
        "--since",
        f"Start at the first entry published at or after TIME: {TIME_FORMS}.",
        metavar="TIME",
    ),
]
Until = Annotated[str, option("--until", "Stop before the first entry published at or after TIME.", metavar="TIME")]


class AskedRange(NamedTuple):
    """Range by position, inclusive, or by time, as ``Reader.range_of`` takes it; ``None``: the stream's own end."""

    first: Position | None
    last: Position | None
    from_ms: int | None
    to_ms: int | None

    @classmethod
    def of(cls, start: str, end: str, since: str, until: str) -> AskedRange:
        """The range of the options' texts; an empty text: the option wasn't given.

        Args:
            start, since: of ``--from`` and ``--since``.
            end, until: of ``--to`` and ``--until``.

        Raises:
            InvalidCallError: an invalid position or time, or two options for the same end.
        """
        first = position_of(start, option="--from") if start else None
        last = position_of(end, option="--to") if end else None
        now_ms = SystemClock().now_ms()
        from_ms = time_ms_of(since, option="--since", now_ms=now_ms) if since else None
        to_ms = time_ms_of(until, option="--until", now_ms=now_ms) if until else None
        if first is not None and from_ms is not None:
            raise InvalidCallError("--from and --since exclude each other", hint="leave one of them out")
        if last is not None and to_ms is not None:
            raise InvalidCallError("--to and --until exclude each other", hint="leave one of them out")
        return cls(first, last, from_ms, to_ms)
