"""The files with which Spark starts sooner: an archive of classes and a home of links; broken ones break nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from offloader.spark.launch import (
    SETTLED_S,
    drop_refused_archive,
)
from tests.spark.test_launch import Recorded, archived_classes, prepared, run_java
from tests.spark.test_launch import _plain_environment as _plain_environment
from tests.spark.test_launch import recorded as recorded
from tests.support.quick import needs


def damaged(whole: bytes, how: str) -> bytes:
    middle, after = len(whole) // 2, len(whole) // 2 + 4096
    turned = bytes(each ^ 0xFF for each in whole[middle:after])
    return {
        "changed": whole[:middle] + turned + whole[after:],
        "foreign": b"not an archive".ljust(len(whole)),
    }[how]


@pytest.mark.process
@pytest.mark.parametrize("how", ["changed", "foreign", "gone"])
def test_java_starts_without_a_broken_archive(how: str, recorded: Recorded, tmp_path: Path) -> None:
    if how == "gone":
        recorded.archive.unlink(missing_ok=True)
    else:
        recorded.put(damaged(recorded.whole, how))
    assert run_java(recorded.launch, tmp_path).returncode == 0
    assert archived_classes(tmp_path) == 0
    drop_refused_archive(recorded.launch, os.getpid())
    assert not recorded.archive.exists(), "another start makes another one"


@pytest.mark.process
@pytest.mark.parametrize("size", [0, 100_000])
def test_cut_archive_is_removed_before_java_sees_it(size: int, recorded: Recorded) -> None:
    recorded.put(recorded.whole[:size])
    again = prepared(recorded.folder)
    assert again.archive is None
    assert any("ArchiveClassesAtExit" in each for each in again.java_options)
    assert not recorded.archive.exists()


@pytest.mark.process
@needs("java")
def test_second_start_records_an_archive_that_the_third_maps(tmp_path: Path) -> None:
    folder = tmp_path / "with a space"
    first = prepared(folder)
    assert first.java_options == ()
    assert first.home is not None
    assert {each.name for each in first.home.iterdir()} >= {"bin", "jars"}
    assert not (first.home / "python").exists()

    run_java(prepared(folder), tmp_path)
    assert prepared(folder).archive is None, "it may still be written"
    third = prepared(folder, later_s=SETTLED_S + 1)
    assert third.archive is not None
    done = run_java(third, tmp_path)
    assert archived_classes(tmp_path) > 0
    assert done.stderr == ""
    assert "warning" not in done.stdout
