"""Scalable topics of Pulsar 5, as the broker describes them. Pure; no other module knows their JSON.

A scalable topic ``topic://tenant/namespace/name`` consists of range segments. Each is a topic of its own,
``segment://tenant/namespace/name/0000-7fff-1``: first and last hash value of its keys, and its id. A split or a merge
seals segments and creates their children. A regular topic that was migrated is a sealed segment with its former name
(``legacy``).

Each answer of a broker must keep the rules L1 to L4 of ``formats.topic_layout``. (The broker removes the ids of
segments that it has deleted from the parents of the others, so L1 holds.) L5: a state that this release doesn't know is
an error; unknown fields aren't. An answer that breaks a rule stops its topic only.

Written against Pulsar 5.0.0-M1 (PIP-460 and PIP-475).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from formats.topic_layout import HASHES, SEGMENTS_MAX, RangeSegment, TopicLayout, TopicSchema, layout_problem
from offloader.errors import CorruptError, InvalidCallError, LimitReachedError, OffloaderError, UnsupportedError
from offloader.ledgers.pulsar.topics import is_text, stream_of_topic, topic_of_stream

TOPIC_SCHEME, SEGMENT_SCHEME = "topic://", "segment://"
#: In the names of streams: of the topic's own documents.
_PLACE = "topic"

_ACTIVE, _SEALED = "ACTIVE", "SEALED"
_INT64_MAX = 2**63 - 1


def place_of_topic(topic: str) -> str:
    """``topic://public/default/orders`` -> ``public/default/topic/orders``, the name of its documents.

    Raises:
        InvalidCallError: not a scalable topic's name.
    """
    levels = topic.removeprefix(TOPIC_SCHEME).split("/")
    if not topic.startswith(TOPIC_SCHEME) or len(levels) != 3 or not all(levels) or not is_text(topic):
        raise InvalidCallError(f"{topic} is no scalable topic", hint="names look like topic://tenant/namespace/topic")
    tenant, namespace, name = levels
    return f"{tenant}/{namespace}/{_PLACE}/{name}"


def scalable_topic_of(name: str) -> str | None:
    """The scalable topic of a segment's stream, or of the name of its documents; ``None``: it is of no such topic."""
    match name.split("/"):
        case [tenant, namespace, domain, topic] if domain == _PLACE:
            return f"{TOPIC_SCHEME}{tenant}/{namespace}/{topic}"
    segment = topic_of_stream(name)
    if segment is None or not segment.startswith(SEGMENT_SCHEME):
        return None
    return f"{TOPIC_SCHEME}{segment.removeprefix(SEGMENT_SCHEME).rpartition('/')[0]}"


def segment_topic(topic: str, segment_id: int, hash_start: int, hash_stop: int) -> str:
    """Name of one segment's topic, ``segment://public/default/orders/0000-7fff-1``."""
    name = topic.removeprefix(TOPIC_SCHEME)
    return f"{SEGMENT_SCHEME}{name}/{hash_start:04x}-{hash_stop - 1:04x}-{segment_id}"


def layout_of_json(document: object, topic: str) -> TopicLayout:
    """Parses the answer of ``GET /admin/v2/scalable/TENANT/NAMESPACE/NAME``.

    Raises:
        CorruptError: not a layout, or one that breaks L1 to L4.
        UnsupportedError: a state that this release doesn't know (L5).
        LimitReachedError: more than ``SEGMENTS_MAX`` segments.
    """
    try:
        fields: Any = document
        rows = [
            _segment(
                topic,
                segment_id=each["segmentId"],
                hash_start=each["hashRange"]["start"],
                hash_last=each["hashRange"]["end"],
                state=each["state"],
                parents=each["parentIds"],
                created_epoch=each["createdAtEpoch"],
                created_ms=each.get("createdAtMs", 0),
                sealed_epoch=each.get("sealedAtEpoch", -1),
                sealed_ms=each.get("sealedAtMs", 0),
                legacy=each.get("legacyTopicName") or "",
            )
            for each in fields["segments"].values()
        ]
        return _checked(topic, _number(fields["epoch"]), rows)
    except OffloaderError:  # some are ValueErrors
        raise
    except (TypeError, KeyError, ValueError, AttributeError) as cause:
        raise CorruptError(f"{topic}: the broker's answer is no layout of a scalable topic: {cause!r}") from cause


def schemas_of_json(document: object, topic: str) -> tuple[TopicSchema, ...]:
    """Parses the answer of ``GET /admin/v2/schemas/TENANT/NAMESPACE/NAME/schemas``; raises ``CorruptError``."""
    try:
        fields: Any = document
        found = {
            number: TopicSchema(
                version=number,
                type=_text(each["type"]),
                data=_text(each.get("data") or ""),
                properties={_text(name): _text(value) for name, value in (each.get("properties") or {}).items()},
            )
            for each in fields["getSchemaResponses"]
            for number in [_number(each["version"])]
        }
    except (TypeError, KeyError, ValueError, AttributeError) as cause:
        raise CorruptError(f"{topic}: the broker's answer has no schemas: {cause!r}") from cause
    return tuple(found[number] for number in sorted(found))


def _segment(
    topic: str,
    *,
    segment_id: Any,
    hash_start: Any,
    hash_last: Any,
    state: object,
    parents: Iterable[Any],
    created_epoch: Any,
    created_ms: Any,
    sealed_epoch: Any,
    sealed_ms: Any,
    legacy: str,
) -> RangeSegment:
    if state not in (_ACTIVE, _SEALED):
        raise UnsupportedError(
            f"{topic}: segment {segment_id} has the state {state!r:.40}, which this release doesn't know",
            hint="update the offloader; the topic isn't offloaded until then",
        )
    number, start, stop = _number(segment_id), _number(hash_start), _number(hash_last) + 1
    if not start < stop <= HASHES:
        raise CorruptError(f"{topic}: segment {number} has the hash range {start} to {stop - 1}")
    is_sealed = state == _SEALED
    return RangeSegment(
        id=number,
        stream=stream_of_topic(legacy or segment_topic(topic, number, start, stop)),
        hash_start=start,
        hash_stop=stop,
        parents=tuple(sorted({_number(each) for each in parents})),
        created_epoch=_number(created_epoch),
        created_ms=_time_ms(created_ms),
        sealed_epoch=_number(sealed_epoch) if is_sealed else None,
        sealed_ms=_time_ms(sealed_ms) if is_sealed else 0,
        is_legacy=bool(legacy),
    )


def _text(value: Any) -> str:
    if not isinstance(value, str) or not is_text(value):
        raise TypeError(f"{value!r:.40} is no text")
    return value


def _number(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _INT64_MAX:
        raise ValueError(f"{value!r:.40} is no number of a layout")
    return value


def _time_ms(value: Any) -> int:
    """A time; 0 for Pulsar's -1, unknown."""
    return 0 if value == -1 else _number(value)


def _checked(topic: str, epoch: int, rows: list[RangeSegment]) -> TopicLayout:
    """Raises for a layout that breaks L1 to L4, or has too many segments."""
    if len(rows) > SEGMENTS_MAX:
        raise LimitReachedError(f"{topic} has {len(rows)} segments, above {SEGMENTS_MAX}")
    layout = TopicLayout(topic=topic, epoch=epoch, segments=tuple(sorted(rows, key=lambda row: row.id)))
    if problem := layout_problem(layout):
        raise CorruptError(
            f"{topic}: the broker's layout of epoch {epoch} is damaged: {problem}",
            hint="the topic isn't offloaded until the broker returns another layout; nothing was deleted",
        )
    return layout
