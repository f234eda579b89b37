"""``offloader resume STREAM``: a paused stream goes on.

Owns its options. Must never resume what nobody named.
"""

from __future__ import annotations

from typing import Annotated

import typer

from offloader.cli.options import Config, EndpointUrl, Json, Region, Store
from offloader.cli.pause import record

__all__ = ["run"]


def run(
    stream: Annotated[str, typer.Argument(help="The stream's name.", show_default=False)],
    store: Store = "",
    endpoint_url: EndpointUrl = "",
    region: Region = "",
    config: Config = "",
    json: Json = False,
) -> None:
    """Let a paused stream go on, exactly where it stopped.

    A running writer that has entries waiting looks every minute at the latest; one in the process that resumes it goes
    on at once.
    """
    record(
        *(stream, store, endpoint_url, region, config, json),
        change=lambda runs: runs.resume(stream),
        changed="goes on",
        as_it_was="wasn't paused",
    )
