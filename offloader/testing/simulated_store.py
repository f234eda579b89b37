"""A store in memory that fails, loses answers, answers late and cuts a process off, as one seed says.

Owns faults as data, drawn for each call. Must never lose what it confirmed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from offloader.errors import OffloaderError, OutcomeUnknown, StoreUnavailable, Throttled
from offloader.store.base import (
    OVERWRITE,
    Body,
    ByteRange,
    DeleteFailure,
    ListPage,
    ObjectInfo,
    ObjectStore,
    PartInfo,
    PutMode,
    UploadInfo,
)

__all__ = ["FaultPlan", "SimulatedStore", "Weather"]

_Answer = TypeVar("_Answer")
_READS = {"head", "get", "list", "list_uploads", "list_parts"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    """How often what goes wrong, as chances per call.

    Attributes:
        refused: nothing happened, and the store says so.
        lost: a write without an answer: before its effect, after it, or its effect comes later.
        crash_call: the call of a process at which that process dies, from 1; 0: none.
        crash_after: whether that call takes effect.
    """

    refused: float = 0.0
    lost: float = 0.0
    crash_call: int = 0
    crash_after: bool = False


class Weather:
    """What all processes over one store share: writes that land late, and the trace of what happened."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.late: list[Callable[[], object]] = []
        self.trace: list[str] = []

    def land_one(self) -> None:
        """One of the late writes arrives; what the store answers to it, nobody hears."""
        late = self.late.pop(self.random.randrange(len(self.late)))
        try:
            late()
        except OffloaderError as error:
            self.trace.append(f"late: {type(error).__name__}")
        else:
            self.trace.append("late: landed")


class SimulatedStore:
    """One process's way to ``inner``. ``dead``: the process is gone, and reaches nothing any more."""

    def __init__(self, inner: ObjectStore, weather: Weather, plan: FaultPlan, name: str) -> None:
        self.inner = inner
        self.plan = plan
        self.dead = False
        self.calls = 0
        self._weather = weather
        self._name = name

    def _run(self, verb: str, key: str, call: Callable[[], _Answer]) -> _Answer:
        if self.dead:
            raise StoreUnavailable("this process is dead")
        self.calls += 1
        fault = self._draw(verb)
        self._weather.trace.append(f"{self._name} {verb} {key} {fault}")
        if fault == "crash before":
            self.dead = True
        elif fault == "crash after":
            self.dead = True
            call()
        if self.dead:
            raise StoreUnavailable(f"the process died at {verb} of {key}")
        if fault == "refused":
            raise StoreUnavailable(f"refused: {verb} of {key}")
        if fault == "throttled":
            raise Throttled(f"slow down: {verb} of {key}")
        if fault == "lost before":
            raise OutcomeUnknown(f"lost before {verb} of {key}")
        if fault == "late":
            self._weather.late.append(call)
            raise OutcomeUnknown(f"no answer yet to {verb} of {key}")
        answer = call()
        if fault == "lost after":
            raise OutcomeUnknown(f"lost after {verb} of {key}")
        return answer

    def _draw(self, verb: str) -> str:
        if self.calls == self.plan.crash_call:
            return "crash after" if self.plan.crash_after else "crash before"
        random = self._weather.random
        drawn = random.random()
        if drawn < self.plan.refused:
            return random.choice(["refused", "throttled"])
        if verb not in _READS and drawn < self.plan.refused + self.plan.lost:
            return random.choice(["lost before", "lost after", "late"])
        return ""

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def driver_metadata(self) -> Mapping[str, str]:
        return self.inner.driver_metadata

    def head(self, key: str) -> ObjectInfo:
        return self._run("head", key, lambda: self.inner.head(key))

    def get(self, key: str, byte_range: ByteRange | None = None) -> tuple[bytes, ObjectInfo]:
        return self._run("get", key, lambda: self.inner.get(key, byte_range))

    def put(
        self,
        key: str,
        body: Body,
        *,
        mode: PutMode = OVERWRITE,
        metadata: Mapping[str, str] | None = None,
        crc32c: int | None = None,
    ) -> ObjectInfo:
        # What is on its way isn't the caller's any more: a late write must not see memory that was used again.
        sent = bytes(body)
        return self._run("put", key, lambda: self.inner.put(key, sent, mode=mode, metadata=metadata, crc32c=crc32c))

    def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> ListPage:
        return self._run("list", prefix, lambda: self.inner.list(prefix, after=after, limit=limit))

    def delete(self, keys: Sequence[str]) -> Sequence[DeleteFailure]:
        return self._run("delete", keys[0] if keys else "", lambda: self.inner.delete(keys))

    def begin_upload(self, key: str, *, metadata: Mapping[str, str] | None = None) -> str:
        return self._run("begin_upload", key, lambda: self.inner.begin_upload(key, metadata=metadata))

    def upload_part(self, key: str, upload_id: str, number: int, body: Body, *, crc32c: int | None = None) -> PartInfo:
        sent = bytes(body)
        return self._run(
            "upload_part", key, lambda: self.inner.upload_part(key, upload_id, number, sent, crc32c=crc32c)
        )

    def complete_upload(self, key: str, upload_id: str, parts: Sequence[PartInfo]) -> ObjectInfo:
        return self._run("complete_upload", key, lambda: self.inner.complete_upload(key, upload_id, parts))

    def abort_upload(self, key: str, upload_id: str) -> None:
        self._run("abort_upload", key, lambda: self.inner.abort_upload(key, upload_id))

    def list_uploads(self, prefix: str) -> Sequence[UploadInfo]:
        return self._run("list_uploads", prefix, lambda: self.inner.list_uploads(prefix))

    def list_parts(self, key: str, upload_id: str) -> Sequence[PartInfo]:
        return self._run("list_parts", key, lambda: self.inner.list_parts(key, upload_id))

    def close(self) -> None:
        self.inner.close()
