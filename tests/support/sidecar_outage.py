"""What a sidecar of many topics must show and log while its broker is lost, whichever broker that is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.http_process import ask
from tests.support.serving_processes import Serving
from tests.support.waiting import eventually, settled

__all__ = ["LINES_MAX", "Sidecar", "write_settings"]

#: Lines of a whole outage: one says that it began and one that it ended.
LINES_MAX = 2
#: Within so long of losing its broker a sidecar isn't ready any more.
KNOWN_WITHIN_S = 15.0
#: Seconds by which the lag has to grow.
GROWTH_S = 3


def write_settings(folder: Path, service_url: str, admin_url: str, namespace: str, port: int) -> Path:
    """A settings file in ``folder``, for a sidecar that answers at ``port``."""
    config = folder / "offloader.toml"
    config.write_text(
        f'[serve]\nstore = "file://{folder}/store"\nmaintenance = false\n'
        f'[pulsar]\nservice_url = "{service_url}"\nadmin_url = "{admin_url}"\n'
        f'topics = ["{namespace}"]\ndiscovery_interval = "1s"\n'
        '[offload]\nmethod = "streaming"\nsegment_age_max = "1s"\n'
        '[telemetry]\nstatus_interval = "1s"\n'
        f'[http]\nlisten = "127.0.0.1:{port}"\n[access]\nanonymous = "read"\n'
    )
    return config


@dataclass
class Sidecar:
    """A process of ``topics`` topics of one namespace, by its address."""

    process: Serving
    url: str
    broker_url: str
    namespace: str
    topics: int

    def check_working(self) -> None:
        """It is ready, every stream is live, all is offloaded and nothing is behind."""
        eventually(lambda: self._has_metric('offloader_source_up{feed="pulsar"} 1.0'))
        eventually(lambda: ask(f"{self.url}/readyz").status == 200)
        # Topics reconnect one after the other: all must be so in one answer.
        eventually(self._is_all_offloaded)

    def check_lost(self, why: str) -> None:
        """It isn't ready, and says why; streams are disconnected and their lag grows."""
        assert settled(
            lambda: ask(f"{self.url}/readyz").status, lambda status: status == 503, still_s=KNOWN_WITHIN_S, look_s=0.2
        )
        eventually(lambda: self._blocking() == [f"the broker {self.broker_url} doesn't answer: {why}"])
        eventually(lambda: self._modes() == {"disconnected": self.topics})
        assert self._has_metric('offloader_source_up{feed="pulsar"} 0.0')
        of = f'namespace="{self.namespace}"'
        assert self._has_metric(f'offloader_streams{{mode="disconnected",{of}}} {self.topics}.0')
        first_s = self._lag_seconds()
        eventually(lambda: self._lag_seconds() > first_s + GROWTH_S)
        assert not self._has_metric(f"offloader_lag_seconds{{{of}}} 0.0")
        assert all(row["lag_known_ms"] and row["disconnected"] for row in self._rows())

    def check_outage(self, lose: Callable[[], object], find: Callable[[], object], why: str) -> None:
        """Loses the broker and finds it again: the log has a line for each, and few others."""
        before = len(self._warnings())
        lose()
        self.check_lost(why)
        find()
        self.check_working()
        eventually(lambda: any("answers again after" in line for line in self._warnings()[before:]))
        told = self._warnings()[before:]
        assert len(told) <= LINES_MAX, told
        assert sum(f"doesn't answer: {why}" in line for line in told) == 1, told
        assert not any("Errno" in line or "HTTPConnectionPool" in line for line in told), told

    def _rows(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = ask(f"{self.url}/v1/status").json()["streams"]
        return found

    def _is_all_offloaded(self) -> bool:
        found = self._rows()
        return len(found) == self.topics and all(map(_is_offloaded, found))

    def _has_metric(self, line: str) -> bool:
        return line.encode() in ask(f"{self.url}/metrics").body

    def _blocking(self) -> list[str]:
        return [each["what"] for each in ask(f"{self.url}/readyz").json()["problems"] if each["blocks_ready"]]

    def _modes(self) -> dict[str, int]:
        found: dict[str, int] = ask(f"{self.url}/v1/overview").json()["streams"]["modes"]
        return found

    def _lag_seconds(self) -> float:
        return float(min(row["lag"]["seconds"] for row in self._rows()))

    def _warnings(self) -> list[str]:
        lines = [line for line in list(self.process.lines) if line.get("level") != "info"]
        return [str(line.get("message", line.get("text", ""))) for line in lines]


def _is_offloaded(row: dict[str, Any]) -> bool:
    """Whether a stream is live, and known now to be offloaded as far as it goes."""
    is_behind = row["lag"] is None or row["lag"]["seconds"] != 0 or row["lag_known_ms"] is not None
    return row["mode"] == "live" and bool(row["committed"]) and not is_behind
