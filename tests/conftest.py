"""Real servers for the tests, and the line at the end of a run that says which stores were exercised.

``OFFLOADER_REQUIRE_SERVICES=minio,versitygw,pulsar,chromium`` makes a missing one a failure. Without it, tests against
what can't be had here aren't collected, and the end of the run says which, why, and how to get it.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import os
import sys
import typing
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))

from offloader.runtime import system
from services.binaries import find_binary
from services.broker_plugin import built_nar
from services.chromium import find_chromium
from services.iceberg_reader import find_reader
from services.pulsar.build import RELEASES, find_place
from services.servers import SERVERS, Endpoint, Unavailable, given, make_bucket, running
from services.toxiproxy import Toxiproxy
from services.toxiproxy import toxiproxy as run_toxiproxy
from tests.simulation.seeds import VARIABLE as SEEDS_VARIABLE
from tests.simulation.seeds import first_seed
from tests.support.jvm_archive import speed_up
from tests.support.lanes import Lanes, in_order_of_length
from tests.support.memory_files import use_memory_for_files
from tests.support.quick import Guard, fewer_examples, is_quick, is_wholly_excluded, mark_needs, needs

if TYPE_CHECKING:
    from offloader.store.base import ObjectStore

HERE = Path(__file__).resolve().parent
#: Servers that every test of an S3 store runs against; rclone is the one that must be refused.
S3_SERVERS = ("moto", "minio", "versitygw")
#: What is needed beside stores.
OTHERS = ("pulsar", "plugin", "chromium", "toxiproxy", "iceberg-reader")
#: Stand-ins for other clouds.
CLOUDS = ("fake-gcs", "azurite")
BUCKET = "offloader-tests"
#: Variables that a command sets for its own process.
_ALLOCATOR = (*system.ALLOCATOR, *system.NO_IDLE_THREADS, "ARROW_DEFAULT_MEMORY_POOL")

# How long an example takes says something about the machine, nothing about the code: benchmarks measure that.
hypothesis.settings.register_profile("untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("untimed")
# A run that decides whether a change lands gives the same answer each time; developers' runs look for new cases.
hypothesis.settings.register_profile("ci", derandomize=True, print_blob=True, database=None)
if os.environ.get("CI"):
    hypothesis.settings.load_profile("ci")

_required = tuple(name for name in os.environ.get("OFFLOADER_REQUIRE_SERVICES", "").replace(" ", "").split(",") if name)
_missing: dict[str, str] = {}


def _find(name: str, *, build: bool) -> None:
    """Raises ``Unavailable``, with the reason, where a server can't be had."""
    if name == "chromium":
        find_chromium()
        return
    if name == "iceberg-reader":
        find_reader(build=build)
        return
    if name == "plugin":
        built_nar(build=build)
        name = "pulsar"  # who loads it
    if name == "pulsar":
        find_place(build=build)
        name = "minio"  # what it offloads to
    if name == "toxiproxy" or (name in ("minio", "versitygw", *CLOUDS) and given(name) is None):
        find_binary(name, build=build)


def _can_be_had(name: str) -> bool:
    if name in _required:
        return True
    try:
        _find(name, build=False)
    except Unavailable as error:
        _missing[name] = str(error)
        return False
    return True


_available = tuple(name for name in S3_SERVERS if _can_be_had(name))
_clouds = tuple(name for name in CLOUDS if _can_be_had(name))
#: Folders and modules of tests that need a server which can't be had here: of a real broker, in a real browser, behind
#: a proxy that does damage, and of the comparison with peers. A quick run takes what needs no server out of them.
_without_server = frozenset(
    folder
    for name, folder in (
        ("pulsar", "interop"),
        ("pulsar", "browser/test_page_broker.py"),
        ("plugin", "plugin"),
        ("chromium", "browser"),
        ("toxiproxy", "chaos"),
        ("minio", "peers"),
        ("iceberg-reader", "iceberg/test_iceberg_by_java.py"),
    )
    if not _can_be_had(name)
)


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
    """Starts each server once per test process, when it is first asked for."""

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


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--brokers", choices=("one", "all"), default="one", help="releases that have the broker plugin")
    parser.addoption(
        "--messages", type=int, default=2_000, help="of a topic that consumers read through the broker plugin"
    )
    parser.addoption("--quick", action="store_true", help="only tests that start no process and end soon")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if not config.getoption("quick"):
        ignored = any(collection_path == HERE / each for each in _without_server)
    else:
        ignored = collection_path.match("test_*.py") and is_wholly_excluded(collection_path)
    return ignored or None


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("quick"):
        config.pluginmanager.register(Guard(), "quick-guard")
    unknown = [name for name in _required if name not in (*SERVERS, *OTHERS)]
    if unknown:
        raise pytest.UsageError(f"OFFLOADER_REQUIRE_SERVICES: no such server: {', '.join(unknown)}")
    # Of this process it can't be taken back after a command.
    system.HEAP = ()  # type: ignore[assignment]
    _remember_protocols()
    speed_up()
    use_memory_for_files()
    if hasattr(config, "workerinput"):
        return
    os.environ.setdefault(SEEDS_VARIABLE, str(first_seed()))  # the same for all workers, whatever midnight does
    for name in _required:
        # Before the first test: building takes minutes, and a test has a time limit. What fails here fails its tests.
        with contextlib.suppress(Unavailable):
            _find(name, build=True)
    if config.getoption("brokers") == "all":
        for release in RELEASES:
            find_place(release, build=True)


def _remember_protocols() -> None:
    """Before Python 3.12 each ``isinstance`` of a protocol collects the protocol's methods anew.

    Where storage calls are counted and made to fail, that was half of a test's time.
    """
    name = "_get_protocol_attrs"
    if sys.version_info < (3, 12):
        setattr(typing, name, functools.cache(getattr(typing, name)))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Any:
    """Thousands of collected tests are walked by each garbage collection of the run unless they are left out of it.

    A test makes its own garbage and ends soon: collecting less often saves a quarter of many tests' time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
        gc.set_threshold(50_000, 20, 20)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks what tests need; a quick run keeps those that need nothing. Else what takes long begins first."""
    mark_needs(items)
    if not _clouds:  # else pytest reports each of them as skipped; the end of the run names what is missing
        items[:] = [item for item in items if "cloud_place" not in getattr(item, "fixturenames", ())]
    if config.getoption("quick"):
        config.hook.pytest_deselected(items=[item for item in items if not is_quick(item)])
        items[:] = [item for item in items if is_quick(item)]
        for item in items:
            fewer_examples(item)
    elif hasattr(config, "workerinput"):
        in_order_of_length(items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Lanes | None:
    return Lanes(config, log) if config.getoption("dist") == "loadscope" else None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes ``s3_place`` runs against every server that can be had."""
    if "s3_place" in metafunc.fixturenames:
        metafunc.parametrize("s3_place", _available, indirect=True)
    if "cloud_place" in metafunc.fixturenames:
        metafunc.parametrize("cloud_place", _clouds, indirect=True)


@pytest.fixture(scope="session")
@needs("process")
def servers() -> Iterator[Servers]:
    """Real servers by name: ``servers["minio"]`` is an endpoint, ``servers.place("minio")`` an empty root."""
    with contextlib.ExitStack() as stack:
        yield Servers(stack)


@pytest.fixture(autouse=True)
def _process_as_before() -> Iterator[None]:
    """Restores the product's logger, and what a command that runs in the test's process sets for its own process.

    Threads that change every 0.2 ms and memory that is returned at once would slow down all later tests.
    """
    logger, switch_s = logging.getLogger("offloader"), sys.getswitchinterval()
    before = logger.level, logger.propagate, logger.disabled
    allocator = {name: os.environ.get(name) for name in _ALLOCATOR}
    yield
    logger.setLevel(before[0])
    logger.propagate, logger.disabled = before[1:]
    if sys.getswitchinterval() != switch_s:
        sys.setswitchinterval(switch_s)
    for name, value in allocator.items():
        if value is None:
            os.environ.pop(name, None)


@pytest.fixture(scope="module")
def decoding_remembered() -> Iterator[None]:
    """Equal bytes are decoded once: for modules whose tests read the same objects anew in hundreds of rounds.

    Of a module's tests together: Hypothesis refuses a fixture of each test, since one has many examples.
    """
    from tests.simulation.remembered_decoding import decoding_remembered

    with decoding_remembered():
        yield


@pytest.fixture
def s3_place(request: pytest.FixtureRequest, servers: Servers, exercises: Any) -> S3Place:
    """An empty root in each S3 server there is, in turn."""
    exercises(request.param)
    return servers.place(request.param)


@pytest.fixture
def cloud_place(request: pytest.FixtureRequest, servers: Servers, exercises: Any) -> S3Place:
    """An empty root in each other cloud's stand-in there is, in turn."""
    exercises(request.param)
    return servers.place(request.param)


@pytest.fixture(scope="session")
@needs("process")
def toxiproxy() -> Iterator[Toxiproxy]:
    """A running toxiproxy, for tests in folders that aren't collected without it."""
    with run_toxiproxy() as program:
        yield program


@pytest.fixture(scope="session")
def one_server() -> str:
    """The name of one S3 server, for tests that take too long for all of them: MinIO where it can be had."""
    return "minio" if "minio" in _available else "moto"


@pytest.fixture
def exercises(record_property: Any) -> Any:
    """``exercises("local directory")``: says at the end of the run that this store was exercised."""

    def note(store: str) -> None:
        record_property("exercised store", store)

    return note


@pytest.fixture
def simulates(record_property: Any) -> Any:
    """``simulates("topic", seeds)``: says at the end of the run how many seeds of that kind of world it had."""

    def note(world: str, seeds: range) -> None:
        record_property("simulated seeds", f"{len(seeds)} {world}")

    return note


_exercised: dict[str, int] = {}
_simulated: dict[str, int] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call":
        for name, value in report.user_properties:
            if name == "exercised store":
                _exercised[str(value)] = _exercised.get(str(value), 0) + 1
            elif name == "simulated seeds":
                count, world = str(value).split()
                _simulated[world] = _simulated.get(world, 0) + int(count)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if _simulated:
        terminalreporter.section("simulations")
        counts = ", ".join(f"{count} {world}" for world, count in sorted(_simulated.items()))
        terminalreporter.write_line(
            f"seeds: {counts}; to run them again: {SEEDS_VARIABLE}={os.environ[SEEDS_VARIABLE]}"
        )
    if not _exercised:
        return
    terminalreporter.section("stores")
    names = ", ".join(f"{name} ({count} tests)" for name, count in sorted(_exercised.items()))
    terminalreporter.write_line(f"stores exercised: {names}")
    if _missing:
        terminalreporter.write_line("not exercised: " + "; ".join(f"{name}: {why}" for name, why in _missing.items()))
