"""What no step of whoever tends a stream may do: too early, on hold, while all is stopped, or by a clock that is wrong.

It doesn't use the code that decides what is old or held.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from uuid import UUID

from formats.checkpoint import run_record_id
from formats.keys import parse_object_key
from offloader.manifest.state import ManifestState
from offloader.store.base import ObjectInfo, UploadInfo
from tests.proof.simulation.simulated_world import STREAM

__all__ = ["MaintainedRules", "retire_records"]

#: Who only deletes, truncates and retires when nothing is held: prefixes of the names of acts.
_TENDERS = ("retain", "truncate", "cleanup", "reconcile", "delete")

#: ``clock_skew_max``, and the second that stores cut.
_WAITED_MS = 61_000


def retire_records(state: ManifestState) -> dict[UUID, int | None]:
    """The record that retired each retired segment, by its uuid. Nobody may change it: it is computed once."""
    return {each.uuid: each.retire_record for each in state.segments.retired()}


class MaintainedRules:
    """Each check answers what is wrong, or nothing.

    Args:
        now_ms: the time.
        line: the number of the trace's line.
        began: the line at which an act began, by its name; -1 of anybody else.
        grace_ms, orphan_age_ms: as the settings say.

    Attributes:
        skewed: act -> by how much its clock is wrong, which is more than is allowed, and when it began.
    """

    def __init__(
        self,
        now_ms: Callable[[], int],
        line: Callable[[], int],
        began: Callable[[str], int],
        *,
        grace_ms: int,
        orphan_age_ms: int,
    ) -> None:
        self._now_ms, self._line, self._began = now_ms, line, began
        self._grace_ms, self._orphan_age_ms = grace_ms, orphan_age_ms
        self.skewed: dict[str, tuple[int, int]] = {}
        self._retired_ms: dict[tuple[UUID, int], int] = {}
        self._held_since: int | None = None
        self._stopped_since: int | None = None
        #: How many steps each act took since then.
        self._steps: dict[str, int] = {}

    def stopped(self, *, on: bool) -> None:
        """Whether all deletion is stopped from now on."""
        if on and self._stopped_since is None:
            self._stopped_since = self._line()
            self._steps.clear()
        elif not on:
            self._stopped_since = None

    def of_record(self, by: str, before: ManifestState | None, now: ManifestState) -> str:
        """Of a record that was created."""
        was = {} if before is None else retire_records(before)
        retired = retire_records(now)
        for uuid, record_id in retired.items():
            if record_id is not None:
                self._retired_ms.setdefault((uuid, record_id), self._now_ms())
        purged = [(u, r) for u, r in was.items() if u not in now.segments and r is not None]
        wrong = ""
        for uuid, record_id in purged:
            age_ms = self._now_ms() - self._retired_ms[uuid, record_id]
            if age_ms < self._grace_ms:
                wrong = f"{by} purged {uuid} {age_ms} ms after it was retired: before its grace period was over"
        moved = before is not None and before.incarnation == now.incarnation and before.head != now.head
        shortens = purged or set(retired) - set(was) or (moved and not by.startswith("undo")) or now.stream_deleted
        if shortens and before is not None and before.held and before.incarnation == now.incarnation:
            wrong = wrong or f"{by} shortened the stream by record {now.record_id}, after one that holds it"
        wrong = wrong or (self._forbidden(by, f"wrote record {now.record_id}") if shortens else "")
        # After that: the record that sets a hold isn't under it.
        if not now.held:
            self._held_since = None
        elif self._held_since is None:
            self._held_since = self._line()
        return wrong

    def of_delete(self, by: str, objects: Sequence[ObjectInfo]) -> str:
        """Of objects that were deleted."""
        for info in objects:
            age_ms = self._now_ms() - info.modified_ms
            is_segment = parse_object_key(info.key, STREAM) is not None
            is_run = run_record_id(info.key.rpartition("/")[2]) is not None
            if age_ms < self._orphan_age_ms and (
                (is_segment and by.startswith("reconcile")) or (is_run and by.startswith("expire"))
            ):
                return f"{by} deleted {info.key}, which was {age_ms} ms old"
        # Whoever decides forgets what was recorded of streams that are gone.
        tends = objects and not by.startswith(("retain", "truncate"))
        wrong = self._forbidden(by, f"deleted {objects[0].key}", steps=0) if tends else ""
        segments = [info.key for info in objects if parse_object_key(info.key, STREAM) is not None]
        return wrong or (self._forbidden(by, f"deleted {segments[0]}") if segments else "")

    def of_abort(self, by: str, uploads: Sequence[UploadInfo]) -> str:
        """Of uploads that were aborted."""
        for upload in uploads:
            age_ms = self._now_ms() - upload.started_ms
            if parse_object_key(upload.key, STREAM) is None:
                continue  # tried out by who wants to know what the store can do
            if by.startswith("reconcile") and age_ms < self._orphan_age_ms:
                return f"{by} aborted the upload {upload.upload_id}, which was {age_ms} ms old"
        return ""

    def _forbidden(self, by: str, what: str, *, steps: int = 1) -> str:
        """Whether somebody may shorten anything at all.

        Args:
            steps: how many steps of those that look for a stop before each that is; 0: it belongs to another.
        """
        off_ms, began_ms = self.skewed.get(by, (0, 0))
        # Who waits for as long between two questions can't tell it from the right one: an answer came late, and what
        # is taken for the time then is the earlier one. Whether something was too young is looked at anyway.
        if abs(off_ms) > self._now_ms() - began_ms + _WAITED_MS:
            return f"{by} {what} by a clock that is wrong"
        if not by.startswith(_TENDERS):
            return ""
        # Who looked before goes on to its next step.
        for since, why in ((self._held_since, "the stream is on hold"), (self._stopped_since, "deletion is stopped")):
            if since is not None and self._began(by) > since:
                return f"{by} {what} while {why}"
        if self._stopped_since is not None and steps:
            # The one before which it looked.
            self._steps[by] = self._steps.get(by, 0) + steps
            if self._steps[by] > 1:
                return f"{by} {what}, its {self._steps[by]}. step after deletion was stopped"
        return ""
