"""The objects of a program that uses offloader: a store, and the streams in it.

A method imports the packages that it needs: opening a store takes milliseconds, without protobuf or pandas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from offloader.settings import LimitSettings, Settings, StoreSettings
from offloader.store.base import ObjectStore
from offloader.store.open import open_store as open_objects
from offloader.store.rate_limit import Limiter
from offloader.stored_stream import Stream
from offloader.telemetry.recorder import NO_TELEMETRY, Recorder

if TYPE_CHECKING:
    from offloader.adopt import Adoption
    from offloader.doctor import CheckResult
    from offloader.errors import OffloaderError
    from offloader.gc.orphans import Garbage
    from offloader.groups.group_service import ReaderGroups
    from offloader.inspect.inspect import Inspection
    from offloader.retention.scope import ReadableOf


def open_store(
    url: str,
    *,
    endpoint_url: str | None = None,
    region: str | None = None,
    access_key: str | None = None,
    secret_key: str | None = None,
    session_token: str | None = None,
    settings: StoreSettings | None = None,
    read_only: bool = False,
    create: bool = True,
    limits: Limiter | LimitSettings | None = None,
    recorder: Recorder = NO_TELEMETRY,
) -> Store:
    """Open the store at ``url``. Its requests are limited, measured and retried.

    Args:
        url: ``s3://bucket/root``, ``gs://bucket/root``, ``az://container/root``, ``file:///directory``,
            ``memory://name``, ``catalogue:///directory`` (objects of another offloader), or any URL that fsspec
            supports (for reading).
        endpoint_url: the S3 server when it isn't AWS; default: the environment (``AWS_ENDPOINT_URL``).
        region: default: the environment's, else ``us-east-1``.
        access_key, secret_key, session_token: default: the SDK's own chain (environment, profile, web identity, role).
        settings: deadlines, retries, connections.
        read_only: methods that write raise ``UnsupportedError``; nothing is created, not even a local directory.
        create: create a missing local directory, unless ``read_only``; buckets are never created.
        limits: of bandwidth and request rate; default: only the store's own throttling. A ``Limiter`` applies to all
            stores that share it.
        recorder: takes measurements of requests, for example ``offloader.telemetry.recorder.Metrics``.

    Raises:
        InvalidCallError: no URL, or one of an unknown scheme, or one that carries credentials or more than a location;
            settings of S3 for another store.
        BucketMissingError: opened for reading, or with ``create`` off, and the local directory does not exist.
        AccessDeniedError: the local directory can't be created or written.
        UnsupportedError: a package that the scheme needs is not installed.
    """
    objects = open_objects(
        url,
        endpoint_url=endpoint_url,
        region=region,
        access_key=access_key,
        secret_key=secret_key,
        session_token=session_token,
        settings=settings,
        read_only=read_only,
        create=create,
        limits=limits,
        recorder=recorder,
    )
    return Store(objects)


class Store:
    """A place with streams: a bucket or a directory. Thread-safe. Made by ``open_store``.

    Attributes:
        objects: the object store, for ``LedgerOffloader`` and for your own requests.
    """

    def __init__(self, objects: ObjectStore) -> None:
        self.objects = objects

    def __repr__(self) -> str:
        return f"Store({self.url!r})"

    @property
    def url(self) -> str:
        """Its URL, without secrets."""
        return self.objects.url

    def list_streams(self) -> list[str]:
        """The names of its streams, ascending."""
        from offloader.manifest.log import list_streams

        return list_streams(self.objects)

    def stream(self, name: str) -> Stream:
        """A stream or topic by name. Sends no request: the stream need not exist yet.

        Args:
            name: levels separated by ``/``, or a topic's name: ``persistent://tenant/ns/topic``. The name of a topic
                with partitions stands for all of them.

        Raises:
            InvalidCallError: an invalid name.
        """
        return Stream(self.objects, name)

    def reader_groups(self, *, source_of: ReadableOf | None = None) -> ReaderGroups:
        """The reader groups of the store, which must be open for writing.

        Args:
            source_of: the hot tier by a stream's name, for entries that are not offloaded yet.
        """
        from offloader.groups.group_service import open_reader_groups

        return open_reader_groups(self.objects, source_of=source_of)

    def check(
        self, settings: str | Path | None = None, *, ledgers: str = "", read_only: bool = False
    ) -> Iterator[CheckResult]:
        """Check the store, this machine, the brokers of the settings and the backlog of each stream.

        Args:
            settings: settings file of the serving process; default: the defaults.
            ledgers: a ledger database with streams of the store.
            read_only: write no scratch objects, which show whether the store allows every operation.
        """
        from offloader.service.checks import check_everything

        return check_everything(self.objects, settings, ledgers=ledgers, read_only=read_only)

    def inspect(self, key: str) -> Inspection:
        """Describe one object, piece by piece: a data object, an index, a record or a checkpoint.

        Args:
            key: relative to the store's root, or the UUID of a segment.

        Raises:
            NotFoundError: no such object.
            LimitReachedError: an index, record or checkpoint is too large.
        """
        from offloader.inspect.inspect import inspect_object

        return inspect_object(self.objects, key)

    def import_ledgers(
        self,
        *,
        streams: Sequence[str] = (),
        internal_stats: Mapping[str, str | Path] | None = None,
        admin_url: str = "",
        namespaces: Sequence[str] = (),
        cluster: str = "",
        take_ownership: bool = False,
        deep: bool = False,
        dry_run: bool = False,
        settings: Settings | None = None,
    ) -> Adoption:
        """Record ledgers that Pulsar offloaded to this store as streams, in place; call it again for new ledgers.

        Args:
            streams: only these names or patterns; default: all.
            internal_stats: topic -> file with the output of ``pulsar-admin topics stats-internal``.
            admin_url: get the topics' ledgers from this Pulsar; the token is in ``OFFLOADER_ADMIN_TOKEN``.
            namespaces: only these, of ``admin_url``; default: all.
            cluster: only ledgers of this Pulsar cluster.
            take_ownership: let retention delete the objects. Pulsar must not delete them.
            deep: read all entries, not only indexes and last entries.
            dry_run: only plan.
            settings: ``store.single_writer`` accepts a store without create-if-absent.

        Raises:
            InvalidCallError: a topic is given twice with different ledgers.
            NotFoundError: a file can't be read.
            UnsupportedError: the store lacks create-if-absent.
            StoreUnavailableError: the store or the broker can't be used; call it again.
        """
        from offloader.adopt import adopt
        from offloader.ledgers.pulsar.topic_lists import listed_topics, saved_topics
        from offloader.runtime.clock import SystemClock
        from offloader.store.probe import require_conditional_puts

        topics = [each for name, path in (internal_stats or {}).items() for each in saved_topics(path, name)]
        topics += listed_topics(admin_url, namespaces) if admin_url else []
        if not dry_run:
            require_conditional_puts(self.objects, single_writer=(settings or Settings()).store.single_writer)
        return adopt(
            self.objects,
            clock=SystemClock(),
            topics=topics,
            streams=streams,
            cluster=cluster,
            take_ownership=take_ownership,
            deep=deep,
            dry_run=dry_run,
        )

    def orphans(
        self,
        *,
        delete: bool = False,
        settings: Settings | None = None,
        on_error: Callable[[str, OffloaderError], None] | None = None,
    ) -> Iterator[Garbage]:
        """Objects and unfinished uploads that no manifest references. Iterate to the end.

        Args:
            delete: also delete those that are ours and older than ``manifest.orphan_age_min``; ``Garbage.outcome`` has
                the result. The store must be open for writing.
            settings: ``manifest`` has the ages.
            on_error: called with a stream's name and an error; the other streams follow. Default: the error is raised.

        Raises:
            ClockSkewError: the clocks differ too much to judge ages; nothing was deleted.
            StoreUnavailableError: the store can't be used; call it again.
        """
        from offloader.gc.reconcile import StoreReconciliation
        from offloader.runtime.clock import SystemClock
        from offloader.store.probe import require_conditional_puts

        def failed(_: str, error: OffloaderError) -> None:
            raise error

        chosen = settings or Settings()
        if delete:
            require_conditional_puts(self.objects, single_writer=chosen.store.single_writer)
        return StoreReconciliation(
            self.objects,
            clock=SystemClock(),
            settings_of=lambda _: chosen.manifest,
            failed=on_error or failed,
            delete=delete,
        ).leftovers()

    def hold(self, reason: str = "") -> bool:
        """Stop all deletion from the store until ``release_hold``; False: it already had a hold.

        Args:
            reason: recorded in the store.
        """
        from offloader.manifest.protection import global_hold, set_global_hold, user_at_host
        from offloader.runtime.clock import SystemClock

        if global_hold(self.objects) is not None:
            return False
        set_global_hold(
            self.objects, by=user_at_host(), reason=reason or "no reason given", now_ms=SystemClock().now_ms()
        )
        return True

    def release_hold(self) -> bool:
        """Allow deletion again; False: the store had no hold. Streams keep their own holds."""
        from offloader.manifest.protection import global_hold, lift_global_hold

        had_hold = global_hold(self.objects) is not None
        lift_global_hold(self.objects)
        return had_hold

    def close(self) -> None:
        """Close the connections."""
        self.objects.close()
