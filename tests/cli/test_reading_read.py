"""``offloader read STREAM``."""

from __future__ import annotations

import base64
import threading
from pathlib import Path

import pytest

from formats.entries import TIME_UNKNOWN_MS, EntryBatch, Position
from formats.manifest import Truncate
from offloader.cli.main import main
from offloader.store.open import open_store
from tests.cli.reading_verbs import Offloader
from tests.support.streams import BASE_MS, StreamWriter, batch_of


@pytest.fixture
def writer(tmp_path: Path) -> StreamWriter:
    writer = StreamWriter(open_store(f"file://{tmp_path}/store"), "orders")
    writer.add([batch_of(3, 0, 100)], closes=[3])
    writer.add([batch_of(5, 0, 40)])
    return writer


@pytest.fixture
def offloader(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, writer: StreamWriter) -> Offloader:
    monkeypatch.setenv("OFFLOADER_STORE", writer.store.url)
    return Offloader(capsys)


def lines_of(writer: StreamWriter, first: int, stop: int) -> list[str]:
    return [entry.payload.decode() for entry in writer.entries[first:stop]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "first", "stop"),
    [
        ([], 0, 140),
        (["--limit", "7"], 0, 7),
        (["--from", "3:90", "--to", "5:2"], 90, 103),
        (["--from", "5:39"], 139, 140),
        (["--to", "3:0"], 0, 1),
        (["--from", "3:50", "--limit", "60"], 50, 110),
        (["--since", str(BASE_MS + 3_000_000 + 20_500)], 21, 140),
        (["--since", "2023-11-14T23:03:30Z", "--limit", "2"], 10, 12),
        (["--since", "2023-11-15T00:03:30+01:00", "--to", "3:11"], 10, 12),
        (["--since", "2023-11-14", "--limit", "1"], 0, 1),
        (["--since", "2033-01-01"], 0, 0),
        (["--since", "2023-11-14T23:03:30Z", "--to", "3:2"], 0, 0),
        (["--until", "2023-11-14T23:03:30Z"], 0, 10),
        (["--until", "2033-01-01"], 0, 140),
        (["--until", "2013-01-01"], 0, 0),
        (["--from", "3:5", "--until", "2023-11-14T23:03:30Z"], 5, 10),
        (["--from", "3:50", "--until", "2023-11-14T23:03:30Z"], 0, 0),
        (["--since", "2023-11-14T23:03:25Z", "--until", "2023-11-14T23:03:30Z"], 5, 10),
        (["--since", "2023-11-14T23:03:30Z", "--until", "2023-11-14T23:03:25Z"], 0, 0),
        (["--until", str(BASE_MS + 5_000_000)], 0, 100),
    ],
)
def test_the_asked_entries_are_printed_one_per_line_or_counted(
    offloader: Offloader, writer: StreamWriter, arguments: list[str], first: int, stop: int
) -> None:
    done = offloader("read", "orders", *arguments)
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == lines_of(writer, first, stop)
    assert offloader("read", "orders", *arguments, "--count").out == f"{stop - first}\n"
    assert offloader("read", "orders", *arguments, "--count", "--json").rows == [{"count": stop - first}]


def test_counting_needs_no_data_object(offloader: Offloader, writer: StreamWriter) -> None:
    writer.store.delete([writer.keys(uuid)[0] for uuid in writer.uuids])
    assert offloader("read", "orders", "--count").out == "140\n"
    assert offloader("read", "orders", "--from", "3:33", "--to", "5:33", "--count").out == "101\n"


PAYLOADS = [
    ("plain text", "plain text"),
    ("tabs\tand ümläute ✓ 漢字", "tabs\tand ümläute ✓ 漢字"),
    ("", ""),
    ("two\nlines", None),
    ("\x1b[31mred", None),
    ("\u2028separator", None),
]


@pytest.mark.slow
@pytest.mark.parametrize(("text", "line"), PAYLOADS)
def test_entries_print_as_text_or_base64_when_not_one_safe_line(
    offloader: Offloader, writer: StreamWriter, text: str, line: str | None
) -> None:
    writer.add([EntryBatch.build(5, 40, [text.encode(), b"\xff\xfe"], TIME_UNKNOWN_MS)])
    done = offloader("read", "orders", "--from", "5:40")
    expected = f"base64:{base64.b64encode(text.encode()).decode()}" if line is None else line
    assert done.out.split("\n") == [expected, f"base64:{base64.b64encode(bytes([255, 254])).decode()}", ""]
    assert offloader("read", "orders", "--from", "5:40", "--json").rows == [
        {"position": "5:40", "publish_time": None, "payload": text},
        {"position": "5:41", "publish_time": None, "payload_base64": "//4="},
    ]


def test_as_json_with_position_and_publish_time(offloader: Offloader) -> None:
    assert offloader("read", "orders", "--from", "3:7", "--to", "3:7", "--json").rows == [
        {"position": "3:7", "publish_time": "2023-11-14T23:03:27.000Z", "payload": "3:7 ................"}
    ]


def test_an_empty_stream_prints_nothing(offloader: Offloader, writer: StreamWriter) -> None:
    StreamWriter(writer.store, "empty")
    assert (offloader("read", "empty").out, offloader("read", "empty", "--count").out) == ("", "0\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code", "line", "hint"),
    [
        (
            ["--from", "7"],
            2,
            "--from: a position is written LEDGER:ENTRY, for example 7:12, not '7'",
            "ls STREAM",
        ),
        (["--to", "a:b"], 2, "--to: a position is written LEDGER:ENTRY", "ls STREAM"),
        (["--since", "soon"], 2, "--since: 'soon' is not a time", "2013-07-04T12:00:00Z"),
        (["--since", "2023-13-01"], 2, "--since: '2023-13-01' is not a time", "ms since 1970"),
        (["--from", "3:0", "--since", "2023-01-01"], 2, "--from and --since exclude each other", "leave"),
        (["--from", "5:0", "--to", "3:0"], 2, "5:0..3:0 ends before it begins", "swap"),
        (["--from", "2:0"], 3, "position 2:0 is before the first entry 3:0", "begin at 3:0"),
        (["--from", "99:0"], 3, "position 99:0 is beyond the last readable entry 5:39", "begin at 5:39 or earlier"),
        (["--to", "99:0"], 3, "position 99:0 is beyond the last readable entry 5:39", "end at 5:39"),
        (["--to", "2:0"], 3, "position 2:0 is before the first entry 3:0", "end at 3:0 or later"),
        (["--to", "5:40"], 3, "position 5:40 is beyond the last readable entry 5:39", "end at 5:39"),
        (["--to", "5:40", "--count"], 3, "position 5:40 is beyond the last readable entry 5:39", "end at 5:39"),
        (["--limit", "-1"], 2, "invalid value for '--limit'", "--help"),
    ],
)
def test_invalid_input_is_one_line_a_hint_and_an_exit_code(
    offloader: Offloader, arguments: list[str], code: int, line: str, hint: str
) -> None:
    found_code, found_line, found_hint = offloader.refuses("read", "orders", *arguments)
    assert found_code == code
    assert line in found_line
    assert hint in found_hint


def test_an_unknown_stream_suggests_similar_names(offloader: Offloader) -> None:
    assert offloader.refuses("read", "oders")[::2] == (3, "did you mean orders?")


def test_deleted_position_is_an_error_with_the_new_beginning(offloader: Offloader, writer: StreamWriter) -> None:
    writer.log.commit([Truncate(Position(3, 60))])
    code, line, hint = offloader.refuses("read", "orders", "--from", "3:0")
    assert (code, hint) == (3, "begin at 3:60")
    assert "position 3:0 was deleted: the stream begins at 3:60" in line


def test_damage_is_reported_after_the_entries_before_it(offloader: Offloader, writer: StreamWriter) -> None:
    writer.store.delete([writer.keys(writer.uuids[1])[0]])
    done = offloader("read", "orders")
    assert done.code == 6
    assert done.out.splitlines() == lines_of(writer, 0, 100)
    assert str(writer.uuids[1]) in done.err
    assert len(done.err.splitlines()) == 2


def test_raw_prints_exactly_the_payload_bytes(capfdbinary: pytest.CaptureFixture[bytes], writer: StreamWriter) -> None:
    payloads = [b"\x00\xff", b"", b"two\nlines", b"\x1b[31m"]
    writer.add([EntryBatch.build(5, 40, payloads)])
    assert main(["read", "orders", "--store", writer.store.url, "--from", "5:40", "--raw"]) == 0
    assert capfdbinary.readouterr().out == b"".join(payloads)


@pytest.mark.slow
def test_follow_prints_new_entries_until_the_limit(offloader: Offloader, writer: StreamWriter) -> None:
    def add_later() -> None:
        writer.add([batch_of(5, 40, 10)])

    timer = threading.Timer(0.2, add_later)
    timer.start()
    done = offloader("read", "orders", "--from", "5:38", "--follow", "--limit", "7")
    timer.join()
    assert done.code == 0
    first, last = done.err.splitlines()
    assert first.startswith("note: stream orders: following offloaded entries only: up to 5:")
    assert last.startswith("note: newer entries appear after they are offloaded")
    assert done.out.splitlines() == lines_of(writer, 138, 145)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--raw", "--count"], "--raw excludes"),
        (["--follow", "--count"], "--follow excludes"),
        (["--follow", "--to", "5:1"], "--follow excludes"),
        (["--to", "5:1", "--until", "2033-01-01"], "exclude each other"),
    ],
)
def test_options_that_contradict_each_other_are_refused(offloader: Offloader, arguments: list[str], said: str) -> None:
    code, line, _ = offloader.refuses("read", "orders", *arguments)
    assert code == 2
    assert said in line
