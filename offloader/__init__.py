"""Tiered storage for log brokers: the public names, each loaded at first use.

``import offloader`` loads no SDK, Arrow or Spark and takes milliseconds.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import formats as _formats

if TYPE_CHECKING:
    from formats.entries import Entry, EntryBatch, Position
    from offloader import errors, spark
    from offloader.groups.group_reader import Checkpoint
    from offloader.groups.group_service import open_reader_groups
    from offloader.groups.reader_groups import GroupConfig, RetentionType
    from offloader.managed_ledger import ManagedLedger, open_managed_ledger
    from offloader.read.arrow import read_arrow, to_duckdb, to_pandas, to_polars
    from offloader.read.partitions import open_reader
    from offloader.read.reader import Entries, Reader
    from offloader.retention.subscribers import open_retention
    from offloader.settings import Settings
    from offloader.store.open import open_store
    from offloader.write.offloader import LedgerOffloader
    from offloader.write.segment import OffloadHandle

__version__ = "0.1.0"

__all__ = [
    "Checkpoint",
    "Entries",
    "Entry",
    "EntryBatch",
    "GroupConfig",
    "LedgerOffloader",
    "ManagedLedger",
    "OffloadHandle",
    "Position",
    "Reader",
    "RetentionType",
    "Settings",
    "__version__",
    "errors",
    "open_managed_ledger",
    "open_reader",
    "open_reader_groups",
    "open_retention",
    "open_store",
    "read_arrow",
    "spark",
    "to_duckdb",
    "to_pandas",
    "to_polars",
]

#: Public name -> its module; an empty attribute is the module itself.
_HOMES = {
    "Checkpoint": ("offloader.groups.group_reader", "Checkpoint"),
    "Entries": ("offloader.read.reader", "Entries"),
    "Entry": ("formats.entries", "Entry"),
    "EntryBatch": ("formats.entries", "EntryBatch"),
    "GroupConfig": ("offloader.groups.reader_groups", "GroupConfig"),
    "LedgerOffloader": ("offloader.write.offloader", "LedgerOffloader"),
    "ManagedLedger": ("offloader.managed_ledger", "ManagedLedger"),
    "OffloadHandle": ("offloader.write.segment", "OffloadHandle"),
    "Position": ("formats.entries", "Position"),
    "Reader": ("offloader.read.reader", "Reader"),
    "RetentionType": ("offloader.groups.reader_groups", "RetentionType"),
    "Settings": ("offloader.settings", "Settings"),
    "errors": ("offloader.errors", ""),
    "open_managed_ledger": ("offloader.managed_ledger", "open_managed_ledger"),
    "open_reader": ("offloader.read.partitions", "open_reader"),
    "open_reader_groups": ("offloader.groups.group_service", "open_reader_groups"),
    "open_retention": ("offloader.retention.subscribers", "open_retention"),
    "open_store": ("offloader.store.open", "open_store"),
    "read_arrow": ("offloader.read.arrow", "read_arrow"),
    "spark": ("offloader.spark", ""),
    "to_duckdb": ("offloader.read.arrow", "to_duckdb"),
    "to_pandas": ("offloader.read.arrow", "to_pandas"),
    "to_polars": ("offloader.read.arrow", "to_polars"),
}

if getattr(_formats, "DISTRIBUTION", None) != "offloader":
    _where = getattr(_formats, "__file__", None) or next(iter(_formats.__path__), "an unknown place")
    raise ImportError(
        f"offloader needs its own top-level package 'formats', but Python found another one at {_where}: "
        "remove that package, or give offloader an environment of its own"
    )


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'offloader' has no attribute {name!r}")
    module = importlib.import_module(home[0])
    value = getattr(module, home[1]) if home[1] else module
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
