"""Requests to a stream's owner: its responses, its silence, and hosts that may get a token."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from formats.entries import Position
from offloader.errors import (
    AccessDeniedError,
    CorruptError,
    FencedError,
    InvalidCallError,
    NotFoundError,
    OffloaderError,
    OutcomeUnknownError,
    StoreUnavailableError,
)
from offloader.owner_client import OwnerClient, OwnerUnreachableError
from offloader.runtime.clock import SystemClock
from tests.support.answering_server import Answering, answering_server
from tests.support.waiting import PATIENCE_S

STREAM = "a/b c/persistent/orders"


@pytest.fixture
def answering() -> Iterator[Answering]:
    with answering_server() as bench:
        yield bench


def owner(url: str, **environ: str) -> OwnerClient:
    return OwnerClient(url, clock=SystemClock(), environ=environ)


@pytest.mark.slow
def test_owner_is_asked_until_the_offload_is_done(answering: Answering) -> None:
    not_yet = (503, {"detail": "not committed yet", "kind": "retry_later"})
    answering.answers = [not_yet, (200, {"stream": STREAM, "committed": "7:12"})]
    asked = owner(answering.url, OFFLOADER_TOKEN="secret-of-sixteen", OFFLOADER_OWNER_HOSTS="127.0.0.1")
    found = asked.offload(STREAM, Position(7, 12), within_s=PATIENCE_S)
    assert found == Position(7, 12)
    assert [each[0] for each in answering.asked] == ["/v1/streams/a%2Fb%20c%2Fpersistent%2Forders/offload"] * 2
    assert answering.asked[0][1] == {"wait_seconds": 20.0, "until": "7:12"}
    assert answering.asked[0][2] == "Bearer secret-of-sixteen"


@pytest.mark.slow
def test_a_stream_without_entries_has_no_committed_end(answering: Answering) -> None:
    answering.answers = [(200, {"committed": None})]
    assert owner(answering.url).offload(STREAM, None, within_s=18) is None
    assert answering.asked[0][1:] == ({"wait_seconds": pytest.approx(9, abs=9)}, None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "error", "said"),
    [
        ((503, {"detail": "1:5 isn't offloaded", "kind": "retry_later"}), StoreUnavailableError, "1:5 isn't offloaded"),
        ((404, {"detail": "isn't offloaded here", "kind": "not_found"}), NotFoundError, "isn't offloaded here"),
        ((409, {"detail": "stands by", "kind": "fenced", "hint": "ask that one"}), FencedError, "ask that one"),
        ((400, {"detail": "no position", "kind": "invalid_request"}), InvalidCallError, "no position"),
        ((401, {"detail": "needs a token"}), AccessDeniedError, "OFFLOADER_TOKEN"),
        ((403, {"detail": "the role is read"}), AccessDeniedError, "OFFLOADER_TOKEN"),
        ((500, {"detail": "a bug", "kind": "bug"}), OffloaderError, "a bug"),
        ((200, b"<html>"), CorruptError, "without JSON"),
        ((200, {"committed": "x"}), CorruptError, "'x' instead of a position"),
        ((302, {"detail": "elsewhere"}), OffloaderError, "elsewhere"),
    ],
)
def test_owner_errors_are_raised_with_their_own_kind(
    answering: Answering, answer: tuple[int, Any], error: type[OffloaderError], said: str
) -> None:
    answering.answers = [answer]
    with pytest.raises(error, match=said) as raised:
        owner(answering.url).offload(STREAM, None, within_s=0)
    assert type(raised.value) is error


@pytest.mark.slow
def test_unreachable_owner_raises_its_own_error(answering: Answering) -> None:
    answering.server.shutdown()
    answering.server.server_close()
    with pytest.raises(OwnerUnreachableError, match=r"no answer from .*refused"):
        owner(answering.url).offload(STREAM, None, within_s=5)


def test_token_is_never_sent_in_plain_text_nor_shown_in_errors() -> None:
    asked = owner("http://192.0.2.1:8750", OFFLOADER_TOKEN="secret-of-sixteen", OFFLOADER_OWNER_HOSTS="192.0.2.1")
    with pytest.raises(AccessDeniedError, match="the token was not sent") as raised:
        asked.offload(STREAM, None, within_s=5)
    assert "secret-of" not in f"{raised.value!r} {asked!r}"


@pytest.mark.parametrize(
    "url",
    ["ftp://x", "x", "http://", "file:///etc/passwd", "http://named@other", "http://named\\@other", "http://a/b?c"],
)
def test_invalid_owner_address_is_refused(url: str) -> None:
    with pytest.raises(InvalidCallError, match="isn't an HTTP URL"):
        owner(url)


def test_authorities_that_cannot_be_read_are_named() -> None:
    with pytest.raises(AccessDeniedError, match=r"OFFLOADER_CA_FILE: nowhere\.pem can't be read"):
        owner("https://host", OFFLOADER_CA_FILE="nowhere.pem")


@pytest.mark.slow
def test_token_is_not_sent_to_a_host_named_only_in_the_manifest(answering: Answering) -> None:
    """Every client that can write to the bucket can write an address into a manifest."""
    answering.answers = [(200, {"committed": "1:9"})]
    error: OffloaderError | None = None
    try:
        owner(answering.url, OFFLOADER_TOKEN="secret-of-sixteen").offload(STREAM, None, within_s=0)
    except AccessDeniedError as refused:
        error = refused
    assert [each for each in answering.asked if each[2] is not None] == [], "the token was sent"
    assert error is not None
    assert answering.url in error.message
    assert all(word in error.hint for word in ("access.owner_hosts", "OFFLOADER_OWNER_HOSTS", "OFFLOADER_CA_FILE"))
    assert "secret-of" not in str(error)


@pytest.mark.slow
@pytest.mark.parametrize("allowed", ["127.0.0.1", "elsewhere, 127.0.0.1", "127.0.0.1:PORT"])
def test_token_is_sent_to_a_configured_host(answering: Answering, allowed: str) -> None:
    answering.answers = [(200, {"committed": "1:9"})]
    hosts = allowed.replace("PORT", str(answering.server.server_port))
    asked = owner(answering.url, OFFLOADER_TOKEN="secret-of-sixteen", OFFLOADER_OWNER_HOSTS=hosts)
    assert asked.offload(STREAM, None, within_s=0) == Position(1, 9)
    by_setting = OwnerClient(
        answering.url,
        clock=SystemClock(),
        hosts=[each.strip() for each in hosts.split(",")],
        environ={"OFFLOADER_TOKEN": "secret-of-sixteen"},
    )
    assert by_setting.offload(STREAM, None, within_s=0) == Position(1, 9)
    assert [each[2] for each in answering.asked] == ["Bearer secret-of-sixteen"] * 2


@pytest.mark.slow
@pytest.mark.parametrize("allowed", ["127.0.0.1:1", "127.0.0", "0.0.1", "*", ""])
def test_token_is_not_sent_to_another_host_or_port(answering: Answering, allowed: str) -> None:
    asked = owner(answering.url, OFFLOADER_TOKEN="secret-of-sixteen", OFFLOADER_OWNER_HOSTS=allowed)
    with pytest.raises(AccessDeniedError, match="no request was sent"):
        asked.offload(STREAM, None, within_s=0)
    assert answering.asked == []


class FastClock(SystemClock):
    """Ten of its seconds pass in one."""

    def monotonic_s(self) -> float:
        return 10 * super().monotonic_s()

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        return super().wait(event, timeout_s / 10)


@pytest.mark.slow
def test_dripping_response_ends_the_call_at_its_deadline(answering: Answering) -> None:
    answering.answers = [(200, {"committed": "1:9", "more": "x" * 1_000_000})]  # half a day of drops
    answering.drips = True
    with pytest.raises(OutcomeUnknownError, match="didn't answer within"):
        OwnerClient(answering.url, clock=FastClock(), environ={}).offload(STREAM, None, within_s=0)
