"""``offloader read STREAM --messages``."""

from __future__ import annotations

import base64
import json
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, padding, rsa
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from google.protobuf import any_pb2, descriptor_pb2, timestamp_pb2

from formats.entries import EntryBatch
from formats.topic_layout import HASHES, RangeSegment, TopicLayout, TopicSchema
from offloader.manifest.topic_layouts import record_layout, record_schemas
from offloader.store.open import open_store
from tests.cli.reading_verbs import Offloader
from tests.formats.pulsar_entries import Sent, batch_entry, compressed, entry_of, metadata_of, recorded, single_entry
from tests.support.schema_registry import schema_registry
from tests.support.streams import BASE_MS, StreamWriter, batch_of

TIME = "2023-11-14T22:13:20.000Z"


@pytest.fixture
def writer(tmp_path: Path) -> StreamWriter:
    return StreamWriter(open_store(f"file://{tmp_path}/store"), "orders")


@pytest.fixture
def offloader(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, writer: StreamWriter) -> Offloader:
    monkeypatch.setenv("OFFLOADER_STORE", writer.store.url)
    return Offloader(capsys)


def test_a_line_per_message_with_id_time_key_and_value(offloader: Offloader, writer: StreamWriter) -> None:
    batch = batch_entry([Sent(value=b"pen", key="k1"), Sent(value="ümläut\n".encode(), key="\x1b[31m")], codec=1)
    writer.add([EntryBatch.build(7, 0, [single_entry(Sent(value=b"first")), batch])])
    assert offloader("read", "orders", "--messages").out.splitlines() == [
        f"7:0\t{TIME}\t-\tfirst",
        f"7:1:0\t{TIME}\tk1\tpen",
        f"7:1:1\t{TIME}\t\\x1b[31m\tümläut\\n",
    ]


def test_unusual_message_values_are_shown_in_brackets(offloader: Offloader, writer: StreamWriter) -> None:
    entries = [
        single_entry(Sent(null_value=True)),
        batch_entry([Sent(compacted_out=True)]),
        entry_of(metadata_of(marker=21), b""),
        entry_of(metadata_of(encryption=[("k", b"x", {})]), b"secret"),
        entry_of(metadata_of(message=Sent(null_value=True), encryption=[("k", b"x", {})]), b""),
        single_entry(Sent(value=b"")),
    ]
    writer.add([EntryBatch.build(7, 0, entries)])
    shown = [line.split("\t")[3] for line in offloader("read", "orders", "--messages").out.splitlines()]
    assert shown == [
        "(null)",
        "(compacted out)",
        "(marker 21)",
        "(encrypted, 6 bytes)",
        "(null)",
        "",
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (b"a" * 200, "a" * 200),
        (b"a" * 201, "a" * 200 + "..."),
        ("✓".encode() * 200, "✓" * 200),
        ("✓".encode() * 5000, "✓" * 200 + "..."),
        (b"\xff\xfe", "base64://4="),
        (b"\xff" * 300, "base64:" + base64.b64encode(b"\xff" * 200).decode() + "..."),
        (b"a" * 799 + "✓".encode(), "a" * 200 + "..."),
        (b"a" * 900 + b"\xff", "a" * 200 + "..."),
    ],
)
def test_long_and_binary_values_are_cut(offloader: Offloader, writer: StreamWriter, value: bytes, shown: str) -> None:
    writer.add([EntryBatch.build(7, 0, [single_entry(Sent(value=value))])])
    assert offloader("read", "orders", "--messages").out == f"7:0\t{TIME}\t-\t{shown}\n"


def test_json_has_all_message_fields(offloader: Offloader, writer: StreamWriter) -> None:
    sent = Sent(
        value=b"\xff",
        key="/w==",
        key_is_base64=True,
        ordering_key=b"o",
        event_time=BASE_MS,
        sequence_id=None,
        properties={"a": "1"},
    )
    secret = entry_of(metadata_of(encryption=[("k1", b"x", {})], encryption_parameter=b"iv"), b"secret")
    writer.add([EntryBatch.build(7, 0, [single_entry(sent, broker=(BASE_MS, 4), txn=(1, 2)), secret])])
    first, second = offloader("read", "orders", "--messages", "--json").rows
    assert first == {
        "id": "7:0",
        "publish_time": TIME,
        "key": "/w==",
        "value_base64": "/w==",
        "properties": {"a": "1"},
        "producer_name": "p",
        "txn_most_bits": 1,
        "txn_least_bits": 2,
        "compression": "none",
        "broker_time": TIME,
        "broker_index": 4,
        "key_is_base64": True,
        "ordering_key_base64": "bw==",
        "event_time": TIME,
        "sequence_id": 0,
    }
    assert (second["value"], second["encryption_keys"]) == ("secret", ["k1"])
    assert second["encryption_parameter_base64"] == base64.b64encode(b"iv").decode()


@pytest.mark.slow
def test_limits_and_counts_are_of_messages(offloader: Offloader, writer: StreamWriter) -> None:
    batches = [batch_entry([Sent(value=b"%d.%d" % (entry, n)) for n in range(10)]) for entry in range(5)]
    writer.add([EntryBatch.build(7, 0, batches)])
    done = offloader("read", "orders", "--messages", "--limit", "13", "--from", "7:1")
    assert [line.split("\t")[3] for line in done.out.splitlines()] == [f"{1 + n // 10}.{n % 10}" for n in range(13)]
    assert offloader("read", "orders", "--messages", "--count").out == "50\n"
    assert offloader("read", "orders", "--messages", "--count", "--limit", "13", "--json").rows == [{"count": 13}]
    assert offloader("read", "orders", "--count").out == "5\n"


@pytest.mark.slow
def test_every_recorded_entry_can_be_printed(offloader: Offloader, writer: StreamWriter) -> None:
    topics = list(recorded("plain").values())
    writer.add([EntryBatch.build(n, 0, [data for *_, data in topic.entries]) for n, topic in enumerate(topics)])
    lines = offloader("read", "orders", "--messages").out.splitlines()
    assert len(lines) == len(offloader("read", "orders", "--messages", "--json").rows)
    assert offloader("read", "orders", "--messages", "--count").out == f"{len(lines)}\n"
    assert all(line.count("\t") == 3 for line in lines)


def test_damage_is_an_error_or_a_line(offloader: Offloader, writer: StreamWriter) -> None:
    writer.add([EntryBatch.build(7, 0, [single_entry(Sent(value=b"a")), b"hello there", single_entry(Sent())])])
    done = offloader("read", "orders", "--messages")
    assert (done.code, done.out) == (6, f"7:0\t{TIME}\t-\ta\n")
    line, hint = done.err.splitlines()
    assert "message metadata in stream orders, entry 7:1 at byte 0: expected at most 7 bytes, found" in line
    assert "--on-bad-message null" in hint
    lines = offloader("read", "orders", "--messages", "--on-bad-message", "null").out.splitlines()
    assert lines[1].startswith("7:1\t-\t-\t(error: message metadata in stream orders, entry 7:1 at byte 0")
    [_, row, _] = offloader("read", "orders", "--messages", "--on-bad-message", "null", "--json").rows
    assert row["error"].startswith("message metadata in stream orders, entry 7:1")
    assert (row["value"], row["key"], row["publish_time"]) == (None, None, None)


def test_stream_of_other_entries_is_refused_with_messages_option(offloader: Offloader, writer: StreamWriter) -> None:
    writer.add([batch_of(3, 0, 10)])
    code, line, hint = offloader.refuses("read", "orders", "--messages")
    assert code == 2
    assert line.startswith("stream orders, entry 3:0 isn't a message of Pulsar's: message metadata at byte 0: expected")
    assert hint.startswith("read the entries without decoding messages, or --on-bad-message null")
    assert offloader.refuses("read", "orders", "--messages", "--count")[0] == 2


@pytest.mark.parametrize("later", [single_entry(Sent(value=b"a")), single_entry(Sent(value=b"a"))[:-1] + b"b"])
def test_damaged_first_entry_of_pulsars_is_damage(offloader: Offloader, writer: StreamWriter, later: bytes) -> None:
    writer.add([EntryBatch.build(7, 0, [b"hello there", later])])
    done = offloader("read", "orders", "--messages")
    assert (done.code, done.out) == (6, "")
    assert "entry 7:0" in done.err


def chunks_of(uuid: str, value: bytes, cuts: list[int], *, codec: int = 0) -> list[bytes]:
    """The entries of one chunked message: compressed first, then cut."""
    stored = compressed(codec, value)
    size: dict[str, Any] = {"compression": codec, "uncompressed_size": len(value)} if codec else {}
    ends = [*cuts, len(stored)]
    return [
        entry_of(metadata_of(chunk=(uuid, number, len(ends), len(stored)), **size), stored[start:end])
        for number, (start, end) in enumerate(zip([0, *cuts], ends, strict=True))
    ]


@pytest.mark.slow
def test_chunks_of_a_message_are_one_row_with_the_last_ones_id(offloader: Offloader, writer: StreamWriter) -> None:
    big = b"big value " * 20
    one, two = chunks_of("u", big, [3, 9], codec=1), chunks_of("v", b"other", [2])
    writer.add([EntryBatch.build(7, 0, [one[0], two[0], one[1], single_entry(Sent(value=b"x")), two[1], one[2]])])
    assert [line.split("\t")[::3] for line in offloader("read", "orders", "--messages").out.splitlines()] == [
        ["7:3", "x"],
        ["7:4", "other"],
        ["7:5", big.decode()],
    ]
    done = offloader("read", "orders", "--messages", "--json")
    assert (done.rows[2]["value"], "chunk_id" in done.rows[2], done.err) == (big.decode(), False, "")
    assert offloader("read", "orders", "--messages", "--count").out == "3\n"
    assert offloader("read", "orders", "--messages", "--limit", "2").out.count("\n") == 2


def test_message_with_a_missing_chunk_is_left_out_and_noted(offloader: Offloader, writer: StreamWriter) -> None:
    lost, late, cut = chunks_of("u", b"abcdef", [2, 4]), chunks_of("v", b"ab", [1]), chunks_of("w", b"ab", [1])
    entries = [lost[0], lost[2], late[1], *cut[:1], single_entry(Sent(value=b"x"))]
    writer.add([EntryBatch.build(7, 0, entries)])
    done = offloader("read", "orders", "--messages")
    assert (done.code, done.out) == (0, f"7:4\t{TIME}\t-\tx\n")
    assert done.err == "note: left out 3 messages with chunks outside this range\n"


def test_chunk_that_was_sent_twice_counts_once(offloader: Offloader, writer: StreamWriter) -> None:
    one = chunks_of("u", b"abcdef", [2, 4])
    writer.add([EntryBatch.build(7, 0, [one[0], one[0], one[1], one[1], one[2]])])
    done = offloader("read", "orders", "--messages")
    assert done.out.endswith("\tabcdef\n")
    assert (done.out.count("\n"), done.err) == (1, "")


# --- encrypted


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[rsa.RSAPrivateKey, Path]]:
    found = {}
    for name in ("mine", "other"):
        key = rsa.generate_private_key(65537, 2048)
        path = tmp_path_factory.mktemp("keys") / f"{name}.pem"
        form = serialization.PrivateFormat.PKCS8
        path.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
        found[name] = key, path
    return found


def sealed(key: rsa.RSAPrivateKey, plain: bytes, **more: Any) -> bytes:
    """An entry as Pulsar's clients encrypt it: AES-GCM under a data key, that one under the reader's RSA key."""
    data_key, start = b"k" * 32, b"i" * 12
    oaep = padding.OAEP(mgf=padding.MGF1(hashes.SHA1()), algorithm=hashes.SHA1(), label=None)
    wrapped = key.public_key().encrypt(data_key, oaep)
    metadata = metadata_of(encryption=[("mine", wrapped, {})], encryption_parameter=start, **more)
    return entry_of(metadata, AESGCM(data_key).encrypt(start, plain, None))


Keys = dict[str, tuple[rsa.RSAPrivateKey, Path]]


@pytest.mark.slow
def test_messages_are_decrypted_with_a_key_that_is_named(
    offloader: Offloader, writer: StreamWriter, keys: Keys
) -> None:
    (mine, path), (_, other) = keys["mine"], keys["other"]
    messages = [Sent(value=b"pen"), Sent(value=b"ink", key="k")]
    plain = b"".join(each.in_batch() for each in messages)
    batch = sealed(mine, compressed(1, plain), batch=2, compression=1, uncompressed_size=len(plain))
    chunks = [sealed(mine, part, chunk=("u", number, 2, 6)) for number, part in enumerate((b"abc", b"def"))]
    writer.add([EntryBatch.build(7, 0, [sealed(mine, b"secret"), batch, *chunks])])

    def values(*arguments: str) -> list[str]:
        return [line.split("\t")[3] for line in offloader("read", "orders", "--messages", *arguments).out.splitlines()]

    assert values("--private-key", str(path)) == ["secret", "pen", "ink", "abcdef"]
    assert values("--private-key", f"mine={path}") == ["secret", "pen", "ink", "abcdef"]
    assert offloader("read", "orders", "--messages", "--count", "--private-key", str(path)).out == "4\n"
    assert all(each.startswith("(encrypted, ") for each in values())
    assert all(each.startswith("(encrypted, ") for each in values("--private-key", f"theirs={path}"))
    row = offloader("read", "orders", "--messages", "--json", "--limit", "1", "--private-key", str(path)).rows[0]
    assert (row["value"], "encryption_keys" in row) == ("secret", False)
    wrong = offloader("read", "orders", "--messages", "--private-key", f"mine={other}")
    assert wrong.code == 2
    assert "encrypted payload in stream orders, entry 7:0" in wrong.err
    assert "expected one for the given key 'mine', found one for another key" in wrong.err


def test_wrong_key_files_are_refused(offloader: Offloader, tmp_path: Path, writer: StreamWriter) -> None:
    writer.add([EntryBatch.build(7, 0, [single_entry(Sent())])])
    (tmp_path / "text").write_text("no key")
    ed_key = ed25519.Ed25519PrivateKey.generate()
    form = serialization.PrivateFormat.PKCS8
    (tmp_path / "ed").write_bytes(ed_key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    for name, code, said in (
        ("none", 3, "cannot read key"),
        ("text", 2, "is not a private key"),
        ("ed", 2, "neither an RSA nor an EC"),
    ):
        found, line, hint = offloader.refuses("read", "orders", "--messages", "--private-key", str(tmp_path / name))
        assert (found, said in line, bool(hint)) == (code, True, True), name


# --- values by schema

AVRO = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}, {"name": "at", "type": "bytes"}]}
NEWER = {**AVRO, "fields": [{"name": "id", "type": "long"}]}


def avro(schema: dict[str, Any], value: Any) -> bytes:
    out = BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


@pytest.mark.slow
def test_avro_values_are_decoded_by_the_schema_of_their_version(
    offloader: Offloader, writer: StreamWriter, tmp_path: Path
) -> None:
    entries = [
        single_entry(Sent(value=avro(AVRO, {"id": 1, "at": b"\xff"})), schema_version=(0).to_bytes(8, "big")),
        single_entry(Sent(value=avro(NEWER, {"id": 2})), schema_version=(1).to_bytes(8, "big")),
    ]
    writer.add([EntryBatch.build(7, 0, entries)])
    (tmp_path / "0.avsc").write_text(json.dumps(AVRO))
    (tmp_path / "1.json").write_text(json.dumps({"version": 1, "type": "AVRO", "data": json.dumps(NEWER)}))
    both = ("--schema", f"0={tmp_path}/0.avsc", "--schema", f"1={tmp_path}/1.json")
    assert [row["value"] for row in offloader("read", "orders", "--messages", "--json", *both).rows] == [
        {"id": 1, "at": "/w=="},
        {"id": 2},
    ]
    lines = offloader("read", "orders", "--messages", *both).out.splitlines()
    assert lines[1] == f'7:1\t{TIME}\t-\t{{"id": 2}}'
    wrong = offloader("read", "orders", "--messages", "--schema", f"{tmp_path}/1.json")
    assert wrong.code == 2
    assert "message 7:0: the value can't be decoded: the value does not match the Avro schema" in wrong.err
    assert "check that --schema is the topic's schema" in wrong.err
    shown = offloader("read", "orders", "--messages", "--on-bad-message", "null", "--schema", f"1={tmp_path}/1.json")
    assert (
        "(error: the value can't be decoded: its schema version is 0, but schemas were given only for 1)" in shown.out
    )
    assert shown.code == 0


def test_json_and_primitive_values_are_decoded(offloader: Offloader, writer: StreamWriter, tmp_path: Path) -> None:
    writer.add([EntryBatch.build(7, 0, [single_entry(Sent(value=b'{"a": [1]}'))])], closes=[7])
    (tmp_path / "json").write_text(json.dumps({"type": "JSON", "data": "{}"}))
    [row] = offloader("read", "orders", "--messages", "--json", "--schema", f"{tmp_path}/json").rows
    assert row["value"] == {"a": [1]}
    writer.add([EntryBatch.build(8, 0, [single_entry(Sent(value=(7).to_bytes(4, "big")))])])
    (tmp_path / "int").write_text(json.dumps({"type": "INT32", "data": ""}))
    arguments = ("read", "orders", "--from", "8:0", "--messages", "--json", "--schema", f"{tmp_path}/int")
    assert offloader(*arguments).rows[0]["value"] == 7


def test_half_a_surrogate_pair_in_a_json_value_is_printed_as_its_escape(
    offloader: Offloader, writer: StreamWriter, tmp_path: Path
) -> None:
    writer.add([EntryBatch.build(7, 0, [single_entry(Sent(value=b'{"a": "\\ud83d"}'))])])
    (tmp_path / "json").write_text(json.dumps({"type": "JSON", "data": "{}"}))
    arguments = ("read", "orders", "--messages", "--schema", f"{tmp_path}/json")
    for more in ((), ("--json",)):
        done = offloader(*arguments, *more)
        assert (done.code, r'{"a": "\ud83d"}' in done.out) == (0, True)


@pytest.mark.slow
def test_protobuf_values_are_decoded_by_descriptors(offloader: Offloader, writer: StreamWriter, tmp_path: Path) -> None:
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Order")
    message.field.add(name="order_id", number=1, type=descriptor_pb2.FieldDescriptorProto.TYPE_INT32, label=1)
    message.field.add(name="item", number=2, type=descriptor_pb2.FieldDescriptorProto.TYPE_STRING, label=1)
    files = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    writer.add([EntryBatch.build(7, 0, [single_entry(Sent(value=b"\x08\x05\x12\x03pen"))])])
    (tmp_path / "shop.desc").write_bytes(files)
    of_file = ("--schema", f"{tmp_path}/shop.desc")
    code, line, hint = offloader.refuses("read", "orders", "--messages", *of_file)
    assert (code, "the message type of the values is missing" in line, "shop.Order" in hint) == (2, True, True)
    told = {"fileDescriptorSet": base64.b64encode(files).decode(), "rootMessageTypeName": "shop.Order"}
    (tmp_path / "native.json").write_text(json.dumps({"type": "PROTOBUF_NATIVE", "data": json.dumps(told)}))
    for arguments in ((*of_file, "--message-type", "shop.Order"), ("--schema", f"{tmp_path}/native.json")):
        [row] = offloader("read", "orders", "--messages", "--json", *arguments).rows
        assert row["value"] == {"order_id": 5, "item": "pen"}
    code, line, _ = offloader.refuses("read", "orders", "--messages", *of_file, "--message-type", "shop.Item")
    assert (code, "shop.Item" in line) == (2, True)


def test_protobuf_value_without_a_form_in_json_is_a_bad_one(
    offloader: Offloader, writer: StreamWriter, tmp_path: Path
) -> None:
    kinds = descriptor_pb2.FieldDescriptorProto
    parts = [each.DESCRIPTOR for each in (timestamp_pb2, any_pb2)]
    file = descriptor_pb2.FileDescriptorProto(
        name="shop.proto", package="shop", syntax="proto3", dependency=[each.name for each in parts]
    )
    message = file.message_type.add(name="Order")
    for number, name in enumerate(("Timestamp", "Any"), 1):
        kind = f".google.protobuf.{name}"
        message.field.add(name=name.lower(), number=number, type=kinds.TYPE_MESSAGE, type_name=kind, label=1)
    own = [descriptor_pb2.FileDescriptorProto.FromString(each.serialized_pb) for each in parts]
    (tmp_path / "shop.desc").write_bytes(descriptor_pb2.FileDescriptorSet(file=[*own, file]).SerializeToString())
    far = timestamp_pb2.Timestamp(seconds=2**60).SerializeToString()
    other = any_pb2.Any(type_url="type.googleapis.com/shop.Other", value=b"x").SerializeToString()
    values = [bytes([tag, len(each)]) + each for tag, each in ((0x0A, far), (0x12, other))]
    writer.add([EntryBatch.build(7, 0, [single_entry(Sent(value=each)) for each in (*values, b"")])])
    arguments = ("read", "orders", "--messages", "--json", "--schema", f"{tmp_path}/shop.desc")
    rows = offloader(*arguments, "--message-type", "shop.Order", "--on-bad-message", "null").rows
    assert [row["value"] for row in rows] == [None, None, {}]
    for row, said in zip(rows, ("Timestamp is not valid", "shop.Other"), strict=False):
        assert row["error"].startswith("the value can't be decoded: the value has no JSON form: ")
        assert said in row["error"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--schema", "x"], "--schema requires --messages"),
        (["--admin-url", "http://127.0.0.1:1"], "--admin-url requires --messages"),
        (["--recorded-schemas"], "--recorded-schemas requires --messages"),
        (["--messages", "--message-type", "a.B"], "--message-type requires --schema"),
        (["--messages", "--admin-url", "http://127.0.0.1:1"], "stream orders has no topic's name"),
        (["--messages", "--schema", "one=/dev/null"], "'one' isn't a version number"),
    ],
)
def test_contradicting_options_of_messages_are_refused(
    offloader: Offloader, writer: StreamWriter, arguments: list[str], said: str
) -> None:
    writer.add([EntryBatch.build(7, 0, [single_entry(Sent())])])
    code, line, hint = offloader.refuses("read", "orders", *arguments)
    assert (code, said in line, bool(hint)) == (2, True, True)


def test_schema_that_the_reader_cannot_use_is_no_bad_message(
    offloader: Offloader, writer: StreamWriter, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    topic = StreamWriter(open_store(f"file://{tmp_path}/topics"), "shop/eu/persistent/orders")
    topic.add([EntryBatch.build(7, 0, [single_entry(Sent(value=b"x"), schema_version=bytes(8))])])
    monkeypatch.setenv("OFFLOADER_STORE", topic.store.url)
    with schema_registry("shop/eu/orders", {0: {"type": "unknown"}}) as registry:
        given = ("--messages", "--on-bad-message", "null", "--admin-url", registry.url)
        done = offloader("read", "persistent://shop/eu/orders", *given)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("offloader: the Avro schema is invalid")


SCALABLE, SEGMENT = "topic://shop/eu/orders", "shop/eu/segment/orders/0000-ffff-0"


@pytest.fixture
def scalable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StreamWriter:
    """A scalable topic with recorded schemas: messages of versions 0 and 1, and one without a version."""
    writer = StreamWriter(open_store(f"file://{tmp_path}/store"), SEGMENT)
    sent = [
        single_entry(Sent(value=avro(AVRO, {"id": 1, "at": b"x"})), schema_version=bytes(8)),
        single_entry(Sent(value=avro(NEWER, {"id": 2})), schema_version=(1).to_bytes(8, "big")),
        single_entry(Sent(value=avro(NEWER, {"id": 3}))),
    ]
    writer.add([EntryBatch.build(7, 0, sent)], closes=[7])
    row = RangeSegment(id=0, stream=SEGMENT, hash_start=0, hash_stop=HASHES, parents=(), created_epoch=0)
    record_layout(writer.store, "shop/eu/topic/orders", TopicLayout(topic=SCALABLE, epoch=0, segments=(row,)))
    schemas = [
        TopicSchema(version=number, type="AVRO", data=json.dumps(each)) for number, each in enumerate([AVRO, NEWER])
    ]
    record_schemas(writer.store, "shop/eu/topic/orders", schemas)
    monkeypatch.setenv("OFFLOADER_STORE", writer.store.url)
    return writer


@pytest.mark.parametrize("name", [SCALABLE, SEGMENT])
def test_recorded_schemas_decode_values_by_version(
    capsys: pytest.CaptureFixture[str], scalable: StreamWriter, name: str
) -> None:
    done = Offloader(capsys)("read", name, "--messages", "--json", "--recorded-schemas")
    assert [row["value"]["id"] for row in done.rows] == [1, 2, 3]


def test_version_that_is_not_recorded_is_asked_from_the_broker_or_named(
    capsys: pytest.CaptureFixture[str], scalable: StreamWriter
) -> None:
    later = single_entry(Sent(value=avro(NEWER, {"id": 4})), schema_version=(2).to_bytes(8, "big"))
    scalable.add([EntryBatch.build(8, 0, [later])])
    read = ("read", SCALABLE, "--messages", "--json", "--recorded-schemas")
    done = Offloader(capsys)(*read)
    assert (done.code != 0, "its schema version is 2, which is not recorded" in done.err) == (True, True)
    with schema_registry("shop/eu/orders", {2: NEWER}) as registry:
        done = Offloader(capsys)(*read, "--admin-url", registry.url)
    assert [row["value"]["id"] for row in done.rows] == [1, 2, 3, 4]
    assert registry.asked == ["/admin/v2/schemas/shop/eu/orders/schema/2"]


def test_version_with_two_recorded_definitions_is_decoded_by_a_file_only(
    capsys: pytest.CaptureFixture[str], scalable: StreamWriter, tmp_path: Path
) -> None:
    again = TopicSchema(version=0, type="AVRO", data=json.dumps(NEWER))
    record_schemas(scalable.store, "shop/eu/topic/orders", [again])
    read = ("read", SCALABLE, "--messages", "--json", "--recorded-schemas")
    done = Offloader(capsys)(*read)
    assert (done.code, "version is 0, which was deleted and created again" in done.err) == (2, True)
    (tmp_path / "0.json").write_text(json.dumps(AVRO))
    done = Offloader(capsys)(*read, "--schema", f"0={tmp_path}/0.json")
    assert [row["value"]["id"] for row in done.rows] == [1, 2, 3]


def test_broker_is_asked_for_a_version_after_a_message_without_one(
    capsys: pytest.CaptureFixture[str], scalable: StreamWriter
) -> None:
    """The newest schema, which is that of messages without a version, isn't that of all versions."""
    older = single_entry(Sent(value=avro(AVRO, {"id": 4, "at": b"y"})), schema_version=bytes(8))
    scalable.add([EntryBatch.build(8, 0, [single_entry(Sent(value=avro(NEWER, {"id": 3}))), older])])
    with schema_registry("shop/eu/orders", {0: AVRO}, newest=NEWER) as registry:
        given = ("--messages", "--json", "--from", "8:0", "--admin-url", registry.url)
        done = Offloader(capsys)("read", SEGMENT, *given)
    assert [row["value"] for row in done.rows] == [{"id": 3}, {"id": 4, "at": "eQ=="}]


def test_topic_without_recorded_schemas_is_named(offloader: Offloader, writer: StreamWriter) -> None:
    writer.add([EntryBatch.build(7, 0, [single_entry(Sent())])])
    code, line, hint = offloader.refuses("read", "orders", "--messages", "--recorded-schemas")
    assert (code, line) == (3, "stream orders has no recorded schemas")
    assert "--schema FILE" in hint


def test_the_broker_gives_schemas_by_version(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    topic = StreamWriter(open_store(f"file://{tmp_path}/store"), "shop/eu/persistent/orders-partition-1")
    topic.add([EntryBatch.build(7, 0, [single_entry(Sent(value=avro(NEWER, {"id": 2})), schema_version=bytes(8))])])
    monkeypatch.setenv("OFFLOADER_STORE", topic.store.url)
    with schema_registry("shop/eu/orders", {0: NEWER}) as registry:
        given = ("--messages", "--json", "--admin-url", registry.url)
        done = Offloader(capsys)("read", "persistent://shop/eu/orders", *given)
    assert [(row["partition"], row["value"]) for row in done.rows] == [(1, {"id": 2})]
    assert registry.asked == ["/admin/v2/schemas/shop/eu/orders/schema/0"]
