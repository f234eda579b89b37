"""How entries become ledgers and segments: settings of the write side.

Owns the sections `offload` and `ledgers`. Must never hold a component or
read a file, an environment variable or the network.
"""

from __future__ import annotations

from dataclasses import dataclass

from offloader.settings.fields import KIB, MIB, choice, flag, setting

__all__ = ["LedgerSettings", "OffloadSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadSettings:
    """How entries become segments (spec: PIP-76; names from the proposal where it has one)."""

    block_bytes: int = setting(MIB, "target size of a block", low=256, high=1024 * MIB)
    part_bytes: int = setting(
        16 * MIB, "size of an uploaded part; a segment below it is a single PUT", low=5 * MIB, high=5 * 1024 * MIB
    )
    parts_in_flight_max: int = setting(4, "parts of one segment uploaded at once", low=1, high=64)
    max_size_per_offload_segment_mbytes: float = setting(
        1024.0, "a segment closes at this size", low=0.001, high=5 * 1024 * 1024
    )
    max_offload_segment_rollover_time_minutes: float = setting(
        10.0, "a segment closes at this age, counted from its first entry", low=0.0001, high=365 * 24 * 60
    )
    offload_buffer_bytes_max: int = setting(64 * MIB, "bytes buffered for one stream", low=64 * KIB, high=2**40)
    offload_memory_bytes_max: int = setting(
        512 * MIB, "bytes buffered for all streams of a process", low=64 * KIB, high=2**44
    )
    entry_bytes_max: int = setting(64 * MIB, "largest entry that is taken", low=1, high=2**31 - 1)
    codec: str = choice("none", "compression of blocks", ("none", "zstd"))
    method: str = choice(
        "streaming", "streaming (PIP-76), ledger (a closed ledger an object) or none", ("streaming", "ledger", "none")
    )
    offload_threshold_bytes: int = setting(
        0,
        "method ledger: bytes not yet offloaded above which the oldest ledgers go; 0: as soon as closed, -1: off",
        low=-1,
        high=2**60,
    )
    offload_threshold_seconds: int = setting(
        -1, "method ledger: age at which a closed ledger goes; 0: as soon as closed, -1: off", low=-1, high=2**31
    )
    backfill_segments_in_flight_max: int = setting(
        4, "segments of history uploaded at once, of a stream and of a process", low=1, high=64
    )
    deletion_lag_minutes: float = setting(
        240.0,
        "time after which the hot copy of an offloaded ledger is deleted; -1: never",
        low=-1,
        high=10 * 365 * 24 * 60,
    )
    release_with_gaps: bool = flag(
        False, "whether the hot copy of a ledger also goes when entries of it were lost or are unconfirmed"
    )
    tail_cache_bytes_max: int = setting(
        8 * MIB, "newest entries kept in memory for a stream that catches up", low=0, high=2**40
    )
    drain_seconds_max: float = setting(300.0, "wait for the last segment when closing", low=0, high=24 * 3600)
    retry_seconds_max: float = setting(30.0, "longest wait before a failed segment is tried again", low=0.01, high=3600)
    takeover_after_seconds: float = setting(
        60.0, "silence after which a stream may be taken from its owner without being told to", low=0.01, high=24 * 3600
    )
    on_gap: str = choice(
        "block",
        "what to do when the hot tier lost entries before they were offloaded: block, or record the gap and go on",
        ("block", "record"),
    )
    workers_max: int = setting(8, "threads that encode and upload, whole process", low=1, high=256)


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerSettings:
    """When the embedded ledger store closes a ledger and opens the next."""

    ledger_bytes_max: int = setting(256 * MIB, "a ledger closes at this size", low=1, high=2**50)
    ledger_entries_max: int = setting(1_000_000, "a ledger closes at this many entries", low=1, high=2**40)
    ledger_age_minutes_max: float = setting(
        60.0, "a ledger closes at this age, at the next append", low=0.0001, high=365 * 24 * 60
    )
