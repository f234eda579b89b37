"""Commands that import from Pulsar (``import``) and export to Pulsar (``export pulsar``).

``import`` takes over ledgers that Pulsar offloaded, in place: it takes no token on the command line, and with
``--read-only`` or ``--dry-run`` writes nothing to the objects' store. ``export pulsar`` sends a stream's messages to a
topic, and sends nothing before all sources and targets are resolved.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from offloader.adopt import REQUESTS_IN_FLIGHT, Adoption, AdoptionProgress, adopt, release
from offloader.cli.errors import run_on_each
from offloader.cli.options import (
    AskedRange,
    DryRun,
    From,
    Json,
    ShowProgress,
    Since,
    StoreArguments,
    StreamOrTopic,
    To,
    Until,
    amount,
    name_argument,
    named_file,
    open_chosen_store,
    option,
)
from offloader.cli.output import (
    ENDS,
    Column,
    EntryProgress,
    TransientLine,
    bytes_text,
    counted,
    json_line,
    print_result,
    print_rows,
)
from offloader.errors import BucketMissingError, ErrorKind, InvalidCallError, NotFoundError
from offloader.export.pulsar import PulsarReplay, Replayed, ReplayOptions, open_replay
from offloader.ledgers.pulsar.topic_lists import listed_topics, saved_topics
from offloader.ledgers.pulsar.topics import TopicLedgers
from offloader.ledgers.pulsar.transport import ADMIN_TOKEN_VARIABLE
from offloader.manifest.names import named_streams
from offloader.replay import (
    ReplayLimits,
)
from offloader.runtime.clock import SystemClock
from offloader.store.base import ObjectStore, StoreOptions
from offloader.store.open import SCHEME, create_catalogue
from offloader.store.probe import require_conditional_puts
from offloader.times import is_relative, time_text

ReadOnly = Annotated[
    str,
    option(
        "--read-only",
        "Write nothing to the store: keep the catalogue in this directory. Use "
        "--store catalogue:///DIRECTORY afterwards.",
        metavar="DIRECTORY",
    ),
]
InternalStats = Annotated[
    list[str] | None,
    option(
        "--internal-stats",
        "Read a topic's ledgers from a file with the output of `pulsar-admin topics stats-internal TOPIC`.",
        metavar="[TOPIC=]FILE",
    ),
]


def import_ledgers(
    given: StoreArguments,
    streams: Annotated[
        list[str] | None, name_argument("Only these streams; * and ? are wildcards.", shown="all")
    ] = None,
    read_only: ReadOnly = "",
    admin_url: Annotated[
        str,
        option(
            "--admin-url",
            f"Get the topics' ledgers from this Pulsar; sends the token in {ADMIN_TOKEN_VARIABLE}.",
            metavar="URL",
        ),
    ] = "",
    namespaces: Annotated[
        list[str] | None,
        option("--namespace", "Only this namespace, with --admin-url.", metavar="TENANT/NAMESPACE", shown="all"),
    ] = None,
    internal_stats: InternalStats = None,
    cluster: Annotated[str, option("--cluster", "Only ledgers of this Pulsar cluster.", metavar="NAME")] = "",
    take_ownership: Annotated[
        bool,
        typer.Option("--take-ownership", help="Let retention delete the objects. Pulsar must not delete them."),
    ] = False,
    release_them: Annotated[
        bool, typer.Option("--undo", help="Undo the import: remove adopted segments from the manifests.")
    ] = False,
    deep: Annotated[bool, typer.Option("--deep", help="Read all entries, not only indexes and last entries.")] = False,
    dry_run: DryRun = False,
    parallel: Annotated[
        int, typer.Option("--parallel", min=1, max=256, help="Number of objects to check in parallel.")
    ] = REQUESTS_IN_FLIGHT,
    json: Json = False,
) -> int:
    """Import ledgers that Pulsar offloaded, in place: each topic becomes a stream that you can read like any other.

    The command neither moves nor changes objects. Run it again to add new ledgers.

    Examples:
        offloader import --store s3://pulsar-bucket --dry-run
    """
    if take_ownership and (read_only or release_them):
        other = "--read-only" if read_only else "--undo"
        raise InvalidCallError(f"{other} and --take-ownership exclude each other", hint="leave one of them out")
    if namespaces and not admin_url:
        raise InvalidCallError("--namespace requires --admin-url", hint="give --admin-url URL, or name the streams")
    if release_them:
        return _release(streams, given, read_only, dry_run=dry_run, as_json=json)
    topics = [*_saved(internal_stats or []), *(listed_topics(admin_url, namespaces or []) if admin_url else [])]
    opened = _opened(given, read_only, dry_run=dry_run)
    if not dry_run:
        require_conditional_puts(opened, single_writer=given.settings().store.single_writer)
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
    _print_adopted(done, dry_run=dry_run, as_json=json)
    if read_only and not (dry_run or json):
        print(f"for other commands, give --store {opened.url}")
    return ErrorKind.DATA_CORRUPTION.value if done.problems_count else 0


def _opened(given: StoreArguments, read_only: str, *, dry_run: bool) -> ObjectStore:
    if not read_only:
        return given.open(read_only=dry_run, probed=False)
    url, settings = f"{SCHEME}://{Path(read_only).absolute()}", given.settings()
    # Settings for new objects have no effect: none are written there.
    reading = settings.store.for_reading()
    if dry_run:
        try:
            return open_chosen_store(url, settings=reading, limits=settings.limits)
        except (NotFoundError, BucketMissingError):
            return given.open()
    given.open().close()  # an invalid URL is reported first
    create_catalogue(url, given.place(), StoreOptions())
    return open_chosen_store(url, settings=reading, limits=settings.limits, read_only=False)


def _release(
    streams: Sequence[str] | None, given: StoreArguments, read_only: str, *, dry_run: bool, as_json: bool
) -> int:
    if not streams:
        raise InvalidCallError("missing STREAM: --undo needs the streams to release", hint="name the streams")
    store, verb = _opened(given, read_only, dry_run=dry_run), "would release" if dry_run else "released"

    def one(stream: str) -> None:
        count = release(store, stream, clock=SystemClock(), dry_run=dry_run)
        facts = {"what": "stream", "stream": stream, "released": count, "dry_run": dry_run}
        print_result(facts, f"{stream}: {verb} {counted(count, 'segment')}; no object was deleted", as_json=as_json)

    named = [each for name in streams for each in named_streams(store, name).streams]
    if not dry_run:
        require_conditional_puts(store, single_writer=given.settings().store.single_writer)
    return run_on_each(named, one, as_json=as_json)


def _saved(given: Sequence[str]) -> Iterator[TopicLedgers]:
    for text in given:
        topic, path = named_file(text)
        yield from saved_topics(path, topic)


def _progress_text(now: AdoptionProgress) -> str:
    streams = f", {now.streams:,} of {now.streams_total:,} streams" if now.streams_total else ""
    return f"{now.objects:,} objects listed, {now.attempts:,} ledgers checked{streams}"


_ADOPTED_COLUMNS = [
    Column("stream", "STREAM"),
    Column("adopted", "ADOPTED", right=True),
    Column("already", "ALREADY", right=True),
    Column("left_out", "LEFT OUT", lambda left: f"{len(left):,}", right=True),
    Column("entries", "ENTRIES", right=True),
    Column("payload_bytes", "PAYLOAD", bytes_text, right=True, less=5),
    *ENDS,
]


def _print_adopted(done: Adoption, *, dry_run: bool, as_json: bool) -> None:
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
    print_rows(rows, _ADOPTED_COLUMNS, as_json=as_json, empty="no ledgers to import")
    if as_json:
        for problem in done.problems:
            print(json_line({"what": "problem", "object": problem.what, "why": problem.why}))
    verb = "would adopt" if dry_run else "adopted"
    adopted, streams = counted(adopted_segments, "segment"), counted(len(rows), "stream")
    last = f"{verb} {adopted} of {streams}; imported before: {summary['already']:,}"
    print_result(summary, [*_remarks(done), last], as_json=as_json)


def _remarks(done: Adoption) -> Iterator[str]:
    for each in done.streams:
        for one in each.left_out:
            yield f"{each.stream}: left out {one.segment.uuid} {one.segment.summary.begin}: {one.why}"
        missing = [str(ledger.ledger_id) for ledger in each.missing]
        if missing:
            yield f"{each.stream}: not in the store: ledgers {', '.join(missing)}"
        if each.unreadable:
            later = counted(each.unreadable, "later segment")
            yield f"{each.stream}: {later} can't be read until these ledgers are in the store"
    for problem in done.problems:
        yield f"not usable: {problem.what}: {problem.why}"
    for found, which, what in (
        (done.unmatched, "of unknown topics (give --admin-url or --internal-stats)", "ledger"),
        (done.unfinished, "without data or index, from a failed or running offload", "object"),
        (done.foreign, "not written by Pulsar", "object"),
    ):
        if found.count:
            yield f"{counted(found.count, what)} {which}, for example {found.examples[0]}"


_Target = Annotated[
    str,
    option(
        "--dest",
        "Target topic: persistent://tenant/namespace/topic. The streams of a partitioned topic need a target with as "
        "many partitions.",
        metavar="TOPIC",
    ),
]
_ServiceUrl = Annotated[
    str,
    option(
        "--service-url",
        "Target cluster: pulsar://broker:6650 or pulsar+ssl://broker:6651. The token comes from "
        "OFFLOADER_PULSAR_TOKEN.",
        envvar="OFFLOADER_PULSAR_URL",
        metavar="URL",
    ),
]
_Rate = Annotated[
    float, option("--rate", "Maximum messages per second (0: unlimited).", metavar="MESSAGES", min=0, shown=True)
]


def replay(
    stream: StreamOrTopic,
    to: _Target,
    given: StoreArguments,
    service_url: _ServiceUrl = "",
    token_file: Annotated[str, option("--token-file", "File with the token.", metavar="FILE")] = "",
    ca_file: Annotated[str, option("--ca-file", "Certificate authorities for pulsar+ssl.", metavar="FILE")] = "",
    start: From = "",
    end: To = "",
    since: Since = "",
    until: Until = "",
    rate: _Rate = 0,
    mbytes_rate: Annotated[
        float, amount("--rate-mbytes", "Maximum rate per second (0: unlimited).", "megabytes", shown=True)
    ] = 0,
    with_transactions: Annotated[
        bool,
        typer.Option(
            "--with-transactions",
            help="Also send messages of transactions, as committed. Imported ledgers may contain aborted ones.",
        ),
    ] = False,
    label: Annotated[str, option("--label", "Name of the replay; a new name sends again.", metavar="TEXT")] = "",
    progress_file: Annotated[
        str,
        option(
            "--progress-file",
            "File that records the progress of the replay.",
            metavar="FILE",
            shown="a file in ~/.local/state/offloader/replay",
        ),
    ] = "",
    dry_run: DryRun = False,
    progress: ShowProgress = False,
    json: Json = False,
) -> None:
    """Send a stream's messages to a Pulsar topic, with their keys, properties, times, batches and compression.

    If interrupted, repeat the command: it resumes where it stopped. Messages arrive once if the target's broker
    deduplicates; otherwise at most one entry may arrive twice, and the output reports it. A relative --since is
    resolved at the first run and kept with the progress: repeated commands start at that time until the replay ends.

    Examples:
        offloader export pulsar orders --dest persistent://public/default/orders-again --since -1h
    """
    asked = AskedRange.of(start, end, since, until)
    settings, opened = given.prepared(stream)
    options = ReplayOptions(
        start=asked.first,
        stop=None if asked.last is None else asked.last.next(),
        since=since if is_relative(since) else asked.from_ms,
        until=asked.to_ms,
        limits=ReplayLimits(messages_per_s=rate, bytes_per_s=mbytes_rate * 1e6),
        with_transactions=with_transactions,
        label=label,
        progress_file=progress_file,
    )
    clients: Any = {"service_url": service_url, "token_file": token_file, "ca_file": ca_file}
    with (
        open_replay(opened, stream, to, options, settings=settings, dry_run=dry_run, **clients) as replay,
        _EachProgress(always=progress) as shown,
    ):
        _note_begin(replay, since)
        for done in replay.run(shown.at):
            shown.close()
            _print_replayed(done, json=json, dry_run=dry_run)


def _note_begin(replay: PulsarReplay, since: str) -> None:
    if replay.begin is not None and replay.from_ms is not None:
        begin = time_text(replay.from_ms)
        print(
            f"note: --since {since} is {begin} for this replay; to continue it on another machine or as another "
            f"user, give --since {begin}",
            file=sys.stderr,
        )


class _EachProgress(ExitStack):
    """The progress of one stream after the other."""

    def __init__(self, *, always: bool) -> None:
        super().__init__()
        self._always = always
        self._shown: EntryProgress | None = None

    def at(self, now: Replayed) -> None:
        if self._shown is None:
            self._shown = self.enter_context(EntryProgress(sys.stderr, now.to_send, always=self._always))
        self._shown.at(now.result.entries, now.result.size_bytes, now.result.sent)

    def close(self) -> None:
        """Ends the bar of the stream that is done."""
        self._shown = None
        super().close()


def _print_replayed(done: Replayed, *, json: bool, dry_run: bool) -> None:
    result = done.result
    facts: dict[str, object] = {"stream": done.stream, "topic": done.topic, "first": done.first, "last": done.last}
    facts["to_send"] = done.to_send
    if dry_run:
        facts["would_go_on_after"] = result.resumed_after
    else:
        facts |= {
            "sent": result.sent,
            "resumed_after": result.resumed_after,
            "entries": result.entries,
            "messages": result.messages,
            "bytes": result.size_bytes,
            "left_out": result.markers,
            "twice": result.twice,
            "deduplicates": result.deduplicates,
            "target_forgot": result.target_forgot,
        }
    print_result(facts, _replayed_lines(done, dry_run=dry_run), as_json=json)


def _replayed_lines(done: Replayed, *, dry_run: bool) -> Iterator[str]:
    result, left = done.result, done.to_send
    where = f"{done.stream} to {done.topic}"
    if done.first is None:
        yield f"{where}: no entries in that range"
        return
    found = f"{done.first}..{done.last}, {counted(left, 'entry', 'entries')}"
    after = "" if result.resumed_after is None else f", an earlier run sent up to {result.resumed_after}"
    if dry_run:
        yield f"{where}: would send {found}{after}"
    elif not result.entries:
        yield f"{where}: nothing left to send{after} (--label sends the range again)"
    else:
        sent = f"{counted(result.messages, 'message')} in {result.entries:,} of {left:,} entries"
        yield f"{where}: sent {sent}, {bytes_text(result.size_bytes)}, {done.first}..{result.sent}{after}"
        if result.markers:
            yield f"left out {result.markers:,} internal entries of the brokers"
        if result.twice:
            yield f"{result.twice:,} entries arrived twice; enable deduplication to avoid this"
        if result.target_forgot:
            yield "the target deleted the record of the earlier run's end: about its last second is repeated"
