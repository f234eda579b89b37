"""One running broker: started, asked, stopped.

Owns its process. Must never leave it behind, nor wait for it without a limit.

    with running_broker(folder, {"managedLedgerOffloadDriver": "S3", ...}, environment) as broker:
        broker.service_url, broker.admin_url, broker.hot(7, 0, 9)
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import queue
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from services.binaries import Unavailable
from services.pulsar.build import SOURCES, find_java, find_place
from services.servers import RunningProcess

__all__ = ["Broker", "BrokerRefused", "offload_settings", "running_broker"]

START_TIMEOUT_S = 120.0
ANSWER_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0

_JAVA_OPTIONS = [
    "-Xms128m",
    "-Xmx640m",
    "-XX:MaxDirectMemorySize=384m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.misc=ALL-UNNAMED",
    "-Dio.netty.tryReflectionSetAccessible=true",
    f"-Dlog4j.configurationFile={SOURCES / 'log4j2.xml'}",
]


class BrokerRefused(Exception):
    """The broker answered a question with an error."""


class Broker(RunningProcess):
    """A broker.

    Attributes:
        service_url: for clients; known when it is ready.
        admin_url: of its REST interface.
    """

    service_url: str
    admin_url: str

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        super().__init__(process, log)
        self._lock = threading.Lock()
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, name="broker-answers", daemon=True)
        self._reader.start()

    def await_ready(self) -> None:
        """Returns when it takes clients; ``Unavailable`` when it ended, or isn't ready within ``START_TIMEOUT_S``."""
        ready = self._next(START_TIMEOUT_S)
        self.service_url = ready["service_url"]
        self.admin_url = ready["admin_url"]

    def ledger(self, ledger_id: int) -> Mapping[str, Any]:
        """``last``, ``length`` and ``closed`` of a ledger, from the bookie."""
        found: Mapping[str, Any] = self._ask(f"ledger {ledger_id}")
        return found

    def hot(self, ledger_id: int, first: int, last: int) -> list[bytes]:
        """Entries as the bookie has them."""
        return [base64.b64decode(entry) for entry in self._ask(f"hot {ledger_id} {first} {last}")]

    def forget(self, ledger_id: int) -> None:
        """The bookie deletes a ledger; what the broker has of it then is what it offloaded."""
        self._ask(f"forget {ledger_id}")

    def cold(self, ledger_id: int, uuid: str, first: int, last: int) -> list[bytes]:
        """Entries as the broker's offloader reads them from the object store."""
        return [base64.b64decode(entry) for entry in self._ask(f"cold {ledger_id} {uuid} {first} {last}")]

    def index(self, data: bytes, entries: Sequence[int]) -> Mapping[str, Any]:
        """What the offloader's classes make of an index object, and the block they'd read for each of ``entries``."""
        words = " ".join(map(str, entries))
        found: Mapping[str, Any] = self._ask(f"index {base64.b64encode(data).decode()} {words}".rstrip())
        return found

    def _ask(self, question: str) -> Any:
        with self._lock:
            assert self.process.stdin is not None
            self.process.stdin.write(question + "\n")
            self.process.stdin.flush()
            answer = self._next(ANSWER_TIMEOUT_S)
        if isinstance(answer, dict) and "error" in answer:
            raise BrokerRefused(answer["error"])
        return answer

    def _next(self, timeout_s: float) -> Any:
        try:
            line = self._lines.get(timeout=timeout_s)
        except queue.Empty:
            raise Unavailable(f"the broker didn't answer within {timeout_s:g} s; its log is {self.log}") from None
        if line is None:
            last = self.log.read_text(errors="replace").strip().splitlines()[-3:]
            raise Unavailable(f"the broker ended: {' | '.join(last) or 'no output'}")
        return json.loads(line)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def close(self) -> None:
        """Ends it in order, so that the same folder can be used again; insists after ``STOP_TIMEOUT_S``."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            self.process.stdin.close()
            self.process.wait(STOP_TIMEOUT_S)
        self.stop()
        self._reader.join(STOP_TIMEOUT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()


def offload_settings(endpoint_url: str, bucket: str) -> dict[str, str]:
    """Makes a broker offload to ``bucket`` of an S3 server that isn't AWS.

    Driver ``S3``, not ``aws-s3``: that one asks AWS for the bucket's region whatever endpoint it is given. Its keys
    come from the environment: ``ACCESS_KEY_ID`` and ``ACCESS_KEY_SECRET``.
    """
    return {
        "managedLedgerOffloadDriver": "S3",
        "managedLedgerOffloadBucket": bucket,
        "managedLedgerOffloadRegion": "us-east-1",
        "managedLedgerOffloadServiceEndpoint": endpoint_url,
    }


@contextlib.contextmanager
def running_broker(
    folder: Path, settings: Mapping[str, str], environment: Mapping[str, str] | None = None
) -> Iterator[Broker]:
    """A broker with its data under ``folder``, for the length of a block; the folder can be used again afterwards.

    Args:
        folder: made when it isn't there.
        settings: any of Pulsar's and BookKeeper's.
        environment: added to this process's.

    Raises:
        Unavailable: it can't be had, or didn't start within ``START_TIMEOUT_S``.
    """
    built = find_place(build=True)
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "broker.log"
    command = [
        find_java(),
        *_JAVA_OPTIONS,
        "-cp",
        f"{built / 'lib'}/*",
        "RealBroker",
        str(folder),
        str(SOURCES / "broker.conf"),
        f"offloadersDirectory={built / 'offloaders'}",
        *(f"{name}={value}" for name, value in settings.items()),
    ]
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            env={**os.environ, **(environment or {})},
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            text=True,
            start_new_session=True,
        )
    started = Broker(process, log)
    try:
        started.await_ready()
        yield started
    finally:
        started.close()
