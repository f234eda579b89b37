"""How all tests run: which are collected, in which order, with which examples.

``pytest`` runs the gate: everything but ``tests/proof``. ``--all`` adds ``tests/proof``, new examples and new seeds.
"""

from __future__ import annotations

import gc
import logging
import os
import platform
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from offloader.runtime import system
from tests.proof.simulation.seeds import VARIABLE as SEEDS_VARIABLE
from tests.proof.simulation.seeds import first_seed
from tests.support.jvm_options import use_short_lived_jvms
from tests.support.memory_files import use_memory_for_files
from tests.support.quick import Guard, fewer_examples, is_quick, is_wholly_excluded, mark_needs
from tests.support.scheduling import Durations, ModuleScheduling

pytest_plugins = [f"tests.support.{name}_fixtures" for name in ("broker", "browser", "plugin", "server", "spark")]

HERE = Path(__file__).resolve().parent
PROOF = HERE / "proof"
#: Variables that a command sets for its own process.
_ALLOCATOR = (*system.ALLOCATOR, *system.NO_IDLE_THREADS, "ARROW_DEFAULT_MEMORY_POOL")
#: Variables that commands read. README sets one of them, in the shell from which the tests may be started.
_OF_COMMANDS = [
    f"OFFLOADER_{name}"
    for name in (
        *("ADMIN_HOSTS", "ADMIN_TOKEN", "CA_FILE", "CONFIG", "ENDPOINT_URL", "LEDGERS", "OWNER_HOSTS"),
        *("PULSAR_TOKEN", "PULSAR_URL", "REGION", "STATUS_FILE", "STORE", "TOKEN"),
    )
]

# How long an example takes says something about the machine, nothing about the code: benchmarks measure that.
hypothesis.settings.register_profile("new", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.register_profile("fixed", hypothesis.settings.get_profile("new"), derandomize=True, database=None)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="tests/proof too, with new examples and new seeds")
    parser.addoption("--quick", action="store_true", help="only tests that start no process and end soon")
    parser.addoption("--brokers", choices=("one", "all"), default="one", help="releases that have the broker plugin")
    parser.addoption(
        "--messages", type=int, default=2_000, help="of a topic that consumers read through the broker plugin"
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if collection_path == PROOF:
        named = any(
            (config.invocation_params.dir / arg.partition("::")[0]).is_relative_to(PROOF) for arg in config.args
        )
        return not (config.getoption("all") or named) or None
    is_module = config.getoption("quick") and collection_path.match("test_*.py")
    return (is_module and is_wholly_excluded(collection_path)) or None


def pytest_configure(config: pytest.Config) -> None:
    hypothesis.settings.load_profile("new" if config.getoption("all") else "fixed")
    if config.getoption("quick"):
        platform.processor()  # starts uname once a process: a cloud's SDK asks for it in the first test that needs one
        config.pluginmanager.register(Guard(), "quick-guard")
    else:
        config.pluginmanager.register(Durations(config), "durations")
    system.HEAP = ()  # type: ignore[assignment]  # a command can't take it back from the process of the tests
    use_short_lived_jvms()
    use_memory_for_files()
    for name in _OF_COMMANDS:
        os.environ.pop(name, None)
    os.environ.setdefault(SEEDS_VARIABLE, str(first_seed()))  # the same for all workers, whatever midnight does


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Any:
    """Leaves thousands of collected tests out of each garbage collection of the run."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks what tests need; a quick run keeps those that need nothing; only ``--all`` draws all examples."""
    mark_needs(items)
    if config.getoption("quick"):
        config.hook.pytest_deselected(items=[item for item in items if not is_quick(item)])
        items[:] = [item for item in items if is_quick(item)]
    for item in () if config.getoption("all") else items:
        fewer_examples(item)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ModuleScheduling | None:
    return ModuleScheduling(config, log) if config.getoption("dist") == "loadscope" else None


@pytest.fixture(autouse=True)
def _process_as_before() -> Iterator[None]:
    """Restores the product's logger, and what a command that runs in the test's process sets for its own process."""
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


@pytest.fixture
def simulates(record_property: Any) -> Callable[[str, range], None]:
    """``simulates("topic", seeds)``: the summary says how many seeds of that kind of world ran."""
    return lambda world, seeds: record_property("simulated seeds", f"{len(seeds)} {world}")


_simulated: Counter[str] = Counter()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    for name, value in report.user_properties if report.when == "call" else ():
        if name == "simulated seeds":
            count, world = str(value).split()
            _simulated[world] += int(count)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if _simulated:
        counts = ", ".join(f"{count} {world}" for world, count in sorted(_simulated.items()))
        terminalreporter.write_line(f"simulated seeds: {counts}; again: {SEEDS_VARIABLE}={os.environ[SEEDS_VARIABLE]}")
