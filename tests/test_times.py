"""Times in the forms that people write."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloader.errors import InvalidCallError
from offloader.times import is_relative, time_ms_of, time_text

#: 2013-07-04T12:00:00Z
NOW_MS = 1_372_939_200_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-02", 86_400_000),
        ("19700102", 86_400_000),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1970-01-01T00:00:00.0001", 1),  # rounded up: at this time or later
        ("1969-12-31T23:59:59.5Z", -500),
        ("1372939200000", 1_372_939_200_000),
        (" 42 ", 42),
        ("-42", -42),
        ("2013-07-04 12:00:00", 1_372_939_200_000),
    ],
)
def test_iso_times_utc_where_no_zone_is_given_and_milliseconds(text: str, expected: int) -> None:
    assert time_ms_of(text, option="--since", now_ms=NOW_MS) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("-1h", "2013-07-04T11:00:00.000Z"),
        ("-30m", "2013-07-04T11:30:00.000Z"),
        ("-1d", "2013-07-03T12:00:00.000Z"),
        ("-90s", "2013-07-04T11:58:30.000Z"),
        ("-1.5h", "2013-07-04T10:30:00.000Z"),
        ("-250ms", "2013-07-04T11:59:59.750Z"),
        ("-0s", "2013-07-04T12:00:00.000Z"),
        (" -1h ", "2013-07-04T11:00:00.000Z"),
    ],
)
def test_relative_time_counts_back_from_now(text: str, expected: str) -> None:
    assert time_text(time_ms_of(text, option="--since", now_ms=NOW_MS)) == expected
    assert is_relative(text)
    assert not any(map(is_relative, ("-42", "2013-07-04", " 5 ")))


def test_time_without_a_zone_is_utc_in_every_zone_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Pacific/Kiritimati")
    assert time_text(time_ms_of("2026-11-25", option="x", now_ms=NOW_MS)) == "2026-11-25T00:00:00.000Z"
    assert time_text(time_ms_of("2026-11-25T08:30", option="x", now_ms=NOW_MS)) == "2026-11-25T08:30:00.000Z"


@pytest.mark.parametrize(
    "text",
    ["", "now", "2013-13-01", "2013-07-04T25:00", "1e3", "9" * 19, "1.5", "1h", "+1h", "-1w", "-h", "- 1h", "--1h"],
)
def test_invalid_time_is_refused_naming_the_option(text: str) -> None:
    with pytest.raises(InvalidCallError, match=r"option since: .* is not a time") as caught:
        time_ms_of(text, option="option since", now_ms=NOW_MS)
    assert "2013-07-04T12:00:00Z" in caught.value.hint
    assert "-1h (an hour ago)" in caught.value.hint


@given(st.integers(-62_135_596_800_000, 253_402_300_799_999))
def test_written_time_is_read_back(time_ms: int) -> None:
    assert time_ms_of(time_text(time_ms), option="x", now_ms=NOW_MS) == time_ms


def test_times_outside_of_the_calendar_stay_numbers() -> None:
    assert time_text(2**62) == str(2**62)
    assert time_ms_of(time_text(10**17), option="x", now_ms=NOW_MS) == 10**17
