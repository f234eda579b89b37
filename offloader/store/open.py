"""Open stores: implementation by URL scheme, wrapped for limits, counts and retries.

Imports no SDK: an implementation's module is imported when a URL of its scheme is opened.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import cast

from offloader.errors import InvalidCall, Unsupported, install_hint
from offloader.runtime.clock import Clock, SystemClock
from offloader.settings import LimitSettings, StoreSettings
from offloader.store.attempts import AttemptStore
from offloader.store.base import ObjectStore, StoreOptions, require_place_only, without_secrets
from offloader.store.rate_limit import Limiter
from offloader.store.retrying import RetryingStore
from offloader.store.wrappers import ReadOnlyStore
from offloader.telemetry.recorder import NO_TELEMETRY, Recorder

_MODULES = {
    "abfs": "offloader.store.clouds.azure",
    "abfss": "offloader.store.clouds.azure",
    "az": "offloader.store.clouds.azure",
    "catalogue": "offloader.store.overlay",
    "memory": "offloader.store.memory",
    "file": "offloader.store.local",
    "gcs": "offloader.store.clouds.gcs",
    "gs": "offloader.store.clouds.gcs",
    "s3": "offloader.store.s3",
}
_CATALOGUE = "catalogue://"
_OTHER_MODULE = "offloader.store.fsspec"
#: Schemes whose packages come with an extra.
_EXTRAS = {"abfs": "azure", "abfss": "azure", "az": "azure", "gcs": "gcs", "gs": "gcs"}


def open_store(
    url: str,
    *,
    endpoint_url: str | None = None,
    region: str | None = None,
    access_key: str | None = None,
    secret_key: str | None = None,
    session_token: str | None = None,
    settings: StoreSettings | None = None,
    clock: Clock | None = None,
    read_only: bool = False,
    create: bool = True,
    limits: Limiter | LimitSettings | None = None,
    recorder: Recorder = NO_TELEMETRY,
) -> ObjectStore:
    """Open the object store at ``url``; calls on it are rate-limited, measured and retried (``stack``).

    Every *attempt* is counted, not only the call: see ``offloader.store.attempts.requests_of``.

    Args:
        url: ``s3://bucket/root``, ``gs://bucket/root``, ``az://container/root``, ``file:///directory``,
            ``memory://name``, ``catalogue:///directory`` (foreign objects, see ``offloader.store.overlay``), or any URL
            that fsspec supports (for reading).
        endpoint_url: the S3 server when it isn't AWS; default: the environment (``AWS_ENDPOINT_URL``).
        region: default: the environment's, else ``us-east-1``.
        access_key, secret_key, session_token: default: the SDK's own chain (environment, profile, web identity, role).
        settings: deadlines, retries, connections.
        clock: default: the machine's.
        read_only: writing verbs raise ``Unsupported``; nothing is created, not even a local directory.
        create: create a missing local directory, unless ``read_only``; buckets are never created.
        limits: of bandwidth and request rate; default: only the store's own throttling. A ``Limiter`` applies to all
            stores that share it.
        recorder: takes measurements of requests, for example ``offloader.telemetry.recorder.Metrics``.

    Raises:
        InvalidCall: no URL, or one of an unknown scheme, or one that carries credentials or more than a location;
            settings of S3 for another store.
        BucketMissing: opened for reading, or with ``create`` off, and the local directory doesn't exist.
        AccessDenied: the local directory can't be created or written.
        Unsupported: a package that the scheme needs isn't installed.
    """
    module = _module_of(url)
    if settings is not None and not read_only:
        _require_meant_for(url, settings)
    clock = clock or SystemClock()
    options = StoreOptions(
        endpoint_url=endpoint_url or None,
        region=region or None,
        access_key=access_key or None,
        secret_key=secret_key or None,
        session_token=session_token or None,
        settings=settings or StoreSettings(),
        clock=clock,
        read_only=read_only,
        create=create,
        limiter=Limiter(limits, clock) if isinstance(limits, LimitSettings) else limits,
        recorder=recorder,
    )
    return stack(_opened(module, url, options), options)


def open_raw(url: str, options: StoreOptions) -> ObjectStore:
    """The implementation at ``url``, without wrappers: requests aren't retried, limited or counted.

    Raises:
        InvalidCall, Unsupported: as ``open_store``.
    """
    return _opened(_module_of(url), url, options)


def _opened(module: ModuleType, url: str, options: StoreOptions) -> ObjectStore:
    if url.startswith(_CATALOGUE):
        return cast(ObjectStore, module.open_url(url, options, open_raw))
    return cast(ObjectStore, module.open_url(url, options))


def stack(raw: ObjectStore, options: StoreOptions) -> ObjectStore:
    """Wrap ``raw`` in attempts, then retries, then, if requested, the read-only wrapper."""
    limiter = options.limiter or Limiter(LimitSettings(), options.clock)
    attempts = AttemptStore(raw, limiter, recorder=options.recorder, clock=options.clock)
    store = RetryingStore(attempts, options.settings, options.clock, recorder=options.recorder)
    return ReadOnlyStore(store, hint="open the store for writing") if options.read_only else store


def _require_meant_for(url: str, settings: StoreSettings) -> None:
    """Refuse S3 settings for another store, where they would have no effect."""
    plain = StoreSettings()
    for name in () if url.startswith("s3://") else ("storage_class", "encryption", "kms_key"):
        if getattr(settings, name) != getattr(plain, name):
            raise InvalidCall(
                f"store.{name} is for s3:// only, not for {url}", hint="leave it out, and set it on the bucket itself"
            )


def _module_of(url: str) -> ModuleType:
    """The module whose ``open_url(url, options)`` opens ``url``."""
    scheme, separator, _ = url.partition("://")
    if not separator or not scheme:
        raise InvalidCall(
            f"{without_secrets(url)!r} is not a store's URL",
            hint="give s3://bucket/root, file:///directory or memory://name",
        )
    if scheme in _MODULES:
        require_place_only(url)
    try:
        return importlib.import_module(_MODULES.get(scheme, _OTHER_MODULE))
    except ImportError as error:
        extra = _EXTRAS.get(scheme)
        if extra is None:
            raise
        raise Unsupported(
            f"stores at {scheme}:// need packages that aren't installed: {error}", hint=install_hint(extra)
        ) from error
