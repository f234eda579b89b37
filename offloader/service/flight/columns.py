"""Record batches from the network as entries, and what is wrong with them.

Owns what a batch must look like. Must never look into a buffer before Arrow has checked the whole batch: lengths and
offsets come from somebody else.
"""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from formats.entries import TIME_UNKNOWN_MS, EntryBatch
from offloader.errors import InvalidCall, LimitReached
from offloader.ledgers.payloads import require_times

__all__ = ["ENTRY_SCHEMA", "pushed_batches", "require_columns", "sent_payloads"]

#: What is pushed and what is read; times are milliseconds, null where nobody knows.
ENTRY_SCHEMA: pa.Schema = EntryBatch.build(0, 0, []).to_arrow().schema
_NEEDED = {"push": ("ledger_id", "entry_id", "payload"), "append": ("payload",)}
_KNOWN = {"push": ("ledger_id", "entry_id", "publish_time", "payload"), "append": ("publish_time", "payload")}


def require_columns(schema: pa.Schema, mode: str) -> None:
    """Checks the columns that a call announces.

    Args:
        mode: ``push`` or ``append``.

    Raises:
        InvalidCall: a column is missing, unknown, named twice, or of another type.
    """
    try:
        names = list(schema.names)
    except UnicodeDecodeError as error:
        raise InvalidCall(f"columns of a {mode}: a name isn't UTF-8", hint="docs/FLIGHT.md has the columns") from error
    problems = [f"{name} is missing" for name in _NEEDED[mode] if name not in names]
    problems += [f"{ascii(name)[:80]} is unknown" for name in sorted(set(names) - set(_KNOWN[mode]))]
    problems += [f"{name} comes twice" for name in sorted(set(names)) if names.count(name) > 1]
    for name in set(names) & set(_KNOWN[mode]) if len(names) == len(set(names)) else ():
        found, wanted = schema.field(name).type, ENTRY_SCHEMA.field(name).type
        if found != wanted:
            problems.append(f"{name} is {found}, not {wanted}")
    if problems:
        raise InvalidCall(
            f"columns of a {mode}: {'; '.join(sorted(problems))[:1000]}",
            hint=f"the columns are {', '.join(f'{name} {ENTRY_SCHEMA.field(name).type}' for name in _KNOWN[mode])}",
        )


def pushed_batches(batch: pa.RecordBatch, *, bytes_max: int, entry_bytes_max: int) -> list[EntryBatch]:
    """The entries of a pushed batch, cut where another ledger begins; shares its memory.

    Raises:
        InvalidCall: damaged, or a null where none may be.
        LimitReached: the batch or an entry is too large.
    """
    payloads, times = _checked(batch, bytes_max, entry_bytes_max)
    ledger_ids, entry_ids = _whole(batch, "ledger_id"), _whole(batch, "entry_id")
    if not len(batch):
        return []
    cuts = [0, *(np.flatnonzero(np.diff(ledger_ids)) + 1).tolist(), len(batch)]
    return [
        EntryBatch(int(ledger_ids[start]), entry_ids[start:end], payloads.slice(start, end - start), times[start:end])
        for start, end in itertools.pairwise(cuts)
    ]


def sent_payloads(
    batch: pa.RecordBatch, *, bytes_max: int, entry_bytes_max: int
) -> tuple[pa.BinaryArray, NDArray[np.int64] | None]:
    """Payloads and times of a batch to be appended; no times: now. Raises as ``pushed_batches``."""
    payloads, times = _checked(batch, bytes_max, entry_bytes_max)
    return payloads, times if "publish_time" in batch.schema.names else None


def _checked(batch: pa.RecordBatch, bytes_max: int, entry_bytes_max: int) -> tuple[pa.BinaryArray, NDArray[np.int64]]:
    _require_sound(batch, full=False)
    # Arrow looks at offsets to tell how large a batch is: only where there are some. Without rows it has none.
    if len(batch) and batch.nbytes > bytes_max:
        raise LimitReached(
            f"a batch of {batch.nbytes} bytes is above {bytes_max} (flight.batch_bytes_max)", hint="send smaller ones"
        )
    _require_sound(batch, full=True)
    payloads = batch.column("payload")
    if payloads.null_count:
        raise InvalidCall("a payload is null", hint="an entry without bytes is an empty value")
    largest = pc.max(pc.binary_length(payloads)).as_py() or 0
    if largest > entry_bytes_max:
        raise LimitReached(
            f"an entry of {largest} bytes is above the {entry_bytes_max} that offload.entry_bytes_max and "
            "offload.offload_buffer_bytes_max allow",
            hint="nothing of the batch was taken",
        )
    return payloads, _times(batch)


def _require_sound(batch: pa.RecordBatch, *, full: bool) -> None:
    """Checks the batch's structure, with ``full`` its values too, which takes as long as the batch is large."""
    try:
        batch.validate(full=full)
    except pa.ArrowException as error:
        raise InvalidCall(f"a batch is damaged: {str(error)[:200]}") from error


def _times(batch: pa.RecordBatch) -> NDArray[np.int64]:
    if "publish_time" not in batch.schema.names:
        return np.full(len(batch), TIME_UNKNOWN_MS, dtype=np.int64)
    times = batch.column("publish_time").cast(pa.int64())
    require_times(times.drop_null().to_numpy(zero_copy_only=False), where="a batch")
    if times.null_count:
        times = pc.fill_null(times, TIME_UNKNOWN_MS)
    found: NDArray[np.int64] = times.to_numpy(zero_copy_only=False)
    return found


def _whole(batch: pa.RecordBatch, name: str) -> NDArray[np.int64]:
    column = batch.column(name)
    if column.null_count:
        raise InvalidCall(f"a {name} is null")
    found: NDArray[np.int64] = column.to_numpy()
    return found
