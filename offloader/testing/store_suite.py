"""Obligations of every object store, as tests.

``raw_put`` and ``raw_get`` bypass the store under test, so that an equally broken read can't hide a broken write.

Needs pytest. A run: ``class TestMine(StoreSuite)`` with a fixture ``store`` (an empty root for each test), ``raw_put``
and ``raw_get``, and class attributes where the store differs.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar, Literal

import pytest

from formats.checksum import crc32c
from formats.entries import Pieces
from offloader.errors import InvalidCall, NotFound, PreconditionFailed
from offloader.store.base import CREATE, OVERWRITE, ByteRange, IfMatch, ObjectStore
from offloader.store.probe import PROBE_PREFIX, probe_conditional_puts
from offloader.testing.range_suite import RangeSuite

__all__ = ["ODD_KEYS", "StoreSuite", "all_keys"]

#: For threads that start together.
PATIENCE_S = 120.0
#: Keys that a faulty client or server mangles.
ODD_KEYS = (
    "with space/and two  spaces",
    "per%cent/%2F/%25",
    "plus+plus/a+b",
    "ünïcödé/日本/🙂",
    'quote\'/"double"/<tag>&amp;',
    "semi;colon/que?stion/ha#sh",
    "tilde~/star*/par(en)/[br]",
    "public/default/persistent/orders-partition-0/00000000-0000-4000-8000-000000000001-ledger-7-index",
)


def all_keys(store: ObjectStore, prefix: str = "", limit: int = 1000) -> list[str]:
    """Every key below ``prefix``, page by page."""
    keys: list[str] = []
    after: str | None = ""
    while after is not None:
        page = store.list(prefix, after=after, limit=limit)
        keys += [info.key for info in page.objects]
        after = page.next_after
    return keys


class StoreSuite(RangeSuite):
    """See the module."""

    #: Whether a delete obeys If-Match, or removes any object (MinIO).
    delete_conditions: Literal["kept", "ignored"] = "kept"
    #: Whether ``a`` and ``a/b`` can both be objects: ``kept``; ``refused``; or ``unlisted``, where both are kept and a
    #: listing omits the second (MinIO). Don't rely on it.
    nested_keys: Literal["kept", "refused", "unlisted"] = "kept"
    #: Whether ``head`` returns the put's CRC-32C.
    keeps_crc32c: bool = True
    #: Objects in the test of several pages.
    many_keys: ClassVar[int] = 1050

    # -- put and get

    @pytest.mark.parametrize("body", [b"", b"x", bytes(range(256)) * 1000])
    def test_put_writes_exactly_the_bytes(self, store: ObjectStore, body: bytes) -> None:
        info = store.put("a/b", body)
        assert self.raw_get(store, "a/b") == body
        assert (info.key, info.size_bytes) == ("a/b", len(body))
        assert info.etag

    @pytest.mark.parametrize("body", [b"", b"x", bytes(range(256)) * 1000])
    def test_get_reads_exactly_the_bytes(self, store: ObjectStore, body: bytes) -> None:
        self.raw_put(store, "a/b", body)
        found, info = store.get("a/b")
        assert found == body
        assert isinstance(found, bytes)
        assert (info.key, info.size_bytes) == ("a/b", len(body))
        head = store.head("a/b")
        assert (head.size_bytes, head.etag, head.modified_ms) == (info.size_bytes, info.etag, info.modified_ms)
        assert info.modified_ms > 0

    @pytest.mark.parametrize(
        "wrap",
        [bytes, bytearray, lambda body: memoryview(bytearray(body)), lambda body: Pieces([body[:5], body[5:]])],
        ids=["bytes", "bytearray", "memoryview", "pieces"],
    )
    @pytest.mark.parametrize("size", [0, 7, 700_001])
    def test_bodies_may_be_bytes_in_one_place_or_in_several(self, store: ObjectStore, wrap: object, size: int) -> None:
        body = (b"0123456789" * (size // 10 + 1))[:size]
        given = wrap(body)  # type: ignore[operator]
        store.put("k", given, crc32c=crc32c(body))
        assert self.raw_get(store, "k") == body
        assert given == body

    def test_a_body_may_be_a_slice_of_a_larger_buffer(self, store: ObjectStore) -> None:
        buffer = bytearray(b"abcdefgh" * 100_000)
        store.put("k", memoryview(buffer)[3:500_000])
        assert self.raw_get(store, "k") == bytes(buffer[3:500_000])

    def test_a_body_of_changed_bytes_is_refused_and_nothing_is_written(self, store: ObjectStore) -> None:
        with pytest.raises(InvalidCall, match="CRC-32C"):
            store.put("k", b"body", crc32c=crc32c(b"other"))
        assert self.raw_get(store, "k") is None

    def test_what_is_not_there_is_not_found(self, store: ObjectStore) -> None:
        self.raw_put(store, "there", b"x")
        with pytest.raises(NotFound):
            store.get("absent")
        with pytest.raises(NotFound):
            store.get("absent", ByteRange(0, 1))
        with pytest.raises(NotFound):
            store.get("absent", ByteRange(1, 1))
        with pytest.raises(NotFound):
            store.head("absent")
        with pytest.raises(NotFound):
            store.head("ther")

    def test_metadata_comes_back_in_lower_case(self, store: ObjectStore) -> None:
        given = {"S3ManagedLedgerOffloaderFormatVersion": "1", "plain": "two words", "empty": ""}
        expected = {key.lower(): value for key, value in given.items()}
        store.put("k", b"x", metadata=given)
        assert store.head("k").metadata == expected
        assert store.get("k")[1].metadata == expected
        store.put("k", b"y")
        assert store.head("k").metadata == {}

    @pytest.mark.parametrize("metadata", [{"k": "ümlaut"}, {"k": " space"}, {"k": "a\nb"}, {"a b": "c"}, {"": "c"}])
    def test_metadata_that_no_header_can_carry_is_refused(self, store: ObjectStore, metadata: dict[str, str]) -> None:
        with pytest.raises(InvalidCall):
            store.put("k", b"x", metadata=metadata)
        assert self.raw_get(store, "k") is None

    def test_the_checksum_is_kept(self, store: ObjectStore) -> None:
        store.put("k", b"body", crc32c=crc32c(b"body"))
        kept = store.head("k").crc32c
        assert kept == crc32c(b"body") or (kept is None and not self.keeps_crc32c)

    @pytest.mark.parametrize("key", ODD_KEYS)
    def test_odd_keys_are_kept_as_they_are(self, store: ObjectStore, key: str) -> None:
        store.put(key, b"odd")
        assert self.raw_get(store, key) == b"odd"
        assert store.get(key)[0] == b"odd"
        assert all_keys(store) == [key]
        assert store.delete([key]) in ([], ())
        assert self.raw_get(store, key) is None

    @pytest.mark.parametrize(
        "key", ["", "/a", "a//b", "a/", ".", "a/../b", "a/./b", "a\nb", "a\0b", "x" * 1025, "\ud800"]
    )
    def test_keys_that_some_store_could_not_hold_are_refused(self, store: ObjectStore, key: str) -> None:
        for call in (lambda: store.put(key, b""), lambda: store.get(key), lambda: store.head(key)):
            with pytest.raises(InvalidCall):
                call()
        with pytest.raises(InvalidCall):
            store.delete([key])
        with pytest.raises(InvalidCall):
            store.begin_upload(key)
        assert all_keys(store) == []

    def test_a_key_may_continue_another_or_says_that_it_cannot(self, store: ObjectStore) -> None:
        store.put("a", b"1")
        if self.nested_keys == "refused":
            with pytest.raises(InvalidCall):
                store.put("a/b", b"2")
        else:
            store.put("a/b", b"2")
            assert self.raw_get(store, "a/b") == b"2"
        assert self.raw_get(store, "a") == b"1"
        assert all_keys(store) == (["a", "a/b"] if self.nested_keys == "kept" else ["a"])

    def test_the_beginning_of_a_key_is_no_object(self, store: ObjectStore) -> None:
        self.raw_put(store, "a/b/c", b"1")
        for key in ("a", "a/b"):
            with pytest.raises(NotFound):
                store.get(key)
            with pytest.raises(NotFound):
                store.head(key)

    # -- conditions

    def test_create_refuses_what_is_there(self, store: ObjectStore) -> None:
        store.put("k", b"first", mode=CREATE)
        with pytest.raises(PreconditionFailed):
            store.put("k", b"second", mode=CREATE)
        assert self.raw_get(store, "k") == b"first"

    def test_create_refuses_what_others_wrote(self, store: ObjectStore) -> None:
        self.raw_put(store, "k", b"")
        with pytest.raises(PreconditionFailed):
            store.put("k", b"second", mode=CREATE)

    def test_create_works_again_after_a_delete(self, store: ObjectStore) -> None:
        store.put("k", b"first", mode=CREATE)
        store.delete(["k"])
        store.put("k", b"second", mode=CREATE)
        assert self.raw_get(store, "k") == b"second"

    def test_if_match_replaces_only_the_version_it_names(self, store: ObjectStore) -> None:
        first = store.put("k", b"first").etag
        second = store.put("k", b"second", mode=IfMatch(first)).etag
        assert second != first
        with pytest.raises(PreconditionFailed):
            store.put("k", b"third", mode=IfMatch(first))
        assert self.raw_get(store, "k") == b"second"
        assert store.head("k").etag == second

    def test_if_match_takes_the_etag_of_head_get_and_list(self, store: ObjectStore) -> None:
        store.put("k", b"0")
        store.put("k", b"1", mode=IfMatch(store.head("k").etag))
        store.put("k", b"2", mode=IfMatch(store.get("k")[1].etag))
        store.put("k", b"3", mode=IfMatch(store.list("k").objects[0].etag))
        assert self.raw_get(store, "k") == b"3"

    def test_if_match_on_an_absent_key_fails(self, store: ObjectStore) -> None:
        etag = store.put("k", b"first").etag
        store.delete(["k"])
        with pytest.raises(PreconditionFailed):
            store.put("k", b"second", mode=IfMatch(etag))
        assert self.raw_get(store, "k") is None

    def test_of_creators_at_once_exactly_one_wins(self, store: ObjectStore) -> None:
        for number in range(5):
            key = f"race-{number}"
            won = _race(4, lambda body, key=key: store.put(key, body, mode=CREATE))
            assert len(won) == 1
            assert self.raw_get(store, key) == won[0]

    def test_of_replacers_at_once_exactly_one_wins(self, store: ObjectStore) -> None:
        etag = store.put("k", b"start").etag
        for _ in range(3):
            current = etag
            won = _race(3, lambda body, current=current: store.put("k", body, mode=IfMatch(current)))
            assert len(won) == 1
            assert self.raw_get(store, "k") == won[0]
            etag = store.put("k", b"start again", mode=OVERWRITE).etag

    def test_the_start_up_probe_accepts_the_store_and_leaves_nothing(self, store: ObjectStore) -> None:
        result = probe_conditional_puts(store, rounds=3)
        assert result.problems == ()
        assert result.conditional
        assert all_keys(store, PROBE_PREFIX) == []

    # -- list

    def test_a_listing_is_in_the_order_of_the_bytes_and_by_prefix(self, store: ObjectStore) -> None:
        keys = ["a-b", "a/1", "a/b/c", "a/b/d", "a0", "b", "é", "日"]
        for key in reversed(keys):
            self.raw_put(store, key, b"x")
        assert all_keys(store) == keys
        assert all_keys(store, "a/") == ["a/1", "a/b/c", "a/b/d"]
        assert all_keys(store, "a/b") == ["a/b/c", "a/b/d"]
        assert all_keys(store, "a") == keys[:5]
        assert all_keys(store, "a/b/c") == ["a/b/c"]
        assert all_keys(store, "nothing") == []

    @pytest.mark.parametrize("limit", [1, 2, 3, 5])
    def test_pages_continue_where_the_last_one_ended(self, store: ObjectStore, limit: int) -> None:
        keys = ["a-b", "a/1", "a/b/c", "a0", "b"]
        for key in keys:
            self.raw_put(store, key, b"x")
        assert all_keys(store, limit=limit) == keys
        assert len(store.list("", limit=limit).objects) == limit
        assert [info.key for info in store.list("", after="a/1").objects] == keys[2:]
        assert [info.key for info in store.list("", after="a/2").objects] == keys[2:]
        assert store.list("a/", after="b").objects == ()

    def test_a_listing_tells_sizes_and_etags(self, store: ObjectStore) -> None:
        store.put("k", b"12345", metadata={"a": "b"})
        (info,) = store.list("").objects
        head = store.head("k")
        assert (info.key, info.size_bytes, info.etag) == ("k", 5, head.etag)
        assert info.metadata == {}
        assert info.crc32c is None

    def test_more_keys_than_a_page_are_listed_and_deleted(self, store: ObjectStore) -> None:
        keys = [f"many/{number:05d}" for number in range(self.many_keys)]
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda key: store.put(key, b""), keys))
        assert all_keys(store) == keys
        assert list(store.delete([*keys, "absent"])) == []
        assert all_keys(store) == []

    @pytest.mark.parametrize(
        ("prefix", "limit"), [("/a", 10), ("", 0), ("../", 9), ("./", 9), ("a/../", 9), ("a//", 9)]
    )
    def test_a_listing_of_nothing_sensible_is_refused(self, store: ObjectStore, prefix: str, limit: int) -> None:
        self.raw_put(store, "a/b", b"x")
        with pytest.raises(InvalidCall):
            store.list(prefix, limit=limit)
        if limit > 0:
            with pytest.raises(InvalidCall):
                store.list_uploads(prefix)

    # -- delete

    def test_delete_removes_exactly_what_was_named(self, store: ObjectStore) -> None:
        for key in ("d/1", "d/2", "d/3"):
            self.raw_put(store, key, b"x")
        assert list(store.delete(["d/1", "d/3", "d/absent", "d/1"])) == []
        assert all_keys(store) == ["d/2"]
        assert self.raw_get(store, "d/1") is None

    def test_deleting_nothing_is_fine_and_a_single_text_is_refused(self, store: ObjectStore) -> None:
        self.raw_put(store, "k", b"x")
        assert list(store.delete([])) == []
        with pytest.raises(InvalidCall):
            store.delete("k")
        assert self.raw_get(store, "k") == b"x"

    def test_a_version_is_deleted_if_it_is_the_one_that_was_meant(self, store: ObjectStore) -> None:
        old = store.put("k", b"first").etag
        new = store.put("k", b"second", mode=IfMatch(old)).etag
        if self.delete_conditions == "kept":
            with pytest.raises(PreconditionFailed):
                store.delete_if_match("k", old)
            assert self.raw_get(store, "k") == b"second"
        store.delete_if_match("k", new)
        assert self.raw_get(store, "k") is None
        store.delete_if_match("k", new)
        with pytest.raises(InvalidCall):
            store.delete_if_match("k", "")

    # -- the rest

    def test_the_store_says_where_it_is(self, store: ObjectStore) -> None:
        names = {"managedLedgerOffloadDriver", "bucket", "region", "serviceEndpoint"}
        assert set(store.driver_metadata) == names
        assert "://" in store.url

    def test_threads_share_a_store(self, store: ObjectStore) -> None:
        def work(number: int) -> bytes:
            store.put(f"t/{number}", str(number).encode())
            return store.get(f"t/{number}")[0]

        with ThreadPoolExecutor(8) as threads:
            assert list(threads.map(work, range(40))) == [str(number).encode() for number in range(40)]

    def test_closing_twice_is_fine(self, store: ObjectStore) -> None:
        store.close()
        store.close()


def _race(racers: int, write: object) -> list[bytes]:
    """The bodies of the writers whose put succeeded."""
    start = threading.Barrier(racers)

    def run(body: bytes) -> bytes | None:
        start.wait(PATIENCE_S)
        try:
            write(body)  # type: ignore[operator]
        except PreconditionFailed:
            return None
        return body

    with ThreadPoolExecutor(racers) as threads:
        found = list(threads.map(run, [f"racer {number}".encode() for number in range(racers)]))
    return [body for body in found if body is not None]
