"""``offloader read --follow`` from the hot tier, while the process that serves it is killed."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from offloader.cli.main import main
from offloader.cli.options import AskedRange
from offloader.follow import OwnersHotTiers, ReadStreams
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
from offloader.manifest.log import ManifestLog, list_streams, load_manifest
from offloader.runtime.clock import SystemClock
from offloader.store.open import open_store
from services.servers import free_port
from tests.support.ctrl_c import heed_ctrl_c
from tests.support.readback import stored_entries
from tests.support.serving_processes import Serving
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.process

STREAM = "a/b/persistent/orders"


class Place:
    """A store, a ledger database that this test appends to, and settings of processes that offload it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.store = folder, open_store(f"file://{folder}/store", create=True)
        self.ledgers = f"sqlite:///{folder}/ledgers.db"
        self.database = EmbeddedLedgers(self.ledgers)
        self.source = self.database.open_stream(STREAM)
        self.sent = 0

    def append(self, count: int = 20) -> None:
        self.source.append([b"entry %d" % number for number in range(self.sent, self.sent + count)])
        self.sent += count

    def owner(self, name: str) -> tuple[Serving, str]:
        """A process that keeps a segment open for an hour: what is appended is in the hot tier only."""
        url, path = f"http://127.0.0.1:{free_port()}", self.folder / f"{name}.toml"
        path.write_text(
            f"""
            [serve]
            store = "{self.store.url}"
            ledgers = "{self.ledgers}"
            url = "{url}"
            maintenance = false
            [http]
            listen = "{url.removeprefix("http://")}"
            [ledgers]
            poll_interval = "50ms"
            [offload]
            method = "streaming"
            segment_age_max = "1h"
            """
        )
        return Serving(path), url

    def owned_by(self, url: str) -> bool:
        return STREAM in set(list_streams(self.store)) and load_manifest(self.store, STREAM).owner.url == url

    @property
    def expected(self) -> list[str]:
        return [f"entry {number}" for number in range(self.sent)]


class Follower:
    """``offloader read --follow`` as a process: what it printed, and its notes."""

    def __init__(self, url: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "offloader", "read", STREAM, "--follow", "--store", url],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={name: value for name, value in os.environ.items() if name != "OFFLOADER_LEDGERS"},
            preexec_fn=heed_ctrl_c,
        )
        self.lines: list[str] = []
        self.notes: list[str] = []
        self._threads = [
            threading.Thread(target=self._read, args=each, daemon=True)
            for each in ((self.process.stdout, self.lines), (self.process.stderr, self.notes))
        ]
        for each in self._threads:
            each.start()

    @staticmethod
    def _read(pipe: Iterator[str], lines: list[str]) -> None:
        for line in pipe:
            lines += [line.rstrip("\n")]

    def has(self, expected: list[str]) -> bool:
        """Whether it printed exactly these; raises as soon as it can't any more."""
        found = list(self.lines)
        assert found == expected[: len(found)]
        assert self.process.poll() is None, self.notes
        return len(found) == len(expected)

    def end(self) -> None:
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(PATIENCE_S)
        finally:
            self.process.kill()
            self.process.wait()
            for each in self._threads:
                each.join()
            for pipe in (self.process.stdout, self.process.stderr):
                assert pipe is not None
                pipe.close()


@contextmanager
def following(url: str) -> Iterator[Follower]:
    follower = Follower(url)
    try:
        yield follower
    finally:
        follower.end()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    with closing(made.database):
        yield made


def test_follower_goes_on_with_the_next_owner_when_one_is_killed(place: Place) -> None:
    place.append()
    first, first_url = place.owner("first")
    with first:
        eventually(lambda: place.owned_by(first_url))
        with following(place.store.url) as follower:
            eventually(lambda: follower.has(place.expected))
            assert stored_entries(place.store, STREAM) == []
            for _ in range(3):
                place.append(7)
                eventually(lambda: follower.has(place.expected))
            place.append(500)
            first.signal(signal.SIGKILL)
            first.ended()
            place.append(300)
            second, second_url = place.owner("second")
            with second:
                eventually(lambda: place.owned_by(second_url))
                place.append(11)
                eventually(lambda: follower.has(place.expected))
                # Again, and with a third one at once.
                second.signal(signal.SIGKILL)
                second.ended()
                place.append(5)
                third, third_url = place.owner("third")
                with third:
                    eventually(lambda: place.owned_by(third_url))
                    eventually(lambda: follower.has(place.expected))


def test_follower_without_an_owner_reads_what_is_offloaded_and_says_how_far_behind_it_is(place: Place) -> None:
    place.append()
    owner, url = place.owner("only")
    with owner:
        eventually(lambda: place.owned_by(url))
        with following(place.store.url) as follower:
            eventually(lambda: follower.has(place.expected))
            seen = list(place.expected)
            owner.signal(signal.SIGKILL)
            owner.ended()
            place.append(40)
            eventually(lambda: follower.notes)
            [note] = follower.notes
            assert note.startswith(f"note: stream {STREAM}: its owner has been unreachable for ")
            assert "no answer from" in note
            assert note.endswith("following offloaded entries only: none yet")
            assert follower.has(seen)
            offload = (
                "stream",
                "offload",
                STREAM,
                "--store",
                place.store.url,
                "--ledgers",
                place.ledgers,
                "--take-over",
            )
            assert main(offload) == 0
            assert len(stored_entries(place.store, STREAM)) == place.sent
            eventually(lambda: follower.has(place.expected))
            # Back with another owner.
            next_owner, next_url = place.owner("next")
            with next_owner:
                place.append(3)
                eventually(lambda: place.owned_by(next_url))
                eventually(lambda: follower.has(place.expected))
                eventually(
                    lambda: follower.notes[-1].endswith(f"the hot tier has recovered; reading it from {next_url}")
                )


class HalfOwner(BaseHTTPRequestHandler):
    """An owner that lists its ledger, and refuses to return entries until the test allows it."""

    is_whole = False

    def do_GET(self) -> None:
        status = 503
        answer: dict[str, Any] = {"kind": "retry_later", "detail": "out of order"}
        if self.path.endswith("/ledgers"):
            fields = {"closed": False, "entries": 3, "size_bytes": 3, "created_ms": 0, "closed_ms": None}
            status, answer = 200, {"items": [{"ledger_id": 7, **fields}]}
        elif self.is_whole:
            first = int(self.path.partition("from=7:")[2].partition("&")[0])
            rows = [(number, base64.b64encode(b"%d" % number).decode()) for number in range(first, 3)]
            fields = {"publish_time_ms": None}
            status = 200
            answer = {"items": [{"position": f"7:{at}", "payload_base64": data, **fields} for at, data in rows]}
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_: object) -> None:
        pass


class Shifted(SystemClock):
    """Ahead of the time by what the test says."""

    ahead_s = 0.0

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.ahead_s


def test_owner_that_lists_ledgers_and_gives_no_entries_is_said_to_be_lost(tmp_path: Path) -> None:
    store, stop, clock = open_store(f"file://{tmp_path}/store", create=True), threading.Event(), Shifted()
    said: list[str] = []

    class Owner(HalfOwner):
        pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Owner) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_address[1]}"
            ManifestLog(store, STREAM, clock=clock, writer_url=url).open_epoch()

            class Steps(SystemClock):
                def wait(self, event: threading.Event, timeout_s: float) -> bool:
                    clock.ahead_s += 4
                    Owner.is_whole = bool(said)
                    assert clock.ahead_s < 400
                    return event.is_set()

            owners = OwnersHotTiers(store, lambda _: None, (), clock)
            part = ReadStreams.opened(store, STREAM, owners, AskedRange(None, None, None, None))
            found: list[bytes] = []
            for _, batch in part.follow(owners, Steps(), stop, said.append):
                found += [entry.payload for entry in batch.entries()]
                if len(found) == 3:
                    stop.set()
            part.close()
        finally:
            server.shutdown()
            thread.join()
    assert found == [b"0", b"1", b"2"]
    assert said[0].startswith(f"stream {STREAM}: its owner has been unreachable for 1")
    assert f"{url}: out of order; following offloaded entries only: none yet" in said[0]
