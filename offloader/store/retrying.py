"""Retries: bounded, jittered, and only where a repeat is safe.

An unknown outcome becomes a certain one only after a read. Not to be stacked on another retrying layer.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from offloader.errors import InvalidCall, NotFound, OffloaderError, OutcomeUnknown, PreconditionFailed, StoreUnavailable
from offloader.runtime.clock import Clock
from offloader.settings import StoreSettings
from offloader.store.base import OVERWRITE, Body, DeleteFailure, ObjectInfo, ObjectStore, PartInfo, PutMode
from offloader.store.rate_limit import throttled_s
from offloader.store.wrappers import Request, StoreWrapper, layer_of
from offloader.telemetry.recorder import NO_TELEMETRY, Recorder

_Answer = TypeVar("_Answer")

#: Nothing was changed: every verb may be repeated.
_UNCHANGED = (StoreUnavailable,)
#: A repeat is harmless even if the first attempt took effect.
_HARMLESS = (StoreUnavailable, OutcomeUnknown)


#: For a store that serves an interactive caller.
_IMPATIENT_RETRIES_MAX = 1
_IMPATIENT_TOTAL_S_MAX = 2.0


class _SomeLeft(StoreUnavailable):
    """A delete succeeded partly, and some keys are worth another attempt."""


def retry_delay_s(settings: StoreSettings, attempt: int, fraction: float) -> float:
    """Wait before attempt ``attempt`` + 1 (``attempt`` from 1) with full jitter: ``fraction`` (0..1, drawn by the
    caller) of a ceiling that doubles from ``retry_delay_first_s`` to ``retry_delay_max_s``. Jitter spreads the retries
    of clients that were refused together."""
    ceiling = min(settings.retry_delay_max_s, settings.retry_delay_first_s * 2.0 ** min(attempt - 1, 60))
    return ceiling * fraction


class RetryingStore(StoreWrapper):
    """Retries calls on ``inner``, up to ``1 + retries_max`` attempts within ``retry_total_s``.

    Idempotent reads and writes are repeated. If a conditional put is refused after an earlier attempt of the same call
    had an unknown outcome, the object is read back: equal bytes prove that the earlier attempt succeeded. A completion
    of unknown outcome is repeated only while the upload exists.
    """

    def __init__(
        self,
        inner: ObjectStore,
        settings: StoreSettings,
        clock: Clock,
        randomness: random.Random | None = None,
        recorder: Recorder = NO_TELEMETRY,
    ) -> None:
        super().__init__(inner)
        self.settings, self.clock = settings, clock
        self._random = randomness or random.Random()  # noqa: S311 - jitter, not a secret
        self.recorder = recorder
        self._closing = threading.Event()

    def _repeat(self, call: Callable[[], _Answer], kinds: tuple[type[OffloaderError], ...]) -> _Answer:
        started_s = self._spent_s()
        attempt = 1
        while True:
            try:
                return call()
            except kinds as error:
                if not self._wait_for_next(attempt, started_s):
                    error.add_note(f"gave up after attempt {attempt}")
                    raise
            attempt += 1
            self.recorder.add("retries_total")

    def _wait_for_next(self, attempt: int, started_s: float) -> bool:
        """Wait before the next attempt. False when the budget is spent or the store is closing."""
        if attempt > self.settings.retries_max:
            return False
        delay_s = retry_delay_s(self.settings, attempt, self._random.random())
        if self._spent_s() - started_s + delay_s > self.settings.retry_total_s:
            return False
        return not self.clock.wait(self._closing, delay_s)

    def _spent_s(self) -> float:
        """Elapsed time without rate-limit waits, which don't count against the retry budget."""
        return self.clock.monotonic_s() - throttled_s()

    def around(self, request: Request, call: Callable[[], _Answer]) -> _Answer:  # noqa: ARG002 - all are alike
        """Make the call and repeat it: harmless for the verbs that aren't overridden below. A lost response to
        ``begin_upload`` leaves an upload without parts, which the reconciler finds."""
        return self._repeat(call, _HARMLESS)

    def put(
        self,
        key: str,
        body: Body,
        *,
        mode: PutMode = OVERWRITE,
        metadata: Mapping[str, str] | None = None,
        crc32c: int | None = None,
    ) -> ObjectInfo:
        unknown: OutcomeUnknown | None = None

        def attempt() -> ObjectInfo:
            nonlocal unknown
            try:
                return self.inner.put(key, body, mode=mode, metadata=metadata, crc32c=crc32c)
            except OutcomeUnknown as error:
                unknown = error
                raise
            except PreconditionFailed as refused:
                if unknown is None:
                    raise
                return self._own_earlier_put(key, body, mode, refused, unknown)
            except OffloaderError as error:
                # This attempt changed nothing, but an earlier one may have: the caller needs that error.
                if unknown is None:
                    raise
                raise unknown from error

        return self._repeat(attempt, _HARMLESS)

    def _own_earlier_put(
        self, key: str, body: Body, mode: PutMode, refused: PreconditionFailed, unknown: OutcomeUnknown
    ) -> ObjectInfo:
        """Whether an earlier attempt wrote the object. Equal bytes: it did. Other bytes under a created key: another
        writer's. Other bytes where an ETag was replaced: unknown, as our write may have been replaced since."""
        try:
            there, info = self.inner.get(key)
        except NotFound as gone:
            raise OutcomeUnknown(unknown.message, hint=f"{key} was refused as existing and then not found") from gone
        except StoreUnavailable as error:
            raise unknown from error
        if there == body:
            return info
        if mode.create_only:
            raise refused
        raise unknown from refused

    def delete(self, keys: Sequence[str]) -> Sequence[DeleteFailure]:
        """Retry keys that failed for a transient reason. Returns the remaining failures."""
        left = keys
        lasting: list[DeleteFailure] = []
        passing: list[DeleteFailure] = []

        def attempt() -> None:
            nonlocal left
            # After an unknown outcome all keys are retried: a missing key counts as removed.
            failures = self.inner.delete(left)
            lasting.extend(failure for failure in failures if not failure.retryable)
            passing[:] = [failure for failure in failures if failure.retryable]
            left = [failure.key for failure in passing]
            if left:
                raise _SomeLeft(f"{self.url}: {len(left)} keys not removed")

        with contextlib.suppress(_SomeLeft):
            self._repeat(attempt, _HARMLESS)
        return [*lasting, *passing]

    def delete_if_match(self, key: str, etag: str) -> None:
        """A single attempt: a repeat could meet another writer's object."""
        self.inner.delete_if_match(key, etag)

    def complete_upload(self, key: str, upload_id: str, parts: Sequence[PartInfo]) -> ObjectInfo:
        unknown: OutcomeUnknown | None = None

        def attempt() -> ObjectInfo:
            nonlocal unknown
            try:
                return self.inner.complete_upload(key, upload_id, parts)
            except OutcomeUnknown as error:
                unknown = error
                self._check_upload_is_there(key, upload_id, unknown)
                raise StoreUnavailable(unknown.message, hint=unknown.hint) from unknown
            except StoreUnavailable:
                raise
            except OffloaderError as error:
                # An earlier attempt may have used up the parts: the caller needs that error.
                if unknown is None:
                    raise
                raise unknown from error

        try:
            return self._repeat(attempt, _UNCHANGED)
        except StoreUnavailable as error:
            if unknown is None:
                raise
            raise unknown from error

    def _check_upload_is_there(self, key: str, upload_id: str, unknown: OutcomeUnknown) -> None:
        """Return only while the upload is open: a retry is useful then, even though a completion already sent may still
        take effect."""
        try:
            self.inner.list_parts(key, upload_id)
        except OffloaderError as error:
            raise unknown from error

    def close(self) -> None:
        self._closing.set()
        super().close()


def require_store_settings(store: ObjectStore, settings: StoreSettings) -> None:
    """Refuse settings that the store, opened with others, wouldn't obey.

    ``single_writer`` isn't compared: the writers check it.

    Raises:
        InvalidCall: ``settings`` aren't the defaults, and the store was opened with others.
    """
    wanted = replace(settings, single_writer=False)
    layer = layer_of(store, RetryingStore)
    if wanted != StoreSettings() and (layer is None or replace(layer.settings, single_writer=False) != wanted):
        raise InvalidCall(
            f"the settings store have no effect on {store.url}: it was opened with others",
            hint="open it with open_store(..., settings=settings.store)",
        )


def with_short_retries(store: ObjectStore) -> ObjectStore:
    """The same store with at most one retry, for callers that poll. Limits, counts and connections stay those of
    ``store``, which the caller has to close itself.

    A store that ``open_store`` didn't open for writing is returned unchanged.
    """
    if not isinstance(store, RetryingStore):
        return store
    settings = replace(
        store.settings,
        retries_max=min(store.settings.retries_max, _IMPATIENT_RETRIES_MAX),
        retry_total_s=min(store.settings.retry_total_s, _IMPATIENT_TOTAL_S_MAX),
    )
    return RetryingStore(store.inner, settings, store.clock, recorder=store.recorder)
