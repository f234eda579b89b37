"""Stored entries -> messages: every field, batches and codecs, what is refused, and rows for what can't be read."""

from __future__ import annotations

import pickle
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from formats.entries import TIME_UNKNOWN_MS, EntryBatch
from formats.errors import (
    ChecksumMismatchError,
    FormatError,
    InconsistentError,
    LimitExceededError,
    TruncatedError,
    UnsupportedVersionError,
)
from formats.pulsar.messages import (
    COLUMNS,
    ENTRY_COLUMNS,
    ROW_COLUMNS,
    BadEntry,
    MessageDecoder,
    MessageOptions,
    messages,
    publish_times_ms,
)
from tests.formats.pulsar_entries import (
    LZ4,
    NONE,
    SNAPPY,
    ZLIB,
    ZSTD,
    Sent,
    batch_entry,
    blob,
    compressed,
    entry_of,
    metadata_of,
    number,
    single_entry,
)

CODECS = [NONE, LZ4, ZLIB, ZSTD, SNAPPY]
LEDGER = 7


def batch_of(*entries: bytes, first: int = 0) -> EntryBatch:
    return EntryBatch.build(LEDGER, first, list(entries))


def rows_of(*entries: bytes, **options: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = messages(batch_of(*entries), MessageOptions(**options)).to_pylist()
    return found


def row_of(entry: bytes, **options: Any) -> dict[str, Any]:
    [row] = rows_of(entry, **options)
    return row


def error_of(entry: bytes, **options: Any) -> FormatError:
    with pytest.raises(FormatError) as caught:
        messages(batch_of(entry), MessageOptions(**options), source="orders")
    return caught.value


def ms(time: Any) -> int | None:
    return None if time is None else round(time.timestamp() * 1000)


# Fields


def test_a_message_with_every_field() -> None:
    sent = Sent(
        value=b"v",
        key="k",
        ordering_key=b"\x00\xff",
        event_time=1_600_000_000_123,
        sequence_id=None,
        properties={"a": "1", "ü": "✓"},
    )
    entry = single_entry(
        sent,
        producer="maker",
        sequence_id=2**63 + 1,
        publish_time=1_700_000_000_456,
        replicated_from="west",
        schema_version=b"\x00\x09",
        deliver_at=1_700_000_100_000,
        marker=13,
        txn=(2**64 - 2, 5),
        broker=(1_700_000_000_500, 41),
    )
    row = row_of(entry)
    times = {name: ms(row.pop(name)) for name in ("publish_time", "event_time", "deliver_at", "broker_time")}
    assert times == {
        "publish_time": 1_700_000_000_456,
        "event_time": 1_600_000_000_123,
        "deliver_at": 1_700_000_100_000,
        "broker_time": 1_700_000_000_500,
    }
    assert row == {
        "ledger_id": LEDGER,
        "entry_id": 0,
        "batch_index": -1,
        "batch_size": None,
        "producer_name": "maker",
        "schema_version": b"\x00\x09",
        "replicated_from": "west",
        "marker_type": 13,
        "txn_most_bits": -2,
        "txn_least_bits": 5,
        "chunk_uuid": None,
        "chunk_id": None,
        "chunk_count": None,
        "chunk_total_bytes": None,
        "compression": "none",
        "uncompressed_bytes": None,
        "encryption_algorithm": None,
        "encryption_parameter": None,
        "encryption_keys": None,
        "broker_index": 41,
        "key": "k",
        "key_is_base64": False,
        "null_key": False,
        "ordering_key": b"\x00\xff",
        "sequence_id": 1 - 2**63,
        "properties": [("a", "1"), ("ü", "✓")],
        "value": b"v",
        "compacted_out": False,
        "error": None,
    }


def test_message_with_only_required_fields() -> None:
    row = row_of(entry_of(metadata_of(), b""))
    given = {"ledger_id", "entry_id", "batch_index", "publish_time", "producer_name", "compression", "sequence_id"}
    given |= {"key_is_base64", "null_key", "properties", "value", "compacted_out"}
    assert {name for name, value in row.items() if value is not None} == given
    assert (row["value"], row["properties"], row["sequence_id"]) == (b"", [], 0)


@pytest.mark.slow
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("checksum", [True, False])
def test_batches_and_single_messages_in_every_codec_with_and_without_a_checksum(codec: int, checksum: bool) -> None:
    sent = [Sent(value=bytes([i]) * i * 7, key=f"k{i}", event_time=i or None, sequence_id=100 + i) for i in range(20)]
    rows = rows_of(
        batch_entry(sent, codec=codec, checksum=checksum),
        *[single_entry(each, codec=codec, checksum=checksum) for each in sent],
    )
    assert [(row["value"], row["key"], ms(row["event_time"])) for row in rows] == [
        (each.value, each.key, each.event_time) for each in [*sent, *sent]
    ]
    assert [row["batch_index"] for row in rows] == [*range(20), *[-1] * 20]
    assert [row["entry_id"] for row in rows] == [0] * 20 + list(range(1, 21))
    assert [row["sequence_id"] for row in rows[:20]] == list(range(100, 120))


def test_batched_message_inherits_from_batch_except_key_and_properties() -> None:
    outer = Sent(key="outer", ordering_key=b"outer", event_time=5_000, properties={"of": "batch"})
    own = Sent(value=b"b", event_time=7, sequence_id=0)
    plain = Sent(value=b"a").in_batch() + own.in_batch()
    entry = entry_of(metadata_of(message=outer, sequence_id=33, batch=2), plain)
    first, second = rows_of(entry)
    assert (ms(first["event_time"]), ms(second["event_time"])) == (5_000, 7)
    assert (first["sequence_id"], second["sequence_id"]) == (33, 0)
    for row in (first, second):
        assert (row["key"], row["ordering_key"], row["properties"]) == (None, None, [])


def test_batch_of_one_message_is_still_a_batch() -> None:
    assert row_of(batch_entry([Sent(value=b"x")]))["batch_index"] == 0
    assert row_of(single_entry(Sent(value=b"x")))["batch_index"] == -1


def test_keys_null_empty_base64_and_not_even_text() -> None:
    sent = [
        Sent(key=None),
        Sent(key=""),
        Sent(key="/w==", key_is_base64=True),
        Sent(key=b"\xff\x00raw"),
        Sent(key=None, null_key=True, null_value=True),
    ]
    expected = [
        (None, False, False, b""),
        ("", False, False, b""),
        ("/w==", True, False, b""),
        ("/wByYXc=", True, False, b""),
        (None, False, True, None),
    ]
    for rows in (rows_of(batch_entry(sent)), rows_of(*map(single_entry, sent))):
        found = [(row["key"], row["key_is_base64"], row["null_key"], row["value"]) for row in rows]
        assert found == expected


def test_invalid_utf8_is_escaped_and_refuses_nothing() -> None:
    sent = Sent(properties=[(b"caf\xe9", b"\xff"), ("b", "2")])
    row = row_of(single_entry(sent, producer=b"\xe9"))
    assert row["producer_name"] == "\\xe9"
    assert row["properties"] == [("caf\\xe9", "\\xff"), ("b", "2")]


def test_last_of_equally_named_properties_wins() -> None:
    assert row_of(single_entry(Sent(properties=[("a", "1"), ("b", "2"), ("a", "3")])))["properties"] == [
        ("a", "3"),
        ("b", "2"),
    ]


def test_encrypted_entries_keep_their_bytes_despite_batch_and_codec_fields() -> None:
    keys = [("k1", b"\x01\x02", {"region": "eu"}), ("k2", b"\x03", {})]
    metadata = metadata_of(
        encryption=keys,
        encryption_algorithm="AES",
        encryption_parameter=b"iv",
        compression=LZ4,
        uncompressed_size=99,
        batch=4,
    )
    row = row_of(entry_of(metadata, b"secret"))
    assert (row["value"], row["compression"], row["uncompressed_bytes"]) == (b"secret", "lz4", 99)
    assert (row["batch_index"], row["batch_size"]) == (-1, 4)
    assert (row["encryption_algorithm"], row["encryption_parameter"]) == ("AES", b"iv")
    assert row["encryption_keys"] == [
        {"name": "k1", "value": b"\x01\x02", "metadata": [("region", "eu")]},
        {"name": "k2", "value": b"\x03", "metadata": []},
    ]


def test_broker_index_counts_messages_up_to_the_last_of_an_entry() -> None:
    entries = [
        batch_entry([Sent(), Sent(), Sent()], broker=(1, 12)),
        single_entry(Sent(), broker=(1, 13)),
        single_entry(Sent()),
        single_entry(Sent(), broker=(1, None)),
        entry_of(metadata_of(batch=2, encryption=[("k", b"", {})]), b"??", broker=(None, 15)),
    ]
    rows = rows_of(*entries)
    assert [row["broker_index"] for row in rows] == [10, 11, 12, 13, None, None, 15]
    assert [ms(row["broker_time"]) for row in rows] == [1, 1, 1, 1, None, 1, None]


def test_times_beyond_the_calendar_are_null_with_an_error() -> None:
    nanoseconds = 1_700_000_000_000_000_000
    odd = single_entry(Sent(value=b"v", event_time=nanoseconds))
    worse = single_entry(Sent(value=b"v"), publish_time=2**64 - 1)
    last = single_entry(Sent(value=b"v", event_time=253_402_300_799_999))
    rows = rows_of(odd, worse, last)
    assert [row["value"] for row in rows] == [b"v"] * 3
    assert [row["error"] for row in rows] == [
        f"event_time {nanoseconds} ms is beyond the year 9999",
        f"publish_time {2**64 - 1} ms is beyond the year 9999",
        None,
    ]
    assert (rows[0]["event_time"], rows[1]["publish_time"]) == (None, None)
    assert rows[2]["event_time"].year == 9999


# Projection and sizes of batches


@pytest.mark.slow
@pytest.mark.parametrize("name", COLUMNS)
def test_each_column_alone_equals_its_values_among_all(name: str) -> None:
    generator = random.Random(3)
    sent = [Sent(value=generator.randbytes(50), key=f"{i}", sequence_id=i, properties={"n": f"{i}"}) for i in range(9)]
    entries = [batch_entry(sent, codec=ZSTD, broker=(5, 8)), single_entry(sent[0]), entry_of(b"", b"")]
    whole = messages(batch_of(*entries), MessageOptions(bad_entries=BadEntry.NULL))
    alone = messages(batch_of(*entries), MessageOptions(bad_entries=BadEntry.NULL, columns=(name,)))
    assert alone.schema == pa.schema([pa.field(name, COLUMNS[name])])
    assert alone.column(name).to_pylist() == whole.column(name).to_pylist()
    alone.validate(full=True)


def test_columns_keep_the_requested_order_and_unknown_ones_are_refused() -> None:
    table = messages(batch_of(single_entry(Sent())), MessageOptions(columns=("value", "entry_id", "value")))
    assert table.column_names == ["value", "entry_id", "value"]
    with pytest.raises(ValueError, match="unknown columns of messages: payload; use ledger_id"):
        MessageOptions(columns=("payload",))
    with pytest.raises(ValueError, match="rows_max is at least 1, not 0"):
        MessageOptions(rows_max=0)
    with pytest.raises(ValueError, match="no columns of messages"):
        MessageOptions(columns=())


def test_nothing_is_decompressed_for_columns_of_entries() -> None:
    """The payload is garbage under a right checksum: decompressing it would fail."""
    entry = entry_of(metadata_of(compression=ZSTD, uncompressed_size=300, batch=3), b"garbage")
    table = messages(batch_of(entry), MessageOptions(columns=tuple(ENTRY_COLUMNS)))
    assert table.column("batch_index").to_pylist() == [0, 1, 2]
    for name in ROW_COLUMNS:
        with pytest.raises(InconsistentError):
            messages(batch_of(entry), MessageOptions(columns=(name,)))


@pytest.mark.slow
def test_record_batches_end_where_one_of_the_limits_is_reached() -> None:
    entries = batch_of(*[batch_entry([Sent(value=bytes(100)) for _ in range(10)]) for _ in range(20)])
    by_rows = MessageDecoder(MessageOptions(rows_max=25))
    assert [each.num_rows for each in by_rows.decode(entries)] == [30] * 6 + [20]
    by_bytes = MessageDecoder(MessageOptions(bytes_max=4000))
    assert [each.num_rows for each in by_bytes.decode(entries)] == [40] * 5
    small = MessageDecoder(MessageOptions(bytes_max=1))
    assert [each.num_rows for each in small.decode(entries)] == [10] * 20
    assert list(MessageDecoder(MessageOptions()).decode(batch_of())) == []
    assert messages(batch_of()).schema.names == list(COLUMNS)


@pytest.mark.parametrize("columns", [tuple(COLUMNS), tuple(ENTRY_COLUMNS)], ids=["all", "of entries"])
def test_large_batch_is_decoded_in_parts(columns: tuple[str, ...]) -> None:
    sent = [Sent(value=b"%d" % number, key=f"{number}", sequence_id=number) for number in range(95)]
    entries = batch_of(single_entry(sent[0]), batch_entry(sent, codec=ZSTD, broker=(5, 94)), single_entry(sent[1]))
    parts = list(MessageDecoder(MessageOptions(rows_max=20, columns=columns)).decode(entries))
    assert [part.num_rows for part in parts] == [21, 20, 20, 20, 16]
    whole = messages(entries, MessageOptions(columns=columns)).to_pylist()
    assert [row for part in parts for row in part.to_pylist()] == whole
    assert [row["batch_index"] for row in whole] == [-1, *range(95), -1]
    assert [row["broker_index"] for row in whole] == [None, *range(95), None]


@pytest.mark.slow
@pytest.mark.parametrize("cut", [0, 1, 400, 800, 1000])
def test_large_batch_cut_anywhere_yields_all_its_rows(cut: int) -> None:
    plain = b"".join(Sent(value=bytes(20)).in_batch() for _ in range(50)) + b"!"
    entry = entry_of(metadata_of(batch=50), plain[: len(plain) - cut])
    whole = rows_of(entry, bad_entries=BadEntry.NULL)
    parts = MessageDecoder(MessageOptions(bad_entries=BadEntry.NULL, rows_max=8)).decode(batch_of(entry))
    assert [row for part in parts for row in part.to_pylist()] == whole
    assert [row["batch_index"] for row in whole] == list(range(50))
    unread = [row["error"] is not None for row in whole]
    assert unread == sorted(unread)
    assert sum(unread) == {0: 1, 1: 0, 400: 16, 800: 31, 1000: 39}[cut]


def test_messages_before_damage_are_returned_before_the_error() -> None:
    good = single_entry(Sent(value=b"good"))
    found = MessageDecoder(MessageOptions()).decode(batch_of(good, good, b"bad", good))
    assert next(found).column("value").to_pylist() == [b"good", b"good"]
    with pytest.raises(TruncatedError, match="entry 7:2"):
        next(found)


def test_a_slice_of_a_batch_is_decoded_like_a_batch_of_its_own() -> None:
    entries = [single_entry(Sent(value=b"%d" % number)) for number in range(10)]
    part = batch_of(*entries).slice(3, 6)
    assert messages(part).column("value").to_pylist() == [b"3", b"4", b"5"]
    assert messages(part).column("entry_id").to_pylist() == [3, 4, 5]


def test_markers_are_left_out_when_asked() -> None:
    entries = [single_entry(Sent(value=b"a")), entry_of(metadata_of(marker=10), b"x"), single_entry(Sent(value=b"b"))]
    assert [row["marker_type"] for row in rows_of(*entries)] == [None, 10, None]
    assert [row["entry_id"] for row in rows_of(*entries, markers=False)] == [0, 2]


# What is refused


GOOD = batch_entry([Sent(value=b"x" * 30, key="k"), Sent(value=b"y" * 30)], codec=LZ4)
PLAIN_PAIR = Sent(value=b"abc").in_batch() + Sent(value=b"def").in_batch()


def pair_with(payload: bytes, *, batch: int = 2) -> bytes:
    return entry_of(metadata_of(batch=batch), payload)


REFUSED: list[tuple[str, bytes, type[FormatError], str]] = [
    (
        "nothing",
        b"",
        TruncatedError,
        "length of message metadata in orders entry 7:0 at byte 0: expected 4 bytes, found 0",
    ),
    ("a few bytes", b"\x00\x00", TruncatedError, "length of message metadata"),
    ("text", b"hello, this is no message", TruncatedError, "expected at most 21 bytes, found 1751477356"),
    ("only a magic", b"\x0e\x01", TruncatedError, "checksum of the message"),
    ("half a checksum", b"\x0e\x01\x00\x00", TruncatedError, "checksum of the message"),
    ("broker magic only", b"\x0e\x02", TruncatedError, "length of broker entry metadata"),
    ("broker metadata too long", b"\x0e\x02\xff\xff\xff\xff", TruncatedError, "broker entry metadata"),
    (
        "broker metadata is none",
        b"\x0e\x02\x00\x00\x00\x01\xff" + GOOD,
        InconsistentError,
        "protobuf BrokerEntryMetadata",
    ),
    ("flipped bit", GOOD[:-1] + bytes([GOOD[-1] ^ 1]), ChecksumMismatchError, "message in orders entry 7:0 at byte 2"),
    ("no protobuf", entry_of(b"\xff\xff\xff", b""), InconsistentError, "expected protobuf MessageMetadata"),
    ("no producer", entry_of(metadata_of(producer=None), b""), InconsistentError, "found no producer_name"),
    ("no sequence id", entry_of(metadata_of(sequence_id=None), b""), InconsistentError, "found no sequence_id"),
    ("no publish time", entry_of(metadata_of(publish_time=None), b""), InconsistentError, "found no publish_time"),
    ("unknown codec", entry_of(metadata_of(compression=5), b"x"), UnsupportedVersionError, "expected 0 to 4, found 5"),
    ("negative codec", entry_of(metadata_of(compression=-1), b"x"), UnsupportedVersionError, "found -1"),
    ("batch of none", pair_with(PLAIN_PAIR, batch=0), InconsistentError, "messages of a batch"),
    ("batch of minus one", pair_with(PLAIN_PAIR, batch=-1), InconsistentError, "found -1"),
    ("batch of too many for its bytes", pair_with(PLAIN_PAIR, batch=2**31 - 1), InconsistentError, "found 2147483647"),
    (
        "one message more than there is",
        pair_with(PLAIN_PAIR, batch=3),
        TruncatedError,
        "metadata of message 2 of a batch",
    ),
    ("one message less", pair_with(PLAIN_PAIR, batch=1), InconsistentError, "expected its end, found 9 more bytes"),
    ("last message cut", pair_with(PLAIN_PAIR[:-1]), TruncatedError, "bytes of message 1 of a batch"),
    ("metadata cut", pair_with(PLAIN_PAIR[:12]), TruncatedError, "metadata of message 1 of a batch"),
    (
        "single metadata is none",
        pair_with(b"\x00\x00\x00\x03\xff\xff\xffabcdefgh"),
        InconsistentError,
        "SingleMessageMetadata",
    ),
    ("no payload size", pair_with(b"\x00\x00\x00\x00" * 4), InconsistentError, "size of message 0 of a batch"),
    (
        "negative payload size",
        pair_with((11).to_bytes(4, "big") + number(3, -1) + b"xxxxxxxxxx"),
        InconsistentError,
        "expected 0 or more, found -1",
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("what", "entry", "kind", "text"), REFUSED, ids=[each[0] for each in REFUSED])
def test_bad_entries_are_refused_by_kind_and_place_or_become_rows(
    what: str, entry: bytes, kind: type[FormatError], text: str
) -> None:
    error = error_of(entry)
    assert type(error) is kind
    assert text in str(error)
    assert "orders entry 7:0" in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    # Before and after it everything is read.
    good = single_entry(Sent(value=b"good"))
    rows = rows_of(good, entry, good, bad_entries=BadEntry.NULL)
    assert [rows[0]["value"], rows[-1]["value"]] == [b"good", b"good"]
    assert {row["error"] for row in (rows[0], rows[-1])} == {None}
    bad = [row for row in rows if row["entry_id"] == 1]
    assert text.replace("orders entry 7:0", "entry 7:1") in (bad[-1]["error"] or "")


def test_a_batch_that_breaks_off_keeps_the_messages_before() -> None:
    sent = [Sent(value=b"%d" % number, key=f"{number}") for number in range(5)]
    plain = b"".join(each.in_batch() for each in sent)
    entry = entry_of(metadata_of(batch=5), plain[:-15])
    rows = rows_of(entry, bad_entries=BadEntry.NULL)
    assert [row["value"] for row in rows] == [b"0", b"1", b"2", None, None]
    assert [row["batch_index"] for row in rows] == list(range(5))
    assert [row["producer_name"] for row in rows] == ["p"] * 5
    assert [row["error"] is None for row in rows] == [True, True, True, False, False]
    for name in ROW_COLUMNS:
        if name != "error":
            assert [row[name] for row in rows[3:]] == [None, None], name


def test_rows_of_bad_entries_do_not_depend_on_the_columns() -> None:
    entries = [each[1] for each in REFUSED]
    whole = rows_of(*entries, bad_entries=BadEntry.NULL)
    ids = [(row["entry_id"], row["batch_index"]) for row in whole]
    few = rows_of(*entries, bad_entries=BadEntry.NULL, columns=("entry_id", "batch_index"))
    assert [(row["entry_id"], row["batch_index"]) for row in few] == ids


@pytest.mark.parametrize("codec", [LZ4, ZLIB, ZSTD, SNAPPY])
@pytest.mark.parametrize("off_by", [-1, 1, 1000, -600])
def test_wrong_declared_size_is_inconsistent(codec: int, off_by: int) -> None:
    plain = b"0123456789" * 60
    entry = entry_of(metadata_of(compression=codec, uncompressed_size=600 + off_by), compressed(codec, plain))
    error = error_of(entry)
    assert isinstance(error, InconsistentError)
    assert error.offset == len(entry) - len(compressed(codec, plain))


@pytest.mark.parametrize("codec", [LZ4, ZLIB, ZSTD, SNAPPY])
def test_an_empty_message_may_be_compressed_too(codec: int) -> None:
    assert row_of(single_entry(Sent(value=b""), codec=codec))["value"] == b""


@pytest.mark.parametrize("codec", [LZ4, ZSTD, SNAPPY])
def test_bytes_after_a_compressed_payload_are_refused(codec: int) -> None:
    plain = b"0123456789" * 60
    entry = entry_of(metadata_of(compression=codec, uncompressed_size=600), compressed(codec, plain) + b"more")
    assert isinstance(error_of(entry), InconsistentError)


def test_zlib_stream_without_its_end_is_read_and_trailing_bytes_refused() -> None:
    plain = b"0123456789" * 60
    whole = compressed(ZLIB, plain)
    metadata = metadata_of(compression=ZLIB, uncompressed_size=600)
    assert row_of(entry_of(metadata, whole[:-4]))["value"] == plain
    assert "bytes after it" in str(error_of(entry_of(metadata, whole + b"more")))


def test_sizes_are_checked_before_allocation() -> None:
    huge = metadata_of(compression=ZLIB, uncompressed_size=2**32 - 1)
    error = error_of(entry_of(huge, compressed(ZLIB, bytes(1000))))
    assert isinstance(error, LimitExceededError)
    assert "expected at most 134217728 bytes, found 4294967295" in str(error)
    small = single_entry(Sent(value=bytes(1001)), codec=ZSTD)
    assert isinstance(error_of(small, payload_bytes_max=1000), LimitExceededError)
    assert row_of(small, payload_bytes_max=1001)["value"] == bytes(1001)
    many = batch_entry([Sent() for _ in range(11)])
    assert "expected at most 10, found 11" in str(error_of(many, batch_messages_max=10))
    with pytest.raises(ValueError, match="payload_bytes_max"):
        MessageOptions(payload_bytes_max=2**30 + 1)


@pytest.mark.slow
def test_metadata_repeated_in_each_row_counts_against_the_limit() -> None:
    """A batch of a thousand from a producer whose name has a megabyte would be a gigabyte of names."""
    long = batch_entry([Sent() for _ in range(1000)], producer="p" * 999, schema_version=b"s")
    error = error_of(long, payload_bytes_max=999_999)
    assert isinstance(error, LimitExceededError)
    assert "metadata of a batch, once per message" in str(error)
    assert "expected at most 999999 bytes, found 1000000" in str(error)
    assert len(rows_of(long, payload_bytes_max=1_000_000)) == 1000
    for columns in (tuple(COLUMNS), ("producer_name",)):
        decoder = MessageDecoder(MessageOptions(columns=columns, bytes_max=1_500_000))
        assert [each.num_rows for each in decoder.decode(batch_of(*[long] * 5))] == [2000, 2000, 1000]
    properties = single_entry(Sent(properties={"a": "b" * 10_000}))
    decoder = MessageDecoder(MessageOptions(bytes_max=100_000))
    assert [each.num_rows for each in decoder.decode(batch_of(*[properties] * 25))] == [10, 10, 5]


def test_unknown_fields_are_skipped() -> None:
    metadata = metadata_of() + number(99, 5) + blob(100, b"new")
    assert row_of(entry_of(metadata, b"v"))["value"] == b"v"


# Publish times


def test_publish_times_are_taken_from_batch_or_else_metadata() -> None:
    entries = [single_entry(Sent(), publish_time=time) for time in (1000, 2000, 2**64 - 1)] + [b"bad"]
    batch = EntryBatch.build(LEDGER, 0, entries, [5, TIME_UNKNOWN_MS, TIME_UNKNOWN_MS, TIME_UNKNOWN_MS])
    assert publish_times_ms(batch).tolist() == [5, 2000, TIME_UNKNOWN_MS, TIME_UNKNOWN_MS]
    assert batch.publish_times_ms.tolist() == [5, -1, -1, -1]
    assert publish_times_ms(batch_of()).dtype == np.int64
