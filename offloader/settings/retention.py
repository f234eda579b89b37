"""The settings of retention: what of a stream is kept, and which of them contradict each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from offloader.settings.fields import MBYTES_MAX, MIB, MINUTES_MAX, choice, duration, flag, in_file, size


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionSettings:
    """What of a stream is kept, and how often that is decided. Sizes are payload before compression; 0 = not set."""

    policy: str = choice(
        "keep",
        "what may go: what keep and keep_size don't keep, if one is set; nothing; by Pravega's rules with min and max, "
        "what is above a size or older than a time; or what all subscribers have read",
        ("keep", "none", "size", "time", "consumption"),
    )
    keep_seconds: float = duration(
        0.0,
        "age up to which everything is kept; older entries go, read or not; 0: age deletes nothing",
        low=0,
        high=MINUTES_MAX * 60,
        key="keep",
    )
    keep_bytes: int = size(
        0,
        "size up to which everything is kept; older entries beyond it go, read or not; 0: size deletes nothing",
        low=0,
        high=MBYTES_MAX * MIB,
        key="keep_size",
    )
    keep_at_least_seconds: float = duration(
        0.0,
        "age below which nothing goes, whatever keep_size is",
        low=0,
        high=MINUTES_MAX * 60,
        key="keep_at_least",
    )
    keep_at_least_bytes: int = size(
        0, "newest bytes that never go, whatever keep is", low=0, high=MBYTES_MAX * MIB, key="keep_at_least_size"
    )
    min_mbytes: float = size(0.0, "kept always", low=0, high=MBYTES_MAX, key="min_size", unit="MiB")
    max_mbytes: float = size(0.0, "kept for subscribers at most", low=0, high=MBYTES_MAX, key="max_size", unit="MiB")
    min_minutes: float = duration(
        0.0, "age below which everything is kept", low=0, high=MINUTES_MAX, key="min_age", unit="m"
    )
    max_minutes: float = duration(
        0.0, "age up to which data is kept for subscribers", low=0, high=MINUTES_MAX, key="max_age", unit="m"
    )
    subscriber_timeout_minutes: float = duration(
        0.0,
        "a subscriber silent for longer holds nothing back; 0: it always does",
        low=0,
        high=MINUTES_MAX,
        key="subscriber_timeout",
        unit="m",
    )
    fallback_after_minutes: float = duration(
        0.0,
        "silence of all subscribers after which none of them counts; 0: never",
        low=0,
        high=MINUTES_MAX,
        key="fallback_after",
        unit="m",
    )
    fallback_min_mbytes: float = size(
        0.0, "consumption: kept then", low=0, high=MBYTES_MAX, key="fallback_min_size", unit="MiB"
    )
    fallback_max_mbytes: float = size(
        0.0, "consumption: kept at most then", low=0, high=MBYTES_MAX, key="fallback_max_size", unit="MiB"
    )
    fallback_min_minutes: float = duration(
        0.0, "consumption: age kept then", low=0, high=MINUTES_MAX, key="fallback_min_age", unit="m"
    )
    fallback_max_minutes: float = duration(
        0.0, "consumption: age kept at most then", low=0, high=MINUTES_MAX, key="fallback_max_age", unit="m"
    )
    protect_unpublished: bool = flag(False, "subscribers that never published hold back what they haven't read")
    record_minutes: float = duration(
        0.0,
        "minimum time between two recorded cuts, which decisions choose from; 0s: each cycle that finds new entries "
        "records one",
        low=0,
        high=MINUTES_MAX,
        key="record_interval",
        unit="m",
    )
    cycle_minutes: float = duration(
        30.0, "time between two decisions about a stream", low=0.001, high=MINUTES_MAX, key="cycle_interval", unit="m"
    )

    @property
    def deletes(self) -> bool:
        """Whether the policy deletes anything."""
        return bool(self.keep_seconds or self.keep_bytes) if self.policy == "keep" else self.policy != "none"

    def problems(self) -> list[str]:
        """Contradictory or ineffective settings; empty: none."""
        if self.policy == "none" or not self.deletes:
            # A topic's policy none may stand below a namespace's keep.
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
            f"{self._key(name)}: has no effect, the policy is {self.policy}; without `policy` it has one"
            for name in KEEP_SETTINGS
            if getattr(self, name)
        ]
        wanted = {"size": "size", "time": "age"}.get(self.policy)
        for prefix in ("", "fallback_"):
            kinds = [kind for kind in _UNITS if self._has_limits(prefix, kind)]
            if prefix and len(kinds) > 1:
                found.append(f"{prefix}min_size and {prefix}min_age: limits are by size or by time, not both")
            if not prefix and wanted and wanted not in kinds:
                found.append(f"min_{wanted}: the policy {self.policy} needs to know what is kept always")
            for kind in kinds:
                found += self._limit_problems(prefix, kind)
        return found + self._silence_problems()

    def _keep_problems(self) -> list[str]:
        limited = [
            f"{each.metadata.get('key', each.name)}: has no effect, the policy is keep; it is for the policies size, "
            "time and consumption"
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
            # Retention would delete all recorded data that no subscriber holds back.
            instead = {"size": "keep_size", "age": "keep"}[kind]
            also = "" if prefix else f" To keep the newest part and no more, set {instead} alone, without policy"
            return [f"{prefix}min_{kind}: missing beside {prefix}max_{kind}; what is kept always?{also}"]
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
            (has_fallback and not is_queue, "fallback_min_*: has no effect, only the policy consumption looks at it"),
            (has_fallback and is_queue and not y, "fallback_min_*: has no effect without fallback_after"),
            (is_queue and y and not has_fallback, "fallback_after: needs fallback_min_size or fallback_min_age"),
        ]
        return [text for is_wrong, text in found if is_wrong]


#: Kind of a limit -> how its attributes end.
_UNITS = {"size": "mbytes", "age": "minutes"}
#: Retention settings that apply without a policy.
_WITHOUT_POLICY = frozenset({"policy", "record_minutes", "cycle_minutes"})
#: Retention settings of the policy keep.
KEEP_SETTINGS = ("keep_seconds", "keep_bytes", "keep_at_least_seconds", "keep_at_least_bytes")
#: Others that apply to the policy keep too.
_WITH_KEEP = _WITHOUT_POLICY | {"subscriber_timeout_minutes"}
