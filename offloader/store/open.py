"""Open stores: implementation by URL scheme, wrapped for limits, counts and retries.

Imports no SDK: an implementation's module is imported when a URL of its scheme is opened. A catalogue is an overlay: a
read-only store of foreign objects, with our own records in a local directory.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from typing import TypeVar, cast

from formats.documents import ROOT_KEYS
from formats.keys import RESERVED_LEVELS
from offloader.errors import CorruptError, InvalidCallError, NotFoundError, UnsupportedError, needs_extra
from offloader.runtime.clock import Clock, SystemClock
from offloader.settings import LimitSettings, StoreSettings
from offloader.settings.values import OF_NEW_OBJECTS
from offloader.store.base import CREATE, DeleteFailure, ObjectStore, StoreOptions, require_place_only, without_secrets
from offloader.store.rate_limit import Limiter
from offloader.store.wrappers import AttemptStore, ReadOnlyStore, Request, RetryingStore, StoreWrapper
from offloader.telemetry.recorder import NO_TELEMETRY, Recorder

_MODULES = {
    "abfs": "offloader.store.clouds.azure",
    "abfss": "offloader.store.clouds.azure",
    "az": "offloader.store.clouds.azure",
    "memory": "offloader.store.memory",
    "file": "offloader.store.local",
    "gcs": "offloader.store.clouds.gcs",
    "gs": "offloader.store.clouds.gcs",
    "s3": "offloader.store.s3",
}
#: Scheme of a catalogue.
SCHEME = "catalogue"
#: Schemes other than S3's that take the name of a key for new objects.
_WITH_KEYS = ("abfs", "abfss", "az", "gcs", "gs")
#: Schemes whose packages come with an extra; those that only fsspec knows need ``fsspec``.
_EXTRAS = {"abfs": "azure", "abfss": "azure", "az": "azure", "gcs": "gcs", "gs": "gcs", "s3": "s3"}


def open_store(
    url: str,
    *,
    endpoint_url: str | None = None,
    region: str | None = None,
    access_key: str | None = None,
    secret_key: str | None = None,
    session_token: str | None = None,
    settings: StoreSettings | None = None,
    clock: Clock | None = None,
    read_only: bool = False,
    create: bool = True,
    limits: Limiter | LimitSettings | None = None,
    recorder: Recorder = NO_TELEMETRY,
) -> ObjectStore:
    """Open the object store at ``url``; calls on it are rate-limited, measured and retried (``stack``).

    Arguments and errors are those of ``offloader.open_store``. Every *attempt* is counted, not only the call: see
    ``offloader.store.wrappers.requests_of``.
    """
    open_url = _opener_of(url)
    if settings is not None and not read_only:
        _require_meant_for(url, settings)
    clock = clock or SystemClock()
    options = StoreOptions(
        endpoint_url=endpoint_url or None,
        region=region or None,
        access_key=access_key or None,
        secret_key=secret_key or None,
        session_token=session_token or None,
        settings=settings or StoreSettings(),
        clock=clock,
        read_only=read_only,
        create=create,
        limiter=Limiter(limits, clock) if isinstance(limits, LimitSettings) else limits,
        recorder=recorder,
    )
    return stack(open_url(url, options), options)


def open_raw(url: str, options: StoreOptions) -> ObjectStore:
    """The implementation at ``url``, without wrappers: requests aren't retried, limited or counted.

    Raises:
        InvalidCallError, UnsupportedError: as ``open_store``.
    """
    return _opener_of(url)(url, options)


def stack(raw: ObjectStore, options: StoreOptions) -> ObjectStore:
    """Wrap ``raw`` in attempts, then retries, then, if requested, the read-only wrapper."""
    limiter = options.limiter or Limiter(LimitSettings(), options.clock)
    attempts = AttemptStore(
        raw,
        limiter,
        recorder=options.recorder,
        clock=options.clock,
        single_writer=options.settings.single_writer,
    )
    store = RetryingStore(attempts, options.settings, options.clock, recorder=options.recorder)
    return ReadOnlyStore(store, hint="open the store for writing") if options.read_only else store


def _require_meant_for(url: str, settings: StoreSettings) -> None:
    """Refuse settings of new objects for a store on which they would have no effect."""
    plain, scheme = StoreSettings(), url.partition("://")[0]
    for name in sorted(OF_NEW_OBJECTS):
        schemes = ("s3", *_WITH_KEYS) if name == "kms_key" else ("s3",)
        if scheme not in schemes and any(getattr(each, name) != getattr(plain, name) for each in settings.all_layers()):
            meant = "s3://, gs:// and az://" if name == "kms_key" else "s3://"
            raise InvalidCallError(
                f"store.{name} is supported for {meant} only, not for {url}",
                hint="remove the setting, and configure it on the bucket instead",
            )


def _opener_of(url: str) -> Callable[[str, StoreOptions], ObjectStore]:
    """The function that opens ``url`` without wrappers: the ``open_url`` of the scheme's module."""
    scheme, separator, _ = url.partition("://")
    if not separator or not scheme:
        raise InvalidCallError(
            f"{without_secrets(url)!r} is not a store URL",
            hint="use s3://bucket/root, file:///directory or memory://name",
        )
    if scheme in (*_MODULES, SCHEME):
        require_place_only(url)
    if scheme == SCHEME:
        return _open_catalogue
    extra = _EXTRAS.get(scheme, "" if scheme in _MODULES else "fsspec")
    with needs_extra(extra, f"a store at {scheme}://") if extra else nullcontext():
        module = importlib.import_module(_MODULES.get(scheme, "offloader.store.fsspec"))
    return cast("Callable[[str, StoreOptions], ObjectStore]", module.open_url)


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
        InvalidCallError: the directory is a catalogue of other objects, or ``place`` is a catalogue.
    """
    if place.url.startswith(f"{SCHEME}:"):
        raise InvalidCallError(
            f"{place.url} is a catalogue; a catalogue can't describe another one",
            hint="use the URL of the store that holds the objects",
        )
    notes = _open_notes(url, replace(options, read_only=False))
    try:
        existing = _read_place(notes, url)
        if existing is None:
            notes.put(_PLACE_KEY, json.dumps({"format": _FORMAT, **asdict(place)}).encode(), mode=CREATE)
        elif existing != place:
            raise InvalidCallError(
                f"{url} is a catalogue of {existing.url}{_at(existing)}, not of {place.url}{_at(place)}",
                hint="choose another directory, or delete this one: it contains only offloader's records",
            )
    finally:
        notes.close()


def _open_catalogue(url: str, options: StoreOptions) -> ObjectStore:
    """Open the store that a catalogue describes. An endpoint or region in ``options`` overrides the recorded one.

    ``NotFoundError``: no catalogue. ``CorruptError``: its description is damaged.
    """
    notes = _open_notes(url, options)
    place = _read_place(notes, url)
    if place is None:
        raise NotFoundError(
            f"{url} is not a catalogue", hint="create one with `offloader import --read-only DIRECTORY`"
        )
    of_objects = replace(
        options,
        endpoint_url=options.endpoint_url or place.endpoint_url or None,
        region=options.region or place.region or None,
        read_only=True,
    )
    objects = ReadOnlyStore(
        open_raw(place.url, of_objects),
        reason="the objects belong to another program",
        hint="only the catalogue is writable; to write to the store, adopt without --read-only",
    )
    return OverlayStore(url, notes, objects)


def _open_notes(url: str, options: StoreOptions) -> ObjectStore:
    scheme, _, path = url.partition("://")
    if scheme != SCHEME or not path.startswith("/"):
        raise InvalidCallError(f"{url} is not a catalogue URL", hint=f"use {SCHEME}:///directory (three slashes)")
    return open_raw(f"file://{path}", options)


def _read_place(notes: ObjectStore, url: str) -> ObjectsPlace | None:
    try:
        body = notes.get(_PLACE_KEY)[0]
    except NotFoundError:
        return None
    try:
        note = json.loads(body)
        if note["format"] != _FORMAT:
            raise ValueError(f"format {note['format']}")
        return ObjectsPlace(str(note["url"]), str(note["endpoint_url"]), str(note["region"]))
    except (ValueError, KeyError, TypeError, RecursionError) as cause:
        raise CorruptError(
            f"{url}: the record of the objects' location ({_PLACE_KEY}) is damaged ({cause})",
            hint="delete the directory and adopt again: it contains only offloader's records",
        ) from cause


def _at(place: ObjectsPlace) -> str:
    return f" at {place.endpoint_url}" if place.endpoint_url else ""


def _is_note(key: str) -> bool:
    return "/" in key or key in ROOT_KEYS


class OverlayStore(StoreWrapper):
    """See ``ObjectStore``. ``list`` lists records if the prefix contains a folder, and objects otherwise.

    Args:
        url: of the catalogue.
        notes: holds every key with a folder, and ``ROOT_KEYS``.
        objects: holds all other keys; must refuse writes.
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
        return self.notes if _is_note(key) else self.inner

    def around(self, request: Request, call: Callable[[], _Answer]) -> _Answer:
        key = request.key
        is_note = "/" not in key or key.startswith("_") or RESERVED_LEVELS & set(key.split("/"))
        # A new segment would be written to the directory, although the manifest records the bucket.
        if request.verb in _CHANGING and not is_note:
            raise UnsupportedError(
                f"{self.url}: write of {key} refused: a catalogue can't hold entries",
                hint="to offload more entries beside Pulsar's, adopt without --read-only",
            )
        return call()

    def delete(self, keys: Sequence[str]) -> Sequence[DeleteFailure]:
        foreign = [key for key in keys if not _is_note(key)]
        # The inner store raises: it is read-only.
        return self.inner.delete(foreign) if foreign else self.notes.delete(keys)

    def close(self) -> None:
        self.notes.close()
        super().close()
