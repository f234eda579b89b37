"""The objects of one incarnation's manifest, told apart by their names.

Owns listing and deleting them. Must never take an object for one of a manifest unless its name, directly under the
manifest's prefix, is one that this project gives: what isn't known is named, and left alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from formats.checkpoint import run_record_id
from formats.keys import (
    boundary_key,
    checkpoint_number,
    is_segment_uuid_of,
    manifest_prefix,
    parse_object_key,
    record_number,
    stream_prefix,
)
from offloader.errors import StoreUnavailable
from offloader.store.base import ObjectInfo, ObjectStore

__all__ = [
    "ManifestObjects",
    "delete_keys",
    "has_segment_of",
    "incarnations_in",
    "is_manifest_object",
    "list_manifest",
    "listed",
    "number_in",
    "unlisted_incarnation",
    "unlisted_segment",
]

#: Keys of one delete request.
DELETE_KEYS_MAX = 1000
#: Of the uuids that this project makes for segments.
_OWN_UUID_VERSION = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestObjects:
    """What lies under one incarnation's prefix.

    Attributes:
        records, checkpoints: by number.
        runs: by name.
        boundary: ``None`` where there is none.
        unknown: keys of everything else.
    """

    records: Mapping[int, ObjectInfo]
    checkpoints: Mapping[int, ObjectInfo]
    runs: Mapping[str, ObjectInfo]
    boundary: ObjectInfo | None
    unknown: Sequence[str]

    def known(self) -> list[ObjectInfo]:
        """All but the unknown ones, in the order in which they may go: the boundary last."""
        found = [*(self.records[number] for number in sorted(self.records)), *self.checkpoints.values()]
        found += self.runs.values()
        return found if self.boundary is None else [*found, self.boundary]


def list_manifest(store: ObjectStore, stream: str, incarnation: UUID) -> ManifestObjects:
    """Lists one incarnation's manifest."""
    prefix = manifest_prefix(stream, incarnation)
    records: dict[int, ObjectInfo] = {}
    checkpoints: dict[int, ObjectInfo] = {}
    runs: dict[str, ObjectInfo] = {}
    boundary: ObjectInfo | None = None
    unknown: list[str] = []
    for info in listed(store, prefix):
        name = info.key[len(prefix) :]
        if info.key == boundary_key(stream, incarnation):
            boundary = info
        elif "/" in name:
            unknown.append(info.key)
        elif (number := record_number(name)) is not None:
            records[number] = info
        elif (number := checkpoint_number(name)) is not None:
            checkpoints[number] = info
        elif run_record_id(name) is not None:
            runs[name] = info
        else:
            unknown.append(info.key)
    return ManifestObjects(
        records=records, checkpoints=checkpoints, runs=runs, boundary=boundary, unknown=tuple(unknown)
    )


def is_manifest_object(name: str) -> bool:
    """Whether an object of that name, below an incarnation's prefix, is one that this project gives."""
    given = number_in(name) is not None or run_record_id(name) is not None
    return name == "boundary" or (given and "/" not in name)


def number_in(name: str) -> int | None:
    """The record that the name of a record or a checkpoint says existed; ``None``: any other name."""
    record = record_number(name)
    return checkpoint_number(name) if record is None else record


def has_segment_of(store: ObjectStore, stream: str, incarnation: UUID) -> bool:
    """Whether a data object of that incarnation lies below the stream's name."""
    found = (parse_object_key(info.key, stream) for info in listed(store, stream_prefix(stream)))
    return any(each is not None and not each.is_index and is_segment_uuid_of(each.uuid, incarnation) for each in found)


def unlisted_segment(store: ObjectStore, stream: str) -> UUID | None:
    """A segment with both objects whose name is one that this project gives, of whatever incarnation."""
    seen: set[tuple[UUID, int | None, bool]] = set()
    for info in listed(store, stream_prefix(stream)):
        found = parse_object_key(info.key, stream)
        if found is None or found.uuid.version != _OWN_UUID_VERSION:
            continue
        seen.add((found.uuid, found.ledger_id, found.is_index))
        if (found.uuid, found.ledger_id, not found.is_index) in seen:
            return found.uuid
    return None


def incarnations_in(store: ObjectStore, stream: str) -> list[UUID]:
    """Every incarnation under whose prefix anything lies."""
    prefix = f"{stream_prefix(stream)}manifest/"
    found = {_incarnation(info.key[len(prefix) :]) for info in listed(store, prefix)}
    return sorted(each for each in found if each is not None)


def unlisted_incarnation(store: ObjectStore, stream: str) -> UUID | None:
    """An incarnation that has a boundary and a record or checkpoint. Where no catalogue entry names it, that is lost.

    A boundary alone is of somebody who began to create a stream and was overtaken, records alone of a writer whose
    stream was deleted long ago.
    """
    found: dict[UUID, set[bool]] = {}
    prefix = f"{stream_prefix(stream)}manifest/"
    for info in listed(store, prefix):
        incarnation = _incarnation(info.key[len(prefix) :])
        if incarnation is not None:
            found.setdefault(incarnation, set()).add(info.key == boundary_key(stream, incarnation))
    return next((each for each, kinds in found.items() if len(kinds) == len((True, False))), None)


def _incarnation(rest: str) -> UUID | None:
    name, separator, _ = rest.partition("/")
    try:
        found = UUID(name)
    except ValueError:
        return None
    return found if separator and str(found) == name else None


def listed(store: ObjectStore, prefix: str) -> Iterator[ObjectInfo]:
    """Every object whose key begins with ``prefix``."""
    after: str | None = ""
    while after is not None:
        page = store.list(prefix, after=after)
        yield from page.objects
        after = page.next_after


def delete_keys(store: ObjectStore, keys: Sequence[str]) -> None:
    """Deletes objects, one request after the other.

    Raises:
        StoreUnavailable: one of them wasn't deleted.
    """
    for start in range(0, len(keys), DELETE_KEYS_MAX):
        failures = store.delete(keys[start : start + DELETE_KEYS_MAX])
        if failures:
            raise StoreUnavailable(f"{failures[0].key} in {store.url} wasn't deleted: {failures[0].reason}")
