"""Two processes that publish to one stream at once, against real stores: no acknowledged publish is lost."""

from __future__ import annotations

from typing import Any

import pytest

from tests.retention.test_subscribers_processes import race

pytestmark = pytest.mark.process


def test_two_processes_publish_at_once_over_a_real_server(s3_place: Any) -> None:
    race(s3_place.open(), s3_place.url, s3_place.options)
