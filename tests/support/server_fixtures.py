"""Real servers for tests: each is started once per test process, when a test first asks for it.

A server that can't be started fails the test that needs it; the error says what is missing and how to get it.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from services.servers import Endpoint, make_bucket, running
from services.toxiproxy import Toxiproxy
from services.toxiproxy import toxiproxy as run_toxiproxy
from tests.support.quick import needs

if TYPE_CHECKING:
    from offloader.store.base import ObjectStore

__all__ = ["CLOUDS", "S3_SERVERS", "S3Place", "Servers"]

#: S3 servers of the gate, and those that only ``--all`` adds.
S3_SERVERS, MORE_S3_SERVERS = ("minio",), ("moto", "versitygw")
#: Emulators of other clouds' object stores.
CLOUDS = ("fake-gcs", "azurite")
BUCKET = "offloader-tests"


@dataclass(frozen=True, slots=True)
class S3Place:
    """An empty root in a bucket (or container) of a real server, and what ``open_store`` needs for it."""

    server: str
    url: str
    options: dict[str, Any]
    endpoint: Endpoint
    bucket: str
    root: str

    def open(self, **more: Any) -> ObjectStore:
        from offloader.store.open import open_store

        return open_store(self.url, **{**self.options, **more})


class Servers:
    """The servers of a test process by name."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self._endpoints: dict[str, Endpoint] = {}

    def __getitem__(self, name: str) -> Endpoint:
        if name not in self._endpoints:
            self._endpoints[name] = self._stack.enter_context(running(name))
            make_bucket(self._endpoints[name], BUCKET)
        return self._endpoints[name]

    def place(self, name: str) -> S3Place:
        endpoint = self[name]
        root = f"root-{uuid.uuid4().hex[:12]}"
        options = {
            "endpoint_url": endpoint.url,
            "access_key": endpoint.access_key,
            "secret_key": endpoint.secret_key,
            "region": "us-east-1",
        }
        if endpoint.scheme == "gs":
            options = {"endpoint_url": endpoint.url}
        return S3Place(name, f"{endpoint.scheme}://{BUCKET}/{root}", options, endpoint, BUCKET, root)


@pytest.fixture(scope="session")
@needs("process")
def servers() -> Iterator[Servers]:
    """Real servers by name: ``servers["minio"]`` is an endpoint, ``servers.place("minio")`` an empty root."""
    with contextlib.ExitStack() as stack:
        yield Servers(stack)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes ``s3_place`` or ``cloud_place`` runs against each of those servers."""
    if "s3_place" in metafunc.fixturenames:
        more = MORE_S3_SERVERS if metafunc.config.getoption("all") else ()
        metafunc.parametrize("s3_place", (*S3_SERVERS, *more), indirect=True)
    if "cloud_place" in metafunc.fixturenames:
        metafunc.parametrize("cloud_place", CLOUDS, indirect=True)


@pytest.fixture
def s3_place(request: pytest.FixtureRequest, servers: Servers) -> S3Place:
    """An empty root in each S3 server, in turn."""
    return servers.place(request.param)


@pytest.fixture
def cloud_place(request: pytest.FixtureRequest, servers: Servers) -> S3Place:
    """An empty root in each emulator of another cloud, in turn."""
    return servers.place(request.param)


@pytest.fixture(scope="session")
@needs("process")
def toxiproxy() -> Iterator[Toxiproxy]:
    with run_toxiproxy() as program:
        yield program


@pytest.fixture(scope="session")
def one_server() -> str:
    """The name of the S3 server for tests that take too long for all of them."""
    return "minio"
