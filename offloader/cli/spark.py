"""``offloader spark export | verify STREAM...``: the jobs of ``offloader.spark.jobs``, here or on a cluster.

Owns their options on the command line, and what is printed. Must never do a job's work.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from offloader.cli.options import EndpointUrl, Json, Region, Store
from offloader.cli.output import json_line
from offloader.cli.verify import print_finding, print_totals
from offloader.errors import ErrorKind, InvalidCall

if TYPE_CHECKING:
    from offloader.spark.jobs import Exported

__all__ = ["Action", "Content", "run"]


class Action(StrEnum):
    """Which job."""

    EXPORT = "export"
    VERIFY = "verify"


class Content(StrEnum):
    """What an exported row is."""

    ENTRIES = "entries"
    MESSAGES = "messages"


def run(
    action: Annotated[Action, typer.Argument(help="Which job.", show_default=False)],
    streams: Annotated[
        list[str],
        typer.Argument(help="The streams' names, or patterns with * and ?.", metavar="STREAM...", show_default=False),
    ],
    store: Store = "",
    endpoint_url: EndpointUrl = "",
    region: Region = "",
    to: Annotated[
        str, typer.Option("--to", metavar="FOLDER", help="export: where to, as Spark names it.", show_default=False)
    ] = "",
    content: Annotated[Content, typer.Option("--content", help="export: what a row is.")] = Content.ENTRIES,
    put_bad_aside: Annotated[
        bool, typer.Option("--put-bad-aside", help="export: messages that can't be read go to FOLDER/bad.")
    ] = False,
    skip_lost: Annotated[
        bool, typer.Option("--skip-lost", help="export: go on where retention took entries before they were exported.")
    ] = False,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option", metavar="NAME=VALUE", help="An option of the data source. May be repeated.", show_default=False
        ),
    ] = None,
    master: Annotated[
        str,
        typer.Option(
            "--master", metavar="URL", help="A cluster, as Spark spells it; without: this machine.", show_default=False
        ),
    ] = "",
    json: Json = False,
) -> int:
    """Run a job over many streams with Spark; docs/SPARK.md.

    export: Parquet by stream and date; run again it adds what is new. verify: every byte of the streams against their
    manifests; damage ends with exit code 6.
    """
    options = _options(store, endpoint_url, region, option or [])
    if action is Action.EXPORT and not to:
        raise InvalidCall("where to?", hint="give --to FOLDER, for example --to file://$PWD/export")
    if action is Action.VERIFY and (to or put_bad_aside or skip_lost or content is not Content.ENTRIES):
        raise InvalidCall(
            "--to, --content, --put-bad-aside and --skip-lost are for exporting", hint="`offloader spark export`"
        )
    # Heavy, and not needed for what is refused above.
    from offloader.spark.session import command_session

    with command_session(f"offloader spark {action.value}", master) as spark:
        if action is Action.VERIFY:
            return _verify(spark, streams, options, as_json=json)
        from offloader.spark.jobs import export

        done = export(
            spark, streams, options, to=to, content=content.value, put_bad_aside=put_bad_aside, skip_lost=skip_lost
        )
    for exported in done:
        _print_exported(exported, as_json=json)
    return 0


def _verify(spark: Any, streams: list[str], options: dict[str, str], *, as_json: bool) -> int:
    from offloader.spark.jobs import verify

    scrub = verify(spark, streams, options)
    for each in scrub.streams:
        for finding in each.findings:
            print_finding(finding, as_json=as_json)
        print_totals(each.stream, each.manifest, each.totals, deep=True, as_json=as_json)
    return ErrorKind.REPAIR_DATA.value if scrub.has_damage else 0


def _print_exported(exported: Exported, *, as_json: bool) -> None:
    rows, bad_rows = (sum(getattr(each, name) for each in exported.ranges) for name in ("rows", "bad_rows"))
    if as_json:
        facts = {"stream": exported.stream, "ranges": len(exported.ranges), "rows": rows, "bad_rows": bad_rows}
        print(json_line({**facts, "end": exported.end}))
        return
    bad = f", {bad_rows:,} put aside" if bad_rows else ""
    new = f"{rows:,} new rows{bad}, exported up to {exported.end}" if exported.ranges else "nothing new"
    print(f"{exported.stream}: {new}")


def _options(store: str, endpoint_url: str, region: str, given: list[str]) -> dict[str, str]:
    if not store:
        raise InvalidCall("no store was named", hint="give --store URL or set OFFLOADER_STORE")
    options = {"store": store}
    if endpoint_url:
        options["endpointUrl"] = endpoint_url
    if region:
        options["region"] = region
    for text in given:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise InvalidCall(f"--option {text!r} isn't NAME=VALUE", hint="for example --option leaseSeconds=86400")
        if name.lower() in ("secretkey", "sessiontoken", "accesskey"):
            raise InvalidCall(f"--option {name}: other users of this machine see it", hint="credentials: docs/SPARK.md")
        options[name] = value
    return options
