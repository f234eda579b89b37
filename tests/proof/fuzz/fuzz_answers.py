"""What brokers answer over their admin interface, and what is shown at the doors: each is taken, or refused by name.

It doesn't let a refusal show what may be a secret.
"""

from __future__ import annotations

import json
import random
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from formats.entries import Position
from formats.errors import FormatError
from formats.topic_layout import TopicLayout, TopicSchema, layout_problem
from offloader.errors import AccessDeniedError, InvalidCallError, OffloaderError
from offloader.ledgers.base import newest_listed
from offloader.ledgers.pulsar.admin import AdminClient
from offloader.ledgers.pulsar.discovery import TopicPatterns
from offloader.ledgers.pulsar.ledger_list import LedgerList, NotGiven, first_from
from offloader.ledgers.pulsar.topics import EntryFate, policy_warnings, stream_of_topic
from offloader.ledgers.pulsar.transport import parse_service_url
from offloader.manifest.topic_layouts import in_order, merged
from offloader.retention.cuts import StreamCut
from offloader.runtime.clock import SystemClock
from offloader.service.auth import Caller, Credentials, Guard, NotAuthenticated, Role, parse_listen
from tests.proof.fuzz.fuzz_engine import Outcome, Target, attempt
from tests.proof.fuzz.fuzz_mutation import mutate, mutate_json, mutate_text

TOPIC, SCALABLE = "persistent://public/default/orders", "topic://public/default/orders"
LAYOUTS = Path(__file__).parents[2] / "ledgers" / "pulsar" / "scalable_layouts"
TOKEN = "fuzzed-secret-0123456789-abcdef"
FATES = (EntryFate.UNDELIVERED, EntryFate.LOST, EntryFate.UNKNOWN)
READABLE = Position(9, 4)


class _Answering(AdminClient):
    """An admin interface that answers the same, whatever it is asked."""

    body = b""

    def _ask(self, method: str, path: str, document: Mapping[str, object] | None = None) -> bytes:
        return self.body


def answer_seeds() -> list[bytes]:
    """Statistics, policies, names and numbers, in Pulsar's own shapes."""
    ledgers = [
        {"ledgerId": 7, "entries": 100, "size": 6400, "offloaded": True, "underReplicated": False},
        {"ledgerId": 9, "entries": 0, "size": 0, "offloaded": False},
    ]
    internals = {
        "entriesAddedCounter": 5, "numberOfEntries": 105, "currentLedgerEntries": 5, "currentLedgerSize": 320,
        "lastLedgerCreatedTimestamp": "2026-11-21T19:03:12.345Z", "lastConfirmedEntry": "9:4", "state": "LedgerOpened",
        "ledgers": ledgers, "cursors": {
            "offloader": {"markDeletePosition": "7:99", "individuallyDeletedMessages": "[(9:0..9:2],(9:3..9:4]]"},
            "a%2Fb": {"markDeletePosition": "9:-1", "individuallyDeletedMessages": "[]"},
        },
    }  # fmt: skip
    stats = {
        "msgRateIn": 0.5, "deduplicationStatus": "Enabled",
        "subscriptions": {"offloader": {"isDurable": True, "consumers": [{"consumerName": "c"}]}},
    }  # fmt: skip
    policies = {
        "message_ttl_in_seconds": 3600, "backlog_quota_map": {"destination_storage": {"policy": "producer_exception"}},
        "subscription_expiration_time_minutes": 5, "offload_threshold": -1,
        "offload_policies": {"managedLedgerOffloadThresholdInBytes": 10, "managedLedgerOffloadDriver": "aws-s3"},
    }  # fmt: skip
    names = ["public", "public/default", TOPIC, f"{TOPIC}-partition-0"]
    parted = {"partitions": {f"{TOPIC}-partition-{number}": internals for number in range(2)}}
    documents: list[Any] = [internals, stats, policies, names, {"partitions": 3}, parted, {TOPIC: internals}]
    schemas = [
        {"version": 0, "type": "STRING", "timestamp": 1, "data": "", "properties": {}},
        {"version": 1, "type": "AVRO", "timestamp": 2, "data": "{}", "properties": {"__alwaysAllowNull": "true"}},
    ]
    documents += [{"getSchemaResponses": schemas}]
    documents += [json.loads(path.read_text()) for path in sorted(LAYOUTS.glob("layout-*.json"))]
    return [*(json.dumps(each).encode() for each in documents), b"[" * 5000, b'{"ledgers":' + b"[" * 9000]


def change_answer(rng: random.Random, pool: list[bytes]) -> bytes:
    """JSON changed as JSON; now and then any bytes."""
    picked = rng.choice(pool)
    if rng.random() < 0.15:
        return mutate(rng, pool)
    try:
        return json.dumps(mutate_json(rng, json.loads(picked), [])).encode()
    except (ValueError, RecursionError):
        return mutate(rng, pool)


def check_answer(data: bytes) -> Outcome:
    """Whatever a broker says of its topics, topics are known or it is refused by name."""
    with _Answering("http://127.0.0.1:1", retries_max=0) as admin:
        admin.body = data
        ways: list[Callable[[], Any]] = [
            admin.namespaces,
            lambda: [TopicPatterns.of(["public/default/*"]).have(name) for name in admin.topics("public/default")],
            lambda: all(each.isprintable() for each in policy_warnings(admin.policies("public/default"))),
            lambda: admin.stats(TOPIC).deduplicates,
            lambda: _listed(admin),
            lambda: bool(admin.scalable_subscriptions(SCALABLE)),
            lambda: bool(admin.backlog(f"{SCALABLE.replace('topic', 'segment', 1)}/0000-7fff-0", "offloader")),
            lambda: [
                TopicPatterns.of(["public"]).have_scalable(name) for name in admin.scalable_topics("public/default")
            ],
            lambda: _laid_out(admin.layout(SCALABLE)),
            lambda: _recorded(admin.schemas(SCALABLE)),
        ]
        return tuple(attempt(way, OffloaderError)[1] for way in ways)


def _recorded(schemas: Sequence[TopicSchema]) -> bool:
    layout = TopicLayout(topic=SCALABLE, epoch=0, segments=(), schemas=tuple(schemas))
    assert TopicLayout.decode(layout.encode()) == layout
    return bool(schemas)


def _laid_out(layout: TopicLayout) -> bool:
    assert layout_problem(layout) == "", "a layout that breaks a rule is taken"
    ordered = [row.id for group in in_order(layout) for row in group]
    assert sorted(ordered) == [row.id for row in layout.segments], "a segment is read twice, or never"
    nothing = TopicLayout(topic=SCALABLE, epoch=0, segments=())
    record = merged(nothing, layout)
    assert merged(record, layout) == record, "the same answer changes the record"
    assert TopicLayout.decode(record.encode()) == record
    return any(row.is_legacy for row in layout.segments)


def _listed(admin: AdminClient) -> bool:
    ledgers = LedgerList(
        TOPIC,
        ask=lambda: admin.internals(TOPIC),
        ask_last=lambda: READABLE,
        look=lambda ledger_id, first, last, _: [NotGiven(FATES[ledger_id % len(FATES)], first, last)],
        clock=SystemClock(),
    )
    infos = ledgers.infos()
    ids = [info.ledger_id for info in infos]
    assert ids == sorted(set(ids)), "a ledger is listed twice, or before an older one"
    for info in infos:
        assert info.ledger_id >= 0, "a negative ledger"
        assert info.entries >= 0, "a negative number of entries"
        assert info.ledger_id <= READABLE.ledger_id or not info.entries, "what nobody can read is listed"
    newest = newest_listed(infos)
    assert newest is None or newest <= READABLE, "more is listed than can be read"
    first_from(infos, Position(0, 0))
    ledgers.follow(None, READABLE)
    return bool(infos)


def door_seeds() -> list[bytes]:
    """Files of tokens, and what stands in the header ``Authorization``."""
    texts = [
        f"{TOKEN}\n", f"# ours\n{TOKEN}\n{TOKEN}2\n\n", f"Bearer {TOKEN}", f"bearer  {TOKEN} ", f"Basic {TOKEN}",
        f"Bearer {TOKEN}=", "Bearer ", "A" * 15, "A" * 4097, f"Bearer {'A' * 4096}", f"\ufeff{TOKEN}", f"{TOKEN}\x00",
    ]  # fmt: skip
    return [text.encode() for text in texts]


def change_door(rng: random.Random, pool: list[bytes]) -> bytes:
    return mutate_text(
        rng, pool, ["Bearer ", "\n", "\r", "\x0b", "\u2028", "\xa0", "=", "#", "A" * 16, TOKEN, ",", ";"]
    )


def check_door(data: bytes) -> Outcome:
    """Who shows the token comes in, nobody else does, and no refusal shows what was in a file or a header."""
    path = Path(tempfile.gettempdir()) / f"fuzzed-{random.getrandbits(64):x}.tokens"
    path.write_bytes(data)
    try:
        found, place = _told(data, lambda: Credentials(tokens={Role.READ: [f"file:{path}"]}))
    finally:
        path.unlink()
    if found is not None:
        lines = [line.strip() for line in data.decode("ascii").splitlines()]
        for line in [each for each in lines if each and not each.startswith("#")]:
            assert found.of_token(line).role is Role.READ, "a token that was taken isn't known"
        assert TOKEN not in repr(found)
    guard = Guard(Credentials(tokens={Role.WRITE: ["env:T"]}, environ={"T": TOKEN}), Role.READ)
    text = data.decode("latin-1")
    caller, other = _told(data, lambda: guard.caller(text))
    shown = re.fullmatch(rf"(?i:bearer) \s*({re.escape(TOKEN)})\s*", text)
    assert (caller is not None) is (shown is not None), "the token isn't what decides"
    assert caller is None or caller == Caller("token of env:T", Role.WRITE)
    tokens = 0 if found is None else len({line for line in lines if line and not line.startswith("#")})
    return (place, other, attempt(lambda: Role.of(text[:40]), InvalidCallError)[1], min(tokens, 9))


def _told(data: bytes, work: Callable[[], Any]) -> tuple[Any, str]:
    """As ``attempt``; the refusal must not repeat any word that could be a token."""
    said: list[str] = []

    def told() -> Any:
        try:
            return work()
        except (InvalidCallError, AccessDeniedError) as error:
            said.append(f"{error} {error.hint} {error.__cause__} {error.__context__}")
            raise

    found, place = attempt(told, InvalidCallError, AccessDeniedError)
    if said and place.startswith(NotAuthenticated.__name__):
        secrets = re.findall(r"[A-Za-z0-9._~+/-]{16,}", data.decode("latin-1"))
        assert not [each for each in secrets if each in said[0]], f"a refusal shows a token: {said[0][:200]}"
    assert TOKEN not in "".join(said), "a refusal shows a token"
    return found, place


def address_seeds() -> list[bytes]:
    """What brokers and people write for places: URLs, listening addresses, topics, patterns, cuts as text."""
    texts = [
        "pulsar://broker:6650,other:6651", "pulsar+ssl://[::1]:6651/", "127.0.0.1:8750", "[::1]:80", ":8080",
        "localhost:0", TOPIC, "public/default/or*", "*/[a-c]?/*", "public/default/my+topic%231", "UNBOUNDED",
        "public/default/persistent/orders:0.0=10,1.0=7", "a/b:0.0=7:12,3.1=-1", "[::ffff:127.0.0.1]:1",
    ]  # fmt: skip
    return [text.encode() for text in texts]


def change_address(rng: random.Random, pool: list[bytes]) -> bytes:
    words = ["://", "[", "]", ":", "@", ",", "/", "*", "?", "%", "..", "#", "=", "\x00", "٣", "é", "\u2066", "9" * 25]
    return mutate_text(rng, pool, words)


def check_address(data: bytes) -> Outcome:
    """Texts are taken and come back the same, or are refused by name; nothing listens on all addresses by mistake."""
    text = data.decode("utf-8", "surrogateescape")
    listen, first = attempt(lambda: parse_listen(text), InvalidCallError)
    if listen is not None:
        assert parse_listen(str(listen)) == listen, "an address doesn't come back"
        assert 0 <= listen.port <= 65535
        assert not (listen.is_loopback and listen.is_every)
    brokers, second = attempt(lambda: parse_service_url(text), InvalidCallError)
    for each in brokers or ():
        assert each.host
        assert "@" not in each.host
        assert 0 < each.port <= 65535
        assert parse_service_url(str(each)) == (each,), "a broker's address doesn't come back"
    cut, third = attempt(lambda: StreamCut.parse(text), InvalidCallError)
    if cut is not None and cut[0]:
        assert StreamCut.parse(cut[1].text(cut[0])) == cut, "a cut doesn't come back"
    patterns, fourth = attempt(lambda: TopicPatterns.of([text]), InvalidCallError)
    has = patterns is not None and patterns.have(TOPIC)
    return (first, second, third, fourth, has, attempt(lambda: stream_of_topic(text), InvalidCallError, FormatError)[1])


TARGETS = [
    Target("answers", answer_seeds, check_answer, change_answer, per_s=3000),
    Target("doors", door_seeds, check_door, change_door, per_s=8000),
    Target("addresses", address_seeds, check_address, change_address, per_s=10_000),
]
