"""Is anything lost, there twice, dangling or leaked? Said after a run, from what lies in bucket and hot tier.

It imports nothing of the product: objects are read by tests/independent_reader.py, manifests by
tests/independent_manifest.py, the ledger database by SQLite, and the store by boto3.
"""

from __future__ import annotations

import re
import sqlite3
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import google_crc32c

from tests.independent_manifest import Contents, Manifest, Segment
from tests.independent_reader import check_blocks, read_segment
from tests.proof.chaos.chaos_journal import Journal, number_of

__all__ = ["Entries", "S3Contents", "check_stream", "cold_entries", "find_leaks", "hot_entries"]

Position = tuple[int, int]
Entries = dict[Position, bytes]

#: Findings of one kind that are listed; more are counted.
_LISTED_MAX = 5
_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
#: What a manifest's folder holds (docs/explanation/manifest.md).
_MANIFEST_NAME = re.compile(
    r"[0-9]{20}\.json|[0-9]{20}\.checkpoint\.parquet|[0-9]{20}-[0-9a-f]{16}\.(segments|ledgers)\.parquet|boundary"
)
#: What stays of a stream beside its segments and manifest: what retention remembers, and what was deleted.
_KEPT = re.compile(r"retention/(?!deleting/|awaited/)[^/].*")


class S3Contents:
    """The objects below ``root/`` of a bucket.

    Args:
        known: keeps what never changes, for who looks again and again.
        is_kept: which objects are kept there; default: the records of manifests.
    """

    def __init__(
        self,
        client: Any,
        bucket: str,
        root: str,
        known: dict[str, bytes] | None = None,
        is_kept: Callable[[str], bool] = lambda key: key.endswith(".json"),
    ) -> None:
        self.client, self.bucket, self.root = client, bucket, root
        self._known, self._is_kept = known, is_kept

    def names(self) -> list[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=f"{self.root}/")
        return [item["Key"].removeprefix(f"{self.root}/") for page in pages for item in page.get("Contents", [])]

    def get(self, key: str) -> bytes:
        if self._known is None or not self._is_kept(key):
            return self._get(key)
        if key not in self._known:
            self._known[key] = self._get(key)
        return self._known[key]

    def _get(self, key: str) -> bytes:
        try:
            found: bytes = self.client.get_object(Bucket=self.bucket, Key=f"{self.root}/{key}")["Body"].read()
        except self.client.exceptions.NoSuchKey as error:
            raise KeyError(key) from error
        return found

    def uploads(self, names: Iterable[str]) -> list[str]:
        """Unfinished uploads: those the store lists, and those of each of these names (MinIO wants whole names)."""
        found = set()
        for prefix in ("", *names):
            answer = self.client.list_multipart_uploads(Bucket=self.bucket, Prefix=f"{self.root}/{prefix}")
            found |= {item["Key"].removeprefix(f"{self.root}/") for item in answer.get("Uploads", [])}
        return sorted(found)


def hot_entries(database: Path, stream: str) -> Entries:
    """What the hot tier holds of a stream, by position."""
    found: Entries = {}
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        rows = connection.execute(
            "SELECT c.ledger_id, c.first_entry_id, c.entries, c.lengths, c.payload FROM chunks c"
            " JOIN ledgers l ON l.ledger_id = c.ledger_id JOIN streams s ON s.stream_id = l.stream_id"
            " WHERE s.stream = ? ORDER BY c.ledger_id, c.first_entry_id",
            (stream,),
        )
        for ledger, first, count, lengths, payload in rows:
            sizes = struct.unpack(f"<{count}i", lengths) if lengths else (len(payload) // count,) * count
            at = 0
            for entry, size in enumerate(sizes, first):
                found[ledger, entry] = payload[at : at + size]
                at += size
    return found


def cold_entries(contents: Contents, manifest: Manifest) -> tuple[Entries, list[str]]:
    """What the objects hold that the manifest names, by position, and what is wrong with them."""
    found: Entries = {}
    findings: list[str] = []
    segments = sorted(manifest.segments.values(), key=lambda segment: segment.begin)
    for segment in segments:
        entries, problems = _segment_entries(contents, manifest.stream, segment)
        findings += problems
        found |= entries
    for before, after in pairwise(segments):
        if after.begin <= before.end:
            findings.append(f"{manifest.stream}: twice: {after.uuid} begins within {before.uuid}")
    for segment in manifest.retired.values():
        findings += _segment_entries(contents, manifest.stream, segment)[1]
    return found, findings


def _segment_entries(contents: Contents, stream: str, segment: Segment) -> tuple[Entries, list[str]]:
    where = f"{stream}: {segment.uuid}"
    bodies = []
    for suffix, (size, crc) in (("", segment.data), ("-index", segment.index)):
        try:
            body = contents.get(f"{stream}/{segment.uuid}{suffix}")
        except KeyError:
            return {}, [f"{where}{suffix} dangling: the manifest names it and it isn't there"]
        if (len(body), google_crc32c.value(body)) != (size, crc):
            return {}, [f"{where}{suffix} isn't what the manifest says: {len(body)} bytes of {size}"]
        bodies.append(body)
    try:
        check_blocks(bodies[0])
        entries = read_segment(bodies[0], bodies[1])
    except (ValueError, struct.error) as error:
        return {}, [f"{where} can't be read: {error}"]
    places = [(ledger, entry) for ledger, entry, _ in entries]
    if len(entries) != segment.entries or not places or (places[0], places[-1]) != (segment.begin, segment.end):
        return {}, [f"{where} holds {len(entries)} entries, not {segment.entries} from {segment.begin}"]
    if any(after <= before for before, after in pairwise(places)):
        return {}, [f"{where} twice: its entries don't ascend"]
    return {(ledger, entry): payload for ledger, entry, payload in entries}, []


def check_stream(
    manifest: Manifest, cold: Entries, hot: Entries, journal: Journal, *, kept_bytes_min: int | None = None
) -> list[str]:
    """What is wrong with the entries of a stream.

    Args:
        manifest: says where it begins.
        cold, hot: both tiers.
        journal: what was appended to it.
        kept_bytes_min: payload bytes that retention has to leave; ``None``: nothing may be taken away.
    """
    stream, head = manifest.stream, manifest.head or (-1, -1)
    both = sorted(set(cold) & set(hot))
    findings = [f"{stream}: {place} isn't the same in both tiers" for place in both if cold[place] != hot[place]]
    entries = {place: payload for place, payload in sorted({**hot, **cold}.items()) if place >= head}
    numbers = {place: number_of(stream, payload) for place, payload in entries.items()}
    findings += _check_numbers(stream, numbers, journal)
    findings += [
        f"{stream}: lost: {after[0]}:{before[1] + 1} isn't there, {before} and {after} are"
        for before, after in pairwise(entries)
        if before[0] == after[0] and after[1] != before[1] + 1
    ]
    for number, place in journal.acked.items():
        if place >= head and numbers.get(place) != number:
            findings.append(
                f"{stream}: lost: number {number} was acknowledged at {place}, there is {numbers.get(place)}"
            )
        elif place < head and kept_bytes_min is None:
            findings.append(f"{stream}: lost: number {number} at {place} lies before the head {head}")
    if kept_bytes_min is not None and manifest.head is not None:
        kept = sum(map(len, entries.values()))
        if kept < kept_bytes_min:
            findings.append(f"{stream}: lost: retention left {kept} bytes, not {kept_bytes_min}")
    return list(_shortened(findings))


def _check_numbers(stream: str, numbers: Mapping[Position, int | None], journal: Journal) -> Iterator[str]:
    newest = -1
    for place, number in numbers.items():
        if number is None:
            yield f"{stream}: {place} holds what nobody appended"
            continue
        if number <= newest:
            yield f"{stream}: twice or out of order: number {number} at {place} after {newest}"
        if number not in journal.tried:
            yield f"{stream}: number {number} at {place} was never appended"
        if number in journal.refused:
            yield f"{stream}: number {number} is at {place}; its call said that nothing was written"
        newest = max(newest, number)


def find_leaks(keys: Iterable[str], manifests: Iterable[Manifest], uploads: Iterable[str]) -> list[str]:
    """What lies in the store and nobody needs, once everything ended well and cleanup had its turn.

    Args:
        keys: all of them.
        manifests: of all streams.
        uploads: names of unfinished uploads.
    """
    needed = {"_time/now", "_store"}
    folders: dict[str, Manifest] = {}
    for manifest in manifests:
        folders[manifest.stream] = manifest
        needed.add(f"_catalog/{manifest.stream}")
        for uuid in (*manifest.segments, *manifest.retired):
            needed |= {f"{manifest.stream}/{uuid}", f"{manifest.stream}/{uuid}-index"}
    findings = [f"leaked: an unfinished upload of {name}" for name in uploads]
    findings += [
        f"leaked: {key}{_fate(key, folders.values())}"
        for key in keys
        if key not in needed and not any(_belongs(key, manifest) for manifest in folders.values())
    ]
    return list(_shortened(findings))


def _belongs(key: str, manifest: Manifest) -> bool:
    if not key.startswith(f"{manifest.stream}/"):
        return False
    name = key.removeprefix(f"{manifest.stream}/")
    own = f"manifest/{manifest.incarnation}/"
    if name.startswith(own):
        return _MANIFEST_NAME.fullmatch(name.removeprefix(own)) is not None
    return _KEPT.fullmatch(name) is not None


def _fate(key: str, manifests: Iterable[Manifest]) -> str:
    match = re.search(_UUID, key)
    for manifest in manifests:
        for fate in ("purged", "failed", "assigned"):
            if match and match[0] in getattr(manifest, fate):
                return f" ({fate})"
    return ""


def _shortened(findings: list[str]) -> Iterator[str]:
    """At most some findings of each kind: one cause may touch thousands of entries."""
    seen: dict[str, int] = {}
    for finding in findings:
        kind = re.sub(_UUID + r"|[0-9]+", "#", finding)
        seen[kind] = seen.get(kind, 0) + 1
        if seen[kind] <= _LISTED_MAX:
            yield finding
    for kind, count in seen.items():
        if count > _LISTED_MAX:
            yield f"... {count - _LISTED_MAX} more: {kind}"
