"""Runs commands with the packages in a virtual environment that isn't on PATH."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from offloader.spark.session import require_java
from tests.support.jvm_options import JVM_VARIABLES

__all__ = ["run"]

ROOT = Path(__file__).resolve().parents[2]


def run(command: list[str], folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """A command in an environment whose only ``python3`` has no packages.

    Args:
        folder: the current one; the interpreter is put into it.
        more: variables. Of Spark's others it has the options of JVMs, which only save time.
    """
    programs = folder / "programs"
    programs.mkdir(exist_ok=True)
    python = programs / "python3"
    python.write_text('#!/bin/sh\necho "no packages here" >&2\nexit 1\n')
    python.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "SPARK", "PYTHON"))}
    environment = {
        **kept,
        **{name: os.environ[name] for name in JVM_VARIABLES},
        "PATH": f"{programs}:/usr/bin:/bin",
        "PYTHONPATH": str(ROOT),
        "JAVA_HOME": str(require_java().parent.parent),
        "SPARK_LOCAL_IP": "127.0.0.1",
        **more,
    }
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=480
    )
