"""Whole ledgers for brokers whose plugin reads the cold tier: plans, entries, offload requests, and fills of entries
that readers do not receive.

Any process can serve reads. Decisions use a cached view of the manifest; the view is refreshed before a request is
refused. If a plan is older than a deletion, its objects are missing. The reader then requests the entries, and the
newest manifest tells it that the ledger was deleted.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from formats.entries import Buffer, EntryBatch, Position
from formats.errors import FormatError
from formats.frames import decode_frames, encode_frames
from formats.manifest import Gap, LedgerClosed
from offloader.coverage import GapReason, Run, first_begin, joined, without
from offloader.errors import (
    AccessDeniedError,
    BeyondEndError,
    FencedError,
    InvalidCallError,
    NotFoundError,
    ObjectMissingError,
    OffloaderError,
    OutcomeUnknownError,
    SourceMismatchError,
    StoreUnavailableError,
    TrimmedError,
)
from offloader.manifest.log import ManifestLog
from offloader.manifest.segment_table import is_at_root
from offloader.manifest.state import EditRefusedError, ManifestState
from offloader.owner_client import TOKEN_VARIABLE, NotOwnerError, OwnerClient, OwnerUnreachableError
from offloader.parallel_map import at_once
from offloader.read.cold import objects_of, read_fill
from offloader.read.fetch import Cache, Fetcher
from offloader.read.ledger_entries import LedgerEntries
from offloader.read.ledger_plan import (
    CHUNK_BYTES,
    NO_OBJECT,
    BrokerFacts,
    Chunk,
    LedgerIncompleteError,
    LedgerMismatch,
    LedgerStanding,
    LedgerTrimmed,
    adopted_uuid,
    ledger_chunks,
    ledger_standing,
    next_ledger,
    require_same_ledger,
    require_same_uuid,
    require_whole,
)
from offloader.runtime.clock import Clock
from offloader.service.answers import ManifestViews, View
from offloader.service.broker_refusals import BrokerRefusals, is_refusal
from offloader.service.queries import ServiceControl
from offloader.settings import Pairs, Settings, Size
from offloader.store.base import ObjectStore
from offloader.telemetry.recorder import Recorder
from offloader.write.backfill_service import fill_gaps
from offloader.write.upload import verify_objects

_log = logging.getLogger("offloader.service.broker")

#: Maximum age of a manifest view for reading a closed ledger; a reader of deleted objects gets an error.
VIEW_AGE_S_MAX = 30.0
#: Maximum age of a view that serves requests while it is refreshed, so that requests don't wait for the store.
VIEW_STALE_S_MAX = 600.0
#: Maximum wait of one request for a ledger's offload.
WAIT_S_MAX = 25.0
#: First and maximum delay between two checks of the manifest while a ledger is incomplete; doubles.
AGAIN_S, AGAIN_S_MAX = 0.1, 4.0
#: Maximum wait of one forwarded request; between two of them this process checks whether it is closing.
FORWARDED_S_MAX = 5.0
#: Maximum number of missing ranges in one response.
MISSING_MAX = 1000
#: Size of one ranged GET for a response with entries; several are in memory.
REQUEST_BYTES_MAX = CHUNK_BYTES
#: Maximum number of brokers with separate metrics; further ones are counted together.
BROKERS_NAMED_MAX = 64
OTHER_BROKER = "other"

_Found = TypeVar("_Found")
#: Errors of an outdated view.
_OUTDATED = (NotFoundError, TrimmedError, BeyondEndError, ObjectMissingError, LedgerIncompleteError, LedgerMismatch)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerCaller:
    """The caller of a broker request.

    Attributes:
        name: for the log.
        address: of the broker, for metrics.
        token: the presented token; empty: none.
        source: the cluster's name sent by the broker; empty: none.
        is_forwarded: whether another process forwarded the request.
    """

    name: str
    address: str = ""
    token: str = ""
    source: str = ""
    is_forwarded: bool = False


class BrokerLedgers:
    """Serves ledgers of one store. Thread-safe.

    Args:
        store: of the streams.
        settings: of the process.
        control: offloads streams of this process; ``None``: the process has no streams and writes nothing.
        environ: may name certificate authorities for the owners' certificates, and hosts.
        settings_of: settings of a stream, which a reload may change; default: the process settings.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        settings: Settings,
        clock: Clock,
        recorder: Recorder,
        control: ServiceControl | None,
        environ: Mapping[str, str],
        settings_of: Callable[[str], Settings] | None = None,
    ) -> None:
        self._store, self._settings, self._clock, self._recorder = store, settings, clock, recorder
        self._control, self._environ = control, environ
        self._views = ManifestViews(store, clock)
        self._read = replace(
            settings.read,
            read_priority="tiered-storage-first",
            request_size=Size(min(settings.read.request_size, REQUEST_BYTES_MAX)),
            cache_size_max=settings.broker.cache_size_max,
        )
        self._cache = Cache(settings.broker.cache_size_max)
        self._fetcher = Fetcher(store, self._read, cache=self._cache)
        self._settings_of = settings_of or (lambda _: settings)
        self._entries = LedgerEntries(store, self._read, self._cache, self._relocate_of)
        #: Refused offload requests of brokers.
        self.refusals = BrokerRefusals(clock)
        self._unwatch = recorder.watch(self.refusals.readings)
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._brokers: set[str] = set()

    def _relocate_of(self, stream: str) -> Pairs:
        return self._settings_of(stream).read.relocate

    def close(self) -> None:
        """Ends all waits. Idempotent."""
        self._closing.set()
        self._unwatch()
        self._views.close()

    def require_source(self, source: str, stream: str, ledger_id: int) -> None:
        """Raises ``LedgerMismatch``: the broker's cluster differs from the setting ``broker.source``."""
        own = self._settings.broker.source
        if own and source and own != source:
            error = LedgerMismatch(
                f"the broker's cluster is {source[:200]!r}, and broker.source is {own!r}",
                hint="send the request to the sidecar of that cluster, or correct one of the two settings",
            )
            self.refusals.refused(stream, ledger_id, error)
            raise error

    # --- reading -------------------------------------------------------------------------------------------------

    def plan(self, stream: str, ledger_id: int, *, uuid: UUID | None, caller: BrokerCaller) -> dict[str, Any]:
        """The plan for reading a ledger: its chunks, and URLs of the objects that contain them.

        Raises:
            NotFoundError: the ledger isn't in the cold tier; LedgerTrimmed: it was deleted on purpose.
            LedgerMismatch: it differs from the broker's ledger.
            LedgerIncompleteError: entries are missing.
            OffloaderError: the store's errors.
        """
        started_s = self._clock.monotonic_s()

        def make(state: ManifestState, standing: LedgerStanding) -> dict[str, Any]:
            require_same_uuid(stream, standing, uuid)
            require_whole(stream, standing)
            if not standing.is_closed:
                raise LedgerIncompleteError(
                    f"stream {stream}, ledger {ledger_id}: entries up to {standing.last} are in the cold tier, and "
                    "its last entry is unknown",
                    hint="an offload request of the broker completes it",
                )
            expires_ms = self._clock.now_ms() + int(self._settings.broker.url_lifetime * 1000)
            objects = [objects_of(stream, each, self._store, self._relocate_of(stream)) for each in standing.records]
            maps = at_once(self._fetcher.index, objects)
            urls = [self._store.signed_url(each.data_key, self._settings.broker.url_lifetime) for each in objects]
            known = [number for number, url in enumerate(urls) if url is not None]
            numbers = [known.index(number) if url is not None else NO_OBJECT for number, url in enumerate(urls)]
            return {
                "last": standing.last,
                "length": standing.payload_bytes,
                "entries": standing.entries,
                "expires_ms": expires_ms if known else None,
                "next": next_ledger(state, ledger_id),
                "uuid": None if (adopted := adopted_uuid(standing)) is None else str(adopted),
                "objects": [urls[number] for number in known],
                "chunks": [_chunk_document(each) for each in ledger_chunks(state, standing, maps, numbers)],
            }

        found = self._with_view(stream, ledger_id, make)
        broker = self._broker(caller)
        self._recorder.add("broker_plan_requests_total", label=broker)
        self._recorder.add("broker_planned_bytes_total", found["length"], label=broker)
        self._answered("broker_plan_seconds", broker, started_s)
        return found

    def entries(
        self, stream: str, ledger_id: int, first: int, last: int, *, uuid: UUID | None, caller: BrokerCaller
    ) -> Generator[Buffer, None, None]:
        """Frames of entries ``first`` to ``last``, in pieces, and an end mark. The first piece is computed before
        return.

        Raises: like ``plan``. An error of a later piece ends the iteration without an end mark.
            InvalidCallError: invalid range. BeyondEndError: the ledger ends before ``last``.
        """
        if last < first or first < 0:
            raise InvalidCallError(
                f"stream {stream}, ledger {ledger_id}: invalid range of entries {first}..{last}",
                hint="from must not exceed to",
            )
        started_s, broker = self._clock.monotonic_s(), self._broker(caller)
        on_hits = partial(self._recorder.add, "broker_cache_hits_total", label=broker)

        def begin(state: ManifestState, standing: LedgerStanding) -> Generator[Buffer, None, None]:
            require_same_uuid(stream, standing, uuid)
            self._require_inside(state, standing, first, last)
            batches = self._entries.batches(state, standing, first, last, on_hits=on_hits)
            pieces = encode_frames(self._counted(batches, broker, started_s))
            return _after(next(pieces), pieces)  # compute the first piece now, to raise its errors

        return self._with_view(stream, ledger_id, begin)

    def _require_inside(self, state: ManifestState, standing: LedgerStanding, first: int, last: int) -> None:
        where = f"stream {state.stream}, ledger {standing.ledger_id}"
        if last > standing.last:
            raise BeyondEndError(
                f"{where}: entry {last} is beyond the last entry {standing.last}",
                last_available=Position(standing.ledger_id, standing.last),
                hint=f"request entries up to {standing.last}",
            )
        if first < standing.first:
            raise LedgerTrimmed(
                f"{where}: entries before {standing.first} were truncated on purpose",
                first_available=state.first_position(),
                hint=f"request entries from {standing.first}",
            )
        if any(run[0] <= last and run[1] >= first for run in (*standing.holes, *standing.missing)):
            require_whole(state.stream, standing)

    def _counted(self, batches: Iterator[EntryBatch], broker: str, started_s: float) -> Iterator[EntryBatch]:
        self._recorder.add("broker_read_requests_total", label=broker)
        try:
            for batch in batches:
                self._recorder.add("broker_read_bytes_total", batch.payload_bytes, label=broker)
                yield batch
        finally:
            self._answered("broker_read_seconds", broker, started_s)

    def _answered(self, histogram: str, broker: str, started_s: float) -> None:
        seconds = self._clock.monotonic_s() - started_s
        self._recorder.observe(histogram, seconds)
        self._recorder.add("broker_answer_seconds_total", seconds, label=broker)

    def _with_view(
        self, stream: str, ledger_id: int, work: Callable[[ManifestState, LedgerStanding], _Found]
    ) -> _Found:
        """The result of ``work`` with a recent view, or with the newest view if the recent one is outdated."""
        asked_s = self._clock.monotonic_s()

        def attempt(view: View) -> _Found:
            standing = ledger_standing(view.state, ledger_id)
            if not standing.is_closed and view.at_s < asked_s:
                raise LedgerIncompleteError(f"stream {stream}, ledger {ledger_id} may have new entries")
            return work(view.state, standing)

        view = self._views.get(stream, age_s_max=VIEW_AGE_S_MAX, stale_s_max=VIEW_STALE_S_MAX)
        try:
            return attempt(view)
        except _OUTDATED:
            if view.at_s >= asked_s:
                raise
        try:
            return attempt(self._views.get(stream))
        except LedgerTrimmed:
            raise
        except TrimmedError as error:  # truncated during the read: the next request sees it in the manifest
            raise LedgerIncompleteError(error.message, hint="retry the request") from error

    # --- offloading ----------------------------------------------------------------------------------------------

    def offload(
        self, stream: str, ledger_id: int, facts: BrokerFacts, *, wait_s: float, caller: BrokerCaller
    ) -> dict[str, Any]:
        """Waits until a closed ledger is in the cold tier; completes the current segment if necessary.

        Returns:
            ``committed``: whether the ledger is complete and equals the broker's in entries and length; otherwise
            ``missing``: ranges that readers do not receive and the broker has to send, if nothing else is missing.

        Raises:
            NotFoundError: no such stream; LedgerTrimmed: the ledger was deleted from it.
            LedgerMismatch: it differs from the broker's ledger.
            NotOwnerError: another process offloads the stream, and the request isn't forwarded to it.
            OffloaderError: the owner's errors.
        """
        started_s = self._clock.monotonic_s()
        result = "failed"
        try:
            found = self._offload(stream, ledger_id, facts, started_s + min(wait_s, WAIT_S_MAX), caller)
            result = "committed" if found["committed"] else "missing" if found["missing"] else "waiting"
            if found["committed"]:
                self.refusals.accepted(stream, ledger_id)
            return found
        except OffloaderError as error:
            # A read-only process doesn't report unknown streams as refused.
            if is_refusal(error) and not (self._control is None and isinstance(error, NotFoundError)):
                result = "refused"
                self.refusals.refused(stream, ledger_id, error)
            raise
        finally:
            self._recorder.add("broker_offload_requests_total", label=result)
            self._recorder.observe("broker_offload_seconds", self._clock.monotonic_s() - started_s)

    def _offload(
        self, stream: str, ledger_id: int, facts: BrokerFacts, deadline_s: float, caller: BrokerCaller
    ) -> dict[str, Any]:
        again_s = 0.0
        while True:
            state = self._state_if_any(stream)
            # A read-only process can't make the records durable on which the broker relies when it deletes its copy.
            found = None if state is None or self._control is None else self._decided(state, ledger_id, facts)
            left_s = deadline_s - self._clock.monotonic_s()
            if found is not None or left_s <= 0 or self._closing.is_set():
                return found or {"committed": False, "missing": []}
            if (not_here := self._completed_here(stream, Position(ledger_id, facts.last), left_s)) is not None:
                if state is None:
                    raise not_here
                answer = self._forwarded(state, ledger_id, facts, min(left_s, FORWARDED_S_MAX), caller, not_here)
                if answer["committed"] or answer["missing"]:
                    return answer
            if again_s:
                # The last entry is committed but the ledger is incomplete: a gap before it is recorded a little later.
                # Or the owner responded without waiting, because it is shutting down.
                self._clock.wait(self._closing, min(again_s, left_s))
            again_s = min(2 * again_s or AGAIN_S, AGAIN_S_MAX)

    def _decided(self, state: ManifestState, ledger_id: int, facts: BrokerFacts) -> dict[str, Any] | None:
        """The response to a broker that waits for a ledger; ``None``: not decided yet."""
        try:
            standing = ledger_standing(state, ledger_id, last=facts.last)
        except LedgerTrimmed:
            raise
        except NotFoundError:
            return None
        require_same_ledger(state.stream, standing, facts)
        if standing.is_whole and not standing.first:
            is_kept = self._has_end(state, standing, facts) and self._is_kept(state.stream, ledger_id, facts)
            return {"committed": True, "missing": []} if is_kept else None
        front = front_run(state, ledger_id)
        missing = joined([*front, *standing.missing])
        if missing and not without(standing.holes, front):
            return {"committed": False, "missing": [list(run) for run in missing[:MISSING_MAX]]}
        return None

    def _has_end(self, state: ManifestState, standing: LedgerStanding, facts: BrokerFacts) -> bool:
        """Whether the manifest has the ledger's end, on which readers rely; records the broker's end if it is
        missing."""
        if standing.is_closed:
            return True
        end = LedgerClosed(standing.ledger_id, standing.last)
        if state.source is None and facts.created_ms is not None:
            # The stream has no hot tier, so only the broker knows the facts that distinguish its ledgers.
            end = replace(end, payload_bytes=facts.length, created_ms=facts.created_ms)
        log = ManifestLog(self._store, state.stream, clock=self._clock)
        log.load()
        try:
            log.commit_as_maintainer([end])
        except EditRefusedError as error:  # the owner recorded another end, or the stream was deleted
            _log.info("ledger %d of stream %s: %s", standing.ledger_id, state.stream, error.message)
            return False
        return True

    def _is_kept(self, stream: str, ledger_id: int, facts: BrokerFacts) -> bool:
        """Whether the broker may delete its copy: the records are protected against unnoticed loss, and all objects
        exist.

        Raises: like ``verify_objects`` and ``read_fill``.
        """
        log = ManifestLog(self._store, stream, clock=self._clock)
        log.load()
        standing = ledger_standing(log.name_newest(), ledger_id, last=facts.last)
        if not (standing.is_whole and standing.is_closed) or standing.first:
            return False  # deleted or truncated meanwhile
        for record in standing.records:
            verify_objects(self._store, stream, record.uuid, record.content, at_root=is_at_root(record.driver))
        for fill in standing.fills:
            read_fill(self._store, stream, fill)
        return True

    def _state_if_any(self, stream: str) -> ManifestState | None:
        """The newest manifest; ``None``: the stream has none (yet)."""
        with suppress(NotFoundError):
            return self._views.get(stream).state
        return None

    def _completed_here(self, stream: str, last: Position, wait_s: float) -> OffloaderError | None:
        """Completes the current segment if this process offloads the stream; otherwise returns the reason."""
        if self._control is None:
            return NotFoundError(f"stream {stream} isn't in {self._store.url}, and this process is read-only")
        try:
            self._control.complete(stream, last, timeout_s=wait_s)
        except (NotFoundError, FencedError) as error:
            return error
        except (StoreUnavailableError, OutcomeUnknownError) as error:
            _log.info("ledger %d of stream %s isn't offloaded yet: %s", last.ledger_id, stream, error.message)
        return None

    def _forwarded(
        self,
        state: ManifestState,
        ledger_id: int,
        facts: BrokerFacts,
        wait_s: float,
        caller: BrokerCaller,
        why: OffloaderError,
    ) -> dict[str, Any]:
        """The owner's response, if the request may be forwarded with the broker's token."""
        owner = state.owner.url
        refused = NotOwnerError(
            f"stream {state.stream} is offloaded by {state.owner.name or 'no process'}"
            f"{f' at {owner}' if owner else ''}, not by this process",
            owner=owner,
            hint="send the request to that process, or add its host to access.owner_hosts to have requests forwarded",
        )
        if not owner or caller.is_forwarded:
            raise refused from why
        try:
            client = OwnerClient(
                owner,
                clock=self._clock,
                hosts=self._settings.access.owner_hosts,
                environ={**self._environ, TOKEN_VARIABLE: caller.token or self._environ.get(TOKEN_VARIABLE, "")},
            )
            if not client.is_allowed:
                raise refused
            asked = {**asdict(facts), "uuid": "" if facts.uuid is None else str(facts.uuid)}
            answer = client.offload_ledger(state.stream, ledger_id, asked, wait_s=wait_s, source=caller.source)
        except NotOwnerError as error:
            raise refused from error
        except (AccessDeniedError, InvalidCallError) as error:
            _log.warning("a broker's request isn't forwarded to %s: %s", owner, error.message)
            raise refused from error
        except OwnerUnreachableError as error:
            raise StoreUnavailableError(error.message, hint=error.hint) from error
        return {"committed": answer.get("committed") is True, "missing": answer.get("missing") or []}

    def fill(
        self, stream: str, ledger_id: int, first: int, last: int, body: bytes, *, caller: BrokerCaller
    ) -> dict[str, Any]:
        """Stores entries that readers do not receive: those from ``first`` to ``last`` that are recorded as gaps.

        Raises:
            InvalidCallError: the body doesn't consist of frames of exactly these entries.
            NotOwnerError: this process is read-only.
            Like ``fill_gaps``.
        """
        where = f"stream {stream}, ledger {ledger_id}, entries {first}..{last}"
        if last < first or first < 0:
            raise InvalidCallError(f"{where}: invalid range", hint="first must not exceed last")
        state = self._views.get(stream).state
        if self._control is None:
            raise NotOwnerError(
                f"stream {stream}: this process is read-only",
                owner=state.owner.url,
                hint="send it to a process that offloads",
            )
        ledger_standing(state, ledger_id, last=last)
        try:
            batch = decode_frames(body, ledger_id=ledger_id)
        except FormatError as error:
            raise InvalidCallError(f"{where}: the body has no valid frames: {error}", hint="send it again") from error
        log = ManifestLog(self._store, stream, clock=self._clock)
        if len(batch):
            self._record_front(log, ledger_id, batch.first.entry_id)
        try:
            stored = fill_gaps(log, batch, first, last)
        except SourceMismatchError as error:
            raise LedgerMismatch(error.message, hint=error.hint) from error
        self._recorder.add("broker_filled_entries_total", stored, stream=stream)
        _log.info(
            "%s: a broker sent %d entries that readers do not receive",
            where,
            stored,
            extra={
                "event": "broker_filled",
                "stream": stream,
                "ledger": ledger_id,
                "entries": stored,
                "by": caller.name,
            },
        )
        return {"stored": stored}

    def _record_front(self, log: ManifestLog, ledger_id: int, entry_id: int) -> None:
        """Records the entries before a stream's first entry as a gap, if the broker sends the first of them.

        A stream begins with the first entry that a reader received; the request shows that earlier ones exist.
        """
        for low, high in front_run(log.load(), ledger_id):
            if low <= entry_id <= high:
                with suppress(EditRefusedError):  # another request recorded it, or the head moved: the fill checks it
                    log.commit_as_maintainer(
                        [Gap(Position(ledger_id, low), Position(ledger_id, high), GapReason.UNDELIVERED)]
                    )

    def attempt_deleted(self, stream: str, ledger_id: int, *, uuid: UUID | None, caller: BrokerCaller) -> None:
        """Records that a broker ended an attempt. All attempts share one copy, so nothing is deleted."""
        self._recorder.add("broker_delete_requests_total")
        # A broker starts and ends an attempt for each refusal, which is logged separately.
        _log.log(
            logging.DEBUG if self.refusals.stands(stream) else logging.INFO,
            "stream %s, ledger %d: a broker ended attempt %s",
            stream,
            ledger_id,
            uuid,
            extra={
                "event": "broker_deleted",
                "stream": stream,
                "ledger": ledger_id,
                "uuid": str(uuid),
                "by": caller.name,
            },
        )

    def _broker(self, caller: BrokerCaller) -> str:
        """The label value of a broker in metrics."""
        name = caller.address or caller.name
        with self._lock:
            if name not in self._brokers and len(self._brokers) >= BROKERS_NAMED_MAX:
                return OTHER_BROKER
            self._brokers.add(name)
        return name


def front_run(state: ManifestState, ledger_id: int) -> list[Run]:
    """The ids before the stream's first range in the same ledger; empty if something else explains them. Pure.

    No reader received these entries (markers, or an aborted transaction), otherwise the stream would begin with them.
    """
    first = first_begin(state.ranges())
    if first is None or first.ledger_id != ledger_id or not first.entry_id or state.committed_from is not None:
        return []
    is_cut = state.head is not None and state.head > Position(ledger_id, 0)
    return [] if is_cut or ledger_id in state.deleted_ledgers else [(0, first.entry_id - 1)]


def _chunk_document(chunk: Chunk) -> dict[str, Any]:
    return {
        "first": chunk.first,
        "last": chunk.last,
        "bytes": chunk.payload_bytes,
        "object": chunk.object,
        "start": chunk.start,
        "stop": chunk.stop,
        "blocks": chunk.blocks,
    }


def _after(first: Buffer, pieces: Iterator[Buffer]) -> Generator[Buffer, None, None]:
    yield first
    yield from pieces
