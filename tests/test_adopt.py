"""Adopting ledgers that Pulsar offloaded: found, checked, recorded in place, read like any other stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pytest

from formats.entries import Position
from formats.index import decode_index, encode_index
from formats.keys import boundary_key
from formats.manifest import Release, Truncate
from formats.metadata.messages import BookKeeperLedger
from formats.summary import Layout
from offloader.adopt import Adoption, adopt, ends_with_entry, release
from offloader.errors import InvalidCallError
from offloader.ledgers.pulsar.topics import TopicLedger, TopicLedgers
from offloader.manifest.log import ManifestLog, load_manifest
from offloader.manifest.rebuild import rebuild_manifest
from offloader.manifest.state import offload_context
from offloader.read.reader import open_stream_reader, read_offloaded
from offloader.runtime.clock import SystemClock
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from offloader.store.wrappers import requests_of
from offloader.write.offloader import LedgerOffloader
from tests.support.golden_bucket import GOLDEN_STREAM, golden_cases, golden_digest, put_golden
from tests.support.streams import StreamWriter, batch_of
from tests.support.waiting import PATIENCE_S, eventually

CASES = {case["name"]: case for case in golden_cases()}
TOPIC = "persistent://public/default/oracle"


@pytest.fixture
def store() -> ObjectStore:
    return open_store(f"memory://adopt-{uuid4().hex}")


def adopted(store: ObjectStore, **options: Any) -> Adoption:
    return adopt(store, clock=SystemClock(), **options)


def topic_of(cases: list[Mapping[str, Any]], *more: TopicLedger) -> TopicLedgers:
    """What a broker would say: the cases' ledgers, and an open one at the end."""
    found = [TopicLedger(case["ledger"], case["count"], case["payload_bytes"], True) for case in cases]
    found += [*more, TopicLedger(9000, 0, 0, False)]
    return TopicLedgers(TOPIC, tuple(sorted(found, key=lambda ledger: ledger.ledger_id)))


def digest_of(store: ObjectStore, ledger_id: int) -> tuple[int, str]:
    """Entries and digest of a ledger, as the golden manifest counts them."""
    batches = [batch for batch in open_stream_reader(store, GOLDEN_STREAM).scan() if batch.ledger_id == ledger_id]
    return sum(map(len, batches)), golden_digest(entry for batch in batches for entry in batch.entries())


def snapshot(store: ObjectStore) -> dict[str, bytes]:
    return {i.key: store.get(i.key)[0] for i in store.list("").objects if "/" not in i.key}


@pytest.mark.slow
@pytest.mark.parametrize("deep", [False, True], ids=["indexes", "every entry"])
def test_adopted_bucket_becomes_a_stream_of_pulsars_entries(store: ObjectStore, deep: bool) -> None:
    put_golden(store)
    before = snapshot(store)

    done = adopted(store, deep=deep)

    [found] = done.streams
    assert (found.stream, len(found.adopted)) == (GOLDEN_STREAM, len(CASES))
    assert done.problems_count == done.unmatched.count == done.foreign.count == 0
    for case in CASES.values():
        assert digest_of(store, case["ledger"]) == (case["count"], case["sha256"])
    assert snapshot(store) == before
    reader = open_stream_reader(store, GOLDEN_STREAM)
    assert reader.count() == sum(case["count"] for case in CASES.values())
    assert sum(b.payload_bytes for b in reader.scan()) == sum(case["payload_bytes"] for case in CASES.values())


def test_without_reading_entries_an_attempt_costs_two_requests(store: ObjectStore) -> None:
    put_golden(store)

    adopted(store, dry_run=True)

    # Index and last entry of each; the catalogue entry that isn't there.
    assert requests_of(store)["get"].requests == 2 * len(CASES) + 1


def test_adopted_segments_record_known_facts_and_foreign_ownership(store: ObjectStore) -> None:
    put_golden(store, [CASES["v1-multi"]])
    adopted(store)

    [record] = load_manifest(store, GOLDEN_STREAM).offloaded()

    case = CASES["v1-multi"]
    assert not record.owned
    assert record.summary is not None
    assert (record.summary.entries, record.summary.payload_bytes) == (case["count"], case["payload_bytes"])
    assert record.object_keys(GOLDEN_STREAM) == (case["data"]["key"], case["index"]["key"])
    assert record.offloaded_ms


def test_ownership_is_taken_only_on_request(store: ObjectStore) -> None:
    put_golden(store)
    adopted(store, take_ownership=True)
    assert all(record.owned for record in load_manifest(store, GOLDEN_STREAM).offloaded())


def test_later_ownership_change_leaves_summaries_unchanged(store: ObjectStore) -> None:
    put_golden(store)
    adopted(store)
    before = load_manifest(store, GOLDEN_STREAM)

    [found] = adopted(store, take_ownership=True).streams

    after = load_manifest(store, GOLDEN_STREAM)
    assert (found.adopted, found.already) == ((), len(CASES))
    assert all(record.owned for record in after.offloaded())
    assert [record.summary for record in after.offloaded()] == [record.summary for record in before.offloaded()]
    assert (after.committed_end(), after.sums) == (before.committed_end(), before.sums)
    assert open_stream_reader(store, GOLDEN_STREAM).count() == sum(case["count"] for case in CASES.values())


def test_ownership_is_taken_of_what_a_truncation_has_left(store: ObjectStore) -> None:
    put_golden(store)
    adopted(store)
    log = ManifestLog(store, GOLDEN_STREAM, clock=SystemClock())
    head = log.load().offloaded()[2].begin
    log.commit_as_maintainer([Truncate(head)])

    done = adopted(store, take_ownership=True)

    assert done.problems == []
    found = load_manifest(store, GOLDEN_STREAM).offloaded()
    assert [record.owned for record in found] == [record.begin >= head for record in found]


def test_ledgers_before_the_head_are_left_out_and_later_ones_adopted(store: ObjectStore) -> None:
    """Their objects stay in the bucket, where nothing but Pulsar deletes them."""
    cases = sorted(CASES.values(), key=lambda case: case["ledger"])
    put_golden(store, cases[:-1])
    adopted(store)
    log = ManifestLog(store, GOLDEN_STREAM, clock=SystemClock())
    first, second, third, *_ = log.load().offloaded()
    log.commit_as_maintainer([Truncate(third.begin)])
    log.commit_as_maintainer([Release((first.uuid, second.uuid))])
    put_golden(store, cases)

    done = adopted(store)

    assert done.problems == []
    [found] = done.streams
    assert found.adopted == (Position(cases[-1]["ledger"], 0),)
    assert {left.segment.uuid for left in found.left_out} == {first.uuid, second.uuid}
    assert all("truncated" in left.why for left in found.left_out)


@pytest.mark.slow
@pytest.mark.parametrize("has_checkpoint", [False, True])
@pytest.mark.parametrize("owned", [False, True])
def test_rebuilt_manifest_has_the_adopted_ledgers_that_its_records_named(
    store: ObjectStore, owned: bool, has_checkpoint: bool
) -> None:
    put_golden(store)
    adopted(store, take_ownership=owned)
    writer = StreamWriter(store, GOLDEN_STREAM)
    writer.add([batch_of(1008, 0, 50)])
    before = load_manifest(store, GOLDEN_STREAM)
    if has_checkpoint:
        writer.log.checkpoint()
    store.put(boundary_key(GOLDEN_STREAM, before.incarnation), b"damaged")
    lost = before.offloaded()[1]
    store.delete([lost.object_keys(GOLDEN_STREAM)[0]])

    done = rebuild_manifest(store, GOLDEN_STREAM, head=None, clock=SystemClock())

    after = load_manifest(store, GOLDEN_STREAM)
    assert [(each.uuid, each.summary, each.owned) for each in after.offloaded()] == [
        (each.uuid, each.summary, each.owned) for each in before.offloaded() if each != lost
    ]
    assert done.missing == [(lost.begin, lost.end)]
    reader = open_stream_reader(store, GOLDEN_STREAM)
    assert reader.count() == sum(each.content.entries for each in after.offloaded())
    assert sum(len(batch) for batch in reader.scan()) == reader.count()


def test_released_segments_are_forgotten_and_their_objects_stay(store: ObjectStore) -> None:
    put_golden(store)
    adopted(store)
    writer = StreamWriter(store, GOLDEN_STREAM)
    writer.add([batch_of(1008, 0, 50)])
    before = snapshot(store)
    assert release(store, GOLDEN_STREAM, clock=SystemClock(), dry_run=True) == len(CASES)
    assert open_stream_reader(store, GOLDEN_STREAM).first_position == Position(1001, 0)

    assert release(store, GOLDEN_STREAM, clock=SystemClock()) == len(CASES)

    assert snapshot(store) == before
    reader = open_stream_reader(store, GOLDEN_STREAM)
    assert (reader.first_position, reader.last_position, reader.count()) == (Position(1008, 0), Position(1008, 49), 50)
    assert release(store, GOLDEN_STREAM, clock=SystemClock()) == 0
    assert adopted(store).streams[0].first == Position(1001, 0)


def test_a_dry_run_writes_nothing(store: ObjectStore) -> None:
    put_golden(store)
    keys = {info.key for info in store.list("").objects}

    done = adopted(store, dry_run=True)

    assert len(done.streams[0].adopted) == len(CASES)
    assert {info.key for info in store.list("").objects} == keys


def test_again_adds_only_what_is_new(store: ObjectStore) -> None:
    put_golden(store, [CASES["v1-tiny"], CASES["v1-edges"]])
    adopted(store)
    record_id = load_manifest(store, GOLDEN_STREAM).record_id
    assert adopted(store).streams[0].already == 2
    assert load_manifest(store, GOLDEN_STREAM).record_id == record_id

    put_golden(store, [CASES["v1-rich-metadata"]])
    [found] = adopted(store).streams

    assert [begin.ledger_id for begin in found.adopted] == [1007]
    assert (found.first, found.last) == (Position(1001, 0), Position(1007, 2))


def test_the_proposals_read_handle_reads_an_adopted_ledger(store: ObjectStore) -> None:
    put_golden(store)
    adopted(store)
    case = CASES["v1-edges"]
    context = offload_context(load_manifest(store, GOLDEN_STREAM), case["ledger"])

    handle = read_offloaded(store, case["ledger"], context, context.driver_metadata, stream=GOLDEN_STREAM)

    entries = handle.read(0, case["last"])
    assert (len(entries), golden_digest(entries)) == (case["count"], case["sha256"])


def test_the_proposals_deletion_finds_an_owned_ledgers_objects(store: ObjectStore) -> None:
    put_golden(store)
    adopted(store, take_ownership=True)
    [first, *_] = load_manifest(store, GOLDEN_STREAM).offloaded()
    offloader = LedgerOffloader(store)

    offloader.delete_offloaded(first.uuid, first.driver, first.v1_ledger_id, stream=GOLDEN_STREAM).result(PATIENCE_S)

    offloader.close()
    assert set(snapshot(store)) & set(first.object_keys(GOLDEN_STREAM)) == set()
    assert len(snapshot(store)) == 2 * (len(CASES) - 1)


def test_own_segments_continue_after_the_adopted_ones(store: ObjectStore) -> None:
    put_golden(store)
    adopted(store)
    writer = StreamWriter(store, GOLDEN_STREAM)
    writer.add([batch_of(1008, 0, 50)])

    reader = open_stream_reader(store, GOLDEN_STREAM)

    assert (reader.first_position, reader.last_position) == (Position(1001, 0), Position(1008, 49))
    assert reader.count() == sum(case["count"] for case in CASES.values()) + 50
    across = reader.read(Position(1007, 1), Position(1008, 1))
    assert [entry.position for entry in across] == [
        Position(1007, 1), Position(1007, 2), Position(1008, 0), Position(1008, 1)
    ]  # fmt: skip


def test_adopting_history_in_front_does_not_fence_the_writer(store: ObjectStore) -> None:
    writer = StreamWriter(store, GOLDEN_STREAM)
    writer.add([batch_of(1008, 0, 50)])
    put_golden(store)

    [found] = adopted(store).streams

    assert (found.first, found.last) == (Position(1001, 0), Position(1008, 49))
    writer.add([batch_of(1008, 50, 50)])
    assert open_stream_reader(store, GOLDEN_STREAM).last_position == Position(1008, 99)


def test_history_with_a_gap_would_hide_what_can_be_read_and_is_left_out(store: ObjectStore) -> None:
    writer = StreamWriter(store, GOLDEN_STREAM)
    writer.add([batch_of(1008, 0, 50)])
    put_golden(store)
    missing = TopicLedger(1005, 7, 70, False)

    [found] = adopted(store, topics=[topic_of(list(CASES.values()), missing, TopicLedger(1008, 100, 1, False))]).streams

    assert [begin.ledger_id for begin in found.adopted] == [1007]
    assert [ledger.ledger_id for ledger in found.missing] == [1005, 1008]
    assert all("which would become unreadable" in left.why for left in found.left_out)
    assert (found.first, found.last) == (Position(1007, 0), Position(1008, 49))


def test_a_gap_that_the_broker_knows_of_ends_what_can_be_read(store: ObjectStore) -> None:
    put_golden(store)
    [found] = adopted(store, topics=[topic_of(list(CASES.values()), TopicLedger(1005, 7, 70, False))]).streams

    assert (found.first, found.last) == (Position(1001, 0), Position(1004, 20))
    assert found.unreadable == 1


def test_ledgers_without_entries_are_no_gap(store: ObjectStore) -> None:
    put_golden(store)
    [found] = adopted(store, topics=[topic_of(list(CASES.values()), TopicLedger(1005, 0, 0, False))]).streams
    assert found.last == Position(1007, 2)
    assert found.missing == []


def test_newer_of_two_complete_attempts_is_adopted(store: ObjectStore) -> None:
    case = CASES["v1-tiny"]
    put_golden(store, [case])
    older = store.head(case["index"]["key"]).modified_ms
    newer = UUID("99999999-9999-4999-8999-999999999999")

    def put_newer(key: str, body: bytes, metadata: Mapping[str, str]) -> bool:
        return store.put(key, body, metadata=metadata).modified_ms > older

    for role in ("data", "index"):
        body, info = store.get(case[role]["key"])
        key = case[role]["key"].replace(case["uuid"], str(newer))
        eventually(partial(put_newer, key, body, info.metadata))

    [found] = adopted(store).streams

    assert found.adopted == (Position(1001, 0),)
    assert [record.uuid for record in load_manifest(store, GOLDEN_STREAM).offloaded()] == [newer]
    assert [(str(left.segment.uuid), left.why) for left in found.left_out] == [
        (case["uuid"], f"attempt {newer} at the same entries is newer")
    ]


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["cut", "grown", "no last entry", "index", "index cut"])
def test_incomplete_attempt_is_reported_and_another_one_adopted(store: ObjectStore, damage: str) -> None:
    case = CASES["v1-multi"]
    put_golden(store, [case])
    bad = UUID("99999999-9999-4999-8999-999999999999")
    data, index = (store.get(case[role]["key"])[0] for role in ("data", "index"))
    match damage:
        case "cut":
            data = data[:-100]
        case "grown":
            data += b"\0"
        case "no last entry":
            # Pulsar has cut objects short without saying so: the index is right about the length.
            data = data[:-1_000_000] + bytes.fromhex("fedcdead") * 250_000
        case "index":
            index = index[:10] + b"\xff" + index[11:]
        case "index cut":
            index = index[:-1]
    store.put(f"{bad}-ledger-1003", data)
    store.put(f"{bad}-ledger-1003-index", index)

    done = adopted(store)

    assert [record.uuid for record in load_manifest(store, GOLDEN_STREAM).offloaded()] == [UUID(case["uuid"])]
    [problem] = done.problems
    assert problem.what == f"{bad}-ledger-1003"
    assert str(bad) in problem.why


def test_a_flipped_entry_is_found_by_reading_deeply(store: ObjectStore) -> None:
    case = CASES["v1-multi"]
    put_golden(store, [case])
    data, info = store.get(case["data"]["key"])
    at = 128 + 4  # the id of the first entry
    store.put(case["data"]["key"], data[:at] + b"\x01" + data[at + 1 :], metadata=info.metadata)

    assert adopted(store, dry_run=True).problems_count == 0
    [problem] = adopted(store, dry_run=True, deep=True).problems
    assert problem.what == case["data"]["key"]


def test_halves_and_foreign_objects_are_reported_and_left_alone(store: ObjectStore) -> None:
    put_golden(store)
    half = "99999999-9999-4999-8999-999999999999-ledger-5"
    store.put(half, b"data of an offload that failed")
    store.put("readme.txt", b"hello")
    store.put("somebody/else", b"hello")

    done = adopted(store)

    assert (done.unfinished.count, done.unfinished.examples) == (1, [half])
    assert (done.foreign.count, done.foreign.examples) == (1, ["readme.txt"])
    assert done.problems_count == 0


def test_an_object_of_another_format_version_is_refused(store: ObjectStore) -> None:
    put_golden(store, [CASES["v1-tiny"]], metadata={"s3managedledgeroffloaderformatversion": "7"})
    [problem] = adopted(store).problems
    assert "invalid object version" in problem.why


def test_topic_listing_identifies_ledgers_without_metadata(store: ObjectStore) -> None:
    put_golden(store, without=["managedledgername"])
    done = adopted(store, dry_run=True)
    assert (done.streams, done.unmatched.count) == ([], len(CASES))
    assert done.unmatched.examples[0] in {case["data"]["key"] for case in CASES.values()}

    done = adopted(store, topics=[topic_of(list(CASES.values()))])

    assert [each.stream for each in done.streams] == [GOLDEN_STREAM]
    assert done.unmatched.count == 0
    assert open_stream_reader(store, GOLDEN_STREAM).count() == sum(case["count"] for case in CASES.values())


def test_ledger_missing_from_or_longer_than_the_topic_is_left_out(store: ObjectStore) -> None:
    put_golden(store, [CASES["v1-tiny"], CASES["v1-edges"], CASES["v1-rich-metadata"]])
    short = {**CASES["v1-edges"], "count": 20}

    [found] = adopted(store, topics=[topic_of([short, CASES["v1-rich-metadata"]])]).streams

    assert [begin.ledger_id for begin in found.adopted] == [1007]
    assert sorted(left.why for left in found.left_out) == [
        "the topic has no ledger 1001",
        "the topic's ledger 1004 ends at entry 19, this has 20",
    ]


def test_two_clusters_in_one_bucket_are_never_mixed(store: ObjectStore) -> None:
    put_golden(store, [CASES["v1-tiny"]])
    put_golden(store, [CASES["v1-edges"]], metadata={"pulsarclustername": "other"})

    done = adopted(store)
    assert done.streams == []
    [problem] = done.problems
    assert "oracle-cluster, other" in problem.why

    [found] = adopted(store, cluster="other").streams
    assert [begin.ledger_id for begin in found.adopted] == [1004]


def test_entries_already_in_the_stream_are_not_adopted_again(store: ObjectStore) -> None:
    writer = StreamWriter(store, GOLDEN_STREAM)
    writer.add([batch_of(1001, 0, 10)], layout=Layout.V1, extension=False, closes=[1001])
    put_golden(store, [CASES["v1-tiny"]])

    [found] = adopted(store).streams

    assert found.adopted == ()
    assert [left.why for left in found.left_out] == [
        f"the stream already has these entries in segment {writer.uuids[0]}"
    ]


def test_only_named_streams_are_adopted(store: ObjectStore) -> None:
    put_golden(store, [CASES["v1-tiny"]])
    put_golden(store, [CASES["v1-edges"]], metadata={"managedledgername": "public/other/persistent/a%20b"})

    assert [each.stream for each in adopted(store, streams=["public/other/*"], dry_run=True).streams] == [
        "public/other/persistent/a b"
    ]
    assert len(adopted(store).streams) == 2


def test_stream_that_cannot_be_recorded_does_not_block_others(store: ObjectStore) -> None:
    put_golden(store, [CASES["v1-tiny"]])
    put_golden(store, [CASES["v1-edges"]], metadata={"managedledgername": "public/default/persistent/leases"})

    done = adopted(store)

    assert [each.stream for each in done.streams] == [GOLDEN_STREAM]
    [problem] = done.problems
    assert problem.what == "public/default/persistent/leases"


def test_v2_objects_of_pulsar_are_read_and_adopted_with_the_topic_listing(store: ObjectStore) -> None:
    segments = [segment for case in golden_cases("v2") for segment in case["segments"]]
    put_golden(store, segments, layout="v2")
    parts = {part["ledger"]: part for segment in segments for part in segment["parts"] if part["first"] == 0}
    ledgers = [TopicLedger(i, part["count"], part["payload_bytes"], True) for i, part in sorted(parts.items())]
    topic = TopicLedgers(TOPIC, (*ledgers, TopicLedger(9000, 0, 0, False)))

    done = adopted(store, topics=[topic])

    assert done.problems_count == 0
    assert len(done.streams[0].adopted) == len(segments) - 1
    assert done.unmatched.count == 1  # the one that begins at entry 100, of a ledger the topic doesn't have
    for ledger_id, part in parts.items():
        assert digest_of(store, ledger_id) == (part["count"], part["sha256"])


def test_the_same_topic_twice_must_be_the_same(store: ObjectStore) -> None:
    topic = topic_of(list(CASES.values()))
    adopted(store, topics=[topic, topic])
    with pytest.raises(InvalidCallError, match="given twice"):
        adopted(store, topics=[topic, topic_of([CASES["v1-tiny"]])])


def test_a_deleted_stream_stays_deleted(store: ObjectStore) -> None:
    from formats.manifest import StreamDeleted

    put_golden(store)
    log = ManifestLog(store, GOLDEN_STREAM, clock=SystemClock())
    log.open_epoch()
    log.commit([StreamDeleted()])

    done = adopted(store)

    assert done.streams == []
    assert "is being deleted" in done.problems[0].why


def entry(entry_id: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "big") + entry_id.to_bytes(8, "big") + payload


@pytest.mark.parametrize(
    ("tail", "is_there"),
    [
        pytest.param(entry(8, b"a") + entry(9, b"b"), True, id="without padding"),
        pytest.param(entry(9, b"b") + bytes.fromhex("fedcdeadfe"), True, id="padding, cut"),
        pytest.param(b"half an entry" + entry(9, b""), True, id="an empty one"),
        pytest.param(entry(9, b"b") + bytes.fromhex("dcdeadfe"), False, id="padding out of phase"),
        pytest.param(entry(9, b"b") + entry(10, b"c"), False, id="another one after it"),
        pytest.param(entry(8, entry(9, b"b")[4:]), False, id="its id inside of another"),
        pytest.param(entry(9, b"b")[:-1] , False, id="cut"),
        pytest.param((9).to_bytes(8, "big"), False, id="no length"),
        pytest.param(entry(9, (9).to_bytes(8, "big") * 3), True, id="its id in its own payload"),
        pytest.param(b"", False, id="nothing"),
    ],
)  # fmt: skip
def test_the_last_entry_is_recognised_at_the_end(tail: bytes, is_there: bool) -> None:
    assert ends_with_entry(tail, 9) is is_there


def index_saying(store: ObjectStore, case: Mapping[str, Any], **changed: Any) -> None:
    """Rewrites what a golden index says of its ledger."""
    key = case["index"]["key"]
    body, _ = store.get(key)
    index = decode_index(body, ledger_id=case["ledger"])
    ledger = replace(BookKeeperLedger.decode(index.groups[0].metadata), **changed)
    store.put(key, encode_index(replace(index, groups=(replace(index.groups[0], metadata=ledger.encode()),))))


def test_ledger_never_closed_is_left_out(store: ObjectStore) -> None:
    put_golden(store, [CASES["v1-tiny"], CASES["v1-edges"]])
    index_saying(store, CASES["v1-tiny"], closed=False)

    streams = {each.stream: each for each in adopted(store, topics=[topic_of(list(CASES.values()))]).streams}

    [left] = streams[GOLDEN_STREAM].left_out
    assert left.why == "its index says that the ledger wasn't closed"
    assert [begin.ledger_id for begin in streams[GOLDEN_STREAM].adopted] == [1004]


def test_more_payload_than_the_object_has_room_for_is_a_contradiction(store: ObjectStore) -> None:
    put_golden(store, [CASES["v1-tiny"]])
    index_saying(store, CASES["v1-tiny"], length_bytes=101)

    [problem] = adopted(store).problems

    assert "10 entries of 101 bytes together" in problem.why


def test_ledger_with_a_recorded_length_of_0_is_read(store: ObjectStore) -> None:
    put_golden(store, [CASES["v1-tiny"]])
    index_saying(store, CASES["v1-tiny"], length_bytes=0)

    done = adopted(store, topics=[topic_of([CASES["v1-tiny"]])])

    assert (done.streams[0].entries, done.streams[0].payload_bytes) == (10, 100)
