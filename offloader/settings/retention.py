"""Retention settings, and the check for contradictory ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from offloader.settings.fields import MBYTES_MAX, MIB, MINUTES_MAX, choice, duration, flag, in_file, size


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionSettings:
    """Entries to keep of a stream, and the time between two decisions. Sizes are payload before compression; 0 = not
    set."""

    policy: str = choice(
        "keep",
        "retention policy. keep: delete entries beyond keep and keep_size; none: delete nothing; size, time: delete "
        "by size or age with the min and max limits (Pravega's rules); consumption: delete entries that all "
        "subscribers have read",
        ("keep", "none", "size", "time", "consumption"),
    )
    keep_seconds: float = duration(
        0.0,
        "maximum age of entries; older entries are deleted, read or not; 0: no deletion by age",
        low=0,
        high=MINUTES_MAX * 60,
        key="keep",
    )
    keep_bytes: int = size(
        0,
        "maximum size of a stream; the oldest entries above it are deleted, read or not; 0: no deletion by size",
        low=0,
        high=MBYTES_MAX * MIB,
        key="keep_size",
    )
    keep_at_least_seconds: float = duration(
        0.0,
        "minimum age of entries that keep_size deletes",
        low=0,
        high=MINUTES_MAX * 60,
        key="keep_at_least",
    )
    keep_at_least_bytes: int = size(
        0,
        "size of the newest entries that keep does not delete",
        low=0,
        high=MBYTES_MAX * MIB,
        key="keep_at_least_size",
    )
    min_mbytes: float = size(
        0.0, "minimum size of the newest entries, always kept", low=0, high=MBYTES_MAX, key="min_size", unit="MiB"
    )
    max_mbytes: float = size(
        0.0, "maximum size kept for subscribers", low=0, high=MBYTES_MAX, key="max_size", unit="MiB"
    )
    min_minutes: float = duration(
        0.0, "minimum age before an entry may be deleted", low=0, high=MINUTES_MAX, key="min_age", unit="m"
    )
    max_minutes: float = duration(
        0.0, "maximum age of entries kept for subscribers", low=0, high=MINUTES_MAX, key="max_age", unit="m"
    )
    subscriber_timeout_minutes: float = duration(
        0.0,
        "inactivity after which a subscriber no longer holds back deletion; 0: it always holds back",
        low=0,
        high=MINUTES_MAX,
        key="subscriber_timeout",
        unit="m",
    )
    fallback_after_minutes: float = duration(
        0.0,
        "inactivity of all subscribers after which all of them are ignored; 0: never",
        low=0,
        high=MINUTES_MAX,
        key="fallback_after",
        unit="m",
    )
    fallback_min_mbytes: float = size(
        0.0,
        "policy consumption: minimum size kept while all subscribers are ignored",
        low=0,
        high=MBYTES_MAX,
        key="fallback_min_size",
        unit="MiB",
    )
    fallback_max_mbytes: float = size(
        0.0,
        "policy consumption: maximum size kept while all subscribers are ignored",
        low=0,
        high=MBYTES_MAX,
        key="fallback_max_size",
        unit="MiB",
    )
    fallback_min_minutes: float = duration(
        0.0,
        "policy consumption: minimum age kept while all subscribers are ignored",
        low=0,
        high=MINUTES_MAX,
        key="fallback_min_age",
        unit="m",
    )
    fallback_max_minutes: float = duration(
        0.0,
        "policy consumption: maximum age kept while all subscribers are ignored",
        low=0,
        high=MINUTES_MAX,
        key="fallback_max_age",
        unit="m",
    )
    protect_unpublished: bool = flag(False, "let subscribers that never published a position hold back all entries")
    record_minutes: float = duration(
        0.0,
        "minimum time between two recorded stream cuts, the candidates for truncation; 0s: every cycle with new "
        "entries records one",
        low=0,
        high=MINUTES_MAX,
        key="record_interval",
        unit="m",
    )
    cycle_minutes: float = duration(
        30.0,
        "time between two retention decisions for a stream",
        low=0.001,
        high=MINUTES_MAX,
        key="cycle_interval",
        unit="m",
    )

    @property
    def deletes(self) -> bool:
        """Whether the policy deletes anything."""
        return bool(self.keep_seconds or self.keep_bytes) if self.policy == "keep" else self.policy != "none"

    def problems(self) -> list[str]:
        """Contradictory or ineffective settings, as texts."""
        if self.policy == "none" or not self.deletes:
            # A topic may set the policy none below a namespace with keep.
            idle = [each for each in fields(self) if each.name not in _WITHOUT_POLICY and getattr(self, each.name)]
            why = "the policy is none" if self.policy == "none" else "no policy is set, nor keep or keep_size"
            return [
                f"{each.metadata.get('key', each.name)}: has no effect, {why}"
                for each in idle
                if self.policy == "keep" or each.name not in KEEP_SETTINGS
            ]
        if self.policy == "keep":
            return self._keep_problems()
        found = [
            f"{self._key(name)}: has no effect, the policy is {self.policy}; remove `policy` to use it"
            for name in KEEP_SETTINGS
            if getattr(self, name)
        ]
        wanted = {"size": "size", "time": "age"}.get(self.policy)
        for prefix in ("", "fallback_"):
            kinds = [kind for kind in _UNITS if self._has_limits(prefix, kind)]
            if prefix and len(kinds) > 1:
                found.append(f"{prefix}min_size and {prefix}min_age: limits are by size or by time, not both")
            if not prefix and wanted and wanted not in kinds:
                found.append(f"min_{wanted}: the policy {self.policy} needs this minimum")
            for kind in kinds:
                found += self._limit_problems(prefix, kind)
        return found + self._silence_problems()

    def _keep_problems(self) -> list[str]:
        limited = [
            f"{each.metadata.get('key', each.name)}: has no effect, the policy is keep; only the policies size, "
            "time and consumption use it"
            for each in fields(self)
            if each.name not in {*KEEP_SETTINGS, *_WITH_KEEP} and getattr(self, each.name)
        ]
        return limited + [
            f"{self._shown(least)} is above {self._shown(most)}"
            for least, most in (("keep_at_least_seconds", "keep_seconds"), ("keep_at_least_bytes", "keep_bytes"))
            if 0 < getattr(self, most) < getattr(self, least)
        ]

    def _has_limits(self, prefix: str, kind: str) -> bool:
        return any(getattr(self, f"{prefix}{which}_{_UNITS[kind]}") for which in ("min", "max"))

    def _limit_problems(self, prefix: str, kind: str) -> list[str]:
        least, most = (getattr(self, f"{prefix}{which}_{_UNITS[kind]}") for which in ("min", "max"))
        if not least:
            # Without a minimum, retention would delete all recorded data that no subscriber holds back.
            instead = {"size": "keep_size", "age": "keep"}[kind]
            also = "" if prefix else f"; to limit the stream without a minimum, set {instead} alone, without policy"
            return [f"{prefix}min_{kind}: missing, required with {prefix}max_{kind}{also}"]
        names = (f"{prefix}{which}_{_UNITS[kind]}" for which in ("min", "max"))
        return [" is above ".join(map(self._shown, names))] if 0 < most < least else []

    def _metadata(self, name: str) -> Mapping[str, Any]:
        return {each.name: each.metadata for each in fields(self)}[name]

    def _key(self, name: str) -> str:
        return str(self._metadata(name)["key"])

    def _shown(self, name: str) -> str:
        return f"{self._key(name)} = {in_file(self._metadata(name), getattr(self, name))}"

    def _silence_problems(self) -> list[str]:
        x, y = self.subscriber_timeout_minutes, self.fallback_after_minutes
        has_fallback = any(self._has_limits("fallback_", kind) for kind in _UNITS)
        is_queue = self.policy == "consumption"
        names = "fallback_after_minutes", "subscriber_timeout_minutes"
        found = [
            (y and not x, "fallback_after: has no effect without subscriber_timeout"),
            (x and 0 < y < x, " is below ".join(map(self._shown, names))),
            (has_fallback and not is_queue, "fallback_min_*: has no effect, only the policy consumption uses it"),
            (has_fallback and is_queue and not y, "fallback_min_*: has no effect without fallback_after"),
            (is_queue and y and not has_fallback, "fallback_after: needs fallback_min_size or fallback_min_age"),
        ]
        return [text for is_wrong, text in found if is_wrong]


#: Kind of a limit -> suffix of its attributes.
_UNITS = {"size": "mbytes", "age": "minutes"}
#: Retention settings that apply without a policy.
_WITHOUT_POLICY = frozenset({"policy", "record_minutes", "cycle_minutes"})
#: Retention settings of the policy keep.
KEEP_SETTINGS = ("keep_seconds", "keep_bytes", "keep_at_least_seconds", "keep_at_least_bytes")
#: Further settings that apply to the policy keep.
_WITH_KEEP = _WITHOUT_POLICY | {"subscriber_timeout_minutes"}
