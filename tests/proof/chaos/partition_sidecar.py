"""A sidecar whose ways to the store, the broker and its admin interface can be cut, each apart from the others.

It doesn't know what is tried with it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from services.servers import Endpoint
from services.toxiproxy import Toxiproxy
from tests.proof.chaos.partition_schedule import Cut, Plan, Way
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
        [serve]
        store = "{store}"
        endpoint_url = "{urls["store"]}"
        region = "us-east-1"
        maintenance = false
        restart_delay_max = "1s"
        [store]
        connect_timeout = "1s"
        read_timeout = "1s"
        retries_max = 2
        retry_total = "2s"
        retry_delay_max = "200ms"
        [pulsar]
        service_url = "pulsar://{urlsplit(urls["broker"]).netloc}"
        admin_url = "{urls["admin"]}"
        topics = ["t/n"]
        discovery_interval = "200ms"
        subscribers_interval = "1h"
        connect_timeout = "1s"
        request_timeout = "1s"
        keep_alive = "{plan.keep_alive_s}s"
        store_outage_handover = "{plan.hand_over_s}s"
        retry_delay_max = "200ms"
        [offload]
        method = "streaming"
        block_size = "512B"
        segment_size_max = "4KiB"
        segment_age_max = "{plan.segment_s}s"
        deletion_lag = "0s"
        retry_delay_max = "200ms"
        takeover_after = "2s"
        """
