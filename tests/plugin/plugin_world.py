"""A broker with the plugin, ``offloader serve`` beside it and an S3 server, each a process that can be killed.

Chaos runs, benchmarks and the document's test use it too.
"""

from __future__ import annotations

import contextlib
import io
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote, unquote

import boto3

from offloader.errors import NotFoundError
from offloader.manifest.log import load_manifest
from offloader.store.open import open_store
from services.broker_plugin import built_nar
from services.pulsar.broker import Broker, Refused, plugin_settings, start_broker
from services.pulsar.build import DEFAULT
from services.servers import Endpoint, free_port, make_bucket
from tests.support.serving_processes import Serving
from tests.support.waiting import PATIENCE_S, eventually

__all__ = [
    "NAMESPACE",
    "POLICIES",
    "TRIMMED",
    "PluginWorld",
    "asked",
    "eventually_some",
    "path_of",
    "stream_of",
    "topic_of",
]

NAMESPACE = "public/cold"
#: The broker trims its topics' ledgers as soon as no subscription needs them.
TRIMMED = "public/trimmed"
#: Tests set policies of it.
POLICIES = "public/policies"
TOKEN = "token-of-the-tests-broker"
#: Entries of a ledger.
LEDGER_ENTRIES = 200
_Seen = TypeVar("_Seen")


def topic_of(name: str) -> str:
    return f"persistent://{NAMESPACE}/{name}"


def path_of(topic: str) -> str:
    """A topic's path below ``/admin/v2/``."""
    tenant, namespace, name = topic.removeprefix("persistent://").split("/")
    return f"persistent/{tenant}/{namespace}/{quote(name, safe='')}"


def stream_of(topic: str) -> str:
    """The stream's name, as one part of a path of the sidecar."""
    tenant, namespace, name = topic.removeprefix("persistent://").split("/")
    return quote(f"{tenant}/{namespace}/persistent/{name}", safe="")


@dataclass
class PluginWorld:
    """Processes and their addresses; a context that ends them.

    Args:
        folder: for everything that they write.
        endpoint: of the S3 server.
        release: of the broker.
        broker_settings: beside those that the plugin needs.
        sidecar_settings: TOML, beside those that every sidecar needs; sections that it has already must not come again.
        endpoints: the sidecars that the plugin asks, in this order.
        plugin_settings: beside those.
        java_options: of the broker.
        has_sidecar: whether one is started with the broker.
        root: of the store in its bucket; empty: the bucket's own.
        ledger_entries: of a ledger.
        patience_s: how long an offload of a whole topic may take.
        environment: of the broker, beside its keys.
        discovery, cycle: how often a sidecar looks for topics, and decides what retention lets go.
        store_endpoint: what sidecars, and by their URLs the broker, use to reach the S3 server: a proxy before it.
    """

    folder: Path
    endpoint: Endpoint
    release: str = DEFAULT
    broker_settings: Mapping[str, str] = field(default_factory=dict)
    sidecar_settings: str = ""
    store_endpoint: str = ""
    endpoints: Sequence[str] = ("sidecar",)
    plugin_settings: Mapping[str, str] = field(default_factory=dict)
    java_options: Sequence[str] = ()
    has_sidecar: bool = True
    root: str = "/root"
    ledger_entries: int = LEDGER_ENTRIES
    patience_s: float = PATIENCE_S
    environment: Mapping[str, str] = field(default_factory=dict)
    discovery: str = "1s"
    cycle: str = "3s"

    def __post_init__(self) -> None:
        self.bucket = f"plugin-{free_port()}"
        self.ports = {name: free_port() for name in ("binary", "admin", "sidecar", "standby", "reader")}
        self.broker: Broker
        self.sidecars: dict[str, Serving] = {}
        self.store = open_store(
            self.store_url,
            endpoint_url=self.endpoint.url,
            access_key=self.endpoint.access_key,
            secret_key=self.endpoint.secret_key,
            region="us-east-1",
        )

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        for file in (self.token_file, self.folder / "token"):
            file.write_text(TOKEN)
        make_bucket(self.endpoint, self.bucket)
        try:
            self.start_broker()
            for namespace in (NAMESPACE, TRIMMED, POLICIES):
                self.admin("PUT", f"namespaces/{namespace}")
            keep_nothing = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
            self.admin("POST", f"namespaces/{TRIMMED}/retention", keep_nothing)
            if self.has_sidecar:
                self.start_sidecar()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for serving in self.sidecars.values():
            serving.__exit__(None, None, None)
        self.sidecars.clear()
        if hasattr(self, "broker"):
            self.broker.end()

    @property
    def service_url(self) -> str:
        return f"pulsar://127.0.0.1:{self.ports['binary']}"

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self.ports['admin']}"

    @property
    def store_url(self) -> str:
        return f"s3://{self.bucket}{self.root}"

    def url_of(self, name: str) -> str:
        """Where a sidecar listens."""
        return f"http://127.0.0.1:{self.ports[name]}"

    # --- the broker --------------------------------------------------------------------------------------------------

    def start_broker(self) -> None:
        """Starts it with what it left behind, if it ran before."""
        # Where Pulsar 3.0 looks for an offloader once a namespace's policy was removed, whatever its settings name.
        standard = self.folder / "broker" / "offloaders" / built_nar().name
        if not standard.is_symlink():
            standard.parent.mkdir(parents=True, exist_ok=True)
            standard.symlink_to(built_nar())
        self.broker = start_broker(
            self.folder / "broker",
            self.settings_of_broker(),
            # What Pulsar's own offloader takes its keys from.
            {
                "ACCESS_KEY_ID": self.endpoint.access_key,
                "ACCESS_KEY_SECRET": self.endpoint.secret_key,
                **self.environment,
            },
            release=self.release,
            java_options=self.options_of_java(),
        )

    def restart_broker(self) -> None:
        """Starts it again without what it had read.

        It isn't killed, so that its bookie unregisters: a bookie of 3.0.7 that finds its earlier registration may give
        it up and take it again without end, and then no ledger can be opened.
        """
        self.broker.close()
        self.start_broker()

    def settings_of_broker(self) -> dict[str, str]:
        return {
            **plugin_settings(built_nar(), self.url_of(self.endpoints[0]), self.ports["binary"], self.ports["admin"]),
            # Only when a test asks for it, or the sidecar.
            "managedLedgerOffloadAutoTriggerSizeThresholdBytes": "-1",
            "managedLedgerMaxEntriesPerLedger": str(self.ledger_entries),
            # Larger messages are sent in chunks.
            "maxMessageSize": "1048576",
            "transactionCoordinatorEnabled": "true",
            "backlogQuotaCheckIntervalInSeconds": "1",
            **self.broker_settings,
        }

    def options_of_java(self) -> list[str]:
        """Of the broker's Java machine: where the plugin's settings are."""
        settings = {
            "endpoints": ",".join(self.url_of(name) for name in self.endpoints),
            "token_file": str(self.token_file),
            **self.plugin_settings,
        }
        config = self.folder / "plugin.properties"
        config.write_text("".join(f"{name} = {value}\n" for name, value in settings.items()))
        # The broker takes policies of namespaces with drivers that it knows, and with these.
        extra = "-Dpulsar.extra.offload.drivers=offloader"
        return [f"-Doffloader.plugin.config={config}", extra, *self.java_options]

    @property
    def token_file(self) -> Path:
        """What the plugin reads its token from, whenever it changes."""
        return self.folder / "plugin-token"

    def admin(self, method: str, path: str, body: object = None) -> Any:
        """One request to the broker's admin interface; the answer's JSON, or its text."""
        sent = None if method == "GET" else b"" if body is None else json.dumps(body).encode()
        data = asked(f"{self.admin_url}/admin/v2/{path}", method, sent)
        try:
            return json.loads(data)
        except ValueError:
            return data.decode(errors="replace")

    def ledgers(self, topic: str) -> list[int]:
        """Ids, ascending; the last one is open."""
        return [each["ledgerId"] for each in self.admin("GET", f"{path_of(topic)}/internalStats")["ledgers"]]

    def offload(self, topic: str) -> list[int]:
        """Closes the topic's ledger and has the broker offload all closed ones; their ids, once it says that it did."""
        path = path_of(topic)
        self.admin("PUT", f"{path}/unload")
        *closed, last = eventually_some(lambda: self.ledgers(topic))
        self.ask_to_offload(topic, last)
        status: dict[str, Any] = {}

        def is_over() -> bool:
            status.update(self.admin("GET", f"{path}/offload"))
            return status["status"] not in ("RUNNING", "NOT_RUN")

        eventually(is_over, within_s=self.patience_s)
        assert status["status"] == "SUCCESS", status
        return closed

    def ask_to_offload(self, topic: str, before: int) -> None:
        """Asks the broker to offload the ledgers before that one; fine if an offload is under way."""
        position = {"ledgerId": before, "entryId": 0, "partitionIndex": -1}
        try:
            self.admin("PUT", f"{path_of(topic)}/offload", position)
        except urllib.error.HTTPError as error:
            if error.code != 409:
                raise

    def forget(self, topic: str, ledgers: Sequence[int]) -> None:
        """Returns when the bookie has none of these ledgers any more, and the broker nothing of them in memory.

        The broker deletes them by itself, as soon as they are offloaded and it trims.
        """

        def are_gone() -> bool:
            self.admin("POST", f"{path_of(topic)}/trim")
            return not any(self.bookie_has(each) for each in ledgers)

        eventually(are_gone, within_s=self.patience_s)
        self.admin("PUT", f"{path_of(topic)}/unload")

    def counters(self) -> Mapping[str, int]:
        """The plugin's, since the broker's start."""
        found: dict[str, int] = {}
        for attributes in self.broker.beans("offloader:*").values():
            for name, value in attributes.items():
                found[name] = found.get(name, 0) + value
        return found

    def bytes_read(self) -> int:
        """Bytes of entries that the plugin gave the broker, out of its memory or the cold tier."""
        return self.counters().get("ReadBytes", 0)

    def bytes_fetched(self) -> int:
        """Bytes that the plugin got from the S3 server and from sidecars."""
        counters = self.counters()
        return counters.get("PresignedBytes", 0) + counters.get("EntriesBytes", 0)

    def bookie_has(self, ledger_id: int) -> bool:
        """Whether the bookie has a ledger: false is its own answer that there is no such ledger."""
        try:
            self.broker.ledger(ledger_id)
        except Refused as error:
            return "NoSuchLedger" not in str(error)
        return True

    def try_offload(self, topic: str) -> bool:
        """Asks for an offload of all closed ledgers; whether the bookie has none of them any more."""
        *closed, last = self.ledgers(topic)
        self.ask_to_offload(topic, last)
        self.admin("POST", f"{path_of(topic)}/trim")
        return not any(self.bookie_has(each) for each in closed)

    # --- sidecars ----------------------------------------------------------------------------------------------------

    def start_sidecar(self, name: str = "sidecar") -> Serving:
        """Starts ``offloader serve``; ``reader`` is a read server, ``standby`` a second process for the same topics."""
        config = self.folder / f"{name}.toml"
        config.write_text(self.settings_of_sidecar(name))
        options = ["--read-only"] if name == "reader" else []
        self.sidecars[name] = Serving(config, self.endpoint.environment, *options).__enter__()
        return self.sidecars[name]

    def kill_sidecar(self, name: str = "sidecar") -> None:
        """As ``kill -9``."""
        self.sidecars.pop(name).__exit__(None, None, None)

    def settings_of_sidecar(self, name: str) -> str:
        return f"""
            [serve]
            store = "{self.store_url}"
            endpoint_url = "{self.store_endpoint or self.endpoint.url}"
            region = "us-east-1"
            restart_delay_max = "1s"
            [pulsar]
            service_url = "{self.service_url}"
            admin_url = "{self.admin_url}"
            topics = ["{NAMESPACE}", "{TRIMMED}", "{POLICIES}"]
            broker_plugin = true
            follow_broker_trim = true
            discovery_interval = "{self.discovery}"
            retry_delay_max = "1s"
            [offload]
            method = "streaming"
            segment_age_max = "1s"
            takeover_after = "2s"
            retry_delay_max = "500ms"
            [retention]
            cycle_interval = "{self.cycle}"
            [http]
            listen = "127.0.0.1:{self.ports[name]}"
            [access]
            broker_tokens = ["file:{self.folder / "token"}"]
            {self.sidecar_settings}
            """

    def ask(self, method: str, path: str, name: str = "sidecar") -> tuple[int, bytes]:
        """One request to a sidecar with the broker's token: status and body."""
        request = urllib.request.Request(f"{self.url_of(name)}{path}", method=method)
        request.add_header("Authorization", f"Bearer {TOKEN}")
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def await_committed(self, topic: str) -> None:
        """Returns when the cold tier has what the topic has up to its last message."""

        def is_committed() -> bool:
            last = self.admin("GET", f"{path_of(topic)}/internalStats")["lastConfirmedEntry"]
            try:
                state = load_manifest(self.store, unquote(stream_of(topic)))
            except NotFoundError:
                return False
            return bool(str(state.committed_end()) == last)

        eventually(is_committed, within_s=self.patience_s)

    # --- the store ---------------------------------------------------------------------------------------------------

    def objects(self) -> dict[str, int]:
        """Keys in the bucket and their sizes."""
        client = boto3.client(
            "s3",
            endpoint_url=self.endpoint.url,
            region_name="us-east-1",
            aws_access_key_id=self.endpoint.access_key,
            aws_secret_access_key=self.endpoint.secret_key,
        )
        with contextlib.closing(client):
            pages = client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket)
            return {each["Key"]: each["Size"] for page in pages for each in page.get("Contents", ())}


def asked(url: str, method: str = "GET", body: bytes | None = None) -> bytes:
    """The answer of the broker that has the topic: urllib passes on only requests without a body."""
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            found: bytes = answer.read()
            return found
    except urllib.error.HTTPError as error:
        with error:  # else its connection stays open as long as the error
            why = error.read()
        if error.code != 307:
            raise urllib.error.HTTPError(url, error.code, error.reason, error.headers, io.BytesIO(why)) from None
        return asked(error.headers["Location"], method, body)


def eventually_some(look: Callable[[], _Seen]) -> _Seen:
    """What ``look`` gives once it gives anything: a topic that was unloaded answers with an error for a while."""
    found: list[_Seen] = []

    def is_there() -> bool:
        with contextlib.suppress(urllib.error.HTTPError):
            found[:] = [look()]
        return bool(found and found[0])

    eventually(is_there)
    return found[0]
