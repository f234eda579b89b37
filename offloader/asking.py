"""Asking a process that offloads a stream to act: over HTTP, at the address that its epoch's record names.

Owns that conversation and what its answers mean here. Must never send a token where it could be read on the way, nor
take silence for a refusal: a request that isn't answered may have been carried out, and asking again is harmless.
"""

from __future__ import annotations

import json
import os
import ssl
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import urllib3

from formats.entries import Position
from offloader.clock import Clock
from offloader.errors import (
    AccessDenied,
    Corrupt,
    ErrorKind,
    Fenced,
    InvalidCall,
    NotFound,
    OffloaderError,
    OutcomeUnknown,
    StoreUnavailable,
)

__all__ = ["CA_VARIABLE", "TOKEN_VARIABLE", "Owner", "OwnerSilent"]

#: The environment's name of the token that is shown, and of a file of authorities that sign the other's certificate.
TOKEN_VARIABLE, CA_VARIABLE = "OFFLOADER_TOKEN", "OFFLOADER_CA_FILE"
CONNECT_TIMEOUT_S = 5.0
#: The other answers within this time that it isn't done yet; beside, what an answer may take to come.
WAIT_S_MAX, ANSWER_S = 20.0, 45.0
#: Between two requests.
AGAIN_S = 0.5
ANSWER_BYTES_MAX = 1024 * 1024

_LOOPBACK = ("127.0.0.1", "::1", "localhost")


class OwnerSilent(StoreUnavailable):
    """Nobody answers at the address: the process is gone, or can't be reached from here."""


class Owner:
    """The process at ``url``.

    Args:
        url: ``http://host:port``, from the manifest.
        clock: for deadlines.
        environ: where the token and the authorities are named.

    Raises:
        InvalidCall: no such URL.
        AccessDenied: a file of authorities that can't be read.
    """

    def __init__(self, url: str, *, clock: Clock, environ: Mapping[str, str] = os.environ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidCall(f"the stream's owner gave {url[:200]!r}, which is no HTTP address")
        self.url, self._clock = url.rstrip("/"), clock
        self._is_safe = parts.scheme == "https" or parts.hostname in _LOOPBACK
        self._token = environ.get(TOKEN_VARIABLE, "").strip()
        self._pool = urllib3.PoolManager(
            retries=False, ssl_context=_tls(environ.get(CA_VARIABLE, "")) if parts.scheme == "https" else None
        )

    def offload(self, stream: str, until: Position | None, *, within_s: float) -> Position | None:
        """Has the current segment closed and completed, and waits for it; the committed end then.

        Raises:
            OwnerSilent: nobody answers there.
            NotFound: it doesn't offload that stream (any more).
            AccessDenied: it wants a token, or another one.
            StoreUnavailable: not committed in time; it goes on.
            OffloaderError: as the owner says.
        """
        deadline_s = self._clock.monotonic_s() + within_s
        while True:
            left_s = deadline_s - self._clock.monotonic_s()
            asked: dict[str, Any] = {"wait_seconds": max(min(left_s, WAIT_S_MAX), 0.0)}
            if until is not None:
                asked["until"] = str(until)
            try:
                found = self._post(f"/v1/streams/{quote(stream, safe='')}/offload", asked)
            except OwnerSilent:
                raise
            except StoreUnavailable:
                if self._clock.monotonic_s() >= deadline_s:
                    raise
                # An answer that came at once comes at once again.
                self._clock.wait(threading.Event(), AGAIN_S)
                continue
            committed = found.get("committed")
            if committed is None:
                return None
            try:
                return Position.parse(committed)
            except (TypeError, ValueError) as cause:
                raise Corrupt(f"{self.url} answers with {committed!r} instead of a position") from cause

    def _post(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self._token:
            if not self._is_safe:
                raise AccessDenied(
                    f"{self.url} is another machine's and isn't encrypted: the token isn't sent there",
                    hint="serve HTTP with TLS, or ask on that machine",
                )
            headers["Authorization"] = f"Bearer {self._token}"
        timeout = urllib3.Timeout(connect=CONNECT_TIMEOUT_S, read=ANSWER_S)
        try:
            answer = self._pool.request(
                "POST",
                f"{self.url}{path}",
                body=json.dumps(body).encode(),
                headers=headers,
                timeout=timeout,
                redirect=False,
                preload_content=False,
            )
            raw = answer.read(ANSWER_BYTES_MAX)
            answer.release_conn()
        except urllib3.exceptions.ReadTimeoutError as cause:
            raise OutcomeUnknown(f"{self.url} didn't answer within {ANSWER_S:g} s", hint="ask again") from cause
        except urllib3.exceptions.HTTPError as cause:
            raise OwnerSilent(
                f"nobody answers at {self.url}, which offloads the stream: {_why(cause)}",
                hint="is the process running, and reachable from here? serve.url says where others reach it",
            ) from cause
        return self._understood(answer.status, raw)

    def _understood(self, status: int, raw: bytes) -> Mapping[str, Any]:
        try:
            found: Any = json.loads(raw)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise Corrupt(f"{self.url} isn't a process that offloads streams: it answers {status} and no JSON")
        if status == 200:
            return found
        detail, hint = str(found.get("detail", f"it answers {status}")), str(found.get("hint", ""))
        message = f"{self.url}: {detail}"
        if status in (401, 403):
            raise AccessDenied(message, hint=f"set {TOKEN_VARIABLE} to a token that may write there")
        raise _error_of(str(found.get("kind", "")), message, hint)


def _error_of(kind: str, message: str, hint: str) -> OffloaderError:
    """What the other's error is here, by its kind."""
    kinds: dict[str, type[OffloaderError]] = {
        ErrorKind.FIX_CALL.name.lower(): InvalidCall,
        ErrorKind.NOT_FOUND.name.lower(): NotFound,
        ErrorKind.RETRY_LATER.name.lower(): StoreUnavailable,
        ErrorKind.FENCED.name.lower(): Fenced,
        ErrorKind.REPAIR_DATA.name.lower(): Corrupt,
        ErrorKind.OUTCOME_UNKNOWN.name.lower(): OutcomeUnknown,
        ErrorKind.DENIED.name.lower(): AccessDenied,
    }
    return kinds.get(kind, OffloaderError)(message, hint=hint)


def _tls(authorities_file: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=authorities_file or None)
    except (OSError, ssl.SSLError) as cause:
        raise AccessDenied(f"{CA_VARIABLE}: {Path(authorities_file)} can't be read: {cause}") from cause


def _why(error: Exception) -> str:
    """The part of urllib3's words that isn't about urllib3."""
    reason = getattr(error, "reason", None) or error
    return str(reason).rpartition(": ")[2] or type(reason).__name__
