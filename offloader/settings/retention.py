"""Retention settings, and the check for contradictory ones."""

from __future__ import annotations

from dataclasses import dataclass, fields

from offloader.settings.fields import Duration, Size, choice, duration, flag, size, str_of


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
    keep: Duration = duration(
        "0s",
        "maximum age of entries; older entries are deleted, read or not; 0: no deletion by age",
        low="0s",
        high="36500d",
    )
    keep_size: Size = size(
        "0B",
        "maximum size of a stream; the oldest entries above it are deleted, read or not; 0: no deletion by size",
        low="0B",
        high="1048576TiB",
    )
    keep_at_least: Duration = duration("0s", "minimum age of entries that keep_size deletes", low="0s", high="36500d")
    keep_at_least_size: Size = size(
        "0B", "size of the newest entries that keep does not delete", low="0B", high="1048576TiB"
    )
    min_size: Size = size("0B", "minimum size of the newest entries, always kept", low="0B", high="1048576TiB")
    max_size: Size = size("0B", "maximum size kept for subscribers", low="0B", high="1048576TiB")
    min_age: Duration = duration("0s", "minimum age before an entry may be deleted", low="0s", high="36500d")
    max_age: Duration = duration("0s", "maximum age of entries kept for subscribers", low="0s", high="36500d")
    subscriber_timeout: Duration = duration(
        "0s",
        "inactivity after which a subscriber no longer holds back deletion; 0: it always holds back",
        low="0s",
        high="36500d",
    )
    fallback_after: Duration = duration(
        "0s", "inactivity of all subscribers after which all of them are ignored; 0: never", low="0s", high="36500d"
    )
    fallback_min_size: Size = size(
        "0B", "policy consumption: minimum size kept while all subscribers are ignored", low="0B", high="1048576TiB"
    )
    fallback_max_size: Size = size(
        "0B", "policy consumption: maximum size kept while all subscribers are ignored", low="0B", high="1048576TiB"
    )
    fallback_min_age: Duration = duration(
        "0s", "policy consumption: minimum age kept while all subscribers are ignored", low="0s", high="36500d"
    )
    fallback_max_age: Duration = duration(
        "0s", "policy consumption: maximum age kept while all subscribers are ignored", low="0s", high="36500d"
    )
    protect_unpublished: bool = flag(False, "let subscribers that never published a position hold back all entries")
    record_interval: Duration = duration(
        "0s",
        "minimum time between two recorded stream cuts, the candidates for truncation; 0s: every cycle with new "
        "entries records one",
        low="0s",
        high="36500d",
    )
    cycle_interval: Duration = duration(
        "30m", "time between two retention decisions for a stream", low="60ms", high="36500d"
    )

    @property
    def deletes(self) -> bool:
        """Whether the policy deletes anything."""
        return bool(self.keep or self.keep_size) if self.policy == "keep" else self.policy != "none"

    def problems(self) -> list[str]:
        """Contradictory or ineffective settings, as texts."""
        if self.policy == "none" or not self.deletes:
            # A topic may set the policy none below a namespace with keep.
            idle = [each for each in fields(self) if each.name not in _WITHOUT_POLICY and getattr(self, each.name)]
            why = "the policy is none" if self.policy == "none" else "no policy is set, nor keep or keep_size"
            return [
                f"{each.name}: has no effect, {why}"
                for each in idle
                if self.policy == "keep" or each.name not in KEEP_SETTINGS
            ]
        if self.policy == "keep":
            return self._keep_problems()
        found = [
            f"{name}: has no effect, the policy is {self.policy}; remove `policy` to use it"
            for name in KEEP_SETTINGS
            if getattr(self, name)
        ]
        wanted = {"size": "size", "time": "age"}.get(self.policy)
        for prefix in ("", "fallback_"):
            kinds = [kind for kind in _KINDS if self._has_limits(prefix, kind)]
            if prefix and len(kinds) > 1:
                found.append(f"{prefix}min_size and {prefix}min_age: limits are by size or by time, not both")
            if not prefix and wanted and wanted not in kinds:
                found.append(f"min_{wanted}: the policy {self.policy} needs this minimum")
            for kind in kinds:
                found += self._limit_problems(prefix, kind)
        return found + self._silence_problems()

    def _keep_problems(self) -> list[str]:
        limited = [
            f"{each.name}: has no effect, the policy is keep; only the policies size, time and consumption use it"
            for each in fields(self)
            if each.name not in {*KEEP_SETTINGS, *_WITH_KEEP} and getattr(self, each.name)
        ]
        return limited + [
            f"{self._shown(least)} is above {self._shown(most)}"
            for least, most in (("keep_at_least", "keep"), ("keep_at_least_size", "keep_size"))
            if 0 < getattr(self, most) < getattr(self, least)
        ]

    def _has_limits(self, prefix: str, kind: str) -> bool:
        return any(getattr(self, f"{prefix}{which}_{kind}") for which in ("min", "max"))

    def _limit_problems(self, prefix: str, kind: str) -> list[str]:
        least, most = (getattr(self, f"{prefix}{which}_{kind}") for which in ("min", "max"))
        if not least:
            # Without a minimum, retention would delete all recorded data that no subscriber holds back.
            instead = {"size": "keep_size", "age": "keep"}[kind]
            also = "" if prefix else f"; to limit the stream without a minimum, set {instead} alone, without policy"
            return [f"{prefix}min_{kind}: missing, required with {prefix}max_{kind}{also}"]
        names = (f"{prefix}{which}_{kind}" for which in ("min", "max"))
        return [" is above ".join(map(self._shown, names))] if 0 < most < least else []

    def _shown(self, name: str) -> str:
        return f"{name} = {str_of(getattr(self, name))}"

    def _silence_problems(self) -> list[str]:
        x, y = self.subscriber_timeout, self.fallback_after
        has_fallback = any(self._has_limits("fallback_", kind) for kind in _KINDS)
        is_queue = self.policy == "consumption"
        names = "fallback_after", "subscriber_timeout"
        found = [
            (y and not x, "fallback_after: has no effect without subscriber_timeout"),
            (x and 0 < y < x, " is below ".join(map(self._shown, names))),
            (has_fallback and not is_queue, "fallback_min_*: has no effect, only the policy consumption uses it"),
            (has_fallback and is_queue and not y, "fallback_min_*: has no effect without fallback_after"),
            (is_queue and y and not has_fallback, "fallback_after: needs fallback_min_size or fallback_min_age"),
        ]
        return [text for is_wrong, text in found if is_wrong]


#: Kinds of limits.
_KINDS = ("size", "age")
#: Retention settings that apply without a policy.
_WITHOUT_POLICY = frozenset({"policy", "record_interval", "cycle_interval"})
#: Retention settings of the policy keep.
KEEP_SETTINGS = ("keep", "keep_size", "keep_at_least", "keep_at_least_size")
#: Further settings that apply to the policy keep.
_WITH_KEEP = _WITHOUT_POLICY | {"subscriber_timeout"}
