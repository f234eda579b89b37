"""Classify listed objects and unfinished uploads: needed, orphaned, or foreign.

Rules M37 to M47 of docs/explanation/manifest.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from formats.documents import (
    awaited_number,
    deletion_name,
    incarnation_of_retention_key,
    intent_key,
    lease_uuid,
    topic_key,
)
from formats.keys import Testimony, is_segment_uuid_of, object_testimony, parse_object_key, stream_prefix
from offloader.errors import NotFoundError
from offloader.manifest.boundary import REBUILD, LostRecordsError, is_manifest_object
from offloader.manifest.catalog import TopicState, is_void_size
from offloader.manifest.lost_records import newest_ms
from offloader.manifest.segment_table import Words
from offloader.manifest.state import ManifestState, tells_of_loss
from offloader.store.base import ObjectInfo, ObjectStore, UploadInfo


class Place(StrEnum):
    """Kind of object, by its key."""

    SEGMENT = "segment"
    UPLOAD = "upload"
    MANIFEST = "manifest"
    OLD_MANIFEST = "old manifest"
    LEASE = "lease"
    RETENTION = "retention"
    CATALOGUE = "catalogue"
    STORE = "store"
    OTHER = "other"


class Reason(StrEnum):
    """Why an object is garbage, or why it is kept although nothing names it."""

    UNNAMED = "no manifest names it"
    DEAD = "of a stream that was deleted"
    COMPLETE = "its segment is complete"
    ENDED = "a lease that has ended"
    LET_GO = "of a stream that was deleted; nothing of it is left"
    SCRATCH = "left by a store probe"
    DEAD_MANIFEST = "a manifest that no catalogue entry names"
    YOUNG = "too young"
    HELD = "held back: a hold is on the stream, or on everything"
    UNLISTED = "of a stream without a catalogue entry"
    DOUBTFUL = "its manifest was abandoned or can't be read"
    NAMED_SINCE = "named or changed since the listing"
    UNTOLD = "younger than the newest record: one that names it may be lost"
    RECORDS_LOST = "records of its manifest are lost"
    FOREIGN = "nothing proves that it is ours"

    @property
    def is_deletable(self) -> bool:
        """Whether garbage of that reason may be deleted."""
        return self in _DELETABLE

    @property
    def is_ours(self) -> bool:
        """Whether the reason applies to objects of this project."""
        return self is not Reason.FOREIGN


_DELETABLE = {
    Reason.UNNAMED,
    Reason.DEAD,
    Reason.COMPLETE,
    Reason.ENDED,
    Reason.DEAD_MANIFEST,
    Reason.LET_GO,
    Reason.SCRATCH,
}


class Outcome(StrEnum):
    """Action taken."""

    KEPT = "kept"
    #: Deletable, but this is a dry run.
    DELETABLE = "deletable"
    DELETED = "deleted"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Garbage:
    """An object or upload that no manifest needs, or that is unknown.

    Attributes:
        stream: the stream whose prefix it is under; empty for none.
        key, size_bytes, modified_ms: from the listing; of an upload its start, and 0 bytes, as listings don't give its
            size.
        reason: why it is garbage, or why it is kept.
        objects: number below that key; more than one of an old manifest only.
    """

    stream: str
    place: Place
    key: str
    size_bytes: int
    modified_ms: int
    reason: Reason
    upload_id: str = ""
    objects: int = 1
    outcome: Outcome = Outcome.KEPT
    problem: str = ""

    @classmethod
    def of(cls, info: ObjectInfo, stream: str, place: Place, reason: Reason, upload_id: str = "") -> Garbage:
        """A listed object, or with ``upload_id`` an upload."""
        return cls(
            stream=stream,
            place=place,
            key=info.key,
            size_bytes=info.size_bytes,
            modified_ms=info.modified_ms,
            reason=reason,
            upload_id=upload_id,
        )

    def if_deletable(self, outcome: Outcome) -> Garbage:
        """With ``outcome`` if its reason allows deletion."""
        return replace(self, outcome=outcome) if self.reason.is_deletable else self

    def as_json(self, now_ms: int) -> dict[str, object]:
        """For programs, with its age at ``now_ms``."""
        return {
            "stream": self.stream,
            "key": self.key,
            "what": self.place.value,
            "upload_id": self.upload_id or None,
            "objects": self.objects,
            "age_s": (now_ms - self.modified_ms) / 1000,
            "bytes": self.size_bytes,
            "ours": self.reason.is_ours,
            "reason": self.reason.value,
            "outcome": f"{self.outcome.value}: {self.problem}" if self.problem else self.outcome.value,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSet:
    """Facts about a stream that classification needs.

    Attributes:
        names: the view of the live manifest, loaded after the listing; ``None``: the stream is deleted.
        dead: incarnations known to be deleted.
        doubtful: other incarnations with objects below the prefix: given up, damaged, or unknown.
        old_ms: objects last written then or earlier are old enough, by the earlier of both clocks.
        topic: documents of a partitioned topic of that name, read together with ``names``.
        is_stream: False: only such a topic has the name.
        is_forgotten: no manifest or catalogue entry of a stream, topic or partition of the name exists.
    """

    stream: str
    names: ManifestState | None
    dead: frozenset[UUID]
    doubtful: frozenset[UUID]
    old_ms: int
    stopped: bool = False
    topic: TopicState = field(default_factory=TopicState)
    is_stream: bool = True
    is_forgotten: bool = False

    @property
    def held(self) -> bool:
        """Whether deletion is on hold."""
        return self.stopped or (self.names is not None and self.names.held)

    @property
    def incarnation(self) -> UUID | None:
        """The live incarnation."""
        return None if self.names is None else self.names.incarnation

    def is_named(self, uuid: UUID) -> bool:
        """Whether the live manifest needs objects of that uuid."""
        names = self.names
        return (
            names is not None and not names.stream_deleted and (uuid in names.segments or uuid in names.uuids_aside())
        )

    def kept_or(self, reason: Reason, modified_ms: int) -> Reason:
        """``reason``, unless a hold, the age or doubt requires waiting."""
        if self.held:
            return Reason.HELD
        return reason if modified_ms <= self.old_ms else Reason.YOUNG

    def why_unnamed(self, uuid: UUID, modified_ms: int) -> Reason:
        """Meaning of a uuid that isn't named."""
        if self.names is not None and is_segment_uuid_of(uuid, self.names.incarnation):
            return self.kept_or(Reason.DEAD if self.names.stream_deleted else Reason.UNNAMED, modified_ms)
        if any(is_segment_uuid_of(uuid, dead) for dead in self.dead):
            return self.kept_or(Reason.DEAD, modified_ms)
        # A rebuilt manifest may name the objects of an abandoned one, or the objects may be the last copy of their
        # entries:
        # nothing proves that they are unneeded.
        return Reason.DOUBTFUL if any(is_segment_uuid_of(uuid, each) for each in self.doubtful) else Reason.FOREIGN


def classify_page(page: Sequence[ObjectInfo], known: LiveSet) -> Iterator[tuple[Place, int, int] | Garbage]:
    """Classify listed objects of a stream: kind, number and bytes of needed ones, and each garbage object."""
    start = len(stream_prefix(known.stream))
    rest: list[ObjectInfo] = []
    shaped: list[ObjectInfo] = []
    for info in page:
        # Nearly all names are a uuid, or one and "-index"; the parser handles other names with a uuid.
        length = len(info.key) - start
        plain = length == _UUID_LETTERS or (length == _UUID_LETTERS + len(_INDEX) and info.key.endswith(_INDEX))
        is_shaped = plain or (length > _UUID_LETTERS and parse_object_key(info.key, known.stream) is not None)
        (shaped if is_shaped else rest).append(info)
    is_uuid, high, low = _uuids_of([info.key[start : start + _UUID_LETTERS] for info in shaped])
    named = np.zeros(len(shaped), dtype=bool)
    if known.names is not None and not known.names.stream_deleted:
        named[is_uuid] = known.names.named(high[is_uuid], low[is_uuid])
    if count := int(named.sum()):
        yield Place.SEGMENT, count, sum(shaped[row].size_bytes for row in np.flatnonzero(named).tolist())
    for row in np.flatnonzero(is_uuid & ~named).tolist():
        uuid = UUID(int=int(high[row]) << 64 | int(low[row]))
        info = shaped[row]
        yield Garbage.of(info, known.stream, Place.SEGMENT, known.why_unnamed(uuid, info.modified_ms))
    rest += [shaped[row] for row in np.flatnonzero(~is_uuid).tolist()]
    yield from (_judge_other(info, known, info.key[start:]) for info in rest)


_UUID_LETTERS = 36
_INDEX = "-index"
_DASHES = [8, 13, 18, 23]
_DIGITS = [at for at in range(_UUID_LETTERS) if at not in _DASHES]
#: Letter -> its value as a hexadecimal digit, 255 for any other.
_VALUES = np.full(256, 255, dtype=np.uint8)
_VALUES[np.frombuffer(b"0123456789abcdef", dtype=np.uint8)] = np.arange(16)


def _uuids_of(texts: Sequence[str]) -> tuple[NDArray[np.bool_], Words, Words]:
    """Which of the texts, each of 36 letters, are uuids in the form of keys; and their halves."""
    letters = np.frombuffer("".join(texts).encode("ascii", "replace"), dtype=np.uint8).reshape(-1, _UUID_LETTERS)
    digits = _VALUES[letters[:, _DIGITS]]
    is_uuid = (digits < 16).all(axis=1) & (letters[:, _DASHES] == ord("-")).all(axis=1)
    octets = np.ascontiguousarray(digits[:, 0::2] << 4 | digits[:, 1::2] & 15)
    halves = octets.view(">u8").astype(np.uint64)
    return is_uuid, halves[:, 0], halves[:, 1]


def _judge_other(info: ObjectInfo, known: LiveSet, name: str) -> tuple[Place, int, int] | Garbage:
    """Classify an object whose name isn't a segment's."""
    folder, _, below = name.partition("/")
    incarnation, _, manifest_name = below.partition("/")
    is_manifest = folder == "manifest" and is_manifest_object(manifest_name)
    reason: Reason | None = None
    if folder == "retention" and below:
        reason = _retention_reason(info, known)
        place = Place.OTHER if reason is Reason.FOREIGN else Place.RETENTION
    elif folder == "leases" and lease_uuid(info.key, known.stream) is not None:
        place = Place.LEASE
    elif is_manifest and incarnation == str(known.incarnation):
        place = Place.MANIFEST
    elif is_manifest and incarnation in map(str, known.dead | known.doubtful):
        place, reason = Place.OLD_MANIFEST, known.kept_or(Reason.DEAD_MANIFEST, info.modified_ms)
    else:
        place, reason = Place.OTHER, Reason.FOREIGN
    return (place, 1, info.size_bytes) if reason is None else Garbage.of(info, known.stream, place, reason)


def _retention_reason(info: ObjectInfo, known: LiveSet) -> Reason | None:
    """Why an object below a ``retention/`` folder is garbage, or kept although unneeded; ``None``: it is needed.

    Documents belong to one incarnation, which their keys name; a stream's or topic's catalogue entry is written before
    its first document. A document listed before these were read, of an incarnation that they don't name, is therefore
    garbage for good. Other keys name no incarnation.
    """
    key, topic = info.key, known.topic
    if (incarnation := incarnation_of_retention_key(key, known.stream)) is not None:
        if incarnation in (known.incarnation, topic.incarnation):
            return None
        is_told = not topic.is_damaged and (known.is_stream or known.is_forgotten or topic.is_there)
        is_dead = is_told and incarnation not in known.doubtful
        return known.kept_or(Reason.DEAD, info.modified_ms) if is_dead else Reason.DOUBTFUL
    if key in (topic_key(known.stream), intent_key(known.stream)):
        is_over = topic.entry_is_over if key == topic_key(known.stream) else topic.intent_is_over
        return known.kept_or(Reason.DEAD, info.modified_ms) if is_over and not is_void_size(info.size_bytes) else None
    batches = (deletion_name(key, known.stream, done=done) for done in (True, False))
    if all(name is None for name in batches) and awaited_number(key, known.stream) is None:
        return Reason.FOREIGN
    if known.names is not None:
        return None
    if not known.is_stream and not known.is_forgotten:
        return Reason.UNLISTED
    return Reason.DOUBTFUL if known.doubtful else known.kept_or(Reason.DEAD, info.modified_ms)


def classify_upload(upload: UploadInfo, known: LiveSet) -> Garbage | None:
    """Classify an unfinished upload of a stream; ``None``: a writer may still be using it."""
    if (parsed := parse_object_key(upload.key, known.stream)) is None:
        reason = Reason.FOREIGN
    elif not known.is_named(parsed.uuid):
        reason = known.why_unnamed(parsed.uuid, upload.started_ms)
    elif known.names is not None and known.names.is_promised(parsed.uuid):
        return None
    elif known.names is not None and is_segment_uuid_of(parsed.uuid, known.names.incarnation):
        # Begun twice because the first response was lost: the object exists, and the second upload is unused.
        reason = known.kept_or(Reason.COMPLETE, upload.started_ms)
    else:
        reason = Reason.FOREIGN
    info = ObjectInfo(upload.key, 0, "", upload.started_ms)
    return Garbage.of(info, known.stream, Place.UPLOAD, reason, upload.upload_id)


def classified_again(leftover: Garbage, known: LiveSet) -> Garbage:
    """The same garbage, classified with newer facts."""
    reason: Reason | None
    if leftover.place is Place.SEGMENT:
        parsed = parse_object_key(leftover.key, known.stream)
        assert parsed is not None, "a segment's key can be parsed"
        reason = None if known.is_named(parsed.uuid) else known.why_unnamed(parsed.uuid, leftover.modified_ms)
    elif leftover.place is Place.UPLOAD:
        again = classify_upload(UploadInfo(leftover.key, leftover.upload_id, leftover.modified_ms), known)
        reason = None if again is None else again.reason
    elif leftover.place is Place.RETENTION:
        reason = _retention_reason(ObjectInfo(leftover.key, leftover.size_bytes, "", leftover.modified_ms), known)
    else:
        reason = known.kept_or(leftover.reason, leftover.modified_ms)
    return replace(leftover, reason=reason or Reason.NAMED_SINCE)


@dataclass(slots=True)
class Witnesses:
    """Checks the objects of one stream that no record names. One HEAD each, two of an index.

    Attributes:
        lost: the object that refers to a missing record; empty: none so far.
    """

    store: ObjectStore
    stream: str
    lost: str = ""
    _newest_ms: dict[int, int] = field(default_factory=dict)

    def judged(self, leftover: Garbage, names: ManifestState | None) -> Garbage:
        """The garbage, with another reason if its object, or an earlier one, requires keeping it."""
        asked = leftover.place is Place.SEGMENT and leftover.reason is Reason.UNNAMED
        if asked and names is not None and not self.lost:
            key = parse_object_key(leftover.key, self.stream)
            assert key is not None, "a segment's key can be parsed"
            testimony: Testimony | None = None
            with suppress(NotFoundError):
                testimony = object_testimony(self.store.head(key.witness_key).metadata)
            # A fill is older than the only record that names it, so it can't prove the loss of that record.
            is_untold = testimony is None or key.is_fill
            if testimony is not None and tells_of_loss(names.assigning, testimony):
                self.lost = f"{leftover.key} refers to record {testimony.record_id}"
            elif is_untold and leftover.modified_ms > self._newest_of(names):
                return replace(leftover, reason=Reason.UNTOLD)
        return replace(leftover, reason=Reason.RECORDS_LOST) if self.lost else leftover

    def require_none_lost(self) -> None:
        """Raise ``LostRecordsError`` if an object refers to a missing record."""
        if self.lost:
            raise LostRecordsError(
                f"stream {self.stream}: {self.lost}, which its manifest lacks: nothing more of it is deleted",
                hint=f"`offloader verify {self.stream}` shows details; {REBUILD}",
            )

    def _newest_of(self, names: ManifestState) -> int:
        if names.record_id not in self._newest_ms:
            self._newest_ms[names.record_id] = newest_ms(self.store, names)
        return self._newest_ms[names.record_id]
