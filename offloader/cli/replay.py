"""``offloader replay STREAM --to TOPIC``: a stream's messages back into a Pulsar topic.

Sends nothing before all sources and targets are resolved.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
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
    chosen_range,
)
from offloader.cli.output import EntryProgress, bytes_text, counted, json_line
from offloader.errors import InvalidCall, NotFound
from offloader.ledgers.pulsar.client import PulsarClient
from offloader.ledgers.pulsar.topics import stream_of_topic
from offloader.ledgers.pulsar.transport import security_of
from offloader.manifest.topics import partition_streams
from offloader.read.reader import Reader, load_stream, open_reader
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

__all__ = ["run"]

_DOMAIN = "persistent://"


_Target = Annotated[
    str,
    typer.Option(
        "--to",
        metavar="TOPIC",
        help="Where to: persistent://tenant/namespace/topic. A partitioned topic's streams go to a topic with as many "
        "partitions.",
        show_default=False,
    ),
]
_ServiceUrl = Annotated[
    str,
    typer.Option(
        "--service-url",
        envvar="OFFLOADER_PULSAR_URL",
        metavar="URL",
        help="The cluster: pulsar://broker:6650 or pulsar+ssl://broker:6651. Its token is taken from "
        "OFFLOADER_PULSAR_TOKEN.",
        show_default=False,
    ),
]
_TokenFile = Annotated[
    str, typer.Option("--token-file", metavar="FILE", help="The token, instead.", show_default=False)
]
_CaFile = Annotated[
    str, typer.Option("--ca-file", metavar="FILE", help="Certificate authorities of pulsar+ssl.", show_default=False)
]
_Until = Annotated[
    str,
    typer.Option("--until", metavar="LEDGER:ENTRY", help="Last entry, included.", show_default="the last there is"),
]
_UntilTime = Annotated[
    str,
    typer.Option("--until-time", metavar="TIME", help="End before the earliest entry of then.", show_default=False),
]
_Rate = Annotated[float, typer.Option("--rate", min=0, metavar="MESSAGES", help="At most so many a second; 0: any.")]
_RateMbytes = Annotated[
    float, typer.Option("--rate-mbytes", min=0, metavar="MEGABYTES", help="At most so many a second; 0: any.")
]
_WithTransactions = Annotated[
    bool,
    typer.Option(
        "--with-transactions",
        help="Send what was sent within transactions too, as committed. What `adopt` found may have been aborted.",
    ),
]
_Label = Annotated[
    str,
    typer.Option("--label", metavar="TEXT", help="Another replay of the same: sends it once more.", show_default=False),
]
_File = Annotated[
    str,
    typer.Option(
        "--progress-file",
        metavar="FILE",
        help="Where it is remembered how far the replay is.",
        show_default="a file in ~/.local/state/offloader/replay",
    ),
]


def run(
    stream: StreamOrTopic,
    to: _Target,
    given: ConfigArguments,
    service_url: _ServiceUrl = "",
    token_file: _TokenFile = "",
    ca_file: _CaFile = "",
    start: From = "",
    end: _Until = "",
    from_time: FromTime = "",
    until_time: _UntilTime = "",
    rate: _Rate = 0,
    mbytes_rate: _RateMbytes = 0,
    with_transactions: _WithTransactions = False,
    label: _Label = "",
    progress_file: _File = "",
    dry_run: DryRun = False,
    progress: ShowProgress = False,
    json: Json = False,
) -> None:
    """Send a stream's messages to a Pulsar topic: with their keys, properties, times, batches and compression.

    The same command again goes on where it ended, however it ended. Nothing arrives twice where the target's broker
    deduplicates; elsewhere at most one entry does, and it is said.
    """
    asked = AskedRange.of(start, end, from_time, until_time, end_options=("--until", "--until-time"))
    settings = given.settings(stream)
    opened = given.open(settings)
    limits = ReplayLimits(messages_per_s=rate, bytes_per_s=mbytes_rate * 1e6)
    with _client(settings.pulsar, service_url, token_file, ca_file) as client:
        for pair in _pairs(opened, stream, _topic_of(to), client, asked):
            job = _Job(opened, settings, client, pair, asked, label, progress_file)
            _run_one(job, limits, with_transactions=with_transactions, dry_run=dry_run, progress=progress, json=json)


def _client(configured: PulsarSettings, service_url: str, token_file: str, ca_file: str) -> PulsarClient:
    """Client of the cluster in the options, else in the settings file."""
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
    """A stream and its target; ``number`` of the partition, if there are several."""

    stream: str
    topic: str
    number: int | None = None


@dataclass(frozen=True, slots=True)
class _Job:
    """Parts of one stream's replay."""

    store: ObjectStore
    settings: Settings
    client: PulsarClient
    pair: _Pair
    asked: AskedRange
    label: str
    file: str

    def open(self) -> tuple[Reader, Progress, str]:
        """Opens the stream; returns its reader, the initial progress, and the name of the lease."""
        state = load_stream(self.store, self.pair.stream)
        begin = f"{self.asked.first or ''}|{self.asked.from_ms or ''}"
        name = producer_name(self.pair.stream, state.incarnation, self.pair.topic, begin, self.label)
        reader = open_reader(self.store, self.pair.stream, settings=self.settings.read, state=state)
        lease = lease_name(self.pair.stream, state.incarnation, self.pair.topic, self.label)
        return reader, Progress(producer=name, stream=self.pair.stream, topic=self.pair.topic), lease

    def progress_file(self, progress: Progress) -> ProgressFile:
        if not self.file:
            return ProgressFile(default_folder() / f"{progress.producer}.json")
        beside = "" if self.pair.number is None else f".{self.pair.number}"
        return ProgressFile(Path(self.file + beside))


def _topic_of(text: str) -> str:
    stream_of_topic(text)  # raises for an invalid name
    return text if text.startswith(_DOMAIN) else _DOMAIN + text


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
            f"{stream} has {len(streams)} partitions, and a position is of one", hint="--from-time and --until-time"
        )
    return [_Pair(each, f"{topic}-partition-{number}", number) for number, each in sorted(streams.items())]


def _run_one(
    job: _Job, limits: ReplayLimits, *, with_transactions: bool, dry_run: bool, progress: bool, json: bool
) -> None:
    reader, wanted, lease = job.open()
    with closing(reader):
        chosen = chosen_range(reader, job.asked)
        first, last = chosen or (None, None)
        first, last = first or reader.first_position, last or reader.last_position
        if chosen is None or first is None or last is None or first > last:
            _say(job.pair, None, ReplayResult(), 0, json=json, dry_run=dry_run)
            return
        file = job.progress_file(wanted)
        known = file.require(wanted)
        sent = None if known is None else known.sent
        # The sent entries may be truncated by now.
        begin = first if sent is None else max(first, sent.next())
        left = reader.count(begin, last) if begin <= last else 0
        if dry_run:
            _say(job.pair, (begin, last), ReplayResult(resumed_after=sent), left, json=json, dry_run=True)
            return
        with EntryProgress(sys.stderr, left, always=progress) as shown:
            result = Replayer(
                reader,
                begin,
                last,
                client=job.client,
                wanted=wanted,
                lease=lease,
                file=file,
                clock=SystemClock(),
                limits=limits,
                with_transactions=with_transactions,
                on_progress=lambda now: shown.at(now.entries, now.size_bytes, now.sent),
            ).run()
    _say(job.pair, (begin, last), result, left, json=json, dry_run=False)


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
    if json:
        facts = {"stream": pair.stream, "topic": pair.topic, "first": first, "last": last, "to_send": left}
        facts["sent" if not dry_run else "would_go_on_after"] = result.sent if not dry_run else result.resumed_after
        if not dry_run:
            facts |= {
                "resumed_after": result.resumed_after,
                "entries": result.entries,
                "messages": result.messages,
                "bytes": result.size_bytes,
                "left_out": result.markers,
                "twice": result.twice,
                "deduplicates": result.deduplicates,
                "target_forgot": result.target_forgot,
            }
        print(json_line(facts))
        return
    print("\n".join(_lines(pair, chosen, result, left, dry_run=dry_run)))


def _lines(
    pair: _Pair, chosen: tuple[Position, Position] | None, result: ReplayResult, left: int, *, dry_run: bool
) -> list[str]:
    where = f"{pair.stream} to {pair.topic}"
    if chosen is None:
        return [f"{where}: there is nothing in that range"]
    first, last = chosen
    count = "1 entry" if left == 1 else f"{left:,} entries"
    found = f"{first}..{last}, {count}"
    after = "" if result.resumed_after is None else f", an earlier run got to {result.resumed_after}"
    if dry_run:
        return [f"{where}: would send {found}{after}"]
    if not result.entries:
        return [f"{where}: nothing was left to send{after} (--label sends it once more)"]
    sent = f"{counted(result.messages, 'message')} in {result.entries:,} of {left:,} entries"
    lines = [f"{where}: sent {sent}, {bytes_text(result.size_bytes)}, {first}..{result.sent}{after}"]
    if result.markers:
        lines.append(f"left out {result.markers:,} entries that the brokers wrote for themselves")
    if result.twice:
        lines.append(f"{result.twice:,} entries arrived twice: turn deduplication on to avoid that")
    if result.target_forgot:
        lines.append(
            "the target had deleted what tells where the earlier run got to: about its last second is repeated"
        )
    return lines
