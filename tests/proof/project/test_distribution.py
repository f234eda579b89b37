"""The published package: the wheel, built from the source distribution, in an environment of its own away from here.

The environment sees the packages that are installed here, but only those that the wheel says it needs with the extras
that are asked for: a package that only another extra brings is as good as missing.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

import offloader
from services.release import release_notes
from tests.support.pages import fences
from tests.support.quick import needs
from tests.support.wheel import as_installed, build_wheel, copy_checkout, extras, required

ROOT = Path(__file__).resolve().parents[3]
#: What stands in the environment before anything else: packages of others are found, but not the ones that are named.
SITE = """
import sys
sys.path += {paths!r}
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {missing!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
"""


@pytest.fixture(scope="module")
@needs("process")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


class Environment:
    """A new environment with the wheel in it, and with what it needs with these extras."""

    def __init__(self, folder: Path, wheel: Path, extras: Iterable[str]) -> None:
        self.folder = folder
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=240)
        (self.site,) = folder.glob("lib/python*/site-packages")
        self.python = folder / "bin" / "python"
        install = [
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(self.python),
            "install",
            "--no-deps",
            "--no-index",
            "--no-compile",
        ]
        subprocess.run([*install, "--quiet", str(wheel)], check=True, timeout=240)
        paths = [path for path in sys.path if path.endswith("site-packages")]
        missing = sorted(undeclared(extras))
        (self.site / "sitecustomize.py").write_text(SITE.format(paths=paths, missing=missing), encoding="utf-8")

    def run(self, *words: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """A program of the environment, with nothing of ours in its environment variables."""
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "OFFLOADER_", "COV"))
        }
        return subprocess.run(
            [str(word) for word in words],
            cwd=cwd or self.folder,
            env={**kept, "HOME": str(self.folder)},
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )

    def offloader(self, *words: object) -> str:
        """What a command that succeeds prints."""
        done = self.run(self.folder / "bin" / "offloader", *words)
        assert (done.returncode, done.stderr) == (0, ""), words
        return done.stdout


def undeclared(extras: Iterable[str]) -> set[str]:
    """Packages that are installed here and that neither ours nor what it needs with these extras has declared."""
    declared = required(*extras)
    found = importlib.metadata.packages_distributions()
    return {
        package
        for package, distributions in found.items()
        if not declared & {canonicalize_name(each) for each in distributions}
        and package not in ("formats", "offloader")
    }


@pytest.fixture(scope="module")
@needs("process")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """What README installs."""
    return Environment(tmp_path_factory.mktemp("bare"), wheel, ["cli", "s3"])


def test_the_wheel_holds_both_packages_and_no_tests(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    shipped = {
        str(path.relative_to(ROOT))
        for package in ("formats", "offloader")
        for path in (ROOT / package).rglob("*")
        if path.suffix in {".py", ".proto", ".typed", ".html", ".css", ".js", ".svg"}
        and "__pycache__" not in path.parts
    }
    shipped.add("pyspark_offloader.py")
    in_wheel = {name for name in names if ".dist-info/" not in name}
    assert in_wheel == shipped
    assert {"formats/py.typed", "offloader/py.typed"} <= in_wheel
    assert [name for name in in_wheel if name.endswith(".proto")]
    assert [name for name in names if name.endswith("licenses/LICENSE")]


def test_source_distribution_contains_the_wheels_files_and_the_build_files(wheel: Path) -> None:
    (source,) = wheel.parent.glob("*.tar.gz")
    with tarfile.open(source) as packed:
        inside = {name.partition("/")[2] for name in packed.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "PKG-INFO"} <= inside
    assert {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name} <= inside


def test_readme_sample_works_with_the_extras_that_readme_installs(bare: Environment) -> None:
    assert bare.offloader("--version") == f"offloader {offloader.__version__}\n"
    where = bare.run(bare.python, "-c", "import offloader, formats; print(offloader.__file__, formats.__file__)")
    assert where.stdout.split() == [str(bare.site / "offloader/__init__.py"), str(bare.site / "formats/__init__.py")]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (sample,) = [text for language, text in fences(readme) if language == "python"]
    done = bare.run(bare.python, "-c", sample)
    assert (done.returncode, done.stderr) == (0, "")

    store = f"file://{bare.folder}/offloader-data/store"
    stream = "public/default/persistent/orders"
    assert stream in bare.offloader("ls", "--store", store)
    assert bare.offloader("read", stream, "--count", "--json", "--store", store).strip() == '{"count": 3}'
    for words in (["ls", stream], ["verify", stream, "--deep"], ["cleanup", "plan"], ["retention", "plan"]):
        bare.offloader(*words, "--store", store)
    assert "[serve]" in bare.offloader("config", "sample")


def test_demo_reads_a_file_with_the_extras_that_readme_installs(bare: Environment) -> None:
    events = bare.folder / "events.txt"
    events.write_text("".join(f"event {number}\n" for number in range(2_000)))
    printed = bare.offloader("demo", "--input", events, "--no-spark", "--no-picture", "--dir", bare.folder / "demo")
    assert re.search(r"Verified: +2,000 of 2,000 events", printed)


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (["spark", "verify", "orders", "--store", "memory://nowhere"], "'.[spark]'"),
        (["demo", "--dir", "demo-2", "--no-spark", "--no-picture"], "'.[demo]'"),
    ],
)
def test_missing_extra_is_named(bare: Environment, words: list[str], extra: str) -> None:
    done = bare.run(bare.folder / "bin" / "offloader", *words)
    assert done.returncode == 2
    assert extra in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.process
def test_tests_pass_on_the_installed_package(wheel: Path, tmp_path: Path) -> None:
    """A few of each kind, in a folder without the package."""
    installed = Environment(tmp_path / "env", wheel, ["dev"])
    away = tmp_path / "away"
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("tests", "services"):
        shutil.copytree(ROOT / name, away / name, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", away)
    chosen = [
        "tests/formats/test_segment_golden_pulsar.py",
        "tests/formats/test_segment_golden_own.py",
        "tests/test_managed_ledger_end_to_end.py",
    ]
    chosen += ["-k", "golden or local"]
    done = installed.run(installed.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen, cwd=away)
    assert done.returncode == 0, done.stdout
    where = installed.run(installed.python, "-c", "import offloader; print(offloader.__file__)", cwd=away)
    assert where.stdout.strip() == str(installed.site / "offloader/__init__.py")


class Stranger:
    """Somebody with a home folder and a checkout, who types what the README says under a heading."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.home.mkdir()
        self.checkout = copy_checkout(folder / "checkout")
        constraints = self.checkout / "constraints.txt"
        constraints.write_text("\n".join(map(as_installed, constraints.read_text().splitlines())), encoding="utf-8")

    def types(self, line: str) -> str:
        """What a line prints that ends well. pip gets everything from here, and nothing from elsewhere."""
        line = line.replace(
            "pip install", "pip install --quiet --no-compile --no-index --no-build-isolation --no-cache-dir"
        )
        kept = {
            each: value for each, value in os.environ.items() if not each.startswith(("PYTHON", "OFFLOADER_", "COV"))
        }
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", line],
            cwd=self.checkout,
            env={**kept, "HOME": str(self.home), "PATH": path},
            capture_output=True,
            text=True,
            check=False,
            timeout=900,
        )
        assert done.returncode == 0, f"{line}\n{done.stderr}"
        return done.stdout

    def makes_an_environment(self, line: str) -> None:
        """Types it, and lets the new environment find the packages that are installed here, instead of in an index."""
        self.types(line)
        (site,) = (self.home / "offloader").glob("lib/python*/site-packages")
        (site / "here.pth").write_text("\n".join(each for each in sys.path if each.endswith("site-packages")))
        (site / "distutils-precedence.pth").unlink(missing_ok=True)
        for each in site.glob("setuptools*"):  # Python 3.11 brings one that is too old to build with
            shutil.rmtree(each)


def install_lines(page: str) -> str:
    """The fence of a page in which pip installs, the first one: further ones are for a release, and for a service."""
    return next(text for _, text in fences((ROOT / page).read_text(encoding="utf-8")) if "pip install" in text)


@pytest.mark.process
@pytest.mark.timeout(1200)  # pip makes two environments: ten seconds on a machine with nothing else to do
def test_readme_lines_install_upgrade_and_stay_in_their_folder(tmp_path: Path) -> None:
    install, path = install_lines("README.md").splitlines()
    make, _, install = install.partition(" && ")
    stranger = Stranger(tmp_path)
    stranger.makes_an_environment(make)
    stranger.types(install)
    assert stranger.types(f"{path}\noffloader --version") == f"offloader {offloader.__version__}\n"
    ((_, sample),) = [each for each in fences((ROOT / "README.md").read_text(encoding="utf-8")) if each[0] == "python"]
    (stranger.home / "sample.py").write_text(sample)
    counted = (
        "offloader read public/default/persistent/orders --count --store file://$HOME/offloader/offloader-data/store"
    )
    stranger.types(f"{path}\ncd ~/offloader && bin/python ~/sample.py")
    assert stranger.types(f"{path}\n{counted}") == "3\n"

    for name in ("pyproject.toml", "offloader/__init__.py"):
        file = stranger.checkout / name
        newer = file.read_text(encoding="utf-8").replace(f'= "{offloader.__version__}"', '= "99.0"', 1)
        file.write_text(newer, encoding="utf-8")
    stranger.makes_an_environment(make)
    stranger.types(install)
    assert stranger.types(f"{path}\noffloader --version") == "offloader 99.0\n"
    assert stranger.types(f"{path}\n{counted}") == "3\n"
    # What begins with a dot is of other programs: pip asks a Rust compiler how old it is, and that one makes a folder
    assert {each.name for each in stranger.home.iterdir() if each.name[0] != "."} == {"offloader", "sample.py"}
    assert list(stranger.home.glob(".*/**/*offloader*")) == []


def test_readme_and_install_document_name_the_extras() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (sentence,) = re.findall(r"the extras that you need \((.*?)\)", readme)
    rows = re.findall(r"^\| (`.*?) \|", (ROOT / "docs/how-to/install.md").read_text(encoding="utf-8"), re.M)
    named = extras() - {"bench", "dev", "docs"}
    assert set(re.findall(r"`(\w+)`", sentence)) == named
    assert set(re.findall(r"`(\w+)`", " ".join(rows))) == named


def test_readme_and_install_document_install_by_the_same_lines() -> None:
    assert install_lines("docs/how-to/install.md") == install_lines("README.md")


def test_release_notes_and_install_document_install_a_release_by_the_same_commands() -> None:
    text = (ROOT / "docs/how-to/install.md").read_text(encoding="utf-8")
    release = next(body for _, body in fences(text) if "SHA256SUMS" in body)
    (notes,) = [body for _, body in fences(release_notes(ROOT, "*")) if "SHA256SUMS" in body]
    assert notes == release


def test_install_document_says_what_an_index_changes() -> None:
    text = (ROOT / "docs/how-to/install.md").read_text(encoding="utf-8")
    assert "No package index has the project" in text
    assert re.search(r"private index, replace the dot with the project's name in every command", text)


def test_every_text_names_the_same_way_to_install() -> None:
    """No index has the package: a hint to install it by its name would fail, or bring something else of that name.

    By the name of a release's file it works.
    """
    named = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*")]
    named += [path for folder in ("offloader", "formats", "services") for path in (ROOT / folder).rglob("*")]
    by_name = re.compile(r"pip install[^\n`]*\boffloader(?:\[|\b(?![:-]))|`offloader\[|'offloader\[")
    wrong = [
        f"{path.relative_to(ROOT)}: {found[0]}"
        for path in named
        if path.suffix in (".md", ".py", ".service", ".toml", ".yml", ".txt") or path.name.startswith("Containerfile")
        for found in by_name.finditer(path.read_text(encoding="utf-8"))
    ]
    assert wrong == []
