"""Objects that Pulsar wrote become streams: found by listing, sorted by managed ledger, recorded where they lie.

Owns the order of that, and its bounds. Must never change or delete an object of Pulsar's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from uuid import UUID

from formats.entries import Position
from formats.errors import FormatError
from formats.keys import data_key
from formats.manifest import Adopt, Edit, Release
from offloader.clock import Clock
from offloader.errors import Corrupt, InvalidCall, LimitReached, NotFound, Unsupported
from offloader.ledgers.pulsar.topics import TopicLedger, TopicLedgers, stream_of_managed_ledger
from offloader.manifest.load import load_manifest
from offloader.manifest.log import ManifestLog
from offloader.manifest.segment_record import AT_ROOT, SegmentRecord
from offloader.manifest.state import EditRefused, ManifestState
from offloader.read import plan
from offloader.read.adopt_choice import Choice, LeftOut, adoptions_of, choose_attempts, facts_of, without_hiding
from offloader.read.adopt_objects import Attempt, Found, Listing, ObjectPair, read_attempt
from offloader.read.adopt_table import AttemptTable, Owner
from offloader.read.workers import Workers
from offloader.store.base import ObjectStore

__all__ = ["AdoptedStream", "Adoption", "AdoptionProgress", "Problem", "adopt", "release"]

#: Edits of one record.
RECORD_EDITS_MAX = 500
#: Attempts whose objects are looked at at once, and streams that are recorded at once.
REQUESTS_IN_FLIGHT = 16
#: Problems that are kept; the others are counted.
PROBLEMS_MAX = 10_000

_NOTHING = UUID(int=0)


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that isn't adopted: an object's key or a stream, and why."""

    what: str
    why: str


@dataclass(frozen=True, slots=True)
class AdoptionProgress:
    """How far it is: objects listed, attempts looked at, streams recorded of how many (0: not known yet)."""

    objects: int
    attempts: int
    streams: int = 0
    streams_total: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptedStream:
    """One stream's share.

    Attributes:
        stream: its name.
        adopted: where the segments begin that were recorded, or in a dry run would be; ascending.
        entries, payload_bytes: of those.
        already: how many segments the manifest had.
        left_out, missing: see ``Choice``.
        first, last: readable positions then; ``None``: nothing is, or it is a dry run.
        unreadable: segments after a hole; they can be read when that is filled.
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
    """Everything that was found.

    Attributes:
        streams: by name.
        problems: what isn't adopted; at most ``PROBLEMS_MAX``.
        problems_count: all of them.
        objects: listed.
        foreign: objects at the root that aren't Pulsar's.
        unfinished: objects without their other half.
        unmatched: whole attempts that nobody says the topic of.
    """

    streams: list[AdoptedStream] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    problems_count: int = 0
    objects: int = 0
    foreign: Found = field(default_factory=Found)
    unfinished: Found = field(default_factory=Found)
    unmatched: Found = field(default_factory=Found)

    def problem(self, what: str, why: str) -> None:
        self.problems_count += 1
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(Problem(what, why))


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
    """Finds what a Pulsar offloaded to ``store`` and records it in manifests there.

    It may be run again, also while the stream is being written: it adds what is new.

    Args:
        store: its root is where Pulsar's objects are. ``catalogue:///directory`` keeps the manifests elsewhere.
        clock: for the records' times.
        topics: what the broker says of topics' ledgers; it decides whose a ledger is when no metadata says it, and
            whether ledgers are missing.
        streams: names or patterns of those to adopt; none: all.
        cluster: only what this Pulsar cluster wrote.
        take_ownership: our retention and cleanup may delete the objects from now on, those adopted earlier included.
        deep: every entry is read.
        dry_run: nothing is written.
        requests_in_flight: attempts looked at at once.
        on_progress: told now and then.

    Raises:
        InvalidCall: one topic is given twice with different ledgers.
        OffloaderError: the store is away. What was recorded until then stays; run it again.
    """
    done = Adoption()
    by_stream = _by_stream(topics)
    by_ledger = {ledger.ledger_id: topic.managed_ledger for topic in topics for ledger in topic.ledgers}
    found = AttemptTable()
    listing = Listing(store)
    workers = Workers(requests_in_flight)
    tasks = (partial(_attempt, store, pair, deep) for pair in listing.pairs())
    for count, result in enumerate(workers.in_order(tasks), 1):
        if isinstance(result, Problem):
            done.problem(result.what, result.why)
        elif not cluster or result.cluster == cluster:
            found.add(_named(result, by_ledger))
        if count % 100 == 0:
            on_progress(AdoptionProgress(listing.objects, count))
    done.objects, done.foreign, done.unfinished = listing.objects, listing.foreign, listing.unfinished
    owners = _owners(found, done)
    names = [name for name in sorted(owners) if not streams or any(fnmatchcase(name, pattern) for pattern in streams)]
    record = partial(_adopted, store, clock, take_ownership, dry_run)
    recorded = workers.in_order(partial(record, name, found, owners[name], by_stream.get(name)) for name in names)
    for count, each in enumerate(recorded, 1):
        if isinstance(each, Problem):
            done.problem(each.what, each.why)
        else:
            done.streams.append(each)
        on_progress(AdoptionProgress(listing.objects, found.count, count, len(names)))
    return done


def _attempt(store: ObjectStore, pair: ObjectPair, deep: bool) -> Attempt | Problem:
    try:
        return read_attempt(store, pair, deep=deep)
    except (FormatError, LimitReached) as error:
        return Problem(pair.data.key, str(error))
    except NotFound:
        return Problem(pair.data.key, "it was deleted while it was looked at")


def _by_stream(topics: Sequence[TopicLedgers]) -> dict[str, TopicLedgers]:
    found: dict[str, TopicLedgers] = {}
    for topic in topics:
        if found.setdefault(topic.stream, topic) != topic:
            raise InvalidCall(f"the ledgers of topic {topic.topic} are given twice, and differ")
    return found


def _named(attempt: Attempt, by_ledger: Mapping[int, str]) -> Attempt:
    """With the managed ledger that the broker says its ledgers are of, when its metadata says nothing."""
    if attempt.managed_ledger:
        return attempt
    names = {by_ledger.get(span.ledger_id, "") for span in attempt.segment.summary.ledgers}
    return replace(attempt, managed_ledger=names.pop()) if len(names) == 1 else attempt


def _owners(found: AttemptTable, done: Adoption) -> dict[str, list[Owner]]:
    """Stream -> who wrote for it; notes the attempts that are nobody's."""
    owners: dict[str, list[Owner]] = {}
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
    owners: Sequence[Owner],
    topic: TopicLedgers | None,
) -> AdoptedStream | Problem:
    clusters = sorted({owner.cluster for owner in owners if owner.cluster})
    if len(clusters) > 1:
        # Ledger ids of different clusters have nothing to do with each other.
        return Problem(stream, f"clusters {', '.join(clusters)} have a topic of this name: choose one with --cluster")
    attempts = [attempt for owner in owners for attempt in found.of(owner)]
    try:
        state = _state(store, stream)
        choice = without_hiding(choose_attempts(attempts, state, topic), state)
        foreign = [record for record in state.offloaded() if not record.owned] if take_ownership else []
        if not dry_run and (choice.adopted or foreign):
            log = ManifestLog(store, stream, clock=clock, writer_name="offloader adopt")
            state = _recorded(log, choice, {**store.driver_metadata, **AT_ROOT}, owned=take_ownership)
            state = _taken(log, foreign)
    except Unsupported:
        raise  # of the store, not of this stream
    except (Corrupt, EditRefused, InvalidCall) as error:
        return Problem(stream, str(error))
    ends = plan.whole_range(state)
    unreadable = len(state.offloaded()) - len(plan.readable_segments(state))
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
        unreadable=unreadable,
    )


def _state(store: ObjectStore, stream: str) -> ManifestState:
    try:
        state = load_manifest(store, stream)
    except NotFound:
        return ManifestState(stream=stream, incarnation=_NOTHING)
    if state.stream_deleted:
        raise InvalidCall(f"stream {stream} is being deleted", hint="run this again when that is complete")
    return state


def _recorded(log: ManifestLog, choice: Choice, driver: Mapping[str, str], *, owned: bool) -> ManifestState:
    """Commits the choice beside whoever owns the stream: its epoch stays, and it goes on."""
    state = log.load(create=True)
    for edits in (facts_of(choice), adoptions_of(choice, driver, owned=owned)):
        for start in range(0, len(edits), RECORD_EDITS_MAX):
            state = log.amend(edits[start : start + RECORD_EDITS_MAX])
    return state


def _taken(log: ManifestLog, foreign: Sequence[SegmentRecord]) -> ManifestState:
    """Makes segments that were adopted earlier our own: they leave and come back in one record."""
    state = log.state
    for start in range(0, len(foreign), RECORD_EDITS_MAX):
        some = foreign[start : start + RECORD_EDITS_MAX]
        edits: list[Edit] = [Release(tuple(record.uuid for record in some))]
        edits += [Adopt(record.uuid, record.summary, record.driver, True) for record in some if record.summary]
        state = log.amend(edits)
    return state


def release(store: ObjectStore, stream: str, *, clock: Clock, dry_run: bool = False) -> int:
    """Lets go of what was adopted without ownership: the manifest forgets it, the objects stay. How many segments.

    Raises:
        NotFound: no such stream.
        Corrupt, StoreUnavailable: what the manifest raises.
    """
    log = ManifestLog(store, stream, clock=clock, writer_name="offloader adopt")
    uuids = [record.uuid for record in log.load().offloaded() if not record.owned]
    for start in range(0, 0 if dry_run else len(uuids), RECORD_EDITS_MAX):
        log.amend([Release(tuple(uuids[start : start + RECORD_EDITS_MAX]))])
    return len(uuids)
