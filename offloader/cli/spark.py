"""``offloader spark backfill | export | verify STREAM...``: runs a Spark job locally or on a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from offloader.cli.options import DryRun, Json, LedgerArguments, TakeOver
from offloader.cli.output import json_line
from offloader.cli.segments import stored_rows, stored_totals, totals_text
from offloader.cli.verify import print_finding, print_totals
from offloader.errors import ErrorKind, InvalidCall
from offloader.spark.schema import AvroValues, JsonValues, Values
from offloader.store.base import ObjectStore

if TYPE_CHECKING:
    from offloader.spark.jobs import Backfilled, Exported, Scrub

__all__ = ["Action", "Content", "print_backfilled", "print_exported", "print_scrub", "run"]


def print_scrub(scrub: Scrub, *, as_json: bool) -> int:
    """Findings, and a line for each stream."""
    for each in scrub.streams:
        for finding in each.findings:
            print_finding(finding, as_json=as_json)
        print_totals(each.stream, each.manifest, each.totals, deep=True, as_json=as_json)
    return ErrorKind.REPAIR_DATA.value if scrub.has_damage else 0


def print_exported(done: Sequence[Exported], *, as_json: bool) -> int:
    """A line for each stream."""
    for exported in done:
        rows, bad_rows = (sum(getattr(each, name) for each in exported.ranges) for name in ("rows", "bad_rows"))
        if as_json:
            facts = {"stream": exported.stream, "ranges": len(exported.ranges), "rows": rows, "bad_rows": bad_rows}
            print(json_line({**facts, "end": exported.end}))
            continue
        bad = f", {bad_rows:,} put aside" if bad_rows else ""
        new = f"{rows:,} new rows{bad}, exported up to {exported.end}" if exported.ranges else "nothing new"
        print(f"{exported.stream}: {new}")
    return 0


def print_backfilled(done: Sequence[Backfilled], store: ObjectStore, *, dry_run: bool, as_json: bool) -> int:
    """A line for each stream; then raises the first error, if any."""
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
        planned = [{"layout": f"V{int(each.layout)}", "first": each.begin, "last": each.end} for each in done.planned]
        facts["segments"] = planned
    else:
        rows = stored_rows(store, done.stream, done.offloaded)
        facts |= {"offloaded": rows, **stored_totals(rows), "trimmed": [each.begin for each in done.trimmed]}
    error = None if done.error is None else str(done.error)
    return {**facts, "committed": done.committed, "skipped": done.skipped, "error": error}


def _sentence(done: Backfilled, store: ObjectStore, *, dry_run: bool) -> str:
    committed = f"committed is {done.committed or 'nothing'}"
    if dry_run and done.error is None and not done.skipped:
        ends = f", {done.planned[0].begin} to {done.planned[-1].end}" if done.planned else ""
        return f"about {len(done.planned)} segments to be offloaded{ends}; {committed}"
    parts = []
    if done.offloaded:
        parts.append(totals_text(stored_totals(stored_rows(store, done.stream, done.offloaded)), store))
    parts += [f"ledger {each.begin.ledger_id} left the hot tier meanwhile" for each in done.trimmed]
    if done.error is not None:
        parts.append(f"not offloaded whole: {done.error.message}")
    if done.skipped:
        parts.append(f"left alone: {done.skipped}")
    return "; ".join([*(parts or ["nothing to offload"]), committed])


class Action(StrEnum):
    """The job."""

    BACKFILL = "backfill"
    EXPORT = "export"
    VERIFY = "verify"


class Content(StrEnum):
    """Kind of an exported row."""

    ENTRIES = "entries"
    MESSAGES = "messages"


_Streams = Annotated[
    list[str],
    typer.Argument(help="The streams' names, or patterns with * and ?.", metavar="STREAM...", show_default=False),
]
_To = Annotated[
    str, typer.Option("--to", metavar="FOLDER", help="export: where to, as Spark names it.", show_default=False)
]
_PutBadAside = Annotated[
    bool, typer.Option("--put-bad-aside", help="export: messages that can't be read go to FOLDER/bad.")
]
_SkipLost = Annotated[
    bool, typer.Option("--skip-lost", help="export: go on where retention took entries before they were exported.")
]
_JsonValues = Annotated[
    str,
    typer.Option(
        "--json-values",
        metavar="FIELDS",
        help="export: values are JSON with these fields: 'id BIGINT, name STRING'.",
        show_default=False,
    ),
]
_AvroValues = Annotated[
    str,
    typer.Option(
        "--avro-values", metavar="FILE", help="export: values are Avro of the schema in this file.", show_default=False
    ),
]
_AvroVersion = Annotated[
    list[str] | None,
    typer.Option(
        "--avro-version",
        metavar="N=FILE",
        help="export: the schema that values of schema version N were written with. May be repeated.",
        show_default=False,
    ),
]
_SegmentsAtOnce = Annotated[
    int | None,
    typer.Option(
        "--segments-at-once", metavar="N", help="backfill: tasks at once.", show_default="what the cluster runs"
    ),
]
_Option = Annotated[
    list[str] | None,
    typer.Option(
        "--option", metavar="NAME=VALUE", help="An option of the data source. May be repeated.", show_default=False
    ),
]
_Master = Annotated[
    str,
    typer.Option(
        "--master", metavar="URL", help="A cluster, as Spark spells it; without: this machine.", show_default=False
    ),
]


def run(
    action: Annotated[Action, typer.Argument(help="Which job.", show_default=False)],
    streams: _Streams,
    given: LedgerArguments,
    take_over: TakeOver = False,
    dry_run: DryRun = False,
    segments_at_once: _SegmentsAtOnce = None,
    to: _To = "",
    content: Annotated[Content, typer.Option("--content", help="export: what a row is.")] = Content.ENTRIES,
    json_values: _JsonValues = "",
    avro_values: _AvroValues = "",
    avro_version: _AvroVersion = None,
    put_bad_aside: _PutBadAside = False,
    skip_lost: _SkipLost = False,
    option: _Option = None,
    master: _Master = "",
    json: Json = False,
) -> int:
    """Run a job over many streams with Spark; docs/SPARK.md.

    backfill: what a ledger database holds of the streams and the store doesn't. export: Parquet by stream and date; run
    again it adds what is new. verify: every byte of the streams against their manifests; damage ends with exit code 6.
    """
    options = _options(given, option or [])
    exporting = {
        "to": to,
        "content": content.value,
        "put_bad_aside": put_bad_aside,
        "skip_lost": skip_lost,
    }
    backfilling = {"take_over": take_over, "dry_run": dry_run, "segments_at_once": segments_at_once}
    decoding = {"json_values": json_values, "avro_values": avro_values, "avro_version": avro_version}
    if action is not Action.EXPORT and (to or put_bad_aside or skip_lost or content is not Content.ENTRIES):
        raise _not_for(exporting, "exporting", "export")
    if action is not Action.EXPORT and any(decoding.values()):
        raise _not_for(decoding, "exporting", "export")
    if action is not Action.BACKFILL and (take_over or dry_run or segments_at_once is not None):
        raise _not_for(backfilling, "backfills", "backfill")
    match action:
        case Action.EXPORT:
            if not to:
                raise InvalidCall("where to?", hint="give --to FOLDER, for example --to file://$PWD/export")
            exported = {**exporting, "values": _values(json_values, avro_values, avro_version or [])}
            return _export(master, streams, options, exported, as_json=json)
        case Action.VERIFY:
            return _verify(master, streams, options, as_json=json)
        case Action.BACKFILL:
            given.require_ledgers()
            file = given.file() if given.config else None
            given_hot = {**backfilling, "ledgers": given.ledgers, "config": file}
            opened = given.open()
            return _backfill(master, streams, options, given_hot, opened, as_json=json)


def _values(json_values: str, avro_values: str, avro_version: list[str]) -> Values | None:
    """Type of the messages' values, ``None``: bytes."""
    if json_values and avro_values:
        raise InvalidCall("values are JSON or Avro", hint="give --json-values or --avro-values")
    if avro_version and not avro_values:
        raise InvalidCall("--avro-version is for Avro", hint="--avro-values FILE says which columns there are")
    if json_values:
        return JsonValues(json_values)
    if not avro_values:
        return None
    versions = []
    for text in avro_version:
        number, sign, name = text.partition("=")
        if not sign or not number.isdecimal():
            raise InvalidCall(f"--avro-version {text!r} isn't N=FILE", hint="for example --avro-version 0=first.avsc")
        versions.append((int(number), _text_of(name)))
    return AvroValues(_text_of(avro_values), tuple(versions))


def _text_of(name: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidCall(f"{name} can't be read: {error}", hint="a file with an Avro schema as JSON") from error


def _not_for(names: Iterable[str], what: str, action: str) -> InvalidCall:
    options = [f"--{name.replace('_', '-')}" for name in names]
    return InvalidCall(
        f"{', '.join(options[:-1])} and {options[-1]} are for {what}", hint=f"`offloader spark {action}`"
    )


# Imported late: Spark is slow to load.


def _backfill(
    master: str,
    streams: list[str],
    options: dict[str, str],
    given: dict[str, Any],
    store: ObjectStore,
    *,
    as_json: bool,
) -> int:
    from offloader.spark.jobs import backfill
    from offloader.spark.session import command_session

    with command_session("offloader spark backfill", master) as spark:
        done = backfill(spark, streams, options, **given)
    return print_backfilled(done, store, dry_run=given["dry_run"], as_json=as_json)


def _export(master: str, streams: list[str], options: dict[str, str], given: dict[str, Any], *, as_json: bool) -> int:
    from offloader.spark.jobs import export
    from offloader.spark.session import command_session

    with command_session("offloader spark export", master) as spark:
        done = export(spark, streams, options, **given)
    return print_exported(done, as_json=as_json)


def _verify(master: str, streams: list[str], options: dict[str, str], *, as_json: bool) -> int:
    from offloader.spark.jobs import verify
    from offloader.spark.session import command_session

    with command_session("offloader spark verify", master) as spark:
        return print_scrub(verify(spark, streams, options), as_json=as_json)


def _options(given: LedgerArguments, more: list[str]) -> dict[str, str]:
    if not given.store:
        raise InvalidCall("no store was named", hint="give --store URL or set OFFLOADER_STORE")
    options = {"store": given.store}
    if given.endpoint_url:
        options["endpointUrl"] = given.endpoint_url
    if given.region:
        options["region"] = given.region
    for text in more:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise InvalidCall(f"--option {text!r} isn't NAME=VALUE", hint="for example --option leaseSeconds=86400")
        if name.lower() in ("secretkey", "sessiontoken", "accesskey"):
            raise InvalidCall(f"--option {name}: other users of this machine see it", hint="credentials: docs/SPARK.md")
        options[name] = value
    return options
