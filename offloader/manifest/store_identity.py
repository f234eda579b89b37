"""The identity of a store: a random id in one small object at its root, created once.

Every hot tier that notes manifests notes the identity too, at its first commit, and a serving process remembers the
identity that it started with. A different identity under the same URL is another bucket, a mistyped root, or a store
that was emptied and used again. It is reported but refuses nothing: the manifests decide that
(``offloader.manifest.noted``). A copy of a whole store has the same identity, so moving a store keeps it. A stream that
was copied alone is reported until ``stream set-source``.
"""

from __future__ import annotations

from contextlib import suppress
from uuid import UUID, uuid4

from formats.documents import STORE_IDENTITY_KEY, StoreIdentity
from offloader.errors import AccessDeniedError, NotFoundError, OffloaderError
from offloader.ledgers.base import NotingSource
from offloader.manifest.boundary import decoded
from offloader.manifest.state import ManifestState
from offloader.store.base import CREATE, ObjectStore, put_if

#: Hint where a hot tier noted another identity.
IDENTITY_HINT = (
    "check that the right store is mounted. If it is: `offloader stream set-source STREAM`; for a Pulsar topic remove "
    "the property offloader-store of the subscription"
)
#: Hint for an identity that can't be read.
_HINT = f"restore an earlier version of {STORE_IDENTITY_KEY}, or delete it: the next writer creates another one"


def require_identity(store: ObjectStore) -> UUID:
    """The store's identity. One request.

    Raises:
        NotFoundError: it has none. CorruptError, UnsupportedError: it can't be decoded.
    """
    data, _ = store.get(STORE_IDENTITY_KEY)
    what = f"the identity of store {store.url}, {STORE_IDENTITY_KEY},"
    return decoded(data, STORE_IDENTITY_KEY, StoreIdentity.decode, what, hint=_HINT).uuid


def read_identity(store: ObjectStore) -> UUID | None:
    """The store's identity; ``None``: it has none yet, or may not be read.

    Raises:
        CorruptError, UnsupportedError: it can't be decoded.
    """
    # S3 answers 403 for a key that isn't there to credentials that may not list.
    with suppress(NotFoundError, AccessDeniedError):
        return require_identity(store)
    return None


def identify(store: ObjectStore, *, noted: UUID | None = None) -> UUID | None:
    """The store's identity, created if it has none. Only a writer may call it.

    Args:
        noted: identity noted by a hot tier whose manifest is in this store; a lost identity is created again with this
            value.

    Raises:
        CorruptError, UnsupportedError: as ``read_identity``.
    """
    if (found := read_identity(store)) is not None:
        return found
    created = noted or uuid4()
    with suppress(AccessDeniedError):
        if put_if(store, STORE_IDENTITY_KEY, StoreIdentity(created).encode(), CREATE):
            return created
    return read_identity(store)


def other_identity(found: UUID | None, noted: UUID | None) -> str:
    """How a store's identity differs from a noted one; empty: it doesn't, or nothing is noted. Does no I/O."""
    if noted is None or found == noted:
        return ""
    return f"its identity is {found or 'gone'}, and {noted} is known"


def note_start(store: ObjectStore, notes: NotingSource, state: ManifestState, *, is_accepted: bool = False) -> None:
    """Notes the manifest that a stream is committed to, and its store's identity if none is noted yet.

    A store without an identity gets it here, because only here the manifest is known to be the stream's. An identity
    that can't be read or created stops no stream: the next start tries again, and doctor names it.

    Args:
        is_accepted: an operator accepted this store: its identity replaces a noted one.
    """
    with suppress(OffloaderError):
        noted = notes.noted_store()
        found = identify(store, noted=noted)
        if found is not None and found != noted and (noted is None or is_accepted):
            notes.note_store(found)
    notes.note_manifest(state.incarnation, state.record_id)
