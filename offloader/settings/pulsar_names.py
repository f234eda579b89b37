"""Names of Pulsar's offload settings, as in ``broker.conf``, offload policies and PIP-76.

A settings file may use the names with the same meaning in offloader. Other names are refused, and the error names the
replacement: driver and bucket are one URL, secrets are never in a settings file, and block sizes mean something else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from offloader.settings.fields import amount_text


def _same(given: Any) -> Any:
    return given


def _in(unit: str) -> Callable[[Any], str]:
    return lambda given: amount_text(given, unit)


def _lag(given: Any) -> str:
    """Milliseconds. Pulsar uses any negative number for "never"."""
    return amount_text(-1 if isinstance(given, int | float) and given < 0 else given, "ms")


def _words(given: Any) -> Any:
    return given.lower().replace("_", "-") if isinstance(given, str) else given


def _url(given: Any) -> Any:
    if isinstance(given, str) and given and "://" not in given:
        raise ValueError(f"{given!r} has no scheme: use https://{given} or http://{given}")
    return given


#: Name -> the setting, and a conversion to the form in a settings file.
TRANSLATED: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "maxSizePerOffloadSegmentMbytes": ("offload.segment_size_max", _in("MiB")),
    "maxOffloadSegmentRolloverTimeMinutes": ("offload.segment_age_max", _in("m")),
    "managedLedgerOffloadThresholdInBytes": ("offload.offload_threshold_size", _in("B")),
    "managedLedgerOffloadAutoTriggerSizeThresholdBytes": ("offload.offload_threshold_size", _in("B")),
    "managedLedgerOffloadThresholdInSeconds": ("offload.offload_threshold_age", _in("s")),
    "managedLedgerOffloadDeletionLagMs": ("offload.deletion_lag", _lag),
    "managedLedgerOffloadDeletionLagInMillis": ("offload.deletion_lag", _lag),
    "managedLedgerOffloadedReadPriority": ("read.read_priority", _words),
    "managedLedgerDataReadPriority": ("read.read_priority", _words),
    "managedLedgerOffloadServiceEndpoint": ("serve.endpoint_url", _url),
    "s3ManagedLedgerOffloadServiceEndpoint": ("serve.endpoint_url", _url),
    "managedLedgerOffloadRegion": ("serve.region", _same),
    "s3ManagedLedgerOffloadRegion": ("serve.region", _same),
}
_STORE = "serve.store"
_CREDENTIALS = "credentials come from the environment or the machine (docs/reference/stores.md)"
#: Name -> the key to use instead, or a text (with a space in it) that explains the alternative.
REFUSED: Mapping[str, str] = {
    "managedLedgerOffloadDriver": _STORE,
    "managedLedgerOffloadBucket": _STORE,
    "s3ManagedLedgerOffloadBucket": _STORE,
    "gcsManagedLedgerOffloadBucket": _STORE,
    "fileSystemURI": _STORE,
    "fileSystemProfilePath": _STORE,
    "gcsManagedLedgerOffloadRegion": "a Google Cloud Storage bucket determines its region: leave it out",
    "managedLedgerOffloadMaxThreads": "offload.workers_max",
    "managedLedgerOffloadReadThreads": "read.requests_in_flight_max",
    "managedLedgerOffloadPrefetchRounds": "read.ahead_size_max",
    "managedLedgerOffloadMaxBlockSizeInBytes": "offload.part_size",
    "s3ManagedLedgerOffloadMaxBlockSizeInBytes": "offload.part_size",
    "gcsManagedLedgerOffloadMaxBlockSizeInBytes": "offload.part_size",
    "managedLedgerOffloadReadBufferSizeInBytes": "read.request_size",
    "s3ManagedLedgerOffloadReadBufferSizeInBytes": "read.request_size",
    "gcsManagedLedgerOffloadReadBufferSizeInBytes": "read.request_size",
    "s3ManagedLedgerOffloadCredentialId": _CREDENTIALS,
    "s3ManagedLedgerOffloadCredentialSecret": _CREDENTIALS,
    "s3ManagedLedgerOffloadRole": _CREDENTIALS,
    "s3ManagedLedgerOffloadRoleSessionName": _CREDENTIALS,
    "gcsManagedLedgerOffloadServiceAccountKeyFile": _CREDENTIALS,
    "offloadersDirectory": "offloader loads no offloader packages: leave it out",
    "managedLedgerExtraConfigurations": "there are no extra configurations: leave it out",
}


def translation_of(key: str) -> tuple[str, Callable[[Any], Any]] | None:
    """The setting of a Pulsar name, with the conversion of its value; ``None``: not a Pulsar name.

    Args:
        key: a name alone, or prefixed with the section of the setting.

    Raises:
        ValueError: a refused Pulsar name; the message says what to use instead.
    """
    section, _, name = key.rpartition(".")
    if name in REFUSED and section in ("", "offload", "read", "serve"):
        instead = REFUSED[name]
        raise ValueError(f"is a Pulsar setting: {instead if ' ' in instead else f'use {instead}{_example(instead)}'}")
    found = TRANSLATED.get(name)
    return found if found is not None and section in ("", found[0].partition(".")[0]) else None


def _example(key: str) -> str:
    return ', for example "s3://BUCKET"' if key == _STORE else ""
