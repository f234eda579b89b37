"""Objects below a stream's prefix that its manifest doesn't name."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

from formats.keys import is_segment_uuid_of, manifest_prefix, parse_object_key, stream_prefix
from offloader.inspect.verify import Damage, Finding, lost_record_told
from offloader.manifest.boundary import is_manifest_object, listed
from offloader.manifest.lost_records import newest_ms, unnamed_objects
from offloader.manifest.state import ManifestState
from offloader.store.base import ObjectStore

__all__ = ["find_unexpected", "what_is"]


def find_unexpected(store: ObjectStore, state: ManifestState) -> Iterator[Finding]:
    """Findings for objects and unfinished uploads that the manifest doesn't explain: damage where an object refers to a
    missing record, else a note.

    The listing may be older or newer than ``state``. A segment being written is no finding, as its record is older than
    its objects; a segment assigned after ``state`` was loaded looks like an orphan.

    Args:
        store: where the stream is.
        state: the manifest's view.
    """
    prefix = stream_prefix(state.stream)
    for info in listed(store, prefix):
        problem = what_is(info.key, state)
        if problem is None:
            continue
        unnamed = next(unnamed_objects(store, state, [info]), None) if problem is Damage.ORPHAN else None
        damage = None if unnamed is None else lost_record_told(store, state, unnamed)
        is_untold = unnamed is not None and unnamed.testimony is None and info.modified_ms > newest_ms(store, state)
        words = _UNTOLD if is_untold else _WORDS[problem]
        yield damage or _note(state, problem, info.key, f"{info.size_bytes} bytes", words)
    for upload in store.list_uploads(prefix):
        key = parse_object_key(upload.key, state.stream)
        if key is None or key.uuid not in state.segments:
            found = f"an unfinished upload, {upload.upload_id}"
            yield _note(state, Damage.UNFINISHED, upload.key, found, _WORDS[Damage.UNFINISHED])


def what_is(key: str, state: ManifestState) -> Damage | None:
    """Kind of a listed key under the stream's prefix; ``None`` where the manifest explains it.

    Source: spec of the manifest, sections 1 (known key shapes, directly under the stream) and 5 (a uuid proves its
    origin).
    """
    found = parse_object_key(key, state.stream)
    if found is not None:
        if found.uuid in state.segments or _is_kept(found.uuid, state):
            return None
        return Damage.ORPHAN if is_segment_uuid_of(found.uuid, state.incarnation) else Damage.FOREIGN
    prefix = manifest_prefix(state.stream, state.incarnation)
    if key.startswith(prefix):
        return None if is_manifest_object(key[len(prefix) :]) else Damage.FOREIGN
    folder = key[len(stream_prefix(state.stream)) :].partition("/")[0]
    return None if folder in ("leases", "retention") else Damage.FOREIGN


def _is_kept(uuid: UUID, state: ManifestState) -> bool:
    rewrites, replaced = (each.uuid for each in state.rewrites), (each.uuid for each in state.replaced)
    return uuid in rewrites or uuid in replaced


_WORDS = {
    Damage.ORPHAN: ("a leftover of a failed attempt, or of one that began just now", "cleanup takes it when old"),
    Damage.FOREIGN: ("not an object that this stream's manifest knows", "nothing here ever touches it"),
    Damage.UNFINISHED: ("an upload that no segment is waiting for", "cleanup aborts it when old, if it is ours"),
}
_UNTOLD = (
    "it says nothing of its record and is younger than the newest one: a leftover, or a record is lost",
    "cleanup keeps it until a newer record is there",
)


def _note(state: ManifestState, problem: Damage, key: str, found: str, words: tuple[str, str]) -> Finding:
    what, advice = words
    return Finding(
        stream=state.stream,
        problem=problem,
        key=key,
        found=found,
        message=f"stream {state.stream}, object {key}, {found}: {what}",
        advice=advice,
    )
