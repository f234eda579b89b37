"""``offloader rollback plan STREAM``: what a reader from before the streaming method can't read.

Owns that listing. Must never change anything.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from offloader.cli.options import EndpointUrl, Json, Region, Store, open_chosen_store
from offloader.cli.output import Column, bytes_text, print_rows
from offloader.errors import InvalidCall
from offloader.read.reader import load_stream
from offloader.write.rollback import streamed_ledgers

__all__ = ["run"]

_COLUMNS = [
    Column("ledger_id", "LEDGER", str, right=True),
    Column("segments", "V2 SEGMENTS", right=True),
    Column("entries", "ENTRIES", right=True),
    Column("payload_bytes", "PAYLOAD", bytes_text, right=True),
]


def run(
    action: Annotated[str, typer.Argument(help="plan.", show_default=False)],
    stream: Annotated[str, typer.Argument(help="The stream's name.", show_default=False)],
    store: Store = "",
    endpoint_url: EndpointUrl = "",
    region: Region = "",
    json: Json = False,
) -> None:
    """List the ledgers of a stream that a reader from before the streaming method can't read: those in V2 segments."""
    if action != "plan":
        raise InvalidCall(f"rollback {action}: no such action", hint="plan STREAM")
    state = load_stream(open_chosen_store(store, endpoint_url, region), stream)
    rows = [asdict(each) for each in streamed_ledgers(state)]
    print_rows(rows, _COLUMNS, as_json=json, empty=f"an old reader can read all that is offloaded of {stream}")
