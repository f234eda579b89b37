"""Reader groups over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from formats.documents import group_key
from offloader.groups.group_service import open_reader_groups
from tests.support.http_process import ORDERS, ask, http_process


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Any, Any]]:
    with http_process(tmp_path) as found:
        yield found


@pytest.mark.slow
def test_group_is_made_read_published_and_removed(served: tuple[Any, Any]) -> None:
    http, process = served
    group = f"{http.url}/v1/groups/team"
    assert ask(f"{http.url}/v1/groups").json() == {"items": []}
    assert ask(group).status == 404
    body = {"streams": [ORDERS], "type": "manual", "automatic_checkpoint_ms": 0}
    made = ask(group, method="PUT", body=body)
    assert (made.status, made.json()["type"], made.json()["generation"]) == (200, "manual", 0)
    assert ask(group, method="PUT", body=body).json()["generation"] == 0
    early = ask(f"{group}/checkpoints", method="POST", body={"name": "c1"})
    assert (early.status, "has no readers" in early.json()["detail"]) == (400, True)
    with open_reader_groups(process.store).open("team").join("one") as reader:
        next(reader)
        started = ask(f"{group}/checkpoints", method="POST", body={"name": "c1"})
        assert started.json()["checkpoints"] == [{"name": "c1", "kept": True, "complete": False, "behind": ["one"]}]
        assert ask(group).json()["readers"] == {"one": 1}
        publish = {"checkpoint": "c1"}
        assert ask(f"{group}/truncation-checkpoint", method="PUT", body=publish).status == 400
    assert ask(f"{group}/truncation-checkpoint", method="PUT", body=publish).json()["published"] == {
        ORDERS: {"0": "1:20"}
    }
    assert ask(group, method="DELETE").status == 200
    assert ask(group, method="DELETE").status == 404


@pytest.mark.slow
def test_damaged_group_hides_no_other(served: tuple[Any, Any]) -> None:
    http, process = served
    for name in ("bad", "good"):
        assert ask(f"{http.url}/v1/groups/{name}", method="PUT", body={"streams": [ORDERS]}).status == 200
    process.store.put(group_key("bad"), b"{}")
    bad, good = ask(f"{http.url}/v1/groups").json()["items"]
    assert (sorted(bad), bad["group"], good["streams"]) == (["error", "group"], "bad", [ORDERS])


@pytest.mark.slow
def test_changing_a_group_needs_admin(tmp_path: Path) -> None:
    tokens = {"READ": "read-token-0123456789", "WRITE": "write-token-0123456789", "ADMIN": "admin-token-0123456789"}
    access = {f"{role.lower()}_tokens": [f"env:{role}"] for role in tokens}
    with http_process(tmp_path, {"access": access}, environ=tokens) as (http, _):
        group = f"{http.url}/v1/groups/team"
        for role, status in (("READ", 403), ("WRITE", 403), ("ADMIN", 200)):
            answer = ask(group, method="PUT", body={"streams": [ORDERS]}, token=tokens[role])
            assert answer.status == status, role
        assert ask(group, token=tokens["READ"]).status == 200
        assert ask(group).status == 401
