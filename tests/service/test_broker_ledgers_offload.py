"""A broker has a closed ledger offloaded: waits, comparisons, what readers aren't given, owners and other processes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from formats.entries import Position
from formats.frames import FRAMES_BYTES_MAX
from formats.manifest import Gap, LedgerClosed, LedgersDeleted, Truncate
from offloader.coverage import GapReason
from offloader.ledgers.base import LedgerInfo
from offloader.manifest.boundary import read_boundary
from offloader.manifest.log import load_manifest
from offloader.service.http.server import OffloadHttp
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from services.servers import free_port
from tests.support.answering_server import answering_server
from tests.support.broker_frames import frame_entries
from tests.support.broker_requests import STREAM, Broker
from tests.support.http_process import ORDERS, HttpProcess, ask, exchange, http_process, quoted
from tests.support.streams import StreamWriter, batch_of

_names = itertools.count()
#: Nothing is committed by itself.
SLOW: dict[str, Any] = {"offload": {"segment_age_max": "60.0m"}}


@pytest.fixture
def store() -> ObjectStore:
    return open_store(f"memory://offload-{next(_names)}")


def facts(info: LedgerInfo, **changed: Any) -> dict[str, Any]:
    """A ledger as its broker knows it."""
    found = {"last": info.last_entry_id, "length": info.size_bytes, "entries": info.entries}
    return {**found, "created_ms": info.created_ms, "wait_seconds": 25, **changed}


def closed_ledger(process: HttpProcess, entries: int = 10, *, stream: str = ORDERS) -> LedgerInfo:
    """A further ledger of the process's stream, closed and not offloaded yet."""
    source = process.sources[stream]
    source.close_ledger()
    source.append([b"entry %d" % number for number in range(entries)])
    closed: LedgerInfo = source.close_ledger()
    return closed


@contextmanager
def owner(folder: Path, store: ObjectStore | None = None, **sections: Any) -> Iterator[tuple[OffloadHttp, HttpProcess]]:
    """A process that offloads a stream, and whose address is in the manifest."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    given = {**SLOW, **sections, "http": {"listen": f"127.0.0.1:{port}"}}
    with http_process(folder, given, store=store, writer_url=url) as found:
        yield found


@pytest.mark.slow
def test_offload_waits_for_the_commit_of_the_ledger(tmp_path: Path) -> None:
    with http_process(tmp_path, SLOW) as (http, process):
        broker = Broker(http.url, ORDERS)
        info = closed_ledger(process)
        assert broker.offload(info.ledger_id, **facts(info, wait_seconds=0)).json() == {
            "committed": False,
            "missing": [],
        }
        answer = broker.offload(info.ledger_id, **facts(info))
        assert (answer.status, answer.json()) == (200, {"committed": True, "missing": []})
        assert load_manifest(process.store, ORDERS).committed_end() == Position(info.ledger_id, info.last_entry_id)
        assert [payload for _, payload in broker.whole(info.ledger_id)] == [b"entry %d" % each for each in range(10)]
        again = broker.offload(info.ledger_id, **facts(info, wait_seconds=0))
        assert again.json()["committed"] is True


@pytest.mark.slow
def test_end_of_a_ledger_is_recorded_as_the_broker_knows_it(store: ObjectStore, tmp_path: Path) -> None:
    StreamWriter(store, STREAM).add([batch_of(7, 0, 10)])
    asked = {"last": 9, "length": 200, "entries": 10, "created_ms": 5000}
    with http_process(tmp_path, streams=(), store=store) as (http, _):
        broker = Broker(http.url)
        assert broker.plan(7).status == 503
        assert broker.offload(7, **asked).json()["committed"]
        assert broker.plan(7).json()["last"] == 9
        other = broker.offload(7, **{**asked, "created_ms": 5001})
        assert (other.status, other.json()["kind"]) == (409, "source_mismatch")
        assert broker.offload(7, **{**asked, "created_ms": None}).json()["committed"]
    assert load_manifest(store, STREAM).closed_ledgers[7] == 9


@pytest.mark.slow
def test_ledger_with_a_missing_object_is_not_called_committed(store: ObjectStore, tmp_path: Path) -> None:
    """The broker deletes its own copy because of that answer."""
    writer = StreamWriter(store, STREAM)
    writer.add([batch_of(7, 0, 10)], closes=[7])
    (segment,) = load_manifest(store, STREAM).segments.in_order()
    asked = {"last": 9, "length": 200, "entries": 10, "created_ms": None, "wait_seconds": 0}
    with http_process(tmp_path, streams=(), store=store) as (http, _):
        broker = Broker(http.url)
        assert broker.offload(7, **asked).json()["committed"]
        store.delete([segment.object_keys(STREAM)[0]])
        answer = broker.offload(7, **asked)
        assert (answer.status // 100, "committed" in answer.json()) == (5, False)
        assert str(segment.uuid) in answer.json()["detail"]


@pytest.mark.slow
def test_committed_means_that_a_lost_record_would_be_noticed(store: ObjectStore, tmp_path: Path) -> None:
    StreamWriter(store, STREAM).add([batch_of(7, 0, 10)], closes=[7])
    with http_process(tmp_path, streams=(), store=store) as (http, _):
        asked = {"last": 9, "length": 200, "entries": 10, "created_ms": None, "wait_seconds": 0}
        assert Broker(http.url).offload(7, **asked).json()["committed"]
    state = load_manifest(store, STREAM)
    assert read_boundary(store, STREAM, state.incarnation).boundary.newest_id == state.record_id


@pytest.mark.slow
@pytest.mark.parametrize("created_ms", [-1, -5, 2**63, 10**30])
def test_impossible_time_of_a_ledger_is_refused_and_not_recorded(
    store: ObjectStore, tmp_path: Path, created_ms: int
) -> None:
    """Else the ledger is another one forever for the broker that knows when it was opened."""
    StreamWriter(store, STREAM).add([batch_of(7, 0, 10)])
    asked = {"last": 9, "length": 200, "entries": 10}
    with http_process(tmp_path, streams=(), store=store) as (http, _):
        broker = Broker(http.url)
        answer = broker.offload(7, **asked, created_ms=created_ms)
        assert (answer.status, answer.json()["kind"]) == (400, "invalid_request")
        assert "created_ms" in answer.json()["detail"]
        assert broker.offload(7, **asked, created_ms=5000).json()["committed"]


@pytest.mark.slow
def test_unknown_stream_and_deleted_ledger(store: ObjectStore, tmp_path: Path) -> None:
    writer = StreamWriter(store, STREAM)
    for ledger_id in (7, 8, 9):
        writer.add([batch_of(ledger_id, 0, 10)], closes=(ledger_id,))
    writer.log.commit([LedgersDeleted((7,)), Truncate(Position(9, 0))])
    asked = {"last": 9, "length": 200, "entries": 10}
    with http_process(tmp_path, streams=(), store=store) as (http, _):
        for ledger_id in (7, 8):
            answer = Broker(http.url).offload(ledger_id, **asked)
            assert (answer.status, answer.json()["kind"]) == (410, "trimmed")
        answer = Broker(http.url, "no/such/persistent/stream").offload(7, **asked, wait_seconds=5)
        assert (answer.status, answer.json()["kind"]) == (404, "not_found")


def with_gaps(store: ObjectStore) -> StreamWriter:
    """A ledger of which readers aren't given the first two entries, one in the middle and the last."""
    writer = StreamWriter(store, STREAM)
    for gap, entries in (((0, 1), (2, 10)), ((12, 12), (13, 10)), ((23, 23), None)):
        writer.log.commit([Gap(Position(7, gap[0]), Position(7, gap[1]), GapReason.UNDELIVERED)])
        if entries is not None:
            writer.add([batch_of(7, *entries)])
    writer.log.commit([LedgerClosed(7, 23)])
    return writer


MARKERS = [(each, b"marker %d" % each) for each in (0, 1, 12, 23)]
LENGTH = 20 * 20 + sum(len(payload) for _, payload in MARKERS)


@pytest.mark.slow
def test_broker_sends_what_readers_are_not_given(store: ObjectStore, tmp_path: Path) -> None:
    writer = with_gaps(store)
    asked = {"last": 23, "length": LENGTH, "entries": 24}
    with http_process(tmp_path, streams=(), store=store) as (http, _):
        broker = Broker(http.url)
        answer = broker.offload(7, **asked)
        assert answer.json() == {"committed": False, "missing": [[0, 1], [12, 12], [23, 23]]}
        assert broker.fill(7, 0, 12, MARKERS[:3]).json() == {"stored": 3}
        assert broker.fill(7, 0, 12, MARKERS[:3]).json() == {"stored": 3}
        assert broker.offload(7, **asked).json() == {"committed": False, "missing": [[23, 23]]}
        assert broker.fill(7, 23, 23, MARKERS[3:]).json() == {"stored": 1}
        assert broker.offload(7, **asked).json() == {"committed": True, "missing": []}
        wanted = sorted([*MARKERS, *((each.entry_id, each.payload) for each in writer.entries)])
        assert broker.whole(7) == wanted
        assert frame_entries(broker.entries(7, 1, 13).body) == wanted[1:14]
        wrong = broker.offload(7, **{**asked, "length": LENGTH - 1})
        assert (wrong.status, wrong.json()["kind"]) == (409, "source_mismatch")


@pytest.mark.slow
def test_whole_ledger_that_readers_are_not_given_is_sent_and_read(store: ObjectStore, tmp_path: Path) -> None:
    """One transaction that was aborted fills it: no segment has anything of it."""
    writer = StreamWriter(store, STREAM)
    writer.add([batch_of(7, 0, 10)], closes=(7,))
    writer.log.commit([Gap(Position(8, 0), Position(8, 19), GapReason.UNDELIVERED)])
    writer.add([batch_of(9, 0, 10)], closes=(9,))
    aborted = [(each, b"aborted %d" % each) for each in range(20)]
    asked = {"last": 19, "length": sum(len(payload) for _, payload in aborted), "entries": 20}
    with http_process(tmp_path, streams=(), store=store) as (http, _):
        broker = Broker(http.url)
        assert broker.plan(8).status != 200
        assert broker.offload(8, **asked).json() == {"committed": False, "missing": [[0, 19]]}
        assert broker.fill(8, 0, 9, aborted[:10]).json() == {"stored": 10}
        assert broker.offload(8, **asked).json() == {"committed": False, "missing": [[10, 19]]}
        assert broker.fill(8, 10, 19, aborted[10:]).json() == {"stored": 10}
        assert broker.offload(8, **asked).json() == {"committed": True, "missing": []}
        assert broker.whole(8) == aborted
        assert [len(broker.whole(each)) for each in (7, 9)] == [10, 10]


@pytest.mark.slow
def test_other_bytes_for_stored_entries_are_refused(store: ObjectStore, tmp_path: Path) -> None:
    with_gaps(store)
    with http_process(tmp_path, streams=(), store=store) as (http, _):
        broker = Broker(http.url)
        assert broker.fill(7, 0, 1, MARKERS[:2]).status == 200
        answer = broker.fill(7, 0, 1, [(0, b"marker 0"), (1, b"another")])
        assert (answer.status, answer.json()["kind"]) == (409, "source_mismatch")


@pytest.mark.slow
def test_long_body_is_taken_for_missing_entries_only(store: ObjectStore, tmp_path: Path) -> None:
    with_gaps(store)
    with http_process(tmp_path, {"http": {"idle_timeout": 1}}, streams=(), store=store) as (http, _):
        broker = Broker(http.url)
        large = [(0, bytes(4_000_000)), (1, bytes(4_000_000))]
        assert broker.fill(7, 0, 1, large).json() == {"stored": 2}
        for path, most in (("missing?first=12&last=12", FRAMES_BYTES_MAX), ("offload", 64 * 1024)):
            head = f"{'PUT' if most == FRAMES_BYTES_MAX else 'POST'} /v1/streams/{quoted(STREAM)}/ledgers/7/{path}"
            told = f"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {most + 1}\r\n"
            assert exchange(http, f"{head} HTTP/1.1\r\n{told}\r\n".encode()).startswith(b"HTTP/1.1 413 ")
        assert frame_entries(broker.entries(7, 0, 1).body) == large


@pytest.mark.slow
def test_entries_in_front_of_the_streams_first_one_are_sent(store: ObjectStore, tmp_path: Path) -> None:
    """A topic whose first messages were aborted: its stream begins with the first entry that a reader got."""
    writer = StreamWriter(store, STREAM)
    writer.add([batch_of(7, 4, 10)], closes=(7,))
    front = [(each, b"aborted %d" % each) for each in range(4)]
    asked = {"last": 13, "length": 10 * 20 + sum(len(payload) for _, payload in front), "entries": 14}
    with http_process(tmp_path, streams=(), store=store) as (http, _):
        broker = Broker(http.url)
        assert broker.plan(7).status == 503
        for _ in range(2):
            assert broker.offload(7, **asked).json() == {"committed": False, "missing": [[0, 3]]}
        assert not load_manifest(store, STREAM).gaps, "asking changes nothing"
        assert broker.fill(7, 0, 3, front[:3]).status == 400
        assert broker.fill(7, 0, 1, front[:2]).json() == {"stored": 2}
        assert broker.offload(7, **asked).json()["missing"] == [[2, 3]]
        assert broker.fill(7, 0, 3, front).json() == {"stored": 4}
        assert broker.fill(7, 0, 3, front).json() == {"stored": 4}
        assert broker.offload(7, **asked).json() == {"committed": True, "missing": []}
        assert broker.whole(7) == [*front, *((each.entry_id, each.payload) for each in writer.entries)]
    [gap] = load_manifest(store, STREAM).gaps
    assert (gap.first, gap.last, gap.reason) == (Position(7, 0), Position(7, 3), GapReason.UNDELIVERED)
    assert load_manifest(store, STREAM).committed_from is None
    writer.add([batch_of(8, 0, 5)], closes=(8,))  # the owner goes on behind the foreign record
    assert load_manifest(store, STREAM).committed_end() == Position(8, 4)


@pytest.mark.slow
def test_truncated_front_is_not_asked_for(store: ObjectStore, tmp_path: Path) -> None:
    writer = StreamWriter(store, STREAM)
    writer.add([batch_of(7, 4, 10)], closes=(7,))
    writer.log.commit([Truncate(Position(7, 6))])
    with http_process(tmp_path, streams=(), store=store) as (http, _):
        answer = Broker(http.url).offload(7, last=13, length=280, entries=14)
    assert answer.json() == {"committed": False, "missing": []}


@pytest.mark.slow
def test_whole_ledger_in_front_is_asked_for_once_the_owner_has_found_that_nobody_gets_it(
    store: ObjectStore, tmp_path: Path
) -> None:
    """Before, it may be history that is on its way: then its entries are for readers, and no gap."""
    writer = StreamWriter(store, STREAM)
    writer.add([batch_of(9, 0, 10)], closes=(9,))
    aborted = [(each, b"aborted %d" % each) for each in range(20)]
    asked = {"last": 19, "length": sum(len(payload) for _, payload in aborted), "entries": 20}
    with http_process(tmp_path, streams=(), store=store) as (http, _):
        broker = Broker(http.url)
        assert broker.offload(8, **asked).json() == {"committed": False, "missing": []}
        assert broker.fill(8, 0, 19, aborted).status == 404
        assert not load_manifest(store, STREAM).gaps
        writer.log.commit([Gap(Position(8, 0), Position(8, 19), GapReason.UNDELIVERED)])
        assert broker.offload(8, **asked).json() == {"committed": False, "missing": [[0, 19]]}
        assert broker.fill(8, 0, 19, aborted).json() == {"stored": 20}
        assert broker.offload(8, **asked).json() == {"committed": True, "missing": []}
        assert broker.whole(8) == aborted
    state = load_manifest(store, STREAM)
    assert (state.committed_end(), state.committed_from) == (Position(9, 9), None)


@pytest.mark.slow
def test_overlapping_attempts_and_a_delete_of_the_old_one_first(store: ObjectStore, tmp_path: Path) -> None:
    """As a broker does it after an unload: the old attempt still runs, and is deleted before the new one begins."""
    writer = with_gaps(store)
    old, new = "6b8f6c1e-0000-4000-8000-000000000001", "6b8f6c1e-0000-4000-8000-000000000002"
    asked = {"last": 23, "length": LENGTH, "entries": 24}
    with http_process(tmp_path, streams=(), store=store) as (http, _), ThreadPoolExecutor(4) as threads:
        broker = Broker(http.url)
        assert broker.delete(7, f"?uuid={old}").status == 202
        fills = [threads.submit(broker.fill, 7, 0, 12, MARKERS[:3]) for _ in range(2)]
        fills += [threads.submit(broker.fill, 7, 0, 23, MARKERS) for _ in range(2)]
        assert [each.result().status for each in fills] == [200] * 4
        attempts = [threads.submit(partial(broker.offload, 7, uuid=uuid, **asked)) for uuid in (old, new, old, new)]
        assert [each.result().json()["committed"] for each in attempts] == [True] * 4
        assert broker.delete(7, f"?uuid={old}").status == 202
        wanted = sorted([*MARKERS, *((each.entry_id, each.payload) for each in writer.entries)])
        for uuid in (new, old):  # all attempts share one copy
            assert broker.plan(7, f"?uuid={uuid}").status == 200
        assert broker.whole(7) == wanted
    assert sum(fill.entries for fill in load_manifest(store, STREAM).fills) == len(MARKERS)


@pytest.mark.slow
def test_delete_is_a_hint(store: ObjectStore, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    writer = StreamWriter(store, STREAM)
    writer.add([batch_of(7, 0, 10)], closes=(7,))
    uuid = "6b8f6c1e-0000-4000-8000-000000000001"
    with caplog.at_level("INFO", "offloader"), http_process(tmp_path, streams=(), store=store) as (http, _):
        broker = Broker(http.url)
        answer = broker.delete(7, f"?uuid={uuid}")
        assert (answer.status, answer.json()) == (202, {})
        assert broker.delete(99).status == 202
        assert broker.plan(7).status == 200
        assert "offloader_broker_delete_requests_total 2.0" in ask(f"{http.url}/metrics").body.decode().splitlines()
    assert uuid in caplog.text


@pytest.mark.slow
def test_other_process_passes_the_request_on_where_the_host_is_allowed(tmp_path: Path) -> None:
    with owner(tmp_path) as (_, process):
        info = closed_ledger(process)
        allowed: dict[str, Any] = {"access": {"owner_hosts": ["127.0.0.1"]}}
        with http_process(tmp_path, allowed, streams=(), store=process.store) as (other, _):
            answer = Broker(other.url, ORDERS).offload(info.ledger_id, **facts(info))
            assert (answer.status, answer.json()) == (200, {"committed": True, "missing": []})
            again = Broker(other.url, ORDERS).offload(info.ledger_id, **facts(info, length=1))
            assert (again.status, again.json()["kind"]) == (409, "source_mismatch")


#: The last level of streams, and of the managed ledgers that brokers name.
ENCODED = {
    "with:colon": "with%3Acolon",
    "with%3Acolon": "with%253Acolon",
    "a%2Fb": "a%252Fb",
    "a#b": "a%23b",
    "a?b": "a%3Fb",
    "a=b": "a%3Db",
    "a b": "a+b",
    "a+b": "a%2Bb",
    "\u00e4\u00f6\u00fc": "%C3%A4%C3%B6%C3%BC",
}


@pytest.mark.slow
def test_managed_ledgers_whose_names_are_encoded_are_offloaded_and_read(store: ObjectStore, tmp_path: Path) -> None:
    with http_process(tmp_path, streams=(), store=store) as (http, _):
        for number, (name, encoded) in enumerate(ENCODED.items()):
            writer = StreamWriter(store, f"t/n/persistent/{name}")
            writer.add([batch_of(number, 0, 10 + number)], closes=(number,))
            length = sum(len(each.payload) for each in writer.entries)
            broker = Broker(http.url, f"t/n/persistent/{encoded}")
            answer = broker.offload(number, last=9 + number, length=length, entries=10 + number)
            assert (name, answer.status, answer.json().get("committed")) == (name, 200, True)
            assert broker.whole(number) == [(each.entry_id, each.payload) for each in writer.entries]
            assert broker.delete(number).status == 202


@pytest.mark.slow
@pytest.mark.parametrize("name", ["with:colon", "a%3Ab"])
def test_other_process_passes_encoded_names_on(tmp_path: Path, name: str) -> None:
    stream, url = f"t/n/persistent/{name}", f"http://127.0.0.1:{(port := free_port())}"
    with http_process(
        tmp_path, {**SLOW, "http": {"listen": f"127.0.0.1:{port}"}}, streams=(stream,), writer_url=url
    ) as (_, process):
        info = closed_ledger(process, stream=stream)
        allowed: dict[str, Any] = {"access": {"owner_hosts": ["127.0.0.1"]}}
        with http_process(tmp_path, allowed, streams=(), store=process.store) as (other, _):
            answer = Broker(other.url, f"t/n/persistent/{ENCODED.get(name, 'a%253Ab')}").offload(
                info.ledger_id, **facts(info)
            )
            assert (answer.status, answer.json()) == (200, {"committed": True, "missing": []})


@pytest.mark.slow
def test_other_process_names_the_owner_where_the_host_is_not_allowed(tmp_path: Path) -> None:
    with owner(tmp_path) as (http, process), http_process(tmp_path, streams=(), store=process.store) as (other, _):
        info = closed_ledger(process)
        answer = Broker(other.url, ORDERS).offload(info.ledger_id, **facts(info))
        found = answer.json()
        assert (answer.status, found["kind"], found["owner"]) == (421, "not_owner", http.url)
        assert http.url in found["detail"]
        assert "access.owner_hosts" in found["hint"]
        # What is committed already is answered by every process.
        assert Broker(http.url, ORDERS).offload(info.ledger_id, **facts(info)).json()["committed"]
        assert Broker(other.url, ORDERS).offload(info.ledger_id, **facts(info)).json()["committed"]


@pytest.mark.slow
def test_request_is_passed_on_once(tmp_path: Path) -> None:
    """The manifest names a process that doesn't offload the stream any more, as its successor's may."""
    allowed: dict[str, Any] = {"access": {"owner_hosts": ["127.0.0.1"]}}
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with http_process(tmp_path, SLOW, writer_url=url) as (_, process):
        info = closed_ledger(process)
        listen = {**allowed, "http": {"listen": f"127.0.0.1:{port}"}}
        with http_process(tmp_path, listen, streams=(), store=process.store) as (named, _):
            answer = Broker(named.url, ORDERS).offload(info.ledger_id, **facts(info))
            assert (answer.status, answer.json()["kind"], answer.json()["owner"]) == (421, "not_owner", url)


@pytest.mark.slow
def test_owner_that_has_ended_is_asked_again_later(tmp_path: Path) -> None:
    allowed: dict[str, Any] = {"access": {"owner_hosts": ["127.0.0.1"]}}
    with http_process(tmp_path, SLOW, writer_url=f"http://127.0.0.1:{free_port()}") as (_, process):
        info = closed_ledger(process)
        with http_process(tmp_path, allowed, streams=(), store=process.store) as (other, _):
            answer = Broker(other.url, ORDERS).offload(info.ledger_id, **facts(info))
            assert (answer.status, answer.json()["kind"], answer.json()["retryable"]) == (503, "retry_later", True)


@pytest.mark.slow
def test_owner_that_answers_at_once_is_asked_a_few_times_only(tmp_path: Path) -> None:
    allowed: dict[str, Any] = {"access": {"owner_hosts": ["127.0.0.1"]}}
    with answering_server() as ending, http_process(tmp_path, SLOW, writer_url=ending.url) as (_, process):
        ending.answers = [(200, {"committed": False, "missing": []})]
        info = closed_ledger(process)
        with http_process(tmp_path, allowed, streams=(), store=process.store) as (other, _):
            answer = Broker(other.url, ORDERS).offload(info.ledger_id, **facts(info, wait_seconds=1))
            assert (answer.status, answer.json()) == (200, {"committed": False, "missing": []})
        assert 2 <= len(ending.asked) <= 6


@pytest.mark.slow
def test_brokers_own_token_is_passed_on_and_no_other(tmp_path: Path) -> None:
    environ = {"BROKER": "broker-token-0123456789", "OFFLOADER_TOKEN": "admin-token-0123456789"}
    access: dict[str, Any] = {
        "access": {"broker_tokens": ["env:BROKER"], "owner_hosts": ["127.0.0.1"], "tokens_without_tls": True}
    }
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    sections: dict[str, Any] = {**SLOW, **access, "http": {"listen": f"127.0.0.1:{port}"}}
    with (
        http_process(tmp_path, sections, writer_url=url, environ=environ) as (_, process),
        http_process(tmp_path, access, streams=(), store=process.store, environ=environ) as (other, _),
    ):
        info = closed_ledger(process)
        known = Broker(other.url, ORDERS, token=environ["BROKER"])
        assert known.offload(info.ledger_id, **facts(info)).json()["committed"]
        assert Broker(other.url, ORDERS).offload(info.ledger_id, **facts(info)).status == 401


@pytest.mark.slow
def test_process_that_only_reads_never_writes(tmp_path: Path) -> None:
    with owner(tmp_path) as (http, process):
        first, info = closed_ledger(process), closed_ledger(process)
        assert Broker(http.url, ORDERS).offload(first.ledger_id, **facts(first)).json()["committed"]
        kept: dict[str, Any] = {"streams": (), "store": process.store, "read_only": True}
        with http_process(tmp_path, **kept) as (reader, _):
            broker = Broker(reader.url, ORDERS)
            assert len(broker.whole(first.ledger_id)) == first.entries
            answer = broker.offload(info.ledger_id, **facts(info))
            assert (answer.status, answer.json()["kind"], answer.json()["owner"]) == (421, "not_owner", http.url)
            answer = broker.fill(first.ledger_id, 0, 0, [(0, b"x")])
            assert (answer.status, answer.json()["kind"], answer.json()["owner"]) == (421, "not_owner", http.url)
            assert broker.delete(first.ledger_id).status == 202


@pytest.mark.slow
def test_more_waits_than_allowed_are_asked_to_come_again(tmp_path: Path) -> None:
    sections: dict[str, Any] = {**SLOW, "broker": {"waits_max": 1}}
    with http_process(tmp_path, sections) as (http, process), ThreadPoolExecutor(2) as threads:
        broker = Broker(http.url, ORDERS)
        [info] = process.sources[ORDERS].ledgers()
        asked = {"last": info.entries + 5, "length": 1, "entries": info.entries + 6, "wait_seconds": 3}
        answers = list(threads.map(lambda _: broker.offload(info.ledger_id, **asked), range(2)))
        assert sorted(each.status for each in answers) == [200, 503]
        [refused] = [each for each in answers if each.status == 503]
        assert refused.headers["retry-after"] == "1"
        assert refused.json()["retryable"] is True
