"""Multipart obligations of every object store, and the hooks of a store's test class; part of ``store_suite``.

The hooks bypass the store under test.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import ClassVar

import pytest

from formats.checksum import crc32c
from formats.entries import Pieces
from offloader.errors import InvalidCall, NotFound, OffloaderError, OutcomeUnknown
from offloader.store.base import ObjectStore, PartInfo

__all__ = ["UploadSuite"]


class UploadSuite:
    """Uploads, their parts, completion and abort."""

    #: Whether ``list_uploads`` finds uploads by a key prefix; every store finds the exact key.
    uploads_by_prefix: bool = True
    #: Smallest part except the last one.
    part_bytes_min: ClassVar[int] = 1
    #: Whether two concurrent uploads of one key can both complete, one after the other; if not (Azure), the first
    #: completion ends the other upload.
    uploads_side_by_side: bool = True
    #: Whether ``list_parts`` returns the parts' CRC-32C.
    keeps_part_crc32c: bool = True

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

    def _upload(self, store: ObjectStore, key: str, upload_id: str, numbers: list[int]) -> list[PartInfo]:
        return [
            store.upload_part(key, upload_id, number, _part_body(number, self.part_bytes_min)) for number in numbers
        ]

    def test_a_part_may_lie_in_several_pieces(self, store: ObjectStore) -> None:
        upload_id = store.begin_upload("m/k")
        body = _part_body(1, self.part_bytes_min)
        pieces = Pieces([body[:1], body[1:700_000], body[700_000:]])
        part = store.upload_part("m/k", upload_id, 1, pieces, crc32c=crc32c(body))
        store.complete_upload("m/k", upload_id, [part])
        assert self.raw_get(store, "m/k") == body

    def test_a_part_of_changed_bytes_is_refused(self, store: ObjectStore) -> None:
        upload_id = store.begin_upload("m/k")
        with pytest.raises(InvalidCall, match="CRC-32C"):
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
        upload_id = store.begin_upload("k")
        self._upload(store, "k", upload_id, [2])
        first, last = self._upload(store, "k", upload_id, [2, 10_000])
        store.complete_upload("k", upload_id, [first, last])
        expected = _part_body(2, self.part_bytes_min) + _part_body(10_000, self.part_bytes_min)
        assert self.raw_get(store, "k") == expected

    def test_unfinished_uploads_and_their_parts_are_listed(self, store: ObjectStore) -> None:
        upload_id = store.begin_upload("m/k")
        parts = self._upload(store, "m/k", upload_id, [1, 2])
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
        upload_id = store.begin_upload("k")
        parts = self._upload(store, "k", upload_id, [1])
        store.abort_upload("k", upload_id)
        store.abort_upload("k", upload_id)
        assert list(store.list_uploads("k")) == []
        with pytest.raises(NotFound):
            store.list_parts("k", upload_id)
        with pytest.raises((NotFound, OutcomeUnknown)):
            self._upload(store, "k", upload_id, [2])
        with pytest.raises(OutcomeUnknown):
            store.complete_upload("k", upload_id, parts)
        assert self.raw_get(store, "k") is None

    def test_completing_twice_is_proven_or_unknown_and_harmless(self, store: ObjectStore) -> None:
        upload_id = store.begin_upload("k")
        parts = self._upload(store, "k", upload_id, [1, 2])
        done = store.complete_upload("k", upload_id, parts)
        with contextlib.suppress(OutcomeUnknown):
            again = store.complete_upload("k", upload_id, parts)
            assert (again.etag, again.size_bytes) == (done.etag, done.size_bytes)
        assert store.head("k").etag == done.etag

    def test_an_upload_that_never_was_does_not_pass_for_complete(self, store: ObjectStore) -> None:
        """versitygw answers 200 to any completion of an existing key."""
        upload_id = store.begin_upload("k")
        parts = self._upload(store, "k", upload_id, [1, 2])
        done = store.complete_upload("k", upload_id, parts)
        for other in (parts[:1], [parts[1]]):
            with pytest.raises(OffloaderError):
                store.complete_upload("k", upload_id, other)
        assert store.head("k").etag == done.etag

    def test_a_completion_with_a_wrong_part_changes_nothing(self, store: ObjectStore) -> None:
        upload_id = store.begin_upload("k")
        (part,) = self._upload(store, "k", upload_id, [1])
        wrong = PartInfo(2, part.etag, part.size_bytes, part.crc32c)
        with pytest.raises((InvalidCall, OutcomeUnknown)):
            store.complete_upload("k", upload_id, [part, wrong])
        assert self.raw_get(store, "k") is None
        store.complete_upload("k", upload_id, [part])
        assert self.raw_get(store, "k") == _part_body(1, self.part_bytes_min)

    def test_completions_and_parts_that_make_no_sense_are_refused(self, store: ObjectStore) -> None:
        upload_id = store.begin_upload("k")
        first, second = self._upload(store, "k", upload_id, [1, 2])
        for parts in ([], [second, first], [first, first]):
            with pytest.raises(InvalidCall):
                store.complete_upload("k", upload_id, parts)
        for number in (0, -1, 10_001):
            with pytest.raises(InvalidCall):
                store.upload_part("k", upload_id, number, b"x")
        with pytest.raises(InvalidCall, match="CRC-32C"):
            store.upload_part("k", upload_id, 3, b"x", crc32c=crc32c(b"y"))
        store.abort_upload("k", upload_id)

    def test_two_uploads_of_one_key_do_not_mix(self, store: ObjectStore) -> None:
        first, second = store.begin_upload("k"), store.begin_upload("k")
        assert first != second
        parts = [store.upload_part("k", upload_id, 1, upload_id.encode()) for upload_id in (first, second)]
        store.complete_upload("k", first, parts[:1])
        assert self.raw_get(store, "k") == first.encode()
        if not self.uploads_side_by_side:
            with pytest.raises((InvalidCall, OutcomeUnknown)):
                store.complete_upload("k", second, parts[1:])
            assert self.raw_get(store, "k") == first.encode()
            return
        store.complete_upload("k", second, parts[1:])
        assert self.raw_get(store, "k") == second.encode()

    def test_an_upload_replaces_what_is_there(self, store: ObjectStore) -> None:
        self.raw_put(store, "k", b"old")
        upload_id = store.begin_upload("k")
        parts = self._upload(store, "k", upload_id, [1])
        assert self.raw_get(store, "k") == b"old"
        store.complete_upload("k", upload_id, parts)
        assert self.raw_get(store, "k") == _part_body(1, self.part_bytes_min)


def _part_body(number: int, length: int) -> bytes:
    text = f"part {number} ".encode()
    return (text * (length // len(text) + 1))[: max(length, len(text))]
