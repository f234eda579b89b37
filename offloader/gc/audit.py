"""Audit record in the bucket: what was deleted, by whom and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from uuid import UUID

from formats.documents import (
    DeletedSegment,
    DeletionRecord,
    decode_deletion,
    deletion_key,
    deletion_name,
    deletion_prefix,
    encode_deletion,
)
from formats.errors import FormatError
from offloader.errors import NotFound
from offloader.manifest.boundary import delete_keys, listed, unreadable
from offloader.settings import CleanupSettings
from offloader.store.base import ObjectStore

__all__ = ["begin_batch", "end_batch", "expire_audit", "read_batches", "retry_at_ms", "void_batch"]

_MS_PER_DAY = 24 * 3600 * 1000
#: Wait before failed deletions are retried; doubles up to ``retry_minutes_max``.
RETRY_FIRST_MS = 60_000


def begin_batch(
    store: ObjectStore,
    stream: str,
    incarnation: UUID,
    *,
    action: str,
    by: str,
    rule: str,
    retire_record: int,
    segments: Sequence[DeletedSegment],
    now_ms: int,
    entropy: Callable[[int], bytes],
) -> DeletionRecord:
    """Record a batch before its deletion."""
    record = DeletionRecord(
        name=f"{now_ms:016d}-{entropy(8).hex()}",
        stream=stream,
        incarnation=incarnation,
        action=action,
        by=by,
        rule=rule,
        retire_record=retire_record,
        segments=tuple(segments),
        planned_ms=now_ms,
    )
    _write(store, record)
    return record


def end_batch(store: ObjectStore, record: DeletionRecord, *, now_ms: int, problem: str = "") -> DeletionRecord:
    """Record that all objects are deleted, or why not."""
    if problem:
        record = replace(record, attempts=record.attempts + 1, tried_ms=now_ms, problem=problem)
        _write(store, record)
        return record
    record = replace(record, done_ms=now_ms, problem="")
    _write(store, record)
    void_batch(store, record)
    return record


def void_batch(store: ObjectStore, record: DeletionRecord) -> None:
    """Forget an open batch: it is done, or was never committed."""
    delete_keys(store, [deletion_key(record.stream, record.name, done=False)])


def retry_at_ms(record: DeletionRecord, settings: CleanupSettings) -> int:
    """When the remaining objects of a batch are retried."""
    if not record.attempts:
        return 0
    wait_ms = RETRY_FIRST_MS << min(record.attempts - 1, 30)
    return record.tried_ms + min(wait_ms, int(settings.retry_minutes_max * 60_000))


def read_batches(store: ObjectStore, stream: str, *, done: bool) -> Iterator[DeletionRecord]:
    """The finished or the open batches of a stream, the oldest first.

    Raises:
        Corrupt: one of them is damaged.
        Unsupported: a later release wrote one of them.
    """
    for name in _names(store, stream, done=done):
        key = deletion_key(stream, name, done=done)
        try:
            yield decode_deletion(store.get(key)[0], object_name=key)
        except NotFound:
            continue  # removed meanwhile
        except FormatError as error:
            raise unreadable(f"the deletion record {key}", error) from error


def expire_audit(store: ObjectStore, stream: str, settings: CleanupSettings, *, now_ms: int) -> int:
    """Remove old batches, and the oldest above the limit. Returns their number."""
    names = _names(store, stream, done=True)
    old_ms = now_ms - settings.audit_days * _MS_PER_DAY
    over = max(len(names) - settings.audit_records_max, 0)
    gone = [name for number, name in enumerate(names) if number < over or int(name[:16]) < old_ms]
    delete_keys(store, [deletion_key(stream, name, done=True) for name in gone])
    return len(gone)


def _names(store: ObjectStore, stream: str, *, done: bool) -> list[str]:
    found = (deletion_name(info.key, stream, done=done) for info in listed(store, deletion_prefix(stream, done=done)))
    return sorted(name for name in found if name is not None)


def _write(store: ObjectStore, record: DeletionRecord) -> None:
    key = deletion_key(record.stream, record.name, done=record.done_ms is not None)
    store.put(key, encode_deletion(record))
