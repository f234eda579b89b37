"""What a broker's settings mean for the offloader plugin. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

#: Name of the plugin's driver.
DRIVER = "offloader"
#: Versions of Pulsar that the plugin was tried with, both included.
VERSIONS_TRIED = (3, 0), (4, 2)
_DEFAULT_READ_PRIORITY = "tiered-storage-first"


class BrokerFinding(NamedTuple):
    """One setting: whether the plugin can't work with it, what it is, and what to do; no hint: it is right."""

    is_problem: bool
    what: str
    hint: str = ""


def settings_findings(settings: Mapping[str, str]) -> Iterator[BrokerFinding]:
    """Checks the effective settings of a broker, by name."""

    def value(name: str) -> str:
        found = settings.get(name, "").strip()
        return "" if found in ("null", "[]", "{}") else found

    driver = value("managedLedgerOffloadDriver")
    if driver == DRIVER:
        yield BrokerFinding(False, f"managedLedgerOffloadDriver is {DRIVER}")
    else:
        what = f"managedLedgerOffloadDriver is {driver or 'not set'}: the broker doesn't read through the plugin"
        hint = (
            f"set managedLedgerOffloadDriver={DRIVER} and start the broker again; adopt ledgers of another driver first"
        )
        yield BrokerFinding(True, what, hint)
    if not value("offloadersDirectory"):
        what = "offloadersDirectory is not set: the broker looks for the plugin nowhere"
        yield BrokerFinding(
            True, what, "set it to the folder that has the plugin's NAR file, and start the broker again"
        )
    # Most versions report no setting of an offloader's own: then nothing is known about it.
    if "managedLedgerOffloadServiceEndpoint" in settings and not value("managedLedgerOffloadServiceEndpoint"):
        yield BrokerFinding(
            False,
            "managedLedgerOffloadServiceEndpoint is not set: only the plugin's own settings file names this service",
            "set it to the HTTP address of this service, or name the endpoints in the plugin's settings file",
        )
    interceptors, exposes = (
        value("brokerEntryMetadataInterceptors"),
        value("exposingBrokerEntryMetadataToClientEnabled"),
    )
    if interceptors and exposes.lower() != "true":
        yield BrokerFinding(
            True,
            "brokerEntryMetadataInterceptors is set and exposingBrokerEntryMetadataToClientEnabled is not true: the "
            "stored entries lack what the broker adds, so every offload is refused",
            "set exposingBrokerEntryMetadataToClientEnabled=true and start the broker again; new entries are complete",
        )
    if processors := value("brokerEntryPayloadProcessors"):
        yield BrokerFinding(
            True,
            f"brokerEntryPayloadProcessors is {processors}: it changes the bytes between bookie and readers, so every "
            "offload is refused",
            "remove it from the broker's settings: the plugin doesn't work with payload processors",
        )
    yield from _advice(value)


def _advice(value: Any) -> Iterator[BrokerFinding]:
    """Settings with which the plugin works, and that cost something."""
    priority = value("managedLedgerDataReadPriority") or _DEFAULT_READ_PRIORITY
    if priority != "bookkeeper-first":
        yield BrokerFinding(
            False,
            f"managedLedgerDataReadPriority is {priority}: an offloaded ledger is read from the store while the bookie "
            "still has it",
            "set managedLedgerDataReadPriority=bookkeeper-first",
        )
    threshold = _whole(value("managedLedgerOffloadAutoTriggerSizeThresholdBytes"), -1)
    if threshold != 0:
        shown = "not set" if threshold < 0 else str(threshold)
        yield BrokerFinding(
            False,
            f"managedLedgerOffloadAutoTriggerSizeThresholdBytes is {shown}: the broker "
            + ("starts no offload by itself" if threshold < 0 else "keeps that much of each topic in BookKeeper"),
            "set it to 0: every closed ledger is offloaded; this service asks for what is left in any case",
        )
    lag_ms = _whole(value("managedLedgerOffloadDeletionLagMs"), -1)
    if lag_ms < 0:
        yield BrokerFinding(
            False,
            "managedLedgerOffloadDeletionLagMs is not set: BookKeeper keeps every offloaded ledger",
            "set it to the time that BookKeeper keeps its copy after the offload, 14400000 for 4 hours",
        )


def _whole(text: str, default: int) -> int:
    return int(text) if re.fullmatch(r"-?\d{1,19}", text) else default


def namespace_findings(policies: Mapping[str, Any]) -> Iterator[BrokerFinding]:
    """Checks the policies of a namespace: its offload policy replaces the broker's settings."""
    offload = policies.get("offload_policies")
    driver = str(offload.get("managedLedgerOffloadDriver") or "") if isinstance(offload, dict) else ""
    if driver and driver != DRIVER:
        yield BrokerFinding(
            True,
            f"its offload policy has the driver {driver}: the broker reads its ledgers with that one and not through "
            "the plugin",
            "`pulsar-admin namespaces remove-offload-policies`, after the ledgers that it offloaded were adopted",
        )


def version_finding(version: str) -> BrokerFinding:
    """Checks the version of a broker, ``4.0.7``."""
    found = re.match(r"(\d{1,4})\.(\d{1,4})", version)
    low, high = VERSIONS_TRIED
    tried = f"{low[0]}.{low[1]} to {high[0]}.{high[1]}"
    if found is None:
        return BrokerFinding(
            False, f"the broker's version is {version or 'not known'}", f"the plugin was tried with {tried}"
        )
    if low <= (int(found[1]), int(found[2])) <= high:
        return BrokerFinding(False, f"the broker is version {version}, and the plugin was tried with {tried}")
    return BrokerFinding(
        False,
        f"the broker is version {version}, and the plugin was tried with {tried} only",
        "try it with copies of data",
    )
