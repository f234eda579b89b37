"""The commands of docs/how-to/spark-standalone.md for Docker Compose, on a standalone cluster of processes."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from formats.keys import record_key
from offloader.manifest.log import load_manifest
from offloader.store.base import ObjectStore
from tests.proof.spark.cluster import PATIENCE_S, Cluster
from tests.spark.hot_tier import HotTier
from tests.support.readback import stored_entries
from tests.test_architecture import ROOT

STREAMS = ("shop/eu", "shop/us")
PAGE = ROOT / "docs" / "how-to" / "spark-standalone.md"

pytestmark = [pytest.mark.java, pytest.mark.timeout(900)]


def commands() -> dict[str, str]:
    """Job -> its documented command in the container of the master."""
    found = re.findall(r"^docker compose exec spark-master (offloader spark (\w+) .*)$", PAGE.read_text("utf-8"), re.M)
    return {job: command for command, job in found}


def run(command: str, cluster: Cluster, folder: Path, url: str) -> str:
    """What a documented command prints, with the places of this cluster; it succeeds."""
    places = {"spark://spark-master:7077": cluster.url, "s3://offloader/orders": url, "/data/": f"{folder}/"}
    for named, place in places.items():
        command = command.replace(named, place)
    done = subprocess.run(
        [sys.executable, "-m", *shlex.split(command)],
        cwd=folder,
        env={**cluster.environment, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def damage(store: ObjectStore, stream: str) -> None:
    """The second record can't be read."""
    store.put(record_key(stream, load_manifest(store, stream).incarnation, 2), b"damaged")


def test_documented_jobs_do_their_work_on_a_cluster(tmp_path: Path, servers: Any, one_server: str) -> None:
    place = servers.place(one_server)
    store = place.open()
    hot = HotTier(tmp_path)
    for stream in STREAMS:
        hot.append(stream, 300)
        hot.close_ledger(stream)
    environment = {
        "AWS_ACCESS_KEY_ID": place.endpoint.access_key,
        "AWS_SECRET_ACCESS_KEY": place.endpoint.secret_key,
        "AWS_ENDPOINT_URL": place.endpoint.url,
        "AWS_REGION": "us-east-1",
        "PYTHONPATH": str(ROOT),
        "SPARK_EXECUTOR_MEMORY": "512m",  # the workers have less than the default of 1 GiB
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    jobs = commands()
    assert [*jobs] == ["backfill", "verify", "compact", "export", "rebuild"]
    with Cluster(tmp_path, environment) as cluster:
        for job, command in jobs.items():
            if job == "rebuild":
                for stream in STREAMS:
                    damage(store, stream)
            said = run(command, cluster, tmp_path, place.url)
            assert all(stream in said for stream in STREAMS) or job == "export", said
            if job != "rebuild":
                assert {stream: stored_entries(store, stream) for stream in STREAMS} == hot.expected, job
    assert {stream: stored_entries(store, stream) for stream in STREAMS} == hot.expected
    assert list((tmp_path / "export").rglob("*.parquet"))


def test_compose_file_has_a_master_and_two_workers_of_one_image() -> None:
    services: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))["services"]
    master, worker = services["spark-master"], services["spark-worker"]
    assert worker["deploy"]["replicas"] == 2
    for name in ("build", "environment", "volumes", "profiles"):
        assert master[name] == worker[name]
    assert "spark://spark-master:7077" in worker["command"]
    assert "[cli,s3,spark]" in (ROOT / master["build"]["dockerfile"]).read_text("utf-8")
