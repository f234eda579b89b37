"""One round: a world, its processes, the kills of a schedule one after another, and what the oracle finds at the end.

What is right and wrong is the oracle's; what is done to whom is the schedule's.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from services.request_gate import Passing
from services.toxiproxy import Toxiproxy
from tests.independent_manifest import Manifest, read_manifest
from tests.proof.chaos.chaos_journal import SIZES, read_journal
from tests.proof.chaos.chaos_oracle import check_stream, cold_entries, find_leaks, hot_entries
from tests.proof.chaos.chaos_outcome import Outcome
from tests.proof.chaos.chaos_roles import ENDS_BY_ITSELF, Paths, Roles, Started
from tests.proof.chaos.chaos_schedule import ROLES, Fault, Kill, Role, Round, Step
from tests.proof.chaos.chaos_world import World, about
from tests.support.waiting import eventually, settled

__all__ = ["play"]

#: A kill that waits for what doesn't happen (a partition keeps it from happening) takes place after this time, counted
#: from the process's first sign of life.
KILL_WAIT_S = 8.0
#: The same for what happens only after a while.
RARE_WAIT_S = 20.0
#: The same for Spark, whose first sign of life is that Java starts.
SPARK_WAIT_S = 240.0
_RARE = frozenset({"retention", "checkpoint"})
#: The same without a sign of life.
START_WAIT_S = 60.0
#: Healed, everything that was appended has to come into the store, with no longer pause than this.
STALLED_S = 240.0
#: A process that ends by itself has to have ended after this time, on a machine that others work on too.
END_S = 900.0
_LOOK_S = 0.2
#: What a record may be ahead of the time; beyond it the product has to refuse to delete.
CLOCK_SKEW_MS_MAX = 60_000
#: Exit code of a process that refuses so, or that the store didn't answer in time (our own reader and Spark's say 1).
#: On a machine that stands still for a minute no request is in time: so often it may be tried.
LATER, HEALTHY_TRIES = 4, 3
#: Payload bytes that retention leaves of chaos/short at least (chaos_roles.CONFIG).
KEPT_BYTES_MIN = int(0.05 * 1024 * 1024)
#: Exit codes that no fault explains: a bug, a wrong call, stored bytes that are damaged; and of our own reader.
_WRONG_CODES = {1: "a bug", 2: "a wrong call", 6: "damaged data"}
_READ_WRONG = 9
_READERS = ("reader", "spark")
#: What the appender says when it has appended to all streams for the first time.
LAST_FIRST = f"acked {list(SIZES)[-1]}"
_SPARK = ("spark", "spark-backfill")
#: Runs all the time.
_ALWAYS: tuple[Role, ...] = ("appender", "sidecar")


class _Armed:
    """A kill that waits for its moment, in the threads that see what happens."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kill: Kill | None = None
        self._left = 0
        self._wait_s = KILL_WAIT_S
        self._strike: Callable[[], None] = lambda: None
        self.struck = threading.Event()
        #: The process that is to be killed lives: when that was noticed.
        self.alive_s: float | None = None

    def set(self, kill: Kill, strike: Callable[[], None]) -> None:
        with self._lock:
            self._kill, self._left, self._strike = kill, kill.after, strike
            self.struck = threading.Event()
            self.alive_s = None
            is_rare = kill.about in _RARE or kill.method in ("DELETE", "POST")
            self._wait_s = RARE_WAIT_S if is_rare else KILL_WAIT_S
            if kill.role in _SPARK:
                self._wait_s = SPARK_WAIT_S

    def disarm(self) -> None:
        with self._lock:
            self._kill = None

    def heard(self, role: Role, passing: Passing) -> None:
        with self._lock:
            kill = self._kill
            self._notice(role)
            if kill is None or kill.role != role or kill.about == "ack" or kill.moment != passing.moment:
                return
            if kill.method in ("", passing.method) and kill.about in ("", about(passing.target)):
                self._count()

    def said(self, role: Role, line: str) -> None:
        with self._lock:
            self._notice(role)
            if self._kill is not None and self._kill.about == "ack" and role == "appender" and line.startswith("acked"):
                self._count()

    def waits_still(self, begun_s: float) -> bool:
        """Whether the moment may still come, of a kill that was set at ``begun_s``."""
        if self.alive_s is None:
            return time.monotonic() < begun_s + START_WAIT_S
        return time.monotonic() < self.alive_s + self._wait_s

    def _notice(self, role: Role) -> None:
        if self.alive_s is None and self._kill is not None and self._kill.role == role:
            self.alive_s = time.monotonic()

    def _count(self) -> None:
        self._left -= 1
        if self._left < 0:
            self._kill = None
            self._strike()
            self.struck.set()


def play(planned: Round, folder: Path, faults: Toxiproxy, say: Callable[[str], None] = lambda _: None) -> Outcome:
    """Plays a round in an empty folder and judges it.

    Args:
        planned: what to do.
        folder: for all its files.
        faults: a running toxiproxy.
        say: is told how it goes, a line at a time.
    """
    return _Play(planned, folder, faults, say).play()


class _Play:
    def __init__(self, planned: Round, folder: Path, faults: Toxiproxy, say: Callable[[str], None]) -> None:
        self._planned, self._folder, self._faults, self._say = planned, folder, faults, say
        self._armed = _Armed()
        self._lasting: list[tuple[Fault, int]] = []
        self.outcome = Outcome(planned.seed, planned.server)

    def play(self) -> Outcome:
        planned = self._planned
        with ExitStack() as stack:
            self._world = stack.enter_context(
                World(planned.server, self._folder, self._faults, self._armed.heard, seed=planned.seed)
            )
            self._paths = Paths(folder=self._folder, database=self._folder / "ledgers" / "ledgers.db")
            environments = {role: self._world.environment(role) for role in _roles(planned)}
            self._roles = Roles(self._paths, self._world.url, environments, self._armed.said)
            stack.callback(self._roles.close)
            appender = self._roles.start("appender")
            # Each stream has something then, however long a busy machine takes to begin.
            eventually(lambda: any(LAST_FIRST in line for line in list(appender.lines)), within_s=END_S)
            for number, step in enumerate(planned.steps, 1):
                self._step(step)
                self._say(f"seed {planned.seed}: {planned.server}: {number} of {len(planned.steps)} kills")
            self._heal(steps=None)
            self._settle()
            self._judge()
        return self.outcome

    def _step(self, step: Step) -> None:
        for fault in step.faults:
            began = self._world.begin(fault)
            (self.outcome.injected if began else self.outcome.skipped)[fault.kind] += 1
            if began:
                self._lasting.append((fault, fault.steps))
        role = step.kill.role
        for beside in step.beside:
            if beside not in self._roles.running and beside != role:
                self._roles.start(beside)
                self.outcome.beside[beside] += 1
        self._tend(role)
        self._armed.set(step.kill, lambda: self._strike(role))
        begun_s = time.monotonic()
        while not self._armed.struck.wait(_LOOK_S) and self._armed.waits_still(begun_s):
            self._tend(role)
        self._armed.disarm()
        by_plan = self._armed.struck.is_set()
        moment = "time" if not by_plan else "answered" if step.kill.about == "ack" else step.kill.moment
        self.outcome.killed[f"{role} {moment}"] += 1
        if not by_plan:
            self._tend(role)
            self._roles.running[role].kill()
        # The one that was struck may have been looked at already, and another one begun: that one lives.
        if (started := self._roles.running.get(role)) is not None and started.killed:
            self._ended(started, END_S)
        self._heal(steps=1)
        self._tend(role)

    def _strike(self, role: Role) -> None:
        """In a thread that sees what happens: a process that has ended meanwhile is none."""
        if (started := self._roles.running.get(role)) is not None:
            started.kill()

    def _tend(self, target: Role) -> None:
        """Starts what always runs, and the one that is to be killed, where they don't run."""
        for started in [each for each in self._roles.running.values() if each.process.poll() is not None]:
            self._ended(started, END_S)
        for role in (*_ALWAYS, target):
            if role not in self._roles.running:
                self._roles.start(role)

    def _ended(self, started: Started, within_s: float) -> int | None:
        """Waits for the end of a process, and looks at how it ended."""
        code = started.ended(within_s)
        if self._roles.running.get(started.role) is started:
            del self._roles.running[started.role]
        said = "\n".join(started.lines)
        if code is None:
            started.kill()
            started.ended(END_S)
            self._found(f"{started.role} didn't end within {within_s:.0f} s", started)
        elif not started.killed:
            self.outcome.exits[f"{started.role} {code}"] += 1
            if code == _READ_WRONG and started.role in _READERS:
                self._found(f"{started.role}: {said}", started)
            elif code in _WRONG_CODES and started.role not in ("appender", *_READERS):
                self._found(f"{started.role} ended with {code}: {_WRONG_CODES[code]}", started)
        if "Traceback (most recent call last)" in said and started.role not in _SPARK:
            self._found(f"{started.role} said a traceback", started)
        return code

    def _found(self, finding: str, started: Started) -> None:
        log = self._folder / f"finding-{len(self.outcome.findings)}-{started.role}.log"
        log.write_text("\n".join(started.lines))
        self.outcome.findings.append(f"{finding} ({log})")

    def _heal(self, steps: int | None) -> None:
        """Ends the faults whose time is over; all of them with ``None``."""
        left = []
        for fault, remaining in self._lasting:
            if steps is None or remaining <= steps:
                self._world.end(fault)
            else:
                left.append((fault, remaining - steps))
        self._lasting = left

    def _settle(self) -> None:
        """Healed: what runs has to bring everything into the store, and to end well."""
        self._roles.running["appender"].kill()
        self._ended(self._roles.running["appender"], END_S)
        self._tend_sidecar()
        for started in [each for role, each in self._roles.running.items() if role in ENDS_BY_ITSELF]:
            self._ended(started, END_S)
        known: dict[str, bytes] = {}
        if not settled(lambda: self._behind(known), lambda behind: not behind, still_s=STALLED_S, look_s=_LOOK_S):
            self._found(f"stalled: not everything is in the store, no more in {STALLED_S:.0f} s", self._tend_sidecar())
        sidecar = self._tend_sidecar()
        sidecar.process.send_signal(signal.SIGTERM)
        if (code := self._ended(sidecar, END_S)) not in (0, None):
            self._found(f"sidecar ended with {code} though nothing was wrong any more", sidecar)
        # Of two that backfill at once, one would be fenced.
        at_once: tuple[tuple[Role, ...], ...] = (("spark-backfill",), ("backfill", "reader", "spark"))
        for roles in at_once:
            self._expect_to_end_well([role for role in roles if role in _roles(self._planned)])

    def _expect_to_end_well(self, roles: Sequence[Role]) -> None:
        """Nothing is wrong any more: each comes to its end, where the machine stood still for long at a second try."""
        for tries in range(HEALTHY_TRIES, 0, -1):
            started = [self._roles.start(role) for role in roles]
            codes = {each.role: self._ended(each, END_S) for each in started}
            late = [role for role, code in codes.items() if code == (1 if role in _READERS else LATER)]
            for each in started:
                if codes[each.role] not in (0, None) and (each.role not in late or tries == 1):
                    self._found(f"{each.role} ended with {codes[each.role]} though nothing was wrong any more", each)
            roles = late

    def _tend_sidecar(self) -> Started:
        """The one that runs has to recover by itself; one that has given up is started again, as systemd does."""
        started = self._roles.running.get("sidecar")
        if started is not None and started.process.poll() is None:
            return started
        if started is not None:
            self._ended(started, END_S)
        return self._roles.start("sidecar")

    def _behind(self, known: dict[str, bytes]) -> dict[str, object]:
        """Streams that the sidecar hasn't brought into the store whole, and how far it is; it is started where it has
        given up."""
        sidecar = self._tend_sidecar()
        if not any('"event": "started"' in line for line in list(sidecar.lines)):
            return {"started": sidecar.process.pid}
        behind: dict[str, object] = {}
        with self._world.contents(known) as contents:
            keys = contents.names()
            for stream in ("chaos/live", "chaos/short"):
                hot = hot_entries(self._paths.database, stream)
                manifest = read_manifest(contents, stream, keys)
                if hot and (manifest.last is None or manifest.last < max(hot)):
                    behind[stream] = (manifest.last, manifest.records)
        return behind

    def _judge(self) -> None:
        outcome = self.outcome
        journals = read_journal(self._paths.journal)
        outcome.acknowledged = sum(len(journal.acked) for journal in journals.values())
        self._look_at_entries()
        newest_ms = max(manifest.newest_ms for manifest in self._manifests().values())
        outcome.ahead = newest_ms > time.time() * 1000 + CLOCK_SKEW_MS_MAX
        self._clean()
        outcome.entries = 0
        self._look_at_entries()
        outcome.touched = self._world.touched()

    def _clean(self) -> None:
        """Cleanup at once, until nothing is left over."""
        deadline_s, tries = time.monotonic() + END_S, HEALTHY_TRIES
        while True:
            is_late = False
            for command in (self._roles.cleaning("soon"), self._roles.searching("soon")):
                started = self._roles.start("cleaner", command)
                code = self._ended(started, END_S)
                refused = self.outcome.ahead and code == LATER and "clock" in "".join(started.lines)
                if code == LATER and not refused and tries > 1:
                    is_late, tries = True, tries - 1
                elif code not in (0, None) and not refused:
                    self._found(f"cleaner ended with {code} though nothing was wrong any more", started)
            leaks = [] if self.outcome.ahead else self._leaks()
            if (not leaks and not is_late) or time.monotonic() > deadline_s:
                break
        self.outcome.findings += leaks

    def _look_at_entries(self) -> None:
        outcome = self.outcome
        journals = read_journal(self._paths.journal)
        found: list[str] = []
        outcome.segments = outcome.purged = outcome.records = outcome.epochs = 0
        for stream, manifest in self._manifests().items():
            with self._world.contents() as contents:
                cold, problems = cold_entries(contents, manifest)
            hot = hot_entries(self._paths.database, stream)
            kept = KEPT_BYTES_MIN if stream == "chaos/short" else None
            found += manifest.findings + problems
            found += check_stream(manifest, cold, hot, journals[stream], kept_bytes_min=kept)
            outcome.entries += len({*cold, *hot})
            outcome.segments += len(manifest.segments)
            outcome.purged += len(manifest.purged)
            outcome.records += manifest.records
            outcome.epochs += manifest.epoch
        outcome.findings += [each for each in found if each not in outcome.findings]

    def _leaks(self) -> list[str]:
        manifests = self._manifests()
        names = [f"{each.stream}/{uuid}" for each in manifests.values() for uuid in sorted(each.uuids)]
        with self._world.contents() as contents:
            return find_leaks(contents.names(), manifests.values(), contents.uploads(names))

    def _manifests(self) -> dict[str, Manifest]:
        with self._world.contents() as contents:
            keys = contents.names()
            return {stream: read_manifest(contents, stream, keys) for stream in SIZES}


def _roles(planned: Round) -> list[Role]:
    """Those that are there; Spark's only where they are killed, as they take long to start."""
    killed = {step.kill.role for step in planned.steps}
    return [role for role in ROLES if role not in _SPARK or role in killed]
