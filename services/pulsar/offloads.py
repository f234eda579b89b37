"""Pulsar's offloader for S3 without a broker around it: what it reads and writes as V2 segments.

It doesn't leave it behind.

    with running_offloads(folder, offload_settings(url, bucket), keys) as pulsar:
        pulsar.segment(uuid, entries)
        pulsar.read(7, [uuid], [(0, 9)])
"""

from __future__ import annotations

import base64
import contextlib
import struct
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from services.pulsar.asked import AskedProcess
from services.pulsar.build import find_place

__all__ = ["PulsarOffloads", "PulsarRead", "running_offloads"]


class PulsarRead(NamedTuple):
    """What Pulsar's reader of V2 segments said of a ledger.

    Attributes:
        last: the last entry it would read.
        length: of the ledger's payloads in bytes, as far as the index says it.
        closed: whether the ledger is.
        ranges: for each range that was asked for, entry ids and bytes in the reader's order.
    """

    last: int
    length: int
    closed: bool
    ranges: list[list[tuple[int, bytes]]]


class PulsarOffloads(AskedProcess):
    """The process."""

    def read(
        self, ledger_id: int, uuids: Sequence[UUID], ranges: Iterable[tuple[int, int]], *, placed: bool = False
    ) -> PulsarRead:
        """What the reader of a ledger gives, whose segments are ``uuids`` in their order, for each range of entries.

        Args:
            ledger_id: one that this process wasn't asked for with other segments: its classes remember where a ledger
                ends, by the ledger's number alone, also after a reader is closed.
            placed: the reader's streams are put at the ledger's first block before anything is read.
        """
        words = " ".join(f"{first}-{last}" for first, last in ranges)
        question = "placed" if placed else "read"
        found = self.ask(f"{question} {ledger_id} {','.join(map(str, uuids))} {words}")
        entries = [[(number, base64.b64decode(text)) for number, text in each] for each in found["ranges"]]
        return PulsarRead(found["last"], found["length"], found["closed"], entries)

    def segment(self, uuid: UUID, entries: Iterable[tuple[int, int, bytes]]) -> None:
        """Streams ``entries`` (ledger id, entry id, bytes) into a segment in the object store."""
        with tempfile.TemporaryDirectory(dir=self.log.parent) as folder:
            self.ask(f"segment {uuid} {_written(entries, Path(folder))}")

    def segment_in_memory(
        self, uuid: UUID, entries: Iterable[tuple[int, int, bytes]]
    ) -> Mapping[str, tuple[bytes, Mapping[str, str]]]:
        """Streams ``entries`` into a segment in the process's memory: key -> bytes and user metadata of both objects.

        Args:
            uuid: its name.
            entries: ascending, of one topic; together less than the writer's buffer, 10 MiB by default.
        """
        with tempfile.TemporaryDirectory(dir=self.log.parent) as folder:
            here = Path(folder)
            self.ask(f"segment {uuid} {_written(entries, here)} {here}")
            keys = (str(uuid), f"{uuid}-index")
            return {key: ((here / key).read_bytes(), _properties(here / f"{key}.properties")) for key in keys}


def _written(entries: Iterable[tuple[int, int, bytes]], folder: Path) -> Path:
    path = folder / "entries"
    with path.open("wb") as file:
        for ledger_id, entry_id, payload in entries:
            file.write(struct.pack(">qqi", ledger_id, entry_id, len(payload)) + payload)
    return path


def _properties(path: Path) -> Mapping[str, str]:
    """A properties file without escapes."""
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


@contextlib.contextmanager
def running_offloads(
    folder: Path, settings: Mapping[str, str], environment: Mapping[str, str] | None = None
) -> Iterator[PulsarOffloads]:
    """The offloader for the length of a block.

    Args:
        folder: for its files; made when it isn't there.
        settings: of the offloader, as a broker has them.
        environment: added to this process's: keys of the store.

    Raises:
        Unavailable: it can't be had, or didn't start in time.
    """
    built = find_place(build=True)
    arguments = [str(folder), str(built / "offloaders"), *(f"{name}={value}" for name, value in settings.items())]
    started = PulsarOffloads.started("PulsarOffloads", built, folder, arguments, environment or {})
    try:
        started.await_ready()
        yield started
    finally:
        started.close()
