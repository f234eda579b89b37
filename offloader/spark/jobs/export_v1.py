"""The job ``export`` with format v1: executors write ledgers of many streams for Pulsar's own offloader.

The driver checks everything before a session begins: the streams, the target, and a broker's record of each stream. It
splits a stream's recorded ledgers into tasks of about ``splitBytes``, at least one ledger each, because a ledger is one
object. A task writes them by the library's own function. A task that Spark runs again, or twice at the same time, is a
second export of its ledgers: it finds them in the bucket, or sends equal objects.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from offloader.errors import BucketMissingError, InvalidCallError, NotFoundError, OffloaderError
from offloader.ledgers.pulsar.topics import managed_ledger_of_stream
from offloader.read.ranges import grouped
from offloader.read.reader import load_stream
from offloader.settings import Pairs, Settings
from offloader.settings.layered import SettingsFile
from offloader.spark.jobs.verify import PLACE_OPTIONS, pinned_streams, require_known
from offloader.spark.options import SourceOptions
from offloader.spark.session import translated
from offloader.write.export_v1 import (
    NAMED_MAX,
    ExportedLedger,
    LedgerExport,
    RecordedLedger,
    error_of,
    recorded_ledgers,
    require_root,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedV1:
    """Result of a run for one stream.

    Attributes:
        record: file with the broker's record.
        ledgers: a result for each ledger that the record says is offloaded, in its order.
    """

    stream: str
    record: str
    ledgers: tuple[ExportedLedger, ...]

    @property
    def error(self) -> OffloaderError | None:
        """One error for all ledgers that aren't exported; ``None``: there are none."""
        found = error_of(self.ledgers)
        return None if found is None else type(found)(f"stream {self.stream}: {found.message}", hint=found.hint)


def export_v1(
    spark: SparkSession,
    streams: Sequence[str],
    options: Mapping[str, str],
    *,
    to: str,
    broker_record: str,
    config: SettingsFile | None = None,
    dry_run: bool = False,
) -> list[ExportedV1]:
    """Writes ledgers of streams as objects of Pulsar's own offloader; a repeated call resumes after an interruption.

    Args:
        spark: a classic session (not Spark Connect).
        streams: names or patterns.
        options: ``PLACE_OPTIONS`` of the data source; ``store`` is required. Endpoint, region and keys are those of
            ``to`` too.
        to: bucket of the broker's own offloader.
        broker_record: folder with a broker's record of each stream, at the path of its managed ledger
            (``tenant/namespace/persistent/topic``); for one stream also the file itself.
        config: settings, by stream.
        dry_run: only compare the records with the streams.

    Returns:
        One value per stream, ordered by name. A failed ledger doesn't affect the others.

    Raises:
        InvalidCallError: an option, the target, a file that isn't a record, one file for several streams.
        NotFoundError: no such stream or record.
        BucketMissingError: no such local target, in a dry run.
    """
    plan = plan_v1(streams, options, to=to, broker_record=broker_record, config=config, dry_run=dry_run)
    return run_v1(spark, plan)


@dataclass(frozen=True, slots=True, kw_only=True)
class V1Task:
    """Ledgers of a stream to be exported; small and picklable."""

    stream: str
    ledgers: tuple[RecordedLedger, ...]
    place: SourceOptions
    target: SourceOptions
    settings: Settings
    dry_run: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class V1Plan:
    """An export to run; ``records``: stream -> file with the broker's record."""

    records: Mapping[str, str]
    tasks: tuple[V1Task, ...]


def plan_v1(
    streams: Sequence[str],
    options: Mapping[str, str],
    *,
    to: str,
    broker_record: str,
    config: SettingsFile | None = None,
    dry_run: bool = False,
) -> V1Plan:
    """Checks and plans an export, without Spark. Creates a missing local target, except in a dry run.

    Arguments and errors are those of ``export_v1``.
    """
    require_known(streams, options, PLACE_OPTIONS, job="export")
    if not to:
        raise InvalidCallError("no target was given", hint="name the bucket of the broker's own offloader")
    target = SourceOptions.of({**{key: options[key] for key in options if key.lower() != "store"}, "store": to, **_ALL})
    settings_of = (lambda _: Settings()) if config is None else config.settings_of
    own = settings_of("")
    open_target = partial(target.open_store, settings=own.store, limits=own.limits)
    with suppress(BucketMissingError):  # a local folder is created when the records are known to be readable
        require_root(open_target(create=False))
    pinned = sorted(pinned_streams(streams, options), key=lambda each: each[0].stream)
    records = _files(broker_record, [state.stream for state, _ in pinned])
    recorded = {stream: recorded_ledgers(path) for stream, path in records.items()}
    open_target(read_only=dry_run, create=not dry_run)
    tasks = [
        V1Task(
            stream=state.stream,
            ledgers=tuple(ledgers),
            place=place,
            target=target,
            settings=_settings(settings_of(state.stream), place),
            dry_run=dry_run,
        )
        for state, place in pinned
        for ledgers in grouped(recorded[state.stream], lambda ledger: ledger.length, place.split_bytes)
    ]
    return V1Plan(records=records, tasks=tuple(tasks))


#: ``SourceOptions`` needs a stream.
_ALL = {"stream": "*"}


def _files(broker_record: str, streams: Sequence[str]) -> dict[str, str]:
    """The record's file of each stream."""
    if not Path(broker_record).is_dir():
        if len(streams) > 1:
            raise InvalidCallError(
                f"{broker_record} is one broker record at most, but {len(streams)} streams were named",
                hint="give a folder with the record of each stream at TENANT/NAMESPACE/persistent/TOPIC",
            )
        return dict.fromkeys(streams, broker_record)
    files = {stream: f"{broker_record.rstrip('/')}/{managed_ledger_of_stream(stream)}" for stream in streams}
    if missing := [path for path in files.values() if not Path(path).is_file()]:
        more = " ..." if len(missing) > NAMED_MAX else ""
        raise NotFoundError(
            f"the broker records of {len(missing)} of {len(files)} streams are missing: "
            f"{', '.join(missing[:NAMED_MAX])}{more}",
            hint="save the value of /managed-ledgers/TENANT/NAMESPACE/persistent/TOPIC to each file",
        )
    return files


def _settings(settings: Settings, place: SourceOptions) -> Settings:
    """The stream's settings, and the moved buckets of the option ``relocate``."""
    moved = Pairs({**dict(place.relocate), **dict(settings.read.relocate)})
    return replace(settings, read=replace(settings.read, relocate=moved))


def run_v1(spark: SparkSession, plan: V1Plan) -> list[ExportedV1]:
    """Carries out a plan: writes the ledgers that aren't in the bucket yet. One value per stream, ordered by name."""
    found: dict[str, list[ExportedLedger]] = {stream: [] for stream in plan.records}
    if plan.tasks:
        with translated("Spark's export", hint="run the export again: it keeps the ledgers that are in the bucket"):
            rows = spark.sparkContext.parallelize(plan.tasks, len(plan.tasks)).mapPartitions(_carry_out).collect()
        for stream, ledgers in rows:
            found[stream] += ledgers
    return [
        ExportedV1(stream=stream, record=record, ledgers=tuple(found[stream]))
        for stream, record in plan.records.items()
    ]


def _carry_out(tasks: Iterable[V1Task]) -> Iterator[tuple[str, list[ExportedLedger]]]:
    """Runs on an executor. An error is a result: if it were raised, Spark would repeat the task and hide it.

    An error that isn't about one ledger's content, such as of the store, ends the task.
    """
    for task in tasks:
        done: list[ExportedLedger] = []
        failed: OffloaderError | None = None
        try:
            export = _export_of(task)
            for ledger in task.ledgers:
                done += export.run([ledger], dry_run=task.dry_run)
        except OffloaderError as error:
            failed = error
        except Exception as error:
            failed = OffloaderError(f"on executor {socket.gethostname()}: {type(error).__name__}: {error}")
        done += [ExportedLedger(ledger, error=failed) for ledger in task.ledgers[len(done) :]]
        yield task.stream, done


def _export_of(task: V1Task) -> LedgerExport:
    settings = task.settings
    store = task.place.open_store(settings=settings.store, limits=settings.limits)
    target = task.target.open_store(read_only=task.dry_run, settings=settings.store, limits=settings.limits)
    return LedgerExport(store, load_stream(store, task.stream), target, settings=settings.offload, read=settings.read)
