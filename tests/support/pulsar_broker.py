"""A Pulsar broker in this process, below any parser: real sockets, real frames, and misbehaving when told to.

Only this machine reaches it. It doesn't use the code it is to test beyond the codec of frames.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import struct
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from formats.errors import FormatError
from formats.pulsar.commands import Command, CommandType, FrameSplitter, encode_command

__all__ = ["BrokerClient", "FakeBroker"]

_HOST = "127.0.0.1"
_BUFFER_BYTES = 64 * 1024
_ACCEPT_TIMEOUT_S = 60.0
#: Code of Pulsar's ``ServerError``.
_AUTHENTICATION_FAILED = 3
#: What brokers put where an answer belongs to no request.
_NO_REQUEST = 2**64 - 1


@dataclass(eq=False)
class BrokerClient:
    """One connection, as the broker sees it.

    Attributes:
        connect: the body of its ``CONNECT``, once it sent one.
        is_in: whether it was let in.
    """

    socket: socket.socket
    connect: Any = None
    is_in: bool = False
    send_lock: threading.Lock = field(default_factory=threading.Lock)

    def send(self, kind: CommandType, entry: bytes = b"", **fields: Any) -> None:
        self.send_bytes(encode_command(kind, entry, **fields))

    def send_bytes(self, data: bytes) -> None:
        with self.send_lock, contextlib.suppress(OSError):
            self.socket.sendall(data)


class FakeBroker:
    """A broker on the loopback interface.

    Args:
        topics: name -> how many partitions; 0: it isn't partitioned. Others aren't there.
        token: who connects must show this; may be changed at any time.
        tls: whose certificate it shows.
        max_message_bytes: what it announces.
        keep_alive_s: a client that says nothing for so long is asked whether it is there, and given up after as long
            again; 0: never.
        is_proxied: clients reach it through proxies only, each by the address it knows, and are told so.

    Attributes:
        received: every command of every client, in order.
        clients: connections that are open.
        lookups: answers to the next ``LOOKUP`` commands, as fields, instead of "connect to me".
        is_silent: reads, and answers nothing any more.
        has_scalable_topics: announces them to clients that connect from now on.
        is_prompt: sends every command immediately, as brokers do; else the second of two waits up to 40 ms.
        answer: called with each command first; who answers ``True`` has dealt with it.
        left: called with each client whose connection has ended.
    """

    def __init__(
        self,
        topics: Mapping[str, int] | None = None,
        *,
        token: str = "",
        tls: ssl.SSLContext | None = None,
        max_message_bytes: int = 5 * 1024 * 1024,
        keep_alive_s: float = 0.0,
        is_proxied: bool = False,
    ) -> None:
        self.topics = dict(topics or {})
        self.token = token
        self.max_message_bytes = max_message_bytes
        self.received: list[tuple[BrokerClient, Command]] = []
        self.clients: list[BrokerClient] = []
        self.lookups: deque[Mapping[str, Any]] = deque()
        self.is_silent = self.is_prompt = self.has_scalable_topics = False
        self.answer: Callable[[BrokerClient, Command], bool] = lambda _client, _command: False
        self.left: Callable[[BrokerClient], object] = lambda _client: None
        self._tls = tls
        self._keep_alive_s = keep_alive_s
        self._is_proxied = is_proxied
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._listener: socket.socket
        self._listen(0)
        self.port: int = self._listener.getsockname()[1]

    @property
    def url(self) -> str:
        return f"{'pulsar+ssl' if self._tls else 'pulsar'}://{_HOST}:{self.port}"

    @property
    def address(self) -> str:
        return f"{_HOST}:{self.port}"

    def of(self, kind: CommandType) -> list[Any]:
        """The bodies of all commands of one kind that were received."""
        with self._lock:
            return [command.body for _, command in self.received if command.type is kind]

    def has(self, client: BrokerClient) -> bool:
        """Whether its connection is open."""
        return client in self._open_clients()

    def send(self, kind: CommandType, entry: bytes = b"", **fields: Any) -> None:
        """To every client."""
        self.send_bytes(encode_command(kind, entry, **fields))

    def send_bytes(self, data: bytes) -> None:
        """To every client: whatever it is."""
        for client in self._open_clients():
            client.send_bytes(data)

    def cut(self) -> None:
        """Resets every connection, in the middle of whatever is going on."""
        for client in self._open_clients():
            with contextlib.suppress(OSError):
                client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                client.socket.shutdown(socket.SHUT_RD)

    def stop(self) -> None:
        """Refuses new connections and resets the ones there are."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        while self._threads:
            self._threads.pop().join(_ACCEPT_TIMEOUT_S)

    def start(self) -> None:
        """Takes connections again, at the same port."""
        self._listen(self.port)

    def __enter__(self) -> FakeBroker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _open_clients(self) -> list[BrokerClient]:
        with self._lock:
            return list(self.clients)

    def _listen(self, port: int) -> None:
        self._listener = socket.create_server((_HOST, port))
        self._start_thread(self._accept, self._listener)

    def _start_thread(self, run: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=run, args=arguments, name="fake-pulsar-broker", daemon=True)
        thread.start()
        self._threads.append(thread)  # only now: who stops the broker waits for it

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                if self.is_prompt:
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._start_thread(self._serve, listener, connection)

    def _serve(self, listener: socket.socket, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, FormatError):
            if self._tls is not None:
                connection.settimeout(_ACCEPT_TIMEOUT_S)
                try:
                    connection = self._tls.wrap_socket(connection, server_side=True)
                finally:
                    connection.settimeout(None)
            client = BrokerClient(connection)
            with self._lock:
                if listener.fileno() < 0:  # stopped meanwhile
                    raise ConnectionAbortedError
                self.clients.append(client)
            try:
                splitter = FrameSplitter()
                while data := self._received(listener, client):
                    for command in splitter.feed(data):
                        self._handle(client, command)
            finally:
                self._give_up(client)
        connection.close()

    def _received(self, listener: socket.socket, client: BrokerClient) -> bytes:
        """What it sends next; nothing: it is gone, or was silent for too long."""
        if self._keep_alive_s and not _has_come(client, self._keep_alive_s):
            client.send(CommandType.PING)
            if not _has_come(client, self._keep_alive_s):
                self._give_up(client)
                # That the connection is closed is lost on the way, as all the rest is; who sends again hears of it.
                while listener.fileno() >= 0 and not _has_come(client, self._keep_alive_s):
                    pass
                return b""
        return client.socket.recv(_BUFFER_BYTES)

    def _give_up(self, client: BrokerClient) -> None:
        with self._lock:
            if client not in self.clients:
                return
            self.clients.remove(client)
        self.left(client)

    def _handle(self, client: BrokerClient, command: Command) -> None:
        with self._lock:
            self.received.append((client, command))
        if self.is_silent or self.answer(client, command):
            return
        body = command.body
        match command.type:
            case CommandType.CONNECT:
                self._let_in(client, body)
            case CommandType.PING:
                client.send(CommandType.PONG)
            case CommandType.PARTITIONED_METADATA if client.is_in:
                client.send(
                    CommandType.PARTITIONED_METADATA_RESPONSE,
                    request_id=body.request_id,
                    response=0,
                    partitions=self.topics.get(body.topic, 0),
                )
            case CommandType.LOOKUP if client.is_in:
                here = {"broker_url" if self._tls is None else "broker_url_tls": self.url, "response": 1}
                if self._is_proxied:
                    here["proxy_through_service_url"] = True
                answer = self.lookups.popleft() if self.lookups else here
                client.send(CommandType.LOOKUP_RESPONSE, request_id=body.request_id, **answer)
            case _ if not client.is_in:
                client.socket.shutdown(socket.SHUT_RDWR)

    def _let_in(self, client: BrokerClient, body: Any) -> None:
        client.connect = body
        if self.token and (body.auth_method_name, body.auth_data) != ("token", self.token.encode()):
            message = f"Failed to authenticate {body.auth_data.decode()}"
            client.send(CommandType.ERROR, request_id=_NO_REQUEST, error=_AUTHENTICATION_FAILED, message=message)
            client.socket.shutdown(socket.SHUT_RDWR)
            return
        client.is_in = True
        client.send(
            CommandType.CONNECTED,
            server_version="fake",
            protocol_version=19,
            max_message_size=self.max_message_bytes,
            feature_flags={"supports_scalable_topics": True} if self.has_scalable_topics else None,
        )


def _has_come(client: BrokerClient, within_s: float) -> bool:
    """Whether there is something to receive, or the end, within so long."""
    return bool(select.select([client.socket], [], [], within_s)[0])
