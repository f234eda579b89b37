"""Every setting with its default, limits and check, as frozen values by section."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from offloader.errors import InvalidCallError
from offloader.settings.fields import (
    Duration,
    Pairs,
    Size,
    choice,
    duration,
    flag,
    pairs,
    places,
    setting,
    size,
    text,
    texts,
)
from offloader.settings.fields import problem as problem_of
from offloader.settings.retention import RetentionSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """Deadlines, retries and connections of an object store."""

    connect_timeout: Duration = duration("5s", "connection timeout", low="10ms", high="10m")
    read_timeout: Duration = duration(
        "30s", "maximum time without receiving a byte before a call fails", low="10ms", high="1h"
    )
    retries_max: int = setting(6, "maximum retries after the first attempt", low=0, high=100)
    retry_total: Duration = duration(
        "1m", "total time for all attempts of a call; no retry starts after it", low="0s", high="1d"
    )
    retry_delay_first: Duration = duration(
        "100ms", "delay before the first retry; doubles with each retry, with jitter", low="0s", high="1m"
    )
    retry_delay_max: Duration = duration("10s", "maximum delay before a retry", low="0s", high="10m")
    connections_max: int = setting(
        32,
        "connections to the store that are kept open. S3: more are open while more requests run; other stores: maximum "
        "of concurrent requests",
        low=1,
        high=1024,
    )
    single_writer: bool = flag(
        False,
        "allow writes to a store without conditional puts. Only for stores that no other process writes to: the writer "
        "checks for an existing object before each put",
    )
    storage_class: str = text("", "S3 storage class for new objects of at least 128 KiB; empty: STANDARD")
    encryption: str = choice(
        "bucket",
        "S3 server-side encryption requested for each new object; bucket: the bucket's default",
        ("bucket", "AES256", "aws:kms", "aws:kms:dsse"),
    )
    kms_key: str = text(
        "",
        "encryption key for new objects. On S3: id or ARN of a KMS key for aws:kms (empty: the account's key for S3). "
        "On Google Cloud Storage: name of a Cloud KMS key. On Azure: name of an encryption scope",
    )
    checksum: str = choice(
        "crc32c",
        "checksum sent to S3 with each object and part. crc32c: x-amz-checksum-crc32c; md5: Content-MD5, for servers "
        "that refuse crc32c; none: no checksum, the request signature covers the body",
        ("crc32c", "md5", "none"),
    )

    def of_stream(self, stream: str) -> StoreSettings:  # noqa: ARG002 - see ``offloader.settings.layered``
        """The settings for new objects of a stream; an empty name selects the process settings."""
        return self

    def all_layers(self) -> tuple[StoreSettings, ...]:
        """The process settings for new objects, and those of every namespace and topic that overrides them."""
        return (self,)

    def for_reading(self) -> StoreSettings:
        """These settings without the ones for new objects."""
        plain = StoreSettings()
        names = [each.name for each in fields(plain) if each.name not in OF_NEW_OBJECTS]
        return replace(plain, **{name: getattr(self, name) for name in names})


#: Store settings that apply only to new objects.
OF_NEW_OBJECTS = frozenset({"storage_class", "encryption", "kms_key", "checksum"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSettings:
    """How readers fetch entries from the store."""

    read_priority: str = choice(
        "tiered-storage-first",
        "preferred tier for entries that both tiers hold",
        ("tiered-storage-first", "bookkeeper-first"),
    )
    request_size: Size = size("16MiB", "size of one ranged GET", low="4KiB", high="1GiB")
    requests_in_flight_max: int = setting(4, "maximum concurrent ranged GET requests of one reader", low=1, high=64)
    ahead_size_max: Size = size(
        "256MiB",
        "maximum bytes that a scan fetches and decodes ahead of its consumer; a block above this size is fetched alone",
        low="1B",
        high="1TiB",
    )
    cache_size_max: Size = size(
        "64MiB", "cache size for decoded blocks, used by reads of single entries", low="0B", high="1TiB"
    )
    batch_size: Size = size("4MiB", "payload size of one batch of a scan", low="1B", high="1GiB")
    block_size_max: Size = size("256MiB", "maximum size of a block read", low="256B", high="2147483647B")
    decompressed_size_max: Size = size(
        "256MiB", "maximum size of a block after decompression", low="1B", high="2147483647B"
    )
    relocate: Pairs = pairs("new locations of buckets (or folders) that were moved or restored elsewhere: old = new")


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSettings:
    """Bandwidth and request rate limits of one process. Priority: live offloading, reads, backfill, deletion. 0 = no
    limit."""

    bytes_per_s: float = setting(0.0, "maximum bytes per second, sent and received combined", low=0, high=2**50)
    requests_per_s: float = setting(0.0, "maximum requests per second, all kinds combined", low=0, high=1e6)
    burst: Duration = duration("1s", "burst capacity of a rate limit, in time at the rate", low="1ms", high="1h")
    throttle_wait_max: Duration = duration(
        "5m", "maximum time a request waits for a rate limit before it fails", low="1ms", high="1d"
    )
    throttle_queue_max: int = setting(10_000, "maximum requests waiting for a rate limit", low=1, high=1_000_000)
    slowdown_factor: float = setting(
        0.5, "factor applied to the request rate when the store asks to slow down", low=0.01, high=0.99
    )
    slowdown_requests_per_s_min: float = setting(1.0, "minimum request rate after slowing down", low=0.01, high=1e6)
    recovery_requests_per_s: float = setting(
        5.0,
        "increase of the request rate per second, in requests per second, while the store refuses none",
        low=0.001,
        high=1e6,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessSettings:
    """Authentication and roles of callers over HTTP and Arrow Flight."""

    read_tokens: tuple[str, ...] = places(
        "sources of tokens with the role read (view status, read entries): file:PATH, env:NAME"
    )
    write_tokens: tuple[str, ...] = places(
        "sources of tokens with the role write (also append, offload now, pause): file:PATH, env:NAME"
    )
    admin_tokens: tuple[str, ...] = places(
        "sources of tokens with the role admin (everything, also truncate and override subscribers): file:PATH, "
        "env:NAME"
    )
    broker_tokens: tuple[str, ...] = places(
        "sources of tokens for the broker plugin, file:PATH or env:NAME; they allow to offload and read whole ledgers "
        "only, and grant no role"
    )
    subscriber_tokens: Pairs = pairs(
        "subscriber = source of the token that may register this subscriber and publish for it, file:PATH or env:NAME; "
        "grants no role",
        are_places=True,
    )
    stream_tokens: Pairs = pairs(
        "stream, or prefix of stream names that ends with / (public/default/) = source of tokens with the role read "
        "for these streams only, file:PATH or env:NAME",
        are_places=True,
    )
    certificates: Pairs = pairs(
        "client certificates: common name or DNS name = role, broker, subscriber:NAME, or several (read broker); "
        "* matches any certificate signed by client_authorities_file"
    )
    client_authorities_file: str = text(
        "", "PEM file of the certificate authorities for client certificates; empty: no client certificates"
    )
    certificate_file: str = text("", "PEM file of the server certificate and its chain; empty: no TLS")
    key_file: str = text("", "PEM file of the server certificate's private key; empty: the key is in certificate_file")
    anonymous: str = choice(
        "loopback",
        "role of unauthenticated callers. loopback: admin on a loopback address if no token or certificate is "
        "configured, otherwise none; read, write, admin: this role, on every address",
        ("loopback", "read", "write", "admin"),
    )
    owner_hosts: tuple[str, ...] = texts(
        "hosts (or host:port) that may receive credentials when a stream's manifest names them as its owner: commands "
        "send OFFLOADER_TOKEN to them, processes forward a broker's request with its token. Empty: only hosts whose "
        "certificate OFFLOADER_CA_FILE verifies"
    )
    hosts: tuple[str, ...] = texts(
        "additional values of the Host header accepted from unauthenticated callers (anonymous), besides IP addresses, "
        "localhost, and the names in http.listen and serve.url"
    )
    tokens_without_tls: bool = flag(
        False, "accept tokens over connections without TLS, because something else encrypts the traffic"
    )

    @property
    def has_tokens(self) -> bool:
        """Whether any token is configured."""
        roles = (self.read_tokens, self.write_tokens, self.admin_tokens)
        return any((*roles, self.broker_tokens, self.subscriber_tokens, self.stream_tokens))


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """Address of the HTTP server, and limits for its clients."""

    listen: str = text(
        "", "address and port of the HTTP server, 127.0.0.1:8750; :8750 listens on every address; empty: no HTTP"
    )
    connections_max: int = setting(512, "maximum open connections; further ones are closed", low=1, high=100_000)
    client_connections_max: int = setting(
        384, "maximum open connections from one address (from one /64 network for IPv6)", low=1, high=100_000
    )
    requests_max: int = setting(16, "maximum concurrent requests; further ones get 503 and may retry", low=1, high=256)
    header_size_max: Size = size("16KiB", "maximum size of a request line with its headers", low="4KiB", high="1MiB")
    body_size_max: Size = size("64KiB", "maximum size of a request body", low="1KiB", high="16MiB")
    request_timeout: Duration = duration("10s", "timeout for sending a request", low="100ms", high="10m")
    answer_timeout: Duration = duration(
        "1m", "timeout for computing a response, and separately for the client to receive it", low="100ms", high="1h"
    )
    unsent_size_max: Size = size(
        "64MiB",
        "maximum size of all responses not yet received by clients; above it new requests get 503 and may retry",
        low="1MiB",
        high="1TiB",
    )
    idle_timeout: Duration = duration(
        "30s", "timeout after which a connection without a request is closed", low="100ms", high="1h"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """Settings of the HTTP service for brokers that read the cold tier through the plugin, and limits for them."""

    source: str = text(
        "", "name of the cluster that the streams belong to, as in the plugin's settings; empty: not checked"
    )
    url_lifetime: Duration = duration(
        "15m", "lifetime of a presigned URL that a broker gets for an object", low="10s", high="7d"
    )
    waits_max: int = setting(
        256,
        "maximum concurrent requests waiting for a ledger to be offloaded; each uses a thread",
        low=1,
        high=4096,
    )
    streams_max: int = setting(
        16, "maximum concurrent responses with entries; each takes about 20 MiB of memory", low=1, high=1024
    )
    requests_max: int = setting(16, "maximum concurrent broker requests of other kinds", low=1, high=256)
    cache_size_max: Size = size(
        "256MiB", "cache size for indexes, and for blocks that brokers read in several requests", low="0B", high="1TiB"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FlightSettings:
    """Arrow Flight server: brokers push entries, clients append and read."""

    listen: str = text(
        "",
        "address and port of the Arrow Flight server, 127.0.0.1:8815; :8815 listens on every address; empty: no Flight",
    )
    ledgers: str = text("", "ledger database for streams appended to through Flight; empty: no appends through Flight")
    streams_max: int = setting(1000, "maximum streams pushed or appended to through Flight", low=1, high=100_000)
    calls_max: int = setting(256, "maximum concurrent calls; each uses one or two threads", low=1, high=10_000)
    batch_size_max: Size = size(
        "32MiB",
        "maximum size of a batch that is accepted; checked only after the message is received",
        low="1KiB",
        high="2147483647B",
    )
    window_size_max: Size = size(
        "16MiB",
        "maximum size of a pushed stream's entries that wait for a segment; above it the broker is held back",
        low="1KiB",
        high="1TiB",
    )
    memory_size_max: Size = size(
        "256MiB",
        "maximum size of waiting entries of all pushed streams; a stream without waiting entries may still push",
        low="1KiB",
        high="16TiB",
    )
    wait_max: Duration = duration(
        "1m",
        "maximum time a push waits for buffer space; then the push fails, and the broker retries later",
        low="10ms",
        high="1h",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestSettings:
    """Manifest checkpoints, and minimum ages before old records and unreferenced objects may be deleted."""

    checkpoint_records: int = setting(100, "number of manifest records between two checkpoints", low=1, high=10**5)
    orphan_age_min: Duration = duration(
        "1d", "minimum age before an unreferenced object may be deleted", low="0s", high="365d"
    )
    history_age_min: Duration = duration(
        "30d",
        "minimum age before `serve` may delete manifest records that a checkpoint covers; never: it keeps all records",
        low="0s",
        high="365d",
        may_be_never=True,
    )
    record_requests_max: int = setting(8, "maximum concurrent record requests while a manifest loads", low=1, high=64)
    create_over_segments: bool = flag(
        False, "allow to create a stream over existing segments that no manifest lists; they are kept and never read"
    )
    clock_skew_max: Duration = duration(
        "1m",
        "maximum difference between the machine's clock and the store's; above it nothing is deleted",
        low="0s",
        high="1d",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupSettings:
    """Deletion of unreferenced objects, and its audit log."""

    delete: bool = flag(
        False,
        "let `serve` delete retired segments, orphans and old manifest records from the store; false: it only reports "
        "them",
    )
    grace_period: Duration = duration(
        "1d",
        "time between retiring a segment and deleting its objects; the deletion can be undone until then",
        low="0s",
        high="3650d",
    )
    allow_large_delete: bool = flag(False, "let one cycle retire more than half of a stream without confirmation")
    retry_delay_max: Duration = duration("1h", "maximum delay before a failed deletion is retried", low="0s", high="7d")
    audit_period: Duration = duration("90d", "retention time of audit records about deletions", low="0s", high="36500d")
    audit_records_max: int = setting(
        10_000,
        "maximum audit records of one stream, one per batch; the oldest are dropped first",
        low=1,
        high=10**6,
    )
    cycle_interval: Duration = duration("1h", "time between two cleanup rounds", low="60ms", high="36500d")
    orphans_interval: Duration = duration(
        "1d", "time between two searches for orphans; 0: no search", low="0s", high="3650d"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadSettings:
    """How entries become segments. A settings file may also use the names of PIP-76 and Pulsar, with plain numbers."""

    block_size: Size = size("1MiB", "target size of a block", low="256B", high="1GiB")
    part_size: Size = size(
        "16MiB",
        "part size of multipart uploads (minimum part size in backfills); a smaller segment is uploaded with one PUT",
        low="5MiB",
        high="5GiB",
    )
    parts_in_flight_max: int = setting(4, "maximum concurrent part uploads of one segment", low=1, high=64)
    segment_size_max: Size = size(
        "1GiB",
        "maximum size of a segment; the segment is closed when it reaches it",
        low="1KiB",
        high="5TiB",
        alias="max_size_per_offload_segment_mbytes",
        alias_unit="MiB",
    )
    segment_age_max: Duration = duration(
        "10m",
        "age at which a segment is closed, counted from its first entry",
        low="6ms",
        high="365d",
        alias="max_offload_segment_rollover_time_minutes",
        alias_unit="m",
    )
    segment_size_min: Size = size(
        "0B",
        "size below which a segment is closed at segment_age_limit instead of segment_age_max; 0: always at "
        "segment_age_max",
        low="0B",
        high="1TiB",
    )
    segment_age_limit: Duration = duration(
        "6h", "age at which a segment below segment_size_min is closed", low="6ms", high="365d"
    )
    offload_buffer_size_max: Size = size("64MiB", "maximum bytes buffered for one stream", low="64KiB", high="1TiB")
    offload_memory_size_max: Size = size(
        "512MiB", "maximum bytes buffered for all streams of a process", low="64KiB", high="16TiB"
    )
    entry_size_max: Size = size("64MiB", "maximum entry size", low="1B", high="2147483647B")
    codec: str = choice("none", "compression of blocks", ("none", "zstd"))
    method: str = choice(
        "streaming",
        "offload method: streaming (PIP-76), ledger (one object per closed ledger) or none. A settings file that "
        "doesn't set it gets ledger",
        ("streaming", "ledger", "none"),
    )
    offload_threshold_size: Size = size(
        "0B",
        "with the method ledger: size of data not yet offloaded above which the oldest closed ledgers are offloaded; "
        "0: when they close, never: no offloading by size",
        low="0B",
        high="1048576TiB",
        may_be_never=True,
        alias="offload_threshold_bytes",
        alias_unit="B",
    )
    offload_threshold_age: Duration = duration(
        "never",
        "with the method ledger: age at which a closed ledger is offloaded; 0: when it closes, never: no offloading "
        "by age",
        low="0s",
        high="2147483648s",
        may_be_never=True,
        alias="offload_threshold_seconds",
        alias_unit="s",
    )
    backfill_segments_in_flight_max: int = setting(
        4, "maximum concurrent segment uploads in backfills, per stream and per process", low=1, high=64
    )
    deletion_lag: Duration = duration(
        "4h",
        "delay between offloading a ledger and deleting its hot copy; never: the hot copy is kept",
        low="0s",
        high="3650d",
        may_be_never=True,
    )
    release_with_gaps: bool = flag(False, "also delete the hot copy of a ledger with lost or unconfirmed entries")
    tail_cache_size_max: Size = size(
        "8MiB", "cache size for the newest entries of a stream that catches up", low="0B", high="1TiB"
    )
    drain_timeout: Duration = duration("5m", "timeout for the last segment when a stream closes", low="0s", high="1d")
    retry_delay_max: Duration = duration(
        "30s", "maximum delay before a failed segment is retried", low="10ms", high="1h"
    )
    takeover_after: Duration = duration(
        "1m", "owner inactivity after which another process may take over a stream automatically", low="10ms", high="1d"
    )
    on_gap: str = choice(
        "block",
        "action when the hot tier lost entries before they were offloaded: block, or record the gap and continue",
        ("block", "record"),
    )
    workers_max: int = setting(8, "threads that encode and upload segments", low=1, high=256)


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerSettings:
    """When the embedded ledger store closes a ledger and opens the next one, and its polling interval."""

    ledger_size_max: Size = size("256MiB", "maximum size of a ledger", low="1B", high="1024TiB")
    ledger_entries_max: int = setting(1_000_000, "number of entries at which a ledger is closed", low=1, high=2**40)
    ledger_age_max: Duration = duration(
        "1h", "age at which a ledger is closed, by the next append", low="6ms", high="365d"
    )
    poll_interval: Duration = duration(
        "1s", "polling interval for the database of `serve.ledgers`", low="10ms", high="1h"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PulsarSettings:
    """Connection to a Pulsar cluster that is the hot tier."""

    service_url: str = text("", "URL of the brokers or proxies, `pulsar://broker:6650` or `pulsar+ssl://broker:6651`")
    admin_url: str = text("", "URL of the admin API, `http://broker:8080` or `https://broker:8443`")
    admin_hosts: tuple[str, ...] = texts(
        "hosts of other brokers that may receive the token when `admin_url` redirects to them; * matches any text; "
        "empty: no redirects with the token"
    )
    token: str = text("", "source of the token: `file:PATH` or `env:NAME`; empty: `env:OFFLOADER_PULSAR_TOKEN`, if set")
    ca_file: str = text("", "PEM file of the certificate authorities for brokers and admin API; empty: the system's")
    certificate_file: str = text("", "PEM file of the client certificate for brokers that require one")
    key_file: str = text("", "PEM file of the client certificate's key; empty: the key is in `certificate_file`")
    subscription: str = text(
        "offloader", "name of offloader's durable subscription; must be equal in all processes that share topics"
    )
    topics: tuple[str, ...] = texts(
        "topics to offload: names, patterns with * and ? (`public/default/orders-*`), or namespaces (`public/default`)"
    )
    exclude: tuple[str, ...] = texts("exceptions from `topics`: names, patterns or namespaces that are not offloaded")
    discovery_interval: Duration = duration(
        "30s", "interval between two checks for new and deleted topics and partitions", low="100ms", high="1d"
    )
    subscribers_interval: Duration = duration(
        "5m",
        "interval between two checks of the topics' subscriptions, whose unread entries retention keeps",
        low="100ms",
        high="1d",
    )
    store_outage_handover: Duration = duration(
        "1m",
        "duration of a store outage after which a topic is handed over to a standby process; 0: never",
        low="0s",
        high="1d",
    )
    scalable_topics: str = choice(
        "auto",
        "scalable topics of Pulsar 5 (topic://): offload those that topics selects where brokers have them, or ignore "
        "them",
        ("auto", "off"),
    )
    topics_max: int = setting(10_000, "maximum topics and partitions of one process", low=1, high=1_000_000)
    on_gap: str = choice(
        "record",
        "action when the brokers deleted entries before they were offloaded: record the gap and continue, or block",
        ("record", "block"),
    )
    entries_asked_max: int = setting(
        1000,
        "maximum entries of one undelivered range that are looked up through the admin API; the others are "
        "recorded as unconfirmed",
        low=1,
        high=1_000_000,
    )
    trim: bool = flag(
        True,
        "request the broker to delete released ledgers immediately; false: the broker deletes them on its own schedule",
    )
    broker_plugin: bool = flag(
        False,
        "set this if the brokers read offloaded ledgers through offloader's plugin. Retention then keeps every ledger "
        "that a broker still lists, commits are acknowledged immediately, and brokers are requested to offload",
    )
    follow_broker_trim: bool = flag(
        False,
        "with broker_plugin: also delete ledgers from the cold tier that a broker trimmed, if retention allows it",
    )
    receive_buffer_size_max: Size = size(
        "128MiB", "maximum size of received messages not yet processed, all topics combined", low="1MiB", high="1TiB"
    )
    connect_timeout: Duration = duration("10s", "connection timeout of a broker", low="100ms", high="10m")
    request_timeout: Duration = duration("30s", "response timeout of a broker", low="100ms", high="10m")
    keep_alive: Duration = duration(
        "30s", "time without data from a broker after which a keep-alive ping is sent", low="100ms", high="10m"
    )
    retry_delay_max: Duration = duration(
        "10s", "maximum delay before a failed operation is retried", low="10ms", high="1h"
    )
    workers_max: int = setting(8, "threads that receive from topics and feed their streams", low=1, high=256)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """Store, streams, shutdown and logging of `offloader serve`."""

    store: str = text("", "URL of the object store, s3://BUCKET/ROOT or file:///FOLDER")
    endpoint_url: str = text("", "URL of the S3 API, if it isn't AWS")
    region: str = text("", "region of the store")
    url: str = text("", "URL at which others reach this process over HTTP; empty: derived from http.listen")
    ledgers: str = text("", "database of embedded ledgers to offload, sqlite:///FILE; empty: none")
    streams: tuple[str, ...] = texts(
        "streams of the database `serve.ledgers` to offload, as names or patterns with * and ?; empty: all"
    )
    streams_max: int = setting(10_000, "maximum streams offloaded by this process", low=1, high=1_000_000)
    maintenance: bool = flag(True, "run retention, cleanup and the search for orphans in this process")
    restart_delay_max: Duration = duration(
        "10m", "maximum delay before a stream that stopped on an error is restarted", low="1s", high="1d"
    )
    stop_timeout: Duration = duration("30s", "shutdown timeout after the last segments complete", low="1s", high="1h")
    log_level: str = choice("info", "minimum level of log messages", ("debug", "info", "warning", "error"))
    log_format: str = choice("json", "format of log messages: JSON lines, or plain text", ("json", "plain"))


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetrySettings:
    """Status file, watchdog and metrics of a running process."""

    status_file: str = text("", "file to write the status document to, replaced atomically; empty: none")
    status_interval: Duration = duration("5s", "interval between two checks of the streams", low="50ms", high="1h")
    watchdog_no_progress: Duration = duration(
        "15m", "time without progress after which a stream with a backlog counts as stalled", low="1s", high="7d"
    )
    labels: str = choice("namespace", "granularity of metrics", ("namespace", "topic"))
    topic_labels_max: int = setting(
        1000,
        "number of topics above which metrics are kept by namespace even with labels = topic",
        low=1,
        high=1_000_000,
    )
    label_sets_max: int = setting(50_000, "maximum label sets; further ones count as other", low=1, high=10_000_000)
    label_lifetime: Duration = duration("1h", "time after which an unused label set is dropped", low="1s", high="7d")
    write_cost_per_1000: float = setting(0.005, "price of 1000 PUT-class requests in dollars", low=0, high=1000)
    read_cost_per_1000: float = setting(0.0004, "price of 1000 GET-class requests in dollars", low=0, high=1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings, by section."""

    offload: OffloadSettings = OffloadSettings()
    ledgers: LedgerSettings = LedgerSettings()
    store: StoreSettings = StoreSettings()
    read: ReadSettings = ReadSettings()
    limits: LimitSettings = LimitSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    manifest: ManifestSettings = ManifestSettings()
    cleanup: CleanupSettings = CleanupSettings()
    retention: RetentionSettings = RetentionSettings()
    access: AccessSettings = AccessSettings()
    http: HttpSettings = HttpSettings()
    flight: FlightSettings = FlightSettings()
    broker: BrokerSettings = BrokerSettings()
    serve: ServeSettings = ServeSettings()
    pulsar: PulsarSettings = PulsarSettings()

    @classmethod
    def of(cls, values: Mapping[str, Mapping[str, Any]] | None = None, *, origin: str = "settings") -> Settings:
        """Settings from nested mappings ``{"offload": {"block_size": "64KiB"}}``; others keep their defaults.

        Args:
            values: section -> name -> value. Names and values are those of a settings file. An amount may also be a
                number of seconds or bytes.
            origin: source of the values, for the error message.

        Raises:
            InvalidCallError: unknown names, wrong types or values out of range; the message lists every problem.
        """
        problems: list[str] = []
        sections: dict[str, Any] = {}
        kinds: dict[str, Any] = {f.name: type(f.default) for f in fields(cls)}
        for name, given in (values or {}).items():
            if name not in kinds:
                problems.append(f"{name}: no such section (sections: {', '.join(kinds)})")
                continue
            sections[name] = kinds[name](**_valid(name, kinds[name], given, problems))
        if problems:
            raise InvalidCallError(f"{origin}: {'; '.join(problems)}", hint="nothing was changed")
        return cls(**sections)


def _valid(section: str, kind: type[Any], given: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    """The valid values of a section; appends the problems of the others to ``problems``."""
    known = {f.name: f for f in fields(kind)}
    taken: dict[str, Any] = {}
    for name, value in given.items():
        each: Any = known.get(name)
        if problem := "no such setting" if each is None else problem_of(each.metadata, each.default, value):
            problems.append(f"{section}.{name}: {problem}")
        else:
            taken[name] = each.default.__class__(value)
    return taken
