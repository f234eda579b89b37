"""Who may do what of a broker's requests, how much of it at once, and processes that only read."""

from __future__ import annotations

import signal
from contextlib import closing
from pathlib import Path

import pytest

from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from services.servers import free_port
from tests.service.test_broker_ledgers_access import config, unread
from tests.service.test_broker_ledgers_access import store as store
from tests.service.test_broker_ledgers_access import writer as writer
from tests.support.broker_frames import frame_entries
from tests.support.broker_requests import STREAM, Broker
from tests.support.http_process import ask, http_process, quoted
from tests.support.serving_processes import Serving
from tests.support.streams import StreamWriter, batch_of
from tests.support.waiting import eventually


@pytest.mark.slow
def test_answer_that_nobody_takes_holds_up_no_other_request(
    store: ObjectStore, writer: StreamWriter, tmp_path: Path
) -> None:
    writer.block_bytes = 1024 * 1024
    writer.add([batch_of(7, 0, 600, size=100_000)], closes=(7,))
    path = f"/v1/streams/{quoted(STREAM)}/ledgers/7/entries?from=0&to=599"
    sections = {"broker": {"streams_max": 1}, "http": {"answer_timeout": 300}}
    with http_process(tmp_path, sections, streams=(), store=store) as (http, _):
        broker = Broker(http.url)
        with closing(unread(http, path)):
            refused = broker.entries(7, 0, 0)
            assert (refused.status, refused.json()["retryable"]) == (503, True)
            assert broker.plan(7).status == 200
            assert ask(f"{http.url}/v1/overview").status == 200
        # Its client has gone: the place is free.
        eventually(lambda: broker.entries(7, 0, 0).status == 200)
        assert len(frame_entries(broker.entries(7, 0, 599).body)) == 600


@pytest.mark.process
def test_read_only_processes_serve_ledgers_and_change_nothing(tmp_path: Path) -> None:
    writer = StreamWriter(open_store(f"file://{tmp_path}/store"), STREAM)
    writer.add([batch_of(7, 0, 100)], closes=(7,))
    before = {path: path.stat().st_mtime_ns for path in sorted((tmp_path / "store").rglob("*"))}
    ports = [free_port(), free_port()]
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder, port in zip(folders, ports, strict=True):
        folder.mkdir()
        config(folder, port).write_text(
            config(folder, port).read_text().replace(f"{folder}/store", f"{tmp_path}/store")
        )
    wanted = [(entry.entry_id, entry.payload) for entry in writer.entries]
    with Serving(folders[0] / "offloader.toml", {}, "--read-only") as first:
        with Serving(folders[1] / "offloader.toml", {}, "--read-only"):
            for port in ports:
                broker = Broker(f"http://127.0.0.1:{port}")
                assert broker.whole(7) == wanted
                # The broker deletes its copy when it hears that a ledger is committed: who can't make sure passes on.
                for ledger in (7, 8):
                    answer = broker.offload(ledger, last=99, length=2000, entries=100, wait_seconds=5)
                    assert answer.json()["kind"] == "not_owner"
                ready = ask(f"http://127.0.0.1:{port}/readyz")
                assert (ready.status, ready.json()["ready"]) == (200, True)
        pause = ask(f"http://127.0.0.1:{ports[0]}/v1/streams/{quoted(STREAM)}/pause", method="POST", body={})
        assert pause.status == 501
        first.signal(signal.SIGTERM)
        assert first.ended() == 0
    assert {path: path.stat().st_mtime_ns for path in sorted((tmp_path / "store").rglob("*"))} == before
