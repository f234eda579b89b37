"""A running process names a store whose identity isn't the one that it, or a hot tier, knows."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest

from formats.documents import STORE_IDENTITY_KEY
from offloader.errors import StoreUnavailableError
from offloader.ledgers.base import LedgerSource
from offloader.manifest.store_identity import identify
from offloader.runtime.clock import SystemClock
from offloader.service.bootstrap import assemble
from offloader.service.health import ask_store
from offloader.service.process import RecentErrors
from offloader.service.store_watch import StoreWatch
from offloader.settings.layered import SettingsFile
from offloader.store.memory import MemoryStore
from offloader.store.open import open_store
from offloader.testing.manual_clock import ManualClock
from tests.support.metrics import exposed

ONE, OTHER = UUID(int=1), UUID(int=2)
_names = itertools.count()


class Hot:
    """A hot tier that noted a store, or doesn't answer."""

    def __init__(self, store_id: UUID | None, *, answers: bool = True) -> None:
        self.store_id, self.answers, self.asked = store_id, answers, 0

    def note_manifest(self, incarnation: UUID, record_id: int) -> None: ...

    def noted_manifests(self) -> list[tuple[UUID, int]]:
        return []

    def noted_remedy(self) -> str:
        return ""

    def note_store(self, store_id: UUID) -> None:
        self.store_id = store_id

    def noted_store(self) -> UUID | None:
        self.asked += 1
        if not self.answers:
            raise StoreUnavailableError("no broker")
        return self.store_id


def watch_of(**hot: Hot) -> StoreWatch:
    sources = cast("Sequence[tuple[str, LedgerSource]]", list(hot.items()))
    return StoreWatch("s3://cold", lambda: sources, ManualClock())


def told(watch: StoreWatch) -> list[tuple[str, bool]]:
    watch.look()
    return [(each.what, each.blocks_ready) for each in watch.problems()]


def reading(watch: StoreWatch) -> dict[str, float]:
    return {each.name: each.value for each in watch.readings()}


def test_nothing_is_said_before_the_store_was_asked() -> None:
    watch = watch_of(a=Hot(ONE))
    assert (told(watch), reading(watch)) == ([], {})


def test_store_that_changes_under_a_process_blocks_readiness_until_it_is_back(caplog: pytest.LogCaptureFixture) -> None:
    watch = watch_of()
    watch.see(None)  # nothing was written there yet
    assert told(watch) == []
    watch.see(ONE)
    assert (told(watch), reading(watch)) == ([], {"store_identity_differs": 0.0})
    watch.see(OTHER)
    with caplog.at_level(logging.ERROR, "offloader"):
        assert told(watch) == told(watch) == [(f"its identity is {OTHER}, and {ONE} is known", True)]
    assert [each.__dict__["event"] for each in caplog.records] == ["store_identity_differs"]
    assert reading(watch) == {"store_identity_differs": 1.0}
    watch.see(ONE)
    assert (told(watch), reading(watch)) == ([], {"store_identity_differs": 0.0})


def test_emptied_store_is_named() -> None:
    watch = watch_of()
    watch.see(ONE)
    watch.see(None)
    assert told(watch) == [(f"its identity is gone, and {ONE} is known", False)]


def test_identity_of_a_new_store_that_was_noted_before_it_was_seen_is_no_difference() -> None:
    watch = watch_of(a=Hot(ONE))
    watch.see(None)
    assert told(watch) == told(watch) == []
    watch.see(ONE)
    assert told(watch) == []
    emptied = watch_of(a=Hot(ONE))
    emptied.see(None)
    assert told(emptied) == []
    emptied.see(None)
    assert told(emptied) == [(f"stream a: its identity is gone, and {ONE} is known to the hot tier", False)]


def test_streams_of_another_store_are_named_together_until_it_is_accepted() -> None:
    hot: dict[str, Hot] = {"a": Hot(ONE), "b": Hot(ONE), "c": Hot(OTHER), "d": Hot(None), "e": Hot(ONE, answers=False)}
    watch = watch_of(**hot)
    watch.see(OTHER)
    assert told(watch) == [(f"2 streams (a, b): its identity is {OTHER}, and {ONE} is known to the hot tier", False)]
    for each in hot.values():
        each.store_id = OTHER
    assert told(watch) == []
    asked = hot["a"].asked
    assert (told(watch), hot["a"].asked) == ([], asked)


def test_probe_of_the_store_takes_its_identity_with_one_request() -> None:
    store, seen = MemoryStore(f"watched-{next(_names)}", "", SystemClock()), list[Any]()
    ask_store(store, seen.append)
    created = identify(store)
    ask_store(store, seen.append)
    assert seen == [None, created]


def test_serving_process_names_another_store_in_its_readiness_and_metrics(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    settings = {"serve.store": f"file://{tmp_path}/store", "serve.maintenance": True}
    made = assemble(SettingsFile("test", {"": settings}), clock=SystemClock(), recent=RecentErrors())
    try:
        store = open_store(f"file://{tmp_path}/store")
        probe, [look] = made.process.probes[""], made.process.looks

        def shown() -> tuple[bool, list[str], float]:
            probe._check()
            look()
            problems = [each.what for each in made.view.readiness().problems if each.where.startswith("store ")]
            return made.view.readiness().ready, problems, exposed(made.metrics)["store_identity_differs"]

        first = identify(store)
        assert shown() == (True, [], 0.0)
        store.delete([STORE_IDENTITY_KEY])
        assert shown() == (True, [f"its identity is gone, and {first} is known"], 1.0)
        other = identify(store)
        assert shown() == (False, [f"its identity is {other}, and {first} is known"], 1.0)
    finally:
        made.process.stop()
