"""Counts the messages that not all subscribers have read."""

from __future__ import annotations

import logging
from collections.abc import Callable

from formats.entries import Position
from offloader.errors import OffloaderError
from offloader.ledgers.pulsar.topics import topic_of_stream
from offloader.retention.cuts import StreamCut, partition_segment
from offloader.retention.entries import StreamEntries
from offloader.retention.scope import Scope
from offloader.store.base import ObjectStore

#: Counts the messages of a stream's offloaded entries from a position on; ``None``: they have no numbers.
MessagesFrom = Callable[[ObjectStore, str, Position], int | None]

_log = logging.getLogger("offloader.retention")


def count_messages(
    store: ObjectStore, scope: Scope, own: StreamEntries, cut: StreamCut, messages_from: MessagesFrom | None
) -> int | None:
    """The messages of the offloaded entries from a cut on; ``None``: unknown.

    An error makes the count unknown. It is only shown: nothing is decided by it.
    """
    if messages_from is None:
        return None
    count = 0
    for number, partition in scope.partitions.items():
        if topic_of_stream(partition.stream) is None:
            return None
        first, committed = cut.offsets.get(partition_segment(number)), own.partitions[number].state.committed
        first = first if isinstance(first, Position) else Position(0, 0)
        if committed is None or first > committed:
            continue
        try:
            found = messages_from(store, partition.stream, first)
        except OffloaderError as error:
            _log.info("stream %s: its unread messages aren't counted: %s", partition.stream, error)
            return None
        if found is None:
            return None
        count += found
    return count
