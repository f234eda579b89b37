"""Protocol between the serving process and the providers of its streams."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from formats.entries import Position
from offloader.ledgers.base import LedgerSource
from offloader.settings import Settings
from offloader.write.status import StreamStatus

__all__ = ["ProviderProblem", "StreamControl", "StreamProvider", "Streams"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderProblem:
    """A current problem of the process, a provider or a stream; over when no component reports it.

    Attributes:
        where: ``feed pulsar``, ``stream a/b/persistent/c``, ``store s3://bucket/root``.
        what: one line, without a secret.
        hint: the remedy, one line; may be empty.
        since_ms: its start, ms since 1970 UTC; ``None``: unknown.
        blocks_ready: whether the process isn't ready while it lasts.
    """

    where: str
    what: str
    hint: str = ""
    since_ms: int | None = None
    blocks_ready: bool = False


class StreamControl(Protocol):
    """A stream, for the provider that added it. Thread-safe; no call but ``offload`` waits for the store."""

    @property
    def name(self) -> str: ...

    @property
    def is_active(self) -> bool:
        """Whether it is offloaded here, or will be as soon as possible."""
        ...

    @property
    def committed(self) -> Position | None:
        """Newest entry that is durable in the cold tier, as far as this process knows."""
        ...

    def status(self) -> StreamStatus | None:
        """Cached status of its streaming offload; ``None``: not offloaded that way here, or not yet."""
        ...

    def offload(self, *, timeout_s: float | None = None) -> Position | None:
        """Closes the current segment and waits until the hot tier's entries are committed.

        Returns:
            The committed end, ``None`` when the stream has no entries.

        Raises: as ``ManagedLedger.offload``.
        """
        ...

    def activate(self) -> None:
        """Makes this process the leader: takes over the stream (fences the owner's epoch) and offloads it. A repeated
        call takes it back after another process fenced it."""
        ...

    def stand_by(self) -> None:
        """Makes this process a standby: offers and uploads nothing further; the next owner commits the rest."""
        ...


class Streams(Protocol):
    """The process's streams, for its providers. Thread-safe."""

    def settings_of(self, name: str) -> Settings:
        """The effective settings of a stream, or of a topic; of the process for ``""``."""
        ...

    def add(
        self,
        name: str,
        source: LedgerSource,
        *,
        feed: str,
        adjust: Callable[[Settings], Settings] = lambda settings: settings,
        active: bool | None = True,
    ) -> StreamControl:
        """Offloads a stream from now on, by its method; returns at once; errors are retried and reported.

        Args:
            name: the stream's.
            source: its hot tier; the provider owns it, and closes it after ``remove``.
            feed: the provider's name, for people.
            adjust: the provider's changes to ``settings_of(name)``, now and after a reload.
            active: False: stands by until ``StreamControl.activate``; ``None``: likewise, and reports that the leader
                isn't known yet, until ``activate`` or ``stand_by``.

        Raises:
            InvalidCall: not a stream's name, or a duplicate (it names the first one's provider).
            LimitReached: more streams than ``serve.streams_max``.
            Closed: the process is stopping.
        """
        ...

    def remove(self, name: str, *, drain: bool = True, within_s: float | None = None) -> bool:
        """Winds a stream down; deletes nothing. False: no such stream.

        Args:
            drain: first complete the current segment.
            within_s: time limit, seconds; default: ``offload.drain_seconds_max``.

        The next start offloads what isn't committed then: that is logged, not raised.
        """
        ...


class StreamProvider(Protocol):
    """A provider of streams. Its failure doesn't affect other providers."""

    @property
    def name(self) -> str:
        """``ledgers``, ``pulsar``, ``flight``: for people and metrics."""
        ...

    def start(self, streams: Streams) -> None:
        """Starts to add streams, on its own threads or timers; returns at once. Transient errors are retried and
        reported by ``problems``; only permanent ones (settings) raise, and end the start."""
        ...

    def stop(self, within_s: float) -> None:
        """Adds and removes no further streams. The added ones stay: the process winds them down next. Never raises.

        Args:
            within_s: seconds it may take.
        """
        ...

    def close(self) -> None:
        """Closes everything it opened, including the sources, after all streams are wound down. Never raises."""
        ...

    def problems(self) -> Sequence[ProviderProblem]:
        """Current problems; fast, without I/O."""
        ...
