"""The Arrow Flight door: where it listens, and how much comes in through it.

Owns the section `flight`. Must never hold a component or read a file, an environment variable or the network.
"""

from __future__ import annotations

from dataclasses import dataclass

from offloader.settings.fields import MIB, setting, text

__all__ = ["FlightSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlightSettings:
    """How brokers push and clients read through Arrow Flight."""

    listen: str = text("", "where Arrow Flight listens: 127.0.0.1:8815, :8815 for every address; empty: nowhere")
    ledgers: str = text("", "ledger database of the streams that are appended to through Flight; empty: they can't be")
    streams_max: int = setting(1000, "streams that are pushed or appended to through Flight", low=1, high=100_000)
    calls_max: int = setting(256, "calls at once, each of which has a thread or two", low=1, high=10_000)
    batch_bytes_max: int = setting(
        32 * MIB, "largest batch that is taken; how much a message may take is known only when it is there", low=1024,
        high=2**31 - 1,
    )  # fmt: skip
    window_bytes_max: int = setting(
        16 * MIB, "entries of a pushed stream that wait for a segment; more holds the broker back", low=1024, high=2**40
    )
    memory_bytes_max: int = setting(
        256 * MIB, "the same of all pushed streams; one that has nothing else may still push", low=1024, high=2**44
    )
    wait_seconds_max: float = setting(
        60.0, "longest a push waits for room; then it ends with an error, and the broker goes on later", low=0.01,
        high=3600,
    )  # fmt: skip
