"""A second reader of manifests, made from docs/explanation/manifest.md alone: folds every record from the first on.

It imports nothing of this project, so that it can't share its mistakes, and takes no checkpoint's word for anything.
Besides what the records say it finds what contradicts that one owner after the other wrote the stream.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import google_crc32c

__all__ = ["Commit", "Contents", "Manifest", "Segment", "fold", "read_manifest"]

Position = tuple[int, int]

_RECORD = re.compile(r"(.*)/manifest/([0-9a-f-]{36})/([0-9]{20})\.json")
#: Edits that say nothing about which entries are where.
_OTHER_EDITS = frozenset({"hot_released", "pause", "resume", "hold", "set_method", "ledgers_deleted", "ledger_closed"})
_OTHER_EDITS |= {"reserve_ledgers", "set_aside", "gap_filled"}
#: What only the owner of a stream may say: what makes and ends a segment. Everything else others may, in its epoch;
#: that a ledger ended is a fact of the source, which is also written by who lets go of hot copies.
_OWNERS_EDITS = frozenset({"open_epoch", "assign", "offloaded", "failed", "rewrite", "replace", "reserve_ledgers"})


class Contents(Protocol):
    """The objects below a store's root."""

    def names(self) -> list[str]: ...

    def get(self, key: str) -> bytes:
        """One object.

        Raises:
            KeyError: it isn't there.
        """
        ...


@dataclass(frozen=True, slots=True)
class Commit:
    """One record. ``edits``: (kind, its fields), in order."""

    record_id: int
    epoch: int
    writer: str
    nonce: str
    time_ms: int
    edits: tuple[tuple[str, Mapping[str, Any]], ...]


@dataclass(frozen=True, slots=True)
class Segment:
    """What the manifest says of one: its range, and of its objects the lengths and checksums."""

    uuid: str
    begin: Position
    end: Position
    entries: int
    data: tuple[int, int]
    index: tuple[int, int]


@dataclass(slots=True)
class Manifest:
    """One stream's.

    Attributes:
        segments: those that can be read, by uuid.
        retired: those that will be deleted and may still come back, by uuid.
        purged: uuids whose objects are to go.
        failed: likewise, never complete.
        assigned: uuids that are begun and neither complete nor failed.
        assigned_most: how many there were at once.
        head: where the stream begins; ``None``: at its beginning.
        gaps: ranges that are recorded as lost.
        epoch: the newest one. owner: who opened it.
        newest_ms: the time of the newest record, by its writer's clock.
        records: how many there are.
        findings: what can't be.
    """

    stream: str
    incarnation: str = ""
    segments: dict[str, Segment] = field(default_factory=dict)
    retired: dict[str, Segment] = field(default_factory=dict)
    purged: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    assigned: set[str] = field(default_factory=set)
    assigned_most: int = 0
    head: Position | None = None
    gaps: list[tuple[Position, Position]] = field(default_factory=list)
    epoch: int = 0
    owner: str = ""
    newest_ms: int = 0
    records: int = 0
    findings: list[str] = field(default_factory=list)

    @property
    def uuids(self) -> set[str]:
        """Every one that was ever given out."""
        return {*self.segments, *self.retired, *self.purged, *self.failed, *self.assigned}

    @property
    def last(self) -> Position | None:
        """The newest entry in the store."""
        return max((segment.end for segment in self.segments.values()), default=None)


def read_manifest(contents: Contents, stream: str, keys: Sequence[str] | None = None) -> Manifest:
    """The manifest as its records say it; impossible ones are in ``findings``.

    Args:
        keys: what is in the store, where that is known.
    """
    manifest = Manifest(stream)
    found = [match for key in (contents.names() if keys is None else keys) if (match := _RECORD.fullmatch(key))]
    numbers = {int(match[3]): match[0] for match in found if match[1] == stream}
    incarnations = {match[2] for match in found if match[1] == stream}
    if len(incarnations) > 1:
        manifest.findings.append(f"{stream}: {len(incarnations)} incarnations of a stream that nobody deleted")
        return manifest
    manifest.incarnation = next(iter(incarnations), "")
    commits = []
    for number in sorted(numbers):
        record = _record(contents.get(numbers[number]))
        if record is None or record["record_id"] != number or record["incarnation"] != manifest.incarnation:
            manifest.findings.append(f"{stream}: record {number} is damaged")
            return manifest
        commits.append(_commit(record))
    _fold(manifest, commits)
    return manifest


def fold(stream: str, commits: Iterable[Commit]) -> Manifest:
    """What records come to, one after the other."""
    manifest = Manifest(stream)
    _fold(manifest, commits)
    return manifest


def _record(body: bytes) -> dict[str, Any] | None:
    """The document, if the checksum at its end is that of the bytes before it."""
    match = re.fullmatch(rb'(.*),"crc32c":"([0-9a-f]{8})"\}\n?', body, re.DOTALL)
    if match is None or google_crc32c.value(match[1]) != int(match[2], 16):
        return None
    found: dict[str, Any] = json.loads(body)
    return found


def _commit(record: Mapping[str, Any]) -> Commit:
    edits = tuple((edit["edit"], edit) for edit in record["edits"])
    writer = record["writer"]
    return Commit(record["record_id"], record["epoch"], writer["name"], writer["nonce"], record["time_ms"], edits)


def _fold(manifest: Manifest, commits: Iterable[Commit]) -> None:
    nonces: set[str] = set()
    for commit in commits:
        if commit.record_id != manifest.records + 1:
            missing = f"record {manifest.records + 1} is missing, record {commit.record_id} is there"
            manifest.findings.append(f"{manifest.stream}: {missing}")
            return
        if commit.nonce in nonces:
            manifest.findings.append(f"{manifest.stream}: record {commit.record_id} is there twice")
        nonces.add(commit.nonce)
        if commit.time_ms < manifest.newest_ms:
            manifest.findings.append(f"{manifest.stream}: record {commit.record_id} is earlier than the one before it")
        manifest.records, manifest.newest_ms = commit.record_id, commit.time_ms
        _check_owner(manifest, commit)
        for kind, edit in commit.edits:
            _apply(manifest, kind, edit)
        manifest.assigned_most = max(manifest.assigned_most, len(manifest.assigned))


def _check_owner(manifest: Manifest, commit: Commit) -> None:
    """Epochs ascend one by one, and who opened one is the only one to say in it what an owner says."""
    opened = [edit["epoch"] for kind, edit in commit.edits if kind == "open_epoch"]
    what = f"{manifest.stream}: record {commit.record_id}"
    if commit.epoch < manifest.epoch:
        manifest.findings.append(f"{what} of epoch {commit.epoch} comes after one of epoch {manifest.epoch}")
    elif opened:
        if opened != [manifest.epoch + 1] or commit.epoch != manifest.epoch + 1:
            manifest.findings.append(f"{what} opens epoch {opened} after {manifest.epoch}")
        manifest.epoch, manifest.owner = commit.epoch, commit.writer
    elif commit.epoch > manifest.epoch:
        manifest.findings.append(f"{what}: nobody opened epoch {commit.epoch}")
    elif commit.writer != manifest.owner and any(kind in _OWNERS_EDITS for kind, _ in commit.edits):
        manifest.findings.append(f"{what} of epoch {commit.epoch} is by {commit.writer}, its owner is {manifest.owner}")


def _apply(manifest: Manifest, kind: str, edit: Mapping[str, Any]) -> None:
    where = f"{manifest.stream}: record {manifest.records}: {kind}"
    uuids = edit.get("uuids", [edit["uuid"]] if "uuid" in edit else [])
    if kind == "open_epoch":
        return
    if kind == "assign":
        if uuids[0] in manifest.uuids:
            manifest.findings.append(f"{where}: {uuids[0]} once more")
        manifest.assigned.add(uuids[0])
    elif kind == "offloaded":
        _expect(manifest, uuids, manifest.assigned, where)
        manifest.segments[uuids[0]] = _segment(uuids[0], edit["summary"])
    elif kind == "failed":
        _expect(manifest, uuids, manifest.assigned, where)
        manifest.failed.update(uuids)
    elif kind == "retire":
        manifest.retired |= {uuid: manifest.segments[uuid] for uuid in uuids if uuid in manifest.segments}
        _expect(manifest, uuids, manifest.segments, where)
    elif kind == "undo_retire":
        manifest.segments |= {uuid: manifest.retired[uuid] for uuid in uuids if uuid in manifest.retired}
        _expect(manifest, uuids, manifest.retired, where)
    elif kind == "purged":
        _expect(manifest, uuids, manifest.retired, where)
        manifest.purged.update(uuids)
    elif kind == "truncate":
        head = tuple(edit["head"])
        if manifest.head is not None and head < manifest.head:
            manifest.findings.append(f"{where}: the head goes back from {manifest.head} to {head}")
        manifest.head = (head[0], head[1])
    elif kind == "gap":
        first, last = edit["first"], edit["last"]
        manifest.gaps.append(((first[0], first[1]), (last[0], last[1])))
    elif kind not in _OTHER_EDITS:
        manifest.findings.append(f"{where}: nobody asked for that")


def _expect(manifest: Manifest, uuids: list[str], among: set[str] | dict[str, Segment], where: str) -> None:
    """Takes ``uuids`` from ``among``, where they have to be."""
    for uuid in uuids:
        if uuid not in among:
            manifest.findings.append(f"{where}: {uuid} wasn't")
        elif isinstance(among, set):
            among.discard(uuid)
        else:
            del among[uuid]


def _segment(uuid: str, summary: Mapping[str, Any]) -> Segment:
    begin, end = summary["begin"], summary["end"]
    return Segment(
        uuid,
        (begin[0], begin[1]),
        (end[0], end[1]),
        summary["entries"],
        (summary["data_bytes"], summary["data_crc32c"]),
        (summary["index_bytes"], summary["index_crc32c"]),
    )
