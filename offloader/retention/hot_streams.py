"""Streams that only a hot tier has: they get a manifest, so that retention rules them like any other.

Owns beginning it, with the method ``none``. Must never begin one of a stream that no policy rules or that is offloaded,
nor a second time of one that was deleted.

Where a stream's records and subscribers are is told by its catalogue entry, and where it begins by its manifest. A
stream that is never offloaded has neither until somebody makes them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable

from formats.manifest import SetMethod
from offloader.clock import Clock
from offloader.errors import OffloaderError
from offloader.manifest.log import ManifestLog
from offloader.retention.place import home_of
from offloader.retention.policies import policy_of
from offloader.settings import Settings
from offloader.store.base import ObjectStore
from offloader.store.probe import require_conditional_puts

__all__ = ["HotStreams"]

_log = logging.getLogger("offloader.retention")
_METHOD = "none"


class HotStreams:
    """The streams whose hot tier this process has. Not thread-safe: one caller at a time.

    Args:
        store: open for writing.
        clock: of this machine.
        settings_of: the settings of a stream or topic.
        names: which streams these are now.
        entropy: source of random bytes.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        clock: Clock,
        settings_of: Callable[[str], Settings],
        names: Callable[[], Iterable[str]],
        entropy: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._store, self._clock, self._settings_of, self._names = store, clock, settings_of, names
        self._entropy = entropy
        self._settled: set[str] = set()
        self._is_probed = False

    def enrol(self) -> list[str]:
        """Sees to it that each stream that isn't offloaded and that a policy rules has a manifest that says so.

        Returns:
            The streams that it was written for now. One that fails is logged, and tried again by the next call.
        """
        names = set(self._names())
        self._settled &= names
        begun = []
        for stream in sorted(names - self._settled):
            try:
                if self._is_ruled(stream):
                    begun += [stream] if self._begin(stream) else []
                    self._settled.add(stream)
            except OffloaderError as error:
                extra = {"event": "retention_failed", "stream": stream, "retryable": error.retryable}
                _log.warning("retention of stream %s, which isn't offloaded: %s", stream, error, extra=extra)
        return begun

    def _is_ruled(self, stream: str) -> bool:
        if self._settings_of(stream).offload.method != _METHOD:
            return False  # whoever offloads it begins its manifest
        name, _ = home_of(self._store, stream)
        return policy_of(name, self._settings_of(name).retention) is not None

    def _begin(self, stream: str) -> bool:
        settings = self._settings_of(stream)
        if not self._is_probed:
            # Two manifests that both "win" would disagree about where the stream begins.
            require_conditional_puts(self._store, single_writer=settings.store.single_writer)
            self._is_probed = True
        log = ManifestLog(self._store, stream, clock=self._clock, entropy=self._entropy, settings=settings.manifest)
        if log.load(create=True).method == _METHOD:
            return False
        # Of one that was offloaded before too: what nobody is going to offload must not hold the head back.
        log.amend([SetMethod(_METHOD)])
        return True
