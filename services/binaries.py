"""Finding the program of a server: in the cache, on PATH, or built from its source (Go) or its package (npm).

It doesn't leave something half made under a final name.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

__all__ = ["BINARIES", "Binary", "Unavailable", "cache_directory", "find_binary", "find_node"]

#: Building MinIO takes five minutes on two cores.
BUILD_TIMEOUT_S = 1800
GO_VERSION_MIN = (1, 24)


class Unavailable(Exception):
    """A server can't be had here; the text says why and how to get it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Binary:
    """One server's program: what it is called, which version, and what it is made of.

    Attributes:
        go_package: what it is built from; empty: it comes from npm.
        npm_package: which one then.
        built_name: the file that is run, below the folder of its version.
        path_name: what it is called on PATH, where others could have a program of that name.
    """

    name: str
    version: str
    go_package: str = ""
    npm_package: str = ""
    built_name: str
    path_name: str = ""


BINARIES = {
    "minio": Binary(
        name="minio",
        version="v0.0.0-20260212201848-7aac2a2c5b7c",
        go_package="github.com/minio/minio",
        built_name="minio",
    ),
    "versitygw": Binary(
        name="versitygw",
        version="v1.8.0",
        go_package="github.com/versity/versitygw/cmd/versitygw",
        built_name="versitygw",
    ),
    "fake-gcs": Binary(
        name="fake-gcs",
        version="v1.56.1",
        go_package="github.com/fsouza/fake-gcs-server",
        built_name="fake-gcs-server",
    ),
    "toxiproxy": Binary(
        name="toxiproxy",
        version="v2.5.0",
        go_package="github.com/Shopify/toxiproxy/v2/cmd/server",
        built_name="server",
        path_name="toxiproxy-server",
    ),
    "azurite": Binary(
        name="azurite",
        version="3.37.0",
        npm_package="azurite",
        built_name="node_modules/azurite/dist/src/blob/main.js",
    ),
}


def cache_directory() -> Path:
    """Where built binaries are kept between runs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "offloader" / "bin"


def find_binary(name: str, *, build: bool) -> Path:
    """The binary of server ``name``: cached, on PATH, or, where ``build`` allows it, built and cached.

    Raises:
        Unavailable: none of these; the text says what to do.
    """
    binary = BINARIES[name]
    if binary.npm_package:
        return _find_package(binary, build=build)
    cached = cache_directory() / f"{name}-{binary.version}" / name
    if os.access(cached, os.X_OK):
        return cached
    on_path = shutil.which(binary.path_name or binary.built_name)
    if on_path is not None:
        return Path(on_path)
    if not build:
        raise Unavailable(f"{name} isn't built: `python -m services.servers build {name}` does it (Go 1.24 or newer)")
    return _build(binary, cached)


def find_node() -> str:
    """What runs a program of npm.

    Raises:
        Unavailable: there is none.
    """
    node = shutil.which("node")
    if node is None:
        raise Unavailable("there is no Node.js to run it with: install Node.js 20 or newer, with npm")
    return node


def _find_package(binary: Binary, *, build: bool) -> Path:
    find_node()
    target = cache_directory() / f"{binary.name}-{binary.version}"
    if (target / binary.built_name).is_file():
        return target / binary.built_name
    npm = shutil.which("npm")
    if not build or npm is None:
        why = "" if npm else " (npm is needed for it)"
        raise Unavailable(
            f"{binary.name} isn't installed: `python -m services.servers build {binary.name}` does it{why}"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / f"{binary.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two test runs install it once
        if target.is_dir():
            return target / binary.built_name
        with tempfile.TemporaryDirectory(dir=target.parent) as made:
            package = f"{binary.npm_package}@{binary.version}"
            command = [npm, "install", "--silent", "--no-fund", "--no-audit", "--prefix", f"{made}/all", package]
            _make(binary, command, {})
            Path(made, "all").rename(target)
    return target / binary.built_name


def _build(binary: Binary, target: Path) -> Path:
    go = _go()
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two test runs build it once
        if os.access(target, os.X_OK):
            return target
        with tempfile.TemporaryDirectory(dir=target.parent) as made:
            command = [go, "install", f"{binary.go_package}@{binary.version}"]
            _make(binary, command, {"GOBIN": made, "CGO_ENABLED": "0", "GOFLAGS": "-trimpath"})
            (Path(made) / binary.built_name).replace(target)
    return target


def _make(binary: Binary, command: list[str], environment: dict[str, str]) -> None:
    try:
        subprocess.run(
            command,
            env={**os.environ, **environment},
            check=True,
            capture_output=True,
            text=True,
            timeout=BUILD_TIMEOUT_S,
        )
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or ["no output"])[-1]
        raise Unavailable(f"building {binary.name} failed: {last}") from error
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"building {binary.name} took longer than {BUILD_TIMEOUT_S} s") from error


def _go() -> str:
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin:/usr/lib/go/bin")
    if go is None:
        raise Unavailable("there is no Go to build it with: install Go 1.24 or newer")
    text = subprocess.run([go, "version"], check=True, capture_output=True, text=True, timeout=60).stdout
    match = re.search(r"go(\d+)\.(\d+)", text)
    if match is None or (int(match[1]), int(match[2])) < GO_VERSION_MIN:
        raise Unavailable(f"Go 1.24 or newer is needed to build it, there is: {text.strip()}")
    return go
