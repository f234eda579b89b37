"""Invariant: any entry decodes, or raises FormatError and nothing else; as rows it never raises, and makes the same
rows whatever columns are wanted; never more memory than the limits allow.

    python tests/formats/fuzz_messages.py [--runs 100000] [--seed 1] [--memory-mebibytes 2048]

Seeds are entries of a real broker and others of every shape. They are cut, spliced and overwritten; in most of them the
checksum is made to fit again, and in some the batch is changed before it is compressed.
"""

from __future__ import annotations

import argparse
import random
import resource
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from formats.checksum import crc32c
from formats.entries import EntryBatch
from formats.errors import FormatError
from formats.pulsar.columns import ENTRY_COLUMNS
from formats.pulsar.messages import BadEntry, MessageDecoder, MessageOptions, messages
from tests.formats.fuzz_formats import mutate
from tests.formats.pulsar_entries import Sent, batch_entry, compressed, entry_of, metadata_of, recorded

LIMITS = {"payload_bytes_max": 1 << 20, "batch_messages_max": 10_000}
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


def check(entry: bytes) -> bool:
    """The invariant for one entry; answers whether it was accepted."""
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
    return raised is None


def refusal(batch: EntryBatch, rows: list[object]) -> str | None:
    """What is raised where bad entries aren't rows; ``None`` when nothing is and ``rows`` come out."""
    try:
        found = messages(batch, ERROR).to_pylist()
    except FormatError as error:
        return str(error)
    assert found == rows, "rows depend on the policy"
    return None


def fuzz(runs: int, seed: int) -> tuple[int, int]:
    """How many entries were tried, and how many were accepted."""
    rng = random.Random(seed)
    pool = seeds()
    accepted = 0
    for number in range(runs):
        entry = hidden(rng) if rng.random() < 0.2 else mutate(rng, pool)
        if rng.random() < 0.8:
            entry = sealed(entry)
        try:
            accepted += check(entry)
        except BaseException:
            print(f"seed {seed}, run {number}: {entry.hex()}", file=sys.stderr)
            raise
    return runs, accepted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--memory-mebibytes", type=int, default=2048, help="address space of the process; 0 = no limit")
    arguments = parser.parse_args()
    if arguments.memory_mebibytes:
        limit = arguments.memory_mebibytes << 20
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    runs, accepted = fuzz(arguments.runs, arguments.seed)
    print(f"seed {arguments.seed}: {runs} entries, {accepted} times accepted, no other error")


if __name__ == "__main__":
    main()
