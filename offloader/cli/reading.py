"""Commands that show stored data: read, verify, inspect. They change nothing.

Entries and objects are shown with control characters escaped, so that their bytes can't control a terminal.
"""

from __future__ import annotations

import select
import sys
import threading
import unicodedata
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict
from functools import partial
from itertools import islice
from typing import Annotated, TextIO

import typer

from formats.describe import DescribedBytes
from formats.entries import TIME_UNKNOWN_MS, Entry, EntryBatch, Position
from offloader.cli.errors import run_on_each
from offloader.cli.ledgers import HotTiers, LedgerArguments, opening_sources
from offloader.cli.messages import MessageArguments, MessageReader
from offloader.cli.options import (
    AskedRange,
    From,
    Json,
    Since,
    StoreArguments,
    StreamOrTopic,
    To,
    Until,
    amount,
    argument,
    name_argument,
)
from offloader.cli.output import (
    TransientLine,
    base64_text,
    bytes_text,
    counted,
    json_line,
    print_result,
    utf8_text,
)
from offloader.errors import CorruptError, ErrorKind, InvalidCallError
from offloader.follow import OwnersHotTiers, ReadStreams, SourceOf
from offloader.inspect.inspect import Inspection, inspect_object
from offloader.inspect.verify import (
    CheckTotals,
    Finding,
    SegmentCheck,
    check_stream,
    describe_damage,
)
from offloader.manifest.names import named_streams
from offloader.read.fetch import Fetcher
from offloader.read.reader import load_stream
from offloader.runtime.clock import SystemClock
from offloader.settings import ReadSettings
from offloader.store.base import ObjectStore
from offloader.times import time_text

#: Interval of checks that the output's reader is connected.
_WATCH_MS = 500


def watch_output(out: TextIO, stop: threading.Event) -> None:
    """Sets ``stop`` when the reader of a pipe disconnects while nothing is written; ends with ``stop``."""
    try:
        descriptor = out.fileno()
    except (OSError, ValueError):
        return  # not a file: no reader that could disconnect
    poll = select.poll()
    poll.register(descriptor, 0)  # errors only

    def watch() -> None:
        while not stop.is_set():
            if any(event & (select.POLLERR | select.POLLNVAL) for _, event in poll.poll(_WATCH_MS)):
                stop.set()

    threading.Thread(target=watch, name="offloader-output", daemon=True).start()


# -- read

#: Prefix of a payload that isn't text of one line.
BASE64_MARK = "base64:"


def read(
    stream: StreamOrTopic,
    given: LedgerArguments,
    decoding: MessageArguments,
    start: From = "",
    end: To = "",
    since: Since = "",
    until: Until = "",
    limit: Annotated[int, typer.Option("--limit", min=0, help="Maximum number of entries or messages; 0 = all.")] = 0,
    following: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing new entries until interrupted.")
    ] = False,
    count: Annotated[bool, typer.Option("--count", help="Print only the number of entries or messages.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Write only the bytes of the payloads.")] = False,
    json: Json = False,
) -> None:
    """Print a stream's entries, one per line: plain text if they are UTF-8 without control characters, else base64:...

    For a partitioned topic, prints the entries of all partitions, merged by publish time. With --ledgers, also prints
    entries that aren't offloaded yet; if that database lacks acknowledged entries, the others are printed and the exit
    code is 6. With --json, one object per line: position, publish_time, and payload (text) or payload_base64. With
    --messages, a line per Pulsar message: id, publish time, key and the beginning of the value; with --json, all fields
    of it.

    Examples:
        offloader read orders --limit 10
        offloader read orders --since -1h --messages
        offloader read orders --from 7:0 --to 7:99 --json
        offloader read orders --follow
    """
    messages = decoding.messages
    _require_one_shape(count=count, messages=messages, raw=raw, json=json, following=following, ends=end or until)
    decoding.require_messages()
    asked = AskedRange.of(start, end, since, until)
    with ExitStack() as stack:
        ledgers_of = stack.enter_context(opening_sources(given.ledgers, may_be_absent=True))
        opened, owners = given.open(), None
        source_of: SourceOf = ledgers_of
        if following:
            source_of = owners = OwnersHotTiers(opened, ledgers_of, given.settings().access.owner_hosts, SystemClock())
        part = ReadStreams.opened(opened, stream, source_of, asked, given.settings_of())
        stack.callback(part.close)
        decoder = MessageReader(decoding, opened, part) if messages else None
        if following:
            _require_whole(part, ledgers_of)
        if count and decoder is None:
            found = part.count()
            _print_count(min(found, limit) if limit else found, json=json)
            if not limit or found < limit:
                _require_whole(part, ledgers_of)
            return
        ended = threading.Event()
        batches = stack.enter_context(
            closing(_noting_end(part.scan(), ended) if owners is None else _followed(part, owners))
        )
        if decoder is None:
            _print_entries(batches, limit, None if raw else partial(_json_of, part.numbers) if json else _text_of)
        elif count:
            _print_count(decoder.count(batches, limit), json=json)
        else:
            decoder.print(batches, limit, as_json=json)
        if ended.is_set():
            _require_whole(part, ledgers_of)


def _require_whole(part: ReadStreams, hot: HotTiers) -> None:
    """Requires that no entry of the ranges is missing from a damaged ledger database.

    Raises ``SourceMismatchError``.
    """
    for reader, chosen in part.parts:
        hot.require_whole(reader.stream, reader.state.committed_end(), None if chosen is None else chosen[1])


def _noting_end(
    batches: Generator[tuple[int, EntryBatch], None, None], ended: threading.Event
) -> Generator[tuple[int, EntryBatch], None, None]:
    """The batches; sets ``ended`` after the last one, which a limit may not reach."""
    with closing(batches):
        yield from batches
    ended.set()


def _followed(part: ReadStreams, owners: OwnersHotTiers) -> Generator[tuple[int, EntryBatch], None, None]:
    """Present and future entries; ends when the reader of standard output disconnects."""
    clock = SystemClock()

    def say(line: str) -> None:
        print(f"note: {line}", file=sys.stderr, flush=True)

    for line in (*owners.reasons, *part.behind(clock.now_ms())):
        say(line)
    stop = threading.Event()
    watch_output(sys.stdout, stop)
    try:
        yield from part.follow(owners, clock, stop, say)
        if stop.is_set():
            raise BrokenPipeError
    finally:
        stop.set()


def _require_one_shape(*, count: bool, messages: bool, raw: bool, json: bool, following: bool, ends: str) -> None:
    if raw and (messages or json or count):
        raise InvalidCallError("--raw excludes --messages, --json and --count", hint="leave them out")
    if following and (count or ends):
        raise InvalidCallError("--follow excludes --count, --to and --until", hint="leave them out; --limit ends it")


def _print_count(number: int, *, json: bool) -> None:
    print(json_line({"count": number}) if json else number)


def _print_entries(
    batches: Iterable[tuple[int, EntryBatch]], limit: int, line_of: Callable[[int, Entry], str] | None
) -> None:
    """Writes a line per entry. ``line_of``: the line of an entry and its stream's number; ``None``: writes raw
    payloads."""
    left = limit or sys.maxsize
    for number, batch in batches:
        taken = batch.slice(0, min(left, len(batch)))
        if line_of is None:
            sys.stdout.buffer.write(b"".join([entry.payload for entry in taken.entries()]))
        else:
            sys.stdout.write("".join([line_of(number, entry) + "\n" for entry in taken.entries()]))
        sys.stdout.flush()  # a follower sees each entry immediately
        left -= len(taken)
        if left <= 0:
            return


def _text_of(_: int, entry: Entry) -> str:
    return entry_line(entry)


def entry_line(entry: Entry) -> str:
    """The line of an entry for a terminal: its text if that is one printable line, else base64."""
    text = utf8_text(entry.payload)
    # Line breaks would split an entry; other control characters could control a terminal.
    if text is None or not (
        all(sign == "\t" or unicodedata.category(sign) == "Zs" for sign in text if not sign.isprintable())
    ):
        return BASE64_MARK + base64_text(entry.payload)
    return text


def _json_of(partitions: list[int], number: int, entry: Entry) -> str:
    of = {"partition": partitions[number]} if partitions else {}
    return json_line({**of, **entry_facts(entry)})


def entry_facts(entry: Entry) -> Mapping[str, object]:
    """The JSON of an entry."""
    text = utf8_text(entry.payload)
    payload = {"payload_base64": base64_text(entry.payload)} if text is None else {"payload": text}
    time = None if entry.publish_time_ms == TIME_UNKNOWN_MS else time_text(entry.publish_time_ms)
    return {"position": entry.position, "publish_time": time, **payload}


# -- verify

#: Interval of progress lines in seconds.
PROGRESS_EVERY_S = 1.0


def verify(
    streams: Annotated[list[str], name_argument("The streams' names, or topics'.", metavar="STREAM")],
    given: StoreArguments,
    deep: Annotated[bool, typer.Option("--deep", help="Read and decode every block, not only the indexes.")] = False,
    json: Json = False,
) -> int:
    """Check the objects of streams against their manifests; damage ends with exit code 6.

    Prints a line for each finding. Without --deep, it checks that both objects of every segment exist with the recorded
    length and checksum, and that every index matches the manifest. With --deep, it also reads every byte of the objects
    and of the manifest. Objects that no manifest names are notes, unless one proves a lost record.

    Examples:
        offloader verify orders
        offloader verify orders --deep
    """
    opened = given.open()
    named = [each for name in streams for each in named_streams(opened, name).streams]
    settings_of = given.settings_of()

    def one(stream: str) -> int:
        return _verify(opened, stream, settings_of(stream).read, deep=deep, as_json=json)

    return run_on_each(named, one, as_json=json)


def _verify(store: ObjectStore, stream: str, settings: ReadSettings, *, deep: bool, as_json: bool) -> int:
    totals, fetcher = CheckTotals(), Fetcher(store, settings)
    try:
        state = load_stream(store, stream)
    except CorruptError as error:
        # Report the details of a damaged manifest.
        for finding in describe_damage(store, stream, error):
            totals.count([finding])
            print_finding(finding, as_json=as_json)
        print_totals(stream, 0, totals, deep=deep, as_json=as_json)
        return ErrorKind.DATA_CORRUPTION.value
    progress = TransientLine(sys.stderr)
    checked = _Progress(totals, len(state.offloaded()), progress)
    for finding in check_stream(fetcher, state, deep=deep, checked=checked):
        totals.count([finding])
        progress.clear()
        print_finding(finding, as_json=as_json)
    progress.clear()
    print_totals(stream, state.record_id, totals, deep=deep, as_json=as_json)
    return ErrorKind.DATA_CORRUPTION.value if totals.damage else 0


class _Progress:
    """Counts the checked segments and shows their number."""

    def __init__(self, totals: CheckTotals, of: int, line: TransientLine) -> None:
        self._totals, self._of, self._line = totals, of, line
        self._clock = SystemClock()
        self._shown_s = self._clock.monotonic_s()

    def __call__(self, check: SegmentCheck) -> None:
        self._totals.add(check)
        if self._clock.monotonic_s() - self._shown_s >= PROGRESS_EVERY_S:
            self._shown_s = self._clock.monotonic_s()
            size = bytes_text(self._totals.data_bytes)
            self._line.show(f"{self._totals.segments:,} of {self._of:,} segments, {size} read")


def print_finding(finding: Finding, *, as_json: bool) -> None:
    """Prints a finding on one line."""
    advice = f" ({finding.advice})" if finding.advice else ""
    print(json_line(finding.as_row()) if as_json else f"{finding.problem.value}: {finding.message}{advice}", flush=True)


def print_totals(stream: str, record_id: int, totals: CheckTotals, *, deep: bool, as_json: bool) -> None:
    """Prints a stream's last line: the checked amounts and the result."""
    facts = {"stream": stream, "manifest": record_id, "deep": deep, **asdict(totals), "ok": not totals.damage}
    looked = counted(totals.segments, "segment")
    if deep:
        blocks, entries = counted(totals.blocks, "block"), counted(totals.entries, "entry", "entries")
        looked = f"{looked}, {blocks}, {entries}, {bytes_text(totals.data_bytes)}"
    verdict = f"{counted(totals.damage, 'finding')} of damage" if totals.damage else "all match the manifest"
    notes = f"; {counted(totals.notes, 'note')}" if totals.notes else ""
    trimmed = f"; retention deleted {totals.trimmed:,} during the check" if totals.trimmed else ""
    print_result(facts, f"{stream}: {looked}: {verdict}{notes}{trimmed}", as_json=as_json)


# -- inspect

_ROW_BYTES = 16


def inspect(
    key: Annotated[str, argument("The object's key, as `offloader ls STREAM --json` prints it.", metavar="OBJECT")],
    given: StoreArguments,
    limit: Annotated[int, typer.Option("--limit", min=0, help="Maximum number of pieces; 0 = all.")] = 0,
    hexadecimal: Annotated[bool, typer.Option("--hex", help="Also show the first bytes of each piece.")] = False,
    hex_bytes: Annotated[
        int,
        amount(
            "--hex-bytes", "Number of bytes to show with --hex.", "bytes", whole=True, low=1, high=65536, shown=True
        ),
    ] = 128,
    json: Json = False,
) -> int:
    """Show the content of one object, piece by piece: data objects, indexes, manifest records, checkpoints.

    Also shows objects that Pulsar wrote. For a damaged object, the command shows the content before the damage, then
    its position and the expected content; the exit code is 6.

    Examples:
        offloader inspect 3f0a5d1e-7c2b-4e7c-9d0e-1f2a3b4c5d6e --store s3://bucket
    """
    found = inspect_object(given.open(), key)
    head = {"object": found.key, "kind": found.kind, "size_bytes": found.size_bytes, "metadata": found.metadata}
    print_result(head, _head_lines(found), as_json=json)
    damaged = False
    for piece in islice(found.pieces, limit or None):
        damaged |= bool(piece.problem)
        data = found.bytes_of(piece.start, piece.start + min(piece.length, hex_bytes)) if hexadecimal else b""
        facts = {
            "start": piece.start,
            "length": piece.length,
            "what": piece.what,
            "facts": piece.facts,
            "problem": piece.problem or None,
            **({"hex": data.hex()} if hexadecimal else {}),
        }
        print_result(facts, _piece_lines(piece, data), as_json=json)
    return ErrorKind.DATA_CORRUPTION.value if damaged else 0


def _head_lines(found: Inspection) -> Iterator[str]:
    yield f"{_printable(found.key)}: {found.kind}, {found.size_bytes:,} bytes"
    for name, value in sorted(found.metadata.items()):
        yield f"  {_printable(name)} = {_printable(value)}"


def _piece_lines(piece: DescribedBytes, data: bytes) -> Iterator[str]:
    facts = "  ".join(f"{name}={_value(value)}" for name, value in piece.facts.items())
    yield f"{piece.start:>12}  {piece.length:>10}  {piece.what:<16}  {facts}".rstrip()
    if piece.problem:
        yield f"{'':>12}  damaged: {_printable(piece.problem)}"
    for line in hex_lines(data, piece.start):
        yield f"{'':>12}  {line}"


def hex_lines(data: bytes, start: int) -> Iterator[str]:
    """Rows of 16 bytes: offset, hexadecimal and printable ASCII."""
    for at in range(0, len(data), _ROW_BYTES):
        row = data[at : at + _ROW_BYTES]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        yield f"{start + at:08x}  {row.hex(' '):<{3 * _ROW_BYTES - 1}}  {text}"


def _value(value: object) -> str:
    if isinstance(value, Mapping | list | tuple) and not isinstance(value, Position):
        return _printable(json_line({"": value})[5:-1])
    return _printable(str(value))


def _printable(text: str) -> str:
    return "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in text)
