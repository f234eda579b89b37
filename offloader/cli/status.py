"""``offloader status [STREAM]``: what the streams are doing.

Owns where the document comes from and when it is shown again; how it looks is ``offloader.cli.status_view``. Must never
change anything, nor pass an old document off as news.
"""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from offloader.cli.errors import failure_of
from offloader.cli.options import Json, StoreArguments
from offloader.cli.output import json_line, print_rows
from offloader.cli.status_view import (
    LIMIT_COLUMNS,
    PLAIN_COLUMNS,
    frame,
    head_lines,
    limit_lines,
    limit_rows,
    trouble_of,
)
from offloader.clock import Clock, SystemClock
from offloader.errors import InvalidCall, NotFound, OffloaderError
from offloader.manifest.log import list_streams
from offloader.read.streams import load_stream
from offloader.status_document import manifest_document, read_status_file, with_manifest
from offloader.store.base import ObjectStore

if TYPE_CHECKING:
    from rich.text import Text

__all__ = ["run", "watch"]


def run(
    given: StoreArguments,
    stream: Annotated[str, typer.Argument(help="One stream's name.", show_default="all")] = "",
    status_file: Annotated[
        str,
        typer.Option(
            "--status-file",
            envvar="OFFLOADER_STATUS_FILE",
            metavar="FILE",
            help="The file that the writing process keeps (setting telemetry.status_file).",
            show_default=False,
        ),
    ] = "",
    watching: Annotated[bool, typer.Option("--watch", help="Show it again and again, until Ctrl-C.")] = False,
    interval: Annotated[float, typer.Option("--interval", min=0.01, help="Seconds between two looks.")] = 2.0,
    limit: Annotated[int, typer.Option("--limit", min=0, help="Most streams shown; 0 = all.")] = 0,
    limits: Annotated[bool, typer.Option("--limits", help="Show every limit in force instead.")] = False,
    json: Json = False,
) -> int:
    """Show what the streams are doing: mode, positions, lag, buffer, segments, last error, last progress.

    From the manifests in the store, from the status file of the process that writes, or from both. A stream in trouble
    is no failure of this command: the table says so. A damaged manifest is (exit code 6), after the other streams.
    """
    if not given.store and not status_file:
        raise InvalidCall(
            "neither a store nor a status file was named",
            hint="give --store URL for what the manifests say, --status-file FILE for what the writing process says",
        )
    if limits:
        return _show_limits(status_file, as_json=json)
    opened = given.open() if given.store else None
    return _look(
        lambda: _documents(opened, status_file, stream, limit),
        status_file,
        as_json=json,
        interval_s=interval if watching else None,
    )


def _look(
    gather: Callable[[], tuple[dict[str, Any], int]], status_file: str, *, as_json: bool, interval_s: float | None
) -> int:
    """Shows what ``gather`` answers, once or again and again; its exit code."""
    clock = SystemClock()
    watching, on_terminal = interval_s is not None, sys.stdout.isatty() and not as_json
    with _screen(in_place=watching) if on_terminal else nullcontext() as draw:

        def show() -> int:
            document, code = gather()
            if draw is not None:
                size = shutil.get_terminal_size()
                height = size.lines - 1 if watching else None
                draw(frame(document, status_file, clock.now_ms(), width=size.columns, height=height))
            elif as_json:
                _print_json(document, clock.now_ms())
            else:
                _print_plain(document, status_file, clock.now_ms())
            return code

        if interval_s is None:
            return show()
        watch(show, interval_s, clock=clock, stop=threading.Event())
    return 0


def _show_limits(status_file: str, *, as_json: bool) -> int:
    if not status_file:
        raise InvalidCall("only a writing process has limits", hint="name its status file: --status-file FILE")
    document = read_status_file(Path(status_file))
    if sys.stdout.isatty() and not as_json:
        with _screen(in_place=False) as draw:
            draw(limit_lines(document, shutil.get_terminal_size().columns))
    else:
        print_rows(limit_rows(document), LIMIT_COLUMNS, as_json=as_json)
    return 0


def watch(show: Callable[[], object], interval_s: float, *, clock: Clock, stop: threading.Event) -> None:
    """Calls ``show`` every ``interval_s`` until ``stop`` is set; a store or file that is away for a while is said on
    standard error, and the next look tries again.

    Raises:
        OffloaderError: what is wrong for good, at once.
    """
    while True:
        try:
            show()
            sys.stdout.flush()
        except OffloaderError as error:
            if not error.retryable:
                raise
            sys.stderr.write(f"offloader: {error}\n")
        if clock.wait(stop, interval_s):
            return


def _documents(store: ObjectStore | None, status_file: str, stream: str, limit: int) -> tuple[dict[str, Any], int]:
    """The file's document with the manifests' facts in its streams (without a file only those), and the exit code."""
    document: dict[str, Any] = read_status_file(Path(status_file)) if status_file else {"written_ms": None}
    written = {row["stream"]: row for row in document.get("streams", [])}
    stored = set() if store is None or stream else set(list_streams(store))
    names = [stream] if stream else sorted(stored | written.keys())
    rows, code = [], 0
    for name in names[:limit] if limit else names:
        try:
            rows.append(_one(store, written.get(name), name, status_file))
        except OffloaderError as error:
            if stream or error.retryable:
                raise
            failure = failure_of(error)
            code = max(code, failure.exit_code)
            rows.append({"stream": name, "segments": {}, "last_error": failure.message})
    return {**document, "streams": rows}, code


def _one(store: ObjectStore | None, written: Mapping[str, Any] | None, name: str, status_file: str) -> dict[str, Any]:
    if store is None:
        if written is None:
            raise NotFound(f"stream {name} isn't in {status_file}", hint="add --store URL to ask its manifest")
        return dict(written)
    try:
        manifest = manifest_document(load_stream(store, name))
    except NotFound:
        # A stream is in the file before its manifest is in the store.
        if written is None:
            raise
        return dict(written)
    return manifest if written is None else with_manifest(written, manifest)


def _print_plain(document: Mapping[str, Any], status_file: str, now_ms: int) -> None:
    for line, _ in head_lines(document, status_file, now_ms):
        print(line)
    rows = [{**row, "trouble": trouble_of(row)} for row in document["streams"]]
    print_rows(rows, PLAIN_COLUMNS, empty="no streams")


def _print_json(document: Mapping[str, Any], now_ms: int) -> None:
    written_ms = document["written_ms"]
    age_s = None if written_ms is None else max(0, now_ms - written_ms) / 1000
    for row in document["streams"]:
        print(json_line({**row, "written_ms": written_ms, "age_s": age_s}))


@contextmanager
def _screen(*, in_place: bool) -> Iterator[Callable[[list[Text]], None]]:
    """Shows frames on the terminal, one after another or in the same place."""
    from rich.console import Console, Group
    from rich.live import Live

    console = Console(highlight=False)
    if not in_place:
        yield lambda lines: console.print(Group(*lines))
        return
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        yield lambda lines: live.update(Group(*lines), refresh=True)
