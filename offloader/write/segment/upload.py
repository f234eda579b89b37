"""One data object and its index on their way into the store.

Owns the multipart upload: begun when the first part is sent, aborted unless completed. Must never write a key that
is anybody else's, send a complete again without looking first, or call an object uploaded that it hasn't looked at.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from uuid import UUID

from formats.checksum import crc32c
from formats.keys import data_key, index_key
from formats.object_metadata import Testimony, object_metadata
from formats.segment import Part
from offloader.errors import Closed, Corrupt, NotFound, OffloaderError, OutcomeUnknown, PreconditionFailed
from offloader.store.base import CREATE, OVERWRITE, ObjectInfo, ObjectStore, PartInfo

__all__ = ["SegmentUpload", "abort_uploads", "upload_of"]

#: Completes sent for one upload, each after a look that found neither the object nor a reason to stop.
COMPLETE_ATTEMPTS_MAX = 4
#: Looks at an object that was sent whole, each with the store's own retries, before the segment fails and all of it is
#: sent again under another name.
LOOKS_MAX = 4


class SegmentUpload:
    """Uploads one segment. Every method is one or a few storage calls and may run on any thread.

    Args:
        store: where to.
        data_key, index_key: the two objects' keys; nobody else writes them.
        data_metadata, index_metadata: their user metadata.
        testimony: what the data object says besides of the record that assigned it; asked when it is sent, which is
            after that record.
    """

    def __init__(
        self,
        store: ObjectStore,
        data_key: str,
        index_key: str,
        data_metadata: Mapping[str, str],
        index_metadata: Mapping[str, str],
        testimony: Callable[[], Testimony | None] = lambda: None,
    ) -> None:
        self._store = store
        self.data_key = data_key
        self.index_key = index_key
        self._data_metadata = data_metadata
        self._index_metadata = index_metadata
        self._testimony = testimony
        self._lock = threading.Lock()
        self._upload_id: str | None = None
        self._began = False
        self._aborted = False
        self._parts: dict[int, PartInfo] = {}
        #: What the store showed after the completion.
        self._completed: ObjectInfo | None = None

    def send_part(self, part: Part) -> None:
        """Sends one part; the first call begins the upload. Parts may be sent at once and in any order."""
        upload_id = self._begin()
        info = self._store.upload_part(self.data_key, upload_id, part.number, part.body, crc32c=part.crc32c)
        with self._lock:
            self._parts[part.number] = info

    def send_whole(self, part: Part) -> None:
        """Sends a data object that is one part as a single PUT.

        Raises:
            OutcomeUnknown: the store neither confirms nor shows the object.
        """
        try:
            self._store.put(self.data_key, part.body, mode=OVERWRITE, metadata=self._told(), crc32c=part.crc32c)
        except OutcomeUnknown:
            info = self._look()
            if info is None or info.size_bytes != part.size_bytes:
                raise

    def complete(self) -> None:
        """Makes the object of the parts sent.

        Raises:
            OutcomeUnknown: the store neither confirms nor shows the object.
        """
        with self._lock:
            upload_id, parts = self._upload_id, [self._parts[number] for number in sorted(self._parts)]
        assert upload_id is not None, "complete without a part"
        for attempt in range(COMPLETE_ATTEMPTS_MAX):
            try:
                self._completed = self._store.complete_upload(self.data_key, upload_id, parts)
            except OutcomeUnknown:
                # Sent again blindly, the second complete would find no upload and look like a failure.
                self._completed = self._look()
                if self._completed is not None:
                    return
                if attempt == COMPLETE_ATTEMPTS_MAX - 1:
                    raise
            else:
                return

    def prove(self, data_bytes: int) -> ObjectInfo:
        """Compares the length of the data object as the store showed it after its completion; asks for it after a
        single PUT, whose answer says nothing of it.

        Raises:
            Corrupt: it isn't as long as what was sent, or isn't there.
            OutcomeUnknown: the store doesn't say.
        """
        info = self._completed or self._look()
        if info is None or info.size_bytes != data_bytes:
            found = "nothing" if info is None else f"{info.size_bytes} bytes"
            raise Corrupt(f"{self.data_key} in {self._store.url}: {data_bytes} bytes were sent, the store has {found}")
        return info

    def send_index(self, index: bytes) -> None:
        """Creates the index object.

        Raises:
            Corrupt: another index is there already.
        """
        try:
            self._store.put(self.index_key, index, mode=CREATE, metadata=self._index_metadata, crc32c=crc32c(index))
        except PreconditionFailed as error:
            existing, _ = self._store.get(self.index_key)
            if existing != index:
                raise Corrupt(
                    f"{self.index_key} in {self._store.url} exists and isn't the index of this data"
                ) from error

    def abort(self) -> None:
        """Drops the upload and its parts; nothing of this upload can be completed afterwards. Does nothing after a
        single PUT."""
        with self._lock:
            self._aborted = True
            began = self._began
        if began:
            abort_uploads(self._store, self.data_key)

    def _begin(self) -> str:
        with self._lock:
            if self._aborted:
                raise Closed(f"the upload of {self.data_key} was aborted")
            if self._upload_id is None:
                self._began = True
                self._upload_id = self._store.begin_upload(self.data_key, metadata=self._told())
            return self._upload_id

    def _told(self) -> Mapping[str, str]:
        testimony = self._testimony()
        return {**self._data_metadata, **({} if testimony is None else testimony.as_metadata())}

    def _look(self) -> ObjectInfo | None:
        """The data object, after all of it was sent.

        Raises:
            OutcomeUnknown: the store doesn't say whether it is there.
        """
        for left in reversed(range(LOOKS_MAX)):
            try:
                return self._store.head(self.data_key)
            except NotFound:
                return None
            except OffloaderError as error:
                if not left or not error.retryable:
                    where = f"{self.data_key} was sent to {self._store.url}"
                    raise OutcomeUnknown(f"{where}, then {error.message}", hint="look before repeating it") from error
        raise AssertionError("the last look returns or raises")


def abort_uploads(store: ObjectStore, key: str) -> int:
    """Aborts every unfinished upload of exactly ``key``, those included whose id a lost answer kept from us."""
    found = [upload for upload in store.list_uploads(key) if upload.key == key]
    for upload in found:
        store.abort_upload(upload.key, upload.upload_id)
    return len(found)


def upload_of(
    store: ObjectStore,
    stream: str,
    uuid: UUID,
    ledger_id: int | None,
    *,
    incarnation: UUID,
    epoch: int,
    codec: str,
    extra_metadata: Mapping[str, str] | None = None,
    testimony: Callable[[], Testimony | None] = lambda: None,
) -> SegmentUpload:
    """The upload of one segment; nothing is sent yet.

    Args:
        store: where to.
        stream, ledger_id: decide the keys with ``uuid``; a ledger for V1 only.
        incarnation, epoch: written to the objects, so that a bucket explains itself.
        codec: the setting.
        extra_metadata: for both objects besides.
        testimony: as for ``SegmentUpload``.
    """
    from offloader import __version__

    # Declared before the first block is compressed, or not: metadata goes with the upload's first request.
    version = 1 if codec == "none" else 2
    data, index = (
        {
            **(extra_metadata or {}),
            **object_metadata(
                role=role,
                stream=stream,
                format_version=version,
                software_version=__version__,
                incarnation=incarnation,
                epoch=epoch,
            ),
        }
        for role in ("data", "index")
    )
    keys = data_key(stream, uuid, ledger_id), index_key(stream, uuid, ledger_id)
    return SegmentUpload(store, *keys, data, index, testimony)
