"""Obligations of every object store, as tests.

``raw_put`` and ``raw_get`` bypass the store under test, so that an equally broken read can't hide a broken write.

Needs pytest. A run: ``class TestMine(StoreSuite)`` with a fixture ``store`` (an empty root for each test), ``raw_put``
and ``raw_get``, and class attributes where the store differs.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, Literal

import pytest

from formats.checksum import crc32c
from formats.entries import Pieces
from offloader.errors import (
    InvalidCallError,
    NotFoundError,
    OffloaderError,
    OutcomeUnknownError,
    PreconditionFailedError,
    needs_extra,
)
from offloader.store.base import CREATE, OVERWRITE, PROBE_PREFIX, ByteRange, IfMatch, ObjectStore, PartInfo
from offloader.store.probe import probe_conditional_puts

with needs_extra("cli", "the suite of stores"):
    import urllib3

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


class KeptBody:
    """A receiver that keeps the body and overwrites the memory it was received in. ``begun`` counts bodies."""

    def __init__(self, room_bytes: int = 7) -> None:
        self._memory = bytearray(room_bytes)
        self.body = b""
        self.begun = 0

    @property
    def received_bytes(self) -> int:
        return len(self.body)

    def begin(self) -> None:
        self.body = b""
        self.begun += 1

    def room(self) -> memoryview:
        return memoryview(self._memory)

    def came(self, count: int) -> None:
        assert 0 < count <= len(self._memory)
        self.body += self._memory[:count]
        self._memory[:] = b"\xee" * len(self._memory)


class StoreSuite:
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
    #: Whether ``list_uploads`` finds uploads by a key prefix; every store finds the exact key.
    uploads_by_prefix: bool = True
    #: Smallest part except the last one.
    part_bytes_min: ClassVar[int] = 1
    #: Whether two concurrent uploads of one key can both complete, one after the other; if not (Azure), the first
    #: completion ends the other upload.
    uploads_side_by_side: bool = True
    #: Whether ``list_parts`` returns the parts' CRC-32C.
    keeps_part_crc32c: bool = True
    #: Whether the store signs URLs with the credentials that it has here.
    signs_urls: bool = False
    #: Whether the server looks at signatures.
    checks_signatures: bool = True

    @pytest.fixture
    def store(self) -> Iterator[ObjectStore]:
        """An empty root for each test."""
        raise NotImplementedError

    def raw_put(self, store: ObjectStore, key: str, body: bytes) -> None:
        """Writes an object without the store under test."""
        raise NotImplementedError

    def raw_get(self, store: ObjectStore, key: str) -> bytes | None:
        """Reads an object without the store under test; ``None`` if it doesn't exist."""
        raise NotImplementedError

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
        with pytest.raises(InvalidCallError, match="CRC-32C"):
            store.put("k", b"body", crc32c=crc32c(b"other"))
        assert self.raw_get(store, "k") is None

    def test_what_is_not_there_is_not_found(self, store: ObjectStore) -> None:
        self.raw_put(store, "there", b"x")
        _fails(NotFoundError, store.get, "absent")
        _fails(NotFoundError, store.get, "absent", ByteRange(0, 1))
        _fails(NotFoundError, store.get, "absent", ByteRange(1, 1))
        _fails(NotFoundError, store.head, "absent")
        _fails(NotFoundError, store.head, "ther")

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
        _fails(InvalidCallError, store.put, "k", b"x", metadata=metadata)
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
        for call in (store.get, store.head, store.begin_upload):
            _fails(InvalidCallError, call, key)
        _fails(InvalidCallError, store.put, key, b"")
        _fails(InvalidCallError, store.delete, [key])
        assert all_keys(store) == []

    def test_a_key_may_continue_another_or_says_that_it_cannot(self, store: ObjectStore) -> None:
        store.put("a", b"1")
        if self.nested_keys == "refused":
            _fails(InvalidCallError, store.put, "a/b", b"2")
        else:
            store.put("a/b", b"2")
            assert self.raw_get(store, "a/b") == b"2"
        assert self.raw_get(store, "a") == b"1"
        assert all_keys(store) == (["a", "a/b"] if self.nested_keys == "kept" else ["a"])

    def test_the_beginning_of_a_key_is_no_object(self, store: ObjectStore) -> None:
        self.raw_put(store, "a/b/c", b"1")
        for key in ("a", "a/b"):
            _fails(NotFoundError, store.get, key)
            _fails(NotFoundError, store.head, key)

    @pytest.mark.parametrize(
        ("start", "stop", "expected"),
        [
            (0, 10, b"0123456789"),
            (0, 1, b"0"),
            (3, 7, b"3456"),
            (9, 10, b"9"),
            (8, 100, b"89"),
            (10, 20, b""),
            (11, 12, b""),
            (5, 5, b""),
            (0, 0, b""),
        ],
    )
    def test_a_range_is_cut_at_the_end(self, store: ObjectStore, start: int, stop: int, expected: bytes) -> None:
        self.raw_put(store, "k", b"0123456789")
        found, info = store.get("k", ByteRange(start, stop))
        assert (found, info.size_bytes, info.etag) == (expected, 10, store.head("k").etag)

    def test_a_range_of_an_empty_object_is_empty(self, store: ObjectStore) -> None:
        self.raw_put(store, "k", b"")
        found, info = store.get("k", ByteRange(0, 5))
        assert (found, info.size_bytes) == (b"", 0)

    @pytest.mark.parametrize("byte_range", [ByteRange(-1, 3), ByteRange(3, 2)])
    def test_a_range_that_is_none_is_refused(self, store: ObjectStore, byte_range: ByteRange) -> None:
        self.raw_put(store, "k", b"0123456789")
        _fails(InvalidCallError, store.get, "k", byte_range)

    @pytest.mark.parametrize(("start", "stop"), [(0, 100), (0, 1), (3, 58), (99, 100), (7, 7), (90, 101), (100, 120)])
    def test_a_body_is_received_as_a_whole_or_answered_as_a_whole(
        self, store: ObjectStore, start: int, stop: int
    ) -> None:
        body = bytes(range(100, 200))
        self.raw_put(store, "k", body)
        into = KeptBody()
        found, info = store.get("k", ByteRange(start, stop), into=into)
        assert found + into.body == body[start:stop]
        assert not found or not into.body
        assert (info.size_bytes, info.etag) == (100, store.head("k").etag)

    def test_a_whole_object_is_answered_though_somebody_would_receive_it(self, store: ObjectStore) -> None:
        self.raw_put(store, "k", b"0123456789")
        into = KeptBody()
        assert store.get("k", into=into)[0] == b"0123456789"
        assert into.body == b""

    def test_who_received_a_body_may_receive_the_next_one(self, store: ObjectStore) -> None:
        self.raw_put(store, "k", b"0123456789")
        into = KeptBody()
        for start, stop in ((0, 8), (2, 10), (1, 4)):
            found, _ = store.get("k", ByteRange(start, stop), into=into)
            assert found + into.body == b"0123456789"[start:stop]
        _fails(NotFoundError, store.get, "absent", ByteRange(0, 8), into=into)

    def test_create_refuses_what_is_there(self, store: ObjectStore) -> None:
        store.put("k", b"first", mode=CREATE)
        _fails(PreconditionFailedError, store.put, "k", b"second", mode=CREATE)
        assert self.raw_get(store, "k") == b"first"

    def test_create_refuses_what_others_wrote(self, store: ObjectStore) -> None:
        self.raw_put(store, "k", b"")
        _fails(PreconditionFailedError, store.put, "k", b"second", mode=CREATE)

    def test_create_works_again_after_a_delete(self, store: ObjectStore) -> None:
        store.put("k", b"first", mode=CREATE)
        store.delete(["k"])
        store.put("k", b"second", mode=CREATE)
        assert self.raw_get(store, "k") == b"second"

    def test_if_match_replaces_only_the_version_it_names(self, store: ObjectStore) -> None:
        first = store.put("k", b"first").etag
        second = store.put("k", b"second", mode=IfMatch(first)).etag
        assert second != first
        _fails(PreconditionFailedError, store.put, "k", b"third", mode=IfMatch(first))
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
        _fails(PreconditionFailedError, store.put, "k", b"second", mode=IfMatch(etag))
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
        assert (info.key, info.size_bytes, info.etag) == ("k", 5, store.head("k").etag)
        assert (info.metadata, info.crc32c) == ({}, None)

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
        _fails(InvalidCallError, store.list, prefix, limit=limit)
        if limit > 0:
            _fails(InvalidCallError, store.list_uploads, prefix)

    def test_delete_removes_exactly_what_was_named(self, store: ObjectStore) -> None:
        for key in ("d/1", "d/2", "d/3"):
            self.raw_put(store, key, b"x")
        assert list(store.delete(["d/1", "d/3", "d/absent", "d/1"])) == []
        assert all_keys(store) == ["d/2"]
        assert self.raw_get(store, "d/1") is None

    def test_deleting_nothing_is_fine_and_a_single_text_is_refused(self, store: ObjectStore) -> None:
        self.raw_put(store, "k", b"x")
        assert list(store.delete([])) == []
        _fails(InvalidCallError, store.delete, "k")
        assert self.raw_get(store, "k") == b"x"

    def test_a_version_is_deleted_if_it_is_the_one_that_was_meant(self, store: ObjectStore) -> None:
        old = store.put("k", b"first").etag
        new = store.put("k", b"second", mode=IfMatch(old)).etag
        if self.delete_conditions == "kept":
            _fails(PreconditionFailedError, store.delete_if_match, "k", old)
            assert self.raw_get(store, "k") == b"second"
        store.delete_if_match("k", new)
        assert self.raw_get(store, "k") is None
        store.delete_if_match("k", new)
        _fails(InvalidCallError, store.delete_if_match, "k", "")

    def _upload(self, store: ObjectStore, key: str, upload_id: str, numbers: list[int]) -> list[PartInfo]:
        return [
            store.upload_part(key, upload_id, number, _part_body(number, self.part_bytes_min)) for number in numbers
        ]

    def _begun(self, store: ObjectStore, key: str, numbers: list[int]) -> tuple[str, list[PartInfo]]:
        """A new upload with parts of these numbers."""
        upload_id = store.begin_upload(key)
        return upload_id, self._upload(store, key, upload_id, numbers)

    def test_a_part_may_lie_in_several_pieces(self, store: ObjectStore) -> None:
        upload_id = store.begin_upload("m/k")
        body = _part_body(1, self.part_bytes_min)
        pieces = Pieces([body[:1], body[1:700_000], body[700_000:]])
        part = store.upload_part("m/k", upload_id, 1, pieces, crc32c=crc32c(body))
        store.complete_upload("m/k", upload_id, [part])
        assert self.raw_get(store, "m/k") == body

    def test_a_part_of_changed_bytes_is_refused(self, store: ObjectStore) -> None:
        upload_id = store.begin_upload("m/k")
        with pytest.raises(InvalidCallError, match="CRC-32C"):
            store.upload_part("m/k", upload_id, 1, _part_body(1, self.part_bytes_min), crc32c=crc32c(b"other"))

    def test_parts_become_the_object_in_order(self, store: ObjectStore) -> None:
        upload_id = store.begin_upload("m/k", metadata={"Kind": "data"})
        parts = self._upload(store, "m/k", upload_id, [3, 1, 2])
        assert self.raw_get(store, "m/k") is None
        info = store.complete_upload("m/k", upload_id, sorted(parts, key=lambda part: part.number))
        expected = b"".join(_part_body(number, self.part_bytes_min) for number in (1, 2, 3))
        assert self.raw_get(store, "m/k") == expected
        assert info.size_bytes == len(expected)
        head = store.head("m/k")
        assert head.metadata == {"kind": "data"}
        assert head.crc32c in (None, crc32c(expected))
        assert (info.etag, info.key) == (head.etag, "m/k")

    def test_part_numbers_may_have_gaps_and_repeats(self, store: ObjectStore) -> None:
        upload_id, _ = self._begun(store, "k", [2])
        store.complete_upload("k", upload_id, self._upload(store, "k", upload_id, [2, 10_000]))
        expected = _part_body(2, self.part_bytes_min) + _part_body(10_000, self.part_bytes_min)
        assert self.raw_get(store, "k") == expected

    def test_unfinished_uploads_and_their_parts_are_listed(self, store: ObjectStore) -> None:
        upload_id, parts = self._begun(store, "m/k", [1, 2])
        prefixes = ["m/k", "m/", ""] if self.uploads_by_prefix else ["m/k"]
        for prefix in prefixes:
            (upload,) = store.list_uploads(prefix)
            assert (upload.key, upload.upload_id) == ("m/k", upload_id)
            assert upload.started_ms > 0
        assert list(store.list_uploads("other")) == []
        listed = list(store.list_parts("m/k", upload_id))
        assert [(part.number, part.etag, part.size_bytes) for part in listed] == [
            (part.number, part.etag, part.size_bytes) for part in parts
        ]
        crcs = [part.crc32c for part in listed]
        assert crcs == [part.crc32c for part in parts] or (crcs == [-1, -1] and not self.keeps_part_crc32c)
        assert store.list("").objects == ()
        store.abort_upload("m/k", upload_id)

    def test_an_aborted_upload_is_gone(self, store: ObjectStore) -> None:
        upload_id, parts = self._begun(store, "k", [1])
        store.abort_upload("k", upload_id)
        store.abort_upload("k", upload_id)
        assert list(store.list_uploads("k")) == []
        _fails(NotFoundError, store.list_parts, "k", upload_id)
        _fails((NotFoundError, OutcomeUnknownError), self._upload, store, "k", upload_id, [2])
        _fails(OutcomeUnknownError, store.complete_upload, "k", upload_id, parts)
        assert self.raw_get(store, "k") is None

    def test_completing_twice_is_proven_or_unknown_and_harmless(self, store: ObjectStore) -> None:
        upload_id, parts = self._begun(store, "k", [1, 2])
        done = store.complete_upload("k", upload_id, parts)
        with contextlib.suppress(OutcomeUnknownError):
            again = store.complete_upload("k", upload_id, parts)
            assert (again.etag, again.size_bytes) == (done.etag, done.size_bytes)
        assert store.head("k").etag == done.etag

    def test_an_upload_that_never_was_does_not_pass_for_complete(self, store: ObjectStore) -> None:
        """versitygw answers 200 to any completion of an existing key."""
        upload_id, parts = self._begun(store, "k", [1, 2])
        done = store.complete_upload("k", upload_id, parts)
        for other in (parts[:1], [parts[1]]):
            _fails(OffloaderError, store.complete_upload, "k", upload_id, other)
        assert store.head("k").etag == done.etag

    def test_a_completion_with_a_wrong_part_changes_nothing(self, store: ObjectStore) -> None:
        upload_id, (part,) = self._begun(store, "k", [1])
        wrong = PartInfo(2, part.etag, part.size_bytes, part.crc32c)
        _fails((InvalidCallError, OutcomeUnknownError), store.complete_upload, "k", upload_id, [part, wrong])
        assert self.raw_get(store, "k") is None
        store.complete_upload("k", upload_id, [part])
        assert self.raw_get(store, "k") == _part_body(1, self.part_bytes_min)

    def test_completions_and_parts_that_make_no_sense_are_refused(self, store: ObjectStore) -> None:
        upload_id, (first, second) = self._begun(store, "k", [1, 2])
        for parts in ([], [second, first], [first, first]):
            _fails(InvalidCallError, store.complete_upload, "k", upload_id, parts)
        for number in (0, -1, 10_001):
            _fails(InvalidCallError, store.upload_part, "k", upload_id, number, b"x")
        with pytest.raises(InvalidCallError, match="CRC-32C"):
            store.upload_part("k", upload_id, 3, b"x", crc32c=crc32c(b"y"))
        store.abort_upload("k", upload_id)

    def test_two_uploads_of_one_key_do_not_mix(self, store: ObjectStore) -> None:
        first, second = store.begin_upload("k"), store.begin_upload("k")
        assert first != second
        parts = [store.upload_part("k", upload_id, 1, upload_id.encode()) for upload_id in (first, second)]
        store.complete_upload("k", first, parts[:1])
        assert self.raw_get(store, "k") == first.encode()
        if not self.uploads_side_by_side:
            _fails((InvalidCallError, OutcomeUnknownError), store.complete_upload, "k", second, parts[1:])
            assert self.raw_get(store, "k") == first.encode()
            return
        store.complete_upload("k", second, parts[1:])
        assert self.raw_get(store, "k") == second.encode()

    def test_an_upload_replaces_what_is_there(self, store: ObjectStore) -> None:
        self.raw_put(store, "k", b"old")
        upload_id, parts = self._begun(store, "k", [1])
        assert self.raw_get(store, "k") == b"old"
        store.complete_upload("k", upload_id, parts)
        assert self.raw_get(store, "k") == _part_body(1, self.part_bytes_min)

    @pytest.mark.parametrize("key", ["k", *ODD_KEYS])
    def test_a_signed_url_reads_the_object_and_nothing_else(self, store: ObjectStore, key: str) -> None:
        body = bytes(range(256)) * 10
        store.put(key, body)
        url = store.signed_url(key, 60)
        assert (url is not None) == self.signs_urls
        if url is None:
            return
        assert _fetched(url) == (200, body)
        assert _fetched(url, headers={"Range": "bytes=100-299"}) == (206, body[100:300])
        if self.checks_signatures:
            assert _fetched(url[:-4] + ("0000" if url[-4:] != "0000" else "1111"))[0] == 403
            assert _fetched(url, method="PUT", data=b"other")[0] in (400, 403)
            assert _fetched(url, method="DELETE")[0] in (400, 403)
        assert self.raw_get(store, key) == body
        assert url not in repr(store)

    @pytest.mark.parametrize("expires_s", [0, -1, 7 * 24 * 3600 + 1, float("nan")])
    def test_a_url_can_be_valid_for_seconds_up_to_a_week(self, store: ObjectStore, expires_s: float) -> None:
        _fails(InvalidCallError, store.signed_url, "k", expires_s)
        _fails(InvalidCallError, store.signed_url, "a//b", 60)

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


def _fails(
    error: type[Exception] | tuple[type[Exception], ...], call: Callable[..., object], *args: Any, **named: Any
) -> None:
    """The call raises such an error."""
    with pytest.raises(error):
        call(*args, **named)


def _fetched(
    url: str, *, method: str = "GET", headers: Mapping[str, str] | None = None, data: bytes | None = None
) -> tuple[int, bytes]:
    """Status and body of a plain HTTP request."""
    answer = urllib3.request(method, url, headers=headers, body=data, timeout=PATIENCE_S, retries=False)
    return answer.status, answer.data


def _part_body(number: int, length: int) -> bytes:
    text = f"part {number} ".encode()
    return (text * (length // len(text) + 1))[: max(length, len(text))]


def _race(racers: int, write: object) -> list[bytes]:
    """The bodies of the writers whose put succeeded."""
    start = threading.Barrier(racers)

    def run(body: bytes) -> bytes | None:
        start.wait(PATIENCE_S)
        try:
            write(body)  # type: ignore[operator]
        except PreconditionFailedError:
            return None
        return body

    with ThreadPoolExecutor(racers) as threads:
        found = list(threads.map(run, [f"racer {number}".encode() for number in range(racers)]))
    return [body for body in found if body is not None]
