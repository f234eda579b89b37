"""Number of messages in a range of entries: a producer of Pulsar may put several into one entry.

Brokers with the interceptor ``AppendIndexMetadataInterceptor`` (PIP-70) number the messages of a topic, and add to each
entry the number of its last one. The messages between two entries are counted by reading those two. Without these
numbers every entry would have to be read.
"""

from __future__ import annotations

from formats.entries import Position
from formats.errors import FormatError
from offloader.read.reader import Reader, open_stream_reader
from offloader.store.base import ObjectStore


def messages_from(store: ObjectStore, stream: str, first: Position) -> int | None:
    """The number of messages in the offloaded entries from ``first`` on.

    Args:
        first: an entry, or the position after the last one; deleted entries don't count.

    Returns:
        ``None``: the brokers didn't number them, or the entries aren't Pulsar's.

    Raises:
        As ``open_stream_reader`` and ``Reader.read``.
    """
    with open_stream_reader(store, stream) as reader:
        begin, last = reader.first_position, reader.last_position
        if begin is None or last is None or first > last:
            return 0
        numbers, newest = _numbers_at(reader, max(first, begin)), _numbers_at(reader, last)
    return newest.stop - numbers.start if numbers and newest else None


def _numbers_at(reader: Reader, position: Position) -> range:
    """The numbers of an entry's messages; empty: unknown."""
    from formats.pulsar.entry import decode_frame  # protobuf, which most readers don't need

    for entry in reader.read(position, position):
        try:
            frame = decode_frame(entry.payload)
        except FormatError:
            continue
        if frame.broker is not None and frame.broker.HasField("index"):
            stop = frame.broker.index + 1
            return range(stop - max(frame.metadata.num_messages_in_batch, 1), stop)
    return range(0)
