"""The world of a run: a real S3 server, the ways to it, its disks and clocks, and what is wrong with them.

It decides nothing.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import boto3
from botocore.config import Config

from services.request_gate import Passing, RequestGate
from services.servers import RunningServer, make_bucket, start
from services.toxiproxy import Direction, FaultyProxy, Toxiproxy
from tests.proof.chaos.chaos_clock import VARIABLE, set_clock
from tests.proof.chaos.chaos_oracle import S3Contents
from tests.proof.chaos.chaos_schedule import ROLES, Fault, Role

__all__ = ["Disk", "World", "about"]

BUCKET, FOLDER = "chaos", "root"
STORE_DISK_MBYTES = 512
LEDGERS_DISK_MBYTES = 192
_MS_PER_HOUR = 3_600_000
#: Kind of fault -> toxic and its direction.
_TOXICS: Mapping[str, tuple[str, Direction]] = {
    "latency": ("latency", "downstream"),
    "little bandwidth": ("bandwidth", "upstream"),
    "cut requests": ("limit_data", "upstream"),
    "cut answers": ("limit_data", "downstream"),
    "resets": ("reset_peer", "upstream"),
}
_ABOUT = (
    ("checkpoint", re.compile(r"/manifest/.*\.parquet")),
    ("record", re.compile(r"/manifest/.*/[0-9]{20}\.json")),
    ("boundary", re.compile(r"/boundary$")),
    ("catalog", re.compile(r"/_catalog/")),
    ("lease", re.compile(r"/leases/")),
    ("retention", re.compile(r"/retention/")),
    ("part", re.compile(r"partNumber=")),
    ("index", re.compile(r"[0-9a-f]{12}-index$")),
    ("data", re.compile(r"/[0-9a-f-]{36}$")),
)


def about(target: str) -> str:
    """What a request is about: a kind of object, "part" of an upload, "" anything else."""
    path, _, query = target.partition("?")
    for name, pattern in _ABOUT:
        if pattern.search(path) or (name == "part" and pattern.search(query)):
            return name
    return ""


class Disk:
    """A folder that is a file system of its own, where we may mount one: it can be full.

    Attributes:
        can_be_full: whether it is.
    """

    def __init__(self, folder: Path, mbytes: int) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        mount = ["mount", "-t", "tmpfs", "-o", f"size={mbytes}m", "offloader-chaos", str(folder)]
        self.can_be_full = os.geteuid() == 0 and subprocess.run(mount, capture_output=True, check=False).returncode == 0

    def fill(self) -> None:
        """Takes all the room that is left."""
        free = os.statvfs(self.folder)
        # Others write too: where they were faster, it is full as well.
        with (self.folder / "balloon").open("wb") as file, contextlib.suppress(OSError):
            os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_bsize)

    def request_flush(self) -> None:
        """Gives it back."""
        (self.folder / "balloon").unlink(missing_ok=True)

    def close(self) -> None:
        """Unmounts it; what is on it goes too."""
        if self.can_be_full:
            subprocess.run(["umount", "--lazy", str(self.folder)], capture_output=True, check=False)


@dataclass(slots=True)
class _Way:
    """A role's way to the store: through a proxy that does damage, then a gate that sees each request."""

    gate: RequestGate
    proxy: FaultyProxy
    clock: Path
    faults: set[str] = field(default_factory=set)


class World:
    """A server and the ways to it; a context.

    Args:
        server: "minio" or "versitygw".
        folder: for its files.
        faults: a running toxiproxy.
        heard: is told of each request of each role, in threads, while the request waits.
    """

    def __init__(
        self, server: str, folder: Path, faults: Toxiproxy, heard: Callable[[Role, Passing], None], *, seed: int
    ) -> None:
        self.server_name, self.folder, self.seed = server, folder, seed
        self._faults, self._heard = faults, heard
        self._stack = contextlib.ExitStack()
        self._lock = threading.Lock()
        self._everybody: set[str] = set()
        self._ways: dict[Role, _Way] = {}

    def __enter__(self) -> World:
        with self._stack:
            self.store_disk = self._disk("store", STORE_DISK_MBYTES)
            self.ledgers_disk = self._disk("ledgers", LEDGERS_DISK_MBYTES)
            self._server: RunningServer = start(self.server_name, self.store_disk.folder)
            self._stack.callback(self._end_server)
            make_bucket(self._server.endpoint, BUCKET)
            for number, role in enumerate(ROLES):
                self._ways[role] = self._way(role, self.seed + number)
            self._stack = self._stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def url(self) -> str:
        """Of the store."""
        return f"s3://{BUCKET}/{FOLDER}"

    def environment(self, role: Role) -> Mapping[str, str]:
        """What makes a role's process go its way, with its clock. All call the store by one name: it is recorded."""
        way = self._ways[role]
        through = dict.fromkeys(("HTTP_PROXY", "http_proxy"), way.proxy.url)
        return {**self._server.endpoint.environment, **through, "NO_PROXY": "", VARIABLE: str(way.clock)}

    @contextlib.contextmanager
    def contents(self, known: dict[str, bytes] | None = None) -> Iterator[S3Contents]:
        """What lies in the store, read around all proxies; ``known``: records of manifests that were read before."""
        endpoint = self._server.endpoint
        client: Any = boto3.client(
            "s3",
            endpoint_url=endpoint.url,
            region_name="us-east-1",
            aws_access_key_id=endpoint.access_key,
            aws_secret_access_key=endpoint.secret_key,
            config=Config(retries={"mode": "standard"}, read_timeout=30, proxies={}),
        )
        try:
            yield S3Contents(client, BUCKET, FOLDER, known)
        finally:
            client.close()

    def touched(self) -> Counter[str]:
        """What became of requests so far: all of them, and those that something was done to."""
        gates = [way.gate for way in self._ways.values()]
        return Counter(
            {
                "requests": sum(gate.requests for gate in gates),
                "refused with 503": sum(gate.refused for gate in gates),
                "answers lost": sum(gate.lost for gate in gates),
                "ended within their body": sum(gate.cut for gate in gates),
            }
        )

    def begin(self, fault: Fault) -> bool:
        """Lets it begin; false: there is one of its kind already, or it can't be had here."""
        disk = self._disk_of(fault)
        if fault.kind in self._everybody or (disk is not None and not disk.can_be_full):
            return False
        if disk is not None:
            disk.fill()
            self._everybody.add(fault.kind)
            return True
        if fault.kind == "server killed":
            os.killpg(self._server.process.pid, signal.SIGKILL)
            self._server.process.wait()
            self._everybody.add(fault.kind)
            return True
        roles = fault.roles or ROLES
        if any(fault.kind in self._ways[role].faults for role in roles):
            return False
        for role in roles:
            self._ways[role].faults.add(fault.kind)
            self._change(self._ways[role], fault, begins=True)
        return True

    def end(self, fault: Fault) -> None:
        """Ends one that was begun."""
        disk = self._disk_of(fault)
        if disk is not None:
            disk.request_flush()
            self._everybody.discard(fault.kind)
            return
        if fault.kind == "server killed":
            self._restart_server()
            self._everybody.discard(fault.kind)
            return
        for role in fault.roles or ROLES:
            self._ways[role].faults.discard(fault.kind)
            self._change(self._ways[role], fault, begins=False)

    def _change(self, way: _Way, fault: Fault, *, begins: bool) -> None:
        if fault.kind in _TOXICS:
            kind, direction = _TOXICS[fault.kind]
            if not begins:
                way.proxy.take_away(kind, direction)
                return
            amounts = {name: int(amount) for name, amount in fault.amounts.items() if name != "share"}
            way.proxy.add(kind, direction, share=fault.amounts.get("share", 1.0), **amounts)
        elif fault.kind == "partition":
            (way.proxy.cut_off if begins else way.proxy.let_through)()
        elif fault.kind == "503 storm":
            way.gate.refused_share = fault.amounts["share"] if begins else 0.0
        elif fault.kind == "lost answers":
            way.gate.lost_after_s = fault.amounts["timeout"] / 1000
            way.gate.lost_share = fault.amounts["share"] if begins else 0.0
        else:
            set_clock(way.clock, int(fault.amounts["hours"] * _MS_PER_HOUR) if begins else 0)

    def _disk_of(self, fault: Fault) -> Disk | None:
        return {"store's disk full": self.store_disk, "ledgers' disk full": self.ledgers_disk}.get(fault.kind)

    def _disk(self, name: str, mbytes: int) -> Disk:
        made = Disk(self.folder / name, mbytes)
        self._stack.callback(made.close)
        return made

    def _way(self, role: Role, seed: int) -> _Way:
        gate = RequestGate(self._server.endpoint.url, lambda passing: self._heard(role, passing), seed=seed)
        self._stack.enter_context(gate)
        proxy = self._faults.proxy(f"{self.folder.name}-{role}", gate.url)
        self._stack.callback(proxy.remove)
        clock = self.folder / f"clock-{role}"
        set_clock(clock, 0)
        return _Way(gate, proxy, clock)

    def _restart_server(self) -> None:
        port = int(self._server.endpoint.url.rpartition(":")[2])
        self._server = start(self.server_name, self.store_disk.folder, port=port)

    def _end_server(self) -> None:
        self._server.stop()
