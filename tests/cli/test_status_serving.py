"""``offloader status`` asks the running process over HTTP."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from offloader import open_store as open_library_store
from offloader.cli import status
from offloader.errors import InvalidCallError, StoreUnavailableError
from offloader.store.open import open_store
from tests.cli.reading_verbs import Offloader
from tests.support.http_process import ORDERS, http_process
from tests.support.streams import StreamWriter, batch_of

TOKEN = "a-token-of-16-letters"


@pytest.fixture
def offloader(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Offloader:
    for name in ("OFFLOADER_TOKEN", "OFFLOADER_CONFIG", "OFFLOADER_STATUS_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OFFLOADER_STORE", f"file://{tmp_path}/store")
    monkeypatch.setattr(status, "DEFAULT_URL", f"http://127.0.0.1:{_free_port()}")
    return Offloader(capsys)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def serving(folder: Path, environ: Mapping[str, str] | None = None, **sections: Any) -> Iterator[str]:
    with http_process(folder, sections, store=open_store(f"file://{folder}/store"), environ=environ) as (http, _):
        yield f"http://{http.address}"


def config(folder: Path, url: str) -> str:
    file = folder / "offloader.toml"
    file.write_text(f'[serve]\nstore = "file://{folder}/store"\nurl = "{url}"\n')
    return str(file)


@pytest.mark.slow
def test_mode_and_lag_come_from_the_process_at_the_default_address(
    offloader: Offloader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tmp_path) as url:
        [before] = offloader("status", "--json").rows
        monkeypatch.setattr(status, "DEFAULT_URL", url)
        [row] = offloader("status", "--json").rows
        assert "store.single_writer" in offloader("status", "--limits").out
    assert (before["source"], before["mode"], before["lag"]) == ("manifest", None, None)
    assert (row["stream"], row["source"], row["mode"]) == (ORDERS, "process and manifest", "live")
    assert row["lag"]["entries"] == 0
    assert row["committed"] == before["committed"]


@pytest.mark.slow
def test_library_gets_mode_and_lag_from_the_process(tmp_path: Path) -> None:
    orders = open_library_store(f"file://{tmp_path}/store").stream(ORDERS)
    with serving(tmp_path) as url:
        [row], [stored] = orders.status(serving=url), orders.status()
        other = open_library_store(f"file://{tmp_path}/other")
        StreamWriter(other.objects, ORDERS).add([batch_of(1, 0, 3)])
        with pytest.raises(InvalidCallError, match="serves another store"):
            other.stream(ORDERS).status(serving=url)
    assert (row["mode"], row["lag"]["entries"], stored["mode"], stored["lag"]) == ("live", 0, None, None)
    with pytest.raises(StoreUnavailableError):
        orders.status(serving=url)


@pytest.mark.slow
def test_address_of_the_settings_gets_the_token(
    offloader: Offloader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    access = {"read_tokens": ["env:T"]}
    with serving(tmp_path, {"T": TOKEN}, access=access) as url:
        refused = offloader("status", "--json", "--config", config(tmp_path, url))
        monkeypatch.setenv("OFFLOADER_TOKEN", TOKEN)
        monkeypatch.setattr(status, "DEFAULT_URL", url)
        by_default = offloader("status", "--json")
        done = offloader("status", "--json", "--config", config(tmp_path, url))
    assert (refused.code, refused.rows[0]["mode"]) == (0, None)
    assert refused.err.startswith(f"note: showing facts of the manifests only: {url}")
    assert (by_default.rows[0]["mode"], by_default.err) == (None, "")  # no token for an address that no setting names
    assert (done.rows[0]["mode"], done.err) == ("live", "")


@pytest.mark.slow
def test_process_of_another_store_is_left_out(
    offloader: Offloader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tmp_path), http_process(tmp_path) as (other, _):
        url = f"http://{other.address}"
        monkeypatch.setattr(status, "DEFAULT_URL", url)
        assert offloader("status", "--json").rows[0]["source"] == "manifest"
        done = offloader("status", "--json", "--config", config(tmp_path, url))
    assert done.rows[0]["source"] == "manifest"
    assert done.err == (
        f"note: showing facts of the manifests only: {url} serves another store "
        "(name the address of the process that serves this one, or none)\n"
    )


@pytest.mark.slow
def test_no_answer_at_the_address_of_the_settings_is_noted(offloader: Offloader, tmp_path: Path) -> None:
    with serving(tmp_path) as url:
        pass
    done = offloader("status", "--json", "--config", config(tmp_path, url))
    assert (done.code, done.rows[0]["source"]) == (0, "manifest")
    assert f"no answer from {url}" in done.err
