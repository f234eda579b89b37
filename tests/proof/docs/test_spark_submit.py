"""``spark-submit`` runs the job of docs/how-to/spark-clusters.md, and accepts the command lines of the page."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from offloader.spark.session import require_java
from offloader.store.open import open_store
from tests.docs.worlds import ROOT
from tests.support import bare_path
from tests.support.pages import blocks_of, fences
from tests.support.streams import StreamWriter, batch_of
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.java

HOW_TO = ROOT / "docs" / "how-to"
HOME = Path(pyspark.__file__).parent


def test_job_runs_by_spark_submit(tmp_path: Path) -> None:
    blocks = blocks_of((HOW_TO / "spark-clusters.md").read_text(encoding="utf-8"))
    (job,) = [each for each in blocks if each.file == "scrub.py"]
    (tmp_path / job.file).write_text(job.body)
    StreamWriter(open_store(f"file://{tmp_path}/store"), "shop/orders").add([batch_of(1, 0, 10)])
    command = [
        str(HOME / "bin" / "spark-submit"),
        "--master",
        "local[1]",
        job.file,
        f"file://{tmp_path}/store",
        "shop/*",
    ]
    done = bare_path.run(command, tmp_path, PYSPARK_PYTHON=sys.executable)
    assert done.returncode == 0, done.stderr
    assert "|stream|problem|damage|segment|object|start|stop|expected|found|message|advice|" in done.stdout.split("\n")


def test_submit_lines_for_clusters_are_valid_for_spark_submit() -> None:
    """Spark's own launcher reads the lines; there is no YARN and no Kubernetes here to run them."""
    text = (HOW_TO / "spark-clusters.md").read_text(encoding="utf-8")
    lines = [line for _, body in fences(text) for line in body.replace("\\\n", " ").splitlines()]
    masters = set()
    for words in [shlex.split(line) for line in lines if "spark-submit" in line]:
        arguments = words[words.index("spark-submit") + 1 :]
        master = arguments[arguments.index("--master") + 1].partition(":")[0]
        program = "local:///opt/jobs/scrub.py" if master == "k8s" else "scrub.py"
        assert launched(arguments)[-3:] == [program, "s3://bucket/root", "shop/*"]
        masters.add(master)
    assert masters == {"spark", "yarn", "k8s"}
    assert "--usage-error" in launched(["--executer-cores", "4", "scrub.py"]), "else nothing was tested"


def launched(arguments: list[str]) -> list[str]:
    """The command that ``spark-submit`` would run."""
    java = require_java()
    launcher = [str(java), "-cp", f"{HOME}/jars/*", "org.apache.spark.launcher.Main"]
    environment = {"JAVA_HOME": str(java.parent.parent), "SPARK_HOME": str(HOME), "SPARK_SCALA_VERSION": "2.13"}
    command = [*launcher, "org.apache.spark.deploy.SparkSubmit", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    return done.stdout.strip("\0\n").split("\0")
