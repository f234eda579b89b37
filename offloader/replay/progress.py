"""How far a replay is, in a file beside it: for targets whose brokers don't remember.

Owns that file. Must never say that more is stored in the target than is, nor less than it said before.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from formats.entries import Position
from offloader.errors import Corrupt, InvalidCall, StoreUnavailable

__all__ = ["Progress", "ProgressFile", "default_folder"]

_VERSION = 1
FILE_BYTES_MAX = 64 * 1024
#: Where programs keep what should outlive them, unless the user says otherwise.
_STATE_VARIABLE = "XDG_STATE_HOME"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What a replay knew last.

    Attributes:
        producer: its producer's name.
        stream: what is replayed.
        topic: where to.
        sent: the newest entry of the stream that is stored in the target; ``None``: none.
        target: an entry of the target: what it has of this replay beyond ``sent`` lies behind; ``None``: anywhere.
    """

    producer: str
    stream: str
    topic: str
    sent: Position | None = None
    target: Position | None = None


def default_folder() -> Path:
    """Where progress is kept if nobody says where."""
    return Path(os.environ.get(_STATE_VARIABLE) or Path.home() / ".local" / "state") / "offloader" / "replay"


class ProgressFile:
    """One replay's file. One process at a time writes it: the broker lets one producer of a name in.

    Args:
        path: the file; its folder is made when it is written first.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> Progress | None:
        """What was written last; ``None``: nothing.

        Raises:
            Corrupt: it can't be read, or isn't such a file.
        """
        try:
            with self.path.open("rb") as opened:
                fields = json.loads(opened.read(FILE_BYTES_MAX))
            if fields["version"] != _VERSION:
                raise ValueError(f"version {fields['version']!r}")
            sent, target = (None if fields[name] is None else Position.parse(fields[name]) for name in _POSITIONS)
            return Progress(
                producer=str(fields["producer"]),
                stream=str(fields["stream"]),
                topic=str(fields["topic"]),
                sent=sent,
                target=target,
            )
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as cause:
            raise Corrupt(
                f"{self.path} doesn't say how far the replay is: {cause}",
                hint="look at the target; then remove the file, and begin behind what is there (--from)",
            ) from cause

    def require(self, wanted: Progress) -> Progress | None:
        """As ``read``, of the replay that is wanted.

        Raises:
            InvalidCall: the file is another replay's.
        """
        found = self.read()
        if found is not None and found.producer != wanted.producer:
            raise InvalidCall(
                f"{self.path} is of another replay: {found.stream} to {found.topic}",
                hint="name another file, or the range and label of that replay",
            )
        return found

    def write(self, progress: Progress) -> None:
        """Replaces what was written; durable when this returns."""
        fields = {
            "version": _VERSION,
            "producer": progress.producer,
            "stream": progress.stream,
            "topic": progress.topic,
            "sent": None if progress.sent is None else str(progress.sent),
            "target": None if progress.target is None else str(progress.target),
        }
        beside = self.path.with_name(f"{self.path.name}.new")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with beside.open("w", encoding="utf-8") as opened:
                json.dump(fields, opened)
                opened.flush()
                os.fsync(opened.fileno())
            beside.replace(self.path)
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as cause:
            with contextlib.suppress(OSError):
                beside.unlink()
            raise StoreUnavailable(
                f"{self.path} can't be written: {cause.strerror}", hint="name another file with --progress-file"
            ) from cause


_POSITIONS = ("sent", "target")
