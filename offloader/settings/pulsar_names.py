"""Names of Pulsar's own offload settings, as in ``broker.conf``, offload policies and PIP-76.

A settings file may use those that mean the same here. Those that don't are refused with the name to use: a bucket and a
driver are one URL here, secrets never are in a file, and block sizes mean something else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def _same(given: Any) -> Any:
    return given


def _minutes(given: Any) -> Any:
    """Milliseconds as minutes; a negative number is Pulsar's "never", -1 here."""
    if not isinstance(given, int | float) or isinstance(given, bool):
        return given
    return -1 if given < 0 else given / 60_000


def _words(given: Any) -> Any:
    return given.lower().replace("_", "-") if isinstance(given, str) else given


def _url(given: Any) -> Any:
    if isinstance(given, str) and given and "://" not in given:
        raise ValueError(f"{given!r} has no scheme: https://{given}, or http://{given}")
    return given


#: Name -> the setting, and its value in the setting's unit.
TRANSLATED: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "maxSizePerOffloadSegmentMbytes": ("offload.max_size_per_offload_segment_mbytes", _same),
    "maxOffloadSegmentRolloverTimeMinutes": ("offload.max_offload_segment_rollover_time_minutes", _same),
    "managedLedgerOffloadThresholdInBytes": ("offload.offload_threshold_bytes", _same),
    "managedLedgerOffloadAutoTriggerSizeThresholdBytes": ("offload.offload_threshold_bytes", _same),
    "managedLedgerOffloadThresholdInSeconds": ("offload.offload_threshold_seconds", _same),
    "managedLedgerOffloadDeletionLagMs": ("offload.deletion_lag_minutes", _minutes),
    "managedLedgerOffloadDeletionLagInMillis": ("offload.deletion_lag_minutes", _minutes),
    "managedLedgerOffloadedReadPriority": ("read.read_priority", _words),
    "managedLedgerDataReadPriority": ("read.read_priority", _words),
    "managedLedgerOffloadServiceEndpoint": ("serve.endpoint_url", _url),
    "s3ManagedLedgerOffloadServiceEndpoint": ("serve.endpoint_url", _url),
    "managedLedgerOffloadRegion": ("serve.region", _same),
    "s3ManagedLedgerOffloadRegion": ("serve.region", _same),
}
_STORE = "serve.store"
_CREDENTIALS = "credentials are the environment's or the machine's (docs/reference/stores.md)"
#: Name -> the key here that does the same in another way, or, with a space in it, what to do instead.
REFUSED: Mapping[str, str] = {
    "managedLedgerOffloadDriver": _STORE,
    "managedLedgerOffloadBucket": _STORE,
    "s3ManagedLedgerOffloadBucket": _STORE,
    "gcsManagedLedgerOffloadBucket": _STORE,
    "fileSystemURI": _STORE,
    "fileSystemProfilePath": _STORE,
    "gcsManagedLedgerOffloadRegion": "a bucket of Google Cloud Storage has its region already",
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
    "offloadersDirectory": "this process needs no offloader packages: leave it out",
    "managedLedgerExtraConfigurations": "there are no further configurations: leave it out",
}


def translation_of(key: str) -> tuple[str, Callable[[Any], Any]] | None:
    """The setting that a key means, with the conversion of its value; ``None``: it isn't one of Pulsar's names.

    Args:
        key: a name alone, or in the section of the setting.

    Raises ``ValueError``: the name is Pulsar's, and isn't used here; says what to use.
    """
    section, _, name = key.rpartition(".")
    if name in REFUSED and section in ("", "offload", "read", "serve"):
        instead = REFUSED[name]
        raise ValueError(f"is Pulsar's: {instead if ' ' in instead else f'use {instead}{_example(instead)}'}")
    found = TRANSLATED.get(name)
    return found if found is not None and section in ("", found[0].partition(".")[0]) else None


def _example(key: str) -> str:
    return ', for example "s3://BUCKET"' if key == _STORE else ""
