"""``offloader demo``: offload and read back real data once: options, progress and result."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from offloader.cli.errors import failure_of
from offloader.cli.options import Json, PlaceArguments, option
from offloader.cli.output import Column, bytes_text, json_line, print_rows, program_name
from offloader.demo.input import FORMATS
from offloader.demo.run import STREAM, DemoRequest, DemoResult, Observer, Progress, run_demo
from offloader.runtime.clock import SystemClock
from offloader.spark.demo_query import ScanResult, snippet
from offloader.store.wrappers import VerbCount

#: Progress lines of a run with piped output.
_LINES = 10
#: Characters of a line with all columns.
_WIDE = 150
#: A day with flights, for the example command that reads.
_FLIGHTS_DAY = "2013-07-04"


def run(
    given: PlaceArguments,
    directory: Annotated[
        str, typer.Option("--dir", metavar="DIR", help="Directory of all files of the demo.")
    ] = "offloader-demo",
    input_path: Annotated[
        str, option("--input", "Your own events instead of the flights; may be .gz or .zst.", metavar="FILE")
    ] = "",
    input_format: Annotated[
        str, option("--input-format", "Default: by the file's suffix, else lines of text.", metavar="|".join(FORMATS))
    ] = "",
    time_field: Annotated[
        str,
        option(
            "--time-field",
            "Field of --input that holds the publish time (ISO 8601, or seconds or milliseconds since 1970). "
            "Default: the time of the import.",
            metavar="NAME",
        ),
    ] = "",
    clean: Annotated[bool, typer.Option("--clean", help="First remove the data of an earlier run.")] = False,
    spark: Annotated[bool, typer.Option("--spark/--no-spark", help="Whether to scan with Spark at the end.")] = True,
    picture: Annotated[
        bool, typer.Option("--picture/--no-picture", help="Whether to draw ledgers, segments and time.")
    ] = True,
    json: Json = False,
) -> int:
    """Offload and read back real data once: 336,776 flights, or your own events.

    Appends the events to durable local ledgers and meanwhile offloads them as segments to an object store (the local
    directory DIR/store, unless --store names another one). Then reads them back, compares them, scans them with Spark
    and draws a picture. If interrupted, repeat the command: it resumes where it stopped.

    Examples:
        offloader demo
        offloader demo --input events.ndjson --time-field created --no-spark
    """
    request = DemoRequest(
        directory=directory,
        store_url=given.store,
        endpoint_url=given.endpoint_url,
        region=given.region,
        input_path=input_path,
        input_format=input_format,
        time_field=time_field,
        clean=clean,
        spark=spark,
        picture=picture,
    )
    with _shown(as_json=json) as shown:
        result = run_demo(request, shown, SystemClock())
    _print_json(result) if json else _print_end(result)
    return result.problems[0].exit_code if result.problems else 0


class _Lines(Observer):
    """A line for each step, and for each tenth of the events appended or stored."""

    _told = 0

    def step(self, text: str) -> None:
        print(text, flush=True)

    def progress(self, now: Progress) -> None:
        tenths = (now.appended + now.committed) * _LINES // (2 * now.total)
        if self.now is None or tenths > self._told:
            print(
                f"  appended {now.appended:,} of {now.total:,}, in the store {now.committed:,}, {_lag(now)}, "
                f"{_buffer(now)}, {now.mode}" + (f"; {now.error}" if now.error else ""),
                flush=True,
            )
        self._told, self.now = max(tenths, self._told), now

    def results(self, result: DemoResult) -> None:
        _print_results(result)


class _Bars(Observer):
    """Two bars: appended, and in the store."""

    def __init__(self) -> None:
        from rich import progress

        columns = (progress.BarColumn(bar_width=None), progress.TaskProgressColumn())
        self.bars = progress.Progress("{task.description}", *columns, "{task.fields[note]}")
        self._tasks = [self.bars.add_task(text, note="", visible=False) for text in ("  appended", "  in the store")]

    def step(self, text: str) -> None:
        if self.now is not None:
            self.bars.stop()  # complete bars stay visible
        self.bars.console.print(text, highlight=False, markup=False)

    def progress(self, now: Progress) -> None:
        self.now = now
        notes = (f"{now.mode}, {_buffer(now)}", _lag(now) + (f"; {now.error}" if now.error else ""))
        for task, done, note in zip(self._tasks, (now.appended, now.committed), notes, strict=True):
            self.bars.update(task, total=now.total, completed=done, note=note, visible=True)

    def results(self, result: DemoResult) -> None:
        self.bars.stop()
        _print_results(result)


def _lag(now: Progress) -> str:
    return f"lag {now.lag_events:,} events"


def _buffer(now: Progress) -> str:
    return f"buffer {bytes_text(now.buffer_bytes)} of {bytes_text(now.buffer_bytes_max)}"


@contextmanager
def _shown(*, as_json: bool) -> Iterator[Observer]:
    """Bars on a terminal, lines in a pipe, no progress with JSON; on Ctrl-C, a note on how to resume."""
    bars = _Bars() if sys.stdout.isatty() and not as_json else None
    shown = bars or (Observer() if as_json else _Lines())
    with bars.bars if bars is not None else nullcontext():
        try:
            yield shown
        except KeyboardInterrupt:
            if shown.now is not None and shown.now.appended and not as_json:
                durable = f"{shown.now.appended:,} of {shown.now.total:,} events are durable"
                print(f"\n{durable}; repeat the command to resume", file=sys.stderr)
            raise


_LEDGERS = (
    Column("ledger", "ledger", right=True),
    Column("entries", "entries", right=True),
    Column("payload_bytes", "bytes", right=True),
    Column("segments", "in segments"),
)
_SEGMENTS = (
    Column("segment", "segment", right=True),
    Column("first", "first"),
    Column("last", "last"),
    Column("entries", "entries", right=True),
    Column("payload_bytes", "bytes", right=True),
    Column("ledgers", "ledgers"),
    Column("objects", "objects: data + index", less=1),
    Column("published", "published", less=2),
    Column("uuid", "object names: <uuid>, <uuid>-index", less=3),
)
_REQUESTS = (
    Column("verb", "verb"),
    Column("offloading", "offloading", right=True),
    Column("reading", "reading back", right=True),
    Column("errors", "failed", right=True),
    Column("bytes_sent", "sent", bytes_text, right=True),
    Column("bytes_received", "received", bytes_text, right=True),
)


def _is_wide() -> bool:
    return not sys.stdout.isatty() or shutil.get_terminal_size().columns >= _WIDE


def _print_results(result: DemoResult) -> None:
    summary, request = result.summary, result.request
    print(
        f"\nInput:   {summary.name}, {summary.events:,} events, {bytes_text(summary.payload_bytes)}\n"
        f"Store:   {request.url}, stream {STREAM}\nLedgers: {request.ledgers_path}\n"
    )
    print_rows(_ledger_rows(result), _LEDGERS)
    print()
    print_rows(_segment_rows(result), _SEGMENTS)
    _print_outcome(result)
    print("\nRequests to the store (a request for an object that does not exist yet counts as failed):\n")
    print_rows(_request_rows(result), _REQUESTS)
    if result.picture is not None:
        print(f"\nPicture: {result.picture}")
    sys.stdout.flush()


def _print_end(result: DemoResult) -> None:
    if result.scan is not None:
        _print_scan(result.scan, result.scan_seconds, digits=1 if _is_wide() else 0)
    print(f"\nThe whole demo took {result.seconds:.1f} s")
    commands = "\n".join(f"  {command}" for command in _next_commands(result))
    python = shlex.quote(os.path.relpath(sys.executable))
    print(f"\nNext commands:\n\n{commands}\n\nor, in {python}:\n\n{_python_snippet(result)}")
    for problem in result.problems:
        failure_of(problem).print(sys.stderr)


def _print_outcome(result: DemoResult) -> None:
    found, offload = result.verification, result.offload
    assert found is not None
    print()
    if offload is None:
        print(f"Appended:   nothing, all {result.events_before:,} events were appended before")
    else:
        before = f" ({result.events_before:,} were appended before)" if result.events_before else ""
        seconds = max(offload.seconds, 1e-9)
        print(
            f"Appended:   {offload.appended:,} events{before}, {bytes_text(offload.appended_bytes)}, durable and "
            f"offloaded in {seconds:.1f} s: {offload.appended_bytes / seconds / 1e6:.0f} MB/s, "
            f"{offload.appended / seconds:,.0f} events/s"
        )
    rate = found.payload_bytes / max(found.seconds, 1e-9) / 1e6
    print(f"Read back:  {found.events:,} events from the store alone in {found.seconds:.1f} s: {rate:.0f} MB/s")
    verdict = f"{'equals' if found.ok else 'DIFFERS FROM'} that of the appended events"
    print(
        f"Verified:   {found.events:,} of {found.expected.events:,} events, SHA-256 {found.sha256}\n{' ' * 12}{verdict}"
    )
    if result.saving is not None and result.saving.advice:
        print(f"Codec:      {result.saving};\n{' ' * 12}{result.saving.advice}")


def _print_scan(scan: ScanResult, seconds: float, *, digits: int) -> None:
    print(f"\nSpark: {scan.question}; {scan.partitions} partitions, {seconds:.1f} s including Spark's start\n")
    if "month" not in scan.columns:
        print_rows(_scan_rows(scan), [Column(name, name, right=True) for name in scan.columns])
        return
    cells: dict[str, dict[str, Any]] = {}
    for carrier, month, delay, _ in scan.rows:
        # Adding 0.0 turns a rounded -0.0 into 0.
        cells.setdefault(carrier, {"carrier": carrier})[str(month)] = f"{round(delay, digits) + 0.0:.{digits}f}"
    months = [Column(str(month), f"{datetime(2013, month, 1, tzinfo=UTC):%b}", right=True) for month in range(1, 13)]
    print_rows(cells.values(), [Column("carrier", "carrier"), *months])


def _print_json(result: DemoResult) -> None:
    found, offload, scan = result.verification, result.offload, result.scan
    assert found is not None
    names = ("ok", "events", "payload_bytes", "sha256", "seconds")
    spark = (
        None
        if scan is None
        else {
            "question": scan.question,
            "partitions": scan.partitions,
            "seconds": result.scan_seconds,
            "rows": list(_scan_rows(scan)),
        }
    )
    value = {
        "input": asdict(result.summary),
        "store": result.request.url,
        "stream": STREAM,
        "ledgers_file": str(result.request.ledgers_path),
        "removed_objects": result.removed_objects,
        "events_before": result.events_before,
        "events_appended": offload.appended if offload else 0,
        "offload": {"bytes": offload.appended_bytes, "seconds": offload.seconds} if offload else None,
        "ledgers": list(_ledger_rows(result)),
        "segments": list(_segment_rows(result)),
        "verification": {name: getattr(found, name) for name in names},
        "requests": list(_request_rows(result)),
        "spark": spark,
        "picture": str(result.picture) if result.picture else None,
        "next": {"commands": _next_commands(result), "python": _python_snippet(result)},
        "problems": [
            {name: value for name, value in asdict(failure_of(each)).items() if name != "exit_code"}
            for each in result.problems
        ],
        "seconds": result.seconds,
    }
    print(json_line(value))


def _next_commands(result: DemoResult) -> list[str]:
    """Example commands that work as printed."""
    request, program = result.request, shlex.quote(program_name())
    environment = {
        "OFFLOADER_STORE": request.url,
        "OFFLOADER_ENDPOINT_URL": request.endpoint_url,
        "OFFLOADER_REGION": request.region,
    }
    since = "" if request.input_path else f" --since {_FLIGHTS_DAY}"
    return [
        *(f"export {name}={shlex.quote(value)}" for name, value in environment.items() if value),
        f"{program} ls",
        f"{program} ls {STREAM}",
        f"{program} read {STREAM}{since} --limit 3",
    ]


def _python_snippet(result: DemoResult) -> str:
    return snippet(result.request.url, STREAM, result.request.store_options, flights=not result.request.input_path)


def _ledger_rows(result: DemoResult) -> Iterator[Mapping[str, object]]:
    held = [{span.ledger_id for span in each.summary.ledgers} if each.summary else set() for each in result.segments]
    for ledger in result.ledgers:
        yield {
            "ledger": ledger.ledger_id,
            "entries": ledger.entries,
            "payload_bytes": ledger.size_bytes,
            "segments": " ".join(str(number) for number, inside in enumerate(held, 1) if ledger.ledger_id in inside),
        }


def _segment_rows(result: DemoResult) -> Iterator[Mapping[str, object]]:
    for number, record in enumerate(result.segments, 1):
        summary = record.summary
        assert summary is not None, "readable segments are complete"
        yield {
            "segment": number,
            "first": str(summary.begin),
            "last": str(summary.end),
            "entries": summary.entries,
            "payload_bytes": summary.payload_bytes,
            "published": _times(summary.publish_time_min_ms, summary.publish_time_max_ms),
            "ledgers": " ".join(str(span.ledger_id) for span in summary.ledgers),
            "data_object_bytes": summary.data_bytes,
            "index_object_bytes": summary.index_bytes,
            "objects": f"{summary.data_bytes:,} + {summary.index_bytes:,}",
            "uuid": str(record.uuid),
        }


def _times(first_ms: int, last_ms: int) -> str:
    if first_ms < 0:
        return "-"
    first, last = (datetime.fromtimestamp(ms / 1000, UTC) for ms in (first_ms, last_ms))
    return f"{first:%Y-%m-%d %H:%M} .. {last:%Y-%m-%d %H:%M}"


def _request_rows(result: DemoResult) -> Iterator[Mapping[str, object]]:
    phases = [each.requests if each else {} for each in (result.offload, result.verification)]
    for verb in sorted(set().union(*phases)):
        offloading, reading = (requests.get(verb, VerbCount()) for requests in phases)
        yield {
            "verb": verb,
            "offloading": offloading.requests,
            "reading": reading.requests,
            "errors": offloading.errors + reading.errors,
            "bytes_sent": offloading.bytes_sent + reading.bytes_sent,
            "bytes_received": offloading.bytes_received + reading.bytes_received,
        }


def _scan_rows(scan: ScanResult) -> Iterable[Mapping[str, object]]:
    return (dict(zip(scan.columns, row, strict=True)) for row in scan.rows)
