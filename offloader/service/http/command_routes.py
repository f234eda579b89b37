"""Paths that change something: offload now, pause, resume, subscribers.

Owns which role each needs. Must never let a caller without it near ``ServiceControl``.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from offloader.service.control import ServiceControl
from offloader.service.http.answers import Applied, Committed, Paused, Removed, shown
from offloader.service.http.asked import Known, StreamName, SubscriberName
from offloader.service.http.requests import OffloadRequest, PauseRequest, PublishRequest, SubscribeRequest

__all__ = ["command_routes"]

#: Of the time for an answer, what is left for everything but waiting.
_WAIT_SHARE = 0.8


def command_routes(control: ServiceControl, *, answer_s: float) -> APIRouter:
    """The paths.

    Args:
        control: carries them out.
        answer_s: seconds within which there has to be an answer.
    """
    router = APIRouter(prefix="/v1/streams/{stream}", tags=["commands"])

    @router.post("/offload")
    def offload(caller: Known, name: StreamName, body: OffloadRequest | None = None) -> Committed:
        """Close and complete the current segment now, and wait until it is committed. 503: it isn't yet, ask again."""
        asked = body or OffloadRequest()
        wait_s = min(asked.wait_seconds, answer_s * _WAIT_SHARE)
        return shown(Committed, control.offload(name, until=asked.until, timeout_s=wait_s, by=caller.name))

    @router.post("/pause")
    def pause(caller: Known, name: StreamName, body: PauseRequest | None = None) -> Paused:
        """Assign no further segment until `resume`; what comes stays in the hot tier."""
        return shown(Paused, control.pause(name, reason=(body or PauseRequest()).reason, by=caller.name))

    @router.post("/resume")
    def resume(caller: Known, name: StreamName) -> Paused:
        """Let a paused stream go on."""
        return shown(Paused, control.resume(name, by=caller.name))

    @router.put("/subscribers/{subscriber}")
    def subscribe(
        caller: Known, name: StreamName, subscriber: SubscriberName, body: SubscribeRequest | None = None
    ) -> Applied:
        """Register a subscriber, or raise the generation of one."""
        asked = body or SubscribeRequest()
        found = control.subscribe(name, subscriber, start=asked.start, generation=asked.generation, by=caller.name)
        return shown(Applied, found)

    @router.post("/subscribers/{subscriber}/publish")
    def publish(caller: Known, name: StreamName, subscriber: SubscriberName, body: PublishRequest) -> Applied:
        """Say what a subscriber has consumed, so that it may go. The same again is fine, and a sign of life."""
        found = control.publish(name, subscriber, body.at, generation=body.generation, by=caller.name)
        return shown(Applied, found)

    @router.delete("/subscribers/{subscriber}")
    def unsubscribe(
        caller: Known,
        name: StreamName,
        subscriber: SubscriberName,
        generation: Annotated[int | None, Query(ge=0, lt=2**31, description="Leave it if it has a higher one.")] = None,
    ) -> Removed:
        """Forget a subscriber: it holds nothing back any more."""
        return shown(Removed, control.unsubscribe(name, subscriber, generation=generation, by=caller.name))

    return router
