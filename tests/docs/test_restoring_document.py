"""docs/how-to/restoring.md: its samples run in order and print the documented output, apart from uuids."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from offloader.cli.main import main
from offloader.manifest.boundary import listed
from offloader.store.open import open_store
from services.servers import make_bucket
from tests.support.streams import StreamWriter, batch_of

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / "restoring.md").read_text(encoding="utf-8")
#: Where the text's samples are.
PLACE = "/srv/orders"


def told(text: str) -> list[list[str]]:
    """Lines as words, without uuids."""
    text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "UUID", text)
    return [line.split() for line in text.splitlines()]


@pytest.mark.slow
def test_steps_run_in_order_and_print_documented_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    count, printed, names = 0, "", dict[str, object]()
    for language, text in re.findall(r"^```(\w+)\n(.*?)^```$", TEXT, re.M | re.S):
        here = text.replace(PLACE, str(tmp_path))
        if language == "python":
            exec(compile(here, "sample", "exec"), names)
            printed += capsys.readouterr().out
            continue
        for block in re.split(r"^\$ ", here, flags=re.M)[1:]:
            command, _, expected = block.partition("\n")
            words = shlex.split(command)
            if words[0] == "export":
                monkeypatch.setenv(*words[1].split("=", 1))
                continue
            capsys.readouterr()
            main(words[1:])
            found = capsys.readouterr()
            assert told(found.out + found.err) == told(expected), command
            count += 1
    assert count == 9
    assert printed == "SourceMismatch\n" * 2, "once without the database, once in the drill"


def test_every_option_that_the_text_names_exists(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("accept-source", "accept-loss"):
        main([verb, "--help"])
        assert "--dry-run" in capsys.readouterr().out


@pytest.mark.process
def test_s3_commands_copy_a_store_and_bring_it_back_whole(
    s3_place: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bucket is copied, emptied and filled from the copy; then every byte is as the manifests say."""
    bucket, backup = f"restore-{s3_place.root[-12:]}", f"backup-{s3_place.root[-12:]}"
    for name in (bucket, backup):
        make_bucket(s3_place.endpoint, name)
    url = f"s3://{bucket}/production"
    store = open_store(url, **s3_place.options)
    for name in ("orders", "shop/eu/persistent/clicks"):
        StreamWriter(store, name).add([batch_of(1, 0, 300)], closes=[1])
    before = keys_below(store)
    assert {key.partition("/")[0] for key in before} >= {"orders", "shop"}

    remote = {
        "TYPE": "s3",
        "PROVIDER": "Other",
        "ENDPOINT": s3_place.endpoint.url,
        "ACCESS_KEY_ID": s3_place.endpoint.access_key,
        "SECRET_ACCESS_KEY": s3_place.endpoint.secret_key,
    }
    environment = {**os.environ, **{f"RCLONE_CONFIG_S3_{name}": value for name, value in remote.items()}}

    def rclone(line: str) -> None:
        words = shlex.split(line.replace("BUCKET/ROOT", f"{bucket}/production").replace("BACKUP/ROOT", f"{backup}/x"))
        command = [str(Path(sys.executable).parent / words[0]), *words[1:], "--config", str(tmp_path / "none.conf")]
        subprocess.run(command, env=environment, check=True, timeout=280)

    *copies, back = [line for line in TEXT.splitlines() if line.startswith("rclone ")]
    assert len(copies) == 2
    rclone(copies[0])
    copied = keys_below(open_store(f"s3://{backup}/x", **s3_place.options))
    assert copied == {key for key in before if key.startswith("_") or "/manifest/" in key}, "manifests come first"
    rclone(copies[1])
    store.delete(sorted(before))
    assert keys_below(store) == set()
    rclone(back)

    assert keys_below(store) == before
    for name, value in s3_place.endpoint.environment.items():
        monkeypatch.setenv(name, value)
    for name in ("orders", "shop/eu/persistent/clicks"):
        assert main(["verify", name, "--deep", "--store", url, "--endpoint-url", s3_place.endpoint.url]) == 0
        assert "300 entries" in capsys.readouterr().out


def keys_below(store: Any) -> set[str]:
    return {info.key for info in listed(store, "")}
