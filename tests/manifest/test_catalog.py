"""Entries of streams: what isn't created over what is left of a stream."""

from __future__ import annotations

from itertools import count
from uuid import UUID

import pytest

from formats.keys import catalog_key, stream_prefix
from offloader.manifest.boundary import LostRecordsError
from offloader.manifest.catalog import create_entry
from offloader.runtime.clock import SystemClock
from offloader.store.memory import MemoryStore
from tests.support.streams import StreamWriter, batch_of

_names = count()


def test_stream_is_not_created_over_segments_unless_that_is_said() -> None:
    store = MemoryStore(f"catalog-{next(_names)}", "", SystemClock())
    StreamWriter(store, "a/b").add([batch_of(1, 0, 10)])
    manifest = [info.key for info in store.list(f"{stream_prefix('a/b')}manifest/").objects]
    store.delete([catalog_key("a/b"), *manifest])
    with pytest.raises(LostRecordsError, match="neither a catalogue entry nor a manifest"):
        create_entry(store, "a/b", lambda: UUID(int=1), 0)
    entry, is_new = create_entry(store, "a/b", lambda: UUID(int=1), 0, over_segments=True)
    assert (entry.incarnation, is_new) == (UUID(int=1), True)
