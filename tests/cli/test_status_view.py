"""How a status document looks on terminals of any size."""

from __future__ import annotations

from typing import Any

import pytest

from offloader.cli.output import rate_text
from offloader.cli.status import frame, head_lines, limit_lines
from tests.support.streams import BASE_MS

PREFIX = "public/default/persistent/"


def row(number: int = 0, **given: Any) -> dict[str, Any]:
    return {
        "stream": f"{PREFIX}orders-partition-{number}",
        "mode": "live",
        "committed": "7:99",
        "tail": "7:142",
        "lag": {"entries": 43, "bytes": 44_032, "seconds": 150.0},
        "buffer": {"bytes": 16 * 1024 * 1024, "bytes_max": 64 * 1024 * 1024},
        "segments": {"offloaded": 12, "failed": 1},
        "bytes_offloaded": 12 * 1024**3,
        "last_progress_ms": BASE_MS - 90_000,
        "stalled": None,
        "last_error": None,
        **given,
    }


def lines(rows: list[dict[str, Any]], width: int = 80, height: int | None = None, **process: Any) -> list[str]:
    document = {"written_ms": None, **process, "streams": rows}
    return [line.plain for line in frame(document, "status.json", BASE_MS, width=width, height=height)]


def test_stream_is_one_line_with_its_lag_at_80_columns() -> None:
    assert lines([row(0), row(1, mode="catch-up", lag={"entries": 0, "bytes": 0, "seconds": 0.0})]) == [
        "2 streams of public/default/persistent/: 1 catch-up, 1 live",
        "",
        "STREAM              MODE          LAG  ENTRIES     BYTES  BUFFER  PROGRESS",
        "orders-partition-0  live      2.5 min       43  43.0 KiB     25%  90 s ago",
        "orders-partition-1  catch-up        0        0       0 B     25%  90 s ago",
    ]


def test_a_wide_terminal_shows_positions_segments_and_what_was_offloaded_too() -> None:
    heading, shown = lines([row(0)], width=200)[2:]
    assert heading.split()[-4:] == ["COMMITTED", "TAIL", "OFFLOADED", "SEGMENTS"]
    assert shown.endswith("  90 s ago       7:99  7:142   12.0 GiB  12 offloaded, 1 failed")
    assert shown.startswith("public/default/persistent/orders-partition-0  live  ")


@pytest.mark.parametrize(("width", "is_shown"), [(80, False), (100, True), (200, True)])
def test_a_terminal_of_100_columns_shows_how_fast_each_stream_is_offloaded(width: int, is_shown: bool) -> None:
    name = "orders-of-a-shop-with-a-long-name"
    rows = [
        row(0, stream=f"{PREFIX}{name}-0", bytes_per_second=12_345_678.9),
        row(1, stream=f"{PREFIX}{name}-1", bytes_per_second=0.0),
        row(2, stream=f"{PREFIX}{name}-2", bytes_per_second=None),
    ]
    heading, *shown = lines(rows, width)[2:]
    assert ("RATE" in heading.split()) is is_shown
    for said, line in zip(("12.3 MB/s", " 0 MB/s", " - "), shown, strict=True):
        assert (said in line) is is_shown
    assert all(column in heading for column in ("MODE", "LAG", "ENTRIES", "BYTES", "BUFFER", "PROGRESS"))


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (0.0, "0 MB/s"),
        (1.0, "<0.01 MB/s"),
        (123_456.0, "0.12 MB/s"),
        (1_536_000.0, "1.5 MB/s"),
        (99_940_000.0, "99.9 MB/s"),
        (123_400_000.0, "123 MB/s"),
        (1_234_000_000.0, "1,234 MB/s"),
    ],
)
def test_rate_is_written_as_on_the_page(rate: float, text: str) -> None:
    assert rate_text(rate) == text


@pytest.mark.parametrize("width", [30, 40, 60, 80, 100, 120, 160, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    rows = [
        row(0),
        row(1, stream="a/much/longer/name/of/a/stream/that/somebody/made/up-one-day-in-november", lag=None),
        row(2, mode="stopped", last_error="it is owned by epoch 7 " * 9),
        row(3, mode=None, lag=None, buffer=None, last_progress_ms=None, tail=None),
        {"stream": "damaged", "segments": {}, "last_error": "the manifest is damaged"},
    ]
    shown = lines(rows, width)
    assert max(map(len, shown)) <= width
    assert any("…" in line for line in shown) or width > 100


def test_long_stream_names_are_shortened_at_the_front() -> None:
    shown = lines([row(7, stream="t/n/persistent/" + "long-" * 20 + "7")], width=60)
    assert shown[3].split()[0].startswith("…")
    assert shown[3].split()[0].endswith("long-7")


def test_problems_are_listed_below_the_table_with_the_name_once() -> None:
    trouble = f"stream {PREFIX}orders-partition-1: entries up to 7:142 wait"
    shown = lines([row(0), row(1, stalled=trouble, last_error="another")], width=100)
    assert shown[0] == "2 streams of public/default/persistent/: 2 live; 1 in trouble"
    assert shown[-2:] == ["", f"! {PREFIX}orders-partition-1: entries up to 7:142 wait"]


@pytest.mark.parametrize("height", [10, 24, 50])
def test_small_terminal_shows_troubled_streams_then_largest_lag(height: int) -> None:
    rows = [row(n, lag={"entries": n, "bytes": n, "seconds": float(n)}) for n in range(100)]
    rows[5]["stalled"] = f"stream {rows[5]['stream']}: " + "it waits " * 40
    rows[6]["last_error"] = "x " * 400
    shown = lines(rows, height=height)
    assert len(shown) <= height
    names = [line.split()[0] for line in shown if line.startswith("orders-")]
    assert names[:4] == [f"orders-partition-{n}" for n in (6, 5, 99, 98)][: len(names)]
    [more] = [line for line in shown if "more; name a stream" in line]
    assert more == f"... and {100 - len(names)} more; name a stream to see it"


def test_all_streams_are_shown_without_a_height_limit() -> None:
    shown = lines([row(n) for n in range(100)])
    assert len([line for line in shown if line.startswith("orders-")]) == 100


def test_unknown_facts_take_no_columns() -> None:
    unknown = {"mode": None, "lag": None, "buffer": None, "tail": None}
    shown = lines([row(0, **unknown), row(1, **unknown)])
    assert shown[2].split() == ["STREAM", "PROGRESS", "COMMITTED", "OFFLOADED", "SEGMENTS"]
    assert shown[3].split()[1:] == ["90", "s", "ago", "7:99", "12.0", "GiB", "12", "offloaded,", "1", "failed"]


def test_changed_limits_are_shown_beside_their_default() -> None:
    document = {"settings": {"offload": {"block_size": 4096}, "store": {"retries_max": 6}}}
    assert [line.plain for line in limit_lines(document, 40)] == [
        "offload.block_size = 4KiB (default 1MiB)",
        "  target size of a block",
        "store.retries_max = 6",
        "  maximum retries after the first",
        "  attempt",
    ]


def test_empty_status_prints_no_streams() -> None:
    assert lines([]) == ["no streams"]


def test_an_old_file_is_a_warning() -> None:
    document = {"written_ms": BASE_MS - 60_000, "pid": 7, "settings": {"telemetry": {"status_interval": 5.0}}}
    assert head_lines(document, "status.json", BASE_MS) == [
        (
            "status.json of process 7, written 60 s ago: OLD, expected every 5 s; the process may have stopped",
            True,
        )
    ]
    document["written_ms"] = BASE_MS - 15_000
    assert head_lines(document, "status.json", BASE_MS) == [("status.json of process 7, written 15 s ago", False)]
