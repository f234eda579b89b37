"""Every persistent document except objects: decoded, and encoded again byte for byte.

This release writes the same bytes as the one that made the files, and no format, edit or document is without a file.
"""

from __future__ import annotations

import ast
import gzip
import pkgutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from formats.entries import Position
from formats.manifest import EDIT_KINDS, decode_record
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers, EmbeddedStream
from tests.formats.golden_samples import KINDS, STREAM, Kind, write_ledgers
from tests.formats.make_golden_own import FOLDER

ROOT = Path(__file__).resolve().parents[2]
#: Versions of what isn't kept anywhere, each with the reason.
NOT_KEPT = {
    "formats.extension.EXTENSION_VERSION": "golden objects: test_golden_own.py",
    "offloader.ledgers.pulsar.protocol.PROTOCOL_VERSION": "Pulsar's, of a connection",
    "offloader.manifest.boundary._OWN_UUID_VERSION": "of a kind of uuid: a part of objects' names",
    "offloader.spark.session.JAVA_VERSION_MIN": "of a program",
    "offloader.read.values._VERSION_BYTES": "the length of a schema's version, which is Pulsar's",
    "offloader.monitor.VERSION": "a process writes it anew every few seconds",
}
FILES = [pytest.param(kind, path, id=f"{kind.folder} {path.name}")
         for kind in KINDS for path in sorted((FOLDER / kind.folder).iterdir())]  # fmt: skip


def assert_same(kind: Kind, made: bytes, golden: bytes) -> None:
    """The same bytes; of a Parquet file of another release of Arrow, which names itself in it, what is in it."""
    if kind.is_parquet:
        now, then = (pq.ParquetFile(pa.BufferReader(data)) for data in (made, golden))
        assert now.read().equals(then.read())
        assert now.schema_arrow.equals(then.schema_arrow, check_metadata=True)
        if now.metadata.created_by != then.metadata.created_by:
            return
    assert made == golden


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "path"), FILES)
def test_golden_documents_decode_and_encode_to_the_same_bytes(kind: Kind, path: Path) -> None:
    assert_same(kind, kind.again(path.name, path.read_bytes()), path.read_bytes())


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.name != "ledgers"], ids=lambda kind: kind.folder)
def test_this_release_writes_the_same_bytes(kind: Kind) -> None:
    """Where it shouldn't any more there is a new version of the format, with a folder of its own."""
    made = kind.samples()
    assert set(made) == {path.name for path in (FOLDER / kind.folder).iterdir()}
    for name, data in made.items():
        assert_same(kind, data, (FOLDER / kind.folder / name).read_bytes())


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.folder)
def test_samples_are_of_the_version_that_the_code_writes(kind: Kind) -> None:
    if kind.constant:
        assert int(pkgutil.resolve_name(kind.constant)) == kind.version


def constants() -> Iterator[str]:
    """Dotted names of the numbers in the code that say the version of something."""
    for path in sorted(p for package in ("formats", "offloader") for p in (ROOT / package).rglob("*.py")):
        if path.name.endswith("_pb2.py") or (ROOT / "offloader/testing") in path.parents:
            continue
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                own: list[ast.expr] = [each.target for each in node.body if isinstance(each, ast.AnnAssign)]
                own += [target for each in node.body if isinstance(each, ast.Assign) for target in each.targets]
                if "format_version" in {target.id for target in own if isinstance(target, ast.Name)}:
                    yield f"{module}.{node.name}.format_version"
            if isinstance(node, ast.Assign):
                pairs = [(target, node.value) for target in node.targets]
                if isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = list(zip(node.targets[0].elts, node.value.elts, strict=True))
                for target, value in pairs:
                    is_number = isinstance(value, ast.Constant) and str(value.value).strip("b'").isdigit()
                    if isinstance(target, ast.Name) and is_number and {"FORMAT", "VERSION"} & set(target.id.split("_")):
                        yield f"{module}.{target.id}"


def where_defined(constant: str) -> str:
    """The class from which a document has its version, if it has none of its own."""
    owner, _, name = constant.rpartition(".")
    bases = getattr(pkgutil.resolve_name(owner), "__mro__", ())
    return next((f"{base.__module__}.{base.__qualname__}.{name}" for base in bases if name in vars(base)), constant)


@pytest.mark.slow
def test_every_version_in_the_code_has_golden_files() -> None:
    known = {where_defined(kind.constant) for kind in KINDS if kind.constant} | set(NOT_KEPT)
    assert set(constants()) == known, "add samples to golden_samples.py and run make_golden_own.py"
    assert {path.name.rpartition("-")[0] for path in FOLDER.iterdir()} == {kind.name for kind in KINDS} | {"extension"}


def test_every_edit_has_a_golden_record() -> None:
    found = {path: decode_record(path.read_bytes()).edits for path in (FOLDER / "record-1").iterdir()}
    assert {edits[0].kind for edits in found.values() if len(edits) == 1} == set(EDIT_KINDS)


@pytest.mark.slow
def test_every_sealed_document_has_a_sample() -> None:
    """Fails when a checksummed document is added without a sample."""
    sealing, samples = set(), (Path(__file__).parent / "golden_samples.py").read_text(encoding="utf-8")
    for path in (ROOT / "formats").glob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and "CheckedDocument" in map(ast.unparse, node.bases):
                sealing.add(node.name)
            if isinstance(node, ast.FunctionDef) and node.name != "sealed":
                calls = (call.func for call in ast.walk(node) if isinstance(call, ast.Call))
                if any(isinstance(each, ast.Name) and each.id == "sealed" for each in calls):
                    sealing.add(node.name)
    assert len(sealing) >= 10
    assert [name for name in sorted(sealing) if f"{name}(" not in samples] == []


def rows(path: Path) -> dict[str, list[object]]:
    """Everything in a database: how its tables were made, and what is in them."""
    connection = sqlite3.connect(f"file:{path}?immutable=1", uri=True)
    try:
        tables = connection.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall()
        found: dict[str, list[object]] = {"made by": tables}
        for name, sql in tables:
            if sql and sql.startswith("CREATE TABLE"):
                found[name] = connection.execute(f"SELECT * FROM {name} ORDER BY rowid").fetchall()
        for pragma in ("application_id", "user_version", "page_size", "journal_mode"):
            found[pragma] = connection.execute(f"PRAGMA {pragma}").fetchall()
        return found
    finally:
        connection.close()


def test_golden_ledger_database_is_written_row_by_row(tmp_path: Path) -> None:
    """SQLite writes its own release into the file: not its bytes are compared but everything in it."""
    golden, made = tmp_path / "golden.db", tmp_path / "made.db"
    folder = next(kind.folder for kind in KINDS if kind.name == "ledgers")
    golden.write_bytes(gzip.decompress((FOLDER / folder / "ledgers.db.gz").read_bytes()))
    write_ledgers(made)
    assert rows(made) == rows(golden)


def read_all(stream: EmbeddedStream) -> list[bytes]:
    """The payloads of all entries that weren't deleted."""
    found: list[bytes] = []
    batch = stream.read(Position(0, 0), 1000)
    while batch is not None:
        found += batch.payloads.to_pylist()
        batch = stream.read(batch.last.next(), 1000)
    return found


def test_a_ledger_database_of_every_version_is_opened_read_and_appended_to(tmp_path: Path) -> None:
    for folder in sorted(FOLDER.glob("ledgers-*")):
        path = tmp_path / f"{folder.name}.db"
        path.write_bytes(gzip.decompress((folder / "ledgers.db.gz").read_bytes()))
        ledgers = EmbeddedLedgers(str(path), create=False)
        assert ledgers.streams() == ["other", STREAM]
        stream = ledgers.open_stream(STREAM)
        infos = stream.ledgers()
        assert stream.get_note("at") == b"5"
        wanted = [bytes([n // 30]) * (7 * (n % 30) % 90) for n in range(50, 180)]
        assert read_all(stream) == wanted
        [appended] = stream.append([b"by a later release"])
        assert stream.last_position() == appended.first == Position(infos[-1].ledger_id, 0)
        ledgers.close()
