"""Resolves a name given by a person or a program: a stream, a Pulsar topic, or a topic with partitions or segments."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from formats.topic_layout import TopicLayout
from offloader.errors import CorruptError, InvalidCallError, UnsupportedError
from offloader.ledgers.pulsar.scalable import TOPIC_SCHEME, place_of_topic
from offloader.ledgers.pulsar.topics import stream_of_topic
from offloader.manifest.catalog import partition_streams, read_entry, segment_streams
from offloader.manifest.topic_layouts import in_order, read_layout
from offloader.store.base import ObjectStore
from offloader.stream_names import is_place, matches, partition_of

#: Partitions named in an error.
NAMED_MAX = 4


@dataclass(frozen=True, slots=True)
class NamedStreams:
    """Result of resolving a name.

    Attributes:
        name: in the form of streams' names.
        partitions: number -> stream of each partition, ascending; of a scalable topic, id -> stream of each segment
            that the store has, parents first. Empty: ``name`` is one stream.
        layout: of a scalable topic.
    """

    name: str
    partitions: Mapping[int, str] = field(default_factory=dict)
    layout: TopicLayout | None = None

    @property
    def streams(self) -> tuple[str, ...]:
        """All streams, in the order of their partitions."""
        return tuple(self.partitions.values()) or (() if self.layout is not None else (self.name,))

    def require_one(self, why: str) -> str:
        """The one stream.

        Args:
            why: reason why a topic with partitions isn't accepted: "a position is of one".

        Raises:
            InvalidCallError: it is a topic with partitions, which the error lists.
        """
        if self.partitions or self.layout is not None:
            raise InvalidCallError(
                f"{self.name} has {len(self.partitions)} {self.kind}s, and {why}", hint=f"use {self.some()}"
            )
        return self.name

    @property
    def kind(self) -> str:
        """What one of ``partitions`` is called."""
        return "partition" if self.layout is None else "segment"

    def some(self) -> str:
        """The first few streams, as text."""
        more = f" or another of {len(self.streams)}" if len(self.streams) > NAMED_MAX else ""
        return " or ".join(self.streams[:NAMED_MAX]) + more


def stream_name(given: str) -> str:
    """``persistent://tenant/ns/topic`` -> ``tenant/ns/persistent/topic``; a name without ``://`` isn't changed.

    A scalable topic ``topic://tenant/ns/topic`` has the name of its documents, ``tenant/ns/topic/topic``.

    Raises:
        InvalidCallError: a URL that isn't a topic's.
    """
    if given.startswith(TOPIC_SCHEME):
        return place_of_topic(given)
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
    return NamedStreams(name) if exists else parts_of(store, name)


def parts_of(store: ObjectStore, name: str) -> NamedStreams:
    """The partitions or segments of a topic, given the name of a stream that doesn't exist; a listing.

    Raises:
        CorruptError, UnsupportedError: the layout of a scalable topic can't be read.
    """
    if (layout := read_layout(store, name) if is_place(name) else None) is None:
        return resolve_name(name, partition_streams(store, name).values())
    there = {*segment_streams(store, name)}
    with suppress(CorruptError, UnsupportedError):
        there |= {row.stream for row in layout.segments if row.is_legacy and read_entry(store, row.stream) is not None}
    ordered = (row for group in in_order(layout) for row in group)
    return NamedStreams(name, {row.id: row.stream for row in ordered if row.stream in there}, layout)
