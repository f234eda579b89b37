"""Policies of a namespace that work against an offloader, in words; pure.

Owns which of them matter and why. Must never judge what it can't read: unknown policies are nobody's business.
"""

from __future__ import annotations

from typing import Any

__all__ = ["policy_warnings"]

_EVICTION = "consumer_backlog_eviction"


def policy_warnings(document: object) -> tuple[str, ...]:
    """What in a namespace's policies fights with offloading, a line each; nothing: all is well.

    Args:
        document: the parsed answer of ``/admin/v2/namespaces/TENANT/NAMESPACE``. What it doesn't set is the broker's
            configuration, which this doesn't see.
    """
    if not isinstance(document, dict):
        return ()
    found = []
    ttl_s = _number(document.get("message_ttl_in_seconds"))
    if ttl_s > 0:
        found.append(
            f"message TTL is {ttl_s} s: it acknowledges for every subscription, also the offloader's; what is older "
            "and not offloaded yet is lost to it; set the TTL to 0, or well above the longest stop you plan for"
        )
    for kind, quota in _fields(document.get("backlog_quota_map")).items():
        if _fields(quota).get("policy") == _EVICTION:
            found.append(
                f"backlog quota {kind} evicts ({_EVICTION}): it moves the offloader's subscription over what isn't "
                "offloaded yet; use producer_request_hold, or no quota"
            )
    expires = _number(document.get("subscription_expiration_time_minutes"))
    if expires > 0:
        found.append(
            f"subscriptions without a consumer are deleted after {expires} minutes: while the offloader is stopped for "
            "longer nothing keeps what isn't offloaded; set subscription expiration to 0"
        )
    offload = _fields(document.get("offload_policies"))
    thresholds = (
        document.get("offload_threshold"),
        document.get("offload_threshold_in_seconds"),
        offload.get("managedLedgerOffloadThresholdInBytes"),
        offload.get("managedLedgerOffloadThresholdInSeconds"),
    )
    if any(_number(each) >= 0 for each in thresholds if each is not None):
        found.append(
            "the broker offloads by itself too: every ledger is stored twice; set its offload thresholds to -1, or "
            "leave the namespace to it and use `offloader adopt`"
        )
    return tuple(found)


def _number(value: Any) -> int:
    return int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else 0


def _fields(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
