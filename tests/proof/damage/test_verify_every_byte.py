"""``verify --deep`` finds one flipped bit in any byte of any file of a stream."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from formats.manifest import LedgerClosed
from offloader.cli.options import StoreArguments
from offloader.cli.reading import verify
from offloader.store.open import open_store
from tests.support.streams import StreamWriter, batch_of

pytestmark = pytest.mark.slow

STREAM = "orders"
DAMAGED = 6
#: Of the first file of a kind that nothing but ``--deep`` reads whole each byte is flipped, of the others every so
#: manieth; of a larger one, as a checkpoint under its one checksum, fewer.
EVERY_BYTE_MAX, STRIDE, LARGE_STRIDE = 2500, 17, 97
EVERY_BYTE = frozenset({"record", "record's side file", "data's side file", "index's side file"})


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stream with a segment, records below a checkpoint and above it, and a checkpoint below another."""
    root: Path = tmp_path_factory.mktemp("flipped") / "store"
    writer = StreamWriter(open_store(f"file://{root}"), STREAM)
    writer.add([batch_of(3, 0, 3)], closes=[3])
    writer.log.checkpoint()
    writer.log.commit([LedgerClosed(4, 9)])
    writer.log.checkpoint()
    writer.log.commit([LedgerClosed(5, 9)])
    writer.store.close()
    assert verify([STREAM], StoreArguments(store=f"file://{root}"), deep=True) == 0
    return root


def kind_of(path: Path) -> str:
    side = ".offloader/meta" in path.as_posix()
    name = path.name
    if name.startswith("boundary"):
        what = "boundary"
    elif "_catalog" in path.parts:
        what = "entry"
    elif "checkpoint" in name:
        what = "checkpoint"
    elif "manifest" in path.parts:
        what = "record"
    else:
        what = "index" if "-index" in name else "data"
    return f"{what}'s side file" if side else what


KINDS = [f"{what}{side}" for what in ("boundary", "entry", "checkpoint", "record", "index", "data")
         for side in ("", "'s side file")]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_in_any_byte_is_damage(root: Path, kind: str) -> None:
    files = [path for path in root.rglob("*") if path.is_file() and path.stat().st_size and kind_of(path) == kind]
    assert files
    missed = []
    for number, path in enumerate(sorted(files)):
        content, times = path.read_bytes(), path.stat()
        stride = LARGE_STRIDE if len(content) > EVERY_BYTE_MAX else STRIDE if number or kind not in EVERY_BYTE else 1
        try:
            for at in range(0, len(content), stride):
                flipped = bytearray(content)
                flipped[at] ^= 1 << at % 8
                path.write_bytes(flipped)
                os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
                if verify([STREAM], StoreArguments(store=f"file://{root}"), deep=True) != DAMAGED:
                    missed.append((path.name, at))
        finally:
            path.write_bytes(content)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert missed == []


def test_every_file_is_of_a_tested_kind(root: Path) -> None:
    assert {kind_of(path) for path in root.rglob("*") if path.is_file() and path.stat().st_size} == set(KINDS)
