"""How the object store is used: settings of calls, of readers and of what a process may use.

Owns the sections `store`, `read` and `limits`. Must never hold a component or
read a file, an environment variable or the network.
"""

from __future__ import annotations

from dataclasses import dataclass

from offloader.settings.fields import KIB, MIB, Pairs, choice, flag, pairs, setting, text

__all__ = ["LimitSettings", "ReadSettings", "StoreSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """Deadlines, retries and connections of an object store."""

    connect_timeout_s: float = setting(5.0, "time to connect", low=0.01, high=600)
    read_timeout_s: float = setting(30.0, "time without a byte until a call fails", low=0.01, high=3600)
    retries_max: int = setting(6, "attempts after the first one", low=0, high=100)
    retry_total_s: float = setting(60.0, "time after which no further attempt starts", low=0, high=24 * 3600)
    retry_delay_first_s: float = setting(0.1, "wait before the first retry; doubles, jittered", low=0, high=60)
    retry_delay_max_s: float = setting(10.0, "longest wait before a retry", low=0, high=600)
    connections_max: int = setting(32, "open connections", low=1, high=1024)
    single_writer: bool = flag(False, "write to a store without conditional puts: nobody else ever writes there")
    storage_class: str = text("", "S3 storage class of new objects of 128 KiB or more; empty: STANDARD")
    encryption: str = choice(
        "bucket",
        "S3 encryption asked for with each new object; bucket: its own",
        ("bucket", "AES256", "aws:kms", "aws:kms:dsse"),
    )
    kms_key: str = text("", "KMS key for aws:kms, an id or ARN; empty: the account's key for S3")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSettings:
    """How readers fetch."""

    read_priority: str = choice(
        "tiered-storage-first",
        "where entries are read that both tiers have",
        ("tiered-storage-first", "bookkeeper-first"),
    )
    request_bytes: int = setting(16 * MIB, "size of one ranged GET", low=4 * KIB, high=1024 * MIB)
    requests_in_flight_max: int = setting(4, "ranged GETs of one reader at once", low=1, high=64)
    cache_bytes_max: int = setting(64 * MIB, "decoded blocks kept for single reads", low=0, high=2**40)
    batch_bytes: int = setting(4 * MIB, "payload bytes of one batch of a scan", low=1, high=1024 * MIB)
    block_bytes_max: int = setting(256 * MIB, "largest block that is read", low=256, high=2**31 - 1)
    decompressed_bytes_max: int = setting(256 * MIB, "largest block after decompression", low=1, high=2**31 - 1)
    relocate: Pairs = pairs(  # noqa: RUF009 - a field, like the others
        "buckets (or folders) that were moved or restored elsewhere: old = new"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSettings:
    """Bandwidth and request rate of one process, live before reads before backfill before deletion; 0 = no limit."""

    bytes_per_s: float = setting(0.0, "bytes sent and received, all together", low=0, high=2**50)
    requests_per_s: float = setting(0.0, "requests, all together", low=0, high=1e6)
    burst_s: float = setting(1.0, "seconds of a rate that may be used at once", low=0.001, high=3600)
    turn_wait_s_max: float = setting(300.0, "wait for a turn after which a request fails", low=0.001, high=24 * 3600)
    turns_waiting_max: int = setting(10_000, "requests that wait for a turn", low=1, high=1_000_000)
    slowdown_factor: float = setting(
        0.5, "what is left of the request rate when the store asks to slow down", low=0.01, high=0.99
    )
    slowdown_requests_per_s_min: float = setting(1.0, "lowest rate after slowing down", low=0.01, high=1e6)
    recovery_requests_per_s: float = setting(
        5.0, "what the rate gains each second without another refusal", low=0.001, high=1e6
    )
