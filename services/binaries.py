"""Finding the binary of a server: in the cache, on PATH, or built from its source.

Owns the pinned versions and the cache ``$XDG_CACHE_HOME/offloader/bin/<name>-<version>/<name>``. Must never
leave a half-built file under a final name.
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

__all__ = ["BINARIES", "Binary", "Unavailable", "cache_directory", "find_binary"]

#: Building MinIO takes five minutes on two cores.
BUILD_TIMEOUT_S = 1800
GO_VERSION_MIN = (1, 24)


class Unavailable(Exception):
    """A server can't be had here; the text says why and how to get it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Binary:
    """One server's binary: what it is called, which version, and the Go package it is built from."""

    name: str
    version: str
    go_package: str
    built_name: str


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
    cached = cache_directory() / f"{name}-{binary.version}" / name
    if os.access(cached, os.X_OK):
        return cached
    on_path = shutil.which(name)
    if on_path is not None:
        return Path(on_path)
    if not build:
        raise Unavailable(f"{name} isn't built: `python -m services.servers build {name}` does it (Go 1.24 or newer)")
    return _build(binary, cached)


def _build(binary: Binary, target: Path) -> Path:
    go = _go()
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two test runs build it once
        if os.access(target, os.X_OK):
            return target
        with tempfile.TemporaryDirectory(dir=target.parent) as made:
            environment = {**os.environ, "GOBIN": made, "CGO_ENABLED": "0", "GOFLAGS": "-trimpath"}
            command = [go, "install", f"{binary.go_package}@{binary.version}"]
            try:
                subprocess.run(
                    command, env=environment, check=True, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S
                )
            except subprocess.CalledProcessError as error:
                last = (error.stderr.strip().splitlines() or ["no output"])[-1]
                raise Unavailable(f"building {binary.name} failed: {last}") from error
            except subprocess.TimeoutExpired as error:
                raise Unavailable(f"building {binary.name} took longer than {BUILD_TIMEOUT_S} s") from error
            (Path(made) / binary.built_name).replace(target)
    return target


def _go() -> str:
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin:/usr/lib/go/bin")
    if go is None:
        raise Unavailable("there is no Go to build it with: install Go 1.24 or newer")
    text = subprocess.run([go, "version"], check=True, capture_output=True, text=True, timeout=60).stdout
    match = re.search(r"go(\d+)\.(\d+)", text)
    if match is None or (int(match[1]), int(match[2])) < GO_VERSION_MIN:
        raise Unavailable(f"Go 1.24 or newer is needed to build it, there is: {text.strip()}")
    return go
