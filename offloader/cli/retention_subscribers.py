"""``offloader retention subscribers | add | publish | remove STREAM``: who still needs a stream.

Owns what is asked and said about subscribers. Must never register somebody who only wanted to publish.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Annotated

import typer

from formats.entries import Position
from offloader.cli.options import ConfigArguments, Json, LedgerArguments, StreamOrTopic, position_of
from offloader.cli.output import Column, bytes_text, json_line, print_rows
from offloader.errors import InvalidCall, NotFound
from offloader.ledgers.base import LedgerSource
from offloader.ledgers.embedded import EmbeddedLedgers
from offloader.read.times import time_text
from offloader.retention.cuts import Cut
from offloader.retention.stream_retention import StreamRetention, cut_of, open_retention
from offloader.retention.subscribers import Subscriber

__all__ = ["add", "cut_text", "opening_sources", "publish", "remove", "show", "wanted_cut"]

#: What a cut is called that has everything there is before it.
LATEST = "latest"

Name = Annotated[str, typer.Argument(metavar="SUBSCRIBER", help="The subscriber's name.", show_default=False)]
_CUT = "[PARTITION=]LEDGER:ENTRY"


def show(
    stream: StreamOrTopic,
    given: LedgerArguments,
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            min=0,
            metavar="SECONDS",
            help="Silent for longer: timed out. 0 = never.",
            show_default="retention.subscriber_timeout_minutes",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """List a stream's subscribers: what each has consumed, how far it is behind, whether it counts."""
    if timeout is None:
        timeout = given.settings(stream).retention.subscriber_timeout_minutes * 60
    with _retention(stream, given, ledgers=given.ledgers, read_only=True) as retention:
        found = retention.subscribers(timeout_ms=max(1, round(timeout * 1000)) if timeout else None)
    print_rows((each.as_json() for each in found), _COLUMNS, as_json=json, empty=f"stream {stream} has no subscribers")


def add(
    stream: StreamOrTopic,
    name: Name,
    given: LedgerArguments,
    generation: Annotated[int, typer.Option("--generation", min=0, help="Of an owner that counts them.")] = 0,
    start: Annotated[
        list[str] | None,
        typer.Option(
            "--start", metavar=_CUT, help="Where it begins reading, or 'latest'.", show_default="the beginning"
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Register a subscriber, or raise the generation of one.

    It holds nothing back until it publishes for the first time, unless the policy protects those who never did.
    """
    with _retention(stream, given, ledgers=given.ledgers, read_only=False) as retention:
        begin = wanted_cut(retention, start, option="--start") if start else None
        found = retention.add(name, generation=generation, start=begin)
    _print(stream, found, json, f"{name} subscribes to {stream}, generation {found.generation}")


def publish(
    stream: StreamOrTopic,
    name: Name,
    at: Annotated[
        list[str],
        typer.Option(
            "--at",
            metavar=_CUT,
            help="Everything before it is consumed: the first entry still needed, or 'latest'. Of a partitioned topic "
            "once for each partition, by its number.",
            show_default=False,
        ),
    ],
    given: LedgerArguments,
    generation: Annotated[
        int | None, typer.Option("--generation", min=0, help="Refuse unless it has this one.", show_default=False)
    ] = None,
    json: Json = False,
) -> None:
    """Say what a subscriber has consumed, so that it may go.

    Publishing the same again is fine, and a sign of life. What isn't offloaded yet is known only with --ledgers.
    """
    with _retention(stream, given, ledgers=given.ledgers, read_only=False) as retention:
        found = retention.publish(name, wanted_cut(retention, at, option="--at"), generation=generation)
    _print(stream, found, json, f"{name} has consumed {stream} up to {cut_text(found.cut)}")


def remove(
    stream: StreamOrTopic,
    name: Name,
    given: ConfigArguments,
    generation: Annotated[
        int | None, typer.Option("--generation", min=0, help="Leave it if it has a higher one.", show_default=False)
    ] = None,
    json: Json = False,
) -> None:
    """Forget a subscriber and what it published: it holds nothing back any more."""
    with _retention(stream, given, ledgers="", read_only=False) as retention:
        if name not in retention.registry().subscribers:
            raise NotFound(
                f"{name} doesn't subscribe to stream {stream}", hint=f"`offloader retention subscribers {stream}`"
            )
        removed = retention.remove(name, generation=generation)
    if json:
        print(json_line({"stream": stream, "subscriber": name, "removed": removed}))
    elif removed:
        print(f"{name} doesn't subscribe to {stream} any more")
    else:
        print(f"{name} stays subscribed to {stream}: its generation is higher than {generation}")


def wanted_cut(retention: StreamRetention, texts: list[str], *, option: str) -> Cut:
    """The cut that an option's values are: one position, one for each partition, or ``latest``.

    Raises:
        InvalidCall: they are none; names the option.
    """
    if texts == [LATEST]:
        return retention.tail()
    positions: dict[int, Position] = {}
    for text in texts:
        number, separator, rest = text.rpartition("=")
        if separator and not number.isdecimal():
            raise InvalidCall(f"{option} {text}: {number!r} is no partition's number", hint=f"{option} 3=7:12")
        if int(number or 0) in positions:
            raise InvalidCall(f"{option} names partition {int(number or 0)} twice", hint="give each partition once")
        positions[int(number or 0)] = position_of(rest, option=option)
    return cut_of(positions)


def cut_text(cut: Cut | None) -> str:
    """``7:12``, or ``0=7:12,3=8:0`` of several partitions."""
    if cut is None:
        return "-"
    parts = {segment.number: offset for segment, offset in cut.offsets.items()}
    if list(parts) == [0]:
        return str(parts[0])
    return ",".join(f"{number}={parts[number]}" for number in sorted(parts)) or "nothing"


@contextmanager
def _retention(stream: str, given: ConfigArguments, *, ledgers: str, read_only: bool) -> Iterator[StreamRetention]:
    opened = given.open(given.settings(stream), read_only=read_only)
    with opening_sources(ledgers) as source_of:
        yield open_retention(opened, stream, source_of=source_of)


@contextmanager
def opening_sources(ledgers: str) -> Iterator[Callable[[str], LedgerSource | None]]:
    """The hot tier by a stream's name; streams that aren't in it, or all without a database, have none."""
    if not ledgers:
        yield lambda _: None
        return
    with closing(EmbeddedLedgers(ledgers, create=False)) as database:

        def source_of(stream: str) -> LedgerSource | None:
            try:
                return database.view_stream(stream)
            except NotFound:
                return None

        yield source_of


_COLUMNS = [
    Column("subscriber", "SUBSCRIBER"),
    Column("activity", "ACTIVITY"),
    Column("cut", "CONSUMED UP TO", lambda cut: cut_text(None if cut is None else Cut.of(cut)), right=True),
    Column("lag_entries", "ENTRIES BEHIND", right=True),
    Column("lag_bytes", "BYTES BEHIND", bytes_text, right=True),
    Column("active_ms", "LAST HEARD OF", time_text),
    Column("generation", "GENERATION", right=True),
]


def _print(stream: str, subscriber: Subscriber, as_json: bool, words: str) -> None:
    print(json_line({"stream": stream, **subscriber.as_json()}) if as_json else words)
