"""The OpenAPI description against the HTTP interface: every allowed request gets a described response."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance

from tests.service.http.test_schemas_description import TOKEN
from tests.service.http.test_schemas_description import served as served
from tests.support.http_process import ORDERS, ask, quoted
from tests.support.waiting import PATIENCE_S

EXAMPLES = 4


def described(http: Any) -> Any:
    return schemathesis.openapi.from_dict(ask(f"{http.url}/v1/openapi.json", token=TOKEN).json())


CHECKS = [not_a_server_error, content_type_conformance, response_schema_conformance]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "stream"),
    [(GenerationMode.POSITIVE, None), (GenerationMode.POSITIVE, ORDERS), (GenerationMode.NEGATIVE, ORDERS)],
    ids=["any-stream", "a-stream", "wrong"],
)
def test_any_request_gets_a_response_as_described(served: Any, mode: GenerationMode, stream: str | None) -> None:
    """Valid and invalid requests: no response is a server error, and each has its described shape."""
    http, _ = served
    seen = set()
    for found in described(http).get_all_operations():
        operation = found.ok()
        if stream and "{stream}" not in operation.path:
            continue
        if mode is GenerationMode.NEGATIVE and not (list(operation.iter_parameters()) or operation.body):
            continue

        @given(case=operation.as_strategy(mode, path_parameters={"stream": stream} if stream else None))
        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        def run(case: Any) -> None:
            of_ledger = "{ledger}" in case.path
            if mode is GenerationMode.POSITIVE and of_ledger and isinstance(case.body, dict):
                case.body["wait_seconds"] = 0  # for what never comes
            answer = case.call(base_url=http.url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=PATIENCE_S)
            seen.add(answer.status_code)
            # A ledger that is still open is asked for again later.
            is_later = of_ledger and answer.status_code == 503
            case.validate_response(answer, checks=CHECKS[1:] if is_later else CHECKS)

        run()
    assert seen & {200, 404}
    assert mode is GenerationMode.POSITIVE or 400 in seen
    assert ask(f"{http.url}/v1/streams/{quoted(ORDERS)}", token=TOKEN).status == 200
