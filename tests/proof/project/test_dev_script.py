"""``./dev``: errors for missing programs, and when it installs and when it doesn't.

The script is the real one, in a scratch folder; the machine around it (Python, Java, apt) is a folder of small programs
that takes the place of PATH.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[3]
#: Programs that ``dev`` expects of any system.
BASE_PROGRAMS = [
    "bash",
    "cat",
    "chmod",
    "cp",
    "dirname",
    "flock",
    "grep",
    "head",
    "ln",
    "ls",
    "mkdir",
    "mktemp",
    "mv",
    "readlink",
]
BASE_PROGRAMS += ["rm", "sed", "sha256sum", "sort", "paste", "env"]

PYTHON = """#!/bin/bash
# a Python: answers the script's questions and notes what it was asked to install
case "$*" in
*version_info\\ \\<*) exit {old} ;;
*"import venv"*) exit $(cat {machine}/no-venv 2>/dev/null || echo 0) ;;
*"import pip"*|"-c ") exit 0 ;;
*version_info*) echo python3.11 ;;
"-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && echo "venv" >> {machine}/calls ;;
"-m pip install"*) shift 3; echo "pip install $* PIP_CERT=${{PIP_CERT:-}}" >> {machine}/calls; exit $(cat {machine}/pip-fails 2>/dev/null || echo 0) ;;
"-m ruff check"*) echo "python $*" >> {machine}/calls; exit $(cat {machine}/lint-fails 2>/dev/null || echo 0) ;;
*) echo "python $* in $PWD JAVA_HOME=${{JAVA_HOME:-}} PYSPARK_PYTHON=${{PYSPARK_PYTHON:-}}" >> {machine}/calls ;;
esac
"""  # noqa: E501

APT = """#!/bin/bash
echo "apt-get $*" >> {machine}/calls
case "$*" in
*install*jre*) mkdir -p {machine}/jvm/installed/bin && cp {machine}/java17 {machine}/jvm/installed/bin/java ;;
*install*jdk*) mkdir -p {machine}/jvm/jdk/bin && cp {machine}/java17 {machine}/jvm/jdk/bin/java &&
    printf '#!/bin/bash\necho javac 17.0.15\n' > {machine}/jvm/jdk/bin/javac && chmod +x {machine}/jvm/jdk/bin/javac ;;
*install*venv*) rm -f {machine}/no-venv ;;
esac
"""

APT_CACHE = """#!/bin/bash
# offers the packages listed in the file "offered"
if grep -qx "$2" {machine}/offered 2>/dev/null; then printf '%s:\\n  Installed: (none)\\n  Candidate: 17.0.1\\n' "$2"
elif [ -e {machine}/offered ]; then printf '%s:\\n  Installed: (none)\\n  Candidate: (none)\\n' "$2"; fi
"""


class Machine:
    """A folder of programs, a checkout and what was called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.checkout = folder / "check out"  # a blank in the path is somebody's home folder
        self.bin.mkdir()
        self.checkout.mkdir()
        for name in ("dev", "pyproject.toml", "constraints.txt"):
            shutil.copy(ROOT / name, self.checkout / name)
        lowest = self.checkout / "tests" / "proof" / "project" / "oldest_versions.py"
        lowest.parent.mkdir(parents=True)
        lowest.write_text("", encoding="utf-8")
        for name in BASE_PROGRAMS:
            found = shutil.which(name)
            assert found, f"this test needs {name}"
            (self.bin / name).symlink_to(found)
        self.write("python3", PYTHON, old=0)
        self.write("id", "#!/bin/bash\necho 1000\n")
        self.write("getconf", "#!/bin/bash\necho 3\n")
        self.java("java17", "17.0.15")

    def write(self, name: str, text: str, folder: Path | None = None, **values: object) -> Path:
        path = (folder or self.bin) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.format(machine=self.folder, **values) if "{machine}" in text else text, encoding="utf-8")
        path.chmod(0o755)
        return path

    def java(self, place: str, version: str) -> Path:
        return self.write(place, f"#!/bin/bash\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n", self.folder)

    def apt(self, *offered: str, root: bool) -> None:
        self.write("apt-get", APT)
        self.write("apt-cache", APT_CACHE)
        if offered:
            (self.folder / "offered").write_text("\n".join(offered) + "\n", encoding="utf-8")
        if root:
            self.write("id", "#!/bin/bash\necho 0\n")

    def dev(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.checkout / "dev"), *arguments],
            env={
                "PATH": str(self.bin),
                "HOME": str(self.folder),
                "OFFLOADER_JVM_FOLDER": str(self.folder / "jvm"),
                **environment,
            },
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )

    def calls(self) -> list[str]:
        """What was called since the last time this was asked."""
        path = self.folder / "calls"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return lines


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_help_lists_every_verb_and_needs_nothing(machine: Machine) -> None:
    script = (ROOT / "dev").read_text(encoding="utf-8")
    verbs = {verb for names in re.findall(r"^    ([a-z |]+)\)(?: |$)", script, re.M) for verb in names.split(" | ")}
    assert {"demo", "test", "check", "bench", "services", "install", "run", "clean"} <= verbs
    for arguments in ([], ["help"], ["--help"]):
        done = machine.dev(*arguments)
        assert done.returncode == 0
        assert verbs <= set(re.findall(r"^  ([a-z]+) ", done.stdout, re.M))
    assert machine.calls() == []


def test_unknown_verb_is_one_line_and_a_hint(machine: Machine) -> None:
    done = machine.dev("tset")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "dev: there is no verb 'tset'\nhint: ./dev help\n"


def test_install_makes_the_environment_once_and_again_only_after_a_change(machine: Machine) -> None:
    assert machine.dev("install", PIP_CERT="my.crt").returncode == 0
    made, installed = machine.calls()
    assert made == "venv"
    assert f"--constraint {machine.checkout}/constraints.txt" in installed
    assert f"--editable {machine.checkout}[dev]" in installed
    assert installed.endswith("PIP_CERT=my.crt"), "pip's own settings are the user's"
    assert machine.dev("install").returncode == 0
    assert machine.calls() == []
    for changed in ("constraints.txt", "pyproject.toml"):
        with (machine.checkout / changed).open("a", encoding="utf-8") as file:
            file.write("# changed\n")
        assert machine.dev("install").returncode == 0
        assert [call.split()[0] for call in machine.calls()] == ["pip"], "installed again into the same environment"


def test_a_failed_installation_is_tried_again(machine: Machine) -> None:
    (machine.folder / "pip-fails").write_text("1", encoding="utf-8")
    done = machine.dev("install")
    assert done.returncode == 2
    assert "hint: see above; behind a proxy or mirror set PIP_INDEX_URL" in done.stderr
    (machine.folder / "pip-fails").unlink()
    machine.calls()
    assert machine.dev("install").returncode == 0
    assert len(machine.calls()) == 1


def test_a_moved_checkout_is_installed_again(machine: Machine) -> None:
    machine.dev("install")
    machine.calls()
    machine.checkout = machine.checkout.rename(machine.folder / "elsewhere")
    assert machine.dev("install").returncode == 0
    assert f"--editable {machine.checkout}[dev]" in machine.calls()[0]


def test_demo_installs_only_its_packages_and_uses_the_full_environment(machine: Machine) -> None:
    machine.java("jvm/java-17/bin/java", "17.0.15")
    machine.write("offloader", '#!/bin/bash\necho "offloader $* in $PWD"\n', machine.checkout / ".venv/bin")
    done = machine.dev("demo", "--store", "s3://bucket/a b")
    assert done.stdout == f"offloader demo --store s3://bucket/a b in {machine.folder}\n", "in the caller's folder"
    assert "[demo,s3,spark]" in machine.calls()[-1]
    machine.dev("install")
    assert "[dev]" in machine.calls()[-1]
    machine.dev("demo")
    assert machine.calls() == []


#: How ``./dev test`` has pytest run tests.
ORDER = "--dist loadscope --randomly-seed 1 -p no:schemathesis"


def make_tests(machine: Machine) -> None:
    for name, text in {
        "tests/store/test_local.py": "def test_it() -> None: ...\n",
        "tests/spark/test_scan.py": "def test_it(spark: SparkSession) -> None: ...\n",
        "tests/docs/test_page.py": "@pytest.mark.java\ndef test_it() -> None: ...\n",
    }.items():
        machine.write(name, text, machine.checkout)


def test_test_verb_looks_for_java_only_where_a_named_test_uses_it(machine: Machine) -> None:
    make_tests(machine)
    for words in (["tests/store"], ["tests/store/test_local.py::test_it", "-x"], ["tests/store", "tests/store/"]):
        done = machine.dev("test", *words)
        assert done.returncode == 0, done.stderr
        assert machine.calls()[-1].startswith(f"python -m pytest -n 6 {ORDER} {' '.join(words)} in")
    for words in ([], ["-k", "x"], ["tests"], ["tests/store", "tests/spark/test_scan.py::test_it"], ["tests/docs/"]):
        done = machine.dev("test", *words)
        assert (done.returncode, machine.calls()) == (2, [])
        assert "Java 17 or newer, which Spark runs on" in done.stderr


def test_the_quick_tests_need_neither_java_nor_servers_nor_a_browser(machine: Machine) -> None:
    make_tests(machine)
    for words in (["--quick"], ["tests/spark", "--quick"]):
        done = machine.dev("test", *words)
        assert done.returncode == 0
        assert "Chromium" not in done.stderr
        *before, call = machine.calls()
        assert call.startswith("python -m pytest -n 4 --dist worksteal -p no:randomly")
        assert f"{' '.join(words)} in {machine.checkout} JAVA_HOME= " in call
        assert not [each for each in before if "services" in each], "nothing is built"


def test_test_hands_its_arguments_to_pytest_with_java_and_interpreter_set(machine: Machine) -> None:
    make_tests(machine)
    java = machine.java("jvm/java-21/bin/java", "21.0.1")
    assert machine.dev("test", "tests/spark", "-k", "x").returncode == 0
    call = machine.calls()[-1]
    assert call.startswith(f"python -m pytest -n 6 {ORDER} tests/spark -k x in {machine.checkout}")
    assert f"JAVA_HOME={java.parents[1]} PYSPARK_PYTHON={machine.checkout}/.venv/bin/python" in call


@pytest.mark.parametrize(
    ("cores", "given", "workers"), [("2", {}, 4), ("64", {}, 8), ("2", {"OFFLOADER_TEST_WORKERS": "1"}, 1)]
)
def test_twice_as_many_tests_run_at_once_as_there_are_cores(
    machine: Machine, cores: str, given: dict[str, str], workers: int
) -> None:
    make_tests(machine)
    machine.write("getconf", f"#!/bin/bash\necho {cores}\n")
    assert machine.dev("test", "tests/store", **given).returncode == 0
    assert machine.calls()[-1].startswith(f"python -m pytest -n {workers} {ORDER} tests/store in")


def test_any_command_runs_where_it_was_typed_and_needs_no_java(machine: Machine) -> None:
    machine.write("offloader", '#!/bin/bash\necho "offloader $* in $PWD"\n', machine.checkout / ".venv/bin")
    done = machine.dev("run", "ls", "--store", "file:///a b")
    assert done.stdout == f"offloader ls --store file:///a b in {machine.folder}\n"
    assert "[demo,s3,spark]" in machine.calls()[-1]


def test_plugin_verb_needs_a_jdk_and_not_only_java(machine: Machine) -> None:
    machine.java("jvm/java-17/bin/java", "17.0.15")
    done = machine.dev("plugin")
    assert (done.returncode, machine.calls()) == (2, [])
    assert "missing: a JDK 17 or newer, which compiles the plugin" in done.stderr
    assert "default-jdk-headless" in done.stderr
    for version, home in (("11.0.2", "old"), ("17.0.15", "java-17")):
        machine.write(f"jvm/{home}/bin/javac", f"#!/bin/bash\necho javac {version}\n", machine.folder)
    assert machine.dev("plugin", "--into", "there").returncode == 0
    call = machine.calls()[-1]
    assert call.startswith(f"python -m services.broker_plugin --into there in {machine.checkout}")
    assert f"JAVA_HOME={machine.folder}/jvm/java-17 " in call


def test_release_verb_needs_a_jdk_unless_the_plugin_is_left_out(machine: Machine) -> None:
    machine.java("jvm/java-17/bin/java", "17.0.15")
    done = machine.dev("release")
    assert (done.returncode, machine.calls()) == (2, [])
    assert "missing: a JDK 17 or newer" in done.stderr
    assert machine.dev("release", "--without-plugin").returncode == 0
    assert machine.calls()[-1].startswith(f"python -m services.release --without-plugin in {machine.checkout}")


def test_jdk_is_installed_for_tests_of_the_plugin_and_for_nothing_else(machine: Machine) -> None:
    machine.java("jvm/java-17/bin/java", "17.0.15")
    machine.apt("openjdk-17-jdk-headless", root=True)
    for name, text in (("spark", "pytest.mark.java"), ("plugin", "pytest.mark.java, plugin_world")):
        machine.write(f"tests/{name}/test_it.py", text, machine.checkout)
    for words in (["demo"], ["test", "--quick"], ["test", "tests/spark"], ["bench", "formats"]):
        machine.dev(*words)
        assert "apt-get" not in "".join(machine.calls()), words
    assert machine.dev("test", "tests/plugin").returncode == 0
    calls = machine.calls()
    assert next(call for call in calls if "install -qq" in call).endswith(" openjdk-17-jdk-headless")
    assert calls[-1].startswith("python -m pytest")
    assert f"JAVA_HOME={machine.folder}/jvm/jdk " in calls[-1]
    machine.dev("chaos", "--plugin")
    assert "apt-get" not in "".join(machine.calls()), "there is one now"


def test_gate_and_runs_of_the_plugin_need_a_jdk(machine: Machine) -> None:
    machine.java("jvm/java-17/bin/java", "17.0.15")
    for words in (["test"], ["test", "--all"], ["chaos", "--plugin"], ["bench", "plugin"]):
        done = machine.dev(*words)
        assert done.returncode == 2
        assert "missing: a JDK 17 or newer, which compiles the plugin" in done.stderr


def jdk(machine: Machine) -> Path:
    """Installs a JDK, and returns its home."""
    machine.java("jvm/java-17/bin/java", "17.0.15")
    javac = machine.write("jvm/java-17/bin/javac", "#!/bin/bash\necho javac 17.0.15\n", machine.folder)
    return javac.parents[1]


def test_gate_builds_its_servers_and_all_tests_build_every_server(machine: Machine) -> None:
    jdk(machine)
    assert machine.dev("test").returncode == 0
    built, tested = machine.calls()[-2:]
    assert built.startswith("python -m services.servers build minio pulsar plugin in")
    assert tested.startswith(f"python -m pytest -n 6 {ORDER} in")
    assert machine.dev("test", "--all", "-x").returncode == 0
    built, tested = machine.calls()
    assert built.startswith("python -m services.servers build in")
    assert tested.startswith("python -m tests.proof -x in")


def test_all_after_another_word_is_refused_before_anything_is_built(machine: Machine) -> None:
    jdk(machine)
    done = machine.dev("test", "-x", "--all")
    assert (done.returncode, machine.calls()) == (2, [])
    assert done.stderr.splitlines()[-1] == "hint: ./dev test --all [ARGUMENTS OF pytest]"


def test_servers_to_try_things_out_need_no_more_than_the_demo(machine: Machine) -> None:
    for words, extras in ((["up"], "[demo,s3,spark]"), (["down"], ""), (["run", "moto"], "[dev]"), (["down"], "")):
        assert machine.dev("services", *words).returncode == 0
        *installed, call = machine.calls()
        assert call.startswith(f"python -m services.servers {' '.join(words)} in {machine.checkout} ")
        assert extras in "".join(installed)
        assert extras or not installed, "installed once"


def test_oldest_has_an_environment_of_its_own_and_runs_what_test_does(machine: Machine) -> None:
    jdk(machine)
    machine.write("chromium", "#!/bin/bash\n")
    assert machine.dev("oldest").returncode == 0
    calls = machine.calls()
    own = machine.checkout / ".venv-oldest"
    names = [call.split()[0] for call in calls]
    assert names == ["venv", "pip", "venv", "python", "pip", "pip", "python", "python"]
    assert calls[3].startswith("python -m tests.proof.project.oldest_versions in")
    assert calls[4].startswith(f"pip install --quiet --requirement {own}/requirements.txt")
    assert "--no-deps --editable" in calls[5]
    assert calls[6].startswith("python -m services.servers build minio pulsar plugin in")
    assert calls[7].startswith(f"python -m pytest -n 6 {ORDER} in")
    assert calls[7].endswith(f"PYSPARK_PYTHON={own}/bin/python")
    assert machine.dev("oldest", "tests/store", "-x").returncode == 0
    [call] = machine.calls()
    assert call.startswith(f"python -m pytest -n 6 {ORDER} tests/store -x in")
    listed = machine.checkout / "tests" / "proof" / "project" / "oldest_versions.py"
    listed.write_text("# changed\n", encoding="utf-8")
    assert machine.dev("oldest", "tests/store").returncode == 0
    assert any(call.startswith("pip install") for call in machine.calls())
    with (machine.checkout / "pyproject.toml").open("a", encoding="utf-8") as file:
        file.write("# changed\n")
    (machine.folder / "pip-fails").write_text("1", encoding="utf-8")
    assert machine.dev("oldest").returncode == 2


def test_docs_has_an_environment_of_its_own_and_fails_on_warnings(machine: Machine) -> None:
    assert machine.dev("docs").returncode == 0
    own = machine.checkout / ".venv-docs"
    assert [call.split()[0] for call in machine.calls()] == ["venv", "python", "pip", "python"]
    assert machine.dev("docs").returncode == 0
    [call] = machine.calls()
    assert call.startswith("python -m mkdocs build --strict in")
    assert (own / "offloader-docs.stamp").exists()


def test_check_runs_format_lint_types_and_architecture_without_java(machine: Machine) -> None:
    assert machine.dev("check").returncode == 0
    tools = {" ".join(call.split()[2:4]) for call in machine.calls() if call.startswith("python")}
    assert tools == {"ruff format", "ruff check", "mypy in", "docs.make_reference --check", "pytest -q"}


def test_check_continues_after_a_failure_and_names_what_failed(machine: Machine) -> None:
    (machine.folder / "lint-fails").write_text("1", encoding="utf-8")
    done = machine.dev("check")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "dev: check failed: lint"
    assert any(call.startswith("python -m pytest") for call in machine.calls())


@pytest.mark.parametrize(
    ("version", "enough"), [("1.8.0_392", False), ("11.0.2", False), ("16", False), ("17", True), ("25-ea", True)]
)
def test_java_17_is_the_oldest_accepted_version(machine: Machine, version: str, enough: bool) -> None:
    make_tests(machine)
    home = machine.java("some java/bin/java", version).parents[1]
    done = machine.dev("test", "tests/spark", JAVA_HOME=str(home))
    assert (done.returncode == 0) is enough
    if not enough:
        assert f"JAVA_HOME={home} has no Java 17 or newer" in done.stderr
        assert machine.calls() == [], "nothing was downloaded before Java was looked for"


def test_an_old_java_home_gives_way_to_a_new_java_on_path(machine: Machine) -> None:
    make_tests(machine)
    old = machine.java("old/bin/java", "11.0.2").parents[1]
    new = machine.java("new/bin/java", "17.0.1")
    (machine.bin / "java").symlink_to(new)
    assert machine.dev("test", "tests/spark", JAVA_HOME=str(old)).returncode == 0
    assert f"JAVA_HOME={new.parents[1]}" in machine.calls()[-1]


def test_without_apt_the_missing_java_is_named(machine: Machine) -> None:
    done = machine.dev("demo")
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "dev: missing: Java 17 or newer, which Spark runs on",
        "hint: install it with your system's package manager (Debian's names: default-jre-headless)",
    ]


def test_user_gets_one_command_for_all_missing_packages(machine: Machine) -> None:
    machine.apt("openjdk-21-jre-headless", "python3.11-venv", root=False)
    (machine.folder / "no-venv").write_text("1", encoding="utf-8")
    done = machine.dev("demo")
    assert done.returncode == 2
    what, hint = done.stderr.splitlines()
    assert what == (f"dev: missing: the venv module of {machine.bin}/python3; Java 17 or newer, which Spark runs on")
    assert hint == "hint: sudo apt-get update && sudo apt-get install -y python3.11-venv openjdk-21-jre-headless"
    assert machine.calls() == []


def test_common_package_names_are_proposed_before_the_first_update(machine: Machine) -> None:
    machine.apt(root=False)
    assert machine.dev("demo").stderr.endswith("apt-get install -y default-jre-headless\n")


def test_root_installs_all_missing_packages_at_once(machine: Machine) -> None:
    machine.apt("openjdk-17-jre-headless", "openjdk-17-jdk-headless", "python3.11-venv", "chromium", root=True)
    (machine.folder / "no-venv").write_text("1", encoding="utf-8")
    assert machine.dev("test").returncode == 0
    calls = machine.calls()
    assert calls[0].startswith("apt-get update")
    assert calls[1].endswith(
        "--no-install-recommends openjdk-17-jdk-headless python3.11-venv openjdk-17-jre-headless chromium"
    )
    assert calls[-1].startswith("python -m pytest")
    assert f"JAVA_HOME={machine.folder}/jvm/installed" in calls[-1]


def test_missing_browser_is_named_and_installed_where_it_can_be(machine: Machine) -> None:
    jdk(machine)
    assert "there is no Chromium: tests of the page will fail" in machine.dev("test").stderr
    assert "Chromium" not in machine.dev("test", "tests/store").stderr
    machine.write("chromium", "#!/bin/bash\n")
    assert "Chromium" not in machine.dev("test").stderr
    (machine.bin / "chromium").unlink()
    machine.calls()
    machine.apt("openjdk-17-jre-headless", root=True)  # a system that has no such package
    assert machine.dev("test").returncode == 0
    assert [call.split()[1] for call in machine.calls() if call.startswith("apt-get")] == ["update"]


def test_missing_or_old_python_is_reported(machine: Machine) -> None:
    machine.write("python3", PYTHON, old=1)
    done = machine.dev("install")
    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == "dev: no Python 3.11 or newer on PATH"
    (machine.bin / "python3").unlink()
    assert machine.dev("install").stderr == done.stderr


def test_a_missing_benchmark_is_named(machine: Machine) -> None:
    machine.java("jvm/java-17/bin/java", "17.0.15")
    (machine.checkout / "benchmarks").mkdir()
    (machine.checkout / "benchmarks/bench_store.py").touch()
    done = machine.dev("bench", "sotre")
    assert done.returncode == 2
    assert done.stderr.endswith("dev: there is no benchmarks/bench_sotre.py\nhint: there are: store\n")
    machine.calls()
    assert machine.dev("bench", "store", "--json").returncode == 0
    assert machine.calls()[0].startswith("python benchmarks/bench_store.py --json in")


def test_ci_runs_check_and_the_gate(tmp_path: Path) -> None:
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/run", tmp_path / ".ci/run")
    (tmp_path / "dev").write_text('#!/bin/bash\necho "dev $*"\n', encoding="utf-8")
    (tmp_path / "dev").chmod(0o755)
    done = subprocess.run([str(tmp_path / ".ci/run")], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["dev check", "dev test"]


AUDIT = """#!/bin/bash
echo "pip-audit $*" >> {machine}/calls
cat {machine}/audit-says 2>/dev/null
echo "words for people" >&2
exit {code}
"""


@pytest.mark.parametrize(
    ("code", "table", "message"),
    [
        (0, "", "no known holes"),
        (1, "Name Version ID\nx 1 CVE-1\n", "some versions in constraints.txt have known holes"),
        (1, "", "nobody could be asked"),
    ],
)
def test_audit_distinguishes_vulnerabilities_from_no_response(
    machine: Machine, code: int, table: str, message: str
) -> None:
    assert machine.dev("install").returncode == 0
    machine.calls()
    machine.write("pip-audit", AUDIT, machine.checkout / ".venv" / "audit" / "bin", code=code)
    (machine.folder / "audit-says").write_text(table, encoding="utf-8")
    done = machine.dev("audit")
    assert done.returncode == (0 if code == 0 else 2)
    assert message in done.stderr
    assert done.stdout == table
    [call] = machine.calls()
    assert call.startswith("pip-audit --requirement ")
    assert "constraints.txt --no-deps" in call


def test_audit_reports_when_it_cannot_run(machine: Machine) -> None:
    assert machine.dev("install").returncode == 0
    (machine.folder / "pip-fails").write_text("1", encoding="utf-8")
    done = machine.dev("audit")
    assert done.returncode == 2
    assert "nobody was asked about holes" in done.stderr
