"""The options that several verbs share, and opening what they name.

Owns their spelling, environment variables and help. Must never take a secret on the command line:
credentials come from where the store's SDK finds them (environment, files, instance roles).
"""

from __future__ import annotations

from typing import Annotated

import typer

from formats.entries import Position
from offloader.errors import InvalidCall
from offloader.settings import StoreSettings
from offloader.store.base import ObjectStore, open_store

__all__ = ["EndpointUrl", "Json", "Region", "Store", "open_chosen_store", "position_of"]

Store = Annotated[
    str,
    typer.Option(
        "--store",
        envvar="OFFLOADER_STORE",
        metavar="URL",
        help="The object store: file:///folder, s3://bucket/root, memory://name.",
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
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")]


def open_chosen_store(
    url: str,
    endpoint_url: str = "",
    region: str = "",
    *,
    settings: StoreSettings | None = None,
    read_only: bool = True,
) -> ObjectStore:
    """The store that the options name.

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
        read_only=read_only,
    )


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
