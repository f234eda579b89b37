"""The processes of a run: how each is started, what it says, and that nothing of it is left behind.

It kills on request and decides nothing.
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

from tests.proof.chaos.chaos_schedule import Role

__all__ = ["CONFIG", "ENDS_BY_ITSELF", "Paths", "Roles", "Started"]

ROOT = Path(__file__).resolve().parents[3]
#: Those that have an end of their own; the others run until they are told to stop.
ENDS_BY_ITSELF = frozenset({"backfill", "cleaner", "reader", "spark", "spark-backfill"})
_LINES_MAX = 2000
_OFFLOADER = "tests.proof.chaos.chaos_clock"

#: Small segments and short waits, so that much happens between two kills.
CONFIG = """
[serve]
store = "{store}"
ledgers = "sqlite:///{database}"
streams = ["chaos/live", "chaos/short"]
restart_delay_max = "1s"

[offload]
method = "streaming"
block_size = "4KiB"
part_size = "5MiB"
segment_size_max = "{segment_mbytes}MiB"
segment_age_max = "900ms"
deletion_lag = "1200ms"
drain_timeout = "40s"
retry_delay_max = "1s"

[ledgers]
poll_interval = "100ms"

[store]
connect_timeout = "1s"
read_timeout = "2s"
retries_max = 3
retry_total = "4s"
retry_delay_first = "50ms"
retry_delay_max = "500ms"

[manifest]
checkpoint_records = 15
orphan_age_min = "{orphan_age_hours}h"

[cleanup]
delete = true
grace_period = "1800ms"
allow_large_delete = true
retry_delay_max = "1200ms"
cycle_interval = "1200ms"
orphans_interval = "3600ms"

[retention]
record_interval = "600ms"
cycle_interval = "600ms"

[topics."chaos/short".retention]
policy = "size"
min_size = "50KiB"
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
            return ("tests.proof.chaos.chaos_appender", database, journal)
        if role == "reader":
            return ("tests.proof.chaos.chaos_reader", self._store, database, journal)
        if role == "spark":
            return ("tests.proof.chaos.chaos_spark", self._store, journal)
        if role in ("backfill", "spark-backfill"):
            verb = (
                (
                    "stream",
                    "offload",
                )
                if role == "backfill"
                else ("spark", "backfill")
            )
            what = ("chaos/history", "--take-over", "--config", large, "--store", self._store)
            return (_OFFLOADER, *verb, *what, "--ledgers", f"sqlite:///{database}")
        self._cleaned += 1
        return self.cleaning("often") if self._cleaned % 2 else self.searching("often")

    def cleaning(self, config: str) -> Sequence[str]:
        """One round of cleanup; the search for orphans is another command."""
        return (
            _OFFLOADER,
            "cleanup",
            "run",
            "--apply",
            "--allow-large",
            "--store",
            self._store,
            "--config",
            str(self.config(config)),
        )

    def searching(self, config: str) -> Sequence[str]:
        """One search for orphans."""
        return (
            _OFFLOADER,
            "cleanup",
            "orphans",
            "--apply",
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
