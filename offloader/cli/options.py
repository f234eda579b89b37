"""The options that several verbs share, and opening what they name.

Owns their spelling, environment variables and help. Must never take a secret on the command line:
credentials come from where the store's SDK finds them (environment, files, instance roles).
"""

from __future__ import annotations

from typing import Annotated

import typer

from formats.entries import Position
from offloader.errors import InvalidCall
from offloader.settings import LimitSettings, Settings, StoreSettings
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from offloader.store.probe import require_conditional_puts

__all__ = [
    "Config",
    "DryRun",
    "EndpointUrl",
    "Json",
    "Ledgers",
    "Region",
    "ShowProgress",
    "Store",
    "TakeOver",
    "open_chosen_store",
    "open_configured_store",
    "position_of",
    "require_ledgers",
]

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
    """The store that the options name; only who may be the first to write something there makes a local directory.

    Raises:
        InvalidCall: no URL was given.
        OffloaderError: what ``open_store`` raises.
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


def open_configured_store(
    url: str, endpoint_url: str, region: str, settings: Settings, *, read_only: bool, create: bool = False
) -> ObjectStore:
    """The store that the options name, as ``settings`` say; probed before anything is written to it.

    Raises:
        Unsupported: it lets two writers create one object, and ``store.single_writer`` isn't set.
        OffloaderError: what ``open_chosen_store`` raises.
    """
    store = open_chosen_store(
        url, endpoint_url, region, settings=settings.store, limits=settings.limits, read_only=read_only, create=create
    )
    if not read_only:
        require_conditional_puts(store, single_writer=settings.store.single_writer)
    return store


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


def require_ledgers(url: str) -> None:
    """Raises ``InvalidCall`` when no ledger database was named."""
    if not url:
        raise InvalidCall("no ledger database was named", hint="give --ledgers sqlite:///FILE or set OFFLOADER_LEDGERS")
