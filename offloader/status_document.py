"""The status document: what every stream of a process is doing, as JSON, and the file that holds it.

Owns the document's fields and its reading and writing. Must never be needed for correctness: it is a report.

``{"version": 1, "written_ms", "software", "pid", "store", "limits", "settings", "streams": [...]}``. Times are ms since
1970 UTC, positions ``"ledger:entry"``. What isn't known is ``null``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from formats.entries import Position
from offloader.errors import AccessDenied, Corrupt, NotFound
from offloader.limits import LimitStatus
from offloader.manifest.state import ManifestState
from offloader.settings import Settings
from offloader.store.attempts import open_requests_of
from offloader.store.base import ObjectStore
from offloader.watchdog import Stall
from offloader.write.stream.progress import Lag
from offloader.write.stream.status import Mode, StreamStatus

__all__ = [
    "VERSION",
    "idle_document",
    "manifest_document",
    "process_document",
    "read_status_file",
    "store_document",
    "stream_document",
    "with_manifest",
    "write_status_file",
]

VERSION = 1
_WHERE = "name the file that telemetry.status_file of the writing process names"
#: Ten thousand streams take about seven MiB.
STATUS_FILE_BYTES_MAX = 256 * 1024 * 1024


def stream_document(stream: str, status: StreamStatus, lag: Lag | None, stall: Stall | None) -> dict[str, Any]:
    """What one stream is doing in this process; ``lag`` is ``None`` when its source couldn't be asked."""
    return {
        "stream": stream,
        "source": "process",
        "mode": status.mode.value,
        "tail": _position(status.tail),
        "offered": _position(status.offered),
        "committed": _position(status.committed),
        "lag": None if lag is None else {"entries": lag.entries, "bytes": lag.payload_bytes, "seconds": lag.seconds},
        "buffer": {"bytes": status.buffer_bytes, "bytes_max": status.buffer_bytes_max},
        "segments": {"offloaded": status.segments_committed, "failed": status.segments_failed},
        "entries_offloaded": status.entries_committed,
        "bytes_offloaded": status.bytes_committed,
        "offers_refused": status.offers_refused,
        "gaps_recorded": status.gaps_recorded,
        # A stream that was told to stop has no trouble.
        "last_error": None if status.was_closed else status.error or None,
        "last_progress_ms": status.last_progress_ms,
        "stalled": None if stall is None else stall.reason,
    }


def idle_document(stream: str, mode: str, *, error: str | None) -> dict[str, Any]:
    """A stream of this process that isn't offloaded while it is written: ``mode`` is ``standby``, ``ledger``, ``none``
    or ``starting``. What the process doesn't know of it is ``null``, or in the manifest."""
    return {
        "stream": stream,
        "source": "process",
        "mode": mode,
        "tail": None,
        "offered": None,
        "committed": None,
        "lag": None,
        "buffer": None,
        "segments": {"offloaded": None, "failed": 0},
        "entries_offloaded": None,
        "bytes_offloaded": None,
        "offers_refused": None,
        "gaps_recorded": None,
        "last_error": error,
        "last_progress_ms": None,
        "stalled": None,
    }


def manifest_document(state: ManifestState) -> dict[str, Any]:
    """What the manifest alone says of a stream: true whatever runs where, but it knows no hot tier and no buffer."""
    totals = state.totals()
    assigned = len(state.assigned())
    newest = max((record.offloaded_ms or 0 for record in state.offloaded()[-1:]), default=None)
    return {
        "stream": state.stream,
        "source": "manifest",
        "mode": "deleted" if state.stream_deleted else "paused" if state.paused else None,
        "method": state.method,
        "tail": None,
        "offered": None,
        "committed": _position(state.committed_end()),
        "lag": None,
        "buffer": None,
        "segments": {
            "assigned": assigned,
            "offloaded": totals.segments,
            "retired": len(state.segments) - assigned - totals.segments,
        },
        "entries_offloaded": totals.entries,
        "bytes_offloaded": totals.payload_bytes,
        "gaps": len(state.gaps),
        "offers_refused": None,
        "last_error": None,
        "last_progress_ms": newest,
        "stalled": None,
        "epoch": state.epoch,
        "writer": state.writer.name,
        "record": state.record_id,
        "recorded_ms": state.time_ms or None,
    }


def with_manifest(process: Mapping[str, Any], manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Both of one stream: segments, entries, bytes and the committed end as the manifest has them (they outlive
    processes), the rest from the process that writes."""
    merged = {**manifest, **process, "source": "process and manifest"}
    merged["segments"] = {**manifest["segments"], "failed": process["segments"]["failed"]}
    if manifest["mode"] == "paused" and process["mode"] != Mode.STOPPED.value:
        merged["mode"] = "paused"  # the process notices with its next commit, or when there is something to offload
    merged["last_progress_ms"] = process["last_progress_ms"] or manifest["last_progress_ms"]
    for name in ("committed", "entries_offloaded", "bytes_offloaded"):
        merged[name] = manifest[name]
    return merged


def store_document(store: ObjectStore, settings: Settings, problems: Sequence[str]) -> dict[str, Any]:
    """Where the streams of a process go, what may not be relied on there, and whether it answers.

    Args:
        problems: promises that the store was found not to keep; it is written to all the same where
            ``store.single_writer`` is set.
    """
    requests = open_requests_of(store)
    return {
        "url": store.url,
        "single_writer": settings.store.single_writer,
        "problems": list(problems),
        "open_requests": len(requests),
        "oldest_request": asdict(requests[0]) if requests else None,
    }


def process_document(
    streams: Sequence[Mapping[str, Any]],
    *,
    settings: Settings,
    limits: LimitStatus | None,
    store: Mapping[str, Any] | None,
    now_ms: int,
) -> dict[str, Any]:
    """The document of a process: its streams, its store, its limits and what they do at the moment."""
    from offloader import __version__

    return {
        "version": VERSION,
        "written_ms": now_ms,
        "software": __version__,
        "pid": os.getpid(),
        "store": store,
        "limits": None if limits is None else asdict(limits),
        "settings": asdict(settings),
        "streams": list(streams),
    }


def write_status_file(path: Path, document: Mapping[str, Any]) -> None:
    """Replaces the file at once: a reader sees the old document or the new one.

    Raises:
        AccessDenied: the folder isn't there or can't be written.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(json.dumps(document, ensure_ascii=False) + "\n", encoding="utf-8")
        beside.replace(path)
    except OSError as cause:
        raise AccessDenied(
            f"the status file {path} can't be written: {cause.strerror}", hint="see telemetry.status_file"
        ) from cause


def read_status_file(path: Path) -> dict[str, Any]:
    """The document that a process wrote last; its ``written_ms`` says when.

    Raises:
        NotFound: there is none (yet).
        AccessDenied: it can't be read.
        Corrupt: it isn't a status document.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(STATUS_FILE_BYTES_MAX + 1)
    except FileNotFoundError as cause:
        raise NotFound(
            f"there is no status file {path}", hint="the writing process makes it: set telemetry.status_file there"
        ) from cause
    except OSError as cause:
        raise AccessDenied(f"the status file {path} can't be read: {cause.strerror}") from cause
    try:
        document: Any = json.loads(raw)
    except (ValueError, RecursionError) as cause:
        raise Corrupt(f"{path} isn't a status document: {cause}", hint=_WHERE) from cause
    if not isinstance(document, dict) or document.get("version") != VERSION or not _is_whole(document):
        raise Corrupt(f"{path} isn't a status document of version {VERSION}", hint=_WHERE)
    return document


def _is_whole(document: Mapping[str, Any]) -> bool:
    streams = document.get("streams")
    if not isinstance(document.get("written_ms"), int) or not isinstance(streams, list):
        return False
    return all(isinstance(stream, dict) and isinstance(stream.get("stream"), str) for stream in streams)


def _position(position: Position | None) -> str | None:
    return None if position is None else str(position)
