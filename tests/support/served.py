"""A serving process in this process: over a store of the test's choice, with feeds that the test plays."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from offloader.runtime.clock import Clock, SystemClock
from offloader.service.bootstrap import Assembled, assemble
from offloader.service.process import RecentErrors
from offloader.service.streams import ProviderProblem, ServedStreams, StreamProvider
from offloader.settings.layered import FIELDS, SettingsFile
from offloader.store.base import ObjectStore
from tests.support.waiting import PATIENCE_S

__all__ = ["HeldFeed", "serving", "settings_file"]


def settings_file(*, topics: Mapping[str, Mapping[str, Any]] | None = None, **names: Any) -> SettingsFile:
    """Settings by ``section__name``, and of topics by theirs; small segments, and upkeep off, unless said otherwise."""
    values = {
        "offload.method": "streaming",
        "offload.block_size": 1024,
        "offload.segment_size_max": "16KiB",
        "offload.segment_age_max": "120ms",
        "offload.drain_timeout": PATIENCE_S,
        "serve.maintenance": False,
    }
    layers: dict[str, Mapping[str, Any]] = {"": _values({**values, **names})}
    for topic, given in (topics or {}).items():
        layers[f"topics.{topic}"] = _values(given)
    return SettingsFile("test.toml", layers)


def _values(given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by ``section__name``; amounts may be texts, as in a file."""
    found = {name.replace("__", "."): value for name, value in given.items()}
    defaults: dict[str, Any] = {name: FIELDS[name].default for name in found}
    return {name: type(defaults[name])(value) if isinstance(value, str) else value for name, value in found.items()}


class HeldFeed:
    """A feed that does what the test says through ``streams``.

    Attributes:
        streams: of the process, once it is started.
        failing: what its next starts raise, one each.
        heard: what was called, in order.
    """

    def __init__(self, name: str = "held", failing: Sequence[Exception] = ()) -> None:
        self.name = name
        self.streams: ServedStreams | None = None
        self.failing = list(failing)
        self.heard: list[str] = []
        self.wrong: list[ProviderProblem] = []

    def start(self, streams: ServedStreams) -> None:
        self.heard.append("start")
        if self.failing:
            raise self.failing.pop(0)
        self.streams = streams

    def stop(self, within_s: float) -> None:
        self.heard.append("stop")

    def close(self) -> None:
        self.heard.append("close")

    def problems(self) -> Sequence[ProviderProblem]:
        return self.wrong


@contextmanager
def serving(
    store: ObjectStore | None,
    file: SettingsFile,
    *feeds: StreamProvider,
    clock: Clock | None = None,
    started: bool = True,
) -> Iterator[Assembled]:
    """A process with these feeds and nothing else, stopped without draining at the end.

    Args:
        store: instead of the settings' ``serve.store``; it isn't measured.
    """
    recent = RecentErrors()
    logger = logging.getLogger("offloader")
    logger.addHandler(recent)
    assembled = assemble(file, clock=clock or SystemClock(), recent=recent, store=store, feeds=lambda _: feeds)
    try:
        if started:
            assembled.process.start()
        yield assembled
    finally:
        assembled.process.stop(drain=False)
        logger.removeHandler(recent)
