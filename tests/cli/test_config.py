"""``offloader config explain | check``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.reading_verbs import Offloader

ORDERS = "public/default/persistent/orders"


@pytest.fixture
def offloader(capsys: pytest.CaptureFixture[str]) -> Offloader:
    return Offloader(capsys)


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "offloader.toml"
    path.write_text(f'streaming_offload = true\n[topics."{ORDERS}".offload]\nblock_bytes = 4096\n')
    return str(path)


def test_explain_shows_each_value_and_where_it_comes_from(offloader: Offloader, config: str) -> None:
    rows = {row["name"]: row for row in offloader("config", "explain", ORDERS, "--config", config, "--json").rows}
    assert rows["offload.block_bytes"] == {
        "name": "offload.block_bytes",
        "value": 4096,
        "source": f"{config} [topic {ORDERS}]",
    }
    assert rows["offload.method"]["value"] == "streaming"
    assert rows["store.retries_max"]["source"] == "default"


def test_explain_can_leave_the_defaults_out(offloader: Offloader, config: str) -> None:
    done = offloader("config", "explain", ORDERS, "--config", config, "--changed")
    assert [line.split()[:2] for line in done.out.splitlines()] == [
        ["SETTING", "VALUE"],
        ["streaming_offload", "true"],
        ["offload.block_bytes", "4096"],
        ["offload.method", "streaming"],
    ]


def test_check_accepts_a_good_file(offloader: Offloader, config: str) -> None:
    done = offloader("config", "check", "--config", config)
    assert (done.code, done.out) == (0, f"{config}: 2 settings, all in effect\n")
    assert offloader("config", "check", "--config", config, "--json").rows == [{"file": config, "settings": 2}]


def test_check_refuses_a_bad_one_with_every_problem(offloader: Offloader, tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text('a = 1\n[offload]\nmethod = "teleport"\n')
    code, line, hint = offloader.refuses("config", "check", "--config", str(path))
    assert code == 2
    assert line.startswith(f"{path}: a: no such setting; offload.method: 'teleport' is none of")
    assert "every problem is listed" in hint


def test_what_makes_no_sense_is_refused(offloader: Offloader) -> None:
    assert offloader.refuses("config", "guess")[0] == 2
    assert offloader.refuses("config", "check")[0] == 2
