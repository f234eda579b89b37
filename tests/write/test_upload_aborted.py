"""Aborted uploads: a part in flight meanwhile, an abort that fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import pytest

from formats.checksum import crc32c
from formats.entries import Pieces
from formats.segment import Part
from formats.summary import Layout
from offloader.errors import ClosedError, CorruptError, StoreUnavailableError
from offloader.runtime.clock import SystemClock
from offloader.settings import OffloadSettings, Size
from offloader.store.base import Body, ObjectStore, PartInfo
from offloader.store.open import open_store
from offloader.store.wrappers import Request, StoreWrapper
from offloader.testing.faulty_store import Fault, FaultyStore
from offloader.testing.memory_ledgers import MemoryLedgers
from offloader.write.upload import LedgerPiece, SegmentUpload, SourceLedger, write_segment

KEY = "data"
_Answer = TypeVar("_Answer")


class OvertakenAborts(StoreWrapper):
    """Keeps an upload that is aborted while a part of it is in flight, as S3 may."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.meanwhile: Callable[[], None] = lambda: None
        self.aborts = 0
        self._in_flight = 0

    def around(self, request: Request, call: Callable[[], _Answer]) -> _Answer:
        return call()

    def upload_part(self, key: str, upload_id: str, number: int, body: Body, *, crc32c: int | None = None) -> PartInfo:
        self._in_flight += 1
        try:
            self.meanwhile()
            return super().upload_part(key, upload_id, number, body, crc32c=crc32c)
        finally:
            self._in_flight -= 1

    def abort_upload(self, key: str, upload_id: str) -> None:
        self.aborts += 1
        if not self._in_flight:
            super().abort_upload(key, upload_id)


def part(number: int) -> Part:
    body = b"entries" * number
    return Part(number, 0, Pieces([body]), crc32c(body))


def test_part_in_flight_aborts_its_aborted_upload_again() -> None:
    store = OvertakenAborts(open_store("memory://upload"))
    upload = SegmentUpload(store, KEY, "index", {}, {})
    upload.send_part(part(1))
    store.meanwhile = upload.abort
    upload.send_part(part(2))
    assert store.aborts == 2
    assert store.list_uploads("") == []


def test_a_part_after_the_abort_is_refused() -> None:
    store = OvertakenAborts(open_store("memory://aborted-upload"))
    upload = SegmentUpload(store, KEY, "index", {}, {})
    upload.send_part(part(1))
    upload.abort()
    with pytest.raises(ClosedError, match="aborted"):
        upload.send_part(part(2))
    assert store.aborts == 1
    assert store.list_uploads("") == []


def test_segment_fails_by_its_own_error_although_its_upload_cant_be_aborted() -> None:
    ledgers = MemoryLedgers("a/b", SystemClock())
    ledgers.append([b"entry" * 200] * 100)
    ledgers.close_ledger()
    info = next(info for info in ledgers.ledgers() if info.entries)
    claimed = SourceLedger(ledgers, replace(info, entries=101))
    store = FaultyStore(open_store("memory://failing-abort"), [Fault(call=1, verb="list_uploads", calls=9)])
    upload = SegmentUpload(store, KEY, "index", {}, {})
    with pytest.raises((CorruptError, StoreUnavailableError)) as failed:
        write_segment(
            [LedgerPiece(claimed, 0, 100)], Layout.V1, upload, OffloadSettings(block_size=Size(4096)), part_bytes=8192
        )
    assert ("list_uploads", KEY) in store.calls
    assert type(failed.value) is CorruptError
    assert "couldn't be aborted" in failed.value.__notes__[0]
