"""The serving process: settings of what it serves and how it lives.

Owns the section `serve`. Must never hold a component or read a file, an environment variable or the network.
"""

from __future__ import annotations

from dataclasses import dataclass

from offloader.settings.fields import choice, flag, setting, text, texts

__all__ = ["ServeSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """What `offloader serve` serves, and how it lives."""

    store: str = text("", "URL of the object store, s3://BUCKET/ROOT or file:///FOLDER")
    endpoint_url: str = text("", "where the S3 API is, when it isn't AWS")
    region: str = text("", "the store's region")
    url: str = text("", "where others reach this process over HTTP; empty: as it listens")
    ledgers: str = text("", "database of embedded ledgers whose streams are offloaded, sqlite:///FILE; empty: none")
    streams: tuple[str, ...] = texts("streams of that database, with * and ? for any letters; empty: all")
    follow_seconds: float = setting(1.0, "time between two looks at that database", low=0.01, high=3600)
    streams_max: int = setting(10_000, "streams that are offloaded at once", low=1, high=1_000_000)
    upkeep: bool = flag(True, "run retention, cleanup and the search for orphans")
    restart_seconds_max: float = setting(
        600.0, "longest wait before a stream that stopped on an error is started again", low=1, high=24 * 3600
    )
    stop_seconds_max: float = setting(30.0, "time to end in after the last segments are complete", low=1, high=3600)
    log_level: str = choice("info", "lowest level that is logged", ("debug", "info", "warning", "error"))
    log_format: str = choice("json", "JSON lines, or lines for people", ("json", "plain"))
