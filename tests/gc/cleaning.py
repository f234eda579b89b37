"""A stream with segments in a store, and rounds of cleanup over it: what the tests of cleanup share."""

from __future__ import annotations

from itertools import count

from formats.entries import Position
from offloader.gc.sweep import CleanupReport, cleanup_stream
from offloader.manifest.log import ManifestLog, load_manifest
from offloader.manifest.protection import TIME_KEY
from offloader.manifest.state import ManifestState
from offloader.retention.truncate import truncate_stream
from offloader.settings import Settings
from offloader.store.memory import MemoryStore
from offloader.testing.faulty_store import FaultyStore
from offloader.testing.manual_clock import ManualClock
from tests.support.streams import StreamWriter, batch_of

STREAM = "public/default/persistent/orders"
HOUR_S = 3600.0
_names = count()


class Bench:
    """Ledgers 1 to ``ledgers``, a segment of ten entries each; cleanup sees the store through ``store``."""

    def __init__(self, ledgers: int = 4, **cleanup: object) -> None:
        self.clock = ManualClock()
        self.memory = MemoryStore(f"cleanup-{next(_names)}", "", self.clock)
        self.store = FaultyStore(self.memory)
        self.settings = Settings.of({"cleanup": {"allow_large_delete": True, **cleanup}})
        self.writer = StreamWriter(self.memory, STREAM, clock=self.clock)
        for ledger in range(1, ledgers + 1):
            self.writer.add([batch_of(ledger, 0, 10)], closes=[ledger])

    @property
    def state(self) -> ManifestState:
        return load_manifest(self.memory, STREAM)

    def log(self) -> ManifestLog:
        found = ManifestLog(self.memory, STREAM, clock=self.clock)
        found.load()
        return found

    def truncate(self, ledger_id: int, entry_id: int = 0) -> None:
        truncate_stream(self.log(), Position(ledger_id, entry_id), clock=self.clock)

    def run(self, **how: object) -> CleanupReport:
        return cleanup_stream(self.store, STREAM, clock=self.clock, settings=self.settings, **how)  # type: ignore[arg-type]

    def hours(self, hours: float) -> None:
        self.clock.advance(hours * HOUR_S)

    def stored(self) -> set[str]:
        """Of everything but the manifest, the catalogue and the audit."""
        rest = (info.key for info in self.memory.list("").objects)
        apart = ("/manifest/", "/retention/deleted/")
        return {key for key in rest if not key.startswith(("_catalog/", TIME_KEY)) and not any(a in key for a in apart)}

    def named(self) -> set[str]:
        """The keys that the manifest names: of live segments, and of retired ones."""
        return {key for segment in self.state.segments.values() for key in segment.object_keys(STREAM)}

    def check(self) -> None:
        """At any time: nothing dangles."""
        missing = self.named() - self.stored()
        assert not missing, f"the manifest names {missing}"
