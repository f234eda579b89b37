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
    """Something that keeps the process, a feed or a stream from its work now; over when nobody names it any more.

    Attributes:
        where: ``feed pulsar``, ``stream a/b/persistent/c``, ``store s3://bucket/root``.
        what: one line, without a secret.
        hint: what to do about it, one line; may be empty.
        since_ms: since when, ms since 1970 UTC; ``None``: unknown.
        blocks_ready: whether the process isn't ready while it lasts.
    """

    where: str
    what: str
    hint: str = ""
    since_ms: int | None = None
    blocks_ready: bool = False


class StreamControl(Protocol):
    """A stream that was added, for the feed that added it. Thread-safe; no call but ``offload`` waits for the store."""

    @property
    def name(self) -> str: ...

    @property
    def is_active(self) -> bool:
        """Whether it is offloaded here, or is going to be as soon as that works."""
        ...

    @property
    def committed(self) -> Position | None:
        """Newest entry that is durable in the cold tier, as far as this process knows."""
        ...

    def status(self) -> StreamStatus | None:
        """What its streaming offload is doing, as in memory; ``None``: it isn't offloaded that way here, or not yet."""
        ...

    def offload(self, *, timeout_s: float | None = None) -> Position | None:
        """Closes the current segment and waits until what the hot tier has now is committed.

        Returns:
            The committed end, ``None`` when the stream has no entries.

        Raises: as ``ManagedLedger.offload``.
        """
        ...

    def activate(self) -> None:
        """It is this process's turn: the stream is taken, whoever had it (its epoch is fenced), and offloaded. Calling
        it again takes the stream back after somebody else fenced it."""
        ...

    def stand_by(self) -> None:
        """It isn't any more: nothing further is offered or uploaded; what isn't committed is the next owner's."""
        ...


class Streams(Protocol):
    """Where a feed brings its streams. Thread-safe."""

    def settings_of(self, name: str) -> Settings:
        """The effective settings of a stream, or of a topic; of ``""``: of the process."""
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
        """Offloads a stream from now on, by its method; returns at once, trouble is retried and shown.

        Args:
            name: the stream's.
            source: its hot tier; it stays the feed's: who removes the stream closes the source afterwards.
            feed: who brings it, for people.
            adjust: what the feed makes of ``settings_of(name)``, now and after a reload.
            active: False: stands by until ``StreamControl.activate``; ``None``: likewise, and says that it isn't known
                yet whose turn it is, until ``activate`` or ``stand_by``.

        Raises:
            InvalidCall: not a stream's name, or there is one of that name already (it names who brought that).
            LimitReached: more streams than ``serve.streams_max``.
            Closed: the process is stopping.
        """
        ...

    def remove(self, name: str, *, drain: bool = True, within_s: float | None = None) -> bool:
        """Winds a stream down; deletes nothing. False: there was none of that name.

        Args:
            drain: first complete the current segment.
            within_s: seconds that may take; default: ``offload.drain_seconds_max``.

        What isn't committed then is left to the next start: it is logged, not raised.
        """
        ...


class StreamProvider(Protocol):
    """Something that brings streams. One that fails keeps no other from its work."""

    @property
    def name(self) -> str:
        """``ledgers``, ``pulsar``, ``flight``: for people and metrics."""
        ...

    def start(self, streams: Streams) -> None:
        """Begins to bring streams, on threads or timers of its own; returns at once. What may be mended by waiting is
        retried and told by ``problems``; only what is wrong for good (settings) raises, and ends the start.
        """
        ...

    def stop(self, within_s: float) -> None:
        """Brings and takes no further streams. Those that were added stay: the process winds them down next. Never
        raises.

        Args:
            within_s: seconds it may take.
        """
        ...

    def close(self) -> None:
        """Closes what it opened, the sources too: all streams are wound down. Never raises."""
        ...

    def problems(self) -> Sequence[ProviderProblem]:
        """What is wrong now; quick, asks nobody."""
        ...
