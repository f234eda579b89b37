"""docs/HTTP.md: its samples run and print what it says, its paths are those that there are, with their roles."""

from __future__ import annotations

import contextlib
import io
import re
import tomllib
from pathlib import Path

import pytest

from offloader.service.auth import OPERATION_OF_ROUTE, Role, operations_table
from offloader.service.http.routes import DESCRIPTION
from offloader.settings import Settings
from offloader.settings.layered import read_settings_file
from tests.support.http_process import ask, http_process

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "HTTP.md").read_text(encoding="utf-8")
TOKENS = {role.name: f"{role.name.lower()}-token-0123456789" for role in Role}
BOUND = "bound-token-0123456789"
ACCESS = {
    **{f"{name.lower()}_tokens": [f"env:{name}"] for name in TOKENS},
    "subscriber_tokens": {"nobody": "env:BOUND"},
}


def fences(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.M | re.S)


def test_the_sample_runs_and_prints_what_the_text_says(tmp_path: Path) -> None:
    [sample], [printed] = fences("python"), fences("text")
    with http_process(tmp_path) as (http, _), contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(sample.replace("http://127.0.0.1:8750", http.url), "sample", "exec"), {})
    assert out.getvalue() == printed


def test_the_settings_that_the_text_shows_are_good(tmp_path: Path) -> None:
    file = tmp_path / "offloader.toml"
    for sample in fences("toml"):
        assert Settings.of(tomllib.loads(sample))
        file.write_text(sample)
        assert read_settings_file(str(file))


@pytest.mark.slow
def test_the_paths_are_those_that_there_are_with_their_roles(tmp_path: Path) -> None:
    with http_process(tmp_path, {"access": ACCESS}, environ={**TOKENS, "BOUND": BOUND}, streams=()) as (http, _):
        description = ask(f"{http.url}/v1/openapi.json", token=TOKENS["READ"]).json()
        rows = []
        for path, methods in description["paths"].items():
            for method, about in methods.items():
                url = http.url + path.replace("{stream}", "none").replace("{subscriber}", "nobody")
                allowed = [
                    name.lower()
                    for name, token in {"-": "", **TOKENS, "subscriber": BOUND}.items()
                    if ask(url, method=method.upper(), token=token).status not in (401, 403)
                ]
                is_bound = allowed[0] != "-" and "subscriber" in allowed
                who = f"{allowed[0]}, subscriber" if is_bound else allowed[0]
                assert OPERATION_OF_ROUTE[f"{method.upper()} {path}"].who == who
                rows.append(f"| {method.upper()} | `{path}` | {who} | {about['description'].splitlines()[0]} |")
    found = [line for line in TEXT.splitlines() if re.match(r"\| (GET|POST|PUT|DELETE) \|", line)]
    assert found == rows
    routes = {f"{method.upper()} {path}" for path, methods in description["paths"].items() for method in methods}
    assert set(OPERATION_OF_ROUTE) == routes | {f"GET {DESCRIPTION}"}


def test_the_table_of_operations_is_the_one_that_is_checked() -> None:
    rows = [f"| {' | '.join(cell or '-' for cell in row)} |" for row in operations_table()]
    found = TEXT.partition("| operation | role | HTTP | Flight |\n| --- | --- | --- | --- |\n")[2].splitlines()
    assert found[: len(rows)] == rows, "\n".join(rows)
    assert not found[len(rows)]
