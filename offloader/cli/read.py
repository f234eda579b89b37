"""``offloader read STREAM``: prints entries.

Escapes control characters: a terminal obeys none of an entry's bytes.
"""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import Annotated

import pyarrow as pa
import typer

from formats.entries import TIME_UNKNOWN_MS, Entry, EntryBatch
from formats.pulsar.messages import COLUMNS, ROWS_MAX, BadEntry, MessageOptions
from offloader.cli.options import AskedRange, From, FromTime, Json, StoreArguments, Stream, ToTime, chosen_range, option
from offloader.cli.output import base64_text, json_line, message_json, message_text, utf8_text
from offloader.errors import InvalidCall
from offloader.read.reader import decode_messages, follow, open_reader, time_text
from offloader.runtime.clock import SystemClock

_ALL = tuple(COLUMNS)
#: Known without decompression: the number of messages in an entry.
_COUNTED = ("batch_index",)
_REMEDY = "--on-bad-message null prints lines that say what is wrong"
#: Prefix of a payload that isn't text of one line.
BASE64_MARK = "base64:"


def run(
    stream: Stream,
    given: StoreArguments,
    start: From = "",
    end: Annotated[
        str, option("--to", "Last entry, included.", metavar="LEDGER:ENTRY", shown="the last there is")
    ] = "",
    from_time: FromTime = "",
    to_time: ToTime = "",
    limit: Annotated[int, typer.Option("--limit", min=0, help="Most entries, or messages; 0 = all.")] = 0,
    following: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what becomes readable, until interrupted.")
    ] = False,
    count: Annotated[bool, typer.Option("--count", help="Print only how many there are.")] = False,
    messages: Annotated[
        bool, typer.Option("--messages", help="Take the entries for what Pulsar stored, and print their messages.")
    ] = False,
    on_bad_message: Annotated[
        BadEntry,
        typer.Option("--on-bad-message", help="With --messages: fail, or print a line that says what is wrong."),
    ] = BadEntry.ERROR,
    raw: Annotated[bool, typer.Option("--raw", help="Write the payloads' bytes and nothing else.")] = False,
    json: Json = False,
) -> None:
    """Print entries, one per line: UTF-8 text without control characters as it is, anything else as base64:...

    With --json, one object per line: position, publish_time, and payload (text) or payload_base64. With --messages, a
    line per Pulsar message: id, publish time, key, beginning of the value; with --json too, all that is known of it.
    """
    _require_one_shape(count=count, messages=messages, raw=raw, json=json, following=following, ends=end or to_time)
    asked = AskedRange.of(start, end, from_time, to_time)
    reader = open_reader(given.open(), stream)
    wanted = chosen_range(reader, asked)
    if wanted is None:
        _print_count(0, json=json) if count else None
        return
    first, last = wanted
    if count and not messages:
        found = reader.count(first, last)
        _print_count(min(found, limit) if limit else found, json=json)
        return
    batches = follow(reader, first, clock=SystemClock()) if following else reader.scan(first, last)
    with closing(batches):
        if not messages:
            _print_entries(batches, limit, None if raw else _json_of if json else _text_of)
            return
        decoded = _messages(batches, stream, limit, on_bad_message, names=_COUNTED if count else _ALL)
        if count:
            _print_count(sum(batch.num_rows for batch in decoded), json=json)
            return
        line_of = message_json if json else message_text
        for batch in decoded:
            sys.stdout.write("".join([line_of(row) + "\n" for row in batch.to_pylist()]))
            sys.stdout.flush()


def _require_one_shape(*, count: bool, messages: bool, raw: bool, json: bool, following: bool, ends: str) -> None:
    if raw and (messages or json or count):
        raise InvalidCall("--raw writes payloads only", hint="leave out --messages, --json and --count")
    if following and (count or ends):
        raise InvalidCall("--follow has no end", hint="leave out --count, --to and --to-time; --limit ends it")


def _print_count(number: int, *, json: bool) -> None:
    print(json_line({"count": number}) if json else number)


def _print_entries(batches: Iterable[EntryBatch], limit: int, line_of: Callable[[Entry], str] | None) -> None:
    """``line_of``: an entry's line; ``None``: its raw payload, without a line break."""
    left = limit or sys.maxsize
    for batch in batches:
        taken = batch.slice(0, min(left, len(batch)))
        if line_of is None:
            sys.stdout.buffer.write(b"".join([entry.payload for entry in taken.entries()]))
        else:
            sys.stdout.write("".join([line_of(entry) + "\n" for entry in taken.entries()]))
        sys.stdout.flush()  # a follower sees each entry at once
        left -= len(taken)
        if left <= 0:
            return


def _messages(
    batches: Iterable[EntryBatch], stream: str, limit: int, bad: BadEntry, *, names: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    """At most ``limit`` messages (0: all), with these columns."""
    left = limit or sys.maxsize
    options = MessageOptions(columns=names, bad_entries=bad, rows_max=min(left, ROWS_MAX))
    for entries in batches:
        for batch in decode_messages(entries, options, source=f"stream {stream},", remedy=_REMEDY):
            yield batch.slice(0, left)
            left -= batch.num_rows
            if left <= 0:
                return


def _text_of(entry: Entry) -> str:
    text = utf8_text(entry.payload)
    # Line breaks would split an entry, other control characters could control a terminal.
    if text is None or not (
        all(sign == "\t" or unicodedata.category(sign) == "Zs" for sign in text if not sign.isprintable())
    ):
        return BASE64_MARK + base64_text(entry.payload)
    return text


def _json_of(entry: Entry) -> str:
    text = utf8_text(entry.payload)
    known = entry.publish_time_ms != TIME_UNKNOWN_MS
    payload = {"payload_base64": base64_text(entry.payload)} if text is None else {"payload": text}
    time = time_text(entry.publish_time_ms) if known else None
    return json_line({"position": entry.position, "publish_time": time, **payload})
