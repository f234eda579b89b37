"""Tokens that are bound to streams: each route and Flight call of the table of operations shows them no other one."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from formats.entries import EntryBatch
from offloader.errors import InvalidCallError, NotFoundError
from offloader.service.auth import (
    OPERATION_OF_ACTION,
    OPERATION_OF_ROUTE,
    OPERATIONS,
    Caller,
    Credentials,
    NotAllowed,
    Role,
    covers,
    open_credentials,
    without_places,
)
from offloader.service.http.server import OffloadHttp
from offloader.service.streams import ProviderProblem
from offloader.settings import Settings
from offloader.store.open import open_store
from offloader.telemetry.prometheus import Metrics
from offloader.telemetry.recorder import Reading
from tests.support.flight_door import Door, Producer, flight_door
from tests.support.http_process import HttpProcess, ask, http_process, quoted

MINE, PARTITION = "shop/eu/persistent/orders", "shop/eu/persistent/clicks-partition-1"
OTHER, ABSENT = "secret/plans/persistent/mergers", "secret/plans/persistent/none"
TOKENS = {"TEAM": "team-token-0123456789", "ADMIN": "admin-token-0123456789", "CLICKS": "clicks-token-0123456789"}
STREAM_TOKENS = {"shop/eu/": "env:TEAM", "shop/eu/persistent/clicks": "env:CLICKS"}
ACCESS: dict[str, Any] = {"admin_tokens": ["env:ADMIN"], "stream_tokens": STREAM_TOKENS}
#: Parts of names and settings that only other streams have.
SECRETS = ("secret", "plans", "mergers")


# --- the rule --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scope", "stream", "is_covered"),
    [
        ("public/default/", "public/default/persistent/orders", True),
        ("public/default/", "public/default2/persistent/orders", False),
        ("public/default/", "public/default", False),
        ("public/", "public/default/persistent/orders", True),
        ("a/b/persistent/orders", "a/b/persistent/orders", True),
        ("a/b/persistent/orders", "a/b/persistent/orders-partition-12", True),
        ("a/b/persistent/orders", "a/b/persistent/orders-2", False),
        ("a/b/persistent/orders", "a/b/persistent/orders-partition-", False),
        ("a/b/persistent/orders", "a/b/persistent/orders/deeper", False),
        ("a/b/persistent/orders-partition-1", "a/b/persistent/orders", False),
    ],
)
def test_scope_covers_what_is_below_a_slash_or_one_stream_with_its_partitions(
    scope: str, stream: str, is_covered: bool
) -> None:
    assert covers(scope, stream) is is_covered


def test_bound_token_may_look_and_read_in_its_streams_and_nothing_else() -> None:
    caller = Credentials(stream_tokens=STREAM_TOKENS, environ=TOKENS).of_token(TOKENS["TEAM"])
    assert (caller.role, caller.streams) == (Role.READ, frozenset({"shop/eu/"}))
    for operation in OPERATIONS.values():
        if operation.role is None:
            caller.may(operation, stream=OTHER)
        elif operation.is_of_streams:
            assert operation.role is Role.READ
            caller.may(operation, stream=MINE)
            for name in (OTHER, ABSENT):
                with pytest.raises(NotFoundError, match=f"stream {name} doesn't exist for token of env:TEAM"):
                    caller.may(operation, stream=name)
        else:
            for stream in (MINE, OTHER, None):
                with pytest.raises(NotAllowed, match="bound to shop/eu/"):
                    caller.may(operation, stream=stream, subscriber="billing")


def test_bound_token_may_have_several_scopes_and_a_subscriber_in_them() -> None:
    access = Settings.of(
        {
            "access": {
                "stream_tokens": {"a/": "env:TEAM", "b/": "env:TEAM"},
                "subscriber_tokens": {"billing": "env:TEAM"},
            }
        }
    ).access
    caller = open_credentials(access, TOKENS).of_token(TOKENS["TEAM"])
    assert (caller.streams, caller.subscribers) == (frozenset({"a/", "b/"}), frozenset({"billing"}))
    publish = OPERATIONS["publish"]
    caller.may(publish, subscriber="billing", stream="b/x")
    with pytest.raises(NotFoundError):
        caller.may(publish, subscriber="billing", stream="c/x")
    with pytest.raises(NotAllowed):
        caller.may(publish, subscriber="search", stream="b/x")


@pytest.mark.parametrize("kind", ["read_tokens", "write_tokens", "admin_tokens", "broker_tokens"])
def test_one_token_is_not_for_every_stream_and_for_some(kind: str) -> None:
    access = Settings.of({"access": {kind: ["env:TEAM"], "stream_tokens": {"a/": "env:TEAM"}}}).access
    with pytest.raises(InvalidCallError, match=r"one token (for every stream and for some|with two roles)") as refused:
        open_credentials(access, TOKENS)
    assert TOKENS["TEAM"] not in str(refused.value)


@pytest.mark.parametrize("scope", ["", "/", "/a/", "a//", "manifest/"])
def test_scope_that_no_stream_name_begins_with_is_refused(scope: str) -> None:
    with pytest.raises(InvalidCallError, match=r"access\.stream_tokens"):
        Credentials(stream_tokens={scope: "env:TEAM"}, environ=TOKENS)


def test_plain_token_in_the_settings_is_refused_without_being_repeated() -> None:
    with pytest.raises(InvalidCallError) as refused:
        Settings.of({"access": {"stream_tokens": {"a/": TOKENS["TEAM"]}}})
    assert TOKENS["TEAM"] not in str(refused.value)


@pytest.mark.parametrize("labels", ["namespace", "topic"])
def test_metrics_of_a_bound_token_are_those_of_its_streams(labels: str) -> None:
    metrics = Metrics(Settings.of({"telemetry": {"labels": labels}}).telemetry)
    for stream in (MINE, PARTITION, OTHER):
        metrics.add("entries_offloaded_total", 7, stream=stream)
        metrics.observe("upload_seconds", 0.2, stream=stream)
    metrics.add("retries_total", 3)
    metrics.watch(lambda: [Reading("lag_entries", 5, stream) for stream in (MINE, OTHER)])
    team = Caller("", Role.READ, streams=frozenset({"shop/eu/"}))
    clicks = Caller("", Role.READ, streams=frozenset({"shop/eu/persistent/clicks"}))
    lines = metrics.exposition(team.sees).decode()
    assert 'offloader_lag_entries{namespace="shop/eu"' in lines
    assert "offloader_entries_offloaded_total{" in lines
    assert "offloader_upload_seconds_bucket{" in lines
    assert not [word for word in (*SECRETS, "retries_total") if word in lines]
    only = [line for line in metrics.exposition(clicks.sees).decode().splitlines() if not line.startswith("#")]
    # Without a label for each topic nothing is this topic's alone.
    assert [line for line in only if PARTITION in line] == only
    assert len(only) == (1 if labels == "topic" else 0)


# --- HTTP ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[OffloadHttp, HttpProcess]]:
    sections = {"access": ACCESS, "telemetry": {"labels": "topic"}}
    folder = tmp_path_factory.mktemp("bound")
    with http_process(folder, sections, streams=(MINE, PARTITION, OTHER), environ=TOKENS) as (http, served):
        served.found += [
            ProviderProblem(where=f"stream {OTHER}", what="is fenced"),
            ProviderProblem(where="feed pulsar", what=f"{OTHER} can't be looked up"),
            ProviderProblem(where=f"stream {MINE}", what="is stalled"),
        ]
        for stream in (MINE, OTHER):
            record = logging.makeLogRecord(
                {"levelno": logging.WARNING, "levelname": "WARNING", "msg": f"of {stream} in /srv/l.db"}
            )
            record.stream = stream
            served.recent.emit(record)
        served.recent.emit(
            logging.makeLogRecord({"levelno": logging.WARNING, "msg": f"names {OTHER} only in its text"})
        )
        yield http, served


def said(http: OffloadHttp, route: str, stream: str, token: str) -> Any:
    method, _, path = route.partition(" ")
    body = {"at": "latest"} if path.endswith("/position") else {} if method in ("POST", "PUT") else None
    url = http.url + path.format(stream=quoted(stream), subscriber="billing", ledger=1, group="team")
    return ask(url, method=method, body=body, token=TOKENS[token])


@pytest.mark.slow
@pytest.mark.parametrize("route", sorted(OPERATION_OF_ROUTE))
def test_each_route_shows_a_bound_token_its_own_streams_only(
    route: str, process: tuple[OffloadHttp, HttpProcess]
) -> None:
    http, _ = process
    operation = OPERATION_OF_ROUTE[route]
    mine, other, absent = (said(http, route, stream, "TEAM") for stream in (MINE, OTHER, ABSENT))
    is_probe, is_of_one = operation.role is None, "{stream}" in route
    if not (is_probe or operation.is_of_streams):
        assert (mine.status, other.status, absent.status) == (403, 403, 403)
        return
    assert mine.status in ((200, 503) if is_probe else (200,)), mine.body
    assert not [word for word in SECRETS if word in mine.body.decode()], "it names another stream"
    if is_of_one:
        assert (other.status, absent.status) == (404, 404)
        # Whether the stream exists isn't told.
        assert other.body.decode().replace(OTHER, "x") == absent.body.decode().replace(ABSENT, "x")
        assert said(http, route, OTHER, "ADMIN").status == 200


@pytest.mark.slow
@pytest.mark.parametrize(
    ("token", "topic", "status"),
    [
        ("TEAM", "persistent://shop/eu/orders", 200),
        ("TEAM", "persistent://shop/eu/clicks", 200),
        ("CLICKS", "persistent://shop/eu/clicks", 200),
        ("CLICKS", "persistent://shop/eu/orders", 404),
        ("TEAM", "persistent://secret/plans/mergers", 404),
    ],
)
def test_a_bound_token_names_its_streams_as_topics(
    process: tuple[OffloadHttp, HttpProcess], token: str, topic: str, status: int
) -> None:
    for what in ("", "/entries", "/timeline"):
        assert said(process[0], f"GET /v1/streams/{{stream}}{what}", topic, token).status == status


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("stream a/b isn't in file:///srv/store", "stream a/b isn't in (a place on the server)"),
        ("s3://bucket/root: no answer", "(a place on the server): no answer"),
        ("says /srv/l.db.acked, and (/srv/l.db)", "says (a place on the server), and ((a place on the server))"),
        ("sqlite:////srv/l.db is locked.", "(a place on the server) is locked."),
        ("`/v1/streams` lists persistent://a/b/c, a/b/persistent/c", None),
        ("ask http://host:8750/v1/x, 3/4 of 7:12", None),
    ],
)
def test_bound_callers_are_told_no_places(text: str, told: str | None) -> None:
    assert without_places(text) == (text if told is None else told)


def test_documents_for_bound_callers_name_no_places() -> None:
    document = {
        "stream": "a/b",
        "entries": 7,
        "store": {"url": "s3://bucket/root", "problems": ["/srv/l.db"], "up": None},
    }
    store = {"url": "(a place on the server)", "problems": ["(a place on the server)"], "up": None}
    assert Caller("", Role.READ, streams=frozenset({"a/"})).told(document) == {**document, "store": store}
    assert Caller("", Role.READ).told(document) == document


@pytest.mark.slow
def test_documents_name_the_store_to_unbound_tokens_only(
    process: tuple[OffloadHttp, HttpProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    http, served = process
    document, trouble = served.document(), f"{served.store.url} doesn't answer, says /srv/l.db"
    rows = [{**row, "last_error": trouble, "stalled": trouble} for row in document["streams"]]
    monkeypatch.setattr(served, "document", lambda: {**document, "streams": rows})
    monkeypatch.setattr(served, "health", lambda: {"store": {"up": True, "why": trouble}, "sources": {}})
    for path in ("/v1/overview", "/v1/status", "/v1/streams", f"/v1/streams/{quoted(MINE)}"):
        team, admin = (ask(http.url + path, token=TOKENS[each]) for each in ("TEAM", "ADMIN"))
        assert served.store.url in admin.body.decode(), path
        assert team.status == 200
        assert not [each for each in (served.store.url, "/srv") if each in team.body.decode()], path


@pytest.mark.slow
def test_errors_name_the_store_to_unbound_tokens_only(process: tuple[OffloadHttp, HttpProcess]) -> None:
    http, served = process
    absent = "shop/eu/persistent/none"
    team, admin = (said(http, "GET /v1/streams/{stream}/timeline", absent, each).json() for each in ("TEAM", "ADMIN"))
    assert (team["status"], team["detail"]) == (404, f"stream {absent} isn't in (a place on the server)")
    assert served.store.url in admin["detail"]
    found = {
        each: ask(f"{http.url}/v1/errors?stream={quoted(MINE)}", token=TOKENS[each]).json()["items"][0]["message"]
        for each in ("TEAM", "ADMIN")
    }
    assert found == {"TEAM": f"of {MINE} in (a place on the server)", "ADMIN": f"of {MINE} in /srv/l.db"}


@pytest.mark.slow
def test_answers_about_the_process_are_about_the_tokens_streams(process: tuple[OffloadHttp, HttpProcess]) -> None:
    http, _ = process

    def get(path: str, token: str) -> Any:
        return ask(http.url + path, token=TOKENS[token]).json()

    for token, streams in (("TEAM", [PARTITION, MINE]), ("CLICKS", [PARTITION]), ("ADMIN", [OTHER, PARTITION, MINE])):
        listed = get("/v1/streams", token)
        assert ([row["stream"] for row in listed["items"]], listed["total"]) == (streams, len(streams))
        assert [row["stream"] for row in get("/v1/status", token)["streams"]] == streams
        assert get("/v1/overview", token)["streams"]["served"] == len(streams)
    assert [row["stream"] for row in get("/v1/errors", "TEAM")["items"]] == [MINE]
    assert len(get("/v1/errors", "ADMIN")["items"]) >= 3
    assert get(f"/v1/errors?stream={quoted(OTHER)}", "TEAM")["items"] == []
    assert [each["what"] for each in get("/v1/overview", "TEAM")["problems"]] == ["is stalled"]
    assert get("/readyz", "TEAM") == {"ready": True, "problems": None}
    assert get("/v1/streams?contains=plans", "TEAM")["total"] == 0


# --- Arrow Flight ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    folder = tmp_path_factory.mktemp("bound-flight")
    for name, token in TOKENS.items():
        (folder / name).write_text(token)
    access: dict[str, Any] = {
        "access__admin_tokens": [f"file:{folder / 'ADMIN'}"],
        "access__stream_tokens": {"shop/eu/": f"file:{folder / 'TEAM'}"},
    }
    with flight_door(open_store("memory://bound-streams"), **access) as found:
        for stream in (MINE, OTHER):
            producer = Producer(found.client(), {"stream": stream}, options=bearing("ADMIN"))
            producer.news()
            producer.send(EntryBatch.build(1, 0, [b"x"]).to_arrow())
            producer.until(lambda told: told["durable"] == "1:0")
            found.producers.append(producer)
        yield found


def bearing(token: str) -> fl.FlightCallOptions:
    return fl.FlightCallOptions(headers=[(b"authorization", f"Bearer {TOKENS[token]}".encode())])


def call(door: Door, name: str, stream: str) -> str:
    """What a call or an action gives to the bound token; an error is one of the client's."""
    client, options = door.client(), bearing("TEAM")
    if name == "DoGet":
        ticket = fl.Ticket(json.dumps({"stream": stream}).encode())
        return str(client.do_get(ticket, options).read_all().to_pylist())
    if name == "GetFlightInfo":
        return str(client.get_flight_info(fl.FlightDescriptor.for_path(stream), options).app_metadata)
    if name == "ListFlights":
        return str([each.descriptor.path for each in client.list_flights(options=options)])
    if name == "ListActions":
        return str(client.list_actions(options))
    if name == "DoPut":
        return str(Producer(client, {"stream": stream}, options=options).news())
    if name == "DoExchange":
        writer, reader = client.do_exchange(fl.FlightDescriptor.for_path(stream), options)
        with writer:
            return str(reader.read_all())
    more = {
        "publish": {"subscriber": "s", "at": "latest"},
        "subscribe": {"subscriber": "s"},
        "truncate": {"before": "1:0"},
    }
    body = json.dumps({"stream": stream, **more.get(name, {})}).encode()
    return str([each.body.to_pybytes() for each in client.do_action(fl.Action(name, body), options)])


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(OPERATION_OF_ACTION))
def test_each_flight_call_shows_a_bound_token_its_own_streams_only(name: str, door: Door) -> None:
    if not OPERATION_OF_ACTION[name].is_of_streams:
        for stream in (MINE, OTHER):
            with pytest.raises(fl.FlightUnauthorizedError, match="bound to shop/eu/"):
                call(door, name, stream)
        return
    if name == "DoExchange":  # there is nothing to exchange, for anyone
        with pytest.raises(pa.ArrowException, match="DoExchange is not supported"):
            call(door, name, MINE)
        return
    found = call(door, name, MINE)
    assert not [word for word in SECRETS if word in found]
    if name in ("ListFlights", "ListActions"):
        assert (MINE in found) is (name == "ListFlights")
        return
    for stream in (OTHER, ABSENT):
        with pytest.raises(pa.ArrowException, match=f"stream {stream} doesn't exist for token of file:"):
            call(door, name, stream)


@pytest.mark.slow
def test_flight_status_of_a_bound_token_lists_its_own_streams_only(door: Door) -> None:
    def streams(token: str) -> set[str]:
        (found,) = door.client().do_action(fl.Action("status", b""), bearing(token))
        return {row["stream"] for row in json.loads(found.body.to_pybytes())["streams"]}

    assert streams("ADMIN") == {MINE, OTHER}
    assert streams("TEAM") == {MINE}


@pytest.mark.slow
def test_flight_errors_name_the_store_to_unbound_tokens_only(door: Door) -> None:
    absent = "shop/eu/persistent/none"
    ticket, descriptor = fl.Ticket(json.dumps({"stream": absent}).encode()), fl.FlightDescriptor.for_path(absent)
    gets: list[Callable[[fl.FlightCallOptions], Any]] = [
        lambda options: door.client().do_get(ticket, options).read_all(),
        lambda options: door.client().get_flight_info(descriptor, options),
    ]
    for get in gets:
        told = []
        for token in ("TEAM", "ADMIN"):
            with pytest.raises(pa.ArrowException) as refused:
                get(bearing(token))
            told.append(f"{refused.value} {getattr(refused.value, 'extra_info', b'').decode()}")
        assert "(a place on the server)" in told[0]
        assert "memory://" not in told[0]
        assert "memory://bound-streams" in told[1]
