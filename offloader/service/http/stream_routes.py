"""Paths about streams: what there is, and what retention and cleanup would do.

Owns these paths and their pages. Must never change anything.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from offloader.service.http.asked import Reader, StreamName
from offloader.service.http.cursors import CURSOR_CHARS_MAX, place_of, write_cursor
from offloader.service.http.models import Items, ListPage
from offloader.service.http.process_routes import Limit, NameQuery
from offloader.service.stream_pages import StreamOrder
from offloader.service.view import ServiceView

__all__ = ["stream_routes"]

Cursor = Annotated[str, Query(max_length=CURSOR_CHARS_MAX, description="`next_cursor` of the page before.")]
_Row = dict[str, Any]


def stream_routes(view: ServiceView) -> APIRouter:
    """The paths; ``view`` answers."""
    router = APIRouter(prefix="/v1/streams", tags=["streams"])

    @router.get("")
    def streams(
        _: Reader,
        order: StreamOrder = StreamOrder.NAME,
        contains: NameQuery = "",
        served: Annotated[bool, Query(description="Only those that this process offloads.")] = False,
        cursor: Cursor = "",
        limit: Limit = 100,
    ) -> ListPage[_Row]:
        """The streams of the store, those that are offloaded here with what they are doing."""
        of = ("streams", order.value, contains, str(served))
        page = view.streams(
            order=order, contains=contains, after=place_of(cursor, *of), limit=limit, served_only=served
        )
        return ListPage(items=list(page.items), next_cursor=write_cursor(page.next_after, *of), total=page.total)

    @router.get("/{stream}")
    def stream(_: Reader, name: StreamName) -> _Row:
        """One stream: what the process and the manifest say."""
        return view.stream(name)

    @router.get("/{stream}/segments")
    def segments(_: Reader, name: StreamName, cursor: Cursor = "", limit: Limit = 100) -> ListPage[_Row]:
        """Its segments in the stream's order."""
        of = ("segments", name)
        page = view.segments(name, after=place_of(cursor, *of), limit=limit)
        return ListPage(items=list(page.items), next_cursor=write_cursor(page.next_after, *of), total=page.total)

    @router.get("/{stream}/ledgers")
    def ledgers(_: Reader, name: StreamName) -> Items:
        """The ledgers of its hot tier, if it is offloaded here."""
        return Items(items=view.ledgers(name))

    @router.get("/{stream}/shape")
    def shape(_: Reader, name: StreamName) -> _Row:
        """Readable segments against the ledgers in them and publish time, for a picture."""
        return view.shape(name)

    @router.get("/{stream}/retention")
    def retention(_: Reader, name: StreamName) -> _Row:
        """What the next decision would be and why, as facts and in words."""
        return view.retention(name)

    @router.get("/{stream}/decisions")
    def decisions(_: Reader, name: StreamName) -> Items:
        """The recorded decisions, the newest first."""
        return Items(items=view.decisions(name))

    @router.get("/{stream}/subscribers")
    def subscribers(_: Reader, name: StreamName) -> Items:
        """Who consumes it, how far each is, and whether it holds data back."""
        return Items(items=view.subscribers(name))

    @router.get("/{stream}/cleanup")
    def cleanup(_: Reader, name: StreamName, limit: Limit = 100) -> _Row:
        """What the next round of cleanup would do, segment by segment."""
        return view.cleanup_plan(name, limit=limit)

    @router.get("/{stream}/orphans")
    def orphans(_: Reader, name: StreamName, limit: Limit = 100) -> Items:
        """Things below the stream's name that no manifest needs, as a search finds them now."""
        return Items(items=view.orphans_of(name, limit=limit))

    return router
