"""Times in S3's responses: the fast parser equals the SDK's."""

from __future__ import annotations

import pytest
from botocore.utils import parse_timestamp

from offloader.store.s3_responses import parsed_time, time_ms

TEXTS = [
    "2026-11-21T16:58:05.123Z",
    "2026-11-21T16:58:05Z",
    "2026-11-21T16:58:05.123456+02:00",
    "2026-11-21T16:58:05",
    "20261121T165805Z",
    "Sat, 21 Nov 2026 16:58:05 GMT",
    "1763744285.5",
    1763744285,
    "2024-02-29T23:59:59.999Z",
]


@pytest.mark.parametrize("text", TEXTS, ids=str)
def test_listing_time_equals_that_of_the_sdk(text: object) -> None:
    assert time_ms(parsed_time(text, parse_timestamp)) == time_ms(parse_timestamp(text))


def test_invalid_time_is_parsed_by_the_sdk() -> None:
    with pytest.raises(ValueError, match="yesterday"):
        parsed_time("yesterday", parse_timestamp)


def test_listing_time_is_parsed_without_the_sdk() -> None:
    def never(text: object) -> None:
        raise AssertionError(text)

    assert time_ms(parsed_time("2026-11-21T16:58:05.123Z", never)) == 1795280285123  # type: ignore[arg-type]
