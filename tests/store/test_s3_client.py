"""Our client of the S3 SDK knows exactly the operations that we call."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from botocore import xform_name

import offloader.store.s3 as s3
from offloader.store.base import StoreOptions
from offloader.store.s3_client import OPERATIONS, open_client
from tests.support.presence import there

KEYS: dict[str, Any] = {"access_key": "key", "secret_key": "secret"}


def called() -> set[str]:
    """Methods of the client that the store calls and that send a request."""
    found = set()
    for node in ast.walk(ast.parse(Path(there(s3.__file__)).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and re.fullmatch(r"self\._client\.\w+", ast.unparse(node.func)):
            found.add(ast.unparse(node.func).rpartition(".")[2])
    return found - {"close", "generate_presigned_url"}


def test_s3_client_loads_exactly_the_operations_it_calls() -> None:
    client = open_client(StoreOptions(endpoint_url="http://127.0.0.1:9", **KEYS))
    known = {xform_name(name) for name in OPERATIONS}
    assert called() <= known, "add it to OPERATIONS"
    assert all(callable(getattr(client, name)) for name in known)
    assert set(client.meta.service_model.operation_names) == set(OPERATIONS)
    client.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", OPERATIONS)
def test_each_operation_is_described_as_the_sdk_describes_it(name: str) -> None:
    """Nothing of an operation is lost with the others."""
    client = open_client(StoreOptions(endpoint_url="http://127.0.0.1:9", **KEYS))
    whole = botocore.session.get_session().get_service_model("s3").operation_model(name)
    ours = client.meta.service_model.operation_model(name)
    for one, other in ((ours.input_shape, whole.input_shape), (ours.output_shape, whole.output_shape)):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert described(one) == described(other)
    assert [shape.name for shape in ours.error_shapes] == [shape.name for shape in whole.error_shapes]
    client.close()


def described(shape: object, depth: int = 0) -> object:
    """A shape and what it is made of, as values."""
    members = getattr(shape, "members", {})
    member = getattr(shape, "member", None)
    parts = {name: described(each, depth + 1) for name, each in members.items()} if depth < 6 else {}
    return (
        getattr(shape, "name"),  # noqa: B009 - the SDK has no types
        getattr(shape, "type_name"),  # noqa: B009
        dict(getattr(shape, "serialization")),  # noqa: B009
        parts,
        None if member is None or depth >= 6 else described(member, depth + 1),
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("region", "address"),
    [
        ("eu-central-1", "https://s3.eu-central-1.amazonaws.com"),
        ("us-east-1", "https://s3.amazonaws.com"),
        ("cn-north-1", "https://s3.cn-north-1.amazonaws.com.cn"),
        ("us-gov-west-1", "https://s3.us-gov-west-1.amazonaws.com"),
    ],
)
def test_amazons_addresses_are_known(region: str, address: str) -> None:
    client = open_client(StoreOptions(region=region, **KEYS))
    assert client.meta.endpoint_url == address
    client.close()


def test_s3_client_can_request_temporary_credentials() -> None:
    """A role's session: the same description of services serves them."""
    from offloader.store.s3_client import described_services

    session = botocore.session.get_session()
    session.register_component("data_loader", described_services())
    session.set_credentials("key", "secret")
    for service, address in (
        ("sts", "https://sts.eu-west-1.amazonaws.com"),
        ("sso", "https://portal.sso.eu-west-1.amazonaws.com"),
        ("sso-oidc", "https://oidc.eu-west-1.amazonaws.com"),
    ):
        client = session.create_client(service, region_name="eu-west-1")
        assert client.meta.endpoint_url == address
        client.close()


@pytest.mark.process
def test_body_of_a_failed_read_is_freed_without_a_word() -> None:
    """In a cycle, as a traceback makes one; Python's development mode reports what 3.13 always does."""
    script = (
        "import gc\n"
        "from offloader.store.s3_bodies import _Whole\n"
        "found = [_Whole(9)]\n"
        "found += [found, found[0].room()]\n"
        "del found\n"
        "assert gc.collect() >= 3\n"
    )
    done = subprocess.run([sys.executable, "-X", "dev", "-c", script], capture_output=True, text=True, check=True)
    assert "BufferError" not in done.stderr
