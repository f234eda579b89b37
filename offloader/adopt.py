"""Import ledgers that Pulsar offloaded, in place: list the attempts, choose among them, record them as streams."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple
from uuid import UUID

from formats.block import padding
from formats.checksum import crc32c
from formats.documents import ROOT_KEYS
from formats.entries import ENTRY_HEADER_BYTES, Position
from formats.errors import FormatError, InconsistentError, LimitExceededError
from formats.keys import check_object_version, data_key, index_key, parse_object_key
from formats.manifest import Adopt, Edit, LedgerClosed, Release
from formats.metadata.messages import BookKeeperLedger
from formats.segment_map import SegmentMap
from formats.summary import Layout, LedgerSpan, SegmentSummary
from offloader.errors import CorruptError, InvalidCallError, LimitReachedError, NotFoundError, UnsupportedError
from offloader.ledgers.pulsar.topics import TopicLedger, TopicLedgers, stream_of_managed_ledger
from offloader.manifest.apply import apply_edits
from offloader.manifest.boundary import listed
from offloader.manifest.load import load_manifest
from offloader.manifest.log import ManifestLog
from offloader.manifest.names import matching_streams
from offloader.manifest.rebuild import FoundSegment, choose_segments, read_segment
from offloader.manifest.segment_table import AT_ROOT, SegmentRecord
from offloader.manifest.state import EditRefusedError, ManifestState
from offloader.read.fetch import ReaderThreads
from offloader.read.ranges import readable_segments, whole_range
from offloader.runtime.clock import Clock
from offloader.settings import OffloadSettings
from offloader.store.base import ByteRange, ObjectInfo, ObjectStore

#: Index objects are read whole.
INDEX_BYTES_MAX = 512 * 1024 * 1024
#: The search for the last entry reads this many bytes at the end, then 16 times as many, and so on.
TAIL_BYTES_FIRST = 64 * 1024
TAIL_BYTES_FACTOR = 16
TAIL_BYTES_MAX = 256 * 1024 * 1024
#: Maximum number of data objects waiting for their index; a store that lists in order needs one.
PENDING_MAX = 1_000_000
#: Maximum number of example keys of each kind.
EXAMPLES_MAX = 20


@dataclass(frozen=True, slots=True)
class ObjectPair:
    """A data object and its index, as listed."""

    uuid: UUID
    ledger_id: int | None
    data: ObjectInfo
    index: ObjectInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One complete offload attempt.

    Attributes:
        managed_ledger: its managed ledger from the metadata; empty when absent.
        cluster: the Pulsar cluster that wrote it, empty when unknown.
        closed: whether its index marks every ledger in it as closed (not recorded in V2).
        modified_ms: time of the last write of its index, by the store's clock.
    """

    segment: FoundSegment
    managed_ledger: str
    cluster: str
    closed: bool
    modified_ms: int


@dataclass(slots=True)
class Found:
    """A count, with the first few keys."""

    count: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, key: str) -> None:
        self.count += 1
        if len(self.examples) < EXAMPLES_MAX:
            self.examples.append(key)


def read_attempt(store: ObjectStore, pair: ObjectPair, *, deep: bool) -> Attempt:
    """Verified content of a pair: index, length of the data object, last entry; with ``deep`` every entry.

    An object whose index doesn't record its size is always read whole: a V2 object of Pulsar, and a ledger whose
    recorded length is 0.

    Raises:
        FormatError: the attempt isn't complete, with the reason.
        NotFoundError: it was removed after the listing.
        LimitReachedError: the index or the last block is too large to read.
    """
    uuid, ledger_id = pair.uuid, pair.ledger_id
    key = index_key("", uuid, ledger_id)
    if pair.index.size_bytes > INDEX_BYTES_MAX:
        raise LimitReachedError(f"{key} has {pair.index.size_bytes} bytes, above the limit of {INDEX_BYTES_MAX} bytes")
    index, info = store.get(key)
    if info.metadata:  # not every store keeps user metadata
        check_object_version(info.metadata, key)
    segment_map = SegmentMap.parse(index, object_name=key, ledger_id=ledger_id)
    if segment_map.data_bytes != pair.data.size_bytes:
        raise InconsistentError(
            "data object",
            object_name=pair.data.key,
            expected=f"{segment_map.data_bytes} bytes, as its index says",
            found=pair.data.size_bytes,
        )
    if deep or not _says_enough(segment_map):
        segment = read_segment(store, "", uuid, ledger_id, has_index=True, part_bytes=OffloadSettings().part_size)
    else:
        summary = _summary(store, pair, segment_map)
        summary = replace(summary, index_bytes=len(index), index_crc32c=crc32c(index))
        segment = FoundSegment(uuid=uuid, ledger_id=ledger_id, epoch=0, owned=False, summary=summary, closed_bytes={})
    named: Mapping[str, str] = {name.lower(): value for name, value in info.metadata.items()}
    return Attempt(
        segment=segment,
        managed_ledger=named.get("managedledgername", ""),
        cluster=named.get("pulsarclustername", ""),
        closed=segment_map.layout is not Layout.V1 or all(group.closed for group in segment_map.ledgers),
        modified_ms=pair.index.modified_ms,
    )


def _says_enough(segment_map: SegmentMap) -> bool:
    if segment_map.has_extension or segment_map.layout is not Layout.V1:
        return segment_map.has_extension
    [group] = segment_map.ledgers
    return BookKeeperLedger.decode(group.metadata).length_bytes > 0


def _summary(store: ObjectStore, pair: ObjectPair, segment_map: SegmentMap) -> SegmentSummary:
    """Summary of an object whose index is sufficient and matches the object's end."""
    if segment_map.has_extension:
        return segment_map.summary(store.head(pair.data.key).crc32c or 0)
    [group] = segment_map.ledgers
    ledger = BookKeeperLedger.decode(group.metadata)
    blocks = segment_map.blocks
    last = group.last_entry_id
    entries = last + 1
    if last < 0 or len(blocks) == 0 or int(blocks.first_entry_id[0]) != 0 or int(blocks.offset[0]) != 0:
        raise InconsistentError(
            "index",
            object_name=segment_map.object_name,
            expected="a ledger from entry 0 on",
            found=f"last entry {last}",
        )
    needed = ledger.length_bytes + entries * ENTRY_HEADER_BYTES + len(blocks) * segment_map.header_bytes
    if needed > segment_map.data_bytes:
        raise InconsistentError(
            "data object",
            object_name=pair.data.key,
            expected=f"{entries} entries of {ledger.length_bytes} bytes together, as its index says",
            found=f"{segment_map.data_bytes} bytes",
        )
    _require_last_entry(store, pair, segment_map, last)
    return _ledger_summary(group.ledger_id, entries, ledger.length_bytes, segment_map.data_bytes, len(blocks))


def _ledger_summary(
    ledger_id: int,
    entries: int,
    payload_bytes: int,
    data_bytes: int,
    blocks: int,
    data_crc32c: int = 0,
    index_bytes: int = 0,
    index_crc32c: int = 0,
) -> SegmentSummary:
    """The summary of a plain V1 object, which holds a whole ledger."""
    return SegmentSummary.of_spans(
        [LedgerSpan(ledger_id, 0, entries - 1, entries, payload_bytes)],
        layout=Layout.V1,
        data_bytes=data_bytes,
        data_crc32c=data_crc32c,
        index_bytes=index_bytes,
        index_crc32c=index_crc32c,
        blocks=blocks,
        compressed=False,
    )


def _require_last_entry(store: ObjectStore, pair: ObjectPair, segment_map: SegmentMap, last: int) -> None:
    size = segment_map.data_bytes
    start = int(segment_map.blocks.offset[-1]) + segment_map.header_bytes
    if not 0 <= start <= size:
        raise InconsistentError(
            "index", object_name=segment_map.object_name, expected=f"blocks within {size} bytes", found=start
        )
    wanted = TAIL_BYTES_FIRST
    while True:
        at = max(start, size - wanted)
        tail, _ = store.get(pair.data.key, ByteRange(at, size))
        if ends_with_entry(tail, last):
            return
        if at == start:
            raise InconsistentError(
                "data object",
                object_name=pair.data.key,
                offset=start,
                expected=f"entry {last} at its end",
                found="none",
            )
        wanted *= TAIL_BYTES_FACTOR
        if min(wanted, size - start) > TAIL_BYTES_MAX:
            raise LimitExceededError(
                "last block",
                object_name=pair.data.key,
                offset=start,
                expected=f"entry {last} in its last {TAIL_BYTES_MAX} bytes",
                found="none",
            )


def ends_with_entry(tail: bytes, entry_id: int) -> bool:
    """Whether a data object's tail, from any offset, ends with an entry, followed only by a block's padding."""
    needle = entry_id.to_bytes(8, "big")
    at = tail.rfind(needle)
    while at >= 0:
        length = int.from_bytes(tail[at - 4 : at], "big", signed=True) if at >= 4 else -1
        end = at + len(needle) + length
        if length >= 0 and end <= len(tail) and tail[end:] == padding(len(tail) - end):
            return True
        at = tail.rfind(needle, 0, at + len(needle) - 1)
    return False


#: Packed V1 attempt: uuid; ledger, lengths of data and index, entries, payload bytes, blocks, time; checksums of data
#: and index; closed flag. With Python's own 33 bytes 130 MB for a million.
_ROW = struct.Struct("<16s7qII?")


class AttemptOwner(NamedTuple):
    """Origin of an attempt in its metadata; either may be empty."""

    managed_ledger: str
    cluster: str


class AttemptTable:
    """Attempts by owner."""

    def __init__(self) -> None:
        self.count = 0
        self._rows: dict[AttemptOwner, list[bytes | Attempt]] = {}

    def add(self, attempt: Attempt) -> None:
        owner = AttemptOwner(attempt.managed_ledger, attempt.cluster)
        packed = _packed(attempt)
        is_plain = packed is not None and _attempt(packed, owner) == attempt
        self._rows.setdefault(owner, []).append(packed if packed and is_plain else attempt)
        self.count += 1

    def owners(self) -> list[AttemptOwner]:
        """Owners of attempts."""
        return list(self._rows)

    def of(self, owner: AttemptOwner) -> Iterator[Attempt]:
        """Attempts of one owner."""
        return (_attempt(row, owner) if isinstance(row, bytes) else row for row in self._rows.get(owner, ()))


def _packed(attempt: Attempt) -> bytes | None:
    """The packed row of an attempt; ``None`` if a value is too large."""
    segment, summary = attempt.segment, attempt.segment.summary
    if segment.ledger_id is None or summary.layout is not Layout.V1:
        return None
    return _ROW.pack(
        segment.uuid.bytes,
        segment.ledger_id,
        summary.data_bytes,
        summary.index_bytes,
        summary.entries,
        summary.payload_bytes,
        summary.blocks,
        attempt.modified_ms,
        summary.data_crc32c,
        summary.index_crc32c,
        attempt.closed,
    )


def _attempt(row: bytes, owner: AttemptOwner) -> Attempt:
    uuid, ledger_id, data, index, entries, payload, blocks, modified_ms, data_crc, index_crc, closed = _ROW.unpack(row)
    return Attempt(
        segment=FoundSegment(
            uuid=UUID(bytes=uuid),
            ledger_id=ledger_id,
            epoch=0,
            owned=False,
            closed_bytes={},
            summary=_ledger_summary(ledger_id, entries, payload, data, blocks, data_crc, index, index_crc),
        ),
        managed_ledger=owner.managed_ledger,
        cluster=owner.cluster,
        closed=closed,
        modified_ms=modified_ms,
    )


class LeftOut(NamedTuple):
    """A rejected attempt, with the reason."""

    segment: FoundSegment
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Decision about a stream's attempts.

    Attributes:
        adopted: disjoint, in the stream's order, none of them in the manifest yet.
        already: number already in the manifest.
        closed: ledger id -> last entry id (-1: empty); only facts that the manifest doesn't have yet.
        missing: closed ledgers of the topic with entries missing from both the store and the manifest.
    """

    adopted: Sequence[FoundSegment]
    already: int
    left_out: Sequence[LeftOut]
    closed: Mapping[int, int]
    missing: Sequence[TopicLedger]


def choose_attempts(attempts: Sequence[Attempt], state: ManifestState, topic: TopicLedgers | None) -> Choice:
    """Choose among a stream's attempts.

    Of several complete attempts at the same entries the newest wins: when Pulsar starts another attempt, it forgets the
    earlier one and deletes its objects.

    The attempts are complete, and all of the same stream and cluster; ``topic``, the broker's list of its ledgers, is
    ``None`` if not queried.
    """
    left: list[LeftOut] = []
    fresh: dict[tuple[Position, Position], Attempt] = {}
    already = 0
    for attempt in attempts:
        segment = attempt.segment
        span, record = (segment.summary.begin, segment.summary.end), state.segments.get(segment.uuid)
        if record is not None and (record.begin, record.end) == span:
            already += 1
            continue
        why = _refusal(attempt, state, topic)
        if why:
            left.append(LeftOut(segment, why))
            continue
        other = fresh.setdefault(span, attempt)
        if other is attempt:
            continue
        older, newer = sorted((attempt, other), key=lambda each: (each.modified_ms, each.segment.uuid))
        fresh[span] = newer
        left.append(LeftOut(older.segment, f"attempt {newer.segment.uuid} at the same entries is newer"))
    of_topic = {} if topic is None else topic.closed
    chosen = choose_segments([attempt.segment for attempt in fresh.values()], None, of_topic)
    left += [LeftOut(segment, "other attempts hold more of these entries") for segment in chosen.overlapping]
    adopted = _one_per_uuid(chosen.recorded, left)
    known = state.closed_ledgers
    return Choice(
        adopted=adopted,
        already=already,
        left_out=left,
        closed={ledger_id: last for ledger_id, last in chosen.closed_ledgers.items() if known.get(ledger_id) != last},
        missing=[] if topic is None else _missing(topic, adopted, state),
    )


def facts_of(choice: Choice) -> list[Edit]:
    """Facts recorded before the segments that rely on them."""
    return [LedgerClosed(ledger_id, last) for ledger_id, last in choice.closed.items()]


def adoptions_of(choice: Choice, driver: Mapping[str, str], *, owned: bool) -> list[Edit]:
    """Segments from the newest to the oldest: an existing stream grows at its front record by record, and its committed
    end never moves back."""
    return [Adopt(each.uuid, each.summary, driver, owned) for each in reversed(choice.adopted)]


def without_hiding(choice: Choice, state: ManifestState) -> Choice:
    """The choice without segments that wouldn't be contiguous with the committed ones.

    History that ends in a gap before readable entries would itself be unreadable, and would block the stream's start
    position.
    """
    committed = state.committed_end()
    while committed is not None and choice.adopted:
        edits = [*facts_of(choice), *adoptions_of(choice, {}, owned=False)]
        end = apply_edits(state, edits, record_id=state.record_id + 1).prefix_end()
        if end is not None and end >= committed:
            break
        kept = [s for s in choice.adopted if end is not None and s.summary.begin > end]
        if len(kept) == len(choice.adopted):
            kept = []
        why = f"ledgers are missing between it and {committed}, which would become unreadable"
        hidden = [LeftOut(s, why) for s in choice.adopted if s not in kept]
        taken = {span.ledger_id for s in kept for span in s.summary.ledgers}
        closed = {ledger_id: last for ledger_id, last in choice.closed.items() if ledger_id in taken}
        choice = replace(choice, adopted=kept, closed=closed, left_out=[*choice.left_out, *hidden])
    return choice


def _refusal(attempt: Attempt, state: ManifestState, topic: TopicLedgers | None) -> str:
    """The reason why an attempt can't be part of the stream; empty if it can."""
    summary = attempt.segment.summary
    if not attempt.closed:
        return "its index says that the ledger wasn't closed"
    if state.segments.get(attempt.segment.uuid) is not None:
        return "the manifest has another range with its uuid"
    if _is_truncated(summary.end, state):
        return f"it is before the stream's start, {state.head}: these entries were truncated"
    for span in summary.ledgers:
        why = _contradiction(span, state, topic)
        if why:
            return why
    there = next(iter(state.segments.in_order(summary.begin, summary.end)), None)
    if there is not None:
        return f"the stream already has these entries in segment {there.uuid}"
    if any(gap.first <= summary.end and gap.last >= summary.begin for gap in state.gaps):
        return "the stream has a recorded gap at these positions"
    return ""


def _is_truncated(end: Position | None, state: ManifestState) -> bool:
    """Whether a segment with this end is before the stream's head, so that it can't be added."""
    return state.head is not None and end is not None and end < state.head


def _contradiction(span: LedgerSpan, state: ManifestState, topic: TopicLedgers | None) -> str:
    known = state.closed_ledgers.get(span.ledger_id)
    if known is not None and span.last_entry_id > known:
        return f"the stream's ledger {span.ledger_id} ends at entry {known}, this has {span.last_entry_id}"
    if topic is None:
        return ""
    if span.ledger_id not in {ledger.ledger_id for ledger in topic.ledgers}:
        return f"the topic has no ledger {span.ledger_id}"
    last = topic.closed.get(span.ledger_id)
    if last is not None and span.last_entry_id > last:
        return f"the topic's ledger {span.ledger_id} ends at entry {last}, this has {span.last_entry_id}"
    return ""


def _one_per_uuid(segments: Iterable[FoundSegment], left: list[LeftOut]) -> list[FoundSegment]:
    """Keep one attempt per uuid, as a manifest names segments by uuid alone."""
    taken: dict[UUID, FoundSegment] = {}
    for segment in segments:
        if segment.uuid in taken:
            left.append(LeftOut(segment, "another ledger of the stream has the same uuid"))
        else:
            taken[segment.uuid] = segment
    return list(taken.values())


def _missing(topic: TopicLedgers, adopted: Sequence[FoundSegment], state: ManifestState) -> list[TopicLedger]:
    held: dict[int, int] = {}
    for summary in [*(each.content for each in state.offloaded()), *(each.summary for each in adopted)]:
        for span in summary.ledgers:
            held[span.ledger_id] = held.get(span.ledger_id, 0) + span.entries
    return [ledger for ledger in topic.ledgers[:-1] if held.get(ledger.ledger_id, 0) < ledger.entries]


#: Maximum number of edits in one record.
RECORD_EDITS_MAX = 500
#: Number of attempts to read in parallel, and of streams to record in parallel.
REQUESTS_IN_FLIGHT = 16
#: Maximum number of problems to keep; further ones are only counted.
PROBLEMS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class AdoptionProblem:
    """An object's key or a stream that isn't adopted, with the reason."""

    what: str
    why: str


@dataclass(frozen=True, slots=True)
class AdoptionProgress:
    """Progress: objects listed, attempts read, streams recorded and their total (0: unknown)."""

    objects: int
    attempts: int
    streams: int = 0
    streams_total: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptedStream:
    """Adoption of one stream.

    Attributes:
        adopted: first positions of the recorded segments, or in a dry run of those to record; ascending.
        entries, payload_bytes: of these segments.
        left_out, missing: see ``Choice``.
        first, last: readable positions afterwards; ``None``: none, or it is a dry run.
        unreadable: segments after a gap; readable once the gap is filled.
    """

    stream: str
    adopted: tuple[Position, ...]
    entries: int
    payload_bytes: int
    already: int
    left_out: Sequence[LeftOut]
    missing: Sequence[TopicLedger]
    first: Position | None = None
    last: Position | None = None
    unreadable: int = 0


@dataclass(slots=True, kw_only=True)
class Adoption:
    """Result of an adoption.

    Attributes:
        problems: objects and streams that aren't adopted; at most ``PROBLEMS_MAX``.
        problems_count: number of all problems.
        foreign: objects at the root that are neither data nor index.
        unfinished: data objects without an index, or the reverse: a failed or running offload.
        unmatched: complete attempts of an unknown topic.
    """

    streams: list[AdoptedStream] = field(default_factory=list)
    problems: list[AdoptionProblem] = field(default_factory=list)
    problems_count: int = 0
    objects: int = 0
    foreign: Found = field(default_factory=Found)
    unfinished: Found = field(default_factory=Found)
    unmatched: Found = field(default_factory=Found)

    def problem(self, what: str, why: str) -> None:
        self.problems_count += 1
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(AdoptionProblem(what, why))


def adopt(
    store: ObjectStore,
    *,
    clock: Clock,
    topics: Sequence[TopicLedgers] = (),
    streams: Sequence[str] = (),
    cluster: str = "",
    take_ownership: bool = False,
    deep: bool = False,
    dry_run: bool = False,
    requests_in_flight: int = REQUESTS_IN_FLIGHT,
    on_progress: Callable[[AdoptionProgress], None] = lambda _: None,
) -> Adoption:
    """Find objects that Pulsar offloaded to ``store`` and record them in manifests in that store.

    Repeatable, even during writes to the stream: each run adds new ledgers.

    Args:
        store: its root holds Pulsar's objects. ``catalogue:///directory`` keeps the manifests elsewhere.
        topics: the brokers' lists of topics' ledgers; they decide a ledger's topic when no metadata names it, and which
            ledgers are missing.
        streams: names, of topics with partitions too, or patterns of those to adopt; none: all.
        cluster: only objects written by this Pulsar cluster.
        take_ownership: let retention and cleanup delete the objects, including those adopted earlier.
        deep: every entry is read.
        on_progress: called at intervals.

    Raises:
        InvalidCallError: a topic is given twice with different ledgers.
        OffloaderError: the store is unreachable. Earlier records are kept; run it again.
    """
    by_stream: dict[str, TopicLedgers] = {}
    for topic in topics:
        if by_stream.setdefault(topic.stream, topic) != topic:
            raise InvalidCallError(f"topic {topic.topic} is given twice, with different ledgers")
    done = Adoption()
    by_ledger = {ledger.ledger_id: topic.managed_ledger for topic in topics for ledger in topic.ledgers}
    found = AttemptTable()
    workers = ReaderThreads(requests_in_flight)
    tasks = (partial(_read, store, pair, deep) for pair in _pairs(store, done))
    for count, result in enumerate(workers.in_order(tasks), 1):
        if isinstance(result, AdoptionProblem):
            done.problem(result.what, result.why)
        elif not cluster or result.cluster == cluster:
            found.add(_named(result, by_ledger))
        if count % 100 == 0:
            on_progress(AdoptionProgress(done.objects, count))
    owners = _owners(found, done)
    names = sorted({name for wanted in streams for name in matching_streams(wanted, owners)} if streams else owners)
    record = partial(_adopted, store, clock, take_ownership, dry_run)
    recorded = workers.in_order(partial(record, name, found, owners[name], by_stream.get(name)) for name in names)
    for count, each in enumerate(recorded, 1):
        if isinstance(each, AdoptionProblem):
            done.problem(each.what, each.why)
        else:
            done.streams.append(each)
        on_progress(AdoptionProgress(done.objects, found.count, count, len(names)))
    return done


def _read(store: ObjectStore, pair: ObjectPair, deep: bool) -> Attempt | AdoptionProblem:
    try:
        return read_attempt(store, pair, deep=deep)
    except (FormatError, LimitReachedError) as error:
        return AdoptionProblem(pair.data.key, str(error))
    except NotFoundError:
        return AdoptionProblem(pair.data.key, "it was deleted during the check")


def _pairs(store: ObjectStore, done: Adoption) -> Iterator[ObjectPair]:
    """Pairs at the store's root, as soon as both halves are listed; counts the listed objects in ``done``.

    Raises:
        LimitReachedError: more than ``PENDING_MAX`` halves without the other one.
    """
    waiting: dict[tuple[UUID, int | None], ObjectInfo] = {}
    for info in listed(store, ""):
        done.objects += 1
        parsed = parse_object_key(info.key, "")
        if parsed is None or parsed.is_fill:
            if "/" not in info.key and info.key not in ROOT_KEYS:  # keys in folders aren't Pulsar's
                done.foreign.add(info.key)
            continue
        name = parsed.uuid, parsed.ledger_id
        other = waiting.pop(name, None)
        if other is not None:
            data, index = (other, info) if parsed.is_index else (info, other)
            yield ObjectPair(parsed.uuid, parsed.ledger_id, data, index)
            continue
        waiting[name] = info
        if len(waiting) > PENDING_MAX:
            raise LimitReachedError(
                f"{store.url}: {len(waiting)} objects lack their data or index object",
                hint="check that Pulsar's offloader writes to this store",
            )
    for info in waiting.values():
        done.unfinished.add(info.key)


def _named(attempt: Attempt, by_ledger: Mapping[int, str]) -> Attempt:
    """The attempt with the managed ledger that the broker lists for its ledgers, if its metadata has none."""
    if attempt.managed_ledger:
        return attempt
    names = {by_ledger.get(span.ledger_id, "") for span in attempt.segment.summary.ledgers}
    return replace(attempt, managed_ledger=names.pop()) if len(names) == 1 else attempt


def _owners(found: AttemptTable, done: Adoption) -> dict[str, list[AttemptOwner]]:
    """Stream -> the owners of its attempts; records attempts without a topic."""
    owners: dict[str, list[AttemptOwner]] = {}
    for owner in found.owners():
        if owner.managed_ledger:
            owners.setdefault(stream_of_managed_ledger(owner.managed_ledger), []).append(owner)
            continue
        for attempt in found.of(owner):
            done.unmatched.add(data_key("", attempt.segment.uuid, attempt.segment.ledger_id))
    return owners


def _adopted(
    store: ObjectStore,
    clock: Clock,
    take_ownership: bool,
    dry_run: bool,
    stream: str,
    found: AttemptTable,
    owners: Sequence[AttemptOwner],
    topic: TopicLedgers | None,
) -> AdoptedStream | AdoptionProblem:
    clusters = sorted({owner.cluster for owner in owners if owner.cluster})
    if len(clusters) > 1:
        # Ledger ids of different clusters are unrelated.
        return AdoptionProblem(
            stream, f"clusters {', '.join(clusters)} have a topic of this name; choose one with --cluster"
        )
    attempts = [attempt for owner in owners for attempt in found.of(owner)]
    try:
        state = _state(store, stream)
        choice = without_hiding(choose_attempts(attempts, state, topic), state)
        foreign = [
            each
            for each in (state.offloaded() if take_ownership else ())
            if not (each.owned or _is_truncated(each.end, state))
        ]
        if not dry_run and (choice.adopted or foreign):
            log = ManifestLog(store, stream, clock=clock, writer_name="offloader import")
            state = _recorded(log, choice, {**store.driver_metadata, **AT_ROOT}, owned=take_ownership)
            state = _taken(log, foreign)
    except UnsupportedError:
        raise  # an error of the store, not of this stream
    except (CorruptError, EditRefusedError, InvalidCallError) as error:
        return AdoptionProblem(stream, str(error))
    ends = whole_range(state)
    return AdoptedStream(
        stream=stream,
        adopted=tuple(segment.summary.begin for segment in choice.adopted),
        entries=sum(segment.summary.entries for segment in choice.adopted),
        payload_bytes=sum(segment.summary.payload_bytes for segment in choice.adopted),
        already=choice.already,
        left_out=choice.left_out,
        missing=choice.missing,
        first=ends[0] if ends else None,
        last=ends[1] if ends else None,
        unreadable=len(state.offloaded()) - len(readable_segments(state)),
    )


def _state(store: ObjectStore, stream: str) -> ManifestState:
    try:
        state = load_manifest(store, stream)
    except NotFoundError:
        return ManifestState(stream=stream, incarnation=UUID(int=0))
    if state.stream_deleted:
        raise InvalidCallError(f"stream {stream} is being deleted", hint="repeat the command after the deletion")
    return state


def _recorded(log: ManifestLog, choice: Choice, driver: Mapping[str, str], *, owned: bool) -> ManifestState:
    """Commit the choice without changing the epoch: the stream's owner continues."""
    state = log.load(create=True)
    for edits in (facts_of(choice), adoptions_of(choice, driver, owned=owned)):
        for start in range(0, len(edits), RECORD_EDITS_MAX):
            state = log.commit_as_maintainer(edits[start : start + RECORD_EDITS_MAX])
    return state


def _taken(log: ManifestLog, foreign: Sequence[SegmentRecord]) -> ManifestState:
    """Take ownership of segments adopted earlier: one record removes and re-adds them."""
    state = log.state
    for start in range(0, len(foreign), RECORD_EDITS_MAX):
        some = foreign[start : start + RECORD_EDITS_MAX]
        taken = (Adopt(record.uuid, record.content, record.driver, True) for record in some)
        state = log.commit_as_maintainer([Release(tuple(record.uuid for record in some)), *taken])
    return state


def release(store: ObjectStore, stream: str, *, clock: Clock, dry_run: bool = False) -> int:
    """Release segments adopted without ownership: removed from the manifest, their objects stay. Returns their number.

    Raises:
        NotFoundError: no such stream.
        CorruptError, StoreUnavailableError: errors of the manifest.
    """
    log = ManifestLog(store, stream, clock=clock, writer_name="offloader import")
    uuids = [record.uuid for record in log.load().offloaded() if not record.owned]
    for start in range(0, 0 if dry_run else len(uuids), RECORD_EDITS_MAX):
        log.commit_as_maintainer([Release(tuple(uuids[start : start + RECORD_EDITS_MAX]))])
    return len(uuids)
