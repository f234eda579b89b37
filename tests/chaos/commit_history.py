"""Who committed what, read from the bucket alone: whether at most one process wrote a stream at any time.

Owns a parser of its own for the manifest's records, made from docs/MANIFEST.md. Imports nothing of this project but its
second reader of objects, so that it can't share the product's mistakes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.independent_reader import read_segment

__all__ = ["Commit", "Entry", "commits_of", "entries_of", "problems_of"]

Entry = tuple[int, int, bytes]
_RECORD = re.compile(r"/manifest/([0-9a-f-]{36})/(\d{20})\.json$")
#: What only the owner of a stream may say; everything else others may, in its epoch.
OWNERS_EDITS = frozenset({"open_epoch", "assign", "offloaded", "failed", "gap", "ledger_closed"})


@dataclass(frozen=True, slots=True)
class Commit:
    """One record. ``edits``: (kind, its fields), in order."""

    record_id: int
    epoch: int
    writer: str
    nonce: str
    time_ms: int
    edits: tuple[tuple[str, Mapping[str, Any]], ...]


def commits_of(objects: Mapping[str, bytes]) -> list[Commit]:
    """The records among a stream's objects, ascending by id.

    Raises:
        ValueError: two incarnations, or a record that says another id than its name.
    """
    found, incarnations = [], set()
    for key, body in sorted(objects.items()):
        match = _RECORD.search(key)
        if match is None:
            continue
        incarnations.add(match[1])
        record = json.loads(body)
        if record["record_id"] != int(match[2]) or record["incarnation"] != match[1]:
            raise ValueError(f"{key} says it is record {record['record_id']} of {record['incarnation']}")
        edits = tuple((edit["edit"], edit) for edit in record["edits"])
        writer = record["writer"]
        found.append(
            Commit(record["record_id"], record["epoch"], writer["name"], writer["nonce"], record["time_ms"], edits)
        )
    if len(incarnations) > 1:
        raise ValueError(f"{len(incarnations)} incarnations")
    return found


def problems_of(commits: Sequence[Commit], *, epochs_max: int) -> list[str]:
    """What contradicts that one owner after the other wrote the stream; empty: nothing.

    Args:
        commits: all of them, ascending.
        epochs_max: how often the stream may have changed hands.
    """
    found = []
    if [each.record_id for each in commits] != list(range(commits[0].record_id, commits[0].record_id + len(commits))):
        found.append("a record is missing")
    if len({each.nonce for each in commits}) != len(commits):
        found.append("a record is there twice")
    epoch, owner, time_ms = 0, "", 0
    for commit in commits:
        opened = [fields["epoch"] for kind, fields in commit.edits if kind == "open_epoch"]
        is_owners = any(kind in OWNERS_EDITS for kind, _ in commit.edits)
        if commit.epoch < epoch:
            found.append(f"record {commit.record_id} of epoch {commit.epoch} comes after one of epoch {epoch}")
        elif opened:
            if opened != [epoch + 1] or commit.epoch != epoch + 1:
                found.append(f"record {commit.record_id} opens epoch {opened} after {epoch}")
            epoch, owner = commit.epoch, commit.writer
        elif commit.epoch > epoch:
            found.append(f"record {commit.record_id}: nobody opened epoch {commit.epoch}")
        elif is_owners and commit.writer != owner:
            found.append(f"record {commit.record_id} of epoch {epoch} is by {commit.writer}, its owner is {owner}")
        if commit.time_ms < time_ms:
            found.append(f"record {commit.record_id} is earlier than the one before it")
        time_ms = commit.time_ms
    if epoch > epochs_max:
        found.append(f"the stream changed hands {epoch} times, at most {epochs_max} are explained")
    return found + _segment_problems(commits)


def _segment_problems(commits: Sequence[Commit]) -> list[str]:
    """Of each segment: assigned once, ended once, never revived, and one after the other."""
    found: list[str] = []
    state: dict[str, str] = {}
    for commit in commits:
        for kind, fields in commit.edits:
            if kind == "assign":
                if fields["uuid"] in state:
                    found.append(f"record {commit.record_id} assigns {fields['uuid']} again")
                state[fields["uuid"]] = "assigned"
            elif kind in ("offloaded", "failed"):
                if state.get(fields["uuid"]) != "assigned":
                    before = state.get(fields["uuid"], "unknown")
                    found.append(f"record {commit.record_id}: {fields['uuid']} is {kind} and was {before}")
                state[fields["uuid"]] = kind
        alive = sum(each == "assigned" for each in state.values())
        if alive > 1:
            found.append(f"record {commit.record_id} leaves {alive} segments assigned at once")
    return found


def entries_of(objects: Mapping[str, bytes], commits: Sequence[Commit]) -> list[Entry]:
    """All entries of the segments that the records say are offloaded, in the order of their positions.

    Raises:
        KeyError: an object that a record names isn't there. ValueError: it is damaged.
    """
    entries: list[Entry] = []
    by_name = {key.rpartition("/")[2]: body for key, body in objects.items()}
    for commit in commits:
        for kind, fields in commit.edits:
            if kind == "offloaded":
                entries += read_segment(by_name[fields["uuid"]], by_name[f"{fields['uuid']}-index"])
    return sorted(entries, key=lambda entry: entry[:2])
