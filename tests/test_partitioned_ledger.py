"""Topics with partitions over an embedded ledger database: the partition of a key, order, limits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import offloader
from offloader.errors import InvalidCallError, LimitReachedError
from offloader.partitioned_ledger import java_string_hash, murmur3_hash
from offloader.settings import Settings

TOPIC = "persistent://shop/eu/orders"
KEYS = [f"customer-{number}" for number in range(20)]


@pytest.fixture
def stream(tmp_path: Path) -> Iterator[offloader.Stream]:
    store = offloader.open_store(f"file://{tmp_path}/store", create=True)
    yield store.stream(TOPIC)
    store.close()


@pytest.fixture
def database(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/ledgers.db"


@pytest.mark.parametrize(
    ("key", "java", "murmur3"),
    [
        ("", 0, 0),
        ("a", 97, 0x3C2569B2),
        ("hello", 99162322, 0x248BFA47),
        ("hello world", 1794106052, 0x5E928F0F),
        ("customer-0", 566298113, 0x5C816725),
        ("ÄÖÜ", 195210, 0x7B1825F1),
        ("\N{GRINNING FACE}", 1772899, 0x3EB42EFA),
        # Negative in Java: the sign goes.
        ("The quick brown fox jumps over the lazy dog", -609428141 & 0x7FFFFFFF, 0x2E4FF723),
    ],
)
def test_hashes_are_those_of_pulsars_java_client(key: str, java: int, murmur3: int) -> None:
    """The values are those of ``JavaStringHash`` and ``Murmur3Hash32`` of its release 4.0.7."""
    assert java_string_hash(key) == java
    assert murmur3_hash(key) == murmur3


@pytest.mark.slow
def test_entries_of_a_key_are_in_one_partition_and_in_order(stream: offloader.Stream, database: str) -> None:
    with stream.open_partitions(database, 3) as topic:
        for turn in range(3):
            topic.append_batch([f"{key} {turn}".encode() for key in KEYS], KEYS)
        number, _ = topic.append(b"customer-0 3", "customer-0")
        assert number == java_string_hash("customer-0") % 3 == topic.partition_of("customer-0")
        ends = topic.offload()
    assert [*ends] == [0, 1, 2]
    assert stream.partitions() == [f"shop/eu/persistent/orders-partition-{number}" for number in range(3)]
    found = defaultdict[str, list[tuple[int, int]]](list)
    for number, name in enumerate(stream.partitions()):
        for payload in offloader.Stream(stream.objects, name).scan().to_table()["payload"].to_pylist():
            key, _, turn = payload.decode().partition(" ")
            found[key].append((number, int(turn)))
    assert sorted(found) == sorted(KEYS)
    for key, rows in found.items():
        turns = 4 if key == "customer-0" else 3
        assert rows == [(java_string_hash(key) % 3, turn) for turn in range(turns)]


@pytest.mark.slow
def test_murmur3_is_a_choice_and_more_partitions_may_follow(stream: offloader.Stream, database: str) -> None:
    with stream.open_partitions(database, 2, hashing="murmur3") as topic:
        assert topic.append(b"one", "hello")[0] == 0x248BFA47 % 2
        topic.offload()
    with stream.open_partitions(database, 4, hashing="murmur3") as topic:
        assert topic.append(b"two", "hello")[0] == 0x248BFA47 % 4
        topic.offload()
    assert sum(offloader.Stream(stream.objects, name).scan().count() for name in stream.partitions()) == 2


@pytest.mark.slow
def test_fewer_partitions_and_unknown_hashes_are_refused(
    stream: offloader.Stream, database: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidCallError, match="0 partitions"):
        stream.open_partitions(database, 0)
    with pytest.raises(InvalidCallError, match="unknown hash 'md5'"):
        stream.open_partitions(database, 2, hashing="md5")  # type: ignore[arg-type]
    assert not (tmp_path / "ledgers.db").exists()
    stream.open_partitions(database, 3).close()
    with pytest.raises(InvalidCallError, match="2 partitions, but the store has 3"):
        stream.open_partitions(database, 2)


@pytest.mark.slow
def test_fewer_partitions_than_the_database_has_are_refused_without_offloading(
    stream: offloader.Stream, database: str
) -> None:
    settings = Settings.of({"offload": {"method": "none"}})
    stream.open_partitions(database, 3, settings=settings).close()
    with pytest.raises(InvalidCallError, match="2 partitions, but the ledger database has 3"):
        stream.open_partitions(database, 2, settings=settings)
    stream.open_partitions(database, 3, settings=settings).close()


@pytest.mark.slow
def test_refused_batch_names_the_partitions_that_have_their_entries(stream: offloader.Stream, database: str) -> None:
    settings = Settings.of({"offload": {"entry_size_max": 100}})
    with stream.open_partitions(database, 2, settings=settings) as topic:
        low, high = (next(key for key in KEYS if topic.partition_of(key) == number) for number in (0, 1))
        with pytest.raises(InvalidCallError, match="2 entries and 1 keys"):
            topic.append_batch([b"", b""], ["a"])
        with pytest.raises(LimitReachedError) as caught:
            topic.append_batch([b"small", b"large" * 100], [low, high])
        assert caught.value.__notes__ == ["appended in this call: the entries of partitions [0]"]
        assert [each.offload() is None for each in topic.partitions] == [False, True]
