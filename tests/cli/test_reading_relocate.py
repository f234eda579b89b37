"""``read.relocate`` of the settings file, in commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from offloader.cli.main import main
from offloader.cli.spark import JobArguments
from offloader.manifest.load import load_manifest
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
        ["read", "--since", "2020-01-01"],
        ["verify"],
        ["verify", "--deep"],
        ["retention", "plan", "--keep", "1d"],
        ["stream", "truncate", "--before-time", "2020-01-01", "--apply"],
        [
            "export",
            "iceberg",
            "--table",
            "t.entries",
            "--catalog",
            "sqlite:///catalog.db",
            "--warehouse",
            "file://warehouse",
        ],
    ],
    ids=" ".join,
)
def test_commands_read_a_moved_bucket_where_the_settings_name_it(
    capsys: pytest.CaptureFixture[str], config: str, tmp_path: Path, arguments: list[str], stream: str
) -> None:
    arguments = [text.replace("catalog.db", f"{tmp_path}/catalog.db") for text in arguments]
    arguments = [text.replace("file://warehouse", f"file://{tmp_path}/warehouse") for text in arguments]
    done = Offloader(capsys)(*arguments, stream, "--config", config)
    assert (done.code, done.err) == (0, "")


@pytest.mark.slow
def test_read_refuses_another_place_without_the_setting(
    capsys: pytest.CaptureFixture[str], config: str, tmp_path: Path
) -> None:
    assert main(["read", "orders", "--store", f"file://{tmp_path}/store"]) == 2
    assert "read.relocate" in capsys.readouterr().err


@pytest.mark.slow
def test_compaction_rewrites_segments_of_a_moved_bucket(
    capsys: pytest.CaptureFixture[str], config: str, tmp_path: Path
) -> None:
    done = Offloader(capsys)(
        "stream", "compact", "orders", "--beside-owner", "--recode", "--codec", "zstd", "--config", config
    )
    assert (done.code, done.err) == (0, "")
    [segment] = load_manifest(open_store(f"file://{tmp_path}/store"), "orders").offloaded()
    assert (segment.content.compressed, segment.driver["bucket"]) == (True, f"{tmp_path}/store")
    assert main(["verify", "orders", "--deep", "--store", f"file://{tmp_path}/store"]) == 0


def test_spark_jobs_that_read_get_the_setting_of_each_stream(config: str) -> None:
    with Path(config).open("a", encoding="utf-8") as file:
        file.write('[topics."a/b/persistent/t".read]\nrelocate = { "older" = "there" }\n')
    here = Path(config).parent / "store"
    assert JobArguments(config=config).options(["orders", "a/*"])["relocate"] == f"old={here}"
    assert JobArguments(config=config).options(["persistent://a/b/t"])["relocate"] == "older=there"
    assert JobArguments(config=config, more=["relocate=x=y"]).options(["orders"])["relocate"] == "x=y"
    assert "relocate" not in JobArguments(config=config).options([])
