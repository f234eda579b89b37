"""Finding a stream by its name.

Owns what people are told when it isn't there. Must never take a damaged manifest for an absent one.
"""

from __future__ import annotations

import difflib
from uuid import UUID

from offloader.errors import NotFound
from offloader.manifest.log import list_streams, load_manifest
from offloader.manifest.state import ManifestState
from offloader.store.base import ObjectStore

__all__ = ["load_stream"]

#: Names that an error about an unknown stream suggests.
SUGGESTIONS_MAX = 3
#: Of a stream that has no manifest yet.
_NO_INCARNATION = UUID(int=0)


def load_stream(store: ObjectStore, stream: str, *, may_be_absent: bool = False) -> ManifestState:
    """The newest view of a stream, as ``load_manifest``, for people: similar names in the hint.

    Args:
        store: where it is.
        stream: its name.
        may_be_absent: an empty view instead of ``NotFound``.

    Raises:
        NotFound: no such stream, or it was deleted.
        InvalidCall: not a stream's name.
        Corrupt: the manifest is damaged.
    """
    try:
        state = load_manifest(store, stream)
    except NotFound as error:
        if may_be_absent:
            return ManifestState(stream=stream, incarnation=_NO_INCARNATION)
        similar = difflib.get_close_matches(stream, list_streams(store), n=SUGGESTIONS_MAX)
        hint = f"did you mean {' or '.join(similar)}?" if similar else "`offloader ls` lists the streams"
        raise NotFound(f"stream {stream} isn't in {store.url}", hint=hint) from error
    if state.stream_deleted:
        raise NotFound(f"stream {stream} in {store.url} was deleted")
    return state
