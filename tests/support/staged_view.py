"""A serving process as somebody might find it: what ``ServiceView`` answers, set by hand.

The documents have the fields that the real one gives (``tests/service/test_queries_staged_view.py`` compares them).
"""

from __future__ import annotations

import itertools
import random
import threading
from dataclasses import dataclass, field
from typing import Any

from offloader.errors import NotFoundError, StoreUnavailableError
from offloader.monitor import idle_document
from offloader.plot import StreamTimeline
from offloader.service.queries import Page, StreamOrder, page_of
from offloader.service.view_documents import graph_document, timeline_document
from tests.support.waiting import PATIENCE_S

NOW_MS = 1_795_000_000_000
UUID = "0f8fad5b-d9cb-469f-a165-70867728950e"
_MIB = 1024 * 1024


def stream_row(name: str, *, lag_s: float | None = 0.0, entries: int = 0, **changes: Any) -> dict[str, Any]:
    """A stream that is live and well, but for ``changes``."""
    lag = None if lag_s is None else {"entries": entries, "bytes": entries * 1024, "seconds": lag_s}
    row = {
        "stream": name, "namespace": "/".join(name.split("/")[:2]), "source": "process", "mode": "live",
        "feed": "pulsar", "active": True, "method": "streaming",
        "tail": "9:4411", "offered": "9:4410", "committed": "9:3999", "lag": lag,
        "buffer": {"bytes": 4 * _MIB, "bytes_max": 64 * _MIB}, "segments": {"offloaded": 12, "failed": 0},
        "entries_offloaded": 336_776, "bytes_offloaded": 95 * _MIB, "bytes_per_second": 0.0,
        "offers_refused": 0, "gaps_recorded": 0,
        "last_error": None, "last_progress_ms": NOW_MS - 95_000, "stalled": None,
    }  # fmt: skip
    return row | changes


def segment(number: int, *, ledgers: tuple[int, ...] = (7,)) -> dict[str, Any]:
    first_ms = NOW_MS - 7_200_000 + number * 600_000
    return {
        "uuid": f"{number:08x}{UUID[8:]}", "layout": "V2", "status": "offloaded",
        "first": f"{ledgers[0]}:{number * 100}",
        "last": f"{ledgers[-1]}:{number * 100 + 99}", "ledgers": list(ledgers), "entries": 100, "payload_bytes": 10**6,
        "object_bytes": 1_050_000, "data_bytes": 10**6, "index_bytes": 50_000, "blocks": 4, "compressed": False,
        "publish_time_min_ms": first_ms, "publish_time_max_ms": first_ms + 590_000, "assigned_ms": first_ms,
        "offloaded_ms": first_ms + 600_000, "owned": True, "data": "k", "index": "k-index",
    }  # fmt: skip


def shape(segments: int = 12, seed: int = 3) -> dict[str, Any]:
    """Ledgers that end elsewhere than segments do."""
    draw = random.Random(seed)
    sizes = [draw.randint(20_000, 46_000) for _ in range(segments)]
    total = sum(sizes)
    spans, at = list[dict[str, Any]](), 0
    for number, size in enumerate(sizes, 1):
        spans.append({"name": f"segment {number}", "start": at, "stop": at + size, "size_bytes": size * 313})
        at += size
    edges = [0, total // 5, total // 2, total * 3 // 4, total]
    ledgers = [
        {"name": f"ledger {number}", "start": start, "stop": stop, "size_bytes": (stop - start) * 290}
        for number, (start, stop) in enumerate(itertools.pairwise(edges), 6)
    ]
    time, timeline = NOW_MS - 86_400_000, list[list[int]]()
    for each in spans:
        timeline.append([each["start"], time])
        time += draw.randint(2_000_000, 12_000_000)
        timeline.append([each["stop"] - 1, time])
    return {
        "ledgers": ledgers, "segments": spans, "timeline": timeline, "gaps": [[edges[3], "gap 8:91..8:204"]],
        "ledgers_total": len(ledgers), "segments_total": segments, "is_thinned": False,
    }  # fmt: skip


def _set() -> threading.Event:
    found = threading.Event()
    found.set()
    return found


@dataclass
class StagedView:
    """Answers what it holds; tests change it while it is looked at."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    problem_rows: list[dict[str, Any]] = field(default_factory=list)
    error_rows: list[dict[str, Any]] = field(default_factory=list)
    decision_rows: list[dict[str, Any]] = field(default_factory=list)
    left: dict[str, Any] | None = None
    jobs: dict[str, Any] = field(default_factory=dict)
    shapes: dict[str, dict[str, Any]] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)
    subscriber_rows: list[dict[str, Any]] = field(default_factory=list)
    plan_lines: list[dict[str, Any]] = field(default_factory=list)
    now_ms: int = NOW_MS
    #: Why the store can't be asked; empty: it can.
    store_error: str = ""
    #: Questions to the store get no answer while it isn't set.
    store_answers: threading.Event = field(default_factory=_set)
    minute_bytes: list[int] = field(default_factory=lambda: [0])
    approval_rows: list[dict[str, Any]] = field(default_factory=list)
    #: Further fields of a stream's plan of cleanup.
    plan_fields: dict[str, Any] = field(default_factory=dict)
    health: dict[str, Any] = field(default_factory=lambda: {"store": None, "sources": {}})

    def _ask_the_store(self) -> None:
        self.store_answers.wait(PATIENCE_S)
        if self.store_error:
            raise StoreUnavailableError(self.store_error)

    def overview(self) -> dict[str, Any]:
        modes: dict[str, int] = {}
        for row in self.rows:
            modes[row["mode"]] = modes.get(row["mode"], 0) + 1
        lags = [row["lag"]["seconds"] for row in self.rows if row["lag"]]
        return {
            "software": "0.1.0", "pid": 4711, "now_ms": self.now_ms, "seen_ms": self.now_ms - 800,
            "started_ms": self.now_ms - 93_600_000,
            "ready": not any(each["blocks_ready"] for each in self.problem_rows), "problems": self.problem_rows,
            "store": {
                "url": "s3://cold-tier/production", "single_writer": False, "problems": [], "open_requests": 3,
                "oldest_request": None,
            },
            "limits": None,
            "buffer": {
                "bytes": sum(row["buffer"]["bytes"] for row in self.rows if row["buffer"]), "bytes_max": 512 * _MIB,
            },
            "streams": {
                "served": len(self.rows), "modes": modes, "stalled": sum(1 for row in self.rows if row["stalled"]),
                "disconnected": sum(1 for row in self.rows if row.get("disconnected")),
                "with_errors": sum(1 for row in self.rows if row["last_error"]),
                "lag_seconds_max": max(lags, default=None),
            },
            "last_hour": {"minute_bytes": self.minute_bytes, "bytes_per_second": sum(self.minute_bytes[-5:]) / 300},
            "awaiting_approval": self.approval_rows,
            "health": self.health,
        }  # fmt: skip

    def streams(
        self,
        *,
        order: StreamOrder = StreamOrder.NAME,
        contains: str = "",
        after: str = "",
        limit: int = 100,
        served_only: bool = False,
    ) -> Page[Any]:
        if not served_only:
            self._ask_the_store()
        wanted = contains.casefold()
        return page_of(
            [row for row in self.rows if wanted in row["stream"].casefold()], order, after=after, limit=limit
        )

    def stream(self, name: str, *, served_only: bool = False) -> dict[str, Any]:
        if not (served_only or self.store_error):
            self._ask_the_store()
        for row in self.rows:
            if row["stream"] == name and served_only:
                return row
            if row["stream"] == name:
                more = {"epoch": 4, "writer": "offloader@broker-2", "record": 128, "recorded_ms": self.now_ms - 95_000}
                return {**row, "store_error": self.store_error} if self.store_error else {**row, "gaps": 1, **more}
        raise NotFoundError(f"there is no stream {name}", hint="`offloader ls` lists them")

    def errors(self, *, stream: str | None = None, limit: int = 500) -> list[dict[str, Any]]:
        return [row for row in self.error_rows if stream is None or row["stream"] == stream][:limit]

    def recent_decisions(self, limit: int = 20) -> list[dict[str, Any]]:
        return self.decision_rows[:limit]

    def orphans(self) -> dict[str, Any]:
        return {"left": self.left, "jobs": self.jobs}

    def timeline(self, name: str) -> dict[str, Any]:
        self._ask_the_store()
        return self.shapes.get(name) or timeline_document(StreamTimeline(name, [], [], []))

    def graph(self, name: str) -> dict[str, Any]:
        self._ask_the_store()
        return graph_document(None)

    def segments(self, name: str, *, after: str = "", limit: int = 100) -> Page[Any]:
        self._ask_the_store()
        total = self.stream(name)["segments"]["offloaded"]
        start = int(after or 0)
        stop = min(start + limit, total)
        items = tuple(segment(number, ledgers=(6, 7) if number % 3 == 0 else (7,)) for number in range(start, stop))
        return Page(items, str(stop) if stop < total else None, total)

    def ledgers(self, name: str) -> list[dict[str, Any]]:
        return []

    def retention(self, name: str) -> dict[str, Any]:
        self._ask_the_store()
        return {"stream": name, "words": self.words, "latest_cycle_ms": self.now_ms, "latest_cycle_error": None}

    def decisions(self, name: str) -> list[dict[str, Any]]:
        self._ask_the_store()
        return (
            [
                {
                    "at_ms": self.now_ms - 1_800_000,
                    "why": self.words[-2][9:],
                    "removed_bytes": 12 * _MIB,
                    "overridden": [],
                },
                {
                    "at_ms": self.now_ms - 3_600_000,
                    "why": "no deletable part of the stream exceeds the limits",
                    "removed_bytes": None,
                    "overridden": [],
                },
            ]
            if self.words
            else []
        )

    def subscribers(self, name: str) -> list[dict[str, Any]]:
        self._ask_the_store()
        return self.subscriber_rows

    def cleanup_plan(self, name: str, *, limit: int = 500) -> dict[str, Any]:
        self._ask_the_store()
        return {
            "stream": name, "plan": "0f8f", "segments": len(self.plan_lines), "bytes": 12 * _MIB,
            "bytes_stored": 95 * _MIB, "deletes": True, "grace_seconds": 86_400.0,
            "held": False, "stopped": None, "is_deleted": False, "large": False, "awaiting_approval": None,
            "lines": self.plan_lines[:limit], "is_whole": True, "pending_batches": 0,
            **self.plan_fields,
        }  # fmt: skip


def lively(streams: int = 12) -> StagedView:
    """A process with a bit of everything."""
    draw = random.Random(1)
    names = ["orders", "payments", "clicks", "shipments", "invoices", "sensors", "audit", "logins"]
    rows = []
    for number in range(streams):
        name = f"shop/eu/persistent/{names[number % len(names)]}-partition-{number // len(names)}"
        rows.append(
            stream_row(
                name,
                lag_s=draw.choice([0, 0.4, 3, 21, 61, 88]),
                entries=draw.choice([0, 3, 500, 8120]),
                bytes_offloaded=draw.randint(10**7, 10**11),
                entries_offloaded=draw.randint(10**5, 10**9),
                buffer={"bytes": draw.randint(0, 60) * _MIB // 4, "bytes_max": 64 * _MIB},
                last_progress_ms=NOW_MS - draw.randint(1, 500) * 1000,
            )
        )
    rows[2] |= {
        "mode": "catch-up", "lag": {"entries": 81_204, "bytes": 83 * _MIB, "seconds": 1900.0},
        "buffer": {"bytes": 64 * _MIB, "bytes_max": 64 * _MIB}, "last_progress_ms": NOW_MS - 1_900_000,
        "stalled": "entries up to 7:19 wait, committed end 7:9; no progress for 1,900 s; last error: "
        "store s3://cold-tier/production: 503 SlowDown",
        "last_error": "store s3://cold-tier/production: 503 SlowDown", "segments": {"offloaded": 12, "failed": 3},
    }  # fmt: skip
    rows[3] |= {"mode": "paused"}
    rows[4] |= {"mode": "catch-up", "lag": {"entries": 24_000, "bytes": 25 * _MIB, "seconds": 190.0}}
    rows[5] |= idle_document(rows[5]["stream"], "standby", error=None) | {"active": False}
    worst = rows[2]["stream"]
    return StagedView(
        rows=rows,
        minute_bytes=[int(max(0.0, draw.gauss(2.1e9, 6e8)) * (0.2 if 20 < minute < 27 else 1)) for minute in range(60)],
        problem_rows=[
            {
                "where": f"stream {worst}", "what": "no progress for 1,900 s: the store asks for fewer requests",
                "hint": "see limits.requests_per_s, and the store's own limits", "since_ms": NOW_MS - 1_900_000,
                "blocks_ready": False,
            }
        ],
        error_rows=[
            {
                "first_ms": NOW_MS - 1_800_000, "last_ms": NOW_MS - 12_000, "count": 61, "level": "warning",
                "stream": worst, "event": "segment_failed", "hint": "it is tried again; see limits.requests_per_s",
                "message": "segment 51c0…: store s3://cold-tier/production: 503 SlowDown",
            },
            {
                "first_ms": NOW_MS - 7_200_000, "last_ms": NOW_MS - 7_200_000, "count": 1, "level": "error",
                "stream": "", "event": "feed_failed", "hint": "it is asked again every 30 s",
                "message": "feed pulsar: broker pulsar://broker-1:6650: the connection was closed",
            },
        ],
        decision_rows=[
            {
                "stream": rows[0]["stream"], "at_ms": NOW_MS - 600_000, "bytes": 812 * _MIB, "overridden": [],
                "why": "entries that all subscribers have read are deleted, except min", "error": None, "hint": "",
            },
            {
                "stream": rows[1]["stream"], "at_ms": NOW_MS - 640_000, "bytes": 4096 * _MIB, "overridden": ["billing"],
                "why": "unread data is above max: the excess is deleted", "error": None, "hint": "",
            },
            {
                "stream": worst, "at_ms": NOW_MS - 700_000, "bytes": None, "overridden": [], "why": None,
                "error": "the local clock and the store's differ by 74 s: nothing is deleted",
                "hint": "set this machine's clock, or the store's",
            },
        ],
        left={
            "ours": {"objects": 4, "size_bytes": 31 * _MIB, "oldest_ms": NOW_MS - 50_000_000},
            "foreign": {"objects": 2, "size_bytes": 900, "oldest_ms": NOW_MS - 900_000_000},
        },
        jobs={
            "cleanup": {"at_ms": NOW_MS - 1_200_000, "error": None},
            "orphans": {"at_ms": NOW_MS - 40_000_000, "error": None},
        },
        shapes={row["stream"]: shape(seed=number) for number, row in enumerate(rows)},
        words=[
            "stream   shop/eu/persistent/orders-partition-0",
            "policy   consumption, at least 1 GiB, at most 20 GiB",
            "",
            "                6:0                                                         9:4411",
            "stream          ##############=================================================",
            "recorded        |    |    |    |     |    |    |    |    |     |    |    |    |",
            "billing                       ^",
            "search                                                                   ^",
            "",
            "reader   billing: 91,204 entries, 89 MiB behind; holds data back",
            "reader   search: 12 entries, 4 KiB behind; holds data back",
            "",
            "rule     entries that all subscribers have read are deleted, except min",
            "result   entries before 7:100 would be deleted: 74,000 entries, 812 MiB",
        ],
        subscriber_rows=[
            {
                "subscriber": "billing", "generation": 1, "cut": {}, "start": None, "updated_ms": NOW_MS - 60_000,
                "active_ms": NOW_MS - 60_000, "activity": "active", "lag_bytes": 89 * _MIB, "lag_entries": 91_204,
            },
            {
                "subscriber": "search", "generation": 1, "cut": {}, "start": None, "updated_ms": NOW_MS - 4_000,
                "active_ms": NOW_MS - 4_000, "activity": "active", "lag_bytes": 4096, "lag_entries": 12,
            },
        ],
        plan_lines=[
            {
                "action": "retire", "segment": UUID, "first": "6:0", "last": "6:9999", "entries": 10_000,
                "object_bytes": 12 * _MIB, "rule": "before the head 7:100", "waits_for": None, "until_ms": None,
            },
            {
                "action": "purge", "segment": UUID, "first": "5:0", "last": "5:9999", "entries": 10_000,
                "object_bytes": 11 * _MIB, "rule": "before the head 6:0", "waits_for": "grace period",
                "until_ms": NOW_MS + 3_600_000,
            },
        ],
    )  # fmt: skip
