"""Which policy a stream has, out of its settings.

Owns turning settings into a policy and saying it in words. Must never decide what goes.

Rules: the retention specification, section 4. Settings are in MB and minutes for people; policies in bytes and ms.
"""

from __future__ import annotations

from offloader.errors import InvalidCall
from offloader.retention.policy import Limits, Policy, PolicyKind, Unit
from offloader.settings import RetentionSettings

__all__ = ["is_internal", "limits_text", "policy_of", "policy_text", "size_text", "span_text"]

_BYTES_PER_MB = 1024 * 1024
_MS_PER_MINUTE = 60_000
_KINDS = {kind.value: kind for kind in PolicyKind}
_SPANS = ((24 * 3_600_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"), (1, "ms"))
_SIZES = ((1024**4, "TiB"), (1024**3, "GiB"), (1024**2, "MiB"), (1024, "KiB"), (1, "B"))


def is_internal(stream: str) -> bool:
    """Whether a stream is one that a broker keeps for itself, which no policy rules: its last level begins with _."""
    return stream.rpartition("/")[2].startswith("_")


def policy_of(stream: str, settings: RetentionSettings) -> Policy | None:
    """What is wanted of a stream; ``None``: nothing of it goes by itself.

    Raises:
        InvalidCall: the settings contradict each other; all contradictions are named.
    """
    problems = settings.problems()
    if problems:
        raise InvalidCall(
            f"stream {stream}: {'; '.join(f'retention.{each}' for each in problems)}", hint="nothing of it is deleted"
        )
    if settings.policy == "none" or is_internal(stream):
        return None
    return Policy(
        kind=_KINDS[settings.policy],
        limits=_limits(settings, ""),
        subscriber_timeout_ms=_ms(settings.subscriber_timeout_minutes),
        fallback_after_ms=_ms(settings.fallback_after_minutes),
        fallback=_limits(settings, "fallback_"),
        protect_unpublished=settings.protect_unpublished,
    )


def _limits(settings: RetentionSettings, prefix: str) -> Limits | None:
    for unit, name, factor in ((Unit.SIZE, "mbytes", _BYTES_PER_MB), (Unit.TIME, "minutes", _MS_PER_MINUTE)):
        least, most = (round(getattr(settings, f"{prefix}{which}_{name}") * factor) for which in ("min", "max"))
        if least or most:
            return Limits(unit, least, most or None)
    return None


def _ms(minutes: float) -> int | None:
    return max(1, round(minutes * _MS_PER_MINUTE)) if minutes else None


def policy_text(policy: Policy | None) -> str:
    """A policy in words, one line."""
    if policy is None:
        return "no policy: nothing goes by itself"
    words = "what all subscribers have read goes" if policy.limits is None else limits_text(policy.limits)
    if policy.subscriber_timeout_ms is not None:
        words += f"; who is silent for {span_text(policy.subscriber_timeout_ms)} holds nothing back"
    if policy.fallback_after_ms is not None:
        words += f"; after {span_text(policy.fallback_after_ms)} of silence of all"
        words += " nobody does" if policy.fallback is None else f": {limits_text(policy.fallback)}"
    return f"by {policy.kind.value}: {words}"


def limits_text(limits: Limits) -> str:
    """``keeps at least 1 GiB, unread data up to 10 GiB``."""
    text = span_text if limits.unit is Unit.TIME else size_text
    most = "without a limit" if limits.max is None else f"up to {text(limits.max)}"
    return f"keeps at least {text(limits.min)}, unread data {most}"


def span_text(ms: int) -> str:
    """``90_000`` -> ``"1.5 min"``."""
    return _in_units(ms, _SPANS)


def size_text(size_bytes: int) -> str:
    """``1536`` -> ``"1.5 KiB"``."""
    return _in_units(size_bytes, _SIZES)


def _in_units(amount: int, units: tuple[tuple[int, str], ...]) -> str:
    for factor, name in units:
        if abs(amount) >= factor:
            return f"{amount / factor:.3g} {name}" if amount % factor else f"{amount // factor} {name}"
    return f"{amount} {units[-1][1]}"
