"""A sidecar whose ways to the store, the broker and its admin interface can be cut, each apart from the others.

Owns its process, its proxies and its settings. Must never know what is tried with it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from services.servers import Endpoint
from services.toxiproxy import Toxiproxy
from tests.chaos.partition_schedule import Cut, Plan, Way
from tests.support.serving_processes import Serving

__all__ = ["Sidecar", "settings_of"]


class Sidecar:
    """One of the two: its ways, each through a proxy of its own, and its process."""

    def __init__(
        self, config: Path, faults: Toxiproxy, targets: Mapping[Way, str], settings: Callable[[Mapping[Way, str]], str]
    ) -> None:
        self._config = config
        self._ways = {
            way: faults.proxy(f"{config.stem}-{way}-{config.parent.name}", url) for way, url in targets.items()
        }
        config.write_text(settings({way: proxy.url for way, proxy in self._ways.items()}))
        self.starts = 0
        self._serving: Serving | None = None
        self.said: list[str] = []

    def start(self) -> None:
        """Starts it, or again if it has ended: one that can't reach the store at its start does, and a service manager
        starts it again."""
        if self._serving is None or self._serving.process.poll() is not None:
            self.end()
            self.starts += 1
            self._serving = Serving(self._config, wait=False)

    @property
    def has_started(self) -> bool:
        return self._serving is not None and any(line.get("event") == "started" for line in list(self._serving.lines))

    def is_named(self, writer: str) -> bool:
        """Whether that is how its process calls itself in the manifest."""
        return self._serving is not None and writer.endswith(f"/{self._serving.process.pid}")

    def kill(self) -> None:
        assert self._serving is not None
        self._serving.process.kill()
        self._serving.ended()

    def cut(self, cut: Cut) -> None:
        proxy = self._ways[cut.way]
        if cut.kind == "down":
            proxy.cut_off()
        if cut.kind in ("lost", "silent"):
            proxy.add("timeout", "upstream", timeout=0)
        if cut.kind in ("mute", "silent"):
            proxy.add("timeout", "downstream", timeout=0)

    def heal(self, *ways: Way) -> None:
        """These, or all of them."""
        for way in ways or self._ways:
            self._ways[way].heal()

    def end(self) -> None:
        """Kills it, if it runs."""
        if self._serving is not None:
            self._serving.__exit__(None, None, None)
            name = f"{self._config.stem}/{self._serving.process.pid}"
            self.said += [f"{name} {json.dumps(line)}" for line in self._serving.lines]
            self._serving = None

    def close(self) -> None:
        self.end()
        for proxy in self._ways.values():
            proxy.remove()


def settings_of(urls: Mapping[Way, str], endpoint: Endpoint, store: str, plan: Plan) -> str:
    """Deadlines so short that a way that is cut is noticed while it is, and comes back soon."""
    return f"""
        streaming_offload = true
        [serve]
        store = "{store}"
        endpoint_url = "{urls["store"]}"
        region = "us-east-1"
        upkeep = false
        restart_seconds_max = 1
        [store]
        connect_timeout_s = 1
        read_timeout_s = 1
        retries_max = 2
        retry_total_s = 2
        retry_delay_max_s = 0.2
        [pulsar]
        service_url = "pulsar://{urlsplit(urls["broker"]).netloc}"
        admin_url = "{urls["admin"]}"
        topics = ["t/n"]
        topics_seconds = 0.2
        subscribers_seconds = 3600
        connect_seconds_max = 1
        request_seconds_max = 1
        keep_alive_seconds = {plan.keep_alive_s}
        hand_over_seconds = {plan.hand_over_s}
        retry_seconds_max = 0.2
        [offload]
        block_bytes = 512
        max_size_per_offload_segment_mbytes = 0.004
        max_offload_segment_rollover_time_minutes = {plan.segment_s / 60}
        deletion_lag_minutes = 0
        retry_seconds_max = 0.2
        takeover_after_seconds = 2
        """
