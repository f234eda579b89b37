"""The processes of a run: how each is started, what it says, and that nothing of it is left behind.

Owns their command lines and settings files. It kills on request and decides nothing.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.chaos_schedule import Role

__all__ = ["CONFIG", "ENDS_BY_ITSELF", "Paths", "Roles", "Started"]

ROOT = Path(__file__).resolve().parents[2]
#: Those that have an end of their own; the others run until they are told to stop.
ENDS_BY_ITSELF = frozenset({"backfill", "cleaner", "reader", "spark", "spark-backfill"})
_LINES_MAX = 2000
_OFFLOADER = "tests.chaos.chaos_clock"

#: Small segments and short waits, so that much happens between two kills.
CONFIG = """
streaming_offload = true

[serve]
store = "{store}"
ledgers = "sqlite:///{database}"
streams = ["chaos/live", "chaos/short"]
follow_seconds = 0.1
restart_seconds_max = 1

[offload]
block_bytes = 4096
part_bytes = 5242880
max_size_per_offload_segment_mbytes = {segment_mbytes}
max_offload_segment_rollover_time_minutes = 0.015
deletion_lag_minutes = 0.02
drain_seconds_max = 40
retry_seconds_max = 1

[store]
connect_timeout_s = 1
read_timeout_s = 2
retries_max = 3
retry_total_s = 4
retry_delay_first_s = 0.05
retry_delay_max_s = 0.5

[manifest]
checkpoint_records = 15
orphan_age_hours_min = {orphan_age_hours}

[cleanup]
delete = true
grace_hours = 0.0005
allow_large_delete = true
retry_minutes_max = 0.02
cycle_minutes = 0.02
orphans_hours = 0.001

[retention]
record_minutes = 0.01
cycle_minutes = 0.01

[topics."chaos/short".retention]
policy = "size"
min_mbytes = 0.05
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Paths:
    """Where a run has its files."""

    folder: Path
    database: Path

    @property
    def journal(self) -> Path:
        return self.folder / "journal"


@dataclass(slots=True)
class Started:
    """One process of a role.

    Attributes:
        lines: the last of what it said, on either output.
        killed: by us.
    """

    role: Role
    process: subprocess.Popen[str]
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=_LINES_MAX))
    killed: bool = False
    reading: threading.Thread | None = None

    def kill(self) -> None:
        """``kill -9`` of it and what it started, at once."""
        self.killed = True
        with contextlib.suppress(ProcessLookupError):  # it ended by itself
            os.killpg(self.process.pid, signal.SIGKILL)

    def ended(self, within_s: float) -> int | None:
        """Its exit code, with everything it said read; ``None``: it still runs."""
        try:
            code = self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            return None
        if self.reading is not None:
            self.reading.join(within_s)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code


class Roles:
    """Starts the processes of a run; what they say is in the file ``said.log``.

    Args:
        paths: of its files.
        store: URL.
        environments: of each role: where its way to the store begins.
        said: is told of each line that a process says, in threads.
    """

    def __init__(
        self,
        paths: Paths,
        store: str,
        environments: Mapping[Role, Mapping[str, str]],
        said: Callable[[Role, str], None],
    ) -> None:
        self._paths, self._store = paths, store
        self._environments = environments
        self._said = said
        self.running: dict[Role, Started] = {}
        self._cleaned = 0
        self._lock = threading.Lock()
        self._log = (paths.folder / "said.log").open("a")
        for name, mbytes, hours in (("often", 0.25, 0.003), ("large", 8, 0.003), ("soon", 0.25, 0)):
            self.config(name).write_text(
                CONFIG.format(store=store, database=paths.database, segment_mbytes=mbytes, orphan_age_hours=hours)
            )

    def config(self, name: str) -> Path:
        """A settings file: "often" small segments, "large" ones of several parts, "soon" nothing waits for its age."""
        return self._paths.folder / f"{name}.toml"

    def start(self, role: Role, command: Sequence[str] = ()) -> Started:
        """A new process of a role; ``command`` instead of its own one."""
        process = subprocess.Popen(
            [sys.executable, "-m", *(command or self.command(role))],
            cwd=ROOT,
            env={**os.environ, **self._environments[role]},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        started = Started(role, process)
        started.reading = threading.Thread(target=self._read, args=(started,), daemon=True)
        started.reading.start()
        self.running[role] = started
        return started

    def command(self, role: Role) -> Sequence[str]:
        """What a role runs, as arguments of ``python -m``."""
        large = str(self.config("large"))
        database, journal = str(self._paths.database), str(self._paths.journal)
        if role == "sidecar":
            return (_OFFLOADER, "serve", "--config", str(self.config("often")))
        if role == "appender":
            return ("tests.chaos.chaos_appender", database, journal)
        if role == "reader":
            return ("tests.chaos.chaos_reader", self._store, database, journal)
        if role == "spark":
            return ("tests.chaos.chaos_spark", self._store, journal)
        if role in ("backfill", "spark-backfill"):
            verb = ("offload",) if role == "backfill" else ("spark", "backfill")
            what = ("chaos/history", "--take-over", "--config", large, "--store", self._store)
            return (_OFFLOADER, *verb, *what, "--ledgers", f"sqlite:///{database}")
        self._cleaned += 1
        return self.cleaning("often") if self._cleaned % 2 else self.searching("often")

    def cleaning(self, config: str) -> Sequence[str]:
        """One round of cleanup; the search for orphans is another command."""
        return (_OFFLOADER, "cleanup", "run", "--yes", "--store", self._store, "--config", str(self.config(config)))

    def searching(self, config: str) -> Sequence[str]:
        """One search for orphans."""
        return (
            _OFFLOADER,
            "cleanup",
            "orphans",
            "--delete",
            "--store",
            self._store,
            "--config",
            str(self.config(config)),
        )

    def close(self) -> None:
        """Kills whatever still runs."""
        for started in self.running.values():
            started.kill()
            started.ended(30)
        self._log.close()

    def _read(self, started: Started) -> None:
        assert started.process.stdout is not None
        # What still has its output open, as a worker of Spark, doesn't keep us from closing it when the process ended.
        with contextlib.suppress(ValueError, OSError):
            for line in started.process.stdout:
                started.lines.append(line.rstrip("\n"))
                self._said(started.role, line)
                if not line.startswith("acked"):
                    with self._lock:
                        self._log.write(f"{time.time():.3f} {started.role} {started.process.pid} {line}")
