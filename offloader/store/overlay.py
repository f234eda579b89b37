"""Read-only store of foreign objects, with our own records in a local directory."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from formats.keys import RESERVED_LEVELS
from offloader.errors import Corrupt, InvalidCall, NotFound, Unsupported
from offloader.store import local
from offloader.store.base import CREATE, DeleteFailure, ObjectStore, StoreOptions
from offloader.store.wrappers import ReadOnlyStore, Request, StoreWrapper

SCHEME = "catalogue"
#: No stream's keys begin with ``_``.
_PLACE_KEY = "_objects/place.json"
_FORMAT = 1
#: Verbs that begin or replace an object.
_CHANGING = ("put", "begin_upload", "delete_if_match")

_Answer = TypeVar("_Answer")


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
                {"format": _FORMAT, "url": place.url, "endpoint_url": place.endpoint_url, "region": place.region}
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
        reason="it belongs to another program",
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


class OverlayStore(StoreWrapper):
    """See ``ObjectStore``. For ``list``, a prefix with a folder lists records, any other one objects.

    Args:
        url: of the catalogue.
        notes: has every key with a folder.
        objects: has the others; must refuse writes.
    """

    def __init__(self, url: str, notes: ObjectStore, objects: ObjectStore) -> None:
        super().__init__(objects)
        self._url = url
        self.notes = notes

    def __repr__(self) -> str:
        return f"OverlayStore({self.url!r}, {self.inner!r})"

    @property
    def url(self) -> str:
        return self._url

    def _of(self, key: str) -> ObjectStore:
        return self.notes if "/" in key else self.inner

    def around(self, request: Request, call: Callable[[], _Answer]) -> _Answer:
        if request.verb in _CHANGING:
            self._require_note(request.key)
        return call()

    def _require_note(self, key: str) -> None:
        """Refuse segments: they would be in the directory while the manifest records the bucket."""
        if "/" in key and not key.startswith("_") and not RESERVED_LEVELS & set(key.split("/")):
            raise Unsupported(
                f"{self.url}: {key} refused: a catalogue has no place for entries",
                hint="to offload more entries beside Pulsar's adopt without --read-only",
            )

    def delete(self, keys: Sequence[str]) -> Sequence[DeleteFailure]:
        foreign = [key for key in keys if "/" not in key]
        # The inner store raises: it is read-only.
        return self.inner.delete(foreign) if foreign else self.notes.delete(keys)

    def close(self) -> None:
        self.notes.close()
        super().close()
