"""A topic with partitions over one ledger database: entries with a key go where a Pulsar producer would send them.

Pulsar's producers choose the partition ``hash(key) mod partitions`` (``MessageRouter`` of its clients). The hash is a
setting of the producer: ``java`` (``HashingScheme.JavaStringHash``, the default of the Java client) or ``murmur3``
(``Murmur3_32Hash``, offered by all clients). Entries of one key are in one partition and keep their order. Entries of
different partitions have no order among each other. A call that appends to several is atomic in each of them only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np

from formats.entries import EntryBatch, Position
from offloader.errors import InvalidCallError
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
from offloader.managed_ledger import ManagedLedger, open_managed_ledger
from offloader.manifest.catalog import PARTITIONS_MAX, partition_streams
from offloader.manifest.names import stream_name
from offloader.runtime.clock import Clock, SystemClock
from offloader.settings import Settings
from offloader.settings.layered import settings_for
from offloader.store.base import ObjectStore, require_open_store
from offloader.stream_names import partition_of
from offloader.write.offloader import LedgerOffloader

Hashing = Literal["java", "murmur3"]


def java_string_hash(key: str) -> int:
    """Java's ``String.hashCode`` without its sign, as in Pulsar's ``JavaStringHash``: 0 .. 2**31 - 1."""
    units = np.frombuffer(key.encode("utf-16-le", "surrogatepass"), "<u2").tolist()
    value = 0
    for unit in units:
        value = (31 * value + unit) & 0xFFFFFFFF
    return value & 0x7FFFFFFF


def murmur3_hash(key: str) -> int:
    """MurmurHash3 (x86, 32 bits, seed 0) of the UTF-8 bytes without its sign, as in Pulsar's ``Murmur3_32Hash``."""
    data = key.encode(errors="replace")
    value = 0
    for start in range(0, len(data) - 3, 4):
        value = _rotated(value ^ _mixed(int.from_bytes(data[start : start + 4], "little")), 13)
        value = (value * 5 + 0xE6546B64) & 0xFFFFFFFF
    value ^= _mixed(int.from_bytes(data[len(data) & ~3 :], "little")) ^ len(data)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        value = ((value ^ (value >> shift)) * factor) & 0xFFFFFFFF
    return (value ^ (value >> 16)) & 0x7FFFFFFF


def _rotated(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (32 - bits))) & 0xFFFFFFFF


def _mixed(block: int) -> int:
    return (_rotated((block * 0xCC9E2D51) & 0xFFFFFFFF, 15) * 0x1B873593) & 0xFFFFFFFF


_HASHES: Mapping[Hashing, Callable[[str], int]] = {"java": java_string_hash, "murmur3": murmur3_hash}


def open_partitioned_ledger(
    topic: str,
    partitions: int,
    *,
    ledgers: str | EmbeddedLedgers,
    store: ObjectStore,
    hashing: Hashing = "java",
    settings: Settings | str | Path | None = None,
    clock: Clock | None = None,
) -> PartitionedLedger:
    """Open all partitions of a topic for appends, each as ``open_managed_ledger`` does.

    Args:
        topic: its name, without ``-partition-N``. Its settings are those of all partitions, which share the memory of
            one offloader.
        partitions: how many it has. More than before is allowed, as in Pulsar: later entries of a key may then go to
            another partition than its earlier ones.
        ledgers: one database for all partitions.
        hashing: the hash of a key.
        settings: see ``open_managed_ledger``.
        clock: for tests.

    Raises:
        InvalidCallError: fewer partitions than the store or the database has of this topic, or more than
            ``PARTITIONS_MAX``; an unknown hash. Others as ``open_managed_ledger``.
    """
    require_open_store(store)
    topic = stream_name(topic)
    if hashing not in _HASHES:
        raise InvalidCallError(f"topic {topic}: unknown hash {hashing!r}", hint=f"use one of {', '.join(_HASHES)}")
    _require_enough(topic, partitions, max(partition_streams(store, topic), default=-1) + 1, "the store")
    clock, settings = clock or SystemClock(), settings_for(topic, settings)
    with ExitStack() as opened:
        if isinstance(ledgers, str):
            ledgers = EmbeddedLedgers(ledgers, settings=settings.ledgers, clock=clock)
            opened.callback(ledgers.close)
        split = filter(None, map(partition_of, ledgers.streams()))
        known = max((number for name, number in split if name == topic), default=-1) + 1
        _require_enough(topic, partitions, known, "the ledger database")  # also of a topic that isn't offloaded
        offloader = LedgerOffloader(store, settings, clock=clock, observe=True)
        opened.callback(offloader.close)
        how: Any = {"ledgers": ledgers, "store": store, "settings": settings, "clock": clock, "offloader": offloader}
        made = [
            opened.enter_context(open_managed_ledger(f"{topic}-partition-{number}", **how))
            for number in range(partitions)
        ]
        return PartitionedLedger(topic, made, _HASHES[hashing], opened.pop_all())


def _require_enough(topic: str, partitions: int, known: int, where: str) -> None:
    if not max(known, 1) <= partitions <= PARTITIONS_MAX:
        raise InvalidCallError(
            f"topic {topic}: {partitions} partitions, but {where} has {known}",
            hint=f"give {max(known, 1)} to {PARTITIONS_MAX}: entries of one key would lose their order in fewer",
        )


class PartitionedLedger:
    """A topic with partitions in both tiers. Thread-safe. Close it, or use it as a context.

    Attributes:
        topic: its name.
        partitions: one managed ledger for each, by number.
    """

    def __init__(
        self, topic: str, partitions: Sequence[ManagedLedger], hashed: Callable[[str], int], resources: ExitStack
    ) -> None:
        self.topic, self.partitions = topic, tuple(partitions)
        self._hashed, self._resources = hashed, resources

    def partition_of(self, key: str) -> int:
        """The number of the partition that has the entries of a key."""
        return self._hashed(key) % len(self.partitions)

    def append(self, payload: bytes, key: str, publish_time_ms: int | None = None) -> tuple[int, Position]:
        """Append one entry to the partition of its key; it is durable in the hot tier on return.

        Returns:
            The partition's number, and the position in it.

        Raises: as ``ManagedLedger.append_batch``.
        """
        number = self.partition_of(key)
        return number, self.partitions[number].append(payload, publish_time_ms)

    def append_batch(
        self, payloads: Sequence[bytes], keys: Sequence[str], publish_time_ms: int | None = None
    ) -> dict[int, list[EntryBatch]]:
        """Append entries, each to the partition of its key: all or none in each partition.

        Entries of one key keep their order. If a partition refuses its entries, those of partitions with a lower number
        are appended, and the error has a note that names them.

        Args:
            publish_time_ms: of all, ms since 1970 UTC; default now.

        Returns:
            The partition's number -> its batches.

        Raises:
            InvalidCallError: not one key for each payload. Others as ``ManagedLedger.append_batch``.
        """
        if len(payloads) != len(keys):
            raise InvalidCallError(f"topic {self.topic}: {len(payloads)} entries and {len(keys)} keys")
        numbers = {key: self.partition_of(key) for key in set(keys)}
        shares: dict[int, list[bytes]] = {}
        for payload, key in zip(payloads, keys, strict=True):
            shares.setdefault(numbers[key], []).append(payload)
        done: dict[int, list[EntryBatch]] = {}
        for number, share in sorted(shares.items()):
            try:
                done[number] = self.partitions[number].append_batch(share, publish_time_ms)
            except BaseException as error:
                error.add_note(f"appended in this call: the entries of partitions {sorted(done) or 'none'}")
                raise
        return done

    def offload(self, *, timeout_s: float | None = None) -> dict[int, Position | None]:
        """Offload everything appended so far, and wait; raises as ``ManagedLedger.offload``.

        Returns:
            The partition's number -> its committed end.
        """
        return {number: each.offload(timeout_s=timeout_s) for number, each in enumerate(self.partitions)}

    def close(self) -> None:
        """Close all partitions, and the database if this opened it; raises as ``ManagedLedger.close``."""
        self._resources.close()

    def __enter__(self) -> PartitionedLedger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._resources.__exit__(kind, error, trace)  # after an error, no partition waits for its last segment
