"""Pages of entries of topics with hundreds of partitions: whole, in order, and in bounded memory."""

from __future__ import annotations

import json
import random

import pytest

from formats.keys import catalog_key
from offloader.errors import InvalidCallError
from offloader.service.http.schemas import CURSOR_CHARS_MAX, place_of, write_cursor
from offloader.service.view_documents import PARTITIONS_MAX, entry_page
from offloader.store.open import open_store

TOPIC = "shop/eu/persistent/clicks"
#: Ledger ids of a cluster that has been running for years.
LEDGER = 87_654_321


@pytest.mark.slow
def test_topic_of_more_partitions_than_a_cursor_holds_is_refused() -> None:
    store = open_store("memory://many-partitions")
    # Catalogue entries are all that tells how many there are; a listing shows names only.
    for number in range(PARTITIONS_MAX + 1):
        store.put(catalog_key(f"{TOPIC}-partition-{number}"), b"x")
    with pytest.raises(InvalidCallError, match=f"more than {PARTITIONS_MAX} partitions"):
        entry_page(store, TOPIC, lambda _: None, first=None, from_ms=None, to_ms=None, after="", limit=1)


def test_cursor_of_the_most_partitions_is_taken_back() -> None:
    generator = random.Random(1)
    places = [
        (number, LEDGER + generator.randrange(LEDGER), generator.randrange(50_000)) for number in range(PARTITIONS_MAX)
    ]
    place = json.dumps(list(zip(*places, strict=True)), separators=(",", ":"))
    cursor = write_cursor(place, "entries", TOPIC)
    assert cursor is not None
    assert len(cursor) <= CURSOR_CHARS_MAX
    assert place_of(cursor, "entries", TOPIC) == place
    for wrong in (cursor[:-40], f"{cursor[:200]}AAAA{cursor[204:]}"):
        with pytest.raises(InvalidCallError, match="not a cursor of this list"):
            place_of(wrong, "entries", TOPIC)
    with pytest.raises(InvalidCallError, match="not a cursor of this list"):
        place_of(cursor, "entries", "another")
