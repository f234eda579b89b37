"""The page as it is served: the real HTTP server, in front of a view that is staged or real."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from offloader.runtime.clock import SystemClock
from offloader.service.auth import open_credentials
from offloader.service.broker_ledgers import BrokerLedgers
from offloader.service.http.server import OffloadHttp
from offloader.settings import Settings
from offloader.store.open import open_store
from offloader.telemetry.recorder import NO_TELEMETRY

__all__ = ["PageServer"]

_VARIABLE = "PAGE_TOKEN"


class PageServer:
    """Serves between ``start`` and ``stop``, each time on the same port. A context manager does both.

    Args:
        view: answers; a ``ServiceView`` or what has its methods.
        token: asked for; empty: everybody may look.
        control: executes commands.
        role: of the token.
    """

    def __init__(self, view: Any, token: str = "", control: Any = None, role: str = "read") -> None:
        self._view, self._token, self._port = view, token, 0
        self._control, self._role = control, role
        self._http: OffloadHttp | None = None

    def __enter__(self) -> PageServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        access = {f"{self._role}_tokens": [f"env:{_VARIABLE}"]} if self._token else {}
        settings = Settings.of({"http": {"listen": f"127.0.0.1:{self._port}"}, "access": access})
        self._http = OffloadHttp(
            self._view,
            self._control,
            ledgers=BrokerLedgers(
                open_store("memory://page"),
                settings=settings,
                clock=SystemClock(),
                recorder=NO_TELEMETRY,
                control=None,
                environ={},
            ),
            settings=settings,
            credentials=open_credentials(settings.access, {_VARIABLE: self._token}),
            clock=SystemClock(),
            exposition=lambda *_: b"",
        )
        self._http.start()
        self._port = self._http.address.port

    def stop(self) -> None:
        if self._http is not None:
            self._http.stop()
            self._http = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/"

    @staticmethod
    def encoded(stream: str) -> str:
        """A name as browsers encode it (``encodeURIComponent``)."""
        return quote(stream, safe="!'()*-._~")
