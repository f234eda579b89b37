"""Authentication: addresses, tokens, certificates, roles, and secrecy of tokens."""

from __future__ import annotations

import copy
import pickle
import traceback
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloader.errors import AccessDeniedError, InvalidCallError
from offloader.service.auth import (
    TOKENS_MAX,
    Caller,
    Credentials,
    Guard,
    ListenAddress,
    NotAllowed,
    NotAuthenticated,
    Operation,
    Role,
    bearer_token,
    guard_for,
    open_credentials,
    parse_listen,
)
from offloader.settings import AccessSettings, Pairs, Settings

READ, WRITE, ADMIN = (f"{name}-token-0123456789" for name in ("read", "write", "admin"))
ENVIRON = {"READ": READ, "WRITE": WRITE, "ADMIN": ADMIN}
BY_NAME, ANYONE_READS = AccessSettings(tokens_without_tls=True), AccessSettings(anonymous="read")
HERE, EVERYWHERE = parse_listen("127.0.0.1:8080"), parse_listen(":8080")


def credentials() -> Credentials:
    return Credentials(
        tokens={Role.READ: ["env:READ"], Role.WRITE: ["env:WRITE"], Role.ADMIN: ["env:ADMIN"]}, environ=ENVIRON
    )


@pytest.mark.parametrize(
    ("text", "host", "port", "loopback"),
    [
        ("127.0.0.1:8080", "127.0.0.1", 8080, True),
        ("127.8.9.1:1", "127.8.9.1", 1, True),
        ("localhost:0", "127.0.0.1", 0, True),
        ("[::1]:8080", "::1", 8080, True),
        ("[::ffff:127.0.0.1]:80", "::ffff:127.0.0.1", 80, True),
        ("[::ffff:10.0.0.1]:80", "::ffff:10.0.0.1", 80, False),
        (":8080", "0.0.0.0", 8080, False),
        ("[::]:8080", "::", 8080, False),
        ("10.1.2.3:65535", "10.1.2.3", 65535, False),
        ("localhost.example.org:1", "localhost.example.org", 1, False),
        ("loopback:1", "loopback", 1, False),
    ],
)
def test_only_unambiguous_loopback_addresses_are_loopback(text: str, host: str, port: int, loopback: bool) -> None:
    address = parse_listen(text)
    assert (address, address.is_loopback) == (ListenAddress(host, port), loopback)
    assert parse_listen(str(address)) == address


@pytest.mark.parametrize(
    "text", ["", "8080", "127.0.0.1", "a:65536", "a:b", "::1:80", "[:::1]:8", "a b:1", "é:1", "a:-1"]
)
def test_invalid_address_is_refused_with_the_setting_name(text: str) -> None:
    with pytest.raises(InvalidCallError, match=r"http\.listen: .* is not a valid "):
        parse_listen(text, setting="http.listen")


def test_listening_off_loopback_needs_authentication_or_anonymous_access() -> None:
    nothing = Credentials()
    for address in (EVERYWHERE, parse_listen("[::]:1"), parse_listen("broker:1")):
        with pytest.raises(InvalidCallError, match="can be reached from other machines without authentication"):
            guard_for(address, nothing, AccessSettings(), has_tls=True)
        with pytest.raises(InvalidCallError, match="tokens would be sent over the network unencrypted"):
            guard_for(address, credentials(), AccessSettings(), has_tls=False)
        assert guard_for(address, credentials(), BY_NAME, has_tls=False).caller(None).role is None
        assert guard_for(address, credentials(), AccessSettings(), has_tls=True).caller(None).role is None
        assert guard_for(address, nothing, ANYONE_READS, has_tls=False).caller(None).role is Role.READ
    with pytest.raises(InvalidCallError, match="client certificates need TLS"):
        guard_for(HERE, Credentials(certificates={"a": Caller("", Role.READ)}), AccessSettings(), has_tls=False)


def test_every_loopback_caller_is_admin_without_configured_tokens() -> None:
    assert guard_for(HERE, Credentials(), AccessSettings(), has_tls=False).caller(None) == Caller("anyone", Role.ADMIN)
    assert guard_for(HERE, Credentials(), ANYONE_READS, has_tls=False).caller(None).role is Role.READ
    assert guard_for(HERE, credentials(), AccessSettings(), has_tls=False).caller(None).role is None
    assert Guard(Credentials()).caller(None).role is None, "without guard_for nobody comes in"


def test_each_role_includes_the_lower_ones() -> None:
    guard = Guard(credentials())
    may = {
        token: [role for role in Role if allowed(guard.caller(f"Bearer {token}"), role)]
        for token in (READ, WRITE, ADMIN)
    }
    assert may == {READ: [Role.READ], WRITE: [Role.READ, Role.WRITE], ADMIN: list(Role)}
    with pytest.raises(NotAuthenticated, match="a token or a client certificate is required"):
        guard.caller(None).may(needing(Role.READ))
    with pytest.raises(NotAllowed, match="token of env:READ has the role read, this needs admin"):
        guard.caller(f"Bearer {READ}").may(needing(Role.ADMIN))


def needing(role: Role) -> Operation:
    return Operation(about="", role=role, is_of_subscriber=True)


def allowed(caller: Caller, role: Role) -> bool:
    try:
        caller.may(needing(role))
    except NotAllowed:
        return False
    return True


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", "Bearer ", f"Basic {READ}", READ, f"Bearer {READ} x", f"Bearer {READ}é", "Bearer " + "a" * 5000],
)
def test_malformed_bearer_token_is_refused_even_where_none_is_needed(header: str) -> None:
    with pytest.raises(NotAuthenticated, match="isn't a bearer token"):
        guard_for(HERE, Credentials(), AccessSettings(), has_tls=False).caller(header)


def test_a_wrong_token_is_refused_even_where_none_is_needed() -> None:
    with pytest.raises(NotAuthenticated, match="unknown token"):
        guard_for(HERE, Credentials(), AccessSettings(), has_tls=False).caller("Bearer something-else-0123")
    assert bearer_token("bearer  abc==") == "abc=="


@pytest.mark.slow
@given(st.text(max_size=40))
def test_only_the_whole_token_is_one(text: str) -> None:
    guard = Guard(credentials())
    try:
        caller = guard.caller(f"Bearer {text}")
    except NotAuthenticated:
        assert text.strip() not in ENVIRON.values()
    else:
        assert text.strip() in ENVIRON.values()
        assert caller.role is not None


def test_new_token_is_accepted_before_the_old_one_is_removed(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"# made in May\n{READ}\n")
    known = Credentials(tokens={Role.READ: [f"file:{file}", "env:WRITE"]}, environ=ENVIRON)
    guard = Guard(known)
    file.write_text(f"{READ}\n\n{ADMIN}\r\n")
    with pytest.raises(NotAuthenticated):
        guard.caller(f"Bearer {ADMIN}")
    known.read()()
    assert {guard.caller(f"Bearer {token}").role for token in (READ, WRITE, ADMIN)} == {Role.READ}
    file.write_text(ADMIN)
    known.read()()
    with pytest.raises(NotAuthenticated):
        guard.caller(f"Bearer {READ}")
    for wrong in ("", "short", "with spaces in it, too long"):
        file.write_text(wrong)
        with pytest.raises(InvalidCallError, match="nothing was changed"):
            known.read()()
    file.unlink()
    with pytest.raises(AccessDeniedError, match="No such file"):
        known.read()()
    assert guard.caller(f"Bearer {ADMIN}").role is Role.READ, "the tokens that were good stay"


def test_bound_token_acts_for_its_subscribers_with_or_without_a_role() -> None:
    """Outside of the roles: it is no role's step, and none includes it."""
    subscribers = {"billing": "env:WRITE", "search": "env:BOUND", "audit": "env:BOUND"}
    environ = {**ENVIRON, "BOUND": "bound-token-0123456789"}
    known = Credentials(tokens={Role.WRITE: ["env:WRITE"]}, subscriber_tokens=subscribers, environ=environ)
    both, bound = known.of_token(WRITE), known.of_token(environ["BOUND"])
    assert (both.role, sorted(both.subscribers)) == (Role.WRITE, ["billing"])
    assert (bound.role, sorted(bound.subscribers)) == (None, ["audit", "search"])
    bound.may(needing(Role.ADMIN), subscriber="audit")
    for caller, role, subscriber in ((bound, Role.READ, None), (both, Role.ADMIN, "search"), (both, Role.ADMIN, None)):
        with pytest.raises(NotAllowed, match="this needs"):
            caller.may(needing(role), subscriber=subscriber)
    with pytest.raises(NotAuthenticated):
        Caller("anyone", None).may(needing(Role.ADMIN), subscriber="audit")


def test_plain_subscriber_token_in_settings_is_refused() -> None:
    with pytest.raises(InvalidCallError, match="the secret itself must not be in the settings") as raised:
        Settings.of({"access": {"subscriber_tokens": {"billing": READ}}})
    assert READ not in str(raised.value)


def test_every_credential_problem_is_reported_without_the_token(tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"secret-secret-\xff\n")
    sources = [READ, "env:NONE", f"env:{ADMIN}!", f"file:{tmp_path}/none", f"file:{binary}", "env:SHORT", "env:ODD", ""]
    environ = {**ENVIRON, "SHORT": "abc-short", "ODD": "odd token, with spaces", "SAME": READ}
    with pytest.raises(AccessDeniedError) as raised:
        Credentials(tokens={Role.READ: [*sources, "env:READ"], Role.ADMIN: ["env:SAME"]}, environ=environ)
    text = str(raised.value)
    for part in (
        "neither file:PATH nor env:NAME",
        "env:NONE holds no token",
        "none: No such file",
        "isn't ASCII",
        "the token of env:SHORT is shorter than 16",
        "the token of env:ODD has characters",
        "token of env:READ and of env:SAME: one token with two roles",
    ):
        assert part in text
    shown = text + "".join(traceback.format_exception(raised.value))
    assert not [secret for secret in (READ, ADMIN, "abc-short", "odd token", "secret-") if secret in shown]


def test_tokens_appear_in_no_representation_and_cannot_be_pickled() -> None:
    known = credentials()
    guard = Guard(known)
    caller = guard.caller(f"Bearer {ADMIN}")
    shown = repr(known) + str(known) + repr(guard) + repr(caller) + repr(vars(guard)) + repr(known._known)
    assert not [token for token in ENVIRON.values() if token in shown]
    for keep in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match="can't be pickled"):
            keep(guard)


def test_there_are_not_more_tokens_than_a_caller_is_compared_with() -> None:
    environ = {f"T{number}": f"token-number-{number:06}" for number in range(TOKENS_MAX + 1)}
    with pytest.raises(InvalidCallError, match=f"{TOKENS_MAX + 1} tokens exceed the limit of {TOKENS_MAX}"):
        Credentials(tokens={Role.READ: [f"env:{name}" for name in environ]}, environ=environ)


def test_a_certificate_has_the_role_of_its_name() -> None:
    named = Credentials(certificates={"prometheus": Caller("", Role.READ), "ops": Caller("", Role.ADMIN)})
    assert Guard(named).caller(None, ["prometheus", "ops"]) == Caller("certificate ops", Role.ADMIN)
    for names in (["stranger"], [], ["*"]):
        with pytest.raises(NotAuthenticated, match="has no configured name"):
            Guard(named).caller(None, names)
    anyone = Guard(Credentials(certificates={"*": Caller("", Role.READ), "ops": Caller("", Role.ADMIN)}))
    assert anyone.caller(None, ["stranger"]) == Caller("certificate stranger", Role.READ)
    assert anyone.caller(None, []).role is Role.READ
    assert anyone.caller(None, ["ops"]).role is Role.ADMIN
    assert anyone.caller(None, None).role is None, "no certificate was shown"
    assert Guard(Credentials()).caller(None, ["x"]).role is None, "certificates mean nothing where none is named"


def test_roles_are_known_by_name() -> None:
    assert [Role.of(name) for name in ("read", "WRITE", "admin")] == list(Role)
    with pytest.raises(InvalidCallError, match="'root' is not a role"):
        Role.of("root")


def test_the_settings_name_places_and_never_a_token() -> None:
    given = {
        "read_tokens": ["env:READ"],
        "admin_tokens": ["env:ADMIN", "env:WRITE"],
        "certificates": {"prometheus": "read"},
    }
    settings = Settings.of({"access": given}).access
    known = open_credentials(settings, ENVIRON)
    assert [known.of_token(token).role for token in (READ, WRITE, ADMIN)] == [Role.READ, Role.ADMIN, Role.ADMIN]
    assert known.of_certificate(["prometheus"]).role is Role.READ
    for wrong in (READ, [READ], ["env:"], [3], 3):
        with pytest.raises(InvalidCallError, match=r"access\.read_tokens: not a list of secret sources") as raised:
            Settings.of({"access": {"read_tokens": wrong}})
        assert READ not in str(raised.value)
    with pytest.raises(InvalidCallError, match="'root' is not a role"):
        open_credentials(AccessSettings(certificates=Pairs({"a": "root"})))
