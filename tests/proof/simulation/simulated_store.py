"""A store in memory that fails, loses answers, answers late and cuts a process off, as one seed says.

It doesn't lose what it confirmed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

from offloader.errors import OffloaderError, OutcomeUnknownError, StoreUnavailableError, ThrottledError
from offloader.store.base import OVERWRITE, Body, DeleteFailure, ObjectInfo, ObjectStore, PartInfo, PutMode
from offloader.store.rate_limit import Traffic
from offloader.store.wrappers import Request, StoreWrapper
from offloader.testing.manual_clock import ManualClock

__all__ = ["FaultModel", "FaultPlan", "SimulatedStore"]

_Answer = TypeVar("_Answer")
#: Longest time that a slow call takes: longer than a segment's age, or an owner's patience.
SLOW_S_MAX = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    """How often what goes wrong, as chances per call.

    Attributes:
        refused: nothing happened, and the store says so.
        lost: a write without an answer: before its effect, in the middle, after it, or its effect comes later.
        slow: time passes before the call.
        meanwhile: somebody else does something before the call.
        crash_call: the call of a process at which that process dies, from 1; 0: none.
        crash_after: whether that call takes effect.
    """

    refused: float = 0.0
    lost: float = 0.0
    slow: float = 0.0
    meanwhile: float = 0.0
    crash_call: int = 0
    crash_after: bool = False


@dataclass(slots=True)
class FaultModel:
    """What all processes over one store share: time, writes that land late, and the trace of what happened.

    Attributes:
        random: draws the faults.
        clock: passes when a call is slow.
        meanwhile: what somebody else does in the middle of a process's task, for the name of that process.
        late: writes whose effect is still to come.
        trace: one line for each call and whatever else happened.
    """

    random: Random
    clock: ManualClock
    meanwhile: Callable[[str], object] = lambda _: None
    late: list[Callable[[], object]] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)

    def land_one(self) -> None:
        """One of the late writes arrives; what the store answers to it, nobody hears."""
        late = self.late.pop(self.random.randrange(len(self.late)))
        try:
            late()
        except OffloaderError as error:
            self.trace.append(f"late: {type(error).__name__}")
        else:
            self.trace.append("late: landed")


class SimulatedStore(StoreWrapper):
    """One process's way to ``inner``. ``dead``: the process is gone, and reaches nothing any more."""

    def __init__(self, inner: ObjectStore, weather: FaultModel, plan: FaultPlan, name: str) -> None:
        super().__init__(inner)
        self.plan = plan
        self.dead = False
        self.calls = 0
        self._weather = weather
        self._name = name

    def around(self, request: Request, call: Callable[[], _Answer]) -> _Answer:
        return self._weathered(request, call, torn=lambda: None)

    def delete(self, keys: Sequence[str]) -> Sequence[DeleteFailure]:
        request = Request("delete", Traffic.DELETE, keys[0] if keys else "", keys=len(keys))
        half = keys[: len(keys) // 2]
        return self._weathered(request, lambda: self.inner.delete(keys), torn=lambda: self.inner.delete(half))

    def _weathered(self, request: Request, call: Callable[[], _Answer], torn: Callable[[], object]) -> _Answer:
        verb, key, weather = request.verb, request.key, self._weather
        self._let_pass()
        if self.dead:
            raise StoreUnavailableError("this process is dead")
        self.calls += 1
        fault = self._draw(request.traffic)
        weather.trace.append(f"{self._name} {verb} {key} {fault}")
        if fault.startswith("crash"):
            self.dead = True
            if fault == "crash after":
                call()
            raise StoreUnavailableError(f"the process died at {verb} of {key}")
        if fault == "refused":
            raise StoreUnavailableError(f"refused: {verb} of {key}")
        if fault == "throttled":
            raise ThrottledError(f"slow down: {verb} of {key}")
        if fault == "lost before":
            raise OutcomeUnknownError(f"lost before {verb} of {key}")
        if fault == "torn":
            torn()
            raise OutcomeUnknownError(f"broke off: {verb} of {key}")
        if fault == "late":
            weather.late.append(call)
            raise OutcomeUnknownError(f"no answer yet to {verb} of {key}")
        answer = call()
        if fault == "lost after":
            raise OutcomeUnknownError(f"lost after {verb} of {key}")
        return answer

    def _let_pass(self) -> None:
        """Time, and what others do, before the call."""
        plan, weather = self.plan, self._weather
        if plan.slow and weather.random.random() < plan.slow:
            weather.clock.advance(weather.random.uniform(0, SLOW_S_MAX))
        if plan.meanwhile and weather.random.random() < plan.meanwhile:
            weather.meanwhile(self._name)

    def _draw(self, traffic: Traffic) -> str:
        if self.calls == self.plan.crash_call:
            return "crash after" if self.plan.crash_after else "crash before"
        random = self._weather.random
        drawn = random.random()
        if drawn < self.plan.refused:
            return random.choice(["refused", "throttled"])
        if traffic is not Traffic.READ and drawn < self.plan.refused + self.plan.lost:
            return random.choice(["lost before", "torn", "lost after", "late"])
        return ""

    # What is on its way isn't the caller's any more: a late write must not see memory that was used again.

    def put(
        self,
        key: str,
        body: Body,
        *,
        mode: PutMode = OVERWRITE,
        metadata: Mapping[str, str] | None = None,
        crc32c: int | None = None,
    ) -> ObjectInfo:
        return super().put(key, bytes(body), mode=mode, metadata=metadata, crc32c=crc32c)

    def upload_part(self, key: str, upload_id: str, number: int, body: Body, *, crc32c: int | None = None) -> PartInfo:
        return super().upload_part(key, upload_id, number, bytes(body), crc32c=crc32c)
