"""Reading and changing retention's documents where many processes do so at once.

Owns the conditional write: which version a change was made for, and what became of it. Must never take an unknown
outcome for a failure or for a success: it looks.

A change is a pure function of the document as it stands. It is written with If-Match on the ETag of what was read; who
comes second reads again and applies the function anew, so that nobody's change is lost. Each body has a nonce of its
own and remembers those before it: a writer that lost the answer finds its nonce, or sees that another revision has
taken its place and that its request can't land any more.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic

from formats.errors import FormatError
from formats.retention_state import NONCES_KEPT, Document, Version, decode_document, encode_document
from offloader.clock import Clock
from offloader.errors import NotFound, OutcomeUnknown, PreconditionFailed, StoreUnavailable
from offloader.manifest.unreadable import unreadable
from offloader.store.base import CREATE, IfMatch, ObjectStore

__all__ = ["CONFLICTS_MAX", "DocumentStore", "Stored"]

#: Changes by others that one change yields to before it gives up.
CONFLICTS_MAX = 100
#: Times one change repeats a request whose outcome is unknown before it reports that.
UNKNOWN_REPEATS_MAX = 5
#: Longest wait before a change is tried again behind another one, seconds; drawn anew each time.
CONFLICT_WAIT_S_MAX = 0.25
_DAMAGED = "put an earlier version of this object back; until then nothing of the stream is deleted by retention"


@dataclass(frozen=True, slots=True)
class Stored(Generic[Document]):
    """A document as it was read.

    Attributes:
        document: what it says; where there is none, one that says nothing.
        etag: ``None`` where there is none.
        modified_ms: when it was written, by the store's clock; 0 where there is none.
    """

    document: Document
    etag: str | None
    modified_ms: int = 0


class DocumentStore:
    """Documents in an object store. Thread-safe.

    Args:
        store: where they are.
        clock: for the times in them, and for waiting.
        entropy: source of random bytes.
    """

    def __init__(self, store: ObjectStore, clock: Clock, entropy: Callable[[int], bytes] = os.urandom) -> None:
        self.store = store
        self.clock = clock
        self._entropy = entropy

    def read(self, key: str, empty: Document) -> Stored[Document]:
        """The document now; ``empty`` where there is none.

        Raises:
            Corrupt: it is damaged.
            Unsupported: a later release wrote it.
        """
        try:
            data, info = self.store.get(key)
        except NotFound:
            return Stored(empty, None)
        try:
            document = decode_document(type(empty), data, object_name=key)
        except FormatError as error:
            raise unreadable(f"{key} in {self.store.url}", error, hint=_DAMAGED) from error
        return Stored(document, info.etag, info.modified_ms)

    def change(
        self, key: str, empty: Document, alter: Callable[[Stored[Document]], Document | None]
    ) -> Stored[Document]:
        """Replaces a document by what ``alter`` makes of it; what stands there afterwards.

        Args:
            key: of the object.
            empty: what ``alter`` gets where there is none.
            alter: pure, called once for each version it meets; ``None``: nothing is to be changed. What it raises
                ends the change, nothing was written.

        Raises:
            OutcomeUnknown: the store doesn't tell; call again.
            StoreUnavailable: others changed it ``CONFLICTS_MAX`` times meanwhile, nothing was changed.
            Corrupt, Unsupported: as for ``read``.
        """
        for conflict in range(CONFLICTS_MAX):
            stored = self.read(key, empty)
            wanted = alter(stored)
            if wanted is None:
                return stored
            written = self._write(key, stored, self._next(stored.document, wanted))
            if written is not None:
                return written
            self._wait(conflict)
        raise StoreUnavailable(f"{key} in {self.store.url}: others changed it {CONFLICTS_MAX} times meanwhile")

    def _next(self, old: Document, wanted: Document) -> Document:
        before: Version = old.version
        nonces = (before.nonce, *before.before)[:NONCES_KEPT] if before.revision else ()
        # Times never go back, whatever the clock does.
        now_ms = max(self.clock.now_ms(), before.written_ms)
        return replace(wanted, version=Version(before.revision + 1, self._entropy(8).hex(), nonces, now_ms))

    def _write(self, key: str, stored: Stored[Document], wanted: Document) -> Stored[Document] | None:
        """What stands there with ``wanted`` in it; ``None``: another change came first, and this one never lands."""
        body, mode = encode_document(wanted), CREATE if stored.etag is None else IfMatch(stored.etag)
        for attempt in range(UNKNOWN_REPEATS_MAX + 1):
            try:
                info = self.store.put(key, body, mode=mode)
                return Stored(wanted, info.etag, info.modified_ms)
            except PreconditionFailed:
                return self._found(key, stored, wanted)
            except OutcomeUnknown:
                found = self.read(key, stored.document)
                if found.etag != stored.etag:
                    return self._found(key, stored, wanted)
                # The request may still land on what stands there: only the same bytes may follow it.
                if attempt == UNKNOWN_REPEATS_MAX:
                    raise
        raise AssertionError("the last repeat raises")

    def _found(self, key: str, stored: Stored[Document], wanted: Document) -> Stored[Document] | None:
        """After something else than ``stored`` was there: whether ``wanted`` is in it."""
        found = self.read(key, stored.document)
        version: Version = found.document.version
        own: Version = wanted.version
        if found.etag is not None and own.nonce in (version.nonce, *version.before):
            return found
        if found.etag is not None and version.revision - own.revision > NONCES_KEPT:
            raise OutcomeUnknown(
                f"{key} in {self.store.url} was changed {version.revision - own.revision} times since", hint="look"
            )
        return None

    def _wait(self, conflict: int) -> None:
        """The longer, the more often others came first: some process always gets on."""
        fraction = int.from_bytes(self._entropy(2), "big") / 2**16
        self.clock.wait(threading.Event(), fraction * min(CONFLICT_WAIT_S_MAX, 0.01 * (conflict + 1)))
