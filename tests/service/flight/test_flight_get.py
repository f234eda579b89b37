"""Reading and actions through Arrow Flight, and their roles, over real sockets."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from formats.entries import EntryBatch, Position
from offloader.errors import InvalidCallError, StoreUnavailableError
from offloader.runtime.clock import SystemClock
from offloader.service.auth import parse_listen
from offloader.service.providers.flight import require_free
from offloader.store.memory import MemoryStore
from tests.ledgers.pushing_broker import Broker
from tests.support.certificates import Authority
from tests.support.flight_door import APPEND_SCHEMA, Door, Producer, act, flight_door

ORDERS, BILLS = "shop/eu/persistent/orders", "shop/eu/persistent/bills"
_names = itertools.count()
BAD_COLUMNS = [
    json.dumps({"stream": "a/b", "columns": columns}).encode()
    for columns in ([], "payload", ["colour"], ["payload", "payload"], [7], [["payload"]])
]


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(f"flight-get-{next(_names)}", "", SystemClock())


def read(client: fl.FlightClient, **ticket: Any) -> list[tuple[Position, bytes]]:
    rows = client.do_get(fl.Ticket(json.dumps({"stream": ORDERS, **ticket}).encode())).read_all().to_pylist()
    return [(Position(row["ledger_id"], row["entry_id"]), row["payload"]) for row in rows]


def durable(door: Door, broker: Broker, stream: str = ORDERS) -> Producer:
    producer = door.put({"stream": stream})
    producer.news()
    producer.push_all(broker)
    producer.until(lambda said: said["durable"] == str(broker.end))
    return producer


@pytest.mark.slow
def test_entries_are_read_by_position_by_time_and_in_small_batches(store: MemoryStore) -> None:
    broker = Broker()
    broker.append(120)
    broker.close_ledger()
    broker.append(30)
    with flight_door(store) as door:
        durable(door, broker)
        client = door.client()
        assert read(client) == broker.entries
        assert (
            read(client, **{"from": str(broker.entries[7][0]), "to": str(broker.entries[130][0])})
            == (broker.entries[7:131])
        )
        first = broker.entries[0][0].ledger_id
        assert read(client, since_ms=1_700_000_000_000 + 100, to=f"{first}:119") == broker.entries[100:120]
        assert read(client, since_ms=2_000_000_000_000) == []
        interval = {"since_ms": 1_700_000_000_000, "until_ms": 1_700_000_000_000 + 100}
        assert read(client, **interval) == broker.entries[:100]
        assert read(client, **{"from": f"{first}:7"}, until_ms=1_700_000_000_000 + 1) == broker.entries[7:100]
        assert read(client, until_ms=1_700_000_000_000) == []
        assert read(client, until_ms=2_000_000_000_000) == broker.entries
        some = client.do_get(fl.Ticket(json.dumps({"stream": ORDERS, "columns": ["payload", "entry_id"]}).encode()))
        assert some.schema.names == ["payload", "entry_id"]
        assert some.read_all()["payload"].to_pylist() == [payload for _, payload in broker.entries]
        chunks = list(client.do_get(fl.Ticket(json.dumps({"stream": ORDERS, "batch_bytes": 500}).encode())))
        assert len(chunks) > 20
        info = client.get_flight_info(fl.FlightDescriptor.for_path(ORDERS))
        assert (info.total_records, json.loads(info.app_metadata)["last"]) == (150, str(broker.end))
        assert client.do_get(info.endpoints[0].ticket).read_all().num_rows == 150
        assert [each.descriptor.path for each in client.list_flights()] == [[ORDERS.encode()]]
        assert list(client.list_flights(b"other/")) == []
        assert client.get_schema(fl.FlightDescriptor.for_path(ORDERS)).schema.names[-1] == "payload"
    assert not [info.key for info in store.list(f"{ORDERS}/leases/").objects], "leases ended with the reads"


def test_appended_entries_are_readable_before_they_are_offloaded(store: MemoryStore, tmp_path: Path) -> None:
    hour = 60.0
    with flight_door(store, flight__ledgers=f"sqlite:///{tmp_path}/l.db", offload__segment_age_max=60 * hour) as door:
        producer = door.put({"stream": ORDERS, "mode": "append"}, APPEND_SCHEMA)
        producer.news()
        producer.send(pa.record_batch([pa.array([b"a", b"b"], pa.binary())], schema=APPEND_SCHEMA))
        assert producer.latest["durable"] is None
        client = door.client()
        assert [payload for _, payload in read(client)] == [b"a", b"b"]
        assert act(client, "offload", stream=ORDERS) == {"stream": ORDERS, "committed": "1:1"}
        assert [payload for _, payload in read(client)] == [b"a", b"b"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "ticket", [b"", b"x", b'{"stream": 1}', b'{"strom": "a/b"}', b'{"stream": "a/b", "from": 7}', *BAD_COLUMNS]
)
def test_bad_tickets_are_refused_by_name(ticket: bytes, store: MemoryStore) -> None:
    with flight_door(store) as door, pytest.raises(fl.FlightServerError, match="ticket") as refused:
        door.client().do_get(fl.Ticket(ticket))
    assert json.loads(refused.value.extra_info)["kind"] == "invalid_request"
    assert "Traceback" not in str(refused.value)


def test_refusals_reveal_no_source_code(store: MemoryStore, tmp_path: Path) -> None:
    (tmp_path / "t").write_text("a-token-of-16-letters")
    with flight_door(store, access__read_tokens=[f"file:{tmp_path}/t"]) as door:
        client = door.client()
        descriptor = fl.FlightDescriptor.for_command(b'{"stream": 7}')
        calls: dict[str, Callable[[fl.FlightCallOptions], object]] = {
            "DoGet": lambda options: client.do_get(fl.Ticket(b"x"), options).read_all(),
            "DoAction": lambda options: list(client.do_action(fl.Action("x", b"x"), options)),
            "DoExchange": lambda options: client.do_exchange(descriptor, options)[1].read_chunk(),
            "DoPut": lambda options: client.do_put(descriptor, APPEND_SCHEMA, options)[0].close(),
            "GetFlightInfo": lambda options: client.get_flight_info(descriptor, options),
            "ListFlights": lambda options: list(client.list_flights(b"", options)),
            "ListActions": lambda options: list(client.list_actions(options)),
        }
        for token in (b"", b"Bearer wrong-token-of-16-letters", b"Basic x"):
            headers = [(b"authorization", token)] if token else []
            for name, call in calls.items():
                with pytest.raises(fl.FlightUnauthenticatedError) as refused:
                    call(fl.FlightCallOptions(headers=headers))
                assert "Traceback" not in str(refused.value), name
            # Nobody is refused this: pyarrow would tell them all about it.
            options = fl.FlightCallOptions(headers=headers)
            assert client.get_schema(descriptor, options).schema.names[-1] == "payload"


@pytest.mark.slow
def test_missing_stream_or_position_is_an_error_by_name(store: MemoryStore) -> None:
    broker = Broker()
    broker.append(10)
    with flight_door(store) as door:
        durable(door, broker)
        client = door.client()
        with pytest.raises(fl.FlightServerError, match=r"NotFoundError: .*shop/eu/persistent/bills"):
            client.do_get(fl.Ticket(json.dumps({"stream": BILLS}).encode()))
        with pytest.raises(fl.FlightServerError, match="BeyondEndError"):
            read(client, **{"from": "99:0"})
        with pytest.raises(fl.FlightServerError, match="exclude each other"):
            read(client, **{"from": str(broker.end), "since_ms": 5})
        with pytest.raises(fl.FlightServerError, match="to and until_ms exclude each other"):
            read(client, to=str(broker.end), until_ms=5)
        with pytest.raises(fl.FlightServerError, match="no such action: 'drop'"):
            act(client, "drop")
        with pytest.raises(fl.FlightServerError, match="no such field: 'force'"):
            act(client, "truncate", stream=ORDERS, before="1:0", force=True)
        with pytest.raises(fl.FlightServerError, match="past the committed end"):
            act(client, "truncate", stream=ORDERS, before=f"{broker.end.ledger_id}:99")  # type: ignore[union-attr]
        with pytest.raises(fl.FlightServerError, match="the broker owns its ledgers"):
            act(client, "close-ledger", stream=ORDERS)


@pytest.mark.slow
def test_actions_truncate_and_publish_a_cut(store: MemoryStore) -> None:
    broker = Broker()
    broker.append(20)
    with flight_door(store) as door:
        producer = durable(door, broker)
        client = door.client()
        fifth = str(broker.entries[5][0])
        assert act(client, "subscribe", stream=ORDERS, subscriber="billing")["subscriber"] == "billing"
        assert act(client, "publish", stream=ORDERS, subscriber="billing", at=fifth)["stream"] == ORDERS
        assert act(client, "truncate", stream=ORDERS, before=fifth) | {"segments": 0, "entries": 0} == {
            "stream": ORDERS, "head": fifth, "moved": True, "ledgers": [], "segments": 0, "entries": 0,
        }  # fmt: skip
        assert read(client) == broker.entries[5:]
        broker.append(5)  # and it goes on
        producer.push_all(broker)
        producer.until(lambda said: said["durable"] == str(broker.end))
        assert read(client) == broker.entries[5:]
        status = act(client, "status", stream=ORDERS)
        assert (status["mode"], status["offloading"], status["durable"]) == ("push", "live", str(broker.end))
        assert {action.type for action in client.list_actions()} >= {"status", "offload", "truncate"}


# --- who may come in -------------------------------------------------------------------------------------------------


def bearing(token: str) -> fl.FlightCallOptions:
    return fl.FlightCallOptions(headers=[(b"authorization", f"Bearer {token}".encode())])


@pytest.mark.slow
def test_a_token_opens_what_its_role_allows(store: MemoryStore, tmp_path: Path) -> None:
    tokens = {role: f"{role}-token-0123456789" for role in ("read", "write", "admin")}
    settings: dict[str, Any] = {}
    for role, token in tokens.items():
        (tmp_path / role).write_text(token)
        settings[f"access__{role}_tokens"] = [f"file:{tmp_path / role}"]
    one = EntryBatch.build(1, 0, [b"x"]).to_arrow()
    with flight_door(store, **settings) as door:
        client = door.client()
        for options in (None, bearing("wrong-token-0123456789"), bearing("x")):
            with pytest.raises(fl.FlightUnauthenticatedError) as refused:
                list(client.list_flights(options=options) if options else client.list_flights())
            assert "wrong-token" not in str(refused.value)
        with pytest.raises(fl.FlightUnauthorizedError, match="role read, this needs write"):
            Producer(client, {"stream": ORDERS}, options=bearing(tokens["read"])).news()
        producer = Producer(client, {"stream": ORDERS}, options=bearing(tokens["write"]))
        producer.news()
        producer.send(one)
        producer.until(lambda said: said["durable"] == "1:0")
        producer.end()
        assert len(list(client.list_flights(options=bearing(tokens["read"])))) == 1
        truncate = fl.Action("truncate", json.dumps({"stream": ORDERS, "before": "1:0"}).encode())
        with pytest.raises(fl.FlightUnauthorizedError, match="this needs admin"):
            list(client.do_action(truncate, bearing(tokens["write"])))
        assert list(client.do_action(truncate, bearing(tokens["admin"])))
        # Rotated: the new one counts after a reload, the old one doesn't.
        (tmp_path / "read").write_text("another-token-0123456789")
        door.process.process.reload(door.process.process.streams.file)
        with pytest.raises(fl.FlightUnauthenticatedError):
            list(client.list_flights(options=bearing(tokens["read"])))
        assert len(list(client.list_flights(options=bearing("another-token-0123456789")))) == 1
        logged = json.dumps([each["message"] for each in door.process.view.errors()])
        assert not [token for token in tokens.values() if token in logged]


@pytest.mark.slow
def test_write_token_may_not_publish_for_subscribers(store: MemoryStore, tmp_path: Path) -> None:
    tokens = {role: f"{role}-token-0123456789" for role in ("write", "admin")}
    for role, token in tokens.items():
        (tmp_path / role).write_text(token)
    settings: dict[str, Any] = {f"access__{role}_tokens": [f"file:{tmp_path / role}"] for role in tokens}
    with flight_door(store, **settings) as door:
        producer = Producer(door.client(), {"stream": ORDERS}, options=bearing(tokens["write"]))
        producer.send(EntryBatch.build(1, 0, [b"x"]).to_arrow())
        producer.until(lambda said: said["durable"] == "1:0")
        producer.end()
        subscribe, publish = (
            fl.Action(name, json.dumps({"stream": ORDERS, "subscriber": "billing", **more}).encode())
            for name, more in (("subscribe", {}), ("publish", {"at": "latest"}))
        )
        assert list(door.client().do_action(subscribe, bearing(tokens["admin"])))
        with pytest.raises(fl.FlightUnauthorizedError, match="this needs admin"):
            list(door.client().do_action(publish, bearing(tokens["write"])))
        assert list(door.client().do_action(publish, bearing(tokens["admin"])))


@pytest.mark.slow
def test_data_releasing_calls_need_admin_or_the_subscribers_token(store: MemoryStore, tmp_path: Path) -> None:
    tokens = {name: f"{name}-token-0123456789" for name in ("write", "admin", "bound")}
    for name, token in tokens.items():
        (tmp_path / name).write_text(token)
    settings: dict[str, Any] = {f"access__{name}_tokens": [f"file:{tmp_path / name}"] for name in ("write", "admin")}
    settings["access__subscriber_tokens"] = {"billing": f"file:{tmp_path / 'bound'}"}
    with flight_door(store, **settings) as door:
        producer = Producer(door.client(), {"stream": ORDERS}, options=bearing(tokens["write"]))
        producer.send(EntryBatch.build(1, 0, [b"x"]).to_arrow())
        producer.until(lambda said: said["durable"] == "1:0")
        producer.end()
        client = door.client()

        def may(token: str, name: str, **body: Any) -> bool:
            action = fl.Action(name, json.dumps({"stream": ORDERS, **body}).encode())
            try:
                return bool(list(client.do_action(action, bearing(tokens[token]))))
            except fl.FlightUnauthorizedError:
                return False

        for name in ("billing", "search"):
            assert not may("write", "subscribe", subscriber=name)
            assert may("admin", "subscribe", subscriber=name)
            assert not may("write", "publish", subscriber=name, at="1:0"), "it would say that somebody else has read"
            assert may("admin", "publish", subscriber=name, at="1:0")
        assert may("bound", "subscribe", subscriber="billing", generation=1)
        assert may("bound", "publish", subscriber="billing", at="1:0", generation=1)
        assert not may("bound", "publish", subscriber="search", at="1:0")
        assert not may("bound", "status")
        assert not may("bound", "truncate", before="1:0")
        with pytest.raises(fl.FlightUnauthorizedError, match="has no role, this needs read"):
            list(client.list_flights(options=bearing(tokens["bound"])))


def test_off_loopback_it_refuses_to_start_without_authentication(store: MemoryStore) -> None:
    with (
        pytest.raises(InvalidCallError, match="can be reached from other machines"),
        flight_door(store, flight__listen="0.0.0.0:0"),
    ):
        pass
    with (
        pytest.raises(InvalidCallError, match=r"flight\.listen: 'nowhere' is not a valid listen address"),
        flight_door(store, flight__listen="nowhere"),
    ):
        pass


@pytest.mark.slow
def test_client_certificates_count_by_name_and_expired_ones_dont(store: MemoryStore, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    settings: dict[str, Any] = {
        "access__certificate_file": str(authority.issue("127.0.0.1")),
        "access__client_authorities_file": str(authority.ca_file),
        "access__certificates": {"broker-1": "write", "reader": "read"},
    }

    def client_of(door: Door, name: str, *, expired: bool = False) -> fl.FlightClient:
        pem = authority.issue(name, expired=expired).read_bytes()
        return door.client(tls_root_certs=authority.ca_file.read_bytes(), cert_chain=pem, private_key=pem)

    with flight_door(store, "grpc+tls", **settings) as door:
        producer = Producer(client_of(door, "broker-1"), {"stream": ORDERS})
        producer.news()
        producer.send(EntryBatch.build(1, 0, [b"x"]).to_arrow())
        producer.until(lambda said: said["durable"] == "1:0")
        producer.end()
        assert len(list(client_of(door, "reader").list_flights())) == 1
        with pytest.raises(fl.FlightUnauthorizedError, match="certificate reader has the role read"):
            Producer(client_of(door, "reader"), {"stream": ORDERS}).news()
        with pytest.raises(fl.FlightUnauthenticatedError, match="has no configured name"):
            list(client_of(door, "stranger").list_flights())
        for client in (
            client_of(door, "broker-1", expired=True),
            door.client(tls_root_certs=authority.ca_file.read_bytes()),  # shows none
        ):
            with pytest.raises(fl.FlightUnavailableError):
                list(client.list_flights())


def test_an_expired_certificate_of_the_process_is_seen_by_clients(store: MemoryStore, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    expired = str(authority.issue("127.0.0.1", expired=True))
    with flight_door(store, "grpc+tls", access__certificate_file=expired) as door:
        client = door.client(tls_root_certs=authority.ca_file.read_bytes())
        with pytest.raises(fl.FlightUnavailableError):
            list(client.list_flights())


def test_two_processes_cant_share_a_port_unnoticed(store: MemoryStore) -> None:
    with flight_door(store) as door:
        with pytest.raises(StoreUnavailableError, match="another process listens there"):
            require_free(door.feed.address)
        with pytest.raises(InvalidCallError, match="give an address of this machine"):
            require_free(parse_listen("203.0.113.7:1"))
