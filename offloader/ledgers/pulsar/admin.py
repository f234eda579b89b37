"""A Pulsar cluster's admin REST interface: topics, their ledgers, cursors and policies.

Deletes nothing in the cluster, and every wait has a deadline. Two calls change something: ``trim`` makes a broker trim
ledgers, ``unload`` makes it release a topic for a moment.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urljoin

import urllib3

from formats.entries import Position
from offloader.errors import AccessDenied, Corrupt, InvalidCall, NotFound, StoreUnavailable, Throttled
from offloader.ledgers.pulsar.topics import (
    EntryFate,
    TopicInternals,
    TopicLedgers,
    TopicStats,
    fate_of,
    internals_of,
    is_text,
    stats_of,
    stream_of_topic,
)
from offloader.ledgers.pulsar.transport import Security
from offloader.runtime.clock import Clock, SystemClock

__all__ = ["AdminClient"]

CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 30.0
#: Longest time for a response that arrives slowly.
ANSWER_S_MAX = 60.0
RETRIES_MAX = 3
#: Redirects to another broker before a request fails.
REDIRECTS_MAX = 5
CONNECTIONS_MAX = 8
#: The response for a namespace of a million topics has 60 MB.
ANSWER_BYTES_MAX = 128 * 1024 * 1024
ANSWER_SHOWN_CHARS = 200
_PIECE_BYTES = 256 * 1024

_DENIED = (401, 403)
_DONE = (200, 204)
_TOKEN_HINT = "set a token that may do this there: OFFLOADER_ADMIN_TOKEN, or the token of the section [pulsar]"  # noqa: S105 - words


class AdminClient:
    """Client of one cluster. Thread-safe.

    Args:
        url: of the admin interface, ``http://broker:8080``.
        security: its token is sent as a bearer token; its TLS checks ``https``.
        hosts: other brokers that may get the token after a redirect, with * for any letters.
        clock: of deadlines.
        retries_max: of one call; for callers that don't retry.

    Raises (every call):
        AccessDenied: the token isn't authorised.
        NotFound: no such tenant, namespace or topic.
        StoreUnavailable, Throttled: retry later.
        Corrupt: the response isn't from Pulsar's admin interface.
    """

    def __init__(
        self,
        url: str,
        *,
        security: Security | None = None,
        hosts: Collection[str] = (),
        clock: Clock | None = None,
        retries_max: int = RETRIES_MAX,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise InvalidCall(f"{url!r} is no admin URL", hint="give http://broker:8080 or https://broker:8443")
        self.url = url.rstrip("/")
        self._security = security or Security()
        self._hosts = [_host_of(self.url), *(host.lower() for host in hosts)]
        self._clock = clock or SystemClock()
        # All requests here are idempotent, whatever the method.
        retries = urllib3.Retry(
            total=retries_max,
            allowed_methods=None,
            backoff_factor=0.2,
            status_forcelist=(429, 502, 503, 504),
            raise_on_status=False,
        )
        self._pool = urllib3.PoolManager(
            maxsize=CONNECTIONS_MAX,
            retries=retries,
            timeout=urllib3.Timeout(connect=CONNECT_TIMEOUT_S, read=READ_TIMEOUT_S),
            ssl_context=self._security.context() if url.startswith("https://") else None,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes all connections. Idempotent."""
        self._pool.clear()

    def namespaces(self) -> Sequence[str]:
        """All namespaces, ``tenant/namespace``."""
        tenants = self._names("/admin/v2/tenants")
        return [name for tenant in tenants for name in self.namespaces_of(tenant)]

    def namespaces_of(self, tenant: str) -> Sequence[str]:
        """The namespaces of one tenant, ``tenant/namespace``."""
        return self._names(f"/admin/v2/namespaces/{quote(tenant, safe='')}")

    def topics(self, namespace: str) -> Sequence[str]:
        """The persistent topics of ``tenant/namespace``; of partitioned ones, the partitions."""
        return self._names(f"/admin/v2/persistent/{quote(namespace)}")

    def policies(self, namespace: str) -> Mapping[str, Any]:
        """Policies set for ``tenant/namespace``; for ``policy_warnings``."""
        found = self._json("GET", f"/admin/v2/namespaces/{quote(namespace)}")
        if not isinstance(found, dict):
            raise Corrupt(f"{self.url}: namespace {namespace} has no policies")
        return found

    def partitions(self, topic: str) -> int:
        """Number of partitions of a topic; 0 if it isn't partitioned."""
        found = self._json("GET", f"{_path(topic)}/partitions")
        number = found.get("partitions") if isinstance(found, dict) else None
        if not isinstance(number, int) or number < 0:
            raise Corrupt(f"{self.url}: {topic} has no number of partitions")
        return number

    def ledgers(self, topic: str) -> TopicLedgers:
        """The ledgers of one topic, or one partition."""
        return self.internals(topic).ledgers

    def internals(self, topic: str) -> TopicInternals:
        """The ledgers and cursors of one topic, or one partition."""
        return internals_of(self._json("GET", f"{_path(topic)}/internalStats"), topic)

    def stats(self, topic: str) -> TopicStats:
        """The subscriptions of one topic, or one partition."""
        return stats_of(self._json("GET", f"{_path(topic)}/stats"), topic)

    def fate(self, topic: str, position: Position) -> EntryFate:
        """Why an entry of one topic, or one partition, wasn't delivered to a reader."""
        where = f"{self.url}{_path(topic)}/ledger/{position.ledger_id}/entry/{position.entry_id}"
        status, headers, body = self._exchange("GET", where)
        found = fate_of(status, headers, body)
        if found is None:
            raise StoreUnavailable(f"{where} answered {status}: {self._shown(body)}")
        return found

    def trim(self, topic: str) -> None:
        """Makes the broker trim unneeded ledgers; it deletes them some time after this returns."""
        self._ask("POST", f"{_path(topic)}/trim")

    def unload(self, topic: str) -> None:
        """Makes the broker release the topic: clients reconnect, and its open ledger is closed."""
        self._ask("PUT", f"{_path(topic)}/unload")

    def _names(self, path: str) -> list[str]:
        found = self._json("GET", path)
        if not isinstance(found, list) or not all(isinstance(name, str) and is_text(name) for name in found):
            raise Corrupt(f"{self.url}{path} didn't answer a list of names")
        return found

    def _json(self, method: str, path: str) -> Any:
        body = self._ask(method, path)
        try:
            return json.loads(body)
        except (ValueError, RecursionError) as cause:
            raise Corrupt(f"{self.url}{path} didn't answer JSON: {self._shown(body)}") from cause

    def _ask(self, method: str, path: str) -> bytes:
        where = f"{self.url}{path}"
        status, _, body = self._exchange(method, where)
        if status in _DENIED:
            raise AccessDenied(f"{where} answered {status}", hint=_TOKEN_HINT)
        if status == 404:
            raise NotFound(f"{where} isn't there")
        if status not in _DONE:
            kind = Throttled if status == 429 else StoreUnavailable
            raise kind(f"{where} answered {status}: {self._shown(body)}")
        return body

    def _exchange(self, method: str, url: str) -> tuple[int, Mapping[str, str], bytes]:
        """Status, headers by names in small letters, and body, after redirects between brokers."""
        where = url
        try:
            for _ in range(REDIRECTS_MAX + 1):
                answer = self._pool.request(
                    method, where, preload_content=False, headers=self._headers(), redirect=False
                )
                try:
                    body = self._body(answer, where)
                finally:
                    answer.release_conn()
                elsewhere = answer.get_redirect_location()
                if not elsewhere:
                    break
                where = self._allowed(where, urljoin(where, elsewhere))
            else:
                raise StoreUnavailable(f"{url}: more than {REDIRECTS_MAX} brokers in a row name another one")
        except urllib3.exceptions.HTTPError as cause:
            if "CERTIFICATE_VERIFY_FAILED" in str(cause):
                raise AccessDenied(
                    f"{self.url} shows a certificate that isn't good",
                    hint="give the file of its certificate authority, and the name that is in its certificate",
                ) from cause
            raise StoreUnavailable(
                f"{where} doesn't answer: {cause}", hint="check the admin URL, or try later"
            ) from cause
        return answer.status, {name.lower(): value for name, value in answer.headers.items()}, body

    def _allowed(self, where: str, elsewhere: str) -> str:
        """Follows a redirect to the owning broker, with the token only if its host is allowed."""
        safe = ("https://",) if where.startswith("https://") else ("http://", "https://")
        if not elsewhere.startswith(safe):
            raise AccessDenied(
                f"{where} sends us on to {elsewhere[:200]}, where the token could be read on the way",
                hint="give the brokers https addresses: webServicePortTls, and advertisedListeners",
            )
        host = _host_of(elsewhere)
        if self._security.token is not None and not any(fnmatchcase(host, allowed) for allowed in self._hosts):
            raise AccessDenied(
                f"{where} sends us on to {elsewhere[:200]}, and nothing here says that {host[:100]} may have the token",
                hint=f'if that is a broker of yours: pulsar.admin_hosts = ["{host[:100]}"], with * for any letters '
                "(adopt: OFFLOADER_ADMIN_HOSTS); or give the admin URL of a proxy",
            )
        return elsewhere

    def _body(self, answer: urllib3.BaseHTTPResponse, where: str) -> bytes:
        deadline_s = self._clock.monotonic_s() + ANSWER_S_MAX
        body = bytearray()
        while piece := answer.read1(_PIECE_BYTES):
            body += piece
            if len(body) > ANSWER_BYTES_MAX:
                answer.close()
                raise Corrupt(f"{where} answered more than {ANSWER_BYTES_MAX} bytes")
            if self._clock.monotonic_s() > deadline_s:
                answer.close()
                raise StoreUnavailable(f"{where} takes more than {ANSWER_S_MAX:g} s to answer", hint="try later")
        return bytes(body)

    def _shown(self, body: bytes) -> str:
        """The beginning of a response, without the token that it may repeat."""
        token = self._token()
        text = body[:_PIECE_BYTES].decode(errors="replace")
        whole = text.replace(token, "...") if token else text  # before truncation, which could leave half a token
        return whole[:ANSWER_SHOWN_CHARS]

    def _token(self) -> str:
        return self._security.token() if self._security.token else ""

    def _headers(self) -> dict[str, str]:
        token = self._token()
        return {"Accept": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}


def _host_of(url: str) -> str:
    """The host as the HTTP library parses it; empty: none."""
    try:
        return (urllib3.util.parse_url(url).host or "").lower()
    except urllib3.exceptions.LocationParseError:
        return ""


def _path(topic: str) -> str:
    """The path of ``persistent://tenant/namespace/topic``."""
    stream_of_topic(topic)  # raises for other names
    tenant, namespace, name = topic.removeprefix("persistent://").split("/", 2)
    return f"/admin/v2/persistent/{quote(tenant, safe='')}/{quote(namespace, safe='')}/{quote(name, safe='')}"
