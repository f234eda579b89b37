"""A standalone Spark cluster on this machine: a master and workers, each a process, on loopback only."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import pyspark

from offloader.spark.session import require_java
from tests.support.jvm_options import JVM_VARIABLES
from tests.support.waiting import eventually
from tests.support.wheel import link_packages, required

__all__ = ["Cluster", "bare_python"]

SPARK = Path(pyspark.__file__).parent
#: A JVM's start on a machine that is busy.
START_S = 240.0
#: Without a sign of life before somebody counts as gone; a killed process is seen at once, by its connections.
PATIENCE_S = 600


def bare_python(folder: Path, *extras: str) -> Path:
    """An interpreter that has what the package with these extras depends on, and neither the package nor others."""
    venv.EnvBuilder(symlinks=True).create(folder)
    (site,) = folder.glob("lib/python3*/site-packages")
    link_packages(site, required(*extras))
    return folder / "bin" / "python"


class Cluster:
    """A context; everything it started is gone after it.

    Args:
        folder: for logs and the workers' files.
        environment: of the master, the workers, the executors and what is submitted, besides what Spark needs.
        workers: of one core each.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str], *, workers: int = 2) -> None:
        self.folder = folder
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "JAVA_HOME": str(require_java().parent.parent),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            **{name: os.environ[name] for name in JVM_VARIABLES},
            # A machine that is busy is slow to answer, and nobody is gone because of that.
            "SPARK_MASTER_OPTS": f"-Dspark.worker.timeout={PATIENCE_S}",
            **environment,
        }
        self._count = workers
        self._processes: list[subprocess.Popen[bytes]] = []
        self.workers: list[subprocess.Popen[bytes]] = []
        self.url = ""

    def __enter__(self) -> Cluster:
        try:
            self._start("master", "org.apache.spark.deploy.master.Master")
            self.url = self._said("master", r"Starting Spark master at (spark://\S+)")
            more = ["--cores", "1", "--memory", "600m", "--work-dir", str(self.folder / "work"), self.url]
            for number in range(self._count):
                self.workers.append(self._start(f"worker-{number}", "org.apache.spark.deploy.worker.Worker", *more))
            for number in range(self._count):
                self._said(f"worker-{number}", "(Successfully registered with master)")
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def submit(
        self, program: Path, *arguments: object, python: Path, conf: Mapping[str, str], py_files: Sequence[Path] = ()
    ) -> subprocess.Popen[bytes]:
        """``spark-submit``, with the driver here; its output is in ``<program's name>.log``."""
        settings = {
            "spark.driver.memory": "512m",
            "spark.executor.memory": "512m",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.shuffle.partitions": "2",
            "spark.network.timeout": f"{PATIENCE_S}s",
            "spark.executor.extraJavaOptions": os.environ["SPARK_SUBMIT_OPTS"],
            **conf,
        }
        command = [str(SPARK / "bin" / "spark-submit"), "--master", self.url]
        command += [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
        command += ["--py-files", ",".join(map(str, py_files))] if py_files else []
        environment = {"PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python)}
        # For the Python processes of the driver's JVM, which look for formats and plan streams: as the document says.
        environment["PYTHONPATH"] = os.pathsep.join(map(str, py_files))
        return self._run(program.name, [*command, str(program), *map(str, arguments)], environment)

    def log_of(self, name: str) -> str:
        """What a process printed."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def finish(self, process: subprocess.Popen[bytes], name: str) -> str:
        """Waits for what was submitted; its output. Fails when it did."""
        code = process.wait(START_S)
        assert code == 0, self.log_of(name)
        return self.log_of(name)

    def kill_worker(self, number: int) -> None:
        """SIGKILL to a worker and its executors."""
        _kill(self.workers[number])

    def _start(self, name: str, class_name: str, *arguments: str) -> subprocess.Popen[bytes]:
        address = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        return self._run(name, [str(SPARK / "bin" / "spark-class"), class_name, *address, *arguments], {})

    def _run(self, name: str, command: list[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env={**self.environment, **environment},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._processes.append(process)
        return process

    def _said(self, name: str, pattern: str) -> str:
        process = self._processes[-1]

        def looked() -> object:
            assert process.poll() is None, self.log_of(name)
            return re.search(pattern, self.log_of(name))

        eventually(looked, within_s=START_S)
        found = re.search(pattern, self.log_of(name))
        assert found is not None
        return found[1]

    def _end(self) -> None:
        for process in reversed(self._processes):
            _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """To its whole session; Python's workers, in groups of their own, end with their executor."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
