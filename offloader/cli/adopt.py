"""``offloader adopt``: import ledgers that Pulsar offloaded, in place.

Takes no token on the command line, and writes nothing to the objects' store with ``--read-only`` or ``--dry-run``.
"""

from __future__ import annotations

import json as json_module
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from offloader.adopt import REQUESTS_IN_FLIGHT, Adoption, AdoptionProgress, adopt, release
from offloader.cli.options import Json, StoreArguments, argument, open_chosen_store, option
from offloader.cli.output import ENDS, Column, TransientLine, bytes_text, counted, json_line, print_result, print_rows
from offloader.errors import BucketMissing, ErrorKind, InvalidCall, NotFound
from offloader.ledgers.pulsar.admin import CONNECTIONS_MAX, AdminClient
from offloader.ledgers.pulsar.topics import TopicLedgers, ledgers_of_topics
from offloader.ledgers.pulsar.transport import open_security
from offloader.read.fetch import ReaderThreads
from offloader.runtime.clock import SystemClock
from offloader.store.base import ObjectStore, StoreOptions
from offloader.store.open import SCHEME, ObjectsPlace, create_catalogue
from offloader.store.probe import require_conditional_puts

TOKEN_VARIABLE = "OFFLOADER_ADMIN_TOKEN"  # noqa: S105 - the name of it
#: Comma-separated hosts that may receive the token after a redirect of the admin interface, with * as a wildcard.
HOSTS_VARIABLE = "OFFLOADER_ADMIN_HOSTS"

ReadOnly = Annotated[
    str,
    option(
        "--read-only",
        "Write nothing into the store: keep the catalogue in this directory, to be named as "
        "--store catalogue:///DIRECTORY from then on.",
        metavar="DIRECTORY",
    ),
]
InternalStats = Annotated[
    list[str] | None,
    option(
        "--internal-stats",
        "The same out of a file: what `pulsar-admin topics stats-internal TOPIC` printed.",
        metavar="[TOPIC=]FILE",
    ),
]


def run(
    given: StoreArguments,
    streams: Annotated[
        list[str] | None, argument("Only these streams; * and ? stand for anything.", shown="all")
    ] = None,
    read_only: ReadOnly = "",
    admin_url: Annotated[
        str,
        option(
            "--admin-url",
            f"Ask this Pulsar which ledgers its topics have; a token in {TOKEN_VARIABLE} is sent along.",
            metavar="URL",
        ),
    ] = "",
    namespaces: Annotated[
        list[str] | None, option("--namespace", "Ask for these only.", metavar="TENANT/NAMESPACE", shown="all")
    ] = None,
    internal_stats: InternalStats = None,
    cluster: Annotated[str, option("--cluster", "Only what this Pulsar cluster wrote.", metavar="NAME")] = "",
    take_ownership: Annotated[
        bool,
        typer.Option("--take-ownership", help="From now on our retention may delete the objects. Pulsar must not."),
    ] = False,
    release_them: Annotated[
        bool, typer.Option("--release", help="The other way: the manifests of these streams forget what isn't ours.")
    ] = False,
    deep: Annotated[bool, typer.Option("--deep", help="Read every entry, not only indexes and last entries.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be recorded.")] = False,
    parallel: Annotated[
        int, typer.Option("--parallel", min=1, max=256, help="Objects looked at at once.")
    ] = REQUESTS_IN_FLIGHT,
    json: Json = False,
) -> int:
    """Take over what a Pulsar offloaded to the store: its ledgers become streams, to be read like any other.

    The objects stay where they are and as they are. May be run again: it adds what is new.
    """
    if read_only and take_ownership:
        raise InvalidCall("--read-only never deletes, --take-ownership is for deleting", hint="leave one of them out")
    if namespaces and not admin_url:
        raise InvalidCall("--namespace is for --admin-url", hint="name the streams to adopt instead")
    if release_them:
        _release(streams, _opened(given, read_only, dry_run=dry_run), dry_run=dry_run, as_json=json)
        return 0
    topics = [*_saved(internal_stats or []), *(_asked(admin_url, namespaces or []) if admin_url else [])]
    opened = _opened(given, read_only, dry_run=dry_run)
    if not dry_run:
        require_conditional_puts(opened)
    progress = TransientLine(sys.stderr)
    done = adopt(
        opened,
        clock=SystemClock(),
        topics=topics,
        streams=streams or [],
        cluster=cluster,
        take_ownership=take_ownership,
        deep=deep,
        dry_run=dry_run,
        requests_in_flight=parallel,
        on_progress=lambda now: progress.show(_progress_text(now)),
    )
    progress.clear()
    _print(done, dry_run=dry_run, as_json=json)
    if read_only and not (dry_run or json):
        print(f"from now on: --store {opened.url}")
    return ErrorKind.DATA_CORRUPTION.value if done.problems_count else 0


def _opened(given: StoreArguments, read_only: str, *, dry_run: bool) -> ObjectStore:
    if not read_only:
        return open_chosen_store(given.store, given.endpoint_url, given.region, read_only=dry_run)
    url = f"{SCHEME}://{Path(read_only).absolute()}"
    if dry_run:
        try:
            return open_chosen_store(url)
        except (NotFound, BucketMissing):
            return given.open()
    given.open().close()  # reports an invalid URL first
    create_catalogue(url, ObjectsPlace(given.store, given.endpoint_url, given.region), StoreOptions())
    return open_chosen_store(url, read_only=False)


def _release(streams: Sequence[str] | None, store: ObjectStore, *, dry_run: bool, as_json: bool) -> None:
    if not streams:
        raise InvalidCall("--release of what?", hint="name the streams")
    verb = "would release" if dry_run else "released"
    for stream in streams:
        count = release(store, stream, clock=SystemClock(), dry_run=dry_run)
        facts = {"what": "stream", "stream": stream, "released": count, "dry_run": dry_run}
        print_result(facts, f"{stream}: {verb} {counted(count, 'segment')}; the objects stay", as_json=as_json)


def _saved(given: Sequence[str]) -> Iterator[TopicLedgers]:
    for text in given:
        # A topic's name and a path may contain a =; an existing file is a path.
        topic, _, path = ("", "", text) if Path(text).exists() else text.rpartition("=")
        try:
            document = json_module.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as cause:
            raise NotFound(f"--internal-stats: {path} can't be read: {cause.strerror}") from cause
        except ValueError as cause:
            raise InvalidCall(f"--internal-stats: {path} is no JSON: {cause}") from cause
        yield from ledgers_of_topics(document, topic)


def _asked(admin_url: str, namespaces: Sequence[str]) -> list[TopicLedgers]:
    hosts = [host.strip() for host in os.environ.get(HOSTS_VARIABLE, "").split(",") if host.strip()]
    with AdminClient(admin_url, security=open_security(token_variable=TOKEN_VARIABLE), hosts=hosts) as client:
        names = [topic for namespace in namespaces or client.namespaces() for topic in client.topics(namespace)]
        found = ReaderThreads(CONNECTIONS_MAX).in_order(partial(_ledgers, client, name) for name in names)
        return [topic for topic in found if topic is not None]


def _ledgers(client: AdminClient, topic: str) -> TopicLedgers | None:
    try:
        return client.ledgers(topic)
    except NotFound:
        return None  # deleted since the listing


def _progress_text(now: AdoptionProgress) -> str:
    streams = f", {now.streams:,} of {now.streams_total:,} streams" if now.streams_total else ""
    return f"{now.objects:,} objects listed, {now.attempts:,} ledgers looked at{streams}"


_COLUMNS = [
    Column("stream", "STREAM"),
    Column("adopted", "ADOPTED", right=True),
    Column("already", "ALREADY", right=True),
    Column("left_out", "LEFT OUT", lambda left: f"{len(left):,}", right=True),
    Column("entries", "ENTRIES", right=True),
    Column("payload_bytes", "PAYLOAD", bytes_text, right=True),
    *ENDS,
]


def _print(done: Adoption, *, dry_run: bool, as_json: bool) -> None:
    rows = [
        {
            "what": "stream",
            "stream": each.stream,
            "adopted": len(each.adopted),
            "already": each.already,
            "left_out": [{"segment": str(one.segment.uuid), "why": one.why} for one in each.left_out],
            "entries": each.entries,
            "payload_bytes": each.payload_bytes,
            "missing_ledgers": [ledger.ledger_id for ledger in each.missing],
            "first": each.first,
            "last": each.last,
            "unreadable": each.unreadable,
        }
        for each in done.streams
    ]
    adopted_segments = sum(len(each.adopted) for each in done.streams)
    summary: Mapping[str, object] = {
        "what": "summary",
        "dry_run": dry_run,
        "objects": done.objects,
        "streams": len(rows),
        "adopted": adopted_segments,
        "already": sum(each.already for each in done.streams),
        "left_out": sum(len(each.left_out) for each in done.streams),
        "unmatched": done.unmatched.count,
        "unmatched_examples": done.unmatched.examples,
        "unfinished": done.unfinished.count,
        "unfinished_examples": done.unfinished.examples,
        "foreign": done.foreign.count,
        "foreign_examples": done.foreign.examples,
        "problems": done.problems_count,
    }
    print_rows(rows, _COLUMNS, as_json=as_json, empty="nothing to adopt was found")
    if as_json:
        for problem in done.problems:
            print(json_line({"what": "problem", "object": problem.what, "why": problem.why}))
    verb = "would adopt" if dry_run else "adopted"
    adopted, streams = counted(adopted_segments, "segment"), counted(len(rows), "stream")
    last = f"{verb} {adopted} of {streams}; already there: {summary['already']:,}"
    print_result(summary, [*_remarks(done), last], as_json=as_json)


def _remarks(done: Adoption) -> Iterator[str]:
    for each in done.streams:
        for one in each.left_out:
            yield f"{each.stream}: left out {one.segment.uuid} {one.segment.summary.begin}: {one.why}"
        missing = [str(ledger.ledger_id) for ledger in each.missing]
        if missing:
            yield f"{each.stream}: not in the store: ledgers {', '.join(missing)}"
        if each.unreadable:
            yield f"{each.stream}: can be read once they are: {counted(each.unreadable, 'segment')} after that"
    for problem in done.problems:
        yield f"not usable: {problem.what}: {problem.why}"
    for found, which, what in (
        (done.unmatched, "of unknown topics, which --admin-url or --internal-stats tells", "ledger"),
        (done.unfinished, "without data or index: an offload that failed or is under way", "object"),
        (done.foreign, "not Pulsar's", "object"),
    ):
        if found.count:
            yield f"{counted(found.count, what)} {which}, for example {found.examples[0]}"
