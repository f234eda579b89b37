"""Paths about streams: what there is, and what retention and cleanup would do.

Owns these paths and their pages. Must never change anything.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Query
from pydantic import BaseModel

from offloader.service.http.answers import Items, LedgerRow, ListPage, SegmentRow, StreamRow, SubscriberRow, shown
from offloader.service.http.asked import StreamName
from offloader.service.http.cursors import CURSOR_CHARS_MAX, place_of, write_cursor
from offloader.service.http.process_routes import Limit, NameQuery
from offloader.service.pages import Page, StreamOrder
from offloader.service.view import ServiceView

__all__ = ["stream_routes"]

Cursor = Annotated[str, Query(max_length=CURSOR_CHARS_MAX, description="`next_cursor` of the page before.")]
_Row = dict[str, Any]
_Page = TypeVar("_Page", bound=BaseModel)


def stream_routes(view: ServiceView) -> APIRouter:
    """The paths; ``view`` answers."""
    router = APIRouter(prefix="/v1/streams", tags=["streams"])

    @router.get("", response_model_exclude_unset=True)
    def streams(
        order: StreamOrder = StreamOrder.NAME,
        contains: NameQuery = "",
        served: Annotated[bool, Query(description="Only those that this process offloads.")] = False,
        cursor: Cursor = "",
        limit: Limit = 100,
    ) -> ListPage[StreamRow]:
        """The streams of the store, those that are offloaded here with what they are doing."""
        of = ("streams", order.value, contains, str(served))
        page = view.streams(
            order=order, contains=contains, after=place_of(cursor, *of), limit=limit, served_only=served
        )
        return _page(ListPage[StreamRow], page, of)

    @router.get("/{stream}", response_model_exclude_unset=True)
    def stream(name: StreamName) -> StreamRow:
        """One stream: what the process and the manifest say."""
        return shown(StreamRow, view.stream(name))

    @router.get("/{stream}/segments", response_model_exclude_unset=True)
    def segments(name: StreamName, cursor: Cursor = "", limit: Limit = 100) -> ListPage[SegmentRow]:
        """Its segments in the stream's order."""
        of = ("segments", name)
        page = view.segments(name, after=place_of(cursor, *of), limit=limit)
        return _page(ListPage[SegmentRow], page, of)

    @router.get("/{stream}/ledgers", response_model_exclude_unset=True)
    def ledgers(name: StreamName) -> Items[LedgerRow]:
        """The ledgers of its hot tier, if it is offloaded here."""
        return shown(Items[LedgerRow], {"items": view.ledgers(name)})

    @router.get("/{stream}/shape")
    def shape(name: StreamName) -> _Row:
        """Readable segments against the ledgers in them and publish time, for a picture."""
        return view.shape(name)

    @router.get("/{stream}/retention")
    def retention(name: StreamName) -> _Row:
        """What the next decision would be and why, as facts and in words."""
        return view.retention(name)

    @router.get("/{stream}/decisions")
    def decisions(name: StreamName) -> Items[_Row]:
        """The recorded decisions, the newest first."""
        return Items[_Row](items=view.decisions(name))

    @router.get("/{stream}/subscribers", response_model_exclude_unset=True)
    def subscribers(name: StreamName) -> Items[SubscriberRow]:
        """Who consumes it, how far each is, and whether it holds data back."""
        return shown(Items[SubscriberRow], {"items": view.subscribers(name)})

    @router.get("/{stream}/cleanup")
    def cleanup(name: StreamName, limit: Limit = 100) -> _Row:
        """What the next round of cleanup would do, segment by segment."""
        return view.cleanup_plan(name, limit=limit)

    @router.get("/{stream}/orphans")
    def orphans(name: StreamName, limit: Limit = 100) -> Items[_Row]:
        """Things below the stream's name that no manifest needs, as a search finds them now."""
        return Items[_Row](items=view.orphans_of(name, limit=limit))

    return router


def _page(shape: type[_Page], page: Page[_Row], of: tuple[str, ...]) -> _Page:
    """A page of the list that ``of`` says."""
    next_cursor = write_cursor(page.next_after, *of)
    return shown(shape, {"items": list(page.items), "next_cursor": next_cursor, "total": page.total})
