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
    from offloader.export import StreamExport
    from offloader.export.parquet import ParquetExport
    from offloader.export.pulsar import Replayed
    from offloader.gc.delete_stream import StreamRemoval
    from offloader.gc.sweep import CleanupReport, Undone
    from offloader.groups.group_reader import Checkpoint
    from offloader.groups.group_service import ReaderGroups
    from offloader.groups.reader_groups import GroupConfig, RetentionType
    from offloader.inspect.verify import Finding
    from offloader.library import Store, Stream, open_store
    from offloader.managed_ledger import ManagedLedger
    from offloader.manifest.segment_table import SegmentRecord
    from offloader.partitioned_ledger import PartitionedLedger
    from offloader.read.reader import Entries, Reader
    from offloader.read.scan import Scan
    from offloader.retention.subscribers import StreamRetention
    from offloader.retention.truncate import Truncation
    from offloader.settings import Settings
    from offloader.write.export_v1 import ExportedLedger
    from offloader.write.offloader import LedgerOffloader
    from offloader.write.segment import OffloadHandle

__version__ = "0.1.0"

__all__ = [
    "Checkpoint",
    "CleanupReport",
    "Entries",
    "Entry",
    "EntryBatch",
    "ExportedLedger",
    "Finding",
    "GroupConfig",
    "LedgerOffloader",
    "ManagedLedger",
    "OffloadHandle",
    "ParquetExport",
    "PartitionedLedger",
    "Position",
    "Reader",
    "ReaderGroups",
    "Replayed",
    "RetentionType",
    "Scan",
    "SegmentRecord",
    "Settings",
    "Store",
    "Stream",
    "StreamExport",
    "StreamRemoval",
    "StreamRetention",
    "Truncation",
    "Undone",
    "__version__",
    "errors",
    "open_store",
    "spark",
]

#: Public name -> its module; an empty attribute is the module itself.
_HOMES = {
    "Checkpoint": ("offloader.groups.group_reader", "Checkpoint"),
    "CleanupReport": ("offloader.gc.sweep", "CleanupReport"),
    "Entries": ("offloader.read.reader", "Entries"),
    "Entry": ("formats.entries", "Entry"),
    "EntryBatch": ("formats.entries", "EntryBatch"),
    "ExportedLedger": ("offloader.write.export_v1", "ExportedLedger"),
    "Finding": ("offloader.inspect.verify", "Finding"),
    "GroupConfig": ("offloader.groups.reader_groups", "GroupConfig"),
    "LedgerOffloader": ("offloader.write.offloader", "LedgerOffloader"),
    "ManagedLedger": ("offloader.managed_ledger", "ManagedLedger"),
    "OffloadHandle": ("offloader.write.segment", "OffloadHandle"),
    "ParquetExport": ("offloader.export.parquet", "ParquetExport"),
    "PartitionedLedger": ("offloader.partitioned_ledger", "PartitionedLedger"),
    "Position": ("formats.entries", "Position"),
    "Reader": ("offloader.read.reader", "Reader"),
    "ReaderGroups": ("offloader.groups.group_service", "ReaderGroups"),
    "Replayed": ("offloader.export.pulsar", "Replayed"),
    "RetentionType": ("offloader.groups.reader_groups", "RetentionType"),
    "Scan": ("offloader.read.scan", "Scan"),
    "SegmentRecord": ("offloader.manifest.segment_table", "SegmentRecord"),
    "Settings": ("offloader.settings", "Settings"),
    "Store": ("offloader.library", "Store"),
    "Stream": ("offloader.library", "Stream"),
    "StreamExport": ("offloader.export", "StreamExport"),
    "StreamRemoval": ("offloader.gc.delete_stream", "StreamRemoval"),
    "StreamRetention": ("offloader.retention.subscribers", "StreamRetention"),
    "Truncation": ("offloader.retention.truncate", "Truncation"),
    "Undone": ("offloader.gc.sweep", "Undone"),
    "errors": ("offloader.errors", ""),
    "open_store": ("offloader.library", "open_store"),
    "spark": ("offloader.spark", ""),
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
