"""Fields of what the command line prints with ``--json``, from runs of every verb over a store that holds everything.

The store is the one of ``tests/golden_store``. A field is what it was seen to be: what no run shows (a lease that
is held, an error that a deletion met) isn't here.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

from formats.metadata.messages import OffloadContext, PulsarLedger
from offloader.cli.main import main
from offloader.cli.tree import leaves
from offloader.manifest.log import load_manifest
from offloader.store.base import ObjectStore
from tests.contracts.command_line import commands
from tests.contracts.shapes import shape_lines
from tests.golden_store.archive import into_memory, unpack_databases
from tests.golden_store.place import STORE
from tests.support.ledger_records import record_of

__all__ = ["json_output"]

#: Verbs that aren't run here: they need Spark, a Pulsar broker, a damaged manifest, or print what other verbs print.
NOT_RUN = {
    "offloader demo",
    "offloader manifest rebuild",
    "offloader export pulsar",
    "offloader group checkpoint",
    "offloader group publish",
    *(f"offloader spark {job}" for job in ("backfill", "compact", "export", "rebuild", "verify")),
}
ORACLE = "public/default/persistent/oracle"
#: Commands in this order: what one changes the next ones see. For words in capitals what they stand for is put in.
RUNS = """
cleanup hold --all --off
stream delete b/deleted --config CONFIG --apply
ls
status
doctor
config check --config CONFIG
config explain a/streamed --config CONFIG
config sample
ls a/streamed
ls b/aside
manifest show a/streamed
manifest show b/aside
manifest show a/paused
manifest context a/streamed 6
manifest checkpoint a/by-ledger
manifest expire a/paused
read a/streamed --limit 3
read a/streamed --count
verify a/streamed
export iceberg a/streamed --table lake.entries --catalog CATALOG --warehouse WAREHOUSE
verify a/by-ledger --deep
inspect DATA
inspect INDEX
inspect V1
stream accept-loss b/lost --ledgers LOST
stream set-source b/aside --ledgers ASIDE
stream offload a/by-ledger --ledgers LEDGERS --dry-run
stream offload a/by-ledger --ledgers LEDGERS --take-over
stream pause a/left
stream resume a/left
cleanup hold a/paused --off
cleanup hold a/left
import --dry-run
import
import ORACLE --undo
subscriber list a/streamed
subscriber list a/topic
subscriber add a/rolled another
subscriber ack a/rolled another --at ROLLED
subscriber remove a/rolled another --apply
subscriber accept-loss a/rolled
group list
group set more --stream a/rolled --type manual
group join more one --limit 3
group remove more --apply
retention explain a/topic --config CONFIG
retention explain a/streamed --config CONFIG
retention plan --config CONFIG
retention run a/streamed --config CONFIG --apply
cleanup plan --config CONFIG
cleanup undo b/awaited
cleanup run --allow-large --config CONFIG --apply
cleanup audit
cleanup orphans
stream truncate b/released --before RELEASED
stream truncate b/released --before RELEASED --take-over --apply
stream compact a/streamed --dry-run
stream compact a/streamed --beside-owner
export parquet a/streamed --dest memory://lake --column ledger_id
export v1 a/streamed --dest memory://exported --broker-record RECORD
stream delete b/anew
stream delete b/anew --apply
read b/anew
"""


def json_output() -> str:
    found: dict[str, list[Mapping[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as name, _without_variables():
        folder = unpack_databases(Path(name))
        store = into_memory()
        words_of = _words(folder, store)
        for line in RUNS.split("\n"):
            words = [words_of.get(word, word) for word in line.split()]
            if words:
                command = "an error" if line == "read b/anew" else _command(words)
                found.setdefault(command, []).extend(_run(words, fails=command == "an error"))
    with_json = {words for words, each in commands() if any("--json" in option.opts for option in each.params)}
    missing = with_json - set(found) - NOT_RUN
    assert not missing, f"no run shows what these print: {', '.join(sorted(missing))}"
    lines = ["# by command: field, a ? where not every line has it, and what it is"]
    for command, values in found.items():
        lines += ["", f"{command} --json", *(f"    {each}" for each in shape_lines(values))]
    return "\n".join(lines) + "\n"


def _words(folder: Path, store: ObjectStore) -> Mapping[str, str]:
    config = folder / "offloader.toml"
    config.write_text(
        '[retention]\npolicy = "consumption"\n[cleanup]\ngrace_period = "0s"\n[manifest]\norphan_age_min = "0s"\n'
    )
    record = folder / "record"
    record.write_bytes(_record(store))
    first_of = {
        stream: next(iter(load_manifest(store, stream).offloaded())) for stream in ("a/streamed", "a/by-ledger")
    }
    data, index = first_of["a/streamed"].object_keys("a/streamed")
    return {
        "LEDGERS": f"sqlite:///{folder}/ledgers.db",
        "LOST": f"sqlite:///{folder}/lost.db",
        "ASIDE": f"sqlite:///{folder}/aside.db",
        "CONFIG": str(config),
        "CATALOG": f"sqlite:///{folder}/catalog.db",
        "WAREHOUSE": f"file://{folder}/warehouse",
        "ORACLE": ORACLE,
        "RECORD": str(record),
        "DATA": data,
        "INDEX": index,
        "V1": first_of["a/by-ledger"].object_keys("a/by-ledger")[1],
        "ROLLED": str(load_manifest(store, "a/rolled").committed_end()),
        "RELEASED": str(load_manifest(store, "b/released").committed_end()),
    }


def _record(store: ObjectStore) -> bytes:
    """What a broker would have of the whole ledgers of a stream; other commands delete ledgers 1 and 2."""
    state, context = load_manifest(store, "a/streamed"), OffloadContext(uuid=UUID(int=1), complete=True)
    whole = {ledger_id: last + 1 for ledger_id, last in state.closed_ledgers.items() if ledger_id > 2}
    return record_of(
        [PulsarLedger(ledger_id=each, entries=entries, context=context) for each, entries in whole.items()]
    )


def _command(words: list[str]) -> str:
    if words[0] == "ls" and len(words) > 1:
        return "offloader ls STREAM"
    two = " ".join(words[:2])
    return f"offloader {two if two in dict(leaves()) else words[0]}"


def _run(words: list[str], *, fails: bool) -> list[Mapping[str, Any]]:
    out, err = io.StringIO(), io.StringIO()
    given = [] if words[0] == "config" else ["--store", STORE]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([*words, *given, "--json"])
    assert bool(code) == fails, f"offloader {' '.join(words)}: exit code {code}: {err.getvalue()}"
    return [json.loads(line) for line in (err if fails else out).getvalue().splitlines() if line.startswith("{")]


@contextlib.contextmanager
def _without_variables() -> Iterator[None]:
    """Commands find no file and no address of the person who runs the tests."""
    kept = {name: value for name, value in os.environ.items() if name.startswith("OFFLOADER_")}
    for name in kept:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(kept)
