"""What a store charges: requests as the server counted them, at S3's list prices.

It doesn't take a client's word for how many there were.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping

import urllib3

__all__ = ["GET_USD", "PRICES_FROM", "PUT_USD", "Bill", "requests_counted", "uncharged_metrics"]

#: List prices of S3 Standard in us-east-1 for one request: PUT, COPY, POST and LIST; GET, HEAD and all others. Deleting
#: and aborting are free.
PUT_USD = 0.005 / 1000
GET_USD = 0.0004 / 1000
PRICES_FROM = "January 2025"

_COUNTS = re.compile(r'^minio_api_requests_total\{name="(\w+)".*type="s3"\} (\S+)$', re.MULTILINE)
_PUTS = re.compile(r"Put|Post|Copy|List|NewMultipartUpload|CompleteMultipartUpload")
_FREE = re.compile(r"Delete|Abort")
_TIMEOUT_S = 10.0


class Bill(dict[str, int]):
    """Requests by the name that the server gives them."""

    @property
    def puts(self) -> int:
        return sum(count for name, count in self.items() if _PUTS.match(name))

    @property
    def gets(self) -> int:
        return sum(count for name, count in self.items() if not _PUTS.match(name) and not _FREE.match(name))

    @property
    def usd(self) -> float:
        return self.puts * PUT_USD + self.gets * GET_USD

    def since(self, before: Mapping[str, int]) -> Bill:
        """What came after ``before`` was taken."""
        return Bill(Counter(self) - Counter(before))


def uncharged_metrics() -> None:
    """Lets a MinIO that this process starts say its counts without a key."""
    os.environ["MINIO_PROMETHEUS_AUTH_TYPE"] = "public"


def requests_counted(url: str) -> Bill:
    """All requests so far, from MinIO's own metrics."""
    answer = urllib3.request("GET", f"{url}/minio/metrics/v3/api/requests", timeout=_TIMEOUT_S)
    if answer.status != 200:
        raise RuntimeError(f"{url} doesn't say how many requests there were: status {answer.status}")
    return Bill({name: round(float(count)) for name, count in _COUNTS.findall(answer.data.decode())})
