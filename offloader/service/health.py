"""Probes that check over separate connections whether the store and the brokers respond; one log line per outage."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from formats.documents import STORE_IDENTITY_KEY
from offloader.errors import (
    AccessDeniedError,
    CorruptError,
    NotFoundError,
    StoreUnavailableError,
    ThrottledError,
    UnsupportedError,
    plain_reason,
)
from offloader.ledgers.pulsar.protocol import ClientLimits, PulsarClient
from offloader.ledgers.pulsar.transport import security_of
from offloader.manifest.store_identity import require_identity
from offloader.runtime.clock import Clock
from offloader.service.streams import ProviderProblem
from offloader.settings import Duration, PulsarSettings, StoreSettings
from offloader.store.base import ObjectStore

_log = logging.getLogger("offloader.service.health")

#: Delay between two probes, and timeout of one. An outage is detected within the sum of both.
PROBE_PERIOD_S, PROBE_ANSWER_S = 3.0, 5.0
#: Maximum number of hanging probes of one target.
PROBES_OPEN_MAX = 3


@dataclass(frozen=True, slots=True)
class Reach:
    """Reachability of a target.

    Attributes:
        is_up: whether it responds; ``None``: not known yet.
        why: the reason of an outage as text; empty: it responds.
        since_ms: start of this state, ms since 1970 UTC; ``None``: not known yet.
    """

    is_up: bool | None = None
    why: str = ""
    since_ms: int | None = None

    def as_json(self) -> dict[str, Any]:
        """``{"up", "why", "since_ms"}``."""
        return {"up": self.is_up, "why": self.why or None, "since_ms": self.since_ms}


class _Attempt(threading.Thread):
    """One probe in progress on a separate thread, which is abandoned after ``PROBE_ANSWER_S``."""

    def __init__(self, check: Callable[[], object]) -> None:
        super().__init__(name="offloader-probe-request", daemon=True)
        self._check = check
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._check()
        except BaseException as error:  # reported by ``failure``
            self._error = error

    def failure(self, answer_s: float) -> str:
        """Waits for a response; returns the reason of a failure, empty on success."""
        self.join(answer_s)
        if self.is_alive():
            return f"no answer within {answer_s:g} s"
        return "" if self._error is None else plain_reason(self._error, answer_s)


class Probe:
    """Checks periodically whether a target responds. Thread-safe.

    It uses separate threads, so that neither busy workers nor a hanging request delay it.

    Args:
        kind: ``store`` or ``source``, for log events.
        where: as in ``ProviderProblem.where``.
        target: name of the target for messages.
        check: sends one request over a separate connection; raises an error on failure.
        hint: the remedy during an outage.
        touched: returns the effect of an outage for the log line; may be empty.
        end: closes the connections.
    """

    def __init__(
        self,
        kind: str,
        where: str,
        target: str,
        check: Callable[[], object],
        *,
        clock: Clock,
        hint: str,
        touched: Callable[[], str] = lambda: "",
        end: Callable[[], object] = lambda: None,
        period_s: float = PROBE_PERIOD_S,
        answer_s: float = PROBE_ANSWER_S,
    ) -> None:
        self.kind, self.where = kind, where
        self._target, self._check, self._clock = target, check, clock
        self._hint, self._touched, self._end = hint, touched, end
        self._period_s, self._answer_s = period_s, answer_s
        self._reach = Reach()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"offloader-{kind}-probe", daemon=True)

    @property
    def reach(self) -> Reach:
        """Result of the latest probe."""
        return self._reach

    @property
    def outage(self) -> str:
        """The target and the reason of its outage as text; empty: it responds, or its state isn't known yet."""
        found = self._reach
        return f"{self._target} doesn't answer: {found.why}" if found.is_up is False else ""

    def problem(self) -> ProviderProblem | None:
        """The outage as a problem that blocks readiness; ``None``: no outage."""
        text = self.outage
        if not text:
            return None
        return ProviderProblem(
            where=self.where, what=text, hint=self._hint, since_ms=self._reach.since_ms, blocks_ready=True
        )

    def start(self) -> None:
        """Starts the periodic checks without waiting for the first."""
        self._thread.start()

    def close(self) -> None:
        """Stops the checks and closes the connections, without waiting for a hanging request. Idempotent."""
        self._stopped.set()
        self._end()

    def _run(self) -> None:
        open_attempts: list[_Attempt] = []
        while not self._stopped.is_set():
            open_attempts = [each for each in open_attempts if each.is_alive()]
            if len(open_attempts) < PROBES_OPEN_MAX:
                open_attempts.append(_Attempt(self._check))
            failure = open_attempts[-1].failure(self._answer_s)
            if not self._stopped.is_set():
                self._see(failure)
            self._stopped.wait(self._period_s)

    def _see(self, why: str) -> None:
        before, is_up, now_ms = self._reach, not why, self._clock.now_ms()
        if before.is_up is is_up:
            self._reach = replace(before, why=why)
            return
        self._reach = Reach(is_up, why, now_ms)
        if not is_up:
            text = "; ".join(filter(None, (f"{self.where}: {self.outage}", self._touched())))
            _log.warning("%s", text, extra={"event": "outage", "target": self.kind, "why": why})
        elif before.is_up is False:
            lasted_s = (now_ms - (before.since_ms or now_ms)) / 1000
            _log.warning(
                "%s: %s answers again after %.0f s",
                self.where,
                self._target,
                lasted_s,
                extra={"event": "outage_over", "target": self.kind, "seconds": round(lasted_s, 1)},
            )


def probe_settings(settings: StoreSettings) -> StoreSettings:
    """Settings for a probe's connections: a single attempt within the probe's timeout."""
    return replace(
        settings,
        connect_timeout=Duration(min(settings.connect_timeout, PROBE_ANSWER_S)),
        read_timeout=Duration(min(settings.read_timeout, PROBE_ANSWER_S)),
        retries_max=0,
        connections_max=PROBES_OPEN_MAX,
    )


def ask_store(store: ObjectStore, see: Callable[[UUID | None], object] = lambda _: None) -> None:
    """Sends one request, a second one after a refusal.

    Args:
        see: receives the store's identity if the response has it; ``None``: the store has none.

    Raises:
        OffloaderError: the store can't be used.
    """
    with suppress(ThrottledError, CorruptError, UnsupportedError):
        try:
            see(require_identity(store))
        except NotFoundError:
            see(None)
        except AccessDeniedError:
            # Without the permission to list, S3 refuses requests for missing keys; a list request returns the reason.
            store.list(STORE_IDENTITY_KEY, limit=1)


def probe_client(settings: PulsarSettings, clock: Clock) -> PulsarClient:
    """A client for ``ask_broker``: a single attempt per request, without delay, within the probe's timeout."""
    return PulsarClient(
        settings.service_url,
        security=security_of(settings),
        limits=ClientLimits(
            connect_s=PROBE_ANSWER_S,
            request_s=PROBE_ANSWER_S,
            keep_alive_s=2 * PROBE_ANSWER_S,
            retry_s=0.0,
            delay_first_s=0.0,
            delay_s_max=0.0,
        ),
        clock=clock,
    )


def ask_broker(client: PulsarClient) -> None:
    """Sends one request, and a second one over a new connection if the first one is lost. Raises ``OffloaderError``: no
    broker of the client accepts the request."""
    with suppress(StoreUnavailableError):
        client.ping()
        return
    # A restarted broker closed the connection: that alone isn't an outage.
    client.ping()


#: Events that repeat during an outage, which is logged separately.
_FOLLOWING = frozenset({"stream_restarts", "feed_failed", "retention_failed", "cleanup_failed", "orphans_failed"})


class OutageFilter(logging.Filter):
    """Suppresses log lines of repeated attempts, which ``TroubleLog`` groups, and of failures caused by an outage.

    Args:
        is_out: returns whether the store or a source is currently unreachable.
    """

    def __init__(self, is_out: Callable[[], bool]) -> None:
        super().__init__()
        self._is_out = is_out

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is written."""
        event = getattr(record, "event", "")
        return event != "retry" and not (event in _FOLLOWING and self._is_out())


#: Time after which a stream's problem is logged if no outage explains it; longer than the delay between two attempts.
TOLD_AFTER_S = 60.0
#: Maximum number of names in one line; further ones are only counted.
NAMES_MAX = 3


@dataclass(slots=True)
class _Trouble:
    why: str
    since_s: float
    is_told: bool = False


class TroubleLog:
    """Log lines about problems of streams: one for all streams with the same reason, one when they end. Not
    thread-safe.

    Args:
        told_after_s: seconds after which a problem is logged.
    """

    def __init__(self, *, told_after_s: float = TOLD_AFTER_S) -> None:
        self._told_after_s = told_after_s
        self._troubles: dict[str, _Trouble] = {}

    def wait(self) -> None:
        """Restarts the delay of problems that aren't logged yet, because an outage explains them."""
        self._troubles = {name: each for name, each in self._troubles.items() if each.is_told}

    def look(self, now_s: float, whys: Mapping[str, str]) -> list[str]:
        """The lines that are due.

        Args:
            now_s: of a monotonic clock.
            whys: stream -> its current problem.
        """
        before = self._troubles
        self._troubles = {
            name: replace(before[name], why=why) if name in before else _Trouble(why, now_s)
            for name, why in whys.items()
        }
        due: dict[str, list[str]] = {}
        for name, each in sorted(self._troubles.items()):
            if not each.is_told and now_s - each.since_s >= self._told_after_s:
                each.is_told = True
                due.setdefault(each.why.replace(name, "its stream"), []).append(name)
        over = sorted(name for name, each in before.items() if each.is_told and name not in whys)
        lines = [f"{named(names)}: {why}; tried again until it works" for why, names in due.items()]
        return [*lines, f"{named(over)}: works again"] if over else lines


def named(names: Sequence[str]) -> str:
    """``stream a``, or ``50 streams (a, b, c and 47 more)``."""
    if len(names) == 1:
        return f"stream {names[0]}"
    rest = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
    return f"{len(names)} streams ({', '.join(names[:NAMES_MAX])}{rest})"
