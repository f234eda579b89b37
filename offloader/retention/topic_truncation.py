"""Truncating a partitioned topic as one stream.

Owns the intent: written under the topic's name before the first partition changes, finished by whoever comes by. Must
never begin another truncation while one is unfinished, nor write an intent that a partition would refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from uuid import UUID

from formats.entries import Position
from formats.truncation_intent import PartitionHead, TruncationIntent, encode_intent, intent_key
from offloader.clock import Clock
from offloader.errors import Fenced, InvalidCall, NotFound, PreconditionFailed, StoreUnavailable
from offloader.ledgers.base import LedgerSource
from offloader.manifest.catalog import read_entry
from offloader.manifest.global_hold import require_no_global_hold
from offloader.manifest.log import ManifestLog
from offloader.manifest.owners import require_takeable
from offloader.manifest.shared_keys import mode_of_new
from offloader.manifest.topics import partition_of, read_intent
from offloader.retention.truncation import Truncation, truncate_stream
from offloader.store.base import ObjectInfo, ObjectStore

__all__ = ["resume_topic_truncation", "truncate_topic"]

#: How often an intent is written again because others wrote theirs meanwhile.
ATTEMPTS_MAX = 10

#: The hot tier of a partition; ``None``: somebody else's.
SourceOf = Callable[[str], LedgerSource | None]


def truncate_topic(
    store: ObjectStore,
    topic: str,
    heads: Mapping[str, Position],
    *,
    clock: Clock,
    by: str,
    source_of: SourceOf = lambda _: None,
    force: bool = False,
    take_over: bool = False,
    takeover_after_s: float = 60.0,
    dry_run: bool = False,
    still: Callable[[], bool] = lambda: True,
) -> Mapping[str, Truncation]:
    """Lets each partition begin at its position; a partition that isn't named stays as it is.

    An earlier truncation that somebody began and didn't finish is finished first.

    Args:
        heads: partition's stream -> the first position that stays.
        by: who wants it, for people.
        source_of: the hot tier of a partition.
        force, take_over, takeover_after_s, dry_run: as for ``truncate_stream``.
        still: asked when nobody else can begin a truncation any more that this one wouldn't notice: whether it is still
            wanted.

    Returns:
        What changed, by partition; empty: it isn't wanted any more.

    Raises:
        InvalidCall, EditRefused, NotFound, Fenced: a partition can't be truncated like this; none was.
        StoreUnavailable, OutcomeUnknown: it isn't finished; call it, or ``resume_topic_truncation``, again.
    """
    foreign = [name for name in heads if (partition_of(name) or ("",))[0] != topic]
    if foreign or not heads:
        raise InvalidCall(
            f"{', '.join(foreign) or 'nothing'} is no partition of {topic}", hint=f"{topic}-partition-0 and so on"
        )
    require_no_global_hold(store)
    how = _How(store, clock, source_of, force=force, take_over=take_over, takeover_after_s=takeover_after_s)
    for _ in range(1 if dry_run else ATTEMPTS_MAX):
        if not dry_run:
            resume_topic_truncation(store, topic, clock=clock, source_of=source_of, take_over=take_over)
        before, info = read_intent(store, topic)
        # What one partition refuses is refused before any changes: none of it becomes less allowed afterwards.
        wanted = tuple(PartitionHead(name, _incarnation(store, name), head) for name, head in sorted(heads.items()))
        planned = {each.stream: how.plan(each, dry_run=dry_run) for each in wanted}
        if dry_run:
            return planned
        if before is not None and not before.is_done:
            raise StoreUnavailable(f"somebody else truncates {topic} at the same time: {before.by}")
        if not still():
            return {}
        intent = TruncationIntent(topic, wanted, force, by, clock.now_ms())
        if _begun(store, intent, info):
            return _apply(how, intent)
    raise StoreUnavailable(f"{topic} in {store.url} was truncated {ATTEMPTS_MAX} times meanwhile")


def resume_topic_truncation(
    store: ObjectStore,
    topic: str,
    *,
    clock: Clock,
    source_of: SourceOf = lambda _: None,
    take_over: bool = False,
    takeover_after_s: float = 60.0,
) -> Mapping[str, Truncation]:
    """Finishes a truncation that was begun; empty: there is none. Raises as ``truncate_topic``."""
    found, _ = read_intent(store, topic)
    if found is None or found.is_done:
        return {}
    how = _How(store, clock, source_of, force=found.forced, take_over=take_over, takeover_after_s=takeover_after_s)
    return _apply(how, found)


class _How:
    """How one partition is truncated."""

    def __init__(
        self,
        store: ObjectStore,
        clock: Clock,
        source_of: SourceOf,
        *,
        force: bool,
        take_over: bool,
        takeover_after_s: float,
    ) -> None:
        self.store, self._clock, self._source_of = store, clock, source_of
        self._force, self._take_over, self._takeover_after_s = force, take_over, takeover_after_s

    def truncate(self, wanted: PartitionHead) -> Truncation:
        return self._truncate(self._log(wanted), wanted, dry_run=False)

    def plan(self, wanted: PartitionHead, *, dry_run: bool) -> Truncation:
        """What it would do; raises what it would raise, unless that is all that is asked."""
        log = self._log(wanted)
        plan = self._truncate(log, wanted, dry_run=True)
        if (plan.gaps or plan.failed) and not dry_run:
            now_ms = self._clock.now_ms()
            require_takeable(log.state, now_ms, self._takeover_after_s, take_over=self._take_over)
        return plan

    def _log(self, wanted: PartitionHead) -> ManifestLog:
        return ManifestLog(self.store, wanted.stream, clock=self._clock, incarnation=wanted.incarnation)

    def _truncate(self, log: ManifestLog, wanted: PartitionHead, *, dry_run: bool) -> Truncation:
        return truncate_stream(
            log,
            wanted.head,
            clock=self._clock,
            source=self._source_of(wanted.stream),
            force=self._force,
            take_over=self._take_over,
            takeover_after_s=self._takeover_after_s,
            dry_run=dry_run,
        )


def _apply(how: _How, intent: TruncationIntent) -> Mapping[str, Truncation]:
    done = {}
    for each in intent.heads:
        if not _is_alive(how.store, each):
            continue  # it was deleted since; one of that name that was created again is none of this
        try:
            done[each.stream] = how.truncate(each)
        except (NotFound, Fenced):
            if _is_alive(how.store, each):
                raise
    _finish(how.store, intent)
    return done


def _incarnation(store: ObjectStore, stream: str) -> UUID:
    entry = read_entry(store, stream)
    if entry is None:
        raise NotFound(f"stream {stream} isn't in {store.url}", hint="`offloader ls` lists the streams")
    return entry.incarnation


def _is_alive(store: ObjectStore, wanted: PartitionHead) -> bool:
    entry = read_entry(store, wanted.stream)
    return entry is not None and entry.incarnation == wanted.incarnation


def _begun(store: ObjectStore, intent: TruncationIntent, before: ObjectInfo | None) -> bool:
    """Writes an intent over what was read, unless that is another by now."""
    key = intent_key(intent.topic)
    try:
        store.put(key, encode_intent(intent), mode=mode_of_new(store, key, before))
    except PreconditionFailed:
        # It may be this one, whose answer was lost.
        return read_intent(store, intent.topic)[0] == intent
    return True


def _finish(store: ObjectStore, intent: TruncationIntent) -> None:
    """Writes down that it is done, unless somebody else has."""
    key = intent_key(intent.topic)
    for _ in range(ATTEMPTS_MAX):
        found, info = read_intent(store, intent.topic)
        if found != intent:
            return
        try:
            store.put(key, encode_intent(replace(intent, is_done=True)), mode=mode_of_new(store, key, info))
        except PreconditionFailed:
            continue
        return
    raise StoreUnavailable(f"{key} in {store.url} changed {ATTEMPTS_MAX} times meanwhile")
