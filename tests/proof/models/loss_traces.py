"""Counterexamples of the model's second part: another hot tier, and records that are gone. Not a test.

Each file in ``model_traces/losses`` is the shortest way to a loss without the rule that it is named after, one line a
step: ``actor: what it does``. Processes follow the order of the lines as in ``test_model_traces``. This module reads
the files and carries out what no process requests: what the operator does to database files, and what the store loses.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from formats.keys import manifest_prefix, record_key
from offloader.manifest.boundary import listed
from offloader.store.base import ObjectStore

__all__ = ["HOT", "LOSSES", "RECORDS", "Databases", "LossTrace", "Step", "lose"]

LOSSES = sorted((Path(__file__).parent / "model_traces" / "losses").glob("*.txt"))

#: Steps of the world of databases: a host does them with its file and the manifest.
HOT = (
    r"start, load(, .*: refused)?|crash or stop|load: fenced|--new-source, aside .*|"
    r"database: (generation \d+, token \d+|new ledger \d+|roll over to \d+|delete ledgers .*)|"
    r"record (open_epoch \d+ of database \d+|offloaded .*|hot_released .*)|"
    r"append \(\d+, \d+\) = \d+, acknowledged|load, offload .*|truncate to .*"
)
#: Steps of the world of records: each PUT, GET, LIST and DELETE is a request.
RECORDS = (
    r"begin|crash, restart|build .*|GET (boundary|records|record).*|LIST: newest \d+|"
    r"PUT (record|data|boundary|checkpoint).*|DELETE record \d+|hot tier deletes slot \d+|undo reported as done"
)
_OPERATOR = r"the database is lost|backup of the database|the backup is restored|(\w) gets a copy of (\w)'s database"
_STORE = r"record (\d+) is lost|records \[(.*)\] are lost|the manifest's folder is lost"


@dataclass(frozen=True, slots=True)
class Step:
    """One line."""

    actor: str
    what: str

    @property
    def is_known(self) -> bool:
        """Whether it is of a kind that a replay can carry out."""
        pattern = {"operator": _OPERATOR, "store": _STORE}.get(self.actor, f"{HOT}|{RECORDS}")
        return re.fullmatch(pattern, self.what) is not None


@dataclass(frozen=True, slots=True)
class LossTrace:
    """One file.

    Attributes:
        rules: without which this happens.
        scenario: of the model.
        breaks: the invariant, as H1 or N2.
        steps: in order.
    """

    rules: Sequence[str]
    scenario: str
    breaks: str
    steps: Sequence[Step]

    @staticmethod
    def read(path: Path) -> LossTrace:
        head, *lines = path.read_text(encoding="ascii").splitlines()
        found = re.fullmatch(r"# without (\S+): (\w\d): .*", head)
        assert found is not None, f"{path.name} doesn't say what it shows"
        rules, scenario = path.stem.rsplit(".", 1)
        assert found[1] == rules
        steps = [Step(*line.split(": ", 1)) for line in lines]
        return LossTrace(tuple(rules.split("+")), scenario, found[2], tuple(steps))


class Databases:
    """The files of hosts' ledger databases, as an operator handles them: whole, while no process has them open."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._backup = folder / "backup"

    def path(self, host: str) -> Path:
        """The file of that host's database, beside which SQLite may keep others."""
        place = self._folder / host
        place.mkdir(exist_ok=True)
        return place / "ledgers.db"

    def handle(self, what: str, host: str = "A") -> None:
        """Does what an ``operator`` line says; without a name it is about the database of ``host``."""
        place = self.path(host).parent
        if what == "the database is lost":
            shutil.rmtree(place)
        elif what == "backup of the database":
            shutil.rmtree(self._backup, ignore_errors=True)
            shutil.copytree(place, self._backup)
        elif what == "the backup is restored":
            shutil.rmtree(place)
            shutil.copytree(self._backup, place)
        else:
            copied = re.fullmatch(_OPERATOR, what)
            assert copied is not None, f"no operator does this: {what}"
            to, source = (self.path(name).parent for name in copied.groups())
            shutil.rmtree(to)
            shutil.copytree(source, to)


def lose(store: ObjectStore, stream: str, incarnation: UUID, what: str) -> Sequence[str]:
    """Loses what a ``store`` line says, past everybody; the keys of it."""
    found = re.fullmatch(_STORE, what)
    assert found is not None, f"no store does this: {what}"
    numbers = [int(number) for number in (found[1] or found[2] or "").replace(",", " ").split()]
    keys = [record_key(stream, incarnation, number) for number in numbers]
    if not keys:
        keys = [info.key for info in listed(store, manifest_prefix(stream, incarnation))]
    store.delete(keys)
    return keys
