"""Access over HTTP and TLS, and secrecy of tokens."""

from __future__ import annotations

import json
import logging
import re
import signal
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from offloader.errors import AccessDeniedError, InvalidCallError
from offloader.runtime.clock import SystemClock
from offloader.service.auth import open_credentials, server_tls
from offloader.service.http.server import OffloadHttp
from offloader.settings import AccessSettings, Pairs
from offloader.store.memory import MemoryStore
from services.servers import free_port
from tests.support.certificates import Authority
from tests.support.http_process import ORDERS, HttpProcess, ask, exchange, http_process, quoted
from tests.support.served import HeldFeed, serving, settings_file
from tests.support.serving_processes import Serving
from tests.support.waiting import eventually

BOUND = "bound-secret-0123456789"
TOKENS = {"READ": "read-secret-0123456789", "WRITE": "write-secret-0123456789", "ADMIN": "admin-secret-0123456789"}
ACCESS: dict[str, Any] = {f"{name.lower()}_tokens": [f"env:{name}"] for name in TOKENS}
STREAM = f"/v1/streams/{quoted(ORDERS)}"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[OffloadHttp, HttpProcess]]:
    folder = tmp_path_factory.mktemp("guarded")
    with http_process(folder, {"access": ACCESS}, environ=TOKENS) as found:
        yield found


@pytest.mark.slow
def test_health_check_and_page_need_no_token(guarded: Any) -> None:
    http, _ = guarded
    assert ask(f"{http.url}/healthz").json() == {"status": "ok"}
    assert ask(f"{http.url}/readyz").json() == {"ready": True, "problems": None}
    assert ask(f"{http.url}/").status == 200
    for path in ("/metrics", "/v1/overview", "/v1/openapi.json", STREAM, "/v1/streams", "/v1/config"):
        answer = ask(f"{http.url}{path}")
        assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert answer.json()["kind"] == "denied"


@pytest.mark.slow
def test_wrong_token_is_refused_wherever_a_token_is_needed(guarded: Any) -> None:
    http, _ = guarded
    for token in ("wrong-secret-0123456789", TOKENS["READ"][:-1], TOKENS["READ"] + "0", TOKENS["READ"].upper()):
        assert ask(f"{http.url}/v1/overview", token=token).status == 401
        assert ask(f"{http.url}/readyz", token=token).json()["problems"] is None
    basic = {"Authorization": "Basic " + TOKENS["READ"]}
    assert ask(f"{http.url}/v1/overview", headers=basic).status == 401
    twice = f"Authorization: Bearer {TOKENS['READ']}\r\n" * 2
    raw = exchange(http, f"GET /v1/overview HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{twice}\r\n".encode())
    assert raw.startswith(b"HTTP/1.1 400 ")


@pytest.mark.slow
def test_each_path_wants_its_role(guarded: Any) -> None:
    """Every described path, requested with every role."""
    http, _ = guarded
    description = ask(f"{http.url}/v1/openapi.json", token=TOKENS["READ"]).json()
    changing = {"post": "WRITE", "put": "ADMIN", "delete": "ADMIN"}
    order = list(TOKENS)
    seen = set()
    for path, methods in description["paths"].items():
        for method in methods:
            # What lets data go: also publishing.
            releases = method == "post" and path.endswith(("/cleanup", "/truncate"))
            is_admins = releases or path.endswith("/position") or "{ledger}" in path
            is_admins |= (method, path[:10]) == ("post", "/v1/groups")
            wanted = "ADMIN" if is_admins else changing.get(method, "READ")
            seen.add(wanted)
            url = http.url + path.format(stream="no%2Fstream", subscriber="nobody", ledger=7, group="none")
            for name, token in TOKENS.items():
                answer = ask(url, method=method.upper(), token=token)
                allowed = order.index(name) >= order.index(wanted)
                assert (answer.status == 403) is not allowed, f"{method} {path} as {name}: {answer}"
    assert seen == set(TOKENS)


@pytest.mark.parametrize(("role", "may"), [("READ", set[str]()), ("WRITE", {"offload", "pause"}), ("ADMIN", ...)])
def test_overview_names_the_operations_of_its_caller(guarded: Any, role: str, may: Any) -> None:
    http, _ = guarded
    found = set(ask(f"{http.url}/v1/overview", token=TOKENS[role]).json()["may"])
    asked = {"offload", "pause", "clean"}
    assert found & asked == (asked if may is ... else may)
    assert {"look", "read"} <= found


def test_commands_of_a_page_from_another_site_are_refused(guarded: Any) -> None:
    http, _ = guarded
    foreign = [{"Origin": "https://elsewhere.example"}, {"Sec-Fetch-Site": "cross-site"}]
    for command in ("pause", "resume", "offload", "cleanup"):
        for headers in foreign:
            url = f"{http.url}{STREAM}/{command}"
            answer = ask(url, method="POST", body={}, token=TOKENS["ADMIN"], headers=headers)
            assert (answer.status, answer.json()["detail"]) == (
                403, "a web page of another site may ask for nothing here"
            )  # fmt: skip


@pytest.mark.slow
def test_data_releasing_requests_need_admin(guarded: Any) -> None:
    """A producer may not acknowledge entries for a subscriber."""
    http, _ = guarded
    subscriber = f"{http.url}{STREAM}/subscribers/billing"
    asked = [
        ("PUT", subscriber, {}),
        ("PUT", subscriber, {"generation": 7}),
        ("PUT", f"{subscriber}/position", {"at": "latest"}),
        ("POST", f"{http.url}{STREAM}/truncate", {"before": "1:0"}),
    ]
    for name, statuses in (("WRITE", [403] * 4), ("ADMIN", [200] * 4)):
        found = [ask(url, method=method, body=body, token=TOKENS[name]).status for method, url, body in asked]
        assert found == statuses, name


@pytest.mark.slow
def test_bound_token_may_register_and_publish_only_its_subscriber(
    tmp_path: Path,
) -> None:
    access = {**ACCESS, "subscriber_tokens": {"billing": "env:BOUND"}}
    with http_process(tmp_path, {"access": access}, environ={**TOKENS, "BOUND": BOUND}) as (http, _):
        description = ask(f"{http.url}/v1/openapi.json", token=TOKENS["READ"]).json()
        allowed = set()
        for name in ("billing", "search"):
            for path, methods in description["paths"].items():
                for method in methods:
                    url = http.url + path.replace("{stream}", quoted(ORDERS)).replace("{subscriber}", name)
                    body = {"at": "latest"} if path.endswith("/position") else None
                    answer = ask(url, method=method.upper(), token=BOUND, body=body)
                    if answer.status not in (401, 403):
                        allowed.add((name, method, path.rpartition("/")[2]))
        mine = {("billing", "put", "{subscriber}"), ("billing", "put", "position")}
        probes = {(name, "get", path) for name in ("billing", "search") for path in ("healthz", "readyz")}
        assert allowed == mine | probes
        # Its name counts as it is written in the path.
        escaped = f"{http.url}{STREAM}/subscribers/%62illing/position"
        assert ask(escaped, method="PUT", body={"at": "latest"}, token=BOUND).status == 200


def test_a_certificate_may_be_bound_to_a_subscriber_too() -> None:
    known = open_credentials(
        AccessSettings(
            certificates=Pairs({"spark": "read subscriber:daily report", "job": "subscriber:billing", "*": "read"})
        )
    )
    found = {name: known.of_certificate([name]) for name in ("spark", "job", "other")}
    assert {name: (each.role and each.role.name, set(each.subscribers)) for name, each in found.items()} == {
        "spark": ("READ", {"daily report"}),
        "job": ("READ", {"billing"}),
        "other": ("READ", set()),
    }
    with pytest.raises(InvalidCallError, match="is not a role"):
        open_credentials(AccessSettings(certificates=Pairs({"spark": "subscriber:"})))


@pytest.mark.slow
def test_tokens_are_reloaded_while_serving(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(TOKENS["READ"])
    with http_process(tmp_path, {"access": {"read_tokens": [f"file:{file}"]}}, streams=()) as (http, process):
        file.write_text(TOKENS["ADMIN"])
        process.credentials.read()()
        assert ask(f"{http.url}/v1/overview", token=TOKENS["READ"]).status == 401
        assert ask(f"{http.url}/v1/overview", token=TOKENS["ADMIN"]).status == 200
        file.write_text("")
        with pytest.raises(InvalidCallError, match="holds no token"):
            process.credentials.read()()
        assert ask(f"{http.url}/v1/overview", token=TOKENS["ADMIN"]).status == 200


@pytest.mark.slow
def test_serving_off_loopback_needs_authentication(tmp_path: Path) -> None:
    for access, words in (
        ({}, "can be reached from other machines without authentication"),
        (ACCESS, "tokens would be sent over the network unencrypted"),
    ):
        with (
            pytest.raises(InvalidCallError, match=words),
            http_process(tmp_path, {"access": access, "http": {"listen": "0.0.0.0:0"}}, streams=(), environ=TOKENS),
        ):
            pass
    by_name: dict[str, dict[str, Any]] = {"access": {"anonymous": "read"}, "http": {"listen": "0.0.0.0:0"}}
    with http_process(tmp_path, by_name) as (http, _):
        url = f"http://127.0.0.1:{http.address.port}"
        assert ask(f"{url}{STREAM}").status == 200
        assert ask(f"{url}{STREAM}/pause", method="POST").status == 403


@pytest.mark.slow
def test_unknown_host_header_is_refused_for_anonymous_access_off_loopback(tmp_path: Path) -> None:
    """A page whose name resolves to our address could read what its visitor may read anonymously."""
    settings: dict[str, dict[str, Any]] = {
        "access": {"anonymous": "read", "hosts": ["offloader.example"]},
        "serve": {"url": "http://Served.Example:80"},
        "http": {"listen": "0.0.0.0:0"},
    }
    by_name: dict[str, dict[str, Any]] = {"access": {"anonymous": "read"}, "http": settings["http"]}
    with http_process(tmp_path, by_name) as (http, _):
        url = f"http://127.0.0.1:{http.address.port}/v1/overview"
        for host, status in (("evil.example", 421), ("evil.example:80", 421), ("10.1.2.3", 200), ("localhost", 200)):
            assert ask(url, headers={"Host": host}).status == status, host
    with http_process(tmp_path, settings) as (http, _):
        url = f"http://127.0.0.1:{http.address.port}/v1/overview"
        for name in ("offloader.example", "OFFLOADER.example:8750", "served.example", socket.gethostname()):
            assert ask(url, headers={"Host": name}).status == 200, name
        assert ask(url, headers={"Host": "example"}).status == 421


@pytest.mark.slow
def test_cross_site_requests_are_refused_on_loopback(tmp_path: Path) -> None:
    """On loopback without tokens every local process is trusted, but no web page."""
    with http_process(tmp_path) as (http, _):
        port = http.address.port
        for host, status in ((f"evil.example:{port}", 421), (f"localhost:{port}", 200), ("[::1]", 200), ("", 421)):
            assert ask(f"{http.url}/v1/overview", headers={"Host": host}).status == status
        for headers in ({"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}):
            answer = ask(f"{http.url}{STREAM}/pause", method="POST", headers=headers)
            assert (answer.status, answer.json()["detail"]) == (
                403,
                "a web page of another site may ask for nothing here",
            )
        linked = {"Sec-Fetch-Site": "cross-site"}
        assert ask(f"{http.url}{STREAM}/orphans", headers=linked).status == 403
        assert ask(f"{http.url}/", headers=linked).status == 200
        own = {"Origin": http.url, "Sec-Fetch-Site": "same-origin"}
        assert ask(f"{http.url}{STREAM}/pause", method="POST", headers=own).status == 200


# --- TLS -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def client_tls(authority: Authority, certificate: Path | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority.ca_file)
    if certificate is not None:
        context.load_cert_chain(certificate)
    return context


@pytest.mark.slow
def test_clients_are_known_by_their_certificates(tmp_path: Path, authority: Authority) -> None:
    access = {
        "certificate_file": str(authority.issue("127.0.0.1")),
        "client_authorities_file": str(authority.ca_file),
        "certificates": {"prometheus": "read", "ops.example.org": "admin"},
    }
    (tmp_path / "stranger").mkdir()
    strangers = Authority(tmp_path / "stranger")
    with http_process(tmp_path, {"access": access}) as (http, _):
        assert http.url.startswith("https://")

        def status(certificate: Path | None, method: str = "GET", path: str = STREAM) -> int:
            return ask(f"{http.url}{path}", method=method, tls=client_tls(authority, certificate)).status

        reader = authority.issue("prometheus")
        assert status(reader) == 200
        assert status(reader, "POST", f"{STREAM}/pause") == 403
        assert status(authority.issue("ops.example.org"), "POST", f"{STREAM}/pause") == 200
        assert status(authority.issue("somebody")) == 401
        for refused in (None, authority.issue("prometheus", expired=True), strangers.issue("prometheus")):
            with pytest.raises((ssl.SSLError, OSError)):
                status(refused)
        with pytest.raises((ssl.SSLError, OSError)):
            ask(f"http://{http.address}/healthz")
        assert status(reader) == 200, "those who were refused disturbed nobody"


@pytest.mark.slow
def test_a_token_or_a_certificate_is_enough_where_both_are_known(tmp_path: Path, authority: Authority) -> None:
    access = {
        **ACCESS,
        "certificate_file": str(authority.issue("127.0.0.1")),
        "client_authorities_file": str(authority.ca_file),
        "certificates": {"*": "read"},
    }
    with http_process(tmp_path, {"access": access}, environ=TOKENS) as (http, _):
        plain = client_tls(authority)
        assert ask(f"{http.url}{STREAM}", tls=plain).status == 401
        assert ask(f"{http.url}{STREAM}", tls=plain, token=TOKENS["READ"]).status == 200
        shown = client_tls(authority, authority.issue("anybody"))
        assert ask(f"{http.url}{STREAM}", tls=shown).status == 200
        assert ask(f"{http.url}{STREAM}/pause", method="POST", tls=shown).status == 403
        assert ask(f"{http.url}{STREAM}/pause", method="POST", tls=shown, token=TOKENS["WRITE"]).status == 200


@pytest.mark.slow
def test_expired_server_certificate_is_replaced_while_serving(tmp_path: Path, authority: Authority) -> None:
    file = tmp_path / "tls.pem"
    file.write_bytes(authority.issue("127.0.0.1", expired=True).read_bytes())
    with http_process(tmp_path, {"access": {"certificate_file": str(file)}}, streams=()) as (http, _):
        with pytest.raises(OSError, match="certificate has expired"):
            ask(f"{http.url}/healthz", tls=client_tls(authority))
        file.write_text("no certificate")
        with pytest.raises(InvalidCallError, match=r"access\.certificate_file and access\.key_file"):
            http.prepare_reload()
        file.write_bytes(authority.issue("127.0.0.1").read_bytes())
        http.prepare_reload()()
        assert ask(f"{http.url}/healthz", tls=client_tls(authority)).status == 200


@pytest.mark.slow
def test_a_reload_with_an_invalid_certificate_changes_no_token(tmp_path: Path, authority: Authority) -> None:
    tokens, certificate = tmp_path / "tokens", tmp_path / "tls.pem"
    tokens.write_text(TOKENS["READ"])
    certificate.write_bytes(authority.issue("127.0.0.1").read_bytes())
    url, tls = f"https://127.0.0.1:{(port := free_port())}", client_tls(authority)
    file = settings_file(
        http__listen=f"127.0.0.1:{port}",
        access__read_tokens=(f"file:{tokens}",),
        access__certificate_file=str(certificate),
    )

    def statuses() -> list[int]:
        return [ask(f"{url}/v1/overview", token=TOKENS[name], tls=tls).status for name in ("READ", "ADMIN")]

    with serving(MemoryStore("reloaded-doors", "", SystemClock()), file, HeldFeed()) as assembled:
        tokens.write_text(TOKENS["ADMIN"])
        certificate.write_text("no certificate")
        with pytest.raises(InvalidCallError, match=r"access\.certificate_file and access\.key_file"):
            assembled.process.reload(file)
        assert statuses() == [200, 401]
        certificate.write_bytes(authority.issue("127.0.0.1").read_bytes())
        assembled.process.reload(file)
        assert statuses() == [401, 200]


def test_invalid_tls_settings_are_refused(tmp_path: Path, authority: Authority) -> None:
    good = str(authority.issue("127.0.0.1"))
    other_key = str(authority.issue("other"))
    (tmp_path / "no.pem").write_text("nothing")
    wrong = [
        ({"key_file": good}, InvalidCallError, "key_file has no effect without"),
        ({"client_authorities_file": good}, InvalidCallError, "client_authorities_file has no effect without"),
        (
            {"certificate_file": good, "client_authorities_file": str(authority.ca_file)},
            InvalidCallError,
            "one has no effect",
        ),
        ({"certificate_file": good, "certificates": Pairs({"a": "read"})}, InvalidCallError, "one has no effect"),
        (
            {"certificate_file": good, "key_file": other_key},
            InvalidCallError,
            "KEY_VALUES_MISMATCH|key values mismatch",
        ),
        ({"certificate_file": str(tmp_path / "no.pem")}, InvalidCallError, "no.pem"),
        ({"certificate_file": str(tmp_path / "none.pem")}, AccessDeniedError, "No such file"),
    ]
    for given, kind, words in wrong:
        with pytest.raises(kind, match=words):
            server_tls(AccessSettings(**given))  # type: ignore[arg-type]
    assert server_tls(AccessSettings()) is None


# --- secrets ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_no_secret_is_in_any_answer_log_or_representation(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    file = tmp_path / "tokens"
    file.write_text(TOKENS["WRITE"])
    access = {**ACCESS, "write_tokens": [f"file:{file}"]}
    with http_process(tmp_path, {"access": access}, environ=TOKENS) as (http, process):
        shown = [repr(http), repr(vars(http)), json.dumps(process.document(), default=str)]
        paths = ["/v1/config", "/v1/status", "/v1/overview", "/v1/openapi.json", "/v1/errors", "/metrics", "/nothing"]
        for path in paths:
            for token in (*TOKENS.values(), TOKENS["READ"][:-1]):
                answer = ask(f"{http.url}{path}", token=token)
                shown.append(answer.body.decode() + repr(answer.headers))
        shown.append(
            repr(ask(f"{http.url}/v1/streams?contains={TOKENS['READ'][:-1]}&limit=x", token=TOKENS["READ"]).headers)
        )
        odd = f"Authorization: Bearer {TOKENS['READ']}\x01\r\n"
        bad = exchange(http, f"GET /v1/overview HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{odd}\r\n".encode())
        shown.append(bad.decode())
        shown += [ask(f"{http.url}{STREAM}/offload", method="POST", body={TOKENS["READ"]: 1}).body.decode()]
        file.write_text(TOKENS["WRITE"] + " spoiled")
        with pytest.raises(InvalidCallError) as raised:
            process.credentials.read()()
        shown.append(str(raised.value))
    shown += [record.getMessage() + repr(vars(record)) for record in caplog.records]
    secrets = [*TOKENS.values(), TOKENS["READ"][:-1]]
    assert not [text for text in shown for secret in secrets if secret in text]


@pytest.mark.process
def test_serving_process_shows_no_secret_and_reloads_its_own(tmp_path: Path, authority: Authority) -> None:
    """``offloader serve`` with TLS and tokens of both kinds: its list entry, its log, its answers, and SIGHUP."""
    certificate, tokens, config = tmp_path / "tls.pem", tmp_path / "tokens", tmp_path / "offloader.toml"
    certificate.write_bytes(authority.issue("127.0.0.1").read_bytes())
    tokens.write_text(TOKENS["ADMIN"])
    port = free_port()
    config.write_text(
        f"""
        [serve]
        store = "file://{tmp_path}/store"
        log_level = "debug"
        [http]
        listen = "127.0.0.1:{port}"
        [access]
        read_tokens = ["env:READ"]
        admin_tokens = ["file:{tokens}"]
        certificate_file = "{certificate}"
        """
    )
    url, tls, shown = f"https://127.0.0.1:{port}", client_tls(authority), b""
    with Serving(config, {"READ": TOKENS["READ"]}) as serving:
        for token in (TOKENS["READ"], TOKENS["ADMIN"], TOKENS["WRITE"]):
            for path in ("/v1/config", "/v1/status", "/v1/overview", "/v1/nothing"):
                shown += ask(f"{url}{path}", token=token, tls=tls).body
        assert b"env:READ" in shown, "it says where they are"
        shown += Path(f"/proc/{serving.process.pid}/cmdline").read_bytes()
        tokens.write_text(TOKENS["WRITE"])
        serving.signal(signal.SIGHUP)
        serving.logged("reloaded")
        statuses = [ask(f"{url}/v1/overview", token=TOKENS[name], tls=tls).status for name in ("ADMIN", "WRITE")]
        assert statuses == [401, 200]
        tokens.write_text("too short")
        serving.signal(signal.SIGHUP)
        serving.logged("reload_refused")
        assert ask(f"{url}/v1/overview", token=TOKENS["WRITE"], tls=tls).status == 200
        problems = ask(f"{url}/readyz", token=TOKENS["WRITE"], tls=tls).json()["problems"]
        assert any("shorter than 16 characters" in each["what"] for each in problems)
    shown += json.dumps(serving.lines).encode()
    assert not [secret for secret in (*TOKENS.values(), "too short") if secret.encode() in shown]


def test_caller_of_a_change_is_logged(guarded: Any, caplog: pytest.LogCaptureFixture) -> None:
    http, _ = guarded
    with caplog.at_level(logging.INFO, "offloader"):
        ask(f"{http.url}{STREAM}/offload", method="POST", token=TOKENS["WRITE"])
        eventually(lambda: any(getattr(each, "event", "") == "asked" for each in caplog.records))
    [told] = [each for each in caplog.records if getattr(each, "event", "") == "asked"]
    assert re.fullmatch(rf"offload of stream {ORDERS}, requested by token of env:WRITE", told.getMessage())
