"""Writes tests/formats/golden_own: one folder for each version of each format, to be read by every later release.

Run by hand when there is a new version, or a new sample of one; what is there is never written again.

    python tests/formats/make_golden_own.py
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from formats.entries import EntryBatch
from formats.extension import EXTENSION_VERSION, Codec
from formats.segment import LedgerFacts
from formats.summary import Layout
from tests.formats.golden_samples import KINDS
from tests.formats.segments import build, entries_of
from tests.independent_reader import digest

FOLDER = Path(__file__).parent / "golden_own"
#: Of data and index objects.
OBJECTS = f"extension-{EXTENSION_VERSION}"
#: What is in the objects, so that a later release can say it without this script.
CASES: dict[str, dict[str, Any]] = {
    "v1": {"layout": "V1", "codec": "NONE", "extension": True, "ledgers": {"1001": [0]}},
    "v2": {"layout": "V2", "codec": "NONE", "extension": True, "ledgers": {"7": [100], "8": [0, 40], "12": [3]}},
    "v2-zstd": {"layout": "V2", "codec": "ZSTD", "extension": True, "ledgers": {"7": [0], "8": [0]}},
    "v1-plain": {"layout": "V1", "codec": "NONE", "extension": False, "ledgers": {"1001": [0]}},
    "v2-plain": {"layout": "V2", "codec": "NONE", "extension": False, "ledgers": {"7": [100], "8": [0, 40]}},
}
BLOCK_BYTES = 1024
PART_BYTES = 1500
ENTRIES = 30


def batches(case: dict[str, Any]) -> list[EntryBatch]:
    """30 entries from each of the first entry ids: entry e of ledger L has (e*7 + L) % 90 bytes, all (e + L) % 256.

    Publish time 1,700,000,000,000 + 1000*e ms; unknown where e is divisible by 10.
    """
    found = []
    for ledger, firsts in case["ledgers"].items():
        for first in firsts:
            ids = range(first, first + ENTRIES)
            payloads = [bytes([(e + int(ledger)) % 256]) * ((e * 7 + int(ledger)) % 90) for e in ids]
            times = [1_700_000_000_000 + 1000 * e if e % 10 else -1 for e in ids]
            found.append(EntryBatch.build(int(ledger), first, payloads, times))
    return found


def objects(case: dict[str, Any]) -> tuple[bytes, bytes]:
    """Data and index object of a case, as this release writes them."""
    first_ledger = int(next(iter(case["ledgers"])))
    facts = {first_ledger: LedgerFacts(ledger_id=first_ledger, closed=True, closed_ms=5_000, created_ms=4_000)}
    data, finished = build(
        batches(case),
        layout=Layout[case["layout"]],
        codec=Codec[case["codec"]],
        extension=case["extension"],
        block_bytes=BLOCK_BYTES,
        part_bytes=PART_BYTES,
        facts=facts,
    )
    return data, finished.index


def described_objects() -> dict[str, bytes]:
    """Data and index of every case, and what is in them."""
    made: dict[str, bytes] = {}
    cases = {name: dict(case) for name, case in CASES.items()}
    for name, case in cases.items():
        made[name], made[f"{name}-index"] = objects(case)
        case["entries"] = len(entries_of(batches(case)))
        case["sha256"] = digest(entries_of(batches(case)))
    return made | {"manifest.json": (json.dumps(cases, indent=2) + "\n").encode()}


def write_new(folder: Path, samples: Mapping[str, bytes]) -> None:
    """The samples that have no file yet."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in samples.items():
        if not (folder / name).exists():
            (folder / name).write_bytes(data)
            print(f"{folder.name}/{name}: {len(data):,} bytes")


def main() -> None:
    write_new(FOLDER / OBJECTS, described_objects())
    for kind in KINDS:
        write_new(FOLDER / kind.folder, kind.samples())


if __name__ == "__main__":
    main()
