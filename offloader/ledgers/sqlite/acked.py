"""The acknowledged end of each stream, in a file beside its ledger database.

SQLite's write-ahead log ends at the first damaged frame, so a database alone can't detect that it lost acknowledged
entries. This file is written after each commit, in place and without its own fsync: it survives a killed process, and
after a power cut it can only be too low.

The file is an array of 64-byte slots. Each has the database's uuid, so that a recreated or moved database isn't
mistaken for the one that acknowledged.
"""

from __future__ import annotations

import hashlib
import logging
import os
import struct
import threading
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from formats.checksum import crc32c
from formats.entries import Position
from offloader.runtime.system import sync_name

_log = logging.getLogger(__name__)

#: Format magic in the first bytes of each slot.
_MAGIC = b"OAK1"
#: magic, digest of the stream's name, the database's uuid, owner (bytes in the order of the number), ledger, entry.
_FIELDS = struct.Struct(">4s16s16sQqq")
_OWNER_AT, _OWNER_BYTES = 36, 8
_CRC = struct.Struct(">I")
SLOT_BYTES = _FIELDS.size + _CRC.size


class AckedEnd(NamedTuple):
    """The content of one slot.

    Attributes:
        digest: of the stream's name.
        source_id: the database that acknowledged.
        end: the newest acknowledged position; -1:-1 before the first append.
        owner: the handle that wrote it.
    """

    digest: bytes
    source_id: UUID
    end: Position
    owner: int

    def encode(self) -> bytes:
        """The slot's bytes."""
        fields = _FIELDS.pack(_MAGIC, self.digest, self.source_id.bytes, self.owner, *self.end)
        return fields + _CRC.pack(crc32c(fields))


def decode_slot(data: bytes) -> AckedEnd | None:
    """Decodes a slot; ``None`` if it isn't whole."""
    if len(data) != SLOT_BYTES or _CRC.unpack_from(data, _FIELDS.size)[0] != crc32c(data[: _FIELDS.size]):
        return None
    magic, digest, source_id, owner, ledger_id, entry_id = _FIELDS.unpack_from(data)
    if magic != _MAGIC:
        return None
    return AckedEnd(digest, UUID(bytes=source_id), Position(ledger_id, entry_id), owner)


class AckedFile:
    """All slots of one database's file. Slots are created inside a write transaction of the database, one at a time."""

    def __init__(self, path: str) -> None:
        self.path = path
        #: Held while the file is written or closed: the system reuses the descriptor of a closed file.
        self._lock = threading.Lock()
        self._fd: int | None = None
        self._slots: dict[bytes, list[int]] = {}
        self._known_bytes = 0
        #: The highest ledger id of any slot.
        self.newest_ledger = 0

    def load(self) -> bool:
        """Reads the slots added since the last call; returns whether the file exists. ``OSError``: it can't be read."""
        if self._fd is None:
            try:
                self._fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
            except FileNotFoundError:
                return False
            except PermissionError:  # enough for readers; an owner fails when it writes
                self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        size = os.fstat(self._fd).st_size
        data = os.pread(self._fd, max(0, size - self._known_bytes), self._known_bytes)
        for at in range(0, len(data) + 1 - SLOT_BYTES, SLOT_BYTES):
            found = decode_slot(data[at : at + SLOT_BYTES])
            start, self._known_bytes = self._known_bytes, self._known_bytes + SLOT_BYTES
            if found is None:
                _log.warning("%s: the slot at byte %d is damaged and isn't used", self.path, start)
                continue
            self._slots.setdefault(found.digest, []).append(start)
            self.newest_ledger = max(self.newest_ledger, found.end.ledger_id)
        return True

    def of_stream(self, stream: str) -> list[AckedEnd]:
        """The current slots of a stream; more than one only after a race of two processes or a damaged slot."""
        digest = digest_of(stream)
        if self._fd is None:
            return []
        found = [decode_slot(os.pread(self._fd, SLOT_BYTES, start)) for start in self._slots.get(digest, ())]
        return [each for each in found if each is not None and each.digest == digest]

    def make(self) -> None:
        """Creates the file durably, so that its later absence is a loss."""
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        os.fsync(self._fd)
        sync_name(Path(self.path).absolute())

    def replace(self, stream: str, source_id: UUID, end: Position | None, owner: int) -> AckedSlot:
        """Writes the value to all slots of a stream, or to a new one; returns the owner's slot."""
        assert self._fd is not None, "made or loaded before"
        acked = AckedEnd(digest_of(stream), source_id, end or Position(-1, -1), owner)
        starts = self._slots.setdefault(acked.digest, [])
        if not starts:
            starts.append(self._known_bytes)
            self._known_bytes += SLOT_BYTES
        for start in starts:
            os.pwrite(self._fd, acked.encode(), start)
        return AckedSlot(self, starts[0], acked)

    def write_slot(self, start: int, slot: bytes) -> None:
        """Writes one slot unless a newer owner has it or the file is closed. ``OSError``: it can't be written."""
        with self._lock:
            owner = slot[_OWNER_AT : _OWNER_AT + _OWNER_BYTES]
            if self._fd is not None and os.pread(self._fd, _OWNER_BYTES, start + _OWNER_AT) <= owner:
                os.pwrite(self._fd, slot, start)

    def close(self) -> None:
        with self._lock:
            if self._fd is not None:
                os.close(self._fd)
                self._fd = None


class AckedSlot:
    """The slot to which one owner's handle writes the acknowledged end. Calls are sequential."""

    def __init__(self, file: AckedFile, start: int, acked: AckedEnd) -> None:
        self._file, self._start, self._acked = file, start, acked
        self._is_failing = False

    def write(self, end: Position) -> None:
        """Records that everything up to ``end`` is acknowledged. Logs a failure: the entries are durable without."""
        try:
            self._file.write_slot(self._start, self._acked._replace(end=end).encode())
            self._is_failing = False
        except OSError as error:
            if not self._is_failing:
                _log.warning("%s: acknowledged ends can't be noted: %s", self._file.path, error)
            self._is_failing = True


def digest_of(stream: str) -> bytes:
    """16-byte digest of a stream's name."""
    return hashlib.sha256(stream.encode()).digest()[:16]
