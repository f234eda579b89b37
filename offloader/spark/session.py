"""A local Spark session and its Python workers, and translation of Spark's errors."""

from __future__ import annotations

import contextlib
import gc
import itertools
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator, Mapping
from itertools import takewhile
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

from offloader import errors
from offloader.errors import ExecutorLostError, OffloaderError, UnsupportedError, install_hint
from offloader.runtime.clock import SystemClock
from offloader.runtime.system import THREAD_SWITCH_S, cache_folder
from offloader.spark import register
from offloader.spark.launch import SHORT_WORK, Launch, drop_refused_archive, has_jvm_options, prepare_launch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Spark 4 runs on Java 17 and later.
JAVA_VERSION_MIN = 17

_JVMS = Path("/usr/lib/jvm")
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_VERSION_TIMEOUT_S = 30.0
#: Starting a Python and importing the package in it, on a busy machine.
_IMPORT_TIMEOUT_S = 60.0


def find_java(installed: Path = _JVMS) -> Path | None:
    """The real path of a ``java`` executable for Spark; ``None`` without version 17 or later.

    Searches JAVA_HOME, then PATH, then the folder ``installed`` (the lowest version first, which Spark has been tried
    with longest). Runs each candidate, so that a broken installation isn't chosen.
    """
    chosen = [Path(home) / "bin" / "java"] if (home := os.environ.get("JAVA_HOME")) else []
    chosen += [Path(on_path)] if (on_path := shutil.which("java")) else []
    for java in chosen:
        if _version_of(java) >= JAVA_VERSION_MIN:
            return java.resolve()
    versions = [(_version_of(java), java) for java in installed.glob("*/bin/java")]
    fitting = [(version, java) for version, java in versions if version >= JAVA_VERSION_MIN]
    return min(fitting)[1].resolve() if fitting else None


def require_java(installed: Path = _JVMS) -> Path:
    """``find_java``, or ``UnsupportedError`` with installation advice."""
    java = find_java(installed)
    if java is None:
        raise UnsupportedError(
            f"no Java {JAVA_VERSION_MIN} or later in JAVA_HOME, PATH or {installed}, but Spark needs it",
            hint="apt-get install openjdk-17-jre-headless (or default-jre-headless), or set JAVA_HOME",
        )
    return java


def _require_spark() -> None:
    try:
        import pyspark.sql  # noqa: F401
    except ImportError as cause:
        raise UnsupportedError("Spark isn't installed", hint=install_hint("spark")) from cause


def require_interpreter(spark: SparkSession) -> None:
    """Checks that the workers of a local session run a Python that has this package; nothing is known of a cluster's.

    Raises:
        UnsupportedError: they don't. Spark would only say that it finds no such data source.
    """
    context = getattr(spark, "sparkContext", None)  # Spark Connect has none
    if context is None or not context.master.startswith("local"):
        return
    found = shutil.which(context.pythonExec) or context.pythonExec
    if Path(found).parent == Path(sys.executable).parent:
        return
    try:
        subprocess.run(
            [found, "-c", "import pyspark_offloader"], capture_output=True, timeout=_IMPORT_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise UnsupportedError(
            f"Spark's workers run {found}, which can't import offloader",
            hint=f"export PYSPARK_PYTHON={sys.executable} before the session is made, or use local_session()",
        ) from error


def local_session(
    app_name: str = "offloader", *, cores: int | str = "*", config: Mapping[str, str] | None = None
) -> SparkSession:
    """A Spark session in this process, on this machine only, with the data source registered.

    Its workers run this Python interpreter; it listens on the loopback address only, has no web UI and logs errors
    only. Sets PYSPARK_PYTHON, PYSPARK_DRIVER_PYTHON, JAVA_HOME and, unless it is set, SPARK_LOCAL_IP of this process.
    Returns an existing session of this process, as Spark does.

    Args:
        app_name: shown in Spark's logs.
        cores: threads for tasks, ``"*"`` = as many as the machine has cores.
        config: more Spark settings; they override the ones set here.

    Raises:
        UnsupportedError: pyspark isn't installed, or no Java 17+ was found; the hint names what to install.
    """
    return _local_session(app_name, cores=cores, config=config)


def _local_session(
    app_name: str, *, cores: int | str = "*", config: Mapping[str, str] | None = None, is_short: bool = False
) -> SparkSession:
    """As ``local_session``; ``is_short`` starts a JVM that suits a command of some seconds."""
    _require_spark()
    from pyspark.sql import SparkSession

    java = require_java()
    os.environ["JAVA_HOME"] = str(java.parent.parent)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    # Otherwise the JVM resolves its host name, and exits if that has no address (a fresh machine, a container).
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    with tempfile.TemporaryDirectory(prefix="offloader-spark-") as folder, warnings.catch_warnings():
        # The JVM reads this once at its start; a level set later misses the first ten lines.
        logging_file = Path(folder) / "log4j2.properties"
        logging_file.write_text(_LOGGING, encoding="ascii")
        # Spark warns about this pandas version; none of our code uses pandas.
        warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas", category=FutureWarning)
        launch = _launch_of(java, is_short=is_short)
        java_options = (f"-Dlog4j2.configurationFile={logging_file.as_uri()}", *launch.java_options)
        if is_short and not has_jvm_options():
            java_options += SHORT_WORK
        settings = {**_LOCAL_CONFIG, "spark.driver.extraJavaOptions": " ".join(java_options), **(config or {})}
        builder = SparkSession.builder.master(f"local[{cores}]").appName(app_name)
        for name, value in settings.items():
            builder = builder.config(name, value)
        with _spark_home(launch):
            spark = builder.getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        register(spark)
    return spark


def _launch_of(java: Path, *, is_short: bool) -> Launch:
    """How the JVM is started; nothing is chosen where it runs already, or SPARK_HOME names another Spark."""
    import pyspark

    if pyspark.SparkContext._gateway is not None or os.environ.get("SPARK_HOME"):  # noqa: SLF001 - no public name
        return Launch()
    package, now_s = Path(pyspark.__path__[0]), SystemClock().now_ms() / 1000
    return prepare_launch(package, pyspark.__version__, java, cache_folder() / "spark", now_s, record=is_short)


@contextlib.contextmanager
def _spark_home(launch: Launch) -> Iterator[None]:
    """SPARK_HOME while the JVM is started."""
    import pyspark

    if launch.home is None:
        yield
        return
    os.environ["SPARK_HOME"] = str(launch.home)
    try:
        yield
    finally:
        del os.environ["SPARK_HOME"]
    gateway = pyspark.SparkContext._gateway  # noqa: SLF001 - no public name
    if gateway is not None and hasattr(gateway, "proc"):
        drop_refused_archive(launch, gateway.proc.pid)


@contextlib.contextmanager
def command_session(app_name: str, master: str = "", *, is_short: bool = False) -> Iterator[SparkSession]:
    """The session of one command; stopped after it, unless the process had one before.

    Args:
        app_name: shown in Spark's logs.
        master: of a cluster, in Spark's syntax; empty: ``local_session``. On a cluster the workers run the Python of
            PYSPARK_PYTHON, by default one at this interpreter's path.
        is_short: whether Spark itself computes little: a local JVM then compiles quickly instead of well, and may keep
            an archive of its classes for later commands.

    Raises:
        UnsupportedError: as ``local_session``.
    """
    _require_spark()
    import pyspark
    from pyspark.sql import SparkSession

    # Spark's own question, for an active session, is one about this thread.
    shared = pyspark.SparkContext._active_spark_context is not None  # noqa: SLF001 - no public name
    if master and not shared:
        os.environ["JAVA_HOME"] = str(require_java().parent.parent)
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        spark = SparkSession.builder.master(master).appName(app_name).getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
    else:
        spark = _local_session(app_name, is_short=is_short)
    try:
        yield spark
    finally:
        if not shared:
            spark.stop()


_LOCAL_CONFIG = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.session.timeZone": "UTC",
    "spark.python.daemon.module": f"{__package__}.daemon",
}

_LOGGING = """\
rootLogger.level = error
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""


def _version_of(java: Path) -> int:
    """Its version; 0: it can't be run."""
    if not os.access(java, os.X_OK):
        return 0
    try:
        answer = subprocess.run(
            [str(java), "-version"], capture_output=True, text=True, timeout=_VERSION_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    match = _VERSION.search(answer.stderr + answer.stdout)
    return 0 if match is None else int(match[1])


#: Characters of the significant line that are kept.
LINE_MAX = 500
#: An error of this package in a worker's traceback.
_OURS = re.compile(r"^offloader\.errors\.(\w+): (.*)$")
#: Any other error.
_RAISED = re.compile(r"^(?:[a-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt)\b(?:: .*)?$")
_LOST = re.compile(r"Python worker exited unexpectedly|Python worker failed to connect back|ExecutorLostFailure")


@contextlib.contextmanager
def translated(what: str, *, hint: str) -> Iterator[None]:
    """Translates Spark's errors: an intended error of a worker keeps its class, a lost worker is ``ExecutorLostError``,
    others are ``OffloaderError``.

    Args:
        what: the operation, for the message: "Spark's scan of orders".
        hint: the remedy, unless a better one is known.

    Raises:
        UnsupportedError: Spark isn't installed.
    """
    _require_spark()
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise _ours(what, str(error), hint) from error


def _ours(what: str, said: str, hint: str) -> OffloaderError:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    # The last error of a chain of causes is the one raised.
    for line in reversed(lines):
        match = _OURS.match(line)
        kind = None if match is None else getattr(errors, match[1], None)
        if match is not None and isinstance(kind, type) and issubclass(kind, OffloaderError):
            return kind(f"{what} failed: {match[2][:LINE_MAX]}", hint=hint)
    if _LOST.search(said):
        hint = "executors need enough memory, and the same Python with offloader and pyarrow: PYSPARK_PYTHON"
        return ExecutorLostError(
            f"{what} failed: an executor's process ended: {' '.join(lines[:1])[:LINE_MAX]}", hint=hint
        )
    # The end of the first traceback has the error, before the JVM's frames; Spark's own first line doesn't.
    start = next((number for number, line in enumerate(lines) if "Traceback (most recent" in line), len(lines))
    python = list(takewhile(lambda line: not line.startswith("at "), lines[start + 1 :]))
    telling = next((line for line in reversed(python) if _RAISED.match(line)), " ".join(lines[:1]))
    return OffloaderError(f"{what} failed: {telling[:LINE_MAX]}", hint=hint)


_CORE_JAR = re.compile(r"spark-core_[\d.]+-.*\.jar")
_works = itertools.count()
#: What Spark's Python processes are started as.
_DAEMONS = ("pyspark.daemon", _LOCAL_CONFIG["spark.python.daemon.module"])


def _print_error() -> None:
    if not isinstance(sys.exception(), (BrokenPipeError, ConnectionResetError)):
        traceback.print_exc()


def forget_sparks_jar() -> None:
    """Takes Spark's core jar, which has no Python, off this process's module search path.

    Spark puts it there. Python 3.11 reads its directory of 10,000 names again in each worker: 80 ms.
    """
    for jar in [each for each in sys.path if _CORE_JAR.fullmatch(Path(each).name)]:
        sys.path.remove(jar)
        for searched in [each for each in sys.path_importer_cache if each.startswith(jar)]:
            del sys.path_importer_cache[searched]


def work_begins() -> None:
    """Called before a source is made, a query is planned and a task reads; does nothing outside of Spark's processes.

    After each of these PySpark collects garbage, which scans everything ever imported: 40 to 80 ms. The second call
    therefore freezes all objects: the first loaded everything needed, and the collection after it took its garbage.
    """
    started_as = getattr(sys.modules["__main__"], "__spec__", None)
    if started_as is None or started_as.name not in _DAEMONS:
        return
    work = next(_works)
    if work == 0:
        forget_sparks_jar()  # takes effect at the next query
        # Spark closes the pipe of a task when it has enough rows; the daemon prints an error and ends the worker.
        daemon = sys.modules.get("pyspark.daemon", sys.modules["__main__"])
        vars(daemon)["traceback"] = SimpleNamespace(**{**vars(traceback), "print_exc": _print_error})
        sys.setswitchinterval(THREAD_SWITCH_S)
        # Hidden unless Spark is configured to keep its workers' logs.
        logging.getLogger("offloader.spark").setLevel(logging.INFO)
    if work == 1:
        gc.freeze()
