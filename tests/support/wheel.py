"""The package's wheel, as users build it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

__all__ = ["build_wheel"]

ROOT = Path(__file__).resolve().parents[2]


def build_wheel(folder: Path) -> Path:
    """Builds it in ``folder`` from what a source distribution would hold, without network access."""
    source = folder / "source"
    source.mkdir()
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("formats", "offloader", "tests"):
        shutil.copytree(ROOT / name, source / name, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE", "pyspark_offloader.py"):
        shutil.copy(ROOT / name, source / name)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet"]
    subprocess.run([*command, "--wheel-dir", str(folder), str(source)], check=True, timeout=240)
    (built,) = folder.glob("*.whl")
    return built
