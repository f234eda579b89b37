"""Alert rules about lost processes, sources, stores and standbys, evaluated over the metrics of real processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from docs.make_reference import DEPLOY
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
from offloader.runtime.clock import SystemClock
from offloader.service.bootstrap import Assembled, assemble
from offloader.service.process import RecentErrors
from services.servers import free_port
from tests.support.alert_rules import Scrape, firing
from tests.support.served import settings_file
from tests.support.waiting import eventually

RULES: dict[str, str] = {
    rule["alert"]: rule["expr"]
    for group in yaml.safe_load((DEPLOY / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
}
ORDERS = "shop/eu/persistent/orders"


@contextmanager
def process(*, read_only: bool = False, **names: Any) -> Iterator[Assembled]:
    """A process as its settings make it."""
    made = assemble(settings_file(**names), clock=SystemClock(), recent=RecentErrors(), read_only=read_only)
    try:
        made.process.start()
        yield made
    finally:
        made.process.stop(drain=False)


def awaited(assembled: Assembled, *parts: str) -> bytes:
    """The metrics, once each of the parts is in them."""

    def has_all() -> bool:
        text = assembled.metrics.exposition().decode()
        return all(part in text for part in parts)

    eventually(has_all)
    return assembled.metrics.exposition()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[bytes, bytes]]:
    """Metrics of a leader and of a standby with the same database."""
    with closing(EmbeddedLedgers(str(tmp_path / "ledgers.db"))) as database:
        database.open_stream(ORDERS).append([b"one"])
    names: dict[str, Any] = {
        "serve__store": f"file://{tmp_path}/store",
        "serve__ledgers": f"sqlite:///{tmp_path}/ledgers.db",
    }
    with process(**names) as leader:
        up = ("offloader_store_up 1.0", 'offloader_source_up{feed="ledgers"} 1.0')
        led = awaited(leader, *up, 'offloader_standby{namespace="shop/eu"} 0.0')
        with process(**names) as standby:
            yield led, awaited(standby, *up, 'offloader_standby{namespace="shop/eu"} 1.0')


def instances(alert: str, scrapes: list[Scrape], now_s: float) -> list[str]:
    return sorted(each.get("instance", "") for each in firing(RULES[alert], scrapes, now_s))


NEW_RULES = ("OffloaderInstanceDown", "OffloaderSourceUnreachable", "OffloaderStoreUnreachable", "OffloaderNoStandby")


def test_no_alert_fires_while_two_processes_do_their_work(pair: tuple[bytes, bytes]) -> None:
    scrapes = [Scrape(0, "a", pair[0]), Scrape(0, "b", pair[1])]
    assert [firing(RULES[alert], scrapes, 15) for alert in (*NEW_RULES, "OffloaderDown")] == [[]] * 5


@pytest.mark.parametrize("is_target", [True, False])
def test_absent_process_of_two_fires_by_itself(is_target: bool, pair: tuple[bytes, bytes]) -> None:
    scrapes = [Scrape(0, "a", pair[0]), Scrape(0, "b", pair[1])]
    scrapes += [Scrape(at_s, "a", pair[0]) for at_s in range(15, 616, 15)]
    scrapes += [Scrape(at_s, "b", None, is_target) for at_s in range(15, 616, 15)]
    assert instances("OffloaderInstanceDown", scrapes, 616) == ["b"]
    assert firing(RULES["OffloaderDown"], scrapes, 616) == [], "the other one is there"
    assert firing(RULES["OffloaderNoStandby"], scrapes, 616) == [{"namespace": "shop/eu"}]


def test_process_without_a_standby_fires_no_alert(pair: tuple[bytes, bytes]) -> None:
    assert firing(RULES["OffloaderNoStandby"], [Scrape(0, "a", pair[0])], 15) == []


def test_absence_of_every_process_fires_for_all(pair: tuple[bytes, bytes]) -> None:
    assert firing(RULES["OffloaderDown"], [Scrape(0, "a", pair[0]), Scrape(15, "a", None)], 400) == [{}]


def test_lost_store_and_source_fire_for_the_process_that_lost_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
    url = f"http://127.0.0.1:{free_port()}"
    listen: dict[str, Any] = {"http__listen": f"127.0.0.1:{free_port()}", "serve__endpoint_url": url}
    with process(read_only=True, serve__store="s3://nowhere/root", **listen) as reader:
        no_store = awaited(reader, "offloader_store_up 0.0")
    (tmp_path / "file").touch()
    names: dict[str, Any] = {
        "serve__store": f"file://{tmp_path}/store",
        "serve__ledgers": f"sqlite:///{tmp_path}/file/ledgers.db",
    }
    with process(**names) as sidecar:
        no_source = awaited(sidecar, 'offloader_source_up{feed="ledgers"} 0.0', "offloader_store_up 1.0")
    scrapes = [Scrape(0, "reader", no_store), Scrape(0, "sidecar", no_source)]
    fired: Callable[[str], list[str]] = lambda alert: instances(alert, scrapes, 15)  # noqa: E731
    assert fired("OffloaderStoreUnreachable") == ["reader"]
    assert fired("OffloaderSourceUnreachable") == ["sidecar"]
