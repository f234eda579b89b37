"""Two sidecars of busy topics of a real broker are restarted in turns, and nobody is alarmed.

    ./dev chaos --restarts                     # five minutes
    ./dev chaos --restarts --minutes 40

Each restart is orderly (SIGTERM): the other sidecar takes the topics over while messages are sent. At the end every
message is in the store once, in the order of sending. No sidecar has logged an error or a segment that counts as
failed, or exited with another code than 0.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pulsar

import offloader
from formats.pulsar.messages import MessageOptions
from offloader.errors import NotFoundError
from services.pulsar.broker import Broker, running_broker
from tests.support.serving_processes import Serving
from tests.support.waiting import eventually

__all__ = ["Outcome", "run"]

NAMESPACE, TOPICS = "public/default", 4
#: Messages of each topic in a second.
RATE = 100
#: How long a sidecar works before the other one is restarted.
BETWEEN_S = 10.0
STOP_S = 60.0


@dataclass(slots=True)
class Outcome:
    """What came of a run; no problem: nothing was lost and nothing alarmed anybody.

    Attributes:
        warnings: logged, by event.
    """

    restarts: int = 0
    sent: int = 0
    warnings: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


class _Producer(threading.Thread):
    """Sends the numbers from 0 on to each topic until it is stopped."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(name="producer")
        self._client = pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        self._ended = threading.Event()
        self.sent = 0

    def run(self) -> None:
        producers = [self._client.create_producer(_topic(number), batching_max_messages=10) for number in range(TOPICS)]
        while not self._ended.wait(0.1):
            for producer in producers:
                for number in range(self.sent, self.sent + RATE // 10):
                    producer.send_async(b"%d" % number, None)
            self.sent += RATE // 10
        for producer in producers:
            producer.flush()
        self._client.close()

    def stop(self) -> None:
        self._ended.set()
        self.join()


def _topic(number: int) -> str:
    return f"persistent://{NAMESPACE}/busy-{number}"


def _values(url: str, topic: str) -> Iterator[int]:
    try:
        scan = offloader.open_store(url).stream(topic).scan()
    except NotFoundError:
        return
    for batch in scan.messages(MessageOptions(columns=("value",))):
        yield from map(int, batch["value"].to_pylist())


def _is_whole(url: str, topic: str, sent: int) -> bool:
    return list(_values(url, topic)) == [*range(sent)]


def _heard(sidecar: Serving, outcome: Outcome) -> None:
    """Notes what a sidecar that has ended logged."""
    for line in sidecar.lines:
        if line.get("level") in ("error", "critical") or line.get("event") == "segment_failed" or "text" in line:
            outcome.problems.append(f"logged: {line}")
        elif line.get("level") == "warning":
            outcome.warnings[str(line.get("event", line.get("message", ""))[:60])] += 1


def _end(sidecar: Serving, outcome: Outcome) -> None:
    sidecar.signal(signal.SIGTERM)
    if code := sidecar.ended(STOP_S):
        outcome.problems.append(f"a sidecar exited with {code}")
    _heard(sidecar, outcome)


def run(folder: Path, *, minutes: float) -> Outcome:
    """Restarts sidecars for some minutes; the broker is started and stopped here."""
    outcome, url = Outcome(), f"file://{folder}/store"
    settings = {"managedLedgerMaxEntriesPerLedger": "500", "managedLedgerMinLedgerRolloverTimeMinutes": "0"}
    with running_broker(folder / "broker", settings) as broker, ExitStack() as stack:
        config = folder / "offloader.toml"
        config.write_text(
            f'streaming_offload = true\n[serve]\nstore = "{url}"\n'
            f'[pulsar]\nservice_url = "{broker.service_url}"\nadmin_url = "{broker.admin_url}"\n'
            f'topics = ["{NAMESPACE}/busy-*"]\ndiscovery_interval = "1s"\n'
            "[offload]\nsegment_age_max = '2s'\n"
        )
        producer = _Producer(broker)
        producer.start()
        stack.callback(producer.stop)
        sidecars = deque(stack.enter_context(Serving(config)) for _ in range(2))
        until_s = time.monotonic() + 60 * minutes
        while time.monotonic() < until_s:
            threading.Event().wait(BETWEEN_S)
            _end(sidecars.popleft(), outcome)
            sidecars.append(stack.enter_context(Serving(config)))
            outcome.restarts += 1
        producer.stop()
        outcome.sent = producer.sent * TOPICS
        for number in range(TOPICS):
            eventually(partial(_is_whole, url, _topic(number), producer.sent), within_s=120)
        for sidecar in sidecars:
            _end(sidecar, outcome)
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev chaos --restarts", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        outcome = run(Path(folder), minutes=options.minutes)
    print(f"{outcome.restarts} restarts, {outcome.sent:,} messages, {len(outcome.problems)} findings")
    for event, count in outcome.warnings.most_common():
        print(f"warning, {count} times: {event}")
    for problem in outcome.problems:
        print(problem)
    return bool(outcome.problems)


if __name__ == "__main__":
    sys.exit(main())
