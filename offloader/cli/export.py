"""``offloader export STREAM...``: adds streams to an Iceberg table, once or as they grow."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Annotated

import typer

from offloader.cli.options import ConfigArguments, Json, amount, name_argument, option
from offloader.cli.output import print_result
from offloader.cli.spark import ExportFormat
from offloader.errors import InvalidCall, OffloaderError, OutcomeUnknown
from offloader.manifest.names import named_streams
from offloader.runtime.clock import SystemClock

if TYPE_CHECKING:
    from offloader.iceberg import Exported


def run(
    streams: Annotated[list[str], name_argument("The streams' names, or topics'.", metavar="STREAM...")],
    given: ConfigArguments,
    table: Annotated[str, option("--table", "The table, created if it doesn't exist.", metavar="NAMESPACE.TABLE")] = "",
    catalog: Annotated[
        str,
        option(
            "--catalog",
            "Its catalogue: sqlite:////folder/catalog.db or another SQL database, https://... for REST, or a name in "
            "~/.pyiceberg.yaml.",
            envvar="OFFLOADER_CATALOG",
            metavar="URL",
        ),
    ] = "",
    warehouse: Annotated[
        str, option("--warehouse", "Where a new table's files are: file:///folder, s3://bucket/root.", metavar="URL")
    ] = "",
    catalog_option: Annotated[
        list[str] | None,
        option("--catalog-option", "A property of the catalogue, as pyiceberg has it. May be repeated.", metavar="N=V"),
    ] = None,
    written: Annotated[
        ExportFormat, typer.Option("--format", help="Iceberg; Parquet needs Spark: `offloader spark export`.")
    ] = ExportFormat.ICEBERG,
    skip_lost: Annotated[
        bool, typer.Option("--skip-lost", help="Go on where retention took entries before they were exported.")
    ] = False,
    range_size: Annotated[
        int, amount("--range-size", "Most data in one commit.", "bytes", whole=True, low=1, shown="1GiB")
    ] = 1024**3,
    following: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what is offloaded later, until interrupted.")
    ] = False,
    every: Annotated[float, amount("--every", "With --follow: time between two looks.", "seconds", low=0.1)] = 60.0,
    json: Json = False,
) -> None:
    """Add to an Iceberg table what it doesn't have of the streams; docs/how-to/tables.md.

    One commit a range, with the stream's positions: run again, or killed and run again, it goes on after the last
    commit. Several may run at once.
    """
    if written is not ExportFormat.ICEBERG:
        raise InvalidCall(
            "Parquet files are written by Spark", hint=f"offloader spark export {' '.join(streams)} --to FOLDER"
        )
    if not table or not catalog:
        raise InvalidCall(
            "where to?", hint="give --table NAMESPACE.TABLE and --catalog URL, and for a new table --warehouse URL"
        )
    options = dict(_option_of(text) for text in catalog_option or [])
    settings, store = given.prepared()

    from offloader import iceberg  # loads pyiceberg, which is slow, and an extra

    opened = iceberg.open_table(table, catalog=catalog, warehouse=warehouse, options=options)

    def export_all() -> None:
        for stream in [each for name in streams for each in named_streams(store, name).streams]:
            done = iceberg.export(
                store, stream, opened, skip_lost=skip_lost, range_bytes=range_size, settings=settings.read
            )
            _print(done, as_json=json, only_news=following)

    clock, stop = SystemClock(), threading.Event()
    while True:
        try:
            export_all()
        except OffloaderError as error:
            if not following or not (error.retryable or isinstance(error, OutcomeUnknown)):
                raise
            print(f"note: {error}; trying again in {every:g} s", file=sys.stderr)
        if not following or clock.wait(stop, every):
            return


def _option_of(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise InvalidCall(
            f"--catalog-option {text!r} isn't NAME=VALUE", hint="for example s3.endpoint=http://10.0.0.1:9000"
        )
    return name, value


def _print(done: Exported, *, as_json: bool, only_news: bool) -> None:
    if only_news and not done.ranges:
        return
    entries = sum(each.entries for each in done.ranges)
    facts = {"stream": done.stream, "ranges": len(done.ranges), "entries": entries, "end": done.end}
    new = f"{entries:,} new entries, exported up to {done.end}" if done.ranges else "nothing new"
    print_result(facts, f"{done.stream}: {new}", as_json=as_json)
    sys.stdout.flush()
