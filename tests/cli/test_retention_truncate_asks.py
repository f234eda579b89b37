"""``stream truncate --force`` and ``stream offload`` ask the process at the manifest's address and verify it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from formats.entries import Position
from formats.manifest import Assign
from offloader.manifest.log import ManifestLog, load_manifest
from offloader.runtime.clock import SystemClock
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from tests.cli.reading_verbs import Offloader
from tests.support.streams import StreamWriter, batch_of

#: What the process answers, as a status and a document, and does before that.
Answer = Callable[[dict[str, Any]], tuple[int, dict[str, Any]]]


class Owner:
    """A process that has a stream: one ledger is offloaded, half of another one only appended."""

    def __init__(self, store: ObjectStore, stream: str) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.answer: Answer = self.completes
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                owner.asked.append((self.path, body.get("until")))
                status, found = owner.answer(body)
                raw = json.dumps(found).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.writer = StreamWriter(store, stream)
        self.writer.log = ManifestLog(store, stream, clock=SystemClock(), writer_url=self.url)
        self.writer.log.load()
        self.writer.log.open_epoch()
        self.writer.add([batch_of(1, 0, 10)], closes=[1])

    def completes(self, _: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        self.writer.add([batch_of(2, 0, 10)])
        return 200, {"committed": "2:9"}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    made = open_store(f"file://{tmp_path}/store")
    monkeypatch.setenv("OFFLOADER_STORE", made.url)
    (tmp_path / "soon.toml").write_text('[offload]\nmethod = "streaming"\ndrain_timeout = "0s"\n')
    monkeypatch.setenv("OFFLOADER_CONFIG", str(tmp_path / "soon.toml"))
    return made


@pytest.fixture
def owner(store: ObjectStore) -> Iterator[Owner]:
    made = Owner(store, "orders-partition-0")
    thread = threading.Thread(target=made.server.serve_forever, args=(0.01,))
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join()


@pytest.fixture
def offloader(capsys: pytest.CaptureFixture[str]) -> Offloader:
    return Offloader(capsys)


@pytest.mark.slow
def test_entries_that_the_owner_offloads_are_not_given_up(
    offloader: Offloader, store: ObjectStore, owner: Owner
) -> None:
    epoch = load_manifest(store, "orders-partition-0").epoch
    [row] = offloader("stream", "truncate", "--apply", "orders", "--before", "0=2:5", "--force", "--json").rows
    assert owner.asked == [("/v1/streams/orders-partition-0/offload", "2:4")]
    assert (row["head"], row["gaps"], row["failed"]) == ("2:5", [], [])
    state = load_manifest(store, "orders-partition-0")
    assert (state.head, state.epoch, state.gaps) == (Position(2, 5), epoch, ())
    # What is offloaded needs nobody.
    assert offloader("stream", "truncate", "--apply", "orders", "--before", "0=2:9", "--force").code == 0
    assert len(owner.asked) == 1


@pytest.mark.slow
def test_owner_that_cannot_offload_in_time_keeps_its_stream(
    offloader: Offloader, store: ObjectStore, owner: Owner
) -> None:
    owner.answer = lambda _: (503, {"detail": "2:4 isn't offloaded yet", "kind": "retry_later"})
    done = offloader("stream", "truncate", "--apply", "orders", "--before", "0=2:5", "--force")
    assert done.code == 4
    assert "2:4 isn't offloaded yet" in done.err
    assert "--take-over" in done.err
    assert load_manifest(store, "orders-partition-0").head is None


@pytest.mark.slow
def test_owner_is_not_asked_without_force_or_with_take_over(offloader: Offloader, owner: Owner) -> None:
    assert offloader("stream", "truncate", "--apply", "orders", "--before", "0=2:0").code == 0
    assert offloader("stream", "truncate", "orders", "--before", "0=2:5").code == 2
    assert offloader("stream", "truncate", "--apply", "orders", "--before", "0=2:5", "--force", "--take-over").code == 2
    assert owner.asked == []


@pytest.mark.slow
def test_unreachable_owner_keeps_its_stream_unless_taken_over(
    offloader: Offloader, store: ObjectStore, owner: Owner
) -> None:
    owner.server.shutdown()
    owner.server.server_close()
    owner.writer.log.commit([Assign(UUID(int=7), 2, Position(2, 0), Position(2, 9), 0, {})])
    done = offloader("stream", "truncate", "--apply", "orders", "--before", "0=2:5", "--force")
    assert done.code == 5
    assert f"is owned by {owner.writer.log.state.writer.name} at {owner.url}" in done.err
    assert load_manifest(store, "orders-partition-0").head is None
    done = offloader("stream", "truncate", "--apply", "orders", "--before", "0=2:5", "--force", "--take-over")
    assert "dropped without offload: 1:10 up to 2:4" in done.out


@pytest.mark.slow
def test_false_success_of_owner_gives_up_no_entries(offloader: Offloader, store: ObjectStore, owner: Owner) -> None:
    """The process at the manifest's address may be any."""
    owner.writer.log.commit([Assign(UUID(int=7), 2, Position(2, 0), None, 0, {})])
    for said in ("2:9", "1:9"):
        owner.answer = lambda _, said=said: (200, {"committed": said})  # type: ignore[misc]
        done = offloader("stream", "truncate", "--apply", "orders", "--before", "0=2:5", "--force")
        state = load_manifest(store, "orders-partition-0")
        assert (state.head, state.gaps, done.code != 0) == (None, (), True), done
        assert owner.url in done.err


@pytest.mark.slow
def test_offload_reports_nothing_as_done_that_the_manifest_does_not_show(
    offloader: Offloader, store: ObjectStore, owner: Owner
) -> None:
    owner.answer = lambda _: (200, {"committed": "2:9"})
    done = offloader("stream", "offload", "orders-partition-0")
    assert done.code != 0, done
    assert (
        "reports stream orders-partition-0 as offloaded up to 2:9, but its manifest as offloaded up to 1:9" in done.err
    )
    owner.answer = owner.completes
    assert "committed end 2:9" in offloader("stream", "offload", "orders-partition-0").out


@pytest.mark.slow
def test_offload_sends_no_token_to_an_address_that_only_the_manifest_names(
    offloader: Offloader, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OFFLOADER_TOKEN", "a-token-of-this-test")
    done = offloader("stream", "offload", "orders-partition-0")
    assert owner.asked == [], "the token was sent"
    assert done.code == 8
    assert owner.url in done.err
    assert "access.owner_hosts" in done.err
    monkeypatch.setenv("OFFLOADER_OWNER_HOSTS", "127.0.0.1")
    assert offloader("stream", "offload", "orders-partition-0").code == 0
