"""Tiered storage for log brokers: the public names, each loaded at first use.

``import offloader`` loads no SDK, Arrow or Spark and takes milliseconds.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import formats as _formats

if TYPE_CHECKING:
    from formats.documents import DeletionRecord
    from formats.entries import Entry, EntryBatch, Position
    from formats.manifest import Record
    from formats.metadata.messages import OffloadContext
    from offloader import errors, spark
    from offloader.adopt import Adoption
    from offloader.doctor import CheckResult
    from offloader.export import StreamExport
    from offloader.export.parquet import ParquetExport
    from offloader.export.pulsar import Replayed
    from offloader.gc.delete_stream import StreamRemoval
    from offloader.gc.orphans import Garbage
    from offloader.gc.sweep import CleanupReport, Undone
    from offloader.groups.group_reader import Checkpoint
    from offloader.groups.group_service import ReaderGroups
    from offloader.groups.reader_groups import GroupConfig, RetentionType
    from offloader.inspect.inspect import Inspection
    from offloader.inspect.verify import Finding
    from offloader.library import Store, open_store
    from offloader.managed_ledger import ManagedLedger
    from offloader.manifest.failed_segments import FailedSegment
    from offloader.manifest.rebuild import Rebuild
    from offloader.manifest.segment_table import SegmentRecord
    from offloader.partitioned_ledger import PartitionedLedger
    from offloader.read.reader import Entries, Reader
    from offloader.read.scan import Scan
    from offloader.retention.cycle import CycleOutcome
    from offloader.retention.subscribers import StreamRetention
    from offloader.retention.truncate import Truncation
    from offloader.settings import Settings
    from offloader.stored_stream import Stream
    from offloader.stream_manifest import ExpiredManifest, StreamManifest
    from offloader.write.epoch import Acceptance, AcceptedLoss
    from offloader.write.export_v1 import ExportedLedger
    from offloader.write.offloader import LedgerOffloader
    from offloader.write.segment import OffloadHandle

__version__ = "0.1.0"

__all__ = [
    "Acceptance",
    "AcceptedLoss",
    "Adoption",
    "CheckResult",
    "Checkpoint",
    "CleanupReport",
    "CycleOutcome",
    "DeletionRecord",
    "Entries",
    "Entry",
    "EntryBatch",
    "ExpiredManifest",
    "ExportedLedger",
    "FailedSegment",
    "Finding",
    "Garbage",
    "GroupConfig",
    "Inspection",
    "LedgerOffloader",
    "ManagedLedger",
    "OffloadContext",
    "OffloadHandle",
    "ParquetExport",
    "PartitionedLedger",
    "Position",
    "Reader",
    "ReaderGroups",
    "Rebuild",
    "Record",
    "Replayed",
    "RetentionType",
    "Scan",
    "SegmentRecord",
    "Settings",
    "Store",
    "Stream",
    "StreamExport",
    "StreamManifest",
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
    "Acceptance": ("offloader.write.epoch", "Acceptance"),
    "AcceptedLoss": ("offloader.write.epoch", "AcceptedLoss"),
    "Adoption": ("offloader.adopt", "Adoption"),
    "CheckResult": ("offloader.doctor", "CheckResult"),
    "Checkpoint": ("offloader.groups.group_reader", "Checkpoint"),
    "CleanupReport": ("offloader.gc.sweep", "CleanupReport"),
    "CycleOutcome": ("offloader.retention.cycle", "CycleOutcome"),
    "DeletionRecord": ("formats.documents", "DeletionRecord"),
    "Entries": ("offloader.read.reader", "Entries"),
    "Entry": ("formats.entries", "Entry"),
    "EntryBatch": ("formats.entries", "EntryBatch"),
    "ExpiredManifest": ("offloader.stream_manifest", "ExpiredManifest"),
    "ExportedLedger": ("offloader.write.export_v1", "ExportedLedger"),
    "FailedSegment": ("offloader.manifest.failed_segments", "FailedSegment"),
    "Finding": ("offloader.inspect.verify", "Finding"),
    "Garbage": ("offloader.gc.orphans", "Garbage"),
    "GroupConfig": ("offloader.groups.reader_groups", "GroupConfig"),
    "Inspection": ("offloader.inspect.inspect", "Inspection"),
    "LedgerOffloader": ("offloader.write.offloader", "LedgerOffloader"),
    "ManagedLedger": ("offloader.managed_ledger", "ManagedLedger"),
    "OffloadContext": ("formats.metadata.messages", "OffloadContext"),
    "OffloadHandle": ("offloader.write.segment", "OffloadHandle"),
    "ParquetExport": ("offloader.export.parquet", "ParquetExport"),
    "PartitionedLedger": ("offloader.partitioned_ledger", "PartitionedLedger"),
    "Position": ("formats.entries", "Position"),
    "Reader": ("offloader.read.reader", "Reader"),
    "ReaderGroups": ("offloader.groups.group_service", "ReaderGroups"),
    "Rebuild": ("offloader.manifest.rebuild", "Rebuild"),
    "Record": ("formats.manifest", "Record"),
    "Replayed": ("offloader.export.pulsar", "Replayed"),
    "RetentionType": ("offloader.groups.reader_groups", "RetentionType"),
    "Scan": ("offloader.read.scan", "Scan"),
    "SegmentRecord": ("offloader.manifest.segment_table", "SegmentRecord"),
    "Settings": ("offloader.settings", "Settings"),
    "Store": ("offloader.library", "Store"),
    "Stream": ("offloader.stored_stream", "Stream"),
    "StreamExport": ("offloader.export", "StreamExport"),
    "StreamManifest": ("offloader.stream_manifest", "StreamManifest"),
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
