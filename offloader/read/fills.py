"""Reads fills: the entries of recorded gaps, which no reader of the stream is given."""

from __future__ import annotations

from formats.checksum import crc32c
from formats.entries import EntryBatch
from formats.errors import FormatError
from formats.frames import decode_fill
from formats.keys import fill_key
from formats.manifest import GapFilled
from offloader.errors import Corrupt, NotFound, ObjectChanged, ObjectMissing, OffloaderError, Trimmed
from offloader.manifest.log import load_manifest
from offloader.store.base import ByteRange, ObjectStore

_RESTORE = "restore the object from a copy"


def read_fill(store: ObjectStore, stream: str, fill: GapFilled) -> EntryBatch:
    """The entries of a fill, checked against its record in the manifest. One GET, of at most 8 MiB.

    Raises:
        ObjectMissing: the object is gone.
        Trimmed: its ledger was deleted since the manifest was loaded.
        ObjectChanged, Corrupt: its bytes aren't those that were recorded.
    """
    key = fill_key(stream, fill.uuid)
    where = f"stream {stream}, object {key}"
    try:
        body, info = store.get(key, ByteRange(0, fill.object_bytes))
    except NotFound as cause:
        raise _missing(store, stream, fill, where) from cause
    if info.size_bytes != fill.object_bytes:
        raise ObjectChanged(
            f"{where} in {store.url}: expected {fill.object_bytes} bytes, found {info.size_bytes}", hint=_RESTORE
        )
    found = crc32c(body)
    if found != fill.crc32c:
        raise Corrupt(f"{where} in {store.url}: expected CRC-32C {fill.crc32c:08x}, found {found:08x}", hint=_RESTORE)
    try:
        batch = decode_fill(body, object_name=key)
    except FormatError as error:
        raise Corrupt(f"stream {stream}: {error}", hint=_RESTORE) from error
    if (batch.first, batch.last, len(batch)) != (fill.first, fill.last, fill.entries):
        raise ObjectChanged(
            f"{where}: the manifest has {fill.entries} entries at {fill.first}..{fill.last}, "
            f"the object {len(batch)} at {batch.first}..{batch.last}",
            hint=_RESTORE,
        )
    return batch


def _missing(store: ObjectStore, stream: str, fill: GapFilled, where: str) -> OffloaderError:
    """Error for a missing fill, by the newest manifest."""
    try:
        state = load_manifest(store, stream)
    except NotFound:
        state = None
    if state is not None and fill in state.fills:
        return ObjectMissing(
            f"{where} isn't in {store.url}, though the manifest has it for {fill.first}..{fill.last}", hint=_RESTORE
        )
    return Trimmed(
        f"{where}: ledger {fill.first.ledger_id} was deleted while it was read",
        first_available=None if state is None else state.first_position(),
        hint="open the stream anew",
    )
