"""The OpenAPI description of the HTTP interface."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.http_process import ask, http_process

TOKEN = "admin-token-0123456789"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    access = {"admin_tokens": ["env:ADMIN"]}
    with http_process(tmp_path_factory.mktemp("described"), {"access": access}, environ={"ADMIN": TOKEN}) as found:
        yield found


@pytest.mark.slow
def test_description_has_no_secret_and_documents_the_token(served: Any) -> None:
    http, _ = served
    text = ask(f"{http.url}/v1/openapi.json", token=TOKEN).body.decode()
    found = json.loads(text)
    assert found["openapi"].startswith("3.1")
    assert found["security"] == [{"token": []}]
    assert found["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    assert str(Path.cwd()) not in text
    for path, methods in found["paths"].items():
        for method, about in methods.items():
            assert about["description"], f"{method} {path}"
            assert "ProblemDetails" in json.dumps(about["responses"].get("404", about["responses"].get("503")))
