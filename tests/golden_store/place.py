"""Where the golden store is written and read: a store in memory, ledger databases in a folder, and settings of both."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from offloader import Settings
from offloader.cli.main import main as offloader
from offloader.managed_ledger import open_managed_ledger
from offloader.store.open import open_store

if TYPE_CHECKING:
    from offloader.managed_ledger import ManagedLedger

__all__ = ["DATABASES", "STORE", "Place", "entries", "settings"]

#: The manifests name it as the place of their objects.
STORE = "memory://golden/root"
#: Databases of streams that have one of their own; the others share ``ledgers.db``.
DATABASES = {"b/lost": "lost.db", "b/aside": "aside.db"}
_SETTINGS: dict[str, dict[str, Any]] = {
    "offload": {"block_size": 4096, "segment_size_max": "16KiB", "part_size": 5 * 1024 * 1024},
    "ledgers": {"ledger_size_max": 20_000},
    "manifest": {"checkpoint_records": 12},
}


def entries(stream: str, first: int, count: int) -> list[bytes]:
    """Payloads of 0 to 180 bytes, each with the stream's name and its own number."""
    return [(f"{stream} {number} " * 9).encode()[: number * 37 % 181] for number in range(first, first + count)]


def settings(**offload: object) -> Settings:
    """Small blocks, segments and ledgers.

    Args:
        offload: more settings of the section ``offload``.
    """
    return Settings.of({**_SETTINGS, "offload": {**_SETTINGS["offload"], **offload}})


class Place:
    """The store, the databases in ``folder``, and commands on both.

    Attributes:
        config: a settings file with a retention policy, no grace period and an unlimited audit, for ``--config``.
        at_once: a settings file with which everything may be deleted immediately.
    """

    def __init__(self, folder: Path) -> None:
        self.store = open_store(STORE)
        self.folder = folder
        self.config = folder / "offloader.toml"
        self.config.write_text(
            "[retention]\npolicy = 'consumption'\n[cleanup]\ngrace_period = '0s'\naudit_period = '36500d'\n"
        )
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
        """A command that ends with ``code``."""
        found = offloader([*words, "--store", STORE])
        if found != code:
            raise RuntimeError(f"offloader {' '.join(words)}: exit code {found}")
