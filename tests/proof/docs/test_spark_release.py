"""The five commands of docs/how-to/spark-standalone.md: a cluster from the files of a release, and a program on it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from offloader.spark.session import require_java
from offloader.store.open import open_store
from tests.docs.worlds import ROOT
from tests.support.jvm_options import JVM_VARIABLES
from tests.support.pages import Block, blocks_of
from tests.support.streams import StreamWriter, batch_of
from tests.support.wheel import build_wheel, link_packages, required

pytestmark = [pytest.mark.java, pytest.mark.timeout(900)]

HEADING = "Run the five commands"
#: For each command, on a machine that is busy.
COMMAND_S = 400.0
#: What pip puts into an environment's folder of programs with pyspark.
PROGRAMS = ("find-spark-home", "find_spark_home.py", "load-spark-env.sh", "spark-class", "spark-submit")


@pytest.fixture
def release_files(tmp_path: Path) -> Path:
    """A folder with the wheel and the constraints."""
    shutil.copy(ROOT / "constraints.txt", tmp_path)
    build_wheel(tmp_path)
    return tmp_path


def environment_of(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "SPARK", "PYTHON"))}
    return {
        **kept,
        **{name: os.environ[name] for name in JVM_VARIABLES},
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "HOME": str(folder),
        "JAVA_HOME": str(require_java().parent.parent),
        "PIP_NO_INDEX": "1",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_WORKER_CORES": "1",
    }


def run(script: str, folder: Path, environment: Mapping[str, str]) -> str:
    """What bash prints to standard output; with everything else that it started it is gone afterwards."""
    with (folder / "out.log").open("wb") as out, (folder / "errors.log").open("wb") as errors:
        started = subprocess.Popen(
            ["bash", "-e", "-c", script], cwd=folder, env=environment, stdout=out, stderr=errors, start_new_session=True
        )
        try:
            code = started.wait(COMMAND_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)
            started.wait()
    assert code == 0, "".join((folder / name).read_text() for name in ("out.log", "errors.log"))
    return (folder / "out.log").read_text()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def blocks() -> Iterator[Block]:
    text = (ROOT / "docs" / "how-to" / "spark-standalone.md").read_text(encoding="utf-8")
    return (each for each in blocks_of(text) if each.heading == HEADING)


def test_five_commands_start_a_cluster_and_run_a_program(release_files: Path) -> None:
    program, commands = blocks()
    release = release_files
    (release / program.file).write_text(program.body)
    lines = commands.body.splitlines()
    assert len(lines) == 5
    store = f"file://{release}/store"
    for name, count in (("shop/orders", 40), ("shop/prices", 15)):
        StreamWriter(open_store(store), name).add([batch_of(1, 0, count)])
    environment = environment_of(release)
    run(lines[0], release, environment)
    # There is no index here: pip finds what the wheel needs installed.
    (site,) = (release / "env" / "lib").glob("python3*/site-packages")
    link_packages(site, required("cli", "s3", "spark"))
    for each in PROGRAMS:
        shutil.copy(Path(sys.executable).parent / each, release / "env" / "bin")
    script = "\n".join(lines).replace("7077", str(free_port())).replace("file:///srv/orders/store", store)
    found = run(script, release, environment)
    assert [line for line in found.splitlines() if line.startswith("|shop/")] == [
        "|shop/orders|   40|",
        "|shop/prices|   15|",
    ]
