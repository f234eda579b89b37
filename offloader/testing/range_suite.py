"""Range-read obligations of every object store, and a receiver that keeps its body; part of ``store_suite``."""

from __future__ import annotations

import pytest

from offloader.errors import InvalidCall, NotFound
from offloader.store.base import ByteRange, ObjectStore
from offloader.testing.upload_suite import UploadSuite

__all__ = ["KeptBody", "RangeSuite"]


class KeptBody:
    """A receiver that keeps the body and overwrites the memory it was received in.

    Attributes:
        body: received since ``begin``.
        begun: number of bodies begun.
    """

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


class RangeSuite(UploadSuite):
    """Range reads, returned or received."""

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
        assert found == expected
        assert info.size_bytes == 10
        assert info.etag == store.head("k").etag

    def test_a_range_of_an_empty_object_is_empty(self, store: ObjectStore) -> None:
        self.raw_put(store, "k", b"")
        found, info = store.get("k", ByteRange(0, 5))
        assert (found, info.size_bytes) == (b"", 0)

    @pytest.mark.parametrize("byte_range", [ByteRange(-1, 3), ByteRange(3, 2)])
    def test_a_range_that_is_none_is_refused(self, store: ObjectStore, byte_range: ByteRange) -> None:
        self.raw_put(store, "k", b"0123456789")
        with pytest.raises(InvalidCall):
            store.get("k", byte_range)

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
        with pytest.raises(NotFound):
            store.get("absent", ByteRange(0, 8), into=into)
