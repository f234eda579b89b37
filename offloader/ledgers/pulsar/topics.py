"""Which ledgers a Pulsar topic has, as its internal statistics say; pure.

Owns reading those documents and the names of topics, managed ledgers and streams. Must never ask a broker: that is
``offloader.ledgers.pulsar.admin``.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, quote_plus, unquote_plus

from offloader.errors import InvalidCall

__all__ = ["TopicLedger", "TopicLedgers", "is_text", "ledgers_of_topics", "stream_of_managed_ledger", "stream_of_topic"]

_DOMAIN = "persistent"
_INT64_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class TopicLedger:
    """One ledger: its entries and payload bytes (both 0 while it is open), and whether Pulsar offloaded it."""

    ledger_id: int
    entries: int
    size_bytes: int
    offloaded: bool


@dataclass(frozen=True, slots=True)
class TopicLedgers:
    """A topic's ledgers, ascending; the last one is open, the others are closed."""

    topic: str
    ledgers: tuple[TopicLedger, ...]

    @property
    def managed_ledger(self) -> str:
        """What Pulsar calls it in the metadata of objects."""
        return _managed_ledger(self.topic)

    @property
    def stream(self) -> str:
        """What the topic's stream is called."""
        return stream_of_topic(self.topic)

    @property
    def closed(self) -> Mapping[int, int]:
        """Ledger id -> last entry id (-1: empty), of the closed ledgers."""
        return {ledger.ledger_id: ledger.entries - 1 for ledger in self.ledgers[:-1]}


def stream_of_managed_ledger(name: str) -> str:
    """The stream that a managed ledger's name stands for.

    Pulsar writes the last level like a form field of a web page (``my+topic%231``); a stream has the plain name
    (``my topic#1``). A plain name with a ``/`` would be two levels, and stays as Pulsar wrote it.
    """
    before, _, last = name.rpartition("/")
    plain = unquote_plus(last)
    # Ours are written with %20 for a blank instead of +.
    usable = bool(plain) and "/" not in plain and last in (_form_field(plain), quote(plain, safe=""))
    return f"{before}/{plain if usable else last}" if before else name


def stream_of_topic(topic: str) -> str:
    """``persistent://public/default/orders`` -> ``public/default/persistent/orders``.

    Raises:
        InvalidCall: not a persistent topic's name.
    """
    return stream_of_managed_ledger(_managed_ledger(topic))


def is_text(name: str) -> bool:
    """Whether a name has an encoding: JSON and arguments of a command can hold half a character."""
    return not any("\ud800" <= each <= "\udfff" for each in name)


def _managed_ledger(topic: str) -> str:
    domain, separator, rest = topic.partition("://")
    if not separator:
        domain, rest = _DOMAIN, topic
    levels = rest.split("/", 2)
    if domain != _DOMAIN or len(levels) != 3 or not all(levels) or not is_text(topic):
        raise InvalidCall(f"{topic} is no persistent topic", hint="names look like persistent://tenant/namespace/topic")
    tenant, namespace, name = levels
    return f"{tenant}/{namespace}/{_DOMAIN}/{_form_field(name)}"


def _form_field(text: str) -> str:
    """As Java's ``URLEncoder`` writes it."""
    return quote_plus(text, safe="*", errors="replace").replace("~", "%7E")


def ledgers_of_topics(document: object, topic: str = "", *, levels_max: int = 2) -> list[TopicLedgers]:
    """The topics in a document of internal statistics.

    Args:
        document: what ``pulsar-admin topics stats-internal`` or ``partitioned-stats-internal`` prints, parsed; or an
            object that maps topics to such documents.
        topic: whose document it is, where it doesn't say so itself.
        levels_max: topics within the document, and partitions within those.

    Raises:
        InvalidCall: it is none of these.
    """
    match document:
        case {"ledgers": list(ledgers)}:
            if not topic:
                raise InvalidCall(
                    "the internal statistics don't say whose they are", hint="write TOPIC=FILE instead of FILE"
                )
            stream_of_topic(topic)
            return [TopicLedgers(topic, _ledgers(ledgers, topic))]
        case {"partitions": dict(parts)} if levels_max:
            return _ledgers_of_parts(parts, levels_max)
        case dict(parts) if parts and levels_max:
            return _ledgers_of_parts(parts, levels_max)
    raise InvalidCall(f"{topic or 'the document'}: no internal statistics of topics")


def _ledgers_of_parts(parts: Mapping[Any, object], levels_max: int) -> list[TopicLedgers]:
    return [
        found for name, part in parts.items() for found in ledgers_of_topics(part, str(name), levels_max=levels_max - 1)
    ]


def _ledgers(rows: list[object], topic: str) -> tuple[TopicLedger, ...]:
    found = sorted(map(_ledger, rows), key=lambda ledger: ledger.ledger_id)
    for one, other in itertools.pairwise(found):
        if one.ledger_id == other.ledger_id:
            raise InvalidCall(f"{topic}: internal statistics list ledger {one.ledger_id} twice")
    return tuple(found)


def _ledger(fields: Any) -> TopicLedger:
    try:
        ledger_id, entries, size_bytes = (int(fields[name]) for name in ("ledgerId", "entries", "size"))
        if min(ledger_id, entries, size_bytes) < 0 or max(ledger_id, entries, size_bytes) > _INT64_MAX:
            raise ValueError
        return TopicLedger(ledger_id, entries, size_bytes, bool(fields.get("offloaded", False)))
    except (TypeError, KeyError, ValueError, OverflowError, AttributeError) as cause:
        raise InvalidCall(f"not a ledger in internal statistics: {ascii(fields)[:100]}") from cause
