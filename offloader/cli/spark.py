"""``offloader spark``: jobs over many streams, on this machine or on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from formats.entries import Position
from offloader.cli.export_v1 import EXPORT_COLUMNS, export_row
from offloader.cli.ledgers import LedgerArguments
from offloader.cli.manifest import HEAD_FIRST
from offloader.cli.offload import stored_rows, stored_totals, totals_text
from offloader.cli.options import (
    NAME_A_STORE,
    DryRun,
    Json,
    TakeOver,
    name_argument,
    named_value,
    option,
    position_of,
)
from offloader.cli.output import Column, counted, json_line, print_result, print_rows
from offloader.cli.reading import print_finding, print_totals
from offloader.errors import ErrorKind, InvalidCallError
from offloader.manifest.names import stream_name
from offloader.settings import PulsarSettings
from offloader.settings.fields import Pairs
from offloader.settings.layered import SettingsFile
from offloader.spark.options import AvroValues, JsonValues, Values
from offloader.store.base import ObjectStore

if TYPE_CHECKING:
    from offloader.spark.jobs import Backfilled, Compacted, Exported, ExportedV1, Rebuilt, Scrub


def print_scrub(scrub: Scrub, *, as_json: bool) -> int:
    """Prints findings, and a line for each stream."""
    for each in scrub.streams:
        for finding in each.findings:
            print_finding(finding, as_json=as_json)
        print_totals(each.stream, each.manifest, each.totals, deep=True, as_json=as_json)
    return ErrorKind.DATA_CORRUPTION.value if scrub.has_damage else 0


def print_exported(done: Sequence[Exported], *, as_json: bool) -> int:
    """Prints a line for each stream."""
    for exported in done:
        rows, bad_rows = (sum(getattr(each, name) for each in exported.ranges) for name in ("rows", "bad_rows"))
        facts = {"stream": exported.stream, "ranges": len(exported.ranges), "rows": rows, "bad_rows": bad_rows}
        bad = f", {bad_rows:,} set aside" if bad_rows else ""
        new = f"{rows:,} new rows{bad}, exported up to {exported.end}" if exported.ranges else "no new rows"
        print_result({**facts, "end": exported.end}, f"{exported.stream}: {new}", as_json=as_json)
    return 0


def print_exported_v1(done: Sequence[ExportedV1], *, dry_run: bool, as_json: bool) -> int:
    """Prints a row for each ledger, and for each stream without one; then raises the first error, if any."""
    rows: list[Mapping[str, object]] = []
    for each in done:
        rows += [{"stream": each.stream, **export_row(ledger, dry_run=dry_run)} for ledger in each.ledgers]
        if not each.ledgers:
            why = f"the broker's record has no offloaded ledger: {each.record}"
            rows.append({"stream": each.stream, "ledger_id": None, "state": "nothing to export", "why": why})
    print_rows(rows, [Column("stream", "STREAM"), *EXPORT_COLUMNS], as_json=as_json)
    for each in done:
        if each.error is not None:
            raise each.error
    return 0


def print_backfilled(done: Sequence[Backfilled], store: ObjectStore, *, dry_run: bool, as_json: bool) -> int:
    """Prints a line for each stream; then raises the first error, if any."""
    for each in done:
        if as_json:
            print(json_line(_facts(each, store, dry_run=dry_run)))
        else:
            print(f"{each.stream}: {_sentence(each, store, dry_run=dry_run)}")
    for each in done:
        if each.error is not None:
            raise each.error
    return 0


def _facts(done: Backfilled, store: ObjectStore, *, dry_run: bool) -> dict[str, object]:
    facts: dict[str, object] = {"stream": done.stream, "dry_run": dry_run}
    if dry_run:
        facts["segments"] = [
            {"layout": f"V{int(each.layout)}", "first": each.begin, "last": each.end} for each in done.planned
        ]
    else:
        rows = stored_rows(store, done.stream, done.offloaded)
        facts |= {"offloaded": rows, **stored_totals(rows), "trimmed": [each.begin for each in done.trimmed]}
    error = None if done.error is None else str(done.error)
    return {**facts, "committed": done.committed, "skipped": done.skipped, "error": error}


def _sentence(done: Backfilled, store: ObjectStore, *, dry_run: bool) -> str:
    committed = f"committed end {done.committed or 'none'}"
    if dry_run and done.error is None and not done.skipped:
        ends = f", {done.planned[0].begin} to {done.planned[-1].end}" if done.planned else ""
        return f"about {len(done.planned)} segments to be offloaded{ends}; {committed}"
    parts = []
    if done.offloaded:
        parts.append(totals_text(stored_totals(stored_rows(store, done.stream, done.offloaded)), store))
    parts += [f"ledger {each.begin.ledger_id} was trimmed from the hot tier during the run" for each in done.trimmed]
    if done.error is not None:
        parts.append(f"not completely offloaded: {done.error.message}")
    if done.skipped:
        parts.append(f"skipped: {done.skipped}")
    return "; ".join([*(parts or ["nothing to offload"]), committed])


def print_compacted(done: Sequence[Compacted], store: ObjectStore, *, dry_run: bool, as_json: bool) -> int:
    """Prints a line for each stream; then raises the first error, if any."""
    for each in done:
        rows = stored_rows(store, each.stream, each.merged)
        totals = stored_totals(rows)
        facts = {
            "stream": each.stream,
            "dry_run": dry_run,
            "planned": [{"first": first, "last": last} for first, last in each.planned],
            "merged": rows,
            **totals,
            "replaced": each.replaced,
            "replaced_bytes": each.replaced_bytes,
            "adopted": list(map(str, each.adopted)),
            "error": None if each.error is None else str(each.error),
        }
        parts = [f"{counted(len(each.planned), 'merge', 'merges')} planned"] if dry_run and each.planned else []
        if each.merged:
            parts.append(f"{counted(each.replaced, 'segment', 'segments')} became {len(each.merged)}")
            parts.append(totals_text(totals, store))
        parts += [f"not completely compacted: {each.error.message}"] if each.error is not None else []
        parts += [f"adopted, not merged: {', '.join(map(str, each.adopted))}"] if each.adopted else []
        print_result(facts, f"{each.stream}: {'; '.join(parts) or 'nothing to merge'}", as_json=as_json)
    for each in done:
        if each.error is not None:
            raise each.error
    return 0


def print_rebuilt(done: Sequence[Rebuilt], *, dry_run: bool, as_json: bool) -> int:
    """Prints a line for each stream; then raises the first error, if any. Missing entries end with exit code 6."""
    for each in done:
        facts = {
            "stream": each.stream,
            "dry_run": dry_run,
            "segments": each.segments,
            "entries": each.entries,
            "missing": [{"first": first, "last": last} for first, last in each.missing],
            "problems": [{"key": key, "reason": reason} for key, reason in each.problems],
            "error": None if each.error is None else str(each.error),
        }
        text = f"{counted(each.segments, 'segment', 'segments')}, {each.entries:,} entries"
        if each.missing:
            text += f"; missing: {', '.join(f'{first}..{last}' for first, last in each.missing)}"
        if each.problems:
            text += f"; {counted(len(each.problems), 'object is', 'objects are')} left out"
        if each.error is not None:
            text = f"not rebuilt: {each.error.message}"
        print_result(facts, f"{each.stream}: {text}", as_json=as_json)
    for each in done:
        if each.error is not None:
            raise each.error
    return ErrorKind.DATA_CORRUPTION.value if any(each.missing for each in done) else 0


#: Kind of an exported row.
Content = Literal["entries", "messages"]
#: Kind of an exported file.
Format = Literal["parquet", "v1"]

Streams = Annotated[list[str], name_argument("The streams' names, or patterns with * and ?.", metavar="STREAM")]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobArguments(LedgerArguments):
    """Options of all jobs."""

    more: Annotated[
        list[str] | None, option("--option", "An option of the data source. May be repeated.", metavar="NAME=VALUE")
    ] = None
    master: Annotated[
        str, option("--master", "Cluster, as a Spark master URL. Default: this machine.", metavar="URL")
    ] = ""

    def run(self, name: str, job: Callable[[Any, Any], Any], *, is_short: bool = True) -> Any:
        """Runs a job with the module of jobs and a session. Imports Spark here because it is slow to load."""
        from offloader.spark import jobs
        from offloader.spark.session import command_session

        with command_session(f"offloader spark {name}", self.master, is_short=is_short) as spark:
            return job(jobs, spark)

    def options(self, streams: Sequence[str]) -> dict[str, str]:
        """Options of the data source for the streams to read."""
        place = self.place()
        if not place.url:
            raise InvalidCallError("no store was given", hint=NAME_A_STORE)
        named = {"store": place.url, "endpointUrl": place.endpoint_url, "region": place.region}
        options = {name: value for name, value in named.items() if value}
        if moved := _moved(self, streams):
            options["relocate"] = ", ".join(f"{old}={new}" for old, new in moved)
        for text in self.more or []:
            name, value = named_value(text, option="--option", hint="for example --option leaseSeconds=86400")
            if name.lower() in ("secretkey", "sessiontoken", "accesskey"):
                raise InvalidCallError(
                    f"--option {name}: other users of this machine can see it",
                    hint="for credentials see docs/how-to/spark-credentials.md",
                )
            options[name] = value
        return options

    def require_hot_tier(self) -> str | PulsarSettings:
        """The ledger database of the options, or the hot tier of the settings file.

        Raises:
            InvalidCallError: none was given, or the settings file has a ledger database and a Pulsar cluster.
        """
        pulsar, url = self.settings().pulsar, self.ledgers_url()
        if self.ledgers or not pulsar.service_url:
            return self.require_ledgers()
        if url:
            raise InvalidCallError(
                f"the settings file {self.config} has a ledger database and a Pulsar cluster",
                hint=f"give --ledgers {url}, or a settings file with only pulsar.service_url",
            )
        return pulsar

    def settings_file(self) -> SettingsFile | None:
        """The settings file; None: none was given."""
        return self.file() if self.config else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueArguments:
    """Options for the values of exported messages."""

    json_values: Annotated[
        str, option("--json-values", "Values are JSON with these fields: 'id BIGINT, name STRING'.", metavar="FIELDS")
    ] = ""
    avro_values: Annotated[
        str, option("--avro-values", "Values are Avro of the schema in this file.", metavar="FILE")
    ] = ""
    avro_version: Annotated[
        list[str] | None,
        option(
            "--avro-version",
            "The schema that values of schema version N were written with. May be repeated.",
            metavar="N=FILE",
        ),
    ] = None

    def values(self) -> Values | None:
        """Type of the messages' values; None: bytes."""
        if self.json_values and self.avro_values:
            raise InvalidCallError("--json-values and --avro-values exclude each other", hint="give one of them")
        if self.avro_version and not self.avro_values:
            raise InvalidCallError(
                "--avro-version requires --avro-values", hint="give --avro-values FILE, which defines the columns"
            )
        if self.json_values:
            return JsonValues(self.json_values)
        if not self.avro_values:
            return None
        versions = []
        for text in self.avro_version or []:
            number, sign, name = text.partition("=")
            if not sign or not number.isdecimal():
                raise InvalidCallError(
                    f"--avro-version {text!r} isn't N=FILE", hint="for example --avro-version 0=first.avsc"
                )
            versions.append((int(number), _text_of(name)))
        return AvroValues(_text_of(self.avro_values), tuple(versions))


def backfill(
    streams: Streams,
    given: JobArguments,
    take_over: TakeOver = False,
    segments_at_once: Annotated[
        int | None,
        option("--segments-at-once", "Number of parallel tasks.", metavar="N", shown="the cluster's parallelism"),
    ] = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> int:
    """Offload entries that only a ledger database or a Pulsar has, with Spark; see docs/how-to/spark-backfill.md.

    Topics of the cluster in the section [pulsar] of --config are selected as by pulsar.topics. The job acknowledges
    nothing to the broker.

    Examples:
        offloader spark backfill 'public/default/*' --ledgers sqlite:///ledgers.db --dry-run
        offloader spark backfill 'persistent://public/default/*' --config offloader.toml
    """
    options, ledgers, opened = given.options(()), given.require_hot_tier(), given.open()
    how: dict[str, Any] = {
        "take_over": take_over,
        "segments_at_once": segments_at_once,
        "dry_run": dry_run,
        "ledgers": ledgers,
    }
    how["config"] = given.settings_file()
    done = given.run("backfill", lambda jobs, spark: jobs.backfill(spark, streams, options, **how))
    return print_backfilled(done, opened, dry_run=dry_run, as_json=json)


def compact(
    streams: Streams,
    given: JobArguments,
    recode: Annotated[
        bool, typer.Option("--recode", help="Also rewrite segments with another compression than the codec's.")
    ] = False,
    beside_owner: Annotated[
        bool, typer.Option("--beside-owner", help="Also compact streams whose owner is active.")
    ] = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> int:
    """Merge small neighbouring segments of many streams with Spark; see docs/how-to/spark-compact.md.

    Examples:
        offloader spark compact 'public/default/*' --dry-run
    """
    options, opened = given.options(streams), given.open()
    how = {"recode": recode, "beside_owner": beside_owner, "dry_run": dry_run, "config": given.settings_file()}
    done = given.run("compact", lambda jobs, spark: jobs.compact(spark, streams, options, **how))
    return print_compacted(done, opened, dry_run=dry_run, as_json=json)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetArguments(ValueArguments):
    """Options of an export as Parquet."""

    content: Annotated[Content, typer.Option("--content", help="Content of a row.")] = "entries"
    dead_letter: Annotated[bool, typer.Option("--dead-letter", help="Write unreadable messages to FOLDER/bad.")] = False
    skip_lost: Annotated[
        bool, typer.Option("--skip-lost", help="Skip entries that retention deleted before they were exported.")
    ] = False


def export(
    streams: Streams,
    given: JobArguments,
    parquet: ParquetArguments,
    to: Annotated[
        str,
        option(
            "--dest",
            "Target folder, as a Spark path; with --format v1 the bucket of the broker's own offloader.",
            metavar="FOLDER",
        ),
    ],
    form: Annotated[Format, typer.Option("--format", help="Format of the files.")] = "parquet",
    broker_record: Annotated[
        str,
        option(
            "--broker-record",
            "With --format v1: folder with the broker's metadata record of each stream, or of each partition. The file "
            "TENANT/NAMESPACE/persistent/TOPIC in it is the value of "
            "/managed-ledgers/TENANT/NAMESPACE/persistent/TOPIC. For a single stream also that file.",
            metavar="FOLDER",
        ),
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --format v1: print the planned changes; change nothing.")
    ] = False,
    json: Json = False,
) -> int:
    """Write streams as Parquet by stream and date with Spark; see docs/how-to/spark-export.md.

    A repeated export adds new entries. An Iceberg table needs no Spark: `offloader export iceberg`.

    With --format v1, write the ledgers of many topics for brokers with Pulsar's own offloader, as `offloader export v1`
    does for one: see docs/how-to/back-to-pulsar.md.

    Examples:
        offloader spark export orders --dest file:///data/export
        offloader spark export orders --dest s3a://lake/orders --content messages --master spark://host:7077
        offloader spark export 'shop/*' --format v1 --dest s3://broker-bucket --broker-record records --dry-run
    """
    options = given.options(streams)
    values = parquet.values()
    how = {name: getattr(parquet, name) for name in ("content", "dead_letter", "skip_lost")}
    if form == "v1":
        wrong = {"--content": how["content"] != "entries", "--dead-letter": how["dead_letter"]}
        wrong |= {"--skip-lost": how["skip_lost"], "--json-values and --avro-values": values}
        _refuse(form, wrong)
        return _export_v1(streams, given, options, to, broker_record, dry_run=dry_run, as_json=json)
    _refuse(form, {"--broker-record": broker_record, "--dry-run": dry_run})
    # Spark itself writes the files; the other jobs work in Python.
    done = given.run(
        "export", lambda jobs, spark: jobs.export(spark, streams, options, to=to, values=values, **how), is_short=False
    )
    return print_exported(done, as_json=json)


def _refuse(form: str, given: Mapping[str, object]) -> None:
    """Raises ``InvalidCallError`` for options that a format doesn't have, if they were given."""
    for name, value in given.items():
        if value:
            raise InvalidCallError(f"--format {form} doesn't accept {name}", hint=f"omit {name}, or use another format")


def _export_v1(
    streams: Sequence[str],
    given: JobArguments,
    options: Mapping[str, str],
    to: str,
    broker_record: str,
    *,
    dry_run: bool,
    as_json: bool,
) -> int:
    from offloader.spark.jobs.export_v1 import plan_v1, run_v1

    if not broker_record:
        raise InvalidCallError(
            "--format v1 requires --broker-record",
            hint="save the brokers' records first: docs/how-to/back-to-pulsar.md",
        )
    config = given.settings_file()
    plan = plan_v1(streams, options, to=to, broker_record=broker_record, config=config, dry_run=dry_run)
    done = given.run("export", lambda _, spark: run_v1(spark, plan))
    return print_exported_v1(done, dry_run=dry_run, as_json=as_json)


def rebuild(
    streams: Streams,
    given: JobArguments,
    head: Annotated[
        list[str] | None,
        option(
            "--head",
            "Start position of a stream, which no object records; 'first' = the first entry found. Without STREAM=, of "
            "all other streams. May be repeated.",
            metavar="[STREAM=]LEDGER:ENTRY|first",
        ),
    ] = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> int:
    """Rebuild manifests that can't be read from the streams' objects with Spark; see docs/how-to/spark-rebuild.md.

    Examples:
        offloader spark rebuild orders --head first --dry-run
    """
    options, hot_url = given.options(streams), given.ledgers_url() if given.has_ledgers() else ""
    how = {"heads": _heads(head or []), "ledgers": hot_url, "dry_run": dry_run, "config": given.settings_file()}
    done = given.run("rebuild", lambda jobs, spark: jobs.rebuild(spark, streams, options, **how))
    return print_rebuilt(done, dry_run=dry_run, as_json=json)


def verify(streams: Streams, given: JobArguments, json: Json = False) -> int:
    """Check every byte of streams against their manifests with Spark; see docs/how-to/spark-verify.md.

    Damage ends with exit code 6.

    Examples:
        offloader spark verify 'public/default/*'
    """
    options = given.options(streams)
    scrub = given.run("verify", lambda jobs, spark: jobs.verify(spark, streams, options))
    return print_scrub(scrub, as_json=json)


def _heads(given: Sequence[str]) -> dict[str, Position | None]:
    """Stream -> its head; ``*`` stands for all others."""
    found: dict[str, Position | None] = {}
    for text in given:
        name, _, position = text.rpartition("=")
        found[stream_name(name) if name else "*"] = (
            None if position == HEAD_FIRST else position_of(position, option="--head")
        )
    return found


def _text_of(name: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidCallError(
            f"{name} can't be read: {error}", hint="give a file with an Avro schema as JSON"
        ) from error


def _moved(given: LedgerArguments, streams: Sequence[str]) -> Pairs:
    """``read.relocate`` of the settings file for the streams to read; for a pattern, the process's value."""
    settings_of = given.settings_of()
    names = {"" if {"*", "?"} & set(name) else stream_name(name) for name in streams}
    return Pairs(pair for name in sorted(names) for pair in settings_of(name).read.relocate)
