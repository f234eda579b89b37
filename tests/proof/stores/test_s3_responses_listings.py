"""Listings with pages without keys: such a page isn't the end unless it says so."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

import pytest

from tests.store.test_s3_responses_listings import Query, _azure_page, _open, paging_server


def _many_blobs(names: Sequence[str], query: Query, blobs_max: int) -> bytes:
    """As many blobs as the query asks for, but at most ``blobs_max``, as the service pages them."""
    begin, count = int(query.get("marker", 0)), min(int(query["maxresults"]), blobs_max)
    pages = [names[begin : begin + count], *([()] if begin + count < len(names) else [])]
    answer = _azure_page(pages, {})
    asked = f"<Prefix>{query['prefix']}</Prefix><MaxResults>{query['maxresults']}</MaxResults><Blobs>"
    return answer.replace(b"<Blobs>", asked.encode()).replace(
        b"<NextMarker>1<", f"<NextMarker>{begin + count}<".encode()
    )


@pytest.mark.parametrize("limit", [1, 7, 200])
def test_azure_listing_that_begins_behind_many_blobs_takes_few_requests(limit: int) -> None:
    names = [f"root/m/{number:020d}" for number in range(1005)]
    asked: list[Query] = []

    def page(query: Query) -> bytes:
        asked.append(query)
        return _many_blobs(names, query, 300)

    with paging_server(page) as url, closing(_open("az", url)) as store:
        found: list[str] = []
        after: str | None = f"m/{595:020d}"
        requests: list[int] = []
        while after is not None and len(requests) < 5:
            before = len(asked)
            answer = store.list("m/", after=after, limit=limit)
            requests.append(len(asked) - before)
            found += [info.key for info in answer.objects]
            after = answer.next_after
        assert found == [f"m/{number:020d}" for number in range(596, min(596 + 5 * limit, 1005))]
        assert max(requests) <= 4, requests
