"""Doctor's checks of the broker plugin's requests: the service address, the token, and the ledgers to read.

Sends the plugin's requests, but only reads plans and writes nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

from offloader.doctor import CheckResult, fine, problem, run_checks, warning
from offloader.errors import (
    AccessDeniedError,
    InvalidCallError,
    NotFoundError,
    OffloaderError,
    SourceMismatchError,
    StoreUnavailableError,
    TrimmedError,
    UnsupportedError,
    needs_extra,
)
from offloader.ledgers.pulsar.admin import host_of
from offloader.ledgers.pulsar.discovery import TopicPatterns, survey
from offloader.ledgers.pulsar.source import PulsarCluster
from offloader.ledgers.pulsar.topics import TopicLedger, managed_ledger_of_stream, stream_of_topic
from offloader.owner_client import CA_VARIABLE, client_tls
from offloader.runtime.clock import Clock
from offloader.service.auth import tokens_of
from offloader.service.bootstrap import listening_url
from offloader.settings import Duration, Settings

with needs_extra("cli", "the check of a broker's plugin"):
    import urllib3

_CHECK = "plugin's way here"
_LEDGERS = "plugin's ledgers"
#: Topics to check, and offloaded ledgers of each whose plans are requested.
TOPICS_MAX, LEDGERS_MAX = 20, 4
_ANSWER_S = 20.0
_ANSWER_BYTES_MAX = 64 * 1024 * 1024
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
#: An invalid attempt: a server with the route refuses it without reading the stream.
_NO_UUID = "?uuid=doctor"


@dataclass(frozen=True, slots=True)
class Answer:
    """Status and JSON document of a response; the document is empty if the body has none."""

    status: int
    document: Mapping[str, Any]

    @property
    def said(self) -> str:
        """The response as text, without secrets."""
        detail = str(self.document.get("detail", ""))[:300]
        return f"response {self.status}{f': {detail}' if detail else ''}"


class PluginsWay:
    """One endpoint of the plugin.

    Args:
        url: ``http://host:port``.
        token: of the role broker; empty: none is sent.
        authorities: file of additional trusted certificates; empty: none.
        source: the cluster's name.

    Raises:
        AccessDeniedError: that file can't be read.
    """

    def __init__(self, url: str, *, token: str, authorities: str = "", source: str = "") -> None:
        self.url = url.rstrip("/")
        known = {"Authorization": f"Bearer {token}" if token else "", "Offloader-Source": source}
        self._headers = {"Accept": "application/json", **{name: value for name, value in known.items() if value}}
        self._pool = urllib3.PoolManager(
            retries=False, ssl_context=client_tls(authorities), timeout=urllib3.Timeout(total=_ANSWER_S)
        )

    def get(self, stream: str, ledger_id: int, query: str = "") -> Answer:
        """The response of a ledger's route.

        Raises:
            InvalidCallError: not an HTTP URL. AccessDeniedError: certificate verification failed.
                StoreUnavailableError: no response.
        """
        name = quote(managed_ledger_of_stream(stream), safe="")
        where = f"{self.url}/v1/streams/{name}/ledgers/{ledger_id}{query}"
        if not self.url.startswith(("http://", "https://")):
            raise InvalidCallError(
                f"{self.url[:200]!r} is not an HTTP URL", hint="give http://host:8750 or https://..."
            )
        try:
            answer = self._pool.request("GET", where, headers=self._headers, redirect=False, preload_content=False)
            body = answer.read(_ANSWER_BYTES_MAX)
            answer.release_conn()
        except urllib3.exceptions.HTTPError as cause:
            raise _unanswered(self.url, cause) from cause
        document: Any = None
        with suppress(ValueError, RecursionError):
            document = json.loads(body)
        return Answer(answer.status, document if isinstance(document, dict) else {})


def _unanswered(url: str, cause: urllib3.exceptions.HTTPError) -> OffloaderError:
    reason = str(getattr(cause, "reason", None) or cause).rpartition("] ")[2] or type(cause).__name__
    if "CERTIFICATE_VERIFY_FAILED" in str(cause):
        why = reason.partition("certificate verify failed: ")[2].partition(" (_ssl")[0] or reason
        return AccessDeniedError(
            f"{url}: certificate verification failed: {why}",
            hint=f"renew the certificate, or add its authority to {CA_VARIABLE} and to ca_file of the plugin",
        )
    return StoreUnavailableError(
        f"no response from {url}: {reason}",
        hint="check that `offloader serve` is running at this address, which the plugin's endpoints must name",
    )


def check_broker_routes(
    settings: Settings, clock: Clock, environ: Mapping[str, str] = os.environ
) -> Iterator[CheckResult]:
    """Checks the address that brokers use (reported by the broker, else ``serve.url``, else ``http.listen``), and
    ledgers of some topics.

    Raises:
        InvalidCallError, AccessDeniedError: a token or the file of authorities can't be read.
    """
    pulsar = replace(settings.pulsar, retry_delay_max=Duration(min(settings.pulsar.retry_delay_max, 1.0)))
    token = next((each for source in settings.access.broker_tokens for each in tokens_of(source, environ)), "")
    with PulsarCluster(pulsar, clock=clock) as cluster:
        url = _endpoint(cluster) or settings.serve.url or listening_url(settings)
        token = token if may_have_token(url, settings) else ""
        if not url:
            yield warning(
                _CHECK,
                "the plugin's service address is unknown, and was not checked: neither the broker reports it, nor are "
                "serve.url or http.listen set",
                "set serve.url to the address in the plugin's endpoints",
            )
            return
        way = PluginsWay(url, token=token, authorities=environ.get(CA_VARIABLE, ""), source=settings.broker.source)
        look, failure = survey(cluster.admin, TopicPatterns.of(pulsar.topics, pulsar.exclude))
        topics = sorted(topic for each in look.topics.values() for topic in each)[:TOPICS_MAX]
        probe = stream_of_topic(topics[0]) if topics else "public/default/persistent/none"
        try:
            _require_route(way, probe, has_token=bool(token))
        except OffloaderError as error:
            yield problem(_CHECK, error)
            return
        yield fine(_CHECK, f"{url} serves brokers{' with the token of access.broker_tokens' if token else ''}")
        if failure is None:
            yield from run_checks([(_LEDGERS, _ledgers(cluster, way, topics))])


def may_have_token(url: str, settings: Settings) -> bool:
    """Whether the host is this machine, the host of ``serve.url``, or in ``access.owner_hosts``."""
    host, own = (host_of(each) for each in (url, settings.serve.url))
    return bool(host) and host in {*_LOOPBACK, own, *map(str.lower, settings.access.owner_hosts)}


def _endpoint(cluster: PulsarCluster) -> str:
    """The address that the broker reports; empty: none."""
    with suppress(OffloaderError):  # another check reports it
        found = cluster.admin.broker_settings().get("managedLedgerOffloadServiceEndpoint", "").strip()
        return "" if found == "null" else found
    return ""


def _require_route(way: PluginsWay, stream: str, *, has_token: bool) -> None:
    answer = way.get(stream, 0, _NO_UUID)
    if answer.status in (401, 403):
        wrong = "refuses the token of access.broker_tokens" if has_token else "requires a token, and none was sent"
        raise AccessDeniedError(
            f"{way.url} {wrong}: {answer.said}",
            hint="set the token's file in access.broker_tokens of both processes and in token_file of the plugin; add "
            "hosts that may receive the token to access.owner_hosts",
        )
    if answer.status == 409 and answer.document.get("kind") == "source_mismatch":
        raise SourceMismatchError(
            f"{way.url}: {answer.said}", hint="correct broker.source in one of the two settings files"
        )
    if (answer.status, answer.document.get("kind")) != (400, "invalid_request"):
        raise UnsupportedError(
            f"{way.url} has no routes for brokers: {answer.said}",
            hint="update the server if it is an older version, else correct the plugin's endpoints",
        )


def _ledgers(cluster: PulsarCluster, way: PluginsWay, topics: list[str]) -> Iterator[CheckResult]:
    asked = troubles = 0
    for topic in topics:
        try:
            listed = [each for each in cluster.admin.ledgers(topic).ledgers if each.offloaded]
        except NotFoundError:
            continue  # deleted since, or an unused partition
        # The oldest ledgers, which retention deletes first, and the newest one.
        for ledger in listed if len(listed) <= LEDGERS_MAX else [*listed[: LEDGERS_MAX - 1], listed[-1]]:
            asked += 1
            try:
                _require_readable(way, topic, ledger)
            except OffloaderError as error:
                troubles += 1
                yield problem(_LEDGERS, error)
                break
    if asked and not troubles:
        yield fine(_LEDGERS, f"{asked} ledgers that the broker lists as offloaded can be read")


def _require_readable(way: PluginsWay, topic: str, ledger: TopicLedger) -> None:
    where = f"{topic}: the broker lists ledger {ledger.ledger_id} as offloaded"
    answer = way.get(stream_of_topic(topic), ledger.ledger_id)
    if answer.status == 200:
        entries = answer.document.get("entries")
        if entries != ledger.entries:
            raise SourceMismatchError(
                f"{where} with {ledger.entries} entries, and the cold tier has {entries}",
                hint="check whether this store belongs to another cluster",
            )
    elif answer.status == 410:
        raise TrimmedError(
            f"{where}, and it was deleted from the cold tier on purpose: {answer.said}",
            hint="trim the topic, otherwise its consumers stop there; pulsar.broker_plugin = true prevents such "
            "deletions",
        )
    elif answer.status == 409 and answer.document.get("kind") == "source_mismatch":
        raise SourceMismatchError(f"{where}: {answer.said}", hint="does this store belong to another cluster?")
    elif answer.status == 404:
        raise NotFoundError(
            f"{where}, and it isn't in the cold tier: {answer.said}",
            hint="import it with `offloader import` if another driver offloaded it, or check whether this store "
            "belongs to another cluster",
        )
    else:
        raise StoreUnavailableError(f"{where}, and it can't be read now: {answer.said}")
