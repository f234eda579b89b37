"""Read-only store of foreign objects, with our own records in a local directory."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from formats.keys import RESERVED_LEVELS
from offloader.errors import Corrupt, InvalidCall, NotFound, Unsupported
from offloader.store import local
from offloader.store.base import (
    CREATE,
    OVERWRITE,
    Body,
    ByteRange,
    DeleteFailure,
    ListPage,
    ObjectInfo,
    ObjectStore,
    PartInfo,
    PutMode,
    Sink,
    StoreOptions,
    UploadInfo,
)
from offloader.store.wrappers import ReadOnlyStore

__all__ = ["SCHEME", "ObjectsPlace", "OverlayStore", "create_catalogue", "open_url"]

SCHEME = "catalogue"
#: No stream's keys begin with ``_``.
_PLACE_KEY = "_objects/place.json"
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class ObjectsPlace:
    """Location of a catalogue's objects: arguments of ``open_store``, no secrets."""

    url: str
    endpoint_url: str = ""
    region: str = ""


def create_catalogue(url: str, place: ObjectsPlace, options: StoreOptions) -> None:
    """Make the directory of ``url`` a catalogue of the objects at ``place``. Idempotent.

    Raises:
        InvalidCall: it is a catalogue of other objects, or ``place`` is a catalogue itself.
    """
    if place.url.startswith(f"{SCHEME}:"):
        raise InvalidCall(f"{place.url} is a catalogue itself", hint="name the store that has the objects")
    notes = _open_notes(url, replace(options, read_only=False))
    try:
        existing = _read_place(notes, url)
        if existing is None:
            body = json.dumps(
                {
                    "format": _FORMAT,
                    "url": place.url,
                    "endpoint_url": place.endpoint_url,
                    "region": place.region,
                }
            )
            notes.put(_PLACE_KEY, body.encode(), mode=CREATE)
        elif existing != place:
            raise InvalidCall(
                f"{url} is a catalogue of {existing.url}{_at(existing)}, not of {place.url}{_at(place)}",
                hint="choose another directory, or remove that one: nothing but notes is in it",
            )
    finally:
        notes.close()


def open_url(url: str, options: StoreOptions, open_objects: Callable[[str, StoreOptions], ObjectStore]) -> OverlayStore:
    """Open the store that a catalogue describes. An endpoint or region in ``options`` overrides the recorded one.

    Args:
        url: of the catalogue.
        options: for both places.
        open_objects: opens the objects' store without wrappers: those are put around the overlay.

    Raises:
        NotFound: no catalogue.
        Corrupt: its description is damaged.
    """
    notes = _open_notes(url, options)
    place = _read_place(notes, url)
    if place is None:
        raise NotFound(f"{url} is no catalogue", hint="`offloader adopt --read-only DIRECTORY` makes one")
    of_objects = replace(
        options,
        endpoint_url=options.endpoint_url or place.endpoint_url or None,
        region=options.region or place.region or None,
        read_only=True,
    )
    objects = ReadOnlyStore(
        open_objects(place.url, of_objects),
        reason="it belongs to somebody else",
        hint="only the catalogue can be written; to record in the store itself adopt without --read-only",
    )
    return OverlayStore(url, notes, objects)


def _open_notes(url: str, options: StoreOptions) -> ObjectStore:
    scheme, _, path = url.partition("://")
    if scheme != SCHEME or not path.startswith("/"):
        raise InvalidCall(f"{url} names no catalogue", hint=f"give {SCHEME}:///directory (three slashes)")
    return local.open_url(f"file://{path}", options)


def _read_place(notes: ObjectStore, url: str) -> ObjectsPlace | None:
    try:
        body = notes.get(_PLACE_KEY)[0]
    except NotFound:
        return None
    try:
        note = json.loads(body)
        if note["format"] != _FORMAT:
            raise ValueError(f"format {note['format']}")
        return ObjectsPlace(str(note["url"]), str(note["endpoint_url"]), str(note["region"]))
    except (ValueError, KeyError, TypeError, RecursionError) as cause:
        raise Corrupt(
            f"{url}: the note that says where the objects are is damaged ({cause})",
            hint="remove the directory and adopt again: nothing but notes is in it",
        ) from cause


def _at(place: ObjectsPlace) -> str:
    return f" at {place.endpoint_url}" if place.endpoint_url else ""


class OverlayStore:
    """See ``ObjectStore``.

    Args:
        url: of the catalogue.
        notes: has every key with a folder.
        objects: has the others; must refuse writes.
    """

    def __init__(self, url: str, notes: ObjectStore, objects: ObjectStore) -> None:
        self.url = url
        self.notes = notes
        self.objects = objects

    def __repr__(self) -> str:
        return f"CataloguedStore({self.url!r}, {self.objects!r})"

    def _of(self, key: str) -> ObjectStore:
        return self.notes if "/" in key else self.objects

    def _require_note(self, key: str) -> None:
        """Refuse segments: they would be in the directory while the manifest records the bucket."""
        if "/" in key and not key.startswith("_") and not RESERVED_LEVELS & set(key.split("/")):
            raise Unsupported(
                f"{self.url}: {key} refused: a catalogue has no place for entries",
                hint="to offload more entries beside Pulsar's adopt without --read-only",
            )

    @property
    def driver_metadata(self) -> Mapping[str, str]:
        """Metadata of the objects' store: segments record it."""
        return self.objects.driver_metadata

    def head(self, key: str) -> ObjectInfo:
        return self._of(key).head(key)

    def get(
        self, key: str, byte_range: ByteRange | None = None, *, into: Sink | None = None
    ) -> tuple[bytes, ObjectInfo]:
        return self._of(key).get(key, byte_range, into=into)

    def put(
        self,
        key: str,
        body: Body,
        *,
        mode: PutMode = OVERWRITE,
        metadata: Mapping[str, str] | None = None,
        crc32c: int | None = None,
    ) -> ObjectInfo:
        self._require_note(key)
        return self._of(key).put(key, body, mode=mode, metadata=metadata, crc32c=crc32c)

    def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> ListPage:
        """List one of the two places: a prefix with a folder lists records, any other one objects."""
        return self._of(prefix).list(prefix, after=after, limit=limit)

    def delete(self, keys: Sequence[str]) -> Sequence[DeleteFailure]:
        foreign = [key for key in keys if "/" not in key]
        if foreign:
            return self.objects.delete(foreign)  # raises: read-only
        return self.notes.delete(keys)

    def delete_if_match(self, key: str, etag: str) -> None:
        self._require_note(key)
        self._of(key).delete_if_match(key, etag)

    def begin_upload(self, key: str, *, metadata: Mapping[str, str] | None = None) -> str:
        self._require_note(key)
        return self._of(key).begin_upload(key, metadata=metadata)

    def upload_part(self, key: str, upload_id: str, number: int, body: Body, *, crc32c: int | None = None) -> PartInfo:
        return self._of(key).upload_part(key, upload_id, number, body, crc32c=crc32c)

    def complete_upload(self, key: str, upload_id: str, parts: Sequence[PartInfo]) -> ObjectInfo:
        return self._of(key).complete_upload(key, upload_id, parts)

    def abort_upload(self, key: str, upload_id: str) -> None:
        self._of(key).abort_upload(key, upload_id)

    def list_uploads(self, prefix: str) -> Sequence[UploadInfo]:
        return self._of(prefix).list_uploads(prefix)

    def list_parts(self, key: str, upload_id: str) -> Sequence[PartInfo]:
        return self._of(key).list_parts(key, upload_id)

    def close(self) -> None:
        self.notes.close()
        self.objects.close()
