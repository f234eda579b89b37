"""Doctor's findings on what a broker's plugin meets: the address that it asks, the token, ledgers that it would read.

Asks as the plugin does, and reads plans only: nothing is written.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

from offloader.doctor import Finding, fine, problem, run_checks, warning
from offloader.errors import (
    AccessDenied,
    InvalidCall,
    NotFound,
    OffloaderError,
    SourceMismatch,
    StoreUnavailable,
    Trimmed,
    Unsupported,
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
from offloader.settings import Settings

with needs_extra("cli", "the check of a broker's plugin"):
    import urllib3

_CHECK = "plugin's way here"
_LEDGERS = "plugin's ledgers"
#: Topics, and offloaded ledgers of each, whose plans are asked for.
TOPICS_MAX, LEDGERS_MAX = 20, 4
_ANSWER_S = 20.0
_ANSWER_BYTES_MAX = 64 * 1024 * 1024
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
#: No attempt has it: whoever knows the route refuses it, and looks at no stream.
_NO_UUID = "?uuid=doctor"


@dataclass(frozen=True, slots=True)
class Answer:
    """A status, and the body's document; empty: it isn't one."""

    status: int
    document: Mapping[str, Any]

    @property
    def said(self) -> str:
        """In words, without anything secret."""
        detail = str(self.document.get("detail", ""))[:300]
        return f"it answers {self.status}{f': {detail}' if detail else ''}"


class PluginsWay:
    """One endpoint of the plugin.

    Args:
        url: ``http://host:port``.
        token: of the role broker; empty: none is sent.
        authorities: file of certificates that are trusted too; empty: none.
        source: the cluster's name.

    Raises:
        AccessDenied: that file can't be read.
    """

    def __init__(self, url: str, *, token: str, authorities: str = "", source: str = "") -> None:
        self.url = url.rstrip("/")
        known = {"Authorization": f"Bearer {token}" if token else "", "Offloader-Source": source}
        self._headers = {"Accept": "application/json", **{name: value for name, value in known.items() if value}}
        self._pool = urllib3.PoolManager(
            retries=False, ssl_context=client_tls(authorities), timeout=urllib3.Timeout(total=_ANSWER_S)
        )

    def get(self, stream: str, ledger_id: int, query: str = "") -> Answer:
        """The answer of a ledger's route.

        Raises:
            InvalidCall: no HTTP address. AccessDenied: the certificate isn't good. StoreUnavailable: no answer.
        """
        name = quote(managed_ledger_of_stream(stream), safe="")
        where = f"{self.url}/v1/streams/{name}/ledgers/{ledger_id}{query}"
        if not self.url.startswith(("http://", "https://")):
            raise InvalidCall(f"{self.url[:200]!r} is no HTTP address", hint="give http://host:8750 or https://...")
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
        return AccessDenied(
            f"{url} shows a certificate that isn't good: {why}",
            hint=f"renew it, or name its authority in {CA_VARIABLE} and in ca_file of the plugin",
        )
    return StoreUnavailable(
        f"nobody answers at {url}: {reason}",
        hint="is that the address of `offloader serve`, and is it running? The plugin's endpoints name it",
    )


def check_broker_routes(settings: Settings, clock: Clock, environ: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Checks the address that brokers ask, as the broker reports it, else ``serve.url``, else ``http.listen``; and
    ledgers of some topics.

    Raises:
        InvalidCall, AccessDenied: a token or the file of authorities can't be read.
    """
    pulsar = replace(settings.pulsar, retry_seconds_max=min(settings.pulsar.retry_seconds_max, 1.0))
    token = next((each for source in settings.access.broker_tokens for each in tokens_of(source, environ)), "")
    with PulsarCluster(pulsar, clock=clock) as cluster:
        url = _endpoint(cluster) or settings.serve.url or listening_url(settings)
        token = token if may_have_token(url, settings) else ""
        if not url:
            yield warning(
                _CHECK,
                "neither the broker nor serve.url nor http.listen says where the plugin asks: nothing was asked there",
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
    """Whether the host is this machine, this service's own, or one of those to which tokens are sent."""
    host, own = (host_of(each) for each in (url, settings.serve.url))
    return bool(host) and host in {*_LOOPBACK, own, *map(str.lower, settings.access.owner_hosts)}


def _endpoint(cluster: PulsarCluster) -> str:
    """As the broker reports it; empty: it doesn't."""
    with suppress(OffloaderError):  # another check says why
        found = cluster.admin.broker_settings().get("managedLedgerOffloadServiceEndpoint", "").strip()
        return "" if found == "null" else found
    return ""


def _require_route(way: PluginsWay, stream: str, *, has_token: bool) -> None:
    answer = way.get(stream, 0, _NO_UUID)
    if answer.status in (401, 403):
        wrong = "refuses the token of access.broker_tokens" if has_token else "wants a token, and none was sent"
        raise AccessDenied(
            f"{way.url} {wrong}: {answer.said}",
            hint="name the token's file in access.broker_tokens, there and here, and in token_file of the plugin; "
            "access.owner_hosts names hosts to which it is sent",
        )
    if answer.status == 409 and answer.document.get("kind") == "source_mismatch":
        raise SourceMismatch(f"{way.url}: {answer.said}", hint="correct broker.source, there or here")
    if (answer.status, answer.document.get("kind")) != (400, "invalid_request"):
        raise Unsupported(
            f"{way.url} has no routes for brokers: {answer.said}",
            hint="it is an older version, which is to be updated, or another server: correct the plugin's endpoints",
        )


def _ledgers(cluster: PulsarCluster, way: PluginsWay, topics: list[str]) -> Iterator[Finding]:
    asked = troubles = 0
    for topic in topics:
        try:
            listed = [each for each in cluster.admin.ledgers(topic).ledgers if each.offloaded]
        except NotFound:
            continue  # deleted since, or an unused partition
        # The oldest ones, which retention reaches first, and the newest one.
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
            raise SourceMismatch(
                f"{where} with {ledger.entries} entries, and the cold tier has {entries}",
                hint="does this store belong to another cluster?",
            )
    elif answer.status == 410:
        raise Trimmed(
            f"{where}, and it was deleted from the cold tier on purpose: {answer.said}",
            hint="trim the topic, or its consumers stand still there; with pulsar.broker_plugin none goes any more",
        )
    elif answer.status == 409 and answer.document.get("kind") == "source_mismatch":
        raise SourceMismatch(f"{where}: {answer.said}", hint="does this store belong to another cluster?")
    elif answer.status == 404:
        raise NotFound(
            f"{where}, and the cold tier doesn't know it: {answer.said}",
            hint="another driver offloaded it: `offloader adopt` imports it; or the store is another cluster's",
        )
    else:
        raise StoreUnavailable(f"{where}, and it can't be read now: {answer.said}")
