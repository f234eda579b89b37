"""Stored Pulsar entries: any bytes decode, or raise FormatError and nothing else; as rows they never raise, and
make the same rows whatever columns are wanted.

Seeds are entries of a real broker and others of every shape. In some the batch is changed before it is compressed.
"""

from __future__ import annotations

import random
import re
from typing import Any

from formats.checksum import crc32c
from formats.entries import EntryBatch
from formats.errors import FormatError
from formats.pulsar.messages import ENTRY_COLUMNS, BadEntry, MessageDecoder, MessageOptions, messages
from tests.formats.pulsar_entries import Sent, batch_entry, compressed, entry_of, metadata_of, recorded
from tests.proof.fuzz.fuzz_engine import Outcome, Target
from tests.proof.fuzz.fuzz_mutation import mutate

LIMITS: dict[str, Any] = {"payload_bytes_max": 1 << 20, "batch_messages_max": 10_000}
ERROR = MessageOptions(**LIMITS)
NULL = MessageOptions(**LIMITS, bad_entries=BadEntry.NULL)
FEW = MessageOptions(**LIMITS, bad_entries=BadEntry.NULL, columns=tuple(ENTRY_COLUMNS))
PARTS = MessageDecoder(MessageOptions(**LIMITS, bad_entries=BadEntry.NULL, rows_max=5))
#: What ``error`` says of a message that was read: one of its times isn't one.
TIME_NOTE = "is beyond the year 9999"


def seeds() -> list[bytes]:
    topics = [*recorded("plain").values(), *recorded("broker-metadata").values()]
    found = [entry for topic in topics for _, _, entry in topic.entries]
    sent = [Sent(value=bytes(20), key="k", properties={"a": "b"}, sequence_id=number) for number in range(30)]
    return [*found, *[batch_entry(sent, codec=codec, broker=(1, 2)) for codec in range(5)]]


def sealed(entry: bytes) -> bytes:
    """The entry with a checksum that fits what it covers, if it has one."""
    data, at = bytearray(entry), 0
    if data[:2] == b"\x0e\x02" and len(data) >= 6:
        at = 6 + int.from_bytes(data[2:6], "big")
    if data[at : at + 2] == b"\x0e\x01" and len(data) >= at + 6:
        data[at + 2 : at + 6] = crc32c(bytes(data[at + 6 :])).to_bytes(4, "big")
    return bytes(data)


def hidden(rng: random.Random) -> bytes:
    """A batch that is damaged inside of its compression."""
    sent = [Sent(value=rng.randbytes(rng.randrange(40)), sequence_id=number) for number in range(rng.randrange(1, 20))]
    plain = mutate(rng, [b"".join(each.in_batch() for each in sent)])
    codec = rng.randrange(5)
    count = rng.choice([len(sent), len(sent) + 1, 1, rng.randrange(1, 10_001)])
    metadata = metadata_of(compression=codec, uncompressed_size=len(plain), batch=count)
    return entry_of(metadata, compressed(codec, plain), checksum=False)


def check(entry: bytes) -> Outcome:
    """The invariant for one entry."""
    batch = EntryBatch.build(7, 0, [entry])
    table = messages(batch, NULL)
    table.validate(full=True)
    rows = table.to_pylist()
    assert [row for part in PARTS.decode(batch) for row in part.to_pylist()] == rows, "rows depend on parts"
    few = messages(batch, FEW)
    few.validate(full=True)
    assert few.to_pylist() == [{name: row[name] for name in ENTRY_COLUMNS} for row in rows], "rows depend on columns"
    assert rows, "an entry without a row"
    complaints = [row["error"] for row in rows if row["error"] is not None and not row["error"].endswith(TIME_NOTE)]
    raised = refusal(batch, rows)
    assert raised in complaints if complaints else raised is None, f"raised {raised}, rows say {complaints}"
    return (re.sub(r"[0-9]+", "#", raised or ""), len(rows) > 1)


def refusal(batch: EntryBatch, rows: list[object]) -> str | None:
    """What is raised where bad entries aren't rows; ``None`` when nothing is and ``rows`` come out."""
    try:
        found = messages(batch, ERROR).to_pylist()
    except FormatError as error:
        return str(error)
    assert found == rows, "rows depend on the policy"
    return None


def change(rng: random.Random, pool: list[bytes]) -> bytes:
    """A changed entry; in most of them the checksum is made to fit again."""
    entry = hidden(rng) if rng.random() < 0.2 else mutate(rng, pool)
    return sealed(entry) if rng.random() < 0.8 else entry


TARGETS = [Target("messages", seeds, check, change, per_s=550)]
