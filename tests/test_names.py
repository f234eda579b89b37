"""Names that were replaced by the field's own words don't return."""

from __future__ import annotations

import io
import re
import tokenize

import pytest

from tests.test_architecture import ROOT

#: Former identifier -> its name now.
RENAMED = {
    "Ahead": "PrefetchWindow",
    "AroundStore": "StoreWrapper",
    "BothTiers": "Reader",
    "CataloguedStore": "OverlayStore",
    "Doomed": "Deletable",
    "Draft": "RecordBuilder",
    "EmbeddedFeed": "EmbeddedProvider",
    "FIX_CALL": "INVALID_REQUEST",
    "Feed": "StreamProvider",
    "FeedParts": "Assembled",
    "Fence": "AckCursor",
    "FlightFeed": "FlightProvider",
    "HistoryBytes": "LedgerSizeEstimator",
    "HistoryOffload": "BackfillJob",
    "HistoryRuns": "BackfillService",
    "Holes": "FoundGaps",
    "Intake": "PendingEntries",
    "Knowledge": "LiveSet",
    "Leftover": "Garbage",
    "LiveFeed": "TailReader",
    "NamedUuids": "ManifestState.named",
    "NotNext": "OutOfOrder",
    "OwnerSilent": "OwnerUnreachable",
    "Pace": "AdaptiveRate",
    "PartsAhead": "BoundedUploader",
    "PassedOver": "InconsistentRead",
    "PulsarFeed": "PulsarProvider",
    "PulsarTurns": "StoreOutageFailover",
    "REPAIR_DATA": "DATA_CORRUPTION",
    "Receiver": "Sink",
    "Seat": "ProducerSession",
    "Seats": "ProducerSessions",
    "SecondLook": "SkippedEntries",
    "SegmentOrder": "SegmentJob",
    "SegmentSending": "OffloadHandle",
    "ServedStream": "StreamSupervisor",
    "Settling": "StreamOffload",
    "Standing": "FailoverSubscription",
    "StreamBuffer": "StreamQuota",
    "StreamShape": "StreamTimeline",
    "StreamSteps": "StreamOffload",
    "TendedActs": "MaintainedActs",
    "TendedRules": "MaintainedRules",
    "TendedSimulation": "MaintainedSimulation",
    "TendedWorld": "MaintainedWorld",
    "Turn": "Ticket",
    "Turns": "RequestScheduler",
    "Upkeep": "Maintenance",
    "Weather": "FaultModel",
    "WovenStore": "InterleavedStore",
    "_broken_tended": "_broken_maintained",
    "amend": "commit_as_maintainer",
    "confirm_stored": "verify_objects",
    "despite_readers": "ignore_leases",
    "feeds_of": "providers_of",
    "find_holes": "find_gaps",
    "hears_of": "wait_until_seen",
    "impatient": "with_short_retries",
    "judge_page": "classify_page",
    "judge_upload": "classify_upload",
    "judged_again": "classified_again",
    "load_named_uuids": "load_manifest_view",
    "look_again": "wake",
    "method_by_hand": "manual_method",
    "moved_on": "advance",
    "offload_by_hand": "offload_manually",
    "offload_pieces": "write_segment",
    "pass_hole": "pass_gap",
    "put_bad_aside": "dead_letter",
    "refreshed_named_uuids": "refreshed",
    "relieve": "request_flush",
    "say_already": "are_applied",
    "says_already": "is_applied",
    "simulate_tended": "simulate_maintained",
    "take_turn": "acquire",
    "turn_bytes": "wait_bytes",
}
#: Folders whose identifiers are checked.
CHECKED = ("formats", "offloader", "tests", "benchmarks", "services")
ANY_FORMER = re.compile(rf"\b({'|'.join(RENAMED)})\b")


def former_names(text: str) -> list[tuple[int, str]]:
    """Lines on which a former identifier is used, and which."""
    if not ANY_FORMER.search(text):
        return []
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return [(each.start[0], each.string) for each in tokens if each.type == tokenize.NAME and each.string in RENAMED]


@pytest.mark.slow
def test_no_identifier_has_a_former_name() -> None:
    paths = [path for folder in CHECKED for path in sorted((ROOT / folder).rglob("*.py"))]
    assert len(paths) > 500
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {name} is {RENAMED[name]} now"
        for path in paths
        for line, name in former_names(path.read_text(encoding="utf-8"))
    ]
    assert wrong == []


def test_a_former_name_is_found_in_code_but_not_in_prose() -> None:
    assert former_names("# Turns\nx = 'Turns'\ny = Turns()\n") == [(3, "Turns")]
