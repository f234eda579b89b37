"""A topic's ledgers, cursors, subscriptions and policies, parsed from its broker's statistics. Does no I/O."""

from __future__ import annotations

import enum
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import quote, quote_plus, unquote_plus

from formats.entries import Position
from offloader.errors import CorruptError, InvalidCallError
from offloader.ledgers.base import KnownLedgers
from offloader.stream_names import is_segment

_DOMAIN, _SEGMENT = "persistent", "segment"
#: Of one segment within its scalable topic: ``0000-7fff-1``.
_SEGMENT_NAME = re.compile(r"[0-9a-f]{4}-[0-9a-f]{4}-(0|[1-9][0-9]{0,18})")
_INT64_MAX = 2**63 - 1


class TopicLedger(NamedTuple):
    """One ledger: its entries and payload bytes (both 0 while it is open), and whether Pulsar offloaded it."""

    ledger_id: int
    entries: int
    size_bytes: int
    offloaded: bool


class TopicLedgers(NamedTuple):
    """A topic's ledgers, ascending; the last one is open, the others are closed."""

    topic: str
    ledgers: tuple[TopicLedger, ...]

    @property
    def managed_ledger(self) -> str:
        """The managed ledger's name in the metadata of objects."""
        return managed_ledger_of_topic(self.topic)

    @property
    def stream(self) -> str:
        """The name of the topic's stream."""
        return stream_of_topic(self.topic)

    @property
    def closed(self) -> Mapping[int, int]:
        """Ledger id -> last entry id (-1: empty), of the closed ledgers."""
        return {ledger.ledger_id: ledger.entries - 1 for ledger in self.ledgers[:-1]}


def stream_of_managed_ledger(name: str) -> str:
    """The stream of a managed ledger.

    Pulsar form-encodes the last level (``my+topic%231``); a stream has the plain name (``my topic#1``). A plain name
    with a ``/`` would be two levels, and remains encoded.
    """
    before, last, after = _split(name)
    plain = unquote_plus(last)
    # This project writes a blank as %20 instead of +.
    usable = bool(plain) and "/" not in plain and last in (_form_field(plain), quote(plain, safe=""))
    return f"{before}/{plain if usable else last}{after}" if before else name


def managed_ledger_of_stream(stream: str) -> str:
    """The managed ledger whose stream has that name, the reverse of ``stream_of_managed_ledger``."""
    before, last, after = _split(stream)
    return f"{before}/{_form_field(last)}{after}" if before else stream


def _split(name: str) -> tuple[str, str, str]:
    """The parts of a name before its topic, the topic, and after it: the last level is one segment's of a scalable
    topic."""
    levels = name.split("/")
    after = f"/{levels.pop()}" if is_segment(name) else ""
    return "/".join(levels[:-1]), levels[-1], after


def stream_of_topic(topic: str) -> str:
    """``persistent://public/default/orders`` -> ``public/default/persistent/orders``.

    One segment of a scalable topic is a topic, too: ``segment://public/default/orders/0000-7fff-1`` ->
    ``public/default/segment/orders/0000-7fff-1``.

    Raises:
        InvalidCallError: not a persistent topic's or a segment's name.
    """
    return stream_of_managed_ledger(managed_ledger_of_topic(topic))


def topic_of_stream(stream: str) -> str | None:
    """The topic of a stream, the reverse of ``stream_of_topic``; ``None``: it has no topic's name."""
    levels = stream.split("/")
    if not all(levels) or not is_text(stream):
        return None
    match levels:
        case [tenant, namespace, domain, name] if domain == _DOMAIN:
            names = (name, unquote_plus(name))
        case [tenant, namespace, domain, topic, name] if domain == _SEGMENT:
            names = (f"{topic}/{name}", f"{unquote_plus(topic)}/{name}")
        case _:
            return None
    topics = (f"{domain}://{tenant}/{namespace}/{each}" for each in names)
    return next((topic for topic in topics if stream_of_topic(topic) == stream), None)


def is_text(name: str) -> bool:
    """Whether a name can be encoded: JSON and command arguments may hold half a surrogate pair."""
    return not any("\ud800" <= each <= "\udfff" for each in name)


def managed_ledger_of_topic(topic: str) -> str:
    """``persistent://public/default/my topic`` -> ``public/default/persistent/my+topic``.

    Raises:
        InvalidCallError: as ``stream_of_topic``.
    """
    domain, separator, rest = topic.partition("://")
    if not separator:
        domain, rest = _DOMAIN, topic
    tenant, namespace, name = [*rest.split("/", 2), "", ""][:3]
    topic_name, _, segment = name.rpartition("/") if domain == _SEGMENT else (name, "", "")
    is_complete = tenant and namespace and topic_name and (domain == _DOMAIN or _SEGMENT_NAME.fullmatch(segment))
    if domain not in (_DOMAIN, _SEGMENT) or not is_complete or not is_text(topic):
        raise InvalidCallError(
            f"{topic} is no persistent topic", hint="names look like persistent://tenant/namespace/topic"
        )
    after = f"/{segment}" if segment else ""
    return f"{tenant}/{namespace}/{domain}/{_form_field(topic_name)}{after}"


def _form_field(text: str) -> str:
    """Encodes as Java's ``URLEncoder`` does."""
    return quote_plus(text, safe="*", errors="replace").replace("~", "%7E")


def ledgers_of_topics(document: object, topic: str = "", *, levels_max: int = 2) -> list[TopicLedgers]:
    """The topics in a document of internal statistics.

    Args:
        document: the parsed output of ``pulsar-admin topics stats-internal`` or ``partitioned-stats-internal``; or an
            object that maps topics to such documents.
        topic: the document's topic, if the document doesn't name it.
        levels_max: topics within the document, and partitions within those.

    Raises:
        InvalidCallError: it is none of these.
    """
    match document:
        case {"ledgers": list(ledgers)}:
            if not topic:
                raise InvalidCallError(
                    "the internal statistics don't say whose they are", hint="write TOPIC=FILE instead of FILE"
                )
            stream_of_topic(topic)
            return [TopicLedgers(topic, _ledgers(ledgers, topic))]
        case dict(fields) if fields and levels_max:
            parts = fields.get("partitions")
            named = parts if isinstance(parts, dict) else fields
            return [
                found
                for name, part in named.items()
                for found in ledgers_of_topics(part, str(name), levels_max=levels_max - 1)
            ]
    raise InvalidCallError(f"{topic or 'the document'}: no internal statistics of topics")


def _ledgers(rows: list[object], topic: str) -> tuple[TopicLedger, ...]:
    found = sorted(map(_ledger, rows))
    for one, other in itertools.pairwise(found):
        if one.ledger_id == other.ledger_id:
            raise InvalidCallError(f"{topic}: internal statistics list ledger {one.ledger_id} twice")
    return tuple(found)


def _ledger(fields: Any) -> TopicLedger:
    try:
        numbers = ledger_id, entries, size_bytes = [int(fields[name]) for name in ("ledgerId", "entries", "size")]
        if min(numbers) < 0 or max(numbers) > _INT64_MAX:
            raise ValueError
        return TopicLedger(ledger_id, entries, size_bytes, bool(fields.get("offloaded", False)))
    except (TypeError, KeyError, ValueError, OverflowError, AttributeError) as cause:
        raise InvalidCallError(f"not a ledger in internal statistics: {ascii(fields)[:100]}") from cause


_POSITION = re.compile(r"(-?\d{1,20}):(-?\d{1,20})")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicInternals:
    """A topic's internal statistics.

    Attributes:
        ledgers: all ledgers; entries and bytes of the open one, which is the last, are in the next two.
        open_entries, open_size_bytes: of the open ledger.
        last_confirmed: the newest stored entry; entry -1: none of that ledger.
        is_terminated: whether the topic takes no more entries.
        newest_ledger_created_ms: when the last ledger was opened, ms since 1970 UTC; ``None`` if not reported.
        cursors: subscription, or part of the broker -> the last entry up to which it has consumed all (its mark-delete
            position); entry -1: none of that ledger.
    """

    ledgers: TopicLedgers
    open_entries: int
    open_size_bytes: int
    last_confirmed: Position | None
    is_terminated: bool
    cursors: Mapping[str, Position]
    newest_ledger_created_ms: int | None = None

    def stored(self) -> list[tuple[int, int]]:
        """All ledgers, ascending, with their number of entries, the open one included."""
        closed, newest = self.ledgers.ledgers[:-1], self.ledgers.ledgers[-1:]
        stored = [(each.ledger_id, each.entries) for each in closed]
        return stored + [(each.ledger_id, max(each.entries, self.open_entries)) for each in newest]


class SubscriptionState(NamedTuple):
    """One subscription: whether it outlives its consumers, how many are connected, and its properties."""

    name: str
    is_durable: bool
    consumers: int
    properties: Mapping[str, str] = MappingProxyType({})


class TopicStats(NamedTuple):
    """A topic's statistics: its subscriptions by name, and whether the broker deduplicates."""

    subscriptions: Mapping[str, SubscriptionState]
    deduplicates: bool


def internals_of(document: object, topic: str) -> TopicInternals:
    """Parses the response of ``.../internalStats``. Raises ``CorruptError``: it isn't one, or isn't of this topic."""
    try:
        found = ledgers_of_topics(document, topic)
    except InvalidCallError as cause:
        raise CorruptError(f"{topic}: no internal statistics of a topic: {cause.message}") from cause
    if [each.topic for each in found] != [topic]:
        raise CorruptError(f"{topic}: the broker's internal statistics are about {len(found)} other topics")
    [ledgers] = found
    try:
        fields: Any = document
        last = fields.get("lastConfirmedEntry")
        return TopicInternals(
            ledgers=ledgers,
            open_entries=int(fields.get("currentLedgerEntries", 0)),
            open_size_bytes=int(fields.get("currentLedgerSize", 0)),
            last_confirmed=None if last is None else _position(last),
            is_terminated=fields.get("state") == "Terminated",
            cursors={
                unquote_plus(name): _position(each["markDeletePosition"])
                for name, each in fields.get("cursors", {}).items()
            },
            newest_ledger_created_ms=_time_ms(fields.get("lastLedgerCreatedTimestamp")),
        )
    except (TypeError, KeyError, ValueError, AttributeError, OverflowError) as cause:
        raise CorruptError(f"{topic}: no internal statistics of a topic: {cause}") from cause


def stats_of(document: object, topic: str) -> TopicStats:
    """Parses the response of ``.../stats``. Raises ``CorruptError``: it isn't one."""
    try:
        fields: Any = document
        found = {
            name: SubscriptionState(
                name,
                bool(each["isDurable"]),
                len(each.get("consumers") or ()),
                {str(key): str(value) for key, value in (each.get("subscriptionProperties") or {}).items()},
            )
            for name, each in fields["subscriptions"].items()
        }
        return TopicStats(found, fields.get("deduplicationStatus") == "Enabled")
    except (TypeError, KeyError, ValueError, AttributeError, OverflowError) as cause:
        raise CorruptError(f"{topic}: no statistics of a topic: {cause!r}") from cause


def _time_ms(text: Any) -> int | None:
    """Parses a time as Java prints it, ``2026-11-21T19:03:12.345Z``; ``None`` if it isn't one."""
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except (TypeError, ValueError, OverflowError):
        return None


def _position(text: str) -> Position:
    if (found := _POSITION.fullmatch(text)) is None:
        raise ValueError(f"{text!r:.50} is not a position")
    return Position(int(found[1]), int(found[2]))


def policy_warnings(document: object, *, broker_plugin: bool = False) -> tuple[str, ...]:
    """Namespace policies that conflict with offloading, one line each; empty if none do.

    Args:
        broker_plugin: whether the broker's own offload is the plugin's, which stores nothing twice.
        document: the parsed response of ``/admin/v2/namespaces/TENANT/NAMESPACE``. Unset policies come from the
            broker's configuration, which isn't checked.
    """
    if not isinstance(document, dict):
        return ()
    found = []
    ttl_s = _number(document.get("message_ttl_in_seconds"))
    if ttl_s > 0:
        found.append(
            f"message TTL is {ttl_s} s: it acknowledges for every subscription, also the offloader's; entries "
            "that are older and not offloaded yet are lost; set the TTL to 0, or well above the longest planned stop"
        )
    for kind, quota in _fields(document.get("backlog_quota_map")).items():
        if _fields(quota).get("policy") == "consumer_backlog_eviction":
            found.append(
                f"backlog quota {kind} evicts (consumer_backlog_eviction): it moves the offloader's subscription over "
                "entries that aren't offloaded yet; use producer_request_hold, or no quota"
            )
    expires = _number(document.get("subscription_expiration_time_minutes"))
    if expires > 0:
        found.append(
            f"subscriptions without a consumer are deleted after {expires} minutes: while the offloader is stopped for "
            "longer nothing keeps entries that aren't offloaded; set subscription expiration to 0"
        )
    offload = _fields(document.get("offload_policies"))
    thresholds = (
        document.get("offload_threshold"),
        document.get("offload_threshold_in_seconds"),
        offload.get("managedLedgerOffloadThresholdInBytes"),
        offload.get("managedLedgerOffloadThresholdInSeconds"),
    )
    if not broker_plugin and any(_number(each) >= 0 for each in thresholds if each is not None):
        found.append(
            "the broker offloads by itself too: every ledger is stored twice; set its offload thresholds to -1, or "
            "leave the namespace to it and use `offloader import`"
        )
    return tuple(found)


def _number(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _fields(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def contradiction(listed: Sequence[tuple[int, int]], known: KnownLedgers) -> str | None:
    """The contradiction between listed and known ledgers, ``None`` if there is none.

    Gaps between ledger ids, trimmed ledgers and an empty list are no contradiction. A ledger that is missing from the
    manifest is one only in the range that the manifest knows completely: it may be history that isn't offloaded yet.

    Args:
        listed: ledgers and their number of entries, ascending; read after the manifest.
    """
    newest = known.newest
    if newest is None or not listed:
        return None
    if listed[-1][0] < newest.ledger_id:
        return f"its newest ledger is {listed[-1][0]}, and the manifest has entries up to {newest}"
    return next(_contradictions((each for each in listed if each[0] <= newest.ledger_id), known), None)


def _contradictions(listed: Iterable[tuple[int, int]], known: KnownLedgers) -> Iterator[str]:
    for ledger_id, entries in listed:
        if (found := known.ledgers.get(ledger_id)) is None:
            if entries and known.whole is not None and known.whole[0] <= ledger_id <= known.whole[1]:
                yield f"ledger {ledger_id} has {entries} entries, but the manifest has no such ledger"
        elif found.last_entry_id is not None and found.last_entry_id != entries - 1:
            yield f"ledger {ledger_id} ends at entry {entries - 1}, but it ended at {found.last_entry_id}"
        elif found.reached >= entries:
            yield f"ledger {ledger_id} ends at entry {entries - 1}, but it had entry {found.reached}"


#: A broker's status and reason for an entry that its bookies don't have; 404 where the whole ledger is missing.
_NOT_STORED = {404: "message id not found", 500: "nonrecoverableledgerexception"}


class EntryFate(enum.Enum):
    """Why an entry wasn't delivered."""

    #: No reader gets it: a marker, or part of an aborted transaction.
    UNDELIVERED = "undelivered"
    #: The broker lists it, and its bookies no longer have it.
    LOST = "lost"
    #: It is stored and readable: a reader that didn't get it has to read it again.
    READABLE = "readable"
    #: This token may not ask.
    DENIED = "denied"
    #: This broker, or a proxy in front of it, doesn't support the query.
    UNKNOWN = "unknown"


def fate_of(status: int, headers: Mapping[str, str], body: bytes) -> EntryFate | None:
    """Interprets the response of ``GET .../ledger/L/entry/E``; ``None`` if it failed and may succeed later.

    The headers are those of brokers since 2.11; as seen at 4.0.7.

    Args:
        headers: by names in small letters.
        body: of a response other than 200, its reason.
    """
    if status == 200:
        if "x-pulsar-marker-type" in headers or headers.get("x-pulsar-txn-aborted") == "true":
            return EntryFate.UNDELIVERED
        # Earlier brokers don't report transactions: an aborted one looks like any other entry.
        return EntryFate.READABLE if "x-pulsar-txn-uncommitted" in headers else EntryFate.UNKNOWN
    reason = body.decode(errors="replace").lower()
    if status in (404, 500) and _NOT_STORED[status] in reason:
        return EntryFate.LOST
    if status in (401, 403):
        return EntryFate.DENIED
    return EntryFate.UNKNOWN if status in (404, 405, 412) else None
