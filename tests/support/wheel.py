"""The package as it is published: a source distribution, and the wheel that is built from it."""

from __future__ import annotations

import shutil
from pathlib import Path

from services.release import ROOT, SOURCES, TIME_S_MIN, build_packages

__all__ = ["build_wheel", "copy_checkout"]


def copy_checkout(source: Path) -> Path:
    """Copies what building needs to the new folder ``source``, so that nothing is left in the checkout; that folder."""
    source.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source / name)
    return source


def build_wheel(folder: Path) -> Path:
    """Builds it in ``folder`` from the source distribution alone, without network access."""
    return build_packages(ROOT, folder, TIME_S_MIN)[1]
