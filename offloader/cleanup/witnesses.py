"""What objects that no record names tell of the manifest, before anything of them is deleted.

An object that this project wrote names a record that assigned segments. When the manifest hasn't that record, it isn't
the object that is left over, but records that are lost: then nothing of the stream is deleted. An object that names
none is of an earlier release, or of a store that keeps no metadata: it is compared by time, kept while it is younger
than the newest record, and stops nobody.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from uuid import UUID

from formats.keys import data_key, parse_object_key
from formats.object_metadata import Testimony, object_testimony
from offloader.cleanup.orphans import Leftover, Place, Reason
from offloader.errors import NotFound
from offloader.manifest.named_uuids import NamedUuids
from offloader.manifest.survivors import newest_ms
from offloader.manifest.testimony import tells_of_loss
from offloader.manifest.unreadable import REBUILD, LostRecords
from offloader.store.base import ObjectStore

__all__ = ["Witnesses"]


@dataclass(slots=True)
class Witnesses:
    """The objects of one stream that no record names, asked one by one. One HEAD each, two of an index.

    Attributes:
        lost: which object told of a record that isn't there; empty: none so far.
    """

    store: ObjectStore
    stream: str
    lost: str = ""
    _newest_ms: dict[int, int] = field(default_factory=dict)

    def judged(self, leftover: Leftover, names: NamedUuids | None) -> Leftover:
        """The leftover, with another reason where its object, or one before, speaks for keeping it."""
        asked = leftover.place is Place.SEGMENT and leftover.reason is Reason.UNNAMED
        if asked and names is not None and not self.lost:
            key = parse_object_key(leftover.key, self.stream)
            assert key is not None, "a segment's key can be parsed"
            testimony = self.testimony_of(key.uuid, key.ledger_id)
            if testimony is not None and tells_of_loss(names.assigning, testimony):
                self.lost = f"{leftover.key} tells of record {testimony.record_id}"
            elif testimony is None and leftover.modified_ms > self._newest_of(names):
                return replace(leftover, reason=Reason.UNTOLD)
        return replace(leftover, reason=Reason.RECORDS_LOST) if self.lost else leftover

    def require_none_lost(self) -> None:
        """Raises ``LostRecords`` when one told of a record that isn't there."""
        if self.lost:
            raise LostRecords(
                f"stream {self.stream}: {self.lost}, which its manifest hasn't: nothing more of it is deleted",
                hint=f"`offloader verify {self.stream}` says more; {REBUILD}",
            )

    def testimony_of(self, uuid: UUID, ledger_id: int | None) -> Testimony | None:
        """What a segment's data object says; ``None``: nothing, or it isn't there."""
        try:
            return object_testimony(self.store.head(data_key(self.stream, uuid, ledger_id)).metadata)
        except NotFound:
            return None

    def _newest_of(self, names: NamedUuids) -> int:
        if names.record_id not in self._newest_ms:
            self._newest_ms[names.record_id] = newest_ms(self.store, names)
        return self._newest_ms[names.record_id]
