"""``offloader export v1``: write ledgers for a broker with Pulsar's own offloader."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Annotated

from offloader.cli.errors import run_on_each
from offloader.cli.options import (
    DryRun,
    Json,
    ShowProgress,
    StoreArguments,
    StreamOrTopic,
    number_of,
    open_chosen_store,
    option,
)
from offloader.cli.output import (
    Column,
    SegmentProgress,
    bytes_text,
    print_rows,
)
from offloader.errors import BucketMissingError
from offloader.export.v1 import plan_export
from offloader.manifest.names import NamedStreams, named_streams
from offloader.write.export_v1 import ExportedLedger, error_of

#: Of ``export_row``.
EXPORT_COLUMNS = [
    Column("ledger_id", "LEDGER", str, right=True),
    Column("entries", "ENTRIES", right=True),
    Column("payload_bytes", "PAYLOAD", bytes_text, right=True, less=1),
    Column("state", "STATE"),
    Column("data", "OBJECT", less=2),
    Column("why", "WHY", wraps=True),
]


def run(
    stream: StreamOrTopic,
    given: StoreArguments,
    to: Annotated[str, option("--dest", "Bucket of the broker's own offloader.", metavar="URL")],
    broker_record: Annotated[
        list[str],
        option(
            "--broker-record",
            "File with the broker's metadata record of the topic: the value of "
            "/managed-ledgers/TENANT/NAMESPACE/persistent/TOPIC. For a partitioned topic "
            "once for each partition, by its number.",
            metavar="[PARTITION=]FILE",
        ),
    ],
    dry_run: DryRun = False,
    progress: ShowProgress = False,
    json: Json = False,
) -> int:
    """Write a stream's ledgers for a broker with Pulsar's own offloader.

    Use it when a broker that offloaded through the plugin returns to Pulsar's own offloader. Each ledger that is
    offloaded according to the broker's record becomes a V1 object with its index, under the record's uuid, at the root
    of the bucket. The objects include entries that only brokers read (markers, aborted messages). Each object is read
    back and compared; existing objects are kept. The stream isn't changed. If interrupted, repeat the command: it
    resumes where it stopped.

    Examples:
        offloader export v1 orders --dest s3://broker-bucket --broker-record orders.record --dry-run
    """
    settings, opened = given.prepared(stream)
    open_target = partial(
        open_chosen_store,
        *(to, given.endpoint_url, given.region),
        settings=settings.store,
        limits=settings.limits,
    )
    with suppress(BucketMissingError):
        open_target().close()  # a wrong URL is reported before a wrong record
    plan = plan_export(opened, stream, _records(named_streams(opened, stream), broker_record))
    target = open_target(read_only=dry_run, create=not dry_run)

    def one(each: str) -> None:
        own = given.settings(each)
        with SegmentProgress(sys.stderr, always=progress, what="ledgers") as shown:
            shown.expect(len(plan.recorded[each]))
            done = plan.run(each, target, settings=own, dry_run=dry_run, on_progress=shown.segment)
        of, columns = _of_partition(plan.named, each)
        rows = [{**of, **export_row(ledger, dry_run=dry_run)} for ledger in done]
        print_rows(
            *(rows, [*columns, *EXPORT_COLUMNS]),
            as_json=json,
            empty=f"the broker's record has no offloaded ledger: {plan.paths[each]}",
        )
        error = error_of(done)
        if error is not None:
            raise error

    return run_on_each(plan.named.streams, one, as_json=json)


def _records(named: NamedStreams, given: Sequence[str]) -> list[tuple[int | None, str]]:
    """The partition and the file of each option; a stream without partitions has only the file."""
    found: list[tuple[int | None, str]] = []
    for text in given:
        digits, _, path = text.partition("=")
        number = number_of(digits) if named.partitions else None
        found.append((None, text) if number is None else (number, path))
    return found


def export_row(done: ExportedLedger, *, dry_run: bool) -> Mapping[str, object]:
    """The result of one ledger, for a table and as JSON."""
    return {
        "ledger_id": done.ledger.ledger_id,
        "uuid": str(done.ledger.uuid),
        "entries": done.ledger.entries,
        "payload_bytes": done.payload_bytes,
        "state": _export_state(done, dry_run=dry_run),
        "data": done.ledger.objects().data_key,
        "index": done.ledger.objects().index_key,
        "why": "" if done.error is None else done.error.message,
    }


def _export_state(done: ExportedLedger, *, dry_run: bool) -> str:
    if done.error is not None:
        return "left"
    return "there already" if not done.written else "to be written" if dry_run else "written"


def _of_partition(named: NamedStreams, stream: str) -> tuple[Mapping[str, str], Sequence[Column]]:
    """The stream as a value for each row and as a column; empty unless the topic has partitions."""
    return ({"stream": stream}, [Column("stream", "STREAM")]) if named.partitions else ({}, [])
