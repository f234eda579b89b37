"""DoAction: what may be asked of the process beside entries.

Owns the list of actions and what each takes. Must never let data go that isn't durable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from offloader.clock import Clock
from offloader.errors import InvalidCall, NotFound
from offloader.manifest.log import ManifestLog
from offloader.retention.truncation import truncate_stream
from offloader.service.control import ServiceControl
from offloader.service.flight.appended import AppendedLedgers
from offloader.service.flight.messages import Fields, encoded, fields_of
from offloader.service.flight.seats import FlightStream, Seats
from offloader.service.roles import OPERATION_OF_ACTION, Caller
from offloader.store.base import ObjectStore

__all__ = ["ACTIONS", "Actions"]

#: Longest wait of one ``offload``.
OFFLOAD_WAIT_S_MAX = 3600.0


#: What each takes; who may ask is in the table of operations.
ACTIONS = {
    "status": 'what streams that come in do: {"stream": NAME}, or all of them',
    "offload": 'close the current segment and wait until it is durable: {"stream", "until", "timeout_s"}',
    "close-ledger": 'close the open ledger of an appended stream: {"stream"}',
    "publish": 'what a subscriber has consumed: {"stream", "subscriber", "at", "generation"}',
    "subscribe": 'register a subscriber: {"stream", "subscriber", "start", "generation"}',
    "truncate": 'let a stream begin at a position: {"stream", "before"}',
}


class Actions:
    """Thread-safe.

    Args:
        store: where the manifests are.
        seats: streams that come in.
        control: takes commands for every stream that is served.
        clock: of times that are recorded.
    """

    def __init__(self, store: ObjectStore, seats: Seats, control: Callable[[], ServiceControl], clock: Clock) -> None:
        self._store, self._seats, self._control, self._clock = store, seats, control, clock
        self._run: dict[str, Callable[[Fields, Caller], dict[str, Any]]] = {
            "status": self._status,
            "offload": self._offload,
            "close-ledger": self._close_ledger,
            "publish": self._publish,
            "subscribe": self._subscribe,
            "truncate": self._truncate,
        }

    def run(self, name: str, body: bytes, caller: Caller) -> bytes:
        """Does it, if ``caller`` may, and answers with a document.

        Raises:
            NotAuthenticated, NotAllowed: who may not.
            InvalidCall: no such action; and what it is refused for.
        """
        caller.require_known()
        if name not in ACTIONS:
            raise InvalidCall(f"no such action: {ascii(name)[:80]}", hint=f"there are {', '.join(ACTIONS)}")
        operation = OPERATION_OF_ACTION[name]
        if operation.is_of_subscriber and caller.subscribers:
            # Whose token it is, only the body tells.
            caller.may(operation, subscriber=fields_of(body, f"action {name}").text("subscriber"))
        else:
            caller.may(operation)
        return encoded(self._run[name](fields_of(body, f"action {name}"), caller))

    def _status(self, fields: Fields, caller: Caller) -> dict[str, Any]:  # noqa: ARG002 - the others want to know
        name = fields.text("stream", "")
        fields.end()
        if not name:
            return {"streams": [_document(stream) for stream in self._seats.held()]}
        return _document(self._there(name))

    def _offload(self, fields: Fields, caller: Caller) -> dict[str, Any]:
        name, until = fields.text("stream"), fields.text("until", "")
        timeout_s = min(fields.seconds("timeout_s", 60.0) or 0.0, OFFLOAD_WAIT_S_MAX)
        fields.end()
        return self._control().offload(name, until=until, timeout_s=timeout_s, by=caller.name)

    def _close_ledger(self, fields: Fields, caller: Caller) -> dict[str, Any]:  # noqa: ARG002
        stream = self._there(fields.text("stream"))
        fields.end()
        if not isinstance(stream.source, AppendedLedgers):
            raise InvalidCall(
                f"stream {stream.name} is pushed: its ledgers are the broker's",
                hint="say how a ledger ends in a batch's metadata",
            )
        closed = stream.source.close_ledger()
        return {"stream": stream.name, "closed": None if closed is None else closed.ledger_id}

    def _publish(self, fields: Fields, caller: Caller) -> dict[str, Any]:
        name, subscriber = fields.text("stream"), fields.text("subscriber")
        at, generation = fields.any("at"), fields.whole("generation")
        fields.end()
        return self._control().publish(name, subscriber, at, generation=generation, by=caller.name)

    def _subscribe(self, fields: Fields, caller: Caller) -> dict[str, Any]:
        name, subscriber = fields.text("stream"), fields.text("subscriber")
        start, generation = fields.any("start"), fields.whole("generation", 0)
        fields.end()
        return self._control().subscribe(name, subscriber, start=start, generation=generation or 0, by=caller.name)

    def _truncate(self, fields: Fields, caller: Caller) -> dict[str, Any]:  # noqa: ARG002
        name, before = fields.text("stream"), fields.position("before")
        fields.end()
        if before is None:
            raise InvalidCall("action truncate: before is missing", hint="the first position that stays")
        stream = self._seats.find(name)
        # What is pushed has no hot tier here whose ledgers could be deleted.
        source = stream.source if stream is not None and isinstance(stream.source, AppendedLedgers) else None
        log = ManifestLog(self._store, name, clock=self._clock)
        method = "streaming" if stream is None else stream.settings.offload.method
        done = truncate_stream(log, before, clock=self._clock, source=source, method=method)
        return {
            "stream": name,
            "head": str(done.head),
            "moved": done.moves,
            "ledgers": list(done.ledgers),
            "segments": done.segments,
            "entries": done.entries,
        }

    def _there(self, name: str) -> FlightStream:
        found = self._seats.find(name)
        if found is None:
            raise NotFound(f"stream {name} didn't come in through Flight here", hint="the action status lists those")
        return found


def _document(stream: FlightStream) -> dict[str, Any]:
    news, seat, status = stream.source.news(), stream.seat, stream.control.status()
    return {
        "stream": stream.name,
        "mode": stream.mode,
        "producer": None if seat is None else seat.producer,
        "peer": None if seat is None else seat.peer,
        "taken": news.taken and str(news.taken),
        "durable": news.durable and str(news.durable),
        "offloading": "starting" if status is None else status.mode.value,
        "error": "" if status is None else status.error,
    }
