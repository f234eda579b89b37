"""Listing a directory tree in key order, a page at a time.

Owns the order: that of the keys' UTF-8 bytes, as object stores have it, where ``a-b`` comes before ``a/b``. Must never
show the store's own files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from offloader.store.local_files import HIDDEN, Version

__all__ = ["list_files"]


def list_files(directory: Path, prefix: str, after: str, limit: int) -> list[tuple[str, Version]]:
    """Up to ``limit`` keys below ``directory`` that begin with ``prefix`` and come after ``after``, in order."""
    above = prefix.rpartition("/")[0]
    if above.split("/")[0] == HIDDEN:
        return []
    start = f"{above}/" if above else ""
    return list(islice(_walk(directory, start, prefix, after), limit))


def _walk(directory: Path, level: str, prefix: str, after: str) -> Iterator[tuple[str, Version]]:
    try:
        with os.scandir(directory / level) as entries:
            found = sorted((_sort_name(entry), entry) for entry in entries if entry.name != HIDDEN or level)
    except (FileNotFoundError, NotADirectoryError):
        return  # removed since its parent was listed, or never there
    for name, entry in found:
        key = level + name
        if name.endswith("/"):
            wanted = key.startswith(prefix) or prefix.startswith(key)
            # Everything below sorts before ``after``, unless ``after`` itself is below.
            if wanted and (key > after or after.startswith(key)):
                yield from _walk(directory, key, prefix, after)
        elif key.startswith(prefix) and key > after and _is_text(name):
            try:
                status = entry.stat()
            except FileNotFoundError:
                continue
            yield key, Version.of(status)


def _sort_name(entry: os.DirEntry[str]) -> str:
    return f"{entry.name}/" if entry.is_dir() else entry.name


def _is_text(name: str) -> bool:
    """Whether a file's name is UTF-8; others were put here by other tools and can't be a key."""
    return name.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in name)
