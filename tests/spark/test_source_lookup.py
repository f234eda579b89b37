"""Spark's way to the data source: it lists the modules of the Python that its workers run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process
#: As ``pyspark.sql.worker.lookup_data_sources``.
LOOKUP = """
import importlib, pkgutil
names = [each.name for each in pkgutil.iter_modules() if each.name.startswith("pyspark_")]
print([importlib.import_module(name).DefaultSource.name() for name in names])
"""


def test_installed_environment_lists_the_data_source(tmp_path: Path) -> None:
    """Also where the package is installed from a checkout that may be edited."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-c", LOOKUP]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "['offloader']\n"
