"""``offloader status [STREAM]``: prints or watches the state of streams."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import fields, replace
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from offloader.cli.errors import failure_of
from offloader.cli.options import Json, StoreArguments, amount, name_argument, option
from offloader.cli.output import Column, bytes_text, json_line, print_rows, rate_text
from offloader.errors import InvalidCallError, NotFoundError, OffloaderError
from offloader.manifest.log import list_streams
from offloader.manifest.names import named_streams, resolve_name
from offloader.manifest.unlisted import unlisted_streams
from offloader.monitor import manifest_document, read_status_file, trouble_of, with_manifest
from offloader.read.reader import load_stream
from offloader.runtime.clock import Clock, SystemClock
from offloader.settings import Settings, TelemetrySettings
from offloader.settings.fields import in_file
from offloader.store.base import ObjectStore
from offloader.times import duration_text, time_text

if TYPE_CHECKING:
    from rich.text import Text

#: Interval of --watch.
INTERVAL_S = 2.0
#: Intervals without a write after which a status file counts as old.
_INTERVALS_MAX = 3
#: Minimum width of the name column; other columns are dropped first.
_NAME_WIDTH_MIN = 24
#: Troubles take at most this fraction of the height.
_TROUBLES_PART = 3
_GAP = "  "
_HEADING = "STREAM"
_STYLES = {
    "live": "green",
    "catch-up": "yellow",
    "paused": "yellow",
    **dict.fromkeys(("stopped", "deleted", "disconnected", "stalled"), "red"),
}


# -- above the table


def head_lines(document: Mapping[str, Any], status_file: str, now_ms: int) -> list[tuple[str, bool]]:
    """Lines about the whole process, and whether each is a warning."""
    if document.get("written_ms") is None:
        return []
    lines = [_age_line(document, status_file, now_ms)]
    settings = document.get("settings") or {}
    store = document.get("store")
    if store is not None:
        problems = "; missing guarantees: " + "; ".join(store["problems"]) if store["problems"] else ""
        alone = "; single writer: no other process may ever write to it" if store["single_writer"] else ""
        lines.append((f"store: {store['url']}{alone}{problems}", bool(alone or problems)))
        oldest, allowed_s = store["oldest_request"], (settings.get("store") or {}).get("read_timeout", 0)
        if oldest is not None and oldest["seconds"] > allowed_s:
            what = f"{oldest['verb']} of {oldest['key']}"
            lines.append((f"{store['open_requests']} requests are open, {what} for {oldest['seconds']:.0f} s", True))
    changed = [
        f"{row['setting']} = {row['value']}"
        for row in limit_rows(document)
        if row["value"] != row["default"] and row["setting"] != "telemetry.status_file"
    ]
    if changed:
        lines.append((f"settings: {', '.join(changed)}", False))
    limits = document.get("limits") or {}
    waiting = [f"{count} {name}" for name, count in limits.get("waiting", {}).items() if count]
    if waiting:
        lines.append((f"waiting because of a rate limit: {', '.join(waiting)}", False))
    pace = limits.get("pace_requests_per_s")
    if pace is not None:
        lines.append((f"throttled by the store to {pace:.1f} requests/s", True))
    return lines


def _age_line(document: Mapping[str, Any], status_file: str, now_ms: int) -> tuple[str, bool]:
    age_s = max(0, now_ms - document["written_ms"]) / 1000
    telemetry = (document.get("settings") or {}).get("telemetry") or {}
    interval_s = telemetry.get("status_interval", TelemetrySettings().status_interval)
    old = age_s > _INTERVALS_MAX * interval_s
    note = f": OLD, expected every {interval_s:g} s; the process may have stopped" if old else ""
    return f"{status_file} of process {document.get('pid')}, written {duration_text(age_s)} ago{note}", old


def limit_rows(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Every limit in force, as in a settings file: name, value, default and description."""
    for section in fields(Settings):
        given = (document.get("settings") or {}).get(section.name) or {}
        for setting in fields(getattr(Settings(), section.name)):
            if setting.name in given:
                default: Any = setting.default
                is_list = isinstance(default, tuple)
                yield {
                    "setting": f"{section.name}.{setting.name}",
                    "value": given[setting.name] if is_list else in_file(type(default)(given[setting.name])),
                    "default": list(default) if is_list else in_file(default),
                    "what": setting.metadata["doc"],
                }


def limit_lines(document: Mapping[str, Any], width: int) -> list[Text]:
    """The limits for a terminal: a line for each setting, and one for its description."""
    from rich.text import Text

    lines = []
    for row in limit_rows(document):
        note = f" (default {row['default']})" if row["value"] != row["default"] else ""
        lines += [Text(part, style="bold") for part in _wrapped(f"{row['setting']} = {row['value']}{note}", width)]
        lines += [Text(f"{_GAP}{part}") for part in textwrap.wrap(row["what"], width - len(_GAP))]
    return lines


LIMIT_COLUMNS = [
    Column("setting", "SETTING"),
    Column("value", "VALUE", str, right=True),
    Column("default", "DEFAULT", str, right=True),
    Column("what", "WHAT", wraps=True),
]


# -- one stream


def _plain(value: object) -> str:
    return "-" if value is None else str(value)


def _segments(value: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {status}" for status, count in value.items() if count) or "0"


def _lag(value: Mapping[str, Any]) -> str:
    seconds = "" if value["seconds"] is None else f", {value['seconds']:.1f} s"
    if not value["entries"]:
        # Seconds without entries: the hot tier is unreachable and may have more entries.
        return f"unknown for {duration_text(value['seconds'])}" if value["seconds"] else "0"
    return f"{value['entries']:,} entries, {bytes_text(value['bytes'])}{seconds}"


def _buffer(value: Mapping[str, Any]) -> str:
    return f"{bytes_text(value['bytes'])} of {bytes_text(value['bytes_max'])}"


#: Columns for pipes and files.
PLAIN_COLUMNS = [
    Column("stream", "STREAM"),
    Column("mode", "MODE"),
    Column("committed", "COMMITTED", right=True, less=4),
    Column("offered", "OFFERED", right=True, less=8),
    Column("tail", "TAIL", right=True, less=7),
    Column("lag", "LAG", _lag, wraps=True),
    Column("bytes_per_second", "RATE", rate_text, right=True, less=1),
    Column("buffer", "BUFFER", _buffer, less=6),
    Column("segments", "SEGMENTS", _segments, less=5),
    Column("bytes_offloaded", "OFFLOADED", bytes_text, right=True, less=2),
    Column("last_progress_ms", "LAST PROGRESS", time_text, less=3),
    Column("trouble", "TROUBLE", wraps=True),
]


# -- on a terminal


def _cells(row: Mapping[str, Any], now_ms: int) -> dict[str, str]:
    """A stream's cells by column, in display order."""
    lag, buffer, when_ms, offloaded = (row.get(key) for key in ("lag", "buffer", "last_progress_ms", "bytes_offloaded"))
    rate = row.get("bytes_per_second")
    return {
        "mode": _plain(row.get("mode")),
        "lag": "-" if lag is None else _lag_time(lag),
        "entries": "-" if lag is None else f"{lag['entries']:,}",
        "bytes": "-" if lag is None else bytes_text(lag["bytes"]),
        "rate": "-" if rate is None else rate_text(rate),
        "buffer": "-" if buffer is None else f"{buffer['bytes'] / max(1, buffer['bytes_max']):.0%}",
        "progress": "-" if when_ms is None else f"{duration_text(max(0, now_ms - when_ms) / 1000)} ago",
        "committed": _plain(row.get("committed")),
        "tail": _plain(row.get("tail")),
        "offloaded": "-" if offloaded is None else bytes_text(offloaded),
        "segments": _segments(row.get("segments") or {}),
    }


def _lag_time(lag: Mapping[str, Any]) -> str:
    # Entries of one time have no lag. Seconds without entries grow while the hot tier is unreachable.
    return "?" if lag["seconds"] is None else duration_text(lag["seconds"]) if lag["entries"] or lag["seconds"] else "0"


#: Left-aligned columns.
_LEFT = frozenset(("mode", "segments"))
#: Columns in order of priority for the available width.
_PRIORITY = (
    *("mode", "lag", "entries", "progress", "bytes", "buffer", "rate"),
    *("committed", "segments", "offloaded", "tail"),
)


def frame(
    document: Mapping[str, Any], status_file: str, now_ms: int, *, width: int, height: int | None = None
) -> list[Text]:
    """The document as lines of at most ``width`` characters.

    Args:
        height: maximum number of lines: streams in trouble come first, the others are counted. ``None``: no limit.
    """
    from rich.text import Text

    rows: list[Mapping[str, Any]] = list(document["streams"])
    common = _common([row["stream"] for row in rows])
    lines = [
        Text(part, style="bold yellow" if warns else "")
        for line, warns in [*head_lines(document, status_file, now_ms), (_summary(rows, common), False)]
        for part in _wrapped(line, width)
    ]
    troubles = _troubles(rows, width, None if height is None else max(2, height // _TROUBLES_PART))
    if not rows:
        return lines
    shown = rows
    # A blank line above the table and its heading.
    lines_left = None if height is None else max(1, height - len(lines) - len(troubles) - 2)
    if lines_left is not None and len(rows) > lines_left:
        shown = sorted(rows, key=_urgency)[: max(1, lines_left - 1)]
    table = _table(shown, common, now_ms, width)
    more = len(rows) - len(shown)
    rest = [Text(f"... and {more:,} more; name a stream to see it", style="dim")] if more else []
    return [*lines, Text(""), *table, *rest, *troubles]


def _urgency(row: Mapping[str, Any]) -> tuple[bool, float, int, str]:
    lag = row.get("lag") or {}
    return trouble_of(row) is None, -(lag.get("seconds") or 0), -(lag.get("entries") or 0), row["stream"]


def _summary(rows: Sequence[Mapping[str, Any]], common: str) -> str:
    if not rows:
        return "no streams"
    modes = Counter(row.get("mode") for row in rows if row.get("mode"))
    troubled = sum(trouble_of(row) is not None for row in rows)
    parts = [f"{count:,} {mode}" for mode, count in sorted(modes.items())]
    of = f" of {common}" if common else ""
    said = ", ".join(parts) + (f"; {troubled:,} in trouble" if troubled else "")
    return f"{len(rows):,} stream{'s' if len(rows) > 1 else ''}{of}: {said.removeprefix('; ')}".removesuffix(": ")


def _common(names: Sequence[str]) -> str:
    """The levels common to all names, with the last slash."""
    if len(names) < 2:
        return ""
    levels = zip(*(name.split("/")[:-1] for name in names), strict=False)
    return "".join(f"{same[0]}/" for same in takewhile(lambda each: len(set(each)) == 1, levels))


def _table(rows: Sequence[Mapping[str, Any]], common: str, now_ms: int, width: int) -> list[Text]:
    from rich.text import Text

    skip = len(common)
    wanted = max(len(_HEADING), *(len(row["stream"]) - skip for row in rows))
    by_row = [_cells(row, now_ms) for row in rows]
    widths = {key: max(len(key), *(len(cells[key]) for cells in by_row)) for key in by_row[0]}
    chosen: set[str] = set()
    left = width - min(wanted, _NAME_WIDTH_MIN)
    # Drop columns without any value (a manifest has no lag).
    for key in [key for key in _PRIORITY if any(cells[key] != "-" for cells in by_row)]:
        # The first columns take precedence over the full name; the others don't shorten it.
        vital = _PRIORITY.index(key) < _PRIORITY.index("committed")
        kept = 0 if vital else max(0, wanted - _NAME_WIDTH_MIN)
        if widths[key] + len(_GAP) > left - kept:
            break
        chosen.add(key)
        left -= widths[key] + len(_GAP)
    keys = [key for key in widths if key in chosen]
    name_width = min(wanted, width - sum(widths[key] + len(_GAP) for key in keys))
    lines = [Text(_line(_HEADING, name_width, keys, widths, [key.upper() for key in keys]))]
    lines[0].stylize("bold")
    for row, cells in zip(rows, by_row, strict=True):
        name = _cut(row["stream"][skip:], name_width)
        text = Text(_line(name, name_width, keys, widths, [cells[key] for key in keys]))
        if trouble_of(row) is not None:
            text.stylize("bold red", 0, len(name))
        mode = row.get("mode")
        if mode and "mode" in keys:
            start = name_width + len(_GAP)
            text.stylize(_STYLES.get(mode, ""), start, start + len(mode))
        lines.append(text)
    return lines


def _line(name: str, name_width: int, keys: Sequence[str], widths: Mapping[str, int], texts: Sequence[str]) -> str:
    padded = [
        text.ljust(widths[key]) if key in _LEFT else text.rjust(widths[key])
        for key, text in zip(keys, texts, strict=True)
    ]
    return _GAP.join([name.ljust(name_width), *padded]).rstrip()


def _wrapped(line: str, width: int) -> list[str]:
    return textwrap.wrap(line, width, subsequent_indent=_GAP, break_on_hyphens=False)


def _cut(name: str, width: int) -> str:
    """Keeps the end of a name, which distinguishes streams."""
    return name if len(name) <= width else f"…{name[len(name) - width + 1 :]}"


def _troubles(rows: Sequence[Mapping[str, Any]], width: int, lines_max: int | None) -> list[Text]:
    from rich.text import Text

    lines: list[Text] = []
    troubled = [(row["stream"], trouble) for row in rows if (trouble := trouble_of(row)) is not None]
    for number, (stream, trouble) in enumerate(troubled):
        said = trouble.removeprefix(f"stream {stream}: ").removeprefix(f"stream {stream} ")
        parts = _wrapped(f"! {stream}: {said}", width)
        if lines_max is not None and len(lines) + len(parts) > lines_max - 2:
            lines.append(Text(f"... and {len(troubled) - number:,} more in trouble", style="red"))
            break
        lines += [Text(part, style="red") for part in parts]
    return [Text(""), *lines] if lines else []


# -- the writing process

#: Address of a process whose settings name none.
DEFAULT_URL = "http://127.0.0.1:8750"


class StatusFile:
    """The status file of the writing process.

    Attributes:
        label: of the source, as shown to users.
    """

    def __init__(self, label: str) -> None:
        self.label = label

    def read(self) -> Mapping[str, Any]:
        """The document. Raises as ``read_status_file``."""
        return read_status_file(Path(self.label))


class ServingStatus:
    """The running ``offloader serve`` of a store, queried over HTTP.

    Its address is ``serve.url``, else ``http.listen``, and without settings ``DEFAULT_URL``. A process at that address
    that serves another store is ignored.
    """

    def __init__(self, settings: Settings, store_url: str) -> None:
        self._store_url, self._hosts = store_url, settings.access.owner_hosts
        url = _serving_url(settings)
        self.label, self._is_configured = url or DEFAULT_URL, bool(url)
        self._noted = ""

    def read(self) -> Mapping[str, Any]:
        """The document; without ``written_ms`` if no process answers or access is denied."""
        from offloader.owner_client import served_status  # an HTTP client, which other sources don't need

        environ = os.environ if self._is_configured else {}  # no token for an unknown process
        try:
            return served_status(self.label, self._store_url, hosts=self._hosts, environ=environ)
        except OffloaderError as error:
            self._note(str(error))
            return {"written_ms": None}

    def _note(self, why: str) -> None:
        if self._is_configured and why != self._noted:
            print(f"note: showing facts of the manifests only: {why}", file=sys.stderr)
            self._noted = why


def _serving_url(settings: Settings) -> str:
    """The address of the process with these settings; empty: they have none."""
    if settings.serve.url or not settings.http.listen:
        return settings.serve.url
    from offloader.service.auth import parse_listen

    at = parse_listen(settings.http.listen, setting="http.listen")
    if not at.port:  # the system chooses one
        return ""
    host = replace(at, host="127.0.0.1") if at.is_every else at
    return f"{'https' if settings.access.certificate_file else 'http'}://{host}"


def run(
    given: StoreArguments,
    stream: Annotated[str, name_argument("One stream's name, or its topic's.", shown="all")] = "",
    status_file: Annotated[
        str,
        option(
            "--status-file",
            "Status file of the writing process (setting telemetry.status_file).",
            envvar="OFFLOADER_STATUS_FILE",
            metavar="FILE",
        ),
    ] = "",
    watching: Annotated[bool, typer.Option("--watch", help="Refresh until interrupted.")] = False,
    interval: Annotated[
        float | None,
        amount("--interval", "With --watch: refresh interval.", "seconds", low=0.01, shown=str(INTERVAL_S)),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=0, help="Maximum number of streams; 0 = all.")] = 0,
    limits: Annotated[bool, typer.Option("--limits", help="Show every limit in force instead of the streams.")] = False,
    json: Json = False,
) -> int:
    """Show mode, positions, lag, buffer, segments, last error and last progress of the streams.

    The facts come from the manifests in the store; mode, lag and rate come from the writing process: from its status
    file, else over HTTP from `offloader serve` at the settings' serve.url or http.listen, or at 127.0.0.1:8750. A
    stream in trouble is marked in the table and does not change the exit code. A damaged manifest ends with exit code
    6, after the other streams.

    Examples:
        offloader status --config offloader.toml
        offloader status --config offloader.toml --watch
    """
    if interval is not None and not watching:
        raise InvalidCallError("--interval requires --watch", hint="add --watch, or leave --interval out")
    has_store = bool(given.place().url)
    if not has_store and not status_file:
        raise InvalidCallError(
            "neither a store nor a status file was given",
            hint="for facts of the manifests give --store URL, or --config FILE with serve.store; for facts of the "
            "writing process give --status-file FILE",
        )
    opened = given.open() if has_store else None
    source = StatusFile(status_file) if status_file or opened is None else ServingStatus(given.settings(), opened.url)
    if limits:
        return _show_limits(source, as_json=json)
    return _look(
        lambda: _documents(opened, source, stream, limit),
        source.label,
        as_json=json,
        interval_s=(INTERVAL_S if interval is None else interval) if watching else None,
    )


def _look(
    gather: Callable[[], tuple[dict[str, Any], int]], status_file: str, *, as_json: bool, interval_s: float | None
) -> int:
    """Shows the result of ``gather``, once or periodically; returns the exit code."""
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
                for line, _ in head_lines(document, status_file, clock.now_ms()):
                    print(line)
                rows = [{**row, "trouble": trouble_of(row)} for row in document["streams"]]
                print_rows(rows, PLAIN_COLUMNS, empty="no streams")
            return code

        if interval_s is None:
            return show()
        watch(show, interval_s, clock=clock, stop=threading.Event())
    return 0


def _show_limits(source: StatusFile | ServingStatus, *, as_json: bool) -> int:
    document = source.read()
    if document["written_ms"] is None:
        raise InvalidCallError("only a writing process reports limits", hint="give its status file: --status-file FILE")
    if sys.stdout.isatty() and not as_json:
        with _screen(in_place=False) as draw:
            draw(limit_lines(document, shutil.get_terminal_size().columns))
    else:
        print_rows(limit_rows(document), LIMIT_COLUMNS, as_json=as_json)
    return 0


def watch(show: Callable[[], object], interval_s: float, *, clock: Clock, stop: threading.Event) -> None:
    """Calls ``show`` every ``interval_s`` until ``stop`` is set; a temporarily unavailable store or file is reported on
    standard error and retried.

    Raises:
        OffloaderError: a permanent error, without a retry.
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


def _documents(
    store: ObjectStore | None, source: StatusFile | ServingStatus, stream: str, limit: int
) -> tuple[dict[str, Any], int]:
    """The process's document with the facts of the manifests in its streams, and the exit code. Without a process, only
    the facts of the manifests."""
    document = source.read()
    written = {row["stream"]: row for row in document.get("streams", [])}
    stored = set() if store is None or stream else set(list_streams(store))
    named: Collection[str] = [stream]
    if stream and stream not in written:
        named = resolve_name(stream, written).streams
        if store is not None and list(named) == [stream]:
            named = named_streams(store, stream).streams
    names = list(named) if stream else sorted(stored | written.keys())
    rows, code = list[dict[str, Any]](), 0
    for name in names:
        if limit and len(rows) == limit:
            break
        try:
            rows.append(_one(store, written.get(name), name, source.label))
        except OffloaderError as error:
            if not stream and isinstance(error, NotFoundError):
                continue  # deleted: the catalogue keeps its entry until the tombstone expires
            if len(names) == 1 or error.retryable:
                raise
            failure = failure_of(error)
            code = max(code, failure.exit_code)
            rows.append({"stream": name, "segments": {}, "last_error": failure.message})
    if store is not None and not stream:
        for name, lost in unlisted_streams(store, list_streams(store, released=True)):
            code = max(code, failure_of(lost).exit_code)
            rows.append({"stream": name, "segments": {}, "last_error": lost.message})
    return {**document, "streams": rows}, code


def _one(store: ObjectStore | None, written: Mapping[str, Any] | None, name: str, label: str) -> dict[str, Any]:
    if store is None:
        if written is None:
            raise NotFoundError(f"stream {name} isn't in {label}", hint="add --store URL to read its manifest")
        return dict(written)
    try:
        manifest = manifest_document(load_stream(store, name))
    except NotFoundError:
        # The file may have a stream before the store has its manifest.
        if written is None:
            raise
        return dict(written)
    return manifest if written is None else with_manifest(written, manifest)


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
