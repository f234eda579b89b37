"""What the demo prints at its end.

Owns the words, tables and JSON of the result. Must never compute anything that isn't in it.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from offloader.cli.output import Column, bytes_text, print_rows, program_name
from offloader.demo.run import STREAM, DemoResult
from offloader.manifest.state import SegmentRecord
from offloader.spark.demo_query import ScanResult, snippet

__all__ = ["next_commands", "print_json", "print_result", "python_snippet"]

_SEGMENTS = (
    Column("segment", "segment", right=True),
    Column("first", "first"),
    Column("last", "last"),
    Column("entries", "entries", right=True),
    Column("payload_bytes", "bytes", right=True),
    Column("ledgers", "ledgers"),
    Column("objects", "objects: data + index"),
)
_SEGMENTS_WIDE = (
    Column("published", "published"),
    Column("uuid", "object names: <uuid>, <uuid>-index"),
)
_LEDGERS = (
    Column("ledger", "ledger", right=True),
    Column("entries", "entries", right=True),
    Column("payload_bytes", "bytes", right=True),
    Column("segments", "in segments"),
)
_REQUESTS = (
    Column("verb", "verb"),
    Column("offloading", "offloading", right=True),
    Column("reading", "reading back", right=True),
    Column("errors", "failed", right=True),
    Column("bytes_sent", "sent", bytes_text, right=True),
    Column("bytes_received", "received", bytes_text, right=True),
)
#: Characters of a line that shows all columns.
_WIDE = 150
#: A day with flights, to read from.
_FLIGHTS_DAY = "2013-07-04"
_MONTHS = range(1, 13)


def print_result(result: DemoResult) -> None:
    """All of it, as text."""
    summary, place = result.summary, result.place
    print(f"\nInput:   {summary.name}, {summary.events:,} events, {bytes_text(summary.payload_bytes)}")
    print(f"Store:   {place.store_url}, stream {STREAM}")
    print(f"Ledgers: {place.ledgers_path}\n")
    wide = not sys.stdout.isatty() or shutil.get_terminal_size().columns >= _WIDE
    print_rows(_ledger_rows(result), _LEDGERS)
    print()
    print_rows(_segment_rows(result.segments), (*_SEGMENTS, *_SEGMENTS_WIDE) if wide else _SEGMENTS)
    _print_outcome(result)
    print("\nRequests to the store (a look for something that isn't there yet counts as failed):\n")
    print_rows(_request_rows(result), _REQUESTS)
    if result.scan is not None:
        _print_scan(result.scan, result.scan_seconds, wide=wide)
    if result.picture is not None:
        print(f"\nPicture: {result.picture}")
    print("\nType next:\n")
    for command in next_commands(result):
        print(f"  {command}")
    print(f"\nor, in {shlex.quote(os.path.relpath(sys.executable))}:\n")
    print(python_snippet(result))
    for problem in result.problems:
        print(f"offloader: {problem.message}", file=sys.stderr)
        if problem.hint:
            print(f"hint: {problem.hint}", file=sys.stderr)


def print_json(result: DemoResult) -> None:
    """All of it, as one JSON object on one line."""
    found, offload, scan = result.verification, result.offload, result.scan
    assert found is not None
    value = {
        "input": asdict(result.summary),
        "store": result.place.store_url,
        "stream": STREAM,
        "ledgers_file": str(result.place.ledgers_path),
        "removed_objects": result.removed_objects,
        "events_before": result.events_before,
        "events_appended": offload.appended if offload else 0,
        "offload": {"bytes": offload.appended_bytes, "seconds": offload.seconds} if offload else None,
        "ledgers": list(_ledger_rows(result)),
        "segments": list(_segment_rows(result.segments)),
        "verification": {
            "ok": found.ok,
            "events": found.events,
            "payload_bytes": found.payload_bytes,
            "sha256": found.sha256,
            "seconds": found.seconds,
        },
        "requests": list(_request_rows(result)),
        "spark": _scan_json(scan, result.scan_seconds) if scan else None,
        "picture": str(result.picture) if result.picture else None,
        "next": {"commands": next_commands(result), "python": python_snippet(result)},
        "problems": [
            {"kind": p.kind.name.lower(), "error": type(p).__name__, "message": p.message, "hint": p.hint}
            for p in result.problems
        ],
        "seconds": result.seconds,
    }
    print(json.dumps(value, ensure_ascii=False, default=str))


def next_commands(result: DemoResult) -> list[str]:
    """Commands to look further with, that work as they are."""
    request, place, program = result.request, result.place, shlex.quote(program_name())
    environment = {
        "OFFLOADER_STORE": place.store_url,
        "OFFLOADER_ENDPOINT_URL": request.endpoint_url,
        "OFFLOADER_REGION": request.region,
    }
    since = "" if request.input_path else f" --from-time {_FLIGHTS_DAY}"
    return [
        *(f"export {name}={shlex.quote(value)}" for name, value in environment.items() if value),
        f"{program} ls",
        f"{program} segments {STREAM}",
        f"{program} read {STREAM}{since} --limit 3",
    ]


def python_snippet(result: DemoResult) -> str:
    """Lines to paste into a Python prompt."""
    return snippet(result.place.store_url, STREAM, result.request.store_options, flights=not result.request.input_path)


def _ledger_rows(result: DemoResult) -> Iterator[Mapping[str, object]]:
    for ledger in result.ledgers:
        inside = [
            str(number)
            for number, record in enumerate(result.segments, 1)
            if record.summary and any(span.ledger_id == ledger.ledger_id for span in record.summary.ledgers)
        ]
        yield {
            "ledger": ledger.ledger_id,
            "entries": ledger.entries,
            "payload_bytes": ledger.size_bytes,
            "segments": " ".join(inside),
        }


def _segment_rows(segments: Sequence[SegmentRecord]) -> Iterator[Mapping[str, object]]:
    for number, record in enumerate(segments, 1):
        assert record.summary is not None, "readable segments are complete"
        yield {
            "segment": number,
            "first": str(record.summary.begin),
            "last": str(record.summary.end),
            "entries": record.summary.entries,
            "payload_bytes": record.summary.payload_bytes,
            "published": _times(record.summary.publish_time_min_ms, record.summary.publish_time_max_ms),
            "ledgers": " ".join(str(span.ledger_id) for span in record.summary.ledgers),
            "data_object_bytes": record.summary.data_bytes,
            "index_object_bytes": record.summary.index_bytes,
            "objects": f"{record.summary.data_bytes:,} + {record.summary.index_bytes:,}",
            "uuid": str(record.uuid),
        }


def _times(first_ms: int, last_ms: int) -> str:
    if first_ms < 0:
        return "-"
    first, last = (datetime.fromtimestamp(ms / 1000, UTC) for ms in (first_ms, last_ms))
    return f"{first:%Y-%m-%d %H:%M} .. {last:%Y-%m-%d %H:%M}"


def _print_outcome(result: DemoResult) -> None:
    found, offload = result.verification, result.offload
    assert found is not None
    print()
    if offload is None:
        print(f"Appended:   nothing, all {result.events_before:,} events were there already")
    else:
        before = f" ({offload.appended_before:,} were there already)" if offload.appended_before else ""
        seconds = max(offload.seconds, 1e-9)
        print(
            f"Appended:   {offload.appended:,} events{before}, {bytes_text(offload.appended_bytes)}, durable and "
            f"offloaded in {seconds:.1f} s: {offload.appended_bytes / seconds / 1e6:.0f} MB/s, "
            f"{offload.appended / seconds:,.0f} events/s"
        )
    rate = found.payload_bytes / max(found.seconds, 1e-9) / 1e6
    print(f"Read back:  {found.events:,} events from the store alone in {found.seconds:.1f} s: {rate:.0f} MB/s")
    verdict = "equals" if found.ok else "DIFFERS FROM"
    print(f"Verified:   {found.events:,} of {found.expected.events:,} events, SHA-256 {found.sha256}")
    print(f"            {verdict} that of what was appended")


def _request_rows(result: DemoResult) -> Iterator[Mapping[str, object]]:
    offloading = result.offload.requests if result.offload else {}
    reading = result.verification.requests if result.verification else {}
    for verb in sorted({*offloading, *reading}):
        counts = [requests[verb] for requests in (offloading, reading) if verb in requests]
        yield {
            "verb": verb,
            "offloading": offloading[verb].requests if verb in offloading else 0,
            "reading": reading[verb].requests if verb in reading else 0,
            "errors": sum(count.errors for count in counts),
            "bytes_sent": sum(count.bytes_sent for count in counts),
            "bytes_received": sum(count.bytes_received for count in counts),
        }


def _print_scan(scan: ScanResult, seconds: float, *, wide: bool) -> None:
    print(f"\nSpark: {scan.question}; {scan.partitions} partitions, {seconds:.1f} s with its start\n")
    if "month" not in scan.columns:
        rows: list[Mapping[str, object]] = [dict(zip(scan.columns, row, strict=True)) for row in scan.rows]
        print_rows(rows, [Column(name, name, right=True) for name in scan.columns])
        return
    cells: dict[str, dict[str, Any]] = {}
    for carrier, month, delay, _ in scan.rows:
        cells.setdefault(carrier, {"carrier": carrier})[str(month)] = _delay(delay, 1 if wide else 0)
    months = [Column(str(month), datetime(2013, month, 1, tzinfo=UTC).strftime("%b"), right=True) for month in _MONTHS]
    print_rows(cells.values(), [Column("carrier", "carrier"), *months])


def _delay(minutes: float, digits: int) -> str:
    # + 0.0 makes of a rounded -0.0 a 0
    return f"{round(minutes, digits) + 0.0:.{digits}f}"


def _scan_json(scan: ScanResult, seconds: float) -> Mapping[str, object]:
    rows = [dict(zip(scan.columns, row, strict=True)) for row in scan.rows]
    return {"question": scan.question, "partitions": scan.partitions, "seconds": seconds, "rows": rows}
