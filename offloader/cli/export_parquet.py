"""``offloader export parquet STREAM...``: writes ranges of streams as Parquet files."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated

import typer

from formats.pulsar.messages import BadEntry
from offloader.cli.errors import run_on_each
from offloader.cli.options import (
    AskedRange,
    DryRun,
    From,
    Json,
    Since,
    StoreArguments,
    To,
    Until,
    amount,
    name_argument,
    option,
)
from offloader.cli.output import EntryProgress, bytes_text, counted, print_result
from offloader.cli.spark import Content
from offloader.export.parquet import (
    FILE_BYTES_MAX,
    ROW_GROUP_BYTES_MAX,
    ParquetExport,
    ParquetOptions,
    export_parquet,
    open_target,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileArguments:
    """Options for the rows and the files."""

    content: Annotated[Content, typer.Option("--content", help="Content of a row.")] = "entries"
    column: Annotated[
        list[str] | None,
        option("--column", "Only this column, in the given order. May be repeated.", metavar="NAME", shown="all"),
    ] = None
    on_bad_message: Annotated[
        BadEntry,
        typer.Option(
            "--on-bad-message",
            help="With --content messages, for an entry that is not a message: fail, or add a row with the reason.",
        ),
    ] = BadEntry.ERROR
    file_size: Annotated[
        int,
        amount(
            "--file-size",
            "Maximum size of a file, which is built in memory.",
            "bytes",
            whole=True,
            low=1,
            shown="64MiB",
        ),
    ] = FILE_BYTES_MAX
    row_group_size: Annotated[
        int,
        amount(
            "--row-group-size",
            "Maximum size of a row group before compression.",
            "bytes",
            whole=True,
            low=1,
            shown="16MiB",
        ),
    ] = ROW_GROUP_BYTES_MAX

    def options(self, asked: AskedRange) -> ParquetOptions:
        """The options of an export of a range; raises ``InvalidCallError``."""
        return ParquetOptions(
            start=asked.first,
            stop=None if asked.last is None else asked.last.next(),
            since=asked.from_ms,
            until=asked.to_ms,
            content=self.content,
            columns=self.column or (),
            bad_messages=self.on_bad_message,
            file_bytes=self.file_size,
            row_group_bytes=min(self.row_group_size, self.file_size),
        )


def run(
    streams: Annotated[list[str], name_argument("The streams' names, or topics'.", metavar="STREAM")],
    given: StoreArguments,
    to: Annotated[
        str, option("--dest", "Directory or bucket of the files: file:///folder, s3://bucket/root.", metavar="URL")
    ],
    files: FileArguments,
    start: From = "",
    end: To = "",
    since: Since = "",
    until: Until = "",
    dry_run: DryRun = False,
    progress: Annotated[
        bool, typer.Option("--progress", help="Report each file on standard error, also without a terminal.")
    ] = False,
    json: Json = False,
) -> int:
    """Write a range of a stream as Parquet files; see docs/how-to/parquet.md.

    Each partition of a topic has a folder of files, named by their first and last position. The command creates whole
    files and replaces none: a range that overlaps an existing file is refused. After an interruption, continue with
    --from after the last file. A failure in one stream does not stop the others. To add new entries to a table again
    and again, use `offloader export iceberg`.

    Examples:
        offloader export parquet orders --dest file:///data/export --since -1d --dry-run
        offloader export parquet orders --dest s3://lake/orders --column publish_time --column payload
    """
    options = files.options(AskedRange.of(start, end, since, until))
    settings_of, opened = given.settings_of(), given.open()
    target = open_target(
        to,
        endpoint_url=given.endpoint_url or None,
        region=given.region or None,
        settings=given.settings(),
        dry_run=dry_run,
    )

    def one(name: str) -> None:
        shown: dict[str, EntryProgress] = {}

        def show(now: ParquetExport) -> None:
            if now.stream not in shown:
                shown[now.stream] = EntryProgress(sys.stderr, now.entries, always=progress)
            last = now.files[-1].last if now.files else None
            shown[now.stream].at(now.rows, sum(each.size_bytes for each in now.files), last)

        read = settings_of(name).read
        for done in export_parquet(opened, name, target, options, settings=read, dry_run=dry_run, on_progress=show):
            if done.stream in shown:
                shown[done.stream].close()
            _print(done, dry_run=dry_run, as_json=json)

    return run_on_each(streams, one, as_json=json)


def _print(done: ParquetExport, *, dry_run: bool, as_json: bool) -> None:
    size_bytes = sum(each.size_bytes for each in done.files)
    first, last = (done.files[0].first, done.files[-1].last) if done.files else (None, None)
    facts: dict[str, object] = {"stream": done.stream, "dry_run": dry_run, "entries": done.entries, "rows": done.rows}
    facts |= {"first": first, "last": last, "bytes": size_bytes, "files": [each.key for each in done.files]}
    text = "no entries in that range"
    if done.files:
        files = counted(len(done.files), "file")
        text = f"{counted(done.rows, 'row')}, {first}..{last}, in {files} of {bytes_text(size_bytes)}"
    elif done.entries:
        text = f"would export {counted(done.entries, 'entry', 'entries')}"
    print_result(facts, f"{done.stream}: {text}", as_json=as_json)
    sys.stdout.flush()
