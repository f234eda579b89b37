"""HTTP client of the process that owns a stream."""

from __future__ import annotations

import base64
import json
import os
import re
import ssl
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import numpy as np
import pyarrow as pa

from formats.entries import TIME_UNKNOWN_MS, EntryBatch, Position
from offloader.errors import (
    AccessDeniedError,
    CorruptError,
    ErrorKind,
    FencedError,
    InvalidCallError,
    NotFoundError,
    OffloaderError,
    OutcomeUnknownError,
    StoreUnavailableError,
    needs_extra,
)
from offloader.ledgers.base import HotTierLostError, LedgerInfo, newest_listed
from offloader.ledgers.pulsar.topics import managed_ledger_of_stream
from offloader.manifest.state import ManifestState
from offloader.read.ledger_plan import LedgerMismatch, LedgerTrimmed
from offloader.read.reader import load_stream
from offloader.runtime.clock import Clock, SystemClock
from offloader.settings import Settings
from offloader.store.base import ObjectStore

with needs_extra("cli", "the HTTP client to the process that owns a stream"):
    import urllib3

#: Environment variables: the token to present, and a CA file for the owner's certificate.
TOKEN_VARIABLE, CA_VARIABLE = "OFFLOADER_TOKEN", "OFFLOADER_CA_FILE"
#: Comma-separated hosts that may receive the token, besides ``access.owner_hosts``.
HOSTS_VARIABLE = "OFFLOADER_OWNER_HOSTS"
CONNECT_TIMEOUT_S = 5.0
#: The owner responds within the first, possibly with "not done yet"; the second is added for receiving the response.
WAIT_S_MAX, ANSWER_S = 20.0, 25.0
#: The same for a follower's request; after it, the follower reads another source.
FOLLOW_ANSWER_S = 10.0
#: The same for a status document.
STATUS_ANSWER_S = 5.0
#: The same for a forwarded request, whose sender waits too.
FORWARD_ANSWER_S = 4.0
#: Header of a forwarded request, which must not be forwarded again.
FORWARDED = "Offloader-Forwarded"
#: Delay between two requests.
AGAIN_S = 0.5
ANSWER_BYTES_MAX = 1024 * 1024
#: Maximum entries and bytes of one response: a page has 512 KiB of payload, or one larger entry.
ENTRIES_MAX, ENTRIES_BYTES_MAX = 500, 64 * 1024 * 1024

_LOOPBACK = ("127.0.0.1", "::1", "localhost")
#: Rejects every URL whose host two parsers could read differently.
_URL = re.compile(
    r"(?P<scheme>https?)://(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]{1,5}))?"
    r"(?:/[A-Za-z0-9._~%-]+)*/?",
    re.ASCII,
)


class OwnerUnreachableError(StoreUnavailableError):
    """No response from the address: the process has ended or is unreachable."""


class NotOwnerError(OffloaderError):
    """The operation needs the process that owns the stream.

    Args:
        owner: its URL; empty: it serves no HTTP, or the stream has no owner.
    """

    kind = ErrorKind.FENCED

    def __init__(self, message: str, *, owner: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.owner = owner or None


class OwnerClient:
    """Client of the process at ``url``.

    Args:
        url: ``http://host:port``, from the manifest.
        hosts: hosts that may receive the token, each with an optional port.
        environ: with the token, the CA file and further hosts.

    Raises:
        InvalidCallError: the URL isn't valid.
        AccessDeniedError: the CA file can't be read.
    """

    def __init__(
        self, url: str, *, clock: Clock, hosts: Collection[str] = (), environ: Mapping[str, str] = os.environ
    ) -> None:
        parts = _URL.fullmatch(url)
        if parts is None:
            raise InvalidCallError(f"the address of the stream's owner, {url[:200]!r}, isn't an HTTP URL")
        self.url, self._clock = url.rstrip("/"), clock
        self._host = parts["host"].strip("[]").lower()
        is_tls, authorities_file = parts["scheme"] == "https", environ.get(CA_VARIABLE, "")
        self._is_safe = is_tls or self._host in _LOOPBACK
        allowed = {each.strip().lower() for each in (*hosts, *environ.get(HOSTS_VARIABLE, "").split(","))}
        names = {self._host, parts["host"].lower(), f"{parts['host'].lower()}:{parts['port']}"}
        self._is_trusted = bool(names & allowed) or (is_tls and bool(authorities_file))
        self._token = environ.get(TOKEN_VARIABLE, "").strip()
        self._pool = urllib3.PoolManager(retries=False, ssl_context=client_tls(authorities_file) if is_tls else None)

    def offload(self, stream: str, until: Position | None, *, within_s: float) -> Position | None:
        """Requests that the owner close and complete the current segment; returns the committed end in its response.

        Takes at most ``within_s`` plus ``ANSWER_S``.

        Raises:
            OwnerUnreachableError: no response from the address.
            NotFoundError: the process doesn't offload that stream, or no longer.
            AccessDeniedError: a missing or wrong token, or a host that may not receive it; then nothing was sent.
            StoreUnavailableError: not committed in time; the owner continues.
            OutcomeUnknownError: no complete response in time.
            OffloaderError: the owner's error.
        """
        deadline_s = self._clock.monotonic_s() + within_s
        while True:
            wait_s = max(min(deadline_s - self._clock.monotonic_s(), WAIT_S_MAX), 0.0)
            asked = {"wait_seconds": wait_s, **({} if until is None else {"until": str(until)})}
            try:
                found = self._request(f"/v1/streams/{quote(stream, safe='')}/offload", asked, wait_s + ANSWER_S)
            except StoreUnavailableError as error:
                if isinstance(error, OwnerUnreachableError) or self._clock.monotonic_s() >= deadline_s:
                    raise
                # Don't repeat immediately after an immediate response.
                self._clock.wait(threading.Event(), AGAIN_S)
                continue
            committed = found.get("committed")
            if committed is None:
                return None
            try:
                return Position.parse(committed)
            except (TypeError, ValueError) as cause:
                raise CorruptError(f"{self.url} responded with {committed!r} instead of a position") from cause

    @property
    def is_allowed(self) -> bool:
        """Whether the host may receive a token."""
        return self._is_trusted and self._is_safe

    def offload_ledger(
        self, stream: str, ledger_id: int, asked: Mapping[str, Any], *, wait_s: float, source: str = ""
    ) -> Mapping[str, Any]:
        """Forwards a broker's request to offload a ledger to the owner; returns the response.

        Args:
            asked: the request's body.
            source: the cluster's name; empty: unknown.

        Raises: as ``offload``; LedgerTrimmed, LedgerMismatch, NotOwnerError: errors of the owner.
        """
        more = {FORWARDED: "1", **({"Offloader-Source": source} if source else {})}
        # The routes for brokers use the brokers' stream names.
        path = f"/v1/streams/{quote(managed_ledger_of_stream(stream), safe='')}/ledgers/{ledger_id}/offload"
        return self._request(path, {**asked, "wait_seconds": wait_s}, wait_s + FORWARD_ANSWER_S, more)

    def status(self, *, within_s: float) -> Mapping[str, Any]:
        """The process's status document. Raises as ``offload``."""
        return self._request("/v1/status", None, within_s)

    def ledgers(self, stream: str) -> Sequence[LedgerInfo]:
        """The ledgers of the stream's hot tier, as the owner lists them. Raises as ``offload``."""
        found = self._request(f"/v1/streams/{quote(stream, safe='')}/ledgers", None, FOLLOW_ANSWER_S)
        try:
            return [LedgerInfo(**{name: row[name] for name in _LEDGER_FIELDS}) for row in found["items"]]
        except (KeyError, TypeError) as cause:
            raise CorruptError(f"{self.url} responded with invalid ledgers: {cause}") from cause

    def entries(self, stream: str, start: Position) -> EntryBatch | None:
        """Entries of one ledger, from the first one at or after ``start``, of both tiers; ``None``: none yet. Raises as
        ``offload``."""
        path = f"/v1/streams/{quote(stream, safe='')}/entries?from={start}&limit={ENTRIES_MAX}"
        found = self._request(path, None, FOLLOW_ANSWER_S)
        try:
            rows = [(Position.parse(row["position"]), row) for row in found["items"]]
            rows = [row for row in rows if row[0].ledger_id == rows[0][0].ledger_id]
            if not rows:
                return None
            times = [TIME_UNKNOWN_MS if (at := row["publish_time_ms"]) is None else int(at) for _, row in rows]
            payloads = [base64.b64decode(row["payload_base64"]) for _, row in rows]
            ids = np.array([position.entry_id for position, _ in rows], dtype=np.int64)
            return EntryBatch(
                rows[0][0].ledger_id, ids, pa.array(payloads, pa.binary()), np.array(times, dtype=np.int64)
            )
        except (KeyError, TypeError, ValueError) as cause:
            raise CorruptError(f"{self.url} responded with invalid entries: {cause}") from cause

    def _request(
        self, path: str, body: Mapping[str, Any] | None, limit_s: float, more: Mapping[str, str] | None = None
    ) -> Mapping[str, Any]:
        """The response to a ``POST`` of ``body``, or to a ``GET`` if that is ``None``."""
        headers = {
            "Content-Type": "application/json",
            "Accept": "application/json",
            **self._authorization(path),
            **(more or {}),
        }
        found: list[tuple[int, bytes] | Exception] = []
        over = threading.Event()

        def exchange() -> None:
            try:
                sent = None if body is None else json.dumps(body).encode()
                found.append(self._exchanged(path, sent, headers, limit_s))
            except Exception as error:  # raised below, in the calling thread
                found.append(error)
            finally:
                over.set()

        # On its own thread: no socket timeout bounds a response that trickles in.
        threading.Thread(target=exchange, name="offloader-asking", daemon=True).start()
        if not self._clock.wait(over, limit_s):
            raise OutcomeUnknownError(f"{self.url} didn't answer within {limit_s:g} s", hint="retry")
        [answer] = found
        if isinstance(answer, Exception):
            raise answer
        return self._understood(*answer)

    def _authorization(self, path: str) -> Mapping[str, str]:
        """The header with the token, if one is set. Raises ``AccessDeniedError`` if this host may not receive it."""
        if not self._token:
            return {}
        if not self._is_trusted:
            raise AccessDeniedError(
                f"the manifest names {self.url} as the stream's owner, but {self._host} isn't allowed to receive the "
                f"token of {TOKEN_VARIABLE}: no request was sent",
                hint=f'if that process is yours, set access.owner_hosts = ["{self._host}"] in the settings file or '
                f"{HOSTS_VARIABLE}={self._host}, or give the authority of its certificate in {CA_VARIABLE}; "
                f"or send the request yourself: POST {self.url}{path}",
            )
        if not self._is_safe:
            raise AccessDeniedError(
                f"{self.url} is on another machine and not encrypted: the token was not sent",
                hint="serve HTTP with TLS, or run the command on that machine",
            )
        return {"Authorization": f"Bearer {self._token}"}

    def _exchanged(
        self, path: str, body: bytes | None, headers: Mapping[str, str], limit_s: float
    ) -> tuple[int, bytes]:
        try:
            answer = self._pool.request(
                "GET" if body is None else "POST",
                f"{self.url}{path}",
                body=body,
                headers=headers,
                timeout=urllib3.Timeout(connect=CONNECT_TIMEOUT_S, read=limit_s),
                redirect=False,
                preload_content=False,
            )
            raw = answer.read(ANSWER_BYTES_MAX if body is not None else ENTRIES_BYTES_MAX)
            answer.release_conn()
        except urllib3.exceptions.ReadTimeoutError as cause:
            raise OutcomeUnknownError(f"{self.url} didn't answer within {limit_s:g} s", hint="retry") from cause
        except urllib3.exceptions.HTTPError as cause:
            # The cause, without urllib3's wording.
            reason = getattr(cause, "reason", None) or cause
            why = str(reason).rpartition(": ")[2] or type(reason).__name__
            raise OwnerUnreachableError(
                f"no answer from {self.url}, the owner of the stream: {why}",
                hint="check that the process is running and reachable; serve.url is its address for other machines",
            ) from cause
        return answer.status, raw

    def _understood(self, status: int, raw: bytes) -> Mapping[str, Any]:
        try:
            found: Any = json.loads(raw)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise CorruptError(
                f"{self.url} isn't a process that offloads streams: it returned status {status} without JSON"
            )
        if status == 200:
            return found
        detail, hint = str(found.get("detail", f"it returned status {status}")), str(found.get("hint", ""))
        message = f"{self.url}: {detail}"
        if status in (401, 403):
            raise AccessDeniedError(message, hint=f"set {TOKEN_VARIABLE} to a token with write access to it")
        raise _ERRORS.get(str(found.get("kind", "")), OffloaderError)(message, hint=hint)


class OwnerHotTier:
    """The hot tier of a stream, read from its owner over HTTP (``ReadableLedgers``). Thread-safe.

    Its methods raise ``HotTierLostError`` if the owner doesn't answer, returns an error, or has no ledgers of the
    stream.

    Attributes:
        url: the owner's.
        lost: the reason of the last ``HotTierLostError``; empty: none was raised.
    """

    def __init__(self, owner: OwnerClient, stream: str) -> None:
        self._owner, self._stream = owner, stream
        self.url, self.lost = owner.url, ""

    def ledgers(self) -> list[LedgerInfo]:
        """All ledgers that still exist, ascending."""
        found = list(self._asked(lambda: self._owner.ledgers(self._stream)))
        if not found:
            self.lost = f"{self.url} has no ledgers of stream {self._stream}"
            raise HotTierLostError(self.lost)
        return found

    def read(self, start: Position, max_bytes: int) -> EntryBatch | None:  # noqa: ARG002 - the owner bounds its answers
        """As ``LedgerSource.read``; the owner also returns entries of the cold tier."""
        last = newest_listed(self.ledgers())
        is_there = last is not None and start <= last
        return self._asked(lambda: self._owner.entries(self._stream, start)) if is_there else None

    def _asked(self, ask: Callable[[], _Answer]) -> _Answer:
        try:
            return ask()
        except OffloaderError as error:
            self.lost = error.message
            raise HotTierLostError(error.message, hint=error.hint) from error


_Answer = TypeVar("_Answer")


_LEDGER_FIELDS = ("ledger_id", "closed", "entries", "size_bytes", "created_ms", "closed_ms")


def ask_owner(store: ObjectStore, state: ManifestState, until: Position | None, settings: Settings) -> ManifestState:
    """Requests that a stream's owner complete its segment; returns the manifest, checked against the response.

    Args:
        state: of the stream; its owner has an address.
        until: last entry to offload; ``None``, or a later position: the newest entry.
        settings: the time limit, and the hosts that may receive the token.

    Raises:
        CorruptError: the manifest contradicts the owner's response.
        NotFoundError: also, the stream was deleted meanwhile.
        OffloaderError: as ``OwnerClient.offload``.
    """
    owner = OwnerClient(state.owner.url, clock=SystemClock(), hosts=settings.access.owner_hosts)
    said = owner.offload(state.stream, until, within_s=settings.offload.drain_timeout)
    after = load_stream(store, state.stream)
    shown = after.committed_end()
    if after.incarnation != state.incarnation:
        raise NotFoundError(f"stream {state.stream} was deleted and created again meanwhile")
    if said is not None and (shown is None or shown < said):
        raise CorruptError(
            f"{owner.url} reports stream {state.stream} as offloaded up to {said}, but its manifest as offloaded up to "
            f"{shown or 'nothing'}",
            hint="another process answers at that address: its response was ignored",
        )
    return after


#: Kind in the owner's response -> the local error.
_ERRORS: Mapping[str, Callable[..., OffloaderError]] = {
    "trimmed": LedgerTrimmed,
    "source_mismatch": LedgerMismatch,
    "not_owner": NotOwnerError,
} | {
    error.kind.name.lower(): error
    for error in (
        InvalidCallError,
        NotFoundError,
        StoreUnavailableError,
        FencedError,
        CorruptError,
        OutcomeUnknownError,
        AccessDeniedError,
    )
}


def client_tls(authorities_file: str) -> ssl.SSLContext:
    """TLS that trusts the machine's authorities and those of a file.

    Raises ``AccessDeniedError`` if it can't be read.
    """
    try:
        return ssl.create_default_context(cafile=authorities_file or None)
    except (OSError, ssl.SSLError) as cause:
        raise AccessDeniedError(f"{CA_VARIABLE}: {Path(authorities_file)} can't be read: {cause}") from cause


def served_status(
    url: str, store_url: str, *, hosts: Collection[str] = (), environ: Mapping[str, str] = os.environ
) -> dict[str, Any]:
    """The status document of the ``offloader serve`` at ``url``, which may receive the token.

    Args:
        store_url: of the store that it must serve.
        hosts, environ: as for ``OwnerClient``.

    Raises:
        InvalidCallError: it serves another store.
        CorruptError: it sent no status document. Others as ``OwnerClient`` and ``OwnerClient.offload``.
    """
    from offloader.monitor import status_document

    host = urlsplit(url).hostname or ""
    owner = OwnerClient(url, clock=SystemClock(), hosts=[*hosts, host], environ=environ)
    document = status_document(owner.status(within_s=STATUS_ANSWER_S), where=url)
    if (document.get("store") or {}).get("url") != store_url:
        raise InvalidCallError(
            f"{url} serves another store", hint="name the address of the process that serves this one, or none"
        )
    return document
