"""The package as it is published: a source distribution, the wheel that is built from it, and what that requires."""

from __future__ import annotations

import importlib.metadata
import shutil
import tomllib
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from services.release import ROOT, SOURCES, TIME_S_MIN, build_packages

__all__ = ["as_installed", "build_wheel", "copy_checkout", "extras", "link_packages", "required"]

_PROJECT = "offloader"


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


def as_installed(constraint: str) -> str:
    """A line of constraints.txt for the version that is installed here: another one with the oldest releases."""
    name, exact, _ = constraint.partition("==")
    try:
        return f"{name}=={importlib.metadata.version(name)}" if exact else constraint
    except importlib.metadata.PackageNotFoundError:
        return constraint


def extras() -> set[str]:
    """The names of the extras in pyproject.toml."""
    return set(_project()["optional-dependencies"])


def required(*wanted: str) -> set[str]:
    """Names of the distributions that the project needs with these extras, and that those need, but the project."""
    found: set[tuple[str, str]] = set()
    waiting = [(_PROJECT, extra) for extra in ("", *wanted)]
    while waiting:
        each = waiting.pop()
        if each in found:
            continue
        found.add(each)
        for requirement in _requirements(*each):
            waiting += [(canonicalize_name(requirement.name), extra) for extra in ("", *requirement.extras)]
    return {name for name, _ in found} - {_PROJECT}


def _requirements(name: str, extra: str) -> list[Requirement]:
    """What a distribution needs for an extra; empty: without any."""
    if name == _PROJECT:
        project = _project()
        found = map(Requirement, project["optional-dependencies"][extra] if extra else project["dependencies"])
    else:
        try:
            found = map(Requirement, importlib.metadata.requires(name) or [])
        except importlib.metadata.PackageNotFoundError:  # for another system
            return []
    return [each for each in found if each.marker is None or each.marker.evaluate({"extra": extra})]


def _project() -> dict[str, dict[str, list[str]]]:
    return dict(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"])


def link_packages(site: Path, names: Iterable[str]) -> None:
    """Links the files of distributions that are installed here into ``site``, and no other package's."""
    for name in names:
        for file in importlib.metadata.files(name) or ():
            if ".." in file.parts or "__pycache__" in file.parts:
                continue
            # Several distributions have parts of the package google: of that one the parts are linked.
            top = Path(*file.parts[: 2 if file.parts[0] == "google" else 1])
            if not (site / top).exists():
                (site / top).parent.mkdir(parents=True, exist_ok=True)
                (site / top).symlink_to(Path(str(importlib.metadata.distribution(name).locate_file(str(top)))))
