"""``offloader demo``: the whole path once, on real data.

Owns the verb's options and showing progress. Must never do a step itself: that is ``offloader.demo``.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Annotated

import typer

from offloader.cli.demo_report import print_json, print_result
from offloader.cli.options import EndpointUrl, Json, Region, Store
from offloader.cli.output import bytes_text
from offloader.clock import SystemClock
from offloader.demo.input import FORMATS
from offloader.demo.run import DemoRequest, Observer, Progress, run_demo

__all__ = ["run"]

#: Progress lines of a run whose output is piped.
_LINES = 10

_Dir = Annotated[str, typer.Option("--dir", metavar="DIR", help="Where everything is kept.")]
_Input = Annotated[
    str, typer.Option("--input", metavar="FILE", help="Your own events instead of the flights.", show_default=False)
]
_Format = Annotated[
    str,
    typer.Option(
        "--input-format", metavar="|".join(FORMATS), help="Default: by the file's suffix.", show_default=False
    ),
]
_TimeField = Annotated[
    str,
    typer.Option(
        "--time-field",
        metavar="NAME",
        help="The field of --input with the publish time (ISO 8601, or a number of s or ms since 1970). "
        "Default: events are published when they are imported.",
        show_default=False,
    ),
]
_Clean = Annotated[bool, typer.Option("--clean", help="Remove an earlier run's data first.")]
_Spark = Annotated[bool, typer.Option("--spark/--no-spark", help="Whether to scan with Spark at the end.")]

_Picture = Annotated[bool, typer.Option("--picture/--no-picture", help="Whether to draw ledgers, segments and time.")]


def run(
    store: Store = "",
    directory: _Dir = "offloader-demo",
    input_path: _Input = "",
    input_format: _Format = "",
    time_field: _TimeField = "",
    clean: _Clean = False,
    spark: _Spark = True,
    picture: _Picture = True,
    endpoint_url: EndpointUrl = "",
    region: Region = "",
    as_json: Json = False,
) -> int:
    """Run the whole path once on real data: 336,776 flights, or your own events.

    Appends them to durable local ledgers while they are offloaded as segments into an object store (the local directory
    DIR/store, unless --store names another), reads everything back, compares, scans it with Spark and draws a picture.
    An interrupted run goes on where it was when the same command is given again.
    """
    request = DemoRequest(
        directory=directory,
        store_url=store,
        endpoint_url=endpoint_url,
        region=region,
        input_path=input_path,
        input_format=input_format,
        time_field=time_field,
        clean=clean,
        spark=spark,
        picture=picture,
    )
    with _observer(as_json) as observer:
        result = run_demo(request, observer, SystemClock())
    if as_json:
        print_json(result)
    else:
        print_result(result)
    return result.problems[0].exit_code if result.problems else 0


@contextlib.contextmanager
def _observer(as_json: bool) -> Iterator[Observer]:
    """A bar on terminals, lines in pipes, nothing beside JSON."""
    if as_json:
        yield _Silent()
    elif sys.stdout.isatty():
        with _Bar() as bar, _saying_how_to_go_on(bar):
            yield bar
    else:
        lines = _Lines()
        with _saying_how_to_go_on(lines):
            yield lines


@contextlib.contextmanager
def _saying_how_to_go_on(observer: _Lines | _Bar) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        now = observer.now
        if now is not None and now.appended:
            print(
                f"\n{now.appended:,} of {now.total:,} events are durable; the same command goes on from there",
                file=sys.stderr,
            )
        raise


class _Silent:
    def step(self, text: str) -> None:
        pass

    def progress(self, now: Progress) -> None:
        pass


class _Lines:
    """A line per step, and one each time another tenth was appended or all of it is in the store."""

    def __init__(self) -> None:
        self.now: Progress | None = None
        self._told = 0

    def step(self, text: str) -> None:
        print(text, flush=True)

    def progress(self, now: Progress) -> None:
        tenths = (now.appended + now.committed) * _LINES // (2 * now.total)
        if self.now is None or tenths > self._told:
            print(f"  {_describe(now)}", flush=True)
        self._told = max(tenths, self._told)
        self.now = now


class _Bar:
    """Two bars (appended, in the store) and what is between them."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress

        self.now: Progress | None = None
        self._console = Console()
        self._bars = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=self._console,
        )
        self._appended = self._bars.add_task("  appended    ", total=None, note="", visible=False)
        self._stored = self._bars.add_task("  in the store", total=None, note="", visible=False)

    def __enter__(self) -> _Bar:
        self._bars.__enter__()
        return self

    def __exit__(self, *args: object) -> None:
        self._bars.stop()

    def step(self, text: str) -> None:
        if self.now is not None:
            # the bars are complete: leave them standing, so that nothing is printed in between
            self._bars.stop()
        self._console.print(text, highlight=False, markup=False)

    def progress(self, now: Progress) -> None:
        self.now = now
        buffer = f"buffer {bytes_text(now.buffer_bytes)} of {bytes_text(now.buffer_bytes_max)}"
        self._bars.update(
            self._appended, total=now.total, completed=now.appended, note=f"{now.mode}, {buffer}", visible=True
        )
        note = f"lag {now.lag_events:,} events" + (f"; {now.error}" if now.error else "")
        self._bars.update(self._stored, total=now.total, completed=now.committed, note=note, visible=True)


def _describe(now: Progress) -> str:
    return (
        f"appended {now.appended:,} of {now.total:,}, in the store {now.committed:,}, lag {now.lag_events:,} events, "
        f"buffer {bytes_text(now.buffer_bytes)} of {bytes_text(now.buffer_bytes_max)}, {now.mode}"
        + (f"; {now.error}" if now.error else "")
    )
