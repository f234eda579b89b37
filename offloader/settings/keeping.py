"""What is kept and what goes: settings of the manifest, of retention and of cleanup.

Owns the sections `manifest`, `retention` and `cleanup`, and what contradicts itself in them.
Must never hold a component or read a file, an environment variable or the network.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from offloader.settings.fields import MBYTES_MAX, MINUTES_MAX, choice, flag, setting

__all__ = ["CleanupSettings", "ManifestSettings", "RetentionSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestSettings:
    """How a stream's manifest is kept short, and when what it doesn't need any more is deleted."""

    checkpoint_records: int = setting(100, "records after which whoever notices writes a checkpoint", low=1, high=10**5)
    orphan_age_hours_min: float = setting(
        24.0, "age below which nothing that nothing names is deleted", low=0, high=365 * 24
    )
    history_days_min: float = setting(
        30.0, "age below which `serve` keeps records that a checkpoint holds; -1: it keeps all", low=-1, high=365
    )
    record_requests_max: int = setting(8, "records of a manifest asked for at once while it is loaded", low=1, high=64)
    create_over_segments: bool = flag(
        False, "a stream may be created where segments lie that no manifest tells of: they stay, and nobody reads them"
    )
    clock_skew_seconds_max: float = setting(
        60.0, "difference between this clock and the store's that stops all deletion", low=0, high=24 * 3600
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionSettings:
    """What of a stream is kept, and how often that is decided. Sizes are payload before compression; 0 = not set."""

    policy: str = choice(
        "none",
        "what may go: nothing, what is above a size, what is older than a time, or what all subscribers have read",
        ("none", "size", "time", "consumption"),
    )
    min_mbytes: float = setting(0.0, "kept always", low=0, high=MBYTES_MAX)
    max_mbytes: float = setting(0.0, "kept for subscribers at most", low=0, high=MBYTES_MAX)
    min_minutes: float = setting(0.0, "age below which everything is kept", low=0, high=MINUTES_MAX)
    max_minutes: float = setting(0.0, "age up to which data is kept for subscribers", low=0, high=MINUTES_MAX)
    subscriber_timeout_minutes: float = setting(
        0.0, "a subscriber silent for longer holds nothing back; 0: it always does", low=0, high=MINUTES_MAX
    )
    fallback_after_minutes: float = setting(
        0.0, "silence of all subscribers after which none of them counts; 0: never", low=0, high=MINUTES_MAX
    )
    fallback_min_mbytes: float = setting(0.0, "consumption: kept then", low=0, high=MBYTES_MAX)
    fallback_max_mbytes: float = setting(0.0, "consumption: kept at most then", low=0, high=MBYTES_MAX)
    fallback_min_minutes: float = setting(0.0, "consumption: age kept then", low=0, high=MINUTES_MAX)
    fallback_max_minutes: float = setting(0.0, "consumption: age kept at most then", low=0, high=MINUTES_MAX)
    protect_unpublished: bool = flag(False, "subscribers that never published hold back what they haven't read")
    record_minutes: float = setting(
        30.0, "time between two recorded cuts, between which a decision can choose", low=0.001, high=MINUTES_MAX
    )
    cycle_minutes: float = setting(30.0, "time between two decisions about a stream", low=0.001, high=MINUTES_MAX)

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
    """Whether and when objects that no stream needs are deleted, and what is remembered of it."""

    delete: bool = flag(
        False,
        "`serve` deletes from the store: segments, orphans, old manifest records; false: it only reports them",
    )
    grace_hours: float = setting(
        24.0, "time between retiring a segment and deleting its objects; until then it can be undone", low=0, high=87600
    )
    allow_large_delete: bool = flag(False, "a cycle may retire more than half of a stream without being asked")
    retry_minutes_max: float = setting(
        60.0, "longest wait before objects that couldn't be deleted are tried again", low=0, high=7 * 24 * 60
    )
    audit_days: float = setting(90.0, "how long it is remembered what was deleted", low=0, high=36500)
    audit_records_max: int = setting(
        10_000, "batches of deletions remembered of one stream; the oldest go first", low=1, high=10**6
    )
    cycle_minutes: float = setting(60.0, "time between two rounds of cleanup", low=0.001, high=MINUTES_MAX)
    orphans_hours: float = setting(24.0, "time between two searches for orphans; 0: none", low=0, high=87600)
