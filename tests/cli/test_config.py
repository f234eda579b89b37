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
    path.write_text(f'streaming_offload = true\n[topics."{ORDERS}".offload]\nblock_size = "4KiB"\n')
    return str(path)


def test_explain_shows_each_value_and_its_source(offloader: Offloader, config: str) -> None:
    rows = {row["name"]: row for row in offloader("config", "explain", ORDERS, "--config", config, "--json").rows}
    assert rows["offload.block_size"] == {
        "name": "offload.block_size",
        "value": "4KiB",
        "source": f"{config} [topic {ORDERS}]",
    }
    assert rows["offload.method"]["value"] == "streaming"
    assert rows["store.retries_max"]["source"] == "default"


def test_explain_can_leave_the_defaults_out(offloader: Offloader, config: str) -> None:
    done = offloader("config", "explain", ORDERS, "--config", config, "--changed", "--wide")
    assert [line.split()[:2] for line in done.out.splitlines()] == [
        ["SETTING", "VALUE"],
        ["offload.block_size", "4KiB"],
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


_PULSAR = (
    '[serve]\nstore = "memory://x"\n[pulsar]\nservice_url = "pulsar://b:1"\nadmin_url = "http://b:1"\ntopics = {}\n'
)


@pytest.mark.parametrize(
    "text",
    [
        _PULSAR.format('["non-persistent://public/default/a"]'),
        _PULSAR.format('["topic://public/default/a", "segment://public/default/a"]'),
        _PULSAR.format('["public/default"]\nexclude = ["a"]'),
        _PULSAR.format('["public/default"]').replace("pulsar://b:1", "http://b:1"),
        _PULSAR.format('["public/default"]').replace("http://b:1", "b:1"),
        '[serve]\nstore = "memory://x"\n[pulsar]\ntopics = ["public/default"]\n',
        '[serve]\nstore = "memory://x"\nledgers = "postgres://x"\n',
        '[serve]\nstore = "memory://x"\nmaintenance = false\n',
        '[serve]\nstore = "memory://x"\n[http]\nlisten = "somewhere"\n',
    ],
)
def test_check_refuses_what_serve_refuses(offloader: Offloader, tmp_path: Path, text: str) -> None:
    path = tmp_path / "offloader.toml"
    path.write_text(text)
    code, line, hint = offloader.refuses("config", "check", "--config", str(path))
    assert (code, line, hint) == offloader.refuses("serve", "--config", str(path))
    assert code == 2


def test_check_accepts_files_of_read_servers_and_of_other_commands(offloader: Offloader, tmp_path: Path) -> None:
    path = tmp_path / "offloader.toml"
    for text in (
        '[serve]\nstore = "memory://x"\nmaintenance = false\n[http]\nlisten = "127.0.0.1:8750"\n',
        '[access]\nread_tokens = ["file:/nowhere"]\n[http]\nlisten = ":8750"\n',
        '[read]\nread_priority = "tiered-storage-first"\n',
    ):
        path.write_text(text)
        assert offloader("config", "check", "--config", str(path)).code == 0


def test_invalid_calls_are_refused(offloader: Offloader) -> None:
    assert offloader.refuses("config", "guess")[0] == 2
    assert offloader.refuses("config", "check")[0] == 2
    assert offloader.refuses("config", "check", "--dry-run")[0] == 2
