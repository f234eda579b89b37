"""``read.relocate`` of the settings file, in commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from offloader.cli.main import main
from offloader.store.open import open_store
from tests.cli.reading_verbs import Offloader
from tests.support.streams import StreamWriter, batch_of

OLD = {"managedLedgerOffloadDriver": "aws-s3", "bucket": "old", "region": "", "serviceEndpoint": "https://a"}
TOPIC = "a/b/persistent/t"


@pytest.fixture
def config(tmp_path: Path) -> str:
    """Settings of a store whose streams were written to another bucket."""
    store = open_store(f"file://{tmp_path}/store")
    for stream in ("orders", f"{TOPIC}-partition-0", f"{TOPIC}-partition-1"):
        StreamWriter(store, stream).add([batch_of(1, 0, 10)], closes=[1], driver=OLD)
    file = tmp_path / "moved.toml"
    here = store.driver_metadata["bucket"]
    file.write_text(f'[serve]\nstore = "{store.url}"\n[read]\nrelocate = {{ "old" = "{here}" }}\n')
    return str(file)


@pytest.mark.slow
@pytest.mark.parametrize("stream", ["orders", TOPIC])
@pytest.mark.parametrize(
    "arguments",
    [
        ["read"],
        ["read", "--from-time", "2020-01-01"],
        ["verify"],
        ["verify", "--deep"],
        ["retention", "plan", "--keep", "1d"],
        ["truncate", "--before-time", "2020-01-01", "--dry-run"],
    ],
    ids=" ".join,
)
def test_commands_read_a_moved_bucket_where_the_settings_name_it(
    capsys: pytest.CaptureFixture[str], config: str, tmp_path: Path, arguments: list[str], stream: str
) -> None:
    done = Offloader(capsys)(*arguments, stream, "--config", config)
    assert (done.code, done.err) == (0, "")


@pytest.mark.slow
def test_read_refuses_another_place_without_the_setting(
    capsys: pytest.CaptureFixture[str], config: str, tmp_path: Path
) -> None:
    assert main(["read", "orders", "--store", f"file://{tmp_path}/store"]) == 2
    assert "read.relocate" in capsys.readouterr().err
