"""The page's paths, for the HTTP server.

Owns how a file becomes an answer. Must never answer with anything but the files.
"""

from __future__ import annotations

from collections.abc import Callable

from fastapi import APIRouter, Request, Response

from offloader.service.dashboard.files import HEADERS, PageFile, page_files

__all__ = ["is_page", "page_routes"]


def is_page(path: str) -> bool:
    """Whether somebody who isn't known may have it: the page's files, which hold nothing of anybody."""
    return path in page_files()


def page_routes() -> APIRouter:
    """``/`` and what it needs."""
    router = APIRouter()
    for path, file in page_files().items():
        router.add_api_route(path, _answering(file), methods=["GET", "HEAD"], include_in_schema=False)
    return router


def _answering(file: PageFile) -> Callable[[Request], Response]:
    headers = {**HEADERS, "ETag": file.etag}

    def answer(request: Request) -> Response:
        if request.headers.get("if-none-match") == file.etag:
            return Response(status_code=304, headers=headers)
        return Response(file.body, media_type=file.media_type, headers=headers)

    return answer
