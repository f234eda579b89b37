"""A Pulsar cluster's admin REST interface, as far as it tells which ledgers topics have.

Owns its requests. Must never change anything in the cluster, nor wait without a deadline.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from types import TracebackType
from typing import Any
from urllib.parse import quote

import urllib3

from offloader.errors import AccessDenied, Corrupt, InvalidCall, NotFound, StoreUnavailable
from offloader.ledgers.pulsar.topics import TopicLedgers, ledgers_of_topics

__all__ = ["AdminClient"]

CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 30.0
RETRIES_MAX = 3
CONNECTIONS_MAX = 8
#: A namespace of a million topics answers 60 MB.
ANSWER_BYTES_MAX = 128 * 1024 * 1024

_DENIED = (401, 403)


class AdminClient:
    """Asks one cluster. Thread-safe.

    Args:
        url: of the admin interface, ``http://broker:8080``.
        token: sent as a bearer token; empty: none.
    """

    def __init__(self, url: str, *, token: str = "") -> None:
        if not url.startswith(("http://", "https://")):
            raise InvalidCall(f"{url!r} is no admin URL", hint="give http://broker:8080 or https://broker:8443")
        self.url = url.rstrip("/")
        # The broker that owns a topic is another one, and wants the token too: it is sent along, as Pulsar's tools do.
        retries = urllib3.Retry(
            total=RETRIES_MAX,
            backoff_factor=0.2,
            status_forcelist=(429, 502, 503, 504),
            raise_on_status=False,
            remove_headers_on_redirect=(),
        )
        self._pool = urllib3.PoolManager(
            maxsize=CONNECTIONS_MAX,
            retries=retries,
            timeout=urllib3.Timeout(connect=CONNECT_TIMEOUT_S, read=READ_TIMEOUT_S),
            headers={"Accept": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})},
        )

    def __enter__(self) -> AdminClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.clear()

    def namespaces(self) -> Sequence[str]:
        """All of them, ``tenant/namespace``."""
        tenants = self._names("/admin/v2/tenants")
        return [name for tenant in tenants for name in self._names(f"/admin/v2/namespaces/{quote(tenant, safe='')}")]

    def topics(self, namespace: str) -> Sequence[str]:
        """The persistent topics of ``tenant/namespace``; of partitioned ones, the partitions."""
        return self._names(f"/admin/v2/persistent/{quote(namespace)}")

    def ledgers(self, topic: str) -> TopicLedgers:
        """The ledgers of one topic.

        Raises:
            NotFound: there is no such topic.
            AccessDenied, StoreUnavailable, Corrupt: as for every call here.
        """
        tenant, namespace, name = topic.removeprefix("persistent://").split("/", 2)
        path = f"/admin/v2/persistent/{quote(tenant, safe='')}/{quote(namespace, safe='')}/{quote(name, safe='')}"
        [found] = ledgers_of_topics(self._get(f"{path}/internalStats"), topic)
        return found

    def _names(self, path: str) -> list[str]:
        found = self._get(path)
        if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
            raise Corrupt(f"{self.url}{path} didn't answer a list of names")
        return found

    def _get(self, path: str) -> Any:
        where = f"{self.url}{path}"
        try:
            answer = self._pool.request("GET", where, preload_content=False)
            try:
                body = answer.read(ANSWER_BYTES_MAX + 1)
            finally:
                answer.release_conn()
        except urllib3.exceptions.HTTPError as cause:
            raise StoreUnavailable(
                f"{where} doesn't answer: {cause}", hint="check --admin-url, or try later"
            ) from cause
        if answer.status in _DENIED:
            raise AccessDenied(
                f"{where} answered {answer.status}", hint="set OFFLOADER_ADMIN_TOKEN to a token that may read there"
            )
        if answer.status == 404:
            raise NotFound(f"{where} isn't there")
        if answer.status != 200:
            raise StoreUnavailable(f"{where} answered {answer.status}: {body[:200].decode(errors='replace')}")
        if len(body) > ANSWER_BYTES_MAX:
            raise Corrupt(f"{where} answered more than {ANSWER_BYTES_MAX} bytes")
        try:
            return json.loads(body)
        except ValueError as cause:
            raise Corrupt(f"{where} didn't answer JSON: {body[:100]!r}") from cause
