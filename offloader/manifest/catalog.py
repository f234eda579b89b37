"""The catalogue: which streams a store has, and which incarnation of each is alive.

Owns the catalogue's entries. Must never delete one with an unconditional request: it may be the next incarnation's.

An entry that is let go becomes an empty object, by If-Match: stores have no conditional delete to rely on, and a plain
one that arrives late would take the entry of a stream that was created again meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from formats.errors import FormatError
from formats.keys import catalog_key, catalog_prefix, stream_of_catalog_key
from formats.manifest import CatalogEntry, decode_catalog_entry, encode_catalog_entry
from offloader.errors import Corrupt, InvalidCall, NotFound, PreconditionFailed, StoreUnavailable
from offloader.manifest.unreadable import REBUILD, unreadable
from offloader.store.base import CREATE, IfMatch, ObjectStore

__all__ = ["create_entry", "is_released", "list_streams", "read_entry", "release_entry", "replace_entry"]

#: Body of an entry that names no stream any more.
_VOID = b""


def read_entry(store: ObjectStore, stream: str) -> CatalogEntry | None:
    """The stream's entry; ``None`` when there is no such stream.

    Raises:
        InvalidCall: ``stream`` is no stream's name.
        Corrupt: the entry is damaged.
        Unsupported: a later release wrote it.
    """
    return _read(store, stream)[0]


def list_streams(store: ObjectStore, *, prefix: str = "", released: bool = False) -> list[str]:
    """Names of the streams in a store that begin with ``prefix``, sorted. One listing of the catalogue.

    Args:
        released: also names whose entry was let go: streams of that name were deleted.
    """
    found: list[str] = []
    after: str | None = ""
    while after is not None:
        page = store.list(catalog_prefix(), after=after)
        names = [_stream_named_by(info.key) for info in page.objects if info.size_bytes or released]
        found += [name for name in names if name is not None and name.startswith(prefix)]
        after = page.next_after
    return sorted(found)


def is_released(store: ObjectStore, stream: str) -> bool:
    """Whether the stream had an entry that was let go."""
    existing, etag = _read(store, stream)
    return existing is None and etag is not None


def create_entry(
    store: ObjectStore, stream: str, new_incarnation: Callable[[], UUID], created_ms: int
) -> tuple[CatalogEntry, bool]:
    """Creates the stream's entry, unless there is one: then that one. Whether it was created.

    Raises:
        InvalidCall: another stream's name begins with this one's levels, or the other way round.
    """
    existing, etag = _read(store, stream)
    if existing is not None:
        return existing, False
    _require_own_level(store, stream)
    entry = CatalogEntry(stream, new_incarnation(), created_ms)
    mode = CREATE if etag is None else IfMatch(etag)
    try:
        store.put(catalog_key(stream), encode_catalog_entry(entry), mode=mode)
    except PreconditionFailed:
        existing = read_entry(store, stream)
        if existing is None:
            raise StoreUnavailable(f"stream {stream} appears and vanishes in {store.url}") from None
        # A lost answer to our own creation looks the same.
        return existing, existing == entry
    return entry, True


def replace_entry(store: ObjectStore, entry: CatalogEntry, *, expected: CatalogEntry | None) -> bool:
    """Makes ``entry`` the stream's, where ``expected`` (``None``: nothing readable) stands now; whether that was so.

    Raises:
        InvalidCall: there is nothing, and another stream's name begins with this one's levels, or the other way round.
    """
    try:
        existing, etag = _read(store, entry.stream)
    except Corrupt:
        existing, etag = None, store.head(catalog_key(entry.stream)).etag
    if existing != expected:
        return existing == entry
    if etag is None:
        _require_own_level(store, entry.stream)
    try:
        store.put(
            catalog_key(entry.stream), encode_catalog_entry(entry), mode=CREATE if etag is None else IfMatch(etag)
        )
    except PreconditionFailed:
        return _read(store, entry.stream)[0] == entry
    return True


def release_entry(store: ObjectStore, stream: str, incarnation: UUID) -> bool:
    """Lets go of the entry of one incarnation; whether it doesn't stand any more."""
    existing, etag = _read(store, stream)
    if existing is None or existing.incarnation != incarnation or etag is None:
        return True
    try:
        store.put(catalog_key(stream), _VOID, mode=IfMatch(etag))
    except PreconditionFailed:
        existing = read_entry(store, stream)
        return existing is None or existing.incarnation != incarnation
    return True


def _read(store: ObjectStore, stream: str) -> tuple[CatalogEntry | None, str | None]:
    """The entry, and the ETag of its object where there is one, be it empty."""
    try:
        key = catalog_key(stream)
    except FormatError as error:
        raise InvalidCall(str(error)) from error
    try:
        data, info = store.get(key)
    except NotFound:
        return None, None
    if data == _VOID:
        return None, info.etag
    try:
        entry = decode_catalog_entry(data, object_name=key)
    except FormatError as error:
        raise unreadable(f"the catalogue entry of stream {stream}", error) from error
    if entry.stream != stream:
        raise Corrupt(f"{key} in {store.url} names stream {entry.stream}, not {stream}", hint=REBUILD)
    return entry, info.etag


def _require_own_level(store: ObjectStore, stream: str) -> None:
    """No stream's name may be the beginning of another's levels: their keys would lie in each other's place."""
    levels = stream.split("/")
    above = ["/".join(levels[:count]) for count in range(1, len(levels))]
    clash = next((name for name in above if read_entry(store, name) is not None), None)
    after: str | None = ""
    while clash is None and after is not None:
        page = store.list(catalog_key(stream) + "/", after=after)
        below = [_stream_named_by(info.key) for info in page.objects if info.size_bytes]
        clash = next((name for name in below if name is not None), None)
        after = page.next_after
    if clash is not None:
        raise InvalidCall(
            f"stream {stream} can't be created: stream {clash} exists, and one name begins with the other",
            hint="choose a name beside it",
        )


def _stream_named_by(key: str) -> str | None:
    try:
        return stream_of_catalog_key(key)
    except FormatError:
        return None  # something else that lies in the catalogue's place: not ours to judge
