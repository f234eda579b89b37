"""Settings: frozen values with their defaults, limits and checks.

Owns every tunable and its name. Must never hold a component (store, clock, pool) or read a file,
an environment variable or the network.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from offloader.errors import InvalidCall

__all__ = [
    "CleanupSettings",
    "LedgerSettings",
    "LimitSettings",
    "ManifestSettings",
    "OffloadSettings",
    "Pairs",
    "ReadSettings",
    "RetentionSettings",
    "Settings",
    "StoreSettings",
    "TelemetrySettings",
]

_KIB = 1024
_MIB = 1024 * _KIB


def _setting(default: Any, doc: str, *, low: float, high: float) -> Any:
    return field(default=default, metadata={"doc": doc, "low": low, "high": high})


def _choice(default: str, doc: str, choices: tuple[str, ...]) -> Any:
    return field(default=default, metadata={"doc": doc, "choices": choices})


def _text(default: str, doc: str) -> Any:
    return field(default=default, metadata={"doc": doc, "text": True})


class Pairs(tuple[tuple[str, str], ...]):
    """A table of texts as a value: pairs in the names' order, made of a mapping or of pairs."""

    __slots__ = ()

    def __new__(cls, values: Mapping[str, str] | Iterable[tuple[str, str]] = ()) -> Pairs:
        return super().__new__(cls, sorted(dict(values).items()))

    def get(self, name: str) -> str | None:
        """What stands for ``name``, if anything does."""
        return dict(self).get(name)


def _pairs(doc: str) -> Any:
    return field(default=Pairs(), metadata={"doc": doc, "pairs": True})


def _flag(default: bool, doc: str) -> Any:
    return field(default=default, metadata={"doc": doc, "flag": True})


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadSettings:
    """How entries become segments (spec: PIP-76; names from the proposal where it has one)."""

    block_bytes: int = _setting(_MIB, "target size of a block", low=256, high=1024 * _MIB)
    part_bytes: int = _setting(
        16 * _MIB, "size of an uploaded part; a segment below it is a single PUT", low=5 * _MIB, high=5 * 1024 * _MIB
    )
    parts_in_flight_max: int = _setting(4, "parts of one segment uploaded at once", low=1, high=64)
    max_size_per_offload_segment_mbytes: float = _setting(
        1024.0, "a segment closes at this size", low=0.001, high=5 * 1024 * 1024
    )
    max_offload_segment_rollover_time_minutes: float = _setting(
        10.0, "a segment closes at this age, counted from its first entry", low=0.0001, high=365 * 24 * 60
    )
    offload_buffer_bytes_max: int = _setting(64 * _MIB, "bytes buffered for one stream", low=64 * _KIB, high=2**40)
    offload_memory_bytes_max: int = _setting(
        512 * _MIB, "bytes buffered for all streams of a process", low=64 * _KIB, high=2**44
    )
    entry_bytes_max: int = _setting(64 * _MIB, "largest entry that is taken", low=1, high=2**31 - 1)
    codec: str = _choice("none", "compression of blocks", ("none", "zstd"))
    method: str = _choice(
        "streaming", "streaming (PIP-76), ledger (a closed ledger an object) or none", ("streaming", "ledger", "none")
    )
    offload_threshold_bytes: int = _setting(
        0,
        "method ledger: bytes not yet offloaded above which the oldest ledgers go; 0: as soon as closed, -1: off",
        low=-1,
        high=2**60,
    )
    offload_threshold_seconds: int = _setting(
        -1, "method ledger: age at which a closed ledger goes; 0: as soon as closed, -1: off", low=-1, high=2**31
    )
    backfill_segments_in_flight_max: int = _setting(
        4, "segments of history uploaded at once, of a stream and of a process", low=1, high=64
    )
    deletion_lag_minutes: float = _setting(
        240.0,
        "time after which the hot copy of an offloaded ledger is deleted; -1: never",
        low=-1,
        high=10 * 365 * 24 * 60,
    )
    tail_cache_bytes_max: int = _setting(
        8 * _MIB, "newest entries kept in memory for a stream that catches up", low=0, high=2**40
    )
    drain_seconds_max: float = _setting(300.0, "wait for the last segment when closing", low=0, high=24 * 3600)
    retry_seconds_max: float = _setting(
        30.0, "longest wait before a failed segment is tried again", low=0.01, high=3600
    )
    takeover_after_seconds: float = _setting(
        60.0, "silence after which a stream may be taken from its owner without being told to", low=0.01, high=24 * 3600
    )
    on_gap: str = _choice(
        "block",
        "what to do when the hot tier lost entries before they were offloaded: block, or record the gap and go on",
        ("block", "record"),
    )
    workers_max: int = _setting(8, "threads that encode and upload, whole process", low=1, high=256)


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerSettings:
    """When the embedded ledger store closes a ledger and opens the next."""

    ledger_bytes_max: int = _setting(256 * _MIB, "a ledger closes at this size", low=1, high=2**50)
    ledger_entries_max: int = _setting(1_000_000, "a ledger closes at this many entries", low=1, high=2**40)
    ledger_age_minutes_max: float = _setting(
        60.0, "a ledger closes at this age, at the next append", low=0.0001, high=365 * 24 * 60
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """Deadlines, retries and connections of an object store."""

    connect_timeout_s: float = _setting(5.0, "time to connect", low=0.01, high=600)
    read_timeout_s: float = _setting(30.0, "time without a byte until a call fails", low=0.01, high=3600)
    retries_max: int = _setting(6, "attempts after the first one", low=0, high=100)
    retry_total_s: float = _setting(60.0, "time after which no further attempt starts", low=0, high=24 * 3600)
    retry_delay_first_s: float = _setting(0.1, "wait before the first retry; doubles, jittered", low=0, high=60)
    retry_delay_max_s: float = _setting(10.0, "longest wait before a retry", low=0, high=600)
    connections_max: int = _setting(32, "open connections", low=1, high=1024)
    single_writer: bool = _flag(False, "write to a store without conditional puts: nobody else ever writes there")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSettings:
    """How readers fetch."""

    read_priority: str = _choice(
        "tiered-storage-first",
        "where entries are read that both tiers have",
        ("tiered-storage-first", "bookkeeper-first"),
    )
    request_bytes: int = _setting(4 * _MIB, "size of one ranged GET", low=4 * _KIB, high=1024 * _MIB)
    requests_in_flight_max: int = _setting(4, "ranged GETs of one reader at once", low=1, high=64)
    cache_bytes_max: int = _setting(64 * _MIB, "decoded blocks kept for single reads", low=0, high=2**40)
    batch_bytes: int = _setting(4 * _MIB, "payload bytes of one batch of a scan", low=1, high=1024 * _MIB)
    block_bytes_max: int = _setting(256 * _MIB, "largest block that is read", low=256, high=2**31 - 1)
    decompressed_bytes_max: int = _setting(256 * _MIB, "largest block after decompression", low=1, high=2**31 - 1)
    relocate: Pairs = _pairs(  # noqa: RUF009 - a field, like the others
        "buckets (or folders) that were moved or restored elsewhere: old = new"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSettings:
    """Bandwidth and request rate of one process, live before reads before backfill before deletion; 0 = no limit."""

    bytes_per_s: float = _setting(0.0, "bytes sent and received, all together", low=0, high=2**50)
    upload_bytes_per_s: float = _setting(0.0, "bytes sent", low=0, high=2**50)
    read_bytes_per_s: float = _setting(0.0, "bytes received", low=0, high=2**50)
    requests_per_s: float = _setting(0.0, "requests, all together", low=0, high=1e6)
    upload_requests_per_s: float = _setting(0.0, "requests that write", low=0, high=1e6)
    read_requests_per_s: float = _setting(0.0, "requests that read or list", low=0, high=1e6)
    delete_requests_per_s: float = _setting(0.0, "requests that delete or abort", low=0, high=1e6)
    burst_s: float = _setting(1.0, "seconds of a rate that may be used at once", low=0.001, high=3600)
    turn_wait_s_max: float = _setting(300.0, "wait for a turn after which a request fails", low=0.001, high=24 * 3600)
    turns_waiting_max: int = _setting(10_000, "requests that wait for a turn", low=1, high=1_000_000)
    slowdown_factor: float = _setting(
        0.5, "what is left of the request rate when the store asks to slow down", low=0.01, high=0.99
    )
    slowdown_requests_per_s_min: float = _setting(1.0, "lowest rate after slowing down", low=0.01, high=1e6)
    recovery_requests_per_s: float = _setting(
        5.0, "what the rate gains each second without another refusal", low=0.001, high=1e6
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetrySettings:
    """What is told of a running process: status file, watchdog, metrics."""

    status_file: str = _text("", "file that holds the status document, replaced atomically; empty: none")
    status_interval_s: float = _setting(5.0, "time between two looks at the streams", low=0.05, high=3600)
    watchdog_no_progress_s: float = _setting(
        900.0, "a stream with data and no progress for so long is named as stalled", low=1, high=7 * 24 * 3600
    )
    labels: str = _choice("namespace", "what metrics are kept by", ("namespace", "topic"))
    label_sets_max: int = _setting(10_000, "label sets kept; more are counted as other", low=1, high=10_000_000)
    label_lifetime_s: float = _setting(3600.0, "a label set not used for so long is dropped", low=1, high=7 * 24 * 3600)
    write_cost_per_1000: float = _setting(0.005, "price of 1000 PUT-class requests, dollars", low=0, high=1000)
    read_cost_per_1000: float = _setting(0.0004, "price of 1000 GET-class requests, dollars", low=0, high=1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestSettings:
    """How a stream's manifest is kept short, and when what it doesn't need any more is deleted."""

    checkpoint_records: int = _setting(
        100, "records after which whoever notices writes a checkpoint", low=1, high=10**5
    )
    orphan_age_hours_min: float = _setting(
        24.0, "age below which nothing that nothing names is deleted", low=0, high=365 * 24
    )
    record_requests_max: int = _setting(8, "records of a manifest asked for at once while it is loaded", low=1, high=64)
    clock_skew_seconds_max: float = _setting(
        60.0, "difference between this clock and the store's that stops all deletion", low=0, high=24 * 3600
    )


_MBYTES_MAX = 2**40
_MINUTES_MAX = 100 * 365 * 24 * 60


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionSettings:
    """What of a stream is kept, and how often that is decided. Sizes are payload before compression; 0 = not set."""

    policy: str = _choice(
        "none",
        "what may go: nothing, what is above a size, what is older than a time, or what all subscribers have read",
        ("none", "size", "time", "consumption"),
    )
    min_mbytes: float = _setting(0.0, "kept always", low=0, high=_MBYTES_MAX)
    max_mbytes: float = _setting(0.0, "kept for subscribers at most", low=0, high=_MBYTES_MAX)
    min_minutes: float = _setting(0.0, "age below which everything is kept", low=0, high=_MINUTES_MAX)
    max_minutes: float = _setting(0.0, "age up to which data is kept for subscribers", low=0, high=_MINUTES_MAX)
    subscriber_timeout_minutes: float = _setting(
        0.0, "a subscriber silent for longer holds nothing back; 0: it always does", low=0, high=_MINUTES_MAX
    )
    fallback_after_minutes: float = _setting(
        0.0, "silence of all subscribers after which none of them counts; 0: never", low=0, high=_MINUTES_MAX
    )
    fallback_min_mbytes: float = _setting(0.0, "consumption: kept then", low=0, high=_MBYTES_MAX)
    fallback_max_mbytes: float = _setting(0.0, "consumption: kept at most then", low=0, high=_MBYTES_MAX)
    fallback_min_minutes: float = _setting(0.0, "consumption: age kept then", low=0, high=_MINUTES_MAX)
    fallback_max_minutes: float = _setting(0.0, "consumption: age kept at most then", low=0, high=_MINUTES_MAX)
    protect_unpublished: bool = _flag(False, "subscribers that never published hold back what they haven't read")
    record_minutes: float = _setting(
        30.0, "time between two recorded cuts, between which a decision can choose", low=0.001, high=_MINUTES_MAX
    )
    cycle_minutes: float = _setting(30.0, "time between two decisions about a stream", low=0.001, high=_MINUTES_MAX)

    def problems(self) -> list[str]:
        """What of it contradicts itself, or has no effect; empty: nothing."""
        found: list[str] = []
        if self.policy == "none":
            idle = [each.name for each in fields(self) if each.name not in _WITHOUT_POLICY]
            return [f"{name}: has no effect, the policy is none" for name in idle if getattr(self, name)]
        wanted = {"size": "mbytes", "time": "minutes"}.get(self.policy)
        for prefix in ("", "fallback_"):
            units = [unit for unit in ("mbytes", "minutes") if self._has_limits(prefix, unit)]
            if len(units) > 1:
                found.append(f"{prefix}min_mbytes and {prefix}min_minutes: limits are by size or by time, not both")
            if not prefix and wanted and wanted not in units:
                found.append(f"min_{wanted}: the policy {self.policy} needs to know what is kept always")
            for unit in units:
                if not prefix and wanted and unit != wanted:
                    found.append(f"min_{unit}: has no effect, the policy is {self.policy}")
                found += self._limit_problems(prefix, unit)
        return found + self._silence_problems()

    def _has_limits(self, prefix: str, unit: str) -> bool:
        return bool(getattr(self, f"{prefix}min_{unit}") or getattr(self, f"{prefix}max_{unit}"))

    def _limit_problems(self, prefix: str, unit: str) -> list[str]:
        least, most = getattr(self, f"{prefix}min_{unit}"), getattr(self, f"{prefix}max_{unit}")
        if not least:
            # All that was recorded would go as soon as nobody holds it back.
            return [f"{prefix}min_{unit}: missing beside {prefix}max_{unit}; what is kept always?"]
        return [f"{prefix}min_{unit} = {least:g} is above {prefix}max_{unit} = {most:g}"] if 0 < most < least else []

    def _silence_problems(self) -> list[str]:
        x, y = self.subscriber_timeout_minutes, self.fallback_after_minutes
        has_fallback = any(self._has_limits("fallback_", unit) for unit in ("mbytes", "minutes"))
        is_queue = self.policy == "consumption"
        found = [
            (y and not x, "fallback_after_minutes: has no effect without subscriber_timeout_minutes"),
            (x and 0 < y < x, f"fallback_after_minutes = {y:g} is below subscriber_timeout_minutes = {x:g}"),
            (has_fallback and not is_queue, "fallback_min_*: has no effect, only the policy consumption looks at it"),
            (has_fallback and is_queue and not y, "fallback_min_*: has no effect without fallback_after_minutes"),
            (is_queue and y and not has_fallback, "fallback_after_minutes: needs fallback_min_mbytes or _minutes"),
        ]
        return [text for is_wrong, text in found if is_wrong]


#: Settings of retention that mean something without a policy.
_WITHOUT_POLICY = frozenset({"policy", "record_minutes", "cycle_minutes"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupSettings:
    """When objects that no stream needs are deleted, and what is remembered of it."""

    grace_hours: float = _setting(
        24.0, "time between retiring a segment and deleting its objects; until then it can be undone", low=0, high=87600
    )
    allow_large_delete: bool = _flag(False, "a cycle may retire more than half of a stream without being asked")
    retry_minutes_max: float = _setting(
        60.0, "longest wait before objects that couldn't be deleted are tried again", low=0, high=7 * 24 * 60
    )
    audit_days: float = _setting(90.0, "how long it is remembered what was deleted", low=0, high=36500)
    audit_records_max: int = _setting(
        10_000, "batches of deletions remembered of one stream; the oldest go first", low=1, high=10**6
    )
    cycle_minutes: float = _setting(60.0, "time between two rounds of cleanup", low=0.001, high=_MINUTES_MAX)
    orphans_hours: float = _setting(24.0, "time between two searches for orphans; 0: none", low=0, high=87600)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All of it."""

    offload: OffloadSettings = OffloadSettings()
    ledgers: LedgerSettings = LedgerSettings()
    store: StoreSettings = StoreSettings()
    read: ReadSettings = ReadSettings()
    limits: LimitSettings = LimitSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    manifest: ManifestSettings = ManifestSettings()
    cleanup: CleanupSettings = CleanupSettings()
    retention: RetentionSettings = RetentionSettings()

    @classmethod
    def of(cls, values: Mapping[str, Mapping[str, Any]] | None = None, *, origin: str = "settings") -> Settings:
        """Settings from nested mappings ``{"offload": {"block_bytes": 65536}}``; what isn't named keeps its default.

        Args:
            values: section -> name -> value.
            origin: where the values come from, for the error message.

        Raises:
            InvalidCall: unknown names, wrong types and values out of range, all of them at once.
        """
        problems: list[str] = []
        sections: dict[str, Any] = {}
        kinds: dict[str, Any] = {f.name: type(f.default) for f in fields(cls)}
        for name, given in (values or {}).items():
            if name not in kinds:
                problems.append(f"{name}: no such section (sections: {', '.join(kinds)})")
                continue
            sections[name], found = _section(kinds[name], given)
            problems += [f"{name}.{problem}" for problem in found]
        if problems:
            raise InvalidCall(f"{origin}: {'; '.join(problems)}", hint="nothing was changed")
        return cls(**sections)


def _section(kind: type[Any], given: Mapping[str, Any]) -> tuple[Any, list[str]]:
    known = {f.name: f for f in fields(kind)}
    problems = [f"{name}: no such setting" for name in given if name not in known]
    taken: dict[str, Any] = {}
    for name, value in given.items():
        if name in known:
            problem = _problem(known[name].metadata, known[name].default, value)
            if problem:
                problems.append(f"{name}: {problem}")
            else:
                default: Any = known[name].default
                taken[name] = default.__class__(value)
    return kind(**taken), problems


def _problem(metadata: Mapping[str, Any], default: object, value: object) -> str:
    if "choices" in metadata:
        return "" if value in metadata["choices"] else f"{value!r} is none of {', '.join(metadata['choices'])}"
    if "text" in metadata:
        return "" if isinstance(value, str) else f"{value!r} is not a text"
    if "pairs" in metadata:
        known = isinstance(value, (Mapping, Pairs)) and all(isinstance(each, str) for each in dict(value).values())
        return "" if known else f"{value!r} is not a table of texts"
    if "flag" in metadata:
        return "" if isinstance(value, bool) else f"{value!r} is neither true nor false"
    wanted = "a whole number" if isinstance(default, int) else "a number"
    if isinstance(value, bool) or not isinstance(value, int if isinstance(default, int) else (int, float)):
        return f"{value!r} is not {wanted}"
    low, high = metadata["low"], metadata["high"]
    return "" if low <= value <= high else f"{value} is not between {low} and {high}"
