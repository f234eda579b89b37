"""Every setting with its default, limits and check, as frozen values by section."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from offloader.errors import InvalidCall
from offloader.settings.fields import (
    KIB,
    MIB,
    MINUTES_MAX,
    Pairs,
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

    connect_timeout_s: float = duration(5.0, "time to connect", low=0.01, high=600, key="connect_timeout")
    read_timeout_s: float = duration(
        30.0, "time without a byte until a call fails", low=0.01, high=3600, key="read_timeout"
    )
    retries_max: int = setting(6, "attempts after the first one", low=0, high=100)
    retry_total_s: float = duration(
        60.0, "time after which no further attempt starts", low=0, high=24 * 3600, key="retry_total"
    )
    retry_delay_first_s: float = duration(
        0.1, "wait before the first retry; doubles, jittered", low=0, high=60, key="retry_delay_first"
    )
    retry_delay_max_s: float = duration(10.0, "longest wait before a retry", low=0, high=600, key="retry_delay_max")
    connections_max: int = setting(32, "open connections", low=1, high=1024)
    single_writer: bool = flag(
        False,
        "write to a store without conditional puts: no other process ever writes there; the writer looks before each",
    )
    storage_class: str = text("", "S3 storage class of new objects of 128 KiB or more; empty: STANDARD")
    encryption: str = choice(
        "bucket",
        "S3 encryption asked for with each new object; bucket: its own",
        ("bucket", "AES256", "aws:kms", "aws:kms:dsse"),
    )
    kms_key: str = text(
        "",
        "key that encrypts new objects: on S3 a KMS key for aws:kms, id or ARN, empty: the account's key for S3; on "
        "Google Cloud Storage the name of a Cloud KMS key, on Azure of an encryption scope",
    )
    checksum: str = choice(
        "crc32c",
        "checksum sent to S3 with each object and part: x-amz-checksum-crc32c; for servers that refuse it Content-MD5 "
        "(md5), or none: then the signature covers the body",
        ("crc32c", "md5", "none"),
    )

    def of_stream(self, stream: str) -> StoreSettings:  # noqa: ARG002 - see ``offloader.settings.layered``
        """The settings for new objects of a stream; empty: of the process."""
        return self

    def all_layers(self) -> tuple[StoreSettings, ...]:
        """The settings for new objects of every namespace and topic that has its own, and of the process."""
        return (self,)

    def for_reading(self) -> StoreSettings:
        """The settings of a store in which no object is made."""
        plain = StoreSettings()
        names = [each.name for each in fields(plain) if each.name not in OF_NEW_OBJECTS]
        return replace(plain, **{name: getattr(self, name) for name in names})


#: Settings of a store that only concern new objects.
OF_NEW_OBJECTS = frozenset({"storage_class", "encryption", "kms_key", "checksum"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSettings:
    """How readers fetch."""

    read_priority: str = choice(
        "tiered-storage-first",
        "where entries are read that both tiers have",
        ("tiered-storage-first", "bookkeeper-first"),
    )
    request_bytes: int = size(16 * MIB, "size of one ranged GET", low=4 * KIB, high=1024 * MIB, key="request_size")
    requests_in_flight_max: int = setting(4, "ranged GETs of one reader at once", low=1, high=64)
    ahead_bytes_max: int = size(
        256 * MIB,
        "bytes that a scan fetches and decodes ahead of its reader; a larger block is fetched alone",
        low=1,
        high=2**40,
        key="ahead_size_max",
    )
    cache_bytes_max: int = size(
        64 * MIB, "decoded blocks kept for single reads", low=0, high=2**40, key="cache_size_max"
    )
    batch_bytes: int = size(4 * MIB, "payload bytes of one batch of a scan", low=1, high=1024 * MIB, key="batch_size")
    block_bytes_max: int = size(256 * MIB, "largest block that is read", low=256, high=2**31 - 1, key="block_size_max")
    decompressed_bytes_max: int = size(
        256 * MIB, "largest block after decompression", low=1, high=2**31 - 1, key="decompressed_size_max"
    )
    relocate: Pairs = pairs("buckets (or folders) that were moved or restored elsewhere: old = new")


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSettings:
    """Bandwidth and request rate of one process, live before reads before backfill before deletion; 0 = no limit."""

    bytes_per_s: float = setting(0.0, "bytes sent and received, all together", low=0, high=2**50)
    requests_per_s: float = setting(0.0, "requests, all together", low=0, high=1e6)
    burst_s: float = duration(1.0, "seconds of a rate that may be used at once", low=0.001, high=3600, key="burst")
    throttle_wait_s_max: float = duration(
        300.0,
        "wait for a rate limit after which a request fails",
        low=0.001,
        high=24 * 3600,
        key="throttle_wait_max",
    )
    throttle_queue_max: int = setting(10_000, "requests that wait for a rate limit", low=1, high=1_000_000)
    slowdown_factor: float = setting(
        0.5, "what is left of the request rate when the store asks to slow down", low=0.01, high=0.99
    )
    slowdown_requests_per_s_min: float = setting(1.0, "lowest rate after slowing down", low=0.01, high=1e6)
    recovery_requests_per_s: float = setting(
        5.0, "what the rate gains each second without another refusal", low=0.001, high=1e6
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessSettings:
    """Who may do what at the doors of a process: HTTP and Arrow Flight."""

    read_tokens: tuple[str, ...] = places("where tokens are that may look and read: file:PATH, env:NAME")
    write_tokens: tuple[str, ...] = places("where tokens are that may write too: bring entries, offload now, pause")
    admin_tokens: tuple[str, ...] = places("where tokens are that may do everything: truncate, settle subscribers")
    broker_tokens: tuple[str, ...] = places(
        "where tokens are that a broker's plugin presents: offload and read whole ledgers, and nothing else; no role"
    )
    subscriber_tokens: Pairs = pairs(
        "subscriber = where the token is that may register it and publish for it, file:PATH or env:NAME; no role",
        are_places=True,
    )
    stream_tokens: Pairs = pairs(
        "stream, or a beginning of names that ends with / (public/default/) = where the tokens are that may look and "
        "read there and nowhere else, file:PATH or env:NAME",
        are_places=True,
    )
    certificates: Pairs = pairs(
        "client certificates: common name or DNS name = role, broker, subscriber:NAME, or several (read broker); "
        "* = any that client_authorities_file signed"
    )
    client_authorities_file: str = text("", "PEM file of the authorities that sign client certificates; empty: none")
    certificate_file: str = text("", "PEM file of this process's certificate and chain; empty: no TLS")
    key_file: str = text("", "PEM file of its key; empty: it is in certificate_file")
    anonymous: str = choice(
        "loopback",
        "what may be done without token and certificate: everything on a loopback address if none is set (loopback), "
        "or by name, on every address: read, write, admin",
        ("loopback", "read", "write", "admin"),
    )
    owner_hosts: tuple[str, ...] = texts(
        "hosts, or hosts and ports, to which a command sends OFFLOADER_TOKEN, and a process a broker's request with "
        "its token, where a stream's manifest names them as its owner's; empty: only to those whose certificate "
        "OFFLOADER_CA_FILE is good for"
    )
    hosts: tuple[str, ...] = texts(
        "names in the header Host that are this process's, where anyone may come in (anonymous); beside IP addresses, "
        "localhost, and the names in http.listen and serve.url"
    )
    tokens_without_tls: bool = flag(False, "tokens may cross the network as they are: something else encrypts them")

    @property
    def has_tokens(self) -> bool:
        """Whether any token is configured."""
        roles = (self.read_tokens, self.write_tokens, self.admin_tokens)
        return any((*roles, self.broker_tokens, self.subscriber_tokens, self.stream_tokens))


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """Where HTTP is served, and what one client may cost."""

    listen: str = text("", "address and port, 127.0.0.1:8750; :8750 is every address; empty: no HTTP")
    connections_max: int = setting(512, "open connections; more are closed at once", low=1, high=100_000)
    client_connections_max: int = setting(
        384, "those of one address (of an IPv6 network of 64 bits), so that others get in too", low=1, high=100_000
    )
    requests_max: int = setting(16, "requests worked on at once; more are asked to come again", low=1, high=256)
    header_bytes_max: int = size(
        16 * KIB, "request line and headers of a request", low=4 * KIB, high=MIB, key="header_size_max"
    )
    body_bytes_max: int = size(64 * KIB, "body of a request", low=KIB, high=16 * MIB, key="body_size_max")
    request_seconds_max: float = duration(
        10.0, "time for a client to send its request", low=0.1, high=600, key="request_timeout"
    )
    answer_seconds_max: float = duration(
        60.0,
        "time for an answer to be found, and again to be taken by the client",
        low=0.1,
        high=3600,
        key="answer_timeout",
    )
    unsent_bytes_max: int = size(
        64 * MIB,
        "answers that clients haven't taken yet, all together; above it they are asked to come again",
        low=MIB,
        high=2**40,
        key="unsent_size_max",
    )
    idle_seconds_max: float = duration(
        30.0, "a connection without a request is closed after it", low=0.1, high=3600, key="idle_timeout"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """What brokers that read the cold tier through the plugin get over HTTP, and what they may cost."""

    source: str = text(
        "", "name of the cluster that the streams belong to, as in the plugin's settings; empty: not compared"
    )
    url_seconds: float = duration(
        900.0, "how long a broker may read an object by the URL it got", low=10, high=7 * 24 * 3600, key="url_lifetime"
    )
    waits_max: int = setting(
        256, "requests at once that wait for a ledger to be offloaded; each has a thread", low=1, high=4096
    )
    streams_max: int = setting(16, "answers with entries at once; each takes about 20 MiB of memory", low=1, high=1024)
    requests_max: int = setting(16, "other requests of brokers worked on at once", low=1, high=256)
    cache_bytes_max: int = size(
        256 * MIB,
        "indexes, and blocks that brokers read in pieces, kept in memory",
        low=0,
        high=2**40,
        key="cache_size_max",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FlightSettings:
    """How brokers push and clients read through Arrow Flight."""

    listen: str = text("", "where Arrow Flight listens: 127.0.0.1:8815, :8815 for every address; empty: nowhere")
    ledgers: str = text("", "ledger database of the streams that are appended to through Flight; empty: they can't be")
    streams_max: int = setting(1000, "streams that are pushed or appended to through Flight", low=1, high=100_000)
    calls_max: int = setting(256, "calls at once, each of which has a thread or two", low=1, high=10_000)
    batch_bytes_max: int = size(
        32 * MIB,
        "largest batch that is taken; how much a message may take is known only when it is there",
        low=1024,
        high=2**31 - 1,
        key="batch_size_max",
    )
    window_bytes_max: int = size(
        16 * MIB,
        "entries of a pushed stream that wait for a segment; more holds the broker back",
        low=1024,
        high=2**40,
        key="window_size_max",
    )
    memory_bytes_max: int = size(
        256 * MIB,
        "the same of all pushed streams; one that has nothing else may still push",
        low=1024,
        high=2**44,
        key="memory_size_max",
    )
    wait_seconds_max: float = duration(
        60.0,
        "longest a push waits for room; then it ends with an error, and the broker goes on later",
        low=0.01,
        high=3600,
        key="wait_max",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestSettings:
    """How a stream's manifest is kept short, and when what it doesn't need any more is deleted."""

    checkpoint_records: int = setting(100, "records after which a checkpoint is written", low=1, high=10**5)
    orphan_age_hours_min: float = duration(
        24.0,
        "age below which nothing that nothing names is deleted",
        low=0,
        high=365 * 24,
        key="orphan_age_min",
        unit="h",
    )
    history_days_min: float = duration(
        30.0,
        "age below which `serve` keeps records that a checkpoint holds; never: it keeps all",
        low=0,
        high=365,
        key="history_age_min",
        unit="d",
        may_be_never=True,
    )
    record_requests_max: int = setting(8, "records of a manifest asked for at once while it is loaded", low=1, high=64)
    create_over_segments: bool = flag(
        False, "a stream may be created where segments lie that no manifest tells of: they stay, and nobody reads them"
    )
    clock_skew_seconds_max: float = duration(
        60.0,
        "difference between this clock and the store's that stops all deletion",
        low=0,
        high=24 * 3600,
        key="clock_skew_max",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupSettings:
    """Whether and when objects that no stream needs are deleted, and what is remembered of it."""

    delete: bool = flag(
        False,
        "`serve` deletes from the store: segments, orphans, old manifest records; false: it only reports them",
    )
    grace_hours: float = duration(
        24.0,
        "time between retiring a segment and deleting its objects; until then it can be undone",
        low=0,
        high=87600,
        key="grace_period",
        unit="h",
    )
    allow_large_delete: bool = flag(False, "a cycle may retire more than half of a stream without being asked")
    retry_minutes_max: float = duration(
        60.0,
        "longest wait before objects that couldn't be deleted are tried again",
        low=0,
        high=7 * 24 * 60,
        key="retry_delay_max",
        unit="m",
    )
    audit_days: float = duration(
        90.0, "how long it is remembered what was deleted", low=0, high=36500, key="audit_period", unit="d"
    )
    audit_records_max: int = setting(
        10_000, "batches of deletions remembered of one stream; the oldest go first", low=1, high=10**6
    )
    cycle_minutes: float = duration(
        60.0, "time between two rounds of cleanup", low=0.001, high=MINUTES_MAX, key="cycle_interval", unit="m"
    )
    orphans_hours: float = duration(
        24.0, "time between two searches for orphans; 0: none", low=0, high=87600, key="orphans_interval", unit="h"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadSettings:
    """How entries become segments. A settings file may use PIP-76's and Pulsar's own names too, with plain numbers."""

    block_bytes: int = size(MIB, "target size of a block", low=256, high=1024 * MIB, key="block_size")
    part_bytes: int = size(
        16 * MIB,
        "size of an uploaded part, of history at least; a segment below it is a single PUT",
        low=5 * MIB,
        high=5 * 1024 * MIB,
        key="part_size",
    )
    parts_in_flight_max: int = setting(4, "parts of one segment uploaded at once", low=1, high=64)
    max_size_per_offload_segment_mbytes: float = size(
        1024.0,
        "a segment closes at this size",
        low=0.001,
        high=5 * 1024 * 1024,
        key="segment_size_max",
        unit="MiB",
        is_alias=True,
    )
    max_offload_segment_rollover_time_minutes: float = duration(
        10.0,
        "a segment closes at this age, counted from its first entry",
        low=0.0001,
        high=365 * 24 * 60,
        key="segment_age_max",
        unit="m",
        is_alias=True,
    )
    segment_bytes_min: int = size(
        0,
        "a smaller segment isn't closed at segment_age_max, but at segment_age_limit; 0: every segment is",
        low=0,
        high=2**40,
        key="segment_size_min",
    )
    segment_age_limit_minutes: float = duration(
        360.0,
        "age at which a segment below segment_size_min closes, too",
        low=0.0001,
        high=365 * 24 * 60,
        key="segment_age_limit",
        unit="m",
    )
    offload_buffer_bytes_max: int = size(
        64 * MIB, "bytes buffered for one stream", low=64 * KIB, high=2**40, key="offload_buffer_size_max"
    )
    offload_memory_bytes_max: int = size(
        512 * MIB,
        "bytes buffered for all streams of a process",
        low=64 * KIB,
        high=2**44,
        key="offload_memory_size_max",
    )
    entry_bytes_max: int = size(64 * MIB, "largest entry that is taken", low=1, high=2**31 - 1, key="entry_size_max")
    codec: str = choice("none", "compression of blocks", ("none", "zstd"))
    method: str = choice(
        "streaming",
        "streaming (PIP-76), ledger (a closed ledger an object) or none; in a settings file without it: ledger",
        ("streaming", "ledger", "none"),
    )
    offload_threshold_bytes: int = size(
        0,
        "method ledger: bytes not yet offloaded above which the oldest ledgers go; 0: as soon as closed, never: off",
        low=0,
        high=2**60,
        key="offload_threshold_size",
        may_be_never=True,
        is_alias=True,
    )
    offload_threshold_seconds: int = duration(
        -1,
        "method ledger: age at which a closed ledger goes; 0: as soon as closed, never: off",
        low=0,
        high=2**31,
        key="offload_threshold_age",
        may_be_never=True,
        is_alias=True,
    )
    backfill_segments_in_flight_max: int = setting(
        4, "segments of history uploaded at once, of a stream and of a process", low=1, high=64
    )
    deletion_lag_minutes: float = duration(
        240.0,
        "time after which the hot copy of an offloaded ledger is deleted; never: it isn't",
        low=0,
        high=10 * 365 * 24 * 60,
        key="deletion_lag",
        unit="m",
        may_be_never=True,
    )
    release_with_gaps: bool = flag(
        False, "whether the hot copy of a ledger also goes when entries of it were lost or are unconfirmed"
    )
    tail_cache_bytes_max: int = size(
        8 * MIB,
        "newest entries kept in memory for a stream that catches up",
        low=0,
        high=2**40,
        key="tail_cache_size_max",
    )
    drain_seconds_max: float = duration(
        300.0, "wait for the last segment when closing", low=0, high=24 * 3600, key="drain_timeout"
    )
    retry_seconds_max: float = duration(
        30.0, "longest wait before a failed segment is tried again", low=0.01, high=3600, key="retry_delay_max"
    )
    takeover_after_seconds: float = duration(
        60.0,
        "silence after which a stream may be taken from its owner without being told to",
        low=0.01,
        high=24 * 3600,
        key="takeover_after",
    )
    on_gap: str = choice(
        "block",
        "what to do when the hot tier lost entries before they were offloaded: block, or record the gap and go on",
        ("block", "record"),
    )
    workers_max: int = setting(8, "threads that encode and upload, whole process", low=1, high=256)


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerSettings:
    """When the embedded ledger store closes a ledger and opens the next, and how often it is polled."""

    ledger_bytes_max: int = size(256 * MIB, "a ledger closes at this size", low=1, high=2**50, key="ledger_size_max")
    ledger_entries_max: int = setting(1_000_000, "a ledger closes at this many entries", low=1, high=2**40)
    ledger_age_minutes_max: float = duration(
        60.0,
        "a ledger closes at this age, at the next append",
        low=0.0001,
        high=365 * 24 * 60,
        key="ledger_age_max",
        unit="m",
    )
    poll_interval_s: float = duration(
        1.0, "time between two looks at the database of `serve.ledgers`", low=0.01, high=3600, key="poll_interval"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PulsarSettings:
    """A Pulsar cluster as a hot tier."""

    service_url: str = text("", "of brokers or proxies, `pulsar://broker:6650` or `pulsar+ssl://broker:6651`")
    admin_url: str = text("", "of the admin interface, `http://broker:8080` or `https://broker:8443`")
    admin_hosts: tuple[str, ...] = texts(
        "hosts of other brokers that the token may go to when `admin_url` sends us on, with * for any letters; "
        "empty: none"
    )
    token: str = text(
        "", "where the token is: `file:PATH` or `env:NAME`; empty: `env:OFFLOADER_PULSAR_TOKEN`, if it is set"
    )
    ca_file: str = text("", "certificate authorities of brokers and admin interface; empty: the machine's")
    certificate_file: str = text("", "our certificate, where brokers ask for one")
    key_file: str = text("", "its key; empty: in `certificate_file`")
    subscription: str = text(
        "offloader", "name of our durable subscription, the same in all processes that share topics"
    )
    topics: tuple[str, ...] = texts(
        "topics to offload: names, and patterns with * and ?, `public/default/orders-*`; `public/default`: all of it"
    )
    exclude: tuple[str, ...] = texts("topics that aren't offloaded although `topics` means them")
    discovery_interval_s: float = duration(
        30.0,
        "time between two looks for new and deleted topics and partitions",
        low=0.1,
        high=24 * 3600,
        key="discovery_interval",
    )
    subscribers_seconds: float = duration(
        300.0,
        "time between two looks at the topics' subscriptions, which hold back what retention would delete",
        low=0.1,
        high=24 * 3600,
        key="subscribers_interval",
    )
    store_outage_handover_s: float = duration(
        60.0,
        "silence of the store after which a topic is left to another process that waits for it; 0: never",
        low=0.0,
        high=24 * 3600,
        key="store_outage_handover",
    )
    topics_max: int = setting(10_000, "topics and partitions of one process", low=1, high=1_000_000)
    on_gap: str = choice(
        "record",
        "what to do when entries were gone before they were offloaded: record the gap and go on, or block",
        ("record", "block"),
    )
    entries_asked_max: int = setting(
        1000,
        "entries of one run that wasn't delivered about which the admin interface is asked; the others are unconfirmed",
        low=1,
        high=1_000_000,
    )
    trim: bool = flag(True, "ask the broker at once to delete what was given up; else it does when it likes")
    broker_plugin: bool = flag(
        False,
        "the brokers read offloaded ledgers through our plugin: retention keeps what a broker still lists, commits are "
        "acknowledged at once, and brokers are asked to offload",
    )
    follow_broker_trim: bool = flag(
        False, "broker_plugin: ledgers that a broker trimmed go from the cold tier too, as far as retention allows"
    )
    receive_bytes_max: int = size(
        128 * MIB, "received and not taken yet, all topics together", low=MIB, high=2**40, key="receive_buffer_size_max"
    )
    connect_seconds_max: float = duration(10.0, "to connect to a broker", low=0.1, high=600, key="connect_timeout")
    request_seconds_max: float = duration(30.0, "for a broker's answer", low=0.1, high=600, key="request_timeout")
    keep_alive_seconds: float = duration(
        30.0, "silence after which a broker is asked whether it is there", low=0.1, high=600, key="keep_alive"
    )
    retry_seconds_max: float = duration(
        10.0, "longest wait before something that failed is tried again", low=0.01, high=3600, key="retry_delay_max"
    )
    workers_max: int = setting(8, "threads that read topics and tell their streams, whole process", low=1, high=256)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """What `offloader serve` serves, and how it lives."""

    store: str = text("", "URL of the object store, s3://BUCKET/ROOT or file:///FOLDER")
    endpoint_url: str = text("", "where the S3 API is, when it isn't AWS")
    region: str = text("", "the store's region")
    url: str = text("", "where others reach this process over HTTP; empty: as it listens")
    ledgers: str = text("", "database of embedded ledgers whose streams are offloaded, sqlite:///FILE; empty: none")
    streams: tuple[str, ...] = texts("streams of that database, with * and ? for any letters; empty: all")
    streams_max: int = setting(10_000, "streams that are offloaded at once", low=1, high=1_000_000)
    maintenance: bool = flag(True, "run retention, cleanup and the search for orphans")
    restart_seconds_max: float = duration(
        600.0,
        "longest wait before a stream that stopped on an error is started again",
        low=1,
        high=24 * 3600,
        key="restart_delay_max",
    )
    stop_seconds_max: float = duration(
        30.0, "time to end in after the last segments are complete", low=1, high=3600, key="stop_timeout"
    )
    log_level: str = choice("info", "lowest level that is logged", ("debug", "info", "warning", "error"))
    log_format: str = choice("json", "JSON lines, or lines for people", ("json", "plain"))


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetrySettings:
    """Status file, watchdog and metrics of a running process."""

    status_file: str = text("", "file that holds the status document, replaced atomically; empty: none")
    status_interval_s: float = duration(
        5.0, "time between two looks at the streams", low=0.05, high=3600, key="status_interval"
    )
    watchdog_no_progress_s: float = duration(
        900.0,
        "a stream with data and no progress for so long is named as stalled",
        low=1,
        high=7 * 24 * 3600,
        key="watchdog_no_progress",
    )
    labels: str = choice("namespace", "what metrics are kept by", ("namespace", "topic"))
    topic_labels_max: int = setting(
        1000, "topics above which metrics are kept by namespace all the same", low=1, high=1_000_000
    )
    label_sets_max: int = setting(50_000, "label sets kept; more are counted as other", low=1, high=10_000_000)
    label_lifetime_s: float = duration(
        3600.0, "a label set not used for so long is dropped", low=1, high=7 * 24 * 3600, key="label_lifetime"
    )
    write_cost_per_1000: float = setting(0.005, "price of 1000 PUT-class requests, dollars", low=0, high=1000)
    read_cost_per_1000: float = setting(0.0004, "price of 1000 GET-class requests, dollars", low=0, high=1000)


#: Settings of earlier releases -> their replacements.
REPLACED = {
    "limits.upload_bytes_per_s": "limits.bytes_per_s",
    "limits.read_bytes_per_s": "limits.bytes_per_s",
    "limits.upload_requests_per_s": "limits.requests_per_s",
    "limits.read_requests_per_s": "limits.requests_per_s",
    "limits.delete_requests_per_s": "limits.requests_per_s",
    "limits.turn_wait_s_max": "limits.throttle_wait_s_max",
    "limits.turns_waiting_max": "limits.throttle_queue_max",
    "serve.upkeep": "serve.maintenance",
    "serve.follow_seconds": "ledgers.poll_interval_s",
    "pulsar.topics_seconds": "pulsar.discovery_interval_s",
    "pulsar.hand_over_seconds": "pulsar.store_outage_handover_s",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All of it."""

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
        """Settings from nested mappings ``{"offload": {"block_bytes": 65536}}``; others keep their defaults.

        Names and units are those of the attributes; a settings file has its own, see ``offloader.settings.layered``.

        Args:
            values: section -> name -> value.
            origin: source of the values, for the error message.

        Raises:
            InvalidCall: unknown names, wrong types and values out of range, all of them at once.
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
            raise InvalidCall(f"{origin}: {'; '.join(problems)}", hint="nothing was changed")
        return cls(**sections)


def _valid(section: str, kind: type[Any], given: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    """The valid values of a section; ``problems`` gets what is wrong with the others."""
    known = {f.name: f for f in fields(kind)}
    taken: dict[str, Any] = {}
    for name, value in given.items():
        each: Any = known.get(name)
        instead = REPLACED.get(f"{section}.{name}")
        unknown = f"no such setting any more, use {instead}" if instead else "no such setting"
        if problem := unknown if each is None else problem_of(each.metadata, each.default, value):
            problems.append(f"{section}.{name}: {problem}")
        else:
            taken[name] = each.default.__class__(value)
    return taken
