"""A second reader of manifests, made from docs/MANIFEST.md alone: it folds every record from the first one on.

It imports nothing of this project, so that it can't share its mistakes, and takes no checkpoint's word for anything.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import google_crc32c

__all__ = ["Contents", "Manifest", "Segment", "read_manifest"]

Position = tuple[int, int]

_RECORD = re.compile(r"(.*)/manifest/([0-9a-f-]{36})/([0-9]{20})\.json")
#: Edits that say nothing about which entries are where.
_OTHER_EDITS = frozenset({"hot_released", "pause", "resume", "hold", "set_method", "ledgers_deleted"})


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
        head: where the stream begins; ``None``: at its beginning.
        gaps: ranges that are recorded as lost.
        epoch: the newest one.
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
    head: Position | None = None
    gaps: list[tuple[Position, Position]] = field(default_factory=list)
    epoch: int = 0
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


def read_manifest(contents: Contents, stream: str, keys: list[str] | None = None) -> Manifest:
    """The manifest as its records say it; impossible ones are in ``findings``."""
    manifest = Manifest(stream)
    numbers: dict[int, str] = {}
    incarnations = set()
    for key in contents.names() if keys is None else keys:
        match = _RECORD.fullmatch(key)
        if match and match[1] == stream:
            numbers[int(match[3])] = key
            incarnations.add(match[2])
    if len(incarnations) > 1:
        manifest.findings.append(f"{stream}: {len(incarnations)} incarnations of a stream that nobody deleted")
        return manifest
    manifest.incarnation = next(iter(incarnations), "")
    if sorted(numbers) != list(range(1, len(numbers) + 1)):
        manifest.findings.append(f"{stream}: records {sorted(numbers)[:3]}... up to {max(numbers)} aren't dense")
        return manifest
    for number in sorted(numbers):
        record = _record(contents.get(numbers[number]))
        if record is None or record["record_id"] != number or record["incarnation"] != manifest.incarnation:
            manifest.findings.append(f"{stream}: record {number} is damaged")
            return manifest
        if record["epoch"] < manifest.epoch:
            manifest.findings.append(f"{stream}: record {number} of epoch {record['epoch']} after {manifest.epoch}")
        manifest.epoch = max(manifest.epoch, record["epoch"])
        manifest.records, manifest.newest_ms = number, record["time_ms"]
        for edit in record["edits"]:
            _apply(manifest, edit, number)
    return manifest


def _record(body: bytes) -> dict[str, Any] | None:
    """The document, if the checksum at its end is that of the bytes before it."""
    match = re.fullmatch(rb'(.*),"crc32c":"([0-9a-f]{8})"\}\n?', body, re.DOTALL)
    if match is None or google_crc32c.value(match[1]) != int(match[2], 16):
        return None
    found: dict[str, Any] = json.loads(body)
    return found


def _apply(manifest: Manifest, edit: Mapping[str, Any], number: int) -> None:
    kind = edit["edit"]
    where = f"{manifest.stream}: record {number}: {kind}"
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
    elif kind not in _OTHER_EDITS and kind != "ledger_closed":
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
