"""Keys: stream names, object names, manifest names, uuids that prove their origin, user metadata."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formats import keys
from formats.errors import FormatError, InconsistentError, UnsupportedVersionError
from formats.keys import ObjectOwner, object_owner

UUID_A = UUID("11111111-1111-4111-8000-0000000003e9")
INCARNATION = UUID("5f0c2a5e-8f53-4b0c-9f0e-1d2c3b4a5968")

STREAMS = {
    "orders": "orders",
    "public/default/persistent/orders-partition-0": "public/default/persistent/orders-partition-0",
    "a b/ü": "a%20b/%C3%BC",
    "with%percent": "with%25percent",
    "..": "%2E%2E",
    "a/./b": "a/%2E/b",
    "a.b/c..d": "a.b/c..d",
    "new\nline/tab\t": "new%0Aline/tab%09",
    "inner/_ok": "inner/_ok",
    "~tilde-and_rest": "~tilde-and_rest",
    "a:b*c?": "a%3Ab%2Ac%3F",
}


@pytest.mark.parametrize(("stream", "encoded"), STREAMS.items())
def test_stream_names_encode_and_decode(stream: str, encoded: str) -> None:
    assert keys.encode_stream(stream) == encoded
    assert keys.decode_stream(encoded) == stream
    assert keys.stream_of_catalog_key(keys.catalog_key(stream)) == stream


@pytest.mark.parametrize(
    "stream",
    [
        "", "/", "a//b", "/a", "a/", "manifest", "a/retention", "a/leases/b", "_catalog", "_x/y",
        "x" * 256, "ü" * 90, "/".join(["x" * 200] * 5), "\ud800",
    ],
)  # fmt: skip
def test_names_that_a_stream_may_not_have_are_refused_in_one_clear_line(stream: str) -> None:
    with pytest.raises(InconsistentError) as caught:
        keys.encode_stream(stream)
    text = str(caught.value)
    assert "can't be used" in text
    assert "expected" in text
    assert "\n" not in text
    assert len(text) < 600


@pytest.mark.parametrize("encoded", ["a%2fb", "%41", "a%2", "a b", "%ff", "a/%2e", "a//b", "manifest", "_a", ""])
def test_only_the_one_encoding_of_a_name_decodes(encoded: str) -> None:
    with pytest.raises(InconsistentError):
        keys.decode_stream(encoded)


@settings(max_examples=200)
@given(st.text(max_size=40))
def test_every_encodable_name_round_trips_as_ascii(stream: str) -> None:
    try:
        encoded = keys.encode_stream(stream)
    except FormatError:
        return
    assert keys.decode_stream(encoded) == stream
    assert encoded.isascii()
    assert all(level.strip(".") for level in encoded.split("/"))
    assert not encoded.startswith(("/", "_"))


OBJECTS = [
    ("", None, False, "11111111-1111-4111-8000-0000000003e9"),
    ("", None, True, "11111111-1111-4111-8000-0000000003e9-index"),
    ("", 1001, False, "11111111-1111-4111-8000-0000000003e9-ledger-1001"),
    ("", 0, True, "11111111-1111-4111-8000-0000000003e9-ledger-0-index"),
    ("t/n s", 7, True, "t/n%20s/11111111-1111-4111-8000-0000000003e9-ledger-7-index"),
    ("t/n", 2**63 - 1, False, "t/n/11111111-1111-4111-8000-0000000003e9-ledger-9223372036854775807"),
]


@pytest.mark.parametrize(("stream", "ledger_id", "is_index", "key"), OBJECTS)
def test_object_keys_build_and_parse(stream: str, ledger_id: int | None, is_index: bool, key: str) -> None:
    build = keys.index_key if is_index else keys.data_key
    assert build(stream, UUID_A, ledger_id) == key
    assert keys.parse_object_key(key, stream) == keys.ObjectKey(stream, UUID_A, ledger_id, is_index)


@pytest.mark.parametrize(
    "key",
    [
        "", "-index", "-ledger-7", "orders", "s", "s/", "s/manifest/x/boundary", f"s/leases/{UUID_A}", f"{UUID_A}",
        f"s/{str(UUID_A).upper()}", f"s/{UUID_A}-ledger-", f"s/{UUID_A}-ledger-x", f"s/{UUID_A}-ledger-07",
        f"s/{UUID_A}-ledger--1", f"s/{UUID_A}-ledger-9223372036854775808", f"s/{UUID_A}-index-index",
        f"s/{UUID_A}.tmp", f"s/t/{UUID_A}", f"s2/{UUID_A}", f"s/{UUID_A}\n", f"s/{UUID_A}-ledger-7-ledger-8",
    ],
)  # fmt: skip
def test_other_keys_are_no_objects_of_the_stream(key: str) -> None:
    assert keys.parse_object_key(key, "s") is None


def test_manifest_keys() -> None:
    folder = f"t/n/manifest/{INCARNATION}/"
    assert keys.manifest_prefix("t/n", INCARNATION) == folder
    assert keys.record_key("t/n", INCARNATION, 42) == folder + "00000000000000000042.json"
    assert keys.checkpoint_key("t/n", INCARNATION, 40) == folder + "00000000000000000040.checkpoint.parquet"
    assert keys.boundary_key("t/n", INCARNATION) == folder + "boundary"
    assert keys.CATALOG_PREFIX == "_catalog/"
    assert keys.record_number(keys.record_key("t/n", INCARNATION, 42)) == 42
    for key in (folder + "boundary", keys.checkpoint_key("t/n", INCARNATION, 40), folder + "42.json"):
        assert keys.record_number(key) is None
    assert keys.record_key("s", INCARNATION, 9) < keys.record_key("s", INCARNATION, 10**18)


def test_a_key_outside_the_catalogue_names_no_stream() -> None:
    with pytest.raises(InconsistentError):
        keys.stream_of_catalog_key("catalog/x")


@settings(max_examples=100)
@given(st.uuids(), st.uuids(), st.integers(0, 2**64 - 1), st.integers(0, 127))
def test_segment_uuids_prove_their_incarnation(one: UUID, other: UUID, bits: int, flipped: int) -> None:
    uuid = keys.new_segment_uuid(one, bits)
    assert uuid.version == 8
    assert uuid.variant == "specified in RFC 4122"
    assert keys.is_segment_uuid_of(uuid, one)
    assert one == other or not keys.is_segment_uuid_of(uuid, other)
    assert not keys.is_segment_uuid_of(UUID(int=uuid.int ^ 1 << flipped), one)


def test_foreign_uuids_are_not_of_the_incarnation() -> None:
    assert not keys.is_segment_uuid_of(UUID_A, INCARNATION)
    assert keys.new_segment_uuid(INCARNATION, 1) != keys.new_segment_uuid(INCARNATION, 2)


def test_the_uuid_of_known_bits_never_changes() -> None:
    """Written keys stay provable in every later release."""
    assert keys.new_segment_uuid(INCARNATION, 0x0123456789ABCDEF) == UUID("01234567-89ab-8cde-bf1a-17b083c58eac")


@pytest.mark.parametrize("bits", [-1, 2**64])
def test_random_bits_of_a_uuid_are_64(bits: int) -> None:
    with pytest.raises(InconsistentError):
        keys.new_segment_uuid(INCARNATION, bits)


def test_object_metadata_carries_pulsars_names_and_our_marker() -> None:
    metadata = keys.object_metadata(
        role="index", stream="t/ü", format_version=2, software_version="0.1.0", incarnation=INCARNATION, epoch=3
    )
    assert metadata == {
        "role": "index",
        "managedledgername": "t/%C3%BC",
        "s3managedledgeroffloaderformatversion": "2",
        "s3managedledgeroffloadersoftwareversion": "0.1.0",
        "offloaderincarnation": str(INCARNATION),
        "offloaderepoch": "3",
    }
    assert keys.check_object_version(metadata, "x") == 2
    assert object_owner(metadata) == ObjectOwner(INCARNATION, 3)
    assert object_owner({name.upper(): value for name, value in metadata.items()}) == ObjectOwner(INCARNATION, 3)


@pytest.mark.parametrize("damaged", [{}, {"offloaderincarnation": "x", "offloaderepoch": "3"}, {"offloaderepoch": "1"}])
def test_an_object_without_our_marker_has_no_owner(damaged: dict[str, str]) -> None:
    assert object_owner(damaged) is None


@pytest.mark.parametrize("found", [None, "", "0", "3", "1.0", " 1", "01"])
def test_an_object_of_another_format_version_is_refused(found: str | None) -> None:
    metadata = {} if found is None else {"S3ManagedLedgerOffloaderFormatVersion": found}
    with pytest.raises(UnsupportedVersionError, match="invalid object version in thing"):
        keys.check_object_version(metadata, "thing")
    assert keys.check_object_version({"S3ManagedLedgerOffloaderFormatVersion": "1"}, "thing") == 1
