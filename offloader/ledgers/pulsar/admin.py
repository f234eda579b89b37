"""A Pulsar cluster's admin REST interface: topics, their ledgers, cursors and policies.

Every wait has a deadline. ``trim`` and ``offload`` start work in a broker, ``note`` adds to a subscription's
properties; all other calls only read.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, Self
from urllib.parse import quote, urljoin

from formats.entries import Position
from formats.topic_layout import TopicLayout, TopicSchema
from offloader.errors import (
    AccessDeniedError,
    CorruptError,
    InvalidCallError,
    NotFoundError,
    StoreUnavailableError,
    ThrottledError,
    UnsupportedError,
    needs_extra,
    plain_reason,
)
from offloader.ledgers.pulsar.scalable import (
    SEGMENT_SCHEME,
    TOPIC_SCHEME,
    layout_of_json,
    place_of_topic,
    schemas_of_json,
)
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
from offloader.ledgers.pulsar.transport import Security, without_credentials
from offloader.runtime.clock import Clock, SystemClock
from offloader.stream_names import matches

with needs_extra("cli", "a client of Pulsar's admin interface"):
    import urllib3

CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 30.0
#: Time limit for receiving a whole response.
ANSWER_S_MAX = 60.0
RETRIES_MAX = 3
#: Redirects to another broker before a request fails.
REDIRECTS_MAX = 5
CONNECTIONS_MAX = 8
#: The response for a namespace of a million topics has 60 MB.
ANSWER_BYTES_MAX = 128 * 1024 * 1024
ANSWER_SHOWN_CHARS = 200
OFFLOAD_ERROR_CHARS = 500
#: Part of the error message of an offload that did not fail.
_UNDER_WAY = "already running"
_PIECE_BYTES = 256 * 1024


class AdminClient:
    """Client of one cluster. Thread-safe.

    Args:
        url: of the admin interface, ``http://broker:8080``.
        security: its token is sent as a bearer token; its TLS settings check ``https``.
        hosts: other brokers that may receive the token after a redirect; * matches any letters.
        retries_max: of one call; for callers that don't retry.

    Raises (every call):
        AccessDeniedError: the token isn't authorised.
        NotFoundError: the tenant, namespace or topic does not exist.
        StoreUnavailableError, ThrottledError: retry later.
        CorruptError: the response isn't from Pulsar's admin interface.
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
        require_admin_url(url)
        self.url = url.rstrip("/")
        self._security = security or Security()
        self._hosts = [host_of(self.url), *(_without_brackets(host.lower()) for host in hosts)]
        self._clock = clock or SystemClock()
        self._noting = threading.Lock()
        self._pool = urllib3.PoolManager(
            maxsize=CONNECTIONS_MAX,
            retries=urllib3.Retry(
                total=retries_max,
                allowed_methods=None,  # all requests are idempotent, whatever the method
                backoff_factor=0.2,
                status_forcelist=(429, 502, 503, 504),
                raise_on_status=False,
                respect_retry_after_header=False,  # it may ask for hours, and this wait can't be interrupted
            ),
            timeout=urllib3.Timeout(connect=CONNECT_TIMEOUT_S, read=READ_TIMEOUT_S),
            ssl_context=self._security.context() if url.startswith("https://") else None,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes all connections. Idempotent."""
        self._pool.clear()

    def namespaces(self) -> Sequence[str]:
        """All namespaces, ``tenant/namespace``."""
        found: list[str] = []
        for tenant in self._names("/admin/v2/tenants"):
            with suppress(NotFoundError):  # deleted since
                found += self.namespaces_of(tenant)
        return found

    def namespaces_of(self, tenant: str) -> Sequence[str]:
        """The namespaces of one tenant, ``tenant/namespace``."""
        return self._names(f"/admin/v2/namespaces/{quote(tenant, safe='')}")

    def topics(self, namespace: str) -> Sequence[str]:
        """The persistent topics of ``tenant/namespace``, with the partitions of partitioned topics."""
        return self._names(f"/admin/v2/persistent/{quote(namespace)}")

    def scalable_topics(self, namespace: str) -> Sequence[str]:
        """The scalable topics of ``tenant/namespace``, ``topic://...``; some may be deleted already."""
        return self._names(f"/admin/v2/scalable/{quote(namespace)}")

    def layout(self, topic: str) -> TopicLayout:
        """The segments of a scalable topic that the broker has; raises also as ``layout_of_json``."""
        return layout_of_json(self._json(_scalable_path(topic)), topic)

    def scalable_subscriptions(self, topic: str) -> Mapping[str, int]:
        """The subscriptions that are registered at a scalable topic, with the number of their consumers.

        For these, the broker keeps sealed segments."""
        found = self._json(f"{_scalable_path(topic)}/stats")
        if not isinstance(found, dict) or not isinstance(found.get("subscriptions"), dict):
            raise CorruptError(f"{self.url}: scalable topic {topic} has no statistics")
        return {str(name): _consumers_in(each) for name, each in found["subscriptions"].items()}

    def backlog(self, segment: str, subscription: str) -> int:
        """Entries of a segment that a subscription hasn't acknowledged. ``NotFoundError``: it isn't at the segment."""
        name = segment.removeprefix(SEGMENT_SCHEME)
        found = self._json(f"/admin/v2/segments/{quote(name)}/subscription/{quote(subscription, safe='')}/backlog")
        if not isinstance(found, int) or isinstance(found, bool) or found < 0:
            raise CorruptError(f"{self.url}: {segment} has no backlog of subscription {subscription}")
        return found

    def register(self, topic: str, subscription: str) -> None:
        """Registers a subscription at a scalable topic, at the beginning of its active segments and of later ones.

        Nothing changes if it is registered already."""
        self._ask("PUT", f"{_scalable_path(topic)}/subscriptions/{quote(subscription, safe='')}?type=QUEUE")

    def policies(self, namespace: str) -> Mapping[str, Any]:
        """Policies set for ``tenant/namespace``; for ``policy_warnings``."""
        found = self._json(f"/admin/v2/namespaces/{quote(namespace)}")
        if not isinstance(found, dict):
            raise CorruptError(f"{self.url}: namespace {namespace} has no policies")
        return found

    def ledgers(self, topic: str) -> TopicLedgers:
        """The ledgers of one topic, or one partition."""
        return self.internals(topic).ledgers

    def internals(self, topic: str) -> TopicInternals:
        """The ledgers and cursors of one topic, or one partition."""
        return internals_of(self._json(f"{_path(topic)}/internalStats"), topic)

    def stats(self, topic: str) -> TopicStats:
        """The subscriptions of one topic, or one partition."""
        return stats_of(self._json(f"{_path(topic)}/stats"), topic)

    def schema(self, topic: str, version: int | None) -> tuple[str, str, Mapping[str, str]]:
        """Type, definition and properties of a topic's schema; default: of the newest version.

        A segment has the schema of its scalable topic.
        """
        name = _schemas_path(topic)
        found = self._json(f"{name}/schema" if version is None else f"{name}/schema/{version}")
        if not isinstance(found, dict) or not isinstance(found.get("type"), str):
            raise CorruptError(f"{self.url}: topic {topic} has no schema")
        return found["type"], str(found.get("data") or ""), found.get("properties") or {}

    def schemas(self, topic: str) -> Sequence[TopicSchema]:
        """All versions of a topic's schema, ascending; none if it has no schema."""
        try:
            return schemas_of_json(self._json(f"{_schemas_path(topic)}/schemas"), topic)
        except NotFoundError:
            return ()

    def fate(self, topic: str, position: Position) -> EntryFate:
        """Why an entry of one topic, or one partition, wasn't delivered to a reader."""
        where = f"{self.url}{_path(topic)}/ledger/{position.ledger_id}/entry/{position.entry_id}"
        status, headers, body = self._exchange("GET", where)
        if (found := fate_of(status, headers, body)) is None:
            raise StoreUnavailableError(f"{where} returned status {status}: {self._shown(body)}")
        return found

    def trim(self, topic: str) -> None:
        """Makes the broker trim unneeded ledgers; it deletes them some time after this returns."""
        self._ask("POST", f"{_path(topic)}/trim")

    def offload(self, topic: str, before: Position) -> bool:
        """Make the broker offload the closed ledgers that end before a position.

        The broker offloads them some time after this returns. False: it is already offloading this topic."""
        body = {"ledgerId": before.ledger_id, "entryId": before.entry_id, "partitionIndex": -1}
        where = f"{self.url}{_path(topic)}/offload"
        status, _, answer = self._exchange("PUT", where, body)
        if status == 409:
            return False
        self._require_done(where, status, answer)
        return True

    def offload_error(self, topic: str) -> str:
        """Why the last offload that was requested from the broker failed; empty: it did not fail, or is running.

        Pulsar also reports ERROR for a request during an offload that the broker had started itself.
        """
        found = self._json(f"{_path(topic)}/offload")
        if not isinstance(found, dict) or found.get("status") != "ERROR":
            return ""
        # The names of the broker's exceptions come first, the plugin's message last.
        why = str(found.get("lastError") or "the broker gives no reason").rpartition("PluginError: ")[2]
        return "" if _UNDER_WAY in why.lower() else why[:OFFLOAD_ERROR_CHARS]

    def properties(self, topic: str, subscription: str) -> Mapping[str, str]:
        """Properties of a subscription; ``NotFoundError``: the topic or subscription does not exist."""
        found = self._json(_properties_path(topic, subscription))
        if not isinstance(found, dict):
            raise CorruptError(f"{self.url}: the response has no properties of subscription {subscription} of {topic}")
        return {str(name): str(value) for name, value in found.items()}

    def note(self, topic: str, subscription: str, changes: Mapping[str, str]) -> None:
        """Set properties of a subscription, and keep its others; ``NotFoundError`` as ``properties``."""
        with self._noting:
            found = self.properties(topic, subscription)
            self._ask("PUT", _properties_path(topic, subscription), {**found, **changes})

    def broker_settings(self) -> Mapping[str, str]:
        """The effective settings of the broker that responds; requires a superuser."""
        found = self._json("/admin/v2/brokers/configuration/runtime")
        if not isinstance(found, dict):
            raise CorruptError(f"{self.url}: the response has no broker settings")
        return {str(name): "" if value is None else str(value) for name, value in found.items()}

    def broker_version(self) -> str:
        """The version of the broker that responds, ``4.0.7``."""
        return self._ask("GET", "/admin/v2/brokers/version").decode(errors="replace").strip().strip('"')[:40]

    def _names(self, path: str) -> list[str]:
        found = self._json(path)
        if not isinstance(found, list) or not all(isinstance(name, str) and is_text(name) for name in found):
            raise CorruptError(f"{self.url}{path}: the response is not a list of names")
        return found

    def _json(self, path: str) -> Any:
        body = self._ask("GET", path)
        try:
            return json.loads(body)
        except (ValueError, RecursionError) as cause:
            raise CorruptError(f"{self.url}{path}: the response is not JSON: {self._shown(body)}") from cause

    def _ask(self, method: str, path: str, document: Mapping[str, object] | None = None) -> bytes:
        where = f"{self.url}{path}"
        status, _, body = self._exchange(method, where, document)
        self._require_done(where, status, body)
        return body

    def _require_done(self, where: str, status: int, body: bytes) -> None:
        if status in (401, 403):
            raise AccessDeniedError(
                f"{where} returned status {status}",
                hint="set a token with the required permission: OFFLOADER_ADMIN_TOKEN, or the token of the section "
                "[pulsar]",
            )
        if status == 404:
            raise NotFoundError(f"{where} does not exist")
        if status not in (200, 204):
            raise (ThrottledError if status == 429 else StoreUnavailableError)(
                f"{where} returned status {status}: {self._shown(body)}"
            )

    def _exchange(
        self, method: str, url: str, document: Mapping[str, object] | None = None
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Status, headers by lower-case names, and body, after redirects between brokers."""
        where = url
        try:
            for _ in range(REDIRECTS_MAX + 1):
                # A response closed before its end closes its connection; a whole response has returned it to the pool.
                with self._pool.request(
                    method, where, preload_content=False, headers=self._headers(), redirect=False, json=document
                ) as answer:
                    body = self._body(answer, where)
                elsewhere = answer.get_redirect_location()
                if not elsewhere:
                    break
                try:
                    elsewhere = urljoin(where, elsewhere)
                except ValueError as cause:
                    raise StoreUnavailableError(
                        f"{where} redirects to {elsewhere[:200]!a}, which is not a valid address",
                        hint="check the advertised addresses of the brokers",
                    ) from cause
                where = self._allowed(where, elsewhere)
            else:
                raise StoreUnavailableError(f"{url}: more than {REDIRECTS_MAX} redirects between brokers")
        except urllib3.exceptions.HTTPError as cause:
            if "CERTIFICATE_VERIFY_FAILED" in str(cause):
                raise AccessDeniedError(
                    f"{self.url}: certificate verification failed",
                    hint="configure the file of its certificate authority, and a URL whose host is in its certificate",
                ) from cause
            raise StoreUnavailableError(
                f"{where} doesn't answer: {plain_reason(cause)}", hint="check the admin URL, or retry later"
            ) from cause
        return answer.status, {name.lower(): value for name, value in answer.headers.items()}, body

    def _allowed(self, where: str, elsewhere: str) -> str:
        """Follow a redirect to the owning broker, with the token only if its host is allowed."""
        safe = ("https://",) if where.startswith("https://") else ("http://", "https://")
        if not elsewhere.startswith(safe):
            raise AccessDeniedError(
                f"{where} redirects to {elsewhere[:200]}, which is not encrypted: the token is not sent there",
                hint="give the brokers https addresses: webServicePortTls, and advertisedListeners",
            )
        host = host_of(elsewhere)
        if self._security.token is not None and not any(matches(host, allowed) for allowed in self._hosts):
            raise AccessDeniedError(
                f"{where} redirects to {elsewhere[:200]}, but {host[:100]} is not allowed to receive the token",
                hint=f'if it is one of your brokers, set pulsar.admin_hosts = ["{host[:100]}"], with * for any '
                "letters (adopt: OFFLOADER_ADMIN_HOSTS); or give the admin URL of a proxy",
            )
        return elsewhere

    def _body(self, answer: urllib3.BaseHTTPResponse, where: str) -> bytes:
        deadline_s = self._clock.monotonic_s() + ANSWER_S_MAX
        body = bytearray()
        while piece := answer.read1(_PIECE_BYTES):
            body += piece
            if len(body) > ANSWER_BYTES_MAX:
                raise CorruptError(f"{where} returned more than {ANSWER_BYTES_MAX} bytes")
            if self._clock.monotonic_s() > deadline_s:
                raise StoreUnavailableError(
                    f"{where}: the response took more than {ANSWER_S_MAX:g} s", hint="retry later"
                )
        return bytes(body)

    def _shown(self, body: bytes) -> str:
        """The beginning of a response, without the token that it may repeat."""
        # In this order: truncation first could leave half a token.
        return self._security.without_token(body[:_PIECE_BYTES].decode(errors="replace"))[:ANSWER_SHOWN_CHARS]

    def _headers(self) -> dict[str, str]:
        token = self._security.current_token()
        return {"Accept": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}


def require_admin_url(url: str) -> None:
    """Raise ``InvalidCallError`` if the URL is not an admin interface's, or has credentials."""
    plain = without_credentials(url)
    if not url.startswith(("http://", "https://")):
        raise InvalidCallError(f"{plain!r} is not an admin URL", hint="give http://broker:8080 or https://broker:8443")
    if plain != url:
        raise InvalidCallError(f"the admin URL of {plain} contains credentials", hint="remove them, and set a token")


def host_of(url: str) -> str:
    """The host as the HTTP library parses it, an IPv6 address without brackets; empty: none."""
    try:
        return _without_brackets((urllib3.util.parse_url(url).host or "").lower())
    except urllib3.exceptions.LocationParseError:
        return ""


def _without_brackets(host: str) -> str:
    """``[::1]`` -> ``::1``."""
    return host.strip("[]") if ":" in host else host


def _properties_path(topic: str, subscription: str) -> str:
    return f"{_path(topic)}/subscription/{quote(subscription, safe='')}/properties"


def _consumers_in(subscription: object) -> int:
    found = subscription.get("consumerCount") if isinstance(subscription, dict) else None
    return found if isinstance(found, int) and not isinstance(found, bool) else 0


def _scalable_path(topic: str) -> str:
    """The path of ``topic://tenant/namespace/topic``."""
    place_of_topic(topic)  # raises for other names
    return (
        f"/admin/v2/scalable/{'/'.join(quote(each, safe='') for each in topic.removeprefix(TOPIC_SCHEME).split('/'))}"
    )


def _schemas_path(topic: str) -> str:
    """The path of a topic's schemas; a segment has those of its scalable topic."""
    scheme, _, name = topic.partition("://")
    if f"{scheme}://" == SEGMENT_SCHEME:
        name = name.rpartition("/")[0]
    regular = f"persistent://{name}" if f"{scheme}://" in (SEGMENT_SCHEME, TOPIC_SCHEME) else topic
    return _path(regular).replace("/persistent/", "/schemas/", 1)


def _path(topic: str) -> str:
    """The path of ``persistent://tenant/namespace/topic``."""
    if topic.startswith(SEGMENT_SCHEME):
        raise UnsupportedError(f"{topic}: the admin interface has no segments of scalable topics")
    stream_of_topic(topic)  # raises for other names
    tenant, namespace, name = topic.removeprefix("persistent://").split("/", 2)
    return f"/admin/v2/persistent/{quote(tenant, safe='')}/{quote(namespace, safe='')}/{quote(name, safe='')}"
