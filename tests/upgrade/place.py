"""Where a release writes an archive: its store, its ledger databases, and its command line on both."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from offloader import Settings, open_managed_ledger, open_store
from offloader.cli.main import main as offloader

if TYPE_CHECKING:
    from offloader.managed_ledger import ManagedLedger

__all__ = ["DATABASES", "SETTINGS", "STORE", "Place", "entries", "settings"]

STORE = "memory://upgrade/root"
#: Databases of streams that have one of their own; the others share one.
DATABASES = {"b/lost": "lost.db", "b/aside": "aside.db"}
SETTINGS: dict[str, dict[str, Any]] = {
    "offload": {"block_bytes": 4096, "max_size_per_offload_segment_mbytes": 1 / 64, "part_bytes": 5 * 1024 * 1024},
    "ledgers": {"ledger_bytes_max": 20_000},
    "manifest": {"checkpoint_records": 12},
}
POLICY = '[retention]\npolicy = "consumption"\n'


def entries(stream: str, first: int, count: int) -> list[bytes]:
    """Of 0 to 180 bytes that say where they belong."""
    return [(f"{stream} {number} " * 9).encode()[: number * 37 % 181] for number in range(first, first + count)]


def settings(**offload: object) -> Settings:
    return Settings.of({**SETTINGS, "offload": {**SETTINGS["offload"], **offload}})


class Place:
    """The store, the database beside it, and the command line on both."""

    def __init__(self, folder: Path) -> None:
        self.store = open_store(STORE)
        self.folder = folder
        self.config = folder / "offloader.toml"
        self.config.write_text(POLICY)
        #: Nothing waits until it is deleted.
        self.at_once = folder / "at-once.toml"
        self.at_once.write_text("[cleanup]\ngrace_period = '0s'\n[manifest]\norphan_age_min = '0s'\n")

    def database(self, stream: str) -> str:
        return f"sqlite:///{self.folder}/{DATABASES.get(stream, 'ledgers.db')}"

    def topic(self, stream: str, *, new_source: bool = False, **offload: object) -> ManagedLedger:
        return open_managed_ledger(
            stream,
            ledgers=self.database(stream),
            store=self.store,
            settings=settings(**offload),
            new_source=new_source,
        )

    def run(self, *words: str, code: int = 0) -> None:
        found = offloader([*words, "--store", STORE])
        if found != code:
            raise SystemExit(f"offloader {' '.join(words)}: exit code {found}")
