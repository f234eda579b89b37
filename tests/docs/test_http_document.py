"""docs/reference/http.md: samples print the documented output; paths and roles are those of the program."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from offloader.service.auth import OPERATION_OF_ROUTE, OPERATIONS, Role
from offloader.service.http.routes import DESCRIPTION
from offloader.settings.layered import read_settings_file
from tests.support.http_process import ask, http_process

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "http.md").read_text(encoding="utf-8")
TOKENS = {role.name: f"{role.name.lower()}-token-0123456789" for role in Role}
BOUND, BROKER, TEAM = (f"{name}-token-0123456789" for name in ("bound", "broker", "team"))
ACCESS = {
    **{f"{name.lower()}_tokens": [f"env:{name}"] for name in TOKENS},
    "subscriber_tokens": {"nobody": "env:BOUND"},
    "broker_tokens": ["env:BROKER"],
    "stream_tokens": {"none": "env:TEAM"},
}


def fences(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.M | re.S)


@pytest.mark.slow
def test_sample_prints_documented_output(tmp_path: Path) -> None:
    [sample], [printed] = fences("python"), fences("text")
    with http_process(tmp_path) as (http, _), contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(sample.replace("http://127.0.0.1:8750", http.url), "sample", "exec"), {})
    assert out.getvalue() == printed


def test_the_settings_that_the_text_shows_are_good(tmp_path: Path) -> None:
    file = tmp_path / "offloader.toml"
    for sample in fences("toml"):
        file.write_text(sample)
        assert read_settings_file(str(file))


@pytest.mark.slow
def test_documented_paths_and_roles_are_the_programs(tmp_path: Path) -> None:
    environ = {**TOKENS, "BOUND": BOUND, "BROKER": BROKER, "TEAM": TEAM}
    with http_process(tmp_path, {"access": ACCESS}, environ=environ, streams=()) as (http, _):
        description = ask(f"{http.url}/v1/openapi.json", token=TOKENS["READ"]).json()
        rows, scoped = [], {"subscriber": BOUND, "broker": BROKER, "streams": TEAM}
        for path, methods in description["paths"].items():
            for method, about in methods.items():
                url = http.url + path.format(stream="none", subscriber="nobody", ledger=7)
                allowed = [
                    name.lower()
                    for name, token in {"-": "", **TOKENS, **scoped}.items()
                    if ask(url, method=method.upper(), token=token).status not in (401, 403)
                ]
                scopes = [scope for scope in scoped if allowed[0] != "-" and scope in allowed]
                who = ", ".join([allowed[0], *scopes])
                assert OPERATION_OF_ROUTE[f"{method.upper()} {path}"].who == who
                rows.append(f"| {method.upper()} | `{path}` | {who} | {about['description'].splitlines()[0]} |")
    found = [line for line in TEXT.splitlines() if re.match(r"\| (GET|POST|PUT|DELETE) \|", line)]
    assert found == rows
    routes = {f"{method.upper()} {path}" for path, methods in description["paths"].items() for method in methods}
    assert set(OPERATION_OF_ROUTE) == routes | {f"GET {DESCRIPTION}"}


def operations_table() -> Iterator[tuple[str, str, str, str]]:
    """Operations with role, HTTP route and Flight action, a row each."""
    for each in OPERATIONS.values():
        looks = each is OPERATIONS["look"]
        http = "every other GET" if looks else ", ".join(f"`{route}`" for route in each.http)
        yield each.about, each.who, http, ", ".join(f"`{name}`" for name in each.flight)


def test_documented_operations_are_the_checked_ones() -> None:
    rows = [f"| {' | '.join(cell or '-' for cell in row)} |" for row in operations_table()]
    found = TEXT.partition("| operation | role | HTTP | Flight |\n| --- | --- | --- | --- |\n")[2].splitlines()
    assert found[: len(rows)] == rows, "\n".join(rows)
    assert not found[len(rows)]
