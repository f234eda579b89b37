"""Requests of one connection that wait for their answers.

Owns their ids, and which answer belongs to which. Must never send or receive anything.
"""

from __future__ import annotations

import itertools
import threading
from typing import Any

from formats.errors import Inconsistent
from formats.pulsar.commands import CommandType
from offloader.errors import OffloaderError, Throttled
from offloader.ledgers.pulsar.refusals import refusal

__all__ = ["ANSWERS", "Answer", "Requests"]

#: Requests without an answer on one connection.
REQUESTS_MAX = 1000

#: What answers a request, when it isn't ``ERROR``.
ANSWERS = {
    CommandType.LOOKUP: CommandType.LOOKUP_RESPONSE,
    CommandType.PARTITIONED_METADATA: CommandType.PARTITIONED_METADATA_RESPONSE,
    CommandType.SUBSCRIBE: CommandType.SUCCESS,
    CommandType.PRODUCER: CommandType.PRODUCER_SUCCESS,
    CommandType.CLOSE_PRODUCER: CommandType.SUCCESS,
    CommandType.SEEK: CommandType.SUCCESS,
    CommandType.CLOSE_CONSUMER: CommandType.SUCCESS,
    CommandType.GET_LAST_MESSAGE_ID: CommandType.GET_LAST_MESSAGE_ID_RESPONSE,
    CommandType.ACK: CommandType.ACK_RESPONSE,
}
#: Answers that may be refusals too -> the value of their field ``response`` that says so, if they have one.
_REFUSALS = {
    CommandType.LOOKUP_RESPONSE: 2,
    CommandType.PARTITIONED_METADATA_RESPONSE: 1,
    CommandType.ACK_RESPONSE: None,
}


class Answer:
    """What a request waits for: ``arrived``, and then ``error`` or ``body``."""

    __slots__ = ("arrived", "body", "command", "error")

    def __init__(self, command: CommandType) -> None:
        self.command = command
        self.arrived = threading.Event()
        self.body: Any = None
        self.error: OffloaderError | None = None


class Requests:
    """Thread-safe.

    Args:
        name: of the broker, for errors.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._ids = itertools.count(1)
        self._waiting: dict[int, Answer] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def begin(self, command: CommandType) -> tuple[int, Answer]:
        """A new request's id, and where its answer will be.

        Raises:
            Throttled: ``REQUESTS_MAX`` wait already.
        """
        answer = Answer(command)
        with self._lock:
            if len(self._waiting) >= REQUESTS_MAX:
                raise Throttled(f"{self._name}: {REQUESTS_MAX} requests wait for answers")
            request_id = next(self._ids)
            self._waiting[request_id] = answer
        return request_id, answer

    def end(self, request_id: int) -> None:
        """Nobody waits for it any more."""
        with self._lock:
            self._waiting.pop(request_id, None)

    def answered(self, kind: CommandType, body: Any, message: str) -> None:
        """An answer arrived; one that nobody waits for is nobody's.

        Args:
            kind: of the answer.
            body: of the answer.
            message: what the broker says if it refuses, fit to be shown.

        Raises:
            Inconsistent: it is no answer to what was asked.
        """
        with self._lock:
            answer = self._waiting.get(body.request_id)
        if answer is None:
            return
        if kind is CommandType.ERROR or _is_refusal(kind, body):
            answer.error = refusal(self._name, answer.command.name, body.error, message)
        elif kind is not ANSWERS.get(answer.command):
            expected = ANSWERS.get(answer.command, CommandType.ERROR).name
            raise Inconsistent(f"answer to {answer.command.name}", expected=expected, found=kind.name)
        answer.body = body
        answer.arrived.set()

    def fail(self, error: OffloaderError) -> None:
        """Whoever waits is told."""
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        for answer in waiting.values():
            answer.error = error
            answer.arrived.set()


def _is_refusal(kind: CommandType, body: Any) -> bool:
    if kind not in _REFUSALS:
        return False
    refused = _REFUSALS[kind]
    return bool(body.HasField("error") or (refused is not None and body.response == refused))
