"""Replay a stream or the partitions of a topic into a Pulsar topic.

Nothing is sent before all sources and targets are resolved. A relative start (``-1h``) is resolved at the first run and
kept beside the progress, so that repeated runs start at the same entry until the replay ends: see ``RelativeBegin``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from formats.entries import Position
from offloader.errors import InvalidCallError, NotFoundError, StoreUnavailableError
from offloader.ledgers.pulsar.consumer import Consumer
from offloader.ledgers.pulsar.protocol import ClientLimits, PulsarClient
from offloader.ledgers.pulsar.topics import stream_of_topic
from offloader.ledgers.pulsar.transport import security_of
from offloader.manifest.catalog import partition_streams
from offloader.read.reader import load_stream, open_stream_reader
from offloader.read.scan import Moment
from offloader.replay import (
    Progress,
    ProgressFile,
    RelativeBegin,
    Replayer,
    ReplayLimits,
    ReplayResult,
    begin_name,
    default_folder,
    lease_name,
    producer_name,
)
from offloader.runtime.clock import SystemClock
from offloader.settings import PulsarSettings, Settings
from offloader.store.base import ObjectStore
from offloader.times import is_relative, moment_ms

_DOMAIN = "persistent://"
#: No retries for the first request: an unreachable broker is reported immediately.
_PROBE = ClientLimits(connect_s=5.0, request_s=10.0, retry_s=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """What a replay sends, and how.

    Attributes:
        start, stop: positions, ``start <= position < stop``; only of a single stream. ``None``: the stream's own ends.
        since, until: publish times, instead of positions: as for ``Stream.scan``.
        limits: rates and timeouts.
        with_transactions: also send messages of transactions, as committed.
        label: name of the replay; another name sends the range again.
        progress_file: records the progress; empty: a file in ``~/.local/state/offloader/replay``.
    """

    start: Position | None = None
    stop: Position | None = None
    since: Moment | None = None
    until: Moment | None = None
    limits: ReplayLimits = ReplayLimits()  # noqa: RUF009 - frozen
    with_transactions: bool = False
    label: str = ""
    progress_file: str = ""

    def __post_init__(self) -> None:
        for position, moment, names in (
            (self.start, self.since, "start (--from) and since (--since)"),
            (self.stop, self.until, "stop (--to) and until (--until)"),
        ):
            if position is not None and moment is not None:
                raise InvalidCallError(f"{names} exclude each other", hint="leave one of them out")

    @property
    def relative(self) -> str:
        """The relative start; empty: the start is absolute."""
        return self.since if isinstance(self.since, str) and is_relative(self.since) else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """Result of the replay of one stream.

    Attributes:
        first, last: the range to send, inclusive; ``None``: it has no entries.
        to_send: number of its entries.
        result: the sent entries; of a dry run only the end of earlier runs.
    """

    stream: str
    topic: str
    first: Position | None = None
    last: Position | None = None
    to_send: int = 0
    result: ReplayResult = ReplayResult()  # noqa: RUF009 - frozen


class _Pair(NamedTuple):
    """A stream and its target; ``part``: suffix of a partition's progress file, ``.3``."""

    stream: str
    topic: str
    part: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PulsarReplay:
    """A replay whose streams and targets exist.

    Attributes:
        from_ms, to_ms: ``since`` and ``until`` of the options, resolved once for all partitions.
        begin: where a relative start is kept; ``None``: the start is absolute.
    """

    store: ObjectStore
    settings: Settings
    client: PulsarClient
    pairs: Sequence[_Pair]
    options: ReplayOptions
    from_ms: int | None
    to_ms: int | None
    begin: RelativeBegin | None
    dry_run: bool

    def run(self, on_progress: Callable[[Replayed], object] = lambda _: None) -> Iterator[Replayed]:
        """Replay stream after stream, and yield the result of each. Raises as ``Replayer.run``."""
        found = False
        for pair in self.pairs:
            done = self._one(pair, on_progress)
            found = found or done.first is not None
            yield done
        if self.begin is None or self.from_ms is None or self.dry_run:
            return
        if found:
            self.begin.finish(self.from_ms)
        else:
            self.begin.forget()

    def _one(self, pair: _Pair, on_progress: Callable[[Replayed], object]) -> Replayed:
        options = self.options
        state = load_stream(self.store, pair.stream)
        name = producer_name(
            pair.stream, state.incarnation, pair.topic, f"{options.start or ''}|{self.from_ms or ''}", options.label
        )
        path = options.progress_file
        file = ProgressFile(Path(f"{path}{pair.part}") if path else default_folder() / f"{name}.json")
        wanted = Progress(producer=name, stream=pair.stream, topic=pair.topic)
        stop = None if options.stop is None else options.stop.previous()
        with closing(open_stream_reader(self.store, pair.stream, settings=self.settings.read, state=state)) as reader:
            chosen = reader.range_of(options.start, stop, self.from_ms, self.to_ms)
            first, last = chosen or (None, None)
            first, last = first or reader.first_position, last or reader.last_position
            if chosen is None or first is None or last is None or first > last:
                return Replayed(stream=pair.stream, topic=pair.topic)
            known = file.require(wanted)
            sent = None if known is None else known.sent
            # The sent entries may be truncated by now.
            begin = first if sent is None else max(first, sent.next(), reader.first_position or first)
            left = reader.count(begin, last) if begin <= last else 0
            planned = Replayed(
                stream=pair.stream,
                topic=pair.topic,
                first=begin,
                last=last,
                to_send=left,
                result=ReplayResult(resumed_after=sent),
            )
            if self.dry_run:
                return planned
            result = Replayer(
                reader,
                begin,
                last,
                client=self.client,
                wanted=wanted,
                lease=lease_name(pair.stream, state.incarnation, pair.topic, options.label),
                file=file,
                clock=SystemClock(),
                limits=options.limits,
                with_transactions=options.with_transactions,
                on_progress=lambda now: on_progress(replace(planned, result=now)),
            ).run()
            return replace(planned, result=result)


@contextmanager
def open_replay(
    store: ObjectStore,
    stream: str,
    dest: str,
    options: ReplayOptions,
    *,
    settings: Settings,
    service_url: str = "",
    token_file: str = "",
    ca_file: str = "",
    dry_run: bool = False,
) -> Iterator[PulsarReplay]:
    """Check the stream and the target, and fix a relative start. Sends nothing.

    Args:
        dest: the target topic, which must exist.
        settings: of the stream; its cluster is the default of the target.
        service_url: ``pulsar://broker:6650`` or ``pulsar+ssl://broker:6651``.
        token_file, ca_file: files with the token and with certificate authorities.

    Raises:
        NotFoundError: the stream or the topic does not exist, or the topic has too few partitions.
        InvalidCallError: no cluster was given, positions for a topic with partitions, an invalid name, or a finished
            replay of that relative start.
        StoreUnavailableError: no broker answers.
    """
    stream_of_topic(dest)  # raises for an invalid name
    streams = _streams_of(store, stream)  # before the request to the broker
    with _client(settings.pulsar, service_url, token_file, ca_file) as client:
        topic = _DOMAIN + dest.removeprefix(_DOMAIN)
        pairs = _targets(streams, stream, topic, client, options)
        _require_topics(client, pairs)
        from_ms, to_ms = (
            None if moment is None else moment_ms(moment, what=what)
            for moment, what in ((options.since, "--since"), (options.until, "--until"))
        )
        begin = None
        if options.relative and from_ms is not None:
            name = begin_name(stream, topic, options.relative.strip(), options.label)
            path = options.progress_file
            file = Path(f"{path}.begin") if path else default_folder() / f"{name}.json"
            begin = RelativeBegin(file, name, options.relative)
            from_ms = begin.resolve(from_ms, dry_run=dry_run)
        yield PulsarReplay(
            store=store,
            settings=settings,
            client=client,
            pairs=pairs,
            options=options,
            from_ms=from_ms,
            to_ms=to_ms,
            begin=begin,
            dry_run=dry_run,
        )


def _streams_of(store: ObjectStore, stream: str) -> Mapping[int, str]:
    """The partitions of a topic, empty for one stream; raises ``NotFoundError`` with similar names."""
    streams = partition_streams(store, stream)
    if not streams:
        load_stream(store, stream)
    return streams


def _client(configured: PulsarSettings, service_url: str, token_file: str, ca_file: str) -> PulsarClient:
    # The token of the settings file is only for the cluster of the settings file.
    known = PulsarSettings() if service_url else configured
    wanted = replace(
        known,
        service_url=service_url or known.service_url,
        token=f"file:{token_file}" if token_file else known.token,
        ca_file=ca_file or known.ca_file,
    )
    security = security_of(wanted)
    if not wanted.service_url:
        raise InvalidCallError(
            "no Pulsar cluster was given",
            hint="give --service-url URL, or set pulsar.service_url in --config",
        )
    with PulsarClient(wanted.service_url, security=security, limits=_PROBE) as probe:
        try:
            probe.greet()
        except StoreUnavailableError as error:
            raise StoreUnavailableError(
                f"no broker answers at {wanted.service_url}; nothing was sent: {error.message}",
                hint="check --service-url, and that the broker is running",
            ) from error
    return PulsarClient(wanted.service_url, security=security)


def _require_topics(client: PulsarClient, pairs: Sequence[_Pair]) -> None:
    """Raises ``NotFoundError`` if the topic doesn't exist; only a producer would create it."""
    for topic in (pair.topic for pair in pairs):
        with closing(Consumer(client, topic, "offloader-replay-looks", start=Position(-1, -1))) as reader:
            try:
                reader.last_position()
            except NotFoundError as error:
                raise NotFoundError(
                    f"topic {topic} doesn't exist; nothing was sent: {error.message}",
                    hint=f"check --dest, or create the topic: pulsar-admin topics create {topic}",
                ) from error


def _targets(
    streams: Mapping[int, str], stream: str, topic: str, client: PulsarClient, options: ReplayOptions
) -> Sequence[_Pair]:
    """The streams with their targets. Raises ``NotFoundError`` or ``InvalidCallError`` if they don't match.

    Args:
        streams: the partitions of ``stream``; empty: it is one stream.
    """
    partitions = client.partitions(topic)
    if not streams:
        if partitions:
            raise InvalidCallError(
                f"topic {topic} has {partitions} partitions, but {stream} is one stream",
                hint=f"name one partition: --dest {topic}-partition-0",
            )
        client.connection(topic)  # raises if no broker serves the topic
        return [_Pair(stream, topic)]
    if partitions <= max(streams):
        raise NotFoundError(
            f"topic {topic} has {partitions or 'no'} partitions, but {stream} has {max(streams) + 1}",
            hint=f"create the topic with {max(streams) + 1} partitions, or replay one partition: {stream}-partition-0",
        )
    if options.start is not None or options.stop is not None:
        raise InvalidCallError(
            f"{stream} has {len(streams)} partitions, but a position belongs to one",
            hint="use --since and --until",
        )
    return [_Pair(each, f"{topic}-partition-{number}", f".{number}") for number, each in sorted(streams.items())]
