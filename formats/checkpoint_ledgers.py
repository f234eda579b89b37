"""What a source said of ledgers, in columns, and their Parquet form.

Owns the columns of ledger facts. Must never decide what follows from a fact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from formats.errors import Inconsistent, LimitExceeded, UnsupportedVersion
from formats.manifest_edits import FACT_UNKNOWN

__all__ = ["ASIDE", "DELETED", "HOT_RELEASED", "LAST_UNKNOWN", "LedgerColumns", "decode_ledgers", "encode_ledgers"]

#: ``last_entry_id`` of a ledger that isn't known to be closed.
LAST_UNKNOWN = -2
#: Bits of ``flags``.
DELETED = 1
HOT_RELEASED = 2
#: Of an accepted source whose ledger contradicts the manifest: nothing touches its hot copy.
ASIDE = 4

_FORMAT_KEY, _FORMAT = b"offloader.format", b"1"
#: Most ledgers of one file.
FILE_LEDGERS_MAX = 16_777_216
_SCHEMA = pa.schema(
    [
        pa.field("ledger_id", pa.int64(), nullable=False),
        pa.field("last_entry_id", pa.int64(), nullable=False),
        pa.field("flags", pa.uint8(), nullable=False),
    ],
    metadata={_FORMAT_KEY: _FORMAT},
)
#: With columns that a file has only if any of its ledgers has such a fact: earlier releases read the others.
_FACTS = ("payload_bytes", "created_ms")
_SCHEMA_WITH_FACTS = pa.schema(
    [*_SCHEMA, *(pa.field(name, pa.int64(), nullable=False) for name in _FACTS)], metadata={_FORMAT_KEY: _FORMAT}
)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class LedgerColumns:
    """n ledgers, ascending; every column has shape (n,).

    Attributes:
        ledger_id: int64.
        last_entry_id: int64; -1 the ledger is empty, ``LAST_UNKNOWN`` it isn't known to be closed.
        flags: uint8, of ``DELETED``, ``HOT_RELEASED`` and ``ASIDE``.
        payload_bytes, created_ms: int64, ``FACT_UNKNOWN`` where the source didn't tell.
    """

    ledger_id: NDArray[np.int64]
    last_entry_id: NDArray[np.int64]
    flags: NDArray[np.uint8]
    payload_bytes: NDArray[np.int64]
    created_ms: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.ledger_id)

    @classmethod
    def merged(cls, parts: Sequence[LedgerColumns]) -> LedgerColumns:
        """The ledgers of all parts; of a ledger in several, what the last one says."""
        ids = np.concatenate([part.ledger_id for part in parts])
        # A stable sort keeps the order of the parts within a ledger: the last row of each is the newest.
        order = np.argsort(ids, kind="stable")
        ids = ids[order]
        newest = order[np.append(ids[1:] != ids[:-1], True)] if len(ids) else order
        return cls(
            ledger_id=np.concatenate([part.ledger_id for part in parts])[newest],
            last_entry_id=np.concatenate([part.last_entry_id for part in parts])[newest],
            flags=np.concatenate([part.flags for part in parts])[newest],
            payload_bytes=np.concatenate([part.payload_bytes for part in parts])[newest],
            created_ms=np.concatenate([part.created_ms for part in parts])[newest],
        )

    @property
    def has_facts(self) -> bool:
        """Whether any source told more than where its ledger ends."""
        return bool((self.payload_bytes != FACT_UNKNOWN).any() or (self.created_ms != FACT_UNKNOWN).any())


def encode_ledgers(ledgers: LedgerColumns) -> bytes:
    """A Parquet file of ledger facts."""
    schema = _SCHEMA_WITH_FACTS if ledgers.has_facts else _SCHEMA
    arrays = [pa.array(getattr(ledgers, name), type=schema.field(name).type) for name in schema.names]
    sink = pa.BufferOutputStream()
    wide = [name for name in schema.names if name != "flags"]
    pq.write_table(
        pa.Table.from_arrays(arrays, schema=schema),
        sink,
        use_dictionary=["flags"],
        column_encoding=dict.fromkeys(wide, "DELTA_BINARY_PACKED"),
        compression="ZSTD",
    )
    return cast(bytes, sink.getvalue().to_pybytes())


def decode_ledgers(data: bytes, *, object_name: str = "") -> LedgerColumns:
    """The ledger facts in a Parquet file of ``encode_ledgers``; raises ``FormatError``."""
    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        found = (file.schema_arrow.metadata or {}).get(_FORMAT_KEY)
        if found != _FORMAT:
            raise UnsupportedVersion("format", object_name=object_name, expected=_FORMAT, found=found)
        if not any(map(file.schema_arrow.equals, (_SCHEMA, _SCHEMA_WITH_FACTS))):
            raise Inconsistent("columns", object_name=object_name, expected=_SCHEMA.names, found=file.schema_arrow)
        if file.metadata.num_rows > FILE_LEDGERS_MAX:
            raise LimitExceeded(
                "rows", object_name=object_name, expected=FILE_LEDGERS_MAX, found=file.metadata.num_rows
            )
        table = file.read(use_threads=False)
        columns = {name: table.column(name).to_numpy() for name in table.column_names}
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
        raise Inconsistent(f"not a table of ledgers: {error}", object_name=object_name) from error
    if (np.diff(columns["ledger_id"]) <= 0).any():
        raise Inconsistent("ledgers", object_name=object_name, expected="ascending ids")
    for name in _FACTS:
        columns.setdefault(name, np.full(len(table), FACT_UNKNOWN, np.int64))
    return LedgerColumns(**columns)
