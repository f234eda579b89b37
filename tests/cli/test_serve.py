"""``offloader serve`` as a process: signals, reloads, crashes, standby; over a real S3 server."""

from __future__ import annotations

import signal
import socket
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from offloader.cli.main import main
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
from offloader.manifest.log import list_streams, load_manifest
from offloader.store.base import ObjectStore
from tests.support.readback import stored_entries
from tests.support.server_fixtures import Servers
from tests.support.serving_processes import Serving
from tests.support.waiting import eventually

ORDERS = "a/b/persistent/orders"
HOUR = "segment_age_max = '1h'"
QUICK = "segment_age_max = '120ms'"


class Place:
    """A bucket, a ledger database and settings files."""

    def __init__(self, directory: Path, servers: Servers, server: str) -> None:
        self._directory = directory
        self.place = servers.place(server)
        self.store: ObjectStore = self.place.open()
        self.environ = {
            "AWS_ACCESS_KEY_ID": self.place.endpoint.access_key,
            "AWS_SECRET_ACCESS_KEY": self.place.endpoint.secret_key,
        }
        self.database = EmbeddedLedgers(str(directory / "ledgers.db"))
        self.appended = 0

    def config(self, name: str = "offloader", *, offload: str = QUICK, more: str = "", endpoint: str = "") -> Path:
        path = self._directory / f"{name}.toml"
        path.write_text(
            f"""
            [serve]
            store = "{self.place.url}"
            endpoint_url = "{endpoint or self.place.endpoint.url}"
            ledgers = "sqlite:///{self._directory}/ledgers.db"
            maintenance = false
            [ledgers]
            poll_interval = "50ms"
            [offload]
            method = "streaming"
            {offload}
            {more}
            """
        )
        return path

    def serving(self, config: Path, *, wait: bool = True) -> Serving:
        return Serving(config, self.environ, wait=wait)

    def append(self, count: int = 50) -> None:
        source = self.database.open_stream(ORDERS)
        source.append([b"entry %d" % number for number in range(self.appended, self.appended + count)])
        self.appended += count

    @property
    def is_known(self) -> bool:
        return ORDERS in set(list_streams(self.store))

    @property
    def stored(self) -> list[bytes]:
        return [payload for _, payload in stored_entries(self.store, ORDERS)] if self.is_known else []

    def has_all(self) -> bool:
        return self.stored == [b"entry %d" % number for number in range(self.appended)]


@pytest.fixture
def place(tmp_path: Path, servers: Servers, one_server: str) -> Any:
    made = Place(tmp_path, servers, one_server)
    with closing(made.database):
        yield made


def test_first_signal_completes_the_open_segment(place: Place) -> None:
    with place.serving(place.config(offload=HOUR)) as serving:
        place.append()
        eventually(lambda: place.is_known and load_manifest(place.store, ORDERS).assigned())
        assert not place.stored
        serving.signal(signal.SIGTERM)
        assert serving.ended() == 0
        assert place.has_all()
        serving.logged("stopped")
    # The next start goes on there.
    with place.serving(place.config()) as serving:
        place.append()
        eventually(place.has_all)
        assert load_manifest(place.store, ORDERS).epoch == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("", 2, "serve.store is not set"),
        ("a = = b", 2, "isn't TOML"),
        ('[serve]\nstore = 3\nstreams = "x"\n[offload]\nx = 1', 2, "serve.store: 3 is not a text; serve.streams"),
        ('[serve]\nstore = "memory://x"\nmaintenance = false', 2, "the process has no task"),
        ('[serve]\nstore = "memory://x"\nledgers = "postgres://x"', 2, "not the URL of an embedded ledger database"),
        (
            '[serve]\nstore = "memory://x"\n[http]\nlisten = ":8750"',
            2,
            "can be reached from other machines without authentication",
        ),
        (
            '[serve]\nmaintenance = false\nledgers = "x://"\n[http]\nlisten = "x"\n[pulsar]\ntopics = ["a"]',
            2,
            "serve.store is not set; pulsar.topics: 'a' is not a topic name or pattern; ledgers 'x://': not the URL",
        ),
        ('[serve]\nstore = "file:///proc/nowhere"', 3, "/proc/nowhere"),
    ],
)
def test_invalid_settings_end_the_process_before_serving(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, code: int, said: str
) -> None:
    config = tmp_path / "offloader.toml"
    config.write_text(text)
    assert main(["serve", "--config", str(config)]) == code
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("offloader: ")]
    assert len(lines) == 1
    assert said in lines[0]


@pytest.mark.slow
def test_address_in_use_ends_the_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "offloader.toml"
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        config.write_text(f'[serve]\nstore = "memory://x"\n[http]\nlisten = "127.0.0.1:{port}"\n')
        assert main(["serve", "--config", str(config)]) == 2
    assert f"http.listen 127.0.0.1:{port}: Address already in use" in capsys.readouterr().err


def test_serve_needs_a_settings_file_and_can_only_check_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve"]) == 2
    assert "no settings file was given" in capsys.readouterr().err
    config = tmp_path / "offloader.toml"
    config.write_text('[serve]\nstore = "memory://x"\n')
    assert main(["serve", "--config", str(config), "--check"]) == 0
    good, note = capsys.readouterr().out.splitlines()
    assert good == f"{config}: all settings are valid"
    assert note.startswith("note: no feed of streams is set")
    config.write_text(f'[serve]\nstore = "memory://x"\nledgers = "{tmp_path}/l.db"\n')
    assert main(["serve", "--config", str(config), "--check"]) == 0
    assert capsys.readouterr().out == f"{config}: all settings are valid\n"
