"""Routes for brokers whose plugin reads ledgers of the cold tier. Waits and responses with entries use separate
threads.

The gate limits how many of each kind are worked on at once, so that none of them holds up another request.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Annotated, Any, TypeVar
from uuid import UUID

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from formats.entries import Buffer, byte_array
from offloader.errors import OffloaderError, parsing
from offloader.owner_client import FORWARDED
from offloader.read.ledger_plan import BrokerFacts
from offloader.service.broker_ledgers import BrokerCaller, BrokerLedgers
from offloader.service.http.schemas import (
    BrokerStream,
    Known,
    LedgerFilled,
    LedgerOffloaded,
    LedgerOffloadRequest,
    LedgerPlan,
    guarded_router,
    shown,
)
from offloader.settings import BrokerSettings

_log = logging.getLogger("offloader.service.broker")

#: Media type of frames.
FRAMES = "application/octet-stream"
#: Share of the response deadline that an offload, or another command, may wait.
WAIT_SHARE = 0.8
#: An offload that takes so much longer than it was to wait goes on, and its broker asks again.
_LATE_S = 4.0
_ID_MAX = 2**63 - 1
_Answer = TypeVar("_Answer")


class BrokerThreads:
    """Threads of the routes that wait and of those that return entries, started on demand."""

    def __init__(self, settings: BrokerSettings) -> None:
        self.waits = ThreadPoolExecutor(settings.waits_max, thread_name_prefix="offloader-broker-wait")
        self.streams = ThreadPoolExecutor(settings.streams_max, thread_name_prefix="offloader-broker-read")

    def close(self) -> None:
        """Accepts no further work; work in progress ends by itself. Idempotent."""
        for pool in (self.waits, self.streams):
            pool.shutdown(wait=False, cancel_futures=True)


def _broker(
    request: Request,
    caller: Known,
    offloader_source: Annotated[
        str, Header(max_length=1000, description="Name of the broker's cluster; compared with `broker.source`.")
    ] = "",
) -> BrokerCaller:
    client, authorization = request.client, request.headers.get("authorization", "")
    return BrokerCaller(
        name=caller.name,
        address=client.host if client is not None else "",
        token=authorization.partition(" ")[2].strip(),
        source=offloader_source,
        is_forwarded=FORWARDED.lower() in request.headers,
    )


def uuid_of(
    uuid: Annotated[str, Query(max_length=100, description="UUID of the broker's attempt to offload the ledger.")] = "",
) -> UUID | None:
    """The uuid of an attempt; ``None``: none was given. Raises ``InvalidCallError``: another text."""
    with parsing(f"uuid: {ascii(uuid)[:100]} is none", hint="give the attempt's, or none"):
        return UUID(uuid) if uuid else None


async def _body(request: Request) -> bytes:
    return await request.body()


Broker = Annotated[BrokerCaller, Depends(_broker)]
LedgerId = Annotated[int, Path(ge=0, le=_ID_MAX, description="Decimal.")]
AttemptId = Annotated[UUID | None, Depends(uuid_of)]
Frames = Annotated[bytes, Depends(_body)]


def _router(ledgers: BrokerLedgers) -> APIRouter:
    """An empty router that refuses brokers of other clusters."""

    def require_source(broker: Broker, name: BrokerStream, ledger: LedgerId) -> None:
        ledgers.require_source(broker.source, name, ledger)

    return guarded_router(
        "/v1/streams/{stream}/ledgers/{ledger}", tag="brokers", checks=[require_source], codes=(409, 410, 421)
    )


def broker_routes(ledgers: BrokerLedgers, threads: BrokerThreads, *, answer_s: float) -> APIRouter:
    """Routes of brokers; ``ledgers`` answers.

    Args:
        answer_s: response deadline, seconds.
    """
    router = _router(ledgers)

    @router.get("", response_class=JSONResponse, responses={200: {"model": LedgerPlan}})
    def plan(broker: Broker, name: BrokerStream, ledger: LedgerId, uuid: AttemptId) -> Response:
        """Return the plan for reading a ledger: chunks, and URLs of the objects. 410: the ledger was deleted."""
        return JSONResponse(ledgers.plan(name, ledger, uuid=uuid, caller=broker))

    @router.get("/entries", response_class=StreamingResponse, responses={200: {"content": {FRAMES: {}}}})
    async def entries(
        broker: Broker,
        name: BrokerStream,
        ledger: LedgerId,
        uuid: AttemptId,
        first: Annotated[int, Query(alias="from", ge=0, le=_ID_MAX)],
        last: Annotated[int, Query(alias="to", ge=0, le=_ID_MAX)],
    ) -> Response:
        """Return entries of a ledger as frames, followed by an end mark.

        A response without the end mark is incomplete.
        """
        pieces = await _in(
            threads.streams, partial(ledgers.entries, name, ledger, first, last, uuid=uuid, caller=broker)
        )
        return StreamingResponse(_sent(threads.streams, pieces, f"{name}, ledger {ledger}"), media_type=FRAMES)

    @router.post("/offload")
    async def offload(
        broker: Broker, name: BrokerStream, ledger: LedgerId, body: LedgerOffloadRequest
    ) -> LedgerOffloaded:
        """Wait until a closed ledger is in the cold tier and equals the broker's. 421: another process offloads it."""
        facts = BrokerFacts(
            uuid=uuid_of(body.uuid),
            last=body.last,
            length=body.length,
            entries=body.entries,
            created_ms=body.created_ms,
        )
        wait_s = min(body.wait_seconds, answer_s * WAIT_SHARE)
        wait = partial(ledgers.offload, name, ledger, facts, wait_s=wait_s, caller=broker)
        with contextlib.suppress(TimeoutError):
            return shown(LedgerOffloaded, await asyncio.wait_for(_in(threads.waits, wait), wait_s + _LATE_S))
        return LedgerOffloaded(committed=False, missing=[])

    @router.put("/missing", openapi_extra={"requestBody": {"required": True, "content": {FRAMES: {}}}})
    def missing(
        broker: Broker,
        name: BrokerStream,
        ledger: LedgerId,
        first: Annotated[int, Query(ge=0, le=_ID_MAX)],
        last: Annotated[int, Query(ge=0, le=_ID_MAX)],
        body: Frames,
    ) -> LedgerFilled:
        """Store entries that readers do not receive: the frames of all missing entries of a range."""
        return shown(LedgerFilled, ledgers.fill(name, ledger, first, last, body, caller=broker))

    @router.delete("", status_code=202)
    def attempt_deleted(broker: Broker, name: BrokerStream, ledger: LedgerId, uuid: AttemptId) -> dict[str, Any]:
        """Report that the broker ended an attempt. Nothing is deleted."""
        ledgers.attempt_deleted(name, ledger, uuid=uuid, caller=broker)
        return {}

    return router


async def _in(pool: ThreadPoolExecutor, call: Callable[[], _Answer]) -> _Answer:
    return await asyncio.wrap_future(pool.submit(call))


async def _sent(
    pool: ThreadPoolExecutor, pieces: Generator[Buffer, None, None], what: str
) -> AsyncIterator[memoryview]:
    """The pieces, each computed in the pool; stops when the client disconnects."""
    step: Future[Buffer | None] = Future()
    step.set_result(None)
    try:
        while True:
            step = pool.submit(next, pieces, None)
            piece = await asyncio.wrap_future(step)
            if piece is None:
                return
            yield byte_array(piece).data
    except OffloaderError as error:
        # The response has started; without the end mark it counts as incomplete.
        _log.warning(
            "entries of stream %s: the response was aborted: %s", what, error, extra={"event": "broker_read_failed"}
        )
        raise
    finally:
        step.add_done_callback(partial(_closed, pool, pieces))


def _closed(pool: ThreadPoolExecutor, pieces: Generator[Buffer, None, None], _: object) -> None:
    """Closes a generator on a thread that may block until requests in progress end."""
    with contextlib.suppress(RuntimeError):  # the pool was closed
        pool.submit(pieces.close)
