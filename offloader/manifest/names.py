"""Resolves a name given by a person or a program: a stream, a Pulsar topic, or a topic with partitions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from offloader.errors import CorruptError, InvalidCallError, UnsupportedError
from offloader.ledgers.pulsar.topics import stream_of_topic
from offloader.manifest.catalog import partition_streams, read_entry
from offloader.store.base import ObjectStore
from offloader.stream_names import matches, partition_of

#: Partitions named in an error.
NAMED_MAX = 4


@dataclass(frozen=True, slots=True)
class NamedStreams:
    """Result of resolving a name.

    Attributes:
        name: in the form of streams' names.
        partitions: number -> stream of each partition, ascending; empty: ``name`` is one stream.
    """

    name: str
    partitions: Mapping[int, str] = field(default_factory=dict)

    @property
    def streams(self) -> tuple[str, ...]:
        """All streams, in the order of their partitions."""
        return tuple(self.partitions.values()) or (self.name,)

    def require_one(self, why: str) -> str:
        """The one stream.

        Args:
            why: reason why a topic with partitions isn't accepted: "a position is of one".

        Raises:
            InvalidCallError: it is a topic with partitions, which the error lists.
        """
        if self.partitions:
            raise InvalidCallError(
                f"{self.name} has {len(self.partitions)} partitions, and {why}", hint=f"use {self.some()}"
            )
        return self.name

    def some(self) -> str:
        """The first few streams, as text."""
        more = f" or another of {len(self.streams)}" if len(self.streams) > NAMED_MAX else ""
        return " or ".join(self.streams[:NAMED_MAX]) + more


def stream_name(given: str) -> str:
    """``persistent://tenant/ns/topic`` -> ``tenant/ns/persistent/topic``; a name without ``://`` isn't changed.

    Raises:
        InvalidCallError: a URL that isn't a persistent topic's.
    """
    return stream_of_topic(given) if "://" in given else given


def searched_name(given: str) -> str:
    """Converts a search for a part of a topic's name, ``persistent://tenant/ns/top``, to a search in streams' names.

    Other text isn't changed.
    """
    rest = given.removeprefix("persistent://")
    levels = rest.split("/", 2)
    return rest if rest == given or len(levels) < 3 else f"{levels[0]}/{levels[1]}/persistent/{levels[2]}"


def resolve_name(given: str, existing: Collection[str]) -> NamedStreams:
    """Resolves a stream's or a topic's name among the streams that exist.

    A stream of exactly that name comes first: beside a stream ``x``, ``x-partition-0`` is a separate stream. A name
    without a match resolves to a stream that doesn't exist.

    Raises:
        InvalidCallError: as ``stream_name``.
    """
    name = stream_name(given)
    if name in existing:
        return NamedStreams(name)
    split = ((partition_of(stream), stream) for stream in existing)
    found = {of[1]: stream for of, stream in split if of is not None and of[0] == name}
    return NamedStreams(name, dict(sorted(found.items())))


def matching_streams(wanted: str, existing: Collection[str]) -> list[str]:
    """The existing streams of a name, as ``resolve_name``, or of a pattern with ``*`` and ``?``, sorted."""
    found = set(resolve_name(wanted, existing).streams) & set(existing)
    return sorted(found or {name for name in existing if matches(name, wanted)})


def named_streams(store: ObjectStore, given: str) -> NamedStreams:
    """As ``resolve_name``, among the streams of a store: one request for a stream, a listing for another name.

    A stream whose catalogue entry can't be read exists: an operation on it raises the error.

    Raises:
        InvalidCallError: no name of a stream or of a persistent topic.
    """
    name = stream_name(given)
    exists = True
    with suppress(CorruptError, UnsupportedError):
        exists = read_entry(store, name) is not None
    return resolve_name(name, [name] if exists else partition_streams(store, name).values())
