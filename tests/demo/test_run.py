"""The demo's run: complete, interrupted anywhere, repeated, against other data, against damage."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from formats.keys import stream_prefix
from offloader.demo.run import STREAM, DemoRequest, DemoResult, demo_settings
from offloader.errors import (
    CorruptError,
    InvalidCallError,
    ObjectMissingError,
    OffloaderError,
    UnsupportedError,
)
from offloader.inspect.saving import READERS
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
from offloader.read.reader import open_stream_reader
from offloader.store.open import open_store
from tests.demo.demo_cases import Watching, events, files_in, run, write_events
from tests.support.presence import there

pytestmark = pytest.mark.slow

EVENTS = 30_000


@pytest.fixture(scope="module")
def input_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_events(tmp_path_factory.mktemp("input") / "events.ndjson", EVENTS)


def stored(place_url: str, **options: Any) -> list[bytes]:
    """What an ordinary reader finds in the store."""
    store = open_store(place_url, read_only=True, **options)
    try:
        return [payload for batch in open_stream_reader(store, STREAM).scan() for payload in batch.payloads.to_pylist()]
    finally:
        store.close()


def test_a_run_imports_offloads_verifies_and_draws(tmp_path: Path, input_file: Path) -> None:
    observer = Watching()
    result = run(tmp_path / "demo", observer, input_path=str(input_file), time_field="t", picture=True)
    assert result.problems == []
    assert there(result.verification).ok
    assert (result.events_before, there(result.offload).appended) == (0, EVENTS)
    assert stored(result.request.url) == events(EVENTS)
    assert len(result.ledgers) >= 3
    assert len(result.segments) >= 6
    assert there(result.saving).then < there(result.saving).now / 2, "of text that repeats"
    assert READERS in there(result.saving).advice
    assert there(result.picture).read_bytes().startswith(b"\x89PNG")
    assert [step.split()[0] for step in observer.steps] == ["Checking", "Appending", "Reading"]
    assert sorted(path.name for path in (tmp_path / "demo").iterdir()) == [
        "ledgers.db",
        "ledgers.db.acked",
        "picture.png",
        "store",
    ]


def test_some_segments_span_ledgers_and_some_ledgers_span_segments(tmp_path: Path, input_file: Path) -> None:
    result = run(tmp_path, input_path=str(input_file))
    spans = [{span.ledger_id for span in there(record.summary).ledgers} for record in result.segments]
    assert any(len(ledgers) > 1 for ledgers in spans)
    assert any(sum(info.ledger_id in ledgers for ledgers in spans) > 1 for info in result.ledgers)


def test_progress_reaches_the_total_and_shows_buffer_and_lag(tmp_path: Path, input_file: Path) -> None:
    observer = Watching()
    run(tmp_path, observer, input_path=str(input_file))
    moments = observer.moments
    assert [m.appended for m in moments] == sorted(m.appended for m in moments)
    assert [m.committed for m in moments] == sorted(m.committed for m in moments)
    assert all(0 <= m.lag_events <= EVENTS and m.buffer_bytes <= m.buffer_bytes_max for m in moments)
    assert (moments[-1].appended, moments[-1].committed, moments[-1].lag_events) == (EVENTS, EVENTS, 0)


def test_times_of_the_input_are_kept(tmp_path: Path, input_file: Path) -> None:
    result = run(tmp_path, input_path=str(input_file), time_field="t")
    first = there(result.segments[0].summary).publish_time_min_ms
    last = there(result.segments[-1].summary).publish_time_max_ms
    assert (first, last) == (1_700_000_000_000, (1_700_000_000 + 60 * (EVENTS - 1)) * 1000)


def test_different_input_into_existing_data_is_refused_with_a_hint(tmp_path: Path, input_file: Path) -> None:
    run(tmp_path / "demo", input_path=str(input_file))
    files = files_in(tmp_path / "demo")
    other = write_events(tmp_path / "other.ndjson", 100)
    with pytest.raises(
        InvalidCallError, match=r"30,000 events of .*events.ndjson.*other.ndjson is another input"
    ) as caught:
        run(tmp_path / "demo", input_path=str(other))
    assert "--clean" in caught.value.hint
    assert files_in(tmp_path / "demo") == files


def test_a_copy_under_another_name_is_the_same_input(tmp_path: Path, input_file: Path) -> None:
    run(tmp_path / "demo", input_path=str(input_file))
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(input_file.read_bytes())
    assert run(tmp_path / "demo", input_path=str(copy)).offload is None


def test_clean_removes_only_the_earlier_run(tmp_path: Path, input_file: Path) -> None:
    first = run(tmp_path / "demo", input_path=str(input_file))
    (tmp_path / "demo" / "mine.txt").write_text("keep")
    store = open_store(first.request.url)
    store.put("public/default/persistent/demo-of-somebody/else", b"keep")
    store.close()
    other = write_events(tmp_path / "other.ndjson", 500)
    result = run(tmp_path / "demo", input_path=str(other), clean=True)
    assert there(result.verification).ok
    assert there(result.removed_objects) > 2 * len(first.segments)
    assert stored(result.request.url) == events(500)
    assert (tmp_path / "demo" / "mine.txt").read_text() == "keep"
    store = open_store(first.request.url)
    assert store.get("public/default/persistent/demo-of-somebody/else")[0] == b"keep"
    left = {info.key for info in store.list(stream_prefix(STREAM)).objects}
    assert not any(str(record.uuid) in key for record in first.segments for key in left)
    store.close()


def test_clean_keeps_everything_when_the_input_is_broken(tmp_path: Path, input_file: Path) -> None:
    run(tmp_path / "demo", input_path=str(input_file))
    files = files_in(tmp_path / "demo")
    broken = tmp_path / "broken.ndjson"
    broken.write_bytes(b"{}\n{\n")
    with pytest.raises(InvalidCallError, match="line 2"):
        run(tmp_path / "demo", input_path=str(broken), clean=True)
    assert files_in(tmp_path / "demo") == files


def test_a_broken_input_leaves_nothing_behind(tmp_path: Path) -> None:
    broken = tmp_path / "broken.ndjson"
    broken.write_bytes(b"\n".join([*events(20_000), b"{"]))
    with pytest.raises(InvalidCallError, match="line 20001"):
        run(tmp_path / "demo", input_path=str(broken))
    assert not (tmp_path / "demo").exists()


def data_object(result: DemoResult) -> Path:
    [path] = Path(result.request.directory, "store").rglob(str(result.segments[1].uuid))
    return path


def test_a_damaged_object_is_found(tmp_path: Path, input_file: Path) -> None:
    result = run(tmp_path, input_path=str(input_file))
    path = data_object(result)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(OffloaderError) as caught:
        run(tmp_path, input_path=str(input_file))
    assert caught.value.exit_code == CorruptError("").exit_code


def test_a_missing_object_is_found(tmp_path: Path, input_file: Path) -> None:
    result = run(tmp_path, input_path=str(input_file))
    data_object(result).unlink()
    with pytest.raises(ObjectMissingError):
        run(tmp_path, input_path=str(input_file))


def test_foreign_notes_are_refused(tmp_path: Path, input_file: Path) -> None:
    ledgers = EmbeddedLedgers(str(DemoRequest(directory=str(tmp_path)).ledgers_path))
    ledgers.open_stream(STREAM).append([b"x"], notes={"demo.input": b"{}", "demo.events": b"1"})
    ledgers.close()
    with pytest.raises(CorruptError, match="notes can't be read"):
        run(tmp_path, input_path=str(input_file))


def test_ledgers_of_a_newer_release_are_not_damaged(tmp_path: Path, input_file: Path) -> None:
    path = str(DemoRequest(directory=str(tmp_path)).ledgers_path)
    EmbeddedLedgers(path).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(UnsupportedError, match="schema version 99"):
        run(tmp_path, input_path=str(input_file))


def test_every_store_url_has_its_own_ledgers_and_picture(tmp_path: Path) -> None:
    places = [
        DemoRequest(directory=str(tmp_path)),
        DemoRequest(directory=str(tmp_path), store_url="s3://bucket/a"),
        DemoRequest(directory=str(tmp_path), store_url="s3://bucket/a", endpoint_url="http://localhost:9000"),
        DemoRequest(directory=str(tmp_path), store_url="s3://bucket-a"),
    ]
    assert len({place.ledgers_path for place in places}) == len(places)
    assert len({place.picture_path for place in places}) == len(places)
    assert [place.ledgers_path.name == "ledgers.db" for place in places] == [True, False, False, False]


@pytest.mark.parametrize("payload_bytes", [1, 1000, 10**6, 10**8, 10**11])
def test_sizes_suit_any_amount(payload_bytes: int) -> None:
    settings = demo_settings(payload_bytes)
    segment_bytes = settings.offload.segment_size_max.mebibytes * 1024 * 1024
    assert segment_bytes < settings.ledgers.ledger_size_max
    if payload_bytes >= 10**6:
        assert 3 <= -(-payload_bytes // settings.ledgers.ledger_size_max) <= 4
        assert 6 <= -(-payload_bytes // segment_bytes) <= 8


def test_a_tiny_input_is_one_segment(tmp_path: Path) -> None:
    path = tmp_path / "one.txt"
    path.write_bytes(b"hello")
    result = run(tmp_path / "demo", input_path=str(path))
    assert (len(result.ledgers), len(result.segments)) == (1, 1)
    assert stored(result.request.url) == [b"hello"]


def test_empty_events_are_events(tmp_path: Path) -> None:
    path = tmp_path / "empty.txt"
    path.write_bytes(b"\n\n\n")
    result = run(tmp_path / "demo", input_path=str(path))
    assert there(result.verification).ok
    assert stored(result.request.url) == [b"", b"", b""]
