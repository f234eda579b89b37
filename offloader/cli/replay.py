"""``offloader replay STREAM --to TOPIC``: a stream's messages back into a Pulsar topic.

Sends nothing before all sources and targets are resolved.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from formats.entries import Position
from offloader.cli.options import (
    AskedRange,
    ConfigArguments,
    DryRun,
    From,
    FromTime,
    Json,
    ShowProgress,
    StreamOrTopic,
    ToTime,
    amount,
    chosen_range,
    option,
)
from offloader.cli.output import EntryProgress, bytes_text, counted, print_result
from offloader.errors import InvalidCall, NotFound
from offloader.ledgers.pulsar.client import PulsarClient
from offloader.ledgers.pulsar.topics import stream_of_topic
from offloader.ledgers.pulsar.transport import security_of
from offloader.manifest.topics import partition_streams
from offloader.read.reader import load_stream, open_reader
from offloader.replay import (
    Progress,
    ProgressFile,
    Replayer,
    ReplayLimits,
    ReplayResult,
    default_folder,
    lease_name,
    producer_name,
)
from offloader.runtime.clock import SystemClock
from offloader.settings import PulsarSettings, Settings
from offloader.store.base import ObjectStore

_DOMAIN = "persistent://"

_Target = Annotated[
    str,
    option(
        "--to",
        "Where to: persistent://tenant/namespace/topic. A partitioned topic's streams go to a topic with as many "
        "partitions.",
        metavar="TOPIC",
    ),
]
_ServiceUrl = Annotated[
    str,
    option(
        "--service-url",
        "The cluster: pulsar://broker:6650 or pulsar+ssl://broker:6651. Its token is taken from "
        "OFFLOADER_PULSAR_TOKEN.",
        envvar="OFFLOADER_PULSAR_URL",
        metavar="URL",
    ),
]


def run(
    stream: StreamOrTopic,
    to: _Target,
    given: ConfigArguments,
    service_url: _ServiceUrl = "",
    token_file: Annotated[str, option("--token-file", "The token, instead.", metavar="FILE")] = "",
    ca_file: Annotated[str, option("--ca-file", "Certificate authorities of pulsar+ssl.", metavar="FILE")] = "",
    start: From = "",
    end: Annotated[
        str, option("--until", "Last entry, included.", metavar="LEDGER:ENTRY", shown="the last there is")
    ] = "",
    from_time: FromTime = "",
    to_time: ToTime = "",
    rate: Annotated[
        float, option("--rate", "At most so many a second; 0: any.", metavar="MESSAGES", min=0, shown=True)
    ] = 0,
    mbytes_rate: Annotated[
        float, amount("--rate-mbytes", "At most so many a second; 0: any.", "megabytes", shown=True)
    ] = 0,
    with_transactions: Annotated[
        bool,
        typer.Option(
            "--with-transactions",
            help="Send what was sent within transactions too, as committed. What `adopt` found may have been aborted.",
        ),
    ] = False,
    label: Annotated[str, option("--label", "Another replay of the same: sends it once more.", metavar="TEXT")] = "",
    progress_file: Annotated[
        str,
        option(
            "--progress-file",
            "Where it is remembered how far the replay is.",
            metavar="FILE",
            shown="a file in ~/.local/state/offloader/replay",
        ),
    ] = "",
    dry_run: DryRun = False,
    progress: ShowProgress = False,
    json: Json = False,
) -> None:
    """Send a stream's messages to a Pulsar topic: with their keys, properties, times, batches and compression.

    The same command again goes on where it ended, however it ended. Nothing arrives twice where the target's broker
    deduplicates; elsewhere at most one entry does, and it is said.
    """
    asked = AskedRange.of(start, end, from_time, to_time, end_options=("--until", "--to-time"))
    settings, opened = given.prepared(stream)
    limits = ReplayLimits(messages_per_s=rate, bytes_per_s=mbytes_rate * 1e6)
    with _client(settings.pulsar, service_url, token_file, ca_file) as client:
        stream_of_topic(to)  # raises for an invalid name
        for pair in _pairs(opened, stream, _DOMAIN + to.removeprefix(_DOMAIN), client, asked):
            _run_one(
                *(opened, settings, client, pair, asked, limits),
                label=label,
                progress_file=progress_file,
                with_transactions=with_transactions,
                dry_run=dry_run,
                progress=progress,
                json=json,
            )


def _client(configured: PulsarSettings, service_url: str, token_file: str, ca_file: str) -> PulsarClient:
    # A token of the settings file is only for that cluster.
    known = PulsarSettings() if service_url else configured
    wanted = replace(
        known,
        service_url=service_url or known.service_url,
        token=f"file:{token_file}" if token_file else known.token,
        ca_file=ca_file or known.ca_file,
    )
    security = security_of(wanted)
    if not wanted.service_url:
        raise InvalidCall(
            "no Pulsar cluster was named",
            hint="give --service-url URL, or set pulsar.service_url in --config",
        )
    return PulsarClient(wanted.service_url, security=security)


@dataclass(frozen=True, slots=True)
class _Pair:
    """A stream and its target; ``part``: suffix of a partition's progress file, ``.3``."""

    stream: str
    topic: str
    part: str = ""


def _pairs(store: ObjectStore, stream: str, topic: str, client: PulsarClient, asked: AskedRange) -> Sequence[_Pair]:
    """Streams with their targets.

    Raises:
        NotFound, InvalidCall: they don't match.
    """
    streams = partition_streams(store, stream)
    if not streams:
        load_stream(store, stream)  # names similar ones
    partitions = client.partitions(topic)
    if not streams:
        if partitions:
            raise InvalidCall(
                f"{topic} has {partitions} partitions, {stream} is one stream",
                hint=f"name one of them: --to {topic}-partition-0",
            )
        client.connection(topic)  # requires a broker for it
        return [_Pair(stream, topic)]
    if partitions <= max(streams):
        raise NotFound(
            f"{topic} has {partitions or 'no'} partitions, {stream} has {max(streams) + 1}",
            hint=f"make the topic with {max(streams) + 1} partitions, or replay one of them: {stream}-partition-0",
        )
    if asked.first is not None or asked.last is not None:
        raise InvalidCall(
            f"{stream} has {len(streams)} partitions, and a position is of one", hint="--from-time and --to-time"
        )
    return [_Pair(each, f"{topic}-partition-{number}", f".{number}") for number, each in sorted(streams.items())]


def _run_one(
    store: ObjectStore,
    settings: Settings,
    client: PulsarClient,
    pair: _Pair,
    asked: AskedRange,
    limits: ReplayLimits,
    *,
    label: str,
    progress_file: str,
    with_transactions: bool,
    dry_run: bool,
    progress: bool,
    json: bool,
) -> None:
    state = load_stream(store, pair.stream)
    name = producer_name(
        pair.stream, state.incarnation, pair.topic, f"{asked.first or ''}|{asked.from_ms or ''}", label
    )
    path = Path(f"{progress_file}{pair.part}") if progress_file else default_folder() / f"{name}.json"
    file, wanted = ProgressFile(path), Progress(producer=name, stream=pair.stream, topic=pair.topic)
    with closing(open_reader(store, pair.stream, settings=settings.read, state=state)) as reader:
        chosen = chosen_range(reader, asked)
        first, last = chosen or (None, None)
        first, last = first or reader.first_position, last or reader.last_position
        if chosen is None or first is None or last is None or first > last:
            _say(pair, None, ReplayResult(), 0, json=json, dry_run=dry_run)
            return
        known = file.require(wanted)
        sent = None if known is None else known.sent
        # The sent entries may be truncated by now.
        begin = first if sent is None else max(first, sent.next())
        left = reader.count(begin, last) if begin <= last else 0
        result = ReplayResult(resumed_after=sent)
        if not dry_run:
            with EntryProgress(sys.stderr, left, always=progress) as shown:
                result = Replayer(
                    reader,
                    begin,
                    last,
                    client=client,
                    wanted=wanted,
                    lease=lease_name(pair.stream, state.incarnation, pair.topic, label),
                    file=file,
                    clock=SystemClock(),
                    limits=limits,
                    with_transactions=with_transactions,
                    on_progress=lambda now: shown.at(now.entries, now.size_bytes, now.sent),
                ).run()
    _say(pair, (begin, last), result, left, json=json, dry_run=dry_run)


def _say(
    pair: _Pair,
    chosen: tuple[Position, Position] | None,
    result: ReplayResult,
    left: int,
    *,
    json: bool,
    dry_run: bool,
) -> None:
    first, last = chosen or (None, None)
    facts = {"stream": pair.stream, "topic": pair.topic, "first": first, "last": last, "to_send": left}
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
    print_result(facts, _lines(pair, chosen, result, left, dry_run=dry_run), as_json=json)


def _lines(
    pair: _Pair, chosen: tuple[Position, Position] | None, result: ReplayResult, left: int, *, dry_run: bool
) -> Iterator[str]:
    where = f"{pair.stream} to {pair.topic}"
    if chosen is None:
        yield f"{where}: there is nothing in that range"
        return
    found = f"{chosen[0]}..{chosen[1]}, {counted(left, 'entry', 'entries')}"
    after = "" if result.resumed_after is None else f", an earlier run got to {result.resumed_after}"
    if dry_run:
        yield f"{where}: would send {found}{after}"
    elif not result.entries:
        yield f"{where}: nothing was left to send{after} (--label sends it once more)"
    else:
        sent = f"{counted(result.messages, 'message')} in {result.entries:,} of {left:,} entries"
        yield f"{where}: sent {sent}, {bytes_text(result.size_bytes)}, {chosen[0]}..{result.sent}{after}"
        if result.markers:
            yield f"left out {result.markers:,} entries that the brokers wrote for themselves"
        if result.twice:
            yield f"{result.twice:,} entries arrived twice: turn deduplication on to avoid that"
        if result.target_forgot:
            yield "the target had deleted what tells where the earlier run got to: about its last second is repeated"
