"""A client's connection: uvicorn's HTTP/1.1 with deadlines, and the names in the client's certificate.

Bounds the time to send a request and to read a response: slow clients don't keep a connection.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from offloader.service.http.problems import PROBLEM_JSON, problem_document
from offloader.service.listen import certificate_names

__all__ = ["CERTIFICATE_NAMES", "Connection", "ConnectionLimits"]

#: Key of the client's certificate names in a request's state; ``None`` there: it presented none.
CERTIFICATE_NAMES = "certificate_names"
_HEAD_TOO_LONG = 431
#: uvicorn logs every malformed request, so any client could fill the log. They are counted instead.
_wire_log = logging.getLogger("offloader.service.http.wire")


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Seconds, see ``HttpSettings``.

    Attributes:
        told: called with the reason of each cut: ``slow_request``, ``slow_reader``, ``broken_request``.
    """

    request_s: float
    answer_s: float
    told: Callable[[str], None]


class Connection(H11Protocol):
    """One client's connection; runs on the loop's thread.

    Args:
        config: uvicorn's.
        server_state: uvicorn's list of connections and tasks.
        limits: of the client.
    """

    def __init__(self, config: Config, server_state: ServerState, limits: ConnectionLimits) -> None:
        super().__init__(config, server_state, {})
        self.logger = _wire_log
        self.access_log = False
        self.lost: asyncio.Future[None] = self.loop.create_future()
        self._limits = limits
        self._receiving: asyncio.TimerHandle | None = None
        self._sending: asyncio.TimerHandle | None = None

    # --- asyncio callbacks ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state = {CERTIFICATE_NAMES: certificate_names(transport.get_extra_info("ssl_object"))}
        self._expect_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._request_came()
        self._answer_went()
        super().connection_lost(exc)
        if not self.lost.done():
            self.lost.set_result(None)

    def data_received(self, data: bytes) -> None:
        if self._receiving is None and self.conn.their_state is h11.IDLE:
            self._expect_request()
        super().data_received(data)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect_reading()

    def resume_writing(self) -> None:
        self._answer_went()
        super().resume_writing()

    # --- uvicorn callbacks ---------------------------------------------------------------------------------------

    def handle_events(self) -> None:
        try:
            super().handle_events()
        except h11.LocalProtocolError:
            # A broken request after one whose response is under way: no response is possible.
            self._cut("broken_request")
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._request_came()

    def _get_upgrade(self) -> bytes | None:
        return None  # no upgrade: the request is answered as it is

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - ours says more
        self._limits.told("broken_request")
        cause = sys.exception()
        status = cause.error_status_hint if isinstance(cause, h11.RemoteProtocolError) else 400
        self._give_up(
            status, "the request's head is too long" if status == _HEAD_TOO_LONG else "this is no HTTP request"
        )

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._expect_reading()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._expect_reading()

    def shutdown(self) -> None:
        super().shutdown()
        if self.transport.is_closing():
            self._expect_reading()

    # --- deadlines -----------------------------------------------------------------------------------------------

    def _expect_request(self) -> None:
        """Starts the deadline of a whole request, independent of its number of chunks."""
        self._request_came()
        self._receiving = self.loop.call_later(self._limits.request_s, self._request_is_late)

    def _request_came(self) -> None:
        if self._receiving is not None:
            self._receiving.cancel()
            self._receiving = None

    def _request_is_late(self) -> None:
        self._receiving = None
        if self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]:
            self._close()  # no byte was received
            return
        self._limits.told("slow_request")
        self._give_up(408, f"the request didn't come within {self._limits.request_s:g} s")

    def _give_up(self, status: int, detail: str) -> None:
        """Answers a partial request, unless it is answered already, and closes."""
        if self.cycle is not None and not self.cycle.response_complete:
            # Disconnects the application, which waits for the rest.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._answer(status, detail)
        self._close()

    def _expect_reading(self) -> None:
        """Starts the deadline for reading the response."""
        if self._sending is None:
            self._sending = self.loop.call_later(self._limits.answer_s, self._cut, "slow_reader")

    def _answer_went(self) -> None:
        if self._sending is not None:
            self._sending.cancel()
            self._sending = None

    def _answer(self, status: int, detail: str) -> None:
        body = json.dumps(problem_document(status, detail)).encode()
        headers = [
            (b"content-type", PROBLEM_JSON.encode()),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        for event in (h11.Response(status_code=status, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")

    def _close(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()
        self._expect_reading()

    def _cut(self, reason: str) -> None:
        self._sending = None
        self._limits.told(reason)
        self.transport.abort()
