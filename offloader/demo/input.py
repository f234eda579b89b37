"""The demo's input: opened, validated whole, and identified.

Owns the choice of input and the pass over it that comes before the first append. Must never write anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from offloader.demo.events import EventDigest, Events
from offloader.demo.files import EventFile
from offloader.demo.flights import Flights
from offloader.errors import InvalidCall

__all__ = ["InputSummary", "Source", "open_input", "survey"]


class Source(Protocol):
    """Something that gives the same events each time it is gone through.

    ``has_times``: whether events bring their own publish times (else they are published when they are appended).
    """

    @property
    def name(self) -> str: ...

    @property
    def has_times(self) -> bool: ...

    def events(self) -> Iterator[Events]: ...


@dataclass(frozen=True, slots=True)
class InputSummary:
    """What the first pass found. ``sha256`` identifies the input: other events, another digest."""

    name: str
    events: int
    payload_bytes: int
    sha256: str
    has_times: bool


def open_input(path: str, *, file_format: str = "", time_field: str = "") -> Source:
    """``path`` as events; the flights when it is empty.

    Raises:
        InvalidCall, NotFound, Unsupported: as ``EventFile`` and ``Flights``.
    """
    if path:
        return EventFile(path, file_format=file_format, time_field=time_field)
    if file_format or time_field:
        raise InvalidCall("--input-format and --time-field belong to --input FILE", hint="name the file")
    return Flights()


def survey(source: Source) -> InputSummary:
    """Goes through all of ``source`` once.

    Raises:
        InvalidCall: a broken line (named with its number), or no events at all.
    """
    digest = EventDigest(with_times=source.has_times)
    for events in source.events():
        digest.add(events)
    if digest.events == 0:
        raise InvalidCall(f"{source.name} holds no events", hint="nothing was imported")
    return InputSummary(source.name, digest.events, digest.payload_bytes, digest.hexdigest(), source.has_times)
