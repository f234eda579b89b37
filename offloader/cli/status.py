"""``offloader status [STREAM]``: what the streams are doing.

Owns how a status document becomes a table, and when it is shown again. Must never change anything, nor pass an old
document off as news.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from offloader.cli.errors import failure_of
from offloader.cli.options import EndpointUrl, Json, Region, Store, open_chosen_store
from offloader.cli.output import Column, bytes_text, json_line, print_rows
from offloader.clock import Clock, SystemClock
from offloader.errors import InvalidCall, NotFound, OffloaderError
from offloader.manifest.log import list_streams
from offloader.read.streams import load_stream
from offloader.read.times import time_text
from offloader.settings import TelemetrySettings
from offloader.status_document import manifest_document, read_status_file, with_manifest
from offloader.store.base import ObjectStore

__all__ = ["run", "watch"]

#: A status file that wasn't written for so many of its intervals is called old.
_INTERVALS_MAX = 3


def _size(value: int | None) -> str:
    return "-" if value is None else bytes_text(value)


def _lag(value: Mapping[str, Any] | None) -> str:
    if value is None:
        return "-"
    seconds = "" if value["seconds"] is None else f", {value['seconds']:.1f} s"
    return "0" if not value["entries"] else f"{value['entries']:,} entries, {bytes_text(value['bytes'])}{seconds}"


def _buffer(value: Mapping[str, Any] | None) -> str:
    return "-" if value is None else f"{bytes_text(value['bytes'])} of {bytes_text(value['bytes_max'])}"


def _segments(value: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {status}" for status, count in value.items() if count) or "0"


def _time(value: int | None) -> str:
    return "-" if value is None else time_text(value)


def _plain(value: object) -> str:
    return "-" if value is None else str(value)


_COLUMNS = [
    Column("stream", "STREAM"),
    Column("mode", "MODE", _plain),
    Column("committed", "COMMITTED", _plain, right=True),
    Column("offered", "OFFERED", _plain, right=True),
    Column("tail", "TAIL", _plain, right=True),
    Column("lag", "LAG", _lag),
    Column("buffer", "BUFFER", _buffer),
    Column("segments", "SEGMENTS", _segments),
    Column("bytes_offloaded", "OFFLOADED", _size, right=True),
    Column("last_progress_ms", "LAST PROGRESS", _time),
    Column("trouble", "TROUBLE", _plain),
]


def run(
    stream: Annotated[str, typer.Argument(help="One stream's name.", show_default="all")] = "",
    store: Store = "",
    endpoint_url: EndpointUrl = "",
    region: Region = "",
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
    json: Json = False,
) -> int:
    """Show what the streams are doing: mode, positions, lag, buffer, segments, last error, last progress.

    From the manifests in the store, from the status file of the process that writes, or from both. A stream in trouble
    is no failure of this command: the table says so. A damaged manifest is (exit code 6), after the other streams.
    """
    if not store and not status_file:
        raise InvalidCall(
            "neither a store nor a status file was named",
            hint="give --store URL for what the manifests say, --status-file FILE for what the writing process says",
        )
    opened = open_chosen_store(store, endpoint_url, region) if store else None
    clock = SystemClock()

    def show() -> int:
        document, code = _documents(opened, status_file, stream, limit)
        _show(document, status_file, clock, as_json=json)
        return code

    if not watching:
        return show()
    watch(show, interval, clock=clock, stop=threading.Event())
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


def _show(document: Mapping[str, Any], status_file: str, clock: Clock, *, as_json: bool) -> None:
    written_ms = document["written_ms"]
    age_s = None if written_ms is None else max(0, clock.now_ms() - written_ms) / 1000
    if as_json:
        for row in document["streams"]:
            print(json_line({**row, "written_ms": written_ms, "age_s": age_s}))
        return
    if age_s is not None:
        print(_age_line(document, status_file, age_s))
    for line in _limit_lines(document.get("limits")):
        print(line)
    rows = [{**row, "trouble": row.get("stalled") or row.get("last_error")} for row in document["streams"]]
    print_rows(rows, _COLUMNS, empty="no streams")


def _age_line(document: Mapping[str, Any], status_file: str, age_s: float) -> str:
    telemetry = document.get("settings", {}).get("telemetry", {})
    interval_s = telemetry.get("status_interval_s", TelemetrySettings().status_interval_s)
    old = age_s > _INTERVALS_MAX * interval_s
    note = f": OLD, it is due every {interval_s:g} s; the process may have ended" if old else ""
    return f"{status_file} of process {document.get('pid')}, written {age_s:.0f} s ago{note}"


def _limit_lines(limits: Mapping[str, Any] | None) -> list[str]:
    if limits is None:
        return []
    lines = [f"limits: {', '.join(f'{name} = {value:g}' for name, value in limits['limits'].items())}"]
    waiting = {name: count for name, count in limits["waiting"].items() if count}
    if waiting:
        lines.append(f"waiting for their turn: {', '.join(f'{count} {name}' for name, count in waiting.items())}")
    if limits["pace_requests_per_s"] is not None:
        lines.append(f"slowed down by the store to {limits['pace_requests_per_s']:.1f} requests/s")
    return lines if limits["limits"] else lines[1:]
