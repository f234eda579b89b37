"""The package as it is published: a source distribution, and the wheel that is built from it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

__all__ = ["build_source_distribution", "build_wheel", "copy_checkout"]

ROOT = Path(__file__).resolve().parents[2]
_SDIST = "import sys, setuptools.build_meta as backend; print(backend.build_sdist(sys.argv[1]))"


def copy_checkout(source: Path) -> Path:
    """Copies what building needs to the new folder ``source``, so that nothing is left in the checkout; that folder."""
    source.mkdir()
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("formats", "offloader", "tests"):
        shutil.copytree(ROOT / name, source / name, ignore=ignored)
    for name in ("pyproject.toml", "constraints.txt", "README.md", "LICENSE", "pyspark_offloader.py"):
        shutil.copy(ROOT / name, source / name)
    return source


def build_source_distribution(folder: Path) -> Path:
    """Builds it in ``folder`` from a copy of what is needed for that, without network access."""
    source = copy_checkout(folder / "source")
    command = [sys.executable, "-c", _SDIST, str(folder)]
    subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=240)
    (built,) = folder.glob("*.tar.gz")
    return built


def build_wheel(folder: Path) -> Path:
    """Builds it in ``folder`` from the source distribution alone, without network access."""
    source = build_source_distribution(folder)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet"]
    subprocess.run([*command, "--wheel-dir", str(folder), str(source)], check=True, timeout=240)
    (built,) = folder.glob("*.whl")
    return built
