"""What an exported table says about the ranges that it has: properties of its snapshots and of the table.

A range's positions are in the summary of the snapshot that added it. Snapshots expire, so two properties of the table
keep what they said: ``offloader.expired.STREAM`` joins the ranges of the snapshots that this package expired, and
``offloader.newest.STREAM`` is the range that was added last.

The history of a table is *whole* if only this package has expired snapshots of it: nothing expired, or the oldest kept
snapshot is the one that ``offloader.expired-before`` names. Then the history and the expired ranges together are exact,
also after a rollback. If another program expired snapshots, only ``offloader.newest.STREAM`` is left, which a rollback
leaves behind; so it counts only if it is older than the history.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from formats.entries import Position
from offloader.errors import Corrupt

_PREFIX = "offloader."
#: Of the table: the newest range of a stream, for when the snapshot that added it has expired.
NEWEST = "offloader.newest."
#: Of the table: what expired snapshots said of a stream's ranges, as one range.
EXPIRED = "offloader.expired."
#: Of the table: the oldest snapshot that the last expiry of this package kept.
EXPIRED_BEFORE = "offloader.expired-before"
_SEQUENCE = "offloader.sequence-number"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedRange:
    """A range of a stream that one snapshot of the table added.

    Attributes:
        stream, incarnation: of the entries.
        manifest: record that the range was planned from.
        first, last: positions, inclusive.
        after: last position of the range before it; ``None``: this is the first one.
        entries: in the range.
        rows: that were added: the entries, or their messages.
        lost: whether retention deleted entries between ``after`` and ``first``.
    """

    stream: str
    incarnation: str
    manifest: int
    first: Position
    last: Position
    after: Position | None
    entries: int
    rows: int
    lost: bool

    def encode(self) -> dict[str, str]:
        """As properties of a snapshot."""
        facts = {
            "stream": self.stream,
            "stream-id": self.incarnation,
            "manifest": str(self.manifest),
            "first": str(self.first),
            "last": str(self.last),
            "after": "" if self.after is None else str(self.after),
            "entries": str(self.entries),
            "rows": str(self.rows),
            "lost": "true" if self.lost else "false",
        }
        return {_PREFIX + name: value for name, value in facts.items()}

    @classmethod
    def decode(cls, properties: Mapping[str, str]) -> ExportedRange | None:
        """From a snapshot's properties; ``None``: another program's. Raises ``Corrupt``: they were changed."""
        if _PREFIX + "stream" not in properties:
            return None
        facts = {name.removeprefix(_PREFIX): value for name, value in properties.items() if name.startswith(_PREFIX)}
        try:
            return cls(
                stream=facts["stream"],
                incarnation=facts["stream-id"],
                manifest=int(facts["manifest"]),
                first=Position.parse(facts["first"]),
                last=Position.parse(facts["last"]),
                after=Position.parse(facts["after"]) if facts["after"] else None,
                entries=int(facts["entries"]),
                rows=int(facts["rows"]),
                lost=facts["lost"] == "true",
            )
        except (ValueError, KeyError) as cause:
            raise _changed("a snapshot's summary", cause) from cause


def exported_ranges(metadata: TableMetadata) -> list[ExportedRange]:
    """The ranges of all streams that the table's current state has, the newest first, as far as snapshots are kept.

    Raises:
        Corrupt: a snapshot's properties were changed.
    """
    return [each for each in map(range_of, history(metadata)) if each is not None]


def newest_range(metadata: TableMetadata, stream: str) -> ExportedRange | None:
    """The last exported range of a stream; ``None``: nothing of it was exported.

    The table's history decides: after a rollback of the table its export goes on from there.

    Raises:
        Corrupt: properties were changed, or the table was rolled back to before everything that is known of the stream.
    """
    snapshots = history(metadata)
    newest = next((each for each in map(range_of, snapshots) if each is not None and each.stream == stream), None)
    if newest is not None or not snapshots:
        return newest
    if is_whole(metadata):
        return _expired_range(metadata.properties, stream)
    kept = metadata.properties.get(NEWEST + stream)
    if kept is None:
        return None
    try:
        properties = dict(json.loads(kept))
        sequence = int(properties[_SEQUENCE])
    except (ValueError, TypeError, KeyError) as cause:
        raise _changed(f"property {NEWEST}{stream}", cause) from cause
    if sequence >= (snapshots[-1].sequence_number or 0):
        raise Corrupt(
            f"the table was rolled back, and the snapshots that say up to where stream {stream} was exported expired",
            hint="export the stream to a new table",
        )
    return ExportedRange.decode(properties)


def newest_property(added: ExportedRange, sequence: int) -> dict[str, str]:
    """The table's property about a stream's newest range, which the snapshot of that sequence number added."""
    return {NEWEST + added.stream: json.dumps({**added.encode(), _SEQUENCE: str(sequence)})}


def is_whole(metadata: TableMetadata) -> bool:
    """Whether only this package has expired snapshots that the current one follows."""
    oldest = next(reversed(history(metadata)), None)
    if oldest is None or oldest.sequence_number == 1:  # a table's first snapshot has number 1
        return True
    return metadata.properties.get(EXPIRED_BEFORE) == str(oldest.snapshot_id)


def history(metadata: TableMetadata) -> Sequence[Snapshot]:
    """The current snapshot and those that it follows, the newest first, as far as they are kept."""
    # pyiceberg's own walk looks through all snapshots for each one.
    kept: dict[int | None, Snapshot] = {each.snapshot_id: each for each in metadata.snapshots}
    found, at = list[Snapshot](), kept.get(metadata.current_snapshot_id)
    while at is not None:
        found.append(at)
        at = kept.get(at.parent_snapshot_id)
    return found


def range_of(snapshot: Snapshot) -> ExportedRange | None:
    """The range that a snapshot added; ``None``: another program's. Raises ``Corrupt``: its properties were changed."""
    return ExportedRange.decode(snapshot.summary.additional_properties if snapshot.summary else {})


def _changed(where: str, cause: Exception) -> Corrupt:
    return Corrupt(f"{where} isn't what an export writes: {cause!r}", hint="export to a new table")


def expired_properties(metadata: TableMetadata, old: Sequence[Snapshot]) -> dict[str, str]:
    """The table's properties without its oldest snapshots: what those said stays known.

    Args:
        metadata: of the table.
        old: the snapshots that expire, the oldest first; the oldest of the history, and not all of it.

    Raises:
        Corrupt: a property was changed; or another program has expired snapshots, and the table was rolled back to
            before everything that is known of a stream.
    """
    snapshots = history(metadata)
    found = expired_ranges(metadata.properties, [each for each in map(range_of, old) if each is not None])
    if is_whole(metadata):
        return {**found, EXPIRED_BEFORE: str(snapshots[-len(old) - 1].snapshot_id)}
    # What a rollback left behind would count as soon as the history is younger.
    for name in metadata.properties:
        if name.startswith(NEWEST):
            newest_range(metadata, name.removeprefix(NEWEST))
    for snapshot in reversed(snapshots):
        if (added := range_of(snapshot)) is not None:
            found |= newest_property(added, snapshot.sequence_number or 0)
    return found


def expired_ranges(properties: Mapping[str, str], old: Iterable[ExportedRange]) -> dict[str, str]:
    """The table's properties that say what its expired snapshots said; ``old`` are further ones, the oldest first.

    Raises ``Corrupt``: a property was changed.
    """
    known: dict[str, ExportedRange] = {}
    for each in old:
        before = known.get(each.stream) or _expired_range(properties, each.stream)
        follows = before is not None and before.last == each.after and before.incarnation == each.incarnation
        known[each.stream] = each if before is None or not follows else _joined(before, each)
    return {EXPIRED + name: json.dumps(each.encode()) for name, each in known.items()}


def _joined(one: ExportedRange, two: ExportedRange) -> ExportedRange:
    return replace(
        two,
        first=one.first,
        after=one.after,
        entries=one.entries + two.entries,
        rows=one.rows + two.rows,
        lost=one.lost or two.lost,
    )


def _expired_range(properties: Mapping[str, str], stream: str) -> ExportedRange | None:
    try:
        return ExportedRange.decode(dict(json.loads(properties.get(EXPIRED + stream, "{}"))))
    except (ValueError, TypeError) as cause:
        raise Corrupt(
            f"the table's property {EXPIRED}{stream} was changed: {cause}", hint="expire snapshots with another program"
        ) from cause
