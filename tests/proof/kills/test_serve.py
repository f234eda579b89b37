"""``offloader serve`` as a process: signals, reloads, crashes, standby; over a real S3 server."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path
from random import Random

import pytest
import urllib3

from offloader.cli.main import main
from offloader.manifest.log import load_manifest
from services.servers import free_port
from tests.cli.test_serve import HOUR, ORDERS, QUICK, Place
from tests.cli.test_serve import place as place
from tests.support.holding_proxy import HoldingProxy
from tests.support.waiting import PATIENCE_S, eventually


def test_second_signal_ends_the_process_and_the_next_start_continues(place: Place) -> None:
    with HoldingProxy(place.place.endpoint.url) as proxy:
        with place.serving(place.config(offload=QUICK, endpoint=proxy.url)) as serving:
            place.append()
            eventually(place.has_all)
            proxy.hold("PUT", "")
            place.append()
            serving.signal(signal.SIGTERM)
            serving.logged("signal")
            serving.signal(signal.SIGTERM)
            assert serving.ended(PATIENCE_S) == 128 + signal.SIGTERM
            assert any("stopped immediately" in line.get("text", "") for line in serving.lines)
        with place.serving(place.config()):
            eventually(place.has_all)


def test_unfinished_drain_times_out_and_reports_what_is_left(place: Place) -> None:
    with HoldingProxy(place.place.endpoint.url) as proxy:
        config = place.config(
            offload=f"{QUICK}\ndrain_timeout = '200ms'",
            more="[store]\nretries_max = 0\nread_timeout = '4s'\nretry_total = '4s'",
            endpoint=proxy.url,
        )
        with place.serving(config) as serving:
            place.append()
            eventually(place.has_all)
            proxy.hold("PUT", "")
            place.append()
            serving.signal(signal.SIGINT)
            assert serving.ended() == 4
            said = [line.get("text", "") for line in serving.lines]
            assert any("stopped 1 streams before all entries were offloaded" in each for each in said)
            assert serving.logged("drain_failed")["stream"] == ORDERS


def test_reload_applies_valid_settings_and_ignores_an_invalid_file(place: Place) -> None:
    config = place.config(offload=HOUR)
    with place.serving(config) as serving:
        place.append()
        eventually(lambda: place.is_known)
        place.config(offload=QUICK, more="[limits]\nrequests_per_s = 1000\n[manifest]\nx2 = 1")
        serving.signal(signal.SIGHUP)
        assert "manifest.x2: no such setting" in serving.logged("reload_refused")["message"]
        place.config(offload=QUICK, more="[limits]\nrequests_per_s = 1000")
        serving.signal(signal.SIGHUP)
        found = serving.logged("reloaded")
        assert found["changed"] == ["offload.segment_age_max"]
        assert found["needs_restart"] == ["limits.requests_per_s"]
        # The new age counts: the segment closes.
        eventually(place.has_all)


def test_standby_process_takes_over_when_the_first_is_killed(place: Place) -> None:
    config = place.config(more="[telemetry]\nstatus_interval = '100ms'")
    with place.serving(config) as first:
        first.logged("active")
        place.append()
        eventually(place.has_all)
        with place.serving(config) as second:
            place.append()
            eventually(place.has_all)
            assert load_manifest(place.store, ORDERS).epoch == 1, "it stands by"
            assert not any(line.get("event") == "active" for line in second.lines)
            first.signal(signal.SIGKILL)
            first.ended()
            second.logged("active")
            place.append()
            eventually(place.has_all)
            assert load_manifest(place.store, ORDERS).epoch == 2
            # The first one comes back: now it is the one to wait.
            with place.serving(config):
                place.append()
                eventually(place.has_all)
                assert load_manifest(place.store, ORDERS).epoch == 2


def test_repeated_kills_lose_and_repeat_nothing(place: Place) -> None:
    generator = Random(17)
    for _ in range(2):
        with place.serving(place.config()) as serving:
            before = len(place.stored)
            for _ in range(generator.randrange(3, 8)):
                place.append(generator.randrange(1, 200))
            # Some of it is there by then, and something is on its way.
            eventually(lambda: len(place.stored) > before)  # noqa: B023 - asked here and now
            place.append(generator.randrange(1, 200))
            serving.signal(signal.SIGKILL)
            serving.ended()
    with place.serving(place.config()) as serving:
        eventually(place.has_all)
        serving.signal(signal.SIGTERM)
        assert serving.ended() == 0
    assert place.has_all()
    assert load_manifest(place.store, ORDERS).epoch == 3


def test_command_asks_a_running_process_to_complete_its_segment(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    (tmp_path / "tokens").write_text("a-token-of-this-test\n")
    more = f'[http]\nlisten = "127.0.0.1:{port}"\n[access]\nwrite_tokens = ["file:{tmp_path}/tokens"]'
    for name, value in place.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("OFFLOADER_ENDPOINT_URL", place.place.endpoint.url)
    monkeypatch.setenv("OFFLOADER_STORE", place.place.url)
    with place.serving(place.config(offload=HOUR, more=more)):
        place.append()
        eventually(lambda: place.is_known and load_manifest(place.store, ORDERS).assigned())
        assert urllib3.request("GET", f"http://127.0.0.1:{port}/readyz", timeout=PATIENCE_S, retries=3).status == 200
        # The address stands in the epoch's record; nobody but whoever has a token may ask.
        assert main(["stream", "offload", ORDERS]) == 8
        assert "OFFLOADER_TOKEN" in capsys.readouterr().err
        monkeypatch.setenv("OFFLOADER_TOKEN", "a-token-of-this-test")
        # An address in a manifest gets no token by itself.
        assert main(["stream", "offload", ORDERS]) == 8
        assert "OFFLOADER_OWNER_HOSTS" in capsys.readouterr().err
        monkeypatch.setenv("OFFLOADER_OWNER_HOSTS", "127.0.0.1")
        assert main(["stream", "offload", ORDERS, "--json"]) == 0
        done = json.loads(capsys.readouterr().out)
        assert (done["owner"], done["segments"], done["entries"]) == (f"http://127.0.0.1:{port}", 1, 50)
        assert place.has_all()
        assert main(["stream", "offload", ORDERS]) == 0
        assert capsys.readouterr().out.startswith(f"nothing to offload in {ORDERS}: committed end ")
        state = load_manifest(place.store, ORDERS)
        assert (state.epoch, state.owner.url) == (1, f"http://127.0.0.1:{port}")
    # It is gone: without ledgers nobody can be asked, with them it is done here.
    place.append()
    assert main(["stream", "offload", ORDERS]) == 4
    assert "no answer from" in capsys.readouterr().err
    monkeypatch.setenv("OFFLOADER_LEDGERS", f"sqlite:///{tmp_path}/ledgers.db")
    eventually(lambda: main(["stream", "offload", ORDERS, "--take-over"]) == 0)
    assert place.has_all()


def test_service_manager_is_notified(place: Place, tmp_path: Path) -> None:
    address = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(address))
        manager.settimeout(PATIENCE_S)
        place.environ["NOTIFY_SOCKET"] = str(address)
        with place.serving(place.config()) as serving:
            assert manager.recv(1000).startswith(b"READY=1\n")
            serving.signal(signal.SIGHUP)
            assert manager.recv(1000).startswith(b"RELOADING=1\nMONOTONIC_USEC=")
            assert manager.recv(1000).startswith(b"READY=1\n")
            serving.signal(signal.SIGTERM)
            assert manager.recv(1000).startswith(b"STOPPING=1\n")
            assert serving.ended() == 0
