"""The provider of an embedded ledger database: its streams, its polling, its lock."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
from offloader.runtime.clock import SystemClock
from offloader.service.providers.embedded import EmbeddedProvider
from offloader.store.memory import MemoryStore
from tests.service.providers.test_embedded import file_of, stored
from tests.service.providers.test_embedded import store as store
from tests.support.readback import stored_entries
from tests.support.served import serving
from tests.support.waiting import eventually


@pytest.mark.slow
@pytest.mark.parametrize("method", ["streaming", "ledger"])
def test_other_database_is_refused_until_it_is_accepted(store: MemoryStore, tmp_path: Path, method: str) -> None:
    name = "a/b/orders"
    with closing(EmbeddedLedgers(str(tmp_path / "one.db"))) as one:
        first = one.open_stream(name)
        first.append([b"old"] * 10)
        first.close_ledger()
        with serving(store, file_of(offload__method=method), EmbeddedProvider(one.path, clock=SystemClock())):
            eventually(lambda: stored(store, name) == 10)
    with closing(EmbeddedLedgers(str(tmp_path / "two.db"))) as two:
        again = two.open_stream(name)
        again.append([b"new"] * 10)
        again.close_ledger()
        feed = EmbeddedProvider(two.path, clock=SystemClock())
        with serving(store, file_of(offload__method=method), feed) as assembled:
            eventually(lambda: any(each.where == f"stream {name}" for each in assembled.process.problems()))
            found = [each for each in assembled.process.problems() if each.where == f"stream {name}"]
            said = " ".join(f"{each.what} {each.hint}" for each in found)
        assert "isn't the one recorded in its manifest" in said
        assert "set-source" in said
        assert len(again.ledgers()) >= 1, "nothing was deleted"
    assert {entry for _, entry in stored_entries(store, name)} == {b"old"}
