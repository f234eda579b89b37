"""Records answers about scalable topics from a real broker, for tests that have none.

``python -m tests.proof.interop.record_scalable_layouts`` replaces ``tests/ledgers/pulsar/scalable_layouts``, in about
three minutes:

* ``layout-*.json``: layouts of the admin interface, ``GET /admin/v2/scalable/TENANT/NAMESPACE/TOPIC``
* ``topics.json``, ``stats.json``: the topics of a namespace, the statistics of one
* ``topics-deleted.json``: the topics of a namespace, of which ``deleted`` isn't there any more
* ``errors.json``: name -> status and JSON of refused requests
* ``frames.json``: name -> frames of the binary protocol with their sizes, in hexadecimal digits

The commands are encoded here by hand, so that the recordings don't depend on the code that they test.
"""

from __future__ import annotations

import json
import socket
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import pulsar

from formats.pulsar.commands import CommandType, encode_command
from services.pulsar.broker import Broker, running_broker
from services.pulsar.build import SCALABLE
from services.pulsar.scalable import ScalableClient, running_scalable_client

__all__ = ["FOLDER", "Admin", "Watch", "field", "frame"]

FOLDER = Path(__file__).parents[2] / "ledgers" / "pulsar" / "scalable_layouts"
NAMESPACE, PRUNED = "public/recorded", "public/pruned"
#: ``BaseCommand.Type``, and the fields that hold the commands.
CONNECTED, PING = 3, 18
LOOKUP, UPDATE, CLOSE, NAMESPACE_WATCH, NAMESPACE_UPDATE, NAMESPACE_CLOSE = 70, 71, 72, 76, 77, 78
ANSWER_S, PRUNE_S = 30.0, 240.0


class Admin:
    """Requests to the admin interface of a broker."""

    def __init__(self, broker: Broker) -> None:
        self._url = f"{broker.admin_url}/admin/v2/"

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Status, and the JSON of the answer if it has one."""
        data = None if method == "GET" else b"" if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
                status, given = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                status, given = error.code, error.read()
        return status, json.loads(given) if given else None

    def get(self, path: str) -> Any:
        status, found = self.ask("GET", path)
        assert status == 200, (path, status, found)
        return found

    def do(self, method: str, path: str, body: object = None) -> None:
        status, found = self.ask(method, path, body)
        assert status == 204, (method, path, status, found)


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes([*encoded, value])


def field(number: int, value: int | str | bytes) -> bytes:
    """One field of a protobuf message: an integer, a text, or a message's bytes."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    data = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def frame(command: int, body: bytes) -> bytes:
    """A frame with the command of that number, which is also the field that holds it."""
    encoded = field(1, command) + field(command, body)
    return (len(encoded) + 4).to_bytes(4, "big") + len(encoded).to_bytes(4, "big") + encoded


class Watch:
    """A connection to a broker that gives frames as they come."""

    def __init__(self, broker: Broker) -> None:
        host, _, port = broker.service_url.removeprefix("pulsar://").partition(":")
        self._socket = socket.create_connection((host, int(port)), ANSWER_S)
        self._file = self._socket.makefile("rb")
        self.send(encode_command(CommandType.CONNECT, client_version="recording", protocol_version=21))
        self.connected = self.next(CONNECTED)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()
        self._socket.close()

    def send(self, frame: bytes) -> None:
        self._socket.sendall(frame)

    def next(self, command: int, timeout_s: float = ANSWER_S) -> bytes:
        """The next frame, with its size, which must be of ``command``; pings are answered."""
        self._socket.settimeout(timeout_s)
        while True:
            size = self._file.read(4)
            assert len(size) == 4, "the broker closed the connection"
            body = self._file.read(int.from_bytes(size, "big"))
            if body[4:].startswith(field(1, PING)):
                self.send(encode_command(CommandType.PONG))
                continue
            assert body[4:].startswith(field(1, command)), body.hex()
            return size + body

    def more(self, command: int, quiet_s: float = 1.0) -> list[bytes]:
        """All frames until none comes for ``quiet_s``."""
        found: list[bytes] = []
        while True:
            try:
                found.append(self.next(command, quiet_s))
            except TimeoutError:
                # A file object gives nothing more after a timeout.
                self._file = self._socket.makefile("rb")
                return found


class _Recording:
    """What one broker answers."""

    def __init__(self, broker: Broker, client: ScalableClient) -> None:
        self.broker, self.client, self.admin = broker, client, Admin(broker)
        self.files: dict[str, Any] = {}
        self.frames: dict[str, list[str]] = {}
        self._session = 0

    def path(self, topic: str, namespace: str = NAMESPACE) -> str:
        return f"scalable/{namespace}/{topic}"

    def layout(self, name: str, topic: str, namespace: str = NAMESPACE) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.admin.get(self.path(topic, namespace))
        self.files[f"layout-{name}"] = found
        print(f"{name}: epoch {found['epoch']}, segments {', '.join(found['segments'])}", flush=True)
        return found

    def note(self, name: str, *frames: bytes) -> None:
        """Keeps frames; of one that the broker sent many times in succession the first two."""
        repeated = [frames[max(number - 2, 0) : number].count(each) == 2 for number, each in enumerate(frames)]
        self.frames[name] = [each.hex() for each, is_third in zip(frames, repeated, strict=True) if not is_third]

    def lookup(self, name: str, topic: str) -> None:
        """Asks for a topic's layout in a connection that is closed afterwards."""
        with Watch(self.broker) as watch:
            asked = self.watch(watch, topic)
            self.note(f"lookup-{name}", asked)
            self.note(f"update-{name}", watch.next(UPDATE))

    def watch(self, watch: Watch, topic: str) -> bytes:
        """Sends ``ScalableTopicLookup`` with ``create_if_missing`` false, which this release ignores."""
        self._session += 1
        asked = frame(LOOKUP, field(1, self._session) + field(2, topic) + field(3, 0))
        watch.send(asked)
        return asked

    def produce(self, topic: str, prefix: str) -> None:
        self.client.produce(f"topic://{topic}", count=40, keys=8, prefix=prefix)

    def history(self) -> None:
        """A topic that is split and merged, watched all the time."""
        path, name = self.path("orders"), f"{NAMESPACE}/orders"
        self.admin.do("PUT", f"{path}?numInitialSegments=2", {"team": "shop"})
        self.produce(name, "a")
        with Watch(self.broker) as watch:
            self.note("connected", watch.connected)
            self.note("lookup-fresh", self.watch(watch, f"topic://{name}"))
            self.note("update-fresh", watch.next(UPDATE))
            self.layout("fresh", "orders")
            steps = {"split": ["split/0"], "merge": ["merge/2/3"], "chain": ["split/4", "split/1", "merge/6/7"]}
            for step, calls in steps.items():
                for call in calls:
                    self.admin.do("POST", f"{path}/{call}")
                    self.produce(name, call.replace("/", "-"))
                self.note(f"update-{step}", *watch.more(UPDATE))
                self.layout(step, "orders")
            self.admin.do("PUT", f"{path}/subscriptions/readers?type=QUEUE")
            self.admin.do("PUT", f"{path}/subscriptions/in-order?type=STREAM")
            self.files["stats"] = self.admin.get(f"{path}/stats")
            self.note("close", frame(CLOSE, field(1, 1)))

    def namespace_watch(self) -> None:
        """Topics that come and go, the latter seen by a topic's watch too."""
        path = self.path("brief")
        with Watch(self.broker) as watch, Watch(self.broker) as of_topic:
            asked = frame(NAMESPACE_WATCH, field(1, 1) + field(2, NAMESPACE))
            watch.send(asked)
            self.note("namespace-watch", asked)
            self.note("namespace-snapshot", watch.next(NAMESPACE_UPDATE))
            self.admin.do("PUT", f"{path}?numInitialSegments=1")
            self.note("namespace-added", *watch.more(NAMESPACE_UPDATE))
            self.watch(of_topic, f"topic://{NAMESPACE}/brief")
            of_topic.next(UPDATE)
            self.admin.do("DELETE", f"{path}?force=true")
            self.note("namespace-removed", *watch.more(NAMESPACE_UPDATE))
            self.note("update-deleted", *of_topic.more(UPDATE, 10.0))
            self.note("namespace-close", frame(NAMESPACE_CLOSE, field(1, 1)))
        self.namespace_lookup("absent", "public/absent")
        self.namespace_lookup("invalid", "no-namespace")

    def namespace_lookup(self, name: str, namespace: str) -> None:
        with Watch(self.broker) as watch:
            asked = frame(NAMESPACE_WATCH, field(1, 2) + field(2, namespace))
            watch.send(asked)
            self.note(f"namespace-watch-{name}", asked)
            self.note(f"namespace-snapshot-{name}", watch.next(NAMESPACE_UPDATE))

    def migration(self) -> None:
        """Regular topics that become scalable ones."""
        client = pulsar.Client(self.broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        self.admin.do("PUT", f"persistent/{NAMESPACE}/parts/partitions", 2)
        for topic in ("plain", "parts"):
            producer = client.create_producer(f"persistent://{NAMESPACE}/{topic}")
            for number in range(20):
                producer.send(f"before-{number}".encode(), partition_key=f"k{number % 8}")
            producer.close()
        client.close()
        self.lookup("regular", f"persistent://{NAMESPACE}/plain")
        self.lookup("regular-parts", f"persistent://{NAMESPACE}/parts")
        for topic, name in (("plain", "migrated"), ("parts", "migrated-parts")):
            self.admin.do("POST", f"{self.path(topic)}/migrate?force=true")
            self.layout(name, topic)
            self.lookup(name, f"topic://{NAMESPACE}/{topic}")
        self.lookup("migrated-regular", f"persistent://{NAMESPACE}/plain")
        self.files["stats-migrated"] = self.admin.get(f"{self.path('parts')}/stats")
        self.admin.do("POST", f"{self.path('parts')}/split/2")
        self.produce(f"{NAMESPACE}/parts", "after")
        self.layout("migrated-parts-split", "parts")

    def refusals(self) -> None:
        """Of requests that tests answer with."""
        calls = {
            "missing-topic": ("GET", self.path("absent")),
            "missing-namespace": ("GET", "scalable/public/absent"),
            "missing-tenant": ("GET", "scalable/absent/absent"),
            "missing-subscription": ("GET", f"segments/{NAMESPACE}/orders/0000-7fff-0/subscription/absent/backlog"),
            "missing-segment": ("GET", f"segments/{NAMESPACE}/orders/0000-0000-99/subscription/readers/backlog"),
            "segment-stats": ("GET", f"persistent/{NAMESPACE}/orders%2F0000-7fff-0/internalStats"),
            "existing-topic": ("PUT", f"{self.path('orders')}?numInitialSegments=2"),
        }
        self.files["errors"] = {name: list(self.admin.ask(*call)) for name, call in calls.items()}
        self.lookup("missing", f"topic://{NAMESPACE}/absent")
        self.lookup(
            "missing-regular", f"persistent://{NAMESPACE}/absent"
        )  # gets the layout of a topic that isn't there
        self.files["topics"] = self.admin.get(f"scalable/{NAMESPACE}")

    def deletion(self) -> None:
        """This release goes on to list a deleted topic if a broker was its controller, which splits it."""
        self.admin.do("PUT", f"{self.path('deleted')}?numInitialSegments=1")
        self.admin.do("POST", f"{self.path('deleted')}/split/0")
        self.admin.do("DELETE", self.path("deleted"))
        self.files["topics-deleted"] = self.admin.get(f"scalable/{NAMESPACE}")
        self.files["errors"]["deleted-topic"] = list(self.admin.ask("GET", self.path("deleted")))
        self.namespace_lookup("deleted", NAMESPACE)

    def begin_pruning(self) -> Callable[[], None]:
        """Seals segments in a namespace with a minute's retention; what is called later waits until one is gone."""
        self.admin.do("PUT", f"namespaces/{PRUNED}")
        self.admin.do("POST", f"namespaces/{PRUNED}/retention", {"retentionTimeInMinutes": 1, "retentionSizeInMB": -1})
        path = self.path("orders", PRUNED)
        self.admin.do("PUT", f"{path}?numInitialSegments=2")
        self.produce(f"{PRUNED}/orders", "a")
        watch = Watch(self.broker)
        self.watch(watch, f"topic://{PRUNED}/orders")
        watch.next(UPDATE)
        self.admin.do("POST", f"{path}/split/0")
        watch.more(UPDATE)

        def end() -> None:
            deadline_s = time.monotonic() + PRUNE_S
            with watch:
                frames: list[bytes] = []
                while "0" in self.admin.get(path)["segments"]:
                    assert time.monotonic() < deadline_s, "nothing was pruned"
                    frames += watch.more(UPDATE)  # also of the split, which the broker sends several times
                frames += watch.more(UPDATE)
                self.note("update-pruned", frames[-1])
                self.layout("pruned", "orders", PRUNED)
                self.admin.do("POST", f"{path}/split/3")
                self.admin.do("POST", f"{path}/merge/2/4")
                self.layout("pruned-grown", "orders", PRUNED)

        return end


def main() -> int:
    """Records everything, then writes it."""
    with tempfile.TemporaryDirectory(prefix="offloader-recording-") as folder:
        here = Path(folder)
        with (
            running_broker(here / "broker", {}, release=SCALABLE) as broker,
            running_scalable_client(here / "client", broker.service_url) as client,
        ):
            recording = _Recording(broker, client)
            recording.admin.do("PUT", f"namespaces/{NAMESPACE}")
            end_pruning = recording.begin_pruning()
            recording.history()
            recording.migration()
            recording.namespace_watch()
            recording.refusals()
            recording.deletion()
            end_pruning()
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.json"):
        old.unlink()
    for name, content in {**recording.files, "frames": recording.frames}.items():
        (FOLDER / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
