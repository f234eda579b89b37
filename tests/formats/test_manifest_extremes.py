"""Every encodable field of every record decodes, at the ends of its range."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from itertools import count
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formats.entries import EntryBatch, Position
from formats.errors import FormatError
from formats.manifest import EDIT_KINDS, Boundary, Edit, Record, Totals, Writer, decode_record, encode_record
from formats.summary import Layout
from offloader.manifest.log import load_manifest
from offloader.read.reader import open_stream_reader
from offloader.store.open import open_store
from tests.support.streams import StreamWriter, batch_of

LOWEST, HIGHEST = -(2**63), 2**63 - 1
_names = count()

integers = st.one_of(
    st.sampled_from([LOWEST - 1, LOWEST, LOWEST + 1, -1, 0, 1, HIGHEST - 1, HIGHEST, HIGHEST + 1, 2**64, 10**30]),
    st.integers(),
)
texts = st.one_of(st.text(max_size=8), st.sampled_from(["\ud800", "\x00", '"}', "ünï"]))


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Any value of a field's type, most at the ends."""
    if kind is Layout:
        return st.sampled_from(Layout)
    if kind is int:
        return integers
    if kind is str:
        return texts
    if kind is bool:
        return st.booleans()
    if kind is UUID:
        return st.uuids()
    if kind is Position:
        return st.builds(Position, integers, integers)
    if is_dataclass(kind) and isinstance(kind, type):
        hints = get_type_hints(kind)
        return st.builds(kind, **{field.name: values_of(hints[field.name]) for field in fields(kind)})
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return st.one_of(*(st.none() if each is NoneType else values_of(each) for each in arguments))
    if origin is tuple:
        return st.lists(values_of(arguments[0]), max_size=2).map(tuple)
    assert arguments == (str, str), f"{kind} is no mapping of texts"
    return st.dictionaries(texts, texts, max_size=2)


edits: st.SearchStrategy[Edit] = st.sampled_from(sorted(EDIT_KINDS.values(), key=str)).flatmap(values_of)
records = st.builds(
    Record,
    record_id=integers,
    incarnation=st.uuids(),
    epoch=integers,
    writer=values_of(Writer),
    time_ms=integers,
    edits=st.lists(edits, max_size=3).map(tuple),
    totals=values_of(Totals),
)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(records)
def test_encodable_record_is_decodable(record: Record) -> None:
    try:
        body = encode_record(record)
    except FormatError:
        return  # refused before anything is written
    try:
        found: Record | FormatError = decode_record(body)
    except FormatError as error:
        found = error
    assert found == record


@settings(max_examples=200, deadline=None)
@given(values_of(Boundary))
def test_encodable_boundary_is_decodable(boundary: Boundary) -> None:
    try:
        body = boundary.encode()
    except FormatError:
        return
    try:
        found: Boundary | FormatError = Boundary.decode(body)
    except FormatError as error:
        found = error
    assert found == boundary


@pytest.mark.slow
@pytest.mark.parametrize("times", [[LOWEST, LOWEST + 1, 5], [HIGHEST, LOWEST, 0], [HIGHEST] * 3, [LOWEST] * 3])
def test_a_stream_with_publish_times_at_the_ends_of_64_bits_can_be_read(times: list[int]) -> None:
    store = open_store(f"memory://extremes-{next(_names)}")
    writer = StreamWriter(store)
    writer.add([batch_of(1, 0, 3, times=times)], closes=[1])
    writer.add([batch_of(2, 0, 3, times=times)])
    try:
        load_manifest(store, writer.stream)
        failed = ""
    except Exception as error:
        failed = str(error)
    assert failed == ""
    writer.log.checkpoint()
    state = load_manifest(store, writer.stream)
    assert state == writer.log.state
    with open_stream_reader(store, writer.stream) as reader:
        found = [entry for batch in reader.scan() for entry in batch.entries()]
    assert found == writer.entries


def test_time_outside_64_bits_never_becomes_another() -> None:
    times: Any = np.array([2**63, 2**64 - 1], dtype=np.uint64)
    early: Any = np.array([5], dtype=np.uint64)
    try:
        wrapped = EntryBatch.build(1, 0, [b"a", b"b"], times).publish_times_ms.tolist()
    except FormatError:
        wrapped = []
    assert wrapped == []
    assert EntryBatch.build(1, 0, [b"a"], early).publish_times_ms.tolist() == [5]
