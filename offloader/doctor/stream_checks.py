"""Why streams aren't offloaded: what their manifests, and the ledgers that are at hand, say.

Owns that look. Must never open an epoch, nor load more manifests than it says.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress

from formats.entries import Position
from offloader.clock import Clock
from offloader.doctor.findings import Finding, fine, problem, warning
from offloader.effective_settings import SettingsFile
from offloader.errors import NotFound, OffloaderError
from offloader.ledgers.base import LedgerInfo
from offloader.ledgers.embedded import EmbeddedLedgers, EmbeddedStream
from offloader.manifest.checked_source import CheckedSource
from offloader.manifest.log import list_streams
from offloader.manifest.state import ManifestState
from offloader.read.streams import load_stream
from offloader.settings import Settings
from offloader.store.base import ObjectStore

__all__ = ["STREAMS_MAX", "StreamChecks"]

#: Streams whose manifests are loaded; of more the rest is counted.
STREAMS_MAX = 200


class StreamChecks:
    """See ``offloader.doctor.findings.Check``."""

    name = "streams"

    def __init__(self, store: ObjectStore, file: SettingsFile, clock: Clock) -> None:
        self._store, self._file, self._clock = store, file, clock

    def run(self) -> Iterator[Finding]:
        stored = list(list_streams(self._store))
        ledgers = self._file.settings_of("").serve.ledgers
        with ExitStack() as stack:
            hot: dict[str, EmbeddedStream] = {}
            if ledgers:
                with suppress(NotFound):  # nobody has appended yet
                    database = stack.enter_context(closing(EmbeddedLedgers(ledgers, create=False)))
                    hot = {name: database.view_stream(name) for name in database.streams()[:STREAMS_MAX]}
            names = sorted({*stored, *hot})
            troubles = 0
            for name in names[:STREAMS_MAX]:
                for finding in self._of(name, hot.get(name)):
                    troubles += 1
                    yield finding
        rest = f"; {len(names) - STREAMS_MAX} more weren't looked at" if len(names) > STREAMS_MAX else ""
        if not troubles:
            yield fine("streams", f"{len(names)} streams, nothing keeps them from being offloaded{rest}")
        elif rest:
            yield warning("streams", f"{len(names)} streams{rest}", "`offloader status` says how far those are")

    def _of(self, name: str, source: EmbeddedStream | None) -> Iterator[Finding]:
        check, settings = f"stream {name}", self._file.settings_of(name)
        try:
            state = load_stream(self._store, name, may_be_absent=True)
            # Listed after the manifest was read, and compared with it.
            infos = [] if source is None else CheckedSource(source, lambda: state).ledgers()
        except OffloaderError as error:
            yield problem(check, error)
            return
        waiting = _entries_after(infos, state.committed_end())
        if state.paused:
            yield warning(check, f"paused{_waits(waiting)}", f"`offloader resume {name}` lets it go on")
        elif settings.offload.method == "none" and (waiting or state.record_id):
            yield warning(check, f"its method is none{_waits(waiting)}", "set streaming_offload = true")
        elif waiting:
            yield from self._late(check, state, settings, waiting)
        if state.held:
            lift = f"`offloader cleanup hold {name} --off` lifts that"
            yield warning(check, "on hold: nothing of it is deleted", lift)

    def _late(self, check: str, state: ManifestState, settings: Settings, waiting: int) -> Iterator[Finding]:
        """A stream with entries that wait, though something should offload them."""
        offload = settings.offload
        patience_s = offload.takeover_after_seconds + offload.max_offload_segment_rollover_time_minutes * 60
        if not state.record_id:
            yield warning(check, f"never offloaded{_waits(waiting)}", _START)
            return
        silent_s = (self._clock.now_ms() - state.time_ms) / 1000
        if silent_s <= patience_s:
            return
        if offload.method == "ledger":
            hint = "the method ledger takes closed ledgers only: streaming_offload = true takes what is written too"
        else:
            hint = f"its owner was {state.owner.name or 'nobody'}: {_START}"
        yield warning(check, f"nothing was written for {silent_s:.0f} s{_waits(waiting)}", hint)


_START = "start `offloader serve` where its ledgers are, and look at its log"


def _entries_after(infos: list[LedgerInfo], end: Position | None) -> int:
    count = 0
    for info in infos:
        if end is None or info.ledger_id > end.ledger_id:
            count += info.entries
        elif info.ledger_id == end.ledger_id:
            count += max(info.last_entry_id - end.entry_id, 0)
    return count


def _waits(count: int) -> str:
    return f", and {count:,} entries wait" if count else ""
