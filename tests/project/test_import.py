"""What ``import offloader`` loads, and which ``formats`` package it accepts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import offloader
from offloader.store.open import open_store
from tests.support.streams import StreamWriter, batch_of

ROOT = Path(__file__).resolve().parents[2]
HEAVY = {
    "aiobotocore",
    "boto3",
    "botocore",
    "duckdb",
    "fastapi",
    "fsspec",
    "matplotlib",
    "numpy",
    "pandas",
    "polars",
    "prometheus_client",
    "pyarrow",
    "pyiceberg",
    "pyspark",
    "pydantic",
    "s3fs",
    "starlette",
    "uvicorn",
}
#: The interpreter's own modules, ours, and in the case of the command line typer with what it needs.
IMPORT_MODULES_MAX = 80
HELP_MODULES_MAX = 220


def python(code: str, *, path: Sequence[Path] = (), cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment, cwd=cwd, timeout=120
    )


def loaded_modules(code: str) -> list[str]:
    """Names of the modules that ``code`` loaded beyond those of a bare interpreter."""
    done = python(
        f"import sys\nbefore = set(sys.modules)\n{code}\nimport json\n"
        "print('\\n' + json.dumps(sorted(set(sys.modules) - before)))",
        path=[ROOT],
    )
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.process
def test_a_serving_process_without_http_needs_none_of_its_packages() -> None:
    modules = loaded_modules("import offloader.cli.serve, offloader.service.bootstrap")
    assert not {"fastapi", "pydantic", "starlette", "uvicorn"} & {name.split(".")[0] for name in modules}


@pytest.mark.process
def test_executors_of_spark_jobs_need_no_http_client() -> None:
    """They have the base install; each job's functions are unpickled from this package."""
    loaded = set(loaded_modules("import offloader.spark.jobs, offloader.spark.source"))
    assert not loaded & {"urllib3", "httpx", "prometheus_client", "boto3", "pyiceberg"}


@pytest.mark.process
def test_import_offloader_loads_nothing_heavy() -> None:
    """Modules are counted instead of seconds: the count is the same on every machine."""
    modules = loaded_modules("import offloader")
    assert not HEAVY & {name.split(".")[0] for name in modules}
    assert not [name for name in modules if name.startswith("offloader.")]
    assert len(modules) <= IMPORT_MODULES_MAX


@pytest.mark.process
def test_help_loads_nothing_heavy_and_no_verb() -> None:
    modules = loaded_modules("from offloader.cli.main import main\nassert main(['--help']) == 0")
    assert not (HEAVY | {"rich"}) & {name.split(".")[0] for name in modules}
    assert {name for name in modules if name.startswith("offloader.cli.")} == {
        f"offloader.cli.{name}" for name in ("errors", "help", "main", "tree")
    }
    assert len(modules) <= HELP_MODULES_MAX


#: What a listing of a local store doesn't need, beside ``HEAVY`` without NumPy and Arrow.
NOT_FOR_A_LISTING = {
    "cryptography",
    "fastavro",
    "google.protobuf",
    "importlib.metadata",
    "offloader.ledgers.sqlite",
    "offloader.manifest.log",
    "offloader.read.reader",
    "offloader.write",
    "pyarrow.compute",
    "pyarrow.parquet",
    "rich",
    "sqlite3",
    "ssl",
}


@pytest.mark.process
def test_a_listing_of_a_local_store_loads_no_sdk_validator_database_or_parquet(tmp_path: Path) -> None:
    """Modules instead of seconds: people wait for this command, and nearly all of its time is imports."""
    store = open_store(f"file://{tmp_path}/store")
    StreamWriter(store, "orders").add([batch_of(3, 0, 100)])
    modules = loaded_modules(f"from offloader.cli.main import main\nassert main(['ls', '--store', {store.url!r}]) == 0")
    parts = [name.split(".") for name in modules]
    found = {".".join(each[:length]) for each in parts for length in range(1, len(each) + 1)}
    assert not (HEAVY - {"numpy", "pyarrow"} | NOT_FOR_A_LISTING) & found
    assert {name for name in found if name.startswith("offloader.cli.")} == {
        f"offloader.cli.{name}" for name in ("errors", "help", "listing", "main", "options", "output", "tree")
    }


@pytest.mark.process
def test_a_listing_of_a_local_store_starts_no_threads_for_linear_algebra(tmp_path: Path) -> None:
    """NumPy's library would start one for each core, which takes as long as loading NumPy. Arrow's allocator may have
    one."""
    url = open_store(f"file://{tmp_path}/store").url
    listing = f"from offloader.cli.main import main\nassert main(['ls', '--store', {url!r}]) == 0"
    names = "[each.read_text().strip() for each in Path('/proc/self/task').glob('*/comm')]"
    done = python(f"{listing}\nfrom pathlib import Path\nprint(*{names})", path=[ROOT])
    assert done.returncode == 0, done.stderr
    assert len([name for name in done.stdout.splitlines()[-1].split() if not name.startswith("jemalloc")]) == 1


@pytest.mark.process
def test_errors_and_settings_are_light_too() -> None:
    modules = loaded_modules("import offloader\noffloader.errors.NotFoundError\noffloader.Settings()")
    assert not HEAVY & {name.split(".")[0] for name in modules}


@pytest.mark.process
def test_opening_a_store_loads_only_the_sdk_of_its_scheme(tmp_path: Path) -> None:
    modules = loaded_modules(f"import offloader\noffloader.open_store('file://{tmp_path}/store').close()")
    assert not (HEAVY - {"numpy", "pyarrow"}) & {name.split(".")[0] for name in modules}


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'open_strore'"):
        offloader.open_strore  # noqa: B018


def test_version_is_the_distributions() -> None:
    assert f'version = "{offloader.__version__}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


@pytest.mark.process
@pytest.mark.parametrize("kind", ["regular", "namespace"])
def test_a_foreign_formats_package_is_named_in_one_line(tmp_path: Path, kind: str) -> None:
    foreign = tmp_path / "formats"
    foreign.mkdir()
    if kind == "regular":
        (foreign / "__init__.py").write_text("FORMATS = {}\n", encoding="utf-8")
        done = python("import offloader", path=[tmp_path, ROOT], cwd=tmp_path)
    else:
        shutil.copytree(ROOT / "offloader", tmp_path / "offloader", ignore=shutil.ignore_patterns("__pycache__"))
        # without site-packages our own formats is nowhere, and the empty folder passes for the package
        done = subprocess.run(
            [sys.executable, "-S", "-c", "import offloader"], capture_output=True, text=True, check=False, cwd=tmp_path
        )
    assert done.returncode == 1
    line = done.stderr.strip().splitlines()[-1]
    assert line.startswith("ImportError: offloader needs its own top-level package 'formats'")
    assert str(foreign) in line
