"""Whether a stream may be taken from the writer that has it; pure.

Owns that courtesy. Must never be what keeps two writers apart: epochs do.
"""

from __future__ import annotations

from offloader.errors import Fenced
from offloader.manifest.state import ManifestState

__all__ = ["require_takeable"]


def require_takeable(state: ManifestState, now_ms: int, takeover_after_s: float, *, take_over: bool) -> None:
    """Refuses to take a stream whose owner gave a sign of life less than ``takeover_after_s`` ago.

    Args:
        state: the manifest as it is now.
        now_ms: ms since 1970 UTC. Clocks only decide how polite this is: fencing doesn't depend on them.
        take_over: take it nevertheless.

    Raises:
        Fenced: there is such an owner; names it, and its URL where it gave one.
    """
    age_s = (now_ms - state.time_ms) / 1000
    if take_over or state.epoch == 0 or age_s >= takeover_after_s:
        return
    where = f" at {state.writer.url}" if state.writer.url else ""
    raise Fenced(
        f"stream {state.stream} is owned by {state.writer.name}{where}, which wrote its last record {age_s:.0f} s ago",
        hint=f"ask that owner, wait until it is silent for takeover_after ({takeover_after_s:g} s), or say --take-over",
    )
