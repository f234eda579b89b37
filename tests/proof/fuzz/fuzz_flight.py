"""Arrow Flight: what callers say and send is taken, or refused by name, and what was acknowledged is read back.

``flight-words`` and ``flight-batches`` are the handlers' own parsers, below gRPC; ``flight`` is a real server on
loopback with the streams behind it.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import json
import logging
import random
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as fl

from formats.entries import EntryBatch, Position
from offloader.errors import InvalidCallError
from offloader.ledgers.pushed import LedgerEnd, new_pieces
from offloader.service.flight.messages import (
    ENTRY_SCHEMA,
    batch_note,
    encoded,
    fields_of,
    get_request,
    pushed_batches,
    put_request,
    refusing,
    require_columns,
    sent_payloads,
)
from offloader.service.providers.flight import ACTIONS
from offloader.store.open import open_store
from tests.proof.fuzz.fuzz_engine import Outcome, Target, attempt
from tests.proof.fuzz.fuzz_mutation import EXTREMES, mutate, mutate_json, mutate_text
from tests.support.flight_door import Door, flight_door

STREAM = "fuzz/flight/orders"
BATCH_BYTES_MAX, ENTRY_BYTES_MAX = 32 * 1024, 4096


# --- words: descriptors, tickets, notes, bodies


def word_seeds() -> list[bytes]:
    """Every kind of document, with all its fields."""
    documents: list[Any] = [
        {"stream": STREAM, "mode": "append", "producer": "p"},
        {"stream": STREAM, "from": "7:0", "to": "7:99", "batch_bytes": 1000},
        {"stream": STREAM, "since_ms": 1_700_000_000_000, "until_ms": 1_800_000_000_000, "columns": ["payload"]},
        {"closed": {"7": 99, "9": -1}},
        {"sequence": 17},
        {"stream": STREAM, "until": "7:12", "timeout_s": 0.5},
        {"stream": STREAM, "subscriber": "s", "at": {"0": "7:12"}, "generation": 2},
        {"stream": STREAM, "before": "7:12"},
    ]
    return [*(encoded(each) for each in documents), STREAM.encode(), b"", b"{" * 3000, b'{"stream":' + b"[" * 3000]


def change_words(rng: random.Random, pool: list[bytes]) -> bytes:
    """JSON changed as JSON, or text, or any bytes."""
    if rng.random() < 0.3:
        return mutate_text(rng, pool, ['"', "{", "[", ":", "\\u0000", "\\ud800", "1e999", "NaN", "-0", "9" * 30, "٣"])
    try:
        return json.dumps(mutate_json(rng, json.loads(rng.choice(pool)), [])).encode()
    except (ValueError, RecursionError):
        return mutate(rng, pool)


def check_words(data: bytes) -> Outcome:
    """Taken whole, or refused by name; a ticket comes back."""
    ways: list[Callable[[], Any]] = [
        lambda: put_request(None, data),
        lambda: put_request([data], None),
        lambda: put_request(data.split(b"/"), None),
        lambda: get_request(data),
        lambda: batch_note(data, "push"),
        lambda: batch_note(data, "append"),
        lambda: fields_of(data, "action").seconds("timeout_s"),
    ]
    found = [attempt(way, InvalidCallError) for way in ways]
    ticket, note = found[3][0], found[4][0]
    assert ticket is None or get_request(ticket.encode()) == ticket, "a ticket doesn't come back"
    for end in () if note is None else note.ends:
        assert 0 <= end.ledger_id < 2**63
        assert -1 <= end.last_entry_id < 2**63
    return tuple(place for _, place in found)


# --- batches: columns as Arrow's reader gives them


def _column(rng: random.Random, rows: int, wanted: pa.DataType) -> pa.Array:
    """Of the wanted type in most cases; nulls, slices, extremes."""
    kind = wanted
    if rng.random() < 0.15:
        kind = rng.choice([
            pa.dictionary(pa.int8(), pa.binary()), pa.large_binary(), pa.string(), pa.int32(), pa.uint64(), pa.null(),
            pa.timestamp("us", "UTC"), pa.timestamp("ms"), pa.binary(3), pa.list_(pa.int64()), pa.binary_view(),
            pa.struct([("a", pa.int64())]), pa.bool_(), pa.float64(), pa.run_end_encoded(pa.int32(), pa.int64()),
        ])  # fmt: skip
    values = [None if rng.random() < 0.02 else _value(rng, kind, number) for number in range(rows)]
    try:
        plain = pa.array(values, rng.choice([kind, kind, kind, pa.binary()]) if kind == wanted else kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        plain = pa.nulls(rows, pa.int64())
    return plain


def _value(rng: random.Random, kind: pa.DataType, number: int) -> Any:
    if pa.types.is_integer(kind) or pa.types.is_timestamp(kind):
        return rng.choice([*EXTREMES, -1]) % 2**63 if rng.random() < 0.02 else number
    size = rng.choice([0, 1, 3, 3, 3, 40, ENTRY_BYTES_MAX + 1 if rng.random() < 0.05 else 8])
    if pa.types.is_struct(kind):
        return {"a": number}
    if pa.types.is_list(kind):
        return [number] * rng.randrange(3)
    return "x" * size if pa.types.is_string(kind) else rng.randbytes(size) if "binary" in str(kind) else number % 2 == 0


def made_batches(rng: random.Random) -> tuple[pa.Schema, list[pa.RecordBatch]]:
    """One to three batches of one schema, that of entries or one near it."""
    rows = rng.choice([0, 1, 3, 20])
    fields = [field for field in ENTRY_SCHEMA if rng.random() > 0.04]
    if rng.random() < 0.5:
        fields = [field for field in fields if field.name in ("payload", "publish_time")]
    fields += [pa.field(rng.choice(["payload", "surplus", "", "größe", "ledger_id"]), pa.int64())] * (
        rng.random() < 0.05
    )
    columns = [_column(rng, rows + 5, field.type) for field in fields]
    if rng.random() < 0.7:
        columns = [
            pa.array(np.full(rows + 5, rng.choice([7, 7, 7, 9]), dtype=np.int64)) if field.name == "ledger_id" else each
            for field, each in zip(fields, columns, strict=True)
        ]
    schema = pa.schema([pa.field(field.name, each.type) for field, each in zip(fields, columns, strict=True)])
    whole = pa.RecordBatch.from_arrays(columns, schema=schema)
    return schema, [whole.slice(start, rows) for start in range(rng.randrange(1, 4))]


def sent(schema: pa.Schema, batches: list[pa.RecordBatch]) -> bytes:
    """As Arrow puts it on a wire."""
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue()


def batch_seeds() -> list[bytes]:
    """Right ones first. None is compressed: what that may unpack to nobody can limit (docs/explanation/security.md)."""
    rng = random.Random(8)
    two = [EntryBatch.build(7, start, [b"a", b"", b"ccc"], [1, 2, 3]).to_arrow() for start in (0, 3)]
    return [sent(ENTRY_SCHEMA, two), *(sent(*made_batches(rng)) for _ in range(30))]


def change_batches(rng: random.Random, pool: list[bytes]) -> bytes:
    """New ones, or bytes of others changed: then offsets and lengths lie."""
    if rng.random() < 0.3:
        with contextlib.suppress(pa.ArrowException):
            return sent(*made_batches(rng))
    return mutate(rng, pool)


def check_batches(data: bytes) -> Outcome:
    """What is taken of a call's batches is sound, whatever was sent."""
    return tuple(_refused(partial(_taken, data, mode)) for mode in ("push", "append"))


def _refused(work: Callable[[], object]) -> object:
    """What came of it; a bug, and an error with a traceback for the caller, are let out."""
    try:
        with refusing("fuzzed"):
            return work()
    except fl.FlightInternalError as error:
        raise AssertionError(f"a batch is no reason for an unexpected error: {error.__cause__!r}") from error
    except fl.FlightError as error:
        refused = error
    assert str(refused).isprintable(), f"more than one line: {refused}"
    return f"{type(refused).__name__} {type(refused.__cause__).__name__} {str(refused)[:24]}"


def _taken(data: bytes, mode: str) -> object:
    try:
        with pa.ipc.open_stream(data) as reader:
            schema, batches = reader.schema, list(reader)
    except OSError as error:
        return f"unreadable {str(error)[:24]}"
    require_columns(schema, mode)
    limits = {"bytes_max": BATCH_BYTES_MAX, "entry_bytes_max": ENTRY_BYTES_MAX}
    end: Position | None = None
    taken = 0
    for batch in batches:
        for part in (batch, batch.slice(1)) if len(batch) else (batch,):
            if mode == "append":
                payloads, times = sent_payloads(part, **limits)
                assert times is None or len(times) == len(payloads) == len(part)
                taken += sum(map(len, payloads.to_pylist()))
                continue
            for found in pushed_batches(part, **limits):
                found.payloads.validate(full=True)
                assert len(found.payloads) == len(found.entry_ids) == len(found.publish_times_ms)
        if mode == "push":
            pieces = new_pieces(STREAM, end, {}, pushed_batches(batch, **limits), [LedgerEnd(7, 2)])
            for piece in [each for each in pieces if not isinstance(each, LedgerEnd)]:
                assert (np.diff(piece.entry_ids) == 1).all(), "a gap was taken"
                assert end is None or piece.first > end, "an entry was taken twice"
                end = piece.last
                taken += piece.payload_bytes
    return taken > 0


# --- a real server on loopback


def call_seeds() -> list[bytes]:
    """A call is a line that names it, a line with its words, for some a line with a note, and Arrow's bytes."""
    rng = random.Random(9)
    append = json.dumps({"stream": STREAM, "mode": "append"}).encode()
    payloads = pa.RecordBatch.from_arrays([pa.array([b"a", b"", b"ccc"], pa.binary())], names=["payload"])
    own = sent(payloads.schema, [payloads, payloads])
    push = sent(ENTRY_SCHEMA, [EntryBatch.build(7, 0, [b"a", b"bb", b"ccc"], [1, 2, 3]).to_arrow()])
    puts = [(append, b"{}", own), (append, b'{"sequence":3}', own), (b'{"stream":"fuzz/flight/p1"}', b"{}", push)]
    puts.append((b'{"stream":"fuzz/flight/p2","producer":"p"}', b'{"closed":{"7":2}}', push))
    puts += [(append, b"{}", sent(*made_batches(rng))) for _ in range(10)]
    bodies: dict[str, Any] = {
        "status": {"stream": STREAM},
        "offload": {"stream": STREAM, "timeout_s": 0.01},
        "close-ledger": {"stream": STREAM},
        "publish": {"stream": STREAM, "subscriber": "s", "at": "latest"},
        "subscribe": {"stream": STREAM, "subscriber": "s", "start": "0:0"},
        "truncate": {"stream": STREAM, "before": "0:1"},
    }
    assert bodies.keys() == ACTIONS.keys()
    return [
        *(b"put\n" + words + b"\n" + note + b"\n" + data for words, note, data in puts),
        *(f"do {name}\n{json.dumps(body)}".encode() for name, body in bodies.items()),
        b'get\n{"stream":"fuzz/flight/orders"}', b'get\n{"stream":"fuzz/flight/orders","from":"0:1","to":"0:2"}',
        b'get\n{"stream":"fuzz/flight/orders","since_ms":5}', b"info\nfuzz/flight/orders", b"list\nfuzz",
        b'schema\n{"stream":"a/b"}', b"do \n{}", b"exchange\n{}", b"token\nfuzz",
    ]  # fmt: skip


def change_calls(rng: random.Random, pool: list[bytes]) -> bytes:
    """The words of a call changed, or its batches."""
    kind, _, rest = rng.choice(pool).partition(b"\n")
    if kind != b"put":
        return kind + b"\n" + change_words(rng, [rest])
    words, _, rest = rest.partition(b"\n")
    note, _, data = rest.partition(b"\n")
    match rng.randrange(4):
        case 0:
            words = change_words(rng, [words]).replace(b"\n", b" ")
        case 1:
            note = change_words(rng, [note]).replace(b"\n", b" ")
        case _:
            data = change_batches(rng, [data])
    return b"\n".join((kind, words, note, data))


class _Failures(logging.Handler):
    """Keeps what the server couldn't explain."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(logging.Formatter().format(record))


@cache
def _door() -> tuple[Door, fl.FlightClient, _Failures]:
    ends = contextlib.ExitStack()
    failures = _Failures()
    logging.getLogger("offloader").addHandler(failures)
    logging.getLogger("offloader").propagate = False
    settings: dict[str, Any] = {
        "flight__ledgers": "sqlite:///:memory:",
        "flight__streams_max": 12,
        "flight__wait_max": 0.5,
    }
    door = ends.enter_context(flight_door(open_store("memory://fuzz"), **settings))
    atexit.register(ends.close)
    return door, door.client(), failures


def check_call(data: bytes) -> Outcome:
    """Any call ends with an answer or a refusal that has words; the server goes on."""
    _, client, failures = _door()
    failures.found.clear()
    kind, _, rest = data.partition(b"\n")
    verb, _, name = kind.decode("latin-1").partition(" ")
    said = ""
    try:
        outcome: object = _called(client, verb, name, rest)
    except (fl.FlightError, pa.ArrowException, OSError) as error:  # also gRPC's own, of what can't be sent at all
        said = str(error)
        outcome = f"{type(error).__name__} {said[:24]}"
    assert "the log of the process" not in said, f"{said} {failures.found[:1]}"
    assert "Traceback" not in said, f"a caller is told of our code: {said}"
    assert not failures.found, failures.found[0]
    return (verb, name[:12], outcome)


def _called(client: fl.FlightClient, verb: str, name: str, rest: bytes) -> object:
    options = fl.FlightCallOptions(timeout=60)
    match verb:
        case "put":
            return _put(client, rest, options)
        case "get":
            return client.do_get(fl.Ticket(rest), options).read_all().num_rows > 0
        case "do":
            return len(list(client.do_action(fl.Action(name, rest), options)))
        case "info":
            return client.get_flight_info(fl.FlightDescriptor.for_path(rest), options).total_records > 0
        case "schema":
            return len(client.get_schema(fl.FlightDescriptor.for_command(rest), options).schema)
        case "list":
            return len(list(client.list_flights(rest, options))) > 0
        case "token":
            # No client can send others; that of old releases of Arrow ends its own process over them.
            token = bytes(byte for byte in rest.split(b"\n")[0][:2000] if 0x20 <= byte < 0x7F)
            shown = fl.FlightCallOptions(timeout=60, headers=[(b"authorization", token)])
            return len(list(client.list_actions(shown)))
    with contextlib.closing(client.do_exchange(fl.FlightDescriptor.for_command(rest), options)[0]):
        return "exchanged"


def _put(client: fl.FlightClient, rest: bytes, options: fl.FlightCallOptions) -> object:
    """Sends what Arrow can send; what is answered as appended is there."""
    words, _, rest = rest.partition(b"\n")
    note, _, data = rest.partition(b"\n")
    with pa.ipc.open_stream(data) as reader:
        batches = list(reader)
        schema = reader.schema
    for batch in batches:
        batch.validate(full=True)  # the client's side isn't what is tested
    writer, answers = client.do_put(fl.FlightDescriptor.for_command(words), schema, options)
    positions: list[tuple[str, str]] = []
    with contextlib.ExitStack() as ending:
        ending.callback(writer.close)  # which raises what the server refused
        for batch in batches:
            writer.write_with_metadata(batch, note)
        writer.done_writing()
        for answer in _read(answers):
            positions += [tuple(each) for each in answer.get("positions", ())]
    name = json.loads(words)["stream"]
    payloads = [each for batch in batches for each in batch.column("payload").to_pylist()] if positions else []
    at = 0
    for first, last in positions:
        ticket = json.dumps({"stream": name, "from": first, "to": last}).encode()
        back = client.do_get(fl.Ticket(ticket), options).read_all().column("payload").to_pylist()
        assert back == payloads[at : at + len(back)], "what was acknowledged isn't what is read back"
        at += len(back)
    return ("put", len(positions))


def _read(answers: fl.FlightMetadataReader) -> Iterator[dict[str, Any]]:
    while (said := answers.read()) is not None:
        yield json.loads(said.to_pybytes())


def seeds_with_a_server() -> list[bytes]:
    _door()  # its memory is what the process begins with
    return call_seeds()


TARGETS = [
    Target("flight-words", word_seeds, check_words, change_words, per_s=8000),
    Target("flight-batches", batch_seeds, check_batches, change_batches, per_s=2000),
    Target("flight", seeds_with_a_server, check_call, change_calls, per_s=500),
]
