"""The quick tests: their number, their content, and the guard that detects new processes."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[1]
SHARE_MIN = 0.6

CONFTEST = """
import subprocess, sys
import pytest
from tests.support.quick import Guard, is_quick, mark_needs, needs

def pytest_configure(config):
    config.pluginmanager.register(Guard())

def pytest_collection_modifyitems(items):
    mark_needs(items)
    items[:] = [item for item in items if is_quick(item)]

@pytest.fixture(scope="session")
@needs("java")
def cluster(): return None

@pytest.fixture
def query(cluster): return None

@pytest.fixture
def plain(): return None

@pytest.fixture
def unmarked(): subprocess.run([sys.executable, "-c", ""])
"""
TESTS = """
import multiprocessing, os, socket, subprocess, sys, threading
from concurrent.futures import ProcessPoolExecutor
import pytest

def test_popen(): subprocess.Popen([sys.executable, "-c", ""])

def test_system(): os.system("true")

def test_fork():
    if os.fork() == 0: os._exit(0)

@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_multiprocessing(method): multiprocessing.get_context(method).Process(target=print).start()

def test_swallowed():
    try: subprocess.run(["true"])
    except BaseException: pass

def test_thread():
    thread = threading.Thread(target=lambda: subprocess.run(["true"]))
    threading.excepthook = lambda arguments: None
    thread.start(); thread.join()

def test_setup(unmarked): pass

def test_good_socket(plain):
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()): pass

def test_left_out(query): raise AssertionError

@pytest.mark.process
def test_left_out_too(): raise AssertionError

@pytest.mark.slow
def test_left_out_as_well(): raise AssertionError
"""


def pytest_of(folder: Path, *arguments: str) -> list[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:randomly", "-p", "no:cacheprovider", "-q", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=None)
    return done.stdout.splitlines()


def test_most_test_functions_are_quick() -> None:
    lines = pytest_of(ROOT, "--quick", "--collect-only")
    ids = (line.partition("[")[0].split("::") for line in lines if line.startswith("tests/"))
    collected = {(parts[0], parts[-1]) for parts in ids}
    everything = {
        (path.relative_to(ROOT).as_posix(), node.name)
        for path in (ROOT / "tests").rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    }
    quick = collected & everything
    assert len(everything) > 2000
    assert len(quick) >= SHARE_MIN * len(everything)
    assert not [file for file, _ in quick if file.startswith(("tests/interop/", "tests/browser/"))]


def test_guard_fails_each_test_that_starts_a_process_by_name(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST, encoding="utf-8")
    (tmp_path / "test_sample.py").write_text(TESTS, encoding="utf-8")
    markers = ["process: -", "java: -", "slow: -"]
    settings = "[pytest]\npythonpath = " + str(ROOT) + "\nmarkers =\n" + "".join(f"    {each}\n" for each in markers)
    (tmp_path / "pytest.ini").write_text(settings, encoding="utf-8")
    lines = pytest_of(tmp_path, "--strict-markers", "-rfEp", "--tb=line")
    summary = [line.split(" - ")[0].replace("test_sample.py::", "") for line in lines if " test_sample.py::" in line]
    processes = ["popen", "system", "fork", "setup"]
    processes += [f"multiprocessing[{method}]" for method in ("fork", "forkserver", "spawn")]
    failed = {line.split()[1] for line in summary if line.startswith(("FAILED", "ERROR"))}
    assert failed == {f"test_{name}" for name in (*processes, "swallowed", "thread")}
    passed = {line.split()[1] for line in summary if line.startswith("PASSED")} - failed
    assert passed == {"test_good_socket"}
    assert any("test_sample.py::test_popen starts" in line for line in lines)
