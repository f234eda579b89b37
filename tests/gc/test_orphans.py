"""Classifying a page of keys gives the same result as classifying each key."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from formats.documents import awaited_key, deletion_key, intent_key, topic_key
from formats.entries import Position
from formats.keys import is_segment_uuid_of, new_segment_uuid, parse_object_key
from formats.manifest import Assign, Hold, Offloaded, OpenEpoch, StreamDeleted
from offloader.gc.orphans import (
    Garbage,
    LiveSet,
    Outcome,
    Place,
    Reason,
    classified_again,
    classify_page,
    classify_upload,
)
from offloader.manifest.apply import apply_edits
from offloader.manifest.catalog import TopicState
from offloader.manifest.state import ManifestState
from offloader.store.base import ObjectInfo, UploadInfo
from tests.support.manifests import summary_of

STREAM = "s/a"
LIVE, DEAD, GIVEN_UP, OTHER = (UUID(int=number) for number in (1, 2, 3, 4))
NAMED = [new_segment_uuid(LIVE, number) for number in range(4)]
#: Ours and not named, of a dead incarnation, of one in doubt, of nobody, and one that the manifest adopted.
ADOPTED = UUID(int=77, version=4)
UUIDS = [*NAMED, ADOPTED, *(new_segment_uuid(i, 9) for i in (LIVE, DEAD, GIVEN_UP, OTHER)), UUID(int=5, version=4)]
OLD_MS = 1000


def known(*, held: bool = False, deleted: bool = False, alive: bool = True) -> LiveSet:
    begins = enumerate([*NAMED, ADOPTED])
    edits = [Assign(uuid, 2, Position(1, at), Position(1, at), 5, {}) for at, uuid in begins]
    more = [Hold(True, "")] if held else [OpenEpoch(1), StreamDeleted()] if deleted else []
    names = apply_edits(ManifestState(stream=STREAM, incarnation=LIVE), [*edits, *more], record_id=1)
    return LiveSet(
        stream=STREAM,
        names=names if alive else None,
        dead=frozenset([DEAD]),
        doubtful=frozenset([GIVEN_UP]),
        old_ms=OLD_MS,
    )


def plain(info: ObjectInfo, knowledge: LiveSet) -> str:
    """What a segment's object is, said once more."""
    parsed = parse_object_key(info.key, STREAM)
    if parsed is None:
        return "other"
    names = knowledge.names
    if names is not None and parsed.uuid in [*NAMED, ADOPTED] and not names.stream_deleted:
        return "needed"
    proven = [each for each in (LIVE, DEAD, GIVEN_UP) if is_segment_uuid_of(parsed.uuid, each)]
    if not proven or (proven == [LIVE] and names is None):
        return Reason.FOREIGN.name
    if proven == [GIVEN_UP]:
        return Reason.DOUBTFUL.name
    if knowledge.held:
        return Reason.HELD.name
    if info.modified_ms > OLD_MS:
        return Reason.YOUNG.name
    return (Reason.UNNAMED if proven == [LIVE] and names is not None and not names.stream_deleted else Reason.DEAD).name


def letters(uuid: UUID) -> st.SearchStrategy[str]:
    """A uuid as it is written in keys, or nearly so."""
    text = str(uuid)
    changed = st.builds(
        lambda at, letter: text[:at] + letter + text[at + 1 :], st.integers(0, 35), st.sampled_from("-g0aAé/. ")
    )
    return st.one_of(st.just(text), st.just(text), st.just(text.upper()), changed)


endings = st.sampled_from(
    ["", "", "-index", "-index", "-ledger-7", "-ledger-7-index", "-ledger-07", "-indey", "x", "-"]
)
names = st.builds(lambda uuid, end: uuid + end, st.sampled_from(UUIDS).flatmap(letters), endings)
infos = st.builds(
    lambda name, size, modified: ObjectInfo(f"{STREAM}/{name}", size, "", modified),
    st.one_of(names, names, st.text(max_size=50)),
    st.integers(0, 9),
    st.sampled_from([OLD_MS - 1, OLD_MS, OLD_MS + 1]),
)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.lists(infos, max_size=12), st.booleans(), st.booleans(), st.booleans())
@example([], False, False, True)
def test_a_page_is_judged_like_each_of_its_keys(page: list[ObjectInfo], held: bool, deleted: bool, alive: bool) -> None:
    knowledge = known(held=held, deleted=deleted, alive=alive)
    needed, size_bytes = 0, 0
    found: list[tuple[str, str]] = []
    for each in classify_page(page, knowledge):
        if isinstance(each, Garbage):
            assert each.outcome is Outcome.KEPT
            found += [(each.key, each.reason.name)] if each.place is Place.SEGMENT else []
            if each.place is Place.SEGMENT and each.reason.is_deletable:
                assert classified_again(each, knowledge) == each
        elif each[0] is Place.SEGMENT:
            needed, size_bytes = needed + each[1], size_bytes + each[2]
    expected = [(info, plain(info, knowledge)) for info in page]
    assert needed == sum(what == "needed" for _, what in expected)
    assert size_bytes == sum(info.size_bytes for info, what in expected if what == "needed")
    assert sorted(found) == sorted((info.key, what) for info, what in expected if what not in ("needed", "other"))


def test_running_upload_is_kept_and_late_named_upload_reclassified() -> None:
    knowledge = known()
    running = UploadInfo(f"{STREAM}/{NAMED[0]}", "u", 0)
    assert classify_upload(running, knowledge) is None
    late = UploadInfo(f"{STREAM}/{UUIDS[5]}", "u", 0)
    leftover = classify_upload(late, knowledge)
    assert leftover is not None
    assert (leftover.reason, leftover.reason.is_deletable) == (Reason.UNNAMED, True)
    names = knowledge.names
    assert names is not None
    assign = Assign(UUIDS[5], 2, Position(2, 0), Position(2, 0), 5, {})
    named = replace(knowledge, names=apply_edits(names, [assign], record_id=2))
    assert classified_again(leftover, named).reason is Reason.NAMED_SINCE


def test_upload_of_adopted_segment_is_foreign() -> None:
    knowledge = known()
    names = knowledge.names
    assert names is not None
    at = Position(1, len(NAMED))
    offloaded = apply_edits(names, [Offloaded(ADOPTED, summary_of(at, at), 6)], record_id=2)
    leftover = classify_upload(UploadInfo(f"{STREAM}/{ADOPTED}", "u", 0), replace(knowledge, names=offloaded))
    assert leftover is not None
    assert leftover.reason is Reason.FOREIGN


def test_deletion_lists_go_only_when_no_manifest_of_the_name_may_return() -> None:
    page = [
        ObjectInfo(key, 1, "", OLD_MS)
        for key in (
            awaited_key(STREAM, 7),
            *(deletion_key(STREAM, f"{5:016d}-{'0' * 16}", done=done) for done in (False, True)),
        )
    ]
    gone = replace(known(alive=False), doubtful=frozenset[UUID]())
    for knowledge, reason in [
        (gone, Reason.DEAD),
        (replace(gone, old_ms=OLD_MS - 1), Reason.YOUNG),
        (replace(gone, stopped=True), Reason.HELD),
        # A manifest that was given up, or whose entry is lost, says what is still to be deleted.
        (replace(gone, doubtful=frozenset([GIVEN_UP])), Reason.DOUBTFUL),
        (replace(gone, is_stream=False), Reason.UNLISTED),
        (replace(gone, is_stream=False, is_forgotten=True), Reason.DEAD),
    ]:
        found = list(classify_page(page, knowledge))
        assert [each.reason if isinstance(each, Garbage) else each for each in found] == [reason] * 3
    assert list(classify_page(page, known())) == [(Place.RETENTION, 1, 1)] * 3


def test_tombstoned_topic_documents_are_deleted_while_their_voids_stay() -> None:
    over = replace(known(), topic=TopicState(is_there=True, entry_is_over=True, intent_is_over=True))
    for key in (topic_key(STREAM), intent_key(STREAM)):
        (entry,) = classify_page([ObjectInfo(key, 300, "", OLD_MS)], over)
        assert isinstance(entry, Garbage)
        assert (entry.place, entry.reason) == (Place.RETENTION, Reason.DEAD)
        assert list(classify_page([ObjectInfo(key, 0, "", OLD_MS)], over)) == [(Place.RETENTION, 1, 0)]
