"""``offloader subscribers ACTION``: who still needs a stream, and what each has consumed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from formats.entries import Position
from offloader.cli.options import (
    ConfigArguments,
    Json,
    LedgerArguments,
    StreamOrTopic,
    amount,
    argument,
    opening_sources,
    option,
    partition_position_of,
)
from offloader.cli.output import Column, bytes_text, print_result, print_rows
from offloader.errors import InvalidCall, NotFound
from offloader.read.reader import time_text
from offloader.retention.cuts import Cut
from offloader.retention.subscribers import StreamRetention, cut_of, open_retention

#: Name of the cut at the current end.
LATEST = "latest"

Name = Annotated[str, argument("The subscriber's name.", metavar="SUBSCRIBER")]
_CUT = "[PARTITION=]LEDGER:ENTRY"


def list_subscribers(
    stream: StreamOrTopic,
    given: LedgerArguments,
    timeout: Annotated[
        float | None,
        amount(
            "--timeout", "Silent for longer: timed out. 0 = never.", "seconds", shown="retention.subscriber_timeout"
        ),
    ] = None,
    json: Json = False,
) -> None:
    """List a stream's subscribers: what each has consumed, how far it is behind, whether it counts."""
    if timeout is None:
        timeout = given.settings(stream).retention.subscriber_timeout_minutes * 60
    with _retention(stream, given, ledgers=given.ledgers, read_only=True) as retention:
        found = retention.subscribers(timeout_ms=max(1, round(timeout * 1000)) if timeout else None)
    rows = (each.as_json() for each in found)
    print_rows(rows, _SUBSCRIBER_COLUMNS, as_json=json, empty=f"stream {stream} has no subscribers")


def add(
    stream: StreamOrTopic,
    name: Name,
    given: LedgerArguments,
    generation: Annotated[int, typer.Option("--generation", min=0, help="Of an owner that counts them.")] = 0,
    start: Annotated[
        list[str] | None,
        option("--start", "Where it begins reading, or 'latest'.", metavar=_CUT, shown="the beginning"),
    ] = None,
    json: Json = False,
) -> None:
    """Register a subscriber, or raise the generation of one.

    It holds nothing back until it publishes for the first time, unless the policy protects those who never did.
    """
    with _retention(stream, given, ledgers=given.ledgers, read_only=False) as retention:
        begin = wanted_cut(retention, start, option="--start") if start else None
        found = retention.add(name, generation=generation, start=begin)
    text = f"{name} subscribes to {stream}, generation {found.generation}"
    print_result({"stream": stream, **found.as_json()}, text, as_json=json)


def ack(
    stream: StreamOrTopic,
    name: Name,
    at: Annotated[
        list[str],
        option(
            "--at",
            "Everything before it is consumed: the first entry still needed, or 'latest'. Of a partitioned topic "
            "once for each partition, by its number.",
            metavar=_CUT,
        ),
    ],
    given: LedgerArguments,
    generation: Annotated[int | None, option("--generation", "Refuse unless it has this one.", min=0)] = None,
    json: Json = False,
) -> None:
    """Say what a subscriber has consumed, so that it may go.

    Publishing the same again is fine, and a sign of life. What isn't offloaded yet is known only with --ledgers.
    """
    with _retention(stream, given, ledgers=given.ledgers, read_only=False) as retention:
        found = retention.publish(name, wanted_cut(retention, at, option="--at"), generation=generation)
    text = f"{name} has consumed {stream} up to {cut_text(found.cut)}"
    print_result({"stream": stream, **found.as_json()}, text, as_json=json)


def remove(
    stream: StreamOrTopic,
    name: Name,
    given: ConfigArguments,
    generation: Annotated[int | None, option("--generation", "Leave it if it has a higher one.", min=0)] = None,
    json: Json = False,
) -> None:
    """Forget a subscriber and what it published: it holds nothing back any more."""
    with _retention(stream, given, ledgers="", read_only=False) as retention:
        if name not in retention.registry().subscribers:
            raise NotFound(
                f"{name} doesn't subscribe to stream {stream}", hint=f"`offloader subscribers list {stream}`"
            )
        removed = retention.remove(name, generation=generation)
    text = f"{name} stays subscribed to {stream}: its generation is higher than {generation}"
    if removed:
        text = f"{name} doesn't subscribe to {stream} any more"
    print_result({"stream": stream, "subscriber": name, "removed": removed}, text, as_json=json)


def wanted_cut(retention: StreamRetention, texts: list[str], *, option: str) -> Cut:
    """The cut of an option's values: one position, one for each partition, or ``latest``.

    Raises:
        InvalidCall: invalid values; names the option.
    """
    if texts == [LATEST]:
        return retention.tail()
    positions: dict[int, Position] = {}
    for text in texts:
        number, position = partition_position_of(text, option=option, hint=f"{option} 3=7:12")
        if (number or 0) in positions:
            raise InvalidCall(f"{option} names partition {number or 0} twice", hint="give each partition once")
        positions[number or 0] = position
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
    _, opened = given.prepared(stream, read_only=read_only)
    with opening_sources(ledgers) as source_of:
        yield open_retention(opened, stream, source_of=source_of)


_SUBSCRIBER_COLUMNS = [
    Column("subscriber", "SUBSCRIBER"),
    Column("activity", "ACTIVITY"),
    Column("cut", "CONSUMED UP TO", lambda cut: cut_text(Cut.of(cut)), right=True),
    Column("lag_entries", "ENTRIES BEHIND", right=True),
    Column("lag_bytes", "BYTES BEHIND", bytes_text, right=True),
    Column("active_ms", "LAST HEARD OF", time_text),
    Column("generation", "GENERATION", right=True),
]


#: Action -> its function, in the order of the help.
ACTIONS: Mapping[str, Callable[..., Any]] = {"list": list_subscribers, "add": add, "remove": remove, "ack": ack}
