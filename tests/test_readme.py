"""README.md: its code runs, its commands exist, its tables and limits are the program's, and it stays short."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

from offloader.settings import Settings
from offloader.settings.layered import SettingsFile, read_settings_file
from tests.support import bare_path
from tests.support.quick import needs

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
#: Lines of code of the quick start, imports and blank lines aside.
LIBRARY_LINES_MAX = 10
#: Words as ``wc -w`` counts them, code and tables included.
WORDS_MAX = 900


def fences(language: str) -> list[str]:
    """Bodies of the code fences whose info string is exactly ``language``."""
    return re.findall(rf"^```{re.escape(language)}\n(.*?)^```$", TEXT, re.M | re.S)


def environment(folder: Path) -> dict[str, str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "PWD": str(folder)}


def run(command: list[str], folder: Path) -> str:
    done = subprocess.run(
        command, cwd=folder, env=environment(folder), capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
@needs("process")
def after_the_library(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder in which the library's example has run, and what it printed."""
    folder = tmp_path_factory.mktemp("readme")
    (code,) = fences("python")
    return folder, run([sys.executable, "-W", "error", "-c", code], folder)


def test_readme_has_at_most_900_words() -> None:
    assert len(TEXT.split()) <= WORDS_MAX, "move details to a document under docs/ and link it"


def test_every_fence_has_a_language_that_this_test_knows() -> None:
    opened = re.findall(r"^```(.*)$", TEXT, re.M)[::2]
    assert set(opened) <= {"bash", "python", "python spark", "text", "toml"}


def test_the_library_example_runs_and_is_short(after_the_library: tuple[Path, str]) -> None:
    (code,) = fences("python")
    lines = [line for line in code.splitlines() if line and not line.startswith(("import ", "from "))]
    assert len(lines) <= LIBRARY_LINES_MAX
    _, printed = after_the_library
    counts = [int(line.split()[-1]) for line in printed.splitlines()]
    assert sum(counts) == 3, printed


def test_the_commands_run_on_what_the_library_made(after_the_library: tuple[Path, str]) -> None:
    folder, _ = after_the_library
    scripts = [body for body in fences("bash") if re.search(r"^offloader ", body, re.M)]
    assert scripts
    printed = run(["bash", "-euo", "pipefail", "-c", "\n".join(scripts)], folder)
    assert "the second order" in printed
    assert "public/default/persistent/orders" in printed


@pytest.mark.java
def test_the_spark_example_runs_on_what_the_library_made(after_the_library: tuple[Path, str]) -> None:
    """With an interpreter that isn't on PATH."""
    folder, _ = after_the_library
    (code,) = fences("python spark")
    before = f"store_url, stream = 'file://{folder}/offloader-data/store', 'public/default/persistent/orders'\n"
    done = bare_path.run([sys.executable, "-c", before + code + "\nspark.stop()"], folder)
    assert re.search(r"^\|\s*\d+\|\s*3\|$", done.stdout, re.M), done.stderr


def test_settings_samples_beside_pulsar_are_valid(tmp_path: Path) -> None:
    (text,) = fences("toml")
    path = tmp_path / "offloader.toml"
    path.write_text(text)
    settings = read_settings_file(str(path)).settings_of("")
    assert settings.pulsar.topics == ("public/default/orders-*",)
    assert settings.http.listen == "127.0.0.1:8750"
    assert "http://127.0.0.1:8750/" in TEXT


@pytest.mark.process
def test_every_dev_verb_exists() -> None:
    known = set(re.findall(r"^  ([a-z]+) ", run([str(ROOT / "dev"), "help"], ROOT), re.M))
    named = set(re.findall(r"\./dev ([a-z]+)", TEXT))
    assert {"demo", "test"} <= named <= known


def test_commands_for_a_fresh_machine_have_their_own_fence() -> None:
    assert "./dev demo\n./dev test\n" in fences("bash")


def test_compose_profile_that_readme_names_exists() -> None:
    profiles = re.findall(r"docker compose --profile (\w+)", TEXT)
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"].values()
    assert profiles
    assert set(profiles) <= {name for service in services for name in service.get("profiles", ())}


def figures(text: str, column: str) -> dict[str, list[float]]:
    """First cell of a row -> the numbers in ``column``, of the first table whose header names it."""
    (header, *rows) = next(
        table.splitlines() for table in re.findall(r"(?:^\|.*\|\n)+", text, re.M) if column in table.split("\n")[0]
    )
    place = [cell.strip(" *") for cell in header.split("|")].index(column)
    cells = [row.split("|") for row in rows[1:]]
    return {row[1].strip(): [float(each) for each in re.findall(r"\d[\d.]*", row[place])] for row in cells}


@pytest.mark.parametrize(
    ("in_readme", "in_peers"), [("offloader", "offloader"), ("Pulsar's offloader", "Pulsar's jcloud offloader")]
)
def test_measured_figures_are_those_of_the_benchmarks_without_added_delay(in_readme: str, in_peers: str) -> None:
    peers = figures((ROOT / "docs" / "explanation" / "benchmarks.md").read_text(encoding="utf-8"), in_peers)
    rows = {
        "offload, MB/s": "offload, MB/s",
        "read, MB/s": "read, MB/s",
        "one entry, ms": "one entry, ms: median, 99th percentile",
        "price to offload a GiB, $": "price to offload a GiB, $",
        "price to read a GiB, $": "price to read a GiB, $",
        "memory to offload, MiB": "memory to offload, MiB",
    }
    shown = {name: values for name, values in figures(TEXT, in_readme).items() if values}
    assert shown == {name: peers[row][:1] for name, row in rows.items()}


def test_limits_are_the_settings() -> None:
    (mebibytes,) = re.findall(r"An entry is at most (\d+) MiB \(`entry_size_max`\)", TEXT)
    assert Settings().offload.entry_bytes_max == int(mebibytes) * 1024 * 1024


def test_readme_names_the_deletion_defaults() -> None:
    """Nothing from the store; hot copies after four hours; segments can be restored for a day."""
    rows = [each.as_json() for each in SettingsFile().values_of("").values()]
    defaults = {row["name"]: row["value"] for row in rows}
    (section,) = re.findall(r"^## What is deleted, and when\n(.*?)^## ", f"{TEXT}\n## ", re.M | re.S) or [""]
    assert "Nothing is deleted from the object store unless you say so." in section
    assert {name: defaults.get(name) for name in re.findall(r"`([a-z]+\.[a-z_]+)(?: = true)?`", section)} == {
        "cleanup.delete": False,
        "retention.policy": "keep",
        "retention.keep": "0s",
        "retention.keep_size": "0B",
        "offload.deletion_lag": "4h",
    }
    assert defaults["cleanup.grace_period"] == "1d"


def test_the_picture_is_an_svg_with_a_title() -> None:
    picture = ElementTree.parse(ROOT / "docs/explanation/data-way.svg").getroot()
    assert picture.tag.endswith("svg")
    assert picture.find("{http://www.w3.org/2000/svg}title") is not None


def test_the_changelog_has_the_versions_of_the_distribution() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## \[(.+?)\]", changelog, re.M)[0] == "Unreleased"


def test_declared_licence_is_the_licence_file() -> None:
    assert 'license = "Apache-2.0"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert "Apache License" in (ROOT / "LICENSE").read_text(encoding="utf-8")[:200]
