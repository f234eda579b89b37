"""Snapshot of a stream or topic: the input of a retention decision."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from formats.manifest import SetMethod
from offloader.errors import OffloaderError
from offloader.manifest.log import ManifestLog
from offloader.retention.cuts import Cut, OwnCuts, partition_segment
from offloader.retention.lineage import Lineage
from offloader.retention.policy import policy_of
from offloader.retention.scope import LoadedPartitions, Place, home_of
from offloader.retention.state import RecordedState, lineage_of
from offloader.retention.subscribers import Registry, StreamRetention
from offloader.runtime.clock import Clock
from offloader.settings import Settings
from offloader.store.base import ObjectStore
from offloader.store.probe import require_conditional_puts

__all__ = ["HotStreams", "Look", "offloaded_end", "with_records"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Input of a retention decision, as of ``now_ms``.

    Attributes:
        retention, place: where its state is.
        past: the recorded state.
        own: its cuts, by the current ``partitions``.
        registry: its subscribers.
        now_ms: the time of the snapshot.
    """

    retention: StreamRetention
    place: Place
    past: RecordedState
    own: OwnCuts
    partitions: LoadedPartitions
    registry: Registry
    now_ms: int

    @property
    def lineage(self) -> Lineage:
        return lineage_of(self.place)


def offloaded_end(look: Look) -> Cut:
    """Limit of the start position: the committed end, or of partitions that aren't offloaded the tail."""
    found = {}
    for number in look.place.partitions:
        state, entries = look.partitions.state(number), look.own.partitions[number]
        if state.method == "none":
            position = entries.tail
        elif (end := state.prefix_end()) is not None:
            position = entries.canonical(end.next())
        else:
            continue
        if position is not None:
            found[partition_segment(number)] = position
    return Cut(found)


def with_records(look: Look, begin: Cut, *, is_recorded: bool) -> RecordedState:
    """The recorded state adjusted to the current start position, whatever moved it; with the tail if recorded."""
    past = look.past
    if past.records.up_to(begin, look.lineage):
        past = past.truncated(begin, look.lineage, None)
    return past.with_tail(look.own, look.now_ms) if is_recorded else past


_log = logging.getLogger("offloader.retention")
_METHOD = "none"


class HotStreams:
    """Streams whose hot tier this process has. Not thread-safe.

    Args:
        store: open for writing.
        clock: of this machine.
        settings_of: the settings of a stream or topic.
        names: lists these streams.
        entropy: source of random bytes.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        clock: Clock,
        settings_of: Callable[[str], Settings],
        names: Callable[[], Iterable[str]],
        entropy: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._store, self._clock, self._settings_of, self._names = store, clock, settings_of, names
        self._entropy = entropy
        self._settled: set[str] = set()
        self._is_probed = False

    def enrol(self) -> list[str]:
        """Ensure that each unoffloaded stream under a policy has a manifest that records it as unoffloaded.

        Returns:
            The streams with newly written manifests. A failure is logged, and retried by the next call.
        """
        names = set(self._names())
        self._settled &= names
        begun = []
        for stream in sorted(names - self._settled):
            try:
                if self._is_ruled(stream):
                    begun += [stream] if self._begin(stream) else []
                    self._settled.add(stream)
            except OffloaderError as error:
                extra = {"event": "retention_failed", "stream": stream, "retryable": error.retryable}
                _log.warning("retention of stream %s, which isn't offloaded: %s", stream, error, extra=extra)
        return begun

    def _is_ruled(self, stream: str) -> bool:
        if self._settings_of(stream).offload.method != _METHOD:
            return False  # its offloader creates the manifest
        name, _ = home_of(self._store, stream)
        return policy_of(name, self._settings_of(name).retention) is not None

    def _begin(self, stream: str) -> bool:
        settings = self._settings_of(stream)
        if not self._is_probed:
            # Two manifests that both "win" would disagree about the start position.
            require_conditional_puts(self._store, single_writer=settings.store.single_writer)
            self._is_probed = True
        log = ManifestLog(self._store, stream, clock=self._clock, entropy=self._entropy, settings=settings.manifest)
        if log.load(create=True).method == _METHOD:
            return False
        # Also of a formerly offloaded stream: entries that are never offloaded must not hold the start position back.
        log.commit_as_maintainer([SetMethod(_METHOD)])
        return True
