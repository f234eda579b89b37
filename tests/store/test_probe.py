"""Stores that ignore conditions now and then: the start-up probe finds them."""

from __future__ import annotations

import itertools
import os
import random
import re
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from offloader.errors import UnsupportedError
from offloader.store.base import OVERWRITE, PutMode
from offloader.store.open import open_store
from offloader.store.probe import probe_conditional_puts, require_conditional_puts
from offloader.store.wrappers import requests_of
from offloader.testing.faulty_store import FaultyStore
from offloader.testing.store_suite import all_keys
from tests.support.holding_proxy import HoldingProxy


class DroppingConditions(HoldingProxy):
    """Drops the condition of every ``nth`` conditional PUT before the server sees it."""

    def __init__(self, endpoint_url: str, nth: int) -> None:
        super().__init__(endpoint_url)
        self._turns = itertools.count(1)
        self._nth = nth

    def _sent(self, request: bytes) -> bytes:
        head, _, body = request.partition(b"\r\n\r\n")
        plain = re.sub(rb"(?i)\r\nif-(none-)?match: [^\r]*", b"", head)
        if request.startswith(b"PUT ") and plain != head and next(self._turns) % self._nth == 0:
            head = plain
        return super()._sent(head + b"\r\n\r\n" + body)


def test_store_ignoring_one_condition_in_twenty_is_refused_for_writing(servers: Any) -> None:
    place = servers.place("moto")  # it doesn't check signatures, which cover the conditions
    with DroppingConditions(place.endpoint.url, 20) as proxy:
        store = open_store(place.url, **{**place.options, "endpoint_url": proxy.url})
        assert probe_conditional_puts(store).problems != ()
        assert all_keys(store) == []
    with DroppingConditions(place.endpoint.url, 20) as proxy:
        store = open_store(place.url, **{**place.options, "endpoint_url": proxy.url})
        with pytest.raises(UnsupportedError, match="can't be written safely: of 90 creates"):
            require_conditional_puts(store)


class Moody(FaultyStore):
    """Ignores conditions of kinds that it is told, with a chance."""

    def __init__(self, seed: int, chance: float, kinds: str) -> None:
        super().__init__(open_store(f"memory://{uuid.uuid4().hex}"))
        self._random, self._chance, self._kinds = random.Random(seed), chance, kinds

    def put(self, key: str, body: Any, *, mode: PutMode = OVERWRITE, **more: Any) -> Any:
        kind = "create" if mode.create_only else "etag" if mode.etag else ""
        if kind and kind in self._kinds and self._random.random() < self._chance:
            mode = OVERWRITE
        return super().put(key, body, mode=mode, **more)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_probe_detects_intermittently_ignored_conditions(seed: int) -> None:
    assert not probe_conditional_puts(Moody(seed, 0.05, "create etag")).conditional


@pytest.mark.parametrize("kinds", ["create", "etag"])
def test_probe_detects_one_intermittently_ignored_condition(kinds: str) -> None:
    [problem] = probe_conditional_puts(Moody(1, 0.2, kinds), rounds=0).problems
    assert ("creates" in problem) is (kinds == "create")


def test_store_that_passed_is_asked_less_by_the_next_command_within_a_day(servers: Any, tmp_path: Path) -> None:
    place = servers.place("moto")
    asked = []
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "of-another-store").touch()
    for age_s in (0, 3600, 25 * 3600):
        for note in (tmp_path / "notes").glob("*"):
            os.utime(note, (time.time() - age_s,) * 2)
        store = open_store(place.url, **place.options)
        require_conditional_puts(store, notes=tmp_path / "notes")
        asked.append(sum(count.requests for count in requests_of(store).values()))
    assert asked[0] > 150
    assert asked[1] < 30
    assert asked[2] == asked[0]
    assert len(list((tmp_path / "notes").iterdir())) == 1, "old notes are removed"


def test_other_root_of_a_bucket_that_passed_is_asked_less(servers: Any, tmp_path: Path) -> None:
    """What keeps conditions is the server, whatever the root is."""
    place = servers.place("moto")
    asked = []
    for url in (place.url, f"{place.url}-beside"):
        store = open_store(url, **place.options)
        require_conditional_puts(store, notes=tmp_path / "notes")
        asked.append(sum(count.requests for count in requests_of(store).values()))
    assert asked[0] > 150
    assert asked[1] < 30
    assert len(list((tmp_path / "notes").iterdir())) == 1


def test_store_that_fails_the_probe_is_not_noted(servers: Any, tmp_path: Path) -> None:
    place = servers.place("moto")
    with DroppingConditions(place.endpoint.url, 20) as proxy:
        store = open_store(place.url, **{**place.options, "endpoint_url": proxy.url})
        with pytest.raises(UnsupportedError):
            require_conditional_puts(store, notes=tmp_path / "notes")
    assert list(tmp_path.rglob("*")) == []


def test_probe_does_not_need_its_notes(servers: Any, tmp_path: Path) -> None:
    place = servers.place("moto")
    (tmp_path / "notes").write_text("no folder")
    assert require_conditional_puts(open_store(place.url, **place.options), notes=tmp_path / "notes").conditional
