"""One connection to a broker: requests and responses, consumers' and producers' commands, keep-alive."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from formats.errors import FormatError, InconsistentError
from formats.pulsar.commands import (
    FRAME_BYTES_MAX,
    FRAME_PADDING_BYTES,
    Command,
    CommandType,
    FrameSplitter,
    encode_command,
)
from offloader.errors import (
    AccessDeniedError,
    ClosedError,
    InvalidCallError,
    LimitReachedError,
    NotFoundError,
    OffloaderError,
    StoreUnavailableError,
    ThrottledError,
    UnsupportedError,
    plain_reason,
)
from offloader.ledgers.pulsar.transport import BrokerAddress, Security, Transport, open_transport, parse_service_url
from offloader.runtime.clock import Clock, SystemClock


class NameTakenError(StoreUnavailableError):
    """A producer of that name is connected to the topic, or the topic has its maximum of producers."""


#: Brokers return whole stack traces.
MESSAGE_CHARACTERS_MAX = 300

#: Code of Pulsar's ``ServerError`` -> its name, and the error here. Other codes count as temporary and are retried.
_KINDS: dict[int, tuple[str, type[OffloaderError]]] = {
    0: ("unknown error", StoreUnavailableError),
    1: ("metadata error", StoreUnavailableError),
    2: ("persistence error", StoreUnavailableError),
    3: ("authentication failed", AccessDeniedError),
    4: ("not authorized", AccessDeniedError),
    5: ("another consumer is connected", StoreUnavailableError),
    6: ("not ready", StoreUnavailableError),
    7: ("the topic's backlog quota is used up", StoreUnavailableError),
    8: ("the topic's backlog quota is used up", StoreUnavailableError),
    9: ("the checksum is wrong", StoreUnavailableError),
    10: ("unsupported version", UnsupportedError),
    11: ("no such topic", NotFoundError),
    12: ("no such subscription", NotFoundError),
    13: ("no such consumer", StoreUnavailableError),
    14: ("too many requests", ThrottledError),
    15: ("the topic was terminated", InvalidCallError),
    16: ("a producer of that name is connected", NameTakenError),
    17: ("no topic's name", InvalidCallError),
    18: ("another schema", InvalidCallError),
    19: ("consumer not assigned", StoreUnavailableError),
    22: ("not allowed", InvalidCallError),
}


def refusal(broker: str, command: str, code: int, message: str) -> OffloaderError:
    """The exception for a broker's error response.

    Args:
        code: of Pulsar's ``ServerError``.
        message: the broker's text; only its first line is used, truncated.
    """
    name, kind = _KINDS.get(code, (f"error {code}", StoreUnavailableError))
    words = (message.strip().splitlines() or [""])[0][:MESSAGE_CHARACTERS_MAX]
    hint = "set a token that may do this" if kind is AccessDeniedError else ""
    return kind(f"{broker} refused {command}: {name}{': ' if words else ''}{words}", hint=hint)


#: Pending requests on one connection.
REQUESTS_MAX = 1000

#: Response types of a request, besides ``ERROR``.
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
#: Responses that may be refusals too -> the value of their field ``response`` that means so; -1: they have none.
_REFUSALS = {
    CommandType.LOOKUP_RESPONSE: 2,
    CommandType.PARTITIONED_METADATA_RESPONSE: 1,
    CommandType.ACK_RESPONSE: -1,
}


@dataclass(eq=False, slots=True)
class Answer:
    """A pending request's result: ``arrived``, and then ``error`` or ``body``."""

    command: CommandType
    arrived: threading.Event = field(default_factory=threading.Event)
    body: Any = None
    error: OffloaderError | None = None


_log = logging.getLogger("offloader.ledgers.pulsar")

_CLIENT_VERSION = "offloader"
#: Of Pulsar's ``ProtocolVersion``; from 18 on brokers send broker entry metadata.
PROTOCOL_VERSION = 19
_TOKEN_METHOD = "token"  # noqa: S105 - the name of a method
#: The largest message size a broker may announce; one such frame is held in memory.
MESSAGE_BYTES_MAX = 128 * 1024 * 1024

#: Number of a request whose response is ignored.
UNASKED_REQUEST = 2**63 - 1
#: Number of the login, which has none in the protocol.
_LOGIN = 0

#: Commands to one consumer, producer or watch -> the field with its id.
_ADDRESSED_BY = {
    CommandType.MESSAGE: "consumer_id",
    CommandType.CLOSE_CONSUMER: "consumer_id",
    CommandType.ACTIVE_CONSUMER_CHANGE: "consumer_id",
    CommandType.REACHED_END_OF_TOPIC: "consumer_id",
    CommandType.SEND_RECEIPT: "producer_id",
    CommandType.SEND_ERROR: "producer_id",
    CommandType.CLOSE_PRODUCER: "producer_id",
    CommandType.SCALABLE_TOPIC_UPDATE: "session_id",
    CommandType.SCALABLE_TOPICS_UPDATE: "watch_id",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLimits:
    """Limits of one client and each of its connections.

    Attributes:
        connect_s: for the connection, the TLS handshake and the login, each.
        request_s: for the response to a request.
        keep_alive_s: a broker that is silent for this long gets a ping, and the connection is closed after as long
            again; also the longest time for sending one command.
        retry_s: how long a call retries before it raises.
        delay_first_s: first back-off after a broker's failure; doubles with each failure.
        delay_s_max: the longest back-off.
    """

    connect_s: float = 10.0
    request_s: float = 30.0
    keep_alive_s: float = 30.0
    retry_s: float = 60.0
    delay_first_s: float = 0.2
    delay_s_max: float = 10.0


class ConsumerListener(Protocol):
    """Receives the commands of one consumer, producer or watch, on the receiving thread.

    Return quickly, and don't wait for a response on the same connection.
    """

    def received(self, command: Command) -> None:
        """``MESSAGE``, ``CLOSE_CONSUMER``, ``ACTIVE_CONSUMER_CHANGE`` or ``REACHED_END_OF_TOPIC``; of a producer
        ``SEND_RECEIPT``, ``SEND_ERROR`` or ``CLOSE_PRODUCER``; of a watch its updates."""

    def lost(self, error: OffloaderError) -> None:
        """The connection is lost; called once, as the last call."""


class Connection:
    """An authenticated connection. Thread-safe. Made by ``open_connection``.

    Attributes:
        heard_s: when the broker last sent anything, by the clock's ``monotonic_s``.
        has_scalable_topics: whether the broker announces scalable topics (Pulsar 5).
    """

    def __init__(
        self, name: str, transport: Transport, *, security: Security, limits: ClientLimits, clock: Clock
    ) -> None:
        self.name = name
        self._transport, self._security, self._limits, self._clock = transport, security, limits, clock
        self._splitter = FrameSplitter()
        self._lock = threading.Lock()
        self._consumer_ids = itertools.count(1)
        self._request_ids = itertools.count(1)
        self._waiting: dict[int, Answer] = {}
        self._listeners: dict[int, ConsumerListener] = {}
        self._error: OffloaderError | None = None
        self.heard_s = clock.monotonic_s()
        self.has_scalable_topics = False
        self._pong = threading.Event()
        #: The largest entry that the broker accepts.
        self.message_bytes_max = FRAME_BYTES_MAX - FRAME_PADDING_BYTES
        self._reader = threading.Thread(target=self._read, name=f"offloader-pulsar {name}", daemon=True)

    def __repr__(self) -> str:
        with self._lock:
            state = f"lost: {self._error}" if self._error else "open"
            return f"<Connection {self.name} {state}, {len(self._listeners)} consumers, {len(self._waiting)} requests>"

    @property
    def is_open(self) -> bool:
        return self._error is None

    def begin(self, proxy_to: str) -> None:
        """Starts the receiving thread and authenticates; for ``open_connection``."""
        answer = self._waiting[_LOGIN] = Answer(CommandType.CONNECT)
        token = self._security.current_token()
        self._reader.start()
        self.send(
            CommandType.CONNECT,
            client_version=_CLIENT_VERSION,
            auth_data=token.encode() if token else None,
            auth_method_name=_TOKEN_METHOD if token else None,
            protocol_version=PROTOCOL_VERSION,
            proxy_to_broker_url=proxy_to or None,
            feature_flags={"auth_refresh": True, "broker_entry_metadata": True},
        )
        self._await(answer, self._limits.connect_s)

    def request(self, kind: CommandType, **fields: Any) -> Any:
        """Sends a command with a new request id, and waits for the response.

        The broker may have executed a request that failed on the way: send only idempotent ones.

        Args:
            fields: as for ``encode_command``, without the request id.

        Returns:
            The body of the response, whichever command that is.

        Raises:
            AccessDeniedError, NotFoundError, InvalidCallError, StoreUnavailableError: the broker refused.
            StoreUnavailableError: the connection broke, or no response arrived in time.
            ThrottledError: too many requests are pending.
        """
        if threading.current_thread() is self._reader:
            raise InvalidCallError(f"{self.name}: a listener may not wait for {kind.name}")
        answer = Answer(kind)
        with self._lock:
            if self._error is not None:
                raise copy(self._error)
            if len(self._waiting) >= REQUESTS_MAX:
                raise ThrottledError(f"{self.name}: {REQUESTS_MAX} requests wait for answers")
            request_id = next(self._request_ids)
            self._waiting[request_id] = answer
        try:
            self.send(kind, request_id=request_id, **fields)
            return self._await(answer, self._limits.request_s)
        finally:
            with self._lock:
                self._waiting.pop(request_id, None)

    def ping(self) -> None:
        """Waits for a sign of life of the broker. Raises ``StoreUnavailableError``: there is none."""
        self._pong.clear()
        self.send(CommandType.PING)
        if not self._pong.wait(self._limits.request_s):
            raise copy(self._fail(StoreUnavailableError(f"{self.name}: no answer within {self._limits.request_s:g} s")))
        if self._error is not None:
            raise copy(self._error)

    def send(self, kind: CommandType, entry: bytes = b"", **fields: Any) -> None:
        """Sends a command that has no response. Raises ``StoreUnavailableError``: the connection broke."""
        if self._error is not None:
            raise copy(self._error)
        try:
            frame = encode_command(kind, entry, **fields)
        except FormatError as cause:
            raise InvalidCallError(f"{self.name}: {cause}") from cause
        try:
            self._transport.send(frame)
        except OSError as cause:
            # Half a frame may have been sent: the broker can't parse what follows.
            raise copy(self._fail(StoreUnavailableError(f"{self.name} is lost: {plain_reason(cause)}"))) from cause

    def attach(self, listener: ConsumerListener) -> int:
        """Registers a consumer or producer and returns its id; its commands go to ``listener``. Raises as ``send``."""
        with self._lock:
            if self._error is not None:
                raise copy(self._error)
            consumer_id = next(self._consumer_ids)
            self._listeners[consumer_id] = listener
            return consumer_id

    def detach(self, consumer_id: int) -> None:
        """Unregisters a listener; a call that is already running may still complete."""
        with self._lock:
            self._listeners.pop(consumer_id, None)

    def leave(self, kind: CommandType, consumer_id: int) -> None:
        """Closes a consumer or producer at the broker, if that can be reached, with ``kind``; unregisters it."""
        with suppress(OffloaderError):
            self.request(kind, **{_ADDRESSED_BY[kind]: consumer_id})
        self.detach(consumer_id)

    def close(self) -> None:
        """Closes the connection; returns when its thread has ended. Idempotent."""
        self._fail(StoreUnavailableError(f"{self.name} was closed by us"))
        if self._reader.ident is None:
            self._transport.release()
        elif threading.current_thread() is not self._reader:
            self._reader.join()

    def _await(self, answer: Answer, timeout_s: float) -> Any:
        if not self._clock.wait(answer.arrived, timeout_s):
            raise StoreUnavailableError(f"{self.name} didn't answer {answer.command.name} within {timeout_s:g} s")
        if answer.error is not None:
            raise copy(answer.error)  # other requests may raise the same one
        return answer.body

    def _read(self) -> None:
        asked = False
        try:
            while True:
                try:
                    data = self._transport.receive()
                except TimeoutError:
                    if asked:
                        raise StoreUnavailableError(
                            f"{self.name} sent nothing for {2 * self._limits.keep_alive_s:g} s"
                        ) from None
                    asked = True
                    self.send(CommandType.PING)
                    continue
                asked = False
                self.heard_s = self._clock.monotonic_s()
                if not data:
                    raise StoreUnavailableError(f"{self.name} closed the connection")
                for command in self._splitter.feed(data):
                    self._handle(command)
        except OffloaderError as cause:
            error = cause
        except FormatError as cause:
            error = StoreUnavailableError(f"{self.name} sent bytes that aren't Pulsar's protocol: {cause}")
        except OSError as cause:
            error = StoreUnavailableError(f"{self.name} is lost: {plain_reason(cause)}")
        except BaseException as cause:
            _log.exception("%s: reading failed", self.name)
            error = StoreUnavailableError(f"{self.name} is lost: {type(cause).__name__}")
        self._fail(error)
        self._transport.release()
        with self._lock:
            listeners, self._listeners = self._listeners, {}
        for listener in listeners.values():
            self._tell_lost(listener, self._error or error)

    def _handle(self, command: Command) -> None:
        kind, body = command.type, command.body
        if kind in _ADDRESSED_BY:
            self._tell(getattr(body, _ADDRESSED_BY[kind]), command)
        elif kind is CommandType.PING:
            self.send(CommandType.PONG)
        elif kind is CommandType.PONG:
            self._pong.set()
        elif kind is CommandType.AUTH_CHALLENGE:
            self._answer_challenge()
        elif kind is CommandType.CONNECTED:
            self._connected(body)
        elif kind is CommandType.ERROR and _LOGIN in self._waiting:
            raise self._refusal("the connection", body)
        elif kind is not None and (kind is CommandType.ERROR or kind in ANSWERS.values()):
            self._answered(kind, body)

    def _refusal(self, command: str, body: Any) -> OffloaderError:
        return refusal(self.name, command, body.error, self._security.without_token(body.message))

    def _answered(self, kind: CommandType, body: Any) -> None:
        """Completes a request, if it is still pending; ``InconsistentError``: the answer doesn't match it."""
        with self._lock:
            answer = self._waiting.get(body.request_id)
        if answer is None:
            return
        refused = kind in _REFUSALS and (body.HasField("error") or getattr(body, "response", None) == _REFUSALS[kind])
        if kind is CommandType.ERROR or refused:
            answer.error = self._refusal(answer.command.name, body)
        elif kind is not ANSWERS.get(answer.command):
            expected = ANSWERS.get(answer.command, CommandType.ERROR).name
            raise InconsistentError(f"answer to {answer.command.name}", expected=expected, found=kind.name)
        answer.body = body
        answer.arrived.set()

    def _tell(self, consumer_id: int, command: Command) -> None:
        with self._lock:
            listener = self._listeners.get(consumer_id)
        if listener is None:
            return  # it was detached while this was on its way
        # One consumer's failure doesn't affect the others.
        try:
            listener.received(command)
        except Exception as cause:
            what = f"{self.name} sent a damaged entry: {cause}"
            if not isinstance(cause, FormatError):
                _log.exception("%s: a consumer failed", self.name)
                what = f"a consumer of {self.name} failed: {cause}"
            self.detach(consumer_id)
            self._tell_lost(listener, StoreUnavailableError(what))

    def _tell_lost(self, listener: ConsumerListener, error: OffloaderError) -> None:
        try:
            listener.lost(error)
        except Exception:
            _log.exception("%s: a consumer failed", self.name)

    def _answer_challenge(self) -> None:
        token = self._security.current_token()
        self.send(
            CommandType.AUTH_RESPONSE,
            client_version=_CLIENT_VERSION,
            response={"auth_method_name": _TOKEN_METHOD if token else "none", "auth_data": token.encode()},
            protocol_version=PROTOCOL_VERSION,
        )

    def _connected(self, body: Any) -> None:
        announced = body.max_message_size
        if announced > MESSAGE_BYTES_MAX:
            raise LimitReachedError(f"{self.name} announces messages of {announced} bytes, above {MESSAGE_BYTES_MAX}")
        self.message_bytes_max = announced or self.message_bytes_max
        self.has_scalable_topics = body.feature_flags.supports_scalable_topics
        # Entries stored while the limit was higher are still sent.
        self._splitter.frame_bytes_max = max(announced + FRAME_PADDING_BYTES, FRAME_BYTES_MAX)
        if (answer := self._waiting.pop(_LOGIN, None)) is not None:
            self._transport.set_receive_timeout(self._limits.keep_alive_s)
            answer.arrived.set()

    def _fail(self, error: OffloaderError) -> OffloaderError:
        """Ends the connection and fails pending requests. The first reason is kept and returned."""
        with self._lock:
            error = self._error = self._error or error
            pending, self._waiting = self._waiting, {}
        self._transport.shut_down()
        self._pong.set()
        for answer in pending.values():
            answer.error = error
            answer.arrived.set()
        return error


def open_connection(
    address: BrokerAddress, *, security: Security, limits: ClientLimits, clock: Clock, proxy_to: str = ""
) -> Connection:
    """Connects and authenticates.

    Args:
        proxy_to: ``host:port`` of the broker behind the proxy at ``address``.

    Raises:
        AccessDeniedError: the token or the certificate is rejected.
        StoreUnavailableError: the broker can't be reached, or isn't one.
    """
    transport = open_transport(
        address, security, clock=clock, connect_s=limits.connect_s, send_timeout_s=limits.keep_alive_s
    )
    name = f"{address} for {proxy_to}" if proxy_to else str(address)
    opened = Connection(name, transport, security=security, limits=limits, clock=clock)
    try:
        opened.begin(proxy_to)
    except BaseException:
        opened.close()
        raise
    return opened


_Result = TypeVar("_Result")

#: Redirects to another broker before a lookup fails.
REDIRECTS_MAX = 20
#: Connections of one client: one per broker.
CONNECTIONS_MAX = 256
#: More partitions than any topic has.
PARTITIONS_MAX = 100_000

_REDIRECT, _CONNECT = 0, 1


class _Line:
    """The connection to one broker, or when to retry."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.connection: Connection | None = None
        self.error: OffloaderError | None = None
        self.delay_s = 0.0
        self.not_before_s = 0.0


class PulsarClient(AbstractContextManager["PulsarClient"]):
    """Client of one cluster. Thread-safe.

    Args:
        service_url: of brokers or proxies; of several, the first that responds is used. ``InvalidCallError``: it isn't
            one.
        follows_segments: whether consumers tell brokers of scalable topics that they follow a migrated topic.
    """

    def __init__(
        self,
        service_url: str,
        *,
        security: Security | None = None,
        limits: ClientLimits | None = None,
        clock: Clock | None = None,
        follows_segments: bool = False,
    ) -> None:
        self.service_url, self.follows_segments = service_url, follows_segments
        self._service = parse_service_url(service_url)
        self._security, self._limits = security or Security(), limits or ClientLimits()
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._lines: dict[tuple[BrokerAddress, str], _Line] = {}
        self._closed = threading.Event()

    def __exit__(self, *error: object) -> None:
        self.close()

    def greet(self) -> str:
        """Connects and authenticates to a broker or proxy; returns its name. Raises as ``connection``."""
        return self.any_connection().name

    def any_connection(self) -> Connection:
        """A connection to any broker or proxy. Raises as ``connection``."""
        return self._retrying(self._service_connection)

    def has_scalable_topics(self) -> bool:
        """Whether the broker or proxy announces scalable topics (Pulsar 5). Raises as ``connection``."""
        return self.any_connection().has_scalable_topics

    def ping(self) -> None:
        """Waits for a sign of life of a broker or proxy, connected and authenticated to. Raises as ``connection``."""
        self._retrying(lambda: self._service_connection().ping())

    def partitions(self, topic: str) -> int:
        """Number of partitions of ``persistent://tenant/namespace/topic``; 0 if it isn't partitioned, or doesn't exist.

        Raises as ``connection``; ``LimitReachedError``: the broker's number is impossible.
        """
        found = self._retrying(
            lambda: int(self._service_connection().request(CommandType.PARTITIONED_METADATA, topic=topic).partitions)
        )
        if found > PARTITIONS_MAX:
            raise LimitReachedError(f"{topic} has {found} partitions, above {PARTITIONS_MAX}")
        return found

    def connection(self, topic: str) -> Connection:
        """The connection to the broker that serves ``topic`` now; topics of one broker share it.

        Call again when that connection is lost, or the broker released the topic.

        Raises:
            AccessDeniedError, InvalidCallError, NotFoundError, StoreUnavailableError: no broker has it.
            ClosedError: this client was closed.
        """
        return self._retrying(lambda: self._look_up(topic))

    def close(self) -> None:
        """Closes all connections. Idempotent."""
        self._closed.set()
        with self._lock:
            lines, self._lines = self._lines, {}
        for line in lines.values():
            with line.lock:
                if line.connection is not None:
                    line.connection.close()

    def _retrying(self, call: Callable[[], _Result]) -> _Result:
        deadline_s = self._clock.monotonic_s() + self._limits.retry_s
        delay_s = self._limits.delay_first_s
        while True:
            try:
                return call()
            except OffloaderError as error:
                left_s = deadline_s - self._clock.monotonic_s()
                if not error.retryable or left_s <= 0:
                    raise
            self._clock.wait(self._closed, min(delay_s, left_s))
            delay_s = min(2 * delay_s, self._limits.delay_s_max)

    def _look_up(self, topic: str) -> Connection:
        asked = service = self._service_connection()
        authoritative = False
        for _ in range(REDIRECTS_MAX + 1):
            body = asked.request(CommandType.LOOKUP, topic=topic, authoritative=authoritative)
            if body.response not in (_REDIRECT, _CONNECT):
                raise refusal(asked.name, CommandType.LOOKUP.name, body.error, body.message)
            named = self._named(asked, body)
            # Behind a proxy only the proxy is reachable; a broker that names itself is no proxy.
            through = next(address for address in self._service if str(address) == service.name)
            is_behind = body.proxy_through_service_url and named != through
            asked = self._connection_to(through, named.host_and_port) if is_behind else self._connection_to(named)
            if body.response == _CONNECT:
                return asked
            authoritative = body.authoritative
        raise StoreUnavailableError(f"{topic}: more than {REDIRECTS_MAX} brokers in a row name another one")

    def _named(self, asked: Connection, body: Any) -> BrokerAddress:
        """The broker named in a lookup response; ``AccessDeniedError``: it lacks the TLS that the service has."""
        has_tls = self._service[0].tls
        url = body.broker_url_tls if has_tls else body.broker_url
        if not url:
            raise refusal(asked.name, CommandType.LOOKUP.name, 0, "the answer names no broker that can be used")
        named = parse_service_url(url)[0]
        if has_tls and not named.tls:
            raise AccessDeniedError(
                f"{asked.name} sends us on to {named}, where everything could be read on the way",
                hint="give the brokers pulsar+ssl addresses: brokerServicePortTls, and advertisedListeners",
            )
        return named

    def _service_connection(self) -> Connection:
        for address in self._service[:-1]:
            with suppress(StoreUnavailableError):
                return self._connection_to(address)
        return self._connection_to(self._service[-1])

    def _connection_to(self, address: BrokerAddress, proxy_to: str = "") -> Connection:
        """The open connection, or a new one; backs off from a broker that failed just now."""
        while True:
            line = self._line(address, proxy_to)
            with line.lock:
                if self._lines.get((address, proxy_to)) is line:  # else it was forgotten meanwhile
                    return self._connection_of(line, address, proxy_to)

    def _connection_of(self, line: _Line, address: BrokerAddress, proxy_to: str) -> Connection:
        """Call with the line's lock held."""
        if self._closed.is_set():
            raise ClosedError(f"the client of {self.service_url} was closed")
        if line.connection is not None and line.connection.is_open:
            return line.connection
        if line.error is not None and self._clock.monotonic_s() < line.not_before_s:
            raise StoreUnavailableError(line.error.message, hint=line.error.hint) from line.error
        try:
            line.connection = open_connection(
                address, security=self._security, limits=self._limits, clock=self._clock, proxy_to=proxy_to
            )
        except StoreUnavailableError as error:
            line.delay_s = min(max(2 * line.delay_s, self._limits.delay_first_s), self._limits.delay_s_max)
            line.not_before_s = self._clock.monotonic_s() + line.delay_s
            line.error = error
            raise
        line.error, line.delay_s = None, 0.0
        return line.connection

    def _line(self, address: BrokerAddress, proxy_to: str) -> _Line:
        with self._lock:
            if (address, proxy_to) not in self._lines:
                if len(self._lines) >= CONNECTIONS_MAX:
                    self._forget_lost()
                if len(self._lines) >= CONNECTIONS_MAX:
                    raise LimitReachedError(f"more than {CONNECTIONS_MAX} brokers behind {self.service_url}")
                self._lines[address, proxy_to] = _Line()
            return self._lines[address, proxy_to]

    def _forget_lost(self) -> None:
        for key, line in list(self._lines.items()):
            if line.lock.acquire(blocking=False):
                if line.connection is None or not line.connection.is_open:
                    del self._lines[key]
                line.lock.release()
