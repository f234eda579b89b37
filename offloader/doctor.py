"""Checks of configuration and connectivity: this machine, the store, Pulsar, and each stream."""

from __future__ import annotations

import itertools
import os
import re
import resource
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from formats.entries import Position
from formats.errors import FormatError
from offloader.errors import (
    AccessDeniedError,
    ErrorKind,
    InvalidCallError,
    NotFoundError,
    OffloaderError,
    StoreUnavailableError,
    UnsupportedError,
)
from offloader.inspect.saving import SAMPLE_BYTES_MAX, Saving, measure_saving, saving_of
from offloader.ledgers.base import LedgerInfo, LostRange
from offloader.ledgers.pulsar.consumer import first_entries
from offloader.ledgers.pulsar.discovery import TopicPatterns, survey
from offloader.ledgers.pulsar.source import PulsarCluster
from offloader.ledgers.pulsar.topics import EntryFate, policy_warnings, stream_of_topic
from offloader.ledgers.sqlite.database import database_path
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers, EmbeddedStream, lost_with_database, refused
from offloader.manifest.log import list_streams
from offloader.manifest.protection import global_hold, time_for_deletion_ms
from offloader.manifest.segment_table import SegmentRecord
from offloader.manifest.source_identity import CheckedSource
from offloader.manifest.state import ManifestState
from offloader.manifest.store_identity import IDENTITY_HINT, other_identity, read_identity
from offloader.manifest.unlisted import unlisted_streams
from offloader.read.reader import load_of_source, load_stream
from offloader.runtime.clock import Clock
from offloader.settings import Duration, PulsarSettings, Settings
from offloader.settings.layered import SettingsFile
from offloader.store.base import PROBE_PREFIX, ByteRange, ObjectStore
from offloader.store.bucket_rules import (
    LIFECYCLE,
    OBJECT_LOCK,
    PERMISSIONS,
    VERSIONING,
    Bucket,
    BucketFinding,
    lifecycle_findings,
    lock_findings,
    versioning_findings,
)
from offloader.store.probe import probe_conditional_puts
from offloader.write.quota import segment_age_s_max

#: Name of the plugin's driver.
DRIVER = "offloader"
#: Range of tested Pulsar versions, inclusive.
VERSIONS_TRIED = (3, 0), (5, 0)
_DEFAULT_READ_PRIORITY = "tiered-storage-first"


class BrokerFinding(NamedTuple):
    """One setting: whether it prevents the plugin's work, its value and the remedy; no hint: it is correct."""

    is_problem: bool
    what: str
    hint: str = ""


def settings_findings(settings: Mapping[str, str]) -> Iterator[BrokerFinding]:
    """Checks the effective settings of a broker, by name."""

    def value(name: str) -> str:
        found = settings.get(name, "").strip()
        return "" if found in ("null", "[]", "{}") else found

    yield from _needed(settings, value)
    yield from _advice(value)


def _needed(settings: Mapping[str, str], value: Callable[[str], str]) -> Iterator[BrokerFinding]:
    """Settings that the plugin requires."""
    driver, processors = value("managedLedgerOffloadDriver"), value("brokerEntryPayloadProcessors")
    adds_metadata = value("brokerEntryMetadataInterceptors")
    exposes_metadata = value("exposingBrokerEntryMetadataToClientEnabled").lower() == "true"
    found = (
        (driver == DRIVER, BrokerFinding(False, f"managedLedgerOffloadDriver is {DRIVER}")),
        (
            driver != DRIVER,
            BrokerFinding(
                True,
                f"managedLedgerOffloadDriver is {driver or 'not set'}: the broker doesn't use the plugin",
                f"set managedLedgerOffloadDriver={DRIVER} and restart the broker; adopt ledgers of another driver "
                "first",
            ),
        ),
        (
            not value("offloadersDirectory"),
            BrokerFinding(
                True,
                "offloadersDirectory is not set: the broker can't find the plugin",
                "set it to the folder with the plugin's NAR file, and restart the broker",
            ),
        ),
        (
            # Most versions don't report an offloader's own settings: skip the check then.
            "managedLedgerOffloadServiceEndpoint" in settings and not value("managedLedgerOffloadServiceEndpoint"),
            BrokerFinding(
                False,
                "managedLedgerOffloadServiceEndpoint is not set: only the plugin's own settings file names this "
                "service",
                "set it to the HTTP address of this service, or name the endpoints in the plugin's settings file",
            ),
        ),
        (
            adds_metadata and not exposes_metadata,
            BrokerFinding(
                True,
                "brokerEntryMetadataInterceptors is set and exposingBrokerEntryMetadataToClientEnabled is not true: "
                "the stored entries lack the broker's metadata, so every offload is refused",
                "set exposingBrokerEntryMetadataToClientEnabled=true and restart the broker; new entries are complete",
            ),
        ),
        (
            processors,
            BrokerFinding(
                True,
                f"brokerEntryPayloadProcessors is {processors}: it changes the bytes between bookies and readers, so "
                "every offload is refused",
                "remove it from the broker's settings: the plugin doesn't work with payload processors",
            ),
        ),
    )
    yield from (finding for is_so, finding in found if is_so)


def _advice(value: Callable[[str], str]) -> Iterator[BrokerFinding]:
    """Settings that work with the plugin but cost space or time."""
    priority = value("managedLedgerDataReadPriority") or _DEFAULT_READ_PRIORITY
    threshold = _whole(value("managedLedgerOffloadAutoTriggerSizeThresholdBytes"), -1)
    found = (
        (
            priority != "bookkeeper-first",
            BrokerFinding(
                False,
                f"managedLedgerDataReadPriority is {priority}: offloaded ledgers are read from the store while the "
                "bookies still have them",
                "set managedLedgerDataReadPriority=bookkeeper-first",
            ),
        ),
        (
            threshold != 0,
            BrokerFinding(
                False,
                "managedLedgerOffloadAutoTriggerSizeThresholdBytes is "
                + (
                    f"{threshold}: the broker keeps that much of each topic in BookKeeper"
                    if threshold > 0
                    else "not set: the broker starts no offloads"
                ),
                "set it to 0 to offload every closed ledger; this service requests offloads of the others",
            ),
        ),
        (
            _whole(value("managedLedgerOffloadDeletionLagMs"), -1) < 0,
            BrokerFinding(
                False,
                "managedLedgerOffloadDeletionLagMs is not set: BookKeeper keeps every offloaded ledger",
                "set it to the time for which BookKeeper keeps its copy after the offload, 14400000 for 4 hours",
            ),
        ),
    )
    yield from (finding for is_so, finding in found if is_so)


def _whole(text: str, default: int) -> int:
    return int(text) if re.fullmatch(r"-?\d{1,19}", text) else default


def namespace_findings(policies: Mapping[str, Any]) -> Iterator[BrokerFinding]:
    """Checks the policies of a namespace: its offload policy replaces the broker's settings."""
    offload = policies.get("offload_policies")
    driver = str(offload.get("managedLedgerOffloadDriver") or "") if isinstance(offload, dict) else ""
    if driver and driver != DRIVER:
        yield BrokerFinding(
            True,
            f"its offload policy has the driver {driver}: the broker reads ledgers with it instead of the plugin",
            "adopt the ledgers that it offloaded, then run `pulsar-admin namespaces remove-offload-policies`",
        )


def version_finding(version: str) -> BrokerFinding:
    """Checks the version of a broker, ``4.0.7``."""
    found = re.match(r"(\d{1,4})\.(\d{1,4})", version)
    low, high = VERSIONS_TRIED
    tried = f"{low[0]}.{low[1]} to {high[0]}.{high[1]}"
    if found is None:
        return BrokerFinding(
            False, f"the broker's version is {version or 'unknown'}", f"the plugin was tested with {tried}"
        )
    if low <= (int(found[1]), int(found[2])) <= high:
        return BrokerFinding(False, f"the broker is version {version}; the plugin was tested with {tried}")
    return BrokerFinding(
        False,
        f"the broker is version {version}, but the plugin was tested with {tried} only",
        "test it with copies of your data",
    )


class Outcome(StrEnum):
    """Severity of a finding."""

    OK = "ok"
    #: It works, but needs the operator's attention.
    WARNING = "warning"
    #: It doesn't work.
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """One line of a doctor's report.

    Attributes:
        check: the item checked, ``store put``.
        what: the finding, one line.
        hint: the remedy, one line; empty if none is needed.
        kind: the error kind of a problem, which sets the exit code.
    """

    check: str
    outcome: Outcome
    what: str
    hint: str = ""
    kind: ErrorKind | None = None


def fine(check: str, what: str) -> CheckResult:
    """A finding without a problem."""
    return CheckResult(check=check, outcome=Outcome.OK, what=what)


def warning(check: str, what: str, hint: str) -> CheckResult:
    """A finding that works, but needs the operator's attention."""
    return CheckResult(check=check, outcome=Outcome.WARNING, what=what, hint=hint)


def fine_unless(check: str, what: str, hint: str) -> CheckResult:
    """A warning with a hint; without a hint, a finding without a problem."""
    return warning(check, what, hint) if hint else fine(check, what)


def problem(check: str, error: OffloaderError, hint: str = "") -> CheckResult:
    """A failed check; ``hint`` replaces the hint of ``error`` or of its kind."""
    return CheckResult(
        check=check,
        outcome=Outcome.PROBLEM,
        what=error.message,
        hint=hint or error.hint or error.kind.advice,
        kind=error.kind,
    )


def run_checks(checks: Iterable[tuple[str, Iterable[CheckResult]]]) -> Iterator[CheckResult]:
    """The findings of all checks, in order.

    Args:
        checks: each check's name and its findings. An ``OffloaderError`` that ends a check counts as a problem of that
            name.
    """
    for name, findings in checks:
        try:
            yield from findings
        except OffloaderError as error:
            yield problem(name, error)


#: A disk with fewer free bytes is reported.
DISK_BYTES_MIN = 1024**3
#: Maximum share of the machine's memory for buffers.
MEMORY_SHARE_MAX = 0.5
#: Open files of a process besides the store's connections.
FILES_BESIDE = 256


def check_machine(settings: Settings) -> Iterator[CheckResult]:
    """Checks what this machine provides: disk, folders, memory, open files."""
    if settings.serve.ledgers:
        yield from _ledgers(settings.serve.ledgers)
    if settings.telemetry.status_file:
        folder = Path(settings.telemetry.status_file).absolute().parent
        denied = AccessDeniedError(f"{folder} doesn't exist or can't be written")
        yield (
            fine("status file", f"can be written in {folder}")
            if folder.is_dir() and os.access(folder, os.W_OK)
            else problem("status file", denied, "create the folder, or set another telemetry.status_file")
        )
    wanted_bytes = settings.offload.offload_memory_size_max
    there_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    text = f"buffers may take {wanted_bytes / 1024**2:.0f} of {there_bytes / 1024**2:.0f} MiB"
    hint = "lower offload.offload_memory_size_max, or use a larger machine"
    yield fine_unless("memory", text, hint if wanted_bytes > there_bytes * MEMORY_SHARE_MAX else "")
    wanted, limit = settings.store.connections_max + FILES_BESIDE, resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    is_enough = limit == resource.RLIM_INFINITY or limit >= wanted
    text = "unlimited" if limit == resource.RLIM_INFINITY else f"{limit} are allowed"
    text += "" if is_enough else f", up to {wanted} may be needed"
    yield fine_unless("open files", text, "" if is_enough else f"ulimit -n {max(wanted, 4096)}")


def _ledgers(ledgers: str) -> Iterator[CheckResult]:
    path = Path(database_path(ledgers))
    if str(path) == ":memory:":
        return
    folder = path.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        missing = "doesn't exist" if not folder.is_dir() else "can't be written"
        yield problem(
            "ledger database",
            AccessDeniedError(f"the folder {folder} {missing}"),
            "create it, owned by the user of the process",
        )
        return
    if path.exists():
        with closing(EmbeddedLedgers(str(path), create=False)) as database:
            yield fine("ledger database", f"{path} has {len(database.streams())} streams")
    else:
        yield fine("ledger database", f"{path} doesn't exist yet: the first process creates it")
    free_bytes = shutil.disk_usage(folder).free
    text = f"{free_bytes / 1024**3:.1f} GiB are free in {folder}"
    yield fine_unless(
        "ledger disk", text, "free some: appends fail on a full disk" if free_bytes < DISK_BYTES_MIN else ""
    )


#: Maximum number of topics with a check of their subscriptions; further topics are skipped.
TOPICS_LOOKED_AT_MAX = 100


def check_pulsar(settings: PulsarSettings, clock: Clock) -> Iterator[CheckResult]:
    """Checks a Pulsar cluster: brokers, admin interface, topics, subscriptions and namespace policies.

    Args:
        settings: the section ``[pulsar]``.
    """
    # The operator waits for the report: cap the retries.
    settings = replace(settings, retry_delay_max=Duration(min(settings.retry_delay_max, 1.0)))
    patterns = TopicPatterns.of(settings.topics, settings.exclude)
    with PulsarCluster(settings, clock=clock) as cluster:
        try:
            yield fine("pulsar broker", f"{cluster.client.greet()} answers and grants access")
        except OffloaderError as error:
            yield problem("pulsar broker", error)
        look, failure = survey(cluster.admin, patterns)
        if failure is not None:
            yield problem("pulsar admin", failure)
        if look.topics:
            yield fine("pulsar admin", f"{cluster.admin.url} answers")
        topics = sorted(topic for each in look.topics.values() for topic in each)
        if topics:
            hint = "raise pulsar.topics_max, or share the topics between several processes"
            is_above = len(topics) > settings.topics_max
            what = f" match, {settings.topics_max} are offloaded" if is_above else " and partitions match"
            yield fine_unless("pulsar topics", f"{len(topics)} topics{what}", hint if is_above else "")
            looked_at = topics[:TOPICS_LOOKED_AT_MAX]
            subscriptions, entries = _subscriptions(cluster, looked_at), _entries(cluster, looked_at)
            yield from run_checks([("pulsar subscriptions", subscriptions), ("pulsar entries", entries)])
        elif failure is None:
            hint = "check names and patterns; `offloader serve` discovers topics that producers create later"
            yield warning("pulsar topics", "pulsar.topics matches no existing topic", hint)
        for namespace in sorted(look.topics):
            yield from _policies(cluster, namespace)
        if settings.broker_plugin:
            yield from run_checks([("pulsar broker plugin", _plugin(cluster))])


def _subscriptions(cluster: PulsarCluster, topics: list[str]) -> Iterator[CheckResult]:
    name, without = cluster.settings.subscription, []
    for topic in topics:
        try:
            found = cluster.admin.stats(topic).subscriptions.get(name)
        except NotFoundError:
            continue  # deleted since, or an unused partition
        if found is None or not found.is_durable:
            without.append(topic)
    yield (
        warning(
            "pulsar subscriptions",
            f"{len(without)} of {len(topics)} topics have no subscription {name}, for example {without[0]}",
            "until a process serves them, Pulsar may delete entries that aren't offloaded",
        )
        if without
        else fine("pulsar subscriptions", f"{len(topics)} topics have the subscription {name}")
    )


def _entries(cluster: PulsarCluster, topics: list[str]) -> Iterator[CheckResult]:
    """Checks that the admin interface can examine single entries, as needed for undelivered ones."""
    check, asked = "pulsar entries", 0
    without = "until then, undelivered entries count as unconfirmed (pulsar.on_gap), and their ledgers are kept"
    for topic in topics:
        try:
            filled = [each for each in cluster.admin.internals(topic).stored() if each[1]]
            if not filled:
                continue
            ledger_id, entries = filled[-1]
            fate = cluster.admin.fate(topic, Position(ledger_id, entries - 1))
        except NotFoundError:
            continue  # deleted since, or an unused partition
        asked += 1
        if fate is EntryFate.DENIED:
            namespace = topic.removeprefix("persistent://").rpartition("/")[0]
            what = f"{cluster.admin.url}: the token lacks permission to examine entries of {topic}"
            raise AccessDeniedError(what, hint=f"grant its role the action consume on namespace {namespace}; {without}")
        if fate is EntryFate.UNKNOWN:
            what = f"{cluster.admin.url} can't examine entries of {topic}"
            hint = f"allow GET .../ledger/L/entry/E and its X-Pulsar headers, with brokers from 2.11; {without}"
            yield warning(check, what, hint)
            return
    if asked:
        yield fine(check, f"{cluster.admin.url} can examine single entries of {asked} topics")


def _plugin(cluster: PulsarCluster) -> Iterator[CheckResult]:
    """Checks the settings of a broker that uses the plugin."""
    check, admin = "pulsar broker plugin", cluster.admin
    with suppress(OffloaderError):  # the next request reports the cause
        yield _told(check, version_finding(admin.broker_version()))
    try:
        settings = admin.broker_settings()
    except AccessDeniedError as error:
        hint = (
            "only a superuser may read a broker's settings: run doctor with a superuser's token, or compare them "
            "with the page about the plugin"
        )
        yield warning(check, f"the settings of the broker can't be read: {error.message}", hint)
        return
    for each in settings_findings(settings):
        yield _told(check, each, f"{admin.url}: ")


def _told(check: str, found: BrokerFinding | BucketFinding, where: str = "") -> CheckResult:
    if found.is_problem and found.hint:
        return problem(check, InvalidCallError(f"{where}{found.what}"), found.hint)
    return fine_unless(check, f"{where}{found.what}", found.hint)


def _policies(cluster: PulsarCluster, namespace: str) -> Iterator[CheckResult]:
    check, has_plugin = f"pulsar namespace {namespace}", cluster.settings.broker_plugin
    try:
        policies = cluster.admin.policies(namespace)
        for each in policy_warnings(policies, broker_plugin=has_plugin):
            what, _, hint = each.partition("; ")
            yield warning(check, what, hint)
        for found in namespace_findings(policies) if has_plugin else ():
            yield _told(check, found)
    except NotFoundError:
        yield warning(check, "the namespace doesn't exist", hint="check pulsar.topics")
    except OffloaderError as error:
        hint = "the token may not read them: check for a message TTL and for quotas that evict"
        yield warning(check, f"its policies can't be read: {error.message}", hint)


_BODY = b"offloader doctor"
#: Operation -> the name of its permission in S3.
_PERMISSIONS = {
    "list": "s3:ListBucket",
    "put": "s3:PutObject",
    "head and get": "s3:GetObject",
    "uploads": "s3:PutObject",
    "list parts": "s3:ListMultipartUploadParts",
    "list uploads": "s3:ListBucketMultipartUploads",
    "abort": "s3:AbortMultipartUpload",
    "delete": "s3:DeleteObject",
}


def store_answers(store: ObjectStore) -> CheckResult:
    """Whether the store responds; without a response, all its other checks would fail the same way."""
    try:
        store.list("", limit=1)
    except OffloaderError as error:
        return problem("store reachable", error, _hint("list", error))
    return fine("store reachable", f"{store.url} answers")


def check_store(store: ObjectStore, settings: Settings, clock: Clock) -> Iterator[CheckResult]:
    """Checks a responding store: permissions, conditional puts, time, and whether deletion is stopped.

    Args:
        store: open for writing.
        clock: compared with the store's.
    """
    yield from _verbs(store, deletes=settings.cleanup.delete)
    name, found = "store conditional puts", probe_conditional_puts(store)
    broken = f"not guaranteed: {'; '.join(found.problems)}"
    if found.conditional:
        yield fine(name, f"guaranteed, also in {found.rounds} races of two creators")
    elif settings.store.single_writer:
        yield warning(name, broken, "store.single_writer is set: no other process may write to it")
    else:
        hint = "use another store, or set store.single_writer if no other process ever writes to it"
        yield problem(name, UnsupportedError(broken), hint)
    limit_s = settings.manifest.clock_skew_max
    time_for_deletion_ms(store, clock, skew_ms_max=limit_s * 1000)
    yield fine("store clock", f"within {limit_s:g} s of this machine's")
    stop = global_hold(store)
    if stop is not None:
        yield warning(
            "store deletion",
            f"a hold by {stop.by} stops all deletion ({stop.reason})",
            "`offloader cleanup hold --all --off` removes the hold",
        )


def check_bucket(bucket: Bucket) -> Iterator[CheckResult]:
    """Checks the effect of the bucket's rules on the data. An unreadable rule is a warning, not a problem."""
    answers: dict[str, Mapping[str, Any] | None] = {}
    for what in (LIFECYCLE, VERSIONING, OBJECT_LOCK):
        try:
            answers[what] = bucket.bucket_configuration(what)
        except UnsupportedError:
            yield fine(f"bucket {what}", "the server doesn't offer it")
        except OffloaderError as error:
            is_denied = isinstance(error, AccessDeniedError)
            hint = f"allow {PERMISSIONS[what]}, or check it yourself" if is_denied else error.hint
            yield warning(f"bucket {what}", f"can't be read: {error.message}", hint)
    found: list[BucketFinding] = []
    if LIFECYCLE in answers:
        found += lifecycle_findings(answers[LIFECYCLE], bucket.root)
    if VERSIONING in answers:
        found += versioning_findings(answers[VERSIONING], answers.get(LIFECYCLE), bucket.root)
    if OBJECT_LOCK in answers:
        found += lock_findings(answers[OBJECT_LOCK])
    yield from (_told(each.check, each) for each in found)


def _verbs(store: ObjectStore, *, deletes: bool) -> Iterator[CheckResult]:
    key = f"{PROBE_PREFIX}{uuid.uuid4().hex}-doctor"
    begun: list[str] = []

    def uploads() -> None:
        begun.append(store.begin_upload(key))
        part = store.upload_part(key, begun[0], 1, _BODY)
        store.complete_upload(key, begun[0], [part])

    def parts() -> None:
        begun.append(store.begin_upload(key))
        store.upload_part(key, begun[-1], 1, _BODY)
        if len(store.list_parts(key, begun[-1])) != 1:
            raise StoreUnavailableError("an uploaded part isn't listed")

    def listed() -> None:
        if not any(each.key == key for each in store.list(key).objects):
            raise StoreUnavailableError("an object isn't listed after its put")

    def read() -> None:
        if (store.head(key).size_bytes, store.get(key, ByteRange(2, 5))[0]) != (len(_BODY), _BODY[2:5]):
            raise StoreUnavailableError("the bytes of a get differ from those of the put")

    def deleted() -> None:
        kept = store.delete([key])
        if kept:
            raise AccessDeniedError(f"{kept[0].key} wasn't deleted: {kept[0].reason}")

    verbs: dict[str, Callable[[], object]] = {
        "put": lambda: store.put(key, _BODY),
        "head and get": read,
        "list": listed,
        "uploads": uploads,
        "list parts": parts,
        "list uploads": lambda: store.list_uploads(key),
        "abort": lambda: store.abort_upload(key, begun[-1]),
        "delete": deleted,
    }
    for verb, call in verbs.items():
        try:
            call()
        except UnsupportedError as error:
            yield warning(f"store {verb}", error.message, error.hint)
        except OffloaderError as error:
            if verb == "delete" and isinstance(error, AccessDeniedError) and not deletes:
                hint = f"writers and readers don't need it; for cleanup allow {_PERMISSIONS[verb]}"
                yield warning(f"store {verb}", error.message, hint)
            else:
                yield problem(f"store {verb}", error, _hint(verb, error))
        except IndexError:
            continue  # no upload was started, so there is none to abort
        else:
            yield fine(f"store {verb}", "allowed")
    with suppress(OffloaderError):
        store.delete([key])


def _hint(verb: str, error: OffloaderError) -> str:
    return f"allow {_PERMISSIONS[verb]}" if isinstance(error, AccessDeniedError) and not error.hint else error.hint


#: Maximum numbers of streams to search for uncompressed segments, and to sample.
COMPRESSION_STREAMS_MAX, SAMPLES_MAX = 50, 3
#: Number of newest segments per stream; the largest of them is sampled.
_NEWEST_SEGMENTS = 32


def check_compression(store: ObjectStore, clock: Clock) -> Iterator[CheckResult]:
    """Estimates the saving by compression, on a sample of the streams with the most uncompressed data. Streams that
    can't be read are skipped: ``check_streams`` and ``verify`` report them."""
    largest: list[tuple[int, str, SegmentRecord]] = []
    for name in itertools.islice(list_streams(store), COMPRESSION_STREAMS_MAX):
        with suppress(OffloaderError):
            newest = load_stream(store, name).offloaded()[-_NEWEST_SEGMENTS:]
            plain = [each for each in newest if not each.content.compressed]
            record = max(plain, key=lambda each: each.content.data_bytes, default=None)
            if record is not None:
                largest.append((sum(each.content.data_bytes for each in plain), name, record))
    for _, name, record in sorted(largest, key=lambda each: -each[0])[:SAMPLES_MAX]:
        with suppress(OffloaderError, FormatError):
            found = measure_saving(store, record.object_keys(name)[0], record.content, clock=clock)
            if found is not None:
                yield _compression(name, found)


def check_compression_ahead(store: ObjectStore, file: SettingsFile, clock: Clock) -> Iterator[CheckResult]:
    """Estimates the same for streams of the ledger database without offloaded entries, on a sample of their entries, so
    that you can choose the codec before the first segment."""
    with ExitStack() as stack:
        try:
            database = stack.enter_context(closing(EmbeddedLedgers(file.settings_of("").serve.ledgers, create=False)))
        except NotFoundError:  # no entry was appended yet
            return
        stored = set(list_streams(store))
        largest: list[tuple[int, str, LedgerInfo]] = []
        for name in database.streams()[:COMPRESSION_STREAMS_MAX]:
            infos = [] if name in stored else database.view_stream(name).ledgers()
            ledger = max(infos, key=lambda info: info.size_bytes, default=None)
            if ledger is not None and file.settings_of(name).offload.codec == "none":
                largest.append((sum(info.size_bytes for info in infos), name, ledger))
        for _, name, ledger in sorted(largest, key=lambda each: -each[0])[:SAMPLES_MAX]:
            sample = database.view_stream(name).read(Position(ledger.ledger_id, 0), SAMPLE_BYTES_MAX)
            block_bytes = file.settings_of(name).offload.block_size
            found = None if sample is None else saving_of([sample], block_bytes=block_bytes, clock=clock)
            if found is not None:
                yield _compression(name, found)


#: Timeout for the entries of one sampled topic.
SAMPLE_WAIT_S_MAX = 5.0


def check_compression_of_topics(store: ObjectStore, file: SettingsFile, clock: Clock) -> Iterator[CheckResult]:
    """Estimates the same for the largest Pulsar topics without offloaded entries, on their oldest entries.

    Topics that can't be read are skipped: ``check_pulsar`` reports their problems.
    """
    settings = file.settings_of("").pulsar
    settings = replace(settings, retry_delay_max=Duration(min(settings.retry_delay_max, 1.0)))
    with PulsarCluster(settings, clock=clock) as cluster:
        look, _ = survey(cluster.admin, TopicPatterns.of(settings.topics, settings.exclude))
        stored = set(list_streams(store))
        streams = {topic: stream_of_topic(topic) for each in look.topics.values() for topic in each}
        waiting = [topic for topic, stream in sorted(streams.items()) if stream not in stored]
        plain = [each for each in waiting if file.settings_of(streams[each]).offload.codec == "none"]
        largest: list[tuple[int, str]] = []
        for topic in plain[:COMPRESSION_STREAMS_MAX]:
            with suppress(OffloaderError):
                found = cluster.admin.internals(topic)
                closed_bytes = sum(each.size_bytes for each in found.ledgers.ledgers)
                largest.append((closed_bytes + found.open_size_bytes, topic))
        for _, topic in sorted(largest, key=lambda each: -each[0])[:SAMPLES_MAX]:
            with suppress(OffloaderError, FormatError):
                sample = first_entries(
                    cluster.client, topic, bytes_max=SAMPLE_BYTES_MAX, wait_s=SAMPLE_WAIT_S_MAX, clock=clock
                )
                block_bytes = file.settings_of(streams[topic]).offload.block_size
                saving = saving_of(sample, block_bytes=block_bytes, clock=clock)
                if saving is not None:
                    yield _compression(streams[topic], saving)


def _compression(stream: str, found: Saving) -> CheckResult:
    return replace(fine(f"compression of {stream}", str(found)), hint=found.advice)


#: Maximum number of manifests to load; further streams are only counted.
STREAMS_MAX = 200


def check_streams(store: ObjectStore, file: SettingsFile, clock: Clock, ledgers: str = "") -> Iterator[CheckResult]:
    """Checks the streams of the store and of the hot tier for causes that prevent their offload.

    Args:
        ledgers: the ledger database; default: ``serve.ledgers``.
    """
    stored, identity = list(list_streams(store)), read_identity(store)
    ledgers = ledgers or file.settings_of("").serve.ledgers
    with ExitStack() as stack:
        hot: dict[str, EmbeddedStream] = {}
        lost: dict[str, tuple[LostRange, OffloaderError]] = {}
        if ledgers:
            path = database_path(ledgers)
            try:
                database = stack.enter_context(closing(EmbeddedLedgers(ledgers, create=False)))
            except NotFoundError:  # no entry was appended yet, or it was lost
                losses = lost_with_database(path, stored)
            else:
                hot = {name: database.view_stream(name) for name in database.streams()[:STREAMS_MAX]}
                losses = database.losses(stored)
            lost = {each.stream: (each, refused(path, each)) for each in losses}
        yield from check_identity(identity, {name: source.noted_store() for name, source in hot.items()})
        # Damaged streams first: they are always reported.
        names = sorted({*stored, *hot, *lost}, key=lambda name: (name not in lost, name))
        troubles = 0
        for name in names[:STREAMS_MAX]:
            findings = _stream(store, name, hot.get(name), file.settings_of(name), clock, lost.get(name))
            for finding in run_checks([(f"stream {name}", findings)]):
                troubles += 1
                yield finding
        for name, error in unlisted_streams(store, list_streams(store, released=True)):
            troubles += 1
            yield problem(f"stream {name}", error)
    rest = f"; {len(names) - STREAMS_MAX} more weren't checked" if len(names) > STREAMS_MAX else ""
    if not troubles:
        yield fine("streams", f"{len(names)} streams, no problem prevents their offload{rest}")
    elif rest:
        yield warning("streams", f"{len(names)} streams{rest}", "`offloader status` shows their progress")


def check_identity(identity: UUID | None, noted: Mapping[str, UUID | None]) -> Iterator[CheckResult]:
    """Compares the store's identity with the one recorded by each hot tier; reports differences only."""
    whys = {name: why for name, each in sorted(noted.items()) if (why := other_identity(identity, each))}
    for name, why in list(whys.items())[:1]:
        more = f" and of {len(whys) - 1} more" if len(whys) > 1 else ""
        yield warning("store identity", f"{why} to the hot tier of {name}{more}", IDENTITY_HINT)


def _stream(
    store: ObjectStore,
    name: str,
    source: EmbeddedStream | None,
    settings: Settings,
    clock: Clock,
    lost: tuple[LostRange, OffloaderError] | None,
) -> Iterator[CheckResult]:
    check = f"stream {name}"
    try:
        state = load_of_source(store, name, source)
    except NotFoundError:  # deleted: the catalogue keeps its entry until the tombstone expires
        return
    if lost is not None and lost[0].is_after(state.committed_end()):
        yield problem(check, lost[1])
    # List the ledgers after reading the manifest, for the comparison.
    infos = [] if source is None else CheckedSource(source, lambda: state).ledgers()
    waiting = _entries_after(infos, state.committed_end())
    if state.paused:
        yield warning(check, f"paused{_waits(waiting)}", f"`offloader stream resume {name}` resumes it")
    elif settings.offload.method == "none" and (waiting or state.record_id):
        yield warning(check, f"its method is none{_waits(waiting)}", 'set offload.method = "streaming"')
    elif waiting:
        yield from _late(check, state, settings, clock.now_ms(), waiting)
    if state.held:
        yield warning(check, "on hold: nothing is deleted from it", f"`offloader cleanup hold {name} --off` ends it")


def _late(check: str, state: ManifestState, settings: Settings, now_ms: int, waiting: int) -> Iterator[CheckResult]:
    offload = settings.offload
    patience_s = offload.takeover_after + segment_age_s_max(offload)
    if not state.record_id:
        yield warning(check, f"never offloaded{_waits(waiting)}", _START)
        return
    silent_s = (now_ms - state.time_ms) / 1000
    if silent_s <= patience_s:
        return
    hint = (
        "the method ledger offloads closed ledgers only: the method streaming also offloads open ones"
        if offload.method == "ledger"
        else f"its last owner was {state.owner.name or 'unknown'}: {_START}"
    )
    yield warning(check, f"no manifest record for {silent_s:.0f} s{_waits(waiting)}", hint)


_START = "start `offloader serve` on the machine with its ledgers, and check its log"


def _entries_after(infos: list[LedgerInfo], end: Position | None) -> int:
    after = end or Position(-1, -1)
    same = sum(max(info.last_entry_id - after.entry_id, 0) for info in infos if info.ledger_id == after.ledger_id)
    return same + sum(info.entries for info in infos if info.ledger_id > after.ledger_id)


def _waits(count: int) -> str:
    return f", with a backlog of {count:,} entries" if count else ""
